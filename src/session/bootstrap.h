/*
 * How two processes find each other: one listens, the other connects, and both get a control
 * connection. Each side sends a greeting: protocol and version, whether it has a shared secret, and
 * a nonce. With a secret each side then proves that it has it, the connecting one first, so that a
 * stranger that connects gets nothing to guess the secret by. Nothing is encrypted.
 *
 * When a deadline (base/clock.h) has passed, the result is TCPX_IN_PROGRESS. Names are resolved by
 * getaddrinfo(), which waits as long as the system's resolver does, whatever the deadline. An
 * address may stand in brackets, as [::1], and have a scope, as fe80::1%eth0.
 */
#ifndef TCPX_SESSION_BOOTSTRAP_H
#define TCPX_SESSION_BOOTSTRAP_H

#include "session/greeting.h"

#include <sys/socket.h>

/*
 * Tries all addresses of `host` until the deadline, with short pauses until a process listens
 * there; the text is then the reason of the last failure. A peer of another protocol, version or
 * secret is an error at once.
 */
MUST_CHECK int bootstrap_connect(const char *host, uint16_t port, const char *secret_file,
                                 uint64_t deadline, struct control **control);

struct bootstrap_listener;

/*
 * address: NULL for all addresses of this host, IPv6 and IPv4 if it has both. port 0: the kernel
 * chooses. secret_file: NULL or "": none.
 */
MUST_CHECK int bootstrap_listen(const char *address, uint16_t port, const char *secret_file,
                                struct bootstrap_listener **listener);

uint16_t bootstrap_port(const struct bootstrap_listener *listener);

/*
 * Waits for one peer; each call returns one. A connection of another protocol, without a greeting
 * in time or without the secret is dropped with a warning in the log and without effect on others;
 * if no peer comes, the text has the reason of the latest drop. One thread at a time.
 */
MUST_CHECK int bootstrap_accept(struct bootstrap_listener *listener, uint64_t deadline,
                                struct control **control);

/* NULL is allowed. */
void bootstrap_listener_close(struct bootstrap_listener *listener);

/*
 * The addresses of a host, as both sides get them from users; flags: AI_PASSIVE or 0. The caller
 * frees the list with freeaddrinfo(). *passing, on failure: whether a later call may succeed.
 */
struct addrinfo;
MUST_CHECK int bootstrap_resolve(const char *host, uint16_t port, int flags, struct addrinfo **list,
                                 bool *passing);
void bootstrap_address_copy(const struct addrinfo *from, struct sockaddr_storage *to);

#endif
