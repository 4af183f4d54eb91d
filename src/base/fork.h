/*
 * Threads and CUDA do not survive fork(). Modules that own either ask here before they wait for
 * something that exists only in the parent.
 */
#ifndef TCPX_BASE_FORK_H
#define TCPX_BASE_FORK_H

#include "base/error.h"

/* From the first call on, forks are noticed. */
MUST_CHECK int fork_watch(void);

/* TCPX_INVALID_USAGE in a child forked after fork_watch(), TCPX_SUCCESS elsewhere. */
MUST_CHECK int fork_check(void);

#endif
