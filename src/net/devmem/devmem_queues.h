/*
 * Receive queues of a NIC that are ours alone: memory is bound to them, headers are split off, and
 * ordinary traffic is kept away. What was changed for it is undone in the end, but for header
 * split, which harms nobody.
 */
#ifndef TCPX_NET_DEVMEM_DEVMEM_QUEUES_H
#define TCPX_NET_DEVMEM_DEVMEM_QUEUES_H

#include "base/error.h"

#include <stdint.h>

struct devmem_queues;

/* Asks for what can be known without changing anything: kernel, privilege, driver, queues, rules.
 */
MUST_CHECK int devmem_queues_possible(const char *interface);

/* As many queues as UCCL_TCPX_DEVMEM_QUEUES says, at most, and at least one. */
MUST_CHECK int devmem_queues_bind(const char *interface, unsigned ifindex, int dmabuf,
                                  struct devmem_queues **queues);

/* Ends the binding early; all else stays until the release. */
void devmem_queues_unbind(struct devmem_queues *queues);

/* Its connections have been closed. NULL is allowed. */
void devmem_queues_release(struct devmem_queues *queues);

uint32_t devmem_queues_id(const struct devmem_queues *queues);
unsigned devmem_queues_next(struct devmem_queues *queues);
MUST_CHECK int devmem_queues_count_out(const struct devmem_queues *queues, uint64_t *pages);

#endif
