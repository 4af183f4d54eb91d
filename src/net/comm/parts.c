/* Ranges of messages that are lists of parts. */
#include "net/comm/parts.h"

#include <string.h>

/* The part that the byte at `offset` of the message is in. */
static uint32_t parts_find(const struct net_request *request, uint64_t offset)
{
    uint32_t low = 0;
    uint32_t high = request->part_count;

    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;

        *(request->parts[middle].offset <= offset ? &low : &high) = middle;
    }
    return low;
}

unsigned parts_list(const struct net_request *request, uint64_t offset, uint64_t bytes,
                    struct iovec *list, unsigned most, uint64_t *covered)
{
    unsigned count = 0;
    uint64_t left = bytes;

    if (request->parts == NULL && bytes > 0) {
        list[0] = (struct iovec){.iov_base = request->data + offset, .iov_len = bytes};
        *covered = bytes;
        return 1;
    }
    for (uint32_t i = parts_find(request, offset);
         left > 0 && count < most && i < request->part_count; i++) {
        const struct net_part *part = &request->parts[i];
        uint64_t within = offset + (bytes - left) - part->offset;
        uint64_t here = part->bytes - within < left ? part->bytes - within : left;

        if (here == 0)
            continue;
        list[count++] = (struct iovec){.iov_base = (uint8_t *)part->data + within, .iov_len = here};
        left -= here;
    }
    *covered = bytes - left;
    return count;
}

uint8_t *parts_at(const struct net_request *request, uint64_t offset, uint64_t *bytes)
{
    struct iovec part = {0};

    parts_list(request, offset, *bytes, &part, 1, bytes);
    return part.iov_base;
}

void parts_copy_out(const struct net_request *request, uint64_t offset, uint8_t *to, uint64_t bytes)
{
    for (uint64_t at = 0, here; at < bytes; at += here) {
        const uint8_t *from;

        here = bytes - at;
        from = parts_at(request, offset + at, &here);
        memcpy(to + at, from, here);
    }
}

void parts_copy_in(const struct net_request *request, const uint8_t *from, uint64_t bytes)
{
    for (uint64_t at = 0, here; at < bytes; at += here) {
        uint8_t *to;

        here = bytes - at;
        to = parts_at(request, at, &here);
        memcpy(to, from + at, here);
    }
}
