/* A session from its options to its end, for both sides. */
#ifndef TCPX_SESSION_SESSION_H
#define TCPX_SESSION_SESSION_H

#include "session/session_state.h"

/*
 * What both calls that make sessions check; `wrong`: what the caller has found, or NULL. Options
 * that a program does not know yet, since it was built with an older header, are the default.
 */
MUST_CHECK int session_check_call(const char *wrong, int port, int least_port,
                                  const struct tcpx_session_options *given,
                                  struct tcpx_session_options *options);

/* Without a control connection. tcpx_session_close() ends it. */
MUST_CHECK int session_make(const struct tcpx_session_options *options, struct tcpx_session **out);

/*
 * `result`: of the control connection. Opens the session over it, or closes the session, and keeps
 * the reason.
 */
MUST_CHECK int session_complete(struct tcpx_session *session, int result,
                                const struct tcpx_session_options *options, uint64_t deadline,
                                struct tcpx_session **out);

#endif
