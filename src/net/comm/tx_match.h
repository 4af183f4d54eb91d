/*
 * Which receive a send goes to. A send waits until it is paired with a posted receive, or may go
 * before that, on credit. Then it is opened, in an order that both sides compute in the same way:
 * its records are planned for forward socket 0, and its bytes can be cut into slices.
 * docs/protocol.md has the rules.
 */
#ifndef TCPX_NET_COMM_TX_MATCH_H
#define TCPX_NET_COMM_TX_MATCH_H

#include "net/comm/comm_state.h"

MUST_CHECK int tx_match_create(struct net_comm *comm);
void tx_match_destroy(struct net_comm *comm);

/* A new send: opens it, or lets it wait for its receive. */
void tx_match_start(struct net_comm *comm, struct net_request *request);

/* A new send to a place, which is opened at once. */
void tx_match_start_place(struct net_comm *comm, struct net_request *request);

/* What the receiver has sent: a posted receive, and all credit that was freed so far. */
MUST_CHECK int tx_match_post(struct net_comm *comm, const struct wire_record *record);
MUST_CHECK int tx_match_credit(struct net_comm *comm, uint64_t freed);

/* Opens sends that wait, as far as the credit goes now. */
void tx_match_open_waiting(struct net_comm *comm);

/* Plans a record for forward socket 0. False: it failed, and so has the comm. */
bool tx_match_plan(struct net_comm *comm, struct net_request *request,
                   const struct wire_record *record);
/* Whether another send may begin: fewer records than that are left of cancelled messages. */
bool tx_match_has_room(const struct net_comm *comm, unsigned most_left);
/* Whether another slice's record can be planned, with room left for sends that begin. */
bool tx_match_can_plan_slice(const struct net_comm *comm);

/* A send that waits for its receive does so no more. */
void tx_match_forget(struct net_comm *comm, struct net_request *request);
/* The receive of this number gets no message. False: it has one, or is not known. */
bool tx_match_withdraw_post(struct net_comm *comm, uint32_t sequence);

#endif
