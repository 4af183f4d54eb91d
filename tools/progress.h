/* A bar on a terminal, for people who wait. */
#ifndef TCPX_TOOLS_PROGRESS_H
#define TCPX_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    bool shown; /* set it to false where there is no terminal, and nothing is printed */
    uint64_t printed_at;
};

/* Whether standard error is a terminal. */
bool progress_possible(void);

/* Draws at most some times a second. */
void progress_show(struct progress *progress, const char *what, uint64_t done, uint64_t all);

/* The line is free again for other output. */
void progress_clear(struct progress *progress);

#endif
