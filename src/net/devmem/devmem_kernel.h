/* Pools in the kernel's devmem TCP: GPU memory that is bound to receive queues of a NIC. */
#ifndef TCPX_NET_DEVMEM_DEVMEM_KERNEL_H
#define TCPX_NET_DEVMEM_DEVMEM_KERNEL_H

#include "net/devmem/devmem_pool_ops.h"

extern const struct devmem_pool_ops devmem_kernel_ops;

#endif
