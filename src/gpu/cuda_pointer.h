/* Classifies addresses with the CUDA driver. */
#ifndef TCPX_GPU_CUDA_POINTER_H
#define TCPX_GPU_CUDA_POINTER_H

#include "gpu/gpu.h"

MUST_CHECK int cuda_classify(gpu_address address, uint64_t bytes, struct gpu_pointer *pointer);

#endif
