/* A caller sleeps until a request may have ended. */
#ifndef TCPX_NET_COMM_WAIT_H
#define TCPX_NET_COMM_WAIT_H

#include "net/comm/comm_state.h"

/*
 * At most until the deadline. Uses no CPU, except while the GPU works, which has to be polled. The
 * lock is released during the sleep.
 */
void wait_for_request(struct net_request *request, uint64_t deadline);

#endif
