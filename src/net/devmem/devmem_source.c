/* The list of GPU memory that NICs send from, and its bindings. */
#include "net/devmem/devmem.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/* Guards the list and the bindings in it. Not held over calls of the kernel. */
static pthread_mutex_t sources_lock = PTHREAD_MUTEX_INITIALIZER;
static struct devmem_source *sources;

/* With the lock. The caller ends the binding that it gets; a socket of -1: there is none. */
static struct nic_binding source_take_binding(struct devmem_source *source)
{
    struct nic_binding binding = source->binding;

    source->binding = (struct nic_binding){.socket = -1};
    return binding;
}

static struct nic_binding source_take_next_binding(unsigned ifindex)
{
    struct nic_binding binding = {.socket = -1};

    pthread_mutex_lock(&sources_lock);
    for (struct devmem_source *source = sources; source != NULL && binding.socket < 0;
         source = source->next)
        if (source->binding.socket >= 0 && source->ifindex == ifindex)
            binding = source_take_binding(source);
    pthread_mutex_unlock(&sources_lock);
    return binding;
}

static void source_end_bindings_of(unsigned ifindex)
{
    struct nic_binding binding;

    while ((binding = source_take_next_binding(ifindex)).socket >= 0)
        nic_unbind(&binding);
}

/* Of the interfaces that have sources, the lowest index above `ifindex`; 0: there is none. */
static unsigned source_next_interface(unsigned ifindex)
{
    unsigned next = 0;

    pthread_mutex_lock(&sources_lock);
    for (const struct devmem_source *source = sources; source != NULL; source = source->next)
        if (source->ifindex > ifindex && (next == 0 || source->ifindex < next))
            next = source->ifindex;
    pthread_mutex_unlock(&sources_lock);
    return next;
}

/*
 * If such a binding outlives the driver of its NIC, the kernel may crash when the binding ends (7.2
 * does). So bindings end when the interface is shut down, which comes before; later sends fail.
 */
static void source_end_bindings(unsigned ifindex)
{
    if (ifindex != NIC_WATCH_LOST) {
        source_end_bindings_of(ifindex);
        return;
    }
    while ((ifindex = source_next_interface(ifindex)) != 0)
        if (!nic_watch_is_up(ifindex))
            source_end_bindings_of(ifindex);
}

/* The kernel cannot compute a checksum over memory that it cannot read: packets would be dropped.
 */
static int source_check_checksums(const struct net_device *device)
{
    bool computes;
    int result = nic_computes_checksums(device->name, &computes);

    if (result == TCPX_SUCCESS && !computes)
        return error_set(TCPX_SYSTEM_ERROR,
                         "%s does not compute checksums itself (ethtool -K %s tx on)", device->name,
                         device->name);
    return result;
}

static int source_bind(struct devmem_source *source, struct gpu *gpu)
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
    close(dmabuf); /* the binding holds the memory by itself */
    source->id = source->binding.id;
    return result;
}

int devmem_source_take(const struct net_device *device, struct gpu *gpu, gpu_address address,
                       uint64_t bytes, struct devmem_source **out)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct devmem_source *source;
    int result = source_check_checksums(device);

    if (result != TCPX_SUCCESS)
        return result;
    source = malloc(sizeof *source);
    if (source == NULL)
        return error_system(ENOMEM, "memory to send from");
    *source = (struct devmem_source){.ifindex = (unsigned)device->ifindex,
                                     .start = address / page * page,
                                     .binding = {.socket = -1}};
    source->bytes = (address + bytes + page - 1) / page * page - source->start;
    result = nic_watch_begin(source_end_bindings);
    if (result != TCPX_SUCCESS)
        goto free_source;
    result = source_bind(source, gpu);
    if (result != TCPX_SUCCESS)
        goto end_watch;
    pthread_mutex_lock(&sources_lock);
    source->next = sources;
    source->here = &sources;
    if (source->next != NULL)
        source->next->here = &source->next;
    sources = source;
    pthread_mutex_unlock(&sources_lock);
    *out = source;
    return TCPX_SUCCESS;

end_watch:
    nic_watch_end();
free_source:
    free(source);
    return result;
}

/* Without the lock: nic_watch_end() waits for source_end_bindings(), which takes it. */
void devmem_source_give(struct devmem_source *source)
{
    struct nic_binding binding;

    if (source == NULL)
        return;
    pthread_mutex_lock(&sources_lock);
    *source->here = source->next;
    if (source->next != NULL)
        source->next->here = source->here;
    binding = source_take_binding(source);
    pthread_mutex_unlock(&sources_lock);
    nic_unbind(&binding);
    nic_watch_end();
    free(source);
}
