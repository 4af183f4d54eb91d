/*
 * The transport, as all above it use it: net/link makes connections, a comm moves messages over
 * them (net/comm/comm.h). Here comms are created and memory of GPUs is registered with them.
 */
#ifndef TCPX_NET_TRANSPORT_H
#define TCPX_NET_TRANSPORT_H

#include "abi/unpack_queue.h"
#include "net/comm/comm.h"

/* Takes the link's sockets over, and closes them if it fails. */
MUST_CHECK int net_comm_create(const struct net_link *link, enum net_side side,
                               struct net_comm **comm);

/*
 * Memory that messages are sent from and received into. GPU memory has to be registered with each
 * comm that uses it, of one GPU per comm; host memory may be. A registration ends after the last
 * request that uses it, with its comm at the latest. NULL can be deregistered.
 */
MUST_CHECK int net_register(struct net_comm *comm, void *address, uint64_t bytes,
                            struct net_memory **memory);
void net_deregister(struct net_comm *comm, struct net_memory *memory);

/*
 * All memory of a GPU, wherever it is: for messages that are copied through host memory, never read
 * by the NIC. What has to be pinned for that is pinned now.
 */
MUST_CHECK int net_register_gpu(struct net_comm *comm, int device, struct net_memory **memory);

/*
 * From now on receives of this comm, which is FIFO and has had none yet, are unpacked by the GPU:
 * what is received into GPU memory stays in bounce memory, and its descriptors, of at most
 * `largest` bytes each (0: any), are in slot k % 16 of the unpack queue when receive k is done.
 * Such a request lives until net_consumed(), in any order; with 16 that are not consumed, or no
 * bounce memory, the comm is busy. At most 4 MiB each. `handle`: as NCCL's accept gives it to the
 * kernels.
 */
MUST_CHECK int net_unpack_open(struct net_comm *comm, int device, uint32_t largest,
                               struct net_device_handle *handle);

#endif
