/*
 * Transfers as whole messages of the built-in transport, where there is one channel. A thread that
 * tests a transfer moves it; so does the worker for callers that wait for its eventfd.
 */
#ifndef TCPX_SESSION_WHOLE_H
#define TCPX_SESSION_WHOLE_H

#include "session/session_state.h"

/* With the session's lock: begins it, or those that wait for a place; steps all of them. */
void whole_begin(struct tcpx_transfer *transfer);
void whole_start_more(struct tcpx_session *session);
void whole_step(struct tcpx_session *session, bool *moved);

/* Called without the session's lock. `stream` is used only if `on_stream`. */
void whole_test(struct tcpx_transfer *transfer, bool on_stream, void *stream);
void whole_wait(struct tcpx_transfer *transfer, uint64_t deadline);

#endif
