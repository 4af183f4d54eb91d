/* Streams, events and the thread of the emulated GPUs. */
#include "gpu/host_engine.h"

#include "base/clock.h"
#include "base/queue.h"
#include "gpu/host_memory.h"
#include "gpu/kernel_twins.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPERATIONS_PER_STREAM = 1024, FULL_STREAM_LIMIT_MS = 30000 };

struct failure {
    int result; /* TCPX_SUCCESS: none */
    char text[256];
};

struct host_event {
    struct gpu_event base;
    uint64_t recorded; /* how often it was recorded */
    uint64_t reached;  /* the latest record that the engine has passed */
    struct failure failure;
    unsigned references; /* its owner, and operations in queues */
};

struct host_stream {
    struct gpu_stream base;
    struct host_stream *next;
    struct queue operations;
    struct failure failure; /* the first; what comes after it in the stream is not run */
    uint64_t delay_us;
    bool closing; /* its owner has released it; the engine frees it once it is empty */
};

/* Guards everything in this file: the list of streams, and all fields of streams and events. */
static pthread_mutex_t engine_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work_arrived = PTHREAD_COND_INITIALIZER;
static pthread_cond_t work_done = PTHREAD_COND_INITIALIZER;
static struct host_stream *streams;
static bool engine_running;

/* --- running one operation ----------------------------------------------------------------- */

/* The end of a copy that is an address of the host; 0 if both are the device's. */
static uint64_t host_end(const struct host_operation *operation)
{
    return operation->kind == HOST_COPY_TO_DEVICE ? operation->memory.from
           : operation->kind == HOST_COPY_TO_HOST ? operation->memory.to
                                                  : 0;
}

/* Where the bytes really are. A device address on the host's side would fault: refused. */
static int resolve_ends(const struct host_operation *operation, void **to, const void **from)
{
    uint64_t bytes = operation->memory.bytes;

    if (host_memory_resolve(host_end(operation), 1) != NULL)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "copy: 0x%llx is a device address where one of the host is expected",
                         (unsigned long long)host_end(operation));
    if (operation->memory.host_is_pinned && !host_memory_is_registered(host_end(operation), bytes))
        return error_set(TCPX_CUDA_ERROR,
                         "copy: pinned memory at 0x%llx was freed before the copy was done",
                         (unsigned long long)host_end(operation));
    *from = (const void *)(uintptr_t)operation->memory.from;
    if (operation->kind == HOST_COPY_TO_HOST || operation->kind == HOST_COPY_ON_DEVICE) {
        *from = host_memory_use("copy: read", operation->memory.from, bytes);
        if (*from == NULL)
            return TCPX_CUDA_ERROR;
    }
    *to = operation->kind == HOST_COPY_TO_HOST
              ? (void *)(uintptr_t)operation->memory.to
              : host_memory_use(operation->kind == HOST_SET ? "set" : "copy: write",
                                operation->memory.to, bytes);
    return *to != NULL ? TCPX_SUCCESS : TCPX_CUDA_ERROR;
}

static int run_operation(const struct host_operation *operation)
{
    const void *from;
    void *to;
    int result;

    if (operation->kind == HOST_LAUNCH)
        return kernel_twins[operation->kernel].run(operation->argument);
    result = resolve_ends(operation, &to, &from);
    if (result == TCPX_SUCCESS && operation->kind == HOST_SET)
        memset(to, operation->memory.value, operation->memory.bytes);
    else if (result == TCPX_SUCCESS)
        memmove(to, from, operation->memory.bytes);
    return result;
}

/* What can be seen to be wrong before the operation runs; a kernel finds out by itself. */
static int check_operation(struct host_operation *operation)
{
    const void *from;
    void *to;
    int result;

    if (operation->kind == HOST_LAUNCH)
        return TCPX_SUCCESS;
    host_memory_hold();
    operation->memory.host_is_pinned =
        host_memory_is_registered(host_end(operation), operation->memory.bytes);
    result = resolve_ends(operation, &to, &from);
    host_memory_release();
    return result;
}

/* --- the thread ---------------------------------------------------------------------------- */

static void drop_event(struct host_event *event)
{
    if (--event->references == 0)
        free(event);
}

static void pass_record(struct host_stream *stream, const struct host_operation *operation)
{
    struct host_event *event = operation->event.event;

    if (operation->event.record > event->reached) {
        event->reached = operation->event.record;
        event->failure = stream->failure;
    }
    drop_event(event);
}

/* Work behind a failed event fails, too: its input is not valid. */
static void pass_wait(struct host_stream *stream, const struct host_operation *operation)
{
    struct host_event *event = operation->event.event;

    if (stream->failure.result == TCPX_SUCCESS)
        stream->failure = event->failure;
    drop_event(event);
}

static bool can_run(const struct host_operation *operation)
{
    return operation->kind != HOST_WAIT ||
           operation->event.event->reached >= operation->event.record;
}

/* Runs the operation without the lock; its stream stays, since only the engine frees streams. */
static void run_unlocked(struct host_stream *stream, const struct host_operation *operation)
{
    int result;

    pthread_mutex_unlock(&engine_lock);
    if (stream->delay_us != 0) {
        const struct timespec pause = {.tv_sec = (time_t)(stream->delay_us / 1000000),
                                       .tv_nsec = (long)(stream->delay_us % 1000000) * 1000};
        nanosleep(&pause, NULL);
    }
    host_memory_hold();
    result = run_operation(operation);
    host_memory_release();
    pthread_mutex_lock(&engine_lock);
    if (result != TCPX_SUCCESS) {
        stream->failure.result = result;
        snprintf(stream->failure.text, sizeof stream->failure.text, "%s", error_text());
    }
}

/* Takes the next operation of the stream, if it can run now. */
static bool step_stream(struct host_stream *stream)
{
    const struct host_operation *next = queue_peek(&stream->operations);
    struct host_operation operation;

    if (next == NULL || !can_run(next) || !queue_pop(&stream->operations, &operation))
        return false;
    if (operation.kind == HOST_RECORD)
        pass_record(stream, &operation);
    else if (operation.kind == HOST_WAIT)
        pass_wait(stream, &operation);
    else if (stream->failure.result == TCPX_SUCCESS)
        run_unlocked(stream, &operation);
    free(operation.argument);
    pthread_cond_broadcast(&work_done);
    return true;
}

static bool is_finished(const struct host_stream *stream)
{
    return stream->closing && queue_length(&stream->operations) == 0;
}

/* One turn of every stream; whether anything moved. */
static bool turn_streams(void)
{
    bool moved = false;
    struct host_stream **link = &streams;

    while (*link != NULL) {
        struct host_stream *stream = *link;

        if (step_stream(stream))
            moved = true;
        /* New streams are put in front, so that `link` still leads to this one. */
        while (*link != stream)
            link = &(*link)->next;
        if (is_finished(stream)) {
            *link = stream->next;
            queue_destroy(&stream->operations);
            free(stream);
        } else {
            link = &stream->next;
        }
    }
    return moved;
}

static void *host_engine(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&engine_lock);
    for (;;) {
        if (turn_streams())
            continue;
        if (streams == NULL)
            break;
        pthread_cond_wait(&work_arrived, &engine_lock);
    }
    engine_running = false;
    pthread_mutex_unlock(&engine_lock);
    return NULL;
}

/* Detached: it ends with the last stream, and no thread has to join it. */
static int start_engine(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    int error;

    if (engine_running)
        return TCPX_SUCCESS;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    error = pthread_create(&thread, &attributes, host_engine, NULL);
    pthread_attr_destroy(&attributes);
    if (error != 0)
        return error_system(error, "cannot start the thread of the emulated GPU");
    engine_running = true;
    return TCPX_SUCCESS;
}

/* --- streams ------------------------------------------------------------------------------- */

int host_stream_start(struct gpu *gpu, uint64_t delay_us, struct gpu_stream **out)
{
    struct host_stream *stream = calloc(1, sizeof *stream);
    int result;

    if (stream == NULL)
        return error_system(ENOMEM, "a stream");
    stream->base = (struct gpu_stream){.gpu = gpu, .native = stream};
    stream->delay_us = delay_us;
    result = queue_init(&stream->operations, OPERATIONS_PER_STREAM, sizeof(struct host_operation));
    if (result != TCPX_SUCCESS)
        goto free_stream;
    pthread_mutex_lock(&engine_lock);
    result = start_engine();
    if (result == TCPX_SUCCESS) {
        stream->next = streams;
        streams = stream;
    }
    pthread_mutex_unlock(&engine_lock);
    if (result != TCPX_SUCCESS)
        goto destroy_queue;
    *out = &stream->base;
    return TCPX_SUCCESS;

destroy_queue:
    queue_destroy(&stream->operations);
free_stream:
    free(stream);
    return result;
}

void host_stream_destroy(struct gpu_stream *stream)
{
    pthread_mutex_lock(&engine_lock);
    ((struct host_stream *)stream)->closing = true;
    pthread_cond_signal(&work_arrived);
    pthread_mutex_unlock(&engine_lock);
}

/*
 * A full stream is waited for, as with a real GPU; but one whose operations wait for something
 * that does not come must not hold its caller for ever.
 */
static int push_operation(struct host_stream *stream, const struct host_operation *operation)
{
    uint64_t deadline = deadline_after_ms(FULL_STREAM_LIMIT_MS);

    while (!queue_push(&stream->operations, operation)) {
        struct timespec soon;

        if (deadline_passed(deadline))
            return error_set(TCPX_INVALID_USAGE,
                             "a stream of an emulated GPU has been full for %d s: its %d "
                             "operations wait for an event that does not come",
                             FULL_STREAM_LIMIT_MS / 1000, OPERATIONS_PER_STREAM);
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_sec++;
        pthread_cond_timedwait(&work_done, &engine_lock, &soon);
    }
    pthread_cond_signal(&work_arrived);
    return TCPX_SUCCESS;
}

int host_stream_submit(struct gpu_stream *base, const struct host_operation *wanted)
{
    struct host_stream *stream = (struct host_stream *)base;
    struct host_operation operation = *wanted;
    int result = check_operation(&operation);

    if (result != TCPX_SUCCESS)
        return result;
    if (operation.kind == HOST_LAUNCH) {
        operation.argument = malloc(kernel_twins[wanted->kernel].argument_size);
        if (operation.argument == NULL)
            return error_system(ENOMEM, "the argument of a launch");
        memcpy(operation.argument, wanted->argument, kernel_twins[wanted->kernel].argument_size);
    }
    pthread_mutex_lock(&engine_lock);
    if (stream->failure.result != TCPX_SUCCESS)
        result = error_set(stream->failure.result, "an earlier operation on this stream failed: %s",
                           stream->failure.text);
    else
        result = push_operation(stream, &operation);
    pthread_mutex_unlock(&engine_lock);
    if (result != TCPX_SUCCESS)
        free(operation.argument);
    return result; /* NOLINT(clang-analyzer-unix.Malloc): the queue has the argument now */
}

/* --- events -------------------------------------------------------------------------------- */

int host_event_create(struct gpu *gpu, struct gpu_event **out)
{
    struct host_event *event = calloc(1, sizeof *event);

    if (event == NULL)
        return error_system(ENOMEM, "an event");
    event->base = (struct gpu_event){.gpu = gpu, .native = event};
    event->references = 1;
    *out = &event->base;
    return TCPX_SUCCESS;
}

void host_event_destroy(struct gpu_event *event)
{
    pthread_mutex_lock(&engine_lock);
    drop_event((struct host_event *)event);
    pthread_mutex_unlock(&engine_lock);
}

/* Called with the lock. The queue holds a reference from now on. */
static int push_event(struct gpu_stream *stream, enum host_operation_kind kind,
                      struct host_event *event, uint64_t record)
{
    const struct host_operation operation = {.kind = kind,
                                             .event = {.event = event, .record = record}};
    int result = push_operation((struct host_stream *)stream, &operation);

    if (result == TCPX_SUCCESS)
        event->references++;
    return result;
}

int host_event_record(struct gpu_event *base, struct gpu_stream *stream)
{
    struct host_event *event = (struct host_event *)base;
    int result;

    pthread_mutex_lock(&engine_lock);
    result = push_event(stream, HOST_RECORD, event, event->recorded + 1);
    if (result == TCPX_SUCCESS)
        event->recorded++;
    pthread_mutex_unlock(&engine_lock);
    return result;
}

int host_event_query(struct gpu_event *base, bool *done)
{
    struct host_event *event = (struct host_event *)base;
    int result = TCPX_SUCCESS;

    pthread_mutex_lock(&engine_lock);
    if (event->reached < event->recorded)
        *done = false;
    else if (event->failure.result != TCPX_SUCCESS)
        result = error_set(event->failure.result, "%s", event->failure.text);
    else
        *done = true;
    pthread_mutex_unlock(&engine_lock);
    return result;
}

int host_stream_wait(struct gpu_stream *stream, struct gpu_event *base)
{
    struct host_event *event = (struct host_event *)base;
    int result = TCPX_SUCCESS;

    pthread_mutex_lock(&engine_lock);
    if (event->reached < event->recorded)
        result = push_event(stream, HOST_WAIT, event, event->recorded);
    pthread_mutex_unlock(&engine_lock);
    return result;
}

void host_event_hold(struct gpu_event *event)
{
    pthread_mutex_lock(&engine_lock);
    ((struct host_event *)event)->recorded++;
    pthread_mutex_unlock(&engine_lock);
}

void host_event_reach(struct gpu_event *event)
{
    pthread_mutex_lock(&engine_lock);
    ((struct host_event *)event)->reached = ((struct host_event *)event)->recorded;
    pthread_cond_signal(&work_arrived);
    pthread_mutex_unlock(&engine_lock);
}
