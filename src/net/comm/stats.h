/*
 * UCCL_TCPX_STATS: every so many seconds a line for each peer host that this process has comms
 * with: rates, what transfers waited for, connections, retransmissions. Without the variable a comm
 * pays for one comparison when it is opened and closed.
 */
#ifndef TCPX_NET_COMM_STATS_H
#define TCPX_NET_COMM_STATS_H

#include "net/comm/comm_state.h"

/* After the comm was opened, and before anything of it is closed. Without the comm's lock. */
MUST_CHECK int stats_join(struct net_comm *comm);
void stats_leave(struct net_comm *comm);

#endif
