/* One transfer, as it is described in transfer.h. */
#include "session/session.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- rows ---------------------------------------------------------------------------------- */

void row_add(struct transfer_row *row, struct tcpx_transfer *transfer)
{
    transfer->next = NULL;
    if (row->first == NULL)
        row->last = &row->first;
    *row->last = transfer;
    row->last = &transfer->next;
}

struct tcpx_transfer *row_take(struct transfer_row *row)
{
    struct tcpx_transfer *first = row->first;

    row->first = first->next;
    return first;
}

void row_remove(struct transfer_row *row, struct tcpx_transfer *transfer)
{
    struct tcpx_transfer **at = &row->first;

    while (*at != transfer)
        at = &(*at)->next;
    *at = transfer->next;
    if (row->last == &transfer->next)
        row->last = at;
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
                          : error_set(TCPX_INVALID_ARGUMENT, "%llu bytes, but memory is NULL",
                                      (unsigned long long)bytes);
    return error_set(TCPX_INVALID_ARGUMENT,
                     "piece %zu: %llu bytes at offset %llu are not inside the memory of %llu bytes",
                     index, (unsigned long long)bytes, (unsigned long long)offset,
                     (unsigned long long)memory->bytes);
}

/* Copies them: the caller may change its list at once. */
static int take_pieces(struct tcpx_transfer *transfer, const struct tcpx_move *move)
{
    int result = TCPX_SUCCESS;

    transfer->one = (struct tcpx_piece){.offset = move->offset, .bytes = move->bytes};
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
            result = error_set(TCPX_INVALID_ARGUMENT, "the pieces have more than 2^64 bytes");
    }
    return result;
}

/* For the transport, which takes a whole message as it is. */
static int take_parts(struct tcpx_transfer *transfer)
{
    uint64_t offset = 0;

    if (transfer->total == 0)
        return TCPX_SUCCESS;
    if (transfer->piece_count > UINT32_MAX)
        return error_set(TCPX_INVALID_ARGUMENT, "%zu pieces: expected at most %u",
                         transfer->piece_count, UINT32_MAX);
    transfer->parts = calloc(transfer->piece_count, sizeof *transfer->parts);
    if (transfer->parts == NULL)
        return error_system(ENOMEM, "a list of %zu pieces", transfer->piece_count);
    for (size_t i = 0; i < transfer->piece_count; i++) {
        transfer->parts[i] =
            (struct net_part){.data = transfer->memory->address + transfer->pieces[i].offset,
                              .bytes = transfer->pieces[i].bytes,
                              .offset = offset};
        offset += transfer->pieces[i].bytes;
    }
    return TCPX_SUCCESS;
}

/* --- beginning ----------------------------------------------------------------------------- */

struct tcpx_transfer *transfer_allocate(struct tcpx_session *session, bool sending)
{
    struct tcpx_transfer *transfer = calloc(1, sizeof *transfer);

    if (transfer == NULL)
        return NULL;
    transfer->session = session;
    transfer->sending = sending;
    transfer->pieces = &transfer->one;
    transfer->since = clock_now();
    pthread_mutex_init(&transfer->lock, NULL);
    return transfer;
}

int transfer_create(struct tcpx_session *session, const struct tcpx_move *move, bool sending,
                    struct tcpx_transfer **out)
{
    struct tcpx_transfer *transfer = transfer_allocate(session, sending);
    int result;

    if (transfer == NULL)
        return error_system(ENOMEM, "a transfer");
    transfer->is_whole = session->plugin == NULL && session->channels == 1;
    transfer->memory = move->memory;
    transfer->tag = move->tag;
    result = take_pieces(transfer, move);
    if (result == TCPX_SUCCESS && transfer->is_whole && transfer->piece_count > 1)
        result = take_parts(transfer);
    else if (result == TCPX_SUCCESS && session->no_kernels && transfer->piece_count > 1 &&
             transfer->memory != NULL && transfer->memory->on_gpu)
        result =
            error_set(TCPX_INVALID_USAGE,
                      "a list of %zu pieces of GPU memory over %u channels needs a kernel, and "
                      "the session has no_kernels: send the pieces one by one, or open the "
                      "session with one channel",
                      transfer->piece_count, session->channels);
    if (result == TCPX_SUCCESS)
        *out = transfer;
    else
        transfer_free(transfer);
    return result;
}

void transfer_free(struct tcpx_transfer *transfer)
{
    gpu_event_destroy(transfer->after);
    if (transfer->pieces != &transfer->one)
        free(transfer->pieces);
    free(transfer->parts);
    pthread_mutex_destroy(&transfer->lock);
    free(transfer);
}

void transfer_free_all(struct tcpx_session *session)
{
    while (session->transfers != NULL) {
        struct tcpx_transfer *transfer = session->transfers;

        session->transfers = transfer->older;
        transfer_free(transfer);
    }
}

void transfer_add(struct tcpx_transfer *transfer)
{
    struct tcpx_session *session = transfer->session;

    transfer->older = session->transfers;
    if (session->transfers != NULL)
        session->transfers->newer = transfer;
    session->transfers = transfer;
    if (transfer->memory != NULL)
        transfer->memory->users++;
}

void transfer_drop(struct tcpx_transfer *transfer)
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

/* An event of ours is recorded behind the caller's stream or event. */
int transfer_order_after(struct tcpx_transfer *transfer, enum tcpx_after after, void *after_what)
{
    struct tcpx_session *session = transfer->session;
    int result = TCPX_SUCCESS;

    if (session->gpu == NULL)
        return error_set(TCPX_INVALID_USAGE,
                         "after names a stream or event, but the session has no GPU");
    if (session->order == NULL)
        result = gpu_stream_create(session->gpu, &session->order);
    if (result == TCPX_SUCCESS)
        result = gpu_event_create(session->gpu, &transfer->after);
    if (result == TCPX_SUCCESS)
        result = after == TCPX_AFTER_STREAM
                     ? gpu_stream_wait_caller_stream(session->order, after_what)
                     : gpu_stream_wait_caller_event(session->order, after_what);
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

/* --- ending -------------------------------------------------------------------------------- */

void transfer_join_active(struct tcpx_transfer *transfer)
{
    struct tcpx_session *session = transfer->session;

    transfer->next_active = session->active;
    if (session->active != NULL)
        session->active->previous_active = transfer;
    session->active = transfer;
}

static void leave_active(struct tcpx_transfer *transfer)
{
    struct tcpx_session *session = transfer->session;

    if (!transfer->started)
        return;
    if (transfer->next_active != NULL)
        transfer->next_active->previous_active = transfer->previous_active;
    if (transfer->previous_active != NULL)
        transfer->previous_active->next_active = transfer->next_active;
    else
        session->active = transfer->next_active;
}

void transfer_set_result(struct tcpx_transfer *transfer, int result)
{
    transfer->result = result;
    if (result != TCPX_SUCCESS)
        snprintf(transfer->why, sizeof transfer->why, "%s", error_text());
    transfer->ended = true;
}

static void count_success(struct tcpx_session_statistics *statistics,
                          const struct tcpx_transfer *transfer)
{
    bool writes = transfer->sending;

    if (transfer->is_access) {
        *(writes ? &statistics->writes : &statistics->reads) += 1;
        *(writes ? &statistics->written_bytes : &statistics->read_bytes) += transfer->total;
    } else {
        *(writes ? &statistics->sends : &statistics->receives) += 1;
        *(writes ? &statistics->sent_bytes : &statistics->received_bytes) += transfer->total;
    }
}

void transfer_announce(struct tcpx_transfer *transfer)
{
    struct tcpx_session *session = transfer->session;
    struct tcpx_session_statistics *statistics = &session->statistics;

    if (transfer->announced)
        return;
    transfer->announced = true;
    if (transfer->is_whole)
        leave_active(transfer);
    if (transfer->result == TCPX_SUCCESS)
        count_success(statistics, transfer);
    else if (transfer->result == TCPX_CANCELLED)
        statistics->cancelled++;
    else
        statistics->failures++;
    session->end_is_due = true;
    session_signal(session);
}

void transfer_end(struct tcpx_transfer *transfer, int result)
{
    transfer_set_result(transfer, result);
    transfer_announce(transfer);
}
