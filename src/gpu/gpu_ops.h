/*
 * What a GPU backend implements; gpu.h documents each operation. gpu.c checks arguments and forks
 * before it calls, so that backends get valid, non-empty ranges only.
 */
#ifndef TCPX_GPU_GPU_OPS_H
#define TCPX_GPU_GPU_OPS_H

#include "gpu/gpu.h"

enum { PAGE_BYTES = 4096 };

enum gpu_kernel {
    GPU_KERNEL_UNPACK,
    GPU_KERNEL_COPY,
    GPU_KERNEL_FILL,
    GPU_KERNEL_VERIFY,
    GPU_KERNELS
};

/* Backends begin their own structs with these. */
struct gpu {
    const struct gpu_ops *ops;
    int index;
    uint32_t warps; /* that work side by side */
};

/* `native`: what the calls that take a caller's stream or event would be given for this one. */
struct gpu_stream {
    struct gpu *gpu;
    void *native;
};

struct gpu_event {
    struct gpu *gpu;
    void *native;
};

/*
 * OPERATION(name, parameters, the GPU, arguments): gpu_NAME() calls it unless the process was
 * forked.
 */
/* clang-format off */
#define GPU_FORWARDED(OPERATION)                                                                   \
    OPERATION(memory_available, (struct gpu *gpu, uint64_t *bytes), gpu, (gpu, bytes))             \
    OPERATION(flush_inbound_writes, (struct gpu *gpu), gpu, (gpu))                                 \
    OPERATION(stream_create, (struct gpu *gpu, struct gpu_stream **stream), gpu, (gpu, stream))    \
    OPERATION(event_create, (struct gpu *gpu, struct gpu_event **event), gpu, (gpu, event))        \
    OPERATION(event_record, (struct gpu_event *event, struct gpu_stream *stream), event->gpu,      \
              (event, stream))                                                                     \
    OPERATION(event_query, (struct gpu_event *event, bool *done), event->gpu, (event, done))       \
    OPERATION(stream_wait_caller_stream, (struct gpu_stream *stream, void *caller_stream),         \
              stream->gpu, (stream, caller_stream))                                                \
    OPERATION(caller_stream_wait, (void *caller_stream, struct gpu_event *event), event->gpu,      \
              (caller_stream, event))

/* As GPU_FORWARDED, with `bytes`, which are never 0 here. */
#define GPU_COPIES(OPERATION)                                                                      \
    OPERATION(copy_to_device,                                                                      \
              (struct gpu_stream *stream, gpu_address to, const void *from, uint64_t bytes),       \
              stream->gpu, (stream, to, from, bytes))                                              \
    OPERATION(copy_to_host,                                                                        \
              (struct gpu_stream *stream, void *to, gpu_address from, uint64_t bytes),             \
              stream->gpu, (stream, to, from, bytes))                                              \
    OPERATION(copy_on_device,                                                                      \
              (struct gpu_stream *stream, gpu_address to, gpu_address from, uint64_t bytes),       \
              stream->gpu, (stream, to, from, bytes))                                              \
    OPERATION(set, (struct gpu_stream *stream, gpu_address at, uint8_t value, uint64_t bytes),     \
              stream->gpu, (stream, at, value, bytes))

/* gpu.c has more to check for these. */
#define GPU_CHECKED(OPERATION)                                                                     \
    OPERATION(start, (int *count)) /* finds the devices; called once before anything else */       \
    OPERATION(properties, (int index, struct tcpx_gpu_properties *properties))                     \
    OPERATION(open, (int index, struct gpu **gpu))                                                 \
    OPERATION(memory_alloc,                                                                        \
              (struct gpu *gpu, uint64_t bytes, uint64_t alignment, struct gpu_memory *memory))    \
    OPERATION(pinned_register, (struct gpu *gpu, struct gpu_pinned *pinned)) /* fills `device` */  \
    OPERATION(classify, (gpu_address address, uint64_t bytes, struct gpu_pointer *pointer))        \
    OPERATION(export_dmabuf, (struct gpu *gpu, gpu_address address, uint64_t bytes, int *fd))      \
    OPERATION(stream_wait_caller_event, (struct gpu_stream *stream, void *caller_event))           \
    /* `warps`: how many there is work for; the backend may take fewer. */                         \
    OPERATION(launch, (struct gpu_stream *stream, enum gpu_kernel kernel, const void *argument,    \
                       uint64_t warps))

#define GPU_RELEASES(OPERATION)                                                                    \
    OPERATION(close, (struct gpu *gpu))                                                            \
    OPERATION(memory_free, (struct gpu *gpu, struct gpu_memory *memory))                           \
    OPERATION(pinned_unregister, (struct gpu *gpu, struct gpu_pinned *pinned))                     \
    OPERATION(stream_destroy, (struct gpu_stream *stream))                                         \
    OPERATION(event_destroy, (struct gpu_event *event))

#define GPU_OPERATIONS(OPERATION)                                                                  \
    GPU_FORWARDED(OPERATION) GPU_COPIES(OPERATION) GPU_CHECKED(OPERATION) GPU_RELEASES(OPERATION)
/* clang-format on */

struct gpu_ops {
    const char *name;
    /* NULL: always 0, and nothing to do */
    int (*of_caller)(int *index); /* -1: none */
    int (*enter)(struct gpu *gpu, struct gpu_scope *scope);
    void (*leave)(const struct gpu_scope *scope);
#define GPU_MEMBER(name, parameters, ...)         int(*name) parameters;
#define GPU_RELEASE_MEMBER(name, parameters, ...) void(*name) parameters;
    GPU_FORWARDED(GPU_MEMBER)
    GPU_COPIES(GPU_MEMBER)
    GPU_CHECKED(GPU_MEMBER)
    GPU_RELEASES(GPU_RELEASE_MEMBER)
#undef GPU_MEMBER
#undef GPU_RELEASE_MEMBER
};

#endif
