/* The addresses of a host, as both sides of the bootstrap get them from users. */
#ifndef TCPX_SESSION_BOOTSTRAP_ADDRESS_H
#define TCPX_SESSION_BOOTSTRAP_ADDRESS_H

#include "base/error.h"
#include "net/socket/socket.h"

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * `host` may stand in brackets; flags: AI_PASSIVE or 0. The caller frees the list with
 * freeaddrinfo(). *passing, on failure: whether a later call may succeed.
 */
MUST_CHECK int bootstrap_resolve(const char *host, uint16_t port, int flags, struct addrinfo **list,
                                 bool *passing);

void bootstrap_address_copy(const struct addrinfo *from, struct sockaddr_storage *to);

#endif
