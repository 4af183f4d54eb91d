/*
 * The frames of a control connection. What does not go at once waits in a queue that is bounded;
 * what comes is read frame by frame and never ahead, so that poll() knows as much as we do.
 */
#include "session/control.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/fork.h"
#include "base/text.h"
#include "net/socket/socket.h"

#include <endian.h>
#include <errno.h>
#include <limits.h>
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
    bool has_ended;
    char peer[SOCKET_NAME_BYTES];

    uint8_t *queue; /* bytes that have not been sent: `unsent` from `first` on */
    size_t queue_room;
    size_t first;
    size_t unsent;

    size_t have; /* bytes of the frame that is coming, its header included */
    uint8_t header[CONTROL_HEADER_BYTES];
    uint8_t *payload; /* of the frame that is coming */
    size_t payload_room;
};

/* --- the pure part ------------------------------------------------------------------------- */

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

void control_printable(const void *text, size_t bytes, char shown[CONTROL_REFUSAL_TEXT + 1])
{
    text_printable(text, bytes, shown, CONTROL_REFUSAL_TEXT + 1);
}

int control_poll_ms(uint64_t deadline)
{
    uint64_t now = clock_now();
    uint64_t left;

    if (deadline == DEADLINE_NEVER)
        return -1;
    if (deadline <= now)
        return 0;
    left = (deadline - now + 999999) / 1000000; /* up: a wait that ends early would spin */
    return left < INT_MAX ? (int)left : INT_MAX;
}

/* --- life ---------------------------------------------------------------------------------- */

/* The descriptor may come from anywhere: from now on a forked child closes its copy. */
static int adopt(int fd)
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

int control_create(int fd, const char *peer, struct control **out)
{
    const struct config *config;
    struct control *control;
    int result = adopt(fd);

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

/* --- receiving ----------------------------------------------------------------------------- */

/* The errors of a connection are the peer's, whichever call hears of them. */
static int report_broken(struct control *control, int error)
{
    control->has_ended = true;
    return error_set(TCPX_REMOTE_ERROR, "the connection to %s broke: %s", control->peer,
                     strerror(error));
}

static int report_end(struct control *control, size_t wanted)
{
    control->has_ended = true;
    if (control->have == 0)
        return error_set(TCPX_REMOTE_ERROR, "%s closed the connection", control->peer);
    return error_set(
        TCPX_REMOTE_ERROR,
        "%s closed the connection in the middle of a message, after %zu of %s%zu bytes",
        control->peer, control->have, control->have < CONTROL_HEADER_BYTES ? "at least " : "",
        wanted);
}

/* Reads as far as it goes now, until the frame has `wanted` bytes; `into` is where they end. */
static int fill(struct control *control, uint8_t *into, size_t wanted)
{
    while (control->have < wanted) {
        size_t missing = wanted - control->have;
        ssize_t got = recv(control->fd, into - missing, missing, MSG_DONTWAIT);

        if (got == 0)
            return report_end(control, wanted);
        if (got > 0)
            control->have += (size_t)got;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return TCPX_SUCCESS;
        else if (errno != EINTR)
            return report_broken(control, errno);
    }
    return TCPX_SUCCESS;
}

static int make_payload_room(struct control *control, size_t bytes)
{
    uint8_t *grown;

    if (bytes <= control->payload_room)
        return TCPX_SUCCESS;
    grown = realloc(control->payload, bytes);
    if (grown == NULL)
        return error_system(ENOMEM, "a message of %zu bytes from %s", bytes, control->peer);
    control->payload = grown;
    control->payload_room = bytes;
    return TCPX_SUCCESS;
}

static int report_refused(const struct control *control, size_t bytes)
{
    char shown[CONTROL_REFUSAL_TEXT + 1];

    control_printable(control->payload, bytes, shown);
    return error_set(TCPX_REMOTE_ERROR, "%s refused: %s", control->peer, shown);
}

/* Reads on, and leaves the message where it is; *whole: whether all of it is there. */
static int read_message(struct control *control, size_t room, uint8_t *type, uint32_t *length,
                        bool *whole)
{
    int result = fill(control, control->header + CONTROL_HEADER_BYTES, CONTROL_HEADER_BYTES);

    *whole = false;
    if (result != TCPX_SUCCESS || control->have < CONTROL_HEADER_BYTES)
        return result;
    result = control_header_read(control->header, type, length);
    if (result != TCPX_SUCCESS)
        return error_set(result, "%s does not keep to the protocol: %s", control->peer,
                         error_text());
    if (*type != CONTROL_REFUSED && *length > room)
        return error_set(TCPX_REMOTE_ERROR,
                         "%s sent a message of type %u with %u bytes, expected are at most %zu",
                         control->peer, *type, *length, room);
    result = make_payload_room(control, *length);
    if (result == TCPX_SUCCESS && *length > 0)
        result = fill(control, control->payload + *length, CONTROL_HEADER_BYTES + *length);
    if (result != TCPX_SUCCESS || control->have < CONTROL_HEADER_BYTES + *length)
        return result;
    if (*type == CONTROL_REFUSED)
        return report_refused(control, *length);
    *whole = true;
    return TCPX_SUCCESS;
}

int control_receive(struct control *control, uint8_t *type, void *payload, size_t room,
                    size_t *bytes, bool *there)
{
    uint8_t seen_type;
    uint32_t length;
    bool whole;
    int result = fork_check();

    if (result == TCPX_SUCCESS)
        result = read_message(control, room, &seen_type, &length, &whole);
    if (result != TCPX_SUCCESS)
        return result;
    *there = whole;
    if (!whole)
        return TCPX_SUCCESS;
    if (length > 0)
        memcpy(payload, control->payload, length);
    *type = seen_type;
    *bytes = length;
    control->have = 0;
    return TCPX_SUCCESS;
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
        if (poll(&ready, 1, control_poll_ms(deadline)) < 0 && errno != EINTR)
            return error_system(errno, "poll for %s from %s", awaited, control->peer);
    }
}

/* --- sending ------------------------------------------------------------------------------- */

bool control_has_unsent(const struct control *control)
{
    return control->unsent > 0;
}

/* A peer that refuses and closes breaks what we send: its reason says more than the broken pipe. */
static int report_unsendable(struct control *control, int error)
{
    uint8_t type;
    uint32_t length;
    bool whole;
    int result = read_message(control, CONTROL_LARGEST, &type, &length, &whole);

    return result != TCPX_SUCCESS ? result : report_broken(control, error);
}

int control_flush(struct control *control)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    while (control->unsent > 0) {
        ssize_t sent = send(control->fd, control->queue + control->first, control->unsent,
                            MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent >= 0) {
            control->first += (size_t)sent;
            control->unsent -= (size_t)sent;
        } else if (socket_is_full(errno)) {
            return TCPX_SUCCESS;
        } else if (errno != EINTR) {
            return report_unsendable(control, errno);
        }
    }
    control->first = 0;
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
                             control->unsent);
        if (poll(&ready, 1, control_poll_ms(deadline)) < 0 && errno != EINTR)
            return error_system(errno, "poll for room to %s", control->peer);
    }
}

/* Room for that many bytes behind the queue. */
static int make_queue_room(struct control *control, size_t bytes)
{
    size_t wanted = control->unsent + bytes;
    uint8_t *grown;

    if (control->first > 0 && control->first + wanted > control->queue_room) {
        memmove(control->queue, control->queue + control->first, control->unsent);
        control->first = 0;
    }
    if (control->first + wanted <= control->queue_room)
        return TCPX_SUCCESS;
    wanted = wanted < 2 * control->queue_room ? 2 * control->queue_room : wanted;
    grown = realloc(control->queue, wanted);
    if (grown == NULL)
        return error_system(ENOMEM, "a message of %zu bytes to %s", bytes, control->peer);
    control->queue = grown;
    control->queue_room = wanted;
    return TCPX_SUCCESS;
}

static int enqueue(struct control *control, uint8_t type, const void *payload, size_t bytes)
{
    size_t whole = CONTROL_HEADER_BYTES + bytes;
    uint8_t *end;
    int result;

    if (control->unsent + whole > CONTROL_MOST_UNSENT)
        return error_set(TCPX_REMOTE_ERROR,
                         "%s does not read: %zu bytes wait for it already, at most %d may",
                         control->peer, control->unsent, CONTROL_MOST_UNSENT);
    result = make_queue_room(control, whole);
    if (result != TCPX_SUCCESS)
        return result;
    end = control->queue + control->first + control->unsent;
    control_header_write(type, (uint32_t)bytes, end);
    if (bytes > 0)
        memcpy(end + CONTROL_HEADER_BYTES, payload, bytes);
    control->unsent += whole;
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
    /* First what waits: it may make the room. */
    result = control_flush(control);
    if (result == TCPX_SUCCESS)
        result = enqueue(control, type, payload, bytes);
    if (result == TCPX_SUCCESS)
        result = control_flush(control);
    return result;
}

void control_refuse(struct control *control, const char *text)
{
    char shown[CONTROL_REFUSAL_TEXT + 1];

    if (fork_check() != TCPX_SUCCESS)
        return;
    text_for_peer(text, shown, sizeof shown);
    /* Whoever is gone or does not read misses only the reason. */
    if (enqueue(control, CONTROL_REFUSED, shown, strlen(shown)) == TCPX_SUCCESS)
        (void)!control_flush(control);
}

/* --- closing ------------------------------------------------------------------------------- */

/* A close with unread input resets the connection, and takes along what is still on its way. */
static void discard_input(struct control *control)
{
    enum { MOST_READS = 64 };
    uint8_t bytes[16384];

    for (int i = 0; i < MOST_READS; i++)
        if (recv(control->fd, bytes, sizeof bytes, MSG_DONTWAIT) <= 0)
            return;
}

/* Whether the peer's host has acknowledged everything: then nothing can take it away any more. */
static bool has_arrived(const struct control *control)
{
    int on_its_way = 0;

    if (control->unsent > 0)
        return false;
    return ioctl(control->fd, SIOCOUTQ, &on_its_way) != 0 || on_its_way == 0;
}

/*
 * Asks often: acknowledgements wake nobody. A connection that has ended acknowledges nothing more,
 * and poll() tells so unasked (POLLHUP, POLLERR); of a peer that only sends no more it does not.
 */
static void send_the_rest(struct control *control, unsigned linger_ms)
{
    uint64_t deadline = deadline_after_ms(linger_ms);

    while (control_flush(control) == TCPX_SUCCESS) {
        struct pollfd ended = {.fd = control->fd};

        discard_input(control);
        if (has_arrived(control) || deadline_passed(deadline) || poll(&ended, 1, 1) > 0)
            return;
    }
}

void control_close(struct control *control, unsigned linger_ms)
{
    /* In a forked child the descriptor is closed, and may be another one already. */
    if (control == NULL || fork_check() != TCPX_SUCCESS)
        return;
    send_the_rest(control, linger_ms);
    /* For the copies that a child may have which was forked without our knowledge. */
    shutdown(control->fd, SHUT_WR);
    discard_input(control);
    socket_close(&control->fd);
    free(control->queue);
    free(control->payload);
    free(control);
}
