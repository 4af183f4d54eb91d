/*
 * Some calls of libc as the library makes them (tests/faults/calls.c), which a test lets fail or do
 * less at a moment that it chooses, after a first calls_reset(). tests/faults/faults.h does so by
 * seed, for whole suites.
 */
#ifndef TCPX_TESTS_NET_CALLS_H
#define TCPX_TESTS_NET_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum net_call {
    CALL_SEND,
    CALL_RECV,
    CALL_SENDMSG,
    CALL_RECVMSG,
    CALL_POLL,
    CALL_EPOLL_ADD,
    CALL_PTHREAD_CREATE,
    CALL_DESCRIPTOR, /* socket(), eventfd(), epoll_create1() */
    CALL_MEMORY,     /* malloc() and its relatives */
    NET_CALLS,
};

/* What happens to a call from now on. */
struct call_plan {
    unsigned first; /* calls number `first`, counted from 0, to first + count - 1 fail */
    unsigned count;
    bool half; /* about every second fails instead, in no regular order */
    int error;
    size_t most; /* bytes that a call moves; 0: any */
    /* Only these calls are meant and counted; `bytes` are those that are sent. NULL: all. */
    bool (*concerns)(int fd, const void *bytes, size_t count);
};

/* CALLS_PLAN(CALL_SEND, .count = 2, .error = EAGAIN); without members the call is made as it is. */
#define CALLS_PLAN(call, ...) calls_plan(call, &(const struct call_plan){__VA_ARGS__})
void calls_plan(enum net_call call, const struct call_plan *plan);

/* From now on all calls are made as they are. */
void calls_reset(void);

/* How many have been made since the plan, those that failed on purpose included. */
unsigned calls_made(enum net_call call);

/* How many bytes they have moved since then. */
uint64_t calls_bytes(enum net_call call);

/* --- for the replacements ------------------------------------------------------------------- */

/*
 * Whether this call fails, with errno; if not, it moves at most *count, which may become less.
 * `bytes` and `count` may be NULL.
 */
bool calls_fails(enum net_call call, int fd, const void *bytes, size_t *count);
/* Counts what it has moved, and returns that. */
ssize_t calls_moved(enum net_call call, ssize_t moved);

#endif
