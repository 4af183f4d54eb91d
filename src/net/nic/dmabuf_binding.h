/*
 * Device memory that the kernel may receive into and send from: a dma-buf bound to receive queues
 * of a NIC, or to its sending side, through the generic netlink family "netdev". A binding lives as
 * long as its netlink socket, which children do not keep (base/fork.h).
 */
#ifndef TCPX_NET_NIC_NIC_BINDING_H
#define TCPX_NET_NIC_NIC_BINDING_H

#include "net/nic/nic.h"

struct nic_binding {
    int socket;  /* -1: there is none */
    uint32_t id; /* as control messages name it */
};

/* What this kernel has: 6.12 receives, since 6.16 it also sends. */
MUST_CHECK int nic_kernel_binds(bool *receive, bool *send);

/*
 * The text has the kernel's own explanation where it gave one. *os_error: the errno behind a
 * failure; EPERM without CAP_NET_ADMIN, EEXIST if one of the queues is bound already. NULL is
 * allowed.
 */
MUST_CHECK int nic_bind_receive(unsigned ifindex, const unsigned *queues, unsigned count,
                                int dmabuf, struct nic_binding *binding, int *os_error);

/* Needs no privilege. */
MUST_CHECK int nic_bind_send(unsigned ifindex, int dmabuf, struct nic_binding *binding,
                             int *os_error);

/*
 * Ends it. A binding that was never made ({.socket = -1}) is allowed.
 *
 * A binding for sending has to end before its interface goes away: kernels up to 7.2 crash when the
 * socket is closed after the driver was unloaded or the device removed. Whoever owns one watches
 * the link and ends it in time; here nothing can be done about it.
 */
void nic_unbind(struct nic_binding *binding);

/* Which receive queues have memory of somebody: a dma-buf, io_uring's or AF_XDP's. */
MUST_CHECK int nic_find_bound_queues(unsigned ifindex, bool bound[NIC_MOST_QUEUES]);

/*
 * Pages of a receive binding that are out: with the NIC for what comes next, in sockets, or told
 * and not returned.
 */
MUST_CHECK int nic_count_pages_out(unsigned ifindex, uint32_t id, uint64_t *pages);

/*
 * Through which interface packets to `to` leave, with `from` as their address. Where both have
 * ports, it is the one for TCP between these.
 */
MUST_CHECK int nic_of_route(const struct sockaddr_storage *from, const struct sockaddr_storage *to,
                            unsigned *ifindex);

#endif
