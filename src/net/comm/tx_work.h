/*
 * Work for the lanes of a sender: bytes of opened sends that no socket has taken, and which idle
 * lanes are woken to take them.
 */
#ifndef TCPX_NET_COMM_TX_WORK_H
#define TCPX_NET_COMM_TX_WORK_H

#include "net/comm/comm_state.h"

/* The oldest opened send with bytes that no socket has taken, of those that need no copy first. */
struct net_request *tx_work_next(struct net_comm *comm);

/* Wakes as many idle lanes as there are slices worth one. */
void tx_work_wake_lanes(struct net_comm *comm);

/* Whether lanes that have been woken will take all that there is. */
bool tx_work_is_taken(const struct net_comm *comm);

/* A large send begins or ends: do large sends follow each other closely? */
void tx_work_begins(struct net_comm *comm, const struct net_request *request);
void tx_work_ended(struct net_comm *comm, const struct net_request *request);

#endif
