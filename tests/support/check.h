/*
 * What a child process of a test checks with (tests/support/child.h), from any of its threads: a
 * CHECK() that fails ends the process and fails the parent's test with its text.
 */
#ifndef TCPX_TESTS_CHECK_H
#define TCPX_TESTS_CHECK_H

#include "tests/support/child.h"

/* A program that includes this defines it: the text of the last error, or "". */
static const char *check_detail(void);

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            child_fail(__FILE__, __LINE__, #condition, check_detail());                            \
    } while (0)

/* The last error names all of that. */
static inline int check_said(const char *words)
{
    return strstr(check_detail(), words) != NULL;
}

#define CHECK_SUCCESS(call) CHECK((call) == TCPX_SUCCESS)

/* Fails with `expected` and a text that contains `words`. */
#define CHECK_ERROR(call, expected, words)                                                         \
    do {                                                                                           \
        CHECK((call) == (expected));                                                               \
        if (!check_said(words))                                                                    \
            child_fail(__FILE__, __LINE__, #call " does not say " #words, check_detail());         \
    } while (0)

#endif
