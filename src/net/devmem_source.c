/* The memory of this process that NICs send from. */
#include "net/devmem_source.h"

#include "base/log.h"
#include "net/nic_binding.h"
#include "net/nic_watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { PAGE = 4096 };

struct devmem_source {
    struct devmem_source *next;
    unsigned users;
    unsigned ifindex;
    gpu_address start; /* whole pages */
    uint64_t bytes;
    struct nic_binding binding;
    uint32_t id; /* of the binding, also when it has ended */
};

/* Guards the list and all its members. */
static pthread_mutex_t sources_lock = PTHREAD_MUTEX_INITIALIZER;
static struct devmem_source *sources;

/*
 * A kernel that still has such a binding when the driver of its NIC goes may crash as soon as the
 * binding ends (7.2 does). So they end when the interface is shut down, which comes before; sends
 * that follow fail.
 */
static void end_bindings(unsigned ifindex)
{
    pthread_mutex_lock(&sources_lock);
    for (struct devmem_source *source = sources; source != NULL; source = source->next)
        if (source->ifindex == ifindex)
            nic_unbind(&source->binding);
    pthread_mutex_unlock(&sources_lock);
}

static int bind_source(struct devmem_source *source, struct gpu *gpu)
{
    int dmabuf = -1;
    bool receives;
    bool sends;
    int result = nic_kernel_binds(&receives, &sends);

    if (result == TCPX_SUCCESS && !sends)
        return error_set(TCPX_SYSTEM_ERROR,
                         "this kernel cannot send from device memory (Linux 6.16 can)");
    if (result == TCPX_SUCCESS)
        result = gpu_export_dmabuf(gpu, source->start, source->bytes, &dmabuf);
    if (result != TCPX_SUCCESS)
        return result;
    result = nic_bind_send(source->ifindex, dmabuf, &source->binding, NULL);
    close(dmabuf); /* the binding has its own hold of the memory */
    source->id = source->binding.id;
    return result;
}

static int make(const struct devmem_source *wanted, struct gpu *gpu, struct devmem_source **out)
{
    struct devmem_source *source = malloc(sizeof *source);
    int result;

    if (source == NULL)
        return error_system(ENOMEM, "memory to send from");
    *source = *wanted;
    result = bind_source(source, gpu);
    if (result != TCPX_SUCCESS) {
        free(source);
        return result;
    }
    source->next = sources;
    sources = source;
    *out = source;
    return TCPX_SUCCESS;
}

static int take(const struct net_device *device, struct gpu *gpu, gpu_address address,
                uint64_t bytes, struct devmem_source **out)
{
    struct devmem_source wanted = {.ifindex = (unsigned)device->ifindex,
                                   .start = address / PAGE * PAGE,
                                   .binding = {.socket = -1}};
    struct devmem_source *source;
    int result = TCPX_SUCCESS;

    wanted.bytes = (address + bytes + PAGE - 1) / PAGE * PAGE - wanted.start;
    pthread_mutex_lock(&sources_lock);
    for (source = sources; source != NULL; source = source->next)
        if (source->ifindex == wanted.ifindex && source->start == wanted.start &&
            source->bytes == wanted.bytes && source->binding.socket >= 0)
            break;
    if (source == NULL)
        result = make(&wanted, gpu, &source);
    if (result == TCPX_SUCCESS) {
        source->users++;
        *out = source;
    }
    pthread_mutex_unlock(&sources_lock);
    return result;
}

/* The lock is free when the watch ends: that waits for whoever has seen something. */
int devmem_source_take(const struct net_device *device, struct gpu *gpu, gpu_address address,
                       uint64_t bytes, struct devmem_source **source)
{
    int result = nic_watch_begin(end_bindings);

    if (result != TCPX_SUCCESS)
        return result;
    result = take(device, gpu, address, bytes, source);
    if (result != TCPX_SUCCESS)
        nic_watch_end();
    return result;
}

void devmem_source_give(struct devmem_source *source)
{
    bool last;

    if (source == NULL)
        return;
    pthread_mutex_lock(&sources_lock);
    last = --source->users == 0;
    if (last) {
        struct devmem_source **at = &sources;

        while (*at != source)
            at = &(*at)->next;
        *at = source->next;
        nic_unbind(&source->binding);
    }
    pthread_mutex_unlock(&sources_lock);
    nic_watch_end();
    if (last)
        free(source);
}

uint32_t devmem_source_id(const struct devmem_source *source)
{
    return source->id;
}

uint64_t devmem_source_offset(const struct devmem_source *source, gpu_address address)
{
    return address - source->start;
}
