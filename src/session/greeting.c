/*
 * The bytes of the greeting, and what both sides do with greetings and proofs. Nothing of a
 * greeting is used before all of it has been checked.
 */
#include "session/greeting.h"

#include "net/socket/socket.h"

#include <endian.h>
#include <string.h>

static const uint8_t greeting_magic[8] = {'t', 'c', 'p', 'x', 'b', 'o', 'o', 't'};

enum { FLAG_SECRET = 1 };

struct greeting_layout {
    uint8_t magic[8];
    uint16_t version; /* up to here the same in every version */
    uint8_t role;
    uint8_t flags;
    uint16_t least_version; /* 0 in version 1 */
    uint8_t reserved[2];
    uint8_t nonce[SECRET_NONCE_BYTES];
} __attribute__((packed));

_Static_assert(sizeof(struct greeting_layout) == BOOTSTRAP_GREETING_BYTES,
               "the greeting has 48 bytes");

void bootstrap_greeting_write(const struct bootstrap_greeting *greeting,
                              uint8_t bytes[BOOTSTRAP_GREETING_BYTES])
{
    struct greeting_layout layout = {
        .version = htole16(SESSION_VERSION),
        .least_version = htole16(SESSION_LEAST_VERSION),
        .role = greeting->role,
        .flags = greeting->secret ? FLAG_SECRET : 0,
    };

    memcpy(layout.magic, greeting_magic, sizeof layout.magic);
    memcpy(layout.nonce, greeting->nonce, sizeof layout.nonce);
    memcpy(bytes, &layout, sizeof layout);
}

void bootstrap_greeting_first(uint8_t *bytes, size_t count)
{
    memcpy(bytes, greeting_magic, count);
}

bool bootstrap_greeting_begins(const uint8_t *bytes, size_t have)
{
    return memcmp(bytes, greeting_magic,
                  have < sizeof greeting_magic ? have : sizeof greeting_magic) == 0;
}

static int greeting_check(const struct greeting_layout *layout, enum bootstrap_role role)
{
    if (layout->role != role)
        return error_set(TCPX_REMOTE_ERROR, "greets with role %u, expected %d", layout->role,
                         (int)role);
    if ((layout->flags & ~FLAG_SECRET) != 0)
        return error_set(TCPX_REMOTE_ERROR, "greets with flags 0x%02x, expected 0 or 1",
                         layout->flags);
    for (size_t i = 0; i < sizeof layout->reserved && le16toh(layout->version) == SESSION_VERSION;
         i++)
        if (layout->reserved[i] != 0)
            return error_set(TCPX_REMOTE_ERROR,
                             "greets with 0x%02x in reserved byte %zu, expected 0",
                             layout->reserved[i], i);
    return TCPX_SUCCESS;
}

int bootstrap_greeting_read(const uint8_t bytes[BOOTSTRAP_GREETING_BYTES], enum bootstrap_role role,
                            struct bootstrap_greeting *greeting)
{
    struct greeting_layout layout;
    struct versions versions;
    unsigned version;
    int result;

    memcpy(&layout, bytes, sizeof layout);
    if (!bootstrap_greeting_begins(bytes, sizeof layout))
        return error_set(TCPX_REMOTE_ERROR, "speaks another protocol");
    versions.greatest = le16toh(layout.version);
    versions.least = versions.greatest == 1 ? 1 : le16toh(layout.least_version);
    version = versions_common(session_versions, versions);
    if (version == 0)
        return error_set(TCPX_INVALID_USAGE,
                         "speaks versions %u to %u of the session protocol, this side versions %d "
                         "to %d",
                         versions.least, versions.greatest, SESSION_LEAST_VERSION, SESSION_VERSION);
    result = greeting_check(&layout, role);
    if (result != TCPX_SUCCESS)
        return result;
    *greeting = (struct bootstrap_greeting){
        .role = layout.role, .version = version, .secret = (layout.flags & FLAG_SECRET) != 0};
    memcpy(greeting->nonce, layout.nonce, sizeof greeting->nonce);
    return TCPX_SUCCESS;
}

/* --- what both sides do -------------------------------------------------------------------- */

static enum bootstrap_role greeting_opposite(enum bootstrap_role role)
{
    return role == BOOTSTRAP_CONNECTS ? BOOTSTRAP_LISTENS : BOOTSTRAP_CONNECTS;
}

bool bootstrap_side_send_greeting(struct bootstrap_side *side, int fd, bool *sent)
{
    struct bootstrap_greeting greeting = {.role = (uint8_t)side->role,
                                          .secret = side->secret != NULL};
    uint8_t bytes[BOOTSTRAP_GREETING_BYTES];

    memcpy(greeting.nonce, side->own, sizeof greeting.nonce);
    bootstrap_greeting_write(&greeting, bytes);
    if (!socket_send_rest(fd, bytes, sizeof bytes, &side->greeted))
        return false;
    *sent = side->greeted == sizeof bytes;
    return true;
}

int bootstrap_side_read(struct bootstrap_side *side, const uint8_t bytes[BOOTSTRAP_GREETING_BYTES])
{
    struct bootstrap_greeting greeting;
    int result = bootstrap_greeting_read(bytes, greeting_opposite(side->role), &greeting);

    if (result != TCPX_SUCCESS)
        return result;
    if (greeting.secret && side->secret == NULL)
        return error_set(TCPX_INVALID_USAGE, "has a shared secret, this side has none");
    if (!greeting.secret && side->secret != NULL)
        return error_set(TCPX_INVALID_USAGE, "has no shared secret, this side has one");
    memcpy(side->other, greeting.nonce, sizeof side->other);
    side->version = greeting.version;
    return TCPX_SUCCESS;
}

int bootstrap_side_prove(const struct bootstrap_side *side, struct control *control)
{
    uint8_t proof[SECRET_PROOF_BYTES];
    int result = secret_prove(side->secret, (uint8_t)side->role, side->own, side->other, proof);

    if (result == TCPX_SUCCESS)
        result = control_send(control, CONTROL_PROOF, proof, sizeof proof);
    return result;
}

int bootstrap_side_verify(const struct bootstrap_side *side, struct control *control, uint8_t type,
                          const uint8_t *proof, size_t bytes)
{
    if (type != CONTROL_PROOF || bytes != SECRET_PROOF_BYTES)
        return error_set(TCPX_REMOTE_ERROR,
                         "%s sent a message of type %u with %zu bytes, expected its proof of the "
                         "shared secret",
                         control_peer(control), type, bytes);
    if (secret_verify(side->secret, (uint8_t)greeting_opposite(side->role), side->other, side->own,
                      proof))
        return TCPX_SUCCESS;
    control_refuse(control, "the two sides have different shared secrets");
    return error_set(TCPX_INVALID_USAGE, "%s has another shared secret than this side",
                     control_peer(control));
}
