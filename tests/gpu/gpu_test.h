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

#endif
