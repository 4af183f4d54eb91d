/* The host way: gathered in host memory, then copied to the GPU. */
#ifndef TCPX_UNPACK_UNPACK_HOST_H
#define TCPX_UNPACK_UNPACK_HOST_H

#include "unpack/unpack_engine.h"

/* Pins staging memory. Done when the engine is made: later it could wait for kernels. */
MUST_CHECK int unpack_host_prepare(struct unpack_engine *engine);

/* Queues the work on the engine's stream. */
MUST_CHECK int unpack_by_host(struct unpack_engine *engine, const struct unpack_work *work);

#endif
