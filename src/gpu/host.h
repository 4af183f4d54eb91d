/* Emulated GPUs. */
#ifndef TCPX_GPU_HOST_H
#define TCPX_GPU_HOST_H

#include "gpu/gpu_ops.h"

extern const struct gpu_ops gpu_host_ops;

#endif
