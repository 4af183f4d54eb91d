/* Memory that was registered with a comm: it ends with the comm at the latest. */
#ifndef TCPX_NET_COMM_MEMORY_H
#define TCPX_NET_COMM_MEMORY_H

#include "net/comm/comm_state.h"

/* Without the lock. */
void memory_add(struct net_comm *comm, struct net_memory *memory);
void memory_remove(struct net_comm *comm, struct net_memory *memory);

/* When the comm is closed. */
void memory_remove_all(struct net_comm *comm);

#endif
