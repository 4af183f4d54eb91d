/*
 * Notes that do not come, since their accesses were refused, and notes that are not taken, which
 * hold up their sender and nobody else. What the eventfd tells of notes, and the notes of a session
 * that was closed.
 *
 * TCPX_TEST_TURNS=percent of all rounds.
 */
#include "tests/unit/session_notes.h"

/* --- of what has not happened -------------------------------------------------------------------
 */

/* A key that says more than its window allows: only the owner knows better. */
static struct tcpx_remote *open_forged(struct tcpx_session *session, const uint8_t *key)
{
    uint8_t forged[TCPX_KEY_BYTES];
    struct tcpx_remote *remote;

    memcpy(forged, key, sizeof forged);
    forged[6] = READ_WRITE; /* docs/protocol.md: what peers may do */
    CHECK_SUCCESS(tcpx_remote_open(session, forged, sizeof forged, &remote));
    return remote;
}

enum { REFUSED_AT_ONCE = 20, REFUSED = 80 };

/* The bytes of a write are on their way when it is refused: threads discard them meanwhile. */
static void check_refusals(struct tcpx_session *session, struct tcpx_window *window,
                           struct tcpx_remote *remote)
{
    static uint8_t note[TCPX_NOTE_BYTES];
    struct tcpx_transfer *transfers[REFUSED_AT_ONCE];

    for (unsigned i = 0; i < REFUSED_AT_ONCE; i++) {
        const struct tcpx_part part = {window, 0, remote, 0, 1 + i % 3 * 40000};
        const struct tcpx_access access = {
            .parts = &part, .part_count = 1, .note = note, .note_bytes = sizeof note};

        transfers[i] = begin_access(session, i % 4 == 1, &access);
    }
    for (unsigned i = 0; i < REFUSED_AT_ONCE; i++)
        CHECK_ERROR(tcpx_transfer_wait(transfers[i], WAIT_MS), TCPX_INVALID_USAGE,
                    i % 4 == 1 ? "the window cannot be read" : "the window cannot be written");
}

/*
 * The note of an access that was refused does not come, and takes no room: there are more of them
 * than could wait.
 */
SESSION_CASE(of_refused_ones, 0, IN_BRIEF, .windows = true)
{
    const unsigned rounds = REFUSED / REFUSED_AT_ONCE + (unsigned)turns_of(60);
    uint8_t keys[2][TCPX_KEY_BYTES];
    struct tcpx_window *window;
    struct tcpx_remote *remote;
    struct area area;

    area_allocate(&area, false, 100000, 1);
    area_poison(&area);
    window = window_on(&area, 0, area.bytes, 0);
    CHECK_SUCCESS(tcpx_window_key(window, keys[0]));
    swap_bytes(session, 1, keys[0], keys[1], sizeof *keys);
    remote = open_forged(session, keys[1]);
    for (unsigned i = 0; i < rounds && me->number == 0; i++)
        check_refusals(session, window, remote);
    if (me->number == 0)
        send_note(session, "the only one");
    else
        CHECK_NOTE(session, "the only one");
    meet_and_see(me, session);
    if (me->number == 1)
        CHECK(statistics_of(session).served_refusals == rounds * REFUSED_AT_ONCE);
    else
        CHECK(statistics_of(session).failures == rounds * REFUSED_AT_ONCE);
    CHECK_AREA(&area, 0, area.bytes);
    CHECK_SUCCESS(tcpx_remote_close(remote));
    CHECK_SUCCESS(tcpx_window_close(window, WAIT_MS));
    area_free(&area);
}

/* --- no room -------------------------------------------------------------------------------------
 */

/* Each counts 1 KiB, of the 1 MiB that there is. */
enum { NOTE_BYTES = 960, ROOM = 1024, QUARTER = ROOM / 4 };

static void fill_up(struct tcpx_session *session)
{
    static const uint8_t note[NOTE_BYTES];

    for (unsigned i = 0; i < ROOM; i++)
        CHECK_SUCCESS(tcpx_note_send(session, note, sizeof note));
    CHECK_ERROR(tcpx_note_send(session, note, sizeof note), TCPX_IN_PROGRESS,
                "has not taken 1048576 bytes of notes");
    CHECK_RESULT(tcpx_note_send(session, NULL, 0), TCPX_IN_PROGRESS);
}

static void take_some(struct tcpx_session *session, unsigned count)
{
    static uint8_t note[TCPX_NOTE_BYTES];

    for (unsigned i = 0; i < count; i++)
        CHECK(take_note(session, note) == NOTE_BYTES);
}

/* As much is sent as there is room for; the eventfd says when there is room again. */
SESSION_CASE(no_room, 0, IN_BRIEF)
{
    int fd = event_fd_of(session);

    if (me->number == 0) {
        fill_up(session);
        fd_drain(fd);
        meet_and_see(me, session);
        meet_and_see(me, session); /* too few were taken */
        CHECK(!fd_is_readable(fd, 20));
        meet_and_see(me, session);
        fd_await(fd);
        CHECK(!fd_is_readable(fd, 20)); /* told once */
        for (unsigned i = 0; i < QUARTER; i++)
            send_number(session, i); /* shorter */
    } else {
        meet_and_see(me, session);
        take_some(session, QUARTER - 1);
        meet_and_see(me, session);
        meet_and_see(me, session);
        take_some(session, ROOM - QUARTER + 1);
        for (uint64_t i = 0; i < QUARTER; i++)
            CHECK(take_number(session) == i);
    }
    meet_and_see(me, session);
}

/*
 * Accesses whose notes have no room wait, and have touched nothing. Those without a note go on, as
 * do sends. When there is room, all of them are done.
 */
SESSION_CASE(accesses_without_room, 0, IN_BRIEF, .windows = true)
{
    enum { WAITING = 40 };
    struct tcpx_transfer *transfers[WAITING];
    struct shared here;
    int done = 0;

    shared_open(&here, session, false, 100 * WAITING, READ_WRITE);
    if (me->number == 0) {
        area_fill(&here.area, 2);
        fill_up(session);
        for (unsigned i = 0; i < WAITING; i++)
            transfers[i] =
                begin_numbered(session, false, part_of_both(&here, i * 100, &here, i * 100, 50), i);
        for (unsigned i = 0; i < WAITING; i++)
            FINISH(begin_one(session, false,
                             part_of_both(&here, i * 100 + 50, &here, i * 100 + 50, 50)));
        ping(me, session, 0, 8);
        for (unsigned i = 0; i < WAITING; i++) {
            CHECK_SUCCESS(tcpx_transfer_test(transfers[i], &done));
            CHECK(done == 0);
            CHECK_ERROR(tcpx_transfer_wait(transfers[i], 0), TCPX_IN_PROGRESS,
                        "the write of 50 bytes was not done in time");
        }
        meet_and_see(me, session);
        meet_and_see(me, session);
        for (unsigned i = 0; i < WAITING; i++)
            FINISH(transfers[i]);
    } else {
        ping(me, session, 0, 8);
        meet_and_see(me, session);
        for (unsigned i = 0; i < WAITING; i++)
            pattern_copy(here.area.expected + i * 100 + 50, 50, 2, i * 100 + 50);
        CHECK_AREA(&here.area, 0, here.area.bytes);
        meet_and_see(me, session);
        take_some(session, ROOM);
        for (uint64_t i = 0; i < WAITING; i++) {
            uint64_t number = take_number(session);

            CHECK(number < WAITING);
            pattern_copy(here.area.expected + number * 100, 50, 2, number * 100);
        }
        CHECK_AREA(&here.area, 0, here.area.bytes);
    }
    meet_and_see(me, session);
    shared_close(&here);
}

/* --- events and ends
 * ------------------------------------------------------------------------------ */

/* A descriptor tells of notes and of ends, also of those that were there before it was. */
SESSION_CASE(events, 0, IN_BRIEF, .windows = true)
{
    struct shared here;
    int fd;

    shared_open(&here, session, true, 3 << 20, READ_WRITE);
    if (me->number == 0) {
        send_note(session, "before");
        FINISH(begin_one(session, false, part_of_both(&here, 0, &here, 0, 1))); /* it is there */
        meet_and_see(me, session);
        meet_and_see(me, session); /* it was taken */
        send_note(session, "by itself");
        meet_and_see(me, session);
        FINISH(begin_numbered(session, false, part_of_both(&here, 0, &here, 0, 2 << 20), 5));
        FINISH(begin_numbered(session, true, part_of_both(&here, 0, &here, 0, 2 << 20), 6));
        meet_and_see(me, session);
    } else {
        meet_and_see(me, session);
        fd = event_fd_of(session);
        CHECK(fd_is_readable(fd, 0));
        fd_drain(fd);
        CHECK_NOTE(session, "before");
        meet_and_see(me, session);
        fd_await(fd);
        CHECK_NOTE(session, "by itself");
        CHECK(!fd_is_readable(fd, 0));
        meet_and_see(me, session);
        fd_await(fd);
        CHECK(take_number(session) == 5);
        CHECK(take_number(session) == 6);
        meet_and_see(me, session);
        fd_drain(fd);
        /* ends of this side's own accesses, and failures */
        for (unsigned i = 0; i < 4; i++) {
            uint64_t bytes = i < 2 ? 100 : 3 << 20;

            fd_finish(fd, begin_one(session, i % 2 == 0, part_of_both(&here, 0, &here, 0, bytes)));
        }
    }
    meet_and_see(me, session);
    shared_close(&here);
}

/* What was sent arrives, though its sender closes at once; then the session's end is the answer. */
SIDES_CASE(sent_and_closed, 2, IN_BRIEF)
{
    const struct tcpx_session_options options = usual_options();

    for (unsigned turn = 0; turn < 4; turn++) {
        struct tcpx_session *session = open_session(me, &options);
        static uint8_t note[TCPX_NOTE_BYTES];
        const unsigned count = turn < 2 ? 1 : 31;
        uint64_t since = now_ms();
        size_t bytes;
        int there = 1;
        int result = TCPX_SUCCESS;

        STAGE("turn %u", turn);
        if (me->number == (int)(turn & 1)) {
            for (unsigned i = 0; i < count; i++)
                CHECK_SUCCESS(tcpx_note_send(session, note, TCPX_NOTE_BYTES - i));
            tcpx_session_close(session);
            continue;
        }
        for (unsigned i = 0; i < count; i++)
            CHECK(take_note(session, note) == TCPX_NOTE_BYTES - i);
        while (result == TCPX_SUCCESS && now_ms() - since < WAIT_MS)
            result = tcpx_note_take(session, note, sizeof note, &bytes, &there);
        CHECK_RESULT(result, TCPX_REMOTE_ERROR);
        CHECK_ERROR(tcpx_note_send(session, note, 1), TCPX_REMOTE_ERROR, "");
        tcpx_session_close(session);
    }
}

SIDES_SUITE("session access room", sides_begin);
