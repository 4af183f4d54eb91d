/* Ends a send before all of it is sent. */
#include "net/comm/tx_cancel.h"

#include "net/comm/fail.h"
#include "net/comm/lanes.h"
#include "net/comm/parts.h"
#include "net/comm/request.h"
#include "net/comm/tx_match.h"
#include "net/comm/tx_work.h"

#include <errno.h>
#include <stdlib.h>

/* --- memory of the caller ------------------------------------------------------------------- */

/* What is still needed of it becomes the comm's own. NULL: the comm has failed. */
static uint8_t *tx_own_copy(struct net_comm *comm, const struct net_request *request,
                            uint64_t offset, uint64_t bytes)
{
    uint8_t *own = malloc(bytes > 0 ? bytes : 1);

    if (own == NULL)
        comm_fail(comm, error_system(ENOMEM, "the rest of a cancelled send"));
    else
        parts_copy_out(request, offset, own, bytes);
    return own;
}

/*
 * A slice or an eager message that has begun goes on, since its record has said how long it is.
 * A slice in GPU memory has been copied already.
 */
static void tx_detach_outgoing(struct net_comm *comm, struct outgoing *outgoing)
{
    if (outgoing->piece == NULL) {
        outgoing->own = tx_own_copy(comm, outgoing->request, outgoing->at, outgoing->payload_left);
        outgoing->payload = outgoing->own;
    }
    outgoing->request = NULL;
}

static void tx_disown_records(struct outgoing *outgoing, const struct net_request *request)
{
    for (unsigned i = 0; i < outgoing->record_owner_count; i++)
        if (outgoing->record_owners[i] == request)
            outgoing->record_owners[i] = NULL;
}

/* Nothing of it has begun: its place gets no bytes, so that no copy of them is needed. */
static void tx_replace_eager(struct planned *planned, struct net_request *request)
{
    planned->record = (struct wire_record){
        .type = WIRE_CANCELLED, .flags = WIRE_TO_PLACE, .sequence = request->sequence};
    request->handed_out = 0;
}

static void tx_detach_planned(struct net_comm *comm, struct net_request *request)
{
    for (size_t i = 0; i < queue_length(&comm->tx.planned); i++) {
        struct planned *planned = queue_at(&comm->tx.planned, i);

        if (planned->request != request)
            continue;
        if (planned->record.type == WIRE_EAGER && request->is_place)
            tx_replace_eager(planned, request);
        else if (planned->record.type == WIRE_EAGER && request->bytes > 0)
            planned->own = tx_own_copy(comm, request, 0, request->bytes);
        planned->request = NULL;
        comm->tx.ownerless++;
    }
}

void tx_cancel_after_call(struct net_comm *comm, unsigned socket)
{
    struct outgoing *outgoing = &comm->tx.outgoing[socket];

    COMM_LOCKED(comm);
    if (outgoing->request != NULL && outgoing->request->cancelled && comm->result == TCPX_SUCCESS)
        tx_detach_outgoing(comm, outgoing);
}

/* A call that uses the memory now is followed by tx_cancel_after_call(). */
static void tx_detach(struct net_comm *comm, struct net_request *request)
{
    request->cancelled = true;
    tx_detach_planned(comm, request);
    for (unsigned i = 0; i < comm->link.sockets; i++) {
        tx_disown_records(&comm->tx.outgoing[i], request);
        if (comm->tx.outgoing[i].request == request && !comm->lanes[i].busy)
            tx_detach_outgoing(comm, &comm->tx.outgoing[i]);
    }
    if (comm->mover != NULL)
        comm->mover->forget_send(comm, request);
}

/* --- stopping ------------------------------------------------------------------------------- */

/*
 * The peer's receive ends, too: it gets no further bytes. A place that gets all of them looks there
 * as if nobody had stopped, so that it is done here, as well.
 */
static void tx_stop(struct net_comm *comm, struct net_request *request, int result)
{
    if (request->handed_out < request->bytes) {
        tx_work_drop(comm, request);
        tx_match_plan(comm, NULL,
                      &(struct wire_record){.type = WIRE_CANCELLED,
                                            .flags = request->is_place ? WIRE_TO_PLACE : 0,
                                            .sequence = request->sequence,
                                            .length = request->handed_out});
        lane_wake(comm, 0);
    }
    tx_detach(comm, request);
    if (request_is_outstanding(request)) /* and the comm has not failed */
        request_fail(request, request->is_place && request->handed_out == request->bytes
                                  ? TCPX_SUCCESS
                                  : result);
}

static bool tx_reads_by_reference(const struct net_request *request)
{
    return request->source->write != NULL && request->handed_out > 0;
}

void tx_cancel(struct net_comm *comm, struct net_request *request)
{
    int result = error_set(TCPX_CANCELLED, "a send of %llu bytes with tag %llu was cancelled",
                           (unsigned long long)request->bytes, (unsigned long long)request->tag);

    COMM_LOCKED(comm);
    if (request->state == REQUEST_WAITING) {
        tx_match_forget(comm, request);
        request_fail(request, result);
    } else if (tx_reads_by_reference(request)) {
        comm_fail(comm, error_set(TCPX_SYSTEM_ERROR,
                                  "a send was cancelled that the network reads from GPU memory"));
    } else if (!request->too_long) {
        tx_stop(comm, request, result);
    }
}

void tx_cancel_place(struct net_comm *comm, struct net_request *request)
{
    const struct wire_record record = {
        .type = WIRE_CANCELLED, .flags = WIRE_TO_PLACE, .sequence = request->sequence};

    COMM_LOCKED(comm);
    if (!tx_match_plan(comm, NULL, &record))
        return;
    lane_wake(comm, 0);
    request_fail(request, error_set(TCPX_CANCELLED, "nothing is sent to place %u of %s",
                                    request->sequence, comm->link.peer));
}

/* --- the receiver cancels ------------------------------------------------------------------- */

/* The send that goes into this receive, if it can be stopped. */
static struct net_request *tx_find_moving(struct net_comm *comm, uint32_t sequence)
{
    for (unsigned i = 0; i < comm->used_requests; i++) {
        struct net_request *request = &comm->requests[i];

        if (request->state == REQUEST_MOVING && request->has_sequence && !request->too_long &&
            request->sequence == sequence && request->handed_out < request->bytes)
            return request;
    }
    return NULL;
}

/* What is on its way, or has no send any more, needs no answer: all of it arrives. */
void tx_cancelled_by_receiver(struct net_comm *comm, uint32_t sequence)
{
    struct net_request *request = tx_find_moving(comm, sequence);

    COMM_LOCKED(comm);
    if (request == NULL) {
        if (tx_match_withdraw_post(comm, sequence)) {
            tx_match_plan(comm, NULL,
                          &(struct wire_record){.type = WIRE_CANCELLED, .sequence = sequence});
            lane_wake(comm, 0);
        }
        return;
    }
    if (tx_reads_by_reference(request)) /* it goes on: its bytes are discarded there */
        return;
    tx_stop(comm, request,
            error_set(TCPX_REMOTE_ERROR, "%s has cancelled its receive of tag %llu",
                      comm->link.peer, (unsigned long long)request->tag));
}
