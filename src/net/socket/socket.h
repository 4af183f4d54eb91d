/* The few things that every TCP socket of ours needs, said once. */
#ifndef TCPX_NET_SOCKET_SOCKET_H
#define TCPX_NET_SOCKET_SOCKET_H

#include "base/error.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum { SOCKET_NAME_BYTES = 80 };

/* An address in its several shapes; a cast between pointers to them would break C's aliasing. */
union socket_address {
    struct sockaddr_storage storage;
    struct sockaddr_in ipv4;
    struct sockaddr_in6 ipv6;
};

/* A TCP socket that never blocks; exec closes it, and a forked child its copy. */
MUST_CHECK int socket_open(int family, int *fd);

/* The same for the next connection of a listening socket; -1, and why, if there is none. */
MUST_CHECK int socket_accept(int listening, int *error);

/*
 * There were no descriptors or no memory to accept one with. That may pass, but whoever waits must
 * not wait for ever: it fails when it has lasted for a second. *want_ends is 0 before the first
 * time, and is to be set to 0 when one was accepted.
 */
MUST_CHECK int socket_bear_want(uint64_t *want_ends, int error);

/*
 * For a connection: no delay for small writes, and an error within `timeout_ms` if the peer's host
 * is gone, whether bytes are in flight or not.
 */
MUST_CHECK int socket_tune(int fd, uint64_t timeout_ms);

/*
 * Sends what is left of `count` bytes behind the first *sent, as far as the socket takes it now,
 * and adds that to *sent. False, and errno: the connection is broken.
 */
MUST_CHECK bool socket_send_rest(int fd, const void *bytes, size_t count, size_t *sent);

/*
 * Sends as much as the socket takes without waiting, however many calls that needs; returns how
 * many bytes. For the last words on a connection that is about to be closed.
 */
size_t socket_send_now(int fd, const void *bytes, size_t count);

/* Whether an error of a send means that the socket takes nothing now, but will later. */
bool socket_is_full(int error);

/* No more room is reported while this many bytes have not been sent, besides those on their way. */
MUST_CHECK int socket_limit_unsent(int fd, int bytes);

/* How many bytes of an address count; 0 if its family is neither IPv4 nor IPv6. */
socklen_t socket_address_length(const struct sockaddr_storage *address);

/* IPv4 that came through an IPv6 socket becomes IPv4, as it is on the wire. */
void socket_address_unmap(struct sockaddr_storage *address);

/* "192.0.2.7:12345", "[2001:db8::7]:12345". */
void socket_address_name(const struct sockaddr_storage *address, char name[SOCKET_NAME_BYTES]);

/* The name of the other end; "unknown" if there is none. */
void socket_peer_name(int fd, char name[SOCKET_NAME_BYTES]);

/* Unpredictable bytes from the kernel. */
MUST_CHECK int socket_random(void *bytes, size_t count);

/* -1 is allowed, and *fd is -1 afterwards. */
void socket_close(int *fd);

#endif
