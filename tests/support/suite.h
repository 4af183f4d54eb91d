/*
 * A test program is its tests: TEST(test_something) { ... } defines one and enters it into the
 * list, which runs in the order of the file, and SUITE(.name = "what they are about") says the
 * rest. main() is in suite.c.
 */
#ifndef TCPX_TESTS_SUPPORT_SUITE_H
#define TCPX_TESTS_SUPPORT_SUITE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct suite {
    const char *name;
    int (*begin)(void); /* first of all in main(): 0, or the status that the program ends with */
    int (*set_up)(void);
    int (*tear_down)(void);
};

extern const struct suite suite;

#define SUITE(...) const struct suite suite = {__VA_ARGS__}

struct suite_test {
    struct CMUnitTest test;
    int line;
    struct suite_test *next;
};

void suite_add(struct suite_test *test);

#define TEST(function) TEST_WITH(function, NULL, NULL)

/* With functions of cmocka's that are called before and after it. */
#define TEST_WITH(function, before, after)                                                         \
    static void function(void **state);                                                            \
    __attribute__((constructor)) static void function##_is_listed(void)                            \
    {                                                                                              \
        static struct suite_test entry = {                                                         \
            .test = cmocka_unit_test_setup_teardown(function, before, after), .line = __LINE__};   \
                                                                                                   \
        suite_add(&entry);                                                                         \
    }                                                                                              \
    static void function(__attribute__((unused)) void **state)

#endif
