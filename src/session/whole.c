/*
 * Transfers as whole messages of the built-in transport, one in each channel. Whoever asks about a
 * transfer moves it along; the worker does, too, for callers who wait for its eventfd.
 */
#include "base/clock.h"
#include "session/session_state.h"

#include <sched.h>
#include <stdio.h>
#include <time.h>

/* Below this, sharing a message out costs more than it brings. */
enum { LEAST_PART = 1 << 20, PART_UNIT = 4096 };

/* --- starting ------------------------------------------------------------------------------ */

/* How the bytes are shared out: both sides compute the same. */
static void cut(struct tcpx_transfer *transfer)
{
    unsigned channels = transfer->session->channels;
    uint64_t left = transfer->total;
    uint64_t share;

    transfer->parts = 1;
    if (channels > 1 && transfer->total >= (uint64_t)channels * LEAST_PART)
        transfer->parts = channels;
    share = transfer->total / transfer->parts / PART_UNIT * PART_UNIT;
    for (unsigned i = 0; i < transfer->parts; i++) {
        transfer->part_bytes[i] = i + 1 < transfer->parts ? share : left;
        left -= transfer->part_bytes[i];
    }
    transfer->parts_left = transfer->parts;
}

/* A small one has all of its tag's channel. */
static unsigned channel_of(const struct tcpx_transfer *transfer, unsigned part)
{
    return transfer->parts > 1 ? part : (unsigned)(transfer->tag % transfer->session->channels);
}

/*
 * Parts of a message of another length must not be taken for those of this one: they never match,
 * and the receive is not done in time.
 */
static uint64_t tag_of(const struct tcpx_transfer *transfer)
{
    uint64_t mixed;

    if (transfer->parts == 1)
        return transfer->tag;
    mixed = (transfer->tag ^ transfer->total * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    return TCPX_TAG_END | ((mixed ^ mixed >> 31) & (TCPX_TAG_END - 1));
}

/* With both locks. *started: all of its parts are; some may be before that. */
static int start_parts(struct tcpx_transfer *transfer, bool *started)
{
    struct tcpx_session *session = transfer->session;
    const struct tcpx_memory *memory = transfer->memory;
    uint64_t offset = transfer->one.offset;

    *started = false;
    for (unsigned i = 0; i < transfer->parts; i++) {
        unsigned channel = channel_of(transfer, i);
        const struct net_buffer buffer = {
            .data = memory != NULL ? memory->address + offset : NULL,
            .bytes = transfer->part_bytes[i],
            .memory = memory != NULL ? memory_at(memory, transfer->sending, channel,
                                                 offset < memory->bytes ? offset : 0)
                                           .builtin
                                     : NULL,
            .after = transfer->after_kind,
            .after_what = transfer->after_what};
        int result = TCPX_SUCCESS;

        offset += transfer->part_bytes[i];
        if (transfer->part_started[i])
            continue;
        result = transfer->sending
                     ? net_isend_buffer(session->sending.lanes[channel].channel.builtin, &buffer,
                                        tag_of(transfer), &transfer->requests[i])
                     : net_irecv_buffer(session->receiving.lanes[channel].channel.builtin, &buffer,
                                        tag_of(transfer), &transfer->requests[i]);
        if (result != TCPX_SUCCESS || transfer->requests[i] == NULL)
            return result;
        transfer->part_started[i] = true;
    }
    *started = true;
    return TCPX_SUCCESS;
}

/* With the transfer's lock: what has happened to it, for whoever asks. */
static void end(struct tcpx_transfer *transfer, int result)
{
    if (transfer->ended)
        return;
    transfer->result = result;
    if (result != TCPX_SUCCESS)
        snprintf(transfer->why, sizeof transfer->why, "%s", error_text());
    transfer->ended = true;
}

/* With the session's lock. */
static void join_active(struct tcpx_transfer *transfer)
{
    struct tcpx_session *session = transfer->session;

    transfer->next_active = session->active;
    if (session->active != NULL)
        session->active->previous_active = transfer;
    session->active = transfer;
}

void whole_leave(struct tcpx_transfer *transfer)
{
    struct tcpx_session *session = transfer->session;

    session->whole_count--;
    if (!transfer->started)
        return;
    if (transfer->next_active != NULL)
        transfer->next_active->previous_active = transfer->previous_active;
    if (transfer->previous_active != NULL)
        transfer->previous_active->next_active = transfer->next_active;
    else
        session->active = transfer->next_active;
}

/* With the session's lock: those that wait for a place, in their order. */
static void start_waiting(struct direction *direction, bool *moved)
{
    struct tcpx_transfer *transfer;
    bool go_on = true;

    while (go_on && (transfer = direction->whole.first) != NULL) {
        bool started = false;
        int result;

        if (pthread_mutex_trylock(&transfer->lock) != 0)
            return;
        /* The transport can wait itself, in the call that begins the transfer. */
        result = transfer->after_kind != NET_AFTER_NOTHING ? TCPX_SUCCESS
                                                           : transfer_is_ready(transfer, &go_on);
        if (result == TCPX_SUCCESS && go_on)
            result = start_parts(transfer, &started);
        if (result != TCPX_SUCCESS)
            end(transfer, result);
        go_on = started || result != TCPX_SUCCESS;
        if (go_on) {
            row_take(&direction->whole);
            transfer->started = true;
            join_active(transfer);
            *moved = true;
        }
        pthread_mutex_unlock(&transfer->lock);
    }
}

void whole_begin(struct tcpx_transfer *transfer)
{
    struct tcpx_session *session = transfer->session;
    struct direction *direction = transfer->sending ? &session->sending : &session->receiving;
    bool moved;

    cut(transfer);
    session->whole_count++;
    row_add(&direction->whole, transfer);
    start_waiting(direction, &moved);
    transfer->after_kind = NET_AFTER_NOTHING;
}

void whole_start_more(struct tcpx_session *session)
{
    bool moved;

    start_waiting(&session->sending, &moved);
    start_waiting(&session->receiving, &moved);
}

/* --- asking -------------------------------------------------------------------------------- */

static void part_has_ended(struct tcpx_transfer *transfer, unsigned part, int result,
                           uint64_t bytes)
{
    transfer->requests[part] = NULL;
    transfer->parts_left--;
    if (result == TCPX_SUCCESS && bytes != transfer->part_bytes[part])
        result = error_set(
            TCPX_INVALID_USAGE, "tag %llu: a receive of %llu bytes, and the peer has sent %llu",
            (unsigned long long)transfer->tag, (unsigned long long)transfer->part_bytes[part],
            (unsigned long long)bytes);
    if (result == TCPX_SUCCESS) {
        transfer->moved += bytes;
        return;
    }
    /* The other parts are still the network's. */
    if (transfer->memory != NULL && transfer->parts_left > 0)
        transfer->memory->is_lost = true;
    end(transfer, result);
}

/* With the transfer's lock. A part that has failed ends all of it. */
static void test_parts(struct tcpx_transfer *transfer, bool on_stream, void *stream)
{
    for (unsigned i = 0; i < transfer->parts && !transfer->ended; i++) {
        struct net_request *request = transfer->requests[i];
        uint64_t bytes = 0;
        bool done = false;
        int result;

        if (request == NULL)
            continue;
        result =
            on_stream && !transfer->sending && transfer->memory != NULL && transfer->memory->on_gpu
                ? net_test_on_stream(request, stream, &done, &bytes)
                : net_test(request, &done, &bytes);
        if (result != TCPX_SUCCESS || done)
            part_has_ended(transfer, i, result, bytes);
    }
    if (transfer->started && transfer->parts_left == 0)
        end(transfer, TCPX_SUCCESS);
}

/* With the session's lock: everything that nobody else is asking about right now. */
void whole_step(struct tcpx_session *session, bool *moved)
{
    struct tcpx_transfer *next;

    for (struct tcpx_transfer *transfer = session->active; transfer != NULL; transfer = next) {
        bool ended = false;

        next = transfer->next_active;
        if (pthread_mutex_trylock(&transfer->lock) != 0)
            continue;
        test_parts(transfer, false, NULL);
        ended = transfer->ended;
        pthread_mutex_unlock(&transfer->lock);
        if (ended) {
            transfer_announce(transfer);
            *moved = true;
        }
    }
    start_waiting(&session->sending, moved);
    start_waiting(&session->receiving, moved);
}

static void step_all(struct tcpx_session *session)
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
        test_parts(transfer, on_stream, stream);
    pthread_mutex_unlock(&transfer->lock);
    /* It waits for a place that others have, or nobody else moves those on. */
    if (!started || !session->has_io_threads)
        step_all(session);
}

/* With the transfer's lock: one part after the other. */
static void wait_for_parts(struct tcpx_transfer *transfer, uint64_t deadline)
{
    for (unsigned i = 0; i < transfer->parts && !transfer->ended; i++) {
        uint64_t bytes = 0;
        bool done = false;
        int result;

        if (transfer->requests[i] == NULL)
            continue;
        result = net_wait(transfer->requests[i], deadline, &done, &bytes);
        if (result == TCPX_SUCCESS && !done)
            return;
        part_has_ended(transfer, i, result, bytes);
    }
    if (transfer->parts_left == 0)
        end(transfer, TCPX_SUCCESS);
}

void whole_wait(struct tcpx_transfer *transfer, uint64_t deadline)
{
    enum { YIELD_NS = 1000000, PAUSE_NS = 50000 };
    uint64_t since = clock_now();
    bool started = false;
    bool ended = false;

    while (!ended) {
        pthread_mutex_lock(&transfer->lock);
        /* Without I/O threads the peer may wait for what only a look at others moves on. */
        started = transfer->started && transfer->session->has_io_threads;
        if (started && !transfer->ended)
            wait_for_parts(transfer, deadline);
        ended = transfer->ended;
        pthread_mutex_unlock(&transfer->lock);
        if (ended || (started && deadline_passed(deadline)))
            return;
        if (started)
            continue;
        step_all(transfer->session);
        if (deadline_passed(deadline))
            return;
        if (clock_now() - since < YIELD_NS)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
}
