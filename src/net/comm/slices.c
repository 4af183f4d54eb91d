/* Sizes of slices: large at first, then smaller. */
#include "net/comm/slices.h"

uint64_t slice_smallest(const struct net_comm *comm)
{
    const uint64_t smallest = 128 << 10;

    return comm->link.largest_slice < smallest ? comm->link.largest_slice : smallest;
}

uint64_t slice_largest(const struct net_comm *comm, const struct net_request *request)
{
    uint64_t share = comm->link.largest_slice / (request->source->in_host ? NET_HOST_SHARE : 1);

    return share >= WIRE_LEAST_SLICE ? share : comm->link.largest_slice;
}

/* They shrink, so that all sockets come to an end at about the same time. */
uint64_t slice_bytes(const struct net_comm *comm, uint64_t left, uint64_t most)
{
    /* Where one thread feeds all sockets, they gain nothing by smaller slices. */
    bool shared = !comm->callers_move;
    uint64_t slice = shared ? left / 2 / comm->link.sockets : most;

    if (slice < slice_smallest(comm))
        slice = slice_smallest(comm);
    return slice_piece_bytes(left, slice < most ? slice : most);
}
