/*
 * Real GPUs, through the CUDA driver: devices, memory, streams, events and copies. Every failure
 * becomes TCPX_CUDA_ERROR with the driver's own name for it. What is given back after the driver
 * has shut down, as in exit handlers, is given back in silence.
 */
#include "gpu/cuda.h"

#include "base/checked.h"
#include "base/topology.h"
#include "gpu/cuda_device.h"
#include "gpu/cuda_kernels.h"
#include "gpu/cuda_pointer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- devices ------------------------------------------------------------------------------- */

static int cuda_start(int *count)
{
    int found = 0;
    int result = cuda_driver_load();

    if (result == TCPX_SUCCESS)
        result = cuda_try(cuda.cuInit(0), "the CUDA driver does not start: cuInit");
    if (result == TCPX_SUCCESS)
        result = cuda_try(cuda.cuDeviceGetCount(&found), "cuDeviceGetCount");
    if (result != TCPX_SUCCESS)
        return result;
    if (found == 0)
        return error_set(TCPX_CUDA_ERROR,
                         "the CUDA driver shows no device (is CUDA_VISIBLE_DEVICES empty?)");
    *count = found;
    return TCPX_SUCCESS;
}

static int attribute(cu_device device, int which)
{
    int value = 0;

    return cuda.cuDeviceGetAttribute(&value, which, device) == CU_OK ? value : 0;
}

static int cuda_properties(int index, struct tcpx_gpu_properties *out)
{
    struct tcpx_gpu_properties properties = {.backend = "cuda", .numa_node = -1};
    char address[32];
    size_t bytes;
    cu_device device;
    cu_result error = cuda.cuDeviceGet(&device, index);

    if (error == CU_OK)
        error = cuda.cuDeviceGetName(properties.name, sizeof properties.name, device);
    if (error == CU_OK)
        error = cuda.cuDeviceTotalMem_v2(&bytes, device);
    if (error == CU_OK)
        error = cuda.cuDeviceGetPCIBusId(address, sizeof address, device);
    if (error != CU_OK)
        return cuda_error(error, "reading the properties of GPU %d", index);
    properties.memory_bytes = bytes;
    properties.compute_major = attribute(device, CU_ATTRIBUTE_COMPUTE_MAJOR);
    properties.compute_minor = attribute(device, CU_ATTRIBUTE_COMPUTE_MINOR);
    properties.dmabuf =
        cuda.cuMemGetHandleForAddressRange != NULL && attribute(device, CU_ATTRIBUTE_DMABUF) != 0;
    if (topology_pci_path("", address, properties.pci_path, sizeof properties.pci_path))
        properties.numa_node = topology_numa_node("", properties.pci_path);
    *out = properties;
    return TCPX_SUCCESS;
}

static int cuda_of_caller(int *index)
{
    cu_context current = NULL;
    cu_device device = -1;
    cu_result error = cuda.cuCtxGetCurrent(&current);

    if (error == CU_OK && current != NULL)
        error = cuda.cuCtxGetDevice(&device);
    if (error != CU_OK)
        return cuda_error(error, "finding the caller's GPU");
    *index = device; /* a CUdevice is the number of its device */
    return TCPX_SUCCESS;
}

static int cuda_open(int index, struct gpu **out)
{
    /* What the registers of our copying kernels leave room for. */
    enum { WARPS_PER_MULTIPROCESSOR = 32 };
    struct cuda_gpu *gpu = calloc(1, sizeof *gpu);
    int multiprocessors;
    int result;

    if (gpu == NULL)
        return error_system(ENOMEM, "GPU %d", index);
    gpu->base = (struct gpu){.ops = &gpu_cuda_ops, .index = index};
    result = cuda_try(cuda.cuDeviceGet(&gpu->device, index), "cuDeviceGet of GPU %d", index);
    if (result != TCPX_SUCCESS) {
        free(gpu);
        return result;
    }
    multiprocessors = attribute(gpu->device, CU_ATTRIBUTE_MULTIPROCESSORS);
    gpu->base.warps =
        WARPS_PER_MULTIPROCESSOR * (multiprocessors > 0 ? (uint32_t)multiprocessors : 1);
    pthread_mutex_init(&gpu->lock, NULL);
    *out = &gpu->base;
    return TCPX_SUCCESS;
}

static void cuda_close(struct gpu *base)
{
    struct cuda_gpu *gpu = (struct cuda_gpu *)base;
    struct gpu_scope scope;

    if (atomic_load_explicit(&gpu->context, memory_order_acquire) != NULL) {
        if (cuda_enter(base, &scope) == TCPX_SUCCESS) {
            cuda_unload_kernels(gpu);
            cuda_leave(&scope);
        }
        cuda_check_release(cuda.cuDevicePrimaryCtxRelease_v2(gpu->device),
                           "cuDevicePrimaryCtxRelease_v2");
    }
    pthread_mutex_destroy(&gpu->lock);
    free(gpu);
}

/*
 * Runs `call` in the GPU's context and turns its failure into a text: the body of every operation
 * below.
 */
#define IN_CONTEXT(gpu, call, ...)                                                                 \
    ({                                                                                             \
        struct gpu_scope scope_;                                                                   \
        int result_ = cuda_enter(gpu, &scope_);                                                    \
        if (result_ == TCPX_SUCCESS) {                                                             \
            result_ = cuda_try(call, __VA_ARGS__);                                                 \
            cuda_leave(&scope_);                                                                   \
        }                                                                                          \
        result_;                                                                                   \
    })

/* Names the call itself. */
#define ON_GPU(gpu, name, ...)                                                                     \
    IN_CONTEXT(gpu, cuda.name(__VA_ARGS__), #name " on GPU %d", (gpu)->index)

/* As IN_CONTEXT, to release something: a failure is a warning. */
#define RELEASE(gpu, name, ...)                                                                    \
    do {                                                                                           \
        struct gpu_scope scope_;                                                                   \
        if (cuda_enter(gpu, &scope_) == TCPX_SUCCESS) {                                            \
            cuda_check_release(cuda.name(__VA_ARGS__), #name);                                     \
            cuda_leave(&scope_);                                                                   \
        }                                                                                          \
    } while (0)

/* --- memory -------------------------------------------------------------------------------- */

static int cuda_memory_available(struct gpu *gpu, uint64_t *bytes)
{
    size_t available;
    size_t all;
    int result = IN_CONTEXT(gpu, cuda.cuMemGetInfo_v2(&available, &all),
                            "cuMemGetInfo_v2 on GPU %d", gpu->index);

    if (result == TCPX_SUCCESS)
        *bytes = available;
    return result;
}

static int cuda_memory_alloc(struct gpu *gpu, uint64_t bytes, uint64_t alignment,
                             struct gpu_memory *memory)
{
    enum { DRIVER_ALIGNMENT = 256 };
    uint64_t extra = alignment > DRIVER_ALIGNMENT ? alignment - DRIVER_ALIGNMENT : 0;
    uint64_t padded;
    cu_address allocation;
    int result;

    if (!checked_add(bytes, extra, &padded))
        return error_set(TCPX_CUDA_ERROR, "%llu bytes aligned to %llu do not fit in memory",
                         (unsigned long long)bytes, (unsigned long long)alignment);
    result =
        IN_CONTEXT(gpu, cuda.cuMemAlloc_v2(&allocation, padded),
                   "cuMemAlloc_v2 of %llu bytes on GPU %d", (unsigned long long)padded, gpu->index);
    if (result != TCPX_SUCCESS)
        return result;
    *memory = (struct gpu_memory){.address = (allocation + alignment - 1) & ~(alignment - 1),
                                  .bytes = bytes,
                                  .allocation = allocation};
    return TCPX_SUCCESS;
}

static void cuda_memory_free(struct gpu *gpu, struct gpu_memory *memory)
{
    RELEASE(gpu, cuMemFree_v2, memory->allocation);
}

static void cuda_pinned_unregister(struct gpu *gpu, struct gpu_pinned *pinned)
{
    RELEASE(gpu, cuMemHostUnregister, pinned->host);
}

static int cuda_pinned_register(struct gpu *gpu, struct gpu_pinned *pinned)
{
    int result = IN_CONTEXT(
        gpu,
        cuda.cuMemHostRegister_v2(pinned->host, pinned->bytes,
                                  CU_HOST_REGISTER_PORTABLE | CU_HOST_REGISTER_DEVICEMAP),
        "cuMemHostRegister_v2 of %llu bytes", (unsigned long long)pinned->bytes);

    if (result != TCPX_SUCCESS)
        return result;
    result = ON_GPU(gpu, cuMemHostGetDevicePointer_v2, &pinned->device, pinned->host, 0);
    if (result != TCPX_SUCCESS)
        cuda_pinned_unregister(gpu, pinned);
    return result;
}

static int cuda_export_dmabuf(struct gpu *gpu, gpu_address address, uint64_t bytes, int *out)
{
    int fd = -1;
    int result;

    if (cuda.cuMemGetHandleForAddressRange == NULL)
        return error_set(TCPX_CUDA_ERROR, "this CUDA driver cannot export a dma-buf: it lacks "
                                          "cuMemGetHandleForAddressRange (CUDA 11.7)");
    if (attribute(((struct cuda_gpu *)gpu)->device, CU_ATTRIBUTE_DMABUF) == 0)
        return error_set(TCPX_CUDA_ERROR,
                         "GPU %d or its kernel module cannot export a dma-buf (it takes the open "
                         "kernel modules)",
                         gpu->index);
    /* The path that a NIC takes, over PCIe; not every platform knows that flag. */
    result = IN_CONTEXT(gpu,
                        cuda.cuMemGetHandleForAddressRange(&fd, address, bytes, CU_HANDLE_DMABUF,
                                                           CU_DMABUF_OVER_PCIE),
                        "dma-buf over PCIe");
    if (result != TCPX_SUCCESS)
        result = IN_CONTEXT(
            gpu, cuda.cuMemGetHandleForAddressRange(&fd, address, bytes, CU_HANDLE_DMABUF, 0),
            "exporting %llu bytes at 0x%llx of GPU %d as a dma-buf", (unsigned long long)bytes,
            (unsigned long long)address, gpu->index);
    if (result == TCPX_SUCCESS)
        *out = fd;
    return result;
}

static int cuda_flush_inbound_writes(struct gpu *base)
{
    struct cuda_gpu *gpu = (struct cuda_gpu *)base;

    if (attribute(gpu->device, CU_ATTRIBUTE_RDMA_WRITES_ORDERING) >= CU_FLUSH_TO_OWNER)
        return TCPX_SUCCESS;
    if (cuda.cuFlushGPUDirectRDMAWrites == NULL ||
        (attribute(gpu->device, CU_ATTRIBUTE_RDMA_FLUSH_OPTIONS) & CU_FLUSH_OPTION_HOST) == 0)
        return error_set(TCPX_CUDA_ERROR,
                         "GPU %d neither orders nor flushes what a NIC writes into its memory",
                         base->index);
    return ON_GPU(base, cuFlushGPUDirectRDMAWrites, CU_FLUSH_TARGET_CONTEXT, CU_FLUSH_TO_OWNER);
}

/* --- streams and events -------------------------------------------------------------------- */

static int cuda_stream_create(struct gpu *gpu, struct gpu_stream **out)
{
    struct cuda_gpu_stream *stream = calloc(1, sizeof *stream);
    cu_stream native;
    int result;

    if (stream == NULL)
        return error_system(ENOMEM, "a stream");
    result = ON_GPU(gpu, cuStreamCreate, &native, CU_STREAM_NONBLOCKING);
    if (result != TCPX_SUCCESS)
        goto free_stream;
    result = ON_GPU(gpu, cuEventCreate, &stream->joint, CU_EVENT_NO_TIMING);
    if (result != TCPX_SUCCESS)
        goto destroy_stream;
    stream->base = (struct gpu_stream){.gpu = gpu, .native = native};
    *out = &stream->base;
    return TCPX_SUCCESS;

destroy_stream:
    RELEASE(gpu, cuStreamDestroy_v2, native);
free_stream:
    free(stream);
    return result;
}

static void cuda_stream_destroy(struct gpu_stream *base)
{
    struct cuda_gpu_stream *stream = (struct cuda_gpu_stream *)base;

    RELEASE(base->gpu, cuEventDestroy_v2, stream->joint);
    RELEASE(base->gpu, cuStreamDestroy_v2, base->native);
    free(stream);
}

static int cuda_event_create(struct gpu *gpu, struct gpu_event **out)
{
    struct gpu_event *event = malloc(sizeof *event);
    cu_event native;
    int result;

    if (event == NULL)
        return error_system(ENOMEM, "an event");
    result = ON_GPU(gpu, cuEventCreate, &native, CU_EVENT_NO_TIMING);
    if (result != TCPX_SUCCESS) {
        free(event);
        return result;
    }
    *event = (struct gpu_event){.gpu = gpu, .native = native};
    *out = event;
    return TCPX_SUCCESS;
}

static void cuda_event_destroy(struct gpu_event *event)
{
    RELEASE(event->gpu, cuEventDestroy_v2, event->native);
    free(event);
}

static int cuda_event_record(struct gpu_event *event, struct gpu_stream *stream)
{
    return ON_GPU(event->gpu, cuEventRecord, event->native, stream->native);
}

static int cuda_event_query(struct gpu_event *event, bool *done)
{
    struct gpu_scope scope;
    cu_result error;
    int result = cuda_enter(event->gpu, &scope);

    if (result != TCPX_SUCCESS)
        return result;
    error = cuda.cuEventQuery(event->native);
    if (error == CU_OK || error == CU_NOT_READY)
        *done = error == CU_OK;
    else
        result = cuda_error(error, "work on GPU %d failed", event->gpu->index);
    cuda_leave(&scope);
    return result;
}

/* Work of ours that waits for a stream under capture would become part of the caller's graph. */
static int refuse_capture(struct gpu *gpu, cu_stream caller)
{
    int status = CU_CAPTURE_NONE;
    int result = IN_CONTEXT(gpu, cuda.cuStreamIsCapturing(caller, &status),
                            "the caller's stream %p", (void *)caller);

    if (result == TCPX_SUCCESS && status != CU_CAPTURE_NONE)
        return error_set(TCPX_INVALID_USAGE,
                         "the caller's stream %p is capturing a graph: transfers cannot be part "
                         "of one",
                         (void *)caller);
    return result;
}

static int cuda_stream_wait_caller_stream(struct gpu_stream *base, void *caller_stream)
{
    cu_event joint = ((struct cuda_gpu_stream *)base)->joint;
    struct gpu *gpu = base->gpu;
    int result = refuse_capture(gpu, caller_stream);

    if (result == TCPX_SUCCESS)
        result = IN_CONTEXT(gpu, cuda.cuEventRecord(joint, caller_stream),
                            "cuEventRecord in the caller's stream %p", caller_stream);
    if (result == TCPX_SUCCESS)
        result = IN_CONTEXT(gpu, cuda.cuStreamWaitEvent(base->native, joint, 0),
                            "waiting for the caller's stream %p", caller_stream);
    return result;
}

static int cuda_stream_wait_caller_event(struct gpu_stream *stream, void *caller_event)
{
    return IN_CONTEXT(stream->gpu, cuda.cuStreamWaitEvent(stream->native, caller_event, 0),
                      "waiting for the caller's event %p", caller_event);
}

static int cuda_caller_stream_wait(void *caller_stream, struct gpu_event *event)
{
    int result = refuse_capture(event->gpu, caller_stream);

    if (result != TCPX_SUCCESS)
        return result;
    return IN_CONTEXT(event->gpu, cuda.cuStreamWaitEvent(caller_stream, event->native, 0),
                      "making the caller's stream %p wait", caller_stream);
}

/* --- work on a stream ---------------------------------------------------------------------- */

/*
 * Host-to-device copies go through a copy engine, whatever their size. The driver sends plain ones
 * below some 24 to 32 KiB through the channel of the kernels, where they wait behind every kernel
 * that is queued: for ever, if that kernel waits for a kernel that waits for these bytes, as NCCL's
 * do. A copy of two rows always takes a copy engine, also where the rows are side by side on both
 * sides (found by measuring; tests/gpu/test_gpu_queued.c sees whether it holds). The limit has a
 * margin: two rows are not slower.
 */
enum { LEAST_PLAIN_COPY = 64 << 10 };

/* An even number of bytes. */
static cu_result copy_two_rows(gpu_address to, const void *from, uint64_t bytes, cu_stream stream)
{
    const struct cu_rows copy = {.from_kind = CU_MEMORY_HOST,
                                 .from_host = from,
                                 .from_pitch = bytes / 2,
                                 .to_kind = CU_MEMORY_DEVICE,
                                 .to_device = to,
                                 .to_pitch = bytes / 2,
                                 .row_bytes = bytes / 2,
                                 .rows = 2};

    return cuda.cuMemcpy2DAsync_v2(&copy, stream);
}

/* An odd number is two copies that share a byte. One byte cannot be two rows: a plain copy. */
static cu_result copy_in(gpu_address to, const void *from, uint64_t bytes, cu_stream stream)
{
    uint64_t even = bytes & ~(uint64_t)1;
    cu_result error;

    if (bytes == 1 || bytes >= LEAST_PLAIN_COPY)
        return cuda.cuMemcpyHtoDAsync_v2(to, from, bytes, stream);
    error = copy_two_rows(to, from, even, stream);
    if (error == CU_OK && even < bytes)
        error = copy_two_rows(to + bytes - 2, (const char *)from + bytes - 2, 2, stream);
    return error;
}

static int cuda_copy_to_device(struct gpu_stream *stream, gpu_address to, const void *from,
                               uint64_t bytes)
{
    return IN_CONTEXT(stream->gpu, copy_in(to, from, bytes, stream->native),
                      "copying %llu bytes from %p to GPU %d at 0x%llx", (unsigned long long)bytes,
                      from, stream->gpu->index, (unsigned long long)to);
}

static int cuda_copy_to_host(struct gpu_stream *stream, void *to, gpu_address from, uint64_t bytes)
{
    return IN_CONTEXT(stream->gpu, cuda.cuMemcpyDtoHAsync_v2(to, from, bytes, stream->native),
                      "copying %llu bytes from GPU %d at 0x%llx to %p", (unsigned long long)bytes,
                      stream->gpu->index, (unsigned long long)from, to);
}

static int cuda_copy_on_device(struct gpu_stream *stream, gpu_address to, gpu_address from,
                               uint64_t bytes)
{
    return IN_CONTEXT(stream->gpu, cuda.cuMemcpyDtoDAsync_v2(to, from, bytes, stream->native),
                      "copying %llu bytes on GPU %d from 0x%llx to 0x%llx",
                      (unsigned long long)bytes, stream->gpu->index, (unsigned long long)from,
                      (unsigned long long)to);
}

static int cuda_set(struct gpu_stream *stream, gpu_address at, uint8_t value, uint64_t bytes)
{
    return IN_CONTEXT(stream->gpu, cuda.cuMemsetD8Async(at, value, bytes, stream->native),
                      "setting %llu bytes of GPU %d at 0x%llx", (unsigned long long)bytes,
                      stream->gpu->index, (unsigned long long)at);
}

const struct gpu_ops gpu_cuda_ops = {.name = "cuda",
                                     .of_caller = cuda_of_caller,
                                     .enter = cuda_enter,
                                     .leave = cuda_leave,
#define CUDA_MEMBER(operation, ...) .operation = cuda_##operation,
                                     GPU_OPERATIONS(CUDA_MEMBER)};
