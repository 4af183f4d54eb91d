/* When a receive is done: its message is matched, all bytes have arrived, and none is copied yet.
 */
#ifndef TCPX_NET_COMM_RX_DONE_H
#define TCPX_NET_COMM_RX_DONE_H

#include "net/comm/comm_state.h"

void rx_done_if_complete(struct net_comm *comm, struct net_request *request);

/* All bytes are at their place. */
void rx_done(struct net_comm *comm, struct net_request *request);

/* So many bytes that were being copied to their place are there. */
void rx_copied(struct net_comm *comm, struct net_request *request, uint64_t bytes);

/* Its message has more bytes than it has room for. */
void rx_fail_too_long(struct net_comm *comm, struct net_request *request, uint64_t bytes);

#endif
