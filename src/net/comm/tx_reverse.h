/* A sender reads its reverse socket: POST, CREDIT, and the receiver's ABORT. */
#ifndef TCPX_NET_COMM_TX_REVERSE_H
#define TCPX_NET_COMM_TX_REVERSE_H

#include "net/comm/comm_state.h"

/* The lock is free during system calls. */
enum lane_wait tx_read_reverse(struct net_comm *comm);

#endif
