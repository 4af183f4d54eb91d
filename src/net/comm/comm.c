/* The calls on a comm. */
#include "net/comm/comm.h"

#include "base/fork.h"
#include "net/comm/comm_state.h"
#include "net/comm/memory.h"
#include "net/comm/progress.h"
#include "net/comm/request.h"
#include "net/comm/rx.h"
#include "net/comm/rx_announce.h"
#include "net/comm/rx_cancel.h"
#include "net/comm/rx_place.h"
#include "net/comm/rx_unexpected.h"
#include "net/comm/sleeper.h"
#include "net/comm/stats.h"
#include "net/comm/tx.h"
#include "net/comm/tx_cancel.h"
#include "net/comm/tx_match.h"
#include "net/comm/wait.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

int comm_create(const struct net_link *link, enum net_side side, struct net_comm **out)
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
    result = requests_create(comm);
    if (result == TCPX_SUCCESS)
        result = stages_throttle_init(&comm->throttle);
    if (result == TCPX_SUCCESS)
        result = side == NET_SENDER ? tx_create(comm) : rx_create(comm);
    if (result != TCPX_SUCCESS) {
        net_link_close(&comm->link);
        requests_destroy(comm);
        free(comm);
        return result;
    }
    comm_lock_init(&comm->lock);
    progress_start(comm);
    result = stats_join(comm);
    if (result != TCPX_SUCCESS) {
        net_comm_close(comm);
        return result;
    }
    *out = comm;
    return TCPX_SUCCESS;
}

/* The lock is taken only because the functions below expect it: no other thread is in the comm. */
static void comm_close_sides(struct net_comm *comm)
{
    comm_lock_take(&comm->lock);
    if (comm->side == NET_SENDER) {
        tx_close(comm);
        tx_destroy(comm);
    } else {
        rx_destroy(comm);
    }
    memory_remove_all(comm);
    if (comm->mover != NULL)
        comm->mover->close(comm);
    if (comm->unpack != NULL)
        comm->unpack->close(comm);
    comm_lock_release(&comm->lock);
}

void net_comm_close(struct net_comm *comm)
{
    /* A forked child has closed its copies of the sockets; the rest is the parent's. */
    if (comm == NULL || fork_check() != TCPX_SUCCESS)
        return;
    stats_leave(comm);
    progress_stop(comm);
    sleepers_close(comm);
    comm_close_sides(comm);
    net_link_close(&comm->link);
    comm_lock_destroy(&comm->lock);
    requests_destroy(comm);
    free(comm);
}

/* --- questions ----------------------------------------------------------------------------- */

bool net_has_threads(const struct net_comm *comm)
{
    return comm->io.crew != NULL;
}

void net_notify(struct net_comm *comm, struct io_task *task)
{
    comm_lock_take(&comm->lock);
    comm->notified = task;
    if (task != NULL)
        progress_leave_to_threads(comm);
    comm_lock_release(&comm->lock);
}

bool net_receives_by_devmem(const struct net_comm *comm)
{
    return comm->link.devmem != NULL;
}

/* --- isend and irecv ----------------------------------------------------------------------- */

/* Sets the source or sink of its memory. */
static int comm_begin_memory(struct net_comm *comm, const struct net_buffer *buffer,
                             struct net_request *request)
{
    const struct net_memory *memory = buffer->memory;

    request->source = memory != NULL ? memory->source : &source_host;
    request->sink = memory != NULL ? memory->sink : &sink_host;
    if (buffer->parts != NULL && comm->unpack != NULL)
        return error_set(TCPX_INVALID_USAGE, "a list of parts that the GPU would have to unpack");
    if (buffer->parts != NULL && request->sink->in_host)
        request->sink = &sink_parts;
    if (comm->side == NET_SENDER)
        return request->source->in_host ? TCPX_SUCCESS
                                        : comm->mover->begin_send(comm, buffer, request);
    return comm->unpack != NULL ? comm->unpack->begin(comm, buffer, request) : TCPX_SUCCESS;
}

/* How the two sides of a message find each other. */
struct comm_name {
    bool is_place;
    uint32_t place; /* its number, */
    void *owner;
    uint64_t tag; /* or the message's tag */
};

/* With a request that is free. */
static int comm_begin(struct net_comm *comm, const struct net_buffer *buffer,
                      const struct comm_name *name, struct net_request *request)
{
    int result;

    *request = (struct net_request){.comm = comm,
                                    .state = REQUEST_WAITING,
                                    .is_looked_at = !comm->callers_move && comm->unpack == NULL,
                                    .order = comm->next_order,
                                    .data = buffer->data,
                                    .parts = buffer->parts,
                                    .part_count = buffer->part_count,
                                    .bytes = buffer->bytes,
                                    .room = buffer->bytes,
                                    .tag = comm_is_in_order(comm) ? 0 : name->tag,
                                    .is_place = name->is_place,
                                    .sequence = name->place,
                                    .owner = name->owner};
    result = comm_begin_memory(comm, buffer, request);
    if (result != TCPX_SUCCESS) {
        request_free(request);
        return result;
    }
    /* A receiver counts POSTs by it, and a place has none. */
    comm->next_order += comm->side == NET_SENDER || !name->is_place;
    comm->pending++;
    if (comm->side == NET_SENDER)
        tx_start(comm, request);
    else
        rx_start(comm, request);
    return TCPX_SUCCESS;
}

/* Whether the comm can take another message besides its request. A place is not announced. */
static bool comm_has_room(const struct net_comm *comm, const struct net_buffer *buffer,
                          const struct comm_name *name)
{
    if (comm->side == NET_SENDER)
        return tx_match_has_room(comm, comm->most_requests);
    if (name->is_place)
        return name->place < NET_OPEN_PLACE || rx_cancel_has_room(comm);
    return rx_cancel_has_room(comm) && rx_announce_has_room(comm) &&
           (comm->unpack == NULL || comm->unpack->has_room(comm, buffer));
}

/* Messages that arrived before the comm failed can still be received. */
static int comm_check_start(struct net_comm *comm, const struct comm_name *name)
{
    if (comm->result != TCPX_SUCCESS &&
        (comm->side == NET_SENDER || name->is_place || !rx_unexpected_is_complete(comm, name->tag)))
        return error_set(comm->result, "%s", comm->text);
    if (name->is_place && comm_is_in_order(comm))
        return error_set(TCPX_INVALID_USAGE, "a place in a comm whose messages are in order");
    return comm->side == NET_RECEIVER && name->is_place ? rx_place_check(comm, name->place)
                                                        : TCPX_SUCCESS;
}

static int comm_start(struct net_comm *comm, enum net_side side, const struct net_buffer *buffer,
                      const struct comm_name *name, struct net_request **out)
{
    struct net_request *request;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (comm->side != side)
        return error_set(TCPX_INVALID_USAGE, "a %s on the %s's end of a comm",
                         side == NET_SENDER ? "send" : "receive",
                         side == NET_SENDER ? "receiver" : "sender");
    comm_lock_take(&comm->lock);
    *out = NULL;
    result = comm_check_start(comm, name);
    if (result == TCPX_SUCCESS && comm_has_room(comm, buffer, name) &&
        (request = request_take(comm)) != NULL) {
        result = comm_begin(comm, buffer, name, request);
        *out = result == TCPX_SUCCESS ? request : NULL;
    }
    /*
     * A receive whose message may arrive before the POST can be announced by the next test. If the
     * comm is busy, a receive that was not announced may be the reason.
     */
    if (side == NET_SENDER || *out == NULL || !comm->callers_move || comm->owned ||
        !rx_announce_can_wait(comm, buffer) || rx_announce_is_due(comm, false))
        progress(comm, *out == NULL);
    comm_lock_release(&comm->lock);
    return result;
}

int net_isend_buffer(struct net_comm *comm, const struct net_buffer *buffer, uint64_t tag,
                     struct net_request **request)
{
    return comm_start(comm, NET_SENDER, buffer, &(struct comm_name){.tag = tag}, request);
}

int net_irecv_buffer(struct net_comm *comm, const struct net_buffer *buffer, uint64_t tag,
                     struct net_request **request)
{
    return comm_start(comm, NET_RECEIVER, buffer, &(struct comm_name){.tag = tag}, request);
}

int net_isend(struct net_comm *comm, const void *data, uint64_t bytes, uint64_t tag,
              struct net_request **request)
{
    /* A sender never writes to its data. */
    return net_isend_buffer(
        comm, &(struct net_buffer){.data = (void *)(uintptr_t)data, .bytes = bytes}, tag, request);
}

int net_irecv(struct net_comm *comm, void *data, uint64_t room, uint64_t tag,
              struct net_request **request)
{
    return net_irecv_buffer(comm, &(struct net_buffer){.data = data, .bytes = room}, tag, request);
}

int net_isend_place(struct net_comm *comm, const struct net_buffer *buffer, uint32_t place,
                    void *owner, struct net_request **request)
{
    const struct comm_name name = {.is_place = true, .place = place, .owner = owner};

    return comm_start(comm, NET_SENDER, buffer, &name, request);
}

int net_irecv_place(struct net_comm *comm, const struct net_buffer *buffer, uint32_t place,
                    void *owner, struct net_request **request)
{
    const struct comm_name name = {.is_place = true, .place = place, .owner = owner};

    return comm_start(comm, NET_RECEIVER, buffer, &name, request);
}

void *net_next_ended(struct net_comm *comm)
{
    void *owner = NULL;

    comm_lock_take(&comm->lock);
    if (comm->callers_move && !comm->owned)
        progress(comm, false);
    if (!queue_pop(&comm->ended, &owner))
        owner = NULL;
    comm_lock_release(&comm->lock);
    return owner;
}

bool net_has_room(struct net_comm *comm)
{
    bool has_room;

    comm_lock_take(&comm->lock);
    /* Far from the end, so that the place can still begin when others have been cancelled since. */
    has_room = request_is_free(comm) &&
               (comm->side == NET_RECEIVER ? rx_cancel_has_room(comm)
                                           : tx_match_has_room(comm, comm->most_requests / 2));
    comm_lock_release(&comm->lock);
    return has_room;
}

bool net_has_unsent(struct net_comm *comm)
{
    bool has_unsent;

    comm_lock_take(&comm->lock);
    has_unsent = comm->side == NET_SENDER && queue_length(&comm->tx.planned) > 0;
    for (unsigned i = 0; i < comm->link.sockets && comm->side == NET_SENDER; i++)
        has_unsent = has_unsent || !outgoing_is_idle(&comm->tx.outgoing[i]);
    has_unsent = has_unsent && comm->result == TCPX_SUCCESS;
    comm_lock_release(&comm->lock);
    return has_unsent;
}

/* --- test ---------------------------------------------------------------------------------- */

/* A receive, also one that has ended in another way since. It stays until the sender has ended it.
 */
static bool comm_report_cancelled(struct net_request *request, int *result)
{
    if (!request->cancelled || request->comm->side == NET_SENDER)
        return false;
    *result = error_set(TCPX_CANCELLED, "a receive of %llu bytes with tag %llu was cancelled",
                        (unsigned long long)request->room, (unsigned long long)request->tag);
    if (request_is_outstanding(request) || request->users > 0)
        rx_cancel_leave(request->comm, request);
    else
        request_free(request);
    return true;
}

static int comm_report(struct net_request *request, bool *done, uint64_t *bytes)
{
    int result = TCPX_SUCCESS;

    *done = false;
    if (request->state == REQUEST_FREE || request->state == REQUEST_REPORTED)
        return error_set(TCPX_INVALID_USAGE, "a test of a request that has ended already");
    if (!request_has_ended(request))
        return TCPX_SUCCESS;
    if (comm_report_cancelled(request, &result))
        return result;
    /* A cancelled send that arrives all the same is done, too (tx_cancel.c). */
    *done = request->result == TCPX_SUCCESS;
    if (!*done)
        result = error_set(request->result, "%s",
                           request->text != NULL ? request->text : request->comm->text);
    else if (bytes != NULL)
        *bytes = request->bytes;
    if (request->state == REQUEST_FAILED && request->comm->unpack != NULL)
        request->comm->unpack->release(request->comm, request);
    if (*done && request->comm->unpack != NULL)
        request->state = REQUEST_REPORTED;
    else
        request_free(request);
    return result;
}

/* If the stream cannot wait, the request fails; test() reports it after its last copy. */
static void comm_finish_on_stream(struct net_request *request, void *stream)
{
    struct net_comm *comm = request->comm;
    bool handed_over = false;
    int result = comm->mover != NULL && comm->side == NET_RECEIVER
                     ? comm->mover->finish_on_stream(comm, request, stream, &handed_over)
                     : TCPX_SUCCESS;

    if (result != TCPX_SUCCESS)
        request_fail(request, result);
    else if (handed_over)
        request_done(request);
}

/*
 * I/O threads move the lanes, so that there is nothing to do but to look. False: more is needed
 * than that.
 */
static bool comm_test_unlocked(struct net_request *request, bool *done, uint64_t *bytes)
{
    enum request_state state = request->state;

    *done = state == REQUEST_DONE;
    if (state == REQUEST_WAITING || state == REQUEST_MOVING)
        return true;
    /* It was cancelled since the caller looked: its bytes may not have gone to its memory. */
    if (state != REQUEST_DONE ||
        !atomic_load_explicit(&request->is_looked_at, memory_order_relaxed))
        return false;
    if (bytes != NULL)
        *bytes = request->bytes;
    request_free(request);
    return true;
}

static int comm_test(struct net_request *request, bool on_stream, void *stream, bool *done,
                     uint64_t *bytes)
{
    struct net_comm *comm = request->comm;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (atomic_load_explicit(&request->is_looked_at, memory_order_relaxed) && !on_stream &&
        comm_test_unlocked(request, done, bytes))
        return TCPX_SUCCESS;
    comm_lock_take(&comm->lock);
    if (!request_has_ended(request))
        progress(comm, false);
    if (on_stream && request->state == REQUEST_MOVING)
        comm_finish_on_stream(request, stream);
    result = comm_report(request, done, bytes);
    comm_lock_release(&comm->lock);
    return result;
}

int net_test(struct net_request *request, bool *done, uint64_t *bytes)
{
    return comm_test(request, false, NULL, done, bytes);
}

int net_test_on_stream(struct net_request *request, void *stream, bool *done, uint64_t *bytes)
{
    return comm_test(request, true, stream, done, bytes);
}

/* --- cancel -------------------------------------------------------------------------------- */

/* With the lock. */
static void comm_cancel(struct net_comm *comm, struct net_request *request)
{
    if (!request_is_outstanding(request) || request->cancelled || comm->result != TCPX_SUCCESS)
        return;
    if (comm->side == NET_SENDER)
        tx_cancel(comm, request);
    else
        rx_cancel(comm, request);
    progress(comm, true);
}

static int comm_check_cancel(const struct net_comm *comm)
{
    int result = fork_check();

    if (result == TCPX_SUCCESS && comm_is_in_order(comm))
        result = error_set(TCPX_INVALID_USAGE, "messages in order cannot be cancelled");
    return result;
}

int net_cancel(struct net_request *request)
{
    struct net_comm *comm = request->comm;
    int result = comm_check_cancel(comm);

    if (result != TCPX_SUCCESS)
        return result;
    comm_lock_take(&comm->lock);
    comm_cancel(comm, request);
    comm_lock_release(&comm->lock);
    return TCPX_SUCCESS;
}

uint64_t net_request_number(const struct net_request *request)
{
    return request->order;
}

int net_cancel_numbered(struct net_request *request, uint64_t number)
{
    struct net_comm *comm = request->comm;
    int result = comm_check_cancel(comm);

    if (result != TCPX_SUCCESS)
        return result;
    comm_lock_take(&comm->lock);
    if (!request->is_place && request->order == number)
        comm_cancel(comm, request);
    comm_lock_release(&comm->lock);
    return TCPX_SUCCESS;
}

/* --- consumed ------------------------------------------------------------------------------ */

int net_consumed(struct net_request *request)
{
    struct net_comm *comm = request->comm;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    comm_lock_take(&comm->lock);
    if (comm->unpack == NULL || request->state != REQUEST_REPORTED) {
        result = error_set(TCPX_INVALID_USAGE,
                           "a receive can be consumed once, when it is done, on a comm with an "
                           "unpack queue");
    } else {
        comm->unpack->release(comm, request);
        request_free(request);
    }
    comm_lock_release(&comm->lock);
    return result;
}

/* --- waiting ------------------------------------------------------------------------------- */

/* How long a wait polls before it sleeps: less if the one before had to sleep. */
enum { AWAKE_NS = 200000, SHORTLY_AWAKE_NS = 20000 };

static int comm_test_awake(struct net_request *request, uint64_t deadline, bool *done,
                           uint64_t *bytes, bool *ended)
{
    bool is_long = atomic_load_explicit(&request->comm->waits_are_long, memory_order_relaxed);
    uint64_t until = clock_now() + (is_long ? SHORTLY_AWAKE_NS : AWAKE_NS);
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
    bool slept = false;
    bool ended;
    int result = comm_test_awake(request, deadline, done, bytes, &ended);

    while (!ended && !deadline_passed(deadline)) {
        slept = true;
        comm_lock_take(&comm->lock);
        if (!request_has_ended(request))
            wait_for_request(request, deadline);
        comm_lock_release(&comm->lock);
        result = comm_test_awake(request, deadline, done, bytes, &ended);
    }
    atomic_store_explicit(&comm->waits_are_long, slept, memory_order_relaxed);
    return result;
}
