/* The sends and receives of a plugin's comm. */
#include "base/checked.h"
#include "base/clock.h"
#include "base/fork.h"
#include "plugin_host/host_receive.h"
#include "plugin_host/quirks.h"

#include <stdio.h>

static struct import_request *request_at(struct import_comm *comm, uint64_t number)
{
    return &comm->requests[number % REQUEST_PLACES];
}

/* --- posting ------------------------------------------------------------------------------- */

static int check_message(const struct import_comm *comm, const void *data, size_t bytes,
                         const struct import_memory *memory, bool sending)
{
    const uint8_t *at = data;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (comm->sends != sending)
        return error_set(TCPX_INVALID_USAGE, "a %s was posted on a comm that only %s",
                         sending ? "send" : "receive", comm->sends ? "sends" : "receives");
    if (bytes > comm->longest)
        return error_set(TCPX_INVALID_ARGUMENT, "a message of %zu bytes: %s takes at most %zu here",
                         bytes, comm->plugin->table.name, comm->longest);
    if (memory == NULL && !comm->plugin->table.is_builtin)
        return error_set(TCPX_INVALID_ARGUMENT, "%s: its messages are in registered memory only",
                         comm->plugin->table.name);
    if (memory != NULL && bytes != 0 &&
        (at < memory->data || bytes > memory->bytes ||
         (size_t)(at - memory->data) > memory->bytes - bytes))
        return error_set(TCPX_INVALID_ARGUMENT,
                         "%zu bytes at %p are not inside the registered %zu bytes at %p", bytes,
                         data, memory->bytes, (void *)memory->data);
    return TCPX_SUCCESS;
}

static int earlier_failure(const struct import_comm *comm)
{
    return error_set(comm->failure, "%s", comm->why);
}

/* With the lock. A plugin that has failed once is not trusted again with this comm. */
static int fail_comm(struct import_comm *comm, int result)
{
    comm->failure = result;
    snprintf(comm->why, sizeof comm->why, "%s", error_text());
    return result;
}

/* With the lock. */
static int post_locked(struct import_comm *comm, void *data, size_t bytes, int tag,
                       struct import_memory *memory, struct import_request **out)
{
    struct import_request *request = request_at(comm, comm->posted);
    struct host_place place = {.data = data, .bytes = bytes, .memory = memory};
    bool by_host = host_receive_applies(comm, memory);
    struct import_guard guard;
    void *raw_memory;
    void *raw = NULL;
    int result = TCPX_SUCCESS;

    *out = NULL;
    if (comm->failure != TCPX_SUCCESS)
        return earlier_failure(comm);
    if (comm->posted - comm->freed == IMPORT_REQUESTS)
        return TCPX_SUCCESS;
    if (by_host)
        result = host_receive_place(comm, comm->posted, data, bytes, &place);
    if (result != TCPX_SUCCESS)
        return result;
    raw_memory = place.memory != NULL ? place.memory->raw : NULL;
    import_guard_begin(comm->plugin->quirks, &guard);
    result = comm->sends ? import_isend(&comm->plugin->table, comm->raw, place.data, place.bytes,
                                        tag, raw_memory, &raw)
                         : import_irecv(&comm->plugin->table, comm->raw, place.data, place.bytes,
                                        tag, raw_memory, &raw);
    import_guard_end(&guard);
    if (result != TCPX_SUCCESS || raw == NULL)
        return result;
    *request = (struct import_request){.comm = comm,
                                       .raw = raw,
                                       .state = REQUEST_POSTED,
                                       .on_gpu = comm->queue != NULL && memory != NULL &&
                                                 memory->type == NET_POINTER_CUDA,
                                       .by_host = by_host,
                                       .number = comm->posted++,
                                       .data = data,
                                       .room = bytes};
    *out = request;
    return TCPX_SUCCESS;
}

static int post_message(struct import_comm *comm, void *data, size_t bytes, int tag,
                        struct import_memory *memory, bool sending, struct import_request **out)
{
    int result = check_message(comm, data, bytes, memory, sending);

    if (result != TCPX_SUCCESS)
        return result;
    pthread_mutex_lock(&comm->lock);
    result = post_locked(comm, data, bytes, tag, memory, out);
    pthread_mutex_unlock(&comm->lock);
    return result;
}

int import_comm_isend(struct import_comm *comm, void *data, size_t bytes, int tag,
                      struct import_memory *memory, struct import_request **request)
{
    return post_message(comm, data, bytes, tag, memory, true, request);
}

int import_comm_irecv(struct import_comm *comm, void *data, size_t room, int tag,
                      struct import_memory *memory, struct import_request **request)
{
    return post_message(comm, data, room, tag, memory, false, request);
}

/* --- what was received --------------------------------------------------------------------- */

/*
 * How much bounce memory there is is unknown, and it may be several allocations; but each fragment
 * must lie in one that the GPU reaches.
 */
static int check_source(struct import_comm *comm, const struct unpack_descriptor *descriptor)
{
    gpu_address start = comm->bounce + descriptor->source_offset;
    struct gpu_pointer pointer;
    int result;

    if (range_inside(start - comm->known, descriptor->length, comm->known_bytes) ||
        descriptor->length == 0)
        return TCPX_SUCCESS;
    result = gpu_classify((void *)(uintptr_t)start, descriptor->length, &pointer);
    if (result != TCPX_SUCCESS)
        return result;
    if (pointer.kind == GPU_POINTER_HOST)
        return error_set(TCPX_INTERNAL_ERROR, "%s: a fragment of %u bytes outside GPU memory",
                         comm->plugin->table.name, descriptor->length);
    /* Remembered for the whole allocation, so that it is not classified for each fragment. */
    comm->known = pointer.base;
    comm->known_bytes = pointer.bytes;
    comm->known_host = pointer.host != NULL ? (uintptr_t)pointer.host - (start - comm->bounce) : 0;
    return TCPX_SUCCESS;
}

/* The peer controls the descriptors: no fragment may be outside the buffer. */
static int take_fragments(struct import_request *request)
{
    struct import_comm *comm = request->comm;
    size_t place = request->number % UNPACK_QUEUE_DEPTH;
    const struct unpack_descriptor *descriptors = comm->queue->descriptors[place];
    uint64_t count = __atomic_load_n(&comm->queue->counts[place], __ATOMIC_ACQUIRE);
    uintptr_t bounce_host = 0;
    uint64_t bytes = 0;

    if (count > UNPACK_MAX_DESCRIPTORS)
        return error_set(TCPX_REMOTE_ERROR, "%s: a receive in %llu fragments, and %d is the most",
                         comm->plugin->table.name, (unsigned long long)count,
                         UNPACK_MAX_DESCRIPTORS);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = descriptors[i].destination_offset;
        uint32_t length = descriptors[i].length;
        int result = check_source(comm, &descriptors[i]);

        if (result != TCPX_SUCCESS)
            return result;
        if (at > request->room || length > request->room - at)
            return error_set(
                TCPX_REMOTE_ERROR, "%s: a fragment of %u bytes at %llu in a receive of %zu",
                comm->plugin->table.name, length, (unsigned long long)at, request->room);
        bounce_host = i == 0 || bounce_host == comm->known_host ? comm->known_host : 0;
        bytes += length;
    }
    if (bytes > request->room)
        return error_set(TCPX_REMOTE_ERROR, "%s: fragments of %llu bytes in a receive of %zu",
                         comm->plugin->table.name, (unsigned long long)bytes, request->room);
    request->fragments = (uint32_t)count;
    request->bounce_host = (const void *)bounce_host;
    request->bytes = bytes;
    return TCPX_SUCCESS;
}

int import_request_received(const struct import_request *request, struct unpack_list *received)
{
    if (request->on_gpu && request->state != REQUEST_REPORTED)
        return error_set(TCPX_INVALID_USAGE,
                         "the receive is not done yet, or was already consumed");
    *received = request->on_gpu ? import_request_list(request, (uintptr_t)request->data)
                                : (struct unpack_list){.count = 0};
    return TCPX_SUCCESS;
}

/* --- progress ------------------------------------------------------------------------------ */

/* With the lock: tests the oldest requests, one after the other, as long as they are done. */
static int test_oldest_requests(struct import_comm *comm)
{
    while (comm->finished < comm->posted) {
        struct import_request *request = request_at(comm, comm->finished);
        int done = 0;
        int result = import_test(&comm->plugin->table, request->raw, &done, &request->bytes);

        if (result == TCPX_SUCCESS && done != 0 &&
            (request->on_gpu || (request->by_host && comm->steered)))
            result = take_fragments(request);
        if (result == TCPX_SUCCESS && done != 0 && request->by_host)
            result = host_receive_start(request);
        if (result != TCPX_SUCCESS)
            return fail_comm(comm, result);
        if (done == 0)
            return TCPX_SUCCESS;
        request->state = request->by_host ? REQUEST_MOVING : REQUEST_DONE;
        comm->finished++;
        if (comm->sends)
            comm->last_send = clock_now();
    }
    return TCPX_SUCCESS;
}

/* With the lock: reports requests that have ended as consumed, in the order of posting. */
static int consume_in_order(struct import_comm *comm)
{
    int result = TCPX_SUCCESS;

    while (comm->freed < comm->finished && request_at(comm, comm->freed)->state == REQUEST_GONE) {
        if (comm->consumes && comm->failure == TCPX_SUCCESS)
            result = import_consumed(&comm->plugin->table, comm->raw,
                                     request_at(comm, comm->freed)->raw);
        comm->freed++;
        if (result != TCPX_SUCCESS)
            return fail_comm(comm, result);
    }
    return TCPX_SUCCESS;
}

/* With the lock: receives that move into host memory become done in their order. */
static void finish_host_receives(struct import_comm *comm)
{
    bool done = true;

    for (uint64_t i = comm->freed; i < comm->finished && done; i++) {
        struct import_request *request = request_at(comm, i);
        int result;

        if (request->state != REQUEST_MOVING)
            continue;
        result = host_receive_finish(request, &done);
        if (result != TCPX_SUCCESS) {
            (void)!fail_comm(comm, result);
            return;
        }
        if (done)
            request->state = REQUEST_DONE;
    }
}

/* With the lock. */
static int test_locked(struct import_request *request, bool *done, uint64_t *bytes)
{
    struct import_comm *comm = request->comm;

    if (request->state == REQUEST_POSTED && comm->failure == TCPX_SUCCESS)
        (void)!test_oldest_requests(comm);
    if (request->state == REQUEST_MOVING)
        finish_host_receives(comm);
    *done = request->state == REQUEST_DONE || request->state == REQUEST_REPORTED;
    if (*done) {
        *bytes = request->bytes;
        request->state = request->on_gpu ? REQUEST_REPORTED : REQUEST_GONE;
        return consume_in_order(comm);
    }
    if (comm->failure == TCPX_SUCCESS)
        return TCPX_SUCCESS;
    request->state = REQUEST_GONE;
    return earlier_failure(comm);
}

int import_request_test(struct import_request *request, bool *done, uint64_t *bytes)
{
    struct import_comm *comm = request->comm;
    struct import_guard guard;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    pthread_mutex_lock(&comm->lock);
    if (request->state == REQUEST_GONE) {
        result = error_set(TCPX_INVALID_USAGE, "the request has already ended");
    } else {
        import_guard_begin(comm->plugin->quirks, &guard);
        result = test_locked(request, done, bytes);
        import_guard_end(&guard);
    }
    pthread_mutex_unlock(&comm->lock);
    return result;
}

int import_request_consumed(struct import_request *request)
{
    struct import_comm *comm = request->comm;
    struct import_guard guard;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    pthread_mutex_lock(&comm->lock);
    if (!request->on_gpu) {
        result = TCPX_SUCCESS; /* there is nothing to give back */
    } else if (request->state == REQUEST_POSTED || request->state == REQUEST_DONE) {
        result = error_set(TCPX_INVALID_USAGE,
                           "the receive cannot be consumed before a test has reported it done");
    } else if (request->state == REQUEST_REPORTED) {
        request->state = REQUEST_GONE;
        import_guard_begin(comm->plugin->quirks, &guard);
        result = consume_in_order(comm);
        import_guard_end(&guard);
    }
    pthread_mutex_unlock(&comm->lock);
    return result;
}
