/*
 * Each way of unpacking, tried out: a message of random fragments, compared byte by byte with what
 * memcpy() makes of the same list, and with nothing changed around it; then one of whole pages,
 * timed. The bounce buffer is pinned host memory, where plain TCP leaves its bytes.
 */
#include "base/clock.h"
#include "gpu/gpu.h"
#include "tools/doctor.h"
#include "unpack/unpack.h"

#include <stdlib.h>
#include <string.h>

enum {
    PAGE = 4096,
    PAGES = 1024,
    POOL = PAGES * PAGE,
    MARGIN = 64,
    POISON = 0xdb,
    TARGET = POOL + 2 * MARGIN,
    TURNS = 5,
    PATIENCE_MS = 10000
};

struct bench {
    struct gpu *gpu;
    struct gpu_stream *stream;
    struct gpu_event *event;
    struct gpu_pinned pool;
    struct gpu_pinned descriptors;
    struct gpu_pinned arrived;
    struct gpu_memory target;
    uint8_t *expected;
    uint64_t random;
    uint32_t pages[PAGES]; /* in the order in which they are used */
    uint64_t bytes;        /* of the message that the descriptors make */
};

static uint32_t bench_random_below(struct bench *bench, uint32_t limit)
{
    bench->random ^= bench->random << 13;
    bench->random ^= bench->random >> 7;
    bench->random ^= bench->random << 17;
    return (uint32_t)(bench->random >> 16) % limit;
}

static int open_bench(struct bench *bench, int gpu)
{
    int result = gpu_open(gpu, &bench->gpu);

    if (result == TCPX_SUCCESS)
        result = gpu_stream_create(bench->gpu, &bench->stream);
    if (result == TCPX_SUCCESS)
        result = gpu_event_create(bench->gpu, &bench->event);
    if (result == TCPX_SUCCESS)
        result = gpu_pinned_alloc(bench->gpu, POOL, &bench->pool);
    if (result == TCPX_SUCCESS)
        result = gpu_pinned_alloc(bench->gpu, PAGES * sizeof(struct unpack_descriptor),
                                  &bench->descriptors);
    if (result == TCPX_SUCCESS)
        result = gpu_pinned_alloc(bench->gpu, TARGET, &bench->arrived);
    if (result == TCPX_SUCCESS)
        result = gpu_memory_alloc(bench->gpu, TARGET, PAGE, &bench->target);
    if (result != TCPX_SUCCESS)
        return result;
    bench->expected = malloc(TARGET);
    if (bench->expected == NULL)
        return error_set(TCPX_SYSTEM_ERROR, "there is no memory to compare with");
    for (size_t i = 0; i < POOL / sizeof(uint32_t); i++)
        ((uint32_t *)bench->pool.host)[i] = bench_random_below(bench, UINT32_MAX);
    return TCPX_SUCCESS;
}

static void close_bench(struct bench *bench)
{
    free(bench->expected);
    gpu_memory_free(bench->gpu, &bench->target);
    gpu_pinned_free(bench->gpu, &bench->arrived);
    gpu_pinned_free(bench->gpu, &bench->descriptors);
    gpu_pinned_free(bench->gpu, &bench->pool);
    gpu_event_destroy(bench->event);
    gpu_stream_destroy(bench->stream);
    gpu_close(bench->gpu);
}

/* PAGES of something, of `size` bytes each. */
static void shuffle(struct bench *bench, void *all, size_t size)
{
    for (uint32_t i = PAGES - 1; i > 0; i--) {
        uint8_t *one = (uint8_t *)all + i * size;
        uint8_t *other = (uint8_t *)all + bench_random_below(bench, i + 1) * size;
        uint8_t kept[sizeof(struct unpack_descriptor)];

        memcpy(kept, one, size);
        memmove(one, other, size);
        memcpy(other, kept, size);
    }
}

/* A fragment from each page: all of it, or any part. */
static void make_message(struct bench *bench, bool whole_pages)
{
    struct unpack_descriptor *descriptors = bench->descriptors.host;

    for (uint32_t i = 0; i < PAGES; i++)
        bench->pages[i] = i;
    shuffle(bench, bench->pages, sizeof *bench->pages);
    bench->bytes = 0;
    memset(bench->expected, POISON, TARGET);
    for (uint32_t i = 0; i < PAGES; i++) {
        uint32_t start = whole_pages ? 0 : bench_random_below(bench, PAGE);
        uint32_t length = whole_pages ? PAGE : 1 + bench_random_below(bench, PAGE - start);
        uint32_t from = bench->pages[i] * PAGE + start;

        descriptors[i] = (struct unpack_descriptor){
            .source_offset = from, .length = length, .destination_offset = bench->bytes};
        memcpy(bench->expected + MARGIN + bench->bytes, (char *)bench->pool.host + from, length);
        bench->bytes += length;
    }
    /* In any order: a fragment that reaches too far then spoils one that was there before it. */
    if (!whole_pages)
        shuffle(bench, descriptors, sizeof *descriptors);
}

static int bench_drain(struct bench *bench)
{
    int result = gpu_event_record(bench->event, bench->stream);

    if (result != TCPX_SUCCESS)
        return result;
    result = gpu_event_wait(bench->event, deadline_after_ms(PATIENCE_MS));
    return result == TCPX_IN_PROGRESS
               ? error_set(TCPX_SYSTEM_ERROR, "the GPU did not finish a copy in time")
               : result;
}

static int unpack_once(struct bench *bench, struct unpack_engine *engine, double *seconds)
{
    const struct unpack_list list = {.bounce = bench->pool.device,
                                     .bounce_host = bench->pool.host,
                                     .destination = bench->target.address + MARGIN,
                                     .descriptors = bench->descriptors.host,
                                     .descriptors_device = bench->descriptors.device,
                                     .count = PAGES};
    uint64_t begun = clock_now();
    uint64_t ticket;
    int result = unpack_submit(engine, &list, 1, false, &ticket);

    if (result != TCPX_SUCCESS)
        return result;
    result = unpack_wait(engine, ticket, deadline_after_ms(PATIENCE_MS));
    *seconds = (double)(clock_now() - begun) * 1e-9;
    return result == TCPX_IN_PROGRESS
               ? error_set(TCPX_SYSTEM_ERROR, "the GPU did not finish unpacking in time")
               : result;
}

static int bench_compare(struct bench *bench)
{
    const uint8_t *arrived = bench->arrived.host;
    size_t wrong = 0;
    size_t first = 0;
    int result =
        gpu_copy_to_host(bench->stream, bench->arrived.host, bench->target.address, TARGET);

    if (result == TCPX_SUCCESS)
        result = bench_drain(bench);
    if (result != TCPX_SUCCESS)
        return result;
    if (memcmp(arrived, bench->expected, TARGET) == 0)
        return TCPX_SUCCESS;
    for (size_t i = 0; i < TARGET; i++)
        if (arrived[i] != bench->expected[i] && wrong++ == 0)
            first = i;
    return error_set(TCPX_INTERNAL_ERROR, "%zu bytes of %llu are wrong, the first is number %zd",
                     wrong, (unsigned long long)bench->bytes, (ssize_t)first - MARGIN);
}

/* Unpacks into memory that holds nothing of it, and looks at every byte. */
static int bench_verify(struct bench *bench, struct unpack_engine *engine, double *seconds)
{
    int result = gpu_set(bench->stream, bench->target.address, POISON, TARGET);

    if (result == TCPX_SUCCESS)
        result = bench_drain(bench);
    if (result == TCPX_SUCCESS)
        result = unpack_once(bench, engine, seconds);
    return result == TCPX_SUCCESS ? bench_compare(bench) : result;
}

static int try_engine(struct bench *bench, enum unpack_impl impl, double *rate)
{
    struct unpack_engine *engine;
    double least = 1e9;
    double seconds;
    int result = unpack_create_as(bench->gpu, impl, &engine);

    if (result != TCPX_SUCCESS)
        return result;
    make_message(bench, false);
    result = bench_verify(bench, engine, &seconds);
    make_message(bench, true);
    for (int i = 0; i < TURNS && result == TCPX_SUCCESS; i++) {
        result = bench_verify(bench, engine, &seconds);
        if (seconds < least)
            least = seconds;
    }
    unpack_destroy(engine);
    if (result == TCPX_SUCCESS)
        *rate = (double)bench->bytes / least * 1e-9;
    return result;
}

void doctor_check_unpack(struct doctor *doctor, int gpu)
{
    struct bench bench = {.random = 20261115};
    char name[48];
    double rate;

    if (open_bench(&bench, gpu) != TCPX_SUCCESS) {
        snprintf(name, sizeof name, "GPU %d memory", gpu);
        doctor_find(doctor, DOCTOR_PROBLEM, name, "%s", error_text());
        doctor_advise(doctor, "see who else has memory of it: 'nvidia-smi', 'free'");
        close_bench(&bench);
        return;
    }
    for (enum unpack_impl impl = UNPACK_D2D; impl <= UNPACK_KERNEL; impl++) {
        snprintf(name, sizeof name, "GPU %d unpack %s", gpu, unpack_impl_name(impl));
        if (try_engine(&bench, impl, &rate) == TCPX_SUCCESS) {
            doctor_find(doctor, DOCTOR_OK, name, "right, %.1f GB/s", rate);
            continue;
        }
        doctor_find(doctor, DOCTOR_PROBLEM, name, "%s", error_text());
        doctor_advise(doctor, "name another way in UCCL_TCPX_UNPACK_IMPL, and update the driver");
    }
    close_bench(&bench);
}
