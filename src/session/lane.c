/* Chunks from their transfers to the network. */
#include "session/lane.h"

#include "base/clock.h"
#include "session/memory.h"
#include "session/slots.h"
#include "session/transfer.h"

struct chunk *lane_chunk(struct lane *lane, uint64_t number)
{
    return &lane->ring[number % LANE_CHUNKS];
}

void lane_count_time(struct chunk *chunk, uint64_t *sum)
{
    uint64_t now = clock_now();

    *sum += now - chunk->since;
    chunk->since = now;
}

/* Once, however often it is found to be so. */
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

static int place_chunk(struct tcpx_session *session, struct direction *direction, bool sending,
                       unsigned channel, struct chunk *chunk, bool *placed)
{
    struct tcpx_transfer *transfer = chunk->transfer;
    const struct tcpx_memory *memory = transfer->memory;
    int result;

    *placed = true;
    if (chunk_is_direct(transfer, &chunk->at, chunk->bytes)) {
        uint64_t offset = transfer->pieces[chunk->at.index].offset + chunk->at.within;

        chunk->data = memory->address + offset;
        chunk->memory = memory_at(memory, sending, channel, offset);
        return TCPX_SUCCESS;
    }
    result = slots_prepare(session, sending);
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
static int lane_begin_chunk(struct tcpx_session *session, struct direction *direction, bool sending,
                            bool *begun)
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
    result = place_chunk(session, direction, sending, channel, chunk, begun);
    if (result != TCPX_SUCCESS)
        return result;
    if (!*begun) {
        lane_count_stall(&direction->stalled, STALLED_BY_STAGING,
                         &session->statistics.staging_stalls);
        return TCPX_SUCCESS;
    }
    direction->stalled = NOT_STALLED;
    if (sending && chunk->slot != NULL)
        chunk->state = CHUNK_FILLING;
    lane->begun++;
    direction->next_chunk++;
    transfer->begun += chunk->bytes;
    cursor_move(transfer, &transfer->cursor, chunk->bytes);
    if (transfer->begun == transfer->total)
        row_take(&direction->moving);
    return TCPX_SUCCESS;
}

int lanes_begin_chunks(struct tcpx_session *session, bool sending, bool *moved)
{
    struct direction *direction = session_direction(session, sending);

    while (direction->moving.first != NULL) {
        bool begun;
        int result = lane_begin_chunk(session, direction, sending, &begun);

        if (result != TCPX_SUCCESS || !begun)
            return result;
        *moved = true;
    }
    return TCPX_SUCCESS;
}

int lane_post(struct tcpx_session *session, struct lane *lane, bool sending, bool *moved)
{
    while (lane->posted < lane->begun) {
        struct chunk *chunk = lane_chunk(lane, lane->posted);
        int result;

        if (chunk->state != CHUNK_READY)
            return TCPX_SUCCESS;
        result = sending ? channel_send(&lane->channel, chunk->data, chunk->bytes, &chunk->memory,
                                        &chunk->request)
                         : channel_receive(&lane->channel, chunk->data, chunk->bytes,
                                           &chunk->memory, &chunk->request);
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
 * A shorter receive, also one of zero bytes, would leave a hole; of sends, plugins need not report
 * the length.
 */
int lane_test_oldest(struct lane *lane, bool sending, bool *done)
{
    const struct chunk *chunk = lane_chunk(lane, lane->finished);
    uint64_t bytes = 0;
    int result = channel_test(&lane->channel, chunk->request, done, &bytes);

    if (result == TCPX_SUCCESS && *done && !sending && bytes != IMPORT_BYTES_UNSAID &&
        bytes != chunk->bytes)
        return error_set(TCPX_REMOTE_ERROR, "a chunk of %llu bytes came where %llu were expected",
                         (unsigned long long)bytes, (unsigned long long)chunk->bytes);
    return result;
}
