/*
 * One forward socket of a sender: an idle one is loaded with planned records or with a slice, and
 * writes until its turn is over, the socket is full, or there is nothing left to send.
 */
#ifndef TCPX_NET_COMM_TX_LANE_H
#define TCPX_NET_COMM_TX_LANE_H

#include "net/comm/comm_state.h"

/* The lane is busy; the lock is free during system calls. */
enum lane_wait tx_send(struct net_comm *comm, uint16_t socket);

#endif
