/*
 * Bounce memory for receives that the GPU unpacks itself: one piece of pinned host memory per GPU,
 * with one base for all comms of this process, since a kernel knows only one. A comm takes a region
 * of it when it is accepted, and keeps it.
 */
#ifndef TCPX_NET_GPU_BOUNCE_H
#define TCPX_NET_GPU_BOUNCE_H

#include "gpu/gpu.h"

struct bounce;

struct bounce_region {
    struct bounce *bounce; /* NULL: nothing was taken */
    unsigned number;
    uint8_t *host; /* page-aligned */
    gpu_address device;
    uint64_t offset; /* from the base */
    uint64_t bytes;
};

/* All regions have `bytes` bytes, in whole pages. Fails in words when there is none left. */
MUST_CHECK int bounce_take(int device, uint64_t bytes, struct bounce_region *region);
void bounce_give(struct bounce_region *region);

gpu_address bounce_base(const struct bounce_region *region);

#endif
