/*
 * One forward socket of a receiver: reads records and payload until its turn is over, the socket is
 * empty, or there is no memory for the next bytes.
 */
#ifndef TCPX_NET_COMM_RX_LANE_H
#define TCPX_NET_COMM_RX_LANE_H

#include "net/comm/comm_state.h"

/* The lane is busy; the lock is free during system calls. */
enum lane_wait rx_receive(struct net_comm *comm, uint16_t socket);

#endif
