/*
 * GPU memory that a NIC sends from: a dma-buf of it, bound to the NIC, for as long as the memory is
 * registered.
 */
#ifndef TCPX_NET_DEVMEM_DEVMEM_SOURCE_H
#define TCPX_NET_DEVMEM_DEVMEM_SOURCE_H

#include "gpu/gpu.h"
#include "net/device/device.h"

struct devmem_source;

/* Binds the whole pages around the range. The error text says what was not possible. */
MUST_CHECK int devmem_source_take(const struct net_device *device, struct gpu *gpu,
                                  gpu_address address, uint64_t bytes,
                                  struct devmem_source **source);
/* NULL is allowed. */
void devmem_source_give(struct devmem_source *source);

/* The dma-buf, as sends name it. */
uint32_t devmem_source_id(const struct devmem_source *source);

/* Where a byte of the range is in the dma-buf. */
uint64_t devmem_source_offset(const struct devmem_source *source, gpu_address address);

#endif
