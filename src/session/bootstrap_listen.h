/* The listening side of the bootstrap (session/bootstrap.h). */
#ifndef TCPX_SESSION_BOOTSTRAP_LISTEN_H
#define TCPX_SESSION_BOOTSTRAP_LISTEN_H

#include "session/control.h"

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

#endif
