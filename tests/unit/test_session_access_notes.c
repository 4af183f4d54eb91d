/*
 * Notes: by themselves they come in order; of writes when the bytes are there, of reads when the
 * reader has them; each comes once.
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
        CHECK_ERROR(result, TCPX_INVALID_ARGUMENT,
                    "the next note has 32768 bytes, and there is room for 32767");
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

SIDES_SUITE("session access notes", sides_begin);
