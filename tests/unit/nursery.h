/*
 * Processes for tests that use tcpx. A child that is forked after tcpx has started may not use it,
 * so a process that never does, the nursery, forks them; it is forked first of all. What a child
 * finds wrong is its exit status: there is no cmocka there.
 */
#ifndef TCPX_TESTS_NURSERY_H
#define TCPX_TESTS_NURSERY_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { NURSERY_ARGUMENT = 256 };

typedef void nursery_run(const uint8_t *argument);

/* What parent and children see alike: for whatever a test wants. */
struct nursery_shared {
    atomic_int flag;
    uint8_t bytes[NURSERY_ARGUMENT];
};

struct nursery_wish {
    nursery_run *run; /* NULL: wait for `pid` */
    pid_t pid;
    uint8_t argument[NURSERY_ARGUMENT];
};

static int nursery_socket = -1;
static struct nursery_shared *nursery_shared;

static inline void nursery_fulfil(const struct nursery_wish *wish)
{
    int answer = -1;

    if (wish->run == NULL) {
        if (waitpid(wish->pid, &answer, 0) != wish->pid)
            answer = -1;
    } else {
        answer = fork();
        if (answer == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(nursery_socket);
            wish->run(wish->argument);
            _exit(0);
        }
    }
    if (send(nursery_socket, &answer, sizeof answer, MSG_NOSIGNAL) < 0)
        _exit(1);
}

/* In main, before anything else. */
static inline void nursery_start(void)
{
    struct nursery_wish wish;
    int ends[2];
    pid_t pid;

    nursery_shared = mmap(NULL, sizeof *nursery_shared, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (nursery_shared == MAP_FAILED ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        _exit(1);
    pid = fork();
    if (pid < 0)
        _exit(1);
    nursery_socket = ends[pid == 0];
    close(ends[pid != 0]);
    if (pid != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (recv(nursery_socket, &wish, sizeof wish, 0) == (ssize_t)sizeof wish)
        nursery_fulfil(&wish);
    _exit(0);
}

static inline int nursery_ask(const struct nursery_wish *wish)
{
    int answer = -1;

    assert_int_equal(send(nursery_socket, wish, sizeof *wish, MSG_NOSIGNAL), sizeof *wish);
    assert_int_equal(recv(nursery_socket, &answer, sizeof answer, 0), sizeof answer);
    return answer;
}

/* A process that calls `run` with a copy of the argument and exits with 0. */
static inline pid_t nursery_fork(nursery_run *run, const void *argument, size_t bytes)
{
    struct nursery_wish wish = {.run = run};
    pid_t pid;

    assert_true(bytes <= sizeof wish.argument);
    if (bytes > 0)
        memcpy(wish.argument, argument, bytes);
    pid = nursery_ask(&wish);
    assert_true(pid > 0);
    return pid;
}

/* Its status, as waitpid() tells it. */
static inline int nursery_wait(pid_t pid)
{
    return nursery_ask(&(struct nursery_wish){.pid = pid});
}

#endif
