/*
 * What a receive leaves behind: the scatter list of a message (where each of its bytes lies now and
 * where it belongs), the tokens a socket has to give back, and the problems that can come up on the
 * way. The parser of control messages fills both lists, the descriptor builder reads the first;
 * their arrays belong to the caller and nothing here allocates.
 */
#ifndef TCPX_NET_DEVMEM_RX_SCATTER_H
#define TCPX_NET_DEVMEM_RX_SCATTER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "net/devmem/devmem_uapi.h"

enum rx_source {
    RX_SOURCE_DEVICE, /* the bounce pool */
    RX_SOURCE_HOST    /* the ordinary memory given to recvmsg */
};

struct rx_fragment {
    uint64_t source_offset; /* in the pool or in the host buffer */
    uint64_t destination_offset;
    uint64_t length; /* never 0 */
    enum rx_source source;
};

/* Of one message, whose fragments may come over several sockets and in any order. */
struct rx_scatter {
    struct rx_fragment *fragments;
    uint32_t capacity;
    uint32_t count;

    /* How the bytes came. Anything but device bytes means trouble with header split or steering. */
    uint64_t device_fragments;
    uint64_t device_bytes;
    uint64_t linear_fragments; /* upstream's user_buffer_count */
    uint64_t linear_bytes;
    uint64_t plain_reads; /* calls of recvmsg that gave bytes without describing them */
    uint64_t plain_bytes;
};

/* Of one socket: the numbers of two sockets have nothing to do with each other. */
struct rx_tokens {
    struct devmem_token_range *ranges; /* as the DONTNEED option takes them */
    uint32_t capacity;
    uint32_t count;
};

enum rx_problem {
    RX_PROBLEM_NONE,
    RX_PROBLEM_ARGUMENT, /* the call itself makes no sense */

    /* Parser: the kernel's answer cannot be used. */
    RX_PROBLEM_TRUNCATED,       /* MSG_CTRUNC: control messages were cut off */
    RX_PROBLEM_BROKEN_CONTROL,  /* the chain of control messages does not add up */
    RX_PROBLEM_UNKNOWN_MESSAGE, /* a control message of an unknown kind */
    RX_PROBLEM_OTHER_KERNEL,    /* a control message of the other flavour */
    RX_PROBLEM_MESSAGE_SIZE,    /* a control message shorter or longer than its kind */
    RX_PROBLEM_UNKNOWN_FLAGS,   /* a bit in a field that is reserved */
    RX_PROBLEM_WRONG_DMABUF,    /* a page of a pool that is not ours */
    RX_PROBLEM_LENGTH,          /* control messages and recvmsg disagree about the bytes */

    /* Parser: no room. Nothing was taken; make room and parse the same call again. */
    RX_PROBLEM_FRAGMENTS_FULL,
    RX_PROBLEM_TOKENS_FULL,

    /* Parser and builder. */
    RX_PROBLEM_OUTSIDE_POOL,
    RX_PROBLEM_OUTSIDE_HOST, /* outside the host buffer */

    /* Builder. */
    RX_PROBLEM_EMPTY_FRAGMENT,
    RX_PROBLEM_OUTSIDE_DESTINATION,
    RX_PROBLEM_GAP,
    RX_PROBLEM_OVERLAP,
    RX_PROBLEM_TOO_WIDE, /* an offset or length that does not fit in the 32 bits of a descriptor */
    RX_PROBLEM_TOO_MANY, /* more descriptors than fit: cut less, or compact the message */
    RX_PROBLEM_COUNT
};

/* A few words for a log or a counter, as "outside the pool"; "unknown problem" for other numbers.
 */
const char *rx_problem_name(enum rx_problem problem);

/* Stores `code` in *problem, keeps the text, and returns the result that belongs to the code. */
int rx_problem_set(enum rx_problem *problem, enum rx_problem code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void rx_scatter_init(struct rx_scatter *scatter, struct rx_fragment *fragments, uint32_t capacity);

/* Empties the list and its counters, for the next message. */
void rx_scatter_reset(struct rx_scatter *scatter);

/* Appends one fragment, unless it is empty, and leaves the counters alone; false: full. */
MUST_CHECK bool rx_scatter_add(struct rx_scatter *scatter, const struct rx_fragment *fragment);

/*
 * The next fragment in host memory at or after *cursor, which is 0 at first and is moved behind it;
 * NULL: no more.
 */
const struct rx_fragment *rx_scatter_next_host(const struct rx_scatter *scatter, uint32_t *cursor);

void rx_tokens_init(struct rx_tokens *tokens, struct devmem_token_range *ranges, uint32_t capacity);

/* Adds one token, to the latest range where it continues that; false: full. */
MUST_CHECK bool rx_tokens_add(struct rx_tokens *tokens, uint32_t token);

#endif
