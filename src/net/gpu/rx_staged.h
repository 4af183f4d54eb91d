/*
 * The sink of a receive into GPU memory through host memory: what a socket has put into a pinned
 * slot is copied to its place as soon as the slot is full or the slice is at its end, and the slot
 * is free again when the copy has ended. A receive is done when all of its copies are.
 */
#ifndef TCPX_NET_GPU_RX_STAGED_H
#define TCPX_NET_GPU_RX_STAGED_H

#include "net/gpu/comm_gpu.h"

extern const struct sink_ops sink_staged;

/* The operations of mover.h. */
void rx_staged_deliver_unexpected(struct net_comm *comm);
int rx_staged_finish_on_stream(struct net_comm *comm, struct net_request *request, void *stream,
                               bool *handed_over);

void rx_staged_close(struct net_comm *comm);

#endif
