/*
 * Some calls of libc as the library makes them (tests/faults.syms), which a test lets fail or do
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
    NET_CALLS,
};

/* From now on all calls are made as they are. */
void calls_reset(void);

/* Calls number `first`, counted from now on from 0, to first + count - 1 fail with this error. */
void calls_fail(enum net_call call, unsigned first, unsigned count, int error);

/* From now on about every second call fails, in no regular order. */
void calls_fail_half(enum net_call call, int error);

/* From now on a call moves this many bytes at most; 0: any. */
void calls_shorten(enum net_call call, size_t most);

/* What was asked for so far concerns calls with this descriptor only. */
void calls_only_of(enum net_call call, int fd);

/* How many have been made since calls_reset(), those that failed on purpose included. */
unsigned calls_made(enum net_call call);

/* How many bytes they have moved since then. */
uint64_t calls_bytes(enum net_call call);

/* --- for the replacements ------------------------------------------------------------------- */

/*
 * Whether this call fails, with errno; if not, it moves at most *bytes, which may become less.
 * `bytes` may be NULL.
 */
bool calls_fails(enum net_call call, int fd, size_t *bytes);
/* Counts what it has moved, and returns that. */
ssize_t calls_moved(enum net_call call, ssize_t moved);

#endif
