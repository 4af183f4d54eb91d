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

#endif
