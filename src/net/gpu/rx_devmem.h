/*
 * The sink of sockets that receive into device memory (devmem TCP) and carry payload only: bytes
 * arrive in pages of a pool in GPU memory, described by control messages; they are unpacked to
 * where they belong, in GPU memory or host memory, and their tokens go back to the kernel when that
 * is done.
 */
#ifndef TCPX_NET_GPU_RX_DEVMEM_H
#define TCPX_NET_GPU_RX_DEVMEM_H

#include "net/gpu/comm_gpu.h"

/* Whether this comm receives into device memory when it has GPU memory. */
MUST_CHECK int rx_devmem_applies(const struct net_comm *comm, bool *applies);

/*
 * If the link receives into device memory, on its sockets that carry payload only. The first and
 * the second are called without the comm's lock; the third begins to read, with the lock.
 *
 * Payload from a NIC cannot be read in another way: reserved lanes wait for the start.
 */
void rx_devmem_reserve_lanes(struct net_comm *comm);
MUST_CHECK int rx_devmem_open(struct net_comm *comm);
void rx_devmem_start(struct net_comm *comm);
void rx_devmem_close(struct net_comm *comm);

/* Completes the parts that have been unpacked. */
void rx_devmem_poll(struct net_comm *comm);
bool rx_devmem_is_under_way(const struct net_comm *comm);

/* Warns when the pool has no free pages. Cheap while bytes arrive. May release the comm's lock. */
void rx_devmem_watch(struct net_comm *comm);

#endif
