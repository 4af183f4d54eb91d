/*
 * The source of a send whose bytes the NIC reads from GPU memory (devmem TCP): the socket call gets
 * an offset in a dma-buf instead of an address. The bytes count as sent when the peer has
 * acknowledged them.
 */
#ifndef TCPX_NET_GPU_TX_DMABUF_H
#define TCPX_NET_GPU_TX_DMABUF_H

#include "net/devmem/devmem.h"
#include "net/gpu/comm_gpu.h"

extern const struct source_ops source_dmabuf;

/*
 * Memory that the NIC can read in place. *source is NULL if it cannot, or if the settings do not
 * ask for it. Called without the lock, since the kernel may take long.
 */
MUST_CHECK int tx_dmabuf_register(struct net_comm *comm, gpu_address address, uint64_t bytes,
                                  struct devmem_source **source);

/* The operations of mover.h. */
void tx_dmabuf_poll(struct net_comm *comm, unsigned socket);
bool tx_dmabuf_is_in_flight(const struct net_comm *comm, unsigned socket);
void tx_dmabuf_abort(struct net_comm *comm);
void tx_dmabuf_close_sends(struct net_comm *comm);

void tx_dmabuf_close(struct net_comm *comm);

#endif
