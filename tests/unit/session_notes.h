/* Notes in tests of one-sided access: sent, waited for, and compared. */
#ifndef TCPX_TESTS_SESSION_NOTES_H
#define TCPX_TESTS_SESSION_NOTES_H

#include "tests/unit/session_access.h"

#include <poll.h>

/* Whether there was one; it has at most TCPX_NOTE_BYTES. */
static inline bool try_take(struct tcpx_session *session, void *note, size_t *bytes)
{
    int there;

    CHECK_SUCCESS(tcpx_note_take(session, note, TCPX_NOTE_BYTES, bytes, &there));
    return there != 0;
}

/* The next one, whatever it is; how many bytes it has. */
static inline size_t take_note(struct tcpx_session *session, void *note)
{
    uint64_t since = now_ms();
    size_t bytes;

    while (!try_take(session, note, &bytes)) {
        CHECK(now_ms() - since < WAIT_MS);
        nap_us(50);
    }
    return bytes;
}

/* The next one is this text. */
#define CHECK_NOTE(session, text) check_note(session, text, HERE)

static inline void check_note(struct tcpx_session *session, const char *text, const char *here)
{
    static _Thread_local char note[TCPX_NOTE_BYTES + 1];
    char what[200];
    size_t bytes = take_note(session, note);

    note[bytes] = '\0';
    if (bytes == strlen(text) && strcmp(note, text) == 0)
        return;
    snprintf(what, sizeof what, "a note of %zu bytes, \"%.60s\", instead of \"%.60s\"", bytes, note,
             text);
    fail_here(here, what);
}

static inline void send_note(struct tcpx_session *session, const char *text)
{
    CHECK_SUCCESS(tcpx_note_send(session, text, strlen(text)));
}

/* Numbers as notes: they say what is meant. */
static inline uint64_t take_number(struct tcpx_session *session)
{
    uint8_t note[TCPX_NOTE_BYTES];
    uint64_t number;

    CHECK(take_note(session, note) == sizeof number);
    memcpy(&number, note, sizeof number);
    return number;
}

static inline void send_number(struct tcpx_session *session, uint64_t number)
{
    CHECK_SUCCESS(tcpx_note_send(session, &number, sizeof number));
}

/* Of a part, or of none, with a number as its note. */
static inline struct tcpx_transfer *begin_numbered(struct tcpx_session *session, bool is_read,
                                                   struct tcpx_part part, uint64_t number)
{
    const struct tcpx_access access = {.parts = &part,
                                       .part_count = part.window != NULL,
                                       .note = &number,
                                       .note_bytes = sizeof number};

    return begin_access(session, is_read, &access);
}

/* --- the eventfd ------------------------------------------------------------------------------ */

static inline bool fd_is_readable(int fd, unsigned timeout_ms)
{
    struct pollfd wanted = {.fd = fd, .events = POLLIN};
    int ready;

    do
        ready = poll(&wanted, 1, (int)timeout_ms);
    while (ready < 0 && errno == EINTR);
    return ready == 1;
}

static inline void fd_drain(int fd)
{
    uint64_t ends;

    CHECK(read(fd, &ends, sizeof ends) == (ssize_t)sizeof ends || errno == EAGAIN);
}

static inline void fd_await(int fd)
{
    CHECK(fd_is_readable(fd, WAIT_MS));
    fd_drain(fd);
}

/* Asks about it whenever the descriptor is readable, and only then: until it is done. */
static inline void fd_finish(int fd, struct tcpx_transfer *transfer)
{
    int done = 0;

    while (done == 0) {
        fd_await(fd);
        CHECK_SUCCESS(tcpx_transfer_test(transfer, &done));
    }
}

static inline int event_fd_of(struct tcpx_session *session)
{
    int fd;

    CHECK_SUCCESS(tcpx_session_event_fd(session, &fd));
    return fd;
}

#endif
