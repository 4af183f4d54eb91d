/* The transfers of a session, as callers begin them and ask about them. */
#include "base/checked.h"
#include "base/fork.h"
#include "base/time_limit.h"
#include "session/session_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* --- rows ---------------------------------------------------------------------------------- */

void row_init(struct transfer_row *row)
{
    *row = (struct transfer_row){.last = &row->first};
}

void row_add(struct transfer_row *row, struct tcpx_transfer *transfer)
{
    transfer->next = NULL;
    *row->last = transfer;
    row->last = &transfer->next;
}

struct tcpx_transfer *row_take(struct transfer_row *row)
{
    struct tcpx_transfer *first = row->first;

    row->first = first->next;
    if (row->first == NULL)
        row->last = &row->first;
    return first;
}

/* --- pieces -------------------------------------------------------------------------------- */

uint64_t cursor_left(const struct tcpx_transfer *transfer, struct piece_cursor *cursor)
{
    while (cursor->index < transfer->piece_count &&
           cursor->within == transfer->pieces[cursor->index].bytes)
        *cursor = (struct piece_cursor){.index = cursor->index + 1};
    return cursor->index < transfer->piece_count
               ? transfer->pieces[cursor->index].bytes - cursor->within
               : 0;
}

void cursor_move(const struct tcpx_transfer *transfer, struct piece_cursor *cursor, uint64_t bytes)
{
    while (bytes > 0) {
        uint64_t left = cursor_left(transfer, cursor);
        uint64_t step = left < bytes ? left : bytes;

        cursor->within += step;
        bytes -= step;
    }
}

static int check_piece(const struct tcpx_memory *memory, size_t index, uint64_t offset,
                       uint64_t bytes)
{
    if (memory != NULL && range_inside(offset, bytes, memory->bytes))
        return TCPX_SUCCESS;
    if (memory == NULL)
        return bytes == 0 ? TCPX_SUCCESS
                          : error_set(TCPX_INVALID_ARGUMENT, "%llu bytes of no memory",
                                      (unsigned long long)bytes);
    return error_set(TCPX_INVALID_ARGUMENT,
                     "piece %zu: %llu bytes at offset %llu are not inside the memory of %llu bytes",
                     index, (unsigned long long)bytes, (unsigned long long)offset,
                     (unsigned long long)memory->bytes);
}

/* Copies them: the caller's list is the caller's. */
static int take_pieces(struct tcpx_transfer *transfer, const struct tcpx_move *move)
{
    int result = TCPX_SUCCESS;

    transfer->one = (struct tcpx_piece){.offset = move->offset, .bytes = move->bytes};
    transfer->pieces = &transfer->one;
    transfer->piece_count = 1;
    if (move->pieces != NULL && move->piece_count > 1) {
        transfer->pieces = calloc(move->piece_count, sizeof *transfer->pieces);
        if (transfer->pieces == NULL) {
            transfer->pieces = &transfer->one;
            return error_system(ENOMEM, "a list of %zu pieces", move->piece_count);
        }
    }
    if (move->pieces != NULL) {
        memcpy(transfer->pieces, move->pieces, move->piece_count * sizeof *transfer->pieces);
        transfer->piece_count = move->piece_count;
    }
    for (size_t i = 0; i < transfer->piece_count && result == TCPX_SUCCESS; i++) {
        const struct tcpx_piece *piece = &transfer->pieces[i];

        result = check_piece(move->memory, i, piece->offset, piece->bytes);
        if (result == TCPX_SUCCESS && !checked_add(transfer->total, piece->bytes, &transfer->total))
            result = error_set(TCPX_INVALID_ARGUMENT, "pieces of more than 2^64 bytes");
    }
    return result;
}

/* --- the GPU's order ----------------------------------------------------------------------- */

/* With the session's lock: an event of ours behind the caller's stream or event. */
static int order_after(struct tcpx_transfer *transfer, const struct tcpx_move *move)
{
    struct tcpx_session *session = transfer->session;
    int result = TCPX_SUCCESS;

    if (session->gpu == NULL)
        return error_set(TCPX_INVALID_USAGE, "a stream or event in a session without a GPU");
    if (session->order == NULL)
        result = gpu_stream_create(session->gpu, &session->order);
    if (result == TCPX_SUCCESS)
        result = gpu_event_create(session->gpu, GPU_EVENT_PLAIN, &transfer->after);
    if (result == TCPX_SUCCESS)
        result = move->after == TCPX_AFTER_STREAM
                     ? gpu_stream_wait_caller_stream(session->order, move->after_what)
                     : gpu_stream_wait_caller_event(session->order, move->after_what);
    if (result == TCPX_SUCCESS)
        result = gpu_event_record(transfer->after, session->order);
    return result;
}

int transfer_is_ready(struct tcpx_transfer *transfer, bool *ready)
{
    int result;

    *ready = true;
    if (transfer->after == NULL)
        return TCPX_SUCCESS;
    result = gpu_event_query(transfer->after, ready);
    if (result != TCPX_SUCCESS)
        return result;
    if (!*ready) {
        transfer->session->statistics.after_stalls += !transfer->after_stalled;
        transfer->after_stalled = true;
        return TCPX_SUCCESS;
    }
    gpu_event_destroy(transfer->after);
    transfer->after = NULL;
    return TCPX_SUCCESS;
}

/* --- beginning ----------------------------------------------------------------------------- */

static bool is_whole(const struct tcpx_session *session, const struct tcpx_move *move)
{
    return session->plugin == NULL && session->channels == 1 && move->pieces == NULL;
}

static int check_move(const struct tcpx_session *session, const struct tcpx_move *move,
                      struct tcpx_transfer **out)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (session == NULL || move == NULL || out == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "a transfer: an argument is NULL");
    if (move->tag >= TCPX_TAG_END)
        return error_set(TCPX_INVALID_ARGUMENT, "tag %llu: they end below %llu",
                         (unsigned long long)move->tag, (unsigned long long)TCPX_TAG_END);
    if (move->memory != NULL && move->memory->session != session)
        return error_set(TCPX_INVALID_ARGUMENT, "the memory belongs to another session");
    if (move->after != TCPX_AFTER_NOTHING && move->after != TCPX_AFTER_STREAM &&
        move->after != TCPX_AFTER_EVENT)
        return error_set(TCPX_INVALID_ARGUMENT, "after is %d: 0, 1 and 2 exist", (int)move->after);
    return TCPX_SUCCESS;
}

/* With the session's lock. */
static void add(struct tcpx_transfer *transfer)
{
    struct tcpx_session *session = transfer->session;

    transfer->older = session->transfers;
    if (session->transfers != NULL)
        session->transfers->newer = transfer;
    session->transfers = transfer;
    if (transfer->memory != NULL)
        transfer->memory->users++;
}

/* With the session's lock. */
static void drop(struct tcpx_transfer *transfer)
{
    struct tcpx_session *session = transfer->session;

    if (transfer->newer != NULL)
        transfer->newer->older = transfer->older;
    else
        session->transfers = transfer->older;
    if (transfer->older != NULL)
        transfer->older->newer = transfer->newer;
    if (transfer->memory != NULL)
        transfer->memory->users--;
}

static void free_transfer(struct tcpx_transfer *transfer)
{
    gpu_event_destroy(transfer->after);
    if (transfer->pieces != &transfer->one)
        free(transfer->pieces);
    pthread_mutex_destroy(&transfer->lock);
    free(transfer);
}

void transfer_free_all(struct tcpx_session *session)
{
    while (session->transfers != NULL) {
        struct tcpx_transfer *transfer = session->transfers;

        session->transfers = transfer->older;
        free_transfer(transfer);
    }
}

/* A send of GPU memory can leave the waiting to the transport, if that takes it now. */
static bool transport_can_wait(const struct tcpx_transfer *transfer, const struct tcpx_move *move)
{
    return move->after != TCPX_AFTER_NOTHING && transfer->sending && transfer->memory != NULL &&
           transfer->memory->on_gpu && transfer->session->sending.whole.first == NULL;
}

/* With the session's lock. */
static int begin_whole(struct tcpx_transfer *transfer, const struct tcpx_move *move)
{
    struct tcpx_session *session = transfer->session;
    int result = TCPX_SUCCESS;

    if (move->after != TCPX_AFTER_NOTHING)
        result = order_after(transfer, move);
    if (result != TCPX_SUCCESS)
        return result;
    if (transport_can_wait(transfer, move)) {
        transfer->after_kind =
            move->after == TCPX_AFTER_STREAM ? NET_AFTER_STREAM : NET_AFTER_EVENT;
        transfer->after_what = move->after_what;
    }
    add(transfer);
    whole_begin(transfer);
    if (session->event_fd >= 0)
        worker_wake(session);
    return TCPX_SUCCESS;
}

/* With the session's lock. */
static int begin_chunks(struct tcpx_transfer *transfer, const struct tcpx_move *move)
{
    struct tcpx_session *session = transfer->session;
    int result = worker_start(session);

    if (result == TCPX_SUCCESS && session->failure != TCPX_SUCCESS)
        result = error_set(session->failure, "%s", session->why);
    if (result == TCPX_SUCCESS && move->after != TCPX_AFTER_NOTHING)
        result = order_after(transfer, move);
    if (result != TCPX_SUCCESS)
        return result;
    add(transfer);
    result = matching_begin(transfer);
    if (result != TCPX_SUCCESS) /* of the session; the transfer tells it, too */
        session_fail(session, result);
    worker_wake(session);
    return TCPX_SUCCESS;
}

static int begin(struct tcpx_session *session, const struct tcpx_move *move, bool sending,
                 struct tcpx_transfer **out)
{
    struct tcpx_transfer *transfer;
    int result = check_move(session, move, out);

    if (result != TCPX_SUCCESS)
        return result;
    transfer = calloc(1, sizeof *transfer);
    if (transfer == NULL)
        return error_system(ENOMEM, "a transfer");
    transfer->session = session;
    transfer->sending = sending;
    transfer->is_whole = is_whole(session, move);
    transfer->memory = move->memory;
    transfer->tag = move->tag;
    transfer->since = clock_now();
    pthread_mutex_init(&transfer->lock, NULL);
    result = take_pieces(transfer, move);
    if (result != TCPX_SUCCESS) {
        free_transfer(transfer);
        return result;
    }
    session_lock(session);
    result = transfer->is_whole ? begin_whole(transfer, move) : begin_chunks(transfer, move);
    session_unlock(session);
    if (result == TCPX_SUCCESS)
        *out = transfer;
    else
        free_transfer(transfer);
    return result;
}

int tcpx_send(struct tcpx_session *session, const struct tcpx_move *move,
              struct tcpx_transfer **transfer)
{
    return begin(session, move, true, transfer);
}

int tcpx_receive(struct tcpx_session *session, const struct tcpx_move *move,
                 struct tcpx_transfer **transfer)
{
    return begin(session, move, false, transfer);
}

/* --- ending -------------------------------------------------------------------------------- */

void transfer_announce(struct tcpx_transfer *transfer)
{
    struct tcpx_session *session = transfer->session;
    struct tcpx_session_statistics *statistics = &session->statistics;
    const uint64_t one = 1;

    if (transfer->told)
        return;
    transfer->told = true;
    if (transfer->is_whole)
        whole_leave(transfer);
    if (transfer->result != TCPX_SUCCESS) {
        statistics->failures++;
    } else if (transfer->sending) {
        statistics->sends++;
        statistics->sent_bytes += transfer->total;
    } else {
        statistics->receives++;
        statistics->received_bytes += transfer->total;
    }
    pthread_cond_broadcast(&session->changed);
    if (session->event_fd >= 0 && write(session->event_fd, &one, sizeof one) < 0 && errno != EAGAIN)
        log_warn("the caller's eventfd cannot be written");
}

void transfer_end(struct tcpx_transfer *transfer, int result)
{
    transfer->result = result;
    if (result != TCPX_SUCCESS)
        snprintf(transfer->why, sizeof transfer->why, "%s", error_text());
    transfer->ended = true;
    transfer_announce(transfer);
}

/* The caller is told, and the transfer is gone. */
static int finish(struct tcpx_transfer *transfer)
{
    struct tcpx_session *session = transfer->session;
    int result = transfer->result;

    if (result != TCPX_SUCCESS)
        error_keep("%s", transfer->why);
    session_lock(session);
    transfer_announce(transfer);
    drop(transfer);
    whole_start_more(session); /* there is a place more */
    session_unlock(session);
    free_transfer(transfer);
    return result;
}

static int test(struct tcpx_transfer *transfer, bool on_stream, void *stream, int *done)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (transfer == NULL || done == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "a test: an argument is NULL");
    *done = 0;
    if (transfer->is_whole)
        whole_test(transfer, on_stream, stream);
    if (!transfer->ended)
        return TCPX_SUCCESS;
    result = finish(transfer);
    *done = result == TCPX_SUCCESS;
    return result;
}

int tcpx_transfer_test(struct tcpx_transfer *transfer, int *done)
{
    return test(transfer, false, NULL, done);
}

int tcpx_transfer_test_on_stream(struct tcpx_transfer *transfer, void *stream, int *done)
{
    return test(transfer, true, stream, done);
}

/* The worker tells when it has ended. */
static void wait_for_worker(struct tcpx_transfer *transfer, uint64_t deadline)
{
    struct tcpx_session *session = transfer->session;
    const struct timespec until = {.tv_sec = (time_t)(deadline / 1000000000),
                                   .tv_nsec = (long)(deadline % 1000000000)};

    session_lock(session);
    while (!transfer->ended && !deadline_passed(deadline))
        if (deadline == DEADLINE_NEVER)
            pthread_cond_wait(&session->changed, &session->lock);
        else
            pthread_cond_timedwait(&session->changed, &session->lock, &until);
    session_unlock(session);
}

int tcpx_transfer_wait(struct tcpx_transfer *transfer, int timeout_ms)
{
    uint64_t deadline;
    int result = fork_check();

    if (result == TCPX_SUCCESS && transfer == NULL)
        result = error_set(TCPX_INVALID_ARGUMENT, "tcpx_transfer_wait: transfer is NULL");
    if (result == TCPX_SUCCESS)
        result = time_limit(timeout_ms, &deadline);
    if (result != TCPX_SUCCESS)
        return result;
    if (transfer->is_whole)
        whole_wait(transfer, deadline);
    else
        wait_for_worker(transfer, deadline);
    if (!transfer->ended)
        return error_set(TCPX_IN_PROGRESS,
                         "the %s of %llu bytes with tag %llu was not done in time",
                         transfer->sending ? "send" : "receive",
                         (unsigned long long)transfer->total, (unsigned long long)transfer->tag);
    return finish(transfer);
}
