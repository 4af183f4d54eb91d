/* The scatter list of a message, and the tokens of a socket. */
#include "net/devmem/scatter_list.h"

#include <stddef.h>

void scatter_list_init(struct scatter_list *scatter, struct scatter_fragment *fragments,
                       uint32_t capacity)
{
    *scatter = (struct scatter_list){.fragments = fragments, .capacity = capacity};
}

bool scatter_list_add(struct scatter_list *scatter, const struct scatter_fragment *fragment)
{
    if (fragment->length == 0)
        return true;
    if (scatter->count == scatter->capacity)
        return false;
    scatter->fragments[scatter->count++] = *fragment;
    return true;
}

const struct scatter_fragment *scatter_list_next_host(const struct scatter_list *scatter,
                                                      uint32_t *cursor)
{
    while (*cursor < scatter->count) {
        const struct scatter_fragment *fragment = &scatter->fragments[(*cursor)++];

        if (fragment->source == SCATTER_HOST)
            return fragment;
    }
    return NULL;
}

void token_list_init(struct token_list *tokens, struct devmem_token_range *ranges,
                     uint32_t capacity)
{
    *tokens = (struct token_list){.ranges = ranges, .capacity = capacity};
}

bool token_list_add(struct token_list *tokens, uint32_t token)
{
    if (tokens->count > 0) {
        struct devmem_token_range *last = &tokens->ranges[tokens->count - 1];

        /* In 64 bits, or token 0 would continue a range that ends with the largest number. */
        if ((uint64_t)last->first + last->count == token && last->count < UINT32_MAX) {
            last->count++;
            return true;
        }
    }
    if (tokens->count == tokens->capacity)
        return false;
    tokens->ranges[tokens->count++] = (struct devmem_token_range){.first = token, .count = 1};
    return true;
}

unsigned token_list_batch(const struct token_list *tokens, struct token_cursor *cursor,
                          struct devmem_token_range batch[DEVMEM_DONTNEED_MAX_RANGES],
                          uint32_t *count)
{
    uint32_t room = DEVMEM_DONTNEED_MAX_FRAGMENTS;
    unsigned ranges = 0;

    while (cursor->range < tokens->count && ranges < DEVMEM_DONTNEED_MAX_RANGES && room > 0) {
        const struct devmem_token_range *range = &tokens->ranges[cursor->range];
        uint32_t left = range->count - cursor->done;
        uint32_t some = left < room ? left : room;

        batch[ranges++] = (struct devmem_token_range){range->first + cursor->done, some};
        room -= some;
        cursor->done += some;
        if (some == left)
            *cursor = (struct token_cursor){.range = cursor->range + 1};
    }
    *count = DEVMEM_DONTNEED_MAX_FRAGMENTS - room;
    return ranges;
}
