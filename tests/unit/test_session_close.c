/*
 * The end of a session: what is done has arrived, what is not fails in words, slow receivers and
 * peers that close or are killed keep nobody waiting, and nothing is left.
 *
 * TCPX_TEST_TURNS=percent of all rounds, of which less than half make transfers smaller, too.
 */
#include "tests/unit/session_pair.h"

/*
 * A receiver that posts one receive at a time, with pauses, and looks seldom: nothing stalls. This
 * is where implementations that give the network all their memory at once have stood still.
 */
static void receive_slowly(struct side *me, struct tcpx_session *session, uint64_t total,
                           uint64_t each, long pause_us, bool on_gpu)
{
    uint64_t count = total / each;
    struct tcpx_transfer **sends = calloc(count, sizeof *sends);
    struct area area;

    CHECK(sends != NULL);
    area_open(&area, session, on_gpu, total, me->number == 0, 3);
    if (me->number == 0) {
        for (uint64_t i = 0; i < count; i++)
            sends[i] = begin_part(session, true, &area, i * each, each, 2, 0);
        for (uint64_t i = 0; i < count; i++)
            FINISH(sends[i]);
    } else {
        for (uint64_t i = 0; i < count; i++) {
            uint64_t since = now_ms();
            struct tcpx_transfer *transfer;

            nap_us(pause_us);
            transfer = begin_part(session, false, &area, i * each, each, 2, 0);
            for (int done = 0; done == 0;) {
                nap_us(pause_us);
                CHECK_SUCCESS(tcpx_transfer_test(transfer, &done));
                CHECK(now_ms() - since < WAIT_MS);
            }
        }
    }
    CHECK_MOVED(&area, me->number == 0, 0, total, 3, 0);
    area_drop(&area, session);
    free(sends);
}

SESSION_CASE(slow_receiver, 0, IN_BRIEF)
{
    uint64_t most = number_of("TCPX_TEST_LARGE", 0) != 0 ? (uint64_t)1 << 30 : 2 * largest();

    receive_slowly(me, session, 4 << 20, 512 << 10, 10000, true);
    receive_slowly(me, session, 4 << 20, 4 << 20, 3000, true);
    receive_slowly(me, session, largest(), largest() / 32, 500, true);
    if (turns_of(100) > 50)
        receive_slowly(me, session, most, most, 500, true);
    receive_slowly(me, session, 8 << 20, 1 << 20, 500, false);
}

/* What is done has arrived, though its sender closes and exits at once, and its receiver, too. */
SIDES_CASE(done_is_done, 2, IN_BRIEF)
{
    const struct tcpx_session_options options = small_chunks();

    for (int turn = 0; turn < turns_of(200); turn++) {
        struct tcpx_session *session = open_session(me, &options);
        bool sends = me->number == turn % 2;
        bool closes_first = turn % 8 < 6 ? !sends : sends; /* the receiver, mostly */
        uint64_t bytes = turn % 3 == 0 ? 24 : turn % 3 == 1 ? 5000 : 400000;
        struct tcpx_transfer *transfer;
        struct area area;

        area_open(&area, session, turn % 5 < 2, bytes, sends, turn);
        if (!sends && turn % 7 == 0)
            nap_us(3000);
        transfer = begin_part(session, sends, &area, 0, bytes, 3, 0);
        if (sends && turn % 4 < 2) /* as fast as it can, so that it is in the session's way */
            for (int done = 0; done == 0;)
                CHECK_SUCCESS(tcpx_transfer_test(transfer, &done));
        else
            FINISH(transfer);
        if (closes_first)
            tcpx_session_close(session);
        CHECK_MOVED(&area, sends, 0, bytes, turn, 0);
        if (!closes_first) { /* that the other has gone makes no difference to what was done */
            nap_us(turn % 2 * 1000);
            CHECK_SUCCESS(tcpx_session_deregister(session, area.memory));
            tcpx_session_close(session);
        }
        area_free(&area);
    }
}

/* NULL: the peer is gone already, and the text says so. */
static struct tcpx_transfer *begin_if_there(struct tcpx_session *session, bool sending,
                                            struct tcpx_move move)
{
    struct tcpx_transfer *transfer = NULL;
    int result = try_begin(session, sending, move, &transfer);

    CHECK((result == TCPX_SUCCESS) == (transfer != NULL));
    CHECK(result == TCPX_SUCCESS || (result == TCPX_REMOTE_ERROR && *tcpx_last_error() != '\0'));
    return transfer;
}

/* Ends soon, if it has begun at all, and if by an error, then in words. */
static int end_soon(struct tcpx_transfer *transfer)
{
    int result = transfer != NULL ? tcpx_transfer_wait(transfer, SOON_MS) : TCPX_REMOTE_ERROR;

    CHECK(result != TCPX_IN_PROGRESS);
    CHECK(result == TCPX_SUCCESS || *tcpx_last_error() != '\0');
    return result;
}

enum { IN_FLIGHT = 5 };

/* One that is under way, both ways, and some that nobody answers. */
static void begin_in_flight(struct side *me, struct tcpx_session *session, struct area areas[2],
                            bool as_pieces, struct tcpx_transfer *transfers[IN_FLIGHT])
{
    for (unsigned i = 0; i < IN_FLIGHT; i++) {
        const struct area *area = &areas[i % 2];
        unsigned pieces = as_pieces ? 2 : 0;
        struct tcpx_move move = i < 2
                                    ? move_of(area, 2000, area->bytes - 2000, 1, pieces)
                                    : move_of(area, 0, 2000, i + 10 * (unsigned)me->number, pieces);

        transfers[i] = begin_if_there(session, i % 2 == 0, move);
    }
}

/* All of them end; returns how many were done. */
static unsigned end_in_flight(struct tcpx_session *session,
                              struct tcpx_transfer *transfers[IN_FLIGHT])
{
    unsigned done = 0;

    /* those under way may have been in time; small sends are done when they are away */
    for (unsigned i = 0; i < IN_FLIGHT; i++) {
        bool is_done = end_soon(transfers[i]) == TCPX_SUCCESS;

        CHECK(!is_done || i < 2 || (i % 2 == 0 && is_builtin(session)));
        done += is_done;
    }
    return done;
}

/*
 * One side closes with all kinds of transfers in flight; the other's fail soon, in words, and when
 * that is closed, too, nobody writes to their memory any more. Both begin again in the same
 * process.
 */
SIDES_CASE(close_in_flight, 2, IN_BRIEF)
{
    const struct tcpx_session_options options = small_chunks();

    for (int turn = 0; turn < 4 + turns_of(12); turn++) {
        struct tcpx_session *session = open_session(me, &options);
        struct tcpx_transfer *transfers[IN_FLIGHT];
        struct area areas[2];

        for (int i = 0; i < 2; i++) {
            area_make(&areas[i], session, turn % 2 == 0, largest() / 2);
            area_fill(&areas[i], turn);
        }
        begin_in_flight(me, session, areas, turn / 2 % 2 == 1, transfers);
        if (turn % 3 != 0)
            meet(me);
        if ((turn / 4 + turn) % 2 == me->number) {
            nap_us((long)(turn * 13 % 7) * 300);
            tcpx_session_close(session);
        } else {
            unsigned ended = end_in_flight(session, transfers);

            CHECK(statistics_of(session).sends + statistics_of(session).receives == ended);
            /* the network may have it until the session is closed */
            for (unsigned i = 0; i < 2; i++)
                if (tcpx_session_deregister(session, areas[i].memory) != TCPX_SUCCESS)
                    CHECK(strstr(tcpx_last_error(), "failed") != NULL);
            tcpx_session_close(session);
            for (unsigned i = 0; i < 2; i++)
                area_poison(&areas[i]);
            nap_us(10000);
            CHECK_AREA(&areas[1], 0, areas[1].bytes);
        }
        for (int i = 0; i < 2; i++)
            area_free(&areas[i]);
        open_and_ping(me, &options, (int)turn % 2, turn);
    }
}

/* A peer that is killed. */
SIDES_CASE(killed, 2, IN_BRIEF)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);
    struct tcpx_session *second = open_session(me, &options);
    struct tcpx_transfer *transfers[IN_FLIGHT];
    struct area areas[2];

    for (int i = 0; i < 2; i++) {
        area_make(&areas[i], session, i == 0, largest());
        area_fill(&areas[i], 3);
    }
    begin_in_flight(me, session, areas, false, transfers);
    meet(me);
    if (me->number == 1) {
        nap_us(500);
        kill(getpid(), SIGKILL);
    }
    end_in_flight(session, transfers);
    /* whatever is begun now fails as well, now or soon */
    tcpx_session_close(session);
    area_free(&areas[0]);
    area_make(&areas[0], second, false, 100000);
    for (int sending = 0; sending < 2; sending++) {
        struct tcpx_move move = move_of(&areas[0], 0, 100000, 0, 0);

        CHECK(end_soon(begin_if_there(second, sending, move)) != TCPX_SUCCESS);
    }
    tcpx_session_close(second);
    area_free(&areas[0]);
    area_free(&areas[1]);
}

/* Sessions that come and go leave neither descriptors nor threads behind. */
SIDES_CASE(leaks, 2, IN_BRIEF)
{
    struct tcpx_session_options options = small_chunks();
    int descriptors = 0;
    int threads = 0;
    uint64_t since;

    for (unsigned turn = 0; turn < 33; turn++) {
        struct tcpx_session *session;
        struct area area;
        int fd;

        options.channels = 1 + (int)turn % 3;
        session = open_session(me, &options);
        ping(me, session, (int)turn % 2, turn);
        if (turn % 3 == 0)
            CHECK_SUCCESS(tcpx_session_event_fd(session, &fd));
        area_make(&area, session, true, 100000);
        for (unsigned i = 0; i < turn % 4; i++) /* some of them without an answer */
            begin_if_there(session, (me->number + (int)i) % 2 == 0,
                           move_of(&area, 0, 100000, i < 2 ? i : 10 + (uint64_t)me->number, 0));
        tcpx_session_close(session);
        area_free(&area);
        if (turn == 2) { /* what is made once is there */
            descriptors = open_descriptors();
            threads = running_threads();
        }
    }
    for (since = now_ms(); now_ms() - since < limit_ms(3000);)
        if (open_descriptors() > descriptors || running_threads() > threads)
            nap_us(1000);
        else
            break;
    CHECK(open_descriptors() <= descriptors);
    CHECK(running_threads() <= threads);
}

SIDES_SUITE("session close", sides_begin);
