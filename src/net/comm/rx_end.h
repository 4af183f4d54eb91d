/*
 * The ends of a receiver's connections. The comm ends when all of them have: one that was lost may
 * have left whole messages, whose sends are done, in the others.
 */
#ifndef TCPX_NET_COMM_RX_END_H
#define TCPX_NET_COMM_RX_END_H

#include "net/comm/comm_state.h"

/* The socket has returned the end of its stream. */
void rx_stream_ended(struct net_comm *comm, unsigned socket);

/* The connection was lost, and error_text() says how. */
void rx_connection_lost(struct net_comm *comm, unsigned socket);

/* Whether the connection has met an error that no call has returned yet: then it is lost. */
bool rx_connection_has_failed(struct net_comm *comm, unsigned socket);

#endif
