/*
 * The layout of everything that two tcpx processes send; docs/protocol.md has the rules. All
 * numbers are little endian. Nothing read from a socket is used before a function here has accepted
 * it. Checks that need the state of a comm (is there such a receive?) are its owner's.
 */
#ifndef TCPX_NET_WIRE_WIRE_H
#define TCPX_NET_WIRE_WIRE_H

#include "base/error.h"
#include "base/versions.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define WIRE_MAGIC 0x58504354u /* "TCPX" */

/*
 * A change that an older peer would misread is a new version. Each side says the least and the
 * greatest that it speaks; the greatest that both speak is used.
 */
#define WIRE_VERSION       2
#define WIRE_LEAST_VERSION 2
static const struct versions wire_versions = {WIRE_LEAST_VERSION, WIRE_VERSION};

/*
 * What a side can do besides, one bit each, so that a peer without it is still a peer. Only what
 * both can do is used; bits that are not known are ignored.
 */
#define WIRE_CAPABILITIES 0u

/*
 * Receives are numbered modulo 2^WIRE_SEQUENCE_BITS. Tests build the library with 3 bits, so that
 * numbers wrap often; such a library works only with its like.
 */
#ifndef WIRE_SEQUENCE_BITS
#define WIRE_SEQUENCE_BITS 32
#endif

enum {
    WIRE_HELLO_BYTES = 64,
    WIRE_RECORD_BYTES = 32,
    WIRE_TOKEN_BYTES = 16,
    WIRE_TOKEN_AT = 24,     /* in a hello */
    WIRE_MOST_SOCKETS = 64, /* forward sockets of a comm */
    WIRE_ABORT_TEXT = 200,  /* bytes of text behind an ABORT, at most */
    WIRE_LEAST_SLICE = 64,  /* the largest slice of a comm is at least this long */
    WIRE_EAGER_CHARGE = 64, /* bytes that an eager message is charged besides its length */
    /* unexpected messages, counted from the first receive that is not posted */
    WIRE_MOST_AHEAD = WIRE_SEQUENCE_BITS >= 10 ? 256 : 1 << (WIRE_SEQUENCE_BITS - 2),
    WIRE_MOST_RECEIVES = 32, /* posted and not complete, of one comm */
};

/* The number of the receive that `count` others came before. */
static inline uint32_t wire_sequence(uint64_t count)
{
    return (uint32_t)(count & (((uint64_t)1 << WIRE_SEQUENCE_BITS) - 1));
}

/* How many numbers `later` is after `earlier`. */
static inline uint32_t wire_sequence_distance(uint32_t earlier, uint32_t later)
{
    return wire_sequence((uint64_t)later - earlier);
}

/* What a connection is for. */
enum wire_role {
    WIRE_FORWARD = 1, /* sender to receiver only: payload and what belongs to it */
    WIRE_REVERSE = 2, /* receiver to sender only, so that closing never destroys unread bytes */
};

enum wire_match {
    WIRE_MATCH_FIFO = 1, /* the k-th message goes to the k-th receive */
    WIRE_MATCH_TAG = 2,  /* the k-th message of a tag goes to the k-th receive of that tag */
};

/* Where the record of a slice is sent. */
enum wire_framing {
    WIRE_INLINE = 1,   /* before its bytes, on the same socket */
    WIRE_SEPARATE = 2, /* on forward socket 0, while the others carry nothing but payload */
};

/* The first 64 bytes of every connection, from the connecting side. */
struct wire_hello {
    uint8_t role;    /* enum wire_role */
    uint8_t index;   /* of a forward socket; 0 for the reverse one */
    uint8_t sockets; /* forward sockets of this comm, 1 to WIRE_MOST_SOCKETS */
    uint8_t match;   /* enum wire_match */
    uint8_t framing; /* enum wire_framing */
    uint64_t comm;   /* which connections belong together: random, the same in all of them */
    uint8_t token[WIRE_TOKEN_BYTES]; /* from the listener's handle: strangers do not know it */
    uint32_t capabilities;           /* of its sender */
    unsigned version;                /* that both sides speak: of one that was read */
};

enum wire_type {
    /* on the reverse socket */
    WIRE_READY = 1,  /* all sockets are in place; socket: the version, sequence: capabilities
                        that both have; offset: eager credit, length: eager limit,
                        tag: largest slice */
    WIRE_POST = 2,   /* receive `sequence` is posted: tag, and room for `length` bytes;
                        offset: all eager bytes freed so far */
    WIRE_CREDIT = 3, /* offset: all eager bytes freed so far */
    WIRE_CANCEL = 4, /* receive `sequence` discards its message: it need not be sent */

    /* on a forward socket; `sequence` is that of the receive, which is that of the message where
       messages are in order */
    WIRE_EAGER = 17,     /* a whole message: `length` bytes behind the record */
    WIRE_SLICE = 18,     /* `length` bytes at `offset`, which travel on forward socket `socket`;
                            tag: the length of the message */
    WIRE_TOOLONG = 19,   /* receive `sequence` has no room for the message of `length` bytes */
    WIRE_CANCELLED = 21, /* no more than `length` bytes of the message of receive `sequence` come */
    WIRE_FIN = 20,       /* the last record of this socket; length: bytes between hello and it */

    /* on any socket, also before READY */
    WIRE_ABORT = 32, /* `sequence`: an enum tcpx_result; `length` bytes of text follow */
};

/*
 * Flags. On credit (SLICE and EAGER): the message was opened before its POST had come. With tags,
 * the number of its receive is not known then: instead of `sequence` an EAGER has its tag, and in
 * `offset` how many POSTs have come so far. To a place (these and CANCELLED): `sequence` is the
 * number of a place, which both sides know without a POST.
 */
enum { WIRE_ON_CREDIT = 1, WIRE_TO_PLACE = 2 };

/* Places that the sender may fill before the receiver has opened them; the others are open. */
#define WIRE_PLACE_IS_OPEN ((uint32_t)1 << 31)
enum { WIRE_MOST_PLACES = 1024 /* of each of the two kinds, at once */ };

struct wire_record {
    uint8_t type; /* enum wire_type */
    uint8_t flags;
    uint16_t socket;
    uint32_t sequence;
    uint64_t offset;
    uint64_t length;
    uint64_t tag;
};

/* What a hello or record was refused for. */
enum wire_problem {
    WIRE_FINE,
    WIRE_NOT_TCPX,      /* another magic: another protocol, or a port scan */
    WIRE_OTHER_VERSION, /* tcpx of other versions */
    WIRE_MALFORMED,     /* an invalid field; error_text() names it */
};

/* The first bytes of every hello. */
enum { WIRE_MAGIC_BYTES = 4 };
void wire_magic_write(uint8_t bytes[WIRE_MAGIC_BYTES]);

/* With the versions of this side. */
void wire_hello_write(const struct wire_hello *hello, uint8_t bytes[WIRE_HELLO_BYTES]);

/*
 * `hello` is written only if the result is WIRE_FINE; on any other there is a text. *versions are
 * those that the peer speaks, written on WIRE_FINE and WIRE_OTHER_VERSION.
 */
MUST_CHECK enum wire_problem wire_hello_read(const uint8_t bytes[WIRE_HELLO_BYTES],
                                             struct wire_hello *hello, struct versions *versions);

void wire_record_write(const struct wire_record *record, uint8_t bytes[WIRE_RECORD_BYTES]);

/*
 * Reads a record of a socket of this role. Accepts only types that may be sent there, with zero in
 * every field that the type does not use, a slice that does not wrap, and possible lengths.
 */
MUST_CHECK enum wire_problem wire_record_read(const uint8_t bytes[WIRE_RECORD_BYTES],
                                              enum wire_role role, struct wire_record *record);

/*
 * An ABORT with its text, as far as it may be shown to a peer (base/text.h) and fits; how many
 * bytes that are.
 */
enum { WIRE_ABORT_BYTES = WIRE_RECORD_BYTES + WIRE_ABORT_TEXT };
size_t wire_abort_write(enum tcpx_result result, const char *text, uint8_t bytes[WIRE_ABORT_BYTES]);

/* "SLICE"; "unknown" for other numbers. */
const char *wire_type_name(unsigned type);

/* --- the handle of a listener -------------------------------------------------------------- */

/*
 * What its owner passes to the processes that will connect. It has the address and a random token:
 * a connection that presents the token is a peer.
 */
enum { NET_HANDLE_BYTES = 128, NET_HANDLE_OTHERS = 12 };

struct net_handle {
    struct sockaddr_storage address;
    /* Where the listener can be reached, too, at the same port; the best first. */
    unsigned other_count;
    struct sockaddr_storage others[NET_HANDLE_OTHERS];
    uint8_t token[WIRE_TOKEN_BYTES];
    enum wire_framing framing; /* that the listener has chosen for its links */
    uint64_t process;          /* identifies the process of the listener */
    /*
     * A connect in progress, by its number; 0: none. Written by the connecting side into its own
     * copy, since a connect that is not finished is called again with the same bytes.
     */
    uint64_t attempt;
};

/* This process, by a number that no other one has. */
MUST_CHECK int net_handle_process(uint64_t *process);

/* As many of the other addresses as fit: 12 of IPv4 or 3 of IPv6. */
void net_handle_write(const struct net_handle *handle, uint8_t bytes[NET_HANDLE_BYTES]);

/* Bytes that no listener of ours has written are refused with a text. */
MUST_CHECK int net_handle_read(const uint8_t bytes[NET_HANDLE_BYTES], struct net_handle *handle);

#endif
