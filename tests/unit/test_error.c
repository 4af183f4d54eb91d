/*
 * Shows that an error text is exact, belongs to its thread, survives being wrapped and is cut, not
 * overrun; and that results and the version have their names.
 */
#include "base/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static void *first_text_of_thread(void *unused)
{
    (void)unused;
    return (void *)(uintptr_t)(error_text()[0] == '\0' && tcpx_last_error()[0] == '\0');
}

static void test_no_text_before_a_failure(void **state)
{
    pthread_t thread;
    void *empty;

    (void)state;
    assert_int_equal(error_set(TCPX_INTERNAL_ERROR, "of the main thread"), TCPX_INTERNAL_ERROR);
    assert_int_equal(pthread_create(&thread, NULL, first_text_of_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, &empty), 0);
    assert_non_null(empty);
    assert_string_equal(error_text(), "of the main thread");
}

static void test_set_returns_result_and_keeps_text(void **state)
{
    (void)state;
    assert_int_equal(error_set(TCPX_INVALID_USAGE, "%s has %d of %d", "queue", 3, 2),
                     TCPX_INVALID_USAGE);
    assert_string_equal(error_text(), "queue has 3 of 2");
    assert_string_equal(tcpx_last_error(), "queue has 3 of 2");
}

static void test_system_appends_meaning(void **state)
{
    (void)state;
    errno = EPERM;
    assert_int_equal(error_system(ENOENT, "open %s", "/x"), TCPX_SYSTEM_ERROR);
    assert_string_equal(error_text(), "open /x: No such file or directory");
    assert_int_equal(error_system(99999, "open"), TCPX_SYSTEM_ERROR);
    assert_memory_equal(error_text(), "open: ", 6);
    assert_string_equal(error_text() + 6, strerror(99999));
}

static void test_text_can_wrap_itself(void **state)
{
    (void)state;
    (void)error_set(TCPX_SYSTEM_ERROR, "the cause");
    (void)error_set(TCPX_SYSTEM_ERROR, "channel 3: %s (%s)", error_text(), error_text());
    assert_string_equal(error_text(), "channel 3: the cause (the cause)");
}

static void test_long_text_is_cut(void **state)
{
    char longer[3000];

    (void)state;
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    (void)error_set(TCPX_SYSTEM_ERROR, "%s", longer);
    assert_int_equal(strlen(error_text()), 1023);
    (void)error_system(ENOENT, "%s", longer);
    assert_int_equal(strlen(error_text()), 1023);
    assert_int_equal(strspn(error_text(), "x"), 1023);
    (void)error_system(ENOENT, "%.1020s", longer);
    assert_int_equal(strlen(error_text()), 1023);
    assert_string_equal(error_text() + 1020, ": N");
}

static void *set_other_text(void *unused)
{
    (void)unused;
    (void)error_set(TCPX_SYSTEM_ERROR, "of the other thread");
    return (void *)(uintptr_t)(strcmp(error_text(), "of the other thread") == 0);
}

static void test_text_belongs_to_its_thread(void **state)
{
    const char *mine;
    pthread_t thread;
    void *theirs;

    (void)state;
    (void)error_set(TCPX_SYSTEM_ERROR, "mine");
    mine = tcpx_last_error();
    assert_int_equal(pthread_create(&thread, NULL, set_other_text, NULL), 0);
    assert_int_equal(pthread_join(thread, &theirs), 0);
    assert_non_null(theirs);
    assert_string_equal(mine, "mine");
    assert_string_equal(tcpx_last_error(), "mine");
}

static void test_result_names(void **state)
{
    static const char *const names[] = {
        "TCPX_SUCCESS",          "TCPX_CUDA_ERROR",    "TCPX_SYSTEM_ERROR", "TCPX_INTERNAL_ERROR",
        "TCPX_INVALID_ARGUMENT", "TCPX_INVALID_USAGE", "TCPX_REMOTE_ERROR", "TCPX_IN_PROGRESS"};

    (void)state;
    for (int i = 0; i < 8; i++)
        assert_string_equal(tcpx_result_name(i), names[i]);
    assert_string_equal(tcpx_result_name(8), "unknown result");
    assert_string_equal(tcpx_result_name(-1), "unknown result");
    assert_string_equal(tcpx_result_name(INT_MAX), "unknown result");
    assert_string_equal(tcpx_result_name(INT_MIN), "unknown result");
}

static void test_version(void **state)
{
    char expected[64];

    (void)state;
    snprintf(expected, sizeof expected, "%d.%d.%d", TCPX_VERSION_MAJOR, TCPX_VERSION_MINOR,
             TCPX_VERSION_PATCH);
    assert_string_equal(tcpx_version(), expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_text_before_a_failure),
        cmocka_unit_test(test_set_returns_result_and_keeps_text),
        cmocka_unit_test(test_system_appends_meaning),
        cmocka_unit_test(test_text_can_wrap_itself),
        cmocka_unit_test(test_long_text_is_cut),
        cmocka_unit_test(test_text_belongs_to_its_thread),
        cmocka_unit_test(test_result_names),
        cmocka_unit_test(test_version),
    };

    return cmocka_run_group_tests_name("error", tests, NULL, NULL);
}
