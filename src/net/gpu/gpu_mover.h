/*
 * The mover of a comm that has GPU memory: it joins the sources and sinks of this room to the
 * operations of net/comm/mover.h.
 */
#ifndef TCPX_NET_GPU_GPU_MOVER_H
#define TCPX_NET_GPU_GPU_MOVER_H

#include "net/comm/for_movers.h"

/* From now on the comm has memory of this GPU, and of no other. Without the lock. */
MUST_CHECK int gpu_mover_attach(struct net_comm *comm, int device);

/* Memory of that GPU, or managed memory. Without the lock. */
MUST_CHECK int gpu_mover_register(struct net_comm *comm, void *address, uint64_t bytes,
                                  bool is_managed, struct net_memory **memory);

#endif
