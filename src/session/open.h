/* From a control connection to a session: session.c calls it for both sides. */
#ifndef TCPX_SESSION_OPEN_H
#define TCPX_SESSION_OPEN_H

#include "session/session_state.h"

/* What the caller has asked for; 0: as the environment says. */
struct session_setup {
    int channels;
    uint64_t chunk_bytes;
};

/* A failure is told to the peer, too. */
MUST_CHECK int session_connect_channels(struct tcpx_session *session,
                                        const struct session_setup *setup, uint64_t deadline);

/*
 * As tcpx_session_accept(), but with two deadlines: until when a peer may come, and until when the
 * session with it has to be open. For callers that have something else to look at meanwhile.
 */
MUST_CHECK int session_accept_until(struct tcpx_session_listener *listener, uint64_t peer_deadline,
                                    uint64_t open_deadline, struct tcpx_session **session);

#endif
