/* Where log lines go: standard error, or NCCL's logger when NCCL is the caller. */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The values of ncclDebugLogLevel and ncclDebugLogSubSys that we use. */
enum { NCCL_LOG_WARN = 2, NCCL_LOG_INFO = 3, NCCL_LOG_TRACE = 5 };
enum { NCCL_INIT = 0x1, NCCL_NET = 0x10 };

/* Atomic, since any thread logs. Any order would do: each is read by itself. */
atomic_bool log_enabled_kinds[LOG_KINDS];
static atomic_bool to_stderr;
static _Atomic(log_nccl_logger) nccl_logger;

static void choose_kinds(void)
{
    bool print = atomic_load(&to_stderr);
    bool pass_on = atomic_load(&nccl_logger) != NULL;

    atomic_store(&log_enabled_kinds[LOG_DEBUG], print);
    atomic_store(&log_enabled_kinds[LOG_TCPX], print || pass_on);
    atomic_store(&log_enabled_kinds[LOG_WARN], print || pass_on);
}

void log_set_stderr(bool on)
{
    atomic_store(&to_stderr, on);
    choose_kinds();
}

void log_set_nccl_logger(log_nccl_logger logger)
{
    atomic_store(&nccl_logger, logger);
    choose_kinds();
}

/*
 * A reader of our standard error that went away must not end the process: SIGPIPE is held back in
 * this thread, and taken if the write raised it.
 */
static void write_without_sigpipe(const char *text, size_t length)
{
    const struct timespec at_once = {0};
    sigset_t pipe_signal;
    sigset_t pending;
    sigset_t before;

    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    if (write(STDERR_FILENO, text, length) < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE))
        sigtimedwait(&pipe_signal, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static const struct {
    const char *prefix;
    int nccl_level;
} kinds[LOG_KINDS] = {
    [LOG_DEBUG] = {"[DEBUG] ", NCCL_LOG_TRACE},
    [LOG_TCPX] = {"[TCPX] ", NCCL_LOG_INFO},
    [LOG_WARN] = {"[TCPX] warning: ", NCCL_LOG_WARN},
};

/* One write per line, so that lines of several threads and processes do not mix. */
static void print_line(enum log_kind kind, const char *message)
{
    char text[1100];
    int length = snprintf(text, sizeof text, "%s%s\n", kinds[kind].prefix, message);

    if (length < 0)
        return;
    if ((size_t)length >= sizeof text) {
        length = (int)sizeof text - 1;
        text[length - 1] = '\n';
    }
    write_without_sigpipe(text, (size_t)length);
}

void log_write(enum log_kind kind, const char *file, int line, const char *format, ...)
{
    int saved_errno = errno;
    log_nccl_logger logger = atomic_load(&nccl_logger);
    char message[1024];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (logger != NULL)
        logger(kinds[kind].nccl_level, NCCL_INIT | NCCL_NET, file, line, "%s", message);
    else if (atomic_load(&to_stderr))
        print_line(kind, message);
    errno = saved_errno;
}
