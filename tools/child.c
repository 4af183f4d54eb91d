/* A fork, a pipe, and an end in any case. */
#include "tools/child.h"

#include "base/clock.h"
#include "session/control.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

int child_start(int (*run)(void *argument, int to_parent), void *argument, struct child *child)
{
    pid_t parent = getpid();
    int error;
    int ends[2];

    if (pipe(ends) != 0)
        return error_system(errno, "pipe");
    fflush(stdout);
    child->pid = fork();
    error = errno;
    if (child->pid == 0) {
        close(ends[0]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(getppid() == parent ? run(argument, ends[1]) : 1);
    }
    close(ends[1]);
    child->from = ends[0];
    if (child->pid > 0)
        return TCPX_SUCCESS;
    close(child->from);
    return error_system(error, "fork");
}

ssize_t child_read(const struct child *child, void *bytes, size_t room, uint64_t deadline)
{
    struct pollfd readable = {.fd = child->from, .events = POLLIN};
    size_t have = 0;

    do {
        ssize_t got = -1;

        if (poll(&readable, 1, deadline_poll_ms(deadline)) > 0)
            got = read(child->from, (char *)bytes + have, room - have);
        have += got > 0 ? (size_t)got : 0;
        if (got == 0 || have == room)
            return (ssize_t)have;
    } while (!deadline_passed(deadline));
    return -1;
}

int child_end(struct child *child, bool now)
{
    int status = 0;

    close(child->from);
    if (now)
        kill(child->pid, SIGKILL);
    while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}
