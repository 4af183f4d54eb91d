/* FIN, the end of a stream, and lost connections. */
#include "net/comm/rx_end.h"

#include "net/comm/fail.h"

/* A socket that carries only payload is not read without any, and so cannot show its end. */
static bool rx_lane_has_ended(const struct net_comm *comm, unsigned socket)
{
    const struct incoming *incoming = &comm->rx.incoming[socket];

    return incoming->ended ||
           (comm->link.framing == WIRE_SEPARATE && socket > 0 && incoming->payload.sink == NULL &&
            queue_length(&incoming->slices) == 0);
}

static bool rx_have_all_ended(const struct net_comm *comm)
{
    for (unsigned i = 0; i < comm->link.sockets; i++)
        if (!rx_lane_has_ended(comm, i))
            return false;
    return true;
}

static bool rx_misses_bytes(const struct net_request *request)
{
    return request->state == REQUEST_MOVING && request->arrived == NULL &&
           (!request->matched || request->moved < request->bytes);
}

/* The sender closed, and its socket did not take the whole FIN. */
static bool rx_has_part_of_fin(const struct incoming *incoming)
{
    return incoming->record_have > 0 && incoming->record[0] == WIRE_FIN &&
           incoming->payload.sink == NULL;
}

/* All that will come has arrived. A lost connection has a text of its own. */
static void rx_fail_at_end(struct net_comm *comm)
{
    bool in_the_middle = false;

    if (comm->lost_at != 0) {
        comm_fail_lost(comm);
        return;
    }
    for (unsigned i = 0; i < comm->used_requests; i++)
        in_the_middle = in_the_middle || rx_misses_bytes(&comm->requests[i]);
    comm_fail(comm, error_set(TCPX_REMOTE_ERROR,
                              in_the_middle ? "the sender at %s was lost in the middle of a message"
                                            : "the sender at %s has closed the comm",
                              comm->link.peer));
}

void rx_connection_lost(struct net_comm *comm, unsigned socket)
{
    COMM_LOCKED(comm);
    comm->rx.incoming[socket].ended = true;
    comm_lose(comm);
    if (rx_have_all_ended(comm))
        rx_fail_at_end(comm);
}

void rx_stream_ended(struct net_comm *comm, unsigned socket)
{
    struct incoming *incoming = &comm->rx.incoming[socket];
    bool in_the_middle = incoming->payload.sink != NULL ||
                         (incoming->record_have != 0 && !rx_has_part_of_fin(incoming));

    COMM_LOCKED(comm);
    if (in_the_middle && !incoming->ended) {
        error_keep("the sender at %s was lost in the middle of a message", comm->link.peer);
        rx_connection_lost(comm, socket);
        return;
    }
    incoming->ended = true;
    if (rx_have_all_ended(comm))
        rx_fail_at_end(comm);
}

bool rx_connection_has_failed(struct net_comm *comm, unsigned socket)
{
    COMM_LOCKED(comm);
    if (comm_connection_error(comm, socket) == 0)
        return false;
    rx_connection_lost(comm, socket);
    return true;
}
