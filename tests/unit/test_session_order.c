/*
 * Many transfers of a session at once: whatever is begun first, on whatever tags, and however their
 * ends are waited for, each gets its own bytes, and none waits for another one.
 *
 * TCPX_TEST_TURNS=percent of all rounds, of which less than half make transfers smaller, too.
 */
#include "tests/unit/session_mix.h"

#include <fcntl.h>
#include <sys/resource.h>

enum { RECEIVES_THAT_WAIT = 1000 };

/* Whatever is begun first, on whatever tags, and waited for in whatever order. */
SESSION_CASE(many_at_once, SMALL_CHUNK, IN_BRIEF)
{
    static const struct mix mixes[] = {
        {.tags = 1, .begins = RECEIVES_FIRST, .ends = {FORWARD, FORWARD}, .one_way = true},
        {.tags = 1, .begins = SENDS_FIRST, .ends = {BACKWARD, FORWARD}, .one_way = true},
        {.tags = 0, .begins = RECEIVES_FIRST, .ends = {FORWARD, BACKWARD}, .one_way = true},
        {.tags = 0, .begins = SENDS_FIRST, .ends = {SHUFFLED, BACKWARD}, .one_way = true},
        {.tags = 5, .begins = AT_ONCE, .ends = {BACKWARD, BACKWARD}},
        {.tags = 5, .begins = RECEIVES_FIRST, .ends = {SHUFFLED, BY_TESTS}},
        {.tags = 0, .begins = SENDS_FIRST, .ends = {BY_TESTS, SHUFFLED}},
        {.tags = 3, .begins = AT_ONCE, .ends = {BY_NO_TIME, SHUFFLED}},
        {.tags = 7, .begins = RECEIVES_FIRST, .ends = {BY_NO_TIME, BY_NO_TIME}},
        {.tags = 4, .begins = AT_ONCE, .ends = {BY_EVENTS, SHUFFLED}},
        {.tags = 0, .begins = SENDS_FIRST, .ends = {BY_EVENTS, BY_EVENTS}},
        {.tags = 2, .begins = RECEIVES_FIRST, .ends = {FORWARD, BY_EVENTS}},
    };

    for (unsigned i = 0; i < COUNT_OF(mixes); i++)
        for (unsigned pieces = 0; pieces < 100; pieces += 40) {
            struct mix mix = mixes[i];

            if (turns_of(100) < 50 && i % 3 != pieces / 40)
                continue;
            mix.seed = 100 * i + pieces;
            mix.count = 60 + turns_of(100);
            mix.longest = 5000 + 50000 * (i % 3);
            mix.pieces_percent = pieces;
            if (mix.ends[me->number] == BY_EVENTS && pieces == 0 && i % 2 == 0) {
                int fd; /* also if it was asked for before anything was begun */

                CHECK_SUCCESS(tcpx_session_event_fd(session, &fd));
            }
            run_mix(me, session, &mix);
        }
}

/* More than either side keeps of the other's. */
SESSION_CASE(thousands, SMALL_CHUNK, IN_FULL)
{
    for (unsigned i = 0; i < (turns_of(100) > 50 ? 4u : 2u); i++) {
        const struct mix mix = {.seed = 77 + i,
                                .count = 4200 + turns_of(1000),
                                .longest = 60,
                                .tags = i < 2 ? 3 : 0,
                                .pieces_percent = i % 2 == 0 ? 0 : 100,
                                .one_way = true,
                                .begins = i % 3 == 0 ? SENDS_FIRST : RECEIVES_FIRST,
                                .ends = {FORWARD, i % 2 == 0 ? FORWARD : BACKWARD}};

        run_mix(me, session, &mix);
    }
}

enum { WINDOW = 100, MESSAGE = 40000 };

/*
 * Tags do not wait for each other: side 0 goes through the tags from the last to the first, one at
 * a time, while side 1 has begun all of them and waits for the first.
 */
static void tags_the_other_way(struct side *me, struct tcpx_session *session, bool side_0_sends,
                               bool as_pieces, enum ends ends)
{
    bool sends = (me->number == 0) == side_0_sends;
    struct job jobs[WINDOW] = {0};
    uint64_t random = 1;
    struct area area;

    area_open(&area, session, as_pieces, (uint64_t)WINDOW * MESSAGE, sends, 5);
    for (uint32_t i = 0; i < WINDOW; i++) {
        uint32_t which = me->number == 0 ? WINDOW - 1 - i : i;

        jobs[i].transfer = begin_part(session, sends, &area, (uint64_t)which * MESSAGE, MESSAGE,
                                      tag_from(which), as_pieces);
        if (me->number == 0)
            FINISH(jobs[i].transfer);
    }
    if (me->number == 1)
        finish_jobs(session, jobs, WINDOW, ends, &random);
    CHECK_MOVED(&area, sends, 0, area.bytes, 5, 0);
    area_drop(&area, session);
}

SESSION_CASE(tags_the_other_way, SMALL_CHUNK, IN_BRIEF)
{
    for (unsigned i = 0; i < 4; i++) {
        tags_the_other_way(me, session, (i & 1) != 0, (i & 2) != 0, FORWARD);
        tags_the_other_way(me, session, (i & 1) != 0, (i & 2) != 0, BACKWARD);
    }
}

/* Asking about one transfer only, without any time, is enough for all that it needs. */
SESSION_CASE(asking_about_one, SMALL_CHUNK, IN_FULL)
{
    struct tcpx_transfer *transfers[WINDOW];
    struct area area;

    area_make(&area, session, false, WINDOW);
    for (int way = 0; way < 2; way++) {
        bool sends = me->number == way;
        uint64_t since = now_ms();
        int result = TCPX_IN_PROGRESS;

        for (unsigned i = 0; i < WINDOW; i++)
            transfers[i] = begin_part(session, sends, &area, i, 1, 0, 0);
        while (result == TCPX_IN_PROGRESS && now_ms() - since < WAIT_MS)
            result = tcpx_transfer_wait(transfers[WINDOW - 1], 0);
        CHECK_SUCCESS(result);
        for (unsigned i = 0; i + 1 < WINDOW; i++)
            FINISH(transfers[i]);
    }
    area_drop(&area, session);
}

static void begin_window(struct tcpx_session *session, bool sends, const struct area *area,
                         struct tcpx_transfer *transfers[WINDOW])
{
    for (unsigned i = 0; i < WINDOW; i++)
        transfers[i] = begin_part(session, sends, area, (uint64_t)(i + 2) * MESSAGE, MESSAGE, 1, 0);
}

/* Transfers of a tag that the other side does nothing about do not keep others from moving. */
SESSION_CASE(a_tag_that_waits, SMALL_CHUNK, IN_BRIEF)
{
    for (int way = 0; way < 2; way++) {
        bool sends = me->number == way;
        struct tcpx_transfer *transfers[WINDOW] = {NULL};
        struct tcpx_transfer *other;
        struct tcpx_transfer *pieces;
        struct area area;

        area_open(&area, session, true, (uint64_t)(WINDOW + 2) * MESSAGE, sends, 8);
        if (me->number == 0) /* has begun what the other has not */
            begin_window(session, sends, &area, transfers);
        pieces = begin_part(session, sends, &area, 11, MESSAGE, 3, 1);
        other = begin_part(session, sends, &area, MESSAGE + 11, 500, 2, 0);
        FINISH(pieces);
        FINISH(other);
        meet(me);
        if (me->number == 1)
            begin_window(session, sends, &area, transfers);
        for (unsigned i = 0; i < WINDOW; i++)
            FINISH(transfers[i]);
        if (!sends)
            pattern_copy(area.expected + 11, MESSAGE + 500, 8, 11);
        CHECK_MOVED(&area, sends, 2 * MESSAGE, (uint64_t)WINDOW * MESSAGE, 8, 2 * MESSAGE);
        area_drop(&area, session);
    }
}

/* Large ones both ways at once, where both wait for their sends first; then everything mixed. */
SESSION_CASE(both_ways, 0, IN_BRIEF)
{
    uint64_t bytes = largest() / 8 + 12345;
    struct mix mix = {.seed = 5,
                      .count = 20 + turns_of(100),
                      .longest = 900000,
                      .tags = 6,
                      .pieces_percent = 30,
                      .ends = {SHUFFLED, SHUFFLED}};
    struct area in;
    struct area out;

    for (unsigned i = 0; i < 4; i++) {
        struct tcpx_transfer *receive;
        struct tcpx_transfer *send;

        area_open(&in, session, (i & 1) != 0, bytes, false, 0);
        area_open(&out, session, (i & 1) != 0, bytes, true, i + 10 * (unsigned)me->number);
        receive = begin_part(session, false, &in, 0, bytes, i, 0);
        send = begin_part(session, true, &out, 0, bytes, i, 0);
        FINISH(i < 2 ? send : receive);
        FINISH(i < 2 ? receive : send);
        CHECK_MOVED(&in, false, 0, bytes, i + 10 * (unsigned)!me->number, 0);
        area_drop(&in, session);
        area_drop(&out, session);
    }
    run_mix(me, session, &mix);
}

/* Time that is over ends the wait and not the transfer, however it is asked about. */
SESSION_CASE(short_waits, SMALL_CHUNK, IN_BRIEF)
{
    for (unsigned kinds = 0; kinds < 4; kinds++) {
        bool sends = me->number == (int)(kinds & 1);
        struct tcpx_transfer *transfer;
        struct area area;
        int done;

        area_open(&area, session, (kinds & 1) == 0, 200100, sends, kinds);
        if (me->number == 1)
            meet(me); /* side 0 has seen that nothing happens */
        transfer = begin_part(session, sends, &area, 7, 200000, kinds, kinds >> 1);
        if (me->number == 0) {
            uint64_t since = now_ms();

            CHECK_ERROR(tcpx_transfer_wait(transfer, 0), TCPX_IN_PROGRESS, "200000");
            CHECK(now_ms() - since < limit_ms(1000));
            CHECK_ERROR(tcpx_transfer_wait(transfer, 30), TCPX_IN_PROGRESS, "in time");
            CHECK(now_ms() - since >= 30 && now_ms() - since < limit_ms(2000));
            done = 5;
            CHECK_SUCCESS(tcpx_transfer_test(transfer, &done));
            CHECK(done == 0);
            done = 5;
            CHECK_SUCCESS(tcpx_transfer_test_on_stream(transfer, NULL, &done));
            CHECK(done == 0);
            meet(me);
        }
        for (int result = TCPX_IN_PROGRESS; result == TCPX_IN_PROGRESS;) {
            result = tcpx_transfer_wait(transfer, 1);
            CHECK(result == TCPX_SUCCESS || result == TCPX_IN_PROGRESS);
        }
        CHECK_MOVED(&area, sends, 7, 200000, kinds, 7);
        area_drop(&area, session);
    }
}

/* A program that does nothing but poll() misses no end, over many rounds of either kind. */
SESSION_CASE(events, SMALL_CHUNK, IN_BRIEF)
{
    unsigned rounds = turns_of(1500);
    uint64_t random = 8;
    struct area in;
    struct area out;
    int again;
    int fd;

    CHECK_SUCCESS(tcpx_session_event_fd(session, &fd));
    CHECK_SUCCESS(tcpx_session_event_fd(session, &again));
    CHECK(fd == again && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    area_make(&in, session, true, 20000);
    area_make(&out, session, true, 20000);
    for (unsigned i = 0; i < rounds; i++) {
        uint64_t bytes =
            one_in(&random, 20) ? random_below(&random, 20000) : random_below(&random, 100);
        bool as_pieces = one_in(&random, 2);
        struct job jobs[2] = {0};

        pattern_copy(out.expected, bytes, i + 7 * (unsigned)me->number, 0);
        area_write(&out, 0, bytes);
        jobs[0].transfer = begin_part(session, false, &in, 0, bytes, i % 3, as_pieces);
        jobs[1].transfer = begin_part(session, true, &out, 0, bytes, i % 3, as_pieces);
        poll_until_ended(fd, jobs, 2);
        pattern_copy(in.expected, bytes, i + 7 * (unsigned)!me->number, 0);
        CHECK_AREA(&in, 0, bytes);
    }
    area_drop(&in, session);
    area_drop(&out, session);
}

static uint64_t cpu_ms(void)
{
    struct rusage usage;

    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
           (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
}

/*
 * Receives that wait cost no CPU, however many there are, and their ends are events all the same.
 * Over a plugin they are polled.
 */
SESSION_CASE(idle_events, SMALL_CHUNK, IN_BRIEF)
{
    enum { SETTLE_MS = 500, LOOK_MS = 1000, MOST_CPU_MS = 50 };
    struct job *jobs = calloc(RECEIVES_THAT_WAIT, sizeof *jobs);
    struct area area;
    int fd;

    CHECK(jobs != NULL);
    CHECK_SUCCESS(tcpx_session_event_fd(session, &fd));
    area_make(&area, session, true, RECEIVES_THAT_WAIT);
    if (me->number == 1) {
        meet(me);
        pattern_copy(area.expected, RECEIVES_THAT_WAIT, 5, 0);
        area_write(&area, 0, RECEIVES_THAT_WAIT);
    }
    for (unsigned i = 0; i < RECEIVES_THAT_WAIT; i++)
        jobs[i].transfer = begin_part(session, me->number == 1, &area, i, 1, i, false);
    if (me->number == 0) {
        uint64_t before;

        nap_ms(SETTLE_MS);
        before = cpu_ms();
        nap_ms(LOOK_MS);
        before = cpu_ms() - before;
        if (is_moved_by_threads(session) && before > MOST_CPU_MS)
            child_fail(__FILE__, __LINE__, "idle receives", "they use the CPU");
        meet(me);
        pattern_copy(area.expected, RECEIVES_THAT_WAIT, 5, 0);
    }
    poll_until_ended(fd, jobs, RECEIVES_THAT_WAIT);
    CHECK_AREA(&area, 0, RECEIVES_THAT_WAIT);
    area_drop(&area, session);
    free(jobs);
}

SIDES_SUITE("session order", sides_begin);
