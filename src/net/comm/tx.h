/* Opens and closes the sending side of a comm. */
#ifndef TCPX_NET_COMM_TX_H
#define TCPX_NET_COMM_TX_H

#include "net/comm/comm_state.h"

MUST_CHECK int tx_create(struct net_comm *comm);

/* A new send. */
void tx_start(struct net_comm *comm, struct net_request *request);

/* The end of every stream; with FIN, if all sends are done. */
void tx_close(struct net_comm *comm);
void tx_destroy(struct net_comm *comm);

#endif
