/* The kernels in C: what the emulated GPU runs, and the reference for the real one. */
#ifndef TCPX_GPU_KERNEL_TWINS_H
#define TCPX_GPU_KERNEL_TWINS_H

#include "gpu/gpu_ops.h"

#include <stddef.h>

/* How a twin reaches device memory: NULL where there is none, as a GPU would fault. */
typedef void *kernel_resolve(gpu_address address, uint64_t bytes);

/* The size of a kernel's argument (kernels.h), and its name in the PTX. */
size_t kernel_argument_size(enum gpu_kernel kernel);
const char *kernel_name(enum gpu_kernel kernel);

/* TCPX_CUDA_ERROR with the address where `resolve` gave NULL. */
MUST_CHECK int kernel_twin_run(enum gpu_kernel kernel, const void *argument,
                               kernel_resolve *resolve);

#endif
