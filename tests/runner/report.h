/*
 * Judges the suites of a run, prints a line for each and the sums at the end. A crash, a missing
 * test, a skip without a reason, a silent end or a process left behind is a failed test.
 */
#ifndef TESTS_RUNNER_REPORT_H
#define TESTS_RUNNER_REPORT_H

#include "tests/runner/common.h"
#include "tests/runner/lane.h"

enum { SLOWEST = 8 /* suites that are named at the end of a run */ };

struct slow {
    double seconds;
    double cpu_seconds;
    const char *name; /* NULL: none */
};

struct report {
    const struct plan *plan;
    bool colours;
    int width; /* of the longest name */
    size_t ended;
    int passed;
    int failed;
    int skipped;
    struct list failures;
    struct list skips;
    struct slow slowest[SLOWEST]; /* the longest first */
};

void report_begin(struct report *report, const struct plan *plan);
void report_suite(struct report *report, const struct result *result);

/* A lane that ended badly, with what its suite would have said. */
void report_lost_lanes(struct report *report, unsigned count);

/* Prints the sums; whether the run passed. */
bool report_end(struct report *report);

#endif
