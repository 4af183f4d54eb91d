/*
 * Cancelled receives. The receive becomes a place that discards: from then on no byte of the
 * caller's memory is written but by calls and copies that are under way, and test() waits for
 * those. Its number stays taken until the sender has sent the message or said that it does not.
 */
#ifndef TCPX_NET_COMM_RX_CANCEL_H
#define TCPX_NET_COMM_RX_CANCEL_H

#include "net/comm/comm_state.h"

/* A receive that has not ended. */
void rx_cancel(struct net_comm *comm, struct net_request *request);

/* A call on this socket has returned: what it was receiving may have been cancelled meanwhile. */
void rx_cancel_payload(struct net_comm *comm, unsigned socket);

/* No more than these bytes of the message will come. NULL: the record named no receive. */
void rx_cancelled_by_sender(struct net_comm *comm, struct net_request *request, uint64_t bytes);

/*
 * It was cancelled, and its caller has been told: it is freed when the sender has ended it. Until
 * then it takes the room of another one, and the sender may be stopped: so only some of them are
 * allowed, beside which others begin. Places in order have room in any case: what the sender says
 * of the others may be behind the bytes of such a place.
 */
void rx_cancel_leave(struct net_comm *comm, struct net_request *request);
bool rx_cancel_has_room(const struct net_comm *comm);

#endif
