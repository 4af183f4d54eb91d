/*
 * Random messages, scattered over a bounce buffer and put together again: fragments of every size
 * and alignment, some of them in host memory, through the descriptor builder and each
 * way of unpacking, compared byte by byte with what plain memcpy() makes of the same list. What
 * lies around the message must not change.
 *
 * TCPX_TEST_LISTS says how many messages, 100000 unless told otherwise.
 */
#include "tests/gpu/gpu_test.h"
#include "tests/support/suite.h"

#include "gpu/kernels.h"
#include "net/devmem/descriptors.h"
#include "unpack/unpack_engine.h"

enum {
    POOL = 6 << 20,       /* bounce buffer */
    HOST = 1 << 16,       /* linear bytes of a receive */
    SLOTS = 16,           /* messages at a time */
    SLOT = 1 << 16,       /* room for each, with its margins */
    LARGE_SLOT = 5 << 20, /* room for a large one, alone */
    MARGIN = 64,
    POISON = 0xdb,
    FRAGMENTS = 2048,
};

static struct bed {
    struct rig rig; /* its memory is the target, and pinned memory is what arrived there */
    struct unpack_engine *engines[UNPACK_KERNEL + 1];
    struct gpu_memory pool;
    struct gpu_pinned pinned_pool; /* the same bytes, where plain TCP would leave them */
    struct gpu_pinned descriptors; /* SLOTS arrays */
    uint8_t expected[LARGE_SLOT];
    uint8_t host[HOST];
    uint64_t random;
    uint64_t lists;
    uint64_t aligned[16][16]; /* fragments long enough for wide accesses, by (from, to) modulo 16 */
} bed = {.random = 20261115};

/* A message as it was received. */
struct message {
    struct scatter_fragment fragments[FRAGMENTS];
    uint32_t fragment_count;
    uint64_t bytes;
    uint64_t offset; /* of its first byte in the target */
    uint64_t base;   /* what the descriptors' destinations are moved up by, and their base down */
    uint32_t descriptor_count;
};

static struct message messages[SLOTS];

static uint64_t below(uint64_t limit)
{
    return random_below(&bed.random, limit);
}

static struct unpack_descriptor *descriptors_of(uint32_t slot)
{
    return (struct unpack_descriptor *)bed.descriptors.host + (size_t)slot * FRAGMENTS;
}

/* --- set-up -------------------------------------------------------------------------------- */

static int set_up(void)
{
    struct gpu *gpu;

    if (rig_open(&bed.rig, LARGE_SLOT) != 0)
        return -1;
    gpu = bed.rig.gpu;
    if (gpu_memory_alloc(gpu, POOL, 4096, &bed.pool) != TCPX_SUCCESS ||
        gpu_pinned_alloc(gpu, POOL, &bed.pinned_pool) != TCPX_SUCCESS ||
        gpu_pinned_alloc(gpu, (uint64_t)SLOTS * FRAGMENTS * sizeof(struct unpack_descriptor),
                         &bed.descriptors) != TCPX_SUCCESS) {
        fprintf(stderr, "set-up: %s\n", tcpx_last_error());
        return -1;
    }
    for (int impl = UNPACK_AUTO; impl <= UNPACK_KERNEL; impl++)
        if (unpack_create_as(gpu, impl, &bed.engines[impl]) != TCPX_SUCCESS)
            return -1;
    for (size_t i = 0; i < POOL / 8; i++)
        ((uint64_t *)bed.pinned_pool.host)[i] = random_next(&bed.random);
    for (size_t i = 0; i < HOST; i++)
        bed.host[i] = (uint8_t)(random_next(&bed.random) >> 40);
    return gpu_copy_to_device(bed.rig.stream, bed.pool.address, bed.pinned_pool.host, POOL) !=
               TCPX_SUCCESS ||
           drain(gpu, bed.rig.stream) != TCPX_SUCCESS;
}

static int tear_down(void)
{
    for (int impl = UNPACK_AUTO; impl <= UNPACK_KERNEL; impl++)
        unpack_destroy(bed.engines[impl]);
    gpu_pinned_free(bed.rig.gpu, &bed.descriptors);
    gpu_pinned_free(bed.rig.gpu, &bed.pinned_pool);
    gpu_memory_free(bed.rig.gpu, &bed.pool);
    rig_close(&bed.rig);
    return 0;
}

/* --- making a message ---------------------------------------------------------------------- */

/* Lengths that real traffic has, and all that lie in between. */
static uint64_t random_length(uint64_t most)
{
    static const uint64_t usual[] = {4096, 1448, 1461, 8948, 16,    17,
                                     4095, 4097, 512,  1,    16384, 16385};
    uint64_t length;

    switch (below(8)) {
    case 0:
    case 1:
        length = usual[below(sizeof usual / sizeof *usual)];
        break;
    case 2:
    case 3:
        length = 1 + below(64);
        break;
    case 4:
    case 5:
        length = 1 + below(600);
        break;
    case 6:
        length = 1 + below(9000);
        break;
    default:
        length = 1 + below(most);
        break;
    }
    return length < most ? length : most;
}

/* A place in the pool; now and then right behind the last fragment, so that there is to merge. */
static uint64_t random_source(uint64_t length, const struct scatter_fragment *last)
{
    uint64_t room = POOL - length;

    if (last != NULL && last->source == SCATTER_POOL && below(4) == 0 &&
        last->source_offset + last->length <= room)
        return last->source_offset + last->length;
    if (below(3) == 0)
        return below(room / 4096 + 1) * 4096;
    if (below(20) == 0)
        return room; /* the very end of the pool */
    return below(room + 1);
}

/* Few, so many that they do not fit into a launch, or as many as there may be. */
static uint32_t random_count(uint64_t room)
{
    bool many = room > SLOT ? below(4) != 0 : below(12) == 0;

    if (!many)
        return 1 + (uint32_t)below(24);
    return 1 + (uint32_t)below(below(2) ? FRAGMENTS : FRAGMENTS / 6);
}

/* Fills `room` bytes at most. */
static void make_message(struct message *message, uint64_t room)
{
    uint32_t wanted = random_count(room);
    uint64_t host_used = 0;

    message->fragment_count = 0;
    message->bytes = 0;
    while (message->fragment_count < wanted && message->bytes < room) {
        struct scatter_fragment *fragment = &message->fragments[message->fragment_count];
        const struct scatter_fragment *last = message->fragment_count > 0 ? fragment - 1 : NULL;
        uint64_t left = room - message->bytes;
        uint64_t share = 2 * room / wanted + 1; /* so that many fragments find room */
        uint64_t length = random_length(left < share || wanted < 100 ? left : share);

        *fragment =
            (struct scatter_fragment){.destination_offset = message->bytes, .length = length};
        if (below(40) == 0 && length <= HOST - host_used) {
            fragment->source = SCATTER_HOST;
            fragment->source_offset = host_used;
            host_used += length;
        } else {
            fragment->source = SCATTER_POOL;
            fragment->source_offset = random_source(length, last);
        }
        message->bytes += length;
        message->fragment_count++;
    }
}

/* In pieces of `largest` bytes at most, where all of them fit. */
static uint32_t cut(const struct unpack_descriptor *whole, uint32_t count, uint32_t largest,
                    struct unpack_descriptor *pieces)
{
    uint32_t made = 0;

    for (uint32_t i = 0; i < count; i++)
        for (uint32_t at = 0; at < whole[i].length; at += largest) {
            uint32_t left = whole[i].length - at;

            if (made == FRAGMENTS) {
                memcpy(pieces, whole, count * sizeof *whole);
                return count;
            }
            pieces[made++] = (struct unpack_descriptor){whole[i].source_offset + at,
                                                        left < largest ? left : largest,
                                                        whole[i].destination_offset + at};
        }
    return made;
}

static void build(struct message *message, uint32_t slot)
{
    static const uint32_t limits[] = {UINT32_MAX, UINT32_MAX, 4096, 1000, 16384};
    static struct unpack_descriptor whole[FRAGMENTS];
    const struct scatter_sizes sizes = {.message = message->bytes, .pool = POOL, .host = HOST};
    struct scatter_list scatter;
    uint32_t count;

    scatter_list_init(&scatter, message->fragments, FRAGMENTS);
    scatter.count = message->fragment_count;
    assert_success(descriptors_build(&scatter, &sizes, whole, FRAGMENTS, &count));
    message->descriptor_count =
        cut(whole, count, limits[below(sizeof limits / sizeof *limits)], descriptors_of(slot));

    /* a destination beyond 4 GiB, now and then, without as much memory */
    message->base = below(8) == 0 ? below(1000) << 32 : 0;
    for (uint32_t i = 0; i < message->descriptor_count; i++)
        descriptors_of(slot)[i].destination_offset += message->base;
}

/* --- the reference ------------------------------------------------------------------------- */

static void expect(const struct message *message)
{
    for (uint32_t i = 0; i < message->fragment_count; i++) {
        const struct scatter_fragment *fragment = &message->fragments[i];
        uint64_t to = message->offset + fragment->destination_offset;
        const uint8_t *from =
            fragment->source == SCATTER_HOST ? bed.host : (uint8_t *)bed.pinned_pool.host;

        memcpy(bed.expected + to, from + fragment->source_offset, fragment->length);
        if (fragment->length >= 64 && fragment->source == SCATTER_POOL)
            bed.aligned[fragment->source_offset % 16][to % 16]++;
    }
}

/* --- one round: the same messages by every way --------------------------------------------- */

static void submit(struct unpack_engine *engine, const struct unpack_list *lists, uint32_t count)
{
    uint64_t ticket;
    int result;

    while ((result = unpack_submit(engine, lists, count, below(2), &ticket)) == TCPX_IN_PROGRESS)
        ;
    assert_success(result);
    if (below(8) == 0) {
        bool done;

        assert_success(unpack_poll(engine, ticket, &done));
        assert_success(unpack_wait(engine, ticket, LIMIT));
        assert_success(unpack_poll(engine, ticket, &done));
        assert_true(done);
    }
}

static void unpack_all(struct unpack_engine *engine, uint32_t message_count, bool pinned)
{
    struct unpack_list lists[SLOTS];
    uint32_t taken = 0;

    for (uint32_t i = 0; i < message_count; i++) {
        uint64_t array = (uint64_t)i * FRAGMENTS * sizeof(struct unpack_descriptor);

        lists[i] = (struct unpack_list){
            .bounce = pinned ? bed.pinned_pool.device : bed.pool.address,
            .bounce_host = pinned ? bed.pinned_pool.host : NULL,
            .destination = bed.rig.memory.address + messages[i].offset - messages[i].base,
            .descriptors = descriptors_of(i),
            .descriptors_device = bed.descriptors.device + array,
            .count = messages[i].descriptor_count,
        };
        if (below(2)) /* as a transport does, which knows */
            for (uint32_t k = 0; k < lists[i].count; k++) {
                uint32_t length = lists[i].descriptors[k].length;

                lists[i].bytes += length;
                lists[i].longest = length > lists[i].longest ? length : lists[i].longest;
            }
    }
    /* several receives in one submit, or one each */
    while (taken < message_count) {
        uint32_t some = 1 + (uint32_t)below(message_count - taken);

        submit(engine, lists + taken, some);
        taken += some;
    }
}

/* Linear bytes are the caller's to copy. */
static void copy_host_fragments(struct gpu_stream *stream, const struct message *message)
{
    struct scatter_list scatter;
    const struct scatter_fragment *fragment;

    scatter_list_init(&scatter, (struct scatter_fragment *)(uintptr_t)message->fragments,
                      FRAGMENTS);
    scatter.count = message->fragment_count;
    for (uint32_t cursor = 0; (fragment = scatter_list_next_host(&scatter, &cursor)) != NULL;)
        assert_success(gpu_copy_to_device(
            stream, bed.rig.memory.address + message->offset + fragment->destination_offset,
            bed.host + fragment->source_offset, fragment->length));
}

static void compare(uint64_t bytes, enum unpack_impl impl, bool pinned)
{
    const uint8_t *arrived = bed.rig.pinned.host;

    if (memcmp(arrived, bed.expected, bytes) == 0)
        return;
    for (uint64_t i = 0; i < bytes; i++)
        if (arrived[i] != bed.expected[i])
            fail_msg("%s from %s memory, after %d lists: byte %d is 0x%02x instead of 0x%02x",
                     unpack_impl_name(impl), pinned ? "pinned" : "GPU", (int)bed.lists, (int)i,
                     arrived[i], bed.expected[i]);
}

static void run_round(uint32_t message_count, uint64_t bytes)
{
    for (int impl = UNPACK_AUTO; impl <= UNPACK_KERNEL; impl++) {
        struct unpack_engine *engine = bed.engines[impl];
        struct gpu_stream *stream = unpack_stream(engine);
        bool pinned = below(3) == 0;

        assert_success(gpu_set(stream, bed.rig.memory.address, POISON, bytes));
        unpack_all(engine, message_count, pinned);
        for (uint32_t i = 0; i < message_count; i++)
            copy_host_fragments(stream, &messages[i]);
        fetch_on(bed.rig.gpu, stream, bed.rig.pinned.host, bed.rig.memory.address, bytes);
        compare(bytes, impl, pinned);
    }
    bed.lists += message_count;
}

static void small_round(void)
{
    memset(bed.expected, POISON, (size_t)SLOTS * SLOT);
    for (uint32_t i = 0; i < SLOTS; i++) {
        messages[i].offset = (uint64_t)i * SLOT + MARGIN + below(16);
        make_message(&messages[i], 1 + below(SLOT - 2 * MARGIN - 16));
        build(&messages[i], i);
        expect(&messages[i]);
    }
    run_round(SLOTS, (uint64_t)SLOTS * SLOT);
}

static void large_round(void)
{
    memset(bed.expected, POISON, LARGE_SLOT);
    messages[0].offset = MARGIN + below(16);
    make_message(&messages[0], (4 << 20) + below(4096));
    build(&messages[0], 0);
    expect(&messages[0]);
    run_round(1, LARGE_SLOT);
}

TEST(test_random_messages)
{
    uint64_t lists = number_of("TCPX_TEST_LISTS", 100000);

    for (uint64_t round = 0; bed.lists < lists; round++) {
        if (round % 50 == 7)
            large_round();
        else
            small_round();
    }
    if (lists >= 10000)
        for (int from = 0; from < 16; from++)
            for (int to = 0; to < 16; to++)
                assert_true(bed.aligned[from][to] > 0);
    for (int impl = UNPACK_D2D; impl <= UNPACK_KERNEL; impl++) {
        assert_int_equal(bed.engines[impl]->lists, bed.lists);
        print_message("# %s: %llu lists\n", unpack_impl_name(impl), (unsigned long long)bed.lists);
    }
}

/* --- what the engine itself promises ------------------------------------------------------- */

/* One list by this way, over poison. Returns its ticket. */
static uint64_t unpack_over_poison(enum unpack_impl impl, const struct unpack_list *list,
                                   uint64_t bytes)
{
    struct unpack_engine *engine = bed.engines[impl];
    uint64_t ticket;

    assert_success(gpu_set(unpack_stream(engine), list->destination, POISON, bytes));
    assert_success(unpack_submit(engine, list, 1, false, &ticket));
    return ticket;
}

static void assert_pattern(enum unpack_impl impl, gpu_address at, uint64_t bytes, uint64_t seed,
                           gpu_address answer)
{
    struct gpu_stream *stream = unpack_stream(bed.engines[impl]);

    assert_int_equal(verify_on(bed.rig.gpu, stream, at, bytes, seed, 0, answer).differences, 0);
}

static struct unpack_list one_list(uint32_t count)
{
    return (struct unpack_list){.bounce = bed.pool.address,
                                .destination = bed.rig.memory.address,
                                .descriptors = descriptors_of(0),
                                .descriptors_device = bed.descriptors.device,
                                .count = count};
}

static void assert_way(uint32_t count, enum unpack_impl expected)
{
    struct unpack_engine *engine = bed.engines[UNPACK_AUTO];
    struct unpack_list list = one_list(count);
    uint64_t before = engine->by_way[expected];
    uint64_t ticket;

    assert_success(unpack_submit(engine, &list, 1, false, &ticket));
    assert_success(unpack_wait(engine, ticket, LIMIT));
    assert_int_equal(engine->by_way[expected], before + 1);
}

TEST(test_auto_takes_the_better_way)
{
    struct unpack_descriptor *descriptors = descriptors_of(0);

    /* one fragment, and many that are one run: a copy; scattered ones: the kernel */
    for (uint32_t i = 0; i < 100; i++)
        descriptors[i] = (struct unpack_descriptor){
            .source_offset = i * 1000, .length = 1000, .destination_offset = i * 1000};
    assert_way(1, UNPACK_D2D);
    assert_way(100, UNPACK_D2D);
    for (uint32_t i = 0; i < 100; i++)
        descriptors[i].source_offset = (99 - i) * 1000;
    assert_way(100, UNPACK_KERNEL);
    assert_way(2, UNPACK_KERNEL);
}

TEST(test_nothing_to_unpack)
{
    struct unpack_list list = one_list(3);
    uint64_t ticket;
    uint8_t byte = 0;

    memset(descriptors_of(0), 0, 3 * sizeof(struct unpack_descriptor));
    for (int impl = UNPACK_AUTO; impl <= UNPACK_KERNEL; impl++) {
        struct unpack_engine *engine = bed.engines[impl];

        assert_success(gpu_set(unpack_stream(engine), bed.rig.memory.address, POISON, 1));
        list.count = 3; /* empty ones */
        assert_success(unpack_submit(engine, &list, 1, false, &ticket));
        list.count = 0; /* none in the list */
        assert_success(unpack_submit(engine, &list, 1, false, &ticket));
        assert_success(unpack_submit(engine, NULL, 0, false, &ticket)); /* no list */
        assert_success(unpack_wait(engine, ticket, LIMIT));
        fetch_on(bed.rig.gpu, unpack_stream(engine), &byte, bed.rig.memory.address, 1);
        assert_int_equal(byte, POISON);
    }
}

TEST(test_tickets)
{
    struct unpack_list list = one_list(1);
    struct unpack_engine *engine;
    uint64_t tickets[200];
    bool done = false;

    descriptors_of(0)[0] = (struct unpack_descriptor){.length = 4096};
    assert_success(unpack_create(bed.rig.gpu, &engine));
    assert_error(unpack_poll(engine, 1, &done), TCPX_INVALID_ARGUMENT, "no unpack 1");
    assert_error(unpack_wait(engine, 0, LIMIT), TCPX_INVALID_ARGUMENT, "no unpack 0");
    for (int i = 0; i < 200; i++) {
        int result;

        while ((result = unpack_submit(engine, &list, 1, false, &tickets[i])) == TCPX_IN_PROGRESS)
            assert_success(unpack_wait(engine, tickets[i - UNPACK_PENDING], LIMIT));
        assert_success(result);
        assert_int_equal(tickets[i], i + 1);
    }
    /* the last one done means that all are */
    assert_success(unpack_wait(engine, tickets[199], LIMIT));
    for (int i = 0; i < 200; i++) {
        assert_success(unpack_poll(engine, tickets[i], &done));
        assert_true(done);
    }
    unpack_destroy(engine);
    unpack_destroy(NULL);
}

/* Side by side in the bounce buffer, but not in the destination, and the other way round. */
TEST(test_gaps)
{
    enum { COUNT = 200, LENGTH = 100, GAP = 3, ROOM = 1 << 15 };
    struct unpack_descriptor *descriptors = descriptors_of(0);
    const uint8_t *pool = bed.pinned_pool.host;

    for (int variant = 0; variant < 2; variant++) {
        uint32_t source_step = variant == 0 ? LENGTH : LENGTH + GAP;
        uint32_t destination_step = variant == 0 ? LENGTH + GAP : LENGTH;

        memset(bed.expected, POISON, ROOM);
        for (uint32_t i = 0; i < COUNT; i++) {
            descriptors[i] = (struct unpack_descriptor){.source_offset = i * source_step,
                                                        .length = LENGTH,
                                                        .destination_offset = i * destination_step};
            memcpy(bed.expected + (size_t)i * destination_step, pool + (size_t)i * source_step,
                   LENGTH);
        }
        for (int impl = UNPACK_AUTO; impl <= UNPACK_KERNEL; impl++)
            for (uint32_t count = 2; count <= COUNT; count += COUNT - 2) {
                struct unpack_list list = one_list(count);

                unpack_over_poison(impl, &list, ROOM);
                fetch_on(bed.rig.gpu, unpack_stream(bed.engines[impl]), bed.rig.pinned.host,
                         bed.rig.memory.address, ROOM);
                compare((uint64_t)count * destination_step, impl, false);
            }
    }
}

/* A batch of many receives, or a session's: every warp takes several descriptors. */
TEST(test_more_fragments_than_warps)
{
    enum { COUNT = 150000, LENGTH = 21, STEP = 32 };
    gpu_address answer = bed.pool.address + POOL - 64;
    struct unpack_descriptor *descriptors;
    struct gpu_pinned many;

    assert_success(gpu_pinned_alloc(bed.rig.gpu, COUNT * sizeof *descriptors, &many));
    descriptors = many.host;
    /* fragment i of the pattern lies in place COUNT - 1 - i */
    for (uint32_t i = 0; i < COUNT; i++) {
        descriptors[i] = (struct unpack_descriptor){.source_offset = (COUNT - 1 - i) * STEP,
                                                    .length = LENGTH,
                                                    .destination_offset = (uint64_t)i * LENGTH};
        for (uint32_t k = 0; k < LENGTH; k++)
            bed.expected[(COUNT - 1 - i) * STEP + k] = pattern_byte(8, (uint64_t)i * LENGTH + k);
    }
    assert_success(
        gpu_copy_to_device(bed.rig.stream, bed.rig.memory.address, bed.expected, COUNT * STEP));
    assert_success(drain(bed.rig.gpu, bed.rig.stream));
    for (int impl = UNPACK_D2D; impl <= UNPACK_KERNEL; impl++) {
        const struct unpack_list list = {.bounce = bed.rig.memory.address,
                                         .destination = bed.pool.address,
                                         .descriptors = descriptors,
                                         .descriptors_device = many.device,
                                         .count = COUNT};

        unpack_over_poison(impl, &list, POOL);
        assert_pattern(impl, bed.pool.address, (uint64_t)COUNT * LENGTH, 8, answer);
    }
    assert_success(
        gpu_copy_to_device(bed.rig.stream, bed.pool.address, bed.pinned_pool.host, POOL));
    assert_success(drain(bed.rig.gpu, bed.rig.stream));
    gpu_pinned_free(bed.rig.gpu, &many);
}

/* More than the staging memory of the host way holds, and more than a window of anything else. */
TEST(test_a_list_larger_than_any_buffer_of_ours)
{
    enum { PART = 5 << 20, PARTS = 8, ALL = PARTS * PART };
    struct gpu_memory large;
    struct unpack_descriptor *descriptors = descriptors_of(0);

    assert_success(gpu_memory_alloc(bed.rig.gpu, 2ull * ALL, 4096, &large));
    assert_success(gpu_fill_pattern(bed.rig.stream, large.address, ALL, 6, 0));
    assert_success(drain(bed.rig.gpu, bed.rig.stream));
    for (uint32_t i = 0; i < PARTS; i++) /* parts keep their place, in reverse order */
        descriptors[i] =
            (struct unpack_descriptor){.source_offset = (PARTS - 1 - i) * (uint32_t)PART,
                                       .length = PART,
                                       .destination_offset = (PARTS - 1 - i) * (uint64_t)PART};
    for (int impl = UNPACK_AUTO; impl <= UNPACK_KERNEL; impl++) {
        struct unpack_list list = one_list(PARTS);

        list.bounce = large.address;
        list.destination = large.address + ALL;
        assert_success(unpack_wait(bed.engines[impl], unpack_over_poison(impl, &list, ALL), LIMIT));
        assert_pattern(impl, list.destination, ALL, 6, bed.rig.memory.address);
    }
    gpu_memory_free(bed.rig.gpu, &large);
}

SUITE(.name = "unpack", .set_up = set_up, .tear_down = tear_down);
