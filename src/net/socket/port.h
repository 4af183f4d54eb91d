/*
 * Where the connections of a listener arrive: at a listening socket of its own, or, with
 * UCCL_TCPX_PORT, at the one listening port that all listeners of this process share. At the shared
 * port a connection is given to the listener whose sign its first bytes have; they stay in the
 * socket, so that the listener reads the whole of them. No call waits.
 */
#ifndef TCPX_NET_SOCKET_PORT_H
#define TCPX_NET_SOCKET_PORT_H

#include "net/socket/half_open.h"

#include <poll.h>

enum { PORT_KIND_BYTES = 4, PORT_KEY_BYTES = 16 };

/* What the first bytes of a listener's connections are. */
struct port_sign {
    uint8_t kind[PORT_KIND_BYTES]; /* the first ones */
    bool has_key;
    size_t key_at; /* where in there the key is */
    uint8_t key[PORT_KEY_BYTES];
};

struct port;

/*
 * Listens on the address, whose port is 0 if any will do. `table` is the listener's: its time limit
 * counts. A port that was asked for by number is shared only if UCCL_TCPX_PORT has it. Connections
 * to other addresses of this host are not taken.
 */
MUST_CHECK int port_open(const struct sockaddr_storage *address, const struct port_sign *sign,
                         const struct half_open_table *table, struct port **port);

/* The address that it listens on, with the port. */
void port_address(const struct port *port, struct sockaddr_storage *address);

/* As half_open_accept(), of the connections for this listener. */
MUST_CHECK int port_accept(struct port *port, struct half_open_table *table, int *fd);

/* What to poll until port_accept() may have a connection; returns how many. */
enum { PORT_POLLED = 2 };
unsigned port_poll(const struct port *port, struct pollfd polled[PORT_POLLED]);

/* Connections that were not accepted are closed. NULL is allowed. */
void port_close(struct port *port);

#endif
