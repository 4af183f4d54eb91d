/*
 * Transfers as chunks. Both sides cut the same transfers in the same order into chunks of the same
 * length, and chunk k travels in channel k % channels: so a receive is always posted for the chunk
 * that the peer sends next there, without any message.
 */
#include "session/session.h"

#include "base/log.h"

/* --- both directions ------------------------------------------------------------------------ */

/* Counts a stall once, however often it is seen. */
static void lane_count_stall(enum stall *now, enum stall reason, uint64_t *count)
{
    *count += *now != reason;
    *now = reason;
}

/* Whether the network can be given the memory itself. */
static bool chunk_is_direct(const struct tcpx_transfer *transfer, struct piece_cursor *cursor,
                            uint64_t bytes)
{
    return !transfer->memory->staged && cursor_left(transfer, cursor) >= bytes;
}

static int place_chunk(struct tcpx_session *session, struct direction *direction, unsigned channel,
                       struct chunk *chunk, bool *placed)
{
    struct tcpx_transfer *transfer = chunk->transfer;
    const struct tcpx_memory *memory = transfer->memory;
    int result;

    *placed = true;
    if (chunk_is_direct(transfer, &chunk->at, chunk->bytes)) {
        uint64_t offset = transfer->pieces[chunk->at.index].offset + chunk->at.within;

        chunk->data = memory->address + offset;
        chunk->memory = memory_at(memory, direction->sending, channel, offset);
        return TCPX_SUCCESS;
    }
    result = slots_prepare(session, direction->sending);
    if (result != TCPX_SUCCESS)
        return result;
    chunk->slot = slots_take(&direction->slots);
    *placed = chunk->slot != NULL;
    if (!*placed)
        return TCPX_SUCCESS;
    chunk->lands = memory->on_gpu && chunk->slot->landing != 0;
    chunk->data = chunk->lands ? (uint8_t *)(uintptr_t)chunk->slot->landing : chunk->slot->host;
    chunk->memory =
        chunk->lands ? direction->slots.landing_memory[channel] : direction->slots.memory[channel];
    return TCPX_SUCCESS;
}

/* The next chunk of the first transfer, into the channel whose turn it is. */
static int begin_chunk(struct tcpx_session *session, struct direction *direction, bool *begun)
{
    struct tcpx_transfer *transfer = direction->moving.first;
    unsigned channel = (unsigned)(direction->next_chunk % session->channels);
    struct lane *lane = &direction->lanes[channel];
    struct chunk *chunk = lane_chunk(lane, lane->begun);
    uint64_t left = transfer->total - transfer->begun;
    int result;

    *begun = false;
    if (lane->begun - lane->freed == LANE_CHUNKS) {
        lane_count_stall(&direction->stalled, STALLED_BY_WINDOW,
                         &session->statistics.window_stalls);
        return TCPX_SUCCESS;
    }
    *chunk = (struct chunk){.state = CHUNK_READY,
                            .transfer = transfer,
                            .at = transfer->cursor,
                            .bytes = left < session->chunk_bytes ? left : session->chunk_bytes,
                            .since = clock_now()};
    result = place_chunk(session, direction, channel, chunk, begun);
    if (result != TCPX_SUCCESS)
        return result;
    if (!*begun) {
        lane_count_stall(&direction->stalled, STALLED_BY_STAGING,
                         &session->statistics.staging_stalls);
        return TCPX_SUCCESS;
    }
    direction->stalled = NOT_STALLED;
    if (direction->sending && chunk->slot != NULL)
        chunk->state = CHUNK_FILLING;
    lane->begun++;
    direction->next_chunk++;
    transfer->begun += chunk->bytes;
    cursor_move(transfer, &transfer->cursor, chunk->bytes);
    if (transfer->begun == transfer->total)
        row_take(&direction->moving);
    return TCPX_SUCCESS;
}

static int begin_chunks(struct tcpx_session *session, struct direction *direction, bool *moved)
{
    while (direction->moving.first != NULL) {
        bool begun;
        int result = begin_chunk(session, direction, &begun);

        if (result != TCPX_SUCCESS || !begun)
            return result;
        *moved = true;
    }
    return TCPX_SUCCESS;
}

/* Posts the chunks that are ready, in their order. */
static int lane_post(struct tcpx_session *session, struct lane *lane, bool sending, bool *moved)
{
    while (lane->posted < lane->begun) {
        struct chunk *chunk = lane_chunk(lane, lane->posted);
        int result;

        if (chunk->state != CHUNK_READY)
            return TCPX_SUCCESS;
        result = channel_post(&lane->channel, sending, chunk->data, chunk->bytes, &chunk->memory,
                              &chunk->request);
        if (result != TCPX_SUCCESS)
            return result;
        if (chunk->request == NULL) {
            lane_count_stall(&lane->stalled, STALLED_BY_NETWORK, &session->statistics.busy_stalls);
            return TCPX_SUCCESS;
        }
        lane->stalled = NOT_STALLED;
        chunk->state = CHUNK_POSTED;
        chunk->since = clock_now();
        lane->posted++;
        *moved = true;
    }
    return TCPX_SUCCESS;
}

/*
 * *done: whether the oldest posted chunk is done. A shorter receive, also one of zero bytes, would
 * leave a hole; plugins need not report the length of sends.
 */
static int lane_test_oldest(struct lane *lane, bool sending, bool *done)
{
    const struct chunk *chunk = lane_chunk(lane, lane->finished);
    uint64_t bytes = 0;
    int result = channel_test(&lane->channel, chunk->request, done, &bytes);

    if (result == TCPX_SUCCESS && *done && !sending && bytes != IMPORT_BYTES_UNSAID &&
        bytes != chunk->bytes)
        return error_set(TCPX_REMOTE_ERROR,
                         "a chunk of %llu bytes arrived where %llu were expected",
                         (unsigned long long)bytes, (unsigned long long)chunk->bytes);
    return result;
}

/* --- steps --------------------------------------------------------------------------------- */

static int fill_chunks(struct tcpx_session *session, struct lane *lane, bool *moved)
{
    for (uint64_t i = lane->posted; i < lane->begun; i++) {
        struct chunk *chunk = lane_chunk(lane, i);
        bool done;
        int result;

        if (chunk->state != CHUNK_FILLING)
            continue;
        result = gather_step(session, chunk, true, &done);
        if (result != TCPX_SUCCESS)
            return result;
        if (!done)
            continue;
        chunk_count_time(chunk, &session->statistics.gathering_ns);
        chunk->state = CHUNK_READY;
        *moved = true;
    }
    return TCPX_SUCCESS;
}

static void chunk_was_sent(struct tcpx_session *session, struct lane *lane, struct chunk *chunk)
{
    struct tcpx_transfer *transfer = chunk->transfer;

    chunk_count_time(chunk, &session->statistics.sending_ns);
    session->statistics.sent_chunks++;
    if (chunk->slot != NULL)
        slots_give(&session->directions[SENDING].slots, chunk->slot);
    chunk->state = CHUNK_FREE;
    lane->finished++;
    lane->freed++;
    transfer->moved += chunk->bytes;
    if (transfer->moved == transfer->total && transfer->acknowledged)
        transfer_end(transfer, TCPX_SUCCESS);
}

static int send_lane_step(struct tcpx_session *session, struct lane *lane, bool *moved)
{
    bool done = true;
    int result = fill_chunks(session, lane, moved);

    if (result == TCPX_SUCCESS)
        result = lane_post(session, lane, true, moved);
    while (result == TCPX_SUCCESS && done && lane->finished < lane->posted) {
        result = lane_test_oldest(lane, true, &done);
        if (result == TCPX_SUCCESS && done) {
            chunk_was_sent(session, lane, lane_chunk(lane, lane->finished));
            *moved = true;
        }
    }
    return result;
}

static int receive_lane_step(struct tcpx_session *session, struct lane *lane, bool *moved)
{
    bool done = true;
    int result = lane_post(session, lane, false, moved);

    while (result == TCPX_SUCCESS && done && lane->finished < lane->posted) {
        struct chunk *chunk = lane_chunk(lane, lane->finished);

        result = lane_test_oldest(lane, false, &done);
        if (result == TCPX_SUCCESS && done) {
            chunk_count_time(chunk, &session->statistics.receiving_ns);
            chunk->state = CHUNK_ARRIVED;
            lane->finished++;
            *moved = true;
        }
    }
    return result;
}

int chunks_step(struct tcpx_session *session, bool *moved)
{
    struct unpack_batch batch = {.count = 0};
    int result = begin_chunks(session, &session->directions[SENDING], moved);

    if (result == TCPX_SUCCESS)
        result = begin_chunks(session, &session->directions[RECEIVING], moved);
    for (unsigned i = 0; i < session->channels && result == TCPX_SUCCESS; i++) {
        struct lane *receiving = &session->directions[RECEIVING].lanes[i];

        result = receive_lane_step(session, receiving, moved);
        if (result == TCPX_SUCCESS)
            result = unpack_lane_step(session, receiving, &batch, moved);
        if (result == TCPX_SUCCESS)
            result = send_lane_step(session, &session->directions[SENDING].lanes[i], moved);
    }
    if (result == TCPX_SUCCESS)
        result = unpack_lane_submit(session, &batch);
    return result;
}

/* --- the end ------------------------------------------------------------------------------- */

/*
 * Sends that the peer has acknowledged, but the network has not completed: it will soon, and then
 * the memory is free. Returns whether none is left.
 */
static bool finish_acknowledged(struct tcpx_session *session, struct lane *lane)
{
    while (lane->finished < lane->posted &&
           lane_chunk(lane, lane->finished)->transfer->acknowledged) {
        bool done = false;

        if (lane_test_oldest(lane, true, &done) != TCPX_SUCCESS)
            return true;
        if (!done)
            return false;
        chunk_was_sent(session, lane, lane_chunk(lane, lane->finished));
    }
    return true;
}

/* The network may still read and write memory of posted chunks. */
static void lose_memories(struct lane *lane)
{
    for (uint64_t i = lane->freed; i < lane->begun; i++) {
        struct chunk *chunk = lane_chunk(lane, i);

        if (chunk->state == CHUNK_POSTED && chunk->slot == NULL)
            chunk->transfer->memory->is_lost = true;
    }
}

static uint64_t latest_ticket(const struct tcpx_session *session)
{
    uint64_t latest = 0;

    for (unsigned i = 0; i < 2 * session->channels; i++)
        for (unsigned k = 0; k < LANE_CHUNKS; k++) {
            uint64_t ticket = session->directions[i % 2].lanes[i / 2].ring[k].ticket;

            latest = ticket > latest ? ticket : latest;
        }
    return latest;
}

/* Whether all copies have ended; a GPU that has failed makes no more. */
static bool gpu_has_drained(struct tcpx_session *session)
{
    uint64_t latest = latest_ticket(session);
    bool done = true;

    if (latest != 0 && unpack_poll(session->engine, latest, &done) != TCPX_SUCCESS) {
        log_warn("copies on the GPU were not finished: %s", error_text());
        return true;
    }
    return done;
}

bool chunks_drain_step(struct tcpx_session *session)
{
    enum { NETWORK_MS = 200, GPU_MS = 10000 };
    uint64_t now = clock_now();
    uint64_t waited_ms;
    bool all_sent = true;

    if (session->draining_since == 0)
        session->draining_since = now;
    waited_ms = (now - session->draining_since) / 1000000;
    for (unsigned i = 0; i < session->channels; i++)
        all_sent = finish_acknowledged(session, &session->directions[SENDING].lanes[i]) && all_sent;
    if (!all_sent && waited_ms < NETWORK_MS)
        return false;
    if (!gpu_has_drained(session)) {
        if (waited_ms < GPU_MS)
            return false;
        log_warn("copies on the GPU did not finish within %d ms", GPU_MS);
    }
    for (unsigned i = 0; i < 2 * session->channels; i++)
        lose_memories(&session->directions[i % 2].lanes[i / 2]);
    return true;
}
