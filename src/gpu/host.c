/*
 * The emulated GPU: ordinary memory behind addresses that CPU code cannot follow, operations that
 * complete later on a thread of their own, and kernels in C. It is the default where there is no
 * CUDA, and the reference for it.
 */
#include "base/config.h"
#include "gpu/gpu_ops.h"
#include "gpu/host_engine.h"
#include "gpu/host_memory.h"
#include "gpu/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const char udmabuf_device[] = "/dev/udmabuf";

struct stream {
    struct gpu_stream base;
    struct host_stream *queue;
    struct host_event *joint; /* marks a point of a caller's stream that this one waits for */
};

struct event {
    struct gpu_event base;
    struct host_event *mark;
};

/* --- devices ------------------------------------------------------------------------------- */

static int host_start(int *count)
{
    const struct config *config;
    int result = config_get(&config);

    if (result == TCPX_SUCCESS)
        *count = (int)config->host_gpus;
    return result;
}

static int host_properties(int index, struct tcpx_gpu_properties *properties)
{
    const struct config *config;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    *properties = (struct tcpx_gpu_properties){
        .backend = "host",
        .numa_node = -1,
        .dmabuf = access(udmabuf_device, R_OK | W_OK) == 0,
        .memory_bytes = config->host_gpu_memory,
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

static int host_alloc(struct gpu *gpu, uint64_t bytes, uint64_t alignment,
                      struct gpu_memory *memory)
{
    const struct config *config;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    return host_memory_alloc(gpu->index, bytes, alignment, config->host_gpu_memory, memory);
}

static void host_free(struct gpu *gpu, struct gpu_memory *memory)
{
    (void)gpu;
    host_memory_free(memory->allocation);
}

static int host_pinned_alloc(struct gpu *gpu, uint64_t bytes, enum gpu_pinned_kind kind,
                             struct gpu_pinned *out)
{
    struct gpu_pinned pinned = {.bytes = bytes, .memfd = -1};
    int result = pages_map(bytes, &pinned.host, kind == GPU_PINNED_MEMFD ? &pinned.memfd : NULL);

    if (result != TCPX_SUCCESS)
        return result;
    result = host_memory_register(gpu->index, pinned.host, bytes, &pinned.device);
    if (result != TCPX_SUCCESS) {
        pages_unmap(pinned.host, bytes, pinned.memfd);
        return result;
    }
    *out = pinned;
    return TCPX_SUCCESS;
}

static void host_pinned_free(struct gpu *gpu, struct gpu_pinned *pinned)
{
    (void)gpu;
    host_memory_free(pinned->device);
    pages_unmap(pinned->host, pinned->bytes, pinned->memfd);
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

static int host_create_stream(struct gpu *gpu, struct gpu_stream **out)
{
    const struct config *config;
    struct stream *stream;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return error_system(ENOMEM, "a stream");
    stream->base.gpu = gpu;
    result = host_event_create(&stream->joint);
    if (result != TCPX_SUCCESS)
        goto free_stream;
    result = host_stream_create(config->host_gpu_delay_us, &stream->queue);
    if (result != TCPX_SUCCESS)
        goto destroy_joint;
    *out = &stream->base;
    return TCPX_SUCCESS;

destroy_joint:
    host_event_destroy(stream->joint);
free_stream:
    free(stream);
    return result;
}

static void host_destroy_stream(struct gpu_stream *base)
{
    struct stream *stream = (struct stream *)base;

    host_stream_destroy(stream->queue);
    host_event_destroy(stream->joint);
    free(stream);
}

static int host_create_event(struct gpu *gpu, enum gpu_event_kind kind, struct gpu_event **out)
{
    struct event *event = calloc(1, sizeof *event);
    int result;

    (void)kind; /* every event of ours is timed */
    if (event == NULL)
        return error_system(ENOMEM, "an event");
    event->base.gpu = gpu;
    result = host_event_create(&event->mark);
    if (result != TCPX_SUCCESS) {
        free(event);
        return result;
    }
    *out = &event->base;
    return TCPX_SUCCESS;
}

static void host_destroy_event(struct gpu_event *base)
{
    struct event *event = (struct event *)base;

    host_event_destroy(event->mark);
    free(event);
}

static int host_record(struct gpu_event *event, struct gpu_stream *stream)
{
    return host_event_record(((struct event *)event)->mark, ((struct stream *)stream)->queue);
}

static int host_query(struct gpu_event *event, bool *done)
{
    return host_event_query(((struct event *)event)->mark, done);
}

static int host_elapsed(struct gpu_event *from, struct gpu_event *to, double *seconds)
{
    bool from_done = false;
    bool to_done = false;
    int result = host_query(from, &from_done);

    if (result == TCPX_SUCCESS)
        result = host_query(to, &to_done);
    if (result != TCPX_SUCCESS)
        return result;
    if (!from_done || !to_done)
        return error_set(TCPX_INVALID_USAGE, "the time between two events, before both are done");
    *seconds = ((double)host_event_time(((struct event *)to)->mark) -
                (double)host_event_time(((struct event *)from)->mark)) *
               1e-9;
    return TCPX_SUCCESS;
}

static int host_wait_event(struct gpu_stream *stream, struct gpu_event *event)
{
    return host_stream_wait(((struct stream *)stream)->queue, ((struct event *)event)->mark);
}

/* An emulated GPU's default stream is always idle: nothing can be queued on it. */
static int host_wait_caller_stream(struct gpu_stream *base, void *caller_stream)
{
    struct stream *stream = (struct stream *)base;
    int result;

    if (caller_stream == NULL)
        return TCPX_SUCCESS;
    result = host_event_record(stream->joint, ((struct stream *)caller_stream)->queue);
    if (result != TCPX_SUCCESS)
        return result;
    return host_stream_wait(stream->queue, stream->joint);
}

static int host_wait_caller_event(struct gpu_stream *stream, void *caller_event)
{
    return host_wait_event(stream, caller_event);
}

static int host_caller_stream_wait(void *caller_stream, struct gpu_event *event)
{
    if (caller_stream == NULL)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "an emulated GPU has no default stream: nothing can be queued on it");
    return host_wait_event(caller_stream, event);
}

static void *host_stream_native(struct gpu_stream *stream)
{
    return stream;
}

static void *host_event_native(struct gpu_event *event)
{
    return event;
}

/* --- work on a stream ---------------------------------------------------------------------- */

static int submit(struct gpu_stream *stream, const struct host_operation *operation)
{
    return host_stream_submit(((struct stream *)stream)->queue, operation);
}

static int submit_copy(struct gpu_stream *stream, enum host_operation_kind kind, uint64_t to,
                       uint64_t from, uint64_t bytes)
{
    return submit(stream, &(struct host_operation){
                              .kind = kind, .copy = {.to = to, .from = from, .bytes = bytes}});
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
    return submit(stream, &(struct host_operation){
                              .kind = HOST_SET, .set = {.at = at, .bytes = bytes, .value = value}});
}

static int host_write_flag(struct gpu_stream *stream, gpu_address at, uint32_t value)
{
    return submit(stream, &(struct host_operation){.kind = HOST_WRITE_FLAG,
                                                   .flag = {.at = at, .value = value}});
}

static int host_launch(struct gpu_stream *stream, enum gpu_kernel kernel, const void *argument,
                       uint64_t warps)
{
    (void)warps;
    return submit(stream,
                  &(struct host_operation){.kind = HOST_LAUNCH,
                                           .launch = {.kernel = kernel, .argument = argument}});
}

const struct gpu_ops gpu_host_ops = {
    .name = "host",
    .start = host_start,
    .properties = host_properties,
    .open = host_open,
    .close = host_close,
    .memory_alloc = host_alloc,
    .memory_free = host_free,
    .pinned_alloc = host_pinned_alloc,
    .pinned_free = host_pinned_free,
    .classify = host_memory_classify,
    .export_dmabuf = host_export_dmabuf,
    .flush_inbound_writes = host_flush_inbound_writes,
    .stream_create = host_create_stream,
    .stream_destroy = host_destroy_stream,
    .event_create = host_create_event,
    .event_destroy = host_destroy_event,
    .event_record = host_record,
    .event_query = host_query,
    .event_elapsed = host_elapsed,
    .stream_wait_event = host_wait_event,
    .stream_wait_caller_stream = host_wait_caller_stream,
    .stream_wait_caller_event = host_wait_caller_event,
    .caller_stream_wait = host_caller_stream_wait,
    .stream_native = host_stream_native,
    .event_native = host_event_native,
    .copy_to_device = host_copy_to_device,
    .copy_to_host = host_copy_to_host,
    .copy_on_device = host_copy_on_device,
    .set = host_set,
    .write_flag = host_write_flag,
    .launch = host_launch,
};
