/*
 * The engine of the emulated GPUs: one thread that takes the operations of all streams, in order
 * within a stream and in turn between streams, while the caller goes on. It starts with the first
 * stream and ends with the last.
 */
#ifndef TCPX_GPU_HOST_ENGINE_H
#define TCPX_GPU_HOST_ENGINE_H

#include "gpu/gpu_ops.h"

enum host_operation_kind {
    HOST_COPY_TO_DEVICE,
    HOST_COPY_TO_HOST,
    HOST_COPY_ON_DEVICE,
    HOST_SET,
    HOST_LAUNCH,
    HOST_RECORD,
    HOST_WAIT
};

struct host_operation {
    enum host_operation_kind kind;
    void *argument; /* of a kernel, copied when submitted; NULL elsewhere */
    union {
        struct {
            uint64_t to; /* an address of the kind's side: device or host */
            uint64_t from;
            uint64_t bytes;
            uint8_t value;       /* of a set, which has no `from` */
            bool host_is_pinned; /* set when submitted: then it must still be when it runs */
        } memory;
        enum gpu_kernel kernel; /* to launch */
        struct {
            struct host_event *event;
            uint64_t record; /* which record of it */
        } event;
    };
};

/* `delay_us`: how long each operation waits before it runs. */
MUST_CHECK int host_stream_start(struct gpu *gpu, uint64_t delay_us, struct gpu_stream **stream);
void host_stream_destroy(struct gpu_stream *stream);

/* Operations that cannot be right (an address outside device memory) are refused here already. */
MUST_CHECK int host_stream_submit(struct gpu_stream *stream,
                                  const struct host_operation *operation);

MUST_CHECK int host_event_create(struct gpu *gpu, struct gpu_event **event);
/* Operations that still refer to it keep it alive. */
void host_event_destroy(struct gpu_event *event);
MUST_CHECK int host_event_record(struct gpu_event *event, struct gpu_stream *stream);
MUST_CHECK int host_event_query(struct gpu_event *event, bool *done);
MUST_CHECK int host_stream_wait(struct gpu_stream *stream, struct gpu_event *event);

/*
 * For a test's kernel of any duration: host_event_hold() records the event, and host_event_reach()
 * reaches it.
 */
void host_event_hold(struct gpu_event *event);
void host_event_reach(struct gpu_event *event);

#endif
