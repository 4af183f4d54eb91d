/*
 * The time of work on a stream by the GPU's own clock, between two events of CUDA, and an empty
 * kernel, the floor of what is measured. Without a CUDA driver the CPU's clock has to do, and the
 * empty kernel is no work at all.
 */
#ifndef TCPX_BENCH_GPU_TIMER_H
#define TCPX_BENCH_GPU_TIMER_H

#include "base/clock.h"
#include "gpu/cuda_driver.h"
#include "tests/support/gpu_native.h"

#include <dlfcn.h>
#include <string.h>

typedef cu_result gpu_timer_elapsed(float *milliseconds, cu_event from, cu_event to);

struct gpu_timer {
    struct gpu *gpu;
    gpu_timer_elapsed *elapsed; /* NULL: no driver */
    cu_event from;
    cu_event to;
    cu_function empty;
    uint64_t began;
};

static const char gpu_timer_ptx[] = "\n.version 7.0\n.target sm_75\n.address_size 64"
                                    "\n.visible .entry bench_empty()\n{\n    ret;\n}\n";

/* False: the driver refuses. */
static inline bool gpu_timer_open(struct gpu_timer *timer, struct gpu *gpu)
{
    enum { TIMED = 0 };
    struct gpu_scope scope;
    const char *backend;
    const char *reason;
    cu_module module;
    void *driver;
    bool opened;

    *timer = (struct gpu_timer){.gpu = gpu};
    if (gpu_backend(&backend, &reason) != TCPX_SUCCESS || strcmp(backend, "cuda") != 0)
        return true;
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver != NULL)
        timer->elapsed = (gpu_timer_elapsed *)dlsym(driver, "cuEventElapsedTime");
    if (timer->elapsed == NULL)
        return true;
    if (gpu_enter(gpu, &scope) != TCPX_SUCCESS)
        return false;
    opened = cuda.cuEventCreate(&timer->from, TIMED) == CU_OK &&
             cuda.cuEventCreate(&timer->to, TIMED) == CU_OK &&
             cuda.cuModuleLoadDataEx(&module, gpu_timer_ptx, 0, NULL, NULL) == CU_OK &&
             cuda.cuModuleGetFunction(&timer->empty, module, "bench_empty") == CU_OK;
    gpu_leave(gpu, &scope);
    return opened;
}

static inline int gpu_timer_record(struct gpu_timer *timer, cu_event event,
                                   struct gpu_stream *stream)
{
    return gpu_event_record(&(struct gpu_event){.gpu = timer->gpu, .native = event}, stream);
}

static inline int gpu_timer_begin(struct gpu_timer *timer, struct gpu_stream *stream)
{
    timer->began = clock_now();
    return timer->elapsed != NULL ? gpu_timer_record(timer, timer->from, stream) : TCPX_SUCCESS;
}

static inline int gpu_timer_end(struct gpu_timer *timer, struct gpu_stream *stream)
{
    return timer->elapsed != NULL ? gpu_timer_record(timer, timer->to, stream) : TCPX_SUCCESS;
}

/* When all work of the stream is done. */
static inline double gpu_timer_seconds(struct gpu_timer *timer)
{
    float milliseconds = 0;

    if (timer->elapsed == NULL)
        return (double)(clock_now() - timer->began) * 1e-9;
    return timer->elapsed(&milliseconds, timer->from, timer->to) == CU_OK ? milliseconds * 1e-3
                                                                          : -1;
}

static inline int gpu_timer_launch_empty(struct gpu_timer *timer, struct gpu_stream *stream)
{
    struct gpu_scope scope;
    int result = timer->elapsed != NULL ? gpu_enter(timer->gpu, &scope) : TCPX_SUCCESS;

    if (timer->elapsed == NULL || result != TCPX_SUCCESS)
        return result;
    if (cuda.cuLaunchKernel(timer->empty, 1, 1, 1, KERNEL_THREADS, 1, 1, 0, stream->native, NULL,
                            NULL) != CU_OK)
        result = error_set(TCPX_CUDA_ERROR, "launching an empty kernel");
    gpu_leave(timer->gpu, &scope);
    return result;
}

#endif
