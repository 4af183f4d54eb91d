/* The completion of receives. */
#include "net/comm/rx_done.h"

#include "net/comm/accounting.h"
#include "net/comm/fail.h"
#include "net/comm/request.h"

void rx_done(struct net_comm *comm, struct net_request *request)
{
    COMM_LOCKED(comm);
    if (comm->unpack != NULL)
        comm->unpack->publish(comm, request);
    request_done(request);
}

/* All that was sent of a message before it was cancelled is at its place. */
static void rx_end_cut(struct net_comm *comm, struct net_request *request)
{
    if (request->moved != request->cut_at || request->copying > 0)
        return;
    if (request->is_place)
        request_fail(request, error_set(TCPX_CANCELLED, "the sender at %s has cancelled place %u",
                                        comm->link.peer, request->sequence));
    else
        request_fail(request, error_set(TCPX_REMOTE_ERROR,
                                        "the sender at %s has cancelled a message with tag %llu",
                                        comm->link.peer, (unsigned long long)request->tag));
}

void rx_done_if_complete(struct net_comm *comm, struct net_request *request)
{
    COMM_LOCKED(comm);
    if (request->is_cut) {
        rx_end_cut(comm, request);
        return;
    }
    if (!request->matched || request->moved < request->bytes)
        return;
    account_satisfied(comm, request);
    if (request->copying > 0)
        return;
    if (request->moved > request->bytes)
        comm_fail_protocol(comm, "more bytes than the message has");
    else
        rx_done(comm, request);
}

void rx_copied(struct net_comm *comm, struct net_request *request, uint64_t bytes)
{
    COMM_LOCKED(comm);
    request->copying -= bytes;
    if (request->state == REQUEST_MOVING)
        rx_done_if_complete(comm, request);
}

void rx_fail_too_long(struct net_comm *comm, struct net_request *request, uint64_t bytes)
{
    request_fail(request,
                 error_set(TCPX_INVALID_USAGE,
                           "a receive with tag %llu has room for %llu bytes, but its message from "
                           "%s has %llu",
                           (unsigned long long)request->tag, (unsigned long long)request->room,
                           comm->link.peer, (unsigned long long)bytes));
}
