/*
 * How much each forward socket of a sender may hold unsent. A socket on a slow path must not fill
 * itself with slices that the others could have sent. Its limit follows from how fast it is: what
 * it sends in some milliseconds, so that it stays busy until the thread that feeds it comes back. A
 * single socket has no limit.
 */
#ifndef TCPX_NET_COMM_UNSENT_H
#define TCPX_NET_COMM_UNSENT_H

#include "net/comm/comm_state.h"

void unsent_limit_all(struct net_comm *comm);

/* The socket has sent what it was loaded with. */
void unsent_adapt(struct net_comm *comm, unsigned socket);

#endif
