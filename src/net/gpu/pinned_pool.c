/*
 * Pools of pinned memory, in chunks that members pin when they join. The driver may let a call that
 * pins or frees wait for kernels, which may wait for the traffic of other comms. So no lock is held
 * meanwhile: a member reserves slots, pins them, and then publishes them.
 *
 * Each member has a slot of its own from the start: `reserved` of the unused ones, or one that it
 * pins itself. Slots that others are pinning never count as that one, and leave room for the slots
 * of members that join later.
 */
#include "net/gpu/pinned_pool.h"

#include "base/config.h"
#include "net/link/link.h"

#include <errno.h>
#include <stdlib.h>

enum { MOST_DEVICES = 64, LEAST_SLOTS = 16, PAGE = 4096 };

struct pinned_chunk {
    struct pinned_chunk *next;
    struct gpu_pinned pinned;
    unsigned count;
    struct pinned_slot slots[];
};

/* Guards the table and the `users` of its pools. */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pinned_pool *table[PINNED_BOUNCE + 1][MOST_DEVICES];

/* --- slots --------------------------------------------------------------------------------- */

/* With the lock. */
static void pinned_put(struct pinned_pool *pool, struct pinned_slot *slot)
{
    slot->next = pool->unused;
    pool->unused = slot;
    pool->unused_count++;
}

/* With the lock. The slots that are being pinned count as extra, but for one of each grower. */
static bool pinned_may_take(const struct pinned_share *share)
{
    const struct pinned_pool *pool = share->pool;

    if (share->retired)
        return false;
    if (share->used == 0)
        return true;
    return share->used < share->most && pool->unused_count > pool->reserved &&
           pool->extra + pool->growing - pool->growers < pool->most - pool->most_members;
}

struct pinned_slot *pinned_take(struct pinned_share *share)
{
    struct pinned_pool *pool = share->pool;
    struct pinned_slot *slot = NULL;

    pthread_mutex_lock(&pool->lock);
    if (pinned_may_take(share)) {
        slot = pool->unused;
        pool->unused = slot->next;
        pool->unused_count--;
        if (share->used++ > 0)
            pool->extra++;
        else
            pool->reserved--;
    }
    pthread_mutex_unlock(&pool->lock);
    return slot;
}

/* With the lock. */
static void pinned_drop(struct pinned_share *share)
{
    if (--share->used > 0)
        share->pool->extra--;
    else if (!share->retired)
        share->pool->reserved++;
}

void pinned_give(struct pinned_share *share, struct pinned_slot *slot)
{
    pthread_mutex_lock(&share->pool->lock);
    pinned_put(share->pool, slot);
    pinned_drop(share);
    pthread_mutex_unlock(&share->pool->lock);
}

void pinned_retire(struct pinned_share *share, struct pinned_slot *slot)
{
    (void)slot;
    pthread_mutex_lock(&share->pool->lock);
    share->retired = true;
    share->pool->pinned--;
    pinned_drop(share);
    pthread_mutex_unlock(&share->pool->lock);
}

/* --- the base of bounce memory --------------------------------------------------------------- */

static bool pinned_reaches(gpu_address base, gpu_address start, uint64_t bytes)
{
    const uint64_t REACH = (uint64_t)1 << 32;

    return start >= base && start - base < REACH && bytes <= REACH - (start - base);
}

gpu_address pinned_base(const struct pinned_share *share)
{
    return share->pool->base;
}

bool pinned_base_reaches(const struct pinned_share *share, const struct gpu_memory *memory)
{
    return pinned_reaches(share->pool->base, memory->address, memory->bytes);
}

/* The lower one of both memories, if that reaches both. */
static gpu_address pinned_choose_base(const struct pinned_pool *pool,
                                      const struct gpu_pinned *pinned)
{
    const struct gpu_memory *beside = &pool->beside;

    return beside->bytes > 0 && pinned_reaches(beside->address, pinned->device, pinned->bytes)
               ? beside->address
               : pinned->device;
}

/* --- chunks -------------------------------------------------------------------------------- */

static void pinned_free_chunk(struct pinned_pool *pool, struct pinned_chunk *chunk)
{
    for (unsigned i = 0; i < chunk->count; i++)
        gpu_event_destroy(chunk->slots[i].event);
    gpu_pinned_free(pool->gpu, &chunk->pinned);
    free(chunk);
}

static int pinned_fill_chunk(struct pinned_pool *pool, struct pinned_chunk *chunk, unsigned slots)
{
    int result = gpu_pinned_alloc_near(pool->gpu, slots * pool->slot_bytes,
                                       pool->beside.address + pool->beside.bytes, &chunk->pinned);

    while (result == TCPX_SUCCESS && chunk->count < slots) {
        struct pinned_slot *slot = &chunk->slots[chunk->count];

        slot->host = (uint8_t *)chunk->pinned.host + chunk->count * pool->slot_bytes;
        slot->device = chunk->pinned.device + chunk->count * pool->slot_bytes;
        if (pool->purpose == PINNED_STAGING)
            result = gpu_event_create(pool->gpu, &slot->event);
        chunk->count += result == TCPX_SUCCESS;
    }
    return result;
}

/* Without the lock. */
static int pinned_make_chunk(struct pinned_pool *pool, unsigned slots, struct pinned_chunk **out)
{
    struct pinned_chunk *chunk = calloc(1, sizeof *chunk + slots * sizeof *chunk->slots);
    int result;

    if (chunk == NULL)
        return error_system(ENOMEM, "pinned memory");
    result = pinned_fill_chunk(pool, chunk, slots);
    if (result == TCPX_SUCCESS)
        *out = chunk;
    else
        pinned_free_chunk(pool, chunk);
    return result;
}

/* --- pools --------------------------------------------------------------------------------- */

/* How many slots of which size there are. */
static int pinned_size(struct pinned_pool *pool, uint64_t slot_bytes)
{
    const struct config *config;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    if (pool->purpose == PINNED_BOUNCE) {
        pool->slot_bytes = slot_bytes;
        pool->most = (unsigned)(config->bounce_bytes / slot_bytes);
        pool->most_members = pool->most;
        return pool->most > 0 ? TCPX_SUCCESS
                              : error_set(TCPX_INVALID_ARGUMENT,
                                          "UCCL_TCPX_BOUNCE_BYTES is %llu, and one comm needs %llu",
                                          (unsigned long long)config->bounce_bytes,
                                          (unsigned long long)slot_bytes);
    }
    pool->slot_bytes = NET_HOST_SHARE * config->slice_bytes;
    if (pool->slot_bytes > config->staging_bytes / LEAST_SLOTS)
        pool->slot_bytes = config->staging_bytes / LEAST_SLOTS;
    pool->slot_bytes -= pool->slot_bytes % PAGE;
    pool->most = (unsigned)(config->staging_bytes / pool->slot_bytes);
    pool->most_members = pool->most / 2;
    return TCPX_SUCCESS;
}

static int pinned_create(enum pinned_purpose purpose, int device, uint64_t slot_bytes,
                         const struct gpu_memory *beside, struct pinned_pool **out)
{
    struct pinned_pool *pool = calloc(1, sizeof *pool);
    int result;

    if (pool == NULL)
        return error_system(ENOMEM, "pinned memory");
    pool->purpose = purpose;
    pool->device = device;
    if (beside != NULL)
        pool->beside = *beside;
    result = pinned_size(pool, slot_bytes);
    if (result == TCPX_SUCCESS)
        result = gpu_open(device, &pool->gpu);
    if (result != TCPX_SUCCESS) {
        free(pool);
        return result;
    }
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->grown, NULL);
    *out = pool;
    return TCPX_SUCCESS;
}

static void pinned_destroy(struct pinned_pool *pool)
{
    while (pool->chunks != NULL) {
        struct pinned_chunk *chunk = pool->chunks;

        pool->chunks = chunk->next;
        pinned_free_chunk(pool, chunk);
    }
    gpu_close(pool->gpu);
    pthread_cond_destroy(&pool->grown);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

/* One more user of the pool in the table; of `fresh`, which may be NULL, if there is none. */
static struct pinned_pool *pinned_use(enum pinned_purpose purpose, int device,
                                      struct pinned_pool *fresh)
{
    struct pinned_pool **pool = &table[purpose][device];

    pthread_mutex_lock(&table_lock);
    if (*pool == NULL)
        *pool = fresh;
    fresh = *pool;
    if (fresh != NULL)
        fresh->users++;
    pthread_mutex_unlock(&table_lock);
    return fresh;
}

/* While the last user frees a pool, the next one may make another. */
static void pinned_unuse(struct pinned_pool *pool)
{
    bool is_last;

    pthread_mutex_lock(&table_lock);
    is_last = --pool->users == 0;
    if (is_last)
        table[pool->purpose][pool->device] = NULL;
    pthread_mutex_unlock(&table_lock);
    if (is_last)
        pinned_destroy(pool);
}

static int pinned_find(enum pinned_purpose purpose, int device, uint64_t slot_bytes,
                       const struct gpu_memory *beside, struct pinned_pool **pool)
{
    struct pinned_pool *fresh = NULL;
    int result;

    *pool = pinned_use(purpose, device, NULL);
    if (*pool != NULL)
        return TCPX_SUCCESS;
    result = pinned_create(purpose, device, slot_bytes, beside, &fresh);
    if (result != TCPX_SUCCESS)
        return result;
    *pool = pinned_use(purpose, device, fresh);
    if (*pool != fresh)
        pinned_destroy(fresh);
    return TCPX_SUCCESS;
}

/* --- members ------------------------------------------------------------------------------- */

static int pinned_refuse(const struct pinned_pool *pool)
{
    if (pool->purpose == PINNED_BOUNCE)
        return error_set(TCPX_SYSTEM_ERROR,
                         "the bounce memory of GPU %d is enough for %u comms, and there are as "
                         "many: raise UCCL_TCPX_BOUNCE_BYTES",
                         pool->device, pool->most);
    return error_set(TCPX_SYSTEM_ERROR,
                     "the staging memory of GPU %d is %u slots of %llu bytes, enough for "
                     "%u comms that use it, and there are as many: raise "
                     "UCCL_TCPX_STAGING_BYTES",
                     pool->device, pool->most, (unsigned long long)pool->slot_bytes,
                     pool->most_members);
}

/*
 * With the lock. How many slots the latest member pins: all that it may need, since pinning during
 * traffic could wait for a kernel that waits for that traffic; and one at least, unless an unused
 * one is left for it.
 */
static unsigned pinned_slots_to_add(const struct pinned_pool *pool)
{
    unsigned most_extra = pool->most - pool->most_members;
    unsigned extra = pool->wanted - pool->members;
    unsigned needed = pool->members + (extra < most_extra ? extra : most_extra);

    if (pool->purpose == PINNED_BOUNCE)
        return pool->pinned == 0 ? pool->most : 0;
    if (needed > pool->pinned + pool->growing)
        return needed - pool->pinned - pool->growing;
    return pool->unused_count > pool->reserved ? 0 : 1;
}

static int pinned_reserve(struct pinned_pool *pool, unsigned most, unsigned *slots)
{
    int result = TCPX_SUCCESS;

    pthread_mutex_lock(&pool->lock);
    /* The first member pins all bounce memory, in one piece. */
    while (pool->purpose == PINNED_BOUNCE && pool->growing > 0)
        pthread_cond_wait(&pool->grown, &pool->lock);
    if (pool->members == pool->most_members) {
        result = pinned_refuse(pool);
    } else {
        pool->members++;
        pool->wanted += most;
        *slots = pinned_slots_to_add(pool);
        pool->growing += *slots;
        if (*slots > 0)
            pool->growers++;
        else
            pool->reserved++;
    }
    pthread_mutex_unlock(&pool->lock);
    return result;
}

/* Ends a reservation of `slots`. Without a chunk, the member is none. */
static void pinned_publish(struct pinned_pool *pool, unsigned most, unsigned slots,
                           struct pinned_chunk *chunk)
{
    pthread_mutex_lock(&pool->lock);
    pool->growing -= slots;
    pool->growers--;
    if (chunk != NULL) {
        if (pool->purpose == PINNED_BOUNCE)
            pool->base = pinned_choose_base(pool, &chunk->pinned);
        chunk->next = pool->chunks;
        pool->chunks = chunk;
        for (unsigned i = slots; i-- > 0;)
            pinned_put(pool, &chunk->slots[i]);
        pool->pinned += slots;
        pool->reserved++;
    } else {
        pool->members--;
        pool->wanted -= most;
    }
    pthread_cond_broadcast(&pool->grown);
    pthread_mutex_unlock(&pool->lock);
}

static int pinned_add_member(struct pinned_pool *pool, unsigned most)
{
    struct pinned_chunk *chunk = NULL;
    unsigned slots = 0;
    int result = pinned_reserve(pool, most, &slots);

    if (result != TCPX_SUCCESS || slots == 0)
        return result;
    result = pinned_make_chunk(pool, slots, &chunk);
    pinned_publish(pool, most, slots, chunk);
    return result;
}

int pinned_join(enum pinned_purpose purpose, int device, uint64_t slot_bytes, unsigned most,
                const struct gpu_memory *beside, struct pinned_share *share)
{
    struct pinned_pool *pool;
    int result;

    if (device < 0 || device >= MOST_DEVICES)
        return error_set(TCPX_INVALID_ARGUMENT, "GPU %d: 0 to %d are possible", device,
                         MOST_DEVICES - 1);
    result = pinned_find(purpose, device, slot_bytes, beside, &pool);
    if (result != TCPX_SUCCESS)
        return result;
    result = pinned_add_member(pool, most);
    if (result == TCPX_SUCCESS)
        *share = (struct pinned_share){.pool = pool, .most = most};
    else
        pinned_unuse(pool);
    return result;
}

void pinned_leave(struct pinned_share *share)
{
    struct pinned_pool *pool = share->pool;

    if (pool == NULL)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->members--;
    pool->wanted -= share->most;
    pool->reserved -= !share->retired;
    pthread_mutex_unlock(&pool->lock);
    pinned_unuse(pool);
    share->pool = NULL;
}
