/* The connecting side of the bootstrap (session/bootstrap.h). */
#ifndef TCPX_SESSION_BOOTSTRAP_CONNECT_H
#define TCPX_SESSION_BOOTSTRAP_CONNECT_H

#include "session/control.h"

/*
 * Tries all addresses of `host` until the deadline, with short pauses until a process listens
 * there; the text is then the reason of the last failure. A peer of another protocol, version or
 * secret is an error at once.
 */
MUST_CHECK int bootstrap_connect(const char *host, uint16_t port, const char *secret_file,
                                 uint64_t deadline, struct control **control);

#endif
