/*
 * Device memory that the kernel may receive into and send from: a dma-buf bound to receive queues
 * of a NIC, or to its sending side. A binding lives as long as its netlink socket, which forked
 * children close (base/fork.h).
 */
#ifndef TCPX_NET_NIC_DMABUF_BINDING_H
#define TCPX_NET_NIC_DMABUF_BINDING_H

#include "net/nic/features.h"

#include <stdint.h>

struct nic_binding {
    int socket;  /* -1: there is none */
    uint32_t id; /* the dma-buf's number in control messages */
};

/* What this kernel has: 6.12 receives, since 6.16 it also sends. */
MUST_CHECK int nic_kernel_binds(bool *receive, bool *send);

/*
 * Fails if this process may not bind receive queues, for want of CAP_NET_ADMIN; the text says how
 * to get it. In a container, the capability for the container's network counts.
 */
MUST_CHECK int nic_check_privilege(void);

/*
 * The text has the kernel's own explanation if it gave one. *os_error, which may be NULL: the errno
 * behind a failure; EPERM without CAP_NET_ADMIN, EEXIST if one of the queues is bound already.
 */
MUST_CHECK int nic_bind_receive(unsigned ifindex, const unsigned *queues, unsigned count,
                                int dmabuf, struct nic_binding *binding, int *os_error);

/* Needs no privilege. */
MUST_CHECK int nic_bind_send(unsigned ifindex, int dmabuf, struct nic_binding *binding,
                             int *os_error);

/*
 * {.socket = -1} is allowed.
 *
 * A binding for sending has to end before its interface goes away: kernels up to 7.2 crash when the
 * socket is closed after the driver was unloaded or the device removed. Its owner watches the link
 * (link_watch.h) and ends the binding in time.
 */
void nic_unbind(struct nic_binding *binding);

/* Which receive queues use memory of an application: a dma-buf, io_uring's or AF_XDP's. */
MUST_CHECK int nic_find_bound_queues(unsigned ifindex, bool bound[NIC_MOST_QUEUES]);

/*
 * Pages of a receive binding that are out: with the NIC for what comes next, in sockets, or
 * received and not returned.
 */
MUST_CHECK int nic_count_pages_out(unsigned ifindex, uint32_t id, uint64_t *pages);

#endif
