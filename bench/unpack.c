/*
 * Unpack on this GPU, measured: the time of one submit by each way, for the lists that devmem
 * receives leave behind, beside one copy of as many bytes and beside an empty kernel, the floor.
 * Times are the GPU's own, between two events; each is a median over turns that go round a set of
 * buffers much larger than the L2 cache. Before each turn round the destinations are poisoned, and
 * after it every byte is compared on the GPU: a wrong one ends the program.
 *
 * --pinned 1 has the bounce buffers in pinned host memory, where plain TCP leaves its bytes, so
 * that everything crosses the bus;
 * --warm 1 uses one set of buffers over and over instead, so that small ones stay in the cache;
 * --way and --row measure only what their text is part of.
 */
#include "unpack/unpack.h"
#include "abi/unpack_queue.h"
#include "base/parse.h"
#include "bench/bench.h"
#include "bench/gpu_timer.h"

enum { SEED = 42, POISON = 0xee, MOST_SETS = 64 };

struct row {
    const char *name;
    uint32_t fragments;
    uint32_t length;
    uint32_t shift;  /* of the destination */
    uint32_t stride; /* between fragments in the bounce buffer */
};

static const struct row rows[] = {
    {"1 x 524288", 1, 524288, 0, 524288},       {"2 x 262144", 2, 262144, 0, 266240},
    {"4 x 131072", 4, 131072, 0, 135168},       {"128 x 4096", 128, 4096, 0, 4096},
    {"1024 x 4096", 1024, 4096, 0, 4096},       {"1024 x 4096, to + 1", 1024, 4096, 1, 4096},
    {"2048 x 1448", 2048, 1448, 0, 4096},       {"2048 x 1461", 2048, 1461, 0, 4096},
    {"8 x 524288", 8, 524288, 0, 528384},       {"2 x 2097152", 2, 2097152, 0, 2101248},
    {"256 MiB of 4096", 65536, 4096, 0, 4096},  {"256 MiB of 4096, to + 1", 65536, 4096, 1, 4096},
    {"190 MiB of 1448", 137500, 1448, 0, 4096}, {"190 MiB of 1461", 136300, 1461, 0, 4096},
};

/* What is measured. */
enum way { WAY_MEMCPY, WAY_D2D, WAY_HOST, WAY_KERNEL, WAY_AUTO, WAYS };

static const char *const way_names[WAYS] = {"one copy", "d2d", "host", "kernel", "auto"};

/* A bounce buffer in GPU memory, its descriptors, and a destination. */
struct set {
    struct gpu_memory bounce;
    struct gpu_pinned pinned; /* instead, with --pinned 1 */
    struct gpu_memory destination;
};

struct bench {
    struct gpu *gpu;
    struct gpu_stream *stream;
    struct unpack_engine *engines[WAYS];
    struct gpu_timer timer;
    struct gpu_memory answer;
    struct gpu_pinned answer_host;
    int turns;
    bool warm;
    bool pinned;
    const char *way; /* only these */
    const char *row;
};

/* --- data ---------------------------------------------------------------------------------- */

/* Fragment i of the message lies in place (i * 7919) % fragments of the bounce buffer. */
static uint64_t place(const struct row *row, uint32_t i)
{
    return (uint64_t)i * 7919 % row->fragments * row->stride;
}

static uint64_t message_bytes(const struct row *row)
{
    return (uint64_t)row->fragments * row->length;
}

static uint64_t bounce_bytes(const struct row *row)
{
    return (uint64_t)row->fragments * row->stride;
}

static void fill_bounce(struct bench *bench, const struct row *row, gpu_address bounce)
{
    for (uint32_t i = 0; i < row->fragments; i++)
        must(gpu_fill_pattern(bench->stream, bounce + place(row, i), row->length, SEED,
                              (uint64_t)i * row->length));
    drain(bench->gpu, bench->stream);
}

static void write_descriptors(const struct row *row, struct unpack_descriptor *descriptors)
{
    for (uint32_t i = 0; i < row->fragments; i++)
        descriptors[i] =
            (struct unpack_descriptor){.source_offset = (uint32_t)place(row, i),
                                       .length = row->length,
                                       .destination_offset = (uint64_t)i * row->length};
}

static void verify(struct bench *bench, const struct row *row, gpu_address destination,
                   const char *way)
{
    const struct gpu_verify_result *result = bench->answer_host.host;

    must(gpu_verify_pattern(bench->stream, destination + row->shift, message_bytes(row), SEED, 0,
                            bench->answer.address));
    must(gpu_copy_to_host(bench->stream, bench->answer_host.host, bench->answer.address,
                          sizeof *result));
    drain(bench->gpu, bench->stream);
    if (result->differences == 0)
        return;
    fprintf(stderr, "%s, %s: %llu bytes are wrong, the first at %llu\n", row->name, way,
            (unsigned long long)result->differences, (unsigned long long)result->first);
    exit(1);
}

/* --- measuring ----------------------------------------------------------------------------- */

static void run_once(struct bench *bench, const struct row *row, enum way way,
                     const struct set *set, const struct gpu_pinned *descriptors, uint64_t *ticket)
{
    const struct unpack_list list = {.bounce =
                                         bench->pinned ? set->pinned.device : set->bounce.address,
                                     .bounce_host = set->pinned.host,
                                     .destination = set->destination.address + row->shift,
                                     .descriptors = descriptors->host,
                                     .descriptors_device = descriptors->device,
                                     .count = row->fragments,
                                     .longest = row->length,
                                     .bytes = message_bytes(row)};

    if (way == WAY_MEMCPY) {
        must(bench->pinned
                 ? gpu_copy_to_device(bench->stream, set->destination.address + row->shift,
                                      set->pinned.host, message_bytes(row))
                 : gpu_copy_on_device(bench->stream, set->destination.address + row->shift,
                                      set->bounce.address, message_bytes(row)));
        return;
    }
    must(unpack_submit(bench->engines[way], &list, 1, false, ticket));
}

static double measure(struct bench *bench, const struct row *row, enum way way,
                      const struct set *sets, int set_count, const struct gpu_pinned *descriptors)
{
    struct gpu_stream *stream =
        way == WAY_MEMCPY ? bench->stream : unpack_stream(bench->engines[way]);
    int rounds = bench->turns / set_count + 1;
    double *times = calloc((size_t)rounds * (size_t)set_count, sizeof *times);
    int taken = 0;
    double result;

    /* the first round warms up */
    for (int round = 0; round <= rounds; round++) {
        for (int i = 0; i < set_count; i++)
            must(gpu_set(stream, sets[i].destination.address, POISON, sets[i].destination.bytes));
        drain(bench->gpu, stream);
        for (int i = 0; i < set_count; i++) {
            double seconds;
            uint64_t ticket;

            must(gpu_timer_begin(&bench->timer, stream));
            run_once(bench, row, way, &sets[i], descriptors, &ticket);
            must(gpu_timer_end(&bench->timer, stream));
            drain(bench->gpu, stream);
            seconds = gpu_timer_seconds(&bench->timer);
            if (way != WAY_MEMCPY)
                must(unpack_wait(bench->engines[way], ticket, deadline_after_ms(LIMIT_MS)));
            if (round > 0)
                times[taken++] = seconds;
        }
        for (int i = 0; i < set_count && way != WAY_MEMCPY; i++)
            verify(bench, row, sets[i].destination.address, way_names[way]);
    }
    result = sorted_at(times, taken, 0.5);
    free(times);
    return result;
}

static double measure_empty(struct bench *bench)
{
    double times[200];

    for (int i = 0; i < 200; i++) {
        must(gpu_timer_begin(&bench->timer, bench->stream));
        must(gpu_timer_launch_empty(&bench->timer, bench->stream));
        must(gpu_timer_end(&bench->timer, bench->stream));
        drain(bench->gpu, bench->stream);
        times[i] = gpu_timer_seconds(&bench->timer);
    }
    return sorted_at(times, 200, 0.5);
}

static void measure_row(struct bench *bench, const struct row *row)
{
    uint64_t bytes = message_bytes(row);
    uint64_t per_set = bounce_bytes(row) + bytes + row->shift + 256;
    int set_count = (int)(512 * MIB / per_set) + 1;
    struct set sets[MOST_SETS];
    struct gpu_pinned descriptors;
    double floor = measure_empty(bench);

    if (set_count > MOST_SETS)
        set_count = MOST_SETS;
    if (bench->warm)
        set_count = 1;
    must(gpu_pinned_alloc(bench->gpu, row->fragments * sizeof(struct unpack_descriptor),
                          &descriptors));
    write_descriptors(row, descriptors.host);
    for (int i = 0; i < set_count; i++) {
        sets[i] = (struct set){.pinned = {.bytes = 0}};
        must(bench->pinned
                 ? gpu_pinned_alloc(bench->gpu, bounce_bytes(row), &sets[i].pinned)
                 : gpu_memory_alloc(bench->gpu, bounce_bytes(row), 4096, &sets[i].bounce));
        must(gpu_memory_alloc(bench->gpu, bytes + row->shift + 256, 4096, &sets[i].destination));
        fill_bounce(bench, row, bench->pinned ? sets[i].pinned.device : sets[i].bounce.address);
    }
    printf("%-24s %7.1f", row->name, floor * 1e6);
    for (enum way way = 0; way < WAYS; way++) {
        double seconds;

        /* one copy per fragment of a long list only shows that it should not be done */
        if (((way == WAY_D2D || way == WAY_HOST) && row->fragments > 4096) ||
            strstr(way_names[way], bench->way) == NULL) {
            printf(" | %9s %7s", "-", "-");
            continue;
        }
        seconds = measure(bench, row, way, sets, set_count, &descriptors);
        printf(" | %9.1f %7.1f", seconds * 1e6, (double)bytes / seconds * 1e-9);
        fflush(stdout);
        if (way == WAY_KERNEL)
            printf(" (+%.1f)", (seconds - floor) * 1e6);
    }
    printf("\n");
    for (int i = 0; i < set_count; i++) {
        gpu_memory_free(bench->gpu, &sets[i].bounce);
        gpu_pinned_free(bench->gpu, &sets[i].pinned);
        gpu_memory_free(bench->gpu, &sets[i].destination);
    }
    gpu_pinned_free(bench->gpu, &descriptors);
}

static int usage(void)
{
    fprintf(stderr, "usage: unpack [--turns N] [--row TEXT] [--way TEXT] [--warm 0|1] "
                    "[--pinned 0|1]\n");
    return 2;
}

static bool take_option(struct bench *bench, const char *name, const char *value)
{
    uint64_t number = 0;
    bool is_number = parse_number(value, &number);

    if (strcmp(name, "--turns") == 0 && is_number && number > 0 && number < 1000000)
        bench->turns = (int)number;
    else if (strcmp(name, "--warm") == 0 && is_number && number <= 1)
        bench->warm = number == 1;
    else if (strcmp(name, "--pinned") == 0 && is_number && number <= 1)
        bench->pinned = number == 1;
    else if (strcmp(name, "--row") == 0)
        bench->row = value;
    else if (strcmp(name, "--way") == 0)
        bench->way = value;
    else
        return false;
    return true;
}

int main(int argument_count, char **arguments)
{
    struct bench bench = {.turns = 100, .way = "", .row = ""};
    struct tcpx_gpu_properties properties;

    if (argument_count % 2 == 0)
        return usage();
    for (int i = 1; i < argument_count; i += 2)
        if (!take_option(&bench, arguments[i], arguments[i + 1]))
            return usage();
    must(gpu_open(0, &bench.gpu));
    must(gpu_properties(0, &properties));
    must(gpu_stream_create(bench.gpu, &bench.stream));
    if (!gpu_timer_open(&bench.timer, bench.gpu)) {
        fprintf(stderr, "the CUDA driver has no timed events or no empty kernel\n");
        return 1;
    }
    must(gpu_memory_alloc(bench.gpu, 4096, 4096, &bench.answer));
    must(gpu_pinned_alloc(bench.gpu, 4096, &bench.answer_host));
    must(unpack_create_as(bench.gpu, UNPACK_D2D, &bench.engines[WAY_D2D]));
    must(unpack_create_as(bench.gpu, UNPACK_HOST, &bench.engines[WAY_HOST]));
    must(unpack_create_as(bench.gpu, UNPACK_KERNEL, &bench.engines[WAY_KERNEL]));
    must(unpack_create_as(bench.gpu, UNPACK_AUTO, &bench.engines[WAY_AUTO]));

    printf("# %s; microseconds, and GB/s (10^9) of bytes delivered; every byte verified\n",
           properties.name);
    printf("%-24s %7s", "fragments", "empty");
    for (enum way way = 0; way < WAYS; way++)
        printf(" | %9s %7s%s", way_names[way], "GB/s", way == WAY_KERNEL ? "       " : "");
    printf("\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strstr(rows[i].name, bench.row) != NULL)
            measure_row(&bench, &rows[i]);

    for (enum way way = WAY_D2D; way < WAYS; way++)
        unpack_destroy(bench.engines[way]);
    gpu_pinned_free(bench.gpu, &bench.answer_host);
    gpu_memory_free(bench.gpu, &bench.answer);
    gpu_stream_destroy(bench.stream);
    gpu_close(bench.gpu);
    return 0;
}
