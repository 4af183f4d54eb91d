/*
 * The engine of the emulated GPUs: one thread that takes the operations of all streams, in order
 * within a stream and in turn between streams, while the caller goes on. It starts with the first
 * stream and ends with the last.
 */
#ifndef TCPX_GPU_HOST_ENGINE_H
#define TCPX_GPU_HOST_ENGINE_H

#include "gpu/gpu_ops.h"

struct host_stream;
struct host_event;

enum host_operation_kind {
    HOST_COPY_TO_DEVICE,
    HOST_COPY_TO_HOST,
    HOST_COPY_ON_DEVICE,
    HOST_SET,
    HOST_WRITE_FLAG,
    HOST_LAUNCH,
    HOST_RECORD,
    HOST_WAIT,
    HOST_SPIN
};

struct host_operation {
    enum host_operation_kind kind;
    union {
        struct {
            uint64_t to; /* an address of the kind's side: device or host */
            uint64_t from;
            uint64_t bytes;
            bool host_is_pinned; /* set when submitted: then it must still be when it runs */
        } copy;
        struct {
            gpu_address at;
            uint64_t bytes;
            uint8_t value;
        } set;
        struct {
            gpu_address at;
            uint32_t value;
        } flag;
        struct {
            enum gpu_kernel kernel;
            const void *argument; /* copied when submitted */
        } launch;
        struct {
            struct host_event *event;
            uint64_t record; /* which record of it */
        } event;
        struct {
            gpu_address until; /* a 32-bit word that somebody will make other than 0 */
            uint64_t deadline; /* base/clock.h; it ends then in any case */
        } spin;
    };
};

/* `delay_us`: how long each operation waits before it runs. */
MUST_CHECK int host_stream_create(uint64_t delay_us, struct host_stream **stream);
void host_stream_destroy(struct host_stream *stream);

/* Operations that cannot be right (an address outside device memory) are refused here already. */
MUST_CHECK int host_stream_submit(struct host_stream *stream,
                                  const struct host_operation *operation);

MUST_CHECK int host_event_create(struct host_event **event);
/* Operations that still refer to it keep it alive. */
void host_event_destroy(struct host_event *event);
MUST_CHECK int host_event_record(struct host_event *event, struct host_stream *stream);
/* When its latest record was passed, by base/clock.h. */
uint64_t host_event_time(struct host_event *event);
MUST_CHECK int host_event_query(struct host_event *event, bool *done);
MUST_CHECK int host_stream_wait(struct host_stream *stream, struct host_event *event);

#endif
