/* The kernels in C: what the emulated GPU runs, and the reference for the real one. */
#ifndef TCPX_GPU_KERNEL_TWINS_H
#define TCPX_GPU_KERNEL_TWINS_H

#include "gpu/gpu_ops.h"

#include <stddef.h>

struct kernel_twin {
    const char *name; /* of the kernel in the PTX */
    size_t argument_size;
    /* Between host_memory_hold() and release(). TCPX_CUDA_ERROR: an address outside GPU memory. */
    int (*run)(const void *argument);
};

extern const struct kernel_twin kernel_twins[GPU_KERNELS];

/* The pattern of gpu/kernels.h in many bytes of host memory; `position`: of the first of them. */
void pattern_fill(uint8_t *bytes, uint64_t count, uint64_t seed, uint64_t position);

/* How many bytes differ from the pattern; *first: the place of the first, if it is less. */
uint64_t pattern_compare(const uint8_t *bytes, uint64_t count, uint64_t seed, uint64_t position,
                         uint64_t *first);

#endif
