/* The table of requests, and how they end. */
#include "net/comm/request.h"

#include "base/log.h"
#include "net/comm/accounting.h"
#include "net/comm/sleeper.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int requests_create(struct net_comm *comm)
{
    const unsigned half = 1u << (WIRE_SEQUENCE_BITS - 1); /* so that a free number is always near */

    comm->most_requests = comm->link.requests != 0 ? comm->link.requests : COMM_REQUESTS;
    if (comm->most_requests > half)
        comm->most_requests = half;
    /* Not touched before they are used: a process may have hundreds of comms. */
    comm->requests =
        aligned_alloc(_Alignof(struct net_request), comm->most_requests * sizeof *comm->requests);
    if (comm->requests == NULL)
        return error_system(ENOMEM, "a comm of %u requests", comm->most_requests);
    return queue_init(&comm->ended, comm->most_requests, sizeof(void *));
}

void requests_destroy(struct net_comm *comm)
{
    for (unsigned i = 0; comm->requests != NULL && i < comm->used_requests; i++)
        free(comm->requests[i].text);
    free(comm->requests);
    queue_destroy(&comm->ended);
}

bool request_is_free(const struct net_comm *comm)
{
    COMM_LOCKED(comm);
    return comm->free_requests != NULL || comm->used_requests < comm->most_requests ||
           atomic_load(&comm->just_freed) != NULL;
}

/* The last one that was freed, so that loops visit only as many as were in use at once. */
struct net_request *request_take(struct net_comm *comm)
{
    struct net_request *request;

    COMM_LOCKED(comm);
    if (comm->free_requests == NULL)
        comm->free_requests = atomic_exchange(&comm->just_freed, NULL);
    request = comm->free_requests;
    if (request != NULL)
        comm->free_requests = request->next_free;
    else if (comm->used_requests < comm->most_requests)
        request = &comm->requests[comm->used_requests++];
    return request;
}

void request_free(struct net_request *request)
{
    struct net_comm *comm = request->comm;
    struct net_request *before = atomic_load(&comm->just_freed);

    free(request->text);
    request->text = NULL;
    request->state = REQUEST_FREE;
    do
        request->next_free = before;
    while (!atomic_compare_exchange_weak(&comm->just_freed, &before, request));
}

/* --- ends ---------------------------------------------------------------------------------- */

bool request_has_ended(const struct net_request *request)
{
    COMM_LOCKED(request->comm);
    return request->state == REQUEST_DONE || request->state == REQUEST_REPORTED ||
           request->is_listed ||
           ((request->state == REQUEST_FAILED || request->cancelled) && request->users == 0);
}

void request_hold(struct net_request *request)
{
    if (request != NULL)
        request->users++;
}

static void request_tell(struct net_comm *comm, const struct sleeper *sleeper)
{
    sleeper_wake(sleeper);
    if (comm->notified != NULL)
        io_wake(comm->notified);
}

/* A place has at most one entry in the queue. */
static void request_list_ended(struct net_request *request)
{
    if (request->owner == NULL || !request_has_ended(request))
        return;
    if (!queue_push(&request->comm->ended, &request->owner))
        log_warn("no room to list a place that has ended");
    request->owner = NULL;
    request->is_listed = true;
}

void request_notify(struct net_request *request)
{
    request_list_ended(request);
    request_tell(request->comm, request->sleeper);
}

static void request_free_orphan(struct net_request *request)
{
    if (!request->is_orphan || request->users > 0 || request_is_outstanding(request))
        return;
    request->comm->rx.orphans -= !request_is_in_order(request);
    request_free(request);
}

void request_let_go(struct net_request *request)
{
    if (request == NULL || --request->users > 0)
        return;
    if (request->is_orphan)
        request_free_orphan(request);
    else if (request->state == REQUEST_FAILED || request->cancelled)
        request_notify(request);
}

/* As soon as it has a state that test() reports, the request may be freed without the lock. */
static void request_end(struct net_request *request, enum request_state state)
{
    struct net_comm *comm = request->comm;
    const struct sleeper *sleeper = request->sleeper;

    COMM_LOCKED(comm);
    comm->pending--;
    if (comm->side == NET_RECEIVER)
        account_satisfied(comm, request);
    if (comm->side == NET_RECEIVER && request->is_place)
        key_fifo_pop(&comm->rx.places, request->sequence, NULL);
    request->state = state;
    request_list_ended(request);
    if (request->cancelled)
        request_free_orphan(request);
    request_tell(comm, sleeper);
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
    request->text = strdup(error_text());
    request_end(request, REQUEST_FAILED);
}
