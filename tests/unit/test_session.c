/*
 * Sessions as tcpx.h shows them, and nothing else of tcpx, over whichever transport and GPU the
 * environment names: the same must hold for all. Every case has a process for each end, unless it
 * is said otherwise.
 *
 * TCPX_TEST_TURNS=percent of all rounds, of which less than half make transfers smaller, too; and
 * for machines that are good for it TCPX_TEST_LARGE=1: 5 GiB at once, and very many;
 * TCPX_TEST_SOAK=bytes.
 */
#include "tests/quirky_plugin/quirky.h"
#include "tests/unit/session_gpu.h"
#include "tests/unit/session_mix.h"
#include "tests/unit/session_pair.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* --- every size, every memory ---------------------------------------------------------------- */

struct both {
    struct area out[2]; /* [on GPU] */
    struct area in[2];
};

static void both_make(struct both *both, struct tcpx_session *session, uint64_t bytes)
{
    for (int gpu = 0; gpu < 2; gpu++) {
        area_make(&both->out[gpu], session, gpu == 1, bytes);
        area_say(&both->out[gpu], 1);
        area_make(&both->in[gpu], session, gpu == 1, bytes + 333);
        area_poison(&both->in[gpu]);
    }
}

static void both_drop(struct both *both, struct tcpx_session *session)
{
    for (int gpu = 0; gpu < 2; gpu++) {
        CHECK_AREA(&both->in[gpu], 0, both->in[gpu].bytes);
        area_drop(&both->out[gpu], session);
        area_drop(&both->in[gpu], session);
    }
}

/* From `sender` to the other, between random places of the two areas. */
static void move_once(struct side *me, struct tcpx_session *session, struct both *both, int sender,
                      bool from_gpu, bool to_gpu, uint64_t bytes, bool as_piece, uint64_t *random)
{
    struct area *out = &both->out[from_gpu];
    struct area *in = &both->in[to_gpu];
    uint64_t from = random_below(random, out->bytes - bytes + 1);
    uint64_t to = random_below(random, in->bytes - bytes + 1);
    uint64_t seed = random_next(random) % 1000003;
    uint64_t tag = random_below(random, 3);
    struct tcpx_piece piece = {.offset = me->number == sender ? from : to, .bytes = bytes};
    struct tcpx_move move = {.memory = me->number == sender ? out->memory : in->memory, .tag = tag};

    if (as_piece) {
        move.pieces = &piece;
        move.piece_count = 1;
    } else {
        move.offset = piece.offset;
        move.bytes = piece.bytes;
    }
    if (me->number == sender) {
        say_at(out->expected + from, bytes, seed, 0);
        area_write(out, from, bytes);
        FINISH(begin(session, true, &move));
        CHECK_AROUND(out, from, bytes);
    } else {
        FINISH(begin(session, false, &move));
        say_at(in->expected + to, bytes, seed, 0);
        CHECK_AROUND(in, to, bytes);
    }
}

/* Sizes at the bounds of pages and chunks arrive between any two places of any memories. */
static void run_sizes(struct side *me)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);
    uint64_t chunk = chunk_of(session, SMALL_CHUNK);
    const uint64_t sizes[] = {0,    1,         24,    4095,      4096,          4097,
                              8192, chunk - 1, chunk, chunk + 1, 3 * chunk + 5, 4 * chunk};
    uint64_t random = 4711;
    struct both both;

    both_make(&both, session, 5 * chunk);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (unsigned kinds = 0; kinds < 8; kinds++)
            move_once(me, session, &both, (int)random_below(&random, 2), (kinds & 1) != 0,
                      (kinds & 2) != 0, sizes[i], (kinds & 4) != 0, &random);
    for (unsigned i = 0; i < turns_of(200); i++)
        move_once(me, session, &both, (int)random_below(&random, 2), one_in(&random, 2),
                  one_in(&random, 2), random_below(&random, 4 * chunk), one_in(&random, 2),
                  &random);
    both_drop(&both, session);
    tcpx_session_close(session);
}
CASE(sizes)

/* Large ones in chunks of the usual size. */
static void run_large_ones(struct side *me)
{
    const struct tcpx_session_options options = usual_options();
    struct tcpx_session *session = open_session(me, &options);
    uint64_t random = 99;
    struct both both;

    both_make(&both, session, largest() + 5000);
    for (unsigned kinds = 0; kinds < 8; kinds++)
        move_once(me, session, &both, (int)(kinds & 1), (kinds & 1) != 0, (kinds & 2) != 0, 4 << 20,
                  (kinds & 4) != 0, &random);
    for (unsigned kinds = 0; kinds < (turns_of(100) > 50 ? 4u : 1u); kinds++)
        move_once(me, session, &both, (int)(kinds & 1), (kinds & 1) == 0, (kinds & 1) == 0,
                  largest() - kinds, (kinds & 2) != 0, &random);
    both_drop(&both, session);
    tcpx_session_close(session);
}
CASE(large_ones)

/* Chunks of odd sizes and any number of channels. */
static void run_odd_chunks(struct side *me)
{
    static const struct {
        int channels;
        uint64_t chunk_bytes;
        uint64_t bytes;
    } ways[] = {
        {1, 1, 40}, {3, 7, 1000}, {1, 1000, 50000}, {4, 4095, 300000}, {2, 100001, 1 << 20}};
    uint64_t random = 5;

    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct tcpx_session_options options = usual_options();
        struct tcpx_session *session;
        struct both both;

        options.channels = ways[i].channels;
        options.chunk_bytes = ways[i].chunk_bytes;
        session = open_session(me, &options);
        both_make(&both, session, 2 * ways[i].bytes);
        for (unsigned kinds = 0; kinds < 8; kinds++)
            move_once(me, session, &both, (int)(kinds >> 1 & 1), (kinds & 1) != 0, (kinds & 2) != 0,
                      ways[i].bytes - kinds, (kinds & 4) != 0, &random);
        both_drop(&both, session);
        tcpx_session_close(session);
    }
}
CASE(odd_chunks)

static bool plugin_is_quirky(void)
{
    const char *path = getenv("UCCL_TCPX_PLUGIN_PATH");

    return path != NULL && strstr(path, "quirky") != NULL;
}

static const struct quirky_counts *counts_of_plugin(void)
{
    void *library = dlopen(getenv("UCCL_TCPX_PLUGIN_PATH"), RTLD_NOW | RTLD_NOLOAD);
    const struct quirky_counts *counts = library != NULL ? dlsym(library, "quirky_counts") : NULL;

    CHECK(counts != NULL);
    return counts;
}

static uint64_t fragments_of(struct tcpx_session *session)
{
    struct tcpx_session_statistics statistics = {.size = sizeof statistics};

    CHECK_SUCCESS(tcpx_session_get_statistics(session, &statistics));
    return statistics.fragments;
}

/*
 * A chunk of pieces of GPU memory, from side 0 to side 1: where the plugin leaves it in bounce
 * memory, the session itself unpacks it, into GPU memory of its own.
 */
static void check_landing(struct side *me, struct tcpx_session *session, struct both *both,
                          bool has_pool)
{
    const struct tcpx_piece list[] = {{.offset = 1, .bytes = 1000}, {.offset = 5001, .bytes = 77}};
    struct area *area = me->number == 0 ? &both->out[1] : &both->in[1];
    struct tcpx_move move = {.memory = area->memory, .pieces = list, .piece_count = 2};
    uint64_t before = fragments_of(session);

    FINISH(begin(session, me->number == 0, &move));
    CHECK((fragments_of(session) > before) == (has_pool && me->number == 1));
    for (int i = 0; i < 2 && me->number == 1; i++)
        say_at(area->expected + list[i].offset, list[i].bytes, 1, list[i].offset);
    if (me->number == 1)
        CHECK_AREA(area, 0, 3 * 4096);
}

/*
 * Transfers of every size class, between any memories, in pieces or not, over a plugin with several
 * sockets whose pool loses a page as soon as two chunks of one request meet: none is lost.
 * TCPX_TEST_TRANSFERS says how many of each class.
 */
static void run_tokens(struct side *me)
{
    struct tcpx_session_options options = usual_options();
    const uint64_t chunk = 16384;
    const uint64_t sizes[] = {0,         1,     4095,      4096,          4097,      chunk / 2,
                              chunk - 1, chunk, chunk + 1, 3 * chunk + 5, 96 * chunk};
    unsigned count = (unsigned)number_of("TCPX_TEST_TRANSFERS", turns_of(50));
    const struct quirky_counts *counts;
    struct tcpx_session *session;
    uint64_t random = 2048;
    struct both both;

    setenv("NCCL_DYNAMIC_CHUNK_SIZE", "16384", 1);
    setenv("NCCL_NSOCKS_PERTHREAD", "4", 1);
    setenv("QUIRKY_POOL_PAGES", "1024", 1);
    options.chunk_bytes = 4 * chunk; /* too much for the plugin */
    alarm(HANG_SECONDS + count / 5);
    session = open_session(me, &options);
    counts = counts_of_plugin();
    both_make(&both, session, 100 * chunk);
    check_landing(me, session, &both, counts->free_pages > 0);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (unsigned k = 0; k < count; k++)
            move_once(me, session, &both, (int)random_below(&random, 2), one_in(&random, 2),
                      one_in(&random, 2), sizes[i], one_in(&random, 2), &random);
    both_drop(&both, session);
    tcpx_session_close(session);
    CHECK(counts->lost_pages == 0);
    CHECK(counts->free_pages == 1024 || (counts->free_pages == 0 && counts->fragments == 0));
}
CASE(tokens)

/* GPU memory of any length can be registered, alone or as a part, once or several times. */
static void run_any_memory(struct side *me)
{
    static const uint64_t lengths[] = {1, 100, 4096, 10000, 65537, 1000001};
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);

    for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint64_t bytes = lengths[i];
        struct tcpx_memory *again;
        struct tcpx_memory *memory;
        uint8_t *expected = malloc(bytes);
        uint8_t *found = malloc(bytes);
        void *address;
        struct tcpx_move move = {.bytes = bytes, .tag = i};

        CHECK(expected != NULL && found != NULL);
        say_at(expected, bytes, i, 0);
        CHECK_SUCCESS(tcpx_gpu_alloc(0, bytes, &address));
        CHECK_SUCCESS(tcpx_session_register(session, address, bytes, &memory));
        CHECK_SUCCESS(tcpx_session_register(session, (uint8_t *)address + bytes / 2,
                                            bytes - bytes / 2, &again));
        move.memory = memory;
        if (me->number == 0)
            CHECK_SUCCESS(tcpx_gpu_write(address, expected, bytes));
        FINISH(begin(session, me->number == 0, &move));
        /* and through the second registration, back */
        CHECK_SUCCESS(tcpx_session_deregister(session, memory));
        move = (struct tcpx_move){.memory = again, .bytes = bytes - bytes / 2, .tag = i};
        FINISH(begin(session, me->number == 1, &move));
        CHECK_SUCCESS(tcpx_gpu_read(found, address, bytes));
        CHECK(memcmp(found, expected, bytes) == 0);
        CHECK_SUCCESS(tcpx_session_deregister(session, again));
        CHECK_SUCCESS(tcpx_gpu_free(address));
        free(expected);
        free(found);
    }
    tcpx_session_close(session);
}
CASE(any_memory)

/* A session without a GPU, at one end or at both. */
static void run_without_gpu(struct side *me)
{
    for (int both = 0; both < 2; both++) {
        struct tcpx_session_options options = small_chunks();
        struct tcpx_session *session;
        struct mix mix = {.seed = 17 + (uint64_t)both,
                          .count = turns_of(60),
                          .longest = 300000,
                          .tags = 4,
                          .pieces_percent = 40,
                          .host_only = true};

        options.gpu = both || me->number == 1 ? -1 : 0;
        session = open_session(me, &options);
        if (options.gpu < 0)
            CHECK(strstr(tcpx_session_path(session), "host memory only") != NULL);
        run_mix(me, session, &mix);
        tcpx_session_close(session);
    }
}
CASE(without_gpu)

/* --- pieces ----------------------------------------------------------------------------------- */

static void move_lists(struct side *me, struct tcpx_session *session, bool from_gpu, bool to_gpu,
                       uint64_t bytes, const uint32_t counts[2], uint64_t *random)
{
    bool sends = me->number == 0;
    bool on_gpu = sends ? from_gpu : to_gpu;
    uint64_t seed = random_next(random) % 1000003;
    struct list out = list_draw(random, bytes, counts[0],
                                bytes > 0 && one_in(random, 2) ? OVERLAPPING : DISJOINT);
    struct list in = list_draw(random, bytes, counts[1], DISJOINT);
    struct list *mine = sends ? &out : &in;
    struct tcpx_move move = {.pieces = mine->pieces, .piece_count = mine->count, .tag = seed};
    struct area area;

    area_make(&area, session, on_gpu, mine->span + 77);
    move.memory = area.memory;
    if (sends) {
        area_say(&area, seed);
        FINISH(begin(session, true, &move));
    } else {
        uint8_t *message = malloc(bytes + 1);

        CHECK(message != NULL);
        area_poison(&area);
        FINISH(begin(session, false, &move));
        list_gather(&out, seed, message);
        list_scatter(&in, message, area.expected);
        free(message);
    }
    CHECK_AREA(&area, 0, area.bytes);
    area_drop(&area, session);
    list_free(&out);
    list_free(&in);
}

/* Lists that are cut differently at both ends: the same bytes, in the order of the lists. */
static void run_pieces(struct side *me)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);
    static const struct {
        uint64_t bytes;
        uint32_t counts[2];
    } ways[] = {
        {0, {3, 1}},
        {1, {1, 1}},
        {1, {50, 1}},
        {100000, {1, 1}},
        {100000, {1, 30}},
        {300000, {40, 7}},
        {196613, {5, 9}},
        {25000, {25000, 1}},
        {21000, {1, 21000}},
        {20000, {20000, 321}},
        {250000, {21000, 25000}},
        {65536, {2, 4097}},
    };
    uint64_t random = 31;

    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++)
        for (unsigned kinds = 0; kinds < 4; kinds++)
            if (turns_of(100) > 50 || kinds == i % 4)
                move_lists(me, session, (kinds & 1) != 0, (kinds & 2) != 0, ways[i].bytes,
                           ways[i].counts, &random);
    tcpx_session_close(session);
}
CASE(pieces)

/* The list is the caller's: it may be changed as soon as the call returns. */
static void run_list_is_copied(struct side *me)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);
    struct tcpx_piece pieces[] = {{.offset = 500, .bytes = 100}, {.offset = 0, .bytes = 200}};
    struct tcpx_transfer *transfer;
    struct tcpx_move move = {.pieces = pieces, .piece_count = 2};
    struct area area;

    area_make(&area, session, true, 1000);
    move.memory = area.memory;
    if (me->number == 0)
        area_say(&area, 3);
    else
        area_poison(&area);
    if (me->number == 1)
        meet(me); /* the sender's comes first, then they are cleared, and only then they meet */
    transfer = begin(session, me->number == 0, &move);
    memset(pieces, 0xff, sizeof pieces);
    memset(&move, 0xff, sizeof move);
    if (me->number == 0)
        meet(me);
    FINISH(transfer);
    if (me->number == 1) {
        say_at(area.expected + 500, 100, 3, 500);
        say_at(area.expected, 200, 3, 0);
    }
    CHECK_AREA(&area, 0, area.bytes);
    area_drop(&area, session);
    tcpx_session_close(session);
}
CASE(list_is_copied)

/* --- many at once ----------------------------------------------------------------------------- */

/* Whatever is begun first, on whatever tags, and waited for in whatever order. */
static void run_many_at_once(struct side *me)
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
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);

    for (unsigned i = 0; i < sizeof mixes / sizeof *mixes; i++)
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
    tcpx_session_close(session);
}
CASE(many_at_once)

/* More than either side keeps of the other's. */
static void run_thousands(struct side *me)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);

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
    tcpx_session_close(session);
}
CASE(thousands)

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

    area_make(&area, session, as_pieces, (uint64_t)WINDOW * MESSAGE);
    if (sends)
        area_say(&area, 5);
    else
        area_poison(&area);
    for (uint32_t i = 0; i < WINDOW; i++) {
        uint32_t which = me->number == 0 ? WINDOW - 1 - i : i;
        struct tcpx_piece piece = {.offset = (uint64_t)which * MESSAGE, .bytes = MESSAGE};
        struct tcpx_move move = {.memory = area.memory, .tag = tag_from(which)};

        if (as_pieces) {
            move.pieces = &piece;
            move.piece_count = 1;
        } else {
            move.offset = piece.offset;
            move.bytes = piece.bytes;
        }
        jobs[i].transfer = begin(session, sends, &move);
        if (me->number == 0)
            FINISH(jobs[i].transfer);
    }
    if (me->number == 1)
        finish_jobs(session, jobs, WINDOW, ends, &random);
    if (!sends)
        say_at(area.expected, area.bytes, 5, 0);
    CHECK_AREA(&area, 0, area.bytes);
    area_drop(&area, session);
}

static void run_tags_the_other_way(struct side *me)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);

    for (unsigned i = 0; i < 4; i++) {
        tags_the_other_way(me, session, (i & 1) != 0, (i & 2) != 0, FORWARD);
        tags_the_other_way(me, session, (i & 1) != 0, (i & 2) != 0, BACKWARD);
    }
    tcpx_session_close(session);
}
CASE(tags_the_other_way)

/* Asking about one transfer only, without any time, is enough for all that it needs. */
static void run_asking_about_one(struct side *me)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);
    struct tcpx_transfer *transfers[WINDOW];
    struct area area;

    area_make(&area, session, false, WINDOW);
    for (int way = 0; way < 2; way++) {
        bool sends = me->number == way;
        uint64_t since = now_ms();
        int result = TCPX_IN_PROGRESS;

        for (unsigned i = 0; i < WINDOW; i++)
            transfers[i] = begin_part(session, sends, &area, i, 1, 0);
        while (result == TCPX_IN_PROGRESS && now_ms() - since < WAIT_MS)
            result = tcpx_transfer_wait(transfers[WINDOW - 1], 0);
        CHECK_SUCCESS(result);
        for (unsigned i = 0; i + 1 < WINDOW; i++)
            FINISH(transfers[i]);
    }
    area_drop(&area, session);
    tcpx_session_close(session);
}
CASE(asking_about_one)

/* Transfers of a tag that the other side does nothing about do not keep others from moving. */
static void run_a_tag_that_waits(struct side *me)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);

    for (int way = 0; way < 2; way++) {
        bool sends = me->number == way;
        bool waits = me->number == 0; /* has begun what the other has not */
        struct tcpx_transfer *transfers[WINDOW];
        struct tcpx_piece piece = {.offset = 11, .bytes = MESSAGE};
        struct tcpx_transfer *other;
        struct tcpx_transfer *pieces;
        struct area area;

        area_make(&area, session, true, (uint64_t)(WINDOW + 2) * MESSAGE);
        if (sends)
            area_say(&area, 8);
        else
            area_poison(&area);
        for (unsigned i = 0; i < WINDOW && waits; i++)
            transfers[i] =
                begin_part(session, sends, &area, (uint64_t)(i + 2) * MESSAGE, MESSAGE, 1);
        pieces = begin(session, sends,
                       &(struct tcpx_move){
                           .memory = area.memory, .pieces = &piece, .piece_count = 1, .tag = 3});
        other = begin_part(session, sends, &area, MESSAGE + 11, 500, 2);
        FINISH(pieces);
        FINISH(other);
        meet(me);
        for (unsigned i = 0; i < WINDOW && !waits; i++)
            transfers[i] =
                begin_part(session, sends, &area, (uint64_t)(i + 2) * MESSAGE, MESSAGE, 1);
        for (unsigned i = 0; i < WINDOW; i++)
            FINISH(transfers[i]);
        if (!sends) {
            say_at(area.expected + 11, MESSAGE + 500, 8, 11);
            say_at(area.expected + (uint64_t)2 * MESSAGE, (uint64_t)WINDOW * MESSAGE, 8,
                   (uint64_t)2 * MESSAGE);
        }
        CHECK_AREA(&area, 0, area.bytes);
        area_drop(&area, session);
    }
    tcpx_session_close(session);
}
CASE(a_tag_that_waits)

/* Large ones both ways at once, where both wait for their sends first; then everything mixed. */
static void run_both_ways(struct side *me)
{
    const struct tcpx_session_options options = usual_options();
    struct tcpx_session *session = open_session(me, &options);
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

        area_make(&in, session, (i & 1) != 0, bytes);
        area_make(&out, session, (i & 1) != 0, bytes);
        area_poison(&in);
        area_say(&out, i + 10 * (unsigned)me->number);
        receive = begin_part(session, false, &in, 0, bytes, i);
        send = begin_part(session, true, &out, 0, bytes, i);
        FINISH(i < 2 ? send : receive);
        FINISH(i < 2 ? receive : send);
        say_at(in.expected, bytes, i + 10 * (unsigned)!me->number, 0);
        CHECK_AREA(&in, 0, bytes);
        area_drop(&in, session);
        area_drop(&out, session);
    }
    run_mix(me, session, &mix);
    tcpx_session_close(session);
}
CASE(both_ways)

/* --- many threads, sessions and processes ------------------------------------------------------
 */

/* A thread that has its own part of what goes on. */
struct part {
    pthread_t thread;
    struct side side;
    struct tcpx_session *session;
    struct mix mix;
};

static void *part_run(void *argument)
{
    struct part *part = argument;

    run_mix(&part->side, part->session, &part->mix);
    return NULL;
}

static void part_start(struct part *part, int number, struct tcpx_session *session, unsigned which)
{
    static const enum ends ends[] = {FORWARD, BACKWARD, SHUFFLED, BY_TESTS, BY_NO_TIME};

    *part = (struct part){.side = {.number = number, .sides = 2},
                          .session = session,
                          .mix = {.seed = 1000 + which,
                                  .count = 20 + turns_of(60),
                                  .longest = 100000,
                                  .tags = 3,
                                  .first_tag = (uint64_t)which << 40,
                                  .pieces_percent = which % 2 == 0 ? 50 : 0,
                                  .ends = {ends[which % 5], ends[(which + 2) % 5]}}};
    CHECK(pthread_create(&part->thread, NULL, part_run, part) == 0);
}

static void part_end(struct part *part)
{
    CHECK(pthread_join(part->thread, NULL) == 0);
}

/* Several threads, each with memory and tags of its own, on one session. */
static void run_threads(struct side *me)
{
    enum { THREADS = 5 };
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);
    struct part parts[THREADS];

    for (unsigned i = 0; i < THREADS; i++)
        part_start(&parts[i], me->number, session, i);
    for (unsigned i = 0; i < THREADS; i++)
        part_end(&parts[i]);
    tcpx_session_close(session);
}
CASE(threads)

/* Several sessions to one peer, all from one listener, and the listener gone before they are used.
 */
static void run_sessions(struct side *me)
{
    enum { SESSIONS = 4 };
    struct tcpx_session_options options = small_chunks();
    struct tcpx_session *sessions[SESSIONS];
    struct part parts[SESSIONS];

    options.channels = 1;
    if (me->number == 0) {
        struct tcpx_session_listener *listener = listen_here(me, 0, &options);

        for (unsigned i = 0; i < SESSIONS; i++)
            CHECK_SUCCESS(tcpx_session_accept(listener, WAIT_MS, &sessions[i]));
        tcpx_session_stop_listening(listener);
    } else {
        for (unsigned i = 0; i < SESSIONS; i++)
            CHECK_SUCCESS(
                tcpx_session_connect("127.0.0.1", port_of(0), &options, WAIT_MS, &sessions[i]));
    }
    for (unsigned i = 0; i < SESSIONS; i++)
        part_start(&parts[i], me->number, sessions[i], i);
    for (unsigned i = 0; i < SESSIONS; i++) {
        part_end(&parts[i]);
        tcpx_session_close(sessions[i]);
        /* the others go on */
    }
}
CASE(sessions)

/* Two peers at one listener, each with bytes of its own. */
static void run_two_peers(struct side *me)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *sessions[2];
    struct part parts[2];

    if (me->number == 0) {
        struct tcpx_session_listener *listener = listen_here(me, 0, &options);

        for (unsigned i = 0; i < 2; i++) {
            CHECK_SUCCESS(tcpx_session_accept(listener, WAIT_MS, &sessions[i]));
            atomic_store(&meeting->number, i + 1);
        }
        for (unsigned i = 0; i < 2; i++)
            part_start(&parts[i], 0, sessions[i], i);
        for (unsigned i = 0; i < 2; i++)
            part_end(&parts[i]);
        for (unsigned i = 0; i < 2; i++)
            tcpx_session_close(sessions[i]);
        tcpx_session_stop_listening(listener);
        return;
    }
    /* one after the other, so that it is known who is who */
    for (uint64_t since = now_ms(); atomic_load(&meeting->number) + 1 < (unsigned)me->number;)
        look_around(since);
    CHECK_SUCCESS(tcpx_session_connect("127.0.0.1", port_of(0), &options, WAIT_MS, &sessions[0]));
    part_start(&parts[0], 1, sessions[0], (unsigned)me->number - 1);
    part_end(&parts[0]);
    tcpx_session_close(sessions[0]);
}
CASE_OF_THREE(two_peers)

struct opening {
    pthread_t thread;
    struct tcpx_session_listener *listener; /* NULL: connects */
    const struct tcpx_session_options *options;
    unsigned place;
    struct side *talks; /* NULL: later */
    struct tcpx_session *session;
};

static void *open_one(void *argument)
{
    struct opening *opening = argument;

    if (opening->listener != NULL)
        CHECK_SUCCESS(tcpx_session_accept(opening->listener, WAIT_MS, &opening->session));
    else
        CHECK_SUCCESS(tcpx_session_connect("127.0.0.1", port_of(opening->place), opening->options,
                                           WAIT_MS, &opening->session));
    if (opening->talks != NULL) {
        talk(opening->talks, opening->session, 0, 4);
        talk(opening->talks, opening->session, 1, 5);
    }
    return NULL;
}

static void opening_start(struct opening *opening)
{
    CHECK(pthread_create(&opening->thread, NULL, open_one, opening) == 0);
}

static struct tcpx_session *opening_end(struct opening *opening)
{
    CHECK(pthread_join(opening->thread, NULL) == 0);
    return opening->session;
}

/* Both ends of two sessions, in opposite directions, in one process. */
static void run_one_process(struct side *me)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session_listener *listener = listen_here(me, 0, &options);
    struct opening openings[4];
    struct part parts[4];

    for (unsigned i = 0; i < 4; i += 2) {
        openings[i] = (struct opening){.options = &options};
        openings[i + 1] = (struct opening){.listener = listener};
        opening_start(&openings[i]);
        opening_start(&openings[i + 1]);
        opening_end(&openings[i]);
        opening_end(&openings[i + 1]);
    }
    for (unsigned i = 0; i < 4; i++)
        part_start(&parts[i], (int)(i == 1 || i == 2), openings[i].session, i / 2);
    for (unsigned i = 0; i < 4; i++)
        part_end(&parts[i]);
    for (unsigned i = 0; i < 4; i++)
        tcpx_session_close(openings[i].session);
    tcpx_session_stop_listening(listener);
}
CASE_OF_ONE(one_process)

/* Each process listens and connects to the other, at once. */
static void run_each_other(struct side *me)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session_listener *listener = listen_here(me, (unsigned)me->number, &options);
    struct opening accepting = {.listener = listener};
    struct opening connecting = {.options = &options, .place = (unsigned)!me->number};
    struct part parts[2];

    opening_start(&accepting);
    opening_start(&connecting);
    opening_end(&accepting);
    opening_end(&connecting);
    part_start(&parts[me->number], 0, accepting.session, (unsigned)me->number);
    part_start(&parts[!me->number], 1, connecting.session, (unsigned)!me->number);
    part_end(&parts[0]);
    part_end(&parts[1]);
    tcpx_session_close(accepting.session);
    tcpx_session_close(connecting.session);
    tcpx_session_stop_listening(listener);
}
CASE(each_other)

/* Several threads wait for peers on one listener, and each gets one. */
static void run_accepts_at_once(struct side *me)
{
    enum { THREADS = 4 };
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session_listener *listener = NULL;
    struct opening openings[THREADS];

    if (me->number == 0)
        listener = listen_here(me, 0, &options);
    for (unsigned i = 0; i < THREADS; i++) {
        openings[i] = (struct opening){.listener = listener, .options = &options, .talks = me};
        opening_start(&openings[i]);
    }
    for (unsigned i = 0; i < THREADS; i++)
        opening_end(&openings[i]);
    for (unsigned i = 0; i < THREADS; i++)
        tcpx_session_close(openings[i].session);
    tcpx_session_stop_listening(listener);
}
CASE(accepts_at_once)

/* --- what is wrong -----------------------------------------------------------------------------
 */

/* Begins a transfer of this length in a memory that it fits into, and tells how it ended. */
static int try_transfer(struct tcpx_session *session, bool sending, const struct area *area,
                        uint64_t bytes, uint64_t tag, bool as_pieces)
{
    struct tcpx_piece pieces[2] = {{.offset = 0, .bytes = bytes / 2},
                                   {.offset = bytes / 2, .bytes = bytes - bytes / 2}};
    struct tcpx_move move = {.memory = area->memory, .bytes = bytes, .tag = tag};

    if (as_pieces) {
        move.pieces = pieces;
        move.piece_count = 2;
    }
    return tcpx_transfer_wait(begin(session, sending, &move), WAIT_MS);
}

/*
 * Lengths that differ are an error in words: on both sides where the two have to agree first, else
 * at least of the receive. Nothing is written, and the session goes on, also with this tag.
 */
static void run_lengths_that_differ(struct side *me)
{
    static const struct {
        uint64_t sent;
        uint64_t received;
    } ways[] = {{0, 1},         {1, 0},       {24, 23},           {100, 300000},
                {300000, 100},  {4096, 4097}, {300001, 300000},   {4 << 20, 100},
                {100, 4 << 20}, {0, 4 << 20}, {4 << 20, 5 << 20}, {(5 << 20) + 1, 4 << 20}};
    const struct tcpx_session_options options = usual_options();
    struct tcpx_session *session = open_session(me, &options);
    bool sends = me->number == 0;
    unsigned failures = 0;
    struct area area;

    area_make(&area, session, false, 6 << 20);
    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++)
        for (int as_pieces = 0; as_pieces < 2; as_pieces++) {
            bool both = as_pieces || !is_builtin(session);
            uint64_t bytes = sends ? ways[i].sent : ways[i].received;
            int result;

            if (sends)
                area_say(&area, i);
            else
                area_poison(&area);
            result = try_transfer(session, sends, &area, bytes, 5, as_pieces);
            CHECK(result != TCPX_IN_PROGRESS);
            if (both || !sends) {
                char number[32];

                CHECK(result == TCPX_INVALID_USAGE || result == TCPX_REMOTE_ERROR);
                snprintf(number, sizeof number, "%llu", (unsigned long long)ways[i].received);
                CHECK(strstr(tcpx_last_error(), number) != NULL);
                CHECK(strstr(tcpx_last_error(), "tag 5") != NULL || is_builtin(session));
            }
            failures += result != TCPX_SUCCESS;
            /* what is longer than its place does not arrive in part */
            if (!sends && ways[i].sent > ways[i].received)
                CHECK_AREA(&area, 0, area.bytes);
            /* the same tag, with the same length, more than once; large ones after large ones */
            for (unsigned k = 0; k < 3; k++) {
                bool large = ways[i].sent + ways[i].received > 1 << 20;
                uint64_t fits = k == 0 ? 30000 : large ? (3 + k) << 20 : 500;

                if (sends)
                    area_say(&area, 100 + i + k);
                else
                    area_poison(&area);
                CHECK_SUCCESS(try_transfer(session, sends, &area, fits, 5, as_pieces));
                if (!sends)
                    say_at(area.expected, fits, 100 + i + k, 0);
                CHECK_AREA(&area, 0, area.bytes);
            }
        }
    CHECK(statistics_of(session).failures == failures);
    area_drop(&area, session);
    tcpx_session_close(session);
}
CASE(lengths_that_differ)

/* Calls that cannot be meant are refused in words, and nothing has happened. */
static void run_misuse(struct side *me)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);
    struct tcpx_session *other = open_session(me, &options);
    struct tcpx_session_statistics statistics = {.size = 0};
    struct tcpx_piece pieces[] = {{.offset = 0, .bytes = 10}, {.offset = 999, .bytes = 2}};
    struct tcpx_transfer *transfer;
    struct tcpx_memory *memory;
    struct tcpx_move move;
    struct area area;
    int number;

    area_make(&area, session, true, 1000);
    move = (struct tcpx_move){.memory = area.memory, .bytes = 10};
    CHECK_ERROR(tcpx_send(NULL, &move, &transfer), TCPX_INVALID_ARGUMENT, "NULL");
    CHECK_ERROR(tcpx_send(session, NULL, &transfer), TCPX_INVALID_ARGUMENT, "NULL");
    CHECK_ERROR(tcpx_receive(session, &move, NULL), TCPX_INVALID_ARGUMENT, "NULL");
    CHECK_ERROR(tcpx_transfer_test(NULL, &number), TCPX_INVALID_ARGUMENT, "NULL");
    CHECK_ERROR(tcpx_transfer_test_on_stream(NULL, NULL, &number), TCPX_INVALID_ARGUMENT, "NULL");
    CHECK_ERROR(tcpx_transfer_wait(NULL, 0), TCPX_INVALID_ARGUMENT, "NULL");
    CHECK_ERROR(tcpx_session_event_fd(session, NULL), TCPX_INVALID_ARGUMENT, "NULL");
    CHECK_ERROR(tcpx_session_event_fd(NULL, &number), TCPX_INVALID_ARGUMENT, "NULL");
    CHECK_ERROR(tcpx_session_port(NULL, &number), TCPX_INVALID_ARGUMENT, "NULL");
    CHECK_ERROR(tcpx_session_get_statistics(session, NULL), TCPX_INVALID_ARGUMENT, "size");
    CHECK_ERROR(tcpx_session_get_statistics(session, &statistics), TCPX_INVALID_ARGUMENT, "size");
    CHECK_ERROR(tcpx_session_register(NULL, area.address, 10, &memory), TCPX_INVALID_ARGUMENT,
                "memory");
    CHECK_ERROR(tcpx_session_register(session, NULL, 10, &memory), TCPX_INVALID_ARGUMENT, "memory");
    CHECK_ERROR(tcpx_session_register(session, area.address, 0, &memory), TCPX_INVALID_ARGUMENT,
                "0 bytes");
    CHECK_ERROR(tcpx_session_register(session, area.address, 10, NULL), TCPX_INVALID_ARGUMENT,
                "memory");
    CHECK(*tcpx_session_path(NULL) == '\0');
    tcpx_session_close(NULL);
    tcpx_session_stop_listening(NULL);

    /* beyond the memory, also by numbers that overflow */
    move.offset = 991;
    CHECK_ERROR(tcpx_send(session, &move, &transfer), TCPX_INVALID_ARGUMENT, "991");
    move.offset = UINT64_MAX - 5;
    CHECK_ERROR(tcpx_receive(session, &move, &transfer), TCPX_INVALID_ARGUMENT, "not inside");
    move.offset = 0;
    move.bytes = UINT64_MAX;
    CHECK_ERROR(tcpx_send(session, &move, &transfer), TCPX_INVALID_ARGUMENT, "not inside");
    move.bytes = 1001;
    CHECK_ERROR(tcpx_receive(session, &move, &transfer), TCPX_INVALID_ARGUMENT, "1001");
    move.pieces = pieces;
    move.piece_count = 2;
    CHECK_ERROR(tcpx_send(session, &move, &transfer), TCPX_INVALID_ARGUMENT, "piece 1");
    pieces[1].offset = 1001;
    pieces[1].bytes = 0;
    CHECK_ERROR(tcpx_receive(session, &move, &transfer), TCPX_INVALID_ARGUMENT, "piece 1");
    move = (struct tcpx_move){.memory = NULL, .bytes = 10};
    CHECK_ERROR(tcpx_send(session, &move, &transfer), TCPX_INVALID_ARGUMENT, "no memory");
    move = (struct tcpx_move){.memory = area.memory, .bytes = 10, .tag = TCPX_TAG_END};
    CHECK_ERROR(tcpx_send(session, &move, &transfer), TCPX_INVALID_ARGUMENT, "tag");
    CHECK_ERROR(tcpx_receive(session, &move, &transfer), TCPX_INVALID_ARGUMENT, "tag");
    move = (struct tcpx_move){.memory = area.memory, .bytes = 10, .after = (enum tcpx_after)3};
    CHECK_ERROR(tcpx_send(session, &move, &transfer), TCPX_INVALID_ARGUMENT, "after");

    /* of another session */
    move = (struct tcpx_move){.memory = area.memory, .bytes = 10};
    CHECK_ERROR(tcpx_send(other, &move, &transfer), TCPX_INVALID_ARGUMENT, "another session");
    CHECK_ERROR(tcpx_session_deregister(other, area.memory), TCPX_INVALID_ARGUMENT,
                "no memory of this session");
    CHECK_ERROR(tcpx_session_deregister(NULL, area.memory), TCPX_INVALID_ARGUMENT, "NULL");

    /* in use, until its end was told */
    move = (struct tcpx_move){.memory = area.memory, .bytes = 1000, .tag = TCPX_TAG_END - 1};
    if (me->number == 0) {
        transfer = begin(session, false, &move);
        CHECK_ERROR(tcpx_session_deregister(session, area.memory), TCPX_INVALID_USAGE, "used");
        CHECK_ERROR(tcpx_transfer_wait(transfer, -2), TCPX_INVALID_ARGUMENT, "-2");
        CHECK_ERROR(tcpx_transfer_test(transfer, NULL), TCPX_INVALID_ARGUMENT, "NULL");
        meet(me);
    } else {
        meet(me);
        transfer = begin(session, true, &move);
    }
    FINISH(transfer);
    area_drop(&area, session);
    talk(me, session, 0, 6);
    talk(me, other, 1, 7);
    CHECK(statistics_of(session).failures == 0);

    /* an older program has a shorter struct */
    memset(&statistics, 0xab, sizeof statistics);
    statistics.size = offsetof(struct tcpx_session_statistics, failures);
    CHECK_SUCCESS(tcpx_session_get_statistics(session, &statistics));
    CHECK(statistics.sends + statistics.receives == 2 && statistics.failures == 0xabababababababab);
    tcpx_session_close(other);
    tcpx_session_close(session);
}
CASE(misuse)

/* Options and addresses that cannot be. */
static void run_wrong_options(struct side *me)
{
    struct tcpx_session_options options = usual_options();
    struct tcpx_session_listener *listener;
    struct tcpx_session *session;
    char path[64];
    int port;

    (void)me;
    CHECK(options.size == sizeof options && options.gpu == 0 && options.channels == 0 &&
          options.chunk_bytes == 0 && options.plugin_path == NULL && options.secret_file == NULL);
    CHECK_ERROR(tcpx_session_listen(NULL, 0, NULL, &listener), TCPX_INVALID_ARGUMENT, "options");
    CHECK_ERROR(tcpx_session_listen(NULL, 0, &options, NULL), TCPX_INVALID_ARGUMENT, "NULL");
    CHECK_ERROR(tcpx_session_listen(NULL, 65536, &options, &listener), TCPX_INVALID_ARGUMENT,
                "65536");
    CHECK_ERROR(tcpx_session_listen(NULL, -1, &options, &listener), TCPX_INVALID_ARGUMENT, "-1");
    CHECK_ERROR(tcpx_session_connect(NULL, 5, &options, 10, &session), TCPX_INVALID_ARGUMENT,
                "NULL");
    CHECK_ERROR(tcpx_session_connect("127.0.0.1", 0, &options, 10, &session), TCPX_INVALID_ARGUMENT,
                "port 0");
    CHECK_ERROR(tcpx_session_connect("127.0.0.1", 5, &options, -7, &session), TCPX_INVALID_ARGUMENT,
                "-7");
    CHECK_ERROR(tcpx_session_connect("127.0.0.1", 5, &options, 10, NULL), TCPX_INVALID_ARGUMENT,
                "NULL");
    options.size = 8;
    CHECK_ERROR(tcpx_session_listen(NULL, 0, &options, &listener), TCPX_INVALID_ARGUMENT,
                "options");
    options.size = sizeof options + 8;
    CHECK_ERROR(tcpx_session_listen(NULL, 0, &options, &listener), TCPX_INVALID_ARGUMENT, "newer");
    /* an older program knows less of them */
    options.size = offsetof(struct tcpx_session_options, secret_file);
    options.secret_file = "/nowhere/secret";
    CHECK_SUCCESS(tcpx_session_listen("127.0.0.1", 0, &options, &listener));
    tcpx_session_stop_listening(listener);
    options = usual_options();
    options.channels = 65;
    CHECK_ERROR(tcpx_session_listen(NULL, 0, &options, &listener), TCPX_INVALID_ARGUMENT, "65");
    options.channels = -1;
    CHECK_ERROR(tcpx_session_listen(NULL, 0, &options, &listener), TCPX_INVALID_ARGUMENT, "-1");
    options = usual_options();
    options.chunk_bytes = (1u << 30) + 1;
    CHECK_ERROR(tcpx_session_listen(NULL, 0, &options, &listener), TCPX_INVALID_ARGUMENT, "chunk");
    options = usual_options();
    options.gpu = -2;
    CHECK_ERROR(tcpx_session_listen(NULL, 0, &options, &listener), TCPX_INVALID_ARGUMENT, "GPU");
    options = usual_options();
    options.plugin_path = "/nowhere/libnccl-net.so";
    CHECK_ERROR(tcpx_session_connect("127.0.0.1", 5, &options, 10, &session), TCPX_SYSTEM_ERROR,
                "/nowhere/libnccl-net.so");
    options = usual_options();
    options.secret_file = "/nowhere/secret";
    CHECK(tcpx_session_listen(NULL, 0, &options, &listener) != TCPX_SUCCESS);

    /* nobody comes, nobody is there; the time is kept */
    options = usual_options();
    for (int turn = 0; turn < 2; turn++) {
        uint64_t since = now_ms();
        int wanted = turn == 0 ? 0 : 80;

        CHECK_SUCCESS(tcpx_session_listen("127.0.0.1", 0, &options, &listener));
        CHECK_SUCCESS(tcpx_session_port(listener, &port));
        CHECK_ERROR(tcpx_session_accept(listener, wanted, &session), TCPX_IN_PROGRESS, "");
        tcpx_session_stop_listening(listener);
        snprintf(path, sizeof path, "%d", port);
        CHECK_ERROR(tcpx_session_connect("127.0.0.1", port, &options, wanted, &session),
                    TCPX_IN_PROGRESS, "127.0.0.1");
        CHECK(strstr(tcpx_last_error(), path) != NULL);
        CHECK(now_ms() - since >= (uint64_t)wanted * 2 && now_ms() - since < SOON_MS);
    }
}
CASE_OF_ONE(wrong_options)

/* Both sides say what they do not agree about, and both can try again. */
static void disagree(struct side *me, const struct tcpx_session_options *mine, const char *words)
{
    struct tcpx_session *session = NULL;
    int result = try_open(me, mine, &session);

    CHECK(result == TCPX_INVALID_USAGE || result == TCPX_REMOTE_ERROR);
    if (strstr(tcpx_last_error(), words) == NULL)
        complain(HERE, words);
    CHECK(session == NULL);
    meet(me);
}

/* Beside this program's folder. */
static void path_in_build(const char *name, char path[PATH_MAX])
{
    char here[PATH_MAX - 100];
    ssize_t length = readlink("/proc/self/exe", here, sizeof here - 1);

    CHECK(length > 0);
    here[length] = '\0';
    for (int i = 0; i < 3; i++)
        *strrchr(here, '/') = '\0';
    snprintf(path, PATH_MAX, "%s/%s", here, name);
}

static void run_disagreement(struct side *me)
{
    const char *usual = getenv("UCCL_TCPX_PLUGIN_PATH");
    struct tcpx_session_options options = usual_options();
    struct tcpx_session *session;
    char plugin[PATH_MAX];
    int before;

    path_in_build("libnccl-net-tcpx.so", plugin);
    session = open_session(me, &options);
    talk(me, session, 0, 1);
    tcpx_session_close(session);
    before = open_descriptors();
    options.channels = 1 + me->number;
    disagree(me, &options, "channels");
    options = usual_options();
    options.chunk_bytes = 4096 << me->number;
    disagree(me, &options, "chunk bytes");
    CHECK(strstr(tcpx_last_error(), "4096") != NULL && strstr(tcpx_last_error(), "8192") != NULL);
    CHECK(open_descriptors() == before);
    options = usual_options();
    if (me->number == 1)
        options.plugin_path = usual != NULL && strcmp(usual, "builtin") == 0 ? plugin : "builtin";
    disagree(me, &options, "transport");
    CHECK(strstr(tcpx_last_error(), "builtin") != NULL);
    options = usual_options();
    session = open_session(me, &options);
    talk(me, session, 1, 2);
    tcpx_session_close(session);
}
CASE(disagreement)

/* What only one side cannot do, the other hears from it; here it is out of descriptors. */
static void run_one_gives_up(struct side *me)
{
    struct tcpx_session_options options = usual_options();
    struct tcpx_session *session = NULL;
    struct rlimit before;
    struct rlimit few;

    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    session = open_session(me, &options); /* what is made once is there */
    talk(me, session, 0, 1);
    tcpx_session_close(session);
    session = NULL;
    options.channels = 48;
    few = before;
    few.rlim_cur = (rlim_t)open_descriptors() + 25;
    if (me->number == 1) {
        CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
        CHECK(try_open(me, &options, &session) != TCPX_SUCCESS && session == NULL);
        CHECK(strlen(tcpx_last_error()) > 10);
        snprintf(meeting->note, sizeof meeting->note, "%.60s", tcpx_last_error());
        CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
        meet(me);
    } else {
        uint64_t since = now_ms();

        CHECK(try_open(me, &options, &session) == TCPX_REMOTE_ERROR && session == NULL);
        CHECK(now_ms() - since < SOON_MS);
        meet(me);
        CHECK(strstr(tcpx_last_error(), meeting->note) != NULL);
    }
    options.channels = 2;
    session = open_session(me, &options);
    talk(me, session, 1, 2);
    tcpx_session_close(session);
}
CASE(one_gives_up)

static void write_secret(const char *path, const char *secret)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    CHECK(fd >= 0 && write(fd, secret, strlen(secret)) == (ssize_t)strlen(secret));
    close(fd);
}

/* Only who has the same secret is a peer. */
static void run_secret(struct side *me)
{
    struct tcpx_session_options options = usual_options();
    struct tcpx_session_listener *listener;
    struct tcpx_session *session = NULL;
    char path[64];
    int result;

    snprintf(path, sizeof path, "/tmp/test_session.%d", (int)getpid());
    write_secret(path, "the one");
    options.secret_file = path;
    result = tcpx_session_listen("127.0.0.1", 0, &options, &listener);
    if (result == TCPX_INVALID_USAGE && strstr(tcpx_last_error(), "libsodium") != NULL) {
        unlink(path);
        skip_case("libsodium is not installed");
    }
    CHECK_SUCCESS(result);
    tcpx_session_stop_listening(listener);
    session = open_session(me, &options);
    talk(me, session, 0, 1);
    tcpx_session_close(session);

    /* another, and none: a stranger does not disturb the listener, which waits for its time */
    for (int turn = 0; turn < 4; turn++) {
        unsigned place = me->opened++;

        session = NULL;
        if (turn % 2 == me->number) {
            options.secret_file = turn < 2 ? path : NULL;
            write_secret(path, "another one");
        } else {
            options.secret_file = path;
            write_secret(path, "the one");
        }
        if (me->number == 0) {
            listener = listen_here(me, place, &options);
            result = tcpx_session_accept(listener, 100, &session);
            CHECK(result == TCPX_IN_PROGRESS);
            CHECK(strstr(tcpx_last_error(), "secret") != NULL);
            tcpx_session_stop_listening(listener);
        } else {
            result = tcpx_session_connect("127.0.0.1", port_of(place), &options, WAIT_MS, &session);
            CHECK(result != TCPX_SUCCESS && result != TCPX_IN_PROGRESS);
            CHECK(strstr(tcpx_last_error(), "secret") != NULL);
        }
        CHECK(session == NULL);
        meet(me);
    }
    unlink(path);
}
CASE(secret)

/* In a child of fork() every call is refused, and the parent does not notice. */
static void run_fork(struct side *me)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);
    struct tcpx_session_statistics statistics = {.size = sizeof statistics};
    struct tcpx_session_listener *listener;
    struct tcpx_transfer *transfer;
    struct tcpx_transfer *mine;
    struct tcpx_session *another;
    struct tcpx_memory *memory;
    struct tcpx_move move;
    struct area area;
    int status;
    int number;
    pid_t child;

    area_make(&area, session, false, 1000);
    move = (struct tcpx_move){.memory = area.memory, .bytes = 1000, .tag = 9};
    transfer = begin(session, me->number == 0, &move);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        const enum tcpx_result no = TCPX_INVALID_USAGE;

        CHECK_ERROR(tcpx_send(session, &move, &mine), no, "fork");
        CHECK_ERROR(tcpx_receive(session, &move, &mine), no, "fork");
        CHECK_ERROR(tcpx_transfer_test(transfer, &number), no, "fork");
        CHECK_ERROR(tcpx_transfer_test_on_stream(transfer, NULL, &number), no, "fork");
        CHECK_ERROR(tcpx_transfer_wait(transfer, 0), no, "fork");
        CHECK_ERROR(tcpx_session_register(session, area.address, 10, &memory), no, "fork");
        CHECK_ERROR(tcpx_session_deregister(session, area.memory), no, "fork");
        CHECK_ERROR(tcpx_session_event_fd(session, &number), no, "fork");
        CHECK_ERROR(tcpx_session_get_statistics(session, &statistics), no, "fork");
        CHECK_ERROR(tcpx_session_listen(NULL, 0, &options, &listener), no, "fork");
        CHECK_ERROR(tcpx_session_connect("127.0.0.1", 5, &options, 10, &another), no, "fork");
        tcpx_session_close(session);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    meet(me);
    FINISH(transfer);
    talk(me, session, 1, 3);
    area_drop(&area, session);
    tcpx_session_close(session);
}
CASE(fork)

/* --- time --------------------------------------------------------------------------------------
 */

/* Time that is over ends the wait and not the transfer, however it is asked about. */
static void run_short_waits(struct side *me)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);

    for (unsigned kinds = 0; kinds < 4; kinds++) {
        bool sends = me->number == (int)(kinds & 1);
        struct tcpx_piece piece = {.offset = 7, .bytes = 200000};
        struct tcpx_move move = {.offset = 7, .bytes = 200000, .tag = kinds};
        struct tcpx_transfer *transfer;
        struct area area;
        int done;

        area_make(&area, session, (kinds & 1) == 0, 200100);
        move.memory = area.memory;
        if ((kinds & 2) != 0) {
            move.pieces = &piece;
            move.piece_count = 1;
        }
        if (sends)
            area_say(&area, kinds);
        else
            area_poison(&area);
        if (me->number == 1)
            meet(me); /* side 0 has seen that nothing happens */
        transfer = begin(session, sends, &move);
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
        if (!sends)
            say_at(area.expected + 7, 200000, kinds, 7);
        CHECK_AREA(&area, 0, area.bytes);
        area_drop(&area, session);
    }
    tcpx_session_close(session);
}
CASE(short_waits)

/* A transfer of nothing needs no memory, is matched as any other, and ends on a stream, too. */
static void run_nothing(struct side *me)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);
    static const struct tcpx_piece pieces[3];
    struct tcpx_session_statistics statistics;

    for (unsigned i = 0; i < 6; i++) {
        struct tcpx_move move = {.tag = 4, .pieces = i % 3 == 0 ? NULL : pieces};
        struct tcpx_transfer *transfer;
        uint64_t since = now_ms();

        move.piece_count = i % 3 == 0 ? 0 : i % 3 == 1 ? 3 : 0; /* the last: a list of none */
        transfer = begin(session, me->number == (int)(i & 1), &move);
        for (int done = 0; done == 0;) {
            CHECK_SUCCESS(tcpx_transfer_test_on_stream(transfer, NULL, &done));
            CHECK(now_ms() - since < WAIT_MS);
        }
    }
    statistics = statistics_of(session);
    CHECK(statistics.sends == 3 && statistics.receives == 3 && statistics.sent_bytes == 0 &&
          statistics.received_bytes == 0 && statistics.sent_chunks == 0);
    tcpx_session_close(session);
}
CASE(nothing)

/* A peer that begins to listen later is found; one that is stopped meanwhile is not missed. */
static void run_late_listener(struct side *me)
{
    const struct tcpx_session_options options = usual_options();
    struct tcpx_session_listener *listener;
    struct tcpx_session *session;
    int port;

    if (me->number == 0) { /* a port that nobody has, and that nobody gets by chance meanwhile */
        int result = TCPX_SYSTEM_ERROR;

        for (port = 20000 + getpid() % 10000; result != TCPX_SUCCESS; port++)
            result = tcpx_session_listen("127.0.0.1", port, &options, &listener);
        CHECK_SUCCESS(tcpx_session_port(listener, &port));
        tcpx_session_stop_listening(listener);
        atomic_store(&meeting->ports[0], port);
        meet(me);
        sleep_us(50000);
        CHECK_SUCCESS(tcpx_session_listen("127.0.0.1", port, &options, &listener));
        CHECK_SUCCESS(tcpx_session_accept(listener, WAIT_MS, &session));
        tcpx_session_stop_listening(listener);
    } else {
        meet(me);
        CHECK_SUCCESS(tcpx_session_connect("127.0.0.1", port_of(0), &options, WAIT_MS, &session));
    }
    talk(me, session, 0, 1);
    tcpx_session_close(session);
}
CASE(late_listener)

/* --- events ------------------------------------------------------------------------------------
 */

/* A program that does nothing but poll() misses no end, over many rounds of either kind. */
static void run_events(struct side *me)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);
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
        struct tcpx_piece piece = {.bytes = bytes};
        struct tcpx_move move = {.bytes = bytes, .tag = i % 3};
        struct job jobs[2] = {0};

        if (as_pieces) {
            move.pieces = &piece;
            move.piece_count = 1;
        }
        say_at(out.expected, bytes, i + 7 * (unsigned)me->number, 0);
        area_write(&out, 0, bytes);
        move.memory = in.memory;
        jobs[0].transfer = begin(session, false, &move);
        move.memory = out.memory;
        jobs[1].transfer = begin(session, true, &move);
        poll_until_ended(fd, jobs, 2);
        say_at(in.expected, bytes, i + 7 * (unsigned)!me->number, 0);
        CHECK_AREA(&in, 0, bytes);
    }
    area_drop(&in, session);
    area_drop(&out, session);
    tcpx_session_close(session);
}
CASE(events)

/* The end of the peer is an event, too. */
static void run_event_of_failure(struct side *me)
{
    for (int as_pieces = 0; as_pieces < 2; as_pieces++) {
        const struct tcpx_session_options options = small_chunks();
        struct tcpx_session *session = open_session(me, &options);
        struct tcpx_piece piece = {.bytes = 100};
        struct tcpx_move move = {.bytes = 100};
        struct pollfd wanted = {.events = POLLIN};
        struct tcpx_transfer *transfer;
        uint64_t since = now_ms();
        struct area area;
        int result = TCPX_SUCCESS;
        int done;

        if (me->number == 1) {
            meet(me);
            tcpx_session_close(session);
            continue;
        }
        area_make(&area, session, false, 100);
        move.memory = area.memory;
        if (as_pieces) {
            move.pieces = &piece;
            move.piece_count = 1;
        }
        CHECK_SUCCESS(tcpx_session_event_fd(session, &wanted.fd));
        transfer = begin(session, false, &move);
        meet(me);
        while (result == TCPX_SUCCESS) {
            uint64_t ends;

            CHECK(now_ms() - since < SOON_MS);
            CHECK(poll(&wanted, 1, SOON_MS) == 1);
            CHECK(read(wanted.fd, &ends, sizeof ends) == (ssize_t)sizeof ends);
            result = tcpx_transfer_test(transfer, &done);
            CHECK(result != TCPX_SUCCESS || done == 0);
        }
        CHECK(result == TCPX_REMOTE_ERROR && *tcpx_last_error() != '\0');
        tcpx_session_close(session);
        area_free(&area);
    }
}
CASE(event_of_failure)

/* --- the order of the GPU -----------------------------------------------------------------------
 */

/*
 * A send reads what the stream or event before it has written; a receive writes after what was to
 * read before it. The GPU is slow enough that one that does not wait is seen: the other side is
 * long there, and waits for nothing.
 */
static void after_once(struct side *me, struct tcpx_session *session, struct caller *caller,
                       enum tcpx_after after, bool as_pieces, uint64_t bytes, unsigned turn)
{
    bool sends = me->number == 1;
    bool waits = me->number == (int)(turn % 2);
    struct tcpx_piece piece = {.bytes = bytes};
    struct tcpx_move move = {.bytes = bytes, .tag = 1};
    struct tcpx_transfer *transfer;
    struct area moved; /* sent from, or received into */
    struct area other;

    area_make(&moved, session, true, bytes);
    area_allocate(&other, true, bytes, 0);
    area_say(&moved, sends && !waits ? 2 + turn : 1 + turn);
    area_say(&other, 2 + turn);
    move.memory = moved.memory;
    if (as_pieces) {
        move.pieces = &piece;
        move.piece_count = 1;
    }
    if (waits) {
        meet(me);
        caller_be_busy(caller);
        if (sends)
            caller_copy(caller, moved.address, other.address, bytes);
        else
            caller_copy(caller, other.address, moved.address, bytes);
        move.after = after;
        move.after_what = gpu_stream_native(caller->stream);
        if (after == TCPX_AFTER_EVENT) {
            CHECK_SUCCESS(gpu_event_record(caller->event, caller->stream));
            move.after_what = gpu_event_native(caller->event);
        }
    }
    transfer = begin(session, sends, &move);
    if (!waits)
        meet(me);
    FINISH(transfer);
    say_at(moved.expected, bytes, 2 + turn, 0);
    if (!sends && waits)
        say_at(other.expected, bytes, 1 + turn, 0);
    CHECK_AREA(&moved, 0, bytes);
    caller_drain(caller);
    CHECK_AREA(&other, 0, bytes);
    area_drop(&moved, session);
    area_free(&other);
}

static void run_after(struct side *me)
{
    const struct tcpx_session_options options = usual_options();
    struct tcpx_session *session;
    struct caller caller;

    caller_slow_down("5000");
    session = open_session(me, &options);
    caller_start(&caller, 64 << 20);
    for (unsigned turn = 0; turn < (turns_of(100) > 50 ? 16u : 8u); turn++)
        after_once(me, session, &caller, turn / 2 % 2 == 0 ? TCPX_AFTER_STREAM : TCPX_AFTER_EVENT,
                   turn / 4 % 2 == 1, turn < 8 ? 9000 : 150000, turn);
    CHECK(statistics_of(session).after_stalls > 0 || is_builtin(session));
    caller_end(&caller);
    tcpx_session_close(session);
}
CASE(after)

/* What a stream was told to wait for is there for its later work. */
static void run_on_stream(struct side *me)
{
    const struct tcpx_session_options options = usual_options();
    struct tcpx_session *session;
    struct caller caller;

    caller_slow_down("2000");
    session = open_session(me, &options);
    caller_start(&caller, 1 << 20);
    for (unsigned turn = 0; turn < 4; turn++) {
        uint64_t bytes = turn < 2 ? 5000 : 60000;
        struct tcpx_piece piece = {.bytes = bytes};
        struct tcpx_move move = {.bytes = bytes, .tag = turn};
        struct tcpx_transfer *transfer;
        uint64_t since = now_ms();
        struct area area;
        struct area copy;

        area_make(&area, session, true, bytes);
        area_allocate(&copy, true, bytes, 0);
        area_poison(&area);
        area_poison(&copy);
        if (me->number == 0)
            area_say(&area, turn);
        move.memory = area.memory;
        if (turn % 2 == 1) {
            move.pieces = &piece;
            move.piece_count = 1;
        }
        transfer = begin(session, me->number == 0, &move);
        for (int done = 0; done == 0;) {
            CHECK_SUCCESS(
                tcpx_transfer_test_on_stream(transfer, gpu_stream_native(caller.stream), &done));
            CHECK(now_ms() - since < WAIT_MS);
        }
        if (me->number == 1) {
            caller_copy(&caller, copy.address, area.address, bytes);
            caller_drain(&caller);
            say_at(copy.expected, bytes, turn, 0);
            CHECK_AREA(&copy, 0, bytes);
        }
        area_drop(&area, session);
        area_free(&copy);
    }
    caller_end(&caller);
    tcpx_session_close(session);
}
CASE(on_stream)

/* A stream is nothing for a session without a GPU. */
static void run_after_without_gpu(struct side *me)
{
    struct tcpx_session_options options = usual_options();
    struct tcpx_session *session;
    struct tcpx_transfer *transfer;
    struct tcpx_move move = {.bytes = 10, .after = TCPX_AFTER_STREAM};
    struct tcpx_piece piece = {.bytes = 10};
    struct area area;

    options.gpu = -1;
    session = open_session(me, &options);
    area_make(&area, session, false, 10);
    move.memory = area.memory;
    CHECK_ERROR(tcpx_send(session, &move, &transfer), TCPX_INVALID_USAGE, "without a GPU");
    move.pieces = &piece;
    move.piece_count = 1;
    CHECK_ERROR(tcpx_receive(session, &move, &transfer), TCPX_INVALID_USAGE, "without a GPU");
    talk(me, session, 0, 1);
    talk(me, session, 1, 3); /* neither side closes before the other has got so far */
    area_drop(&area, session);
    tcpx_session_close(session);
}
CASE(after_without_gpu)

/* --- what it says of itself ----------------------------------------------------------------------
 */

static void run_statistics(struct side *me)
{
    static const uint64_t sizes[] = {0, 1, 65536, 65537, 300000, 131072};
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);
    uint64_t chunk = chunk_of(session, SMALL_CHUNK);
    struct tcpx_session_statistics statistics = statistics_of(session);
    uint64_t chunks = 0; /* of what is certainly cut into them, */
    uint64_t whole = 0;  /* and of what the built-in transport may take as it is */
    uint64_t bytes = 0;
    uint64_t count = 0;
    uint64_t direct_chunks = 0;
    struct area areas[2];

    CHECK(statistics.size == sizeof statistics && statistics.sends == 0 &&
          statistics.received_chunks == 0 && statistics.matching_ns == 0);
    area_make(&areas[0], session, false, 300000);
    area_make(&areas[1], session, true, 300000);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (unsigned kinds = 0; kinds < 4; kinds++) {
            uint64_t of_it = (sizes[i] + chunk - 1) / chunk;
            bool in_chunks = (kinds & 1) != 0 || !is_builtin(session);

            CHECK_SUCCESS(try_transfer(session, me->number == 0, &areas[kinds >> 1], sizes[i], 1,
                                       (kinds & 1) != 0));
            count++;
            bytes += sizes[i];
            chunks += in_chunks ? of_it : 0;
            whole += in_chunks ? 0 : of_it;
            direct_chunks += kinds == 2 ? of_it : 0; /* GPU memory, not as pieces */
        }
    statistics = statistics_of(session);
    CHECK(statistics.failures == 0);
    if (statistics.sent_chunks + statistics.received_chunks != chunks)
        chunks += whole;
    if (me->number == 0) {
        CHECK(statistics.sends == count && statistics.receives == 0);
        CHECK(statistics.sent_bytes == bytes && statistics.received_bytes == 0);
        CHECK(statistics.sent_chunks == chunks && statistics.received_chunks == 0);
        CHECK(statistics.sending_ns > 0 && statistics.receiving_ns == 0);
    } else {
        CHECK(statistics.receives == count && statistics.sends == 0);
        CHECK(statistics.received_bytes == bytes && statistics.sent_bytes == 0);
        CHECK(statistics.received_chunks == chunks && statistics.sent_chunks == 0);
        CHECK(statistics.receiving_ns > 0 && statistics.sending_ns == 0);
        if (strstr(tcpx_session_path(session), "unpacked here") != NULL) {
            CHECK(statistics.fragments >= direct_chunks);
            CHECK(statistics.unpack_launches > 0 &&
                  statistics.unpack_launches <= statistics.received_chunks);
        } else {
            CHECK(statistics.fragments == 0 && statistics.unpack_launches == 0);
        }
    }
    CHECK(statistics.matching_ns > 0);
    area_drop(&areas[0], session);
    area_drop(&areas[1], session);
    tcpx_session_close(session);
}
CASE(statistics)

/* The path names the peer, the transport, and what becomes of GPU memory. */
static void run_path(struct side *me)
{
    const char *plugin = getenv("UCCL_TCPX_PLUGIN_PATH");
    const char *mode = getenv("UCCL_TCPX_PLUGIN_MODE");
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);
    const char *path = tcpx_session_path(session);

    CHECK(strstr(path, "127.0.0.1") != NULL && strchr(path, '\n') == NULL);
    CHECK(strstr(path, " over lo") != NULL || strstr(path, "quirky") != NULL);
    if (plugin == NULL || strcmp(plugin, "builtin") == 0) {
        CHECK(strstr(path, "built-in transport") != NULL);
        CHECK(strstr(path, "GPU memory by the transport") != NULL);
    } else if (strstr(plugin, "quirky") != NULL) {
        char version[40];

        snprintf(version, sizeof version, "table version %s", strstr(plugin, "_v") + 2);
        *strchr(version, '.') = '\0';
        CHECK(strstr(path, "plugin GPUDirectTCPX_quirky") != NULL);
        CHECK(strstr(path, version) != NULL);
        CHECK(strstr(path, "GPU memory staged") != NULL ||
              strstr(path, "GPU memory unpacked") != NULL);
    } else {
        CHECK(strstr(path, "plugin ") != NULL);
        CHECK(strstr(path, mode == NULL || strcmp(mode, "host") == 0 ? "GPU memory staged"
                           : strcmp(mode, "cuda") == 0               ? "GPU memory directly"
                                                       : "GPU memory unpacked") != NULL);
    }
    tcpx_session_close(session);
}
CASE(path)

/* --- a slow receiver ----------------------------------------------------------------------------
 */

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
    area_make(&area, session, on_gpu, total);
    if (me->number == 0) {
        area_say(&area, 3);
        for (uint64_t i = 0; i < count; i++)
            sends[i] = begin_part(session, true, &area, i * each, each, 2);
        for (uint64_t i = 0; i < count; i++)
            FINISH(sends[i]);
    } else {
        area_poison(&area);
        for (uint64_t i = 0; i < count; i++) {
            uint64_t since = now_ms();
            struct tcpx_transfer *transfer;

            sleep_us(pause_us);
            transfer = begin_part(session, false, &area, i * each, each, 2);
            for (int done = 0; done == 0;) {
                sleep_us(pause_us);
                CHECK_SUCCESS(tcpx_transfer_test(transfer, &done));
                CHECK(now_ms() - since < WAIT_MS);
            }
        }
        say_at(area.expected, total, 3, 0);
    }
    CHECK_AREA(&area, 0, total);
    area_drop(&area, session);
    free(sends);
}

static void run_slow_receiver(struct side *me)
{
    const struct tcpx_session_options options = usual_options();
    struct tcpx_session *session = open_session(me, &options);
    uint64_t most = number_of("TCPX_TEST_LARGE", 0) != 0 ? (uint64_t)1 << 30 : 2 * largest();

    receive_slowly(me, session, 4 << 20, 512 << 10, 10000, true);
    receive_slowly(me, session, 4 << 20, 4 << 20, 3000, true);
    receive_slowly(me, session, largest(), largest() / 32, 500, true);
    if (turns_of(100) > 50)
        receive_slowly(me, session, most, most, 500, true);
    receive_slowly(me, session, 8 << 20, 1 << 20, 500, false);
    tcpx_session_close(session);
}
CASE(slow_receiver)

/* --- ends ---------------------------------------------------------------------------------------
 */

/* NULL: the peer is gone already, and the text says so. */
static struct tcpx_transfer *begin_if_there(struct tcpx_session *session, bool sending,
                                            const struct tcpx_move *move)
{
    struct tcpx_transfer *transfer = NULL;
    int result =
        sending ? tcpx_send(session, move, &transfer) : tcpx_receive(session, move, &transfer);

    CHECK((result == TCPX_SUCCESS) == (transfer != NULL));
    CHECK(result == TCPX_SUCCESS || (result == TCPX_REMOTE_ERROR && *tcpx_last_error() != '\0'));
    return transfer;
}

/* What is done has arrived, though its sender closes and exits at once, and its receiver, too. */
static void run_done_is_done(struct side *me)
{
    const struct tcpx_session_options options = small_chunks();

    for (unsigned turn = 0; turn < turns_of(200); turn++) {
        struct tcpx_session *session = open_session(me, &options);
        bool sends = me->number == (int)(turn % 2);
        bool closes_first = turn % 8 < 6 ? !sends : sends; /* the receiver, mostly */
        uint64_t bytes = turn % 3 == 0 ? 24 : turn % 3 == 1 ? 5000 : 400000;
        struct tcpx_transfer *transfer;
        struct area area;

        area_make(&area, session, turn % 5 < 2, bytes);
        if (sends)
            area_say(&area, turn);
        else
            area_poison(&area);
        if (!sends && turn % 7 == 0)
            sleep_us(3000);
        transfer = begin_part(session, sends, &area, 0, bytes, 3);
        if (sends && turn % 4 < 2) /* as fast as it can, so that it is in the session's way */
            for (int done = 0; done == 0;)
                CHECK_SUCCESS(tcpx_transfer_test(transfer, &done));
        else
            FINISH(transfer);
        if (closes_first)
            tcpx_session_close(session);
        if (!sends)
            say_at(area.expected, bytes, turn, 0);
        CHECK_AREA(&area, 0, bytes);
        if (!closes_first) { /* that the other has gone makes no difference to what was done */
            sleep_us(turn % 2 * 1000);
            CHECK_SUCCESS(tcpx_session_deregister(session, area.memory));
            tcpx_session_close(session);
        }
        area_free(&area);
    }
}
CASE(done_is_done)

/* The same without a session behind it: the last ones to know end at once. */
static void run_done_and_exit(struct side *me)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);
    struct area area;

    area_make(&area, session, true, 600000);
    if (me->number == 0) {
        area_say(&area, 5);
        FINISH(begin_part(session, true, &area, 0, 600000, 3));
        tcpx_session_close(session);
        _exit(0);
    }
    sleep_us(20000);
    area_poison(&area);
    FINISH(begin_part(session, false, &area, 0, 600000, 3));
    say_at(area.expected, 600000, 5, 0);
    CHECK_AREA(&area, 0, area.bytes);
    tcpx_session_close(session);
    area_free(&area);
}
CASE(done_and_exit)

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
    uint64_t large = areas[0].bytes - 2000;
    struct tcpx_piece pieces[2] = {{.offset = 2000, .bytes = large / 2},
                                   {.offset = 2000 + large / 2, .bytes = large - large / 2}};
    struct tcpx_move move = {.offset = 2000, .bytes = large, .tag = 1};

    if (as_pieces) {
        move.pieces = pieces;
        move.piece_count = 2;
    }
    move.memory = areas[0].memory;
    transfers[0] = begin_if_there(session, true, &move);
    move.memory = areas[1].memory;
    transfers[1] = begin_if_there(session, false, &move);
    pieces[0] = (struct tcpx_piece){.bytes = 2000};
    pieces[1] = (struct tcpx_piece){.bytes = 0};
    move.offset = 0;
    move.bytes = 2000;
    for (unsigned i = 2; i < IN_FLIGHT; i++) {
        move.tag = i + 10 * (unsigned)me->number;
        move.memory = areas[i % 2].memory;
        transfers[i] = begin_if_there(session, i % 2 == 0, &move);
    }
}

/*
 * One side closes with all kinds of transfers in flight; the other's fail soon, in words, and when
 * that is closed, too, nobody writes to their memory any more. Both begin again in the same
 * process.
 */
static void run_close_in_flight(struct side *me)
{
    const struct tcpx_session_options options = small_chunks();

    for (unsigned turn = 0; turn < 4 + turns_of(12); turn++) {
        struct tcpx_session *session = open_session(me, &options);
        struct tcpx_transfer *transfers[IN_FLIGHT];
        struct area areas[2];

        for (int i = 0; i < 2; i++) {
            area_make(&areas[i], session, turn % 2 == 0, largest() / 2);
            area_say(&areas[i], turn);
        }
        begin_in_flight(me, session, areas, turn / 2 % 2 == 1, transfers);
        if (turn % 3 != 0)
            meet(me);
        if ((turn / 4 + turn) % 2 == (unsigned)me->number) {
            sleep_us((long)(turn * 13 % 7) * 300);
            tcpx_session_close(session);
        } else {
            unsigned ended = 0;

            /* those under way may have been in time; small sends are done when they are away */
            for (unsigned i = 0; i < IN_FLIGHT; i++) {
                int result = end_soon(transfers[i]);

                CHECK(result != TCPX_SUCCESS || i < 2 || (i % 2 == 0 && is_builtin(session)));
                ended += result == TCPX_SUCCESS;
            }
            CHECK(statistics_of(session).sends + statistics_of(session).receives == ended);
            /* the network may have it until the session is closed */
            for (unsigned i = 0; i < 2; i++)
                if (tcpx_session_deregister(session, areas[i].memory) != TCPX_SUCCESS)
                    CHECK(strstr(tcpx_last_error(), "failed") != NULL);
            tcpx_session_close(session);
            for (unsigned i = 0; i < 2; i++)
                area_poison(&areas[i]);
            sleep_us(10000);
            CHECK_AREA(&areas[1], 0, areas[1].bytes);
        }
        for (int i = 0; i < 2; i++)
            area_free(&areas[i]);
        session = open_session(me, &options);
        talk(me, session, (int)turn % 2, turn);
        tcpx_session_close(session);
    }
}
CASE(close_in_flight)

/* A peer that is killed. */
static void run_killed(struct side *me)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session = open_session(me, &options);
    struct tcpx_session *second = open_session(me, &options);
    struct tcpx_transfer *transfers[IN_FLIGHT];
    struct area areas[2];
    int result;

    for (int i = 0; i < 2; i++) {
        area_make(&areas[i], session, i == 0, largest());
        area_say(&areas[i], 3);
    }
    begin_in_flight(me, session, areas, false, transfers);
    meet(me);
    if (me->number == 1) {
        sleep_us(500);
        kill(getpid(), SIGKILL);
    }
    for (unsigned i = 0; i < IN_FLIGHT; i++) {
        result = end_soon(transfers[i]);
        CHECK(result != TCPX_SUCCESS || i < 2 || (i % 2 == 0 && is_builtin(session)));
    }
    /* whatever is begun now fails as well, now or soon */
    tcpx_session_close(session);
    area_free(&areas[0]);
    area_make(&areas[0], second, false, 100000);
    for (int sending = 0; sending < 2; sending++) {
        const struct tcpx_move move = {.memory = areas[0].memory, .bytes = 100000};
        struct tcpx_transfer *transfer;

        result =
            sending ? tcpx_send(second, &move, &transfer) : tcpx_receive(second, &move, &transfer);
        if (result == TCPX_SUCCESS)
            result = end_soon(transfer);
        CHECK(result != TCPX_SUCCESS && *tcpx_last_error() != '\0');
    }
    tcpx_session_close(second);
    area_free(&areas[0]);
    area_free(&areas[1]);
}
CASE(killed)

/* Sessions that come and go leave neither descriptors nor threads behind. */
static void run_leaks(struct side *me)
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
        talk(me, session, (int)turn % 2, turn);
        if (turn % 3 == 0)
            CHECK_SUCCESS(tcpx_session_event_fd(session, &fd));
        area_make(&area, session, true, 100000);
        for (unsigned i = 0; i < turn % 4; i++) /* some of them without an answer */
            begin_if_there(session, (me->number + (int)i) % 2 == 0,
                           &(struct tcpx_move){.memory = area.memory,
                                               .bytes = 100000,
                                               .tag = i < 2 ? i : 10 + (uint64_t)me->number});
        tcpx_session_close(session);
        area_free(&area);
        if (turn == 2) { /* what is made once is there */
            descriptors = open_descriptors();
            threads = running_threads();
        }
    }
    for (since = now_ms(); now_ms() - since < limit_ms(3000);)
        if (open_descriptors() > descriptors || running_threads() > threads)
            sleep_us(1000);
        else
            break;
    CHECK(open_descriptors() <= descriptors);
    CHECK(running_threads() <= threads);
}
CASE(leaks)

/* --- for machines that are good for it ----------------------------------------------------------
 */

/* More than 2^32 bytes at once. */
static void run_five_gib(struct side *me)
{
    const uint64_t bytes = ((uint64_t)5 << 30) + 12345;
    const struct tcpx_session_options options = usual_options();
    struct tcpx_session *session;
    struct tcpx_memory *memory;
    struct caller caller;
    void *address;

    if (number_of("TCPX_TEST_LARGE", 0) == 0)
        skip_case("TCPX_TEST_LARGE is not set");
    session = open_session(me, &options);
    caller_start(&caller, 4096);
    CHECK_SUCCESS(tcpx_gpu_alloc(0, bytes, &address));
    CHECK_SUCCESS(tcpx_session_register(session, address, bytes, &memory));
    for (unsigned as_pieces = 0; as_pieces < 2; as_pieces++) {
        /* the second time in three pieces, whose middle one crosses 4 GiB */
        const struct tcpx_piece pieces[] = {
            {.offset = 0, .bytes = 1000003},
            {.offset = 1000003, .bytes = bytes - 2000006},
            {.offset = bytes - 1000003, .bytes = 1000003},
        };
        struct tcpx_move move = {.memory = memory, .bytes = bytes, .tag = 1};

        if (as_pieces) {
            move.pieces = pieces;
            move.piece_count = 3;
        }
        if (me->number == 0)
            caller_fill(&caller, address, bytes, as_pieces);
        else
            caller_wipe(&caller, address, bytes);
        meet(me);
        CHECK_SUCCESS(tcpx_transfer_wait(begin(session, me->number == 0, &move), 2 * WAIT_MS));
        CHECK(caller_count_wrong(&caller, address, bytes, as_pieces, 0) == 0);
        meet(me);
    }
    CHECK_SUCCESS(tcpx_session_deregister(session, memory));
    tcpx_session_close(session);
    CHECK_SUCCESS(tcpx_gpu_free(address));
    caller_end(&caller);
}
CASE(five_gib)

/* 10,000 small ones, and lists of 100,000 pieces. */
static void run_very_many(struct side *me)
{
    static const uint32_t counts[2] = {100000, 100000};
    const struct tcpx_session_options options = usual_options();
    struct mix mix = {.seed = 12,
                      .count = 10000,
                      .longest = 10000,
                      .tags = 50,
                      .pieces_percent = 20,
                      .ends = {SHUFFLED, FORWARD}};
    struct tcpx_session *session;
    uint64_t random = 6;

    if (number_of("TCPX_TEST_LARGE", 0) == 0)
        skip_case("TCPX_TEST_LARGE is not set");
    session = open_session(me, &options);
    run_mix(me, session, &mix);
    for (unsigned kinds = 0; kinds < 4; kinds++)
        move_lists(me, session, (kinds & 1) != 0, (kinds & 2) != 0, 10000000, counts, &random);
    tcpx_session_close(session);
}
CASE(very_many)

/* Rounds of some transfers both ways, of GPU memory, all of them compared where they are. */
static void run_soak(struct side *me)
{
    enum { SLOTS = 8, MOST = 96 << 20 };
    const struct tcpx_session_options options = usual_options();
    uint64_t total = number_of("TCPX_TEST_SOAK", 0);
    struct tcpx_memory *memories[2];
    struct tcpx_session *session;
    struct caller caller;
    uint64_t random = 77;
    uint8_t *sides[2]; /* sent from, received into */
    uint64_t moved = 0;

    if (total == 0)
        skip_case("TCPX_TEST_SOAK is not set");
    alarm(3600);
    session = open_session(me, &options);
    caller_start(&caller, 4096);
    for (int i = 0; i < 2; i++) {
        void *address;

        CHECK_SUCCESS(tcpx_gpu_alloc(0, (uint64_t)SLOTS * MOST, &address));
        sides[i] = address;
        CHECK_SUCCESS(
            tcpx_session_register(session, address, (uint64_t)SLOTS * MOST, &memories[i]));
    }
    while (moved < total) {
        struct tcpx_transfer *transfers[2 * SLOTS];
        uint64_t lengths[2 * SLOTS];
        uint64_t seed = random_next(&random) % 100000;

        for (int i = 0; i < 2 * SLOTS; i++) {
            lengths[i] = one_in(&random, 4) ? MOST - random_below(&random, 5000)
                                            : random_below(&random, MOST / 4);
            moved += lengths[i];
        }
        caller_fill(&caller, sides[0], (uint64_t)SLOTS * MOST, seed + (unsigned)me->number);
        caller_wipe(&caller, sides[1], (uint64_t)SLOTS * MOST);
        for (unsigned i = 0; i < 2 * SLOTS; i++) { /* the first half goes from side 0 to side 1 */
            bool sends = (i < SLOTS) == (me->number == 0);
            struct tcpx_piece pieces[3] = {
                {.offset = (uint64_t)(i % SLOTS) * MOST, .bytes = lengths[i] / 3}};
            struct tcpx_move move = {.memory = memories[!sends],
                                     .offset = pieces[0].offset,
                                     .bytes = lengths[i],
                                     .tag = i};

            pieces[1] = (struct tcpx_piece){.offset = pieces[0].offset + pieces[0].bytes,
                                            .bytes = lengths[i] - pieces[0].bytes};
            if (i % 3 == 2) {
                move.pieces = pieces;
                move.piece_count = 2;
            }
            transfers[i] = begin(session, sends, &move);
        }
        for (unsigned i = 0; i < 2 * SLOTS; i++)
            FINISH(transfers[(i * 5 + (unsigned)me->number) % (2 * SLOTS)]);
        for (unsigned i = 0; i < SLOTS; i++) {
            uint64_t length = lengths[i + (me->number == 0 ? SLOTS : 0)];
            uint64_t place = (uint64_t)i * MOST;

            CHECK(caller_count_wrong(&caller, sides[1] + place, length,
                                     seed + (unsigned)!me->number, place) == 0);
        }
    }
    tcpx_session_close(session);
    for (int i = 0; i < 2; i++)
        CHECK_SUCCESS(tcpx_gpu_free(sides[i]));
    caller_end(&caller);
}
CASE(soak)

/* `brief`: what concerns the bytes and their transport; the rest is the same for all of them. */
static const struct {
    struct CMUnitTest test;
    bool brief;
} cases[] = {
    {cmocka_unit_test(test_sizes), true},
    {cmocka_unit_test(test_large_ones), true},
    {cmocka_unit_test(test_odd_chunks), true},
    {cmocka_unit_test(test_any_memory), true},
    {cmocka_unit_test(test_without_gpu), false},
    {cmocka_unit_test(test_pieces), true},
    {cmocka_unit_test(test_list_is_copied), false},
    {cmocka_unit_test(test_many_at_once), true},
    {cmocka_unit_test(test_thousands), false},
    {cmocka_unit_test(test_tags_the_other_way), true},
    {cmocka_unit_test(test_asking_about_one), false},
    {cmocka_unit_test(test_a_tag_that_waits), true},
    {cmocka_unit_test(test_both_ways), true},
    {cmocka_unit_test(test_threads), true},
    {cmocka_unit_test(test_sessions), false},
    {cmocka_unit_test(test_two_peers), false},
    {cmocka_unit_test(test_one_process), true},
    {cmocka_unit_test(test_each_other), false},
    {cmocka_unit_test(test_accepts_at_once), false},
    {cmocka_unit_test(test_lengths_that_differ), true},
    {cmocka_unit_test(test_misuse), false},
    {cmocka_unit_test(test_wrong_options), false},
    {cmocka_unit_test(test_disagreement), false},
    {cmocka_unit_test(test_one_gives_up), false},
    {cmocka_unit_test(test_secret), false},
    {cmocka_unit_test(test_fork), false},
    {cmocka_unit_test(test_short_waits), true},
    {cmocka_unit_test(test_nothing), false},
    {cmocka_unit_test(test_late_listener), false},
    {cmocka_unit_test(test_events), true},
    {cmocka_unit_test(test_event_of_failure), false},
    {cmocka_unit_test(test_after), true},
    {cmocka_unit_test(test_on_stream), true},
    {cmocka_unit_test(test_after_without_gpu), false},
    {cmocka_unit_test(test_statistics), true},
    {cmocka_unit_test(test_path), true},
    {cmocka_unit_test(test_slow_receiver), true},
    {cmocka_unit_test(test_done_is_done), true},
    {cmocka_unit_test(test_done_and_exit), false},
    {cmocka_unit_test(test_close_in_flight), true},
    {cmocka_unit_test(test_killed), true},
    {cmocka_unit_test(test_leaks), true},
    {cmocka_unit_test(test_five_gib), false},
    {cmocka_unit_test(test_very_many), false},
    {cmocka_unit_test(test_soak), false},
};

enum { CASES = sizeof cases / sizeof *cases };

/* Of a plugin with faults only. */
static const struct CMUnitTest tokens = cmocka_unit_test(test_tokens);

/* test_session [brief | pattern] */
int main(int argc, char **argv)
{
    bool brief = argc > 1 && strcmp(argv[1], "brief") == 0;
    bool large = number_of("TCPX_TEST_LARGE", 0) != 0 || number_of("TCPX_TEST_SOAK", 0) != 0;
    struct CMUnitTest tests[CASES + 1] = {{0}};
    size_t count = 0;

    for (size_t i = 0; i < CASES; i++)
        if ((!brief || cases[i].brief) && (large || i + 3 < CASES))
            tests[count++] = cases[i].test;
    if (plugin_is_quirky())
        tests[count++] = tokens;
    if (argc > 1 && !brief)
        cmocka_set_test_filter(argv[1]);
    if (!sides_start())
        return 1;
    return _cmocka_run_group_tests("sessions", tests, count, NULL, NULL);
}
