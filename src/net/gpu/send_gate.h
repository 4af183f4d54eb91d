/*
 * Sends that wait until the GPU has completed their data. Each has a stream of its own, so that a
 * late one does not delay the others.
 */
#ifndef TCPX_NET_GPU_SEND_GATE_H
#define TCPX_NET_GPU_SEND_GATE_H

#include "net/gpu/comm_gpu.h"

MUST_CHECK int send_gates_create(struct net_comm *comm);
void send_gates_destroy(struct net_comm *comm);

/* Closed until all that is on the caller's stream, or the caller's event, has been reached. */
MUST_CHECK int send_gate_close(struct net_comm *comm, struct net_request *request,
                               enum net_after after, void *what);

/* Queries the GPU. If that fails, so has the comm. */
bool send_gate_is_open(struct net_comm *comm, struct net_request *request);

/* The event of a request, which it has as long as it is not used otherwise. */
MUST_CHECK int send_gate_event(struct net_comm *comm, const struct net_request *request,
                               struct gpu_event **event);

#endif
