/*
 * The one message that each side of a session sends after the greeting: its settings, and the
 * handles of its channels. The receiver compares it with its own before anything is sent.
 */
#ifndef TCPX_SESSION_AGREEMENT_H
#define TCPX_SESSION_AGREEMENT_H

#include "base/error.h"
#include "session/control.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AGREEMENT_MOST_CHUNK_BYTES ((uint64_t)1 << 40)

enum {
    AGREEMENT_CHANNELS = 64,
    AGREEMENT_HANDLE_BYTES = 128,
    AGREEMENT_NAME_BYTES = 64,
    AGREEMENT_NONCE_BYTES = 16,
    AGREEMENT_HEAD_BYTES =
        32 + 3 * AGREEMENT_NAME_BYTES + AGREEMENT_NONCE_BYTES, /* all but the handles */
    AGREEMENT_BYTES = AGREEMENT_HEAD_BYTES + AGREEMENT_CHANNELS * AGREEMENT_HANDLE_BYTES,
};

_Static_assert((int)AGREEMENT_BYTES <= (int)CONTROL_LARGEST, "an agreement is one message");

struct agreement {
    uint32_t version;                     /* of the session protocol: control.h */
    char transport[AGREEMENT_NAME_BYTES]; /* "builtin", or the plugin's name */
    uint32_t table_version;               /* of the plugin's table; need not be equal */
    uint32_t channels;                    /* 1 to AGREEMENT_CHANNELS */
    bool takes_fewer;                     /* nobody has set the number of channels */
    uint64_t chunk_bytes;                 /* 1 to AGREEMENT_MOST_CHUNK_BYTES */
    bool windows;                         /* the peer may access windows of this side */
    uint32_t unpack;                      /* what this side's receives do, below 2^30 */
    uint64_t process;                     /* random: equal if a process connects to itself */
    char host[AGREEMENT_NAME_BYTES];      /* for texts; may be "" */
    char name[AGREEMENT_NAME_BYTES];      /* that the program has given itself; may be "" */
    uint8_t nonce[AGREEMENT_NONCE_BYTES]; /* random, for proofs of keys in this session */
    uint8_t handles[AGREEMENT_CHANNELS][AGREEMENT_HANDLE_BYTES]; /* the first `channels` */
};

/* How many bytes it has; 0 if there is no such number of channels. A name is cut at its end. */
size_t agreement_encode(const struct agreement *agreement, uint8_t bytes[AGREEMENT_BYTES]);

/*
 * Accepts only what agreement_encode() writes for valid values: the length that the channels need,
 * names that are printable, end, and have nothing behind their end, numbers in range. The handles
 * of channels that are not there become zero.
 */
MUST_CHECK int agreement_decode(const uint8_t *bytes, size_t length, struct agreement *agreement);

/*
 * Version, transport, channels and chunk bytes must be equal, but a side that takes fewer channels
 * may have more; otherwise TCPX_INVALID_USAGE, with both values and the variable that sets them.
 * The session has the smaller number of channels.
 */
MUST_CHECK int agreement_compare(const struct agreement *mine, const struct agreement *theirs);

#endif
