/* Which paths there are, how one is connected, and which have failed before. */
#include "net/link/path.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* --- addresses ----------------------------------------------------------------------------- */

static bool path_is_loopback(const struct sockaddr_storage *address)
{
    union socket_address any = {.storage = *address};

    return address->ss_family == AF_INET ? (ntohl(any.ipv4.sin_addr.s_addr) >> 24) == 127
                                         : IN6_IS_ADDR_LOOPBACK(&any.ipv6.sin6_addr);
}

static bool path_is_link_local(const struct sockaddr_storage *address)
{
    union socket_address any = {.storage = *address};

    return address->ss_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&any.ipv6.sin6_addr);
}

static bool path_is_in_subnet(const struct net_device *device,
                              const struct sockaddr_storage *address)
{
    return device->prefix_bits > 0 &&
           socket_has_same_bits(&device->address, address, device->prefix_bits);
}

static const struct net_device *path_find_device(const struct net_link_options *options,
                                                 const struct sockaddr_storage *address)
{
    for (int i = 0; i < options->device_count; i++)
        if (socket_is_same_host(&options->devices[i].address, address))
            return &options->devices[i];
    return NULL;
}

bool path_is_same(const struct path *one, const struct path *other)
{
    return socket_is_same_host(&one->target, &other->target) &&
           socket_is_same_host(&one->device.address, &other->device.address);
}

/* --- paths that have failed ---------------------------------------------------------------- */

enum { MOST_KNOWN = 64 };

/* After this time a path is tried again. */
#define KNOWN_NS 60000000000u

struct known_path {
    struct sockaddr_storage from;
    struct sockaddr_storage to;
    uint64_t until;
};

/* Guards the table, in which the oldest entry is replaced. */
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;
static struct known_path known[MOST_KNOWN];
static unsigned known_next;

/* With the lock. */
static bool path_find_known(const struct path *path)
{
    uint64_t now = clock_now();

    for (int i = 0; i < MOST_KNOWN; i++)
        if (known[i].until > now && socket_is_same_host(&known[i].from, &path->device.address) &&
            socket_is_same_host(&known[i].to, &path->target))
            return true;
    return false;
}

static bool path_has_failed_before(const struct path *path)
{
    bool found;

    pthread_mutex_lock(&known_lock);
    found = path_find_known(path);
    pthread_mutex_unlock(&known_lock);
    return found;
}

/* False: it was known. */
static bool path_remember(const struct path *path)
{
    bool is_new;

    pthread_mutex_lock(&known_lock);
    is_new = !path_find_known(path);
    if (is_new)
        known[known_next++ % MOST_KNOWN] =
            (struct known_path){path->device.address, path->target, clock_now() + KNOWN_NS};
    pthread_mutex_unlock(&known_lock);
    return is_new;
}

/* --- the list ------------------------------------------------------------------------------ */

struct path_list {
    struct path *paths;
    unsigned count;
};

/* `device` is NULL: the route decides. */
static void path_add(struct path_list *list, const struct net_device *device,
                     const struct sockaddr_storage *target)
{
    struct path *path = &list->paths[list->count];

    for (unsigned i = 0; i < list->count; i++)
        if (socket_is_same_host(&list->paths[i].target, target) &&
            (device == NULL
                 ? list->paths[i].is_routed
                 : socket_is_same_host(&list->paths[i].device.address, &device->address)))
            return;
    if (list->count == PATHS_MOST)
        return;
    *path = (struct path){.is_routed = device == NULL, .target = *target, .probe = -1};
    if (device != NULL)
        path->device = *device;
    list->count++;
}

/* A link-local address is reached through an interface that is named, not by a route. */
static void path_add_routed(struct path_list *list, const struct net_link_options *options,
                            const struct sockaddr_storage *target)
{
    if (!path_is_link_local(target))
        path_add(list, NULL, target);
    for (int i = 0; i < options->device_count && path_is_link_local(target); i++)
        path_add(list, &options->devices[i], target);
}

/* Those that have failed before come last, in the same order. */
static void path_list_sort(struct path_list *list)
{
    unsigned good = 0;

    for (unsigned i = 0; i < list->count; i++) {
        struct path path = list->paths[i];

        if (!path.is_routed && path_has_failed_before(&path))
            continue;
        memmove(&list->paths[good + 1], &list->paths[good], (i - good) * sizeof path);
        list->paths[good++] = path;
    }
}

/*
 * The targets: the first address of the handle and, if they are not addresses of this host that the
 * peer's host has as well, the others.
 */
static unsigned paths_list_targets(const struct net_link_options *options,
                                   const struct net_handle *handle,
                                   struct sockaddr_storage targets[1 + NET_HANDLE_OTHERS])
{
    bool is_local = path_find_device(options, &handle->address) != NULL;
    unsigned count = 1;

    targets[0] = handle->address;
    for (unsigned i = 0; i < handle->other_count; i++)
        if (is_local || path_find_device(options, &handle->others[i]) == NULL)
            targets[count++] = handle->others[i];
    return count;
}

unsigned paths_list(const struct net_device *device, const struct net_link_options *options,
                    const struct net_handle *handle, struct path paths[PATHS_MOST])
{
    static const struct net_device any;
    struct path_list list = {.paths = paths};
    struct sockaddr_storage targets[1 + NET_HANDLE_OTHERS];
    unsigned count = paths_list_targets(options, handle, targets);

    if (device == NULL) {
        for (unsigned i = 0; i < count; i++)
            path_add(&list, &any, &targets[i]);
        return list.count;
    }
    for (unsigned i = 0; i < count; i++)
        if (path_is_in_subnet(device, &targets[i]))
            path_add(&list, device, &targets[i]);
    for (int i = 0; i < options->device_count; i++)
        if (path_is_in_subnet(&options->devices[i], &targets[0]))
            path_add(&list, &options->devices[i], &targets[0]);
    for (unsigned i = 0; i < count; i++)
        if (i == 0 || device->address.ss_family == targets[i].ss_family)
            path_add(&list, device, &targets[i]);
    for (unsigned i = 0; i < count && options->device_count > 1; i++)
        path_add_routed(&list, options, &targets[i]);
    path_list_sort(&list);
    return list.count;
}

/* --- connecting ---------------------------------------------------------------------------- */

/* Binds to the device's address, so that the route leads over it; not from loopback to elsewhere.
 */
static int path_bind(const struct path *path, int fd)
{
    const struct sockaddr_storage *address = &path->device.address;

    if (address->ss_family != path->target.ss_family ||
        path_is_loopback(address) != path_is_loopback(&path->target) ||
        path_is_link_local(address) != path_is_link_local(&path->target))
        return TCPX_SUCCESS;
    if (bind(fd, (const struct sockaddr *)address, socket_address_length(address)) != 0)
        return error_system(errno, "cannot leave through %s", path->device.name);
    return TCPX_SUCCESS;
}

/* The scope in a handle is an interface of the peer's; here it is the device's. */
static struct sockaddr_storage path_target(const struct path *path)
{
    union socket_address target = {.storage = path->target};

    if (path_is_link_local(&path->target) && path->device.ifindex != 0)
        target.ipv6.sin6_scope_id = (uint32_t)path->device.ifindex;
    return target.storage;
}

/* Only devices are used: a user may have named them. */
static int path_find_route(struct path *path, const struct net_link_options *options, int fd)
{
    struct sockaddr_storage source = {0};
    socklen_t length = sizeof source;
    const struct net_device *device;
    char name[SOCKET_NAME_BYTES];

    if (getsockname(fd, (struct sockaddr *)&source, &length) != 0)
        return error_system(errno, "an address to connect from");
    device = path_find_device(options, &source);
    if (device == NULL) {
        socket_host_name(&source, name);
        return error_set(TCPX_SYSTEM_ERROR, "its route leaves from %s, which no device has", name);
    }
    path->device = *device;
    if (path_has_failed_before(path))
        return error_set(TCPX_SYSTEM_ERROR, "this path has failed before");
    return TCPX_SUCCESS;
}

int path_connect(struct path *path, const struct net_link_options *options, int *fd)
{
    const struct sockaddr_storage target = path_target(path);
    char name[SOCKET_NAME_BYTES];
    int result = socket_open(target.ss_family, fd);

    if (result == TCPX_SUCCESS && !path->is_routed)
        result = path_bind(path, *fd);
    if (result == TCPX_SUCCESS)
        result = socket_tune(*fd, options->timeout_ms);
    if (result != TCPX_SUCCESS)
        return result;
    if (connect(*fd, (const struct sockaddr *)&target, socket_address_length(&target)) != 0 &&
        errno != EINPROGRESS && errno != EINTR) {
        int error = errno;

        socket_address_name(&target, name);
        return error_system(error, "cannot connect to %s", name);
    }
    return path->is_routed ? path_find_route(path, options, *fd) : TCPX_SUCCESS;
}

int path_establish(const struct path *path, int fd, bool *connected)
{
    struct pollfd writable = {.fd = fd, .events = POLLOUT};
    socklen_t length = sizeof(int);
    char name[SOCKET_NAME_BYTES];
    int error = 0;

    *connected = false;
    if (poll(&writable, 1, 0) <= 0)
        return TCPX_SUCCESS;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
        error = errno;
    *connected = error == 0;
    if (error == 0)
        return TCPX_SUCCESS;
    socket_address_name(&path->target, name);
    return error_system(error, "cannot connect to %s", name);
}

/* --- failures ------------------------------------------------------------------------------ */

void path_fail(struct path *path, const char *reason)
{
    socket_close(&path->probe);
    path->state = PATH_FAILED;
    snprintf(path->reason, sizeof path->reason, "%s", reason);
}

void path_expect(struct path *path, bool works)
{
    char name[SOCKET_NAME_BYTES];

    if (path->state == PATH_FAILED)
        return;
    socket_address_name(&path->target, name);
    snprintf(path->reason, sizeof path->reason,
             works ? "%s has answered, but not accepted" : "%s does not answer", name);
}

size_t path_describe(const struct path *path, char *text, size_t size, size_t used)
{
    char from[SOCKET_NAME_BYTES];

    socket_host_name(&path->device.address, from);
    if (used < size)
        used += (size_t)snprintf(text + used, size - used, "%s%s (%s): %s", used > 0 ? "; " : "",
                                 *path->device.name != '\0' ? path->device.name : "any interface",
                                 from, path->reason);
    return used;
}

void path_leave_out(const struct path *path)
{
    char text[PATH_REASON_BYTES + IFNAMSIZ + SOCKET_NAME_BYTES + 16];

    if (!path_remember(path))
        return;
    path_describe(path, text, sizeof text, 0);
    log_warn("network interface left out: %s", text);
}
