/* Requests of a comm, and its end. */
#include "net/comm/comm.h"

#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"
#include "net/comm/comm_state.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The lock is held for a few instructions at a time: worth a short spin before a sleep. */
static void init_lock(struct net_comm *comm)
{
    pthread_mutexattr_t spins;

    pthread_mutexattr_init(&spins);
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP /* musl has no such kind: its plain one spins */
    pthread_mutexattr_settype(&spins, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
    pthread_mutex_init(&comm->lock, &spins);
    pthread_mutexattr_destroy(&spins);
}

static int make_requests(struct net_comm *comm)
{
    const unsigned half = 1u << (WIRE_SEQUENCE_BITS - 1); /* so that a free number is always near */

    comm->most_requests = comm->link.requests != 0 ? comm->link.requests : COMM_REQUESTS;
    if (comm->most_requests > half)
        comm->most_requests = half;
    comm->requests = calloc(comm->most_requests, sizeof *comm->requests);
    comm->gpu.gates = calloc(comm->most_requests, sizeof *comm->gpu.gates);
    return comm->requests != NULL && comm->gpu.gates != NULL
               ? TCPX_SUCCESS
               : error_system(ENOMEM, "a comm of %u requests", comm->most_requests);
}

static void free_requests(struct net_comm *comm)
{
    free(comm->requests);
    free(comm->gpu.gates);
}

int net_comm_create(const struct net_link *link, enum net_side side, struct net_comm **out)
{
    struct net_comm *comm;
    struct net_link sockets = *link;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    comm = calloc(1, sizeof *comm);
    if (comm == NULL) {
        net_link_close(&sockets);
        return error_system(ENOMEM, "a comm");
    }
    comm->link = *link;
    comm->side = side;
    result = make_requests(comm);
    if (result == TCPX_SUCCESS)
        result = stages_throttle_init(&comm->throttle);
    if (result == TCPX_SUCCESS)
        result = side == NET_SENDER ? sender_create(comm) : receiver_create(comm);
    if (result != TCPX_SUCCESS) {
        net_link_close(&comm->link);
        free_requests(comm);
        free(comm);
        return result;
    }
    init_lock(comm);
    progress_start(comm);
    /* What is received into host memory arrives there, too. */
    if (comm->link.devmem != NULL)
        result = comm_use_gpu(comm, devmem_pool_gpu(comm->link.devmem->pool));
    if (result != TCPX_SUCCESS) {
        char why[sizeof comm->text];

        snprintf(why, sizeof why, "%s", error_text());
        net_comm_close(comm);
        return error_set(result, "%s", why);
    }
    *out = comm;
    return TCPX_SUCCESS;
}

/* --- ends ---------------------------------------------------------------------------------- */

bool request_has_ended(const struct net_request *request)
{
    return request->state == REQUEST_DONE || request->state == REQUEST_TOLD ||
           (request->state == REQUEST_FAILED && request->users == 0);
}

void request_hold(struct net_request *request)
{
    if (request != NULL)
        request->users++;
}

void request_let_go(struct net_request *request)
{
    if (request != NULL && --request->users == 0 && request->state == REQUEST_FAILED)
        progress_alarm(request->comm);
}

static void end_request(struct net_request *request, enum request_state state)
{
    struct net_comm *comm = request->comm;

    request->state = state;
    comm->pending--;
    if (comm->side == NET_RECEIVER)
        receiver_met(comm, request);
    progress_alarm(comm);
}

void request_done(struct net_request *request)
{
    request->comm->messages++;
    end_request(request, REQUEST_DONE);
}

void request_fail(struct net_request *request, int result)
{
    request->result = result;
    free(request->aside);
    request->aside = NULL;
    snprintf(request->text, sizeof request->text, "%s", error_text());
    end_request(request, REQUEST_FAILED);
}

/* Why we give up, as far as the socket takes it at once, and then the end of every stream. */
void comm_give_up(struct net_comm *comm)
{
    uint8_t bytes[WIRE_ABORT_BYTES];
    size_t length = wire_abort_write((enum tcpx_result)comm->result, comm->text, bytes);
    bool sender = comm->side == NET_SENDER;

    if (comm->gave_up || comm->lanes[sender ? 0 : comm_reverse_lane(comm)].busy)
        return;
    comm->gave_up = true;
    if ((sender ? sender_is_between_records(comm) : receiver_ends_record(comm)) &&
        socket_send_now(sender ? comm->link.forward[0] : comm->link.reverse, bytes, length) <
            length)
        log_debug("%s could not be told why", comm->link.peer);
    for (unsigned i = 0; i < comm->link.sockets; i++)
        shutdown(comm->link.forward[i], SHUT_RDWR);
    shutdown(comm->link.reverse, SHUT_RDWR);
}

/* All bytes of the message are here, and only have to be copied to their place by the GPU. */
static bool is_landing(const struct net_request *request)
{
    return request->comm->side == NET_RECEIVER && request->matched && !request->comm->gpu.failed &&
           (request->moved == request->bytes || request->aside != NULL);
}

static void fail_requests(struct net_comm *comm, int result, const char *why)
{
    for (unsigned i = 0; i < comm->used_requests; i++) {
        struct net_request *request = &comm->requests[i];

        if ((request->state != REQUEST_WAITING && request->state != REQUEST_MOVING) ||
            is_landing(request))
            continue;
        error_keep("%s: %s of %llu bytes with tag %llu had moved %llu; %llu messages before it had "
                   "been moved whole",
                   why, comm->side == NET_SENDER ? "a send" : "a receive",
                   (unsigned long long)request->bytes, (unsigned long long)request->tag,
                   (unsigned long long)request->moved, (unsigned long long)comm->messages);
        request_fail(request, result);
    }
}

void comm_fail_gpu(struct net_comm *comm, int result)
{
    char why[sizeof comm->text];

    comm->gpu.failed = true;
    snprintf(why, sizeof why, "%s", error_text());
    if (comm->result != TCPX_SUCCESS)
        fail_requests(comm, result, why);
    else
        comm_fail(comm, result);
}

void comm_fail(struct net_comm *comm, int result)
{
    if (comm->result != TCPX_SUCCESS)
        return;
    comm->result = result;
    stages_wait(&comm->calling, false, clock_now());
    snprintf(comm->text, sizeof comm->text, "%s", error_text());
    log_debug("comm with %s failed: %s", comm->link.peer, comm->text);
    progress_forget(comm);
    comm_give_up(comm);
    /* Whoever's request has failed may overwrite its buffer. */
    if (comm->side == NET_SENDER)
        devmem_send_abort(comm);
    fail_requests(comm, result, comm->text);
}

void comm_lose(struct net_comm *comm)
{
    if (comm->lost_at != 0 || comm->result != TCPX_SUCCESS)
        return;
    snprintf(comm->lost_text, sizeof comm->lost_text, "%s", error_text());
    comm->lost_at = clock_now();
    io_nudge(&comm->io);
}

void comm_fail_lost(struct net_comm *comm)
{
    error_keep("%s", comm->lost_text);
    comm_fail(comm, TCPX_REMOTE_ERROR);
}

void comm_fail_if_lost_for_long(struct net_comm *comm)
{
    enum { LOST_MS = 2000 };

    if (comm->lost_at != 0 && comm->result == TCPX_SUCCESS &&
        clock_now() > comm->lost_at + (uint64_t)LOST_MS * 1000000)
        comm_fail_lost(comm);
}

bool comm_has_broken(struct net_comm *comm, unsigned lane)
{
    socklen_t length = sizeof(int);
    int error = 0;

    if (getsockopt(comm->link.forward[lane], SOL_SOCKET, SO_ERROR, &error, &length) != 0 ||
        error == 0)
        return false;
    error_keep_system(error, "a connection with %s broke", comm->link.peer);
    if (comm->side == NET_RECEIVER)
        receiver_lose(comm, lane);
    else if (sender_may_learn_why(error))
        comm_lose(comm);
    else
        comm_fail(comm, TCPX_REMOTE_ERROR);
    return true;
}

bool net_has_threads(const struct net_comm *comm)
{
    return comm->io.crew != NULL;
}

bool net_receives_by_devmem(const struct net_comm *comm)
{
    return comm->link.devmem != NULL;
}

void net_get_stages(struct net_comm *comm, struct stage_times *times)
{
    bool sends = comm->side == NET_SENDER;
    uint64_t now;

    pthread_mutex_lock(&comm->lock);
    copies_poll(comm);
    now = clock_now();
    stages_account(&comm->calling, now, comm->calling.under_way > 0);
    *times = (struct stage_times){
        .copy_out_ns = sends ? stages_copies_until(&comm->copying, now) : 0,
        .write_ns = sends ? comm->calling.work_ns : 0,
        .write_wait_ns = sends ? comm->calling.wait_ns : 0,
        .read_ns = sends ? 0 : comm->calling.work_ns,
        .read_wait_ns = sends ? 0 : comm->calling.wait_ns,
        .copy_in_ns = sends ? 0 : stages_copies_until(&comm->copying, now),
    };
    pthread_mutex_unlock(&comm->lock);
}

void net_comm_close(struct net_comm *comm)
{
    /* A forked child has closed its copies of the sockets; the rest is the parent's. */
    if (comm == NULL || fork_check() != TCPX_SUCCESS)
        return;
    progress_stop(comm);
    if (comm->side == NET_SENDER) {
        sender_close(comm);
        sender_destroy(comm);
    } else {
        receiver_destroy(comm);
    }
    copies_close(comm);
    publish_close(comm);
    net_link_close(&comm->link);
    pthread_mutex_destroy(&comm->lock);
    free_requests(comm);
    free(comm);
}

/* --- requests ------------------------------------------------------------------------------ */

/* The first one, so that only as many are looked at as are in use at once. */
static struct net_request *free_request(struct net_comm *comm)
{
    while (comm->used_requests > 0 && comm->requests[comm->used_requests - 1].state == REQUEST_FREE)
        comm->used_requests--;
    while (comm->first_free < comm->used_requests &&
           comm->requests[comm->first_free].state != REQUEST_FREE)
        comm->first_free++;
    if (comm->first_free < comm->used_requests)
        return &comm->requests[comm->first_free];
    comm->first_free = comm->used_requests;
    return comm->used_requests < comm->most_requests ? &comm->requests[comm->used_requests++]
                                                     : NULL;
}

void request_free(struct net_request *request)
{
    struct net_comm *comm = request->comm;
    unsigned number = (unsigned)(request - comm->requests);

    request->state = REQUEST_FREE;
    if (number < comm->first_free)
        comm->first_free = number;
}

/* With the lock, and a request that is free. */
static int begin(struct net_comm *comm, const struct net_buffer *buffer, uint64_t tag,
                 struct net_request *request)
{
    bool in_gpu = memory_is_in_gpu(buffer->memory);
    int result = TCPX_SUCCESS;

    *request = (struct net_request){.comm = comm,
                                    .state = REQUEST_WAITING,
                                    .order = comm->next_order,
                                    .data = buffer->data,
                                    .bytes = buffer->bytes,
                                    .room = buffer->bytes,
                                    .tag = tag,
                                    .in_gpu = in_gpu};
    if (buffer->bytes > 0)
        memory_refer(buffer->memory, buffer->data, request);
    if (in_gpu && buffer->after != NET_AFTER_NOTHING && comm->side == NET_SENDER)
        result = gate_close(comm, request, buffer->after, buffer->after_what);
    else if (comm->side == NET_RECEIVER)
        result = publish_begin(comm, buffer, request);
    if (result != TCPX_SUCCESS) {
        request_free(request);
        return result;
    }
    comm->next_order++;
    comm->pending++;
    if (comm->side == NET_SENDER)
        sender_start(comm, request);
    else
        receiver_start(comm, request);
    return TCPX_SUCCESS;
}

static int start(struct net_comm *comm, enum net_side side, const struct net_buffer *buffer,
                 uint64_t tag, struct net_request **out)
{
    struct net_request *request;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (comm->side != side)
        return error_set(TCPX_INVALID_USAGE, "a %s on the %s's end of a comm",
                         side == NET_SENDER ? "send" : "receive",
                         side == NET_SENDER ? "receiver" : "sender");
    pthread_mutex_lock(&comm->lock);
    *out = NULL;
    request = free_request(comm);
    tag = comm->link.match == WIRE_MATCH_TAG ? tag : 0;
    /* What came before the comm ended is still there to be received. */
    if (comm->result != TCPX_SUCCESS &&
        (side == NET_SENDER || !receiver_has_put_aside(comm, tag))) {
        result = error_set(comm->result, "%s", comm->text);
    } else if (request != NULL && (side == NET_SENDER ||
                                   (receiver_has_room(comm) && publish_has_room(comm, buffer)))) {
        result = begin(comm, buffer, tag, request);
        *out = result == TCPX_SUCCESS ? request : NULL;
    }
    /*
     * A message that may come before its receive is announced lets that wait for the next test;
     * with tags one from GPU memory does not, and whoever receives into it is likely to send from
     * it. A busy comm may be so because nothing has been said.
     */
    if (side == NET_SENDER || *out == NULL || comm->watched || !receiver_can_wait(comm, buffer) ||
        receiver_has_to_speak(comm, false))
        progress(comm);
    pthread_mutex_unlock(&comm->lock);
    io_nudge(&comm->io);
    return result;
}

int net_isend(struct net_comm *comm, const void *data, uint64_t bytes, uint64_t tag,
              struct net_request **request)
{
    /* A sender never writes to its data. */
    return start(comm, NET_SENDER,
                 &(struct net_buffer){.data = (void *)(uintptr_t)data, .bytes = bytes}, tag,
                 request);
}

int net_isend_buffer(struct net_comm *comm, const struct net_buffer *buffer, uint64_t tag,
                     struct net_request **request)
{
    return start(comm, NET_SENDER, buffer, tag, request);
}

int net_irecv_buffer(struct net_comm *comm, const struct net_buffer *buffer, uint64_t tag,
                     struct net_request **request)
{
    return start(comm, NET_RECEIVER, buffer, tag, request);
}

int net_irecv(struct net_comm *comm, void *data, uint64_t room, uint64_t tag,
              struct net_request **request)
{
    return start(comm, NET_RECEIVER, &(struct net_buffer){.data = data, .bytes = room}, tag,
                 request);
}

/* With the lock. */
static int look_at(struct net_request *request, bool *done, uint64_t *bytes)
{
    int result = TCPX_SUCCESS;

    *done = request->state == REQUEST_DONE;
    if (request->state == REQUEST_FREE || request->state == REQUEST_TOLD)
        return error_set(TCPX_INVALID_USAGE, "a test of a request that has ended already");
    if (!request_has_ended(request))
        return TCPX_SUCCESS;
    if (request->state == REQUEST_FAILED)
        result = error_set(request->result, "%s", request->text);
    else if (bytes != NULL)
        *bytes = request->bytes;
    if (request->state == REQUEST_FAILED)
        publish_release(request->comm, request);
    if (*done && request->comm->publisher != NULL)
        request->state = REQUEST_TOLD;
    else
        request_free(request);
    return result;
}

int net_test(struct net_request *request, bool *done, uint64_t *bytes)
{
    struct net_comm *comm = request->comm;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    pthread_mutex_lock(&comm->lock);
    if (!request_has_ended(request))
        progress(comm);
    result = look_at(request, done, bytes);
    pthread_mutex_unlock(&comm->lock);
    return result;
}

/*
 * With the lock. If the stream cannot be made to wait, the request has failed; its copies go on,
 * and a test says so when the last one has ended.
 */
static void hand_over(struct net_request *request, void *stream)
{
    bool handed_over = false;
    int result = land_on_stream(request->comm, request, stream, &handed_over);

    if (result != TCPX_SUCCESS)
        request_fail(request, result);
    else if (handed_over)
        request_done(request);
}

int net_test_on_stream(struct net_request *request, void *stream, bool *done, uint64_t *bytes)
{
    struct net_comm *comm = request->comm;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    pthread_mutex_lock(&comm->lock);
    if (!request_has_ended(request))
        progress(comm);
    if (request->state == REQUEST_MOVING)
        hand_over(request, stream);
    result = look_at(request, done, bytes);
    pthread_mutex_unlock(&comm->lock);
    return result;
}

/* --- waiting ------------------------------------------------------------------------------- */

/* How long a wait stays awake, in the hope that it is over soon. */
enum { WAKEFUL_NS = 200000 };

static int test_for_a_while(struct net_request *request, uint64_t deadline, bool *done,
                            uint64_t *bytes, bool *ended)
{
    uint64_t until = clock_now() + WAKEFUL_NS;
    int result;

    for (;;) {
        result = net_test(request, done, bytes);
        *ended = result != TCPX_SUCCESS || *done;
        if (*ended || clock_now() >= until || deadline_passed(deadline))
            return result;
        sched_yield();
    }
}

int net_wait(struct net_request *request, uint64_t deadline, bool *done, uint64_t *bytes)
{
    struct net_comm *comm = request->comm;
    bool ended;
    int result = test_for_a_while(request, deadline, done, bytes, &ended);

    while (!ended && !deadline_passed(deadline)) {
        pthread_mutex_lock(&comm->lock);
        if (!request_has_ended(request))
            progress_sleep(request, deadline);
        pthread_mutex_unlock(&comm->lock);
        result = test_for_a_while(request, deadline, done, bytes, &ended);
    }
    io_nudge(&comm->io); /* for other requests of this comm */
    return result;
}
