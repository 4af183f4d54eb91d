/*
 * Many reads and writes at once: beside each other, in both directions, together with sends and
 * receives, by many threads, and over many sessions of one process.
 *
 * TCPX_TEST_TURNS=percent of all rounds, of which less than half make accesses smaller, too.
 */
#include "tests/unit/session_threads.h"

#include <sys/resource.h>

/* Both sides read and write, among sends and receives, whatever is begun and waited for first. */
SESSION_CASE(with_sends, 0, IN_BRIEF, .windows = true)
{
    static const struct mix mixes[] = {
        {.accesses_percent = 100, .ends = {FORWARD, FORWARD}},
        {.accesses_percent = 50, .tags = 3, .ends = {BACKWARD, SHUFFLED}},
        {.accesses_percent = 50, .begins = RECEIVES_FIRST, .ends = {BY_TESTS, BY_NO_TIME}},
        {.accesses_percent = 100, .ends = {BY_NO_TIME, BY_TESTS}},
        {.accesses_percent = 80, .tags = 1, .begins = SENDS_FIRST, .ends = {SHUFFLED, FORWARD}},
        {.accesses_percent = 100, .one_way = true, .ends = {BACKWARD, SHUFFLED}},
        {.accesses_percent = 60, .ends = {BY_EVENTS, SHUFFLED}},
        {.accesses_percent = 100, .ends = {BY_EVENTS, BY_EVENTS}},
    };

    for (unsigned i = 0; i < COUNT_OF(mixes); i++)
        for (unsigned large = 0; large < 2; large++) {
            struct mix mix = mixes[i];

            STAGE("mix %u", 2 * i + large);
            mix.seed = 10 * i + large;
            mix.count = 20 + turns_of(large ? 20 : 200);
            mix.longest = large ? 2000000 : 30000;
            mix.pieces_percent = 50;
            run_mix(me, session, &mix);
        }
}

/* Many more than can be under way: the others wait for their turn. */
SESSION_CASE(thousands, 0, IN_BRIEF, .windows = true)
{
    for (unsigned i = 0; i < 4; i++) {
        const struct mix mix = {.seed = 40 + i,
                                .count = 2 * (1024 + turns_of(2000)),
                                .longest = i % 2 == 0 ? 60 : 3000,
                                .accesses_percent = i < 3 ? 100 : 70,
                                .pieces_percent = i < 2 ? 0 : 10,
                                .ends = {i % 2 == 0 ? FORWARD : BY_EVENTS, BACKWARD}};

        STAGE("mix %u", i);
        run_mix(me, session, &mix);
    }
}

/* Several threads of each side, with windows of their own, on one session. */
SESSION_CASE(threads, 0, IN_BRIEF, .windows = true)
{
    struct part parts[6];

    for (unsigned i = 0; i < COUNT_OF(parts); i++) {
        parts[i] = part_of(me->number, session, i);
        parts[i].closes = false;
        parts[i].mix.accesses_percent = i % 3 == 2 ? 50 : 100;
    }
    run_parts(parts, COUNT_OF(parts));
}

/* --- threads that share windows ------------------------------------------------------------------
 */

enum { THREADS = 8, TURNS_EACH = 200, RANGE = 4000 };

struct turn_taker {
    pthread_t thread;
    struct tcpx_session *session;
    const struct shared *here;
    unsigned number;
};

/* Writes what it has to its own range there, and reads that back behind its own range here. */
static void *take_turns(void *argument)
{
    const struct turn_taker *mine = argument;
    const uint64_t range = (uint64_t)mine->number * RANGE;
    const int turns = turns_of(TURNS_EACH);

    for (int i = 0; i < turns; i++) {
        uint64_t step = (uint64_t)i % 7 * 500;

        FINISH(begin_one(mine->session, false,
                         part_of_both(mine->here, range + step, mine->here,
                                      THREADS * RANGE + range + step, 500)));
        FINISH(begin_one(mine->session, true,
                         part_of_both(mine->here, 2 * THREADS * RANGE + range + step, mine->here,
                                      THREADS * RANGE + range + step, 500)));
    }
    return NULL;
}

SESSION_CASE(threads_that_share, 0, IN_BRIEF, .windows = true)
{
    struct turn_taker takers[THREADS];
    struct tcpx_session_statistics statistics;
    struct shared here;
    const uint64_t each = (uint64_t)THREADS * (unsigned)turns_of(TURNS_EACH);

    shared_open(&here, session, me->number == 0, 3 * THREADS * RANGE, READ_WRITE);
    pattern_copy(here.area.expected, THREADS * RANGE, 7, 0);
    area_write(&here.area, 0, THREADS * RANGE);
    meet_and_see(me, session);
    for (unsigned i = 0; i < THREADS; i++) {
        takers[i] = (struct turn_taker){.session = session, .here = &here, .number = i};
        CHECK(pthread_create(&takers[i].thread, NULL, take_turns, &takers[i]) == 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        CHECK(pthread_join(takers[i].thread, NULL) == 0);
    meet_and_see(me, session);
    for (uint64_t i = 0; i < THREADS; i++)
        for (uint64_t k = 0; k < 7 && k < (unsigned)turns_of(TURNS_EACH); k++)
            for (uint64_t copy = 1; copy < 3; copy++)
                pattern_copy(here.area.expected + (copy * THREADS + i) * RANGE + k * 500, 500, 7,
                             i * RANGE + k * 500);
    CHECK_AREA(&here.area, 0, here.area.bytes);
    statistics = statistics_when_served(session, 2 * each);
    CHECK(statistics.reads == each && statistics.writes == each && statistics.failures == 0);
    CHECK(statistics.served_reads == each && statistics.served_writes == each);
    shared_close(&here);
}

/* Both ends of a session in one process, as an agent that talks to itself has them. */
SIDES_CASE(one_process, 1, IN_BRIEF)
{
    const struct tcpx_session_options options = with_windows();
    struct tcpx_session_listener *listener = listen_here(0, &options);
    struct opening openings[2] = {{.options = &options}, {.listener = listener}};
    struct part parts[2];

    open_all(openings, 2);
    for (int i = 0; i < 2; i++) {
        parts[i] = part_of(i, openings[i].session, 1);
        parts[i].mix.accesses_percent = 70;
    }
    run_parts(parts, 2);
    tcpx_session_stop_listening(listener);
}

/* --- many sessions ------------------------------------------------------------------------------
 */

enum { MOST_SESSIONS = 200, EACH = 5000, DESCRIPTORS_EACH = 16 };

/* As many as there may be descriptors for. */
static unsigned session_count(void)
{
    struct rlimit limit;
    unsigned count = (unsigned)turns_of(MOST_SESSIONS);

    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (limit.rlim_max / DESCRIPTORS_EACH < count)
        count = (unsigned)(limit.rlim_max / DESCRIPTORS_EACH);
    CHECK(count > 0);
    return count;
}

static uint64_t cpu_us(void)
{
    struct rusage usage;

    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
           (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* Nothing is under way: this process sleeps. */
static void check_idle(struct side *me)
{
    enum { IDLE_MS = 600, MOST_US = 3000 };
    uint64_t before;

    nap_ms(100); /* what was begun by the last calls has ended */
    before = cpu_us();
    nap_ms(IDLE_MS);
    STAGE("idle: %d us", (int)(cpu_us() - before));
    CHECK(cpu_us() - before <= MOST_US);
    meet(me);
}

/* Each session has a range of its own: the first half is written there, the second one read. */
static void use_all(struct tcpx_session **sessions, unsigned count, const struct area *area,
                    struct tcpx_window *window, const uint8_t *key)
{
    struct tcpx_transfer *transfers[2 * MOST_SESSIONS];

    for (unsigned i = 0; i < count; i++) {
        struct tcpx_remote *remote;
        uint64_t at = (uint64_t)i * 2 * EACH;

        CHECK_SUCCESS(tcpx_remote_open(sessions[i], key, TCPX_KEY_BYTES, &remote));
        for (unsigned reads = 0; reads < 2; reads++)
            transfers[2 * i + reads] = begin_one(
                sessions[i], reads == 1,
                (struct tcpx_part){window, at + reads * EACH, remote, at + reads * EACH, EACH});
    }
    for (unsigned i = 0; i < 2 * count; i++)
        FINISH(transfers[i]);
    CHECK(area->bytes >= (uint64_t)count * 2 * EACH);
}

/*
 * One process serves many sessions by one window and makes no call meanwhile. It has no more
 * threads than with one session, and needs no CPU while nothing is asked of it.
 */
SIDES_CASE(served_by_one, 2, IN_FULL)
{
    struct tcpx_session_options options = with_windows();
    unsigned count = session_count();
    struct tcpx_session *sessions[MOST_SESSIONS] = {NULL};
    struct tcpx_session_listener *listener;
    struct tcpx_window *window;
    unsigned others = 0;
    struct area area;

    options.gpu = -1; /* an emulated one is a thread */
    area_allocate(&area, false, MOST_SESSIONS * 2 * EACH, 0);
    area_fill(&area, (unsigned)me->number); /* before there is a session */
    window = window_on(&area, 0, area.bytes, READ_WRITE);
    if (me->number == 0)
        CHECK_SUCCESS(tcpx_window_key(window, meeting->note));
    listener = me->number == 0 ? listen_here(0, &options) : NULL;
    for (unsigned i = 0; i < count; i++) {
        CHECK_SUCCESS(me->number == 0 ? tcpx_session_accept(listener, WAIT_MS, &sessions[i])
                                      : connect_to(0, &options, &sessions[i]));
        if (i == 0)
            others = threads_called("") - threads_called("tcpx-io-");
    }
    meet(me);
    check_idle(me);
    if (me->number == 1)
        use_all(sessions, count, &area, window, (const uint8_t *)meeting->note);
    meet(me);
    for (unsigned i = 0; i < count; i++) /* as meet_and_see() */
        CHECK(!SANITIZED || statistics_of(sessions[i]).failures == 0);
    if (is_moved_by_threads(sessions[0]))
        /* An I/O thread that has just begun has no name yet, so that `others` may be too many. */
        CHECK(threads_called("") - threads_called("tcpx-io-") <= others);
    for (unsigned i = 0; i < count; i++)
        pattern_copy(area.expected + (2 * i + (unsigned)me->number) * EACH, EACH,
                     (unsigned)!me->number, (2 * i + (unsigned)me->number) * (uint64_t)EACH);
    CHECK_AREA(&area, 0, area.bytes);
    check_idle(me);
    for (unsigned i = 0; i < count; i++)
        tcpx_session_close(sessions[i]);
    tcpx_session_stop_listening(listener);
    CHECK_SUCCESS(tcpx_window_close(window, WAIT_MS));
    area_free(&area);
}

SIDES_SUITE("session access many", sides_begin);
