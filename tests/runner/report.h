/*
 * Judges the suites of a run, prints a line for each and the sums at the end. A crash, a missing
 * test, a skip without a reason, a silent end or a process left behind is a failed test.
 */
#ifndef TESTS_RUNNER_REPORT_H
#define TESTS_RUNNER_REPORT_H

#include "tests/runner/common.h"
#include "tests/runner/lane.h"

enum {
    SLOWEST = 8,          /* suites that are named at the end of a run */
    MOST_SECOND_TRIES = 8 /* suites */
};

struct slow {
    double seconds;
    double cpu_seconds;
    const char *name; /* NULL: none */
};

/* A suite that failed and may be tried once more. */
struct first_try {
    size_t suite;
    int passed;
    int failed;
    int skipped;
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
    struct first_try first_tries[MOST_SECOND_TRIES];
    unsigned first_try_count;
    struct list first_failures;
    struct slow slowest[SLOWEST]; /* the longest first */
};

void report_begin(struct report *report, const struct plan *plan);
void report_suite(struct report *report, const struct result *result);

/* A lane that ended badly, with what its suite would have said. */
void report_lost_lanes(struct report *report, unsigned count);

/*
 * The suites to try once more, alone, each at the place of its copy in `again`: those that failed
 * by a check or a time limit. None is, if any other failed, if more than the plan's second_tries
 * did, or if a suite crashed, left processes behind or a sanitizer spoke: then all count as failed.
 * Returns how many.
 */
size_t report_again(struct report *report, struct suite *again);

/* Prints the sums; whether the run passed. */
bool report_end(struct report *report);

#endif
