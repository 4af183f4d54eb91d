/*
 * Work for the lanes of a sender: bytes of opened sends that no socket has taken, which idle lanes
 * are woken to take them, and when a send is done.
 */
#ifndef TCPX_NET_COMM_TX_WORK_H
#define TCPX_NET_COMM_TX_WORK_H

#include "net/comm/comm_state.h"

/* The oldest opened send with bytes that no socket has taken, of those that need no copy first. */
struct net_request *tx_work_next(struct net_comm *comm);

/* Wakes as many idle lanes as there are slices worth one. */
void tx_work_wake_lanes(struct net_comm *comm);

/* Whether the lanes that have been woken are enough for all slices. */
bool tx_work_is_taken(const struct net_comm *comm);

/* A send begins. Notes whether large sends follow each other closely. */
void tx_work_begins(struct net_comm *comm, const struct net_request *request);

/* So many more bytes of a send have moved; it is done when all have, and all records are sent. */
void tx_moved(struct net_request *request, uint64_t bytes);

#endif
