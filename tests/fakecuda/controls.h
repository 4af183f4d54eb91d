/* The controls of the stand-in driver, for programs of tests that run over it only. */
#ifndef TCPX_TESTS_FAKECUDA_CONTROLS_H
#define TCPX_TESTS_FAKECUDA_CONTROLS_H

#include "tests/fakecuda/fakecuda.h"
#include "tests/support/suite.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static struct {
#define FAKECUDA_MEMBER(name) fakecuda_##name##_call *name;
    FAKECUDA_CONTROLS(FAKECUDA_MEMBER)
} fakecuda;

/* Finds them, at the begin of a suite; another driver is the end of it. */
static inline int fakecuda_find(void)
{
    enum { EXIT_SKIP = 77 }; /* tests/runner */
    void *library = dlopen("libcuda.so.1", RTLD_NOW);

    if (library == NULL || dlsym(library, "fakecuda_fault") == NULL) {
        puts("libcuda.so.1 is not the stand-in driver");
        return EXIT_SKIP;
    }
#define FAKECUDA_FIND(name)                                                                        \
    fakecuda.name = (fakecuda_##name##_call *)dlsym(library, "fakecuda_" #name);
    FAKECUDA_CONTROLS(FAKECUDA_FIND)
    return 0;
}

static inline void assert_balance(const struct fakecuda_balance *before, const char *after)
{
    struct fakecuda_balance now;

    fakecuda.balance(&now);
    if (memcmp(before, &now, sizeof now) != 0)
        fail_msg("after %s: %+d contexts, %+d allocations, %+d registrations, %+d streams, %+d "
                 "events, %+d modules",
                 after, now.contexts - before->contexts, now.memory - before->memory,
                 now.registered - before->registered, now.streams - before->streams,
                 now.events - before->events, now.modules - before->modules);
}

#endif
