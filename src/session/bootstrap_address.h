/* The addresses that both sides of the bootstrap take from people and show to them. */
#ifndef TCPX_SESSION_BOOTSTRAP_ADDRESS_H
#define TCPX_SESSION_BOOTSTRAP_ADDRESS_H

#include "base/error.h"
#include "net/socket/socket.h"

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * `host` may stand in brackets; flags: AI_PASSIVE or 0. The list is freeaddrinfo()'s. *passing,
 * when it fails: whether it may work another time.
 */
MUST_CHECK int bootstrap_resolve(const char *host, uint16_t port, int flags, struct addrinfo **list,
                                 bool *passing);

void bootstrap_address_copy(const struct addrinfo *from, struct sockaddr_storage *to);

/* As people write it, also where IPv4 comes over an IPv6 socket. */
void bootstrap_address_name(const struct sockaddr_storage *address, char name[SOCKET_NAME_BYTES]);

#endif
