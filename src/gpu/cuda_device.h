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
    pthread_mutex_t lock;             /* guards the making of the two below */
    _Atomic(cu_context) context;      /* NULL until device memory is first used */
    _Atomic(cu_module) module;        /* NULL until a kernel is first launched */
    cu_function kernels[GPU_KERNELS]; /* constant once module is set */
};

/*
 * Makes the GPU's primary context current. Also lets calls through that another thread's graph
 * capture would forbid or be broken by: nothing of ours belongs in anyone's graph.
 */
MUST_CHECK int cuda_enter(struct cuda_gpu *gpu, struct gpu_scope *scope);

/* Leaves the thread as cuda_enter() found it. */
void cuda_leave(const struct gpu_scope *scope);

/* A failure to give something back has no caller to return to: a warning. */
void cuda_check_release(cu_result error, const char *call);

struct cuda_gpu_stream {
    struct gpu_stream base;
    cu_event joint; /* marks a point of a caller's stream that this one waits for */
};

#endif
