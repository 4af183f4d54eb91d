/*
 * Shows that an error text is exact, belongs to its thread, survives being wrapped and is cut, not
 * overrun; and that results and the version have their names.
 */
#include "base/error.h"
#include "tests/support/suite.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* A thread has no text before its first failure, and then its own. */
static void *fail_in_thread(void *unused)
{
    bool was_empty = error_text()[0] == '\0' && tcpx_last_error()[0] == '\0';

    (void)unused;
    (void)error_set(TCPX_SYSTEM_ERROR, "of the other thread");
    return (void *)(uintptr_t)(was_empty && strcmp(error_text(), "of the other thread") == 0);
}

TEST(test_text_belongs_to_its_thread)
{
    const char *mine;
    pthread_t thread;
    void *theirs;

    assert_int_equal(error_set(TCPX_INTERNAL_ERROR, "of the main thread"), TCPX_INTERNAL_ERROR);
    mine = tcpx_last_error();
    assert_int_equal(pthread_create(&thread, NULL, fail_in_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, &theirs), 0);
    assert_non_null(theirs);
    assert_string_equal(mine, "of the main thread");
    assert_string_equal(error_text(), "of the main thread");
    assert_string_equal(tcpx_last_error(), "of the main thread");
}

TEST(test_set_returns_result_and_keeps_text)
{
    assert_int_equal(error_set(TCPX_INVALID_USAGE, "%s has %d of %d", "queue", 3, 2),
                     TCPX_INVALID_USAGE);
    assert_string_equal(error_text(), "queue has 3 of 2");
    assert_string_equal(tcpx_last_error(), "queue has 3 of 2");
}

TEST(test_system_appends_meaning)
{
    errno = EPERM;
    assert_int_equal(error_system(ENOENT, "open %s", "/x"), TCPX_SYSTEM_ERROR);
    assert_string_equal(error_text(), "open /x: No such file or directory");
    assert_int_equal(error_system(99999, "open"), TCPX_SYSTEM_ERROR);
    assert_memory_equal(error_text(), "open: ", 6);
    assert_string_equal(error_text() + 6, strerror(99999));
}

TEST(test_text_can_wrap_itself)
{
    (void)error_set(TCPX_SYSTEM_ERROR, "the cause");
    (void)error_set(TCPX_SYSTEM_ERROR, "channel 3: %s (%s)", error_text(), error_text());
    assert_string_equal(error_text(), "channel 3: the cause (the cause)");
}

TEST(test_long_text_is_cut)
{
    char longer[3000];

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

TEST(test_result_names)
{
    static const char *const names[] = {
        "TCPX_SUCCESS",          "TCPX_CUDA_ERROR",    "TCPX_SYSTEM_ERROR", "TCPX_INTERNAL_ERROR",
        "TCPX_INVALID_ARGUMENT", "TCPX_INVALID_USAGE", "TCPX_REMOTE_ERROR", "TCPX_IN_PROGRESS"};

    for (int i = 0; i < 8; i++)
        assert_string_equal(tcpx_result_name(i), names[i]);
    assert_string_equal(tcpx_result_name(8), "unknown result");
    assert_string_equal(tcpx_result_name(-1), "unknown result");
    assert_string_equal(tcpx_result_name(INT_MAX), "unknown result");
    assert_string_equal(tcpx_result_name(INT_MIN), "unknown result");
}

TEST(test_version)
{
    char expected[64];

    snprintf(expected, sizeof expected, "%d.%d.%d", TCPX_VERSION_MAJOR, TCPX_VERSION_MINOR,
             TCPX_VERSION_PATCH);
    assert_string_equal(tcpx_version(), expected);
}

SUITE(.name = "error");
