/*
 * A fixed number of objects of one size in one allocation, so that the hot path neither allocates
 * nor fails half way. Taking and giving take constant time. A pool is not locked: its owner's lock
 * guards it.
 */
#ifndef TCPX_BASE_POOL_H
#define TCPX_BASE_POOL_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pool {
    unsigned char *objects; /* the one allocation; behind the objects, `next` */
    uint32_t *next;         /* per object: the next free one, or that it is taken */
    size_t stride;          /* bytes from one object to the next */
    uint32_t count;
    uint32_t first_free;
    uint32_t taken;
};

/* `alignment` is a power of two; none of the three is zero. The objects are not cleared. */
MUST_CHECK int pool_init(struct pool *pool, size_t count, size_t size, size_t alignment);

/* Frees the objects, taken or not. A pool of zeros or one destroyed already is left alone. */
void pool_destroy(struct pool *pool);

/* NULL when all are taken. */
MUST_CHECK void *pool_take(struct pool *pool);

/* False, and nothing happens, when `object` is not one of this pool's or is not taken. */
MUST_CHECK bool pool_give(struct pool *pool, void *object);

static inline size_t pool_taken(const struct pool *pool)
{
    return pool->taken;
}

#endif
