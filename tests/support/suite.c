#include "tests/support/suite.h"

#include <stdlib.h>

/* Programs that have a main() of their own have no suite. */
#pragma weak suite

static struct suite_test *first_test;

void suite_add(struct suite_test *test)
{
    struct suite_test **at = &first_test;

    while (*at != NULL && (*at)->line <= test->line)
        at = &(*at)->next;
    test->next = *at;
    *at = test;
}

static int set_up(void **state)
{
    (void)state;
    return suite.set_up != NULL ? suite.set_up() : 0;
}

static int tear_down(void **state)
{
    (void)state;
    return suite.tear_down != NULL ? suite.tear_down() : 0;
}

__attribute__((weak)) int main(void)
{
    enum { MOST_TESTS = 256 };
    static struct CMUnitTest tests[MOST_TESTS];
    int status = suite.begin != NULL ? suite.begin() : 0;
    size_t count = 0;

    if (status != 0)
        return status;
    for (const struct suite_test *test = first_test; test != NULL; test = test->next) {
        if (suite.wants != NULL && !suite.wants((intptr_t)test->test.initial_state))
            continue;
        if (count == MOST_TESTS)
            abort();
        tests[count++] = test->test;
    }
    return _cmocka_run_group_tests(suite.name, tests, count, set_up, tear_down);
}
