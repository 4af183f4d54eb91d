/*
 * Streams and events of the GPU layer in the part of a caller's: what tcpx.h is given for them. For
 * tests and measurements, which play that caller.
 */
#ifndef TCPX_TESTS_SUPPORT_GPU_NATIVE_H
#define TCPX_TESTS_SUPPORT_GPU_NATIVE_H

#include "gpu/gpu_ops.h"

static inline void *gpu_stream_native(struct gpu_stream *stream)
{
    return stream->native;
}

static inline void *gpu_event_native(struct gpu_event *event)
{
    return event->native;
}

/* Later work on the stream waits for the event's latest record. */
static inline int gpu_stream_wait_event(struct gpu_stream *stream, struct gpu_event *event)
{
    return gpu_stream_wait_caller_event(stream, event->native);
}

#endif
