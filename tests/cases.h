/*
 * Tests of a cmocka program that are listed where they are written:
 *
 *     TEST(test_something)
 *     {
 *         assert_true(...);
 *     }
 *
 *     int main(void)
 *     {
 *         return cases_run("things", NULL, NULL);
 *     }
 *
 * They run in the order of the file. A row of a table becomes a test of its own with case_add().
 */
#ifndef TCPX_TESTS_CASES_H
#define TCPX_TESTS_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { CASES_MOST = 200 };

static struct CMUnitTest listed_cases[CASES_MOST];
static int listed_lines[CASES_MOST];
static size_t listed_count;

/* Behind all tests of lines that are not greater: constructors run in any order. */
static inline void case_add(int line, struct CMUnitTest test)
{
    size_t at = listed_count++;

    if (at == CASES_MOST)
        __builtin_trap();
    for (; at > 0 && listed_lines[at - 1] > line; at--) {
        listed_cases[at] = listed_cases[at - 1];
        listed_lines[at] = listed_lines[at - 1];
    }
    listed_cases[at] = test;
    listed_lines[at] = line;
}

#define TEST(function) TEST_WITH(function, NULL, NULL)

#define TEST_WITH(function, set_up, tear_down)                                                     \
    static void function(void **state);                                                            \
    __attribute__((constructor)) static void add_##function(void)                                  \
    {                                                                                              \
        case_add(__LINE__, (struct CMUnitTest){#function, function, set_up, tear_down, NULL});     \
    }                                                                                              \
    static void function(__attribute__((unused)) void **state)

/* With a setup and a teardown of the whole group, or NULL. */
static inline int cases_run(const char *group, CMFixtureFunction set_up,
                            CMFixtureFunction tear_down)
{
    return _cmocka_run_group_tests(group, listed_cases, listed_count, set_up, tear_down);
}

#endif
