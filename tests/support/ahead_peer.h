/*
 * The other end of a comm that matches in order, by hand: it says what the test wants, in any
 * order, and keeps the books of credit and receives that docs/protocol.md asks for. Message k is a
 * piece of one text, by its number. With a receiver as the comm it sends; with a sender it
 * receives, and checks every record and byte that comes.
 */
#ifndef TCPX_TESTS_SUPPORT_AHEAD_PEER_H
#define TCPX_TESTS_SUPPORT_AHEAD_PEER_H

#include "tests/support/comm_inside.h"
#include "tests/support/pair.h"
#include "tests/unit/net_traffic.h"

enum {
    AHEAD_EAGER_LIMIT = 4096,
    AHEAD_SLICE = 65536,
    AHEAD_LONGEST = 3 << 20,
    AHEAD_CREDIT = 300 << 10,
    AHEAD_POSTS = 2048,
    AHEAD_MESSAGES = 600, /* that a peer receives */
};

#define AHEAD_SOON_MS limit_ms(5000) /* milliseconds are normal */

#define soon(condition, action) until_within(AHEAD_SOON_MS, condition, action)

extern struct text ahead_text;

/* Of a suite: make the text, and free it. */
int ahead_set_up(void);
int ahead_tear_down(void);

struct net_link_options ahead_options(uint8_t sockets, uint64_t credit);

/* A message that a peer receives. */
struct ahead_coming {
    bool begun;
    bool on_credit;
    bool too_long;
    uint64_t total;
    uint64_t begun_bytes; /* of all its records */
    uint64_t bytes;       /* that are here */
};

/* What a forward socket is in the middle of, where the peer receives. */
struct ahead_socket {
    uint8_t record[WIRE_RECORD_BYTES];
    size_t have;
    uint32_t sequence;
    uint64_t offset;
    uint64_t left;
};

struct ahead_peer {
    struct net_link link;
    struct net_comm *comm;
    uint64_t credit;
    uint64_t charged; /* what an honest sender would have counted */
    uint64_t freed;   /* as the receiver has said */
    unsigned posts;
    uint64_t rooms[AHEAD_POSTS];

    /* it sends */
    bool ended; /* the comm says nothing any more */
    uint8_t heard[64 * WIRE_RECORD_BYTES];
    size_t heard_bytes;

    /* it receives */
    struct ahead_socket sockets[WIRE_MOST_SOCKETS];
    struct ahead_coming coming[AHEAD_MESSAGES];
    uint32_t most_ahead; /* the farthest, from the first without a POST */
};

void ahead_open(struct ahead_peer *peer, enum net_side comm_side, uint8_t sockets, uint64_t credit);
void ahead_close(struct ahead_peer *peer);

/* The comm fails since its peer has broken the protocol; the peer is closed. */
void ahead_must_break(struct ahead_peer *peer, const char *lie);

/* --- it sends -------------------------------------------------------------------------------- */

/* All of them, though the socket may have no room: the comm is moved on then. */
void ahead_put(struct ahead_peer *peer, unsigned socket, const uint8_t *bytes, uint64_t count);
/* A record; with the bytes behind it. */
void ahead_say_slice(struct ahead_peer *peer, unsigned socket, uint32_t sequence, uint64_t total,
                     uint64_t offset, uint64_t length, bool on_credit);
void ahead_put_slice(struct ahead_peer *peer, unsigned socket, uint32_t sequence, uint64_t total,
                     uint64_t offset, uint64_t length, bool on_credit);
void ahead_say_eager(struct ahead_peer *peer, uint32_t sequence, uint64_t bytes);
void ahead_put_eager(struct ahead_peer *peer, uint32_t sequence, uint64_t bytes);
/* A whole message ahead of its receive: as EAGER, or in slices over all sockets. */
void ahead_put_whole(struct ahead_peer *peer, uint32_t sequence, uint64_t bytes);
void ahead_put_slices(struct ahead_peer *peer, uint32_t sequence, uint64_t bytes);

/* What the receiver has said; until that are so many receives. */
void ahead_hear(struct ahead_peer *peer);
void ahead_hear_posts(struct ahead_peer *peer, unsigned posts);

/* Until the comm keeps so much. */
void ahead_wait_held(struct ahead_peer *peer, uint64_t bytes);
/* A receive that is posted now gets this message. */
void ahead_must_arrive(struct ahead_peer *peer, uint32_t sequence, uint64_t bytes);

/* --- it receives ----------------------------------------------------------------------------- */

void ahead_say_post(struct ahead_peer *peer, uint64_t room);
struct net_request *ahead_must_send(struct ahead_peer *peer, uint32_t sequence, uint64_t bytes);

/* All that is there; that and what comes in a while; until a message is whole. */
void ahead_read(struct ahead_peer *peer);
void ahead_read_for(struct ahead_peer *peer, uint64_t milliseconds);
void ahead_read_message(struct ahead_peer *peer, uint32_t sequence);
bool ahead_is_whole(const struct ahead_peer *peer, uint32_t sequence);

#endif
