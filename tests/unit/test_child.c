/* Shows that children of tests (tests/support/child.h) end as they should, and say why. */
#include "tests/support/check.h"
#include "tests/support/suite.h"

#include <stdlib.h>

static const char *check_detail(void)
{
    return "no error";
}

static int number = 1;

static void add_argument(const uint8_t *argument)
{
    CHECK(argument[0] == 7 && argument[1] == 8);
    atomic_fetch_add(&child_shared->flag, number);
}

static void fail_check(const uint8_t *argument)
{
    CHECK(argument[0] == 9);
}

static void stay(const uint8_t *argument)
{
    (void)argument;
    for (;;)
        pause();
}

/* It gets a copy of the argument and shares the flag. */
TEST(test_argument)
{
    atomic_store(&child_shared->flag, 0);
    child_succeeds(add_argument, (uint8_t[]){7, 8}, 2);
    assert_int_equal(atomic_load(&child_shared->flag), 1);
}

/* One of this process has what this process has made of its memory. */
TEST(test_fork_here)
{
    atomic_store(&child_shared->flag, 0);
    number = 5;
    assert_int_equal(child_wait(child_fork_here(add_argument, (uint8_t[]){7, 8})), 0);
    assert_int_equal(atomic_load(&child_shared->flag), 5);
}

/* A CHECK() that fails is status 1, with a text; the text of an earlier one is forgotten. */
TEST(test_failure)
{
    for (int turn = 0; turn < 2; turn++) {
        int status = child_wait(child_fork(fail_check, "", 1));

        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 1);
        assert_non_null(strstr(child_shared->failure, "test_child.c:"));
        assert_non_null(strstr(child_shared->failure, "argument[0] == 9; no error"));
    }
    assert_int_equal(child_wait(child_fork(fail_check, "\x09", 1)), 0);
    assert_string_equal(child_shared->failure, "");
}

/* One that is killed, those whose time is over, and a process that is no child. */
TEST(test_end)
{
    int status = child_kill(child_fork(stay, NULL, 0));

    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    child_limit_ms = 20;
    for (int here = 0; here < 2; here++) {
        status = child_wait(here != 0 ? child_fork_here(stay, NULL) : child_fork(stay, NULL, 0));
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    child_limit_ms = 0;
    assert_int_equal(child_wait(getpid()), -1);
}

static int count_variables(void)
{
    int count = 0;

    for (char **variable = environ; *variable != NULL; variable++)
        count++;
    return 10 * count + (getenv("ONE") != NULL);
}

/* This program again has the variables that it is given, and the name of what it runs. */
TEST(test_exec)
{
    const char *const variables[] = {"ONE=1", "TWO=2", NULL};
    int status = child_exec("count", variables);

    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 31);
    status = child_exec("nothing", variables);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 126);
}

static int begin_suite(void)
{
    static const struct child_program programs[] = {{"count", count_variables}};

    child_dispatch(programs, 1);
    return child_begin();
}

SUITE(.name = "child", .begin = begin_suite);
