/*
 * The host way: runs are gathered in pinned memory in the order of their destination, and go to the
 * GPU in one copy as long as that has no gaps. The CPU gathers where it can read the bounce buffer,
 * copies to the host do where that is GPU memory. It trusts neither kernel nor device copies, which
 * is what it is for.
 */
#include "unpack/unpack_host.h"

#include "base/clock.h"

#include <string.h>

enum { STAGING_BYTES = 8 << 20, STAGING_WAIT_MS = 60000 };

/* What lies in the staging memory from `start` on and goes to `to` in one piece. */
struct gathered {
    uint64_t start;
    uint64_t bytes;
    gpu_address to;
};

static int flush_gathered(struct unpack_engine *engine, struct gathered *gathered)
{
    uint64_t bytes = gathered->bytes;

    if (bytes == 0)
        return TCPX_SUCCESS;
    gathered->bytes = 0;
    return gpu_copy_to_device(engine->stream, gathered->to,
                              (char *)engine->staging.host + gathered->start, bytes);
}

/* Waits until all that was queued has left the staging memory. */
static int empty_staging(struct unpack_engine *engine, struct gathered *gathered)
{
    struct gpu_event *left;
    int result = flush_gathered(engine, gathered);

    if (result == TCPX_SUCCESS)
        result = gpu_event_create(engine->gpu, &left);
    if (result != TCPX_SUCCESS)
        return result;
    result = gpu_event_record(left, engine->stream);
    if (result == TCPX_SUCCESS)
        result = gpu_event_wait(left, deadline_after_ms(STAGING_WAIT_MS));
    gpu_event_destroy(left);
    if (result == TCPX_SUCCESS)
        engine->staging_used = 0;
    return result;
}

static int gather_run(struct unpack_engine *engine, const struct unpack_list *list,
                      const struct unpack_run *run)
{
    char *to = (char *)engine->staging.host + engine->staging_used;

    if (list->bounce_host != NULL) {
        memcpy(to, (const char *)list->bounce_host + run->source_offset, run->bytes);
        return TCPX_SUCCESS;
    }
    return gpu_copy_to_host(engine->stream, to, list->bounce + run->source_offset, run->bytes);
}

/* One run, in as many parts as the staging memory makes necessary. */
static int take_run(struct unpack_engine *engine, const struct unpack_list *list,
                    struct unpack_run run, struct gathered *gathered)
{
    while (run.bytes > 0) {
        gpu_address to = list->destination + run.destination_offset;
        struct unpack_run part = run;
        int result = TCPX_SUCCESS;

        if (engine->staging_used == STAGING_BYTES)
            result = empty_staging(engine, gathered);
        if (result == TCPX_SUCCESS && gathered->to + gathered->bytes != to)
            result = flush_gathered(engine, gathered);
        if (part.bytes > STAGING_BYTES - engine->staging_used)
            part.bytes = STAGING_BYTES - engine->staging_used;
        if (result == TCPX_SUCCESS)
            result = gather_run(engine, list, &part);
        if (result != TCPX_SUCCESS)
            return result;
        if (gathered->bytes == 0) {
            gathered->start = engine->staging_used;
            gathered->to = to;
        }
        gathered->bytes += part.bytes;
        engine->staging_used += part.bytes;
        run.source_offset += part.bytes;
        run.destination_offset += part.bytes;
        run.bytes -= part.bytes;
    }
    return TCPX_SUCCESS;
}

int unpack_host_prepare(struct unpack_engine *engine)
{
    return gpu_pinned_alloc(engine->gpu, STAGING_BYTES, &engine->staging);
}

int unpack_by_host(struct unpack_engine *engine, const struct unpack_work *work)
{
    struct gathered gathered = {0};
    bool idle = true;
    int result = TCPX_SUCCESS;

    if (engine->submitted > engine->completed)
        result = unpack_poll(engine, engine->submitted, &idle);
    if (result == TCPX_SUCCESS && idle)
        engine->staging_used = 0;
    for (uint32_t i = 0; i < work->list_count; i++) {
        const struct unpack_list *list = &work->lists[i];
        struct unpack_run run;

        for (uint32_t cursor = 0; result == TCPX_SUCCESS && unpack_next_run(list, &cursor, &run);)
            result = take_run(engine, list, run, &gathered);
    }
    if (result == TCPX_SUCCESS)
        result = flush_gathered(engine, &gathered);
    return result;
}
