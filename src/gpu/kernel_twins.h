/* The kernels in C: what the emulated GPU runs, and the reference for the real one. */
#ifndef TCPX_GPU_KERNEL_TWINS_H
#define TCPX_GPU_KERNEL_TWINS_H

#include "gpu/gpu_ops.h"

#include <stddef.h>

/* The size of a kernel's argument (kernels.h), and its name in the PTX. */
size_t kernel_argument_size(enum gpu_kernel kernel);
const char *kernel_name(enum gpu_kernel kernel);

/* Between host_memory_hold() and release(). TCPX_CUDA_ERROR for an address outside GPU memory. */
MUST_CHECK int kernel_twin_run(enum gpu_kernel kernel, const void *argument);

#endif
