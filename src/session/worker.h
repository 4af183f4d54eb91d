/*
 * The thread of a session: moves transfers in chunks, and all transfers once the caller has asked
 * for an eventfd.
 */
#ifndef TCPX_SESSION_WORKER_H
#define TCPX_SESSION_WORKER_H

#include "session/session_state.h"

/* Starts the worker. Called with the lock. */
MUST_CHECK int worker_start(struct tcpx_session *session);
void worker_wake(struct tcpx_session *session);
void worker_stop(struct tcpx_session *session); /* without the lock */

#endif
