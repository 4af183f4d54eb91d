/*
 * Whole pages of shared memory, zeroed. Shared, so that a fork() does not move the parent's pages
 * away from under a GPU or a NIC by copy-on-write.
 */
#ifndef TCPX_GPU_PAGES_H
#define TCPX_GPU_PAGES_H

#include "base/error.h"

#include <stdint.h>

enum { PAGE_BYTES = 4096 };

/* With `memfd`, a descriptor of the same pages too, sealed against shrinking. */
MUST_CHECK int pages_map(uint64_t bytes, void **pages, int *memfd);

/* memfd: -1 where there is none. */
void pages_unmap(void *pages, uint64_t bytes, int memfd);

#endif
