/*
 * What is moved and checked: a buffer in GPU memory, real or emulated, or in host memory, that can
 * be filled with a pattern, and compared with the pattern byte by byte, where it is.
 */
#ifndef TCPX_TOOLS_BUFFER_H
#define TCPX_TOOLS_BUFFER_H

#include "gpu/gpu.h"

struct buffer {
    uint64_t bytes;
    void *data; /* in GPU memory: the device address */
    bool in_gpu;
    struct gpu *gpu;
    struct gpu_stream *stream;
    struct gpu_event *event;
    struct gpu_memory memory;
    struct gpu_memory verdict; /* struct gpu_verify_result */
};

/* `gpu`: which one, or -1 for host memory. */
MUST_CHECK int buffer_create(int gpu, uint64_t bytes, struct buffer *buffer);

/* Also one that could not be created. */
void buffer_destroy(struct buffer *buffer);

/* The pattern that `seed` chooses; waits until that is done. */
MUST_CHECK int buffer_fill(struct buffer *buffer, uint64_t seed);

/* Bytes of no pattern, so that what does not arrive is noticed. */
MUST_CHECK int buffer_poison(struct buffer *buffer);

/* Changes one byte of the pattern, to see that this is noticed. */
MUST_CHECK int buffer_spoil(struct buffer *buffer, uint64_t seed);

/* How many bytes are not those of the pattern. */
MUST_CHECK int buffer_count_wrong(struct buffer *buffer, uint64_t seed, uint64_t *wrong);

#endif
