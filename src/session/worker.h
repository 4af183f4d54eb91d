/*
 * The thread of a session: moves along what goes in chunks, and everything once the caller has
 * asked for an eventfd.
 */
#ifndef TCPX_SESSION_WORKER_H
#define TCPX_SESSION_WORKER_H

#include "session/session_state.h"

/* The worker is there from now on. With the lock. */
MUST_CHECK int worker_start(struct tcpx_session *session);
void worker_wake(struct tcpx_session *session);
void worker_stop(struct tcpx_session *session); /* without the lock */

#endif
