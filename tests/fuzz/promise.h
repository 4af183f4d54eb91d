/* How a fuzz target says that a promise was broken: with the promise, and by ending the program. */
#ifndef TCPX_TESTS_FUZZ_PROMISE_H
#define TCPX_TESTS_FUZZ_PROMISE_H

#include <stdio.h>
#include <stdlib.h>

#define PROMISE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition);                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
