/* The host way: gathered in host memory, then copied to the GPU. */
#ifndef TCPX_UNPACK_UNPACK_HOST_H
#define TCPX_UNPACK_UNPACK_HOST_H

#include "unpack/unpack_engine.h"

/* Queues the work on the engine's stream. */
MUST_CHECK int unpack_by_host(struct unpack_engine *engine, const struct unpack_work *work);

#endif
