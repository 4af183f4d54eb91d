/* Our kernels on a CUDA device. */
#ifndef TCPX_GPU_CUDA_KERNELS_H
#define TCPX_GPU_CUDA_KERNELS_H

#include "gpu/cuda_device.h"

/* unpack_kernels.ptx as a string: what the CUDA driver compiles for its GPU. */
extern const char tcpx_ptx[];

MUST_CHECK int cuda_launch(struct gpu_stream *stream, enum gpu_kernel kernel, const void *argument,
                           uint64_t warps);
/* With the context current. */
void cuda_unload_kernels(struct cuda_gpu *gpu);

#endif
