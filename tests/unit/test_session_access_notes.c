/*
 * Notes: by themselves they come in order; of writes when the bytes are there, of reads when the
 * reader has them; each comes once, or never if its access has not happened. What is not taken
 * holds up the sender, and nobody else.
 *
 * TCPX_TEST_TURNS=percent of all rounds, of which less than half make accesses smaller, too.
 */
#include "tests/unit/session_notes.h"

/* --- by themselves --------------------------------------------------------------------------- */

/* Of the note with this number; some of them empty, some as long as possible. */
static size_t length_of(uint64_t number)
{
    uint64_t state = number * 77 + 5;

    return one_in(&state, 10)   ? 0
           : one_in(&state, 20) ? TCPX_NOTE_BYTES
           : one_in(&state, 4)  ? random_below(&state, TCPX_NOTE_BYTES)
                                : random_below(&state, 100);
}

static bool send_next(struct tcpx_session *session, uint64_t number, uint64_t seed)
{
    static uint8_t note[TCPX_NOTE_BYTES];
    int result;

    pattern_copy(note, length_of(number), seed, number);
    result = tcpx_note_send(session, note, length_of(number));
    CHECK(result == TCPX_SUCCESS || result == TCPX_IN_PROGRESS);
    return result == TCPX_SUCCESS;
}

static bool take_next(struct tcpx_session *session, uint64_t number, uint64_t seed)
{
    static uint8_t expected[TCPX_NOTE_BYTES];
    static uint8_t note[TCPX_NOTE_BYTES];
    size_t bytes;

    if (!try_take(session, note, &bytes))
        return false;
    STAGE("note %llu", (unsigned long long)number);
    pattern_copy(expected, length_of(number), seed, number);
    CHECK(bytes == length_of(number) && memcmp(note, expected, bytes) == 0);
    return true;
}

/* Both ways at once, in order, more than there is room for. No side has windows. */
SESSION_CASE(by_themselves, 0, IN_BRIEF)
{
    const uint64_t count = 100 + (uint64_t)turns_of(4000);
    struct tcpx_session_statistics statistics;
    uint64_t since = now_ms();
    uint64_t taken = 0;
    uint64_t sent = 0;

    while (sent < count || taken < count) {
        bool moved = sent < count && send_next(session, sent, (unsigned)me->number);

        sent += moved;
        if (taken < count && (sent % 7 == 0 || !moved) &&
            take_next(session, taken, (unsigned)!me->number)) {
            taken++;
            moved = true;
        }
        since = moved ? now_ms() : since;
        CHECK(now_ms() - since < WAIT_MS);
        if (!moved)
            nap_us(50);
    }
    statistics = statistics_of(session);
    CHECK(statistics.notes_sent == count && statistics.notes_taken == count);
    meet_and_see(me, session);
    CHECK(!take_next(session, count, 0));
    meet_and_see(me, session);
}

/* Without a byte, and with as many as possible; one that does not fit stays. */
SESSION_CASE(bounds, 0, IN_FULL)
{
    static uint8_t longest[TCPX_NOTE_BYTES + 1];
    static uint8_t note[TCPX_NOTE_BYTES];
    size_t bytes = 99;
    int there;

    pattern_copy(longest, sizeof longest, 3, 0);
    CHECK_REFUSED(tcpx_note_send(session, longest, sizeof longest), "32769");
    CHECK_SUCCESS(tcpx_note_take(session, note, sizeof note, &bytes, &there));
    CHECK(there == 0 && bytes == 99);
    meet_and_see(me, session);
    CHECK_SUCCESS(tcpx_note_send(session, longest, TCPX_NOTE_BYTES));
    CHECK_SUCCESS(tcpx_note_send(session, NULL, 0));
    CHECK_SUCCESS(tcpx_note_send(session, longest, 0));
    CHECK_SUCCESS(tcpx_note_send(session, longest, 1));
    meet_and_see(me, session);
    for (uint64_t since = now_ms(); now_ms() - since < WAIT_MS;) {
        int result = tcpx_note_take(session, note, TCPX_NOTE_BYTES - 1, &bytes, &there);

        if (result == TCPX_SUCCESS) { /* not here yet */
            CHECK(there == 0 && bytes == 99);
            nap_us(50);
            continue;
        }
        CHECK_ERROR(result, TCPX_INVALID_ARGUMENT, "a note of 32768 bytes, and room for 32767");
        break;
    }
    CHECK(take_note(session, note) == TCPX_NOTE_BYTES);
    CHECK(memcmp(note, longest, TCPX_NOTE_BYTES) == 0);
    CHECK(take_note(session, note) == 0);
    for (there = 0; there == 0;) /* needs no room */
        CHECK_SUCCESS(tcpx_note_take(session, NULL, 0, &bytes, &there));
    CHECK(bytes == 0);
    CHECK(take_note(session, note) == 1 && note[0] == longest[0]);
    CHECK(statistics_of(session).notes_sent == 4 && statistics_of(session).notes_taken == 4);
}

/* --- with accesses -----------------------------------------------------------------------------
 */

enum { RANGES = 120, RANGE = 40000 };

/* Of the range with this number; one of them is longer than all buffers are. */
static uint64_t bytes_of(unsigned number)
{
    static const uint64_t lengths[] = {0, 1, 100, 4096, 9000, RANGE};

    return lengths[number % COUNT_OF(lengths)];
}

/*
 * The note of a write comes when its bytes are there. The GPU is slow, so that a note that comes
 * too early is seen.
 */
static void take_notes_of_writes(struct tcpx_session *session, struct shared *here)
{
    uint8_t seen[RANGES] = {0};

    (void)event_fd_of(session); /* all of it moves without a call from now on */
    pattern_copy(here->area.expected, here->area.bytes, 4, 0);
    for (unsigned i = 0; i < RANGES; i++) {
        uint64_t number = take_number(session);

        CHECK(number < RANGES && seen[number]++ == 0);
        CHECK_AREA(&here->area, number * RANGE, bytes_of((unsigned)number));
    }
}

static void write_with_notes(struct tcpx_session *session, const struct shared *here)
{
    struct tcpx_transfer *transfers[RANGES];

    for (unsigned i = 0; i < RANGES; i++)
        transfers[i] = begin_numbered(
            session, false,
            part_of_both(here, (uint64_t)i * RANGE, here, (uint64_t)i * RANGE, bytes_of(i)), i);
    for (unsigned i = 0; i < RANGES; i++)
        FINISH(transfers[i]);
}

SESSION_CASE(of_writes, 0, IN_BRIEF, .windows = true, .gpu_delay_us = 300)
{
    for (unsigned turn = 0; turn < 4; turn++) {
        struct shared here;
        bool writes = me->number == (int)(turn & 1);

        STAGE("turn %u", turn);
        shared_open(&here, session, (turn & 2) != 0, RANGES * RANGE, READ_WRITE);
        if (writes)
            area_fill(&here.area, 4);
        meet_and_see(me, session);
        if (writes)
            write_with_notes(session, &here);
        else
            take_notes_of_writes(session, &here);
        meet_and_see(me, session);
        shared_close(&here);
    }
}

/* Something else than before is in the range. */
static void overwrite(struct shared *here, uint64_t number)
{
    memset(here->area.expected + number * RANGE, POISON, bytes_of((unsigned)number));
    area_write(&here->area, number * RANGE, bytes_of((unsigned)number));
}

/*
 * The note of a read comes when the reader has the bytes. So the owner of the memory writes
 * something else into it at once, and the reader has what was there before. Under a sanitizer it
 * waits for the ends of the calls that have read the memory, which know of the note by the peer
 * only.
 */
static void overwrite_what_was_read(struct tcpx_session *session, struct shared *here,
                                    uint64_t served)
{
    uint8_t seen[RANGES] = {0};

    for (unsigned i = 0; i < RANGES; i++) {
        uint64_t number = take_number(session);

        CHECK(number < RANGES && seen[number]++ == 0);
        if (!SANITIZED)
            overwrite(here, number);
    }
    statistics_when_served(session, served + RANGES);
    for (unsigned i = 0; i < RANGES && SANITIZED; i++)
        overwrite(here, i);
}

static void read_with_notes(struct tcpx_session *session, struct shared *here)
{
    struct tcpx_transfer *transfers[RANGES];

    for (unsigned i = 0; i < RANGES; i++)
        transfers[i] = begin_numbered(
            session, true,
            part_of_both(here, (uint64_t)i * RANGE, here, (uint64_t)i * RANGE, bytes_of(i)), i);
    for (unsigned i = 0; i < RANGES; i++) {
        FINISH(transfers[i]);
        pattern_copy(here->area.expected + (uint64_t)i * RANGE, bytes_of(i), 6,
                     (uint64_t)i * RANGE);
    }
    CHECK_AREA(&here->area, 0, here->area.bytes);
}

SESSION_CASE(of_reads, 0, IN_BRIEF, .windows = true, .gpu_delay_us = 300)
{
    for (unsigned turn = 0; turn < 4; turn++) {
        struct shared here;
        bool reads = me->number == (int)(turn & 1);

        STAGE("turn %u", turn);
        shared_open(&here, session, (turn & 2) != 0, RANGES * RANGE, READ_WRITE);
        if (!reads)
            area_fill(&here.area, 6);
        meet_and_see(me, session);
        if (reads)
            read_with_notes(session, &here);
        else
            overwrite_what_was_read(session, &here, (uint64_t)turn / 2 * RANGES);
        meet_and_see(me, session);
        shared_close(&here);
    }
}

/*
 * Reads, writes and notes by themselves, each begun when the one before is done: their notes come
 * in this order. The peer's program makes no call until all are done.
 */
SESSION_CASE(in_order, 0, IN_BRIEF, .windows = true)
{
    const unsigned count = 50 + (unsigned)turns_of(400);
    struct shared here;

    shared_open(&here, session, true, RANGE, READ_WRITE);
    for (uint64_t i = 0; i < count && me->number == 0; i++) {
        const struct tcpx_part part = part_of_both(&here, 0, &here, 0, i % 5 * 9000);
        const struct tcpx_part none = {.window = NULL};

        if (i % 4 == 3)
            send_number(session, i);
        else
            FINISH(begin_numbered(session, i % 4 == 1, i % 4 == 2 ? none : part, i));
    }
    meet_and_see(me, session);
    for (uint64_t i = 0; i < count && me->number == 1; i++) {
        STAGE("note %llu", (unsigned long long)i);
        CHECK(take_number(session) == i);
    }
    meet_and_see(me, session);
    if (me->number == 1)
        CHECK(statistics_of(session).notes_taken == count);
    else
        CHECK(statistics_of(session).notes_sent == count);
    shared_close(&here);
}

/* An empty note is a note; an access without one has none; one with the longest has all of it. */
SESSION_CASE(lengths, 0, IN_FULL, .windows = true)
{
    static uint8_t longest[TCPX_NOTE_BYTES];
    static uint8_t note[TCPX_NOTE_BYTES];
    struct shared here;
    struct tcpx_part part;

    shared_open(&here, session, false, RANGE, READ_WRITE);
    pattern_copy(longest, sizeof longest, 9, 0);
    part = part_of_both(&here, 0, &here, 100, 50);
    for (unsigned kinds = 0; kinds < 4 && me->number == 1; kinds++) {
        const bool is_read = (kinds & 1) != 0;
        struct tcpx_access access = {.parts = &part, .part_count = kinds / 2};

        FINISH(begin_access(session, is_read, &access));
        access.note = "";
        FINISH(begin_access(session, is_read, &access));
        access.note = longest;
        access.note_bytes = sizeof longest;
        FINISH(begin_access(session, is_read, &access));
    }
    for (unsigned kinds = 0; kinds < 4 && me->number == 0; kinds++) {
        CHECK(take_note(session, note) == 0);
        CHECK(take_note(session, note) == sizeof longest);
        CHECK(memcmp(note, longest, sizeof longest) == 0);
    }
    meet_and_see(me, session);
    shared_close(&here);
}

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
            struct tcpx_transfer *transfer =
                begin_one(session, i % 2 == 0, part_of_both(&here, 0, &here, 0, bytes));
            int done = 0;

            fd_await(fd);
            CHECK_SUCCESS(tcpx_transfer_test(transfer, &done));
            CHECK(done == 1);
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

SIDES_SUITE("session access notes", sides_begin);
