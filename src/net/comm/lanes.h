/*
 * The lanes of a comm, as its I/O threads see them: which descriptor a lane has, whether callers or
 * I/O threads move it on, and for which events its I/O thread waits.
 */
#ifndef TCPX_NET_COMM_LANES_H
#define TCPX_NET_COMM_LANES_H

#include "net/comm/comm_state.h"

/* Callers move it on; I/O threads do so only while the comm is watched. */
bool lane_is_callers(const struct net_comm *comm, unsigned lane);
int lane_descriptor(const struct net_comm *comm, unsigned lane);
/* The events that end such a wait; 0: none does. */
uint32_t lane_events(const struct net_comm *comm, unsigned lane, enum lane_wait wait);

/* Its I/O thread waits for these events from now on; 0: for errors only. */
void lane_wait_for(struct net_comm *comm, unsigned number, uint32_t events);

/* An I/O thread moves the lane on, if one may. */
void lane_wake(struct net_comm *comm, unsigned lane);

/* No I/O thread waits for the lane, or for any lane, any more: its connection or the comm ended. */
void lane_unwatch(struct net_comm *comm, unsigned number);
void lanes_unwatch(struct net_comm *comm);

/* Adds all lanes to the I/O threads, or none. */
MUST_CHECK int lanes_add(struct net_comm *comm);

#endif
