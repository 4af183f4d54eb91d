/*
 * Cancelled sends. From then on no byte of the caller's memory is read but by calls and copies that
 * are under way: test() waits for those. What has begun on a socket is completed from a copy.
 */
#ifndef TCPX_NET_COMM_TX_CANCEL_H
#define TCPX_NET_COMM_TX_CANCEL_H

#include "net/comm/comm_state.h"

/* A send that has not ended. */
void tx_cancel(struct net_comm *comm, struct net_request *request);

/* A place that begins without memory: it ends here, and its receive with it. */
void tx_cancel_place(struct net_comm *comm, struct net_request *request);

/* The receiver does not want the message of this receive any more. */
void tx_cancelled_by_receiver(struct net_comm *comm, uint32_t sequence);

/* A call on this socket has returned. */
void tx_cancel_after_call(struct net_comm *comm, unsigned socket);

#endif
