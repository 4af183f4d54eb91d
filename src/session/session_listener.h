/* Where a session can wait for peers: the listening calls of tcpx.h. */
#ifndef TCPX_SESSION_SESSION_LISTENER_H
#define TCPX_SESSION_SESSION_LISTENER_H

#include "session/session_state.h"

/*
 * As tcpx_session_accept(), but with two deadlines: until when a peer may come, and until when the
 * session with it has to be open. For callers that have something else to look at meanwhile.
 */
MUST_CHECK int session_accept_until(struct tcpx_session_listener *listener, uint64_t peer_deadline,
                                    uint64_t open_deadline, struct tcpx_session **session);

#endif
