/*
 * The paths to a listener: from a device of this process to an address of the handle. A path that
 * cannot be connected is left out, and remembered for a while, so that only the first comm waits
 * for it. Used by connect.c, which tries the paths.
 */
#ifndef TCPX_NET_LINK_PATH_H
#define TCPX_NET_LINK_PATH_H

#include "net/link/link.h"

enum { PATHS_MOST = 24, PATH_REASON_BYTES = 160 };

enum path_state {
    PATH_UNTRIED,
    PATH_PROBED, /* one connection is being made, or has been made, to see whether it works */
    PATH_FAILED, /* the reason says why */
};

struct path {
    struct net_device device; /* zero: any */
    /* The kernel chooses which device it is, by the route, once the path is opened. */
    bool is_routed;
    struct sockaddr_storage target;
    enum path_state state;
    int probe; /* a socket; -1: none */
    char reason[PATH_REASON_BYTES];
};

/*
 * All paths to the listener, the best first: within a subnet, then from `device`, which is NULL for
 * any, to the first address, then others. The value is how many there are, at least one.
 */
unsigned paths_list(const struct net_device *device, const struct net_link_options *options,
                    const struct net_handle *handle, struct path paths[PATHS_MOST]);

/* Opens a socket and begins to connect it. */
MUST_CHECK int path_connect(struct path *path, const struct net_link_options *options, int *fd);

/* *connected: whether it is. A failure has a text. */
MUST_CHECK int path_establish(const struct path *path, int fd, bool *connected);

/* Whether both lead from the same device to the same address. */
bool path_is_same(const struct path *one, const struct path *other);

/* Closes the probe and keeps the reason. */
void path_fail(struct path *path, const char *reason);

/* Of a path that has not failed, the reason is what it waits for; `works`: it has answered. */
void path_expect(struct path *path, bool works);

/* Another path was chosen: logs that this one was left out, unless it is known, and remembers it.
 */
void path_leave_out(const struct path *path);

/* Appends "eth0 (192.0.2.1): reason" to a text of `size` bytes, of which `used` are used. */
size_t path_describe(const struct path *path, char *text, size_t size, size_t used);

#endif
