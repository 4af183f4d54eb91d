/*
 * How many pages of a pool comms may keep. A page that is kept is lost to the NIC for so long, and
 * what becomes of it is up to the program. So three quarters of the pool are never kept: with them
 * all comms go on, if by way of pinned memory. Up to two thirds may lie in sockets, behind lost
 * packets (devmem_pool_join()).
 */
#include "net/devmem/devmem.h"

void page_keeper_join(struct page_keeper *keeper, struct devmem_pool *pool)
{
    *keeper = (struct page_keeper){.pool = devmem_pool_share(pool)};
    atomic_fetch_add(&pool->keepers, 1);
}

void page_keeper_leave(struct page_keeper *keeper)
{
    page_keeper_give(keeper, keeper->pages);
    atomic_fetch_sub(&keeper->pool->keepers, 1);
    devmem_pool_give(keeper->pool);
}

/* A share is the same for all, and smaller when others join; what is kept by then may stay. */
bool page_keeper_take(struct page_keeper *keeper, uint64_t pages)
{
    enum { PART = 4, LEAST_SHARES = 2 };
    struct devmem_pool *pool = keeper->pool;
    uint64_t all = pool->memory.memory.bytes / devmem_page_bytes() / PART;
    unsigned shares = atomic_load(&pool->keepers);

    if (shares < LEAST_SHARES)
        shares = LEAST_SHARES;
    if (keeper->pages + pages > all / shares)
        return false;
    if (atomic_fetch_add(&pool->kept, pages) + pages > all) {
        atomic_fetch_sub(&pool->kept, pages);
        return false;
    }
    keeper->pages += pages;
    return true;
}

void page_keeper_give(struct page_keeper *keeper, uint64_t pages)
{
    keeper->pages -= pages;
    atomic_fetch_sub(&keeper->pool->kept, pages);
}
