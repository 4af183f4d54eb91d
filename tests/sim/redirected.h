/*
 * The library twice, as the two processes have it: a_... and b_..., each with its own variables.
 * The functions that a simulation calls are those of api.def; all others are local to their copy.
 */
#ifndef TCPX_TESTS_SIM_REDIRECTED_H
#define TCPX_TESTS_SIM_REDIRECTED_H

#include "base/error.h"
#include "net/link/link.h"
#include "net/transport.h"
#include "tcpx.h"

#define SIM_CALL(name) extern __typeof__(name) a_##name, b_##name;
#include "api.def"
#undef SIM_CALL

struct sim_library {
#define SIM_CALL(name) __typeof__(name) *name;
#include "api.def"
#undef SIM_CALL
};

/* That of each process. */
extern const struct sim_library sim_libraries[2];

#endif
