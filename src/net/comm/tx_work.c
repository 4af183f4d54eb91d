/* Distributes slices over the lanes of a sender. */
#include "net/comm/tx_work.h"

#include "net/comm/lanes.h"
#include "net/comm/request.h"
#include "net/comm/slices.h"

/* --- bytes that no socket has taken --------------------------------------------------------- */

/* Sends are opened almost in their order. */
void tx_work_add(struct net_comm *comm, struct net_request *request)
{
    struct comm_tx *tx = &comm->tx;
    struct net_request *older = tx->newest_untaken;

    COMM_LOCKED(comm);
    while (older != NULL && older->order > request->order)
        older = older->older;
    request->older = older;
    request->newer = older != NULL ? older->newer : tx->oldest_untaken;
    *(older != NULL ? &older->newer : &tx->oldest_untaken) = request;
    *(request->newer != NULL ? &request->newer->older : &tx->newest_untaken) = request;
}

void tx_work_taken(struct net_comm *comm, struct net_request *request, uint64_t bytes)
{
    COMM_LOCKED(comm);
    request->handed_out += bytes;
    if (request->handed_out == request->bytes)
        tx_work_drop(comm, request);
}

void tx_work_drop(struct net_comm *comm, struct net_request *request)
{
    struct comm_tx *tx = &comm->tx;

    COMM_LOCKED(comm);
    *(request->older != NULL ? &request->older->newer : &tx->oldest_untaken) = request->newer;
    *(request->newer != NULL ? &request->newer->older : &tx->newest_untaken) = request->older;
}

static bool tx_work_can_be_cut(const struct net_request *request)
{
    return !request->source->by_pieces &&
           (request->source->is_ready == NULL || request->source->is_ready(request));
}

struct net_request *tx_work_next(struct net_comm *comm)
{
    struct net_request *request = comm->tx.oldest_untaken;

    COMM_LOCKED(comm);
    while (request != NULL && !tx_work_can_be_cut(request))
        request = request->newer;
    return request;
}

/* At most `most` are counted. */
static uint64_t tx_work_slices(const struct net_comm *comm, uint64_t most)
{
    uint64_t smallest = slice_smallest(comm);
    uint64_t slices = comm->mover != NULL ? comm->mover->count_pieces(comm) : 0;

    for (const struct net_request *request = comm->tx.oldest_untaken;
         request != NULL && slices < most; request = request->newer)
        if (tx_work_can_be_cut(request))
            slices += (request->bytes - request->handed_out + smallest - 1) / smallest;
    return slices < most ? slices : most;
}

/* --- lanes ---------------------------------------------------------------------------------- */

/* Whether it will take a slice by itself. */
static bool tx_work_is_active(const struct lane *lane)
{
    return lane->busy || lane->is_woken || lane->wait == LANE_FOR_ROOM || lane->wait == LANE_MORE;
}

void tx_work_wake_lanes(struct net_comm *comm)
{
    unsigned first = comm->link.framing == WIRE_INLINE ? 0 : 1; /* that carries slices */
    unsigned active = 0;
    uint64_t slices;

    COMM_LOCKED(comm);
    if (!comm->owned || comm->result != TCPX_SUCCESS)
        return;
    if (queue_length(&comm->tx.planned) > 0 && !tx_work_is_active(&comm->lanes[0]))
        lane_wake(comm, 0);
    slices = tx_work_slices(comm, comm->link.sockets);
    for (unsigned i = first; i < comm->link.sockets && slices > 0; i++)
        active += tx_work_is_active(&comm->lanes[i]);
    for (unsigned i = first; i < comm->link.sockets && active < slices; i++)
        if (!tx_work_is_active(&comm->lanes[i]) && comm->lanes[i].wait != LANE_FOR_ARRIVALS) {
            lane_wake(comm, i);
            active++;
        }
}

/* --- done ----------------------------------------------------------------------------------- */

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
    if (request->too_long)
        tx_fail_too_long(request);
    else if (request->moved == request->bytes)
        request_done(request);
}
