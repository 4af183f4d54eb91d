/*
 * The free list lives behind the objects and not in them, so that a stray write to an object that
 * was given back cannot lead it astray, and so that giving something twice is noticed.
 */
#include "base/pool.h"

#include "base/checked.h"

#include <stdalign.h>
#include <stdlib.h>

#define END   UINT32_MAX
#define TAKEN (UINT32_MAX - 1)

/* Where the free list begins and ends, from the start of the allocation. */
static bool lay_out(size_t count, size_t size, size_t alignment, uint64_t *stride, uint64_t *list,
                    uint64_t *total)
{
    uint64_t objects;

    return count < TAKEN && checked_align_up(size, alignment, stride) &&
           checked_multiply(*stride, count, &objects) &&
           checked_align_up(objects, alignof(uint32_t), list) &&
           checked_add(*list, (uint64_t)count * sizeof(uint32_t), total) && *total <= PTRDIFF_MAX;
}

int pool_init(struct pool *pool, size_t count, size_t size, size_t alignment)
{
    size_t block_alignment = alignment < sizeof(void *) ? sizeof(void *) : alignment;
    uint64_t stride;
    uint64_t list;
    uint64_t total;
    void *block;
    int error;

    if (count == 0 || size == 0 || !is_power_of_two(alignment))
        return error_set(TCPX_INVALID_ARGUMENT,
                         "a pool of %zu objects of %zu bytes aligned to %zu cannot be: sizes are "
                         "not zero and an alignment is a power of two",
                         count, size, alignment);
    if (!lay_out(count, size, alignment, &stride, &list, &total))
        return error_set(TCPX_INVALID_ARGUMENT,
                         "a pool of %zu objects of %zu bytes aligned to %zu is too large", count,
                         size, alignment);
    error = posix_memalign(&block, block_alignment, total);
    if (error != 0)
        return error_system(error, "cannot allocate a pool of %zu objects of %zu bytes", count,
                            size);
    *pool = (struct pool){
        .objects = block,
        .next = (uint32_t *)((unsigned char *)block + list),
        .stride = stride,
        .count = (uint32_t)count,
    };
    for (uint32_t i = 0; i < pool->count; i++)
        pool->next[i] = i + 1 < pool->count ? i + 1 : END;
    return TCPX_SUCCESS;
}

void pool_destroy(struct pool *pool)
{
    free(pool->objects);
    *pool = (struct pool){.first_free = END};
}

void *pool_take(struct pool *pool)
{
    uint32_t index = pool->first_free;

    if (pool->count == 0 || index == END)
        return NULL;
    pool->first_free = pool->next[index];
    pool->next[index] = TAKEN;
    pool->taken++;
    return pool->objects + index * pool->stride;
}

bool pool_give(struct pool *pool, void *object)
{
    /* As numbers: two pointers into different objects may not be compared. */
    uintptr_t offset = (uintptr_t)object - (uintptr_t)pool->objects;
    uint32_t index;

    if (pool->count == 0 || offset % pool->stride != 0 || offset / pool->stride >= pool->count)
        return false;
    index = (uint32_t)(offset / pool->stride);
    if (pool->next[index] != TAKEN)
        return false;
    pool->next[index] = pool->first_free;
    pool->first_free = index;
    pool->taken--;
    return true;
}
