/* The pools of this process and their users, and the sockets that receive into them. */
#include "net/devmem/devmem.h"

#include "net/devmem/devmem_queues.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * Guards the list, and what devmem.h says of a pool. Not held while a pool is opened or closed,
 * which may wait for the driver of the NIC or of the GPU, or for another process.
 */
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t pool_changed = PTHREAD_COND_INITIALIZER; /* one was opened or closed */
static struct devmem_pool *pools;

/* Written before there is a second thread. NULL in a library that is shipped. */
static const struct devmem_pool_ops *soft_ops;

/* --- the list -------------------------------------------------------------------------------- */

static int devmem_pool_open(struct devmem_pool *pool)
{
    int result = gpu_open(pool->gpu, &pool->memory.gpu);

    if (result != TCPX_SUCCESS)
        return result;
    result = pool->ops->open(&pool->memory);
    if (result != TCPX_SUCCESS)
        gpu_close(pool->memory.gpu);
    return result;
}

/* With the lock. */
static void devmem_pool_unlist(struct devmem_pool *pool)
{
    struct devmem_pool **at = &pools;

    while (*at != pool)
        at = &(*at)->next;
    *at = pool->next;
    pthread_cond_broadcast(&pool_changed);
    free(pool);
}

/*
 * With the lock. The pool if there is one. Waits while a pool of this NIC is opened or closed: it
 * may be the one, or have the queues that another one needs.
 */
static struct devmem_pool *devmem_pool_find(const struct devmem_pool *wanted)
{
    struct devmem_pool *pool = pools;

    while (pool != NULL) {
        if (pool->memory.ifindex == wanted->memory.ifindex && pool->changing) {
            pthread_cond_wait(&pool_changed, &pools_lock);
            pool = pools;
        } else if (pool->memory.ifindex == wanted->memory.ifindex && pool->gpu == wanted->gpu) {
            return pool;
        } else {
            pool = pool->next;
        }
    }
    return NULL;
}

/* With the lock, which is free while the pool is opened. */
static int devmem_pool_create(const struct devmem_pool *wanted, struct devmem_pool **out)
{
    struct devmem_pool *pool = malloc(sizeof *pool);
    int result;

    if (pool == NULL)
        return error_system(ENOMEM, "a pool to receive into");
    *pool = *wanted;
    pool->changing = true;
    pool->next = pools;
    pools = pool;
    pthread_mutex_unlock(&pools_lock);
    result = devmem_pool_open(pool);
    pthread_mutex_lock(&pools_lock);
    if (result != TCPX_SUCCESS) {
        devmem_pool_unlist(pool);
        return result;
    }
    pool->changing = false;
    pthread_cond_broadcast(&pool_changed);
    *out = pool;
    return TCPX_SUCCESS;
}

static int devmem_pool_take_any(const struct devmem_pool *wanted, struct devmem_pool **out)
{
    struct devmem_pool *pool;
    int result = TCPX_SUCCESS;

    pthread_mutex_lock(&pools_lock);
    pool = devmem_pool_find(wanted);
    if (pool == NULL)
        result = devmem_pool_create(wanted, &pool);
    if (result == TCPX_SUCCESS) {
        pool->users++;
        *out = pool;
    }
    pthread_mutex_unlock(&pools_lock);
    return result;
}

int devmem_pool_take(const struct net_device *device, int gpu, struct devmem_pool **pool)
{
    struct devmem_pool wanted = {
        .ops = &devmem_queues_ops, .gpu = gpu, .memory.ifindex = (unsigned)device->ifindex};

    if (device->is_loopback || device->ifindex <= 0)
        return error_set(TCPX_INVALID_USAGE, "%s is no NIC", device->name);
    memcpy(wanted.memory.interface, device->name, sizeof wanted.memory.interface);
    return devmem_pool_take_any(&wanted, pool);
}

int devmem_pool_take_soft(int gpu, struct devmem_pool **pool)
{
    if (soft_ops == NULL)
        return error_set(TCPX_INVALID_USAGE, "this build has no software devmem");
    return devmem_pool_take_any(&(struct devmem_pool){.ops = soft_ops, .gpu = gpu}, pool);
}

void devmem_pool_set_soft(const struct devmem_pool_ops *ops)
{
    soft_ops = ops;
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
        pool->changing = true;
        pthread_mutex_unlock(&pools_lock);
        pool->ops->close(&pool->memory);
        gpu_close(pool->memory.gpu);
        pthread_mutex_lock(&pools_lock);
        devmem_pool_unlist(pool);
    }
    pthread_mutex_unlock(&pools_lock);
}

/* --- what a pool is -------------------------------------------------------------------------- */

int devmem_pool_gpu(const struct devmem_pool *pool)
{
    return pool->gpu;
}

uint64_t devmem_page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* --- connections of a NIC's pool ------------------------------------------------------------- */

/*
 * A quarter of the pages for the first connections, less and less for later ones: for a hundred
 * connections the sum stays below all pages. Rings, and what is being unpacked, have the rest.
 * Otherwise packets behind a lost one could take every page, and the lost one would never get in.
 */
unsigned devmem_pool_join(struct devmem_pool *pool, uint64_t *pages)
{
    enum { FIRST = 4, PART = 4 };
    unsigned connections;

    pthread_mutex_lock(&pools_lock);
    connections = ++pool->connections;
    pthread_mutex_unlock(&pools_lock);
    *pages = pool->memory.memory.bytes / devmem_page_bytes() / PART /
             (connections < FIRST ? FIRST : connections);
    return pool->ops->next_queue(&pool->memory);
}

void devmem_pool_leave(struct devmem_pool *pool, unsigned connections)
{
    pthread_mutex_lock(&pools_lock);
    pool->connections -= connections;
    pthread_mutex_unlock(&pools_lock);
}

void devmem_pool_unbind(struct devmem_pool *pool)
{
    if (pool->ops->unbind != NULL)
        pool->ops->unbind(&pool->memory);
}

/* --- sockets --------------------------------------------------------------------------------- */

int devmem_socket_open(struct devmem_pool *pool, int fd, struct devmem_socket *socket)
{
    int result = TCPX_SUCCESS;

    *socket = (struct devmem_socket){.ops = pool->ops, .fd = fd};
    if (pool->ops->open_socket != NULL)
        result = pool->ops->open_socket(&pool->memory, socket);
    if (result != TCPX_SUCCESS)
        socket->ops = NULL;
    return result;
}

void devmem_socket_close(struct devmem_socket *socket)
{
    if (socket->ops != NULL && socket->ops->close_socket != NULL)
        socket->ops->close_socket(socket);
}

uint64_t devmem_socket_starved(const struct devmem_socket *socket)
{
    return socket->ops->starved != NULL ? socket->ops->starved(socket) : 0;
}

bool devmem_socket_return(struct devmem_socket *socket, const struct token_list *tokens)
{
    struct devmem_token_range batch[DEVMEM_DONTNEED_MAX_RANGES];
    struct token_cursor cursor = {.range = 0};
    uint32_t count;
    unsigned ranges;

    while ((ranges = token_list_batch(tokens, &cursor, batch, &count)) > 0) {
        if (socket->ops->return_tokens(socket, batch, ranges) != (int)count)
            return false;
        socket->tokens_back += count;
    }
    return true;
}
