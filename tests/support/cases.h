/*
 * Tests that enter themselves in the list of their program, in the order of the file: what defines
 * a test is all that names it, and cases_run() in main() runs them all.
 */
#ifndef TCPX_TESTS_CASES_H
#define TCPX_TESTS_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { CASES_MOST = 256 };

static struct CMUnitTest case_list[CASES_MOST];
static size_t cases_count;

static inline void cases_add(const char *name, CMUnitTestFunction function, intptr_t state)
{
    if (cases_count == CASES_MOST)
        abort();
    case_list[cases_count++] =
        (struct CMUnitTest){.name = name, .test_func = function, .initial_state = (void *)state};
}

/* What follows runs before main(). */
#define CASES_ENTER(id)                                                                            \
    __attribute__((constructor)) static void enter_##id(void);                                     \
    static void enter_##id(void)

/* test_NAME, as cmocka knows it: its body follows. cases_keep() looks at `state`. */
#define STATE_CASE(name, state_)                                                                   \
    static void test_##name(void **state);                                                         \
    CASES_ENTER(name)                                                                              \
    {                                                                                              \
        cases_add("test_" #name, test_##name, state_);                                             \
    }                                                                                              \
    static void test_##name(void **state __attribute__((unused)))
#define PLAIN_CASE(name) STATE_CASE(name, 0)

/* Leaves out those whose state is not wanted here. */
static inline void cases_keep(bool (*wanted)(intptr_t state))
{
    size_t kept = 0;

    for (size_t i = 0; i < cases_count; i++)
        if (wanted((intptr_t)case_list[i].initial_state))
            case_list[kept++] = case_list[i];
    cases_count = kept;
}

static inline int cases_run(const char *group, CMFixtureFunction set_up,
                            CMFixtureFunction tear_down)
{
    return _cmocka_run_group_tests(group, case_list, cases_count, set_up, tear_down);
}

#endif
