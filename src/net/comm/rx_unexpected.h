/*
 * Unexpected messages: those that arrive before their receive is posted, within the credit that the
 * sender was given. They wait here and are copied to their receive. In order, both sides know the
 * number of the receive before it is posted, and so even slices may come ahead; with tags, only
 * messages that are small enough for one EAGER record.
 */
#ifndef TCPX_NET_COMM_RX_UNEXPECTED_H
#define TCPX_NET_COMM_RX_UNEXPECTED_H

#include "net/comm/comm_state.h"

void rx_unexpected_create(struct net_comm *comm);
void rx_unexpected_destroy(struct net_comm *comm);
/* The message was copied out. Its memory may be used again. */
void rx_unexpected_free(struct net_comm *comm, struct unexpected *message);

/* --- for a new receive --- */

/* Its message, if all of it is there; if it is on the way, it is delivered later. */
struct unexpected *rx_unexpected_take(struct net_comm *comm, struct net_request *request);
/* Whether the next receive of this tag has its message already. */
bool rx_unexpected_is_complete(struct net_comm *comm, uint64_t tag);
/* To its receive; it is freed then. */
void rx_unexpected_deliver(struct net_comm *comm, struct net_request *request,
                           struct unexpected *message);

/* --- for a record that begins a payload, in order --- */

bool rx_unexpected_has_begun(struct net_comm *comm, uint32_t sequence);
/*
 * Where the message of a record belongs; *message is NULL if that is its receive. False: it may not
 * come, and the comm has failed.
 */
bool rx_unexpected_place(struct net_comm *comm, uint32_t sequence, uint64_t bytes, bool on_credit,
                         struct unexpected **message);
/* The payload of the socket belongs to the message, unless it is more than there can be. */
void rx_unexpected_expect(struct net_comm *comm, struct rx_payload *payload,
                          struct unexpected *message, uint64_t offset, uint64_t bytes);

/* --- with tags --- */

/* No receive of its tag is posted: an EAGER message is kept. */
void rx_unexpected_expect_tagged(struct net_comm *comm, struct rx_payload *payload,
                                 const struct wire_record *record);

#endif
