/*
 * Framed messages in both directions over one TCP connection: the bootstrap makes it, and the
 * session keeps it for its whole life. Only control_await(), control_send_all() and control_close()
 * wait. A control has no lock: one thread at a time uses it.
 *
 * A frame is a type (1 byte), 3 bytes of zero, the length of the payload (4 bytes, little endian),
 * and the payload.
 */
#ifndef TCPX_SESSION_CONTROL_H
#define TCPX_SESSION_CONTROL_H

#include "base/error.h"
#include "base/versions.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct control;

/* Of the session protocol: all that travels from the greeting on. */
#define SESSION_VERSION       2
#define SESSION_LEAST_VERSION 2
static const struct versions session_versions = {SESSION_LEAST_VERSION, SESSION_VERSION};

enum {
    CONTROL_LARGEST = 65536, /* bytes of a payload */
    CONTROL_HEADER_BYTES = 8,
    CONTROL_REFUSAL_TEXT = 200, /* bytes of the text of a refusal, at most */
    CONTROL_MOST_UNSENT = 4 << 20,
    CONTROL_MOST_HELD = 65536,
    CONTROL_READ_AHEAD = 32768, /* bytes of messages that are read before they are asked for */
};

/* Types that are not the session's own. */
enum {
    CONTROL_PROOF = 254,   /* of the bootstrap: that the sender knows the shared secret */
    CONTROL_REFUSED = 255, /* the last message of a peer that gives up: why, as text */
};

/*
 * Takes the descriptor over, also when it fails. `peer`: its name for texts; NULL: its address.
 * `version`: that the greetings have agreed on.
 */
MUST_CHECK int control_create(int fd, const char *peer, unsigned version, struct control **control);

/*
 * Queues a message and sends as much as the socket takes; never waits. If more than
 * CONTROL_MOST_UNSENT bytes would wait, the message is not queued: an error, the peer does not
 * read.
 */
MUST_CHECK int control_send(struct control *control, uint8_t type, const void *payload,
                            size_t bytes);

/*
 * Queues a refusal and sends as much as the socket takes. The peer's control_receive() fails with
 * this text, so that a disagreement is an error on both sides. The caller closes the control
 * afterwards.
 */
void control_refuse(struct control *control, const char *text);

/*
 * From now on messages stay in the queue until a flush, or until there are CONTROL_MOST_HELD bytes,
 * so that one call sends them together; or no more.
 */
void control_hold(struct control *control, bool held);

/* Sends as much of the queue as the socket takes now. */
MUST_CHECK int control_flush(struct control *control);

size_t control_unsent_bytes(const struct control *control);
bool control_has_unsent(const struct control *control);

/*
 * *there: whether a message was read; never waits. An end of the connection, a refusal, and a
 * payload beyond `room` are TCPX_REMOTE_ERROR with a text that names the peer, again at every call.
 */
MUST_CHECK int control_receive(struct control *control, uint8_t *type, void *payload, size_t room,
                               size_t *bytes, bool *there);

/* The same, but the payload stays where it is, until the next call. */
MUST_CHECK int control_receive_here(struct control *control, size_t room, uint8_t *type,
                                    const uint8_t **payload, size_t *bytes, bool *there);

/*
 * control_receive() that waits for a message, and sends what is queued meanwhile. When the deadline
 * (base/clock.h) has passed: TCPX_IN_PROGRESS, and the text names what was `awaited`.
 */
MUST_CHECK int control_await(struct control *control, const char *awaited, uint8_t *type,
                             void *payload, size_t room, size_t *bytes, uint64_t deadline);

/* The peer has closed the connection, or it broke; a refusal alone is no end. */
bool control_has_ended(const struct control *control);

/*
 * Waits until the socket has taken all that is queued; TCPX_IN_PROGRESS when the deadline has
 * passed.
 */
MUST_CHECK int control_send_all(struct control *control, uint64_t deadline);

/*
 * For poll(), when control_receive() has found no message: the descriptor is readable when more has
 * arrived.
 */
int control_fd(const struct control *control);

const char *control_peer(const struct control *control);
unsigned control_version(const struct control *control);

/*
 * Closes as soon as everything queued has arrived at the peer's host, whether the peer reads it or
 * not, or the connection has ended, or after `linger_ms`. NULL is allowed.
 */
void control_close(struct control *control, unsigned linger_ms);

/* The header of a frame. An invalid one is an error with a text. */
void control_header_write(uint8_t type, uint32_t length, uint8_t bytes[CONTROL_HEADER_BYTES]);
MUST_CHECK int control_header_read(const uint8_t bytes[CONTROL_HEADER_BYTES], uint8_t *type,
                                   uint32_t *length);

#endif
