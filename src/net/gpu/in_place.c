/*
 * Descriptors of pages in the pool, the tokens of these pages, and the gaps between them. What a
 * receive needs at most for the rest of its message stays free in its slot of the queue, so that
 * any part can still be copied.
 */
#include "net/gpu/in_place.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, MOST_RANGES = 32 };

/* Of one part. */
struct kept_tokens {
    struct kept_tokens *next;
    struct devmem_socket *socket;
    struct token_list tokens;
    struct devmem_token_range ranges[];
};

/* In order, with gaps between them. */
struct ranges {
    struct byte_range list[MOST_RANGES];
    unsigned count;
};

struct in_place_receive {
    struct ranges ranges;
    uint64_t bytes;
    uint32_t descriptors;
    uint64_t pages;
    struct kept_tokens *tokens;
};

struct in_place {
    struct page_keeper keeper;
    struct unpack_queue *queue;
    uint64_t pool_at;
    uint32_t longest;
    struct in_place_receive receives[UNPACK_QUEUE_DEPTH];
};

int in_place_create(struct devmem_pool *pool, struct unpack_queue *queue, uint64_t pool_at,
                    uint32_t longest, struct in_place **out)
{
    struct in_place *in_place = calloc(1, sizeof *in_place);

    if (in_place == NULL)
        return error_system(ENOMEM, "receives that stay in place");
    in_place->queue = queue;
    in_place->pool_at = pool_at;
    in_place->longest = longest;
    page_keeper_join(&in_place->keeper, pool);
    *out = in_place;
    return TCPX_SUCCESS;
}

static unsigned in_place_slot(const struct net_request *request)
{
    return request->sequence % UNPACK_QUEUE_DEPTH;
}

/* --- ranges of a message --------------------------------------------------------------------- */

/* Joins it with those beside it. False: it overlaps one, or there is no room. */
static bool ranges_add(struct ranges *ranges, uint64_t start, uint64_t end)
{
    struct byte_range *list = ranges->list;
    unsigned at = 0;
    bool joins_before;
    bool joins_after;

    while (at < ranges->count && list[at].start < start)
        at++;
    if ((at > 0 && list[at - 1].end > start) || (at < ranges->count && list[at].start < end))
        return false;
    joins_before = at > 0 && list[at - 1].end == start;
    joins_after = at < ranges->count && list[at].start == end;
    if (!joins_before && !joins_after && ranges->count == MOST_RANGES)
        return false;
    if (joins_before && joins_after) {
        list[at - 1].end = list[at].end;
        ranges->count--;
        memmove(&list[at], &list[at + 1], (ranges->count - at) * sizeof *list);
    } else if (joins_before) {
        list[at - 1].end = end;
    } else if (joins_after) {
        list[at].start = start;
    } else {
        memmove(&list[at + 1], &list[at], (ranges->count - at) * sizeof *list);
        list[at] = (struct byte_range){.start = start, .end = end};
        ranges->count++;
    }
    return true;
}

bool in_place_next_gap(const struct in_place *in_place, const struct net_request *request,
                       struct byte_range *gap)
{
    static const struct ranges none;
    const struct ranges *ranges =
        in_place != NULL ? &in_place->receives[in_place_slot(request)].ranges : &none;

    gap->start = gap->end;
    gap->end = request->bytes;
    for (unsigned i = 0; i < ranges->count; i++) {
        if (ranges->list[i].start > gap->start) {
            gap->end = ranges->list[i].start;
            break;
        }
        if (ranges->list[i].end > gap->start)
            gap->start = ranges->list[i].end;
    }
    return gap->start < gap->end;
}

/* --- taking ---------------------------------------------------------------------------------- */

/* Each gap is one of bounce pages, which begins and ends within a page; so are its descriptors. */
static uint64_t in_place_rest(const struct in_place *in_place, uint64_t bytes, unsigned ranges)
{
    uint64_t pages = bytes / PAGE + 2 * ((uint64_t)ranges + 1);
    bool is_split = in_place->longest != 0 && in_place->longest < PAGE;

    return is_split ? pages * ((PAGE + in_place->longest - 1) / in_place->longest) : pages;
}

/* Behind those that are there; nobody reads them before the receive is published. */
static bool in_place_describe(const struct in_place *in_place, const struct devmem_part *part,
                              const struct in_place_receive *receive, unsigned ranges,
                              uint32_t *count)
{
    const struct scatter_sizes sizes = {.message = part->bytes,
                                        .pool = part->pool->bytes,
                                        .source_at = in_place->pool_at,
                                        .destination_at = part->offset,
                                        .longest = in_place->longest};
    uint64_t rest =
        in_place_rest(in_place, part->request->bytes - receive->bytes - part->bytes, ranges);
    struct unpack_descriptor *slot = in_place->queue->descriptors[in_place_slot(part->request)];

    if (receive->descriptors + rest >= UNPACK_MAX_DESCRIPTORS)
        return false;
    return descriptors_build(&part->scatter, &sizes, slot + receive->descriptors,
                             (uint32_t)(UNPACK_MAX_DESCRIPTORS - rest) - receive->descriptors,
                             count) == TCPX_SUCCESS;
}

static struct kept_tokens *in_place_copy_tokens(struct devmem_socket *socket,
                                                const struct token_list *tokens)
{
    struct kept_tokens *kept = malloc(sizeof *kept + tokens->count * sizeof *kept->ranges);

    if (kept == NULL)
        return NULL;
    kept->socket = socket;
    memcpy(kept->ranges, tokens->ranges, tokens->count * sizeof *kept->ranges);
    token_list_init(&kept->tokens, kept->ranges, tokens->count);
    kept->tokens.count = tokens->count;
    return kept;
}

bool in_place_take(struct net_comm *comm, struct devmem_socket *socket,
                   const struct devmem_part *part)
{
    struct in_place *in_place = comm->gpu->in_place;
    struct in_place_receive *receive = &in_place->receives[in_place_slot(part->request)];
    struct ranges ranges = receive->ranges;
    struct kept_tokens *kept = NULL;
    uint32_t count = 0;

    COMM_LOCKED(comm);
    /* The flush: kernels read these pages as soon as the receive is published. */
    if (!ranges_add(&ranges, part->offset, part->offset + part->bytes) ||
        !in_place_describe(in_place, part, receive, ranges.count, &count) ||
        gpu_flush_inbound_writes(comm->gpu->share.pool->gpu) != TCPX_SUCCESS ||
        (kept = in_place_copy_tokens(socket, &part->tokens)) == NULL ||
        !page_keeper_take(&in_place->keeper, part->scatter.device_fragments)) {
        free(kept);
        return false;
    }
    kept->next = receive->tokens;
    *receive = (struct in_place_receive){.ranges = ranges,
                                         .bytes = receive->bytes + part->bytes,
                                         .descriptors = receive->descriptors + count,
                                         .pages = receive->pages + part->scatter.device_fragments,
                                         .tokens = kept};
    return true;
}

/* --- what was taken -------------------------------------------------------------------------- */

uint32_t in_place_descriptors(const struct in_place *in_place, const struct net_request *request)
{
    return in_place != NULL ? in_place->receives[in_place_slot(request)].descriptors : 0;
}

uint64_t in_place_bytes(const struct in_place *in_place, const struct net_request *request)
{
    return in_place != NULL ? in_place->receives[in_place_slot(request)].bytes : 0;
}

static bool in_place_release_slot(struct in_place *in_place, unsigned slot)
{
    struct in_place_receive *receive = &in_place->receives[slot];
    bool all_known = true;

    while (receive->tokens != NULL) {
        struct kept_tokens *kept = receive->tokens;

        receive->tokens = kept->next;
        all_known &= devmem_socket_return(kept->socket, &kept->tokens);
        free(kept);
    }
    page_keeper_give(&in_place->keeper, receive->pages);
    *receive = (struct in_place_receive){.bytes = 0};
    return all_known;
}

bool in_place_release(struct in_place *in_place, const struct net_request *request)
{
    return in_place == NULL || in_place_release_slot(in_place, in_place_slot(request));
}

/* A socket that does not know its tokens is closed next, and gives back what it has. */
void in_place_destroy(struct in_place *in_place)
{
    if (in_place == NULL)
        return;
    for (unsigned slot = 0; slot < UNPACK_QUEUE_DEPTH; slot++)
        (void)!in_place_release_slot(in_place, slot);
    page_keeper_leave(&in_place->keeper);
    free(in_place);
}
