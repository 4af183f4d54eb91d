/* Whole messages: started in order, and polled by the threads that test them. */
#include "session/session.h"

#include "base/clock.h"

#include <sched.h>
#include <time.h>

/* --- starting ------------------------------------------------------------------------------ */

/* With both locks. The request is NULL if the comm has no place for it. */
static int whole_start(struct tcpx_transfer *transfer)
{
    const struct tcpx_memory *memory = transfer->memory;
    struct net_comm *comm;
    int result;
    struct net_buffer buffer = {.bytes = transfer->total,
                                .after = transfer->after_kind,
                                .after_what = transfer->after_what};

    if (transfer->parts != NULL) {
        buffer.parts = transfer->parts;
        buffer.part_count = (uint32_t)transfer->piece_count;
    }
    if (memory != NULL) {
        buffer.data = memory->address + (transfer->total > 0 ? transfer->pieces[0].offset : 0);
        buffer.memory = memory_at(memory, transfer->sending, 0, 0).builtin;
    }
    comm = session_channel(transfer->session, transfer->sending, 0)->builtin;
    result = transfer->sending ? net_isend_buffer(comm, &buffer, transfer->tag, &transfer->request)
                               : net_irecv_buffer(comm, &buffer, transfer->tag, &transfer->request);
    if (transfer->request != NULL)
        transfer->request_number = net_request_number(transfer->request);
    return result;
}

/* With the session's lock: starts those that wait for a place, in their order. */
static void whole_start_waiting(struct direction *direction, bool *moved)
{
    struct tcpx_transfer *transfer;
    bool go_on = true;

    while (go_on && (transfer = direction->whole.first) != NULL &&
           atomic_load(&direction->in_flight) < CHANNEL_MESSAGES) {
        int result;

        if (pthread_mutex_trylock(&transfer->lock) != 0)
            return;
        /* The transport can wait itself, in the call that begins the transfer. */
        result = transfer->after_kind != NET_AFTER_NOTHING ? TCPX_SUCCESS
                                                           : transfer_is_ready(transfer, &go_on);
        if (result == TCPX_SUCCESS && go_on)
            result = whole_start(transfer);
        if (result != TCPX_SUCCESS && !transfer->ended)
            transfer_set_result(transfer, result);
        go_on = transfer->request != NULL || result != TCPX_SUCCESS;
        if (go_on) {
            atomic_fetch_add(&direction->in_flight, transfer->request != NULL);
            row_take(&direction->whole);
            transfer->started = true;
            transfer_join_active(transfer);
            *moved = true;
        }
        pthread_mutex_unlock(&transfer->lock);
    }
}

void whole_begin(struct tcpx_transfer *transfer)
{
    struct tcpx_session *session = transfer->session;
    struct direction *direction = &session->directions[transfer->sending];
    bool moved;

    row_add(&direction->whole, transfer);
    whole_start_waiting(direction, &moved);
    transfer->after_kind = NET_AFTER_NOTHING;
}

void whole_start_more(struct tcpx_session *session, bool *moved)
{
    whole_start_waiting(&session->directions[SENDING], moved);
    whole_start_waiting(&session->directions[RECEIVING], moved);
}

/* --- asking -------------------------------------------------------------------------------- */

static void whole_message_ended(struct tcpx_transfer *transfer, int result, uint64_t bytes)
{
    atomic_fetch_sub(&transfer->session->directions[transfer->sending].in_flight, 1);
    transfer->request = NULL;
    if (result == TCPX_SUCCESS && bytes != transfer->total)
        result = error_set(TCPX_INVALID_USAGE,
                           "tag %llu: a receive of %llu bytes, and the peer has sent %llu",
                           (unsigned long long)transfer->tag, (unsigned long long)transfer->total,
                           (unsigned long long)bytes);
    if (!transfer->ended)
        transfer_set_result(transfer, result);
}

/* With the transfer's lock. */
static void whole_poll(struct tcpx_transfer *transfer, bool on_stream, void *stream)
{
    bool lands = !transfer->sending && transfer->memory != NULL && transfer->memory->on_gpu;
    uint64_t bytes = 0;
    bool done = false;
    int result;

    if (transfer->request == NULL || transfer->is_waited_for)
        return;
    result = on_stream && lands ? net_test_on_stream(transfer->request, stream, &done, &bytes)
                                : net_test(transfer->request, &done, &bytes);
    if (result != TCPX_SUCCESS || done)
        whole_message_ended(transfer, result, bytes);
}

bool whole_step(struct tcpx_session *session, bool *moved)
{
    struct tcpx_transfer *next;
    bool all_seen = true;

    for (struct tcpx_transfer *transfer = session->active; transfer != NULL; transfer = next) {
        bool ended = false;

        next = transfer->next_active;
        if (pthread_mutex_trylock(&transfer->lock) != 0) {
            all_seen = false;
            continue;
        }
        whole_poll(transfer, false, NULL);
        ended = transfer->ended;
        pthread_mutex_unlock(&transfer->lock);
        if (ended) {
            transfer_announce(transfer);
            *moved = true;
        }
    }
    whole_start_more(session, moved);
    return all_seen;
}

static void whole_step_all(struct tcpx_session *session)
{
    bool moved;

    session_lock(session);
    whole_step(session, &moved);
    session_unlock(session);
}

void whole_test(struct tcpx_transfer *transfer, bool on_stream, void *stream)
{
    struct tcpx_session *session = transfer->session;
    bool started;

    pthread_mutex_lock(&transfer->lock);
    started = transfer->started || transfer->ended;
    if (started && !transfer->ended)
        whole_poll(transfer, on_stream, stream);
    pthread_mutex_unlock(&transfer->lock);
    /* It waits for a place that others hold, or no I/O thread moves those. */
    if (!started || !session->has_io_threads)
        whole_step_all(session);
}

/* With both locks. Of one that waits for its turn nothing has begun. */
static int whole_cancel_locked(struct tcpx_transfer *transfer)
{
    struct direction *direction = &transfer->session->directions[transfer->sending];
    bool is_first = !transfer->is_cancelled;

    transfer->is_cancelled = true;
    if (transfer->request != NULL)
        return is_first ? net_cancel_numbered(transfer->request, transfer->request_number)
                        : TCPX_SUCCESS;
    row_remove(&direction->whole, transfer);
    transfer_set_result(transfer,
                        error_set(TCPX_CANCELLED, "a %s of %llu bytes with tag %llu was cancelled",
                                  transfer->sending ? "send" : "receive",
                                  (unsigned long long)transfer->total,
                                  (unsigned long long)transfer->tag));
    return TCPX_SUCCESS;
}

int whole_cancel(struct tcpx_transfer *transfer, bool *is_quiet)
{
    struct tcpx_session *session = transfer->session;
    int result = TCPX_SUCCESS;

    session_lock(session);
    pthread_mutex_lock(&transfer->lock);
    if (!transfer->ended)
        result = whole_cancel_locked(transfer);
    whole_poll(transfer, false, NULL);
    *is_quiet = transfer->ended;
    pthread_mutex_unlock(&transfer->lock);
    if (*is_quiet)
        transfer_announce(transfer);
    session_unlock(session);
    return result;
}

/* With the transfer's lock, which is free during the wait. */
static void whole_wait_for_message(struct tcpx_transfer *transfer, uint64_t deadline)
{
    uint64_t bytes = 0;
    bool done = false;
    int result;

    transfer->is_waited_for = true;
    pthread_mutex_unlock(&transfer->lock);
    result = net_wait(transfer->request, deadline, &done, &bytes);
    pthread_mutex_lock(&transfer->lock);
    transfer->is_waited_for = false;
    if (result != TCPX_SUCCESS || done)
        whole_message_ended(transfer, result, bytes);
}

void whole_wait(struct tcpx_transfer *transfer, uint64_t deadline)
{
    enum { YIELD_NS = 1000000, PAUSE_NS = 50000 };
    uint64_t since = clock_now();
    bool started = false;
    bool ended = false;

    while (!ended) {
        pthread_mutex_lock(&transfer->lock);
        /*
         * Without I/O threads, only calls move the other transfers, and the peer may wait for them.
         */
        started = transfer->started && transfer->session->has_io_threads;
        if (started && !transfer->ended)
            whole_wait_for_message(transfer, deadline);
        ended = transfer->ended;
        pthread_mutex_unlock(&transfer->lock);
        if (ended || (started && deadline_passed(deadline)))
            return;
        if (started)
            continue;
        whole_step_all(transfer->session);
        if (deadline_passed(deadline))
            return;
        if (clock_now() - since < YIELD_NS)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
}
