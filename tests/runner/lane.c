/*
 * A suite runs in a session of its own, with a time limit that grows with how busy the machine is.
 * Nothing it does can hang the run or outlive it.
 */
#include "tests/runner/lane.h"

#include "tests/limit.h"
#include "tests/runner/common.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    TERM_SECONDS = 2, /* between SIGTERM and SIGKILL */
    KILL_SECONDS = 5  /* for SIGKILL to take effect */
};

/* Lanes write results to the same pipe without a lock: a write of that size is whole. */
_Static_assert(sizeof(struct result) <= PIPE_BUF, "a result is one write");

static sigset_t lane_signals; /* blocked, and taken by sigtimedwait(): SIGCHLD, */
static sigset_t end_signals;  /* and these, which end the run */

void lanes_prepare(void)
{
    sigemptyset(&end_signals);
    sigaddset(&end_signals, SIGINT);
    sigaddset(&end_signals, SIGTERM);
    sigaddset(&end_signals, SIGHUP);
    lane_signals = end_signals;
    sigaddset(&lane_signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &lane_signals, NULL);
    /* An ignored SIGCHLD, which a parent can hand down, would let children vanish unreaped. */
    signal(SIGCHLD, SIG_DFL);
}

/* --- in a lane --------------------------------------------------------------------------------*/

static void suite_exec(const struct plan *plan, const struct suite *suite, pid_t lane)
{
    char log[PATH_MAX];
    sigset_t none;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out;

    suite_log_path(suite, plan->folder, log, sizeof log);
    out = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    if (null < 0 || out < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) {
        fprintf(stderr, "runner: %s: %s\n", log, strerror(errno));
        _exit(127);
    }
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != lane)
        _exit(127);
    if (plan->no_aslr && personality(ADDR_NO_RANDOMIZE) < 0)
        printf("# runner: cannot turn address randomisation off: %s\n", strerror(errno));
    fflush(stdout);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execl("/bin/sh", "sh", "-c", suite->command, (char *)NULL);
    printf("runner: /bin/sh: %s\n", strerror(errno));
    fflush(stdout);
    _exit(127);
}

static struct timespec to_timespec(double seconds)
{
    struct timespec span = {.tv_sec = (time_t)seconds};

    span.tv_nsec = (long)((seconds - (double)span.tv_sec) * 1e9);
    return span;
}

/*
 * Returns whether the suite ended; false at the limit and at a signal that ends the run. Seconds in
 * which the machine is busy count less: by as much as everything takes longer.
 */
static bool suite_await(pid_t pid, double limit, struct result *result)
{
    double spent = 0;
    double before = seconds_now();

    for (;;) {
        struct timespec span;
        double now;
        int number;

        if (reap_all(pid, &result->status, &result->cpu_seconds))
            return true;
        now = seconds_now();
        spent += (now - before) * 100 / limit_percent();
        before = now;
        if (spent >= limit)
            return false;
        span = to_timespec(limit - spent < 1 ? limit - spent : 1);
        number = sigtimedwait(&lane_signals, NULL, &span);
        /* A terminal sends it to the lane, too, and then the runner passes it on. */
        if (number > 0 && number != SIGCHLD && result->interrupted_by == 0) {
            result->interrupted_by = number;
            return false;
        }
    }
}

static void suite_run(const struct plan *plan, const struct suite *suite, struct result *result)
{
    double start = seconds_now();
    pid_t lane = getpid();
    pid_t pid = fork();

    if (pid < 0)
        die("fork: %s", strerror(errno));
    if (pid == 0)
        suite_exec(plan, suite, lane);
    if (!suite_await(pid, suite->limit, result)) {
        result->timed_out = result->interrupted_by == 0;
        /* The leader is not reaped yet, so its number still means its group. */
        kill(-pid, SIGTERM);
        if (!suite_await(pid, TERM_SECONDS, result)) {
            kill(-pid, SIGKILL);
            kill(pid, SIGKILL);
            suite_await(pid, KILL_SECONDS, result);
        }
    }
    result->seconds = seconds_now() - start;
    leftovers_kill(&result->leftovers, &result->cpu_seconds);
}

/* The next suite of that kind, or the count of all. */
static size_t lane_take(const struct lanes *lanes, enum company company)
{
    const struct plan *plan = lanes->plan;
    size_t place;

    while ((place = atomic_fetch_add(&lanes->next[company], 1)) < plan->count)
        if (plan->suites[place].company == company)
            return place;
    return plan->count;
}

/* Takes suites of the one kind, and of the other when there are no more. */
static void lane_run(const struct lanes *lanes, enum company first, enum company then, pid_t runner)
{
    const struct plan *plan = lanes->plan;
    int interrupted_by = 0;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != runner || prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        _exit(1);
    while (interrupted_by == 0) {
        struct result result = {.suite = lane_take(lanes, first)};

        if (result.suite == plan->count)
            result.suite = lane_take(lanes, then);
        if (result.suite == plan->count)
            break;
        if (plan->suites[result.suite].command != NULL)
            suite_run(plan, &plan->suites[result.suite], &result);
        if (write(lanes->results[1], &result, sizeof result) != sizeof result)
            die("the result of a suite: %s", strerror(errno));
        interrupted_by = result.interrupted_by;
    }
    _exit(0);
}

/* --- in the runner ----------------------------------------------------------------------------*/

void lanes_start(struct lanes *lanes, const struct plan *plan, bool alone, unsigned count)
{
    pid_t runner = getpid();

    *lanes = (struct lanes){.plan = plan, .count = count};
    lanes->signals = signalfd(-1, &end_signals, SFD_CLOEXEC);
    lanes->next = mmap(NULL, COMPANIES * sizeof *lanes->next, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (lanes->signals < 0 || lanes->next == MAP_FAILED || pipe2(lanes->results, O_CLOEXEC) < 0)
        die("lanes: %s", strerror(errno));
    fflush(NULL);
    for (unsigned i = 0; i < count; i++) {
        enum company first = alone ? ALONE : i == 0 ? WAITING : BESIDE;

        lanes->pids[i] = fork();
        if (lanes->pids[i] < 0)
            die("fork: %s", strerror(errno));
        if (lanes->pids[i] == 0)
            lane_run(lanes, first, alone ? ALONE : first == BESIDE ? WAITING : BESIDE, runner);
    }
    close(lanes->results[1]);
}

static void lanes_pass_signal_on(struct lanes *lanes)
{
    struct signalfd_siginfo info;

    if (read(lanes->signals, &info, sizeof info) != sizeof info)
        return;
    lanes->interrupted_by = (int)info.ssi_signo;
    for (unsigned i = 0; i < lanes->count; i++)
        kill(lanes->pids[i], lanes->interrupted_by);
}

bool lanes_next(struct lanes *lanes, struct result *result)
{
    struct pollfd fds[] = {{.fd = lanes->results[0], .events = POLLIN},
                           {.fd = lanes->signals, .events = POLLIN}};

    for (;;) {
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            die("poll: %s", strerror(errno));
        if (fds[1].revents != 0)
            lanes_pass_signal_on(lanes);
        if (fds[0].revents != 0)
            return read(lanes->results[0], result, sizeof *result) == sizeof *result;
    }
}

unsigned lanes_end(struct lanes *lanes)
{
    unsigned bad = 0;

    for (unsigned i = 0; i < lanes->count; i++) {
        int status = 0;

        bad += waitpid(lanes->pids[i], &status, 0) < 0 || status != 0;
    }
    close(lanes->results[0]);
    close(lanes->signals);
    munmap((void *)lanes->next, COMPANIES * sizeof *lanes->next);
    return bad;
}
