/*
 * Lanes: processes that run suites, each one after the other; what a suite leaves behind becomes
 * its lane's, which names and kills it. All lanes of a run take from the same row of suites.
 */
#ifndef TESTS_RUNNER_LANE_H
#define TESTS_RUNNER_LANE_H

#include "tests/runner/leftovers.h"
#include "tests/runner/suite.h"

#include <stdatomic.h>

enum { MOST_LANES = 64 };

/* What is to run, and how. */
struct plan {
    const struct suite *suites;
    size_t count;
    const char *folder;    /* of the logs */
    const char *only_case; /* a pattern of the tests to run; NULL: all */
    bool no_aslr;
    unsigned second_tries; /* suites that may fail once; see report_again() */
};

/* How a suite ended. */
struct result {
    size_t suite;       /* its place in the plan */
    int status;         /* as of waitpid() */
    int interrupted_by; /* a signal that ended the run; 0: none */
    bool timed_out;
    double seconds;
    double cpu_seconds;
    struct leftovers leftovers;
};

struct lanes {
    const struct plan *plan;
    pid_t pids[MOST_LANES];
    unsigned count;
    atomic_size_t *next; /* place in the row, for each kind of company; shared by all lanes */
    int results[2];      /* a pipe of struct result */
    int signals;         /* that end the run, as a descriptor */
    int interrupted_by;
};

/* Blocks the signals that end the run: lanes and lanes_next() take them. */
void lanes_prepare(void);

/* Starts lanes for the suites that run alone (then one lane is enough), or for all others. */
void lanes_start(struct lanes *lanes, const struct plan *plan, bool alone, unsigned count);

/*
 * Waits for the next suite to end; false when all have. A signal that ends the run is passed on to
 * the lanes, which end their suites.
 */
bool lanes_next(struct lanes *lanes, struct result *result);

/* Returns how many lanes ended badly. */
unsigned lanes_end(struct lanes *lanes);

#endif
