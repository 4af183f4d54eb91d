/* The lock of a session, its conditions, and its failure. */
#include "session/session.h"

#include "base/log.h"

#include <stdio.h>
#include <time.h>

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

/* Deadlines are moments of that clock. */
void session_condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t clock;

    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &clock);
    pthread_condattr_destroy(&clock);
}

void session_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t deadline)
{
    const struct timespec until = {.tv_sec = (time_t)(deadline / 1000000000),
                                   .tv_nsec = (long)(deadline % 1000000000)};

    if (deadline == DEADLINE_NEVER)
        pthread_cond_wait(condition, lock);
    else
        pthread_cond_timedwait(condition, lock, &until);
}

void session_fail(struct tcpx_session *session, int result)
{
    session->failure = result;
    snprintf(session->why, sizeof session->why, "%s", error_text());
    log_tcpx("the session with %s has failed: %s", control_peer(session->control), session->why);
    /* The peer may wait for answers that will not come, and not notice by itself. */
    control_refuse(session->control, session->why);
}
