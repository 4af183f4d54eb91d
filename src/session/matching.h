/*
 * Matches the two sides of a transfer in chunks over the control connection. Called with the
 * session's lock.
 */
#ifndef TCPX_SESSION_MATCHING_H
#define TCPX_SESSION_MATCHING_H

#include "session/session_state.h"

MUST_CHECK int matching_begin(struct tcpx_transfer *transfer);
/* All bytes of a receive are in its memory. */
MUST_CHECK int matching_receive_done(struct tcpx_transfer *transfer);
/* Sends and receives messages; *moved: whether there were any. A failure is the session's. */
MUST_CHECK int matching_step(struct tcpx_session *session, bool *moved);
MUST_CHECK int matching_goodbye(struct tcpx_session *session);
void matching_free(struct tcpx_session *session);

#endif
