/*
 * Work for the lanes of a sender: bytes of opened sends that no socket has taken, which idle lanes
 * are woken to take them, and when a send is done.
 */
#ifndef TCPX_NET_COMM_TX_WORK_H
#define TCPX_NET_COMM_TX_WORK_H

#include "net/comm/comm_state.h"

/* A send was opened, and has bytes for the sockets. */
void tx_work_add(struct net_comm *comm, struct net_request *request);

/* So many more of its bytes were given to a socket. */
void tx_work_taken(struct net_comm *comm, struct net_request *request, uint64_t bytes);

/* No further bytes of it are given to sockets: it has some. */
void tx_work_drop(struct net_comm *comm, struct net_request *request);

/* The oldest opened send with bytes that no socket has taken, of those that need no copy first. */
struct net_request *tx_work_next(struct net_comm *comm);

/* Wakes the owners of as many idle lanes as there are slices worth one. */
void tx_work_wake_lanes(struct net_comm *comm);

/* So many more bytes of a send have moved; it is done when all have, and all records are sent. */
void tx_moved(struct net_request *request, uint64_t bytes);

#endif
