/*
 * Devmem TCP at the receiving end of a link: the pool that its payload arrives in, and the rules of
 * the NIC that steer it there.
 */
#ifndef TCPX_NET_DEVMEM_DEVMEM_LINK_H
#define TCPX_NET_DEVMEM_DEVMEM_LINK_H

#include "net/devmem/devmem_pool.h"
#include "net/nic/nic.h"
#include "net/wire/wire.h"

struct devmem_link {
    struct devmem_pool *pool;
    struct nic_rule rules[WIRE_MOST_SOCKETS];
    unsigned count;
    unsigned joined; /* connections in the pool, also those without a rule */
    /* While connections are steered: */
    unsigned steered;       /* connections that have been tried */
    unsigned queue;         /* of the next one, if it has joined already */
    uint64_t patience_ends; /* when it stops waiting for others that change the NIC's rules */
};

/*
 * The pool for links that are accepted on a device, for a GPU's memory. NULL: they do without, and
 * the reason was logged. Fails only where UCCL_TCPX_DEVMEM=on asks for devmem TCP.
 */
MUST_CHECK int devmem_link_pool(const struct net_device *device, int gpu,
                                struct devmem_pool **pool);

MUST_CHECK int devmem_link_open(struct devmem_pool *pool, struct devmem_link **link);

/*
 * Steers connections 1 to `sockets` - 1, which carry payload only. One that cannot be steered
 * arrives in ordinary memory. Never waits: TCPX_IN_PROGRESS while another process changes the NIC's
 * rules, then the caller tries again.
 */
MUST_CHECK int devmem_link_steer(struct devmem_link *link, const int *forward, unsigned sockets);

/* Called after the link's sockets have been closed. NULL is allowed. */
void devmem_link_close(struct devmem_link *link);

#endif
