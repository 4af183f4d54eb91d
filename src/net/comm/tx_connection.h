/* A forward connection of a sender that has broken. */
#ifndef TCPX_NET_COMM_TX_CONNECTION_H
#define TCPX_NET_COMM_TX_CONNECTION_H

#include "net/comm/comm_state.h"

/*
 * A system call on the socket has failed. A receiver that gives up sends its reason on the reverse
 * socket first, and that may be unread: then the comm fails a little later, with that reason.
 */
void tx_connection_failed(struct net_comm *comm, unsigned socket, int error);

/* Whether the connection has met an error that no call has returned yet; handles it like that. */
bool tx_connection_has_failed(struct net_comm *comm, unsigned socket);

#endif
