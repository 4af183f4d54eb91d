/*
 * Transfers as chunks: all lanes of a session, step by step, and what is left of them when it ends.
 * With the session's lock.
 */
#ifndef TCPX_SESSION_CHUNKS_H
#define TCPX_SESSION_CHUNKS_H

#include "session/session_state.h"

/* *moved: whether anything has. A failure is the session's. */
MUST_CHECK int chunks_step(struct tcpx_session *session, bool *moved);

/*
 * Nothing more will be begun. False: sends that the peer has, or copies on the GPU, have not ended
 * yet, and their time is not over; ask again. Memory that the network still has is marked. Never
 * waits.
 */
MUST_CHECK bool chunks_drain_step(struct tcpx_session *session);

#endif
