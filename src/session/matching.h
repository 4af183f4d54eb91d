/*
 * How the two sides of a transfer in chunks find each other, over the control connection. With the
 * session's lock.
 */
#ifndef TCPX_SESSION_MATCHING_H
#define TCPX_SESSION_MATCHING_H

#include "session/session_state.h"

MUST_CHECK int matching_begin(struct tcpx_transfer *transfer);
/* All of a receive is in its memory. */
MUST_CHECK int matching_receive_done(struct tcpx_transfer *transfer);
/* Sends and receives messages; *moved: whether anything has. A failure is the session's. */
MUST_CHECK int matching_step(struct tcpx_session *session, bool *moved);
MUST_CHECK int matching_goodbye(struct tcpx_session *session);
void matching_free(struct tcpx_session *session);

#endif
