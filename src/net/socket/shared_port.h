/*
 * The listening port that listeners of this process share, if UCCL_TCPX_PORT says so. Each is a
 * member, and gets the connections whose first bytes have its sign (port.h).
 */
#ifndef TCPX_NET_SOCKET_SHARED_PORT_H
#define TCPX_NET_SOCKET_SHARED_PORT_H

#include "base/config.h"
#include "net/socket/port.h"

enum { SHARED_PORT_ARRIVED = 64 /* connections that wait for their listener's next call */ };

/* Guarded by the lock of shared_port.c, except the address and the descriptor while it is one. */
struct shared_member {
    struct shared_member *next;
    struct sockaddr_storage address; /* connections to others are not taken */
    struct port_sign sign;
    int arrived[SHARED_PORT_ARRIVED]; /* connections for this listener, in their order */
    unsigned arrived_count;
    int wake_up; /* an eventfd: another listener's call has found a connection for this one */
};

/* *joined: whether it shares. Its address gets the port then. */
MUST_CHECK int shared_port_join(struct shared_member *member, const struct config_ports *range,
                                bool *joined);
/* Closes the connections that have arrived. */
void shared_port_leave(struct shared_member *member);

/* As port_accept() and port_poll(). */
MUST_CHECK int shared_port_accept(struct shared_member *member, struct half_open_table *table,
                                  int *fd);
unsigned shared_port_poll(const struct shared_member *member, struct pollfd polled[PORT_POLLED]);

#endif
