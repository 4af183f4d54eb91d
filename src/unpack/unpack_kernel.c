/*
 * The kernel way. A few runs travel with the launch, so that the GPU need not read descriptors over
 * the bus at all, and long ones are shared by many warps. Many fragments are read from their
 * descriptors in place, one warp for each; the long ones among them go the first way.
 */
#include "unpack/unpack_kernel.h"

/* From here on a fragment is worth more than one warp. */
enum { LONG_FRAGMENT = 16384 };

/* Runs that are collected for one launch. */
struct collected {
    struct gpu_run runs[GPU_COPY_RUNS];
    uint32_t count;
};

static int launch_collected(struct unpack_engine *engine, struct collected *collected)
{
    uint32_t count = collected->count;

    if (count == 0)
        return TCPX_SUCCESS;
    collected->count = 0;
    return gpu_copy_runs(engine->stream, collected->runs, count);
}

static void collect_run(struct collected *collected, const struct unpack_list *list,
                        const struct unpack_run *run)
{
    collected->runs[collected->count++] =
        (struct gpu_run){.from = list->bounce + run->source_offset,
                         .to = list->destination + run->destination_offset,
                         .bytes = run->bytes};
}

/* All runs of all lists; false if they are too many for one launch. */
static bool collect_all(struct collected *collected, const struct unpack_list *lists,
                        uint32_t list_count)
{
    for (uint32_t i = 0; i < list_count; i++) {
        struct unpack_run run;

        for (uint32_t cursor = 0; unpack_next_run(&lists[i], &cursor, &run);) {
            if (collected->count == GPU_COPY_RUNS)
                return false;
            collect_run(collected, &lists[i], &run);
        }
    }
    return true;
}

static int launch_long(struct unpack_engine *engine, struct collected *collected,
                       const struct unpack_list *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const struct unpack_descriptor *descriptor = &list->descriptors[i];
        const struct unpack_run run = {.source_offset = descriptor->source_offset,
                                       .destination_offset = descriptor->destination_offset,
                                       .bytes = descriptor->length};

        if (run.bytes <= LONG_FRAGMENT)
            continue;
        if (collected->count == GPU_COPY_RUNS) {
            int result = launch_collected(engine, collected);

            if (result != TCPX_SUCCESS)
                return result;
        }
        collect_run(collected, list, &run);
    }
    return TCPX_SUCCESS;
}

static int launch_in_place(struct unpack_engine *engine, const struct unpack_work *work)
{
    struct gpu_unpack_list for_gpu[GPU_UNPACK_LISTS];
    uint32_t count = 0;
    int result = TCPX_SUCCESS;

    for (uint32_t i = 0; i < work->list_count && result == TCPX_SUCCESS; i++) {
        const struct unpack_list *list = &work->lists[i];

        for_gpu[count++] = (struct gpu_unpack_list){.bounce = list->bounce,
                                                    .destination = list->destination,
                                                    .descriptors = list->descriptors_device,
                                                    .count = list->count};
        if (count < GPU_UNPACK_LISTS && i + 1 < work->list_count)
            continue;
        result = gpu_unpack(engine->stream, for_gpu, count, LONG_FRAGMENT);
        count = 0;
    }
    return result;
}

int unpack_by_kernel(struct unpack_engine *engine, const struct unpack_work *work)
{
    struct collected collected;
    int result;

    collected.count = 0;
    if (collect_all(&collected, work->lists, work->list_count))
        return launch_collected(engine, &collected);
    collected.count = 0;
    result = launch_in_place(engine, work);
    if (work->longest <= LONG_FRAGMENT)
        return result;
    for (uint32_t i = 0; i < work->list_count && result == TCPX_SUCCESS; i++)
        result = launch_long(engine, &collected, &work->lists[i]);
    return result == TCPX_SUCCESS ? launch_collected(engine, &collected) : result;
}
