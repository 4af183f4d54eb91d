/*
 * Arithmetic on numbers that came from outside. Each returns false instead of wrapping, and then
 * leaves its output alone.
 */
#ifndef TCPX_BASE_CHECKED_H
#define TCPX_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool checked_add(uint64_t a, uint64_t b, uint64_t *sum)
{
    uint64_t value;

    if (__builtin_add_overflow(a, b, &value))
        return false;
    *sum = value;
    return true;
}

static inline bool checked_multiply(uint64_t a, uint64_t b, uint64_t *product)
{
    uint64_t value;

    if (__builtin_mul_overflow(a, b, &value))
        return false;
    *product = value;
    return true;
}

/* `alignment` is a power of two. */
static inline bool checked_align_up(uint64_t value, uint64_t alignment, uint64_t *aligned)
{
    uint64_t sum;

    if (!checked_add(value, alignment - 1, &sum))
        return false;
    *aligned = sum & ~(alignment - 1);
    return true;
}

static inline bool is_power_of_two(uint64_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

/* Whether [offset, offset + length) lies inside [0, size). */
static inline bool range_inside(uint64_t offset, uint64_t length, uint64_t size)
{
    return length <= size && offset <= size - length;
}

#endif
