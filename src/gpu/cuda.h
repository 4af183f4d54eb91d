/* Real GPUs, through the CUDA driver. */
#ifndef TCPX_GPU_CUDA_H
#define TCPX_GPU_CUDA_H

#include "gpu/gpu_ops.h"

extern const struct gpu_ops gpu_cuda_ops;

#endif
