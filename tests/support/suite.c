#include "tests/support/suite.h"

#include <stdlib.h>
#include <string.h>

/* Programs that have a main() of their own have no suite. */
#pragma weak suite

enum { MOST_TESTS = 256 };

static struct CMUnitTest tests[MOST_TESTS];
static int lines[MOST_TESTS];
static size_t test_count;

void suite_add(int line, struct CMUnitTest test)
{
    size_t at = test_count++;

    if (at == MOST_TESTS)
        abort();
    for (; at > 0 && lines[at - 1] > line; at--) {
        tests[at] = tests[at - 1];
        lines[at] = lines[at - 1];
    }
    tests[at] = test;
    lines[at] = line;
}

void suite_add_rows(const void *rows, size_t count, size_t row_bytes, CMUnitTestFunction function)
{
    for (size_t i = 0; i < count; i++) {
        const char *const *row = (const void *)((const char *)rows + i * row_bytes);
        size_t same = 0;

        while (same < test_count && strcmp(tests[same].name, *row) != 0)
            same++;
        if (same == test_count)
            suite_add(0, (struct CMUnitTest){.name = *row,
                                             .test_func = function,
                                             .initial_state = (void *)(uintptr_t)row});
    }
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
    int status = suite.begin != NULL ? suite.begin() : 0;
    size_t count = 0;

    if (status != 0)
        return status;
    for (size_t i = 0; i < test_count; i++)
        if (suite.wants == NULL || suite.wants((intptr_t)tests[i].initial_state))
            tests[count++] = tests[i];
    return _cmocka_run_group_tests(suite.name, tests, count, set_up, tear_down);
}
