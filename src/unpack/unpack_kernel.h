/* The kernel way: one launch for all fragments. */
#ifndef TCPX_UNPACK_UNPACK_KERNEL_H
#define TCPX_UNPACK_UNPACK_KERNEL_H

#include "unpack/unpack_engine.h"

/* Queues the work on the engine's stream. */
MUST_CHECK int unpack_by_kernel(struct unpack_engine *engine, const struct unpack_work *work);

#endif
