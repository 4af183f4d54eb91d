/* The d2d way: a copy for each run. From pinned memory that is a DMA copy over the bus. */
#include "unpack/unpack_engine.h"

static int copy_run(struct unpack_engine *engine, const struct unpack_list *list,
                    const struct unpack_run *run)
{
    gpu_address to = list->destination + run->destination_offset;

    engine->statistics.copies++;
    if (list->bounce_host != NULL)
        return gpu_copy_to_device(engine->stream, to,
                                  (const char *)list->bounce_host + run->source_offset, run->bytes);
    return gpu_copy_on_device(engine->stream, to, list->bounce + run->source_offset, run->bytes);
}

int unpack_by_d2d(struct unpack_engine *engine, const struct unpack_work *work)
{
    for (uint32_t i = 0; i < work->list_count; i++) {
        const struct unpack_list *list = &work->lists[i];
        struct unpack_run run;

        for (uint32_t cursor = 0; unpack_next_run(list, &cursor, &run);) {
            int result = copy_run(engine, list, &run);

            if (result != TCPX_SUCCESS)
                return result;
        }
    }
    return TCPX_SUCCESS;
}
