/* Chunks from the network to their memory. */
#include "session/session.h"

int unpack_lane_submit(struct tcpx_session *session, struct unpack_batch *batch)
{
    uint64_t ticket;
    int result;

    if (batch->count == 0)
        return TCPX_SUCCESS;
    result = gather_prepare_engine(session);
    if (result == TCPX_SUCCESS)
        result = unpack_submit(session->engine, batch->lists, batch->count, batch->written_by_nic,
                               &ticket);
    if (result == TCPX_IN_PROGRESS) /* the next step tries again */
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

/* All fragments must be there: a missing one would leave a hole. */
static int check_fragments(const struct chunk *chunk, const struct unpack_list *received)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < received->count; i++)
        bytes += received->descriptors[i].length;
    if (bytes != chunk->bytes)
        return error_set(TCPX_REMOTE_ERROR, "a chunk of %llu bytes arrived in fragments of %llu",
                         (unsigned long long)chunk->bytes, (unsigned long long)bytes);
    return TCPX_SUCCESS;
}

static int add_to_batch(struct tcpx_session *session, struct unpack_batch *batch,
                        struct chunk *chunk, const struct unpack_list *received)
{
    int result = check_fragments(chunk, received);

    if (result == TCPX_SUCCESS && batch->count == GPU_UNPACK_LISTS)
        result = unpack_lane_submit(session, batch);
    if (result != TCPX_SUCCESS)
        return result;
    batch->written_by_nic |= received->bounce_host == NULL;
    batch->chunks[batch->count] = chunk;
    batch->lists[batch->count++] = *received;
    return TCPX_SUCCESS;
}

/* A chunk has arrived: it is unpacked, scattered from its slot, or already in place. */
static int chunk_arrived(struct tcpx_session *session, struct lane *lane, struct chunk *chunk,
                         struct unpack_batch *batch)
{
    struct unpack_list received;
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
    /* A plugin whose NIC writes into GPU memory does not report when the GPU sees it. */
    if (chunk->transfer->memory->on_gpu && session->plugin != NULL)
        result = gpu_flush_inbound_writes(session->gpu);
    return result;
}

/* A chunk in its slot does not need the network's bounce memory any more. */
static int chunk_landed(struct tcpx_session *session, struct lane *lane, struct chunk *chunk)
{
    bool done;
    int result = unpack_poll(session->engine, chunk->ticket, &done);

    if (result != TCPX_SUCCESS || !done)
        return result;
    chunk->ticket = 0;
    chunk->state = CHUNK_EMPTYING;
    return channel_consumed(&lane->channel, chunk->request);
}

static int chunk_is_scattered(struct tcpx_session *session, struct chunk *chunk, bool *done)
{
    if (chunk->slot != NULL)
        return gather_step(session, chunk, false, done);
    *done = chunk->ticket == 0;
    return *done ? TCPX_SUCCESS : unpack_poll(session->engine, chunk->ticket, done);
}

static int chunk_was_received(struct tcpx_session *session, struct lane *lane, struct chunk *chunk)
{
    struct tcpx_transfer *transfer = chunk->transfer;
    int result = TCPX_SUCCESS;

    chunk_count_time(chunk, &session->statistics.unpacking_ns);
    session->statistics.received_chunks++;
    if (chunk->slot != NULL)
        slots_give(&session->directions[RECEIVING].slots, chunk->slot);
    else
        result = channel_consumed(&lane->channel, chunk->request);
    chunk->state = CHUNK_FREE;
    transfer->moved += chunk->bytes;
    if (result == TCPX_SUCCESS && transfer->moved == transfer->total)
        result = matching_receive_done(transfer);
    return result;
}

int unpack_lane_step(struct tcpx_session *session, struct lane *lane, struct unpack_batch *batch,
                     bool *moved)
{
    int result = TCPX_SUCCESS;

    for (uint64_t i = lane->freed; i < lane->finished && result == TCPX_SUCCESS; i++) {
        struct chunk *chunk = lane_chunk(lane, i);
        bool done = false;

        if (chunk->state == CHUNK_ARRIVED)
            result = chunk_arrived(session, lane, chunk, batch);
        if (result == TCPX_SUCCESS && chunk->state == CHUNK_LANDING)
            result = chunk_landed(session, lane, chunk);
        if (result == TCPX_SUCCESS && chunk->state == CHUNK_EMPTYING)
            result = chunk_is_scattered(session, chunk, &done);
        if (result == TCPX_SUCCESS && done) {
            result = chunk_was_received(session, lane, chunk);
            *moved = true;
        }
    }
    while (lane->freed < lane->finished && lane_chunk(lane, lane->freed)->state == CHUNK_FREE)
        lane->freed++;
    return result;
}
