/* The way into a CUDA device's primary context and out again. */
#include "gpu/cuda_device.h"

#include "base/log.h"

static int retain_context(struct cuda_gpu *gpu, cu_context *out)
{
    int result = TCPX_SUCCESS;
    cu_result error;
    cu_context context;

    pthread_mutex_lock(&gpu->lock);
    context = atomic_load_explicit(&gpu->context, memory_order_relaxed);
    if (context == NULL) {
        error = cuda.cuDevicePrimaryCtxRetain(&context, gpu->device);
        if (error != CU_OK)
            result = cuda_error(error, "cuDevicePrimaryCtxRetain of GPU %d", gpu->base.index);
        else
            atomic_store_explicit(&gpu->context, context, memory_order_release);
    }
    pthread_mutex_unlock(&gpu->lock);
    if (result == TCPX_SUCCESS)
        *out = context;
    return result;
}

int cuda_enter(struct cuda_gpu *gpu, struct gpu_scope *scope)
{
    cu_context context = atomic_load_explicit(&gpu->context, memory_order_acquire);
    cu_context current = NULL;
    cu_result error;
    int result;

    if (context == NULL) {
        result = retain_context(gpu, &context);
        if (result != TCPX_SUCCESS)
            return result;
    }
    error = cuda.cuCtxGetCurrent(&current);
    scope->pushed = false;
    if (error == CU_OK && current != context) {
        error = cuda.cuCtxPushCurrent_v2(context);
        scope->pushed = error == CU_OK;
    }
    if (error != CU_OK)
        return cuda_error(error, "making the context of GPU %d current", gpu->base.index);
    scope->capture_mode = CU_CAPTURE_RELAXED;
    error = cuda.cuThreadExchangeStreamCaptureMode(&scope->capture_mode);
    if (error != CU_OK) {
        if (scope->pushed)
            cuda.cuCtxPopCurrent_v2(&context);
        return cuda_error(error, "cuThreadExchangeStreamCaptureMode");
    }
    return TCPX_SUCCESS;
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
