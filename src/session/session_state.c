/* The lock of a session, and its failure. */
#include "session/session.h"

#include "base/log.h"

#include <stdio.h>

void session_lock(struct tcpx_session *session)
{
    atomic_fetch_add(&session->callers, 1);
    pthread_mutex_lock(&session->lock);
    atomic_fetch_sub(&session->callers, 1);
}

void session_unlock(struct tcpx_session *session)
{
    pthread_mutex_unlock(&session->lock);
}

void session_fail(struct tcpx_session *session, int result)
{
    session->failure = result;
    snprintf(session->why, sizeof session->why, "%s", error_text());
    log_tcpx("the session with %s has failed: %s", control_peer(session->control), session->why);
    /* The peer may wait for answers that will not come, and not notice by itself. */
    control_refuse(session->control, session->why);
}
