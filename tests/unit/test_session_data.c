/*
 * Sessions as tcpx.h shows them, over whichever transport and GPU the environment names: bytes of
 * every size, in any memory, whole or in pieces, arrive where they should and nowhere else.
 *
 * TCPX_TEST_TURNS=percent of all rounds, of which less than half make transfers smaller, too.
 * For machines that are good for it TCPX_TEST_LARGE=1: very many; over a plugin with faults
 * TCPX_TEST_TRANSFERS=count of each size class.
 */
#include "tests/quirky_plugin/quirky.h"
#include "tests/unit/session_mix.h"

#include <dlfcn.h>

struct both {
    struct area out[2]; /* [on GPU] */
    struct area in[2];
};

static void both_make(struct both *both, struct tcpx_session *session, uint64_t bytes)
{
    for (int gpu = 0; gpu < 2; gpu++) {
        area_make(&both->out[gpu], session, gpu == 1, bytes);
        area_fill(&both->out[gpu], 1);
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

    if (me->number == sender) {
        pattern_copy(out->expected + from, bytes, seed, 0);
        area_write(out, from, bytes);
        FINISH(begin_part(session, true, out, from, bytes, tag, as_piece));
        CHECK_AROUND(out, from, bytes);
    } else {
        FINISH(begin_part(session, false, in, to, bytes, tag, as_piece));
        pattern_copy(in->expected + to, bytes, seed, 0);
        CHECK_AROUND(in, to, bytes);
    }
}

/* Sizes at the bounds of pages and chunks arrive between any two places of any memories. */
SESSION_CASE(sizes, SMALL_CHUNK, IN_BRIEF)
{
    uint64_t chunk = chunk_of(session, SMALL_CHUNK);
    const uint64_t sizes[] = {0,    1,         24,    4095,      4096,          4097,
                              8192, chunk - 1, chunk, chunk + 1, 3 * chunk + 5, 4 * chunk};
    uint64_t random = 4711;
    struct both both;

    both_make(&both, session, 5 * chunk);
    for (unsigned i = 0; i < COUNT_OF(sizes); i++)
        for (unsigned kinds = 0; kinds < 8; kinds++)
            move_once(me, session, &both, (int)random_below(&random, 2), (kinds & 1) != 0,
                      (kinds & 2) != 0, sizes[i], (kinds & 4) != 0, &random);
    for (int i = 0; i < turns_of(200); i++)
        move_once(me, session, &both, (int)random_below(&random, 2), one_in(&random, 2),
                  one_in(&random, 2), random_below(&random, 4 * chunk), one_in(&random, 2),
                  &random);
    both_drop(&both, session);
}

/* Large ones in chunks of the usual size. */
SESSION_CASE(large_ones, 0, IN_BRIEF)
{
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
}

/* Chunks of odd sizes and any number of channels. */
SIDES_CASE(odd_chunks, 2, IN_BRIEF)
{
    static const struct {
        int channels;
        uint64_t chunk_bytes;
        uint64_t bytes;
    } ways[] = {
        {1, 1, 40}, {3, 7, 1000}, {1, 1000, 50000}, {4, 4095, 300000}, {2, 100001, 1 << 20}};
    uint64_t random = 5;

    for (unsigned i = 0; i < COUNT_OF(ways); i++) {
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

/* GPU memory of any length can be registered, alone or as a part, once or several times. */
SESSION_CASE(any_memory, SMALL_CHUNK, IN_BRIEF)
{
    static const uint64_t lengths[] = {1, 100, 4096, 10000, 65537, 1000001};

    for (unsigned i = 0; i < COUNT_OF(lengths); i++) {
        uint64_t bytes = lengths[i];
        struct tcpx_memory *again;
        struct tcpx_memory *memory;
        uint8_t *expected = malloc(bytes);
        uint8_t *found = malloc(bytes);
        void *address;
        struct tcpx_move move = {.bytes = bytes, .tag = i};

        CHECK(expected != NULL && found != NULL);
        pattern_copy(expected, bytes, i, 0);
        CHECK_SUCCESS(tcpx_gpu_alloc(0, bytes, &address));
        CHECK_SUCCESS(tcpx_session_register(session, address, bytes, &memory));
        CHECK_SUCCESS(tcpx_session_register(session, (uint8_t *)address + bytes / 2,
                                            bytes - bytes / 2, &again));
        move.memory = memory;
        if (me->number == 0)
            CHECK_SUCCESS(tcpx_gpu_write(address, expected, bytes));
        FINISH(begin(session, me->number == 0, move));
        /* and through the second registration, back */
        CHECK_SUCCESS(tcpx_session_deregister(session, memory));
        move = (struct tcpx_move){.memory = again, .bytes = bytes - bytes / 2, .tag = i};
        FINISH(begin(session, me->number == 1, move));
        CHECK_SUCCESS(tcpx_gpu_read(found, address, bytes));
        CHECK(memcmp(found, expected, bytes) == 0);
        CHECK_SUCCESS(tcpx_session_deregister(session, again));
        CHECK_SUCCESS(tcpx_gpu_free(address));
        free(expected);
        free(found);
    }
}

/* A session without a GPU, at one end or at both. */
SIDES_CASE(without_gpu, 2, IN_FULL)
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

static void move_lists(struct side *me, struct tcpx_session *session, bool from_gpu, bool to_gpu,
                       uint64_t bytes, const uint32_t counts[2], uint64_t *random)
{
    bool sends = me->number == 0;
    uint64_t seed = random_next(random) % 1000003;
    struct list out = list_draw(random, bytes, counts[0],
                                bytes > 0 && one_in(random, 2) ? OVERLAPPING : DISJOINT);
    struct list in = list_draw(random, bytes, counts[1], DISJOINT);
    struct list *mine = sends ? &out : &in;
    struct tcpx_move move = {.pieces = mine->pieces, .piece_count = mine->count, .tag = seed};
    struct area area;

    area_open(&area, session, sends ? from_gpu : to_gpu, mine->span + 77, sends, seed);
    move.memory = area.memory;
    FINISH(begin(session, sends, move));
    if (!sends)
        list_move(&out, seed, &in, area.expected);
    CHECK_AREA(&area, 0, area.bytes);
    area_drop(&area, session);
    list_free(&out);
    list_free(&in);
}

/* Lists that are cut differently at both ends: the same bytes, in the order of the lists. */
SESSION_CASE(pieces, SMALL_CHUNK, IN_BRIEF)
{
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

    for (unsigned i = 0; i < COUNT_OF(ways); i++)
        for (unsigned kinds = 0; kinds < 4; kinds++)
            if (turns_of(100) > 50 || kinds == i % 4)
                move_lists(me, session, (kinds & 1) != 0, (kinds & 2) != 0, ways[i].bytes,
                           ways[i].counts, &random);
}

/* The list is the caller's: it may be changed as soon as the call returns. */
SESSION_CASE(list_is_copied, SMALL_CHUNK, IN_FULL)
{
    struct tcpx_piece pieces[] = {{.offset = 500, .bytes = 100}, {.offset = 0, .bytes = 200}};
    struct tcpx_transfer *transfer;
    struct tcpx_move move = {.pieces = pieces, .piece_count = 2};
    struct area area;

    area_open(&area, session, true, 1000, me->number == 0, 3);
    move.memory = area.memory;
    if (me->number == 1)
        meet(me); /* the sender's comes first, then they are cleared, and only then they meet */
    CHECK_SUCCESS(me->number == 0 ? tcpx_send(session, &move, &transfer)
                                  : tcpx_receive(session, &move, &transfer));
    memset(pieces, 0xff, sizeof pieces);
    memset(&move, 0xff, sizeof move);
    if (me->number == 0)
        meet(me);
    FINISH(transfer);
    if (me->number == 1) {
        pattern_copy(area.expected + 500, 100, 3, 500);
        pattern_copy(area.expected, 200, 3, 0);
    }
    CHECK_AREA(&area, 0, area.bytes);
    area_drop(&area, session);
}

/* A transfer of nothing needs no memory, is matched as any other, and ends on a stream, too. */
SESSION_CASE(nothing, SMALL_CHUNK, IN_FULL)
{
    static const struct tcpx_piece pieces[3];
    struct tcpx_session_statistics statistics;

    for (unsigned i = 0; i < 6; i++) {
        struct tcpx_move move = {.tag = 4, .pieces = i % 3 == 0 ? NULL : pieces};

        move.piece_count = i % 3 == 0 ? 0 : i % 3 == 1 ? 3 : 0; /* the last: a list of none */
        CHECK_SUCCESS(test_on_stream(begin(session, me->number == (int)(i & 1), move), NULL));
    }
    statistics = statistics_of(session);
    CHECK(statistics.sends == 3 && statistics.receives == 3 && statistics.sent_bytes == 0 &&
          statistics.received_bytes == 0 && statistics.sent_chunks == 0);
}

/* 10,000 small ones, and lists of 100,000 pieces. */
SESSION_CASE(very_many, 0, IF_LARGE)
{
    static const uint32_t counts[2] = {100000, 100000};
    struct mix mix = {.seed = 12,
                      .count = 10000,
                      .longest = 10000,
                      .tags = 50,
                      .pieces_percent = 20,
                      .ends = {SHUFFLED, FORWARD}};
    uint64_t random = 6;

    run_mix(me, session, &mix);
    for (unsigned kinds = 0; kinds < 4; kinds++)
        move_lists(me, session, (kinds & 1) != 0, (kinds & 2) != 0, 10000000, counts, &random);
}

static const struct quirky_counts *counts_of_plugin(void)
{
    void *library = dlopen(getenv("UCCL_TCPX_PLUGIN_PATH"), RTLD_NOW | RTLD_NOLOAD);
    const struct quirky_counts *counts = library != NULL ? dlsym(library, "quirky_counts") : NULL;

    CHECK(counts != NULL);
    return counts;
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
    uint64_t before = statistics_of(session).fragments;

    FINISH(begin(session, me->number == 0, move));
    CHECK((statistics_of(session).fragments > before) == (has_pool && me->number == 1));
    for (int i = 0; i < 2 && me->number == 1; i++)
        pattern_copy(area->expected + list[i].offset, list[i].bytes, 1, list[i].offset);
    if (me->number == 1)
        CHECK_AREA(area, 0, 3 * 4096);
}

/*
 * Transfers of every size class, between any memories, in pieces or not, over a plugin with several
 * sockets whose pool loses a page as soon as two chunks of one request meet: none is lost.
 * TCPX_TEST_TRANSFERS says how many of each class.
 */
SIDES_CASE(tokens, 2, IF_QUIRKY)
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
    for (unsigned i = 0; i < COUNT_OF(sizes); i++)
        for (unsigned k = 0; k < count; k++)
            move_once(me, session, &both, (int)random_below(&random, 2), one_in(&random, 2),
                      one_in(&random, 2), sizes[i], one_in(&random, 2), &random);
    both_drop(&both, session);
    tcpx_session_close(session);
    CHECK(counts->lost_pages == 0);
    CHECK(counts->free_pages == 1024 || (counts->free_pages == 0 && counts->fragments == 0));
}

SIDES_SUITE("session data", sides_begin);
