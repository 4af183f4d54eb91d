/*
 * A caller sleeps. Where callers move the lanes, it also polls the sockets, so that no other thread
 * has to be woken first.
 */
#include "net/comm/wait.h"

#include "base/log.h"
#include "net/comm/lanes.h"
#include "net/comm/progress.h"
#include "net/comm/request.h"
#include "net/comm/sleeper.h"

#include <limits.h>
#include <poll.h>

static short wait_events(const struct net_comm *comm, unsigned lane)
{
    switch (comm->lanes[lane].wait) {
    case LANE_FOR_INPUT:
        return POLLIN;
    case LANE_FOR_ROOM:
        return POLLOUT;
    default:
        return 0;
    }
}

/* Completions of zero-copy sends are reported as an error, which is always polled. */
static bool wait_expects_notices(const struct net_comm *comm, unsigned lane)
{
    return comm->mover != NULL && lane < comm->link.sockets &&
           comm->mover->has_zero_copy(comm, lane);
}

/* The sockets to sleep on; *left_ms becomes 0 if something can be moved at once. */
static unsigned wait_for_sockets(struct net_comm *comm, struct pollfd *all, uint64_t *left_ms)
{
    enum { POLL_MS = 50 }; /* not all that matters is an event: the time since a loss */
    unsigned count = 0;

    *left_ms = *left_ms < POLL_MS ? *left_ms : POLL_MS;
    for (unsigned lane = 0; lane <= comm_reverse_lane(comm); lane++) {
        short events = wait_events(comm, lane);

        if (comm->lanes[lane].wait == LANE_MORE)
            *left_ms = 0;
        if (events != 0 || wait_expects_notices(comm, lane))
            all[count++] = (struct pollfd){.fd = lane_descriptor(comm, lane), .events = events};
    }
    if (progress_waits_for_gpu(comm) || comm->rx.stalled > 0)
        *left_ms = 0;
    comm->waits_changed = false;
    return count;
}

void wait_for_request(struct net_request *request, uint64_t deadline)
{
    enum { WITHOUT_WAKE_UP_MS = 1 };
    struct net_comm *comm = request->comm;
    struct pollfd all[WIRE_MOST_SOCKETS + 2];
    uint64_t now = clock_now();
    uint64_t left_ms = deadline <= now ? 0 : (deadline - now) / 1000000 + 1;
    struct sleeper *sleeper;
    unsigned count = 0;

    COMM_LOCKED(comm);
    progress(comm, true);
    if (request_has_ended(request))
        return;
    sleeper = sleeper_begin(request);
    if (comm->callers_move)
        count = wait_for_sockets(comm, all, &left_ms);
    if (sleeper != NULL)
        all[count++] = (struct pollfd){.fd = sleeper->fd, .events = POLLIN};
    else if (left_ms > WITHOUT_WAKE_UP_MS)
        left_ms = WITHOUT_WAKE_UP_MS;
    comm_lock_release(&comm->lock);
    if (poll(all, count, (int)(left_ms < INT_MAX ? left_ms : INT_MAX)) < 0)
        log_debug("a wait was interrupted");
    comm_lock_take(&comm->lock);
    sleeper_end(request, sleeper);
    progress_after_call(comm);
}
