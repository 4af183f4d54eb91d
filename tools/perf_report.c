/*
 * The reports of a run while it goes on. Outputs are opened before anything is measured, each row
 * is printed when it has been measured, and what there is is printed and written also when the run
 * fails or the program is interrupted: a thread waits for the signals.
 */
#include "tools/perf_report.h"

#include "base/thread.h"
#include "tools/command.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct perf_form *const forms[] = {
    [PERF_TABLE] = &perf_table, [PERF_JSON] = &perf_json, [PERF_CSV] = &perf_csv};

/* --- the page ------------------------------------------------------------------------------ */

static int report_cannot_write(const struct perf_report *report, int problem)
{
    return error_system(problem, "cannot write %s", report->html);
}

int perf_report_open(struct perf_report *report)
{
    struct stat before;
    bool was_there;
    int fd;

    if (report->html == NULL)
        return TCPX_SUCCESS;
    was_there = lstat(report->html, &before) == 0;
    fd = open(report->html, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return report_cannot_write(report, errno);
    report->page = fdopen(fd, "w");
    if (report->page == NULL) {
        close(fd);
        return report_cannot_write(report, errno);
    }
    report->is_new = !was_there;
    return TCPX_SUCCESS;
}

/* Over what an earlier run has left there. A device cannot be cut, and need not be. */
static int write_page(struct perf_report *report)
{
    FILE *out = report->page;

    rewind(out);
    (void)!ftruncate(fileno(out), 0);
    errno = 0;
    if (!perf_print_html(out, report->result))
        return report_cannot_write(report, ENOMEM);
    if (fflush(out) != 0 || ferror(out))
        return report_cannot_write(report, errno != 0 ? errno : EIO);
    report->is_new = false;
    return TCPX_SUCCESS;
}

static void drop_page(struct perf_report *report)
{
    if (report->page != NULL)
        (void)fclose(report->page);
    if (report->is_new)
        (void)unlink(report->html);
    report->page = NULL;
    report->is_new = false;
}

/* --- signals ------------------------------------------------------------------------------- */

/* To the watching thread alone, which has it blocked as all others. */
enum { WATCH_ENDS = SIGUSR2 };

/* Those that end the program, unless its caller lets it ignore them. */
static sigset_t report_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM};
    struct sigaction action;
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&set, numbers[i]);
    return set;
}

/* Each line at once, also into a pipe. The first failure is kept. */
static void report_flush(struct perf_report *report)
{
    if (fflush(stdout) != 0 && report->problem == 0)
        report->problem = errno;
}

static int report_finish(struct perf_report *report, const char *why)
{
    int written;

    struct perf_result *result = report->result;

    result->complete = why == NULL;
    snprintf(result->why, sizeof result->why, "%s", why != NULL ? why : "");
    forms[report->form]->end(stdout, result);
    report_flush(report);
    written = report->page != NULL ? write_page(report) : TCPX_SUCCESS;
    return report->problem != 0 ? error_system(report->problem, "cannot write to standard output")
                                : written;
}

/* Whoever prints may be waiting for a reader of standard output that never comes. */
static bool lock_soon(pthread_mutex_t *lock)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    return pthread_mutex_timedlock(lock, &until) == 0;
}

/*
 * The lock is never given back: nothing else is printed, and the program ends by the signal; at
 * once by a second one.
 */
static void *report_watch(void *given)
{
    struct perf_report *report = given;
    sigset_t set = report->signals;
    int number;

    sigaddset(&set, WATCH_ENDS);
    if (sigwait(&set, &number) != 0 || number == WATCH_ENDS)
        return NULL;
    if (lock_soon(&report->lock)) {
        pthread_sigmask(SIG_UNBLOCK, &report->signals, NULL);
        fputc('\n', stderr);
        if (report->result != NULL &&
            report_finish(report, number == SIGINT ? "interrupted" : "terminated") != TCPX_SUCCESS)
            (void)command_failed();
        drop_page(report);
    }
    pthread_sigmask(SIG_UNBLOCK, &report->signals, NULL);
    raise(number);
    return NULL;
}

int perf_report_watch(struct perf_report *report)
{
    int error;

    if (report->watching)
        return TCPX_SUCCESS;
    report->signals = report_signals();
    pthread_mutex_init(&report->lock, NULL);
    pthread_sigmask(SIG_BLOCK, &report->signals, NULL);
    error = thread_start(&report->watcher, report_watch, report);
    if (error != 0) {
        pthread_sigmask(SIG_UNBLOCK, &report->signals, NULL);
        pthread_mutex_destroy(&report->lock);
        return error_system(error, "a thread that waits for signals");
    }
    report->watching = true;
    return TCPX_SUCCESS;
}

void perf_report_close(struct perf_report *report)
{
    if (report->watching) {
        pthread_kill(report->watcher, WATCH_ENDS);
        pthread_join(report->watcher, NULL);
        pthread_sigmask(SIG_UNBLOCK, &report->signals, NULL);
        pthread_mutex_destroy(&report->lock);
    }
    drop_page(report);
}

/* --- a run --------------------------------------------------------------------------------- */

void perf_report_begin(struct perf_report *report, struct perf_result *result)
{
    pthread_mutex_lock(&report->lock);
    report->result = result;
    forms[report->form]->begin(stdout, result);
    report_flush(report);
    pthread_mutex_unlock(&report->lock);
}

void perf_report_row(struct perf_report *report, const struct perf_row *row)
{
    pthread_mutex_lock(&report->lock);
    report->result->rows[report->result->row_count++] = *row;
    forms[report->form]->row(stdout, report->result, report->result->row_count - 1);
    report_flush(report);
    pthread_mutex_unlock(&report->lock);
}

int perf_report_end(struct perf_report *report, const char *why)
{
    int result = TCPX_SUCCESS;

    if (report->result == NULL)
        return TCPX_SUCCESS;
    pthread_mutex_lock(&report->lock);
    result = report_finish(report, why);
    report->result = NULL;
    pthread_mutex_unlock(&report->lock);
    return result;
}
