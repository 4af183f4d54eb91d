/* A kernel that spins on the GPU of tests/support/gpu_pair.h. */
#ifndef TCPX_TESTS_WORLD_SPINNER_H
#define TCPX_TESTS_WORLD_SPINNER_H

#include "tests/spinning_kernel.h"
#include "tests/support/gpu_pair.h"

static struct spinner spinner;

/* Calls this where the GPU's context is current; false: that, or the call, failed. */
static inline bool world_spinner(bool (*call)(struct spinner *spinner))
{
    struct gpu_scope scope;
    bool fine;

    if (gpu_enter(world.gpu, &scope) != TCPX_SUCCESS)
        return false;
    fine = call(&spinner);
    gpu_leave(world.gpu, &scope);
    return fine;
}

#endif
