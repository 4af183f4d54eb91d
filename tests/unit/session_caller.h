/*
 * The caller's own work on the GPU in tests of sessions: a stream that is busy, copies, and bytes
 * that are filled in and compared where they are. Programs do that with CUDA; here tcpx's GPU layer
 * does it, which has no public calls for it.
 */
#ifndef TCPX_TESTS_SESSION_CALLER_H
#define TCPX_TESTS_SESSION_CALLER_H

#include "base/clock.h"
#include "gpu/gpu.h"
#include "tests/support/gpu_native.h"
#include "tests/unit/session_pair.h"

/* One GPU and a stream on it. */
struct caller {
    struct gpu *gpu;
    struct gpu_stream *stream;
    struct gpu_event *event;
    struct gpu_memory ballast;
    struct gpu_memory verdict;
};

/* `ballast`: how much memory there is to keep the GPU busy with. */
static inline void caller_start(struct caller *caller, uint64_t ballast)
{
    *caller = (struct caller){0};
    CHECK_SUCCESS(gpu_open(0, &caller->gpu));
    CHECK_SUCCESS(gpu_stream_create(caller->gpu, &caller->stream));
    CHECK_SUCCESS(gpu_event_create(caller->gpu, &caller->event));
    CHECK_SUCCESS(gpu_memory_alloc(caller->gpu, ballast, 4096, &caller->ballast));
    CHECK_SUCCESS(
        gpu_memory_alloc(caller->gpu, sizeof(struct gpu_verify_result), 4096, &caller->verdict));
}

static inline void caller_drain(struct caller *caller)
{
    CHECK_SUCCESS(gpu_event_record(caller->event, caller->stream));
    CHECK_SUCCESS(gpu_event_wait(caller->event, deadline_after_ms(3 * WAIT_MS)));
}

static inline void caller_end(struct caller *caller)
{
    caller_drain(caller);
    gpu_memory_free(caller->gpu, &caller->verdict);
    gpu_memory_free(caller->gpu, &caller->ballast);
    gpu_event_destroy(caller->event);
    gpu_stream_destroy(caller->stream);
    gpu_close(caller->gpu);
}

/* Emulated GPUs are slow (slow_down_gpus()); a real one has to have something to do. */
static inline void caller_be_busy(struct caller *caller)
{
    int times = number_of("TCPX_TEST_LARGE", 0) != 0 ? 300 : 1;

    for (int i = 0; i < times; i++)
        CHECK_SUCCESS(
            gpu_set(caller->stream, caller->ballast.address, (uint8_t)i, caller->ballast.bytes));
}

static inline void caller_copy(struct caller *caller, void *to, const void *from, uint64_t bytes)
{
    CHECK_SUCCESS(gpu_copy_on_device(caller->stream, (uintptr_t)to, (uintptr_t)from, bytes));
}

static inline void caller_fill(struct caller *caller, void *at, uint64_t bytes, uint64_t seed)
{
    CHECK_SUCCESS(gpu_fill_pattern(caller->stream, (uintptr_t)at, bytes, seed, 0));
    caller_drain(caller);
}

static inline void caller_wipe(struct caller *caller, void *at, uint64_t bytes)
{
    CHECK_SUCCESS(gpu_set(caller->stream, (uintptr_t)at, POISON, bytes));
    caller_drain(caller);
}

/* How many bytes are not those that caller_fill() wrote from `position` on. */
static inline uint64_t caller_count_wrong(struct caller *caller, const void *at, uint64_t bytes,
                                          uint64_t seed, uint64_t position)
{
    struct gpu_verify_result verdict;

    if (bytes == 0)
        return 0;
    CHECK_SUCCESS(gpu_verify_pattern(caller->stream, (uintptr_t)at, bytes, seed, position,
                                     caller->verdict.address));
    CHECK_SUCCESS(
        gpu_copy_to_host(caller->stream, &verdict, caller->verdict.address, sizeof verdict));
    caller_drain(caller);
    return verdict.differences;
}

#endif
