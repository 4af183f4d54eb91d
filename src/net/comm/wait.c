/*
 * A sleeper polls its own lanes, so that no other thread has to be woken first, and the comm's
 * eventfd, which a thread writes that has ended a request. If several threads sleep, one
 * may take the wake-up of another, which then polls after 50 ms.
 */
#include "net/comm/wait.h"

#include "base/log.h"
#include "net/comm/lanes.h"
#include "net/comm/progress.h"
#include "net/comm/request.h"

#include <poll.h>
#include <sys/epoll.h>

static short wait_poll_events(uint32_t events)
{
    return (short)(events == 0 ? 0 : events == EPOLLIN ? POLLIN : POLLOUT);
}

static bool wait_expects_notices(const struct net_comm *comm, unsigned lane)
{
    return comm->mover != NULL && lane < comm->link.sockets &&
           comm->mover->has_zero_copy(comm, lane);
}

/* The descriptors to sleep on; *left_ms becomes 0 if something can be moved at once. */
static unsigned wait_descriptors(struct net_comm *comm, struct pollfd *all, uint64_t *left_ms)
{
    unsigned count = 0;

    for (unsigned lane = 0; lane <= comm_reverse_lane(comm); lane++) {
        uint32_t events = lane_events(comm, lane, comm->lanes[lane].wait);

        if (!lane_is_callers(comm, lane))
            continue;
        if (comm->lanes[lane].wait == LANE_MORE)
            *left_ms = 0;
        /* Completions of zero-copy sends are reported as an error, which is always polled. */
        if (events != 0 || wait_expects_notices(comm, lane))
            all[count++] = (struct pollfd){.fd = lane_descriptor(comm, lane),
                                           .events = wait_poll_events(events)};
    }
    if (progress_waits_for_gpu(comm) || comm->rx.stalled > 0)
        *left_ms = 0;
    if (comm->wake_fd >= 0)
        all[count++] = (struct pollfd){.fd = comm->wake_fd, .events = POLLIN};
    return count;
}

void wait_for_request(struct net_request *request, uint64_t deadline)
{
    enum { POLL_MS = 50 };
    struct net_comm *comm = request->comm;
    struct pollfd all[WIRE_MOST_SOCKETS + 2];
    uint64_t now = clock_now();
    uint64_t left_ms = deadline <= now ? 0 : (deadline - now) / 1000000 + 1;
    unsigned count;

    COMM_LOCKED(comm);
    progress_before_sleep(comm);
    if (request_has_ended(request))
        return;
    wake_open(comm);
    count = wait_descriptors(comm, all, &left_ms);
    comm->sleepers++;
    comm_lock_release(&comm->lock);
    if (poll(all, count, (int)(left_ms < POLL_MS ? left_ms : POLL_MS)) < 0)
        log_debug("a wait was interrupted");
    comm_lock_take(&comm->lock);
    comm->sleepers--;
    if (comm->wake_fd >= 0 && (all[count - 1].revents & POLLIN) != 0)
        wake_clear(comm);
}
