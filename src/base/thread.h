/* Threads that the library starts, and conditions whose waits end at a deadline of base/clock.h. */
#ifndef TCPX_BASE_THREAD_H
#define TCPX_BASE_THREAD_H

#include "base/clock.h"

#include <pthread.h>
#include <signal.h>

/*
 * All signals are blocked in the thread and in those that it starts: the program's signals are for
 * its own threads. `thread` is NULL for a thread that is detached. Returns an errno, 0: it runs.
 */
static inline int thread_start(pthread_t *thread, void *(*run)(void *), void *argument)
{
    pthread_attr_t attributes;
    pthread_t unnamed;
    sigset_t before;
    sigset_t all;
    int error;

    pthread_attr_init(&attributes);
    if (thread == NULL)
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(thread != NULL ? thread : &unnamed, &attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

static inline void condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t clock;

    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &clock);
    pthread_condattr_destroy(&clock);
}

/* May end early. */
static inline void condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock,
                                  uint64_t deadline)
{
    const struct timespec until = {.tv_sec = (time_t)(deadline / 1000000000),
                                   .tv_nsec = (long)(deadline % 1000000000)};

    if (deadline == DEADLINE_NEVER)
        pthread_cond_wait(condition, lock);
    else
        pthread_cond_timedwait(condition, lock, &until);
}

#endif
