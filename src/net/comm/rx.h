/* Opens and closes the receiving side of a comm. */
#ifndef TCPX_NET_COMM_RX_H
#define TCPX_NET_COMM_RX_H

#include "net/comm/comm_state.h"

MUST_CHECK int rx_create(struct net_comm *comm);
void rx_destroy(struct net_comm *comm);

/*
 * A new receive: gets its number, is announced, and may find its message here already. A place has
 * its number.
 */
void rx_start(struct net_comm *comm, struct net_request *request);

#endif
