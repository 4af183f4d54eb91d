/*
 * Time that only moves forward, in nanoseconds, and deadlines on it. A deadline is a moment, so
 * that it can be handed through several waits without growing.
 */
#ifndef TCPX_BASE_CLOCK_H
#define TCPX_BASE_CLOCK_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define DEADLINE_NEVER UINT64_MAX

static inline uint64_t clock_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The moment `milliseconds` from now; DEADLINE_NEVER when that is too far to count. */
static inline uint64_t deadline_after_ms(uint64_t milliseconds)
{
    uint64_t span;
    uint64_t deadline;

    if (__builtin_mul_overflow(milliseconds, 1000000u, &span) ||
        __builtin_add_overflow(clock_now(), span, &deadline))
        return DEADLINE_NEVER;
    return deadline;
}

static inline uint64_t deadline_earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline bool deadline_passed(uint64_t deadline)
{
    return deadline != DEADLINE_NEVER && clock_now() >= deadline;
}

/* How long poll() may wait for this deadline; -1: for ever. */
static inline int deadline_poll_ms(uint64_t deadline)
{
    uint64_t now = clock_now();
    uint64_t left;

    if (deadline == DEADLINE_NEVER)
        return -1;
    if (deadline <= now)
        return 0;
    left = (deadline - now + 999999) / 1000000; /* up: a wait that ends early would spin */
    return left < INT_MAX ? (int)left : INT_MAX;
}

#endif
