/*
 * Transfers as chunks: steps all lanes of a session, and drains them when it ends. Called with the
 * session's lock.
 */
#ifndef TCPX_SESSION_CHUNKS_H
#define TCPX_SESSION_CHUNKS_H

#include "session/session_state.h"

/* *moved: whether there was progress. A failure is the session's. */
MUST_CHECK int chunks_step(struct tcpx_session *session, bool *moved);

/*
 * Begins nothing more. False: sends that the peer has, or copies on the GPU, have not ended yet,
 * and their time is not over: call again. Memory that the network still uses is marked. Never
 * waits.
 */
MUST_CHECK bool chunks_drain_step(struct tcpx_session *session);

#endif
