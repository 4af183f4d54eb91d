/*
 * What a suite said in TAP: tests that passed, failed and were skipped, and what is wrong with
 * their numbers.
 */
#ifndef TESTS_RUNNER_TAP_H
#define TESTS_RUNNER_TAP_H

#include "tests/runner/common.h"

#include <stdbool.h>

/*
 * A program may print several groups, each with its plan before its tests (cmocka) or behind them
 * (tap.sh).
 */
struct tap {
    int passed;
    int failed;
    int skipped;
    struct list failures; /* names */
    struct list skips;    /* names with reasons */
    long plan;            /* of the group at hand; -1: not seen yet */
    long seen;            /* tests of the group at hand */
    bool started;         /* any TAP at all */
    char problem[256];    /* the first thing wrong with the numbers; "" if nothing is */
    char reason[256];     /* of "# skip: reason" since the latest result */
    char last_line[256];
    size_t lines;
};

/* Reads the whole output of a suite that has ended. */
void tap_read(struct tap *tap, const char *path);
void tap_free(struct tap *tap);

/* One more failed test, one more that was skipped. */
void tap_add_failure(struct tap *tap, const char *name);
void tap_add_skip(struct tap *tap, const char *reason);

#endif
