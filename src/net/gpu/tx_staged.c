/* Copies from GPU memory to pinned slots. */
#include "net/gpu/tx_staged.h"

#include "net/comm/for_movers.h"
#include "net/gpu/copy_queue.h"
#include "net/gpu/part_copies.h"
#include "net/gpu/send_gate.h"

const struct source_ops source_staged = {.by_pieces = true};

/* --- copies -------------------------------------------------------------------------------- */

static bool tx_staged_has_bytes(const struct net_request *request)
{
    return request->state == REQUEST_MOVING && !request->source->in_host &&
           request->bytes !=
               (request->source->by_pieces ? request->gpu.staged : request->handed_out);
}

/*
 * The oldest opened send in GPU memory with bytes that can be copied and were not yet. Also polls
 * the gates of sends that need no copy.
 */
static struct net_request *tx_staged_next(struct net_comm *comm)
{
    struct net_request *oldest = NULL;

    comm->gpu->gated_sends = 0;
    for (unsigned i = 0; i < comm->used_requests; i++) {
        struct net_request *request = &comm->requests[i];

        if (!tx_staged_has_bytes(request))
            continue;
        if (!send_gate_is_open(comm, request))
            comm->gpu->gated_sends++;
        else if (request->source->by_pieces && (oldest == NULL || request->order < oldest->order))
            oldest = request;
    }
    return comm->result == TCPX_SUCCESS ? oldest : NULL; /* a gate may have failed it */
}

static uint64_t tx_staged_copy_bytes(const struct net_comm *comm, uint64_t left)
{
    const uint64_t least = 256 << 10; /* a copy costs the driver as much as some 100 KiB */
    uint64_t bytes = slice_bytes(comm, left, comm->link.largest_slice);
    uint64_t most = comm->gpu->share.pool->slot_bytes;

    if (bytes < least && comm->link.largest_slice >= least)
        bytes = least;
    return slice_piece_bytes(left, bytes < most ? bytes : most);
}

static void tx_staged_copy_ended(struct net_comm *comm, const struct copy *copy)
{
    if (comm->result != TCPX_SUCCESS || copy->request->cancelled)
        pinned_give(&comm->gpu->share, copy->slot);
    else if (!queue_push(&comm->gpu->ready, copy))
        comm_fail(comm, error_set(TCPX_INTERNAL_ERROR, "more copies than slots"));
}

static bool tx_staged_copy(struct net_comm *comm, struct net_request *request)
{
    struct copy copy = {.slot = pinned_take(&comm->gpu->share),
                        .request = request,
                        .offset = request->gpu.staged,
                        .ended = tx_staged_copy_ended};
    int result;

    if (copy.slot == NULL)
        return false;
    copy.bytes = part_copies_bytes(
        request, copy.offset, tx_staged_copy_bytes(comm, request->bytes - request->gpu.staged));
    copy.not_before = stages_slow_until(&comm->throttle, CONFIG_THROTTLE_D2H, copy.bytes);
    result = part_copies_out(comm, request, copy.offset, copy.bytes, copy.slot);
    request->gpu.staged += copy.bytes;
    return copy_queue_add(comm, &copy, result);
}

void tx_staged_prepare(struct net_comm *comm)
{
    struct net_request *request;

    COMM_LOCKED(comm);
    comm->mover->poll(comm);
    do
        request = comm->result == TCPX_SUCCESS ? tx_staged_next(comm) : NULL;
    while (request != NULL && tx_staged_copy(comm, request));
}

/* --- pieces -------------------------------------------------------------------------------- */

unsigned tx_staged_count_pieces(const struct net_comm *comm)
{
    return (unsigned)queue_length(&comm->gpu->ready);
}

bool tx_staged_next_piece(struct net_comm *comm, struct tx_piece *piece)
{
    const struct copy *oldest = queue_peek(&comm->gpu->ready);

    COMM_LOCKED(comm);
    if (oldest == NULL)
        return false;
    *piece = (struct tx_piece){.request = oldest->request,
                               .offset = oldest->offset,
                               .bytes = oldest->bytes,
                               .data = oldest->slot->host,
                               .piece = oldest->slot};
    return true;
}

void tx_staged_take_piece(struct net_comm *comm)
{
    COMM_LOCKED(comm);
    if (!queue_pop(&comm->gpu->ready, NULL))
        comm_fail(comm, error_set(TCPX_INTERNAL_ERROR, "a piece that is not there"));
}

void tx_staged_piece_sent(struct net_comm *comm, void *piece)
{
    COMM_LOCKED(comm);
    pinned_give(&comm->gpu->share, piece);
}

void tx_staged_drop_pieces(struct net_comm *comm)
{
    struct copy copy;

    COMM_LOCKED(comm);
    while (queue_pop(&comm->gpu->ready, &copy))
        pinned_give(&comm->gpu->share, copy.slot);
}

void tx_staged_forget(struct net_comm *comm, const struct net_request *request)
{
    struct queue *ready = &comm->gpu->ready;
    struct copy copy;

    COMM_LOCKED(comm);
    for (size_t left = queue_length(ready); left > 0 && queue_pop(ready, &copy); left--)
        if (copy.request == request)
            pinned_give(&comm->gpu->share, copy.slot);
        else if (!queue_push(ready, &copy))
            comm_fail(comm, error_set(TCPX_INTERNAL_ERROR, "more copies than slots"));
}

void tx_staged_close(struct net_comm *comm)
{
    tx_staged_drop_pieces(comm);
    for (unsigned i = 0; i < WIRE_MOST_SOCKETS; i++)
        if (comm->tx.outgoing[i].piece != NULL)
            pinned_give(&comm->gpu->share, comm->tx.outgoing[i].piece);
}
