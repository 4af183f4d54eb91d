/*
 * How each side of the bootstrap identifies itself: by the greeting, the first bytes that it sends,
 * and, with a shared secret, by the proof that answers the other side's nonce.
 */
#ifndef TCPX_SESSION_GREETING_H
#define TCPX_SESSION_GREETING_H

#include "base/error.h"
#include "base/versions.h"
#include "session/control.h"
#include "session/secret.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BOOTSTRAP_GREETING_BYTES = 48 };

enum bootstrap_role { BOOTSTRAP_CONNECTS = 1, BOOTSTRAP_LISTENS = 2 };

struct bootstrap_greeting {
    uint8_t role;     /* enum bootstrap_role */
    bool secret;      /* a proof will follow, and is expected */
    unsigned version; /* that both sides speak: of one that was read */
    uint8_t nonce[SECRET_NONCE_BYTES];
};

void bootstrap_greeting_write(const struct bootstrap_greeting *greeting,
                              uint8_t bytes[BOOTSTRAP_GREETING_BYTES]);

/* The first bytes of every greeting, at most 8. */
void bootstrap_greeting_first(uint8_t *bytes, size_t count);

/* Whether a greeting of any version can begin with these bytes; if not, no more need to be read. */
bool bootstrap_greeting_begins(const uint8_t *bytes, size_t have);

/*
 * The greeting of a side that must have this role. No version in common is TCPX_INVALID_USAGE, with
 * the versions of both; an invalid greeting is TCPX_REMOTE_ERROR. The caller puts the subject
 * before the text: "speaks versions 3 to 4 ...".
 */
MUST_CHECK int bootstrap_greeting_read(const uint8_t bytes[BOOTSTRAP_GREETING_BYTES],
                                       enum bootstrap_role role,
                                       struct bootstrap_greeting *greeting);

/* --- one side of a connection --------------------------------------------------------------- */

struct bootstrap_side {
    const struct secret *secret; /* NULL: none */
    enum bootstrap_role role;
    uint8_t own[SECRET_NONCE_BYTES];
    uint8_t other[SECRET_NONCE_BYTES]; /* from bootstrap_side_read() on, */
    unsigned version;                  /* as this, which both sides speak */
    size_t greeted;                    /* bytes of its greeting that were sent */
};

/*
 * Sends as much of the greeting as the socket takes now; *sent: whether all of it has been sent.
 * Never waits. False, and errno: the connection is broken.
 */
MUST_CHECK bool bootstrap_side_send_greeting(struct bootstrap_side *side, int fd, bool *sent);

/*
 * The other side's greeting. Fails as bootstrap_greeting_read() does, and with TCPX_INVALID_USAGE
 * if only one side has a secret.
 */
MUST_CHECK int bootstrap_side_read(struct bootstrap_side *side,
                                   const uint8_t bytes[BOOTSTRAP_GREETING_BYTES]);

/* Sends the proof. */
MUST_CHECK int bootstrap_side_prove(const struct bootstrap_side *side, struct control *control);

/* The message that must be the peer's proof. If the proof is wrong, the peer is sent a refusal. */
MUST_CHECK int bootstrap_side_verify(const struct bootstrap_side *side, struct control *control,
                                     uint8_t type, const uint8_t *proof, size_t bytes);

#endif
