/* Decides whether a link receives by devmem TCP, and steers its connections. */
#include "net/devmem/devmem.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* --- whether to ---------------------------------------------------------------------------- */

/*
 * NICs that could not be used. Each is reported once, and not tried again for a while: there can be
 * many listeners, and a try takes memory and time.
 */
struct refusal {
    unsigned ifindex;
    int gpu;
    uint64_t until; /* 0: this entry is free */
};

enum { MOST_REFUSALS = 64, RETRY_AFTER_MS = 30000 };

/* Guards `refusals`. */
static pthread_mutex_t refusals_lock = PTHREAD_MUTEX_INITIALIZER;
static struct refusal refusals[MOST_REFUSALS];

/* With the lock. Returns a free entry where there is none for this NIC and GPU; NULL: all are used.
 */
static struct refusal *refusal_find(unsigned ifindex, int gpu)
{
    for (unsigned i = 0; i < MOST_REFUSALS; i++)
        if (refusals[i].until == 0 || (refusals[i].ifindex == ifindex && refusals[i].gpu == gpu))
            return &refusals[i];
    return NULL;
}

static bool refusal_is_recent(const struct net_device *device, int gpu)
{
    struct refusal *refusal;
    bool lately;

    pthread_mutex_lock(&refusals_lock);
    refusal = refusal_find((unsigned)device->ifindex, gpu);
    lately = refusal != NULL && refusal->until != 0 && !deadline_passed(refusal->until);
    pthread_mutex_unlock(&refusals_lock);
    return lately;
}

static void refusal_remember(const struct net_device *device, int gpu)
{
    struct refusal *refusal;
    bool is_new;

    pthread_mutex_lock(&refusals_lock);
    refusal = refusal_find((unsigned)device->ifindex, gpu);
    is_new = refusal == NULL || refusal->until == 0;
    if (refusal != NULL)
        *refusal =
            (struct refusal){(unsigned)device->ifindex, gpu, deadline_after_ms(RETRY_AFTER_MS)};
    pthread_mutex_unlock(&refusals_lock);
    if (is_new)
        log_tcpx("%s receives without devmem TCP: %s", device->name, error_text());
}

int devmem_link_pool(const struct net_device *device, int gpu, struct devmem_pool **pool)
{
    const struct config *config;
    int result = config_get(&config);

    *pool = NULL;
    if (result != TCPX_SUCCESS || gpu < 0 || config->devmem == CONFIG_DEVMEM_OFF ||
        config->soft_devmem != 0 || device->is_loopback)
        return result;
    if (config->devmem == CONFIG_DEVMEM_AUTO && refusal_is_recent(device, gpu))
        return TCPX_SUCCESS;
    result = devmem_pool_take(device, gpu, pool);
    if (result == TCPX_SUCCESS || config->devmem == CONFIG_DEVMEM_ON)
        return result;
    refusal_remember(device, gpu);
    return TCPX_SUCCESS;
}

/* --- steering ------------------------------------------------------------------------------ */

/* How long to wait for another process that changes the NIC's rules. */
enum { PATIENCE_MS = 2000 };

/* To the bytes that fill these pages with packets of this connection: each packet begins a page. */
static void devmem_link_limit_window(int socket, uint64_t pages)
{
    struct tcp_info info = {.tcpi_advmss = 0};
    socklen_t length = sizeof info;
    uint64_t packet;
    uint64_t bytes;
    int window;

    if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 || info.tcpi_advmss == 0)
        return;
    packet = info.tcpi_advmss;
    bytes = pages * packet / ((packet + devmem_page_bytes() - 1) / devmem_page_bytes());
    window = bytes < INT_MAX ? (int)bytes : INT_MAX;
    if (setsockopt(socket, IPPROTO_TCP, TCP_WINDOW_CLAMP, &window, sizeof window) != 0)
        log_debug("a window could not be limited to %d bytes: %s", window, strerror(errno));
}

/* A connection joins the pool once, however often its rule has to be tried. */
static unsigned devmem_link_queue_of_next(struct devmem_link *link, int socket)
{
    uint64_t pages;

    if (link->joined == link->steered) {
        link->queue = devmem_pool_join(link->pool, &pages);
        link->joined++;
        devmem_link_limit_window(socket, pages);
    }
    return link->queue;
}

static int devmem_link_steer_next(struct devmem_link *link, int socket)
{
    const char *interface = link->pool->memory.interface;
    unsigned queue = devmem_link_queue_of_next(link, socket);
    const struct config *config;
    int result = config_get(&config);

    if (result == TCPX_SUCCESS)
        result = steering_begin(interface, socket, queue, link->patience_ends,
                                &link->rules[link->count]);
    if (result == TCPX_IN_PROGRESS)
        return result;
    link->steered++;
    if (result == TCPX_SUCCESS) {
        link->count++;
    } else if (config->devmem != CONFIG_DEVMEM_ON) {
        log_warn("a connection is received without devmem TCP: %s", error_text());
        return TCPX_SUCCESS;
    }
    return result;
}

int devmem_link_open(struct devmem_pool *pool, struct devmem_link **out)
{
    struct devmem_link *link = calloc(1, sizeof *link);

    if (link == NULL)
        return error_system(ENOMEM, "a link");
    link->pool = devmem_pool_share(pool);
    link->patience_ends = deadline_after_ms(PATIENCE_MS);
    *out = link;
    return TCPX_SUCCESS;
}

int devmem_link_steer(struct devmem_link *link, const int *forward, unsigned sockets)
{
    int result = TCPX_SUCCESS;

    while (result == TCPX_SUCCESS && link->steered + 1 < sockets)
        result = devmem_link_steer_next(link, forward[link->steered + 1]);
    return result;
}

void devmem_link_close(struct devmem_link *link)
{
    if (link == NULL)
        return;
    for (unsigned i = 0; i < link->count; i++)
        steering_end(link->pool->memory.interface, &link->rules[i]);
    devmem_pool_leave(link->pool, link->joined);
    devmem_pool_give(link->pool);
    free(link);
}
