/* Lanes and the epoll sets of the I/O threads. */
#include "net/comm/lanes.h"

#include <sys/epoll.h>

bool lane_is_callers(const struct net_comm *comm, unsigned lane)
{
    return lane < comm->own_lanes || lane == comm_reverse_lane(comm);
}

int lane_descriptor(const struct net_comm *comm, unsigned lane)
{
    return lane == comm_reverse_lane(comm) ? comm->link.reverse : comm->link.forward[lane];
}

static bool lane_reads(const struct net_comm *comm, unsigned lane)
{
    return (comm->side == NET_RECEIVER) == (lane != comm_reverse_lane(comm));
}

/* Which of the comm's I/O threads has it. */
static unsigned lane_place(const struct net_comm *comm, unsigned lane)
{
    return lane == 0 || lane == comm_reverse_lane(comm) ? 0 : lane - 1;
}

uint32_t lane_events(const struct net_comm *comm, unsigned lane, enum lane_wait wait)
{
    switch (wait) {
    case LANE_FOR_INPUT:
        return EPOLLIN;
    case LANE_FOR_ROOM:
        return EPOLLOUT;
    case LANE_MORE:
        return lane_reads(comm, lane) ? EPOLLIN : EPOLLOUT;
    default:
        return 0;
    }
}

void lane_wait_for(struct net_comm *comm, unsigned number, uint32_t events)
{
    struct lane *lane = &comm->lanes[number];

    COMM_LOCKED(comm);
    if (comm->io.crew == NULL || lane->unwatched || lane->events == events)
        return;
    lane->events = events;
    io_change(&comm->io, lane_descriptor(comm, number), number, lane_place(comm, number), events);
}

void lane_wake(struct net_comm *comm, unsigned lane)
{
    COMM_LOCKED(comm);
    if (!comm->lanes[lane].busy && (comm->watched || !lane_is_callers(comm, lane)))
        lane_wait_for(comm, lane, lane_reads(comm, lane) ? EPOLLIN : EPOLLOUT);
}

void lane_unwatch(struct net_comm *comm, unsigned number)
{
    struct lane *lane = &comm->lanes[number];

    COMM_LOCKED(comm);
    if (comm->io.crew == NULL || lane->unwatched)
        return;
    lane->unwatched = true;
    io_remove(&comm->io, lane_descriptor(comm, number), lane_place(comm, number));
}

void lanes_unwatch(struct net_comm *comm)
{
    for (unsigned lane = 0; lane <= comm_reverse_lane(comm); lane++)
        lane_unwatch(comm, lane);
}

/* All or none: a lane that stays in an epoll set would wake its thread for ever. */
int lanes_add(struct net_comm *comm)
{
    int result = TCPX_SUCCESS;
    unsigned lane;

    COMM_LOCKED(comm);
    for (lane = 0; lane <= comm_reverse_lane(comm) && result == TCPX_SUCCESS; lane++) {
        /* With separate framing, a record announces that another lane has something to read. */
        bool at_once = !lane_is_callers(comm, lane) && lane_reads(comm, lane) &&
                       comm->link.framing == WIRE_INLINE;

        comm->lanes[lane].events = at_once ? EPOLLIN : 0;
        result = io_add(&comm->io, lane_descriptor(comm, lane), lane, lane_place(comm, lane),
                        comm->lanes[lane].events);
    }
    for (unsigned added = 0; result != TCPX_SUCCESS && added + 1 < lane; added++)
        io_remove(&comm->io, lane_descriptor(comm, added), lane_place(comm, added));
    return result;
}
