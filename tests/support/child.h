/*
 * Child processes for all tests. There are three ways to start one:
 *
 *   child_fork()       a fork of a process that has never used tcpx. A child of a process that has
 *                      may not use it, so child_begin() forks that process first of all in main().
 *   child_fork_here()  a fork of this process, with everything that it has open.
 *   child_exec()       this program again with an environment of its own, in which child_dispatch()
 *                      finds the function by its name.
 *
 * There is no cmocka in a child. It ends with status 0 when its function returns; CHECK() of
 * tests/support/check.h ends it with status 1 and leaves a text, with which child_succeeds() fails
 * the parent's test. A child is killed when its time is over, which grows with the load of the
 * machine, and when its parent ends.
 */
#ifndef TCPX_TESTS_CHILD_H
#define TCPX_TESTS_CHILD_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { CHILD_BYTES = 256 };

typedef void child_run(const uint8_t *argument);

/* Memory of this process and of all its children. */
struct child_shared {
    atomic_int flag; /* flag and bytes are for the tests */
    uint8_t bytes[CHILD_BYTES];
    char failure[1024]; /* what the first CHECK() that failed says */
};

extern struct child_shared *child_shared;

/* How long a child may take on an idle machine; 0: as long as its suite may. */
extern unsigned child_limit_ms;

/* First of all in main(), as the begin of a suite: 0. */
int child_begin(void);

/* Do the work of the functions below, which assert; -1: the system refused. */
pid_t child_try_fork(child_run *run, const void *argument, size_t bytes);
pid_t child_try_fork_here(child_run *run, const void *argument);
pid_t child_try_exec(const char *name, const char *const *variables);

/* Ends this process with status 1 after it has left its text, unless another has left one. */
_Noreturn void child_fail(const char *file, int line, const char *what, const char *detail);

/* The status as waitpid() returns it: of SIGKILL if the child's time is over, -1: no child. */
int child_wait(pid_t pid);

/* A process that calls `run` with a copy of the argument. */
static inline pid_t child_fork(child_run *run, const void *argument, size_t bytes)
{
    pid_t pid = child_try_fork(run, argument, bytes);

    assert_true(pid > 0);
    return pid;
}

static inline pid_t child_fork_here(child_run *run, const void *argument)
{
    pid_t pid = child_try_fork_here(run, argument);

    assert_true(pid > 0);
    return pid;
}

/* Has these variables and no others; the list ends with NULL. Returns the status of its end. */
static inline int child_exec(const char *name, const char *const *variables)
{
    pid_t pid = child_try_exec(name, variables);

    assert_true(pid > 0);
    return child_wait(pid);
}

struct child_program {
    const char *name;
    int (*run)(void);
};

/* First in main(): calls the function that child_exec() has named, and exits; returns if none is.
 */
void child_dispatch(const struct child_program *programs, size_t count);

static inline int child_kill(pid_t pid)
{
    kill(pid, SIGKILL);
    return child_wait(pid);
}

/* Fails the test with what the child has left, unless it has succeeded; `subject`: a prefix. */
static inline void child_judge(int status, const char *subject)
{
    if (WIFSIGNALED(status))
        fail_msg("%s: signal %d: %s", subject, WTERMSIG(status), child_shared->failure);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("%s: status %d: %s", subject, status, child_shared->failure);
}

static inline void child_succeeds(child_run *run, const void *argument, size_t bytes)
{
    child_judge(child_wait(child_fork(run, argument, bytes)), "child");
}

#endif
