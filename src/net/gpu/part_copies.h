/*
 * Parts of a message in GPU memory, between their memory and a pinned slot: by a copy engine each,
 * or all by one kernel where they are many and small and the comm allows kernels.
 */
#ifndef TCPX_NET_GPU_PART_COPIES_H
#define TCPX_NET_GPU_PART_COPIES_H

#include "net/gpu/comm_gpu.h"

#include <sys/uio.h>

/* How many bytes of the message, from `offset` on, go through one slot; `most` at most. */
uint64_t part_copies_bytes(const struct net_request *request, uint64_t offset, uint64_t most);

/* `bytes`: as the above says. With the comm's lock, on its stream. */
MUST_CHECK int part_copies_out(const struct net_comm *comm, const struct net_request *request,
                               uint64_t offset, uint64_t bytes, const struct pinned_slot *slot);
MUST_CHECK int part_copies_in(const struct net_comm *comm, const struct net_request *request,
                              uint64_t offset, uint64_t bytes, const struct pinned_slot *slot);

#endif
