/*
 * What a receiver sends on its reverse socket: POST for every receive, and CREDIT for unexpected
 * messages that are not held any more. Records that the sender does not wait for are sent together
 * with later ones: a system call for each receive would cost as much as everything else about it.
 */
#ifndef TCPX_NET_COMM_RX_ANNOUNCE_H
#define TCPX_NET_COMM_RX_ANNOUNCE_H

#include "net/comm/comm_state.h"

MUST_CHECK int rx_announce_create(struct net_comm *comm);
void rx_announce_destroy(struct net_comm *comm);

/* Whether another receive can be announced. */
bool rx_announce_has_room(const struct net_comm *comm);

/* Queues a POST. */
void rx_announce_post(struct net_comm *comm, const struct net_request *request);

/* Queues a CANCEL: this receive discards its message. */
void rx_announce_cancel(struct net_comm *comm, uint32_t sequence);

/* Whether a receive into this buffer may be announced by a later call. */
bool rx_announce_can_wait(const struct net_comm *comm, const struct net_buffer *buffer);

/* Whether to write now. `now`: also what could wait, since no call may follow for a while. */
bool rx_announce_is_due(struct net_comm *comm, bool now);

/* Writes to the reverse socket. The lane is busy; the lock is free during system calls. */
enum lane_wait rx_write_reverse(struct net_comm *comm);

/* An unexpected message of so many bytes is not held any more. */
static inline void rx_free_credit(struct net_comm *comm, uint64_t bytes)
{
    comm->rx.credit_freed += bytes + WIRE_EAGER_CHARGE;
}

/* Whether the application is posting receives, so that a lane may wait for one. */
bool rx_announce_is_posting(const struct net_comm *comm);

#endif
