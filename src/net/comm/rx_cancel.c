/* Turns receives into places that discard. */
#include "net/comm/rx_cancel.h"

#include "net/comm/fail.h"
#include "net/comm/request.h"
#include "net/comm/rx_announce.h"
#include "net/comm/rx_done.h"
#include "net/comm/rx_match.h"

static void sink_cancelled_copy_in(const struct net_comm *comm, const struct net_request *request,
                                   const uint8_t *data, uint64_t bytes)
{
    (void)comm;
    (void)request;
    (void)data;
    (void)bytes;
}

/* Bytes count, so that it is known when the last one has come. */
static const struct sink_ops sink_cancelled = {.next = sink_discard_next,
                                               .filled = sink_discard_filled,
                                               .complete = sink_complete_receive,
                                               .copy_in = sink_cancelled_copy_in};

void rx_cancel_payload(struct net_comm *comm, unsigned socket)
{
    struct rx_payload *payload = &comm->rx.incoming[socket].payload;

    COMM_LOCKED(comm);
    if (payload->request == NULL || !payload->request->cancelled ||
        payload->sink == &sink_cancelled || comm->rx.lane_sinks[socket] != NULL)
        return; /* a sink that reads the socket itself discards by itself */
    if (payload->sink->abandon != NULL)
        payload->sink->abandon(comm, socket);
    payload->sink = &sink_cancelled;
}

/* All bytes are here: it ends by itself, as soon as they are at their place. */
static bool rx_has_arrived(const struct net_request *request)
{
    return request->arrived != NULL || (request->matched && request->moved >= request->bytes);
}

void rx_cancel(struct net_comm *comm, struct net_request *request)
{
    COMM_LOCKED(comm);
    if (rx_has_arrived(request))
        return;
    request->cancelled = true;
    atomic_store_explicit(&request->is_looked_at, false, memory_order_relaxed);
    request->sink = &sink_cancelled;
    for (unsigned i = 0; i < comm->link.sockets; i++)
        if (!comm->lanes[i].busy) /* its owner does so after the call */
            rx_cancel_payload(comm, i);
    if (!request->is_place)
        rx_announce_cancel(comm, request->sequence);
    request_notify(request);
}

/* --- what is left of it --------------------------------------------------------------------- */

void rx_cancel_leave(struct net_comm *comm, struct net_request *request)
{
    COMM_LOCKED(comm);
    request->is_orphan = true;
    comm->rx.orphans += !request_is_in_order(request);
}

/* A comm of few requests has no places in order to speak of. */
bool rx_cancel_has_room(const struct net_comm *comm)
{
    enum { MOST_ORPHANS = 128 };

    COMM_LOCKED(comm);
    return comm->most_requests <= 2 * NET_PLACES || comm->rx.orphans < MOST_ORPHANS;
}

/* --- the sender cancels --------------------------------------------------------------------- */

/* Its slices may come later, on other sockets. */
static bool rx_may_be_cut(const struct net_request *request, uint64_t bytes)
{
    if (request == NULL || request->is_cut || bytes < request->begun)
        return false;
    return bytes == 0 || bytes < (request->matched ? request->bytes : request->room);
}

void rx_cancelled_by_sender(struct net_comm *comm, struct net_request *request, uint64_t bytes)
{
    COMM_LOCKED(comm);
    if (!rx_may_be_cut(request, bytes)) {
        comm_fail_protocol(comm, "CANCELLED after %llu bytes of a receive, which cannot be",
                           (unsigned long long)bytes);
        return;
    }
    rx_match_ends(comm, request);
    request->is_cut = true;
    request->cut_at = bytes;
    rx_done_if_complete(comm, request);
}
