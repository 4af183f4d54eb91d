/* Listening sockets: on one address or on all, on a port or on the first free one of a range. */
#ifndef TCPX_NET_SOCKET_LISTENING_H
#define TCPX_NET_SOCKET_LISTENING_H

#include "base/config.h"
#include "net/socket/half_open.h"

uint16_t listening_port(const struct sockaddr_storage *address);
void listening_set_port(struct sockaddr_storage *address, uint16_t number);

/* Whether it means all addresses of this host. */
bool listening_is_any(const struct sockaddr_storage *address);

/*
 * On the port of the address or, if that is 0 and there is a range, on the first of the range that
 * is free. All addresses of IPv6 are those of IPv4, too. *bound: address and port.
 */
MUST_CHECK int listening_open(const struct half_open_table *table, struct sockaddr_storage address,
                              const struct config_ports *range, int *fd,
                              struct sockaddr_storage *bound);

#endif
