/* Which receive a message belongs to: by the number of the receive, or by its tag. */
#ifndef TCPX_NET_COMM_RX_MATCH_H
#define TCPX_NET_COMM_RX_MATCH_H

#include "net/comm/comm_state.h"

MUST_CHECK int rx_match_create(struct net_comm *comm);
void rx_match_destroy(struct net_comm *comm);

/* A new receive gets its number. */
void rx_match_number(struct net_comm *comm, struct net_request *request);
/* An outstanding receive; NULL: none has this number. */
struct net_request *rx_match_by_number(struct net_comm *comm, uint32_t sequence);
/* Whether the next number could be taken for that of an old receive that is still outstanding. */
bool rx_match_numbers_meet(const struct net_comm *comm);

/*
 * With tags: the receive of a message that was sent when its sender had heard of so many receives.
 * NULL: it is not posted.
 */
struct net_request *rx_match_by_tag(struct net_comm *comm, uint64_t tag, uint64_t posts_heard);
/* A receive waits for a message that has not begun. */
void rx_match_wait(struct net_comm *comm, struct net_request *request);
/* It has its message, or has failed. */
void rx_match_ends(struct net_comm *comm, struct net_request *request);

#endif
