/*
 * Fuzzes what the two ends of a measurement believe of each other: an input is a byte that says
 * which message follows, and its bytes. What is accepted and written again is accepted again, and
 * the same; and it is within its bounds. A broken promise ends the program.
 */
#include "tests/fuzz/fuzz.h"

#include "tools/perf_talk.c" /* NOLINT(bugprone-suspicious-include) */

static void promise_name(const char name[64])
{
    size_t length = strnlen(name, 64);

    PROMISE(length < 64);
    for (size_t i = 0; i < length; i++)
        PROMISE(name[i] >= 0x20 && name[i] <= 0x7e);
}

static void promise_self(const struct perf_self *self)
{
    promise_name(self->host);
    promise_name(self->memory);
}

static void try_plan(const uint8_t *bytes, size_t size)
{
    uint8_t again[PERF_PLAN_BYTES];
    struct perf_plan plan;
    struct perf_plan second;
    struct perf_self self;

    if (perf_plan_decode(bytes, size, &plan, &self) != TCPX_SUCCESS)
        return;
    promise_self(&self);
    PROMISE(plan.size_count >= 1 && plan.size_count <= PERF_MOST_SIZES);
    PROMISE(plan.check <= PERF_CHECK_NONE && plan.time_ms <= PERF_MOST_MS);
    PROMISE(plan.way <= PERF_PING_PONG && plan.operation <= PERF_WRITES);
    PROMISE((uint64_t)plan.accesses * plan.pieces <= PERF_MOST_PIECES);
    PROMISE((plan.accesses == 0) == (plan.operation == PERF_SENDS));
    for (unsigned i = 0; i < plan.size_count; i++)
        PROMISE(plan.sizes[i] >= 1 && plan.sizes[i] <= PERF_MOST_BYTES);
    perf_plan_encode(&plan, &self, again);
    PROMISE(perf_plan_decode(again, sizeof again, &second, &self) == TCPX_SUCCESS);
    PROMISE(second.iterations == plan.iterations && second.chunk_bytes == plan.chunk_bytes);
    PROMISE(second.operation == plan.operation && second.accesses == plan.accesses);
}

static void try_meet(const uint8_t *bytes, size_t size)
{
    struct perf_self self;
    uint16_t port;

    if (perf_meet_decode(bytes, size, &port, &self) != TCPX_SUCCESS)
        return;
    promise_self(&self);
    PROMISE(port != 0);
}

static void try_row(const uint8_t *bytes, size_t size)
{
    uint8_t again[PERF_ROW_BYTES];
    struct perf_row row;

    if (perf_row_decode(bytes, size, &row) != TCPX_SUCCESS)
        return;
    PROMISE(row.median_us >= 0 && row.stages[PERF_COPY_IN] >= 0);
    perf_row_encode(&row, again);
    PROMISE(memcmp(again, bytes, sizeof again) == 0);
}

static void try_path(const uint8_t *bytes, size_t size)
{
    struct perf_path path;

    if (perf_path_decode(bytes, size, &path) != TCPX_SUCCESS)
        return;
    PROMISE(strnlen(path.text, sizeof path.text) < sizeof path.text);
    PROMISE(strnlen(path.unpack, sizeof path.unpack) < sizeof path.unpack);
    for (const char *at = path.text; *at != '\0'; at++)
        PROMISE(*at >= 0x20 && *at <= 0x7e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const tries[])(const uint8_t *, size_t) = {try_plan, try_meet, try_row, try_path};
    uint8_t *bytes;

    if (size == 0)
        return 0;
    bytes = exact(data + 1, size - 1, size - 1);
    tries[data[0] % 4](bytes, size - 1);
    free(bytes);
    return 0;
}
