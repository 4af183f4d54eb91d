/* Sleepers and their descriptors. */
#include "net/comm/sleeper.h"

#include "base/fork.h"
#include "base/log.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct sleeper *sleeper_create(void)
{
    struct sleeper *sleeper = calloc(1, sizeof *sleeper);

    if (sleeper == NULL)
        return NULL;
    fork_hold();
    sleeper->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fork_release(sleeper->fd) && sleeper->fd >= 0)
        return sleeper;
    free(sleeper);
    return NULL;
}

struct sleeper *sleeper_begin(struct net_request *request)
{
    struct net_comm *comm = request->comm;
    struct sleeper *sleeper = comm->spare_sleepers;

    COMM_LOCKED(comm);
    if (sleeper != NULL)
        comm->spare_sleepers = sleeper->next;
    else
        sleeper = sleeper_create();
    if (sleeper == NULL)
        return NULL;
    sleeper->next = comm->sleeping;
    sleeper->here = &comm->sleeping;
    if (sleeper->next != NULL)
        sleeper->next->here = &sleeper->next;
    comm->sleeping = sleeper;
    request->sleeper = sleeper;
    return sleeper;
}

void sleeper_end(struct net_request *request, struct sleeper *sleeper)
{
    struct net_comm *comm = request->comm;
    uint64_t ignored;

    COMM_LOCKED(comm);
    request->sleeper = NULL;
    if (sleeper == NULL)
        return;
    *sleeper->here = sleeper->next;
    if (sleeper->next != NULL)
        sleeper->next->here = sleeper->here;
    if (read(sleeper->fd, &ignored, sizeof ignored) < 0)
        log_debug("a sleeper was not woken");
    sleeper->next = comm->spare_sleepers;
    comm->spare_sleepers = sleeper;
}

void sleeper_wake(const struct sleeper *sleeper)
{
    const uint64_t one = 1;

    if (sleeper != NULL && write(sleeper->fd, &one, sizeof one) < 0)
        log_debug("a sleeper is being woken already");
}

void sleepers_close(struct net_comm *comm)
{
    while (comm->spare_sleepers != NULL) {
        struct sleeper *sleeper = comm->spare_sleepers;

        comm->spare_sleepers = sleeper->next;
        fork_close(sleeper->fd);
        free(sleeper);
    }
}
