/* A window of transfers, begun and awaited in order. */
#include "tools/perf_side.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* From the last to the first, so that no two of them can be taken for one. */
int perf_flow_divide(struct perf_side *side, uint64_t bytes)
{
    size_t count = side->plan.pieces < bytes ? side->plan.pieces : (size_t)bytes;
    uint64_t each = count > 0 ? bytes / count : 0;

    free(side->pieces);
    side->pieces = NULL;
    side->piece_count = count;
    if (count == 0)
        return TCPX_SUCCESS;
    side->pieces = calloc(count, sizeof *side->pieces);
    if (side->pieces == NULL)
        return error_system(ENOMEM, "a list of %zu pieces", count);
    for (size_t i = 0; i < count; i++)
        side->pieces[count - 1 - i] = (struct tcpx_piece){.offset = i * each, .bytes = each};
    side->pieces[0].bytes += bytes % count;
    return TCPX_SUCCESS;
}

static uint64_t chunk_count(const struct perf_flow *flow)
{
    return (flow->bytes + flow->chunk_bytes - 1) / flow->chunk_bytes;
}

static uint64_t tag_of(const struct perf_flow *flow, uint64_t chunk)
{
    return PERF_FLOW_TAG + flow->iteration * PERF_FLOW_TAGS + chunk;
}

/* `how` it ended; NULL: it begins. */
static void flow_show(const struct perf_flow *flow, const struct tcpx_move *move, uint64_t chunk,
                      const char *how)
{
    if (flow->who == NULL)
        return;
    fprintf(stderr, "[PERF][%s] %s %s chunk_idx=%llu tag=%llu size=%llu offset=%llu%s%s\n",
            flow->who, flow->sending ? "send" : "recv", how == NULL ? "begun" : "done",
            (unsigned long long)chunk, (unsigned long long)move->tag,
            (unsigned long long)move->bytes, (unsigned long long)move->offset,
            how == NULL || flow->sending ? "" : " ", how == NULL || flow->sending ? "" : how);
}

static struct tcpx_move flow_move(const struct perf_flow *flow, uint64_t chunk)
{
    uint64_t offset = chunk * flow->chunk_bytes;
    uint64_t left = flow->bytes - offset;

    return (struct tcpx_move){.memory = flow->memory,
                              .offset = offset,
                              .bytes = left < flow->chunk_bytes ? left : flow->chunk_bytes,
                              .pieces = flow->pieces,
                              .piece_count = flow->piece_count,
                              .tag = tag_of(flow, chunk)};
}

static int flow_begin_one(struct perf_flow *flow)
{
    uint64_t chunk = flow->begun;
    const struct tcpx_move move = flow_move(flow, chunk);
    struct tcpx_transfer **transfer = &flow->window[chunk % PERF_FLOW_MOST];

    flow_show(flow, &move, chunk, NULL);
    flow->begun++;
    return flow->sending ? tcpx_send(flow->session, &move, transfer)
                         : tcpx_receive(flow->session, &move, transfer);
}

static uint64_t flow_window(const struct perf_flow *flow)
{
    uint64_t chunks = PERF_FLOW_BYTES / flow->chunk_bytes;

    return chunks < PERF_FLOW_LEAST  ? PERF_FLOW_LEAST
           : chunks > PERF_FLOW_MOST ? PERF_FLOW_MOST
                                     : chunks;
}

int perf_flow_begin(struct perf_flow *flow)
{
    int result = TCPX_SUCCESS;

    while (result == TCPX_SUCCESS && flow->begun < chunk_count(flow) &&
           flow->begun - flow->ended < flow_window(flow))
        result = flow_begin_one(flow);
    return result;
}

/* Waits for the oldest chunk. */
static int flow_step(struct perf_flow *flow)
{
    uint64_t chunk = flow->ended;
    const struct tcpx_move move = flow_move(flow, chunk);
    int result = tcpx_transfer_wait(flow->window[chunk % PERF_FLOW_MOST], flow->timeout_ms);

    if (result == TCPX_IN_PROGRESS)
        return error_set(
            TCPX_IN_PROGRESS,
            "timeout: the %s at offset=%llu chunk_idx=%llu tag=%llu did not end within "
            "%d s",
            flow->sending ? "send" : "receive", (unsigned long long)move.offset,
            (unsigned long long)chunk, (unsigned long long)move.tag, flow->timeout_ms / 1000);
    if (result == TCPX_SUCCESS)
        flow_show(flow, &move, chunk, flow->received);
    flow->ended++;
    return result;
}

static bool flow_has_ended(const struct perf_flow *flow)
{
    return flow->ended == chunk_count(flow);
}

static int flow_step_if_any(struct perf_flow *flow)
{
    int result = perf_flow_begin(flow);

    return result == TCPX_SUCCESS && !flow_has_ended(flow) ? flow_step(flow) : result;
}

int perf_flow_finish(struct perf_flow *one, struct perf_flow *other)
{
    int result = TCPX_SUCCESS;

    while (result == TCPX_SUCCESS &&
           !(flow_has_ended(one) && (other == NULL || flow_has_ended(other)))) {
        result = flow_step_if_any(one);
        if (result == TCPX_SUCCESS && other != NULL)
            result = flow_step_if_any(other);
    }
    return result;
}
