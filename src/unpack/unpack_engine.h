/* What the ways of this folder share: the engine, and the runs that descriptors are. */
#ifndef TCPX_UNPACK_UNPACK_ENGINE_H
#define TCPX_UNPACK_UNPACK_ENGINE_H

#include "unpack/unpack.h"

enum { UNPACK_MARKS = 16 };

struct unpack_engine {
    struct gpu *gpu;
    enum unpack_impl impl;
    struct gpu_stream *stream;
    uint64_t submitted; /* the latest ticket; the first is 1 */
    uint64_t completed;

    /*
     * Recorded at the first poll, not for each submit: one mark covers all tickets before it. Ring
     * of marks that are not known to be done: first_mark to first_mark + marks - 1.
     */
    struct unpack_mark {
        struct gpu_event *event;
        uint64_t ticket; /* the latest when it was recorded */
    } mark[UNPACK_MARKS];
    uint32_t first_mark;
    uint32_t marks;
    struct gpu_pinned staging;          /* of the host way */
    uint64_t staging_used;              /* by what is not known to be done */
    uint64_t lists;                     /* that were submitted */
    uint64_t by_way[UNPACK_KERNEL + 1]; /* submits that each way has carried */
};

/* Bytes that are contiguous both in the bounce buffer and in the destination. */
struct unpack_run {
    uint64_t source_offset;
    uint64_t destination_offset;
    uint64_t bytes;
};

/*
 * The next run of the list at *cursor, which is 0 at first and is moved behind it; false: no more.
 * Empty fragments are passed over.
 */
static inline bool unpack_next_run(const struct unpack_list *list, uint32_t *cursor,
                                   struct unpack_run *run)
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

/* The work of one submit, and what one pass over its descriptors has found. */
struct unpack_work {
    const struct unpack_list *lists;
    uint32_t list_count;
    uint32_t longest; /* fragment */
    uint64_t bytes;
};

#endif
