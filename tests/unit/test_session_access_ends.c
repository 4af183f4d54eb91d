/*
 * How accesses end that are not done: at their deadline, by a cancel, and with their session, whose
 * peer is stopped, killed, or has closed it. Each ends in bounded time, in words, and its memory is
 * the caller's again.
 */
#include "tests/unit/session_notes.h"

enum {
    TIMEOUT_MS = 2000, /* UCCL_TCPX_TIMEOUT_MS */
    BYTES = 1 << 20,
    SLOW_BYTES = 8000, /* to or from a slow GPU */
    COPY_US = 300000,  /* that takes so long for each copy */
};

#define BOUND_MS limit_ms(5 * TIMEOUT_MS) /* of an end that the timeout leads to */

/* A kind of access that is not done for a while. */
struct slow {
    struct tcpx_part part;
    bool is_read;
    bool has_note;
    int timeout_ms;
};

static int try_slow(struct tcpx_session *session, const struct slow *slow,
                    struct tcpx_transfer **transfer)
{
    const struct tcpx_access access = {.parts = &slow->part,
                                       .part_count = 1,
                                       .note = slow->has_note ? "slow" : NULL,
                                       .note_bytes = slow->has_note ? 4 : 0,
                                       .timeout_ms = slow->timeout_ms};

    return try_access(session, slow->is_read, &access, transfer);
}

static struct tcpx_transfer *begin_slow(struct tcpx_session *session, const struct slow *slow)
{
    struct tcpx_transfer *transfer;

    CHECK_SUCCESS(try_slow(session, slow, &transfer));
    return transfer;
}

/* No note has room after that. */
static void use_all_room(struct tcpx_session *session)
{
    static const uint8_t note[TCPX_NOTE_BYTES];
    int result = TCPX_SUCCESS;

    for (size_t bytes = sizeof note; result == TCPX_SUCCESS || bytes > 0;
         bytes = result == TCPX_SUCCESS ? bytes : bytes / 2)
        result = tcpx_note_send(session, note, bytes);
    CHECK_RESULT(tcpx_note_send(session, NULL, 0), TCPX_IN_PROGRESS);
}

/* It ends by itself, in time; its result. */
static int end_of(struct tcpx_transfer *transfer)
{
    uint64_t since = now_ms();
    int result = tcpx_transfer_wait(transfer, WAIT_MS);

    CHECK(result != TCPX_IN_PROGRESS && now_ms() - since < BOUND_MS);
    return result;
}

/* Only emulated ones can be. */
static void need_slow_gpu(void)
{
    if (number_of("TCPX_TEST_LARGE", 0) != 0)
        skip_case("a real GPU is too fast");
}

enum { SLOW_ONES = 3 };

/* Until the GPU has copied them out, no bytes are sent. */
static struct slow slow_one(const struct shared *here, const struct shared *on_gpu, unsigned i,
                            int timeout_ms)
{
    if (i == 1) /* the GPU here */
        return (struct slow){part_of_both(on_gpu, 0, here, 0, SLOW_BYTES), false, true, timeout_ms};
    return (struct slow){part_of_both(here, 9, on_gpu, 0, SLOW_BYTES), true, i == 0, timeout_ms};
}

/* --- a peer that is there -----------------------------------------------------------------------
 */

/*
 * An access whose time is over is cancelled, whether it has begun or not, and its session goes on.
 * Neither its bytes nor its note come later.
 */
SESSION_CASE(deadlines, 0, IN_BRIEF, .windows = true, .gpu_delay_us = COPY_US)
{
    struct shared on_gpu;
    struct shared here;
    uint64_t since;

    need_slow_gpu();
    shared_open(&on_gpu, session, true, BYTES, READ_WRITE);
    shared_open(&here, session, false, BYTES, READ_WRITE);
    if (me->number == 0) {
        struct slow without_room = slow_one(&here, &on_gpu, 1, 30);

        for (unsigned i = 0; i < SLOW_ONES; i++) {
            const struct slow one = slow_one(&here, &on_gpu, i, 30);

            STAGE("access %u", i);
            since = now_ms();
            CHECK_ERROR(end_of(begin_slow(session, &one)), TCPX_CANCELLED,
                        "was cancelled: it was not done in time");
            CHECK(now_ms() - since >= 30);
        }
        send_note(session, "the first one");
        use_all_room(session);
        without_room.part = part_of_both(&here, 0, &here, 0, 100);
        CHECK_ERROR(end_of(begin_slow(session, &without_room)), TCPX_CANCELLED,
                    "a write of 100 bytes was cancelled: it was not done in time");
        FINISH(begin_one(session, false, part_of_both(&here, 0, &here, 100, 100)));
        CHECK(statistics_of(session).cancelled == 4 && statistics_of(session).failures == 0);
        CHECK(statistics_of(session).writes == 1 && statistics_of(session).written_bytes == 100);
    } else {
        CHECK_NOTE(session, "the first one");
        CHECK(statistics_when_served(session, 4).served_refusals == 3);
    }
    meet_and_see(me, session);
    if (me->number == 1)
        CHECK_AREA(&here.area, 0, BYTES);
    shared_close(&on_gpu);
    shared_close(&here);
}

/* After a cancel the memory is the caller's, though the peer may have to wait for its GPU. */
SESSION_CASE(cancels, 0, IN_BRIEF, .windows = true, .gpu_delay_us = COPY_US)
{
    struct shared on_gpu;
    struct shared here;

    need_slow_gpu();
    shared_open(&on_gpu, session, true, BYTES, READ_WRITE);
    shared_open(&here, session, false, BYTES, READ_WRITE);
    if (me->number == 0) {
        for (unsigned i = 0; i < SLOW_ONES; i++) {
            const struct slow one = slow_one(&here, &on_gpu, i, 0);
            struct tcpx_transfer *transfer = begin_slow(session, &one);

            STAGE("access %u", i);
            CHECK_SUCCESS(tcpx_transfer_cancel(transfer));
            area_fill(&here.area, i); /* nothing reads or writes it */
            CHECK_SUCCESS(tcpx_transfer_cancel(transfer));
            CHECK_ERROR(end_of(transfer), TCPX_CANCELLED, "was cancelled");
            CHECK_AREA(&here.area, 0, here.area.bytes);
        }
        send_note(session, "the only one");
        CHECK(statistics_of(session).cancelled == 3);
    } else {
        CHECK_NOTE(session, "the only one");
        CHECK(statistics_when_served(session, 3).served_refusals == 3);
    }
    meet_and_see(me, session);
    shared_close(&on_gpu);
    shared_close(&here);
}

/* What is done cannot be cancelled, and says so. */
SESSION_CASE(cancel_of_a_done_one, 0, IN_BRIEF, .windows = true)
{
    struct shared here;

    (void)event_fd_of(session); /* it moves without a call from now on */
    shared_open(&here, session, false, BYTES, READ_WRITE);
    meet_and_see(me, session);
    for (int reads = 0; reads < 2 && me->number == 0; reads++) {
        struct tcpx_transfer *transfer =
            begin_one(session, reads, part_of_both(&here, 0, &here, 0, 100));
        uint64_t since = now_ms();

        while (statistics_of(session).writes + statistics_of(session).reads <= (unsigned)reads) {
            CHECK(now_ms() - since < WAIT_MS);
            nap_us(100);
        }
        CHECK_SUCCESS(tcpx_transfer_cancel(transfer));
        CHECK_SUCCESS(tcpx_transfer_wait(transfer, 0));
    }
    CHECK(statistics_of(session).cancelled == 0);
    meet_and_see(me, session);
    shared_close(&here);
}

/* --- a peer that is not -------------------------------------------------------------------------
 */

/* Ranges that are read by both sides, written by the peer, and read into: none of them twice. */
enum { UNDER_WAY = 40, RANGE = 90000, RANGES = UNDER_WAY * RANGE, ALL_RANGES = 3 * RANGES };

static struct slow nth_access(const struct shared *here, unsigned i, int timeout_ms)
{
    const uint64_t at = (uint64_t)i * RANGE;
    const uint64_t bytes = i % 3 == 0 ? RANGE : i * 100;
    struct slow slow = {.is_read = i % 2 == 1, .has_note = i % 4 < 2, .timeout_ms = timeout_ms};

    slow.part = slow.is_read ? part_of_both(here, 2 * RANGES + at, here, at, bytes)
                             : part_of_both(here, at, here, RANGES + at, bytes);
    return slow;
}

/*
 * Many of both kinds, of small and large sizes, with notes and without. NULL: the peer is gone
 * already.
 */
static void begin_many(struct tcpx_session *session, const struct shared *here,
                       struct tcpx_transfer *transfers[UNDER_WAY], int timeout_ms)
{
    for (unsigned i = 0; i < UNDER_WAY; i++) {
        const struct slow slow = nth_access(here, i, timeout_ms);
        int result;

        transfers[i] = NULL;
        result = try_slow(session, &slow, &transfers[i]);
        CHECK((result == TCPX_SUCCESS) == (transfers[i] != NULL));
        CHECK(result == TCPX_SUCCESS || result == TCPX_REMOTE_ERROR);
    }
}

/* Whatever is begun on a session that has failed is refused, and what is there can be closed. */
static void check_failed_session(struct tcpx_session *session, struct shared *here)
{
    const struct tcpx_part part = part_of_both(here, 0, here, 0, 10);
    const struct tcpx_access access = {.parts = &part, .part_count = 1};
    struct tcpx_transfer *transfer = NULL;
    char note[8] = "";
    size_t bytes;
    int there;

    for (int reads = 0; reads < 2; reads++)
        CHECK_RESULT(try_access(session, reads, &access, &transfer), TCPX_REMOTE_ERROR);
    CHECK(transfer == NULL && *tcpx_last_error() != '\0');
    CHECK_RESULT(tcpx_note_send(session, note, 1), TCPX_REMOTE_ERROR);
    CHECK_RESULT(tcpx_note_take(session, note, sizeof note, &bytes, &there), TCPX_REMOTE_ERROR);
    shared_close(here);
}

/* Each fails with its own text, unless it was done. */
static unsigned check_ends(struct tcpx_transfer *transfers[UNDER_WAY])
{
    unsigned failed = 0;

    for (unsigned i = 0; i < UNDER_WAY; i++) {
        int result = transfers[i] != NULL ? end_of(transfers[i]) : TCPX_SUCCESS;

        if (result == TCPX_SUCCESS)
            continue;
        CHECK_RESULT(result, TCPX_REMOTE_ERROR);
        CHECK(strstr(tcpx_last_error(), "may have happened or not") != NULL ||
              strstr(tcpx_last_error(), "had not begun") != NULL);
        CHECK(strstr(tcpx_last_error(), i % 2 == 1 ? "a read of" : "a write of") != NULL);
        failed++;
    }
    return failed;
}

/* A stopped peer confirms nothing: the session ends, and says which access has waited for it. */
SIDES_CASE(stopped, 2, IN_BRIEF)
{
    const struct tcpx_session_options options = with_windows();
    struct tcpx_transfer *transfers[UNDER_WAY];
    struct tcpx_transfer *waiting;
    struct tcpx_session *session;
    uint64_t since;
    struct shared here;
    struct slow slow;

    session = open_session(me, &options);
    shared_open(&here, session, false, ALL_RANGES, READ_WRITE);
    if (me->number == 0) {
        atomic_store(&meeting->number, (uint64_t)getpid());
        meet(me);
        raise(SIGSTOP);
        _exit(1); /* it is killed before */
    }
    meet(me);
    nap_ms(20);
    since = now_ms();
    slow = (struct slow){part_of_both(&here, 0, &here, 0, 77), false, false, 200};
    begin_many(session, &here, transfers, (int)BOUND_MS);
    use_all_room(session);
    slow.has_note = true;
    slow.timeout_ms = (int)BOUND_MS;
    waiting = begin_slow(session, &slow); /* there is no room for its note */
    slow.has_note = false;
    slow.timeout_ms = 200;
    CHECK_ERROR(end_of(begin_slow(session, &slow)), TCPX_CANCELLED, "was not done in time");
    CHECK(now_ms() - since >= 200 + TIMEOUT_MS);
    CHECK(check_ends(transfers) == UNDER_WAY);
    CHECK_ERROR(end_of(waiting), TCPX_REMOTE_ERROR,
                "was not confirmed in time: the peer is stopped or lost");
    CHECK(strstr(tcpx_last_error(), "a write of 77 bytes had not begun") != NULL);
    CHECK(now_ms() - since < BOUND_MS);
    area_fill(&here.area, 3); /* it is the caller's again */
    kill((pid_t)atomic_load(&meeting->number), SIGKILL);
    nap_ms(20);
    CHECK_AREA(&here.area, 0, ALL_RANGES);
    check_failed_session(session, &here);
    tcpx_session_close(session);
}

/*
 * The peer is killed, or closes its session, with accesses of both sides under way. The side that
 * is left has its memory for itself, also that which the peer wrote to.
 */
static void lose_peer(struct side *me, bool is_killed, bool on_gpu)
{
    const struct tcpx_session_options options = with_windows();
    struct tcpx_session *session = open_session(me, &options);
    struct tcpx_transfer *transfers[UNDER_WAY];
    struct shared here;

    shared_open(&here, session, on_gpu, ALL_RANGES, READ_WRITE);
    meet_and_see(me, session);
    begin_many(session, &here, transfers, 0);
    if (me->number == 0 && is_killed)
        kill(getpid(), SIGKILL);
    if (me->number == 1)
        check_ends(transfers);
    if (me->number == 1) { /* those that were done before may have been all */
        uint64_t since = now_ms();
        int result;

        while ((result = tcpx_note_send(session, NULL, 0)) != TCPX_REMOTE_ERROR) {
            CHECK(is_killed || result == TCPX_SUCCESS || result == TCPX_IN_PROGRESS);
            CHECK(now_ms() - since < WAIT_MS);
            nap_us(100);
        }
        while (tcpx_note_take(session, &(uint8_t[TCPX_NOTE_BYTES]){0}, TCPX_NOTE_BYTES,
                              &(size_t){0}, &(int){0}) == TCPX_SUCCESS)
            CHECK(now_ms() - since < WAIT_MS);
        CHECK(statistics_of(session).cancelled == 0);
        check_failed_session(session, &here);
        tcpx_session_close(session);
        return;
    }
    tcpx_session_close(session);
    CHECK_SUCCESS(tcpx_window_close(here.window, WAIT_MS));
    area_free(&here.area);
}

SIDES_CASE(killed, 2, IN_BRIEF)
{
    lose_peer(me, true, false);
}

SIDES_CASE(killed_with_gpus, 2, IN_BRIEF)
{
    slow_down_gpus(2000);
    lose_peer(me, true, true);
}

SIDES_CASE(closed, 2, IN_BRIEF)
{
    for (int on_gpu = 0; on_gpu < 2; on_gpu++)
        lose_peer(me, false, on_gpu);
}

static int ends_begin(void)
{
    setenv("UCCL_TCPX_TIMEOUT_MS", "2000", 1);
    return sides_begin();
}

SIDES_SUITE("session access ends", ends_begin);
