/*
 * Half-open connections: accepted, but not identified as peers. Anyone can open one, so a listener
 * keeps a bounded number of them, each for a bounded time. Both listeners, net/link/listener.c and
 * session/bootstrap_listen.c, keep theirs in such a table; what else they know of a connection is
 * in their own struct, whose first member is a struct half_open. Nothing here waits or closes a
 * connection: the listener logs why it does so.
 */
#ifndef TCPX_NET_SOCKET_HALF_OPEN_H
#define TCPX_NET_SOCKET_HALF_OPEN_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum { HALF_OPEN_PLACES = 192 }; /* of one table, at most */

struct half_open {
    int fd;            /* -1: this place is free */
    bool has_greeted;  /* as a peer does; connections that have not never evict it */
    uint64_t deadline; /* on the clock of the table */
    size_t have;       /* bytes of its hello or greeting */
};

struct half_open_table {
    uint64_t limit_ms;     /* how long a connection may stay half-open */
    uint64_t clock;        /* nanoseconds; stands still while the program accepts nothing */
    uint64_t advanced_at;  /* when the clock was last advanced */
    uint64_t backoff_ends; /* when a failing accept becomes an error; 0: accept does not fail */
    unsigned count;
    struct half_open *places[HALF_OPEN_PLACES];
};

/* Before any place is added. */
void half_open_start(struct half_open_table *table, uint64_t limit_ms);

/* The place is free at first, and stays the listener's memory. */
void half_open_add_place(struct half_open_table *table, struct half_open *place);

/*
 * Binds and listens. A connection takes a place only when its first bytes are there: silent ones
 * wait in the kernel. False, and errno.
 */
MUST_CHECK bool half_open_listen(const struct half_open_table *table, int fd,
                                 const struct sockaddr_storage *address, int backlog);

/*
 * *fd: the next connection; -1: none can be accepted now. EMFILE, ENFILE, ENOMEM and ENOBUFS are
 * tolerated for a second, with backoff_ends set meanwhile; then they are an error.
 */
MUST_CHECK int half_open_accept(struct half_open_table *table, int listening, int *fd);

/* Puts a connection into a free place; its time begins. */
void half_open_enter(struct half_open_table *table, struct half_open *place, int fd);

/* NULL: all places are taken. */
struct half_open *half_open_free_place(const struct half_open_table *table);

/* The connection that has been half-open for longest. The table is not empty. */
struct half_open *half_open_oldest(const struct half_open_table *table);

/*
 * If more than `most` connections have greeted, or more than `most` have not: one of them at
 * random, so that no peer can arrange to be the one that stays. NULL: there are not more.
 */
struct half_open *half_open_excess(const struct half_open_table *table, bool greeted,
                                   unsigned most);

/*
 * Advances the clock by the time since the last call, but by `most_ns` at most. A peer that has
 * sent its bytes in time must not be dropped because this program was late to read them.
 */
void half_open_advance(struct half_open_table *table, uint64_t most_ns);

/* The moment on the clock when the time of a connection that is accepted now is over. */
uint64_t half_open_deadline(const struct half_open_table *table);

#endif
