/* Distributes slices over the lanes of a sender. */
#include "net/comm/tx_work.h"

#include "net/comm/lanes.h"
#include "net/comm/request.h"
#include "net/comm/slices.h"

/*
 * Large sends that follow each other are left to the I/O threads: the calling thread has the next
 * one to prepare. A single one is faster without a hand-over.
 */
enum { LARGE_BYTES = 64 << 10, CLOSE_NS = 50000 };

static bool tx_work_can_be_cut(const struct net_request *request)
{
    return request->state == REQUEST_MOVING && !request->source->by_pieces &&
           (request->source->is_ready == NULL || request->source->is_ready(request));
}

struct net_request *tx_work_next(struct net_comm *comm)
{
    struct net_request *oldest = NULL;

    COMM_LOCKED(comm);
    for (unsigned i = 0; comm->tx.slicing > 0 && i < comm->used_requests; i++) {
        struct net_request *request = &comm->requests[i];

        if (tx_work_can_be_cut(request) && request->handed_out < request->bytes &&
            (oldest == NULL || request->order < oldest->order))
            oldest = request;
    }
    return oldest;
}

static uint64_t tx_work_bytes(const struct net_comm *comm)
{
    uint64_t bytes = 0;

    for (unsigned i = 0; comm->tx.slicing > 0 && i < comm->used_requests; i++)
        if (tx_work_can_be_cut(&comm->requests[i]))
            bytes += comm->requests[i].bytes - comm->requests[i].handed_out;
    if (comm->mover != NULL)
        bytes += comm->mover->count_pieces(comm) * slice_smallest(comm);
    return bytes;
}

static uint64_t tx_work_slices(const struct net_comm *comm)
{
    uint64_t smallest = slice_smallest(comm);

    return (tx_work_bytes(comm) + smallest - 1) / smallest;
}

/* Lanes of I/O threads that have been woken, and will take a slice each. */
static unsigned tx_work_woken_lanes(const struct net_comm *comm)
{
    unsigned count = 0;

    for (unsigned i = comm->own_lanes; i < comm->link.sockets; i++)
        count += comm->lanes[i].events != 0 && !comm->lanes[i].unwatched && !comm->lanes[i].busy &&
                 outgoing_is_idle(&comm->tx.outgoing[i]);
    return count;
}

bool tx_work_is_taken(const struct net_comm *comm)
{
    COMM_LOCKED(comm);
    return !comm->watched && tx_work_slices(comm) <= tx_work_woken_lanes(comm);
}

/*
 * A lane that is busy or waits takes the next slice by itself, and so does the caller's. But in a
 * stream of large sends every slice has an idle lane woken for it, and the caller's takes the rest.
 */
void tx_work_wake_lanes(struct net_comm *comm)
{
    uint64_t slices;
    unsigned first = comm->watched ? 0 : comm->own_lanes;
    unsigned active = comm->link.framing == WIRE_INLINE || first == 0 ? first : first - 1;

    COMM_LOCKED(comm);
    if (first == comm->link.sockets || comm->link.sockets == 1)
        return;
    slices = tx_work_slices(comm);
    if (slices == 0)
        return;
    if (comm->tx.streams && !comm->watched)
        active = tx_work_woken_lanes(comm);
    else
        for (unsigned i = first; i < comm->link.sockets; i++)
            active += comm->lanes[i].busy || comm->lanes[i].events != 0;
    for (unsigned i = first; i < comm->link.sockets && active < slices; i++)
        if (!comm->lanes[i].busy && comm->lanes[i].events == 0 &&
            comm->lanes[i].wait != LANE_FOR_ARRIVALS) {
            lane_wake(comm, i);
            active++;
        }
}

void tx_work_begins(struct net_comm *comm, const struct net_request *request)
{
    COMM_LOCKED(comm);
    if (request->bytes >= LARGE_BYTES && comm->own_lanes < comm->link.sockets)
        comm->tx.streams = comm->pending > 1 || clock_now() < comm->tx.last_large_end + CLOSE_NS;
}

static void tx_fail_too_long(struct net_request *request)
{
    request_fail(request,
                 error_set(TCPX_INVALID_USAGE,
                           "a message of %llu bytes with tag %llu, but its receive at %s has "
                           "room for %llu",
                           (unsigned long long)request->bytes, (unsigned long long)request->tag,
                           request->comm->link.peer, (unsigned long long)request->room));
}

void tx_moved(struct net_request *request, uint64_t bytes)
{
    COMM_LOCKED(request->comm);
    request->moved += bytes;
    if (request->state != REQUEST_MOVING || request->records_queued != 0)
        return;
    if (request->too_long) {
        tx_fail_too_long(request);
    } else if (request->moved == request->bytes) {
        if (request->bytes >= LARGE_BYTES)
            request->comm->tx.last_large_end = clock_now();
        request_done(request);
    }
}
