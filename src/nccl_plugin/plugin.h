/* The plugin's start and end for one of NCCL's communicators. */
#ifndef TCPX_NCCL_PLUGIN_PLUGIN_H
#define TCPX_NCCL_PLUGIN_PLUGIN_H

#include "base/log.h"

/*
 * *out: the context of a communicator, to which its comms belong. With `out` NULL all comms of the
 * process belong to one that never ends, as with tables before version 11.
 */
int plugin_init(log_nccl_logger logger, void **out);

/* Closes all that was left open. NULL is allowed. */
int plugin_finalize(void *raw_context);

#endif
