/*
 * The measurement itself, the same for both ends. Each iteration is made ready on both sides, then
 * starts at a signal of the server; only what is between that and the last byte is timed. Before it
 * the source has got a pattern that no iteration had before, so that what an earlier one has left
 * at the destination is wrong; after it every byte is compared where it is. With --check first or
 * none the pattern is that of the size, and most iterations or all are not compared.
 */
#include "base/clock.h"
#include "tools/perf_report.h"
#include "tools/perf_side.h"
#include "tools/spans.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PROBES = 21 };

/*
 * Without --iters and --time: so many bytes of each size, in LEAST to MOST iterations; a size that
 * takes longer than NS has fewer, but FEWEST. Warm-up costs as much as what counts, so that large
 * sizes, whose first iterations differ less, have one.
 */
enum {
    AUTO_FEWEST = 3,
    AUTO_LEAST = 10,
    AUTO_MOST = 1000,
    AUTO_WARM_UP = 2,
    AUTO_LARGE = 16 << 20
};

#define AUTO_BYTES ((uint64_t)256 << 20)
#define AUTO_NS    ((uint64_t)2000000000)

static bool is_one_sided(const struct perf_side *side)
{
    return side->plan.operation != PERF_SENDS;
}

bool perf_has_out(const struct perf_plan *plan, bool is_server)
{
    return plan->way != PERF_ONE_WAY || is_server == (plan->operation == PERF_READS);
}

bool perf_has_in(const struct perf_plan *plan, bool is_server)
{
    return plan->way != PERF_ONE_WAY || is_server == (plan->operation != PERF_READS);
}

static bool has_out(const struct perf_side *side)
{
    return perf_has_out(&side->plan, side->is_server);
}

static bool has_in(const struct perf_side *side)
{
    return perf_has_in(&side->plan, side->is_server);
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
    double *stages = side->at_hand.stages;
    int result = read_statistics(side, &after);

    if (result != TCPX_SUCCESS || !side->at_hand.step.counts)
        return result;
#define SPAN(field) ((double)(after.field - before->field) * 1e-3)
    stages[PERF_COPY_OUT] += SPAN(copy_out_ns);
    stages[PERF_SEND] += SPAN(write_ns);
    stages[PERF_SEND_WAIT] += SPAN(write_wait_ns);
    stages[PERF_RECEIVE_WAIT] += SPAN(read_wait_ns);
    stages[PERF_RECEIVE] += SPAN(read_ns);
    stages[PERF_COPY_IN] += SPAN(copy_in_ns);
#undef SPAN
    return TCPX_SUCCESS;
}

/* --- one iteration ------------------------------------------------------------------------- */

/* Both count alike, or something is very wrong. */
static int check_iteration(const struct perf_side *side, uint64_t number, const char *awaited)
{
    if (number == side->iteration)
        return TCPX_SUCCESS;
    return error_set(TCPX_REMOTE_ERROR, "%s: %s of iteration %llu, but this is %llu",
                     control_peer(side->meeting.control), awaited, (unsigned long long)number,
                     (unsigned long long)side->iteration);
}

static int hear_iteration(struct perf_side *side, enum perf_message type, const char *awaited)
{
    uint64_t number;
    int result = perf_hear_number(side, type, awaited, &number);

    return result == TCPX_SUCCESS ? check_iteration(side, number, awaited) : result;
}

/* Of the client's pattern and of the server's. */
static uint64_t seed_of(const struct perf_side *side, bool of_server)
{
    return 2 * side->pattern + of_server;
}

static bool is_compared(const struct perf_side *side)
{
    return side->plan.check == PERF_CHECK_EVERY ||
           (side->plan.check == PERF_CHECK_FIRST && side->at_hand.iterations == 0);
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
    return side->is_server && side->plan.spoilt != 0 && side->at_hand.step.counts &&
           side->counted == side->plan.spoilt;
}

static int fill_out(struct perf_side *side, uint64_t bytes)
{
    struct buffer from = part_of(&side->out, bytes);
    int result = TCPX_SUCCESS;

    if (side->filled != side->pattern)
        result = buffer_fill(&from, seed_of(side, side->is_server));
    side->filled = side->pattern;
    return result;
}

/* Patterns count from 1. */
static int make_ready(struct perf_side *side, uint64_t bytes, struct perf_flow *in)
{
    int result = TCPX_SUCCESS;

    if (side->plan.check == PERF_CHECK_EVERY || side->at_hand.iterations == 0)
        side->pattern = side->iteration + 1;
    if (has_out(side))
        result = fill_out(side, bytes);
    if (result == TCPX_SUCCESS && has_in(side) && !is_one_sided(side))
        result = perf_flow_begin(in);
    return result;
}

/* The client fills while the server compares, where it neither waits for bytes nor is read. */
static int fill_ahead(struct perf_side *side, uint64_t bytes)
{
    if (side->plan.check != PERF_CHECK_EVERY || side->plan.way != PERF_ONE_WAY || !has_out(side) ||
        side->at_hand.step.last)
        return TCPX_SUCCESS;
    side->pattern++;
    return fill_out(side, bytes);
}

/* What is read from a server that receives nothing is spoilt where it is. */
static int spoil_source(struct perf_side *side, uint64_t bytes)
{
    struct buffer from = part_of(&side->out, bytes);

    if (has_in(side) || !is_spoilt(side))
        return TCPX_SUCCESS;
    return buffer_spoil(&from, seed_of(side, true));
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
    if (!has_in(side))
        return perf_flow_finish(out, NULL);
    if (!has_out(side))
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

    if (!has_in(side) || !is_compared(side))
        return TCPX_SUCCESS;
    if (is_spoilt(side))
        result = buffer_spoil(&to, seed);
    if (result == TCPX_SUCCESS)
        result = buffer_count_wrong(&to, seed, &wrong);
    if (result == TCPX_SUCCESS && wrong != 0)
        result = error_set(TCPX_REMOTE_ERROR,
                           "wrong data: the %s received %llu of %llu bytes wrong in iteration %llu",
                           side->is_server ? "server" : "client", (unsigned long long)wrong,
                           (unsigned long long)bytes, (unsigned long long)side->counted);
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

/* The client's readiness, and what kind of iteration this is. */
static int hear_step(struct perf_side *side)
{
    static const char awaited[] = "the client's readiness";
    uint64_t number;
    int result = perf_hear_number(side, PERF_READY, awaited, &number);

    if (result != TCPX_SUCCESS)
        return result;
    if (side->at_hand.iterations > 2 * PERF_MOST_ITERATIONS)
        return error_set(TCPX_REMOTE_ERROR, "the client does not end a size after %llu iterations",
                         (unsigned long long)side->at_hand.iterations);
    side->at_hand.step = perf_step_decode(number);
    side->counted += side->at_hand.step.counts;
    return check_iteration(side, side->at_hand.step.iteration, awaited);
}

static int iterate_server(struct perf_side *side, struct perf_flow *out, struct perf_flow *in,
                          uint64_t *ns)
{
    struct tcpx_session_statistics before;
    uint64_t start;
    int result = hear_step(side);

    if (result == TCPX_SUCCESS)
        result = spoil_source(side, in->bytes);
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
    int result = perf_say_number(side, PERF_READY, perf_step_encode(&side->at_hand.step));

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
        result = fill_ahead(side, in->bytes);
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

/* --- how many ------------------------------------------------------------------------------ */

uint64_t perf_iterations_of(const struct perf_plan *plan, uint64_t bytes)
{
    uint64_t count = AUTO_BYTES / bytes;

    if (plan->iterations != 0)
        return plan->iterations;
    return count < AUTO_LEAST ? AUTO_LEAST : count > AUTO_MOST ? AUTO_MOST : count;
}

static uint64_t warm_up_of(const struct perf_plan *plan, uint64_t bytes)
{
    if (plan->warm_up != PERF_AUTO)
        return plan->warm_up;
    return bytes < AUTO_LARGE ? AUTO_WARM_UP : 1;
}

/* With the iteration that is going to begin, which takes as long as the latest. */
static bool is_enough(const struct perf_plan *plan, const struct perf_size *size)
{
    uint64_t count = size->counted + 1;
    uint64_t ns = size->timed_ns + size->latest_ns;

    if (count == PERF_MOST_ITERATIONS)
        return true;
    if (plan->time_ms != 0)
        return ns >= plan->time_ms * 1000000;
    return count >= perf_iterations_of(plan, size->bytes) ||
           (plan->iterations == 0 && count >= AUTO_FEWEST && ns >= AUTO_NS);
}

/* The client's choice. */
static void choose_step(struct perf_side *side)
{
    struct perf_size *size = &side->at_hand;
    bool counts = size->iterations >= warm_up_of(&side->plan, size->bytes);

    size->step = (struct perf_step){.iteration = side->iteration,
                                    .counts = counts,
                                    .last = counts && is_enough(&side->plan, size)};
    side->counted += counts;
}

static int iteration_run(struct perf_side *side)
{
    struct perf_size *size = &side->at_hand;
    struct perf_flow out = make_flow(side, true, size->bytes);
    struct perf_flow in = make_flow(side, false, size->bytes);
    int result = make_ready(side, size->bytes, &in);

    if (!side->is_server)
        choose_step(side);
    if (result == TCPX_SUCCESS)
        result = side->is_server ? iterate_server(side, &out, &in, &size->latest_ns)
                                 : iterate_client(side, &out, &in, &size->latest_ns);
    if (result == TCPX_SUCCESS && side->end->chunks)
        fprintf(stderr, "[PERF][%s] Iter %llu time=%.3fms size=%llu\n", perf_who(side),
                (unsigned long long)side->iteration, (double)size->latest_ns * 1e-6,
                (unsigned long long)size->bytes);
    side->iteration++;
    size->iterations++;
    return result;
}

/* --- one size ------------------------------------------------------------------------------ */

/* Grows the list of times, so that no number of iterations has to be known before. */
static int keep_time(struct perf_size *size)
{
    if (!size->step.counts)
        return TCPX_SUCCESS;
    if (size->counted == size->room) {
        size_t room = size->room == 0 ? 1024 : 2 * size->room;
        uint64_t *spans = realloc(size->spans, room * sizeof *spans);

        if (spans == NULL)
            return error_system(ENOMEM, "the times of %zu iterations", room);
        size->spans = spans;
        size->room = room;
    }
    size->spans[size->counted++] = size->latest_ns;
    size->timed_ns += size->latest_ns;
    return TCPX_SUCCESS;
}

static void evaluate_spans(const struct perf_side *side, struct perf_row *row)
{
    const struct perf_size *size = &side->at_hand;
    uint64_t bytes = size->bytes;
    uint64_t *spans = size->spans;
    uint64_t count = size->counted;
    unsigned ways = side->plan.way == PERF_BOTH_WAYS ? 2 : 1;

    spans_sort(spans, count);
    *row =
        (struct perf_row){.bytes = bytes,
                          .iterations = count,
                          .least_us = spans_percentile_us(spans, count, 0),
                          .median_us = spans_percentile_us(spans, count, 500),
                          .p99_us = spans_percentile_us(spans, count, 990),
                          .p999_us = spans_percentile_us(spans, count, 999),
                          .most_us = spans_percentile_us(spans, count, 1000),
                          .mean_us = (double)size->timed_ns * 1e-3 / (double)count,
                          .gigabytes_per_second = (double)(bytes * ways) /
                                                  (spans_percentile_us(spans, count, 500) * 1e3)};
    for (unsigned i = 0; i < PERF_STAGE_COUNT; i++)
        row->stages[i] = size->stages[i] / (double)count;
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
    int result;

    perf_row_encode(row, bytes);
    if (side->is_server) {
        result = meeting_say(&side->meeting, PERF_STAGES, bytes, sizeof bytes);
        if (result == TCPX_SUCCESS)
            result = perf_hear(side, PERF_ROW, "the client's result", bytes, &length);
        return result == TCPX_SUCCESS ? perf_row_decode(bytes, length, row) : result;
    }
    result = perf_hear(side, PERF_STAGES, "the server's times", bytes, &length);
    if (result == TCPX_SUCCESS)
        result = perf_row_decode(bytes, length, &theirs);
    if (result != TCPX_SUCCESS)
        return result;
    for (unsigned i = 0; i < PERF_STAGE_COUNT; i++)
        if (perf_stage_list[i].of_sender == (side->plan.operation == PERF_READS))
            row->stages[i] = theirs.stages[i];
    perf_row_encode(row, bytes);
    return meeting_say(&side->meeting, PERF_ROW, bytes, sizeof bytes);
}

static int measure_size(struct perf_side *side, unsigned number, struct perf_row *row)
{
    struct perf_size *size = &side->at_hand;
    int result;

    *size = (struct perf_size){.bytes = side->plan.sizes[number]};
    side->filled = 0;
    result = (is_one_sided(side) ? perf_access_divide : perf_flow_divide)(side, size->bytes);
    while (result == TCPX_SUCCESS && !size->step.last) {
        result = iteration_run(side);
        if (result == TCPX_SUCCESS)
            result = keep_time(size);
        perf_bar_show(side, number);
    }
    if (result == TCPX_SUCCESS && size->counted == 0)
        result = error_set(TCPX_REMOTE_ERROR, "%s ends a size without a measured iteration",
                           control_peer(side->meeting.control));
    if (result == TCPX_SUCCESS) {
        evaluate_spans(side, row);
        result = exchange_row(side, row);
    }
    free(size->spans);
    size->spans = NULL;
    perf_bar_clear(side);
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

    if (has_out(side))
        result = perf_make_buffer(side, &side->out, &side->out_memory);
    if (result == TCPX_SUCCESS && has_in(side))
        result = perf_make_buffer(side, &side->in, &side->in_memory);
    return result == TCPX_SUCCESS && is_one_sided(side) ? perf_access_open(side) : result;
}

/* How long the way of a start signal is: half of the median of some there and back, at the client.
 */
static int measure_barrier(struct perf_side *side)
{
    uint64_t spans[PROBES];
    uint64_t barrier_ns;
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
    barrier_ns = spans[PROBES / 2] / 2;
    result = side->is_server ? perf_hear_number(side, PERF_PROBE, "the barrier", &barrier_ns)
                             : perf_say_number(side, PERF_PROBE, barrier_ns);
    side->result->barrier_us = (double)barrier_ns * 1e-3;
    return result;
}

static void keep_row(struct perf_side *side, const struct perf_row *row)
{
    struct perf_result *result = side->result;

    if (side->end->report != NULL)
        perf_report_row(side->end->report, row);
    else
        result->rows[result->row_count++] = *row;
}

int perf_measure(struct perf_side *side)
{
    struct perf_row row;
    int result = make_buffers(side);

    if (result == TCPX_SUCCESS)
        result = measure_barrier(side);
    if (result == TCPX_SUCCESS && side->end->report != NULL)
        perf_report_begin(side->end->report, side->result);
    side->bar.began = clock_now();
    for (unsigned i = 0; i < side->plan.size_count && result == TCPX_SUCCESS; i++) {
        result = measure_size(side, i, &row);
        if (result == TCPX_SUCCESS)
            keep_row(side, &row);
    }
    return result;
}
