/* Lanes and the I/O threads that own their sockets. */
#include "net/comm/lanes.h"

#include <sys/epoll.h>

int lane_descriptor(const struct net_comm *comm, unsigned lane)
{
    return lane == comm_reverse_lane(comm) ? comm->link.reverse : comm->link.forward[lane];
}

bool lane_reads(const struct net_comm *comm, unsigned lane)
{
    return (comm->side == NET_RECEIVER) == (lane != comm_reverse_lane(comm));
}

static uint32_t lane_events(const struct net_comm *comm, unsigned lane)
{
    return !comm->owned ? 0 : lane_reads(comm, lane) ? EPOLLIN | EPOLLRDHUP : EPOLLOUT;
}

/* The reverse lane has little to do: it shares the thread of the first one. */
static unsigned lane_place(const struct net_comm *comm, unsigned lane)
{
    return lane == comm_reverse_lane(comm) ? 0 : lane;
}

/* A thread that moves the lane at the moment wakes the owner when it is done. */
void lane_wake(struct net_comm *comm, unsigned number)
{
    struct lane *lane = &comm->lanes[number];

    COMM_LOCKED(comm);
    if (!comm->owned)
        return;
    if (lane->busy) {
        lane->missed = true;
    } else {
        lane->is_woken = true;
        io_wake(&lane->task);
    }
}

void lanes_own(struct net_comm *comm, bool owned)
{
    COMM_LOCKED(comm);
    comm->owned = owned;
    for (unsigned lane = 0; lane <= comm_reverse_lane(comm); lane++)
        io_change(&comm->lanes[lane].task, lane_events(comm, lane));
}

void lanes_remove(struct net_comm *comm)
{
    COMM_LOCKED(comm);
    for (unsigned lane = 0; lane <= comm_reverse_lane(comm); lane++)
        io_remove(&comm->lanes[lane].task);
}

int lanes_add(struct net_comm *comm, io_run *run)
{
    int result = TCPX_SUCCESS;

    COMM_LOCKED(comm);
    for (unsigned lane = 0; lane <= comm_reverse_lane(comm) && result == TCPX_SUCCESS; lane++)
        result = io_add(&comm->io, &comm->lanes[lane].task, run, lane_descriptor(comm, lane),
                        lane_place(comm, lane), lane_events(comm, lane));
    if (result != TCPX_SUCCESS)
        lanes_remove(comm);
    return result;
}
