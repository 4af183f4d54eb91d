/*
 * What a receive leaves behind: the scatter list of a message (where each of its bytes lies now and
 * where it belongs), and the tokens a socket has to give back. The parser of control messages fills
 * both lists, the descriptor builder reads the first; their arrays belong to the caller and nothing
 * here allocates.
 */
#ifndef TCPX_NET_DEVMEM_SCATTER_LIST_H
#define TCPX_NET_DEVMEM_SCATTER_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "net/devmem/devmem_uapi.h"

enum scatter_source {
    SCATTER_POOL, /* the bounce pool */
    SCATTER_HOST  /* the ordinary memory given to recvmsg */
};

struct scatter_fragment {
    uint64_t source_offset; /* in the pool or in the host buffer */
    uint64_t destination_offset;
    uint64_t length; /* never 0 */
    enum scatter_source source;
};

/* Of one message, or of a part of it, in the order of its bytes. */
struct scatter_list {
    struct scatter_fragment *fragments;
    uint32_t capacity;
    uint32_t count;

    /* How the bytes came. Anything but device bytes means trouble with header split or steering. */
    uint64_t device_fragments;
    uint64_t device_bytes;
    uint64_t linear_bytes;
    uint64_t plain_bytes; /* of calls of recvmsg that described nothing */
};

/* Of one socket: the numbers of two sockets have nothing to do with each other. */
struct token_list {
    struct devmem_token_range *ranges; /* as the DONTNEED option takes them */
    uint32_t capacity;
    uint32_t count;
};

void scatter_list_init(struct scatter_list *scatter, struct scatter_fragment *fragments,
                       uint32_t capacity);

/* Appends one fragment, unless it is empty, and leaves the counters alone; false: full. */
MUST_CHECK bool scatter_list_add(struct scatter_list *scatter,
                                 const struct scatter_fragment *fragment);

/*
 * The next fragment in host memory at or after *cursor, which is 0 at first and is moved behind it;
 * NULL: no more.
 */
const struct scatter_fragment *scatter_list_next_host(const struct scatter_list *scatter,
                                                      uint32_t *cursor);

void token_list_init(struct token_list *tokens, struct devmem_token_range *ranges,
                     uint32_t capacity);

/* Adds one token, to the latest range where it continues that; false: full. */
MUST_CHECK bool token_list_add(struct token_list *tokens, uint32_t token);

/* How much of a list has been returned; all zero at first. */
struct token_cursor {
    uint32_t range;
    uint32_t done; /* tokens of that range */
};

/*
 * The next ranges that the kernel takes back in one call, of at most DEVMEM_DONTNEED_MAX_FRAGMENTS
 * tokens. Returns the number of ranges, and in *count that of their tokens; 0: no more.
 */
unsigned token_list_batch(const struct token_list *tokens, struct token_cursor *cursor,
                          struct devmem_token_range batch[DEVMEM_DONTNEED_MAX_RANGES],
                          uint32_t *count);

#endif
