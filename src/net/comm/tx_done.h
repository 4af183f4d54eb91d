/* When a send is done: all of its records are written, and its bytes are sent or have arrived. */
#ifndef TCPX_NET_COMM_TX_DONE_H
#define TCPX_NET_COMM_TX_DONE_H

#include "net/comm/comm_state.h"

/* So many more bytes have moved. */
void tx_moved(struct net_request *request, uint64_t bytes);

#endif
