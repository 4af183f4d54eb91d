/* How a message is cut into slices. */
#ifndef TCPX_NET_COMM_SLICES_H
#define TCPX_NET_COMM_SLICES_H

#include "net/comm/comm_state.h"

/* Cutting a message more finely costs more than sockets that share it gain. */
uint64_t slice_smallest(const struct net_comm *comm);
uint64_t slice_largest(const struct net_comm *comm, const struct net_request *request);

/* Of a message with `left` bytes to cut, the next slice, of `most` bytes at most. */
uint64_t slice_bytes(const struct net_comm *comm, uint64_t left, uint64_t most);

/*
 * How many of `left` bytes the next piece takes, at most `most`. The rest is not a single byte if
 * that can be avoided: one byte cannot be copied to a GPU by a copy engine (gpu.h), so a message is
 * not cut into pieces of which one is.
 */
static inline uint64_t slice_piece_bytes(uint64_t left, uint64_t most)
{
    if (left <= most)
        return left;
    return left - most == 1 && most > 2 ? most - 1 : most;
}

#endif
