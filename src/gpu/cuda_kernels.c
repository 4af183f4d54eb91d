/* Our kernels on a CUDA device: compiled by the driver at the first launch, then launched. */
#include "gpu/cuda_kernels.h"

#include "gpu/kernel_twins.h"

/* The assembler takes the checked-in PTX into the library, so that no tool is needed. */
__asm__(".pushsection .rodata\n"
        ".global tcpx_ptx\n"
        ".hidden tcpx_ptx\n"
        ".type tcpx_ptx, @object\n"
        ".balign 16\n"
        "tcpx_ptx:\n"
        ".incbin \"src/gpu/unpack_kernels.ptx\"\n"
        ".byte 0\n"
        ".size tcpx_ptx, . - tcpx_ptx\n"
        ".popsection\n");

enum {
    WARPS_PER_BLOCK = KERNEL_THREADS / 32,
    /* Blocks beyond those that run at once: the next is there when one ends early. */
    ROUNDS = 16,
};

static int load_kernels(struct cuda_gpu *gpu)
{
    char log[512] = "";
    int options[] = {CU_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_BYTES};
    /* The driver takes a number in place of a pointer. */
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    cu_module module;
    cu_result error = cuda.cuModuleLoadDataEx(&module, tcpx_ptx, 2, options, values);

    if (error != CU_OK)
        return cuda_error(error, "compiling our kernels for GPU %d failed%s%s", gpu->base.index,
                          log[0] != '\0' ? ": " : "", log);
    for (int kernel = 0; kernel < GPU_KERNELS; kernel++) {
        error = cuda.cuModuleGetFunction(&gpu->kernels[kernel], module, kernel_twins[kernel].name);
        if (error != CU_OK) {
            cuda.cuModuleUnload(module);
            return cuda_error(error, "kernel %s", kernel_twins[kernel].name);
        }
    }
    /* release: a thread that sees the module sees its functions */
    atomic_store_explicit(&gpu->module, module, memory_order_release);
    return TCPX_SUCCESS;
}

static int load_kernels_once(struct cuda_gpu *gpu)
{
    int result = TCPX_SUCCESS;

    if (atomic_load_explicit(&gpu->module, memory_order_acquire) != NULL)
        return TCPX_SUCCESS;
    pthread_mutex_lock(&gpu->lock);
    if (atomic_load_explicit(&gpu->module, memory_order_relaxed) == NULL)
        result = load_kernels(gpu);
    pthread_mutex_unlock(&gpu->lock);
    return result;
}

void cuda_unload_kernels(struct cuda_gpu *gpu)
{
    cu_module module = atomic_load_explicit(&gpu->module, memory_order_acquire);

    if (module != NULL)
        cuda.cuModuleUnload(module);
}

int cuda_launch(struct gpu_stream *stream, enum gpu_kernel kernel, const void *argument,
                uint64_t warps)
{
    struct cuda_gpu *gpu = (struct cuda_gpu *)stream->gpu;
    uint64_t most = (uint64_t)gpu->base.warps / WARPS_PER_BLOCK * ROUNDS;
    uint64_t blocks = warps / WARPS_PER_BLOCK + (warps % WARPS_PER_BLOCK != 0);
    /* The driver copies the argument before it returns, and does not write to it. */
    void *arguments[] = {(void *)(uintptr_t)argument};
    struct gpu_scope scope;
    int result = cuda_enter(stream->gpu, &scope);

    if (result != TCPX_SUCCESS)
        return result;
    result = load_kernels_once(gpu);
    if (result == TCPX_SUCCESS)
        result = cuda_try(
            cuda.cuLaunchKernel(gpu->kernels[kernel], (unsigned)(blocks < most ? blocks : most), 1,
                                1, KERNEL_THREADS, 1, 1, 0, stream->native, arguments, NULL),
            "launching %s on GPU %d", kernel_twins[kernel].name, gpu->base.index);
    cuda_leave(&scope);
    return result;
}
