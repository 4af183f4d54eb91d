/*
 * The descriptor builder: check each fragment, sort by destination, check that they tile the
 * message, count, and only then write. All sums are 64-bit; the one place that narrows to 32 bits
 * comes after the count has shown that every value fits.
 */
#include "net/devmem/rx_descriptor.h"

#include <inttypes.h>

#include "base/checked.h"

/* A run of fragments that one copy could move. */
struct run {
    uint64_t source_offset; /* in the pool */
    uint64_t destination_offset;
    uint64_t length;
};

static bool is_sorted(const struct rx_fragment *fragments, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        if (fragments[i].destination_offset < fragments[i - 1].destination_offset)
            return false;
    return true;
}

static void sift_down(struct rx_fragment *fragments, uint64_t root, uint64_t count)
{
    const struct rx_fragment moving = fragments[root];

    for (;;) {
        uint64_t child = 2 * root + 1;

        if (child >= count)
            break;
        if (child + 1 < count &&
            fragments[child + 1].destination_offset > fragments[child].destination_offset)
            child++;
        if (fragments[child].destination_offset <= moving.destination_offset)
            break;
        fragments[root] = fragments[child];
        root = child;
    }
    fragments[root] = moving;
}

/* A heap sort: qsort() allocates for lists of this size. */
static void sort_by_destination(struct rx_fragment *fragments, uint32_t count)
{
    if (is_sorted(fragments, count))
        return;
    for (uint32_t root = count / 2; root-- > 0;)
        sift_down(fragments, root, count);
    for (uint32_t end = count - 1; end > 0; end--) {
        const struct rx_fragment largest = fragments[0];

        fragments[0] = fragments[end];
        fragments[end] = largest;
        sift_down(fragments, 0, end);
    }
}

static int check_request(const struct rx_descriptor_request *request, enum rx_problem *problem)
{
    if (request->message_size > request->destination_size)
        return rx_problem_set(problem, RX_PROBLEM_OUTSIDE_DESTINATION,
                              "a message of %" PRIu64 " bytes for a destination of %" PRIu64,
                              request->message_size, request->destination_size);
    if (request->host_base != RX_HOST_APART &&
        !range_inside(request->host_base, request->host_size, request->pool_size))
        return rx_problem_set(problem, RX_PROBLEM_ARGUMENT,
                              "host buffer of %" PRIu64 " bytes at %" PRIu64
                              " in a pool of %" PRIu64,
                              request->host_size, request->host_base, request->pool_size);
    return TCPX_SUCCESS;
}

static int check_fragment(const struct rx_descriptor_request *request,
                          const struct rx_fragment *fragment, enum rx_problem *problem)
{
    bool device = fragment->source == RX_SOURCE_DEVICE;
    uint64_t size = device ? request->pool_size : request->host_size;

    if (fragment->length == 0)
        return rx_problem_set(problem, RX_PROBLEM_EMPTY_FRAGMENT,
                              "empty fragment at destination offset %" PRIu64,
                              fragment->destination_offset);
    if (!range_inside(fragment->source_offset, fragment->length, size))
        return rx_problem_set(
            problem, device ? RX_PROBLEM_OUTSIDE_POOL : RX_PROBLEM_OUTSIDE_HOST,
            "fragment at %" PRIu64 " length %" PRIu64 " in a %s of %" PRIu64 " bytes",
            fragment->source_offset, fragment->length, device ? "pool" : "host buffer", size);
    if (!range_inside(fragment->destination_offset, fragment->length, request->message_size))
        return rx_problem_set(
            problem, RX_PROBLEM_OUTSIDE_DESTINATION,
            "fragment for %" PRIu64 " length %" PRIu64 " in a message of %" PRIu64 " bytes",
            fragment->destination_offset, fragment->length, request->message_size);
    return TCPX_SUCCESS;
}

/* The fragments are sorted, so each has to begin where the one before it ends. */
static int check_tiling(const struct rx_scatter *scatter, uint64_t message_size,
                        enum rx_problem *problem)
{
    uint64_t end = 0;

    for (uint32_t i = 0; i < scatter->count; i++) {
        const struct rx_fragment *fragment = &scatter->fragments[i];

        if (fragment->destination_offset < end)
            return rx_problem_set(problem, RX_PROBLEM_OVERLAP,
                                  "fragment for %" PRIu64 " begins before %" PRIu64
                                  ", the end of the one before it",
                                  fragment->destination_offset, end);
        if (fragment->destination_offset > end)
            return rx_problem_set(problem, RX_PROBLEM_GAP,
                                  "no fragment for bytes %" PRIu64 " to %" PRIu64, end,
                                  fragment->destination_offset - 1);
        end += fragment->length;
    }
    if (end < message_size)
        return rx_problem_set(problem, RX_PROBLEM_GAP,
                              "no fragment for bytes %" PRIu64 " to %" PRIu64, end,
                              message_size - 1);
    return TCPX_SUCCESS;
}

static int check_list(struct rx_scatter *scatter, const struct rx_descriptor_request *request,
                      enum rx_problem *problem)
{
    int result = check_request(request, problem);

    for (uint32_t i = 0; result == TCPX_SUCCESS && i < scatter->count; i++)
        result = check_fragment(request, &scatter->fragments[i], problem);
    if (result != TCPX_SUCCESS)
        return result;
    sort_by_destination(scatter->fragments, scatter->count);
    return check_tiling(scatter, request->message_size, problem);
}

/* False: the fragment stays with the caller. */
static bool place_in_pool(const struct rx_descriptor_request *request,
                          const struct rx_fragment *fragment, struct run *run)
{
    uint64_t base = fragment->source == RX_SOURCE_HOST ? request->host_base : 0;

    if (base == RX_HOST_APART)
        return false;
    *run = (struct run){
        .source_offset = base + fragment->source_offset,
        .destination_offset = fragment->destination_offset,
        .length = fragment->length,
    };
    return true;
}

/* The destination goes on by itself: the list tiles the message, in order. */
static bool continues(const struct run *run, const struct run *next, uint64_t longest)
{
    return run->source_offset + run->length == next->source_offset &&
           run->length + next->length <= longest;
}

/* The run that begins at or after *cursor, which is moved behind it; false: no more. */
static bool next_run(const struct rx_scatter *scatter, const struct rx_descriptor_request *request,
                     uint32_t *cursor, struct run *run)
{
    /* A run that will be cut may have any length, one that will not must fit as it is. */
    uint64_t longest = request->largest == 0 ? UINT32_MAX : UINT64_MAX;
    struct run next;

    do {
        if (*cursor == scatter->count)
            return false;
    } while (!place_in_pool(request, &scatter->fragments[(*cursor)++], run));

    /* A fragment that stays with the caller parts the destinations on its two sides. */
    for (; *cursor < scatter->count; (*cursor)++) {
        if (!place_in_pool(request, &scatter->fragments[*cursor], &next) ||
            !continues(run, &next, longest))
            break;
        run->length += next.length;
    }
    return true;
}

/* By division, since a length from outside may ask for more pieces than one could count. */
static int count_pieces(const struct run *run, uint32_t largest, uint64_t *pieces,
                        enum rx_problem *problem)
{
    uint64_t piece = largest == 0 ? run->length : largest;
    uint64_t before_last = largest == 0 ? 0 : (run->length - 1) / largest;
    uint64_t last_offset = run->source_offset + before_last * piece;

    if (last_offset > UINT32_MAX || (largest == 0 && run->length > UINT32_MAX))
        return rx_problem_set(problem, RX_PROBLEM_TOO_WIDE,
                              "source offset %" PRIu64 " length %" PRIu64
                              " do not fit in 32 bits each",
                              last_offset, piece);
    *pieces = before_last + 1;
    return TCPX_SUCCESS;
}

static int count_descriptors(const struct rx_scatter *scatter,
                             const struct rx_descriptor_request *request, uint64_t *total,
                             enum rx_problem *problem)
{
    uint32_t cursor = 0;
    uint64_t pieces = 0;
    uint64_t sum = 0;
    struct run run;

    while (next_run(scatter, request, &cursor, &run)) {
        int result = count_pieces(&run, request->largest, &pieces, problem);

        if (result != TCPX_SUCCESS)
            return result;
        sum += pieces;
    }
    *total = sum;
    return TCPX_SUCCESS;
}

static struct unpack_descriptor *write_run(struct run run, uint32_t largest,
                                           struct unpack_descriptor *out)
{
    while (run.length > 0) {
        uint64_t piece = largest != 0 && run.length > largest ? largest : run.length;

        *out++ = (struct unpack_descriptor){
            .source_offset = (uint32_t)run.source_offset,
            .length = (uint32_t)piece,
            .destination_offset = run.destination_offset,
        };
        run.source_offset += piece;
        run.destination_offset += piece;
        run.length -= piece;
    }
    return out;
}

int rx_descriptor_build(struct rx_scatter *scatter, const struct rx_descriptor_request *request,
                        struct unpack_descriptor *descriptors, uint32_t capacity, uint32_t *count,
                        enum rx_problem *problem)
{
    uint32_t cursor = 0;
    uint64_t total = 0;
    struct run run;
    int result = check_list(scatter, request, problem);

    if (result == TCPX_SUCCESS)
        result = count_descriptors(scatter, request, &total, problem);
    if (result != TCPX_SUCCESS)
        return result;
    if (total > capacity)
        return rx_problem_set(problem, RX_PROBLEM_TOO_MANY,
                              "%" PRIu32 " fragments need %" PRIu64 " descriptors, %" PRIu32 " fit",
                              scatter->count, total, capacity);

    while (next_run(scatter, request, &cursor, &run))
        descriptors = write_run(run, request->largest, descriptors);
    *count = (uint32_t)total;
    *problem = RX_PROBLEM_NONE;
    return TCPX_SUCCESS;
}
