/*
 * Pools of the kernel's devmem TCP: GPU memory bound to receive queues of a NIC that this process
 * has for itself. Headers are split off, and ordinary traffic is kept away. Closing a pool undoes
 * all of it but header split, which does no harm.
 */
#ifndef TCPX_NET_DEVMEM_DEVMEM_QUEUES_H
#define TCPX_NET_DEVMEM_DEVMEM_QUEUES_H

#include "net/devmem/devmem.h"

extern const struct devmem_pool_ops devmem_queues_ops;

#endif
