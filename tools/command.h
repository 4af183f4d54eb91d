/* What the subcommands of tcpx share. Each is one file and one row of main.c's table. */
#ifndef TCPX_TOOLS_COMMAND_H
#define TCPX_TOOLS_COMMAND_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Exit statuses, also in the man page. */
enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

struct command {
    const char *name;
    const char *arguments; /* as they stand in the usage line */
    const char *summary;   /* one line, for `tcpx help` */
    const char *help;      /* the rest of `tcpx NAME --help` */
    int (*run)(int argument_count, char **arguments);
};

extern const struct command command_connection;
extern const struct command command_devices;
extern const struct command command_doctor;
extern const struct command command_env;
extern const struct command command_matrix;
extern const struct command command_perf;
extern const struct command command_report;
extern const struct command command_transfer;
extern const struct command command_version;

/* Prints "tcpx: text" for the latest failure and returns EXIT_FAILED. */
int command_failed(void);

/* Prints what is wrong with the arguments and how to get help; returns EXIT_USAGE. */
int command_usage(const struct command *command, const char *problem, const char *argument);

/* A variable of the environment; what is set to nothing counts as not set: "". */
const char *command_variable(const char *name);

/* EXIT_OK, or EXIT_FAILED in words when standard output could not take everything. */
int command_finish(void);

/* --- options: tables, whose last row has no name (options.c) ------------------------------- */

/* One of the pointers is set, and says what the option does. A flag and a choice have no value. */
struct option {
    const char *name;
    bool *flag;  /* becomes true */
    int *choice; /* becomes `chosen` */
    int chosen;
    uint64_t *number; /* from `least` to `most` */
    uint64_t least;
    uint64_t most;
    const char **text;                             /* not "" */
    bool (*read)(void *target, const char *value); /* anything else; false: the value is none */
    void *target;
    const char *variable; /* of the environment, for which the option is another way to say it */

    const char *problem; /* with a value that is none */
    const char *missing; /* without a value; NULL: as with others that are none */
};

/* The arguments that are no options. */
struct words {
    int count;
    char *list[8];
};

/* EXIT_OK, or the status of a problem that was printed. `words`: NULL, if there are none. */
MUST_CHECK int options_read(const struct command *command, int argument_count, char **arguments,
                            const struct option *options, struct words *words);

#endif
