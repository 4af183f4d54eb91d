/* One allocation per GPU, cut into regions of one size; it lives as long as one is taken. */
#include "net/gpu/bounce.h"

#include "base/config.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

enum { MOST_DEVICES = 64 };

struct bounce {
    struct gpu *gpu;
    int device;
    struct gpu_pinned pinned;
    uint64_t region_bytes;
    unsigned regions;
    unsigned taken;
    bool is_taken[];
};

/* Guards the table and all that hangs on it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct bounce *table[MOST_DEVICES];

static int create(int device, uint64_t region_bytes, struct bounce **out)
{
    const struct config *config;
    struct bounce *bounce;
    unsigned regions;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    regions = (unsigned)(config->bounce_bytes / region_bytes);
    if (regions == 0)
        return error_set(
            TCPX_INVALID_ARGUMENT, "UCCL_TCPX_BOUNCE_BYTES is %llu, and one comm needs %llu",
            (unsigned long long)config->bounce_bytes, (unsigned long long)region_bytes);
    bounce = calloc(1, sizeof *bounce + regions * sizeof *bounce->is_taken);
    if (bounce == NULL)
        return error_system(ENOMEM, "bounce memory");
    bounce->device = device;
    bounce->region_bytes = region_bytes;
    bounce->regions = regions;
    result = gpu_open(device, &bounce->gpu);
    if (result == TCPX_SUCCESS)
        result = gpu_pinned_alloc(bounce->gpu, regions * region_bytes, GPU_PINNED_PLAIN,
                                  &bounce->pinned);
    if (result != TCPX_SUCCESS) {
        gpu_close(bounce->gpu);
        free(bounce);
        return result;
    }
    *out = bounce;
    return TCPX_SUCCESS;
}

static int take_from(struct bounce *bounce, struct bounce_region *region)
{
    unsigned number = 0;

    while (number < bounce->regions && bounce->is_taken[number])
        number++;
    if (number == bounce->regions)
        return error_set(TCPX_SYSTEM_ERROR,
                         "the bounce memory of GPU %d is enough for %u comms, and there are as "
                         "many: raise UCCL_TCPX_BOUNCE_BYTES",
                         bounce->device, bounce->regions);
    bounce->is_taken[number] = true;
    bounce->taken++;
    *region = (struct bounce_region){.bounce = bounce,
                                     .number = number,
                                     .offset = number * bounce->region_bytes,
                                     .bytes = bounce->region_bytes};
    region->host = (uint8_t *)bounce->pinned.host + region->offset;
    region->device = bounce->pinned.device + region->offset;
    return TCPX_SUCCESS;
}

int bounce_take(int device, uint64_t bytes, struct bounce_region *region)
{
    int result = TCPX_SUCCESS;

    if (device < 0 || device >= MOST_DEVICES)
        return error_set(TCPX_INVALID_ARGUMENT, "GPU %d: 0 to %d are possible", device,
                         MOST_DEVICES - 1);
    pthread_mutex_lock(&lock);
    if (table[device] == NULL)
        result = create(device, bytes, &table[device]);
    if (result == TCPX_SUCCESS)
        result = take_from(table[device], region);
    pthread_mutex_unlock(&lock);
    return result;
}

void bounce_give(struct bounce_region *region)
{
    struct bounce *bounce = region->bounce;

    if (bounce == NULL)
        return;
    pthread_mutex_lock(&lock);
    bounce->is_taken[region->number] = false;
    if (--bounce->taken == 0) {
        table[bounce->device] = NULL;
        gpu_pinned_free(bounce->gpu, &bounce->pinned);
        gpu_close(bounce->gpu);
        free(bounce);
    }
    pthread_mutex_unlock(&lock);
    region->bounce = NULL;
}

gpu_address bounce_base(const struct bounce_region *region)
{
    return region->device - region->offset;
}
