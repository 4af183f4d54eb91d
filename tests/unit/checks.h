/* Tests that register themselves with cmocka, and what many of them check. */
#ifndef TCPX_TESTS_UNIT_CHECKS_H
#define TCPX_TESTS_UNIT_CHECKS_H

#include "base/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_TESTS = 64 };

static struct CMUnitTest registered_tests[MOST_TESTS];
static size_t registered_count;

static inline void register_test(struct CMUnitTest test)
{
    if (registered_count == MOST_TESTS)
        abort();
    registered_tests[registered_count++] = test;
}

/* TEST(test_that_it_works) { ... }: tests_main() runs all of the program, in the file's order. */
#define TEST_WITH(set_up, tear_down, name)                                                         \
    static void name(void **state);                                                                \
    __attribute__((constructor)) static void register_##name(void)                                 \
    {                                                                                              \
        register_test(                                                                             \
            (struct CMUnitTest)cmocka_unit_test_setup_teardown(name, set_up, tear_down));          \
    }                                                                                              \
    static void name(void **state __attribute__((unused)))

#define TEST(name) TEST_WITH(NULL, NULL, name)

/* With a fixture of the whole program, which may be NULL. */
static inline int tests_main_with(const char *name, CMFixtureFunction set_up,
                                  CMFixtureFunction tear_down)
{
    return _cmocka_run_group_tests(name, registered_tests, registered_count, set_up, tear_down);
}

static inline int tests_main(const char *name)
{
    return tests_main_with(name, NULL, NULL);
}

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

static inline void expect_part(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", text, part);
}

/* The latest error's. */
static inline void expect_text(const char *part)
{
    expect_part(error_text(), part);
}

/* Bytes that were set to 0x5a, and that a failure must not have written to. */
static inline void expect_untouched(const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        assert_int_equal(((const uint8_t *)bytes)[i], 0x5a);
}

#endif
