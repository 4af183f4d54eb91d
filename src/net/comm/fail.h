/*
 * How a comm fails: all of its requests end with the reason, and the peer gets an ABORT with it.
 * When only one connection was lost, the comm waits for the others to end first, since a receiver
 * may have whole messages there, and a sender the peer's own reason.
 */
#ifndef TCPX_NET_COMM_FAIL_H
#define TCPX_NET_COMM_FAIL_H

#include "net/comm/comm_state.h"

/* Ends every request with this result and error_text(). No effect on a comm that has failed. */
void comm_fail(struct net_comm *comm, int result);

/* As comm_fail(), but the GPU has failed: bytes that have arrived are not copied to their place. */
void comm_fail_copies(struct net_comm *comm, int result);

/* The peer has sent what the protocol does not allow. */
void comm_fail_protocol(struct net_comm *comm, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Sends ABORT. Skipped while another thread owns that socket; the owner retries at its release. */
void comm_abort(struct net_comm *comm);

/*
 * A connection was lost; error_text() is the reason. The comm fails with it when the other
 * connections have ended, or deliver nothing for a while.
 */
void comm_lose(struct net_comm *comm);
void comm_fail_lost(struct net_comm *comm);
void comm_fail_if_lost_for_long(struct net_comm *comm);

/* The pending error of a forward connection, also as error_text(); 0: none. */
int comm_connection_error(const struct net_comm *comm, unsigned lane);

/* --- connections of a sender --- */

/*
 * A system call on the socket has failed. A receiver that gives up sends its reason on the reverse
 * socket, and that may be unread: then the comm fails a little later, with that reason.
 */
void tx_connection_failed(struct net_comm *comm, unsigned socket, int error);

/* Whether the connection has a pending error; then as tx_connection_failed(). */
bool tx_connection_has_failed(struct net_comm *comm, unsigned socket);

#endif
