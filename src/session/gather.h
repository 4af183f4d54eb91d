/* Copies between GPU memory and slots: gathers from, or scatters to, the pieces of a transfer. */
#ifndef TCPX_SESSION_GATHER_H
#define TCPX_SESSION_GATHER_H

#include "session/session_state.h"

/* Makes the session's unpack engine if there is none. */
MUST_CHECK int gather_prepare_engine(struct tcpx_session *session);

/* Copies as much as possible now; *done: all of the chunk is copied. */
MUST_CHECK int gather_step(struct tcpx_session *session, struct chunk *chunk, bool gathering,
                           bool *done);

#endif
