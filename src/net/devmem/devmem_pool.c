/* The pools of this process, and the sockets that receive into them. */
#include "net/devmem/devmem_pool.h"

#include "base/config.h"
#include "base/log.h"
#include "net/devmem/devmem_queues.h"
#include "net/devmem/soft_devmem.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whole 2 MiB pages of the GPU, so that the NIC is told few and large pieces. */
enum { ALIGNMENT = 2 << 20, SOFT_MOST = 64 << 20 };

struct devmem_pool {
    struct devmem_pool *next;
    unsigned users;
    int gpu_index;
    struct gpu *gpu;
    struct soft_devmem_pool *soft; /* or else a NIC's: */
    unsigned ifindex;
    char interface[IFNAMSIZ];
    struct gpu_memory memory;
    struct devmem_queues *queues;
    unsigned connections; /* that arrive there */
};

/* Guards the list, and what its members say of their users. */
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static struct devmem_pool *pools;

/* --- software -------------------------------------------------------------------------------- */

/* The seed also chooses what kind of NIC it is. */
static struct soft_devmem_options nic_of(const struct config *config)
{
    static const uint32_t largest[] = {0, 1448, 2048, 300};
    uint64_t seed = config->soft_devmem;
    /* It has no rings to fill, and goes through its pages at random. */
    uint64_t bytes = config->devmem_bytes < SOFT_MOST ? config->devmem_bytes : SOFT_MOST;

    return (struct soft_devmem_options){.seed = seed,
                                        .pool_bytes = bytes / 4096 * 4096,
                                        .largest_fragment = largest[seed % 4],
                                        .full_percent = 60,
                                        .fragments_per_page = 1 + (uint32_t)(seed / 4 % 2),
                                        .unaligned_percent = 20,
                                        .linear_percent = 2,
                                        .plain_percent = 1};
}

/* --- a NIC's --------------------------------------------------------------------------------- */

static int bind_to_queues(struct devmem_pool *pool)
{
    int dmabuf = -1;
    int result = gpu_export_dmabuf(pool->gpu, pool->memory.address, pool->memory.bytes, &dmabuf);

    if (result != TCPX_SUCCESS)
        return result;
    result = devmem_queues_bind(pool->interface, pool->ifindex, dmabuf, &pool->queues);
    close(dmabuf); /* the binding has its own hold of the memory */
    return result;
}

static int open_nic_pool(struct devmem_pool *pool, const struct config *config)
{
    uint64_t bytes = (config->devmem_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    /* What is said to be missing is asked for before anything is changed or allocated. */
    int result = devmem_queues_possible(pool->interface);

    if (result == TCPX_SUCCESS)
        result = gpu_memory_alloc(pool->gpu, bytes, ALIGNMENT, &pool->memory);
    if (result != TCPX_SUCCESS)
        return result;
    result = bind_to_queues(pool);
    if (result != TCPX_SUCCESS)
        gpu_memory_free(pool->gpu, &pool->memory);
    return result;
}

/* --- the list -------------------------------------------------------------------------------- */

static int open_pool(struct devmem_pool *pool)
{
    const struct config *config;
    int result = config_get(&config);

    if (result == TCPX_SUCCESS)
        result = gpu_open(pool->gpu_index, &pool->gpu);
    if (result != TCPX_SUCCESS)
        return result;
    if (pool->ifindex != 0) {
        result = open_nic_pool(pool, config);
    } else {
        const struct soft_devmem_options nic = nic_of(config);

        result = soft_devmem_pool_create(pool->gpu, &nic, &pool->soft);
    }
    if (result != TCPX_SUCCESS)
        gpu_close(pool->gpu);
    return result;
}

static void close_pool(struct devmem_pool *pool)
{
    if (pool->soft != NULL) {
        soft_devmem_pool_destroy(pool->soft);
    } else {
        devmem_queues_release(pool->queues);
        gpu_memory_free(pool->gpu, &pool->memory);
    }
    gpu_close(pool->gpu);
    free(pool);
}

static int make(const struct devmem_pool *wanted, struct devmem_pool **out)
{
    struct devmem_pool *pool = malloc(sizeof *pool);
    int result;

    if (pool == NULL)
        return error_system(ENOMEM, "a pool to receive into");
    *pool = *wanted;
    result = open_pool(pool);
    if (result != TCPX_SUCCESS) {
        free(pool);
        return result;
    }
    pool->next = pools;
    pools = pool;
    *out = pool;
    return TCPX_SUCCESS;
}

static int take(const struct devmem_pool *wanted, struct devmem_pool **out)
{
    struct devmem_pool *pool;
    int result = TCPX_SUCCESS;

    pthread_mutex_lock(&pools_lock);
    for (pool = pools; pool != NULL; pool = pool->next)
        if (pool->gpu_index == wanted->gpu_index && pool->ifindex == wanted->ifindex)
            break;
    if (pool == NULL)
        result = make(wanted, &pool);
    if (result == TCPX_SUCCESS) {
        pool->users++;
        *out = pool;
    }
    pthread_mutex_unlock(&pools_lock);
    return result;
}

int devmem_pool_take_soft(int gpu, struct devmem_pool **pool)
{
    return take(&(struct devmem_pool){.gpu_index = gpu}, pool);
}

int devmem_pool_take(const struct net_device *device, int gpu, struct devmem_pool **pool)
{
    struct devmem_pool wanted = {.gpu_index = gpu, .ifindex = (unsigned)device->ifindex};

    if (device->is_loopback || device->ifindex <= 0)
        return error_set(TCPX_INVALID_USAGE, "%s is no NIC", device->name);
    memcpy(wanted.interface, device->name, sizeof wanted.interface);
    return take(&wanted, pool);
}

struct devmem_pool *devmem_pool_share(struct devmem_pool *pool)
{
    pthread_mutex_lock(&pools_lock);
    pool->users++;
    pthread_mutex_unlock(&pools_lock);
    return pool;
}

void devmem_pool_give(struct devmem_pool *pool)
{
    if (pool == NULL)
        return;
    pthread_mutex_lock(&pools_lock);
    if (--pool->users == 0) {
        struct devmem_pool **at = &pools;

        while (*at != pool)
            at = &(*at)->next;
        *at = pool->next;
        close_pool(pool);
    }
    pthread_mutex_unlock(&pools_lock);
}

int devmem_pool_gpu(const struct devmem_pool *pool)
{
    return pool->gpu_index;
}

const struct gpu_memory *devmem_pool_memory(const struct devmem_pool *pool)
{
    return pool->soft != NULL ? soft_devmem_pool_memory(pool->soft) : &pool->memory;
}

uint64_t devmem_page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

uint32_t devmem_pool_id(const struct devmem_pool *pool)
{
    return pool->soft != NULL ? soft_devmem_pool_id(pool->soft) : devmem_queues_id(pool->queues);
}

const char *devmem_pool_interface(const struct devmem_pool *pool)
{
    return pool->soft != NULL ? NULL : pool->interface;
}

/*
 * A quarter of the pages for the first ones, less and less for later ones: the sum stays below all
 * for a hundred. Rings, and what is being unpacked, have the rest. Otherwise packets behind a lost
 * one could take every page, and the lost one would never get in.
 */
unsigned devmem_pool_join(struct devmem_pool *pool, uint64_t *pages)
{
    enum { FIRST = 4, PART = 4 };
    unsigned connections;

    pthread_mutex_lock(&pools_lock);
    connections = ++pool->connections;
    pthread_mutex_unlock(&pools_lock);
    *pages = pool->memory.bytes / devmem_page_bytes() / PART /
             (connections < FIRST ? FIRST : connections);
    return devmem_queues_next(pool->queues);
}

void devmem_pool_leave(struct devmem_pool *pool, unsigned connections)
{
    pthread_mutex_lock(&pools_lock);
    pool->connections -= connections;
    pthread_mutex_unlock(&pools_lock);
}

void devmem_pool_unbind(struct devmem_pool *pool)
{
    pthread_mutex_lock(&pools_lock);
    if (pool->queues != NULL)
        devmem_queues_unbind(pool->queues);
    pthread_mutex_unlock(&pools_lock);
}

int devmem_pool_count_out(struct devmem_pool *pool, uint64_t *out)
{
    *out = 0;
    return pool->soft != NULL ? TCPX_SUCCESS : devmem_queues_count_out(pool->queues, out);
}

/* --- sockets --------------------------------------------------------------------------------- */

struct devmem_socket {
    int fd;
    struct soft_devmem *soft;
};

int devmem_socket_open(struct devmem_pool *pool, int fd, struct devmem_socket **out)
{
    struct devmem_socket *socket = malloc(sizeof *socket);
    int result = TCPX_SUCCESS;

    if (socket == NULL)
        return error_system(ENOMEM, "a devmem socket");
    *socket = (struct devmem_socket){.fd = fd};
    if (pool->soft != NULL)
        result = soft_devmem_open(pool->soft, fd, &socket->soft);
    if (result != TCPX_SUCCESS) {
        free(socket);
        return result;
    }
    *out = socket;
    return TCPX_SUCCESS;
}

void devmem_socket_close(struct devmem_socket *socket)
{
    if (socket == NULL)
        return;
    soft_devmem_close(socket->soft);
    free(socket);
}

ssize_t devmem_socket_receive(struct devmem_socket *socket, struct msghdr *message, int flags)
{
    return socket->soft != NULL ? soft_devmem_recvmsg(socket->soft, message, flags)
                                : recvmsg(socket->fd, message, flags);
}

int devmem_socket_return(struct devmem_socket *socket, const struct devmem_token_range *ranges,
                         unsigned count)
{
    if (socket->soft != NULL)
        return soft_devmem_dontneed(socket->soft, ranges, count);
    return setsockopt(socket->fd, SOL_SOCKET, DEVMEM_SO_DONTNEED, ranges,
                      (socklen_t)(count * sizeof *ranges));
}

uint64_t devmem_socket_starved(const struct devmem_socket *socket)
{
    struct soft_devmem_statistics statistics;

    if (socket->soft == NULL)
        return 0;
    soft_devmem_get_statistics(socket->soft, &statistics);
    return statistics.starved;
}
