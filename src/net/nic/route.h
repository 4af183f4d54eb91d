/* The interface that a connection uses. */
#ifndef TCPX_NET_NIC_ROUTE_H
#define TCPX_NET_NIC_ROUTE_H

#include "base/error.h"

#include <sys/socket.h>

/*
 * The interface through which packets from `from` to `to` leave. Where both have ports, it is the
 * one for TCP between these.
 */
MUST_CHECK int nic_of_route(const struct sockaddr_storage *from, const struct sockaddr_storage *to,
                            unsigned *ifindex);

#endif
