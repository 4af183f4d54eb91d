/* Failures of a comm, and of one of its connections. */
#include "net/comm/fail.h"

#include "base/log.h"
#include "net/comm/lanes.h"
#include "net/comm/request.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>

/* --- ABORT --------------------------------------------------------------------------------- */

/* An ABORT can only follow a whole record. False: the rest of the record cannot be sent now. */
static bool abort_end_reverse_record(struct net_comm *comm)
{
    struct comm_rx *rx = &comm->rx;
    size_t sent = rx->output_sent % WIRE_RECORD_BYTES;
    size_t rest = sent == 0 ? 0 : WIRE_RECORD_BYTES - sent;

    if (rx->peer_closed_reverse)
        return false;
    sent = socket_send_now(comm->link.reverse, rx->output + rx->output_sent, rest);
    rx->output_sent += sent;
    return sent == rest;
}

static bool abort_can_follow(struct net_comm *comm)
{
    return comm->side == NET_SENDER ? outgoing_is_idle(&comm->tx.outgoing[0])
                                    : abort_end_reverse_record(comm);
}

/* Best effort: as much of the ABORT as the socket takes now, then the end of every stream. */
void comm_abort(struct net_comm *comm)
{
    uint8_t bytes[WIRE_ABORT_BYTES];
    size_t length = wire_abort_write((enum tcpx_result)comm->result, comm->text, bytes);
    bool sender = comm->side == NET_SENDER;

    COMM_LOCKED(comm);
    if (comm->aborted || comm->lanes[sender ? 0 : comm_reverse_lane(comm)].busy)
        return;
    comm->aborted = true;
    if (abort_can_follow(comm) &&
        socket_send_now(sender ? comm->link.forward[0] : comm->link.reverse, bytes, length) <
            length)
        log_debug("%s could not be told why", comm->link.peer);
    for (unsigned i = 0; i < comm->link.sockets; i++)
        shutdown(comm->link.forward[i], SHUT_RDWR);
    shutdown(comm->link.reverse, SHUT_RDWR);
}

/* --- failing ------------------------------------------------------------------------------- */

/* All bytes of the message have arrived, and only have to be copied to their place by the GPU. */
static bool fail_spares(const struct net_request *request)
{
    return request->comm->side == NET_RECEIVER && request->matched &&
           !request->comm->copies_failed &&
           (request->moved == request->bytes || request->arrived != NULL);
}

static void fail_requests(struct net_comm *comm, int result, const char *why)
{
    for (unsigned i = 0; i < comm->used_requests; i++) {
        struct net_request *request = &comm->requests[i];

        if (!request_is_outstanding(request) || fail_spares(request))
            continue;
        error_keep("%s: %s of %llu bytes with tag %llu had moved %llu; %llu messages before it had "
                   "been moved whole",
                   why, comm->side == NET_SENDER ? "a send" : "a receive",
                   (unsigned long long)request->bytes, (unsigned long long)request->tag,
                   (unsigned long long)request->moved, (unsigned long long)comm->messages);
        request_fail(request, result);
    }
}

void comm_fail_copies(struct net_comm *comm, int result)
{
    char why[sizeof comm->text];

    COMM_LOCKED(comm);
    comm->copies_failed = true;
    snprintf(why, sizeof why, "%s", error_text());
    if (comm->result != TCPX_SUCCESS)
        fail_requests(comm, result, why);
    else
        comm_fail(comm, result);
}

void comm_fail(struct net_comm *comm, int result)
{
    COMM_LOCKED(comm);
    if (comm->result != TCPX_SUCCESS)
        return;
    comm->result = result;
    stages_wait(&comm->calling, false, clock_now());
    snprintf(comm->text, sizeof comm->text, "%s", error_text());
    if (comm->pending > 0) /* a peer that closes when all is done is no news */
        log_debug("comm with %s failed: %s", comm->link.peer, comm->text);
    comm_abort(comm);
    lane_wake(comm, comm_reverse_lane(comm)); /* copies that are in flight */
    /* The caller may overwrite the buffer of a failed request. */
    if (comm->side == NET_SENDER && comm->mover != NULL)
        comm->mover->abort_sends(comm);
    fail_requests(comm, result, comm->text);
}

void comm_fail_protocol(struct net_comm *comm, const char *format, ...)
{
    char what[256];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    comm_fail(comm,
              error_set(TCPX_REMOTE_ERROR, "%s broke the protocol: %s", comm->link.peer, what));
}

/* --- lost connections ---------------------------------------------------------------------- */

void comm_lose(struct net_comm *comm)
{
    COMM_LOCKED(comm);
    if (comm->lost_at != 0 || comm->result != TCPX_SUCCESS)
        return;
    snprintf(comm->lost_text, sizeof comm->lost_text, "%s", error_text());
    comm->lost_at = clock_now();
    lane_wake(comm, comm_reverse_lane(comm)); /* looks at the time */
}

void comm_fail_lost(struct net_comm *comm)
{
    error_keep("%s", comm->lost_text);
    comm_fail(comm, TCPX_REMOTE_ERROR);
}

void comm_fail_if_lost_for_long(struct net_comm *comm)
{
    enum { LOST_MS = 2000 };

    if (comm->lost_at != 0 && comm->result == TCPX_SUCCESS &&
        clock_now() > comm->lost_at + (uint64_t)LOST_MS * 1000000)
        comm_fail_lost(comm);
}

int comm_connection_error(const struct net_comm *comm, unsigned lane)
{
    socklen_t length = sizeof(int);
    int error = 0;

    if (getsockopt(comm->link.forward[lane], SOL_SOCKET, SO_ERROR, &error, &length) != 0)
        return 0;
    if (error != 0)
        error_keep_system(error, "a connection with %s broke", comm->link.peer);
    return error;
}

/* --- connections of a sender --------------------------------------------------------------- */

/* Whether a peer that reset a connection may have sent its reason on the reverse socket. */
static bool tx_may_learn_why(int error)
{
    return error == EPIPE || error == ECONNRESET;
}

void tx_connection_failed(struct net_comm *comm, unsigned socket, int error)
{
    COMM_LOCKED(comm);
    error_keep_system(error, "the connection to %s broke", comm->link.peer);
    comm->tx.outgoing[socket].lost = true;
    comm_lose(comm);
    if (!tx_may_learn_why(error))
        comm_fail_lost(comm);
}

bool tx_connection_has_failed(struct net_comm *comm, unsigned socket)
{
    int error = comm_connection_error(comm, socket);

    COMM_LOCKED(comm);
    if (error == 0)
        return false;
    if (tx_may_learn_why(error))
        comm_lose(comm);
    else
        comm_fail(comm, TCPX_REMOTE_ERROR);
    return true;
}
