/* Opening and closing the receiving side, and new receives. */
#include "net/comm/rx.h"

#include "net/comm/accounting.h"
#include "net/comm/lanes.h"
#include "net/comm/rx_announce.h"
#include "net/comm/rx_cancel.h"
#include "net/comm/rx_match.h"
#include "net/comm/rx_place.h"
#include "net/comm/rx_record.h"
#include "net/comm/rx_unexpected.h"

#include <sys/socket.h>

int rx_create(struct net_comm *comm)
{
    int result = rx_announce_create(comm);

    rx_unexpected_create(comm);
    if (result == TCPX_SUCCESS)
        result = rx_match_create(comm);
    if (result == TCPX_SUCCESS)
        result = rx_place_create(comm);
    for (unsigned i = 1; i < comm->link.sockets && result == TCPX_SUCCESS; i++)
        if (comm->link.framing == WIRE_SEPARATE)
            result = queue_init(&comm->rx.incoming[i].slices, RX_MOST_SLICES,
                                sizeof(struct wire_record));
    if (result != TCPX_SUCCESS)
        rx_destroy(comm);
    return result;
}

void rx_destroy(struct net_comm *comm)
{
    rx_unexpected_destroy(comm);
    for (unsigned i = 0; i < WIRE_MOST_SOCKETS; i++)
        queue_destroy(&comm->rx.incoming[i].slices);
    rx_announce_destroy(comm);
    rx_match_destroy(comm);
    rx_place_destroy(comm);
    shutdown(comm->link.reverse, SHUT_WR);
}

void rx_start(struct net_comm *comm, struct net_request *request)
{
    struct comm_rx *rx = &comm->rx;
    struct unexpected *message;

    COMM_LOCKED(comm);
    if (request->is_place) {
        rx_place_open(comm, request);
        if (request->data == NULL && request->parts == NULL)
            rx_cancel(comm, request);
        return;
    }
    rx_match_number(comm, request);
    message = rx_unexpected_take(comm, request);
    rx->last_post = clock_now();
    account_posted(comm, rx->last_post);
    for (unsigned i = 0; i < comm->link.sockets && rx->stalled > 0; i++)
        if (rx->incoming[i].stalled && rx->incoming[i].stalled_for == request->sequence)
            lane_wake(comm, i);
    rx_announce_post(comm, request);
    if (message != NULL)
        rx_unexpected_deliver(comm, request, message);
    else
        rx_match_wait(comm, request);
}
