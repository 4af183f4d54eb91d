/*
 * Receive queues of a NIC that this process has for itself: memory is bound to them, headers are
 * split off, and ordinary traffic is kept away. The release undoes all of it but header split,
 * which does no harm.
 */
#ifndef TCPX_NET_DEVMEM_DEVMEM_QUEUES_H
#define TCPX_NET_DEVMEM_DEVMEM_QUEUES_H

#include "base/error.h"

#include <stdint.h>

struct devmem_queues;

/* Checks, without a change, whether kernel, privilege, driver, queues and rules allow it. */
MUST_CHECK int devmem_queues_possible(const char *interface);

/* Binds one queue or more, up to UCCL_TCPX_DEVMEM_QUEUES. The caller keeps `dmabuf`. */
MUST_CHECK int devmem_queues_bind(const char *interface, unsigned ifindex, int dmabuf,
                                  struct devmem_queues **queues);

/* Ends the binding before the release, which undoes the rest. */
void devmem_queues_unbind(struct devmem_queues *queues);

/* Called after the connections that arrive there have been closed. NULL is allowed. */
void devmem_queues_release(struct devmem_queues *queues);

/* The binding's, also after it has ended. */
uint32_t devmem_queues_id(const struct devmem_queues *queues);

/* Each queue in turn. */
unsigned devmem_queues_next(struct devmem_queues *queues);

/* *pages: those that are in sockets, or received and not returned. */
MUST_CHECK int devmem_queues_count_out(const struct devmem_queues *queues, uint64_t *pages);

#endif
