/*
 * Calls that sleep until their request has ended. Each has an eventfd of its own, so that none
 * takes the wake-up of another. The comm keeps the descriptors for the next sleepers.
 */
#ifndef TCPX_NET_COMM_SLEEPER_H
#define TCPX_NET_COMM_SLEEPER_H

#include "net/comm/comm_state.h"

struct sleeper {
    int fd; /* an eventfd */
    struct sleeper *next;
    struct sleeper **here; /* in the list of those that sleep */
};

/* Called with the lock, before a sleep and after it. NULL: there is no descriptor left. */
struct sleeper *sleeper_begin(struct net_request *request);
void sleeper_end(struct net_request *request, struct sleeper *sleeper);

/* NULL is allowed. */
void sleeper_wake(const struct sleeper *sleeper);

void sleepers_close(struct net_comm *comm);

#endif
