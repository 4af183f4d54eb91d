/*
 * The records of a sender, as they arrive on the forward sockets. Every field is checked against
 * the state of the comm: docs/protocol.md has the rules, and a broken one ends the comm.
 */
#ifndef TCPX_NET_COMM_RX_RECORD_H
#define TCPX_NET_COMM_RX_RECORD_H

#include "net/comm/comm_state.h"

/* With separate framing: slices announced for one socket and not begun; then socket 0 waits. */
enum { RX_MOST_SLICES = 64 };

/* The record that the socket has got is complete. */
void rx_record_arrived(struct net_comm *comm, unsigned socket);

/* With separate framing: the next slice that was announced for the socket begins. */
void rx_record_begin_slice(struct net_comm *comm, unsigned socket,
                           const struct wire_record *record);

#endif
