/*
 * Links of which some connections have arrived, all with the listener's token. A pending link is
 * kept while its sockets live, since a late program is not a dead peer; pending links are bounded
 * in number and in descriptors. All times are of the listener's clock.
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
    unsigned present;  /* connections; 0: this place is free */
    bool is_steered;
    size_t ready_sent; /* bytes of READY */
};

struct pending_links {
    unsigned most_descriptors;
    struct pending_link places[PENDING_LINKS_MOST];
};

/* Chooses the limit of descriptors; the rest of the table is zero before. */
void pending_links_start(struct pending_links *pending);

/*
 * Adds a connection to its link. The first connection of a link begins it, with this deadline. Owns
 * the descriptor on success; otherwise error_text() is the reason.
 */
MUST_CHECK int pending_links_join(struct pending_links *pending,
                                  const struct net_link_options *options,
                                  const struct wire_hello *hello, int fd, uint64_t now,
                                  uint64_t deadline);

/* Whether all connections of the link have arrived. */
bool pending_link_is_complete(const struct pending_link *pending);

/* False: its peer has left, or breaks the protocol. */
bool pending_link_has_peer(const struct pending_link *pending);

/* Closes the sockets; the place is free afterwards. */
void pending_link_drop(struct pending_link *pending);

#endif
