/*
 * Work in a process of its own, because it may crash, hang, or must not be done before a fork. The
 * child says what it found through a pipe, and ends with its parent.
 */
#ifndef TCPX_TOOLS_CHILD_H
#define TCPX_TOOLS_CHILD_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct child {
    pid_t pid;
    int from; /* what it writes */
};

/* `run` gets the descriptor to write to, and its result is the child's status. */
MUST_CHECK int child_start(int (*run)(void *argument, int to_parent), void *argument,
                           struct child *child);

/* As much as there is room for, or less: it has said everything. -1: not until the deadline. */
ssize_t child_read(const struct child *child, void *bytes, size_t room, uint64_t deadline);

/* Its status, as waitpid() tells it. `now`: it is not waited for, but killed. */
int child_end(struct child *child, bool now);

#endif
