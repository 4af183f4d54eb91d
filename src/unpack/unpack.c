/*
 * The engine: which way a list takes, and the simplest of them, d2d: a copy for each run. From
 * pinned memory that is a DMA copy over the bus.
 */
#include "unpack/unpack.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "unpack/unpack_host.h"
#include "unpack/unpack_kernel.h"

#include <errno.h>
#include <stdlib.h>

_Static_assert((int)UNPACK_KERNEL == (int)CONFIG_UNPACK_KERNEL, "the words of the variable");

int unpack_create(struct gpu *gpu, struct unpack_engine **engine)
{
    const struct config *config;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    return unpack_create_as(gpu, (enum unpack_impl)config->unpack_impl, engine);
}

int unpack_create_as(struct gpu *gpu, enum unpack_impl impl, struct unpack_engine **out)
{
    struct unpack_engine *engine = calloc(1, sizeof *engine);
    int result;

    if (engine == NULL)
        return error_system(ENOMEM, "an unpack engine");
    engine->gpu = gpu;
    engine->impl = impl;
    result = gpu_stream_create(gpu, &engine->stream);
    for (int i = 0; i < UNPACK_MARKS && result == TCPX_SUCCESS; i++)
        result = gpu_event_create(gpu, &engine->mark[i].event);
    if (result == TCPX_SUCCESS && impl == UNPACK_HOST)
        result = unpack_host_prepare(engine);
    if (result != TCPX_SUCCESS) {
        unpack_destroy(engine);
        return result;
    }
    *out = engine;
    return TCPX_SUCCESS;
}

void unpack_destroy(struct unpack_engine *engine)
{
    if (engine == NULL)
        return;
    /* Copies may still be reading or writing the staging memory. */
    if (engine->staging.bytes != 0 && engine->completed < engine->submitted &&
        unpack_wait(engine, engine->submitted, deadline_after_ms(60000)) != TCPX_SUCCESS)
        log_warn("unpack work was not done when its engine was closed: %s", error_text());
    for (int i = 0; i < UNPACK_MARKS; i++)
        gpu_event_destroy(engine->mark[i].event);
    gpu_stream_destroy(engine->stream);
    gpu_pinned_free(engine->gpu, &engine->staging);
    free(engine);
}

struct gpu_stream *unpack_stream(struct unpack_engine *engine)
{
    return engine->stream;
}

/* A list without `longest` is read once more. */
static struct unpack_work survey_lists(const struct unpack_list *lists, uint32_t list_count)
{
    struct unpack_work work = {.lists = lists, .list_count = list_count};

    for (uint32_t i = 0; i < list_count; i++) {
        const struct unpack_descriptor *descriptors = lists[i].descriptors;
        uint32_t longest = lists[i].longest;
        uint64_t bytes = lists[i].bytes;

        if (longest == 0) {
            bytes = 0;
            for (uint32_t k = 0; k < lists[i].count; k++) {
                bytes += descriptors[k].length;
                if (descriptors[k].length > longest)
                    longest = descriptors[k].length;
            }
        }
        work.bytes += bytes;
        if (longest > work.longest)
            work.longest = longest;
    }
    return work;
}

/*
 * Copies where there is one run, and where there are few and large ones: each costs its own call,
 * but runs at the full speed of the copy engine. How large depends on what a kernel loses against
 * that engine: little on the GPU, more over the bus. docs/performance.md has the measurements.
 */
static enum unpack_impl choose_way(const struct unpack_work *work)
{
    enum { FEW = 8, LARGE_ON_GPU = 128 << 20, LARGE_OVER_BUS = 2 << 20 };
    bool over_bus = work->list_count > 0 && work->lists[0].bounce_host != NULL;
    uint32_t runs = 0;

    for (uint32_t i = 0; i < work->list_count; i++) {
        struct unpack_run run;

        for (uint32_t cursor = 0; unpack_next_run(&work->lists[i], &cursor, &run); runs++)
            if (runs == FEW)
                return UNPACK_KERNEL;
    }
    if (runs <= 1 || work->bytes / runs >= (over_bus ? LARGE_OVER_BUS : LARGE_ON_GPU))
        return UNPACK_D2D;
    return UNPACK_KERNEL;
}

static int copy_run(struct unpack_engine *engine, const struct unpack_list *list,
                    const struct unpack_run *run)
{
    gpu_address to = list->destination + run->destination_offset;

    if (list->bounce_host != NULL)
        return gpu_copy_to_device(engine->stream, to,
                                  (const char *)list->bounce_host + run->source_offset, run->bytes);
    return gpu_copy_on_device(engine->stream, to, list->bounce + run->source_offset, run->bytes);
}

static int unpack_by_d2d(struct unpack_engine *engine, const struct unpack_work *work)
{
    int result = TCPX_SUCCESS;

    for (uint32_t i = 0; i < work->list_count; i++) {
        const struct unpack_list *list = &work->lists[i];
        struct unpack_run run;

        for (uint32_t cursor = 0; result == TCPX_SUCCESS && unpack_next_run(list, &cursor, &run);)
            result = copy_run(engine, list, &run);
    }
    return result;
}

static const struct {
    const char *name;
    int (*submit)(struct unpack_engine *engine, const struct unpack_work *work);
} ways[] = {
    [UNPACK_AUTO] = {.name = "auto"},
    [UNPACK_D2D] = {"d2d", unpack_by_d2d},
    [UNPACK_HOST] = {"host", unpack_by_host},
    [UNPACK_KERNEL] = {"kernel", unpack_by_kernel},
};

const char *unpack_impl_name(enum unpack_impl impl)
{
    return ways[impl].name;
}

static int make_room(struct unpack_engine *engine)
{
    bool done = true;
    int result = TCPX_SUCCESS;

    if (engine->submitted - engine->completed >= UNPACK_PENDING)
        result = unpack_poll(engine, engine->completed + 1, &done);
    if (result == TCPX_SUCCESS && !done)
        return error_set(TCPX_IN_PROGRESS, "%d unpacks are pending", UNPACK_PENDING);
    return result;
}

int unpack_submit(struct unpack_engine *engine, const struct unpack_list *lists,
                  uint32_t list_count, bool written_by_nic, uint64_t *ticket)
{
    const struct unpack_work work = survey_lists(lists, list_count);
    enum unpack_impl impl = engine->impl != UNPACK_AUTO ? engine->impl : choose_way(&work);
    int result = make_room(engine);

    if (result == TCPX_SUCCESS && written_by_nic)
        result = gpu_flush_inbound_writes(engine->gpu);
    if (result == TCPX_SUCCESS)
        result = ways[impl].submit(engine, &work);
    if (result != TCPX_SUCCESS)
        return result;
    engine->lists += list_count;
    engine->by_way[impl]++;
    if (engine->impl == UNPACK_AUTO)
        log_debug("auto: %u receive(s), %llu bytes, unpacked by %s", list_count,
                  (unsigned long long)work.bytes, ways[impl].name);
    *ticket = ++engine->submitted;
    return TCPX_SUCCESS;
}
