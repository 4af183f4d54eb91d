/* Options of the subcommands, as tables; the last row of one has no name. */
#ifndef TCPX_TOOLS_OPTIONS_H
#define TCPX_TOOLS_OPTIONS_H

#include "tools/command.h"

#include <stdint.h>

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
    char *list[4];
};

/* EXIT_OK, or the status of a problem that was printed. `words`: NULL, if there are none. */
MUST_CHECK int options_read(const struct command *command, int argument_count, char **arguments,
                            const struct option *options, struct words *words);

#endif
