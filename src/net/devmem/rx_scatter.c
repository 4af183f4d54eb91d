/* The scatter list of a message, the tokens of a socket, and the names of receive problems. */
#include "net/devmem/rx_scatter.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    enum tcpx_result result;
} problems[RX_PROBLEM_COUNT] = {
    [RX_PROBLEM_NONE] = {"no problem", TCPX_SUCCESS},
    [RX_PROBLEM_ARGUMENT] = {"invalid argument", TCPX_INVALID_ARGUMENT},
    [RX_PROBLEM_TRUNCATED] = {"control messages cut off", TCPX_SYSTEM_ERROR},
    [RX_PROBLEM_BROKEN_CONTROL] = {"broken chain of control messages", TCPX_SYSTEM_ERROR},
    [RX_PROBLEM_UNKNOWN_MESSAGE] = {"unknown control message", TCPX_SYSTEM_ERROR},
    [RX_PROBLEM_OTHER_KERNEL] = {"control message of the other kernel", TCPX_SYSTEM_ERROR},
    [RX_PROBLEM_MESSAGE_SIZE] = {"control message of a wrong size", TCPX_SYSTEM_ERROR},
    [RX_PROBLEM_UNKNOWN_FLAGS] = {"unknown flags", TCPX_SYSTEM_ERROR},
    [RX_PROBLEM_WRONG_DMABUF] = {"page of another dma-buf", TCPX_SYSTEM_ERROR},
    [RX_PROBLEM_LENGTH] = {"lengths disagree", TCPX_SYSTEM_ERROR},
    [RX_PROBLEM_FRAGMENTS_FULL] = {"scatter list full", TCPX_INVALID_USAGE},
    [RX_PROBLEM_TOKENS_FULL] = {"token list full", TCPX_INVALID_USAGE},
    [RX_PROBLEM_OUTSIDE_POOL] = {"outside the pool", TCPX_SYSTEM_ERROR},
    [RX_PROBLEM_OUTSIDE_HOST] = {"outside the host buffer", TCPX_SYSTEM_ERROR},
    [RX_PROBLEM_EMPTY_FRAGMENT] = {"empty fragment", TCPX_INTERNAL_ERROR},
    [RX_PROBLEM_OUTSIDE_DESTINATION] = {"outside the destination", TCPX_INTERNAL_ERROR},
    [RX_PROBLEM_GAP] = {"gap in the message", TCPX_INTERNAL_ERROR},
    [RX_PROBLEM_OVERLAP] = {"overlap in the message", TCPX_INTERNAL_ERROR},
    [RX_PROBLEM_TOO_WIDE] = {"beyond 32 bits", TCPX_INVALID_USAGE},
    [RX_PROBLEM_TOO_MANY] = {"too many descriptors", TCPX_INVALID_USAGE},
};

const char *rx_problem_name(enum rx_problem problem)
{
    if ((unsigned int)problem >= RX_PROBLEM_COUNT)
        return "unknown problem";
    return problems[problem].name;
}

int rx_problem_set(enum rx_problem *problem, enum rx_problem code, const char *format, ...)
{
    char text[512];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    *problem = code;
    return error_set(problems[code].result, "%s", text);
}

void rx_scatter_init(struct rx_scatter *scatter, struct rx_fragment *fragments, uint32_t capacity)
{
    *scatter = (struct rx_scatter){.fragments = fragments, .capacity = capacity};
}

void rx_scatter_reset(struct rx_scatter *scatter)
{
    rx_scatter_init(scatter, scatter->fragments, scatter->capacity);
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
