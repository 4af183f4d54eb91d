/* What the programs of this folder share: one opened GPU, and errors that show their text. */
#ifndef TCPX_TESTS_GPU_TEST_H
#define TCPX_TESTS_GPU_TEST_H

#include "base/clock.h"
#include "gpu/gpu.h"
#include "tests/limit.h"
#include "tests/skip.h"
#include "tests/support/basics.h"
#include "tests/support/gpu_native.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <string.h>

/* A hang, and not slowness, fails. */
#define LIMIT deadline_after_ms(limit_ms(60000))

#define assert_success(call)                                                                       \
    do {                                                                                           \
        int result_ = (call);                                                                      \
        if (result_ != TCPX_SUCCESS)                                                               \
            fail_msg("%s: %s: %s", #call, tcpx_result_name(result_), tcpx_last_error());           \
    } while (0)

/* Fails with `expected` and a text that contains `words`. */
#define assert_error(call, expected, words)                                                        \
    do {                                                                                           \
        int result_ = (call);                                                                      \
        if (result_ != (expected) || strstr(tcpx_last_error(), words) == NULL)                     \
            fail_msg("%s: %s: '%s' instead of %s with '%s'", #call, tcpx_result_name(result_),     \
                     tcpx_last_error(), tcpx_result_name(expected), words);                        \
    } while (0)

/* Waits for everything queued on the stream so far. */
static inline int drain(struct gpu *gpu, struct gpu_stream *stream)
{
    struct gpu_event *event;
    int result = gpu_event_create(gpu, &event);

    if (result != TCPX_SUCCESS)
        return result;
    result = gpu_event_record(event, stream);
    if (result == TCPX_SUCCESS)
        result = gpu_event_wait(event, LIMIT);
    gpu_event_destroy(event);
    return result;
}

/* Copies from GPU memory behind all that is on the stream, and waits. */
static inline void fetch_on(struct gpu *gpu, struct gpu_stream *stream, void *to, gpu_address from,
                            uint64_t bytes)
{
    assert_success(gpu_copy_to_host(stream, to, from, bytes));
    assert_success(drain(gpu, stream));
}

/* What the GPU finds where this pattern should be, told by way of `answer`. */
static inline struct gpu_verify_result verify_on(struct gpu *gpu, struct gpu_stream *stream,
                                                 gpu_address at, uint64_t bytes, uint64_t seed,
                                                 uint64_t position, gpu_address answer)
{
    struct gpu_verify_result result;

    assert_success(gpu_verify_pattern(stream, at, bytes, seed, position, answer));
    fetch_on(gpu, stream, &result, answer, sizeof result);
    return result;
}

/* Steps of which the first that fails is the result. */
#define STEP(call)                                                                                 \
    do {                                                                                           \
        if (result == TCPX_SUCCESS)                                                                \
            result = (call);                                                                       \
    } while (0)

/* GPU 0 with one of everything. */
struct rig {
    struct gpu *gpu;
    struct gpu_stream *stream;
    struct gpu_event *event;
    struct gpu_pinned pinned;
    struct gpu_memory memory;
};

/* `bytes` of each memory. 0, as a set-up returns it; -1: the reason is on standard error. */
static inline int rig_open(struct rig *rig, uint64_t bytes)
{
    if (gpu_open(0, &rig->gpu) == TCPX_SUCCESS &&
        gpu_stream_create(rig->gpu, &rig->stream) == TCPX_SUCCESS &&
        gpu_event_create(rig->gpu, &rig->event) == TCPX_SUCCESS &&
        gpu_pinned_alloc(rig->gpu, bytes, &rig->pinned) == TCPX_SUCCESS &&
        gpu_memory_alloc(rig->gpu, bytes, 4096, &rig->memory) == TCPX_SUCCESS)
        return 0;
    fprintf(stderr, "set-up: %s\n", tcpx_last_error());
    return -1;
}

static inline void rig_close(struct rig *rig)
{
    gpu_memory_free(rig->gpu, &rig->memory);
    gpu_pinned_free(rig->gpu, &rig->pinned);
    gpu_event_destroy(rig->event);
    gpu_stream_destroy(rig->stream);
    gpu_close(rig->gpu);
}

#endif
