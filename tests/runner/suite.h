/*
 * The suites of the command line: a name, a shell command, a time limit, and what may run at the
 * same time.
 */
#ifndef TESTS_RUNNER_SUITE_H
#define TESTS_RUNNER_SUITE_H

#include <stdbool.h>
#include <stddef.h>

/* What may run at the same time. */
enum company {
    ALONE,
    BESIDE,  /* each other */
    WAITING, /* the same, but it leaves the CPUs to others most of the time */
    COMPANIES
};

struct suite {
    char *name;
    const char *command;     /* NULL: not to be run, */
    const char *skip_reason; /* because of this */
    double limit;            /* seconds */
    enum company company;
};

/* A number of seconds above 0, of the first `length` characters. */
bool parse_seconds(const char *text, size_t length, double *seconds);

/*
 * The suites of `arguments` whose name one of the patterns in `only` matches (NULL: all of them).
 * `limit` is for those that have none of their own. Ends the run if one is malformed.
 */
struct suite *suites_read(int count, char **arguments, double limit, const char *only,
                          size_t *found);
void suites_free(struct suite *suites, size_t count);

/* The log file of a suite: its name without what a file name should not have. */
void suite_log_path(const struct suite *suite, const char *folder, char *path, size_t room);

#endif
