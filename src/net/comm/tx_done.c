/* The completion of sends. */
#include "net/comm/tx_done.h"

#include "net/comm/request.h"
#include "net/comm/tx_work.h"

static void tx_fail_too_long(struct net_request *request)
{
    request_fail(request,
                 error_set(TCPX_INVALID_USAGE,
                           "a message of %llu bytes with tag %llu, but its receive at %s has "
                           "room for %llu",
                           (unsigned long long)request->bytes, (unsigned long long)request->tag,
                           request->comm->link.peer, (unsigned long long)request->room));
}

void tx_moved(struct net_request *request, uint64_t bytes)
{
    COMM_LOCKED(request->comm);
    request->moved += bytes;
    if (request->state != REQUEST_MOVING || request->records_queued != 0)
        return;
    if (request->too_long) {
        tx_fail_too_long(request);
    } else if (request->moved == request->bytes) {
        tx_work_ended(request->comm, request);
        request_done(request);
    }
}
