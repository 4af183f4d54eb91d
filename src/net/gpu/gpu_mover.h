/*
 * The mover of a comm that has GPU memory: it joins the sources and sinks of this room to the
 * operations of net/comm/mover.h. Also receives that the GPU unpacks itself.
 */
#ifndef TCPX_NET_GPU_GPU_MOVER_H
#define TCPX_NET_GPU_GPU_MOVER_H

#include "abi/unpack_queue.h"
#include "gpu/gpu.h"
#include "net/comm/for_movers.h"

/* From now on the comm has memory of this GPU, and of no other. Without the lock. */
MUST_CHECK int gpu_mover_attach(struct net_comm *comm, int device);

/* The same, if this comm leaves what it receives in GPU memory that a NIC writes. */
MUST_CHECK int gpu_mover_attach_for_unpack(struct net_comm *comm, int device);

/* Memory of that GPU; `is_staged`: the NIC never reads it itself. Without the lock. */
MUST_CHECK int gpu_mover_register(struct net_comm *comm, void *address, uint64_t bytes,
                                  bool is_staged, struct net_memory **memory);

/* --- unpack queues (unpack_queue.c) -------------------------------------------------------- */

/*
 * Payload is left in bounce memory, in pages that are reserved when the receive is posted. When all
 * of it has arrived, descriptors are published in the receive's slot of NCCL's unpack queue.
 * Consuming the receive frees the pages.
 */
extern const struct sink_ops sink_bounce;

/* As net_unpack_open(). Without the lock. */
MUST_CHECK int unpack_queue_open(struct net_comm *comm, int device, uint32_t largest,
                                 struct net_device_handle *handle);

/* Where in bounce memory a byte of a receive goes, and how many contiguous bytes follow it. */
uint8_t *unpack_queue_where(const struct net_comm *comm, const struct net_request *request,
                            uint64_t offset, uint64_t *most);
/* Its address on the GPU; 0: so many bytes are not contiguous there. */
gpu_address unpack_queue_where_on_gpu(const struct net_comm *comm,
                                      const struct net_request *request, uint64_t offset,
                                      uint64_t bytes);

#endif
