/* Wakes callers that sleep until a request of a comm has ended. */
#ifndef TCPX_NET_COMM_WAKE_H
#define TCPX_NET_COMM_WAKE_H

#include "net/comm/comm_state.h"

/* A request may have ended: sleepers look. */
void wake_sleepers(struct net_comm *comm);

/* Before a sleep. An eventfd, which stays; without one a sleeper only polls more often. */
void wake_open(struct net_comm *comm);
/* A sleeper was woken: the wake-up is used. */
void wake_clear(struct net_comm *comm);
void wake_close(struct net_comm *comm);

#endif
