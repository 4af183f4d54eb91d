/* The scatter list of a message, and the tokens of a socket. */
#include "net/devmem/rx_scatter.h"

#include <stddef.h>

void rx_scatter_init(struct rx_scatter *scatter, struct rx_fragment *fragments, uint32_t capacity)
{
    *scatter = (struct rx_scatter){.fragments = fragments, .capacity = capacity};
}

bool rx_scatter_add(struct rx_scatter *scatter, const struct rx_fragment *fragment)
{
    if (fragment->length == 0)
        return true;
    if (scatter->count == scatter->capacity)
        return false;
    scatter->fragments[scatter->count++] = *fragment;
    return true;
}

const struct rx_fragment *rx_scatter_next_host(const struct rx_scatter *scatter, uint32_t *cursor)
{
    while (*cursor < scatter->count) {
        const struct rx_fragment *fragment = &scatter->fragments[(*cursor)++];

        if (fragment->source == RX_SOURCE_HOST)
            return fragment;
    }
    return NULL;
}

void rx_tokens_init(struct rx_tokens *tokens, struct devmem_token_range *ranges, uint32_t capacity)
{
    *tokens = (struct rx_tokens){.ranges = ranges, .capacity = capacity};
}

bool rx_tokens_add(struct rx_tokens *tokens, uint32_t token)
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
