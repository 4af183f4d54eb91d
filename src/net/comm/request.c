/* The table of requests, how they end, and the eventfd that wakes sleepers. */
#include "net/comm/request.h"

#include "base/fork.h"
#include "base/log.h"
#include "net/comm/accounting.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

int requests_create(struct net_comm *comm)
{
    const unsigned half = 1u << (WIRE_SEQUENCE_BITS - 1); /* so that a free number is always near */

    comm->most_requests = comm->link.requests != 0 ? comm->link.requests : COMM_REQUESTS;
    if (comm->most_requests > half)
        comm->most_requests = half;
    comm->requests = calloc(comm->most_requests, sizeof *comm->requests);
    return comm->requests != NULL
               ? TCPX_SUCCESS
               : error_system(ENOMEM, "a comm of %u requests", comm->most_requests);
}

void requests_destroy(struct net_comm *comm)
{
    free(comm->requests);
}

/* The first one, so that loops visit only as many as are in use at once. */
struct net_request *request_take(struct net_comm *comm)
{
    COMM_LOCKED(comm);
    while (comm->used_requests > 0 && comm->requests[comm->used_requests - 1].state == REQUEST_FREE)
        comm->used_requests--;
    while (comm->first_free < comm->used_requests &&
           comm->requests[comm->first_free].state != REQUEST_FREE)
        comm->first_free++;
    if (comm->first_free < comm->used_requests)
        return &comm->requests[comm->first_free];
    comm->first_free = comm->used_requests;
    return comm->used_requests < comm->most_requests ? &comm->requests[comm->used_requests++]
                                                     : NULL;
}

void request_free(struct net_request *request)
{
    struct net_comm *comm = request->comm;
    unsigned number = (unsigned)(request - comm->requests);

    COMM_LOCKED(comm);
    request->state = REQUEST_FREE;
    if (number < comm->first_free)
        comm->first_free = number;
}

/* --- sleepers ------------------------------------------------------------------------------ */

void wake_sleepers(struct net_comm *comm)
{
    const uint64_t one = 1;

    COMM_LOCKED(comm);
    if (comm->sleepers > 0 && comm->wake_fd >= 0 && write(comm->wake_fd, &one, sizeof one) < 0)
        log_debug("a sleeper is being woken already");
}

static void wake_notified(struct net_comm *comm)
{
    const uint64_t one = 1;

    if (comm->notify_fd >= 0 && write(comm->notify_fd, &one, sizeof one) < 0)
        log_debug("a thread is being notified already");
    comm->notify_fd = -1;
}

void net_notify(struct net_comm *comm, int eventfd)
{
    comm_lock_take(&comm->lock);
    comm->notify_fd = eventfd;
    comm_lock_release(&comm->lock);
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

/* --- ends ---------------------------------------------------------------------------------- */

bool request_has_ended(const struct net_request *request)
{
    COMM_LOCKED(request->comm);
    return request->state == REQUEST_DONE || request->state == REQUEST_REPORTED ||
           (request->state == REQUEST_FAILED && request->users == 0);
}

void request_hold(struct net_request *request)
{
    if (request != NULL)
        request->users++;
}

void request_let_go(struct net_request *request)
{
    if (request != NULL && --request->users == 0 && request->state == REQUEST_FAILED) {
        wake_sleepers(request->comm);
        wake_notified(request->comm);
    }
}

static void request_end(struct net_request *request, enum request_state state)
{
    struct net_comm *comm = request->comm;

    COMM_LOCKED(comm);
    request->state = state;
    comm->pending--;
    if (comm->side == NET_RECEIVER)
        account_satisfied(comm, request);
    wake_sleepers(comm);
    wake_notified(comm);
}

void request_done(struct net_request *request)
{
    request->comm->messages++;
    request_end(request, REQUEST_DONE);
}

void request_fail(struct net_request *request, int result)
{
    request->result = result;
    free(request->arrived);
    request->arrived = NULL;
    snprintf(request->text, sizeof request->text, "%s", error_text());
    request_end(request, REQUEST_FAILED);
}
