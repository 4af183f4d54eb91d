/* The eventfd of a comm's sleepers. */
#include "net/comm/wake.h"

#include "base/fork.h"
#include "base/log.h"

#include <sys/eventfd.h>
#include <unistd.h>

void wake_sleepers(struct net_comm *comm)
{
    const uint64_t one = 1;

    COMM_LOCKED(comm);
    if (comm->sleepers > 0 && comm->wake_fd >= 0 && write(comm->wake_fd, &one, sizeof one) < 0)
        log_debug("a sleeper is being woken already");
}

void wake_open(struct net_comm *comm)
{
    COMM_LOCKED(comm);
    if (comm->wake_fd >= 0)
        return;
    fork_hold();
    comm->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!fork_release(comm->wake_fd))
        comm->wake_fd = -1;
}

void wake_clear(struct net_comm *comm)
{
    uint64_t ignored;

    COMM_LOCKED(comm);
    if (read(comm->wake_fd, &ignored, sizeof ignored) < 0)
        log_debug("another sleeper has taken the wake-up");
}

void wake_close(struct net_comm *comm)
{
    if (comm->wake_fd >= 0)
        fork_close(comm->wake_fd);
}
