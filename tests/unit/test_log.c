/*
 * Shows that nothing is printed unless it was asked for, the exact form of a line on standard
 * error, and that NCCL's logger gets level, flags, place and one finished message.
 */
#include "base/log.h"
#include "tests/support/suite.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a call printed to standard error. */
static char printed[8192];

static void capture(void (*call)(void))
{
    char path[] = "/tmp/test_log.XXXXXX";
    int file = mkstemp(path);
    int saved = dup(STDERR_FILENO);
    ssize_t length;

    assert_true(file >= 0 && saved >= 0);
    unlink(path);
    assert_true(dup2(file, STDERR_FILENO) >= 0);
    call();
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    close(saved);
    length = pread(file, printed, sizeof printed - 1, 0);
    assert_true(length >= 0);
    printed[length] = '\0';
    close(file);
}

/* What the stand-in for NCCL's logger was given. */
static struct {
    int calls;
    int level;
    unsigned long flags;
    char file[256];
    int line;
    char format[64];
    char message[2048];
} logged;

static void nccl_logger(int level, unsigned long flags, const char *file, int line,
                        const char *format, ...)
{
    va_list arguments;

    errno = EBADF;
    logged.calls++;
    logged.level = level;
    logged.flags = flags;
    logged.line = line;
    snprintf(logged.file, sizeof logged.file, "%s", file);
    snprintf(logged.format, sizeof logged.format, "%s", format);
    va_start(arguments, format);
    snprintf(logged.message, sizeof logged.message, "%s", va_arg(arguments, const char *));
    va_end(arguments);
}

static int reset(void **state)
{
    (void)state;
    log_set_nccl_logger(NULL);
    log_set_stderr(false);
    memset(&logged, 0, sizeof logged);
    return 0;
}

static int evaluated;

static int evaluate(void)
{
    return ++evaluated;
}

static void log_all_kinds(void)
{
    log_debug("step %d", evaluate());
    log_tcpx("path %s", "plain");
    log_warn("slow by %d%%", 50);
}

/* First: before anything is set. */
TEST(test_off_by_default)
{
    for (int kind = 0; kind < LOG_KINDS; kind++)
        assert_false(log_enabled((enum log_kind)kind));
    evaluated = 0;
    capture(log_all_kinds);
    assert_string_equal(printed, "");
    assert_int_equal(evaluated, 0);
}

TEST_WITH(test_form_on_stderr, reset, reset)
{
    log_set_stderr(true);
    evaluated = 0;
    capture(log_all_kinds);
    assert_string_equal(printed, "[DEBUG] step 1\n"
                                 "[TCPX] path plain\n"
                                 "[TCPX] warning: slow by 50%\n");
    log_set_stderr(false);
    capture(log_all_kinds);
    assert_string_equal(printed, "");
}

static void log_long_line(void)
{
    char longer[5000];

    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    log_tcpx("%s", longer);
    log_tcpx("next");
}

TEST_WITH(test_long_line_is_one_line, reset, reset)
{
    size_t length;

    log_set_stderr(true);
    capture(log_long_line);
    length = strcspn(printed, "\n");
    assert_true(length >= 1000 && length < 1100);
    assert_string_equal(printed + length, "\n[TCPX] next\n");
}

static void log_with_errno(void)
{
    errno = EAGAIN;
    log_tcpx("failed: %m");
}

TEST_WITH(test_errno_survives, reset, reset)
{
    log_set_stderr(true);
    capture(log_with_errno);
    assert_string_equal(printed, "[TCPX] failed: Resource temporarily unavailable\n");
    log_set_nccl_logger(nccl_logger);
    errno = EAGAIN;
    log_tcpx("to a logger that changes errno");
    assert_int_equal(errno, EAGAIN);
}

TEST_WITH(test_nccl_logger_gets_the_message, reset, reset)
{
    log_set_nccl_logger(nccl_logger);
    assert_false(log_enabled(LOG_DEBUG));
    log_debug("not asked for");
    assert_int_equal(logged.calls, 0);

    log_tcpx("100%s of %d", "%", 3);
    assert_int_equal(logged.calls, 1);
    assert_int_equal(logged.level, 3);
    assert_int_equal(logged.flags, 0x11);
    assert_int_equal(logged.line, __LINE__ - 4);
    assert_string_equal(logged.file, __FILE__);
    assert_string_equal(logged.format, "%s");
    assert_string_equal(logged.message, "100% of 3");

    log_warn("odd");
    assert_int_equal(logged.calls, 2);
    assert_int_equal(logged.level, 2);
    assert_int_equal(logged.flags, 0x11);
    assert_string_equal(logged.message, "odd");
}

TEST_WITH(test_nccl_logger_gets_debug_where_it_is_on, reset, reset)
{
    log_set_stderr(true);
    log_set_nccl_logger(nccl_logger);
    capture(log_all_kinds);
    assert_string_equal(printed, "");
    assert_int_equal(logged.calls, 3);
    log_debug("step");
    assert_int_equal(logged.level, 5);
    assert_string_equal(logged.message, "step");
}

TEST_WITH(test_logger_can_be_taken_away, reset, reset)
{
    log_set_nccl_logger(nccl_logger);
    log_set_nccl_logger(NULL);
    capture(log_all_kinds);
    assert_string_equal(printed, "");
    assert_int_equal(logged.calls, 0);
    log_set_stderr(true);
    log_set_nccl_logger(nccl_logger);
    log_set_nccl_logger(NULL);
    capture(log_all_kinds);
    assert_non_null(strstr(printed, "[TCPX] path plain\n"));
    assert_int_equal(logged.calls, 0);
}

enum { THREADS = 4, LINES = 25 };

static void *log_lines(void *unused)
{
    (void)unused;
    for (int i = 0; i < LINES; i++)
        log_tcpx("a line of one thread");
    return NULL;
}

static void log_from_threads(void)
{
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, log_lines, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

TEST_WITH(test_lines_of_threads_do_not_mix, reset, reset)
{
    static const char line[] = "[TCPX] a line of one thread\n";
    const char *at = printed;
    int lines = 0;

    log_set_stderr(true);
    capture(log_from_threads);
    for (; strncmp(at, line, sizeof line - 1) == 0; at += sizeof line - 1)
        lines++;
    assert_int_equal(lines, THREADS * LINES);
    assert_string_equal(at, "");
}

SUITE(.name = "log");
