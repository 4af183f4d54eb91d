/*
 * Processes that a suite left behind. The caller is a child subreaper, so that they become its own.
 */
#ifndef TESTS_RUNNER_LEFTOVERS_H
#define TESTS_RUNNER_LEFTOVERS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { LEFTOVERS_NAMED = 16, LEFTOVERS_COMMAND = 200 };

struct leftovers {
    size_t count; /* of which the first are named */
    struct {
        pid_t pid;
        char command[LEFTOVERS_COMMAND];
    } named[LEFTOVERS_NAMED];
};

/*
 * Reaps every child that has ended and adds the CPU time that they used. Returns whether `pid` was
 * one of them; *status is written then.
 */
bool reap_all(pid_t pid, int *status, double *cpu_seconds);

/* Names and kills every descendant that does not end by itself in a moment. */
void leftovers_kill(struct leftovers *leftovers, double *cpu_seconds);

#endif
