/*
 * What a GPU backend implements; gpu.h says what each operation promises. gpu.c checks arguments
 * and forks before it calls, so that backends see sane, non-empty ranges only.
 */
#ifndef TCPX_GPU_GPU_OPS_H
#define TCPX_GPU_GPU_OPS_H

#include "gpu/gpu.h"

enum gpu_kernel {
    GPU_KERNEL_UNPACK,
    GPU_KERNEL_COPY,
    GPU_KERNEL_FILL,
    GPU_KERNEL_VERIFY,
    GPU_KERNEL_EMPTY,
    GPU_KERNELS
};

/* Backends begin their own structs with these. */
struct gpu {
    const struct gpu_ops *ops;
    int index;
    uint32_t warps; /* that work side by side */
};

struct gpu_stream {
    struct gpu *gpu;
};

struct gpu_event {
    struct gpu *gpu;
};

struct gpu_ops {
    const char *name;

    /* Finds the devices; called once before anything else. */
    int (*start)(int *count);
    int (*properties)(int index, struct tcpx_gpu_properties *properties);
    int (*of_caller)(int *index); /* -1: none. NULL: always 0 */
    int (*open)(int index, struct gpu **gpu);
    void (*close)(struct gpu *gpu);
    int (*enter)(struct gpu *gpu, struct gpu_scope *scope); /* NULL: there is nothing to do */
    void (*leave)(const struct gpu_scope *scope);

    int (*memory_alloc)(struct gpu *gpu, uint64_t bytes, uint64_t alignment,
                        struct gpu_memory *memory);
    void (*memory_free)(struct gpu *gpu, struct gpu_memory *memory);
    int (*pinned_alloc)(struct gpu *gpu, uint64_t bytes, enum gpu_pinned_kind kind,
                        struct gpu_pinned *pinned);
    void (*pinned_free)(struct gpu *gpu, struct gpu_pinned *pinned);
    int (*classify)(gpu_address address, uint64_t bytes, struct gpu_pointer *pointer);
    int (*export_dmabuf)(struct gpu *gpu, gpu_address address, uint64_t bytes, int *fd);
    int (*flush_inbound_writes)(struct gpu *gpu);

    int (*stream_create)(struct gpu *gpu, struct gpu_stream **stream);
    void (*stream_destroy)(struct gpu_stream *stream);
    int (*event_create)(struct gpu *gpu, enum gpu_event_kind kind, struct gpu_event **event);
    void (*event_destroy)(struct gpu_event *event);
    int (*event_record)(struct gpu_event *event, struct gpu_stream *stream);
    int (*event_query)(struct gpu_event *event, bool *done);
    int (*event_elapsed)(struct gpu_event *from, struct gpu_event *to, double *seconds);
    int (*stream_wait_event)(struct gpu_stream *stream, struct gpu_event *event);
    int (*stream_wait_caller_stream)(struct gpu_stream *stream, void *caller_stream);
    int (*stream_wait_caller_event)(struct gpu_stream *stream, void *caller_event);
    int (*caller_stream_wait)(void *caller_stream, struct gpu_event *event);
    void *(*stream_native)(struct gpu_stream *stream);
    void *(*event_native)(struct gpu_event *event);

    int (*copy_to_device)(struct gpu_stream *stream, gpu_address to, const void *from,
                          uint64_t bytes);
    int (*copy_to_host)(struct gpu_stream *stream, void *to, gpu_address from, uint64_t bytes);
    int (*copy_on_device)(struct gpu_stream *stream, gpu_address to, gpu_address from,
                          uint64_t bytes);
    int (*set)(struct gpu_stream *stream, gpu_address at, uint8_t value, uint64_t bytes);
    int (*write_flag)(struct gpu_stream *stream, gpu_address at, uint32_t value);

    /* `warps`: how many there is work for; the backend may take fewer. */
    int (*launch)(struct gpu_stream *stream, enum gpu_kernel kernel, const void *argument,
                  uint64_t warps);
};

extern const struct gpu_ops gpu_cuda_ops;
extern const struct gpu_ops gpu_host_ops;

#endif
