/*
 * Links of which some connections have arrived: all of these have presented the listener's token. A
 * pending link stays while its sockets live, since a program that is late is no dead peer; pending
 * links are bounded in number and in descriptors. Of one listener, whose clock all times are of.
 */
#ifndef TCPX_NET_LINK_PENDING_LINK_H
#define TCPX_NET_LINK_PENDING_LINK_H

#include "net/link/link.h"

enum { PENDING_LINKS_MOST = 128 };

struct pending_link {
    struct net_link link;
    uint64_t comm;
    uint64_t deadline; /* from then on it may be evicted, if it is not complete */
    uint64_t check_at; /* when to look next whether its peer is still there */
    uint64_t order;    /* the oldest has the least */
    unsigned present;  /* connections; 0: this place is free */
    bool is_steered;
    size_t ready_sent; /* bytes of READY */
};

struct pending_links {
    unsigned most_descriptors;
    uint64_t next_order;
    struct pending_link places[PENDING_LINKS_MOST];
};

/* Of zeros; the limit of descriptors is chosen here. */
void pending_links_start(struct pending_links *pending);

/*
 * Gives a connection to its link, which is begun if it is the first one: `deadline` is for that.
 * Takes the descriptor over on success; otherwise the text says why not.
 */
MUST_CHECK int pending_links_join(struct pending_links *pending,
                                  const struct net_link_options *options,
                                  const struct wire_hello *hello, int fd, uint64_t now,
                                  uint64_t deadline);

/* All connections of the link are there. */
bool pending_link_is_complete(const struct pending_link *pending);

/* False: its peer has left, or breaks the protocol. */
bool pending_link_has_peer(const struct pending_link *pending);

/* Closes the sockets; the place is free afterwards. */
void pending_link_drop(struct pending_link *pending);

#endif
