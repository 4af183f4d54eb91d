/*
 * Transfers as whole messages of the built-in transport, where there is one channel. A thread that
 * asks about a transfer moves it along; the worker does, too, for callers that wait for its
 * eventfd.
 */
#ifndef TCPX_SESSION_WHOLE_H
#define TCPX_SESSION_WHOLE_H

#include "session/session_state.h"

/* With the session's lock: begins it, or those that wait for a place; all of them, step by step. */
void whole_begin(struct tcpx_transfer *transfer);
void whole_start_more(struct tcpx_session *session);
void whole_step(struct tcpx_session *session, bool *moved);

/* Without the session's lock. `stream` is looked at if `on_stream`. */
void whole_test(struct tcpx_transfer *transfer, bool on_stream, void *stream);
void whole_wait(struct tcpx_transfer *transfer, uint64_t deadline);

#endif
