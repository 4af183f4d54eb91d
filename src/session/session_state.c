/* The lock of a session, its eventfd, and its failure. */
#include "session/session.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

void session_lock(struct tcpx_session *session)
{
    atomic_fetch_add(&session->callers, 1);
    pthread_mutex_lock(&session->lock);
    atomic_fetch_sub(&session->callers, 1);
}

/* Callers that want the lock again and again would keep the worker from it for ever. */
bool session_yields(struct tcpx_session *session, uint64_t *since)
{
    const uint64_t most_ns = 50000;
    uint64_t now = atomic_load(&session->callers) > 0 ? clock_now() : 0;

    if (now != 0 && *since == 0)
        *since = now;
    if (now != 0 && now - *since < most_ns)
        return true;
    *since = 0;
    return false;
}

void session_unlock(struct tcpx_session *session)
{
    const uint64_t one = 1;
    int event_fd = session->signal_is_due ? session->event_fd : -1;
    bool ended = session->end_is_due;

    session->signal_is_due = false;
    session->end_is_due = false;
    pthread_mutex_unlock(&session->lock);
    if (ended)
        pthread_cond_broadcast(&session->changed);
    if (event_fd >= 0 && write(event_fd, &one, sizeof one) < 0 && errno != EAGAIN)
        log_warn("the caller's eventfd cannot be written");
}

void session_signal(struct tcpx_session *session)
{
    session->signal_is_due = true;
    session->has_signalled = true;
}

void session_fail(struct tcpx_session *session, int result)
{
    session->failure = result;
    atomic_store(&session->note_is_due, true);
    snprintf(session->why, sizeof session->why, "%s", error_text());
    log_tcpx("the session with %s has failed: %s", control_peer(session->control), session->why);
    /* The peer may wait for answers that will not come, and not notice by itself. */
    control_refuse(session->control, session->why);
    session_signal(session);
}
