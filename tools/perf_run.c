/*
 * The measurement itself, the same for both ends. Each iteration is made ready on both sides, then
 * starts at a signal of the server; only what is between that and the last byte is timed. Before it
 * the source has got a pattern that no iteration had before, and the destination a poison; after it
 * every byte is compared where it is.
 */
#include "base/clock.h"
#include "tools/perf_side.h"
#include "tools/spans.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PROBES = 21, AUTO_LEAST = 10, AUTO_MOST = 1000 };

#define AUTO_BYTES ((uint64_t)256 << 20)

static bool is_one_sided(const struct perf_side *side)
{
    return side->plan.operation != PERF_SENDS;
}

bool perf_has_out(const struct perf_side *side)
{
    return side->plan.way != PERF_ONE_WAY ||
           side->is_server == (side->plan.operation == PERF_READS);
}

bool perf_has_in(const struct perf_side *side)
{
    return side->plan.way != PERF_ONE_WAY ||
           side->is_server == (side->plan.operation != PERF_READS);
}

/* --- stages -------------------------------------------------------------------------------- */

static int read_statistics(struct perf_side *side, struct tcpx_session_statistics *statistics)
{
    *statistics = (struct tcpx_session_statistics){.size = sizeof *statistics};
    return tcpx_session_get_statistics(side->session, statistics);
}

/* Over a plugin nobody knows: all of them stay 0. */
static int add_stages(struct perf_side *side, const struct tcpx_session_statistics *before)
{
    struct tcpx_session_statistics after;
    int result = read_statistics(side, &after);

    if (result != TCPX_SUCCESS)
        return result;
#define SPAN(field) ((double)(after.field - before->field) * 1e-3)
    side->stages[PERF_COPY_OUT] += SPAN(copy_out_ns);
    side->stages[PERF_SEND] += SPAN(write_ns);
    side->stages[PERF_SEND_WAIT] += SPAN(write_wait_ns);
    side->stages[PERF_RECEIVE_WAIT] += SPAN(read_wait_ns);
    side->stages[PERF_RECEIVE] += SPAN(read_ns);
    side->stages[PERF_COPY_IN] += SPAN(copy_in_ns);
#undef SPAN
    return TCPX_SUCCESS;
}

/* --- one iteration ------------------------------------------------------------------------- */

/* Both count alike, or something is very wrong. */
static int hear_iteration(struct perf_side *side, enum perf_message type, const char *awaited)
{
    uint64_t number;
    int result = perf_hear_number(side, type, awaited, &number);

    if (result == TCPX_SUCCESS && number != side->iteration)
        result = error_set(TCPX_REMOTE_ERROR, "%s: %s of iteration %llu, but this is %llu",
                           control_peer(side->meeting.control), awaited, (unsigned long long)number,
                           (unsigned long long)side->iteration);
    return result;
}

/* Of the client's pattern and of the server's. */
static uint64_t seed_of(const struct perf_side *side, bool of_server)
{
    return 2 * side->iteration + of_server;
}

static const char *perf_who(const struct perf_side *side)
{
    return side->is_server ? "SERVER" : "CLIENT";
}

static struct perf_flow make_flow(const struct perf_side *side, bool sending, uint64_t bytes)
{
    uint64_t chunk = side->plan.chunk_bytes;

    return (struct perf_flow){
        .session = side->session,
        .memory = sending ? side->out_memory : side->in_memory,
        .sending = sending,
        .who = side->end->chunks ? perf_who(side) : NULL,
        .received = strstr(tcpx_session_path(side->session), "unpacked here") != NULL
                        ? "unpacked, consumed"
                        : "in place",
        .iteration = side->iteration,
        .bytes = bytes,
        .chunk_bytes = side->pieces == NULL && chunk != 0 && chunk < bytes ? chunk : bytes,
        .pieces = side->pieces,
        .piece_count = side->piece_count,
        .timeout_ms = side->end->meeting.timeout_ms};
}

/* The first `bytes` of a buffer. */
static struct buffer part_of(const struct buffer *buffer, uint64_t bytes)
{
    struct buffer part = *buffer;

    part.bytes = bytes;
    return part;
}

/* Whether the server spoils a byte now. */
static bool is_spoilt(const struct perf_side *side)
{
    return side->is_server && side->plan.spoilt != 0 && side->counted == side->plan.spoilt;
}

/* What is read from a server that receives nothing is spoilt where it is. */
static int make_ready(struct perf_side *side, uint64_t bytes, struct perf_flow *in)
{
    struct buffer from = part_of(&side->out, bytes);
    struct buffer to = part_of(&side->in, bytes);
    int result = TCPX_SUCCESS;

    if (perf_has_out(side))
        result = buffer_fill(&from, seed_of(side, side->is_server));
    if (result == TCPX_SUCCESS && !perf_has_in(side) && is_spoilt(side))
        result = buffer_spoil(&from, seed_of(side, side->is_server));
    if (result == TCPX_SUCCESS && perf_has_in(side))
        result = buffer_poison(&to);
    if (result == TCPX_SUCCESS && perf_has_in(side) && !is_one_sided(side))
        result = perf_flow_begin(in);
    return result;
}

/* The client's accesses have ended at both ends; the server says so of its own by its verdict. */
static int access_settle(struct perf_side *side)
{
    int result = side->plan.way == PERF_PING_PONG ? perf_access_finish(side) : TCPX_SUCCESS;

    if (result != TCPX_SUCCESS)
        return result;
    return side->is_server ? hear_iteration(side, PERF_DONE, "the end of the client's accesses")
                           : perf_say_number(side, PERF_DONE, side->iteration);
}

/* In ping-pong the server answers, else everything goes at once. */
static int iteration_move(struct perf_side *side, struct perf_flow *out, struct perf_flow *in)
{
    int result;

    if (is_one_sided(side))
        return perf_access_move(side);
    if (!perf_has_in(side))
        return perf_flow_finish(out, NULL);
    if (!perf_has_out(side))
        return perf_flow_finish(in, NULL);
    if (side->plan.way == PERF_BOTH_WAYS)
        return perf_flow_finish(out, in);
    result = perf_flow_finish(side->is_server ? in : out, NULL);
    return result == TCPX_SUCCESS ? perf_flow_finish(side->is_server ? out : in, NULL) : result;
}

static int iteration_compare(struct perf_side *side, uint64_t bytes)
{
    struct buffer to = part_of(&side->in, bytes);
    uint64_t seed = seed_of(side, !side->is_server);
    uint64_t wrong = 0;
    int result = TCPX_SUCCESS;

    if (!perf_has_in(side))
        return TCPX_SUCCESS;
    if (is_spoilt(side))
        result = buffer_spoil(&to, seed);
    if (result == TCPX_SUCCESS)
        result = buffer_count_wrong(&to, seed, &wrong);
    if (result == TCPX_SUCCESS && wrong != 0)
        result = error_set(TCPX_REMOTE_ERROR, "iteration %llu: %llu of %llu bytes arrived wrong",
                           (unsigned long long)side->counted, (unsigned long long)wrong,
                           (unsigned long long)bytes);
    return result;
}

/* Timed, and what its stages did. `start`: since when. */
static int move_timed(struct perf_side *side, struct perf_flow *out, struct perf_flow *in,
                      uint64_t start, const struct tcpx_session_statistics *before, uint64_t *ns)
{
    int result = iteration_move(side, out, in);

    *ns = clock_now() - start;
    if (result == TCPX_SUCCESS && is_one_sided(side))
        result = access_settle(side);
    return result == TCPX_SUCCESS ? add_stages(side, before) : result;
}

static int iterate_server(struct perf_side *side, struct perf_flow *out, struct perf_flow *in,
                          uint64_t *ns)
{
    struct tcpx_session_statistics before;
    uint64_t start;
    int result = hear_iteration(side, PERF_READY, "the client's readiness");

    if (result == TCPX_SUCCESS)
        result = read_statistics(side, &before);
    start = clock_now();
    if (result == TCPX_SUCCESS)
        result = perf_say_number(side, PERF_GO, side->iteration);
    if (result == TCPX_SUCCESS)
        result = move_timed(side, out, in, start, &before, ns);
    if (result == TCPX_SUCCESS)
        result = iteration_compare(side, in->bytes);
    return result == TCPX_SUCCESS ? perf_say_number(side, PERF_VERDICT, *ns) : result;
}

static int iterate_client(struct perf_side *side, struct perf_flow *out, struct perf_flow *in,
                          uint64_t *ns)
{
    struct tcpx_session_statistics before;
    uint64_t servers_ns = 0;
    char awaited[96];
    int result = perf_say_number(side, PERF_READY, side->iteration);

    if (result == TCPX_SUCCESS)
        result = read_statistics(side, &before);
    if (result == TCPX_SUCCESS)
        result = hear_iteration(side, PERF_GO, "the server's start signal");
    if (result == TCPX_SUCCESS)
        result = move_timed(side, out, in, clock_now(), &before, ns);
    if (result == TCPX_SUCCESS && !is_one_sided(side))
        result = iteration_compare(side, in->bytes);
    snprintf(awaited, sizeof awaited,
             "its verdict on iteration %llu, of which this end has moved its %llu bytes",
             (unsigned long long)side->iteration, (unsigned long long)in->bytes);
    if (result == TCPX_SUCCESS)
        result = perf_hear_number(side, PERF_VERDICT, awaited, &servers_ns);
    if (result != TCPX_SUCCESS)
        return result;
    /* One way: when it has arrived, or the access ended. Both: when both have. There and back: half
     * of it. */
    if (side->plan.way == PERF_PING_PONG)
        *ns /= 2;
    else if (side->plan.way == PERF_ONE_WAY ? !is_one_sided(side) : servers_ns > *ns)
        *ns = servers_ns;
    /* The server's writes have ended now. */
    return is_one_sided(side) ? iteration_compare(side, in->bytes) : TCPX_SUCCESS;
}

static int iteration_run(struct perf_side *side, uint64_t bytes, uint64_t *ns)
{
    struct perf_flow out = make_flow(side, true, bytes);
    struct perf_flow in = make_flow(side, false, bytes);
    int result = make_ready(side, bytes, &in);

    if (result == TCPX_SUCCESS)
        result = side->is_server ? iterate_server(side, &out, &in, ns)
                                 : iterate_client(side, &out, &in, ns);
    if (result == TCPX_SUCCESS && side->end->chunks)
        fprintf(stderr, "[PERF][%s] Iter %llu time=%.3fms size=%llu\n", perf_who(side),
                (unsigned long long)side->iteration, (double)*ns * 1e-6, (unsigned long long)bytes);
    side->iteration++;
    return result;
}

/* --- one size ------------------------------------------------------------------------------ */

static uint64_t iterations_of(const struct perf_plan *plan, uint64_t bytes)
{
    uint64_t count = AUTO_BYTES / bytes;

    if (plan->iterations != 0)
        return plan->iterations;
    return count < AUTO_LEAST ? AUTO_LEAST : count > AUTO_MOST ? AUTO_MOST : count;
}

static void evaluate_spans(const struct perf_side *side, uint64_t bytes, uint64_t *spans,
                           uint64_t count, struct perf_row *row)
{
    double sum = 0;
    unsigned ways = side->plan.way == PERF_BOTH_WAYS ? 2 : 1;

    spans_sort(spans, count);
    for (uint64_t i = 0; i < count; i++)
        sum += (double)spans[i];
    *row =
        (struct perf_row){.bytes = bytes,
                          .iterations = count,
                          .least_us = spans_percentile_us(spans, count, 0),
                          .median_us = spans_percentile_us(spans, count, 500),
                          .p99_us = spans_percentile_us(spans, count, 990),
                          .p999_us = spans_percentile_us(spans, count, 999),
                          .most_us = spans_percentile_us(spans, count, 1000),
                          .mean_us = sum * 1e-3 / (double)count,
                          .gigabytes_per_second = (double)(bytes * ways) /
                                                  (spans_percentile_us(spans, count, 500) * 1e3)};
    for (unsigned i = 0; i < PERF_STAGE_COUNT; i++)
        row->stages[i] = side->stages[i] / (double)count;
}

/*
 * The receiving side's stages are the server's, the sending side's the client's; of reads it is the
 * other way round.
 */
static int exchange_row(struct perf_side *side, struct perf_row *row)
{
    uint8_t bytes[PERF_ROW_BYTES];
    size_t length = sizeof bytes;
    struct perf_row theirs;
    double barrier;
    int result;

    perf_row_encode(side->result->barrier_us, row, bytes);
    if (side->is_server) {
        result = meeting_say(&side->meeting, PERF_STAGES, bytes, sizeof bytes);
        if (result == TCPX_SUCCESS)
            result = perf_hear(side, PERF_ROW, "the client's result", bytes, &length);
        return result == TCPX_SUCCESS
                   ? perf_row_decode(bytes, length, &side->result->barrier_us, row)
                   : result;
    }
    result = perf_hear(side, PERF_STAGES, "the server's times", bytes, &length);
    if (result == TCPX_SUCCESS)
        result = perf_row_decode(bytes, length, &barrier, &theirs);
    if (result != TCPX_SUCCESS)
        return result;
    for (unsigned i = 0; i < PERF_STAGE_COUNT; i++)
        if (perf_stage_list[i].of_sender == (side->plan.operation == PERF_READS))
            row->stages[i] = theirs.stages[i];
    perf_row_encode(side->result->barrier_us, row, bytes);
    return meeting_say(&side->meeting, PERF_ROW, bytes, sizeof bytes);
}

static int iterate_all(struct perf_side *side, uint64_t bytes, uint64_t *spans, uint64_t count)
{
    char name[24];
    int result = TCPX_SUCCESS;

    perf_size_name(bytes, name);
    for (uint64_t i = 0; i < count && result == TCPX_SUCCESS; i++) {
        side->counted++;
        result = iteration_run(side, bytes, &spans[i]);
        perf_bar_show(side, name, i + 1, count);
    }
    return result;
}

static int measure_size(struct perf_side *side, uint64_t bytes, struct perf_row *row)
{
    uint64_t count = iterations_of(&side->plan, bytes);
    uint64_t *spans = calloc(count, sizeof *spans);
    uint64_t unused;
    int result = (is_one_sided(side) ? perf_access_divide : perf_flow_divide)(side, bytes);

    if (spans == NULL)
        result = error_system(ENOMEM, "%llu iterations", (unsigned long long)count);
    for (uint64_t i = 0; i < side->plan.warm_up && result == TCPX_SUCCESS; i++)
        result = iteration_run(side, bytes, &unused);
    memset(side->stages, 0, sizeof side->stages);
    if (result == TCPX_SUCCESS)
        result = iterate_all(side, bytes, spans, count);
    if (result == TCPX_SUCCESS) {
        evaluate_spans(side, bytes, spans, count, row);
        result = exchange_row(side, row);
    }
    free(spans);
    return result;
}

/* --- the whole ----------------------------------------------------------------------------- */

static uint64_t largest_of(const struct perf_plan *plan)
{
    uint64_t largest = 0;

    for (unsigned i = 0; i < plan->size_count; i++)
        if (plan->sizes[i] > largest)
            largest = plan->sizes[i];
    return largest;
}

static int perf_make_buffer(struct perf_side *side, struct buffer *buffer,
                            struct tcpx_memory **memory)
{
    int result = buffer_create(side->end->gpu, largest_of(&side->plan), buffer);

    return result == TCPX_SUCCESS && !is_one_sided(side)
               ? tcpx_session_register(side->session, buffer->data, buffer->bytes, memory)
               : result;
}

static int make_buffers(struct perf_side *side)
{
    int result = TCPX_SUCCESS;

    if (perf_has_out(side))
        result = perf_make_buffer(side, &side->out, &side->out_memory);
    if (result == TCPX_SUCCESS && perf_has_in(side))
        result = perf_make_buffer(side, &side->in, &side->in_memory);
    return result == TCPX_SUCCESS && is_one_sided(side) ? perf_access_open(side) : result;
}

/* How long the way of a start signal is: half of the median of some there and back. */
static int measure_barrier(struct perf_side *side)
{
    uint64_t spans[PROBES];
    int result = TCPX_SUCCESS;

    for (uint64_t i = 0; i < PROBES && result == TCPX_SUCCESS; i++) {
        uint64_t start = clock_now();
        uint64_t number = i;

        if (!side->is_server)
            result = perf_say_number(side, PERF_PROBE, i);
        if (result == TCPX_SUCCESS)
            result = perf_hear_number(side, PERF_PROBE, "a probe", &number);
        if (result == TCPX_SUCCESS && side->is_server)
            result = perf_say_number(side, PERF_PROBE, number);
        spans[i] = clock_now() - start;
    }
    if (result != TCPX_SUCCESS)
        return result;
    spans_sort(spans, PROBES);
    side->result->barrier_us = spans_percentile_us(spans, PROBES, 500) / 2;
    return TCPX_SUCCESS;
}

int perf_measure(struct perf_side *side)
{
    struct perf_result *result_of = side->result;
    int result = make_buffers(side);

    if (result == TCPX_SUCCESS)
        result = measure_barrier(side);
    for (unsigned i = 0; i < side->plan.size_count && result == TCPX_SUCCESS; i++) {
        result = measure_size(side, side->plan.sizes[i], &result_of->rows[i]);
        if (result == TCPX_SUCCESS)
            result_of->row_count++;
    }
    perf_bar_clear(side);
    return result;
}
