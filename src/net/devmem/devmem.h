/*
 * Device-memory TCP, as the rooms above use it. net/link: the pool that a link's payload arrives
 * in, and its connections steered there. net/gpu: sockets that receive into a pool, the control
 * messages of each read, and GPU memory that a NIC sends from.
 */
#ifndef TCPX_NET_DEVMEM_DEVMEM_H
#define TCPX_NET_DEVMEM_DEVMEM_H

#include "net/devmem/control_messages.h"
#include "net/devmem/descriptors.h"
#include "net/devmem/devmem_link.h"
#include "net/devmem/devmem_pool.h"
#include "net/devmem/devmem_source.h"
#include "net/devmem/devmem_uapi.h"
#include "net/devmem/zerocopy.h"

#endif
