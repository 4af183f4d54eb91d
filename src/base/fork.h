/*
 * Threads, CUDA and connections do not survive fork(). Modules that own any of them call
 * fork_check() before they wait for something that exists only in the parent, and register
 * descriptors that a child must not keep: a copy in a child would hold a connection open after its
 * owner has died.
 */
#ifndef TCPX_BASE_FORK_H
#define TCPX_BASE_FORK_H

#include "base/error.h"

#include <stdbool.h>

/* From the first call on, forks are noticed. */
MUST_CHECK int fork_watch(void);

/* TCPX_INVALID_USAGE in a child forked after fork_watch(), TCPX_SUCCESS elsewhere. */
MUST_CHECK int fork_check(void);

/*
 * A child closes its copy of a descriptor that was opened between these two. In between no fork
 * takes place, so that none slips through. -1: nothing was opened. False: there is no memory to
 * remember it, and it has been closed.
 */
void fork_hold(void);
MUST_CHECK bool fork_release(int opened);

/* Closes such a descriptor. */
void fork_close(int fd);

#endif
