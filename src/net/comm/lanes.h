/*
 * The lanes of a comm as tasks of the I/O threads: each lane's socket is owned by one thread, which
 * runs it when the socket has events and when it is woken.
 */
#ifndef TCPX_NET_COMM_LANES_H
#define TCPX_NET_COMM_LANES_H

#include "net/comm/comm_state.h"

int lane_descriptor(const struct net_comm *comm, unsigned lane);
/* Whether it is read, and not written. */
bool lane_reads(const struct net_comm *comm, unsigned lane);

/* Its owner moves the lane on. No effect while only callers move it. */
void lane_wake(struct net_comm *comm, unsigned number);

/* Adds all lanes to the I/O threads, or none; `run` is called for each. */
MUST_CHECK int lanes_add(struct net_comm *comm, io_run *run);
/* Events are reported, or only errors and hang-ups. */
void lanes_own(struct net_comm *comm, bool owned);
void lanes_remove(struct net_comm *comm);

#endif
