/* One step of all lanes, and the end of what they carry. */
#include "session/chunks.h"

#include "base/clock.h"
#include "base/log.h"
#include "session/gather.h"
#include "session/lane.h"
#include "session/slots.h"
#include "session/transfer.h"
#include "session/unpack_lane.h"

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
        lane_count_time(chunk, &session->statistics.gathering_ns);
        chunk->state = CHUNK_READY;
        *moved = true;
    }
    return TCPX_SUCCESS;
}

static void chunk_was_sent(struct tcpx_session *session, struct lane *lane, struct chunk *chunk)
{
    struct tcpx_transfer *transfer = chunk->transfer;

    lane_count_time(chunk, &session->statistics.sending_ns);
    session->statistics.sent_chunks++;
    if (chunk->slot != NULL)
        slots_give(&session->sending.slots, chunk->slot);
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
            lane_count_time(chunk, &session->statistics.receiving_ns);
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
    int result = lanes_begin_chunks(session, true, moved);

    if (result == TCPX_SUCCESS)
        result = lanes_begin_chunks(session, false, moved);
    for (unsigned i = 0; i < session->channels && result == TCPX_SUCCESS; i++) {
        result = receive_lane_step(session, &session->receiving.lanes[i], moved);
        if (result == TCPX_SUCCESS)
            result = unpack_lane_step(session, &session->receiving.lanes[i], &batch, moved);
        if (result == TCPX_SUCCESS)
            result = send_lane_step(session, &session->sending.lanes[i], moved);
    }
    if (result == TCPX_SUCCESS)
        result = unpack_lane_submit(session, &batch);
    return result;
}

/* --- the end ------------------------------------------------------------------------------- */

/*
 * The peer has all of a send, and only the network has not said so yet: it will soon, and then the
 * memory is free. Whether there is none left.
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

/* What the network has, it may go on to read and write. */
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

    for (unsigned i = 0; i < session->channels; i++)
        for (unsigned k = 0; k < LANE_CHUNKS; k++) {
            uint64_t sent = session->sending.lanes[i].ring[k].ticket;
            uint64_t received = session->receiving.lanes[i].ring[k].ticket;

            latest = sent > latest ? sent : latest;
            latest = received > latest ? received : latest;
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
        all_sent = finish_acknowledged(session, &session->sending.lanes[i]) && all_sent;
    if (!all_sent && waited_ms < NETWORK_MS)
        return false;
    if (!gpu_has_drained(session)) {
        if (waited_ms < GPU_MS)
            return false;
        log_warn("copies on the GPU did not finish within %d ms", GPU_MS);
    }
    for (unsigned i = 0; i < session->channels; i++) {
        lose_memories(&session->sending.lanes[i]);
        lose_memories(&session->receiving.lanes[i]);
    }
    return true;
}
