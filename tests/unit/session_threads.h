/*
 * Threads of a process that each have a mix of transfers (session_mix.h) of their own, on one
 * session or on several.
 */
#ifndef TCPX_TESTS_SESSION_THREADS_H
#define TCPX_TESTS_SESSION_THREADS_H

#include "tests/unit/session_mix.h"

/* A thread that has its own part of what goes on. */
struct part {
    pthread_t thread;
    struct side side;
    struct tcpx_session *session;
    bool closes; /* its session, when it is done; other parts go on */
    struct mix mix;
};

static inline void *part_run(void *argument)
{
    struct part *part = argument;

    run_mix(&part->side, part->session, &part->mix);
    if (part->closes)
        tcpx_session_close(part->session);
    return NULL;
}

/* `number`: of this process in that session; `which`: of the session. */
static inline struct part part_of(int number, struct tcpx_session *session, unsigned which)
{
    static const enum ends ends[] = {FORWARD, BACKWARD, SHUFFLED, BY_TESTS, BY_NO_TIME};

    return (struct part){.side = {.number = number, .sides = 2},
                         .session = session,
                         .closes = true,
                         .mix = {.seed = 1000 + which,
                                 .count = 20 + turns_of(60),
                                 .longest = 100000,
                                 .tags = 3,
                                 .first_tag = (uint64_t)which << 40,
                                 .pieces_percent = which % 2 == 0 ? 50 : 0,
                                 .ends = {ends[which % 5], ends[(which + 2) % 5]}}};
}

static inline void run_parts(struct part *parts, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        CHECK(pthread_create(&parts[i].thread, NULL, part_run, &parts[i]) == 0);
    for (unsigned i = 0; i < count; i++)
        CHECK(pthread_join(parts[i].thread, NULL) == 0);
}

#endif
