/*
 * Shows that the descriptor builder says the same as the scatter list, byte for byte, with as few
 * descriptors as possible and none beyond its limits, and that it refuses every list that does not
 * cover its message exactly once, in order. test_rx_random.c has random lists.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "net/devmem/descriptors.h"
#include "tests/support/guard_page.h"
#include "tests/unit/checks.h"

#define GIB           (UINT64_C(1) << 30)
#define POOL_SIZE     (UINT64_C(1) << 20)
#define HOST_SIZE     UINT64_C(65536)
#define MAX_FRAGMENTS UNPACK_MAX_DESCRIPTORS
#define UNTOUCHED     0x5a5a5a5au

static struct scatter_fragment fragments[MAX_FRAGMENTS];
static struct scatter_list scatter;
static struct scatter_sizes sizes;
static struct unpack_descriptor *end_of_room; /* a guard page begins here */
static struct unpack_descriptor *built;
static uint32_t built_count;

static void start(void)
{
    scatter_list_init(&scatter, fragments, MAX_FRAGMENTS);
    sizes = (struct scatter_sizes){.pool = POOL_SIZE, .host = HOST_SIZE};
}

/* Also an empty one, which scatter_list_add() would leave out. */
static void add(const struct scatter_fragment *fragment)
{
    fragments[scatter.count++] = *fragment;
    sizes.message += fragment->length;
}

static int build(uint32_t capacity)
{
    built = end_of_room - capacity;
    memset(built, UNTOUCHED & 0xff, capacity * sizeof *built);
    built_count = UNTOUCHED;
    return descriptors_build(&scatter, &sizes, built, capacity, &built_count);
}

static void build_well(uint32_t count)
{
    assert_int_equal(build(count), TCPX_SUCCESS);
    assert_int_equal(built_count, count);
}

static void build_badly(uint32_t capacity, int result, const char *words)
{
    assert_int_equal(build(capacity), result);
    expect_text(words);
    assert_int_equal(built_count, UNTOUCHED);
    for (uint32_t i = 0; i < capacity; i++)
        assert_int_equal(built[i].length, UNTOUCHED);
}

/* --- lists, and what becomes of them ------------------------------------------------------- */

enum { ROOM = 4 };

struct list {
    const char *name; /* of the test that it belongs to */
    struct scatter_fragment
        fragments[ROOM]; /* offset, destination, length, source; 0, 0, 0 ends them */
    uint64_t pool;       /* its size; 0: as usual */
    uint64_t message;    /* 0: as long as the fragments together */
    int result;
    const char *words; /* of the error */
    struct unpack_descriptor descriptors[ROOM];
};

/* clang-format off */
#define GPU  SCATTER_POOL
#define HOST SCATTER_HOST
#define TOO_WIDE(offset, length, words_)                                                           \
    {"refuses_what_32_bits_cannot_say", .fragments = {{offset, 0, length, GPU}},                   \
     .pool = 16 * GIB,                                                                             \
     .result = TCPX_INVALID_USAGE, .words = (words_)}
#define GAP(at, length, next, words_)                                                              \
    {"refuses_a_gap", .fragments = {{0, at, length, GPU}, {100, next, 9, GPU}},                    \
     .message = 20,                                                                                \
     .result = TCPX_INTERNAL_ERROR, .words = (words_)}

static const struct list lists[] = {
    {.name = "builds_nothing_for_an_empty_message"},
    {"merges_where_both_sides_go_on",
     .fragments = {{4096, 0, 4096, GPU}, {8192, 4096, 4096, GPU}, {12288, 8192, 1, GPU}},
     .descriptors = {{4096, 8193, 0}}},
    {"does_not_merge_across_a_jump_of_the_source",
     .fragments = {{4096, 0, 4096, GPU}, {8193, 4096, 4096, GPU}, {8192, 8192, 1, GPU}},
     .descriptors = {{4096, 4096, 0}, {8193, 4096, 4096}, {8192, 1, 8192}}},
    /* Neighbours in the pool that another fragment parts in the message. */
    {"does_not_merge_across_a_jump_of_the_destination",
     .fragments = {{0, 0, 100, GPU}, {700, 100, 50, GPU}, {100, 150, 100, GPU}},
     .descriptors = {{0, 100, 0}, {700, 50, 100}, {100, 100, 150}}},
    {"does_not_merge_across_a_jump_of_the_destination",
     .fragments = {{0, 0, 100, GPU}, {0, 100, 50, HOST}, {100, 150, 100, GPU}},
     .descriptors = {{0, 100, 0}, {100, 100, 150}}},
    {"refuses_a_list_out_of_order",
     .fragments = {{8192, 20, 10, GPU}, {0, 0, 5, GPU}, {4096, 5, 15, GPU}},
     .result = TCPX_INTERNAL_ERROR, .words = "no fragment for bytes 0 to 19"},
    {"refuses_a_list_out_of_order",
     .fragments = {{0, 0, 5, GPU}, {8192, 20, 10, GPU}, {4096, 5, 15, GPU}},
     .result = TCPX_INTERNAL_ERROR, .words = "no fragment for bytes 5 to 19"},
    {"never_cuts_a_run",
     .fragments = {{100, 0, 5000, GPU}, {5100, 5000, 3192, GPU}, {8292, 8192, 1, GPU}},
     .descriptors = {{100, 8193, 0}}},
    {"gives_host_fragments_no_descriptor", .fragments = {{30, 0, 10, HOST}, {0, 10, 30, HOST}}},
    {"fills_the_whole_pool",
     .fragments = {{4 * GIB - 1, 0, 1, GPU}, {0, 1, UINT32_MAX, GPU}}, .pool = 4 * GIB,
     .descriptors = {{UINT32_MAX, 1, 0}, {0, UINT32_MAX, 1}}},
    /* A run of 4 GiB has a length of 2^32, which would be 0 in a descriptor. */
    {"stops_a_merge_before_it_wraps",
     .fragments = {{0, 0, 2 * GIB, GPU}, {2 * GIB, 2 * GIB, 2 * GIB, GPU}}, .pool = 4 * GIB,
     .descriptors = {{0, 1u << 31, 0}, {1u << 31, 1u << 31, 2 * GIB}}},
    {"stops_a_merge_before_it_wraps",
     .fragments = {{0, 0, UINT32_MAX - 1, GPU}, {UINT32_MAX - 1, UINT32_MAX - 1, 1, GPU}},
     .pool = 4 * GIB,
     .descriptors = {{0, UINT32_MAX, 0}}},
    {"keeps_64_bits_of_the_destination",
     .fragments = {{0, 0, 3 * GIB, GPU}, {0, 3 * GIB, 3 * GIB, GPU}, {7, 6 * GIB, 1, GPU}},
     .pool = 4 * GIB,
     .descriptors = {{0, 3u << 30, 0}, {0, 3u << 30, 3 * GIB}, {7, 1, 6 * GIB}}},
    TOO_WIDE(4 * GIB, 1, "source offset 4294967296 length 1"),
    TOO_WIDE(0, 4 * GIB, "length 4294967296"),
    GAP(1, 10, 11, "no fragment for bytes 0 to 0"),
    GAP(0, 10, 11, "no fragment for bytes 10 to 10"),
    GAP(0, 10, 10, "no fragment for bytes 19 to 19"),
    {"refuses_a_gap",
     .message = 1, .result = TCPX_INTERNAL_ERROR, .words = "no fragment for bytes 0 to 0"},
    {"refuses_an_overlap",
     .fragments = {{0, 0, 10, GPU}, {10, 9, 11, GPU}}, .message = 20,
     .result = TCPX_INTERNAL_ERROR, .words = "begins before 10"},
    /* The same place twice, with lengths that add up to the message. */
    {"refuses_an_overlap",
     .fragments = {{0, 0, 10, GPU}, {50, 0, 10, GPU}},
     .result = TCPX_INTERNAL_ERROR, .words = "fragment for 0"},
    {"refuses_an_overlap",
     .fragments = {{0, 0, 20, GPU}, {50, 5, 5, HOST}}, .message = 20,
     .result = TCPX_INTERNAL_ERROR, .words = "fragment for 5"},
    {"refuses_what_lies_outside_the_destination",
     .fragments = {{0, 0, 10, GPU}},
     .message = 9, .result = TCPX_INTERNAL_ERROR, .words = "message of 9 bytes"},
    {"refuses_what_lies_outside_the_destination",
     .fragments = {{0, 0, 10, GPU}, {20, 10, 10, GPU}}, .message = 19,
     .result = TCPX_INTERNAL_ERROR, .words = "message of 19 bytes"},
    {"refuses_what_lies_outside_the_destination",
     .fragments = {{0, UINT64_MAX - 8, 10, GPU}},
     .result = TCPX_INTERNAL_ERROR, .words = "message of 10 bytes"},
    {"refuses_what_lies_outside_a_source",
     .fragments = {{POOL_SIZE - 9, 0, 10, GPU}},
     .result = TCPX_SYSTEM_ERROR, .words = "in a pool of 1048576 bytes"},
    {"refuses_what_lies_outside_a_source",
     .fragments = {{POOL_SIZE - 9, 0, 10, GPU}},
     .pool = POOL_SIZE + 1, .descriptors = {{POOL_SIZE - 9, 10, 0}}},
    {"refuses_what_lies_outside_a_source",
     .fragments = {{UINT64_MAX, 0, 10, GPU}},
     .result = TCPX_SYSTEM_ERROR, .words = "fragment at 18446744073709551615"},
    {"refuses_what_lies_outside_a_source",
     .fragments = {{HOST_SIZE - 9, 0, 10, HOST}},
     .result = TCPX_SYSTEM_ERROR, .words = "in a host buffer of 65536 bytes"},
    {"refuses_what_lies_outside_a_source", .fragments = {{HOST_SIZE - 10, 0, 10, HOST}}},
    {"refuses_an_empty_fragment",
     .fragments = {{0, 0, 10, GPU}, {0, 10, 0, GPU}},
     .result = TCPX_INTERNAL_ERROR, .words = "destination offset 10"},
};
/* clang-format on */

TABLE_TEST(lists)
{
    uint32_t count = 0;

    start();
    for (uint32_t i = 0; i < ROOM; i++)
        if (row->fragments[i].length + row->fragments[i].destination_offset > 0)
            add(&row->fragments[i]);
    sizes.pool = row->pool != 0 ? row->pool : POOL_SIZE;
    sizes.message = row->message != 0 ? row->message : sizes.message;
    if (row->words != NULL) {
        build_badly(ROOM, row->result, row->words);
        return;
    }
    while (count < ROOM && row->descriptors[count].length > 0)
        count++;
    build_well(count);
    assert_memory_equal(built, row->descriptors, count * sizeof *built);
}

TEST(leaves_host_fragments_to_the_caller)
{
    uint32_t cursor = 0;
    const struct scatter_fragment *piece;

    start();
    add(&(struct scatter_fragment){0, 0, 30, HOST});
    add(&(struct scatter_fragment){0, 30, 10, SCATTER_POOL});
    add(&(struct scatter_fragment){30, 40, 10, HOST});
    build_well(1);
    assert_int_equal(built[0].destination_offset, 30);
    piece = scatter_list_next_host(&scatter, &cursor);
    assert_ptr_equal(piece, &fragments[0]);
    piece = scatter_list_next_host(&scatter, &cursor);
    assert_ptr_equal(piece, &fragments[2]);
    assert_null(scatter_list_next_host(&scatter, &cursor));
}

TEST(refuses_more_than_fit)
{
    start();
    for (uint32_t i = 0; i < MAX_FRAGMENTS; i++)
        add(&(struct scatter_fragment){i * 64, i * 32, 32, SCATTER_POOL});
    build_badly(MAX_FRAGMENTS - 1, TCPX_INVALID_USAGE,
                "2048 fragments need 2048 descriptors, 2047 fit");
    build_badly(0, TCPX_INVALID_USAGE, "0 fit");
    build_well(MAX_FRAGMENTS);
}

/* Three pages that lie behind each other, of the part of a message that begins at 7000. */
TEST(counts_from_another_place)
{
    start();
    for (uint64_t at = 0; at < 12288; at += 4096)
        add(&(struct scatter_fragment){8192 + at, at, 4096, SCATTER_POOL});
    sizes.source_at = 1 << 20;
    sizes.destination_at = 7000;
    sizes.longest = 8191;
    build_well(3);
    sizes.longest = 8192;
    build_well(2);
    assert_int_equal(built[0].source_offset, (1 << 20) + 8192);
    assert_int_equal(built[0].length, 8192);
    assert_int_equal(built[0].destination_offset, 7000);
    assert_int_equal(built[1].source_offset, (1 << 20) + 16384);
    assert_int_equal(built[1].length, 4096);
    assert_int_equal(built[1].destination_offset, 7000 + 8192);
    sizes.source_at = UINT32_MAX - 16384;
    build_well(2);
    assert_int_equal(built[1].source_offset, UINT32_MAX);
    sizes.source_at++;
    build_badly(2, TCPX_INVALID_USAGE, "do not fit in 32 bits");
}

/* 2048 fragments merge into one descriptor; in any other order they do not tile the message. */
TEST(refuses_any_other_order)
{
    for (uint32_t pattern = 0; pattern < 5; pattern++) {
        start();
        for (uint32_t i = 0; i < MAX_FRAGMENTS; i++) {
            uint32_t place = pattern == 0   ? i
                             : pattern == 1 ? MAX_FRAGMENTS - 1 - i
                             : pattern == 2 ? i ^ 1
                             : pattern == 3 ? i / 2 + (i % 2) * (MAX_FRAGMENTS / 2)
                                            : (i * 1021) % MAX_FRAGMENTS;

            add(&(struct scatter_fragment){place * 16, place * 16, 16, SCATTER_POOL});
        }
        if (pattern > 0) {
            build_badly(1, TCPX_INTERNAL_ERROR, "no fragment for bytes");
            continue;
        }
        build_well(1);
        assert_int_equal(built[0].length, 16 * MAX_FRAGMENTS);
    }
}

static int make_guard(void)
{
    end_of_room = guard_page_after(UNPACK_MAX_DESCRIPTORS * sizeof *end_of_room);
    return end_of_room != NULL ? 0 : -1;
}

SUITE(.name = "rx_descriptor", .set_up = make_guard);
