/*
 * The one place through which tcpx touches a GPU, real (cuda.c) or emulated (host.c). Nothing
 * outside this folder knows CUDA. A device address is a number, never a pointer, so that no CPU
 * code can follow it by accident.
 *
 * Everything on a stream is asynchronous and in order; completion is polled, through an event. No
 * call waits for the whole device, except that freeing memory may: allocate and free at set-up and
 * tear-down only. Every call may come from any thread, also with another CUDA context current,
 * which is left as it was; one stream or event belongs to one thread at a time. Outputs are written
 * on success only.
 */
#ifndef TCPX_GPU_GPU_H
#define TCPX_GPU_GPU_H

#include "base/error.h"
#include "gpu/kernels.h"

#include <stdbool.h>
#include <stdint.h>

typedef uint64_t gpu_address;

struct gpu;
struct gpu_stream;
struct gpu_event;

/* --- devices ------------------------------------------------------------------------------- */

MUST_CHECK int gpu_count(int *count);
MUST_CHECK int gpu_properties(int index, struct tcpx_gpu_properties *properties);

/*
 * The GPU that the calling thread works with: that of its current CUDA context. 0 if it has none,
 * and for emulated GPUs.
 */
MUST_CHECK int gpu_of_caller(int *index);

/* As gpu_of_caller(), but -1 if it has none. */
MUST_CHECK int gpu_of_caller_or_none(int *index);

/* "cuda" or "host", and why: for people. Valid for the life of the process. */
MUST_CHECK int gpu_backend(const char **name, const char **reason);

/* Costs nothing yet: a CUDA context is made at the first use of the device's memory. */
MUST_CHECK int gpu_open(int index, struct gpu **gpu);

/* The last use of everything that was made on it comes before. NULL is allowed. */
void gpu_close(struct gpu *gpu);

/*
 * For code of others, which works with the GPU that is current in its thread: between these two,
 * this one is.
 */
struct gpu_scope {
    bool pushed;
    int capture_mode;
};
MUST_CHECK int gpu_enter(struct gpu *gpu, struct gpu_scope *scope);
void gpu_leave(struct gpu *gpu, const struct gpu_scope *scope);

/* --- memory -------------------------------------------------------------------------------- */

struct gpu_memory {
    gpu_address address;
    uint64_t bytes;
    gpu_address allocation; /* what the backend frees; below address where that was aligned up */
};

/* `alignment`: a power of two; 4096 and more lets the memory be exported as a dma-buf. */
MUST_CHECK int gpu_memory_alloc(struct gpu *gpu, uint64_t bytes, uint64_t alignment,
                                struct gpu_memory *memory);
/* How much could be allocated now, at most. */
MUST_CHECK int gpu_memory_available(struct gpu *gpu, uint64_t *bytes);

/* Memory that was never allocated (all zero) is allowed. */
void gpu_memory_free(struct gpu *gpu, struct gpu_memory *memory);

/* Host memory that the GPU reads and writes directly. CPU code uses `host`, kernels `device`. */
struct gpu_pinned {
    void *host;
    gpu_address device;
    uint64_t bytes;
};

/* Zeroed and page-aligned, in whole pages. */
MUST_CHECK int gpu_pinned_alloc(struct gpu *gpu, uint64_t bytes, struct gpu_pinned *pinned);
/* In the 4 GiB that begin at `from`, a whole page, if there is room for it; otherwise anywhere. */
MUST_CHECK int gpu_pinned_alloc_near(struct gpu *gpu, uint64_t bytes, gpu_address from,
                                     struct gpu_pinned *pinned);
void gpu_pinned_free(struct gpu *gpu, struct gpu_pinned *pinned);

enum gpu_pointer_kind {
    GPU_POINTER_HOST,    /* ordinary memory */
    GPU_POINTER_PINNED,  /* host memory that the GPU can reach */
    GPU_POINTER_DEVICE,  /* GPU memory, however it was allocated */
    GPU_POINTER_MANAGED, /* moves by itself: copies and kernels may use it, a dma-buf cannot */
};

struct gpu_pointer {
    enum gpu_pointer_kind kind;
    int device;          /* -1 for HOST, and for PINNED memory of no particular device */
    gpu_address base;    /* of the allocation, or of the first mapping of a VMM range */
    uint64_t bytes;      /* of that allocation or mapping */
    bool one_allocation; /* false: several mappings side by side, as expandable segments have */
    void *host;          /* the same bytes for the CPU; NULL: it does not reach them */
};

/*
 * What is at [address, address + bytes). A range whose parts are of different kinds or devices, or
 * partly unmapped, is refused with a text.
 */
MUST_CHECK int gpu_classify(const void *address, uint64_t bytes, struct gpu_pointer *pointer);

/*
 * A dma-buf file descriptor for [address, address + bytes), both multiples of 4096, also where the
 * allocation ends within the last page. The caller closes it; the memory stays alive until then.
 */
MUST_CHECK int gpu_export_dmabuf(struct gpu *gpu, gpu_address address, uint64_t bytes, int *fd);

/*
 * Makes what a NIC has written into GPU memory visible to work launched from now on, where the
 * GPU does not order that by itself.
 */
MUST_CHECK int gpu_flush_inbound_writes(struct gpu *gpu);

/* --- streams and events -------------------------------------------------------------------- */

MUST_CHECK int gpu_stream_create(struct gpu *gpu, struct gpu_stream **stream);
/* Work that is still queued is finished in the background. NULL is allowed. */
void gpu_stream_destroy(struct gpu_stream *stream);

MUST_CHECK int gpu_event_create(struct gpu *gpu, struct gpu_event **event);
void gpu_event_destroy(struct gpu_event *event);

/* The event is done when all work queued on the stream so far is. */
MUST_CHECK int gpu_event_record(struct gpu_event *event, struct gpu_stream *stream);

/* An event that was never recorded is done. A failure of the work before it is the result. */
MUST_CHECK int gpu_event_query(struct gpu_event *event, bool *done);

/* Spins, yields, then sleeps; TCPX_IN_PROGRESS once the deadline (base/clock.h) has passed. */
MUST_CHECK int gpu_event_wait(struct gpu_event *event, uint64_t deadline);

/*
 * The caller's own streams and events: a CUstream (NULL is the default stream) or CUevent with
 * CUDA. Without one of these waits, a caller must have finished its work on a buffer before it
 * hands it over.
 */
MUST_CHECK int gpu_stream_wait_caller_stream(struct gpu_stream *stream, void *caller_stream);
MUST_CHECK int gpu_stream_wait_caller_event(struct gpu_stream *stream, void *caller_event);
/* Later work of the caller's stream waits for our event. */
MUST_CHECK int gpu_caller_stream_wait(void *caller_stream, struct gpu_event *event);

/* --- work on a stream ---------------------------------------------------------------------- */

/*
 * Host memory that is not pinned is allowed, but then the call may wait for the copy. Copies to and
 * from the host go through a copy engine, and do not wait for kernels of other streams, with one
 * exception: a single byte to the device may wait behind kernels that are queued on the same
 * hardware queue. Copies on the device, sets and kernels may wait for them, too.
 */
MUST_CHECK int gpu_copy_to_device(struct gpu_stream *stream, gpu_address to, const void *from,
                                  uint64_t bytes);
MUST_CHECK int gpu_copy_to_host(struct gpu_stream *stream, void *to, gpu_address from,
                                uint64_t bytes);
MUST_CHECK int gpu_copy_on_device(struct gpu_stream *stream, gpu_address to, gpu_address from,
                                  uint64_t bytes);
MUST_CHECK int gpu_set(struct gpu_stream *stream, gpu_address at, uint8_t value, uint64_t bytes);

/* --- kernels (kernels.h says what each computes) ------------------------------------------- */

/*
 * Copies the fragment of every descriptor of up to GPU_UNPACK_LISTS lists, in any order, from the
 * list's bounce buffer to its destination; those longer than `longest` are left out. The
 * descriptors are read in place, while the work runs. It is made for many fragments of up to some
 * ten KiB: one warp copies one.
 */
MUST_CHECK int gpu_unpack(struct gpu_stream *stream, const struct gpu_unpack_list *lists,
                          uint32_t list_count, uint32_t longest);

/*
 * Copies up to GPU_COPY_RUNS runs, in any order, of any length: many warps share a long one. The
 * runs travel with the launch, so that the array is free again when the call returns.
 */
MUST_CHECK int gpu_copy_runs(struct gpu_stream *stream, const struct gpu_run *runs, uint32_t count);

/* Bytes [position, position + bytes) of the pattern that `seed` chooses. */
MUST_CHECK int gpu_fill_pattern(struct gpu_stream *stream, gpu_address at, uint64_t bytes,
                                uint64_t seed, uint64_t position);

struct gpu_verify_result {
    uint64_t differences; /* how many bytes differ */
    uint64_t first;       /* index of the first, from `at`; UINT64_MAX if there is none */
};

/* `result`: a struct gpu_verify_result in device memory, 8-byte aligned; it is overwritten. */
MUST_CHECK int gpu_verify_pattern(struct gpu_stream *stream, gpu_address at, uint64_t bytes,
                                  uint64_t seed, uint64_t position, gpu_address result);

#endif
