/*
 * Unexpected messages: they arrive before their receive is posted, within the credit that the
 * sender was given. They are buffered here and copied to their receive. In fifo mode both sides
 * know the number of the receive before it is posted, so slices may be unexpected, too; with tags,
 * only EAGER messages.
 */
#ifndef TCPX_NET_COMM_RX_UNEXPECTED_H
#define TCPX_NET_COMM_RX_UNEXPECTED_H

#include "net/comm/comm_state.h"

void rx_unexpected_create(struct net_comm *comm);
void rx_unexpected_destroy(struct net_comm *comm);
/* The message was copied out. Its memory may be used again. */
void rx_unexpected_free(struct net_comm *comm, struct unexpected *message);

/* --- for a new receive --- */

/* The message of a new receive, if it is complete; an incomplete one is delivered later. */
struct unexpected *rx_unexpected_take(struct net_comm *comm, struct net_request *request);
/* Whether the next receive of this tag has its message already. */
bool rx_unexpected_is_complete(struct net_comm *comm, uint64_t tag);
/* Copies it to its receive and frees it. */
void rx_unexpected_deliver(struct net_comm *comm, struct net_request *request,
                           struct unexpected *message);

/* --- for a record that begins a payload, in order --- */

bool rx_unexpected_has_begun(struct net_comm *comm, uint32_t sequence);
/*
 * Finds the unexpected message of a record; *message is NULL if its receive is posted. False: the
 * sender may not send it, and the comm has failed.
 */
bool rx_unexpected_place(struct net_comm *comm, uint32_t sequence, uint64_t bytes, bool on_credit,
                         struct unexpected **message);
/* The payload of the socket goes into the message, unless that would be more than its length. */
void rx_unexpected_expect(struct net_comm *comm, struct rx_payload *payload,
                          struct unexpected *message, uint64_t offset, uint64_t bytes);

/* --- with tags --- */

/* Buffers an EAGER message: no receive of its tag is posted. */
void rx_unexpected_expect_tagged(struct net_comm *comm, struct rx_payload *payload,
                                 const struct wire_record *record);

#endif
