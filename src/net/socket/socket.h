/* What all TCP sockets of this library need: opening, options, names, and partial reads and writes.
 */
#ifndef TCPX_NET_SOCKET_SOCKET_H
#define TCPX_NET_SOCKET_SOCKET_H

#include "base/error.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum { SOCKET_NAME_BYTES = 80 };

/* One address in its different types; a cast between pointers to them would break C's aliasing. */
union socket_address {
    struct sockaddr_storage storage;
    struct sockaddr_in ipv4;
    struct sockaddr_in6 ipv6;
};

/* A TCP socket that never blocks; exec closes it, and a forked child its copy. */
MUST_CHECK int socket_open(int family, int *fd);

/* Like socket_open() for the next connection of a listening socket; -1 and *error if there is none.
 */
MUST_CHECK int socket_accept(int listening, int *error);

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
 * Reads what is left of `count` bytes behind the first *have, as far as it has arrived, and adds
 * that to *have. Returns 1; 0 at the end of the stream; -1 and errno if the connection is broken.
 */
MUST_CHECK int socket_receive_rest(int fd, void *bytes, size_t count, size_t *have);

/*
 * Sends as much as the socket takes without waiting, in as many calls as that needs; returns how
 * many bytes. For the last record on a connection that is about to be closed.
 */
size_t socket_send_now(int fd, const void *bytes, size_t count);

/* Whether an error of a send means that the socket takes nothing now, but will later. */
bool socket_is_full(int error);

/* poll() reports room only while fewer than this many bytes wait to be sent; those in flight do not
 * count. */
MUST_CHECK int socket_limit_unsent(int fd, int bytes);

/* How many bytes of an address count; 0 if its family is neither IPv4 nor IPv6. */
socklen_t socket_address_length(const struct sockaddr_storage *address);

/* IPv4 that came through an IPv6 socket becomes IPv4, as it is on the wire. */
void socket_address_unmap(struct sockaddr_storage *address);

/* The address itself, of IPv4 or IPv6, and how many bytes that are. */
const void *socket_address_bytes(const union socket_address *address, size_t *length);

/* Whether both are of one family and the same in the first `bits` bits, or in all; ports do not
 * count. */
bool socket_has_same_bits(const struct sockaddr_storage *a, const struct sockaddr_storage *b,
                          unsigned bits);
bool socket_is_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b);

/* "192.0.2.7:12345", also for IPv4 over an IPv6 socket; "[2001:db8::7]:12345". */
void socket_address_name(const struct sockaddr_storage *address, char name[SOCKET_NAME_BYTES]);

/* "192.0.2.7", "2001:db8::7". */
void socket_host_name(const struct sockaddr_storage *address, char name[SOCKET_NAME_BYTES]);

/* The name of the other end; "unknown" if there is none. */
void socket_peer_name(int fd, char name[SOCKET_NAME_BYTES]);

/* Unpredictable bytes from the kernel. */
/* Whether both are the same, in a time that does not depend on how many bytes are. */
bool socket_is_token(const uint8_t *a, const uint8_t *b, size_t count);

MUST_CHECK int socket_random(void *bytes, size_t count);

/* -1 is allowed, and *fd is -1 afterwards. */
void socket_close(int *fd);

#endif
