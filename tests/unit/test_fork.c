/*
 * Shows that a child forked after fork_watch() is refused with error 5 in words, its own children
 * too, while the parent and a child forked earlier are not.
 */
#include "base/fork.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* What `check` returns in a forked child. */
static int in_child(int (*check)(void))
{
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0)
        _exit(check());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int check_text(void)
{
    if (fork_check() != TCPX_INVALID_USAGE)
        return 1;
    return strstr(error_text(), "forked") != NULL ? 0 : 2;
}

static int check_in_grandchild(void)
{
    int status;
    pid_t pid = fork();

    if (pid == 0)
        _exit(fork_check());
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        return 100;
    return WEXITSTATUS(status);
}

static void test_not_watched_yet(void **state)
{
    (void)state;
    assert_int_equal(fork_check(), TCPX_SUCCESS);
    assert_int_equal(in_child(fork_check), TCPX_SUCCESS);
}

static void test_child_is_refused(void **state)
{
    (void)state;
    assert_int_equal(fork_watch(), TCPX_SUCCESS);
    assert_int_equal(fork_watch(), TCPX_SUCCESS);
    assert_int_equal(in_child(fork_check), TCPX_INVALID_USAGE);
    assert_int_equal(in_child(check_text), 0);
    assert_int_equal(in_child(check_in_grandchild), TCPX_INVALID_USAGE);
}

static void test_parent_goes_on(void **state)
{
    (void)state;
    assert_int_equal(fork_watch(), TCPX_SUCCESS);
    (void)in_child(fork_check);
    assert_int_equal(fork_check(), TCPX_SUCCESS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_not_watched_yet), /* first: a watch cannot be ended */
        cmocka_unit_test(test_child_is_refused),
        cmocka_unit_test(test_parent_goes_on),
    };

    return cmocka_run_group_tests_name("fork", tests, NULL, NULL);
}
