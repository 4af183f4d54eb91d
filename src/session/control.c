/*
 * The frames of a control connection. What the socket does not take at once waits in a bounded
 * queue. One system call reads all that has arrived, of a bounded number of bytes: many small
 * frames together.
 */
#include "session/control.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/fork.h"
#include "base/text.h"
#include "net/socket/socket.h"

#include <endian.h>
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

struct header_layout {
    uint8_t type;
    uint8_t reserved[3];
    uint32_t length;
} __attribute__((packed));

_Static_assert(sizeof(struct header_layout) == CONTROL_HEADER_BYTES, "a header has 8 bytes");

struct control {
    int fd;
    unsigned version;
    bool has_ended;
    bool is_held; /* messages wait for each other in the queue */
    char peer[SOCKET_NAME_BYTES];

    uint8_t *queue; /* `queued` bytes, of which the first `sent` have been sent */
    size_t queue_room;
    size_t queued;
    size_t sent;

    uint8_t *input; /* bytes that have arrived, from `taken` to `arrived`: frames that are next */
    size_t input_room;
    size_t taken;
    size_t arrived;
};

/* --- the header of a frame ----------------------------------------------------------------- */

void control_header_write(uint8_t type, uint32_t length, uint8_t bytes[CONTROL_HEADER_BYTES])
{
    struct header_layout layout = {.type = type, .length = htole32(length)};

    memcpy(bytes, &layout, sizeof layout);
}

int control_header_read(const uint8_t bytes[CONTROL_HEADER_BYTES], uint8_t *type, uint32_t *length)
{
    struct header_layout layout;

    memcpy(&layout, bytes, sizeof layout);
    for (size_t i = 0; i < sizeof layout.reserved; i++)
        if (layout.reserved[i] != 0)
            return error_set(TCPX_REMOTE_ERROR,
                             "message of type %u: reserved byte %zu is 0x%02x, expected 0",
                             layout.type, i, layout.reserved[i]);
    if (le32toh(layout.length) > CONTROL_LARGEST)
        return error_set(TCPX_REMOTE_ERROR, "message of type %u: %u bytes, possible are %d",
                         layout.type, le32toh(layout.length), CONTROL_LARGEST);
    *type = layout.type;
    *length = le32toh(layout.length);
    return TCPX_SUCCESS;
}

/* --- life ---------------------------------------------------------------------------------- */

/* Any descriptor may be given to a control: from now on a forked child closes its copy. */
static int control_adopt(int fd)
{
    int result = fork_watch();

    if (result != TCPX_SUCCESS) {
        fork_close(fd);
        return result;
    }
    fork_hold();
    if (!fork_release(fd))
        return error_system(ENOMEM, "a control connection");
    return TCPX_SUCCESS;
}

int control_create(int fd, const char *peer, unsigned version, struct control **out)
{
    const struct config *config;
    struct control *control;
    int result = control_adopt(fd);

    if (result != TCPX_SUCCESS)
        return result;
    result = config_get(&config);
    if (result == TCPX_SUCCESS)
        result = socket_tune(fd, config->timeout_ms);
    if (result != TCPX_SUCCESS)
        goto close_socket;
    control = calloc(1, sizeof *control);
    if (control == NULL) {
        result = error_system(ENOMEM, "a control connection");
        goto close_socket;
    }
    control->fd = fd;
    control->version = version;
    if (peer != NULL)
        snprintf(control->peer, sizeof control->peer, "%s", peer);
    else
        socket_peer_name(fd, control->peer);
    *out = control;
    return TCPX_SUCCESS;

close_socket:
    socket_close(&fd);
    return result;
}

int control_fd(const struct control *control)
{
    return control->fd;
}

bool control_has_ended(const struct control *control)
{
    return control->has_ended;
}

const char *control_peer(const struct control *control)
{
    return control->peer;
}

unsigned control_version(const struct control *control)
{
    return control->version;
}

/* --- receiving ----------------------------------------------------------------------------- */

/* Errors of the connection are the peer's, whichever call returns them. */
static int control_report_broken(struct control *control, int error)
{
    control->has_ended = true;
    return error_set(TCPX_REMOTE_ERROR, "the connection to %s broke: %s", control->peer,
                     strerror(error));
}

static size_t control_have(const struct control *control)
{
    return control->arrived - control->taken;
}

/* Of a frame of so many bytes, or at least so many if its header is not here. */
static int control_report_end(struct control *control, size_t wanted)
{
    size_t have = control_have(control);

    control->has_ended = true;
    if (have == 0)
        return error_set(TCPX_REMOTE_ERROR, "%s closed the connection", control->peer);
    return error_set(
        TCPX_REMOTE_ERROR,
        "%s closed the connection in the middle of a message, after %zu of %s%zu bytes",
        control->peer, have, have < CONTROL_HEADER_BYTES ? "at least " : "", wanted);
}

/* Makes a buffer at least that large. */
static int control_grow(const struct control *control, uint8_t **buffer, size_t *room, size_t bytes)
{
    uint8_t *grown;

    if (bytes <= *room)
        return TCPX_SUCCESS;
    grown = realloc(*buffer, bytes);
    if (grown == NULL)
        return error_system(ENOMEM, "%zu bytes for messages of %s", bytes, control->peer);
    *buffer = grown;
    *room = bytes;
    return TCPX_SUCCESS;
}

/* Room for a frame of so many bytes, of which the first ones may be here. */
static int control_make_room(struct control *control, size_t wanted)
{
    if (control->taken + wanted <= control->input_room)
        return TCPX_SUCCESS;
    if (control_have(control) > 0)
        memmove(control->input, control->input + control->taken, control_have(control));
    control->arrived -= control->taken;
    control->taken = 0;
    return control_grow(control, &control->input, &control->input_room,
                        wanted > CONTROL_READ_AHEAD ? wanted : CONTROL_READ_AHEAD);
}

/*
 * Reads what has arrived, until `wanted` bytes of the frame are here or the socket has no more: an
 * edge of epoll does not come twice.
 */
static int control_fill(struct control *control, size_t wanted)
{
    int result;

    if (control_have(control) >= wanted)
        return TCPX_SUCCESS;
    if (control_have(control) == 0)
        control->taken = control->arrived = 0;
    result = control_make_room(control, wanted);
    while (result == TCPX_SUCCESS && control_have(control) < wanted) {
        ssize_t got = recv(control->fd, control->input + control->arrived,
                           control->input_room - control->arrived, MSG_DONTWAIT);

        if (got > 0)
            control->arrived += (size_t)got;
        else if (got == 0)
            result = control_report_end(control, wanted);
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return TCPX_SUCCESS;
        else if (errno != EINTR)
            result = control_report_broken(control, errno);
    }
    return result;
}

static const uint8_t *control_payload(const struct control *control)
{
    return control->input + control->taken + CONTROL_HEADER_BYTES;
}

static int control_report_refused(const struct control *control, size_t bytes)
{
    char shown[CONTROL_REFUSAL_TEXT + 1];

    text_printable((const char *)control_payload(control), bytes, shown, sizeof shown);
    return error_set(TCPX_REMOTE_ERROR, "%s refused: %s", control->peer, shown);
}

/* The header of the next frame, if it is here. */
static int control_read_header(struct control *control, size_t room, uint8_t *type,
                               uint32_t *length)
{
    int result = control_header_read(control->input + control->taken, type, length);

    if (result != TCPX_SUCCESS)
        return error_set(result, "%s does not keep to the protocol: %s", control->peer,
                         error_text());
    if (*type != CONTROL_REFUSED && *length > room)
        return error_set(TCPX_REMOTE_ERROR,
                         "%s sent a message of type %u with %u bytes, expected are at most %zu",
                         control->peer, *type, *length, room);
    return TCPX_SUCCESS;
}

/* Reads more of the message and leaves it in place; *whole: whether it is complete. */
static int control_read_message(struct control *control, size_t room, uint8_t *type,
                                uint32_t *length, bool *whole)
{
    int result = control_fill(control, CONTROL_HEADER_BYTES);

    *whole = false;
    if (result != TCPX_SUCCESS || control_have(control) < CONTROL_HEADER_BYTES)
        return result;
    result = control_read_header(control, room, type, length);
    if (result == TCPX_SUCCESS)
        result = control_fill(control, CONTROL_HEADER_BYTES + *length);
    if (result != TCPX_SUCCESS || control_have(control) < CONTROL_HEADER_BYTES + *length)
        return result;
    if (*type == CONTROL_REFUSED)
        return control_report_refused(control, *length);
    *whole = true;
    return TCPX_SUCCESS;
}

int control_receive_here(struct control *control, size_t room, uint8_t *type,
                         const uint8_t **payload, size_t *bytes, bool *there)
{
    uint8_t seen_type;
    uint32_t length;
    bool whole;
    int result = fork_check();

    if (result == TCPX_SUCCESS)
        result = control_read_message(control, room, &seen_type, &length, &whole);
    if (result != TCPX_SUCCESS)
        return result;
    *there = whole;
    if (!whole)
        return TCPX_SUCCESS;
    *payload = control_payload(control);
    *type = seen_type;
    *bytes = length;
    control->taken += CONTROL_HEADER_BYTES + length;
    return TCPX_SUCCESS;
}

int control_receive(struct control *control, uint8_t *type, void *payload, size_t room,
                    size_t *bytes, bool *there)
{
    const uint8_t *from;
    int result = control_receive_here(control, room, type, &from, bytes, there);

    if (result == TCPX_SUCCESS && *there && *bytes > 0)
        memcpy(payload, from, *bytes);
    return result;
}

int control_await(struct control *control, const char *awaited, uint8_t *type, void *payload,
                  size_t room, size_t *bytes, uint64_t deadline)
{
    for (;;) {
        struct pollfd ready = {.fd = control->fd, .events = POLLIN};
        bool there;
        int result = control_receive(control, type, payload, room, bytes, &there);

        if (result != TCPX_SUCCESS || there)
            return result;
        result = control_flush(control);
        if (result != TCPX_SUCCESS)
            return result;
        if (deadline_passed(deadline))
            return error_set(TCPX_IN_PROGRESS, "%s has not sent %s in time", control->peer,
                             awaited);
        if (control_has_unsent(control))
            ready.events |= POLLOUT;
        if (poll(&ready, 1, deadline_poll_ms(deadline)) < 0 && errno != EINTR)
            return error_system(errno, "poll for %s from %s", awaited, control->peer);
    }
}

/* --- sending ------------------------------------------------------------------------------- */

size_t control_unsent_bytes(const struct control *control)
{
    return control->queued - control->sent;
}

bool control_has_unsent(const struct control *control)
{
    return control->sent < control->queued;
}

/* If the peer has refused and closed, its text explains more than EPIPE. */
static int control_report_unsendable(struct control *control, int error)
{
    uint8_t type;
    uint32_t length;
    bool whole;
    int result = control_read_message(control, CONTROL_LARGEST, &type, &length, &whole);

    return result != TCPX_SUCCESS ? result : control_report_broken(control, error);
}

int control_flush(struct control *control)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (!socket_send_rest(control->fd, control->queue, control->queued, &control->sent))
        return control_report_unsendable(control, errno);
    if (!control_has_unsent(control))
        control->queued = control->sent = 0;
    return TCPX_SUCCESS;
}

int control_send_all(struct control *control, uint64_t deadline)
{
    for (;;) {
        struct pollfd ready = {.fd = control->fd, .events = POLLOUT};
        int result = control_flush(control);

        if (result != TCPX_SUCCESS || !control_has_unsent(control))
            return result;
        if (deadline_passed(deadline))
            return error_set(TCPX_IN_PROGRESS,
                             "%s does not read: %zu bytes could not be sent in time", control->peer,
                             control->queued - control->sent);
        if (poll(&ready, 1, deadline_poll_ms(deadline)) < 0 && errno != EINTR)
            return error_system(errno, "poll for room to %s", control->peer);
    }
}

static int control_enqueue(struct control *control, uint8_t type, const void *payload, size_t bytes)
{
    size_t whole = CONTROL_HEADER_BYTES + bytes;
    size_t unsent = control->queued - control->sent;
    uint8_t *end;
    int result = TCPX_SUCCESS;

    if (unsent + whole > CONTROL_MOST_UNSENT)
        return error_set(TCPX_REMOTE_ERROR,
                         "%s does not read: %zu bytes wait for it already, at most %d may",
                         control->peer, unsent, CONTROL_MOST_UNSENT);
    if (control->queued + whole > control->queue_room && control->sent > 0) {
        memmove(control->queue, control->queue + control->sent, unsent);
        control->queued = unsent;
        control->sent = 0;
    }
    if (control->queued + whole > control->queue_room)
        result = control_grow(control, &control->queue, &control->queue_room,
                              control->queued + whole + control->queue_room);
    if (result != TCPX_SUCCESS)
        return result;
    end = control->queue + control->queued;
    control_header_write(type, (uint32_t)bytes, end);
    if (bytes > 0)
        memcpy(end + CONTROL_HEADER_BYTES, payload, bytes);
    control->queued += whole;
    return TCPX_SUCCESS;
}

int control_send(struct control *control, uint8_t type, const void *payload, size_t bytes)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (type == CONTROL_REFUSED)
        return error_set(TCPX_INVALID_ARGUMENT, "message type %u is kept for refusals", type);
    if (bytes > CONTROL_LARGEST)
        return error_set(TCPX_INVALID_ARGUMENT, "a message of %zu bytes, possible are %d", bytes,
                         CONTROL_LARGEST);
    /* Flush first: that may make room in the queue. */
    if (!control->is_held || control_unsent_bytes(control) >= CONTROL_MOST_HELD)
        result = control_flush(control);
    if (result == TCPX_SUCCESS)
        result = control_enqueue(control, type, payload, bytes);
    if (result == TCPX_SUCCESS && !control->is_held)
        result = control_flush(control);
    return result;
}

void control_hold(struct control *control, bool held)
{
    control->is_held = held;
}

void control_refuse(struct control *control, const char *text)
{
    char shown[CONTROL_REFUSAL_TEXT + 1];

    if (fork_check() != TCPX_SUCCESS)
        return;
    text_for_peer(text, shown, sizeof shown);
    /* A lost peer, or one that does not read, only misses the reason. */
    if (control_enqueue(control, CONTROL_REFUSED, shown, strlen(shown)) == TCPX_SUCCESS)
        (void)!control_flush(control);
}

/* --- closing ------------------------------------------------------------------------------- */

/* A close with unread input resets the connection and destroys what is in flight. */
static void control_discard_input(struct control *control)
{
    enum { MOST_READS = 64 };
    uint8_t bytes[16384];

    for (int i = 0; i < MOST_READS; i++)
        if (recv(control->fd, bytes, sizeof bytes, MSG_DONTWAIT) <= 0)
            return;
}

/* Whether the peer's host has acknowledged everything, so that nothing can be lost any more. */
static bool control_has_arrived(const struct control *control)
{
    int in_flight = 0;

    return !control_has_unsent(control) &&
           (ioctl(control->fd, SIOCOUTQ, &in_flight) != 0 || in_flight == 0);
}

/*
 * Polls every millisecond, since poll() does not report acknowledgements. It does report a
 * connection that has ended (POLLHUP, POLLERR), and not a peer that has only shut down its side.
 */
static void control_linger(struct control *control, unsigned linger_ms)
{
    uint64_t deadline = deadline_after_ms(linger_ms);

    while (control_flush(control) == TCPX_SUCCESS) {
        struct pollfd ended = {.fd = control->fd};

        control_discard_input(control);
        if (control_has_arrived(control) || deadline_passed(deadline) || poll(&ended, 1, 1) > 0)
            return;
    }
}

void control_close(struct control *control, unsigned linger_ms)
{
    /* In a forked child the descriptor is closed, and may be another one already. */
    if (control == NULL || fork_check() != TCPX_SUCCESS)
        return;
    control_linger(control, linger_ms);
    /* A child that was forked without our knowledge may have a copy of the descriptor. */
    shutdown(control->fd, SHUT_WR);
    control_discard_input(control);
    socket_close(&control->fd);
    free(control->queue);
    free(control->input);
    free(control);
}
