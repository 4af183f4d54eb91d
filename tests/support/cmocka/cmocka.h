/*
 * The part of cmocka that the tests here use, for targets that no packaged cmocka exists for: musl,
 * and the machines that are only cross-compiled for. Results are printed as TAP. A test includes it
 * as <cmocka.h>: tests.mk puts this folder into the include path where CMOCKA=own is given.
 *
 * As in cmocka, a failed assertion ends the test at hand by longjmp, on the thread that runs it; on
 * another thread it ends the program, which tests/runner counts as a failure.
 */
#ifndef TCPX_TESTS_CMOCKA_H
#define TCPX_TESTS_CMOCKA_H

#include <fnmatch.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*CMUnitTestFunction)(void **state);
typedef int (*CMFixtureFunction)(void **state);

struct CMUnitTest {
    const char *name;
    CMUnitTestFunction test_func;
    CMFixtureFunction setup_func;
    CMFixtureFunction teardown_func;
    void *initial_state;
};

enum { CM_RUN = 0, CM_FAILED, CM_SKIPPED };

/* All objects of a program share these: tests, what they have in common, and tests/filter.c. */
__attribute__((weak)) __thread jmp_buf *cm_test; /* NULL on threads that run no tests */
__attribute__((weak)) const char *cm_filter;

__attribute__((unused)) static void cmocka_set_test_filter(const char *pattern)
{
    cm_filter = pattern;
}

__attribute__((unused, format(printf, 1, 2))) static void print_message(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    fflush(stdout);
}

__attribute__((noreturn, unused)) static void cm_end(int how)
{
    fflush(stdout);
    if (cm_test == NULL)
        abort();
    longjmp(*cm_test, how);
}

__attribute__((noreturn, unused, format(printf, 3, 4))) static void
cm_fail(const char *file, int line, const char *format, ...)
{
    va_list arguments;

    printf("# %s:%d: error: ", file, line);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    cm_end(CM_FAILED);
}

__attribute__((noreturn, unused)) static void cm_skip(const char *file, int line)
{
    printf("# %s:%d: skipped\n", file, line);
    cm_end(CM_SKIPPED);
}

#define fail()        cm_fail(__FILE__, __LINE__, "failure")
#define fail_msg(...) cm_fail(__FILE__, __LINE__, __VA_ARGS__)
#define skip()        cm_skip(__FILE__, __LINE__)

/* --- assertions ---------------------------------------------------------------------------- */

__attribute__((unused)) static void cm_true(int good, const char *text, const char *file, int line)
{
    if (!good)
        cm_fail(file, line, "%s", text);
}

__attribute__((unused)) static void cm_equal(uintmax_t a, uintmax_t b, int wanted, const char *file,
                                             int line)
{
    if ((a == b) != wanted)
        cm_fail(file, line, "0x%" PRIxMAX " %s 0x%" PRIxMAX, a, wanted ? "!=" : "==", b);
}

__attribute__((unused)) static void cm_range(uintmax_t value, uintmax_t least, uintmax_t most,
                                             const char *file, int line)
{
    if (value < least || value > most)
        cm_fail(file, line, "%" PRIuMAX " is not within %" PRIuMAX " to %" PRIuMAX, value, least,
                most);
}

__attribute__((unused)) static void cm_text(const char *a, const char *b, int wanted,
                                            const char *file, int line)
{
    if ((strcmp(a, b) == 0) != wanted)
        cm_fail(file, line, "\"%s\" %s \"%s\"", a, wanted ? "!=" : "==", b);
}

__attribute__((unused)) static void cm_memory(const void *a, const void *b, size_t bytes,
                                              int wanted, const char *file, int line)
{
    const unsigned char *one = a;
    const unsigned char *other = b;
    size_t at = 0;

    while (at < bytes && one[at] == other[at])
        at++;
    if (!wanted && at == bytes)
        cm_fail(file, line, "%zu bytes are equal", bytes);
    if (wanted && at < bytes)
        cm_fail(file, line, "byte %zu of %zu: 0x%02x != 0x%02x", at, bytes, one[at], other[at]);
}

/* Negative numbers are sign-extended on both sides, as cmocka does. */
#define CM_NUMBER(value) ((uintmax_t)(value))
#define CM_HERE          __FILE__, __LINE__

#define assert_true(c)             cm_true(!!(c), #c, CM_HERE)
#define assert_false(c)            cm_true(!(c), "not: " #c, CM_HERE)
#define assert_null(p)             cm_true((p) == NULL, #p " is not NULL", CM_HERE)
#define assert_non_null(p)         cm_true((p) != NULL, #p " is NULL", CM_HERE)
#define assert_int_equal(a, b)     cm_equal(CM_NUMBER(a), CM_NUMBER(b), 1, CM_HERE)
#define assert_int_not_equal(a, b) cm_equal(CM_NUMBER(a), CM_NUMBER(b), 0, CM_HERE)
#define assert_ptr_equal(a, b)     cm_equal((uintptr_t)(a), (uintptr_t)(b), 1, CM_HERE)
#define assert_ptr_not_equal(a, b) cm_equal((uintptr_t)(a), (uintptr_t)(b), 0, CM_HERE)
#define assert_in_range(v, least, most)                                                            \
    cm_range(CM_NUMBER(v), CM_NUMBER(least), CM_NUMBER(most), CM_HERE)
#define assert_string_equal(a, b)        cm_text(a, b, 1, CM_HERE)
#define assert_string_not_equal(a, b)    cm_text(a, b, 0, CM_HERE)
#define assert_memory_equal(a, b, n)     cm_memory(a, b, n, 1, CM_HERE)
#define assert_memory_not_equal(a, b, n) cm_memory(a, b, n, 0, CM_HERE)

/* --- running ------------------------------------------------------------------------------- */

__attribute__((unused)) static int cm_fixture(CMFixtureFunction fixture, void **state,
                                              const char *what)
{
    jmp_buf here;
    int how;

    if (fixture == NULL)
        return CM_RUN;
    cm_test = &here;
    how = setjmp(here);
    if (how == CM_RUN && fixture(state) != 0) {
        printf("# the %s failed\n", what);
        how = CM_FAILED;
    }
    cm_test = NULL;
    return how;
}

__attribute__((unused)) static int cm_body(CMUnitTestFunction body, void **state)
{
    jmp_buf here;
    int how;

    cm_test = &here;
    how = setjmp(here);
    if (how == CM_RUN)
        body(state);
    cm_test = NULL;
    return how;
}

__attribute__((unused)) static int cm_run_one(const struct CMUnitTest *test, void *shared)
{
    void *state = test->initial_state != NULL ? test->initial_state : shared;
    int how = cm_fixture(test->setup_func, &state, "setup");
    int after;

    if (how == CM_RUN)
        how = cm_body(test->test_func, &state);
    after = cm_fixture(test->teardown_func, &state, "teardown");
    return how == CM_RUN ? after : how;
}

/* How many tests failed, as the exit status. */
__attribute__((unused)) static int _cmocka_run_group_tests(const char *name,
                                                           const struct CMUnitTest *tests,
                                                           size_t count, CMFixtureFunction setup,
                                                           CMFixtureFunction teardown)
{
    void *shared = NULL;
    int prepared = cm_fixture(setup, &shared, "setup of the group");
    size_t chosen = 0;
    int number = 0;
    int failed = 0;

    for (size_t i = 0; i < count; i++)
        chosen += cm_filter == NULL || fnmatch(cm_filter, tests[i].name, 0) == 0;
    printf("1..%zu\n", chosen);
    fflush(stdout);
    for (size_t i = 0; i < count; i++) {
        int how = prepared;

        if (cm_filter != NULL && fnmatch(cm_filter, tests[i].name, 0) != 0)
            continue;
        if (how == CM_RUN)
            how = cm_run_one(&tests[i], shared);
        failed += how == CM_FAILED;
        printf("%sok %d %s %s\n", how == CM_FAILED ? "not " : "", ++number,
               how == CM_SKIPPED ? "# SKIP" : "-", tests[i].name);
        fflush(stdout);
    }
    failed += cm_fixture(teardown, &shared, "teardown of the group") == CM_FAILED;
    printf("# %sok - %s\n", failed > 0 ? "not " : "", name);
    fflush(stdout);
    return failed;
}

#endif
