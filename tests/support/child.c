/*
 * The processes of child.h. No cmocka here: an assertion belongs to the file of its test.
 */
#include "tests/support/child.h"
#include "tests/support/basics.h"

#include "tests/limit.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

/* What the process that forks is asked for. */
struct child_order {
    child_run *run; /* NULL: wait for `pid` */
    pid_t pid;
    unsigned limit_ms;
    _Alignas(max_align_t) uint8_t argument[CHILD_BYTES];
};

struct child_shared *child_shared;
unsigned child_limit_ms;

static int child_socket = -1;  /* to the process that forks, and from it */
static unsigned child_running; /* children that nobody has waited for */

/* The limit is computed anew each time: the load may rise meanwhile. */
static int child_reap(pid_t pid, unsigned limit)
{
    uint64_t since = now_ms();
    long nap_ns = 50000;
    int status = -1;
    pid_t ended;

    while ((ended = waitpid(pid, &status, limit == 0 ? 0 : WNOHANG)) != pid) {
        if (ended < 0 && errno != EINTR)
            return -1;
        if (limit != 0 && now_ms() - since > limit_ms(limit))
            kill(pid, SIGKILL);
        nanosleep(&(struct timespec){.tv_nsec = nap_ns}, NULL);
        nap_ns = nap_ns < 2000000 ? 2 * nap_ns : nap_ns;
    }
    return status;
}

static _Noreturn void child_call(child_run *run, const void *argument)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run(argument);
    _exit(0);
}

static void child_serve(const struct child_order *order)
{
    int answer = -1;

    if (order->run == NULL) {
        answer = child_reap(order->pid, order->limit_ms);
    } else {
        answer = fork();
        if (answer == 0) {
            close(child_socket);
            child_socket = -1;
            child_call(order->run, order->argument);
        }
    }
    if (send(child_socket, &answer, sizeof answer, MSG_NOSIGNAL) < 0)
        _exit(1);
}

static void child_share(void)
{
    if (child_shared != NULL)
        return;
    child_shared =
        mmap(NULL, sizeof *child_shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (child_shared == MAP_FAILED)
        _exit(1);
}

int child_begin(void)
{
    struct child_order order;
    int ends[2];
    pid_t pid;

    child_share();
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        _exit(1);
    pid = fork();
    if (pid < 0)
        _exit(1);
    child_socket = ends[pid == 0];
    close(ends[pid != 0]);
    if (pid != 0)
        return 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (recv(child_socket, &order, sizeof order, 0) == (ssize_t)sizeof order)
        child_serve(&order);
    _exit(0);
}

static int child_ask(const struct child_order *order)
{
    int answer = -1;

    if (send(child_socket, order, sizeof *order, MSG_NOSIGNAL) != (ssize_t)sizeof *order ||
        recv(child_socket, &answer, sizeof answer, 0) != (ssize_t)sizeof answer)
        return -1;
    return answer;
}

/* Before a child starts. A text that earlier ones have left is not that of this one. */
static void child_prepare(void)
{
    child_share();
    if (child_running++ == 0)
        child_shared->failure[0] = '\0';
}

pid_t child_try_fork(child_run *run, const void *argument, size_t bytes)
{
    struct child_order order = {.run = run};

    if (bytes > sizeof order.argument)
        return -1;
    if (bytes > 0)
        memcpy(order.argument, argument, bytes);
    child_prepare();
    return child_ask(&order);
}

pid_t child_try_fork_here(child_run *run, const void *argument)
{
    pid_t pid;

    child_prepare();
    pid = fork();
    if (pid == 0)
        child_call(run, argument);
    return pid;
}

/* The variable by which a program that child_exec() starts knows what it is to run. */
#define CHILD_NAME "TCPX_TEST_CHILD"

pid_t child_try_exec(const char *name, const char *const *variables)
{
    enum { MOST = 32 };
    char program[4096];
    char own[64];
    char *arguments[] = {program, NULL};
    char *environment[MOST] = {own};
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    pid_t pid = -1;

    if (length <= 0)
        return -1;
    program[length] = '\0';
    snprintf(own, sizeof own, CHILD_NAME "=%s", name);
    for (size_t i = 0; variables[i] != NULL; i++) {
        if (i + 2 == MOST)
            return -1;
        environment[i + 1] = (char *)(uintptr_t)variables[i];
    }
    child_prepare();
    if (posix_spawn(&pid, program, NULL, NULL, arguments, environment) != 0)
        return -1;
    return pid;
}

void child_dispatch(const struct child_program *programs, size_t count)
{
    const char *name = getenv(CHILD_NAME);

    if (name == NULL)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (size_t i = 0; i < count; i++)
        if (strcmp(name, programs[i].name) == 0)
            exit(programs[i].run()); /* NOLINT(concurrency-mt-unsafe): there is no other thread */
    exit(126);                       /* NOLINT(concurrency-mt-unsafe) */
}

/* Our own child, or one of the process that forks. */
int child_wait(pid_t pid)
{
    int status = child_reap(pid, child_limit_ms);

    if (status == -1 && errno == ECHILD && child_socket >= 0)
        status = child_ask(&(struct child_order){.pid = pid, .limit_ms = child_limit_ms});
    child_running -= child_running > 0;
    return status;
}

void child_fail(const char *file, int line, const char *what, const char *detail)
{
    if (child_shared != NULL && child_shared->failure[0] == '\0')
        snprintf(child_shared->failure, sizeof child_shared->failure, "%s:%d: %s; %s", file, line,
                 what, detail);
    _exit(1);
}
