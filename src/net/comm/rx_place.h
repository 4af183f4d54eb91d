/*
 * Places: receives that the sender knows by a number without a POST. Those with numbers that count
 * up may be named by a record before they are opened here; it waits in its socket until then.
 */
#ifndef TCPX_NET_COMM_RX_PLACE_H
#define TCPX_NET_COMM_RX_PLACE_H

#include "net/comm/comm_state.h"

MUST_CHECK int rx_place_create(struct net_comm *comm);
void rx_place_destroy(struct net_comm *comm);

/* Whether a place of this number can be opened now; if not, why. */
MUST_CHECK int rx_place_check(struct net_comm *comm, uint32_t place);

/* A new receive that is a place, until it ends. */
void rx_place_open(struct net_comm *comm, struct net_request *request);

/* An open one; NULL: none has this number. */
struct net_request *rx_place_find(struct net_comm *comm, uint32_t place);

/* Whether the record that the socket holds names a place that has yet to be opened. */
bool rx_place_is_awaited(struct net_comm *comm, struct incoming *incoming);

#endif
