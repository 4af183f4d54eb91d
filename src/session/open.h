/* From a control connection to a session: session.c calls it for both sides. */
#ifndef TCPX_SESSION_OPEN_H
#define TCPX_SESSION_OPEN_H

#include "session/session_state.h"

/* Uses the caller's channels and chunks. The peer also gets the reason of a failure. */
MUST_CHECK int session_connect_channels(struct tcpx_session *session,
                                        const struct tcpx_session_options *options,
                                        uint64_t deadline);

#endif
