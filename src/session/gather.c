/*
 * Between a slot and the pieces of a transfer. On the GPU it is the same work as an unpack: many
 * fragments, from one place to another, in one launch; gathering only exchanges the two places.
 */
#include "session/session.h"

#include <string.h>

/* The range that a descriptor can read from. */
static const uint64_t window_bytes = (uint64_t)1 << 32;

int gather_prepare_engine(struct tcpx_session *session)
{
    return session->engine != NULL ? TCPX_SUCCESS : unpack_create(session->gpu, &session->engine);
}

/* --- host memory --------------------------------------------------------------------------- */

/* A bounded number of bytes in one turn of the worker, whose thread has other sockets. */
static void gather_on_host(struct tcpx_session *session, struct chunk *chunk, bool gathering)
{
    enum { TURN_BYTES = 1 << 20 };
    struct tcpx_transfer *transfer = chunk->transfer;
    struct piece_cursor cursor = chunk->at;
    uint64_t *copied = &session->copied_in_turn[gathering];

    cursor_move(transfer, &cursor, chunk->copied);
    while (chunk->copied < chunk->bytes && *copied < TURN_BYTES) {
        uint64_t piece = cursor_left(transfer, &cursor);
        uint64_t left = chunk->bytes - chunk->copied;
        uint64_t most = TURN_BYTES - *copied < left ? TURN_BYTES - *copied : left;
        uint64_t bytes = piece < most ? piece : most;
        uint8_t *in_slot = chunk->slot->host + chunk->copied;
        uint8_t *in_memory =
            transfer->memory->address + transfer->pieces[cursor.index].offset + cursor.within;

        if (gathering)
            memcpy(in_slot, in_memory, bytes);
        else
            memcpy(in_memory, in_slot, bytes);
        chunk->copied += bytes;
        *copied += bytes;
        cursor_move(transfer, &cursor, bytes);
    }
}

/* --- GPU memory ---------------------------------------------------------------------------- */

/* One submit: as many pieces as there are descriptors and lists for. */
struct gather_batch {
    struct unpack_list lists[GPU_UNPACK_LISTS];
    uint32_t list_count;
    uint32_t descriptors;
    uint64_t window; /* of the latest list, in the memory */
};

static struct unpack_list *gather_list(struct gather_batch *batch, const struct chunk *chunk,
                                       bool gathering, uint64_t offset)
{
    const struct tcpx_memory *memory = chunk->transfer->memory;
    uint64_t window = gathering ? offset / window_bytes : 0;
    struct unpack_list *list;

    if (batch->list_count > 0 && batch->window == window)
        return &batch->lists[batch->list_count - 1];
    if (batch->list_count == GPU_UNPACK_LISTS)
        return NULL;
    batch->window = window;
    list = &batch->lists[batch->list_count++];
    *list = (struct unpack_list){
        .bounce = gathering      ? (uintptr_t)memory->address + window * window_bytes
                  : chunk->lands ? chunk->slot->landing
                                 : chunk->slot->device,
        .bounce_host = gathering || chunk->lands ? NULL : chunk->slot->host,
        .destination = gathering ? chunk->slot->device : (uintptr_t)memory->address,
        .descriptors = chunk->slot->descriptors + batch->descriptors,
        .descriptors_device = chunk->slot->descriptors_device +
                              batch->descriptors * sizeof(struct unpack_descriptor)};
    return list;
}

/* Describes from chunk->copied on, as far as possible; returns how far. */
static uint64_t gather_describe(struct gather_batch *batch, const struct chunk *chunk,
                                bool gathering)
{
    const struct tcpx_transfer *transfer = chunk->transfer;
    struct piece_cursor cursor = chunk->at;
    uint64_t done = chunk->copied;

    cursor_move(transfer, &cursor, done);
    while (done < chunk->bytes && batch->descriptors < SLOT_DESCRIPTORS) {
        uint64_t bytes = cursor_left(transfer, &cursor);
        uint64_t offset = transfer->pieces[cursor.index].offset + cursor.within;
        uint64_t to_window = window_bytes - offset % window_bytes;
        struct unpack_list *list;

        bytes = bytes < chunk->bytes - done ? bytes : chunk->bytes - done;
        if (gathering && bytes > to_window)
            bytes = to_window;
        list = gather_list(batch, chunk, gathering, offset);
        if (list == NULL)
            break;
        chunk->slot->descriptors[batch->descriptors++] = (struct unpack_descriptor){
            .source_offset = (uint32_t)(gathering ? offset % window_bytes : done),
            .length = (uint32_t)bytes,
            .destination_offset = gathering ? done : offset};
        list->count++;
        done += bytes;
        cursor_move(transfer, &cursor, bytes);
    }
    return done;
}

static int gather_submit(struct tcpx_session *session, struct chunk *chunk, bool gathering)
{
    struct gather_batch batch = {.list_count = 0};
    uint64_t copied = gather_describe(&batch, chunk, gathering);
    int result =
        unpack_submit(session->engine, batch.lists, batch.list_count, false, &chunk->ticket);

    if (result == TCPX_SUCCESS)
        chunk->copied = copied;
    return result == TCPX_IN_PROGRESS ? TCPX_SUCCESS : result;
}

/* The descriptors of the slot are free again when the ticket is done. */
static int gather_on_gpu(struct tcpx_session *session, struct chunk *chunk, bool gathering,
                         bool *done)
{
    int result = gather_prepare_engine(session);

    if (result == TCPX_SUCCESS && chunk->ticket != 0) {
        bool reached;

        result = unpack_poll(session->engine, chunk->ticket, &reached);
        if (result != TCPX_SUCCESS || !reached)
            return result;
        chunk->ticket = 0;
    }
    if (result == TCPX_SUCCESS && chunk->copied < chunk->bytes)
        result = gather_submit(session, chunk, gathering);
    *done = result == TCPX_SUCCESS && chunk->ticket == 0 && chunk->copied == chunk->bytes;
    return result;
}

int gather_step(struct tcpx_session *session, struct chunk *chunk, bool gathering, bool *done)
{
    *done = false;
    if (chunk->transfer->memory->on_gpu)
        return gather_on_gpu(session, chunk, gathering, done);
    gather_on_host(session, chunk, gathering);
    *done = chunk->copied == chunk->bytes;
    return TCPX_SUCCESS;
}
