/* The way into a CUDA device's primary context and out again. */
#include "gpu/cuda_device.h"

#include "base/log.h"

static int retain_context(struct cuda_gpu *gpu, cu_context *out)
{
    int result = TCPX_SUCCESS;
    cu_context context;

    pthread_mutex_lock(&gpu->lock);
    context = atomic_load_explicit(&gpu->context, memory_order_relaxed);
    if (context == NULL)
        result = cuda_try(cuda.cuDevicePrimaryCtxRetain(&context, gpu->device),
                          "cuDevicePrimaryCtxRetain of GPU %d", gpu->base.index);
    if (result == TCPX_SUCCESS) {
        atomic_store_explicit(&gpu->context, context, memory_order_release);
        *out = context;
    }
    pthread_mutex_unlock(&gpu->lock);
    return result;
}

int cuda_enter(struct gpu *base, struct gpu_scope *scope)
{
    struct cuda_gpu *gpu = (struct cuda_gpu *)base;
    cu_context context = atomic_load_explicit(&gpu->context, memory_order_acquire);
    cu_context current = NULL;
    cu_result error;
    int result = context == NULL ? retain_context(gpu, &context) : TCPX_SUCCESS;

    if (result != TCPX_SUCCESS)
        return result;
    error = cuda.cuCtxGetCurrent(&current);
    scope->pushed = false;
    if (error == CU_OK && current != context) {
        error = cuda.cuCtxPushCurrent_v2(context);
        scope->pushed = error == CU_OK;
    }
    if (error != CU_OK)
        return cuda_error(error, "making the context of GPU %d current", base->index);
    scope->capture_mode = CU_CAPTURE_RELAXED;
    result = cuda_try(cuda.cuThreadExchangeStreamCaptureMode(&scope->capture_mode),
                      "cuThreadExchangeStreamCaptureMode");
    if (result != TCPX_SUCCESS && scope->pushed)
        cuda.cuCtxPopCurrent_v2(&context);
    return result;
}

void cuda_leave(const struct gpu_scope *scope)
{
    int mode = scope->capture_mode;
    cu_context ours;

    cuda.cuThreadExchangeStreamCaptureMode(&mode);
    if (scope->pushed)
        cuda.cuCtxPopCurrent_v2(&ours);
}

void cuda_check_release(cu_result error, const char *call)
{
    const char *name = NULL;

    if (error == CU_OK || error == CU_DEINITIALIZED || error == CU_CONTEXT_DESTROYED)
        return;
    if (cuda.cuGetErrorName(error, &name) != CU_OK || name == NULL)
        name = "unknown error";
    log_warn("%s: %s", call, name);
}
