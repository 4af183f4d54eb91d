/*
 * GPU memory that a NIC sends from: a dma-buf of it, bound to the NIC, for as long as the memory is
 * registered.
 */
#ifndef TCPX_NET_DEVMEM_DEVMEM_SOURCE_H
#define TCPX_NET_DEVMEM_DEVMEM_SOURCE_H

#include "gpu/gpu.h"
#include "net/device/device.h"
#include "net/nic/nic.h"

struct devmem_source {
    struct devmem_source *next;
    struct devmem_source **here;
    unsigned ifindex;
    gpu_address start; /* of the dma-buf: whole pages */
    uint64_t bytes;
    struct nic_binding binding;
    uint32_t id; /* of the dma-buf, as sends name it, also when the binding has ended */
};

/* Binds the whole pages around the range. The error text says what was not possible. */
MUST_CHECK int devmem_source_take(const struct net_device *device, struct gpu *gpu,
                                  gpu_address address, uint64_t bytes,
                                  struct devmem_source **source);
/* NULL is allowed. */
void devmem_source_give(struct devmem_source *source);

#endif
