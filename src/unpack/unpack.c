/* The engine: which way a list takes, and what it has carried. */
#include "unpack/unpack.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "unpack/unpack_engine.h"

#include <errno.h>
#include <stdlib.h>

_Static_assert((int)UNPACK_KERNEL == (int)CONFIG_UNPACK_KERNEL, "the words of the variable");

const char *unpack_impl_name(enum unpack_impl impl)
{
    static const char *const names[] = {
        [UNPACK_AUTO] = "auto",
        [UNPACK_D2D] = "d2d",
        [UNPACK_HOST] = "host",
        [UNPACK_KERNEL] = "kernel",
    };

    return names[impl];
}

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
        log_warn("unpacks were not done when their engine was closed: %s", error_text());
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

void unpack_get_statistics(const struct unpack_engine *engine, struct unpack_statistics *statistics)
{
    *statistics = engine->statistics;
}

bool unpack_next_run(const struct unpack_list *list, uint32_t *cursor, struct unpack_run *run)
{
    const struct unpack_descriptor *descriptors = list->descriptors;
    uint32_t i = *cursor;

    while (i < list->count && descriptors[i].length == 0)
        i++;
    if (i == list->count)
        return false;
    *run = (struct unpack_run){.source_offset = descriptors[i].source_offset,
                               .destination_offset = descriptors[i].destination_offset,
                               .bytes = descriptors[i].length};
    for (i++; i < list->count; i++) {
        if (descriptors[i].source_offset != run->source_offset + run->bytes ||
            descriptors[i].destination_offset != run->destination_offset + run->bytes)
            break;
        run->bytes += descriptors[i].length;
    }
    *cursor = i;
    return true;
}

/* A list that does not say what is in it is read once more than those that do. */
static struct unpack_work survey(const struct unpack_list *lists, uint32_t list_count)
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
        work.descriptors += lists[i].count;
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
static enum unpack_impl choose(const struct unpack_work *work)
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

static void count(struct unpack_statistics *statistics, const struct unpack_work *work,
                  enum unpack_impl impl)
{
    statistics->submits++;
    statistics->lists += work->list_count;
    statistics->descriptors += work->descriptors;
    statistics->bytes += work->bytes;
    statistics->by_d2d += impl == UNPACK_D2D;
    statistics->by_host += impl == UNPACK_HOST;
    statistics->by_kernel += impl == UNPACK_KERNEL;
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
    const struct unpack_work work = survey(lists, list_count);
    enum unpack_impl impl = engine->impl != UNPACK_AUTO ? engine->impl : choose(&work);
    int result = make_room(engine);

    if (result == TCPX_SUCCESS && written_by_nic)
        result = gpu_flush_inbound_writes(engine->gpu);
    if (result == TCPX_SUCCESS)
        result = impl == UNPACK_D2D    ? unpack_by_d2d(engine, &work)
                 : impl == UNPACK_HOST ? unpack_by_host(engine, &work)
                                       : unpack_by_kernel(engine, &work);
    if (result != TCPX_SUCCESS)
        return result;
    count(&engine->statistics, &work, impl);
    *ticket = ++engine->submitted;
    return TCPX_SUCCESS;
}
