/* One pool per GPU, in chunks that are pinned as they are needed. */
#include "net/gpu/staging.h"

#include "base/config.h"
#include "net/link/link.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

enum { MOST_DEVICES = 64, CHUNK_SLOTS = 16, LEAST_SLOTS = 16, PAGE = 4096 };

struct chunk {
    struct chunk *next;
    struct gpu_pinned pinned;
    unsigned count;
    struct staging_slot slots[CHUNK_SLOTS];
};

struct staging {
    pthread_mutex_t lock; /* guards everything but the slots that are taken */
    struct gpu *gpu;
    int device;
    unsigned members;
    uint64_t slot_bytes;
    unsigned most;   /* slots, pinned or not yet; half of them are the sure ones */
    unsigned pinned; /* slots there are */
    unsigned extra;  /* taken by members that had one already */
    unsigned wanted; /* by all members together */
    struct staging_slot *unused;
    struct chunk *chunks;
};

/* Guards the table; a staging lives as long as it has members. */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct staging *table[MOST_DEVICES];

/* --- slots --------------------------------------------------------------------------------- */

static void free_chunk(struct staging *staging, struct chunk *chunk)
{
    for (unsigned i = 0; i < chunk->count; i++)
        gpu_event_destroy(chunk->slots[i].event);
    gpu_pinned_free(staging->gpu, &chunk->pinned);
    free(chunk);
}

/* With the lock. */
static int add_chunk(struct staging *staging)
{
    unsigned wanted = staging->most - staging->pinned;
    struct chunk *chunk = calloc(1, sizeof *chunk);
    int result;

    if (chunk == NULL)
        return error_system(ENOMEM, "staging memory");
    wanted = wanted < CHUNK_SLOTS ? wanted : CHUNK_SLOTS;
    result = gpu_pinned_alloc(staging->gpu, wanted * staging->slot_bytes, GPU_PINNED_PLAIN,
                              &chunk->pinned);
    while (result == TCPX_SUCCESS && chunk->count < wanted) {
        struct staging_slot *slot = &chunk->slots[chunk->count];

        result = gpu_event_create(staging->gpu, GPU_EVENT_PLAIN, &slot->event);
        if (result != TCPX_SUCCESS)
            break;
        slot->host = (uint8_t *)chunk->pinned.host + chunk->count * staging->slot_bytes;
        slot->device = chunk->pinned.device + chunk->count * staging->slot_bytes;
        chunk->count++;
    }
    if (result != TCPX_SUCCESS) {
        free_chunk(staging, chunk);
        return result;
    }
    for (unsigned i = 0; i < chunk->count; i++) {
        chunk->slots[i].next = staging->unused;
        staging->unused = &chunk->slots[i];
    }
    staging->pinned += chunk->count;
    chunk->next = staging->chunks;
    staging->chunks = chunk;
    return TCPX_SUCCESS;
}

static bool may_take(const struct staging_share *share)
{
    const struct staging *staging = share->staging;

    return share->used == 0 ||
           (share->used < share->most && staging->extra < staging->most - staging->most / 2);
}

int staging_take(struct staging_share *share, struct staging_slot **slot)
{
    struct staging *staging = share->staging;
    int result = TCPX_SUCCESS;

    *slot = NULL;
    pthread_mutex_lock(&staging->lock);
    if (may_take(share)) {
        if (staging->unused == NULL && staging->pinned < staging->most)
            result = add_chunk(staging);
        if (result == TCPX_SUCCESS && staging->unused != NULL) {
            *slot = staging->unused;
            staging->unused = (*slot)->next;
            staging->extra += share->used > 0;
            share->used++;
        }
    }
    pthread_mutex_unlock(&staging->lock);
    return result;
}

void staging_give(struct staging_share *share, struct staging_slot *slot)
{
    struct staging *staging = share->staging;

    pthread_mutex_lock(&staging->lock);
    slot->next = staging->unused;
    staging->unused = slot;
    share->used--;
    staging->extra -= share->used > 0;
    pthread_mutex_unlock(&staging->lock);
}

void staging_retire(struct staging_share *share, struct staging_slot *slot)
{
    struct staging *staging = share->staging;

    (void)slot;
    pthread_mutex_lock(&staging->lock);
    staging->pinned--;
    share->used--;
    staging->extra -= share->used > 0;
    pthread_mutex_unlock(&staging->lock);
}

uint64_t staging_slot_bytes(const struct staging_share *share)
{
    return share->staging->slot_bytes;
}

struct gpu *staging_gpu(const struct staging_share *share)
{
    return share->staging->gpu;
}

/* --- members ------------------------------------------------------------------------------- */

static int create(int device, struct staging **out)
{
    const struct config *config;
    struct staging *staging;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    staging = calloc(1, sizeof *staging);
    if (staging == NULL)
        return error_system(ENOMEM, "staging memory");
    staging->device = device;
    staging->slot_bytes = NET_HOST_SHARE * config->slice_bytes;
    if (staging->slot_bytes > config->staging_bytes / LEAST_SLOTS)
        staging->slot_bytes = config->staging_bytes / LEAST_SLOTS;
    staging->slot_bytes -= staging->slot_bytes % PAGE;
    staging->most = (unsigned)(config->staging_bytes / staging->slot_bytes);
    result = gpu_open(device, &staging->gpu);
    if (result != TCPX_SUCCESS) {
        free(staging);
        return result;
    }
    pthread_mutex_init(&staging->lock, NULL);
    *out = staging;
    return TCPX_SUCCESS;
}

static void destroy(struct staging *staging)
{
    while (staging->chunks != NULL) {
        struct chunk *chunk = staging->chunks;

        staging->chunks = chunk->next;
        free_chunk(staging, chunk);
    }
    gpu_close(staging->gpu);
    pthread_mutex_destroy(&staging->lock);
    free(staging);
}

/*
 * With the lock. All of it now, as far as there may be: to pin memory during traffic could wait for
 * a kernel that waits for that traffic.
 */
static int pin_for(struct staging *staging, unsigned more)
{
    unsigned wanted = staging->wanted + more;
    int result = TCPX_SUCCESS;

    wanted = wanted < staging->most ? wanted : staging->most;
    while (staging->pinned < wanted && result == TCPX_SUCCESS)
        result = add_chunk(staging);
    return result;
}

/* With the table's lock. */
static void end_if_unused(struct staging *staging)
{
    if (staging->members != 0)
        return;
    table[staging->device] = NULL;
    destroy(staging);
}

int staging_join(int device, unsigned most, struct staging_share *share)
{
    struct staging *staging;
    int result = TCPX_SUCCESS;

    if (device < 0 || device >= MOST_DEVICES)
        return error_set(TCPX_INVALID_ARGUMENT, "GPU %d: 0 to %d are possible", device,
                         MOST_DEVICES - 1);
    pthread_mutex_lock(&table_lock);
    if (table[device] == NULL)
        result = create(device, &table[device]);
    staging = table[device];
    if (result == TCPX_SUCCESS) {
        pthread_mutex_lock(&staging->lock);
        if (staging->members == staging->most / 2)
            result = error_set(TCPX_SYSTEM_ERROR,
                               "the staging memory of GPU %d is %u slots of %llu bytes, enough for "
                               "%u comms that use it, and there are as many: raise "
                               "UCCL_TCPX_STAGING_BYTES",
                               device, staging->most, (unsigned long long)staging->slot_bytes,
                               staging->most / 2);
        if (result == TCPX_SUCCESS)
            result = pin_for(staging, most);
        if (result == TCPX_SUCCESS) {
            staging->members++;
            staging->wanted += most;
        }
        pthread_mutex_unlock(&staging->lock);
        end_if_unused(staging);
    }
    pthread_mutex_unlock(&table_lock);
    if (result == TCPX_SUCCESS)
        *share = (struct staging_share){.staging = staging, .most = most};
    return result;
}

void staging_leave(struct staging_share *share)
{
    struct staging *staging = share->staging;

    if (staging == NULL)
        return;
    pthread_mutex_lock(&table_lock);
    pthread_mutex_lock(&staging->lock);
    staging->members--;
    staging->wanted -= share->most;
    pthread_mutex_unlock(&staging->lock);
    end_if_unused(staging);
    pthread_mutex_unlock(&table_lock);
    share->staging = NULL;
}
