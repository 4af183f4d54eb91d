/*
 * What a link has of devmem TCP at its receiving end: the pool that its payload arrives in, and the
 * rules of the NIC that lead it there.
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
    unsigned joined; /* connections, also those without a rule */
    /* While connections are steered: */
    unsigned steered; /* so many of them are */
    unsigned queue;   /* of the next one, if it has joined already */
    uint64_t
        patience_ends; /* when others that change the NIC's rules are not waited for any more */
};

/*
 * The pool for links that are accepted on a device, for a GPU's memory; NULL: they do without, and
 * it was said why. A failure only where UCCL_TCPX_DEVMEM=on asks for it.
 */
MUST_CHECK int devmem_link_pool(const struct net_device *device, int gpu,
                                struct devmem_pool **pool);

MUST_CHECK int devmem_link_open(struct devmem_pool *pool, struct devmem_link **link);

/*
 * Steers the connections with numbers from 1 to `sockets` - 1, which carry payload only. One that
 * cannot be steered arrives in ordinary memory. Never waits: TCPX_IN_PROGRESS while another process
 * changes the NIC's rules, to be called again.
 */
MUST_CHECK int devmem_link_steer(struct devmem_link *link, const int *forward, unsigned sockets);

/* Behind the close of its sockets. NULL is allowed. */
void devmem_link_close(struct devmem_link *link);

#endif
