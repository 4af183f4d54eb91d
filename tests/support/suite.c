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

/* A test of a table. */
struct table_test {
    const struct suite_table *table;
    const char *name;
};

static const void *row_of(const struct suite_table *table, size_t i)
{
    return (const char *)table->rows + i * table->row_bytes;
}

static bool has_name(const struct suite_table *table, size_t i, const char *name)
{
    return strcmp(*(const char *const *)row_of(table, i), name) == 0;
}

static void run_rows(void **state)
{
    const struct table_test *test = *state;

    for (size_t i = 0; i < test->table->count; i++)
        if (has_name(test->table, i, test->name))
            test->table->run(row_of(test->table, i));
}

void suite_add_table(int line, const struct suite_table *table)
{
    static struct table_test added[MOST_TESTS];
    static size_t count;

    for (size_t i = 0; i < table->count; i++) {
        const char *name = *(const char *const *)row_of(table, i);
        size_t first = 0;

        while (!has_name(table, first, name))
            first++;
        if (first < i)
            continue;
        added[count] = (struct table_test){table, name};
        suite_add(line, (struct CMUnitTest){
                            .name = name, .test_func = run_rows, .initial_state = &added[count++]});
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
