/* Pools of pinned memory, in chunks that are pinned as they are needed. */
#include "net/gpu/pinned_pool.h"

#include "base/config.h"
#include "net/link/link.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

enum { MOST_DEVICES = 64, CHUNK_SLOTS = 16, LEAST_SLOTS = 16, PAGE = 4096 };

struct pinned_chunk {
    struct pinned_chunk *next;
    struct gpu_pinned pinned;
    unsigned count;
    struct pinned_slot slots[];
};

/* Guards the table; a pool lives as long as it has members. Taken before the lock of a pool. */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pinned_pool *table[PINNED_BOUNCE + 1][MOST_DEVICES];

/* --- slots --------------------------------------------------------------------------------- */

static void pinned_free_chunk(struct pinned_pool *pool, struct pinned_chunk *chunk)
{
    for (unsigned i = 0; i < chunk->count; i++)
        gpu_event_destroy(chunk->slots[i].event);
    gpu_pinned_free(pool->gpu, &chunk->pinned);
    free(chunk);
}

static int pinned_fill_chunk(struct pinned_pool *pool, struct pinned_chunk *chunk, unsigned slots)
{
    int result = gpu_pinned_alloc(pool->gpu, slots * pool->slot_bytes, &chunk->pinned);

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

/* With the lock. */
static int pinned_add_chunk(struct pinned_pool *pool)
{
    unsigned slots = pool->most - pool->pinned;
    struct pinned_chunk *chunk;
    int result;

    if (slots > CHUNK_SLOTS && pool->purpose == PINNED_STAGING)
        slots = CHUNK_SLOTS;
    chunk = calloc(1, sizeof *chunk + slots * sizeof *chunk->slots);
    if (chunk == NULL)
        return error_system(ENOMEM, "pinned memory");
    result = pinned_fill_chunk(pool, chunk, slots);
    if (result != TCPX_SUCCESS) {
        pinned_free_chunk(pool, chunk);
        return result;
    }
    for (unsigned i = chunk->count; i-- > 0;) {
        chunk->slots[i].next = pool->unused;
        pool->unused = &chunk->slots[i];
    }
    pool->pinned += chunk->count;
    chunk->next = pool->chunks;
    pool->chunks = chunk;
    return TCPX_SUCCESS;
}

static bool pinned_may_take(const struct pinned_share *share)
{
    const struct pinned_pool *pool = share->pool;

    return share->used == 0 ||
           (share->used < share->most && pool->extra < pool->most - pool->most_members);
}

int pinned_take(struct pinned_share *share, struct pinned_slot **slot)
{
    struct pinned_pool *pool = share->pool;
    int result = TCPX_SUCCESS;

    *slot = NULL;
    pthread_mutex_lock(&pool->lock);
    if (pinned_may_take(share)) {
        if (pool->unused == NULL && pool->pinned < pool->most)
            result = pinned_add_chunk(pool);
        if (result == TCPX_SUCCESS && pool->unused != NULL) {
            *slot = pool->unused;
            pool->unused = (*slot)->next;
            pool->extra += share->used > 0;
            share->used++;
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return result;
}

/* With the lock. */
static void pinned_drop(struct pinned_share *share)
{
    share->used--;
    share->pool->extra -= share->used > 0;
}

void pinned_give(struct pinned_share *share, struct pinned_slot *slot)
{
    struct pinned_pool *pool = share->pool;

    pthread_mutex_lock(&pool->lock);
    slot->next = pool->unused;
    pool->unused = slot;
    pinned_drop(share);
    pthread_mutex_unlock(&pool->lock);
}

void pinned_retire(struct pinned_share *share, struct pinned_slot *slot)
{
    (void)slot;
    pthread_mutex_lock(&share->pool->lock);
    share->pool->pinned--;
    pinned_drop(share);
    pthread_mutex_unlock(&share->pool->lock);
}

gpu_address pinned_base(const struct pinned_share *share)
{
    return share->pool->chunks->pinned.device;
}

/* --- members ------------------------------------------------------------------------------- */

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
                         struct pinned_pool **out)
{
    struct pinned_pool *pool = calloc(1, sizeof *pool);
    int result;

    if (pool == NULL)
        return error_system(ENOMEM, "pinned memory");
    pool->purpose = purpose;
    pool->device = device;
    result = pinned_size(pool, slot_bytes);
    if (result == TCPX_SUCCESS)
        result = gpu_open(device, &pool->gpu);
    if (result != TCPX_SUCCESS) {
        free(pool);
        return result;
    }
    pthread_mutex_init(&pool->lock, NULL);
    *out = pool;
    return TCPX_SUCCESS;
}

/* With the table's lock. */
static void pinned_end_if_unused(struct pinned_pool *pool)
{
    if (pool->members != 0)
        return;
    table[pool->purpose][pool->device] = NULL;
    while (pool->chunks != NULL) {
        struct pinned_chunk *chunk = pool->chunks;

        pool->chunks = chunk->next;
        pinned_free_chunk(pool, chunk);
    }
    gpu_close(pool->gpu);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

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
 * Called with the lock. All slots that the members may need are pinned now: pinning during traffic
 * could wait for a kernel that waits for that traffic.
 */
static int pinned_add_member(struct pinned_pool *pool, unsigned most)
{
    unsigned wanted = pool->wanted + most;
    int result = pool->members == pool->most_members ? pinned_refuse(pool) : TCPX_SUCCESS;

    wanted = wanted < pool->most ? wanted : pool->most;
    while (result == TCPX_SUCCESS && pool->pinned < wanted)
        result = pinned_add_chunk(pool);
    if (result == TCPX_SUCCESS) {
        pool->members++;
        pool->wanted += most;
    }
    return result;
}

int pinned_join(enum pinned_purpose purpose, int device, uint64_t slot_bytes, unsigned most,
                struct pinned_share *share)
{
    struct pinned_pool *pool;
    int result = TCPX_SUCCESS;

    if (device < 0 || device >= MOST_DEVICES)
        return error_set(TCPX_INVALID_ARGUMENT, "GPU %d: 0 to %d are possible", device,
                         MOST_DEVICES - 1);
    pthread_mutex_lock(&table_lock);
    if (table[purpose][device] == NULL)
        result = pinned_create(purpose, device, slot_bytes, &table[purpose][device]);
    pool = table[purpose][device];
    if (result == TCPX_SUCCESS) {
        pthread_mutex_lock(&pool->lock);
        result = pinned_add_member(pool, most);
        pthread_mutex_unlock(&pool->lock);
        pinned_end_if_unused(pool);
    }
    pthread_mutex_unlock(&table_lock);
    if (result == TCPX_SUCCESS)
        *share = (struct pinned_share){.pool = pool, .most = most};
    return result;
}

void pinned_leave(struct pinned_share *share)
{
    struct pinned_pool *pool = share->pool;

    if (pool == NULL)
        return;
    pthread_mutex_lock(&table_lock);
    pthread_mutex_lock(&pool->lock);
    pool->members--;
    pool->wanted -= share->most;
    pthread_mutex_unlock(&pool->lock);
    pinned_end_if_unused(pool);
    pthread_mutex_unlock(&table_lock);
    share->pool = NULL;
}
