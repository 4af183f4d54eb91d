/*
 * A CUDA device as the files of this backend share it: its primary context, made on first use, and
 * the way into that context and out again.
 */
#ifndef TCPX_GPU_CUDA_DEVICE_H
#define TCPX_GPU_CUDA_DEVICE_H

#include "gpu/cuda_driver.h"
#include "gpu/gpu_ops.h"

#include <pthread.h>
#include <stdatomic.h>

struct cuda_gpu {
    struct gpu base;
    cu_device device;
    pthread_mutex_t lock; /* guards the making of the two below */
    /* NULL until first use. Set with release order, read without the lock with acquire order. */
    _Atomic(cu_context) context;
    _Atomic(cu_module) module;
    cu_function kernels[GPU_KERNELS]; /* constant once module is set */
};

/*
 * Makes the GPU's primary context current. Also allows calls that another thread's graph capture
 * would forbid or be broken by: none of our work belongs in a caller's graph.
 */
MUST_CHECK int cuda_enter(struct gpu *gpu, struct gpu_scope *scope);

/* Leaves the thread as cuda_enter() found it. */
void cuda_leave(const struct gpu_scope *scope);

/* A failed release has no caller to report to: a warning. */
void cuda_check_release(cu_result error, const char *call);

struct cuda_gpu_stream {
    struct gpu_stream base;
    cu_event joint; /* marks a point of a caller's stream that this one waits for */
};

#endif
