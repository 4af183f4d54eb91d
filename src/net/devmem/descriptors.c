/*
 * The descriptor builder: check each fragment, and that they tile the message; count; and only then
 * write. All sums are 64-bit; the one place that narrows to 32 bits comes after the checks have
 * shown that every value fits.
 */
#include "net/devmem/descriptors.h"

#include <inttypes.h>

#include "base/checked.h"

/* `end`: of the fragment before it in the message. */
static int descriptors_check_fragment(const struct scatter_sizes *sizes,
                                      const struct scatter_fragment *fragment, uint64_t end)
{
    bool device = fragment->source == SCATTER_POOL;
    uint64_t size = device ? sizes->pool : sizes->host;

    if (fragment->length == 0)
        return error_set(TCPX_INTERNAL_ERROR, "empty fragment at destination offset %" PRIu64,
                         fragment->destination_offset);
    if (!range_inside(fragment->source_offset, fragment->length, size))
        return error_set(TCPX_SYSTEM_ERROR,
                         "fragment at %" PRIu64 " length %" PRIu64 " in a %s of %" PRIu64 " bytes",
                         fragment->source_offset, fragment->length, device ? "pool" : "host buffer",
                         size);
    if (!range_inside(fragment->destination_offset, fragment->length, sizes->message))
        return error_set(TCPX_INTERNAL_ERROR,
                         "fragment for %" PRIu64 " length %" PRIu64 " in a message of %" PRIu64
                         " bytes",
                         fragment->destination_offset, fragment->length, sizes->message);
    if (fragment->destination_offset < end)
        return error_set(TCPX_INTERNAL_ERROR,
                         "fragment for %" PRIu64 " begins before %" PRIu64
                         ", the end of the one before it",
                         fragment->destination_offset, end);
    if (fragment->destination_offset > end)
        return error_set(TCPX_INTERNAL_ERROR, "no fragment for bytes %" PRIu64 " to %" PRIu64, end,
                         fragment->destination_offset - 1);
    if (device && (sizes->source_at > UINT32_MAX - fragment->source_offset ||
                   fragment->source_offset > UINT32_MAX || fragment->length > UINT32_MAX))
        return error_set(TCPX_INVALID_USAGE,
                         "source offset %" PRIu64 " length %" PRIu64 " do not fit in 32 bits each",
                         sizes->source_at + fragment->source_offset, fragment->length);
    return TCPX_SUCCESS;
}

static int descriptors_check_list(const struct scatter_list *scatter,
                                  const struct scatter_sizes *sizes)
{
    uint64_t end = 0;

    for (uint32_t i = 0; i < scatter->count; i++) {
        int result = descriptors_check_fragment(sizes, &scatter->fragments[i], end);

        if (result != TCPX_SUCCESS)
            return result;
        end += scatter->fragments[i].length;
    }
    if (end < sizes->message)
        return error_set(TCPX_INTERNAL_ERROR, "no fragment for bytes %" PRIu64 " to %" PRIu64, end,
                         sizes->message - 1);
    return TCPX_SUCCESS;
}

/*
 * Fragments in the pool, from *cursor on, that one copy can move; *cursor is moved behind them.
 * False: no more. The destination goes on by itself: the list tiles the message, in order.
 */
static bool descriptors_next_run(const struct scatter_list *scatter, uint32_t longest,
                                 uint32_t *cursor, struct scatter_fragment *run)
{
    const uint64_t most = longest != 0 ? longest : UINT32_MAX;

    do {
        if (*cursor == scatter->count)
            return false;
        *run = scatter->fragments[(*cursor)++];
    } while (run->source != SCATTER_POOL);
    for (; *cursor < scatter->count; (*cursor)++) {
        const struct scatter_fragment *next = &scatter->fragments[*cursor];

        if (next->source != SCATTER_POOL ||
            next->source_offset != run->source_offset + run->length ||
            run->length + next->length > most)
            break;
        run->length += next->length;
    }
    return true;
}

int descriptors_build(const struct scatter_list *scatter, const struct scatter_sizes *sizes,
                      struct unpack_descriptor *descriptors, uint32_t capacity, uint32_t *count)
{
    struct scatter_fragment run;
    uint32_t total = 0;
    int result = descriptors_check_list(scatter, sizes);

    if (result != TCPX_SUCCESS)
        return result;
    for (uint32_t cursor = 0; descriptors_next_run(scatter, sizes->longest, &cursor, &run);)
        total++;
    if (total > capacity)
        return error_set(TCPX_INVALID_USAGE,
                         "%" PRIu32 " fragments need %" PRIu32 " descriptors, %" PRIu32 " fit",
                         scatter->count, total, capacity);
    for (uint32_t cursor = 0; descriptors_next_run(scatter, sizes->longest, &cursor, &run);)
        *descriptors++ = (struct unpack_descriptor){
            .source_offset = (uint32_t)(sizes->source_at + run.source_offset),
            .length = (uint32_t)run.length,
            .destination_offset = sizes->destination_at + run.destination_offset,
        };
    *count = total;
    return TCPX_SUCCESS;
}
