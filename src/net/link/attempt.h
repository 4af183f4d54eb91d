/*
 * The state of a connect between two calls. An attempt is kept in a table; the caller's handle
 * holds its number, never a pointer, since a handle is untrusted. Private to connect.c.
 */
#ifndef TCPX_NET_LINK_ATTEMPT_H
#define TCPX_NET_LINK_ATTEMPT_H

#include "net/link/path.h"

enum { ATTEMPTS_MOST = 1024 };

/* One connection of the link that is being made. */
struct connection {
    int fd;
    bool established;
    size_t hello_sent; /* bytes */
};

struct attempt {
    uint64_t number;
    struct net_link_options options;
    struct net_handle handle;
    struct path paths[PATHS_MOST];
    unsigned path_count;
    struct path *path;  /* of the connections */
    uint64_t path_from; /* when it was taken */
    bool path_works;    /* it has answered */
    bool has_settled;   /* and the others have been left out */
    bool was_closed;    /* by the peer, before it sent anything */
    uint64_t comm;
    uint64_t called_at; /* when net_connect() was last called for it */
    bool was_late;      /* there was a pause before all hellos had been sent */
    unsigned budgeted;  /* further sockets, from the budget of the handle's process */
    char peer[SOCKET_NAME_BYTES];
    struct connection connections[WIRE_MOST_SOCKETS + 1]; /* the reverse one is the last */
    size_t answer_bytes; /* bytes of the answer on the reverse connection */
    uint8_t answer[WIRE_RECORD_BYTES + WIRE_ABORT_TEXT];
};

unsigned attempt_connection_count(const struct attempt *attempt);

/* Whether a connection has sent its hello, and whether all have. */
bool attempt_has_greeted(const struct connection *connection);
bool attempt_has_sent_hellos(const struct attempt *attempt);

/* Takes the attempt out, so that no second thread finds it; NULL if there is none. */
struct attempt *attempt_take(uint64_t number);

/* False: there is no room. */
MUST_CHECK bool attempt_put_back(struct attempt *attempt);

void attempt_close_connections(struct attempt *attempt);
void attempt_close_probes(struct attempt *attempt);

/* Closes all and frees it. */
void attempt_drop(struct attempt *attempt);

/* Ends all attempts of one owner; NULL: forgotten attempts of all owners. */
void attempt_drop_all(const void *owner);

/* "eth0 (192.0.2.1): cannot connect to 192.0.2.9:4711: No route to host; ...", of all paths. */
void attempt_describe(const struct attempt *attempt, char *text, size_t size);

#endif
