/*
 * A test program is its tests: TEST(test_something) { ... } defines one and enters it into the
 * list, which runs in the order of the file, TABLE_TEST(table) those that a table names, and
 * SUITE(.name = "what they are about") says the rest. main() is in suite.c.
 */
#ifndef TCPX_TESTS_SUPPORT_SUITE_H
#define TCPX_TESTS_SUPPORT_SUITE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct suite {
    const char *name;
    int (*begin)(void); /* first of all in main(): 0, or the status that the program ends with */
    int (*set_up)(void);
    int (*tear_down)(void);
    bool (*wants)(intptr_t state); /* which tests run, by their state; NULL: all of them */
};

extern const struct suite suite;

#define SUITE(...) const struct suite suite = {__VA_ARGS__}

/* Behind all tests of lines that are not greater. */
void suite_add(int line, struct CMUnitTest test);

/* Rows that begin with the name of a test. */
struct suite_table {
    const void *rows;
    size_t count;
    size_t row_bytes;
    void (*run)(const void *row);
};

void suite_add_table(int line, const struct suite_table *table);

/* A test for each name of a table. What follows is done with each `row` of that name. */
#define TABLE_TEST(table)                                                                          \
    static void table##_check(const __typeof__(*(table)) *row);                                    \
    static void table##_run(const void *row)                                                       \
    {                                                                                              \
        table##_check(row);                                                                        \
    }                                                                                              \
    __attribute__((constructor)) static void table##_is_listed(void)                               \
    {                                                                                              \
        static const struct suite_table listed = {table, sizeof(table) / sizeof *(table),          \
                                                  sizeof *(table), table##_run};                   \
                                                                                                   \
        suite_add_table(__LINE__, &listed);                                                        \
    }                                                                                              \
    static void table##_check(const __typeof__(*(table)) *row)

/* The members of struct CMUnitTest besides name and function. */
#define SUITE_TEST(function, ...)                                                                  \
    static void function(void **state);                                                            \
    __attribute__((constructor)) static void function##_is_listed(void)                            \
    {                                                                                              \
        suite_add(__LINE__,                                                                        \
                  (struct CMUnitTest){.name = #function, .test_func = function, __VA_ARGS__});     \
    }                                                                                              \
    static void function(__attribute__((unused)) void **state)

#define TEST(function) SUITE_TEST(function, .initial_state = NULL)

/* With functions of cmocka's that are called before and after it. */
#define TEST_WITH(function, before, after)                                                         \
    SUITE_TEST(function, .setup_func = (before), .teardown_func = (after))

/* With this number as its state, which suite.wants() is asked about. */
#define TEST_OF(function, number) SUITE_TEST(function, .initial_state = (void *)(intptr_t)(number))

#endif
