/*
 * The emulated GPU: ordinary memory behind addresses that CPU code cannot follow, operations that
 * complete later on a thread of their own, and kernels in C. It is the default where there is no
 * CUDA, and the reference for it.
 */
#include "gpu/host.h"

#include "base/config.h"
#include "gpu/host_engine.h"
#include "gpu/host_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const char udmabuf_device[] = "/dev/udmabuf";

/* --- devices ------------------------------------------------------------------------------- */

/* gpu.c has read it before it chose this backend; it stays as it was. */
static const struct config *host_config(void)
{
    const struct config *config;

    if (config_get(&config) != TCPX_SUCCESS)
        abort();
    return config;
}

static int host_start(int *count)
{
    *count = (int)host_config()->host_gpus;
    return TCPX_SUCCESS;
}

static int host_properties(int index, struct tcpx_gpu_properties *properties)
{
    *properties = (struct tcpx_gpu_properties){
        .backend = "host",
        .numa_node = -1,
        .dmabuf = access(udmabuf_device, R_OK | W_OK) == 0,
        .memory_bytes = host_config()->host_gpu_memory,
    };
    snprintf(properties->name, sizeof properties->name, "emulated GPU %d", index);
    return TCPX_SUCCESS;
}

static int host_open(int index, struct gpu **out)
{
    struct gpu *gpu = malloc(sizeof *gpu);

    if (gpu == NULL)
        return error_system(ENOMEM, "emulated GPU %d", index);
    *gpu = (struct gpu){.ops = &gpu_host_ops, .index = index, .warps = 1};
    *out = gpu;
    return TCPX_SUCCESS;
}

static void host_close(struct gpu *gpu)
{
    free(gpu);
}

/* --- memory -------------------------------------------------------------------------------- */

static int host_memory_available(struct gpu *gpu, uint64_t *bytes)
{
    uint64_t used = host_memory_used(gpu->index);
    uint64_t limit = host_config()->host_gpu_memory;

    *bytes = used < limit ? limit - used : 0;
    return TCPX_SUCCESS;
}

static int host_memory_alloc(struct gpu *gpu, uint64_t bytes, uint64_t alignment,
                             struct gpu_memory *memory)
{
    return host_memory_map(gpu->index, bytes, alignment, host_config()->host_gpu_memory, memory);
}

static void host_memory_free(struct gpu *gpu, struct gpu_memory *memory)
{
    (void)gpu;
    host_memory_unmap(memory->allocation);
}

static int host_pinned_register(struct gpu *gpu, struct gpu_pinned *pinned)
{
    return host_memory_register(gpu->index, pinned->host, pinned->bytes, &pinned->device);
}

static void host_pinned_unregister(struct gpu *gpu, struct gpu_pinned *pinned)
{
    (void)gpu;
    host_memory_unmap(pinned->device);
}

static int host_export_dmabuf(struct gpu *gpu, gpu_address address, uint64_t bytes, int *fd)
{
    struct udmabuf_create create = {.flags = UDMABUF_FLAGS_CLOEXEC, .size = bytes};
    uint64_t offset;
    int memfd;
    int device;
    int dmabuf;
    int saved_errno;
    int result = host_memory_file(address, bytes, &memfd, &offset);

    if (result != TCPX_SUCCESS)
        return result;
    create.memfd = (uint32_t)memfd;
    create.offset = offset;
    device = open(udmabuf_device, O_RDWR | O_CLOEXEC);
    if (device < 0)
        return error_system(errno, "memory of emulated GPU %d as a dma-buf needs %s", gpu->index,
                            udmabuf_device);
    dmabuf = ioctl(device, UDMABUF_CREATE, &create);
    saved_errno = errno;
    close(device);
    if (dmabuf < 0)
        return error_system(saved_errno, "%s refused %llu bytes", udmabuf_device,
                            (unsigned long long)bytes);
    *fd = dmabuf;
    return TCPX_SUCCESS;
}

/* Memory is memory: what was written is visible. */
static int host_flush_inbound_writes(struct gpu *gpu)
{
    (void)gpu;
    return TCPX_SUCCESS;
}

/* --- streams and events -------------------------------------------------------------------- */

static int host_stream_create(struct gpu *gpu, struct gpu_stream **stream)
{
    return host_stream_start(gpu, host_config()->host_gpu_delay_us, stream);
}

static int host_stream_wait_caller_event(struct gpu_stream *stream, void *caller_event)
{
    return host_stream_wait(stream, caller_event);
}

/* An emulated GPU's default stream is always idle: nothing can be queued on it. */
static int host_stream_wait_caller_stream(struct gpu_stream *stream, void *caller_stream)
{
    struct gpu_event *joint;
    int result;

    if (caller_stream == NULL)
        return TCPX_SUCCESS;
    result = host_event_create(stream->gpu, &joint);
    if (result != TCPX_SUCCESS)
        return result;
    result = host_event_record(joint, caller_stream);
    if (result == TCPX_SUCCESS)
        result = host_stream_wait(stream, joint);
    host_event_destroy(joint);
    return result;
}

static int host_caller_stream_wait(void *caller_stream, struct gpu_event *event)
{
    if (caller_stream == NULL)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "an emulated GPU has no default stream: nothing can be queued on it");
    return host_stream_wait(caller_stream, event);
}

/* --- work on a stream ---------------------------------------------------------------------- */

static int submit_copy(struct gpu_stream *stream, enum host_operation_kind kind, uint64_t to,
                       uint64_t from, uint64_t bytes)
{
    return host_stream_submit(
        stream,
        &(struct host_operation){.kind = kind, .memory = {.to = to, .from = from, .bytes = bytes}});
}

static int host_copy_to_device(struct gpu_stream *stream, gpu_address to, const void *from,
                               uint64_t bytes)
{
    return submit_copy(stream, HOST_COPY_TO_DEVICE, to, (uintptr_t)from, bytes);
}

static int host_copy_to_host(struct gpu_stream *stream, void *to, gpu_address from, uint64_t bytes)
{
    return submit_copy(stream, HOST_COPY_TO_HOST, (uintptr_t)to, from, bytes);
}

static int host_copy_on_device(struct gpu_stream *stream, gpu_address to, gpu_address from,
                               uint64_t bytes)
{
    return submit_copy(stream, HOST_COPY_ON_DEVICE, to, from, bytes);
}

static int host_set(struct gpu_stream *stream, gpu_address at, uint8_t value, uint64_t bytes)
{
    return host_stream_submit(
        stream, &(struct host_operation){.kind = HOST_SET,
                                         .memory = {.to = at, .bytes = bytes, .value = value}});
}

static int host_launch(struct gpu_stream *stream, enum gpu_kernel kernel, const void *argument,
                       uint64_t warps)
{
    (void)warps;
    return host_stream_submit(stream,
                              &(struct host_operation){.kind = HOST_LAUNCH,
                                                       .argument = (void *)(uintptr_t)argument,
                                                       .kernel = kernel});
}

const struct gpu_ops gpu_host_ops = {.name = "host",
#define HOST_MEMBER(operation, ...) .operation = host_##operation,
                                     GPU_OPERATIONS(HOST_MEMBER)};
