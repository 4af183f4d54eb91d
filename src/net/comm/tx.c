/* Opening and closing the sending side. */
#include "net/comm/tx.h"

#include "net/comm/tx_cancel.h"
#include "net/comm/tx_match.h"
#include "net/comm/unsent.h"

#include <stdlib.h>
#include <sys/socket.h>

int tx_create(struct net_comm *comm)
{
    int result = stages_slow_network(&comm->throttle, comm->link.forward, comm->link.sockets);

    if (result == TCPX_SUCCESS)
        result = tx_match_create(comm);
    if (result == TCPX_SUCCESS)
        unsent_limit_all(comm);
    return result;
}

void tx_destroy(struct net_comm *comm)
{
    for (unsigned i = 0; i < WIRE_MOST_SOCKETS; i++)
        free(comm->tx.outgoing[i].own);
    tx_match_destroy(comm);
}

void tx_start(struct net_comm *comm, struct net_request *request)
{
    COMM_LOCKED(comm);
    if (request->is_place && request->data == NULL && request->parts == NULL)
        tx_cancel_place(comm, request);
    else if (request->is_place)
        tx_match_start_place(comm, request);
    else
        tx_match_start(comm, request);
}

/*
 * Best effort. If FIN does not fit, or only in part, the receiver still sees the end of the stream,
 * but cannot check the number of bytes.
 */
static void tx_send_fin(struct net_comm *comm, uint16_t socket)
{
    const struct outgoing *outgoing = &comm->tx.outgoing[socket];
    uint8_t bytes[WIRE_RECORD_BYTES];

    wire_record_write(&(struct wire_record){.type = WIRE_FIN, .length = outgoing->total}, bytes);
    if (send(comm->link.forward[socket], bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return;
}

/*
 * A close with unread input is a reset, which destroys what the peer has not read yet. A receiver
 * that keeps to the protocol sends nothing here.
 */
static void tx_discard_input(int fd)
{
    enum { MOST_READS = 4, MANY = 1 << 30 };

    for (int i = 0; i < MOST_READS; i++)
        if (recv(fd, NULL, MANY, MSG_TRUNC | MSG_DONTWAIT) <= 0)
            return;
}

static bool tx_has_sent_all(const struct net_comm *comm)
{
    bool all = comm->result == TCPX_SUCCESS && queue_length(&comm->tx.planned) == 0;

    for (unsigned i = 0; i < comm->used_requests; i++)
        all = all && comm->requests[i].state != REQUEST_MOVING;
    for (unsigned i = 0; i < comm->link.sockets; i++)
        all = all && outgoing_is_idle(&comm->tx.outgoing[i]);
    return all;
}

/* shutdown, because a forked child may hold the descriptor too. */
void tx_close(struct net_comm *comm)
{
    bool in_order;

    if (comm->mover != NULL)
        comm->mover->close_sends(comm);
    in_order = tx_has_sent_all(comm);
    for (uint16_t i = 0; i < comm->link.sockets; i++) {
        if (in_order && (i == 0 || comm->link.framing == WIRE_INLINE))
            tx_send_fin(comm, i);
        tx_discard_input(comm->link.forward[i]);
        shutdown(comm->link.forward[i], SHUT_WR);
    }
    shutdown(comm->link.reverse, SHUT_RDWR);
}
