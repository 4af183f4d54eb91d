/*
 * Reads and writes of the peer's windows: bytes of every size, in any memory of either side, in one
 * part or in many, arrive where they should and nowhere else. The peer's program waits meanwhile,
 * without a call.
 *
 * TCPX_TEST_TURNS=percent of all rounds, of which less than half make accesses smaller, too.
 * For machines that are good for it TCPX_TEST_LARGE=1: more of the largest.
 */
#include "tests/unit/session_access.h"
#include "tests/unit/session_lists.h"

/* The bits of `kinds`. */
enum { READS = 1, FROM_GPU = 2, TO_GPU = 4, BY_SIDE_1 = 8, ALL_KINDS = 16 };

/* Read from, written to: [on GPU]. */
struct both {
    struct shared out[2];
    struct shared in[2];
};

static void both_open(struct side *me, struct both *both, struct tcpx_session *session,
                      uint64_t bytes, bool has_gpu)
{
    for (int gpu = 0; gpu < 2; gpu++) {
        shared_open(&both->out[gpu], session, gpu == 1 && has_gpu, bytes, TCPX_WINDOW_READ);
        area_fill(&both->out[gpu].area, (unsigned)me->number);
        shared_open(&both->in[gpu], session, gpu == 1 && has_gpu, bytes + 333, TCPX_WINDOW_WRITE);
    }
    meet_and_see(me, session); /* what is read is there */
}

/* Nothing else was touched. */
static void both_close(struct side *me, struct tcpx_session *session, struct both *both)
{
    meet_and_see(me, session);
    for (int gpu = 0; gpu < 2; gpu++) {
        CHECK_AREA(&both->in[gpu].area, 0, both->in[gpu].area.bytes);
        CHECK_AREA(&both->out[gpu].area, 0, both->out[gpu].area.bytes);
        shared_close(&both->in[gpu]);
        shared_close(&both->out[gpu]);
    }
}

/* Between random places of the two areas. Neither side begins the next one before it is checked. */
static void move_once(struct side *me, struct tcpx_session *session, struct both *both,
                      unsigned kinds, uint64_t bytes, uint64_t *random)
{
    const bool is_read = (kinds & READS) != 0;
    const int initiator = (kinds & BY_SIDE_1) != 0;
    const int target_of_bytes = is_read ? initiator : !initiator;
    struct shared *out = &both->out[(kinds & FROM_GPU) != 0];
    struct shared *in = &both->in[(kinds & TO_GPU) != 0];
    uint64_t from = random_below(random, out->area.bytes - bytes + 1);
    uint64_t to = random_below(random, in->area.bytes - bytes + 1);

    STAGE("%llu bytes, kinds %u", (unsigned long long)bytes, kinds);
    if (me->number == initiator)
        FINISH(begin_one(session, is_read,
                         is_read ? part_of_both(in, to, out, from, bytes)
                                 : part_of_both(out, from, in, to, bytes)));
    meet_and_see(me, session);
    if (me->number == target_of_bytes) {
        pattern_copy(in->area.expected + to, bytes, (unsigned)!me->number, from);
        CHECK_AROUND(&in->area, to, bytes);
    }
    meet_and_see(me, session);
}

/* Sizes at the bounds of pages, of small messages and of slices. */
SESSION_CASE(sizes, 0, IN_BRIEF, .windows = true)
{
    static const uint64_t sizes[] = {0,     1,     2,      63,        4095,           4096,
                                     4097,  8191,  8192,   8193,      9999,           65535,
                                     65536, 65537, 262147, 512 << 10, (512 << 10) + 1};
    uint64_t random = 4711;
    struct both both;

    both_open(me, &both, session, 1 << 20, true);
    for (unsigned i = 0; i < COUNT_OF(sizes); i++)
        for (unsigned kinds = 0; kinds < ALL_KINDS; kinds++)
            if (turns_of(100) > 50 || (kinds + i) % 3 == 0)
                move_once(me, session, &both, kinds, sizes[i], &random);
    for (int i = 0; i < turns_of(150); i++) {
        unsigned kinds = (unsigned)random_below(&random, ALL_KINDS);

        move_once(me, session, &both, kinds, random_below(&random, 300000), &random);
    }
    both_close(me, session, &both);
}

/* One that fills the memory of both sides but for some bytes around it. */
static void move_largest(struct side *me, struct tcpx_session *session, unsigned kinds,
                         uint64_t bytes)
{
    enum { BEFORE = 50, AFTER = 77 };
    const bool is_read = (kinds & READS) != 0;
    const bool begins = me->number == ((kinds & BY_SIDE_1) != 0);
    const bool is_source = begins != is_read;
    const bool on_gpu = (kinds & (is_source ? FROM_GPU : TO_GPU)) != 0;
    struct shared mine;

    STAGE("%llu bytes, kinds %u", (unsigned long long)bytes, kinds);
    shared_open(&mine, session, on_gpu, BEFORE + bytes + AFTER,
                is_source ? TCPX_WINDOW_READ : TCPX_WINDOW_WRITE);
    if (is_source)
        area_fill(&mine.area, kinds);
    meet_and_see(me, session);
    if (begins)
        FINISH(begin_one(session, is_read, part_of_both(&mine, BEFORE, &mine, BEFORE, bytes)));
    meet_and_see(me, session);
    CHECK_MOVED(&mine.area, is_source, BEFORE, bytes, kinds, BEFORE);
    shared_close(&mine);
}

/* Some that are larger than all buffers, and one of 256 MiB in each direction. */
SESSION_CASE(large_ones, 0, IN_BRIEF, .windows = true)
{
    const uint64_t most = (uint64_t)(turns_of(100) > 50 ? 256 : 8) << 20;
    bool all = number_of("TCPX_TEST_LARGE", 0) != 0;

    for (unsigned kinds = 0; kinds < ALL_KINDS; kinds++)
        move_largest(me, session, kinds, (4 << 20) - kinds);
    for (unsigned kinds = 0; kinds < ALL_KINDS; kinds++)
        if (all || kinds == (READS | FROM_GPU) || kinds == (TO_GPU | BY_SIDE_1))
            move_largest(me, session, kinds, most);
}

/* --- lists ----------------------------------------------------------------------------------- */

static const enum list_kind list_kinds[][2] = {/* [reads from, writes to] */
                                               {DISJOINT, DISJOINT},
                                               {IN_ORDER, IN_ORDER},
                                               {OVERLAPPING, IN_ORDER},
                                               {IN_ORDER, DISJOINT}};

/* One access of `count` parts, through several windows of both sides. */
static void move_list(struct side *me, struct tcpx_session *session, unsigned kinds, uint64_t bytes,
                      uint32_t count, const enum list_kind places[2], uint64_t *random)
{
    const bool is_read = (kinds & READS) != 0;
    const int initiator = (kinds & BY_SIDE_1) != 0;
    const bool is_source = (me->number == initiator) != is_read;
    const bool on_gpu = (kinds & (is_source ? FROM_GPU : TO_GPU)) != 0;
    struct tcpx_part *parts = calloc(count + 1, sizeof *parts);
    const struct tcpx_access access = {.parts = parts, .part_count = count};
    struct covers covers[2];
    struct list lists[2]; /* read from, written to */
    const struct list *mine = &lists[!is_source];
    struct area area;

    STAGE("%u parts of %llu bytes, kinds %u", count, (unsigned long long)bytes, kinds);
    CHECK(parts != NULL);
    list_draw_two(random, bytes, count, places, lists);
    area_allocate(&area, on_gpu, mine->span + 77, 11);
    area_begin(&area, is_source, 5);
    covers_open(&covers[0], &area, is_source ? TCPX_WINDOW_READ : TCPX_WINDOW_WRITE);
    covers_swap(&covers[0], &covers[1], lists[is_source].span + 77, session, 3);
    for (uint32_t i = 0; i < count; i++)
        parts[i] = part_between(&covers[0], mine->pieces[i].offset, &covers[1],
                                lists[is_source].pieces[i].offset, mine->pieces[i].bytes, i / 4);
    if (me->number == initiator)
        FINISH(begin_access(session, is_read, &access));
    meet_and_see(me, session);
    if (!is_source)
        list_move(&lists[0], 5, &lists[1], area.expected);
    CHECK_AREA(&area, 0, area.bytes);
    for (unsigned i = 0; i < COVERS; i++) {
        CHECK_SUCCESS(tcpx_remote_close(covers[1].remotes[i]));
        CHECK_SUCCESS(tcpx_window_close(covers[0].windows[i], WAIT_MS));
    }
    area_free(&area);
    list_free(&lists[0]);
    list_free(&lists[1]);
    free(parts);
}

/*
 * From one part to 100,000, uneven ones, empty ones and such of one byte, in order and not, some of
 * which touch on one side or on both.
 */
SESSION_CASE(parts, 0, IN_BRIEF, .windows = true)
{
    static const struct {
        uint64_t bytes;
        uint32_t count;
    } ways[] = {{0, 3},          {1, 1},         {1, 50},         {100, 2},         {100000, 1},
                {100000, 30},    {300000, 40},   {5000, 5000},    {1 << 20, 64},    {65536, 2731},
                {300000, 10000}, {40000, 40000}, {3 << 20, 3000}, {2 << 20, 100000}};
    uint64_t random = 31;

    for (unsigned i = 0; i < COUNT_OF(ways); i++)
        for (unsigned kinds = 0; kinds < ALL_KINDS; kinds++) {
            const enum list_kind *places = list_kinds[(i + kinds / 2) % COUNT_OF(list_kinds)];
            bool is_long = ways[i].count > 5000;

            if (kinds % (is_long ? 8 : 1) == (is_long ? i % 8 : 0) &&
                (turns_of(100) > 50 || (kinds + i) % 3 == 0))
                move_list(me, session, kinds, ways[i].bytes, ways[i].count,
                          ways[i].bytes > 0 ? places : list_kinds[0], &random);
        }
}

/* Parts that touch on both sides, on this side only, on the peer's only, and on none. */
SESSION_CASE(parts_that_touch, 0, IN_BRIEF, .windows = true)
{
    enum { PARTS = 40, EACH = 777, ROOM = PARTS * (EACH + 5) };
    struct tcpx_part parts[PARTS];
    const struct tcpx_access access = {.parts = parts, .part_count = PARTS};
    struct shared here;

    shared_open(&here, session, true, 2 * ROOM, READ_WRITE);
    area_fill(&here.area, (unsigned)me->number);
    meet_and_see(me, session);
    for (unsigned kinds = 0; kinds < 8; kinds++) {
        const bool is_read = (kinds & READS) != 0;
        const uint64_t gap_from = (kinds & 2) != 0 ? 5 : 0;
        const uint64_t gap_to = (kinds & 4) != 0 ? 5 : 0;

        /* side 1 reads, or side 0 writes: from the first half there to the second one here */
        if (me->number == (int)(kinds & 1) && is_read)
            for (unsigned i = 0; i < PARTS; i++)
                parts[i] = part_of_both(&here, ROOM + i * (EACH + gap_to), &here,
                                        i * (EACH + gap_from), EACH);
        else
            for (unsigned i = 0; i < PARTS; i++)
                parts[i] = part_of_both(&here, i * (EACH + gap_from), &here,
                                        ROOM + i * (EACH + gap_to), EACH);
        STAGE("kinds %u", kinds);
        if (me->number == (int)(kinds & 1))
            FINISH(begin_access(session, is_read, &access));
        meet_and_see(me, session);
        if (me->number == 1)
            for (unsigned i = 0; i < PARTS; i++)
                pattern_copy(here.area.expected + ROOM + i * (EACH + gap_to), EACH, 0,
                             i * (EACH + gap_from));
        CHECK_AREA(&here.area, 0, here.area.bytes);
        meet_and_see(me, session);
    }
    shared_close(&here);
}

/* --- what belongs to whom ----------------------------------------------------------------------
 */

/* The list and the note are the caller's: they may be changed as soon as the call returns. */
SESSION_CASE(list_is_copied, 0, IN_FULL, .windows = true)
{
    struct tcpx_transfer *transfers[2];
    struct shared out;
    struct shared in;
    char note[16];
    size_t bytes;
    int there;

    shared_open(&out, session, false, 1000, TCPX_WINDOW_READ);
    shared_open(&in, session, true, 1000, TCPX_WINDOW_WRITE);
    area_fill(&out.area, (unsigned)me->number);
    meet_and_see(me, session);
    for (int reads = 0; reads < 2; reads++) {
        struct tcpx_part parts[] = {part_of_both(&out, 500, &in, 0, 100),
                                    part_of_both(&out, 0, &in, 200, 200)};
        char text[] = "a note";
        struct tcpx_access access = {
            .parts = parts, .part_count = 2, .note = text, .note_bytes = strlen(text)};

        if (reads) {
            parts[0] = part_of_both(&in, 500, &out, 0, 100);
            parts[1] = part_of_both(&in, 700, &out, 200, 200);
        }
        transfers[reads] = begin_access(session, reads, &access);
        memset(parts, 0xff, sizeof parts);
        memset(text, 0xff, sizeof text);
        memset(&access, 0xff, sizeof access);
    }
    FINISH(transfers[0]);
    FINISH(transfers[1]);
    meet_and_see(me, session);
    pattern_copy(in.area.expected, 100, (unsigned)!me->number, 500);
    pattern_copy(in.area.expected + 200, 200, (unsigned)!me->number, 0);
    pattern_copy(in.area.expected + 500, 100, (unsigned)!me->number, 0);
    pattern_copy(in.area.expected + 700, 200, (unsigned)!me->number, 200);
    CHECK_AREA(&in.area, 0, in.area.bytes);
    for (uint64_t since = now_ms(), taken = 0;
         taken < 2;) { /* that of a read may still be on its way */
        CHECK_SUCCESS(tcpx_note_take(session, note, sizeof note, &bytes, &there));
        CHECK(!there || (bytes == 6 && memcmp(note, "a note", 6) == 0));
        CHECK(now_ms() - since < WAIT_MS);
        taken += there != 0;
    }
    shared_close(&in);
    shared_close(&out);
}

/*
 * A window is the process's: it is opened before there is a session, serves several of them, and
 * goes on when one is closed. A remote that is closed does not end what is under way.
 */
SIDES_CASE(windows_of_a_process, 2, IN_BRIEF)
{
    enum { SESSIONS = 3, BYTES = 3 << 20 };
    const struct tcpx_session_options options = with_windows();
    struct tcpx_session *sessions[SESSIONS];
    struct area area;
    struct tcpx_window *window;

    area_allocate(&area, true, BYTES, 5);
    area_fill(&area, (unsigned)me->number);
    window = window_on(&area, 0, BYTES, READ_WRITE);
    for (unsigned i = 0; i < SESSIONS; i++)
        sessions[i] = open_session(me, &options);
    for (unsigned i = 0; i < SESSIONS; i++) {
        struct tcpx_remote *remote = swap_windows(sessions[i], 1, window);
        struct tcpx_transfer *transfer = NULL;

        /* side 1 reads what side 0 has, into each third */
        if (me->number == 1)
            transfer = begin_one(sessions[i], true,
                                 (struct tcpx_part){window, (uint64_t)BYTES / SESSIONS * i, remote,
                                                    (uint64_t)BYTES / SESSIONS * i, 1 << 20});
        CHECK_SUCCESS(tcpx_remote_close(remote));
        if (transfer != NULL)
            FINISH(transfer);
        meet_and_see(me, sessions[i]);
        tcpx_session_close(sessions[i]);
    }
    if (me->number == 1)
        pattern_copy(area.expected, BYTES, 0, 0);
    CHECK_AREA(&area, 0, BYTES);
    CHECK_SUCCESS(tcpx_window_close(window, 0)); /* nobody is left who uses it */
    area_free(&area);
}

/* Without a GPU at one end or at both: host memory on that side, any memory on the other. */
SIDES_CASE(without_gpu, 2, IN_FULL)
{
    for (int only_one = 0; only_one < 2; only_one++) {
        struct tcpx_session_options options = with_windows();
        struct tcpx_session *session;
        uint64_t random = 8;
        struct both both;

        options.gpu = only_one && me->number == 0 ? 0 : -1;
        session = open_session(me, &options);
        both_open(me, &both, session, 1 << 20, options.gpu >= 0);
        for (unsigned kinds = 0; kinds < ALL_KINDS; kinds++)
            move_once(me, session, &both, kinds, 100000 + kinds, &random);
        both_close(me, session, &both);
        tcpx_session_close(session);
    }
}

/* With several channels, which take turns. */
SIDES_CASE(channels, 2, IN_FULL)
{
    for (int channels = 2; channels <= 3; channels++) {
        struct tcpx_session_options options = with_windows();
        struct tcpx_session *session;
        uint64_t random = 6;
        struct both both;

        options.channels = channels;
        session = open_session(me, &options);
        both_open(me, &both, session, 2 << 20, true);
        for (unsigned kinds = 0; kinds < 3 * ALL_KINDS; kinds++)
            move_once(me, session, &both, kinds % ALL_KINDS, kinds % 5 * 100003, &random);
        both_close(me, session, &both);
        for (unsigned kinds = 0; kinds < ALL_KINDS; kinds++)
            move_list(me, session, kinds, 100000, 1 + 20 * kinds, list_kinds[kinds % 4], &random);
        tcpx_session_close(session);
    }
}

SIDES_SUITE("session access data", sides_begin);
