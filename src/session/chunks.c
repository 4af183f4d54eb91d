/*
 * Transfers as chunks. Both sides cut the same transfers in the same order into chunks of the same
 * length, and chunk k travels in channel k % channels: so a receive is always posted for the chunk
 * that the peer sends next there, and nothing has to be said about it.
 */
#include "base/clock.h"
#include "base/log.h"
#include "session/session_state.h"

/* --- common -------------------------------------------------------------------------------- */

static struct chunk *chunk_at(struct lane *lane, uint64_t number)
{
    return &lane->ring[number % LANE_CHUNKS];
}

/* The time that a stage has taken, which ends now. */
static void count_time(struct chunk *chunk, uint64_t *sum)
{
    uint64_t now = clock_now();

    *sum += now - chunk->since;
    chunk->since = now;
}

/* Once, however often it is found to be so. */
static void count_stall(enum stall *now, enum stall reason, uint64_t *count)
{
    *count += *now != reason;
    *now = reason;
}

/* Whether the network can be given the memory itself. */
static bool is_direct(const struct tcpx_transfer *transfer, struct piece_cursor *cursor,
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
    if (is_direct(transfer, &chunk->at, chunk->bytes)) {
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
static int begin_chunk(struct tcpx_session *session, struct direction *direction, bool sending,
                       bool *begun)
{
    struct tcpx_transfer *transfer = direction->moving.first;
    unsigned channel = (unsigned)(direction->next_chunk % session->channels);
    struct lane *lane = &direction->lanes[channel];
    struct chunk *chunk = chunk_at(lane, lane->begun);
    uint64_t left = transfer->total - transfer->begun;
    int result;

    *begun = false;
    if (lane->begun - lane->freed == LANE_CHUNKS) {
        count_stall(&direction->stalled, STALLED_BY_WINDOW, &session->statistics.window_stalls);
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
        count_stall(&direction->stalled, STALLED_BY_STAGING, &session->statistics.staging_stalls);
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

static int begin_chunks(struct tcpx_session *session, struct direction *direction, bool sending,
                        bool *moved)
{
    while (direction->moving.first != NULL) {
        bool begun;
        int result = begin_chunk(session, direction, sending, &begun);

        if (result != TCPX_SUCCESS || !begun)
            return result;
        *moved = true;
    }
    return TCPX_SUCCESS;
}

/* Those that are ready, in their order. */
static int post_chunks(struct tcpx_session *session, struct lane *lane, bool sending, bool *moved)
{
    while (lane->posted < lane->begun) {
        struct chunk *chunk = chunk_at(lane, lane->posted);
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
            count_stall(&lane->stalled, STALLED_BY_NETWORK, &session->statistics.busy_stalls);
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

/* Whether the network has finished the oldest one. */
static int test_oldest(struct lane *lane, bool *done, uint64_t *bytes)
{
    return channel_test(&lane->channel, chunk_at(lane, lane->finished)->request, done, bytes);
}

static int test_oldest_send(struct lane *lane, bool *done)
{
    uint64_t ignored; /* plugins need not say what was sent */

    return test_oldest(lane, done, &ignored);
}

/* A shorter chunk, also one of zero bytes, would leave a hole. */
static int test_oldest_receive(struct lane *lane, bool *done)
{
    const struct chunk *chunk = chunk_at(lane, lane->finished);
    uint64_t bytes = 0;
    int result = test_oldest(lane, done, &bytes);

    if (result == TCPX_SUCCESS && *done && bytes != IMPORT_BYTES_UNSAID && bytes != chunk->bytes)
        return error_set(TCPX_REMOTE_ERROR, "a chunk of %llu bytes came where %llu were expected",
                         (unsigned long long)bytes, (unsigned long long)chunk->bytes);
    return result;
}

/* --- sending ------------------------------------------------------------------------------- */

static int fill_chunks(struct tcpx_session *session, struct lane *lane, bool *moved)
{
    for (uint64_t i = lane->posted; i < lane->begun; i++) {
        struct chunk *chunk = chunk_at(lane, i);
        bool done;
        int result;

        if (chunk->state != CHUNK_FILLING)
            continue;
        result = gather_step(session, chunk, true, &done);
        if (result != TCPX_SUCCESS)
            return result;
        if (!done)
            continue;
        count_time(chunk, &session->statistics.gathering_ns);
        chunk->state = CHUNK_READY;
        *moved = true;
    }
    return TCPX_SUCCESS;
}

static void chunk_was_sent(struct tcpx_session *session, struct lane *lane, struct chunk *chunk)
{
    struct tcpx_transfer *transfer = chunk->transfer;

    count_time(chunk, &session->statistics.sending_ns);
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
        result = post_chunks(session, lane, true, moved);
    while (result == TCPX_SUCCESS && done && lane->finished < lane->posted) {
        result = test_oldest_send(lane, &done);
        if (result == TCPX_SUCCESS && done) {
            chunk_was_sent(session, lane, chunk_at(lane, lane->finished));
            *moved = true;
        }
    }
    return result;
}

/* --- receiving ----------------------------------------------------------------------------- */

static int receive_lane_step(struct tcpx_session *session, struct lane *lane, bool *moved)
{
    bool done = true;
    int result = post_chunks(session, lane, false, moved);

    while (result == TCPX_SUCCESS && done && lane->finished < lane->posted) {
        struct chunk *chunk = chunk_at(lane, lane->finished);

        result = test_oldest_receive(lane, &done);
        if (result == TCPX_SUCCESS && done) {
            count_time(chunk, &session->statistics.receiving_ns);
            chunk->state = CHUNK_ARRIVED;
            lane->finished++;
            *moved = true;
        }
    }
    return result;
}

/* What has arrived in bounce memory, of several chunks. */
struct unpack_batch {
    struct unpack_list lists[GPU_UNPACK_LISTS];
    struct chunk *chunks[GPU_UNPACK_LISTS];
    uint32_t count;
    bool written_by_nic;
};

static int submit_batch(struct tcpx_session *session, struct unpack_batch *batch)
{
    uint64_t ticket;
    int result;

    if (batch->count == 0)
        return TCPX_SUCCESS;
    result = engine_prepare(session);
    if (result == TCPX_SUCCESS)
        result = unpack_submit(session->engine, batch->lists, batch->count, batch->written_by_nic,
                               &ticket);
    if (result == TCPX_IN_PROGRESS) /* they are tried again with the next step */
        result = TCPX_SUCCESS;
    else if (result == TCPX_SUCCESS) {
        session->statistics.unpack_launches++;
        for (uint32_t i = 0; i < batch->count; i++) {
            struct chunk *chunk = batch->chunks[i];

            session->statistics.fragments += batch->lists[i].count;
            chunk->state = chunk->lands ? CHUNK_LANDING : CHUNK_EMPTYING;
            chunk->ticket = ticket;
            chunk->copied = chunk->lands ? 0 : chunk->bytes;
        }
    }
    batch->count = 0;
    return result;
}

/* All of it must be there: a fragment that is missing would leave a hole. */
static int check_fragments(const struct chunk *chunk, const struct import_received *received)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < received->count; i++)
        bytes += received->descriptors[i].length;
    if (bytes != chunk->bytes)
        return error_set(TCPX_REMOTE_ERROR, "a chunk of %llu bytes came in fragments of %llu",
                         (unsigned long long)chunk->bytes, (unsigned long long)bytes);
    return TCPX_SUCCESS;
}

static int add_to_batch(struct tcpx_session *session, struct unpack_batch *batch,
                        struct chunk *chunk, const struct import_received *received)
{
    int result = check_fragments(chunk, received);

    if (result == TCPX_SUCCESS && batch->count == GPU_UNPACK_LISTS)
        result = submit_batch(session, batch);
    if (result != TCPX_SUCCESS)
        return result;
    batch->written_by_nic |= received->bounce_host == NULL;
    batch->chunks[batch->count] = chunk;
    batch->lists[batch->count++] =
        (struct unpack_list){.bounce = received->bounce,
                             .bounce_host = received->bounce_host,
                             .destination = received->destination,
                             .descriptors = received->descriptors,
                             .descriptors_device = received->descriptors_device,
                             .count = received->count};
    return TCPX_SUCCESS;
}

/* What has arrived: to be unpacked, scattered from its slot, or where it belongs already. */
static int chunk_arrived(struct tcpx_session *session, struct lane *lane, struct chunk *chunk,
                         struct unpack_batch *batch)
{
    struct import_received received;
    int result;

    if (chunk->slot != NULL && !chunk->lands) {
        chunk->state = CHUNK_EMPTYING;
        return TCPX_SUCCESS;
    }
    result = channel_received(&lane->channel, chunk->request, &received);
    if (result != TCPX_SUCCESS)
        return result;
    if (received.count != 0)
        return add_to_batch(session, batch, chunk, &received);
    chunk->state = CHUNK_EMPTYING;
    chunk->copied = chunk->bytes;
    /* A plugin whose NIC writes into GPU memory says nothing of when the GPU sees it. */
    if (chunk->transfer->memory->on_gpu && session->plugin != NULL)
        result = gpu_flush_inbound_writes(session->gpu);
    return result;
}

/* What is in the slot needs the network's bounce memory no more. */
static int land(struct tcpx_session *session, struct lane *lane, struct chunk *chunk)
{
    bool done;
    int result = unpack_poll(session->engine, chunk->ticket, &done);

    if (result != TCPX_SUCCESS || !done)
        return result;
    chunk->ticket = 0;
    chunk->state = CHUNK_EMPTYING;
    return channel_consumed(&lane->channel, chunk->request);
}

static int is_empty(struct tcpx_session *session, struct chunk *chunk, bool *done)
{
    int result;

    if (chunk->slot != NULL)
        return gather_step(session, chunk, false, done);
    *done = chunk->ticket == 0;
    if (*done)
        return TCPX_SUCCESS;
    result = unpack_poll(session->engine, chunk->ticket, done);
    return result;
}

static int chunk_was_received(struct tcpx_session *session, struct lane *lane, struct chunk *chunk)
{
    struct tcpx_transfer *transfer = chunk->transfer;
    int result = TCPX_SUCCESS;

    count_time(chunk, &session->statistics.unpacking_ns);
    session->statistics.received_chunks++;
    if (chunk->slot != NULL)
        slots_give(&session->receiving.slots, chunk->slot);
    else
        result = channel_consumed(&lane->channel, chunk->request);
    chunk->state = CHUNK_FREE;
    transfer->moved += chunk->bytes;
    if (result == TCPX_SUCCESS && transfer->moved == transfer->total)
        result = matching_receive_done(transfer);
    return result;
}

static int unpack_lane_step(struct tcpx_session *session, struct lane *lane,
                            struct unpack_batch *batch, bool *moved)
{
    int result = TCPX_SUCCESS;

    for (uint64_t i = lane->freed; i < lane->finished && result == TCPX_SUCCESS; i++) {
        struct chunk *chunk = chunk_at(lane, i);
        bool done = false;

        if (chunk->state == CHUNK_ARRIVED)
            result = chunk_arrived(session, lane, chunk, batch);
        if (result == TCPX_SUCCESS && chunk->state == CHUNK_LANDING)
            result = land(session, lane, chunk);
        if (result == TCPX_SUCCESS && chunk->state == CHUNK_EMPTYING)
            result = is_empty(session, chunk, &done);
        if (result == TCPX_SUCCESS && done) {
            result = chunk_was_received(session, lane, chunk);
            *moved = true;
        }
    }
    while (lane->freed < lane->finished && chunk_at(lane, lane->freed)->state == CHUNK_FREE)
        lane->freed++;
    return result;
}

/* --- both ---------------------------------------------------------------------------------- */

int chunks_step(struct tcpx_session *session, bool *moved)
{
    struct unpack_batch batch = {.count = 0};
    int result = begin_chunks(session, &session->sending, true, moved);

    if (result == TCPX_SUCCESS)
        result = begin_chunks(session, &session->receiving, false, moved);
    for (unsigned i = 0; i < session->channels && result == TCPX_SUCCESS; i++) {
        result = receive_lane_step(session, &session->receiving.lanes[i], moved);
        if (result == TCPX_SUCCESS)
            result = unpack_lane_step(session, &session->receiving.lanes[i], &batch, moved);
        if (result == TCPX_SUCCESS)
            result = send_lane_step(session, &session->sending.lanes[i], moved);
    }
    if (result == TCPX_SUCCESS)
        result = submit_batch(session, &batch);
    return result;
}

/*
 * The peer has all of a send, and only the network has not said so yet: it will soon, and then the
 * memory is free. Whether there is none left.
 */
static bool finish_acknowledged(struct tcpx_session *session, struct lane *lane)
{
    while (lane->finished < lane->posted &&
           chunk_at(lane, lane->finished)->transfer->acknowledged) {
        bool done = false;

        if (test_oldest_send(lane, &done) != TCPX_SUCCESS)
            return true;
        if (!done)
            return false;
        chunk_was_sent(session, lane, chunk_at(lane, lane->finished));
    }
    return true;
}

/* What the network has, it may go on to read and write. */
static void lose_memories(struct lane *lane)
{
    for (uint64_t i = lane->freed; i < lane->begun; i++) {
        struct chunk *chunk = chunk_at(lane, i);

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
static bool gpu_is_done(struct tcpx_session *session)
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
    if (!gpu_is_done(session)) {
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
