/* Copies from pinned slots to GPU memory. */
#include "net/gpu/rx_staged.h"

#include "net/comm/for_movers.h"
#include "net/gpu/copy_queue.h"
#include "net/gpu/part_copies.h"
#include "net/gpu/send_gate.h"

#include <string.h>

/* --- copies -------------------------------------------------------------------------------- */

static void rx_staged_copy_ended(struct net_comm *comm, const struct copy *copy)
{
    pinned_give(&comm->gpu->share, copy->slot);
    /* Without a request: a stream of the caller waits for the copy. */
    if (!comm->copies_failed && copy->request != NULL)
        rx_copied(comm, copy->request, copy->bytes);
}

/* How many of the next bytes of a message one slot takes. */
static uint64_t rx_staged_slot_bytes(const struct net_comm *comm, const struct net_request *request,
                                     uint64_t offset, uint64_t left)
{
    return part_copies_bytes(request, offset,
                             slice_piece_bytes(left, comm->gpu->share.pool->slot_bytes));
}

static bool rx_staged_copy(struct net_comm *comm, struct net_request *request,
                           struct pinned_slot *slot, uint64_t offset, uint64_t bytes)
{
    const struct copy copy = {.slot = slot,
                              .request = request,
                              .bytes = bytes,
                              .not_before =
                                  stages_slow_until(&comm->throttle, CONFIG_THROTTLE_UNPACK, bytes),
                              .ended = rx_staged_copy_ended};

    request->copying += bytes;
    return copy_queue_add(comm, &copy, part_copies_in(comm, request, offset, bytes, slot));
}

/* --- the sink ------------------------------------------------------------------------------ */

static bool rx_staged_reserve(struct net_comm *comm, unsigned socket)
{
    const struct rx_payload *payload = &comm->rx.incoming[socket].payload;
    struct rx_slot *slot = &comm->gpu->rx_slots[socket];

    COMM_LOCKED(comm);
    if (slot->slot != NULL)
        return true;
    comm->mover->poll(comm);
    if (comm->result != TCPX_SUCCESS)
        return false;
    slot->slot = pinned_take(&comm->gpu->share);
    slot->bytes = 0;
    slot->room = rx_staged_slot_bytes(comm, payload->request, payload->at, payload->left);
    return slot->slot != NULL;
}

static struct iovec rx_staged_next(struct net_comm *comm, unsigned socket, uint8_t *scratch,
                                   uint64_t room)
{
    const struct rx_slot *slot = &comm->gpu->rx_slots[socket];
    uint64_t most = slot->room - slot->bytes;

    (void)scratch;
    return (struct iovec){.iov_base = slot->slot->host + slot->bytes,
                          .iov_len = room < most ? room : most};
}

static void rx_staged_filled(struct net_comm *comm, unsigned socket, uint64_t bytes)
{
    struct rx_payload *payload = &comm->rx.incoming[socket].payload;
    struct rx_slot *slot = &comm->gpu->rx_slots[socket];
    struct rx_slot full;

    COMM_LOCKED(comm);
    slot->bytes += bytes;
    /* A comm may have failed while the lock was free: then the slot is given back at the end. */
    if (slot->bytes < slot->room || comm->result != TCPX_SUCCESS)
        return;
    full = *slot;
    slot->slot = NULL;
    if (rx_staged_copy(comm, payload->request, full.slot, payload->at, full.bytes))
        payload->at += full.bytes;
}

static void rx_staged_abandon(struct net_comm *comm, unsigned socket)
{
    struct rx_slot *slot = &comm->gpu->rx_slots[socket];

    COMM_LOCKED(comm);
    if (slot->slot != NULL)
        pinned_give(&comm->gpu->share, slot->slot);
    slot->slot = NULL;
}

const struct sink_ops sink_staged = {.reserve = rx_staged_reserve,
                                     .abandon = rx_staged_abandon,
                                     .next = rx_staged_next,
                                     .filled = rx_staged_filled,
                                     .complete = sink_complete_receive};

/* --- unexpected messages ------------------------------------------------------------------- */

/* Copies as much as there are slots for now. */
static void rx_staged_deliver(struct net_comm *comm, struct net_request *request)
{
    struct unexpected *message = request->arrived;

    while (request->moved < message->bytes) {
        uint64_t bytes =
            rx_staged_slot_bytes(comm, request, request->moved, message->bytes - request->moved);
        struct pinned_slot *slot = pinned_take(&comm->gpu->share);

        if (slot == NULL)
            return;
        memcpy(slot->host, message->data + request->moved, bytes);
        if (!rx_staged_copy(comm, request, slot, request->moved, bytes))
            return;
        request->moved += bytes;
    }
    request->arrived = NULL;
    rx_unexpected_free(comm, message);
}

void rx_staged_deliver_unexpected(struct net_comm *comm)
{
    COMM_LOCKED(comm);
    comm->mover->poll(comm);
    for (unsigned i = 0; i < comm->used_requests && !comm->copies_failed; i++)
        if (comm->requests[i].arrived != NULL)
            rx_staged_deliver(comm, &comm->requests[i]);
}

/* --- completion on a stream ---------------------------------------------------------------- */

int rx_staged_finish_on_stream(struct net_comm *comm, struct net_request *request, void *stream,
                               bool *handed_over)
{
    struct gpu_event *event;
    int result;

    COMM_LOCKED(comm);
    /* Parts of a devmem socket run on other streams, so they are waited for here. */
    if (request->sink != &sink_staged || comm->gpu->devmem != NULL || !request->matched ||
        request->arrived != NULL || request->moved < request->bytes ||
        comm->throttle.stage == CONFIG_THROTTLE_UNPACK)
        return TCPX_SUCCESS;
    result = send_gate_event(comm, request, &event);
    if (result == TCPX_SUCCESS)
        result = gpu_event_record(event, comm->gpu->stream);
    if (result == TCPX_SUCCESS)
        result = gpu_caller_stream_wait(stream, event);
    if (result != TCPX_SUCCESS)
        return result;
    request->users -= copy_queue_disown(comm, request);
    request->copying = 0;
    *handed_over = true;
    return TCPX_SUCCESS;
}

void rx_staged_close(struct net_comm *comm)
{
    COMM_LOCKED(comm);
    for (unsigned i = 0; i < WIRE_MOST_SOCKETS; i++)
        if (comm->gpu->rx_slots[i].slot != NULL)
            pinned_give(&comm->gpu->share, comm->gpu->rx_slots[i].slot);
}
