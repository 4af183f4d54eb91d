/*
 * Shows that the descriptor builder says the same as the scatter list, byte for byte, with as few
 * descriptors as possible and none beyond its limits, and that it refuses every list that does not
 * cover its message exactly once. Lists are compared with a model that knows the source of each
 * byte and nothing of runs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "net/devmem/rx_descriptor.h"

#define GIB           (UINT64_C(1) << 30)
#define POOL_SIZE     (UINT64_C(1) << 20)
#define HOST_SIZE     UINT64_C(65536)
#define MAX_FRAGMENTS UNPACK_MAX_DESCRIPTORS
#define UNTOUCHED     0x5a5a5a5au

static struct rx_fragment fragments[MAX_FRAGMENTS];
static struct rx_scatter scatter;
static struct rx_descriptor_request request;
static struct unpack_descriptor *end_of_room; /* a guard page begins here */
static struct unpack_descriptor *built;
static uint32_t built_count;
static enum rx_problem problem;

static void start(void)
{
    rx_scatter_init(&scatter, fragments, MAX_FRAGMENTS);
    request = (struct rx_descriptor_request){
        .pool_size = POOL_SIZE,
        .host_size = HOST_SIZE,
        .host_base = RX_HOST_APART,
    };
}

static void add(enum rx_source source, uint64_t offset, uint64_t length, uint64_t destination)
{
    const struct rx_fragment fragment = {offset, destination, length, source};

    assert_true(rx_scatter_add(&scatter, &fragment));
    request.message_size += length;
    request.destination_size = request.message_size;
}

static void device(uint64_t offset, uint64_t length, uint64_t destination)
{
    add(RX_SOURCE_DEVICE, offset, length, destination);
}

static void host(uint64_t offset, uint64_t length, uint64_t destination)
{
    add(RX_SOURCE_HOST, offset, length, destination);
}

static int build(uint32_t capacity)
{
    built = end_of_room - capacity;
    memset(built, UNTOUCHED & 0xff, capacity * sizeof *built);
    built_count = UNTOUCHED;
    problem = RX_PROBLEM_COUNT;
    return rx_descriptor_build(&scatter, &request, built, capacity, &built_count, &problem);
}

static void build_well(uint32_t count)
{
    assert_int_equal(build(count), TCPX_SUCCESS);
    assert_int_equal(problem, RX_PROBLEM_NONE);
    assert_int_equal(built_count, count);
}

static void build_badly(uint32_t capacity, enum rx_problem expected, int result, const char *words)
{
    assert_int_equal(build(capacity), result);
    assert_int_equal(problem, expected);
    assert_non_null(strstr(error_text(), words));
    assert_int_equal(built_count, UNTOUCHED);
    for (uint32_t i = 0; i < capacity; i++)
        assert_int_equal(built[i].length, UNTOUCHED);
}

static void expect(uint32_t index, uint32_t source, uint32_t length, uint64_t destination)
{
    assert_true(index < built_count);
    assert_int_equal(built[index].source_offset, source);
    assert_int_equal(built[index].length, length);
    assert_int_equal(built[index].destination_offset, destination);
}

static void builds_nothing_for_an_empty_message(void **state)
{
    (void)state;
    start();
    build_well(0);
}

static void merges_where_both_sides_go_on(void **state)
{
    (void)state;
    start();
    device(4096, 4096, 0);
    device(8192, 4096, 4096);
    device(12288, 1, 8192);
    build_well(1);
    expect(0, 4096, 8193, 0);
}

static void does_not_merge_across_a_jump_of_the_source(void **state)
{
    (void)state;
    start();
    device(4096, 4096, 0);
    device(8193, 4096, 4096);
    device(8192, 1, 8192);
    build_well(3);
    expect(0, 4096, 4096, 0);
    expect(1, 8193, 4096, 4096);
    expect(2, 8192, 1, 8192);
}

/* Neighbours in the pool that another fragment parts in the message. */
static void does_not_merge_across_a_jump_of_the_destination(void **state)
{
    (void)state;
    start();
    device(0, 100, 0);
    device(100, 100, 150);
    device(700, 50, 100);
    build_well(3);
    expect(0, 0, 100, 0);
    expect(1, 700, 50, 100);
    expect(2, 100, 100, 150);

    start();
    device(0, 100, 0);
    host(0, 50, 100);
    device(100, 100, 150);
    build_well(2);
    expect(0, 0, 100, 0);
    expect(1, 100, 100, 150);
}

static void accepts_a_list_in_any_order(void **state)
{
    (void)state;
    start();
    device(8192, 10, 20);
    device(0, 5, 0);
    device(4096, 15, 5);
    build_well(3);
    expect(0, 0, 5, 0);
    expect(1, 4096, 15, 5);
    expect(2, 8192, 10, 20);
}

static void cuts_to_the_largest_length(void **state)
{
    (void)state;
    start();
    request.largest = 4096;
    device(100, 5000, 0);
    device(5100, 3192, 5000);
    build_well(2);
    expect(0, 100, 4096, 0);
    expect(1, 4196, 4096, 4096);

    device(8292, 1, 8192);
    build_well(3);
    expect(2, 8292, 1, 8192);
}

static void leaves_host_fragments_to_the_caller(void **state)
{
    uint32_t cursor = 0;
    const struct rx_fragment *piece;

    (void)state;
    start();
    device(0, 10, 40);
    host(30, 10, 30);
    host(0, 30, 0);
    build_well(1);
    expect(0, 0, 10, 40);
    piece = rx_scatter_next_host(&scatter, &cursor);
    assert_non_null(piece);
    assert_int_equal(piece->destination_offset, 0);
    assert_int_equal(piece->length, 30);
    piece = rx_scatter_next_host(&scatter, &cursor);
    assert_non_null(piece);
    assert_int_equal(piece->destination_offset, 30);
    assert_int_equal(piece->source_offset, 30);
    assert_null(rx_scatter_next_host(&scatter, &cursor));
}

static void describes_a_host_buffer_inside_the_pool(void **state)
{
    (void)state;
    start();
    request.host_base = POOL_SIZE - HOST_SIZE;
    device(0, 10, 0);
    host(HOST_SIZE - 30, 20, 10);
    host(HOST_SIZE - 10, 10, 30);
    build_well(2);
    expect(1, (uint32_t)POOL_SIZE - 30, 30, 10);

    request.host_base++;
    build_badly(4, RX_PROBLEM_ARGUMENT, TCPX_INVALID_ARGUMENT, "host buffer of 65536 bytes at");
}

static void fills_the_whole_pool(void **state)
{
    (void)state;
    start();
    request.pool_size = 4 * GIB;
    device(4 * GIB - 1, 1, 0);
    device(0, UINT32_MAX, 1);
    build_well(2);
    expect(0, UINT32_MAX, 1, 0);
    expect(1, 0, UINT32_MAX, 1);
}

/* A run of 4 GiB has a length of 2^32, which would be 0 in a descriptor. */
static void stops_a_merge_before_it_wraps(void **state)
{
    (void)state;
    start();
    request.pool_size = 4 * GIB;
    device(0, 2 * GIB, 0);
    device(2 * GIB, 2 * GIB, 2 * GIB);
    build_well(2);
    expect(0, 0, 1u << 31, 0);
    expect(1, 1u << 31, 1u << 31, 2 * GIB);

    request.largest = 1u << 30;
    build_well(4);
    expect(3, 3u << 30, 1u << 30, 3 * GIB);
    request.largest = UINT32_MAX;
    build_well(2);
    expect(1, UINT32_MAX, 1, UINT32_MAX);

    start();
    request.pool_size = 4 * GIB;
    device(0, UINT32_MAX - 1, 0);
    device(UINT32_MAX - 1, 1, UINT32_MAX - 1);
    build_well(1);
    expect(0, 0, UINT32_MAX, 0);
}

static void keeps_64_bits_of_the_destination(void **state)
{
    (void)state;
    start();
    request.pool_size = 4 * GIB;
    device(0, 3 * GIB, 0);
    device(0, 3 * GIB, 3 * GIB);
    device(7, 1, 6 * GIB);
    build_well(3);
    expect(2, 7, 1, 6 * GIB);
}

static void refuses_what_32_bits_cannot_say(void **state)
{
    (void)state;
    start();
    request.pool_size = 16 * GIB;
    device(4 * GIB, 1, 0);
    build_badly(4, RX_PROBLEM_TOO_WIDE, TCPX_INVALID_USAGE, "source offset 4294967296 length 1");

    start();
    request.pool_size = 16 * GIB;
    device(0, 4 * GIB, 0);
    build_badly(4, RX_PROBLEM_TOO_WIDE, TCPX_INVALID_USAGE, "length 4294967296");
    request.largest = 1u << 31;
    build_well(2);

    /* Only the last piece begins too far. */
    start();
    request.pool_size = 16 * GIB;
    request.largest = 4096;
    device(4 * GIB - 4096, 4097, 0);
    build_badly(4, RX_PROBLEM_TOO_WIDE, TCPX_INVALID_USAGE, "source offset 4294967296");

    start();
    request.pool_size = 16 * GIB;
    request.host_base = 4 * GIB;
    host(0, 1, 0);
    build_badly(4, RX_PROBLEM_TOO_WIDE, TCPX_INVALID_USAGE, "source offset 4294967296");
}

static void refuses_a_gap(void **state)
{
    static const uint64_t shapes[][2][2] = {
        /* length, destination */
        {{10, 1}, {9, 11}},
        {{10, 0}, {9, 11}},
        {{10, 0}, {9, 10}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        start();
        device(0, shapes[i][0][0], shapes[i][0][1]);
        device(100, shapes[i][1][0], shapes[i][1][1]);
        request.message_size = request.destination_size = 20;
        build_badly(4, RX_PROBLEM_GAP, TCPX_INTERNAL_ERROR, "no fragment for bytes");
    }
    start();
    request.message_size = request.destination_size = 1;
    build_badly(4, RX_PROBLEM_GAP, TCPX_INTERNAL_ERROR, "bytes 0 to 0");
}

static void refuses_an_overlap(void **state)
{
    (void)state;
    start();
    device(0, 10, 0);
    device(10, 11, 9);
    request.message_size = request.destination_size = 20;
    build_badly(4, RX_PROBLEM_OVERLAP, TCPX_INTERNAL_ERROR, "begins before 10");

    /* The same place twice, with lengths that add up to the message. */
    start();
    device(0, 10, 0);
    device(50, 10, 0);
    build_badly(4, RX_PROBLEM_OVERLAP, TCPX_INTERNAL_ERROR, "fragment for 0");

    start();
    device(0, 20, 0);
    host(50, 5, 5);
    request.message_size = request.destination_size = 20;
    build_badly(4, RX_PROBLEM_OVERLAP, TCPX_INTERNAL_ERROR, "fragment for 5");
}

static void refuses_what_lies_outside_the_destination(void **state)
{
    (void)state;
    start();
    device(0, 10, 0);
    request.destination_size = 9;
    build_badly(4, RX_PROBLEM_OUTSIDE_DESTINATION, TCPX_INTERNAL_ERROR, "destination of 9");

    start();
    device(0, 10, 0);
    device(20, 10, 10);
    request.message_size = 19;
    build_badly(4, RX_PROBLEM_OUTSIDE_DESTINATION, TCPX_INTERNAL_ERROR, "message of 19 bytes");

    start();
    device(0, 10, UINT64_MAX - 8);
    build_badly(4, RX_PROBLEM_OUTSIDE_DESTINATION, TCPX_INTERNAL_ERROR, "message of 10 bytes");
}

static void refuses_what_lies_outside_a_source(void **state)
{
    (void)state;
    start();
    device(POOL_SIZE - 9, 10, 0);
    build_badly(4, RX_PROBLEM_OUTSIDE_POOL, TCPX_SYSTEM_ERROR, "in a pool of 1048576 bytes");
    request.pool_size++;
    build_well(1);

    start();
    device(UINT64_MAX, 10, 0);
    build_badly(4, RX_PROBLEM_OUTSIDE_POOL, TCPX_SYSTEM_ERROR, "fragment at 18446744073709551615");

    start();
    host(HOST_SIZE - 9, 10, 0);
    build_badly(4, RX_PROBLEM_OUTSIDE_HOST, TCPX_SYSTEM_ERROR, "in a host buffer of 65536 bytes");
    request.host_size++;
    build_well(0);
}

static void refuses_an_empty_fragment(void **state)
{
    (void)state;
    start();
    device(0, 10, 0);
    fragments[scatter.count++] = (struct rx_fragment){.destination_offset = 10};
    build_badly(4, RX_PROBLEM_EMPTY_FRAGMENT, TCPX_INTERNAL_ERROR, "destination offset 10");
}

static void refuses_more_than_fit(void **state)
{
    (void)state;
    start();
    for (uint32_t i = 0; i < MAX_FRAGMENTS; i++)
        device(i * 64, 32, i * 32);
    build_badly(MAX_FRAGMENTS - 1, RX_PROBLEM_TOO_MANY, TCPX_INVALID_USAGE,
                "2048 fragments need 2048 descriptors, 2047 fit");
    build_well(MAX_FRAGMENTS);

    start();
    request.largest = 16;
    device(0, 33, 0);
    build_badly(2, RX_PROBLEM_TOO_MANY, TCPX_INVALID_USAGE, "1 fragments need 3 descriptors");
    build_badly(0, RX_PROBLEM_TOO_MANY, TCPX_INVALID_USAGE, "0 fit");

    /* More than could ever be counted one by one. */
    start();
    request.largest = 1;
    request.pool_size = UINT64_MAX;
    device(0, 4 * GIB, 0);
    build_badly(4, RX_PROBLEM_TOO_MANY, TCPX_INVALID_USAGE, "need 4294967296 descriptors");
}

static uint32_t random_below(uint32_t limit)
{
    static uint64_t seed = 21;

    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((seed >> 33) % limit);
}

static void shuffle(void)
{
    for (uint32_t i = scatter.count; i > 1; i--) {
        uint32_t other = random_below(i);
        struct rx_fragment swap = fragments[i - 1];

        fragments[i - 1] = fragments[other];
        fragments[other] = swap;
    }
}

/* Where a byte of the message comes from: an address in one space for pool and host buffer. */
#define HOST_ADDRESS (UINT64_C(1) << 40)
#define NOWHERE      UINT64_MAX
#define MODEL_SIZE   65536

static void random_list(void)
{
    uint32_t count = random_below(4) == 0 ? 1 + random_below(300) : 1 + random_below(12);
    uint32_t longest = 1 + random_below(MODEL_SIZE / count);
    uint32_t kind = random_below(3);
    uint64_t previous_end = 0;
    uint64_t destination = 0;
    enum rx_source source = RX_SOURCE_DEVICE;

    start();
    for (uint32_t i = 0; i < count; i++) {
        uint32_t length = 1 + random_below(longest);
        uint64_t size;
        uint64_t offset = previous_end;

        if (random_below(2) == 0)
            source = kind != 0 && random_below(4) == 0 ? RX_SOURCE_HOST : RX_SOURCE_DEVICE;
        size = source == RX_SOURCE_HOST ? HOST_SIZE : POOL_SIZE;
        if (random_below(2) == 0 || offset + length > size)
            offset = random_below((uint32_t)(size - length + 1));
        add(source, offset, length, destination);
        destination += length;
        previous_end = offset + length;
    }
    if (random_below(2) == 0)
        request.largest = 1 + random_below(2 * longest);
    if (kind == 2)
        request.host_base = random_below((uint32_t)(POOL_SIZE - HOST_SIZE + 1));
    request.destination_size += random_below(3);
    shuffle();
}

/* The sources the list gives to the bytes of the message; false: not each exactly one. */
static bool model_list(uint64_t *source, bool *apart)
{
    uint64_t covered = 0;

    for (uint64_t i = 0; i < request.message_size; i++)
        source[i] = NOWHERE;
    for (uint32_t i = 0; i < scatter.count; i++) {
        const struct rx_fragment *fragment = &fragments[i];
        bool in_host = fragment->source == RX_SOURCE_HOST;

        for (uint64_t k = 0; k < fragment->length; k++) {
            uint64_t at = fragment->destination_offset + k;

            if (at >= request.message_size || source[at] != NOWHERE ||
                fragment->source_offset + k >= (in_host ? HOST_SIZE : POOL_SIZE))
                return false;
            apart[at] = in_host && request.host_base == RX_HOST_APART;
            source[at] = fragment->source_offset + k;
            if (in_host)
                source[at] += apart[at] ? HOST_ADDRESS : request.host_base;
            covered++;
        }
    }
    return covered == request.message_size;
}

static uint32_t model_count(const uint64_t *source, const bool *apart)
{
    uint32_t count = 0;
    uint64_t length = 0;

    for (uint64_t i = 0; i < request.message_size; i++) {
        if (apart[i]) {
            length = 0;
            continue;
        }
        if (length == 0 || source[i] != source[i - 1] + 1 || length == request.largest) {
            count++;
            length = 0;
        }
        length++;
    }
    return count;
}

static void compare(const uint64_t *source, bool *apart)
{
    uint64_t described = 0;

    for (uint32_t i = 0; i < built_count; i++) {
        assert_true(built[i].length > 0);
        assert_true(request.largest == 0 || built[i].length <= request.largest);
        for (uint32_t k = 0; k < built[i].length; k++) {
            uint64_t at = built[i].destination_offset + k;

            assert_true(at < request.message_size && !apart[at]);
            if (built[i].source_offset + (uint64_t)k != source[at])
                fail_msg("byte %llu", (unsigned long long)at);
            apart[at] = true;
            described++;
        }
    }
    for (uint32_t i = 0; i < scatter.count; i++)
        if (fragments[i].source == RX_SOURCE_HOST && request.host_base == RX_HOST_APART)
            described += fragments[i].length;
    assert_int_equal(described, request.message_size);
}

static uint64_t model_source[2 * MODEL_SIZE];
static bool model_apart[2 * MODEL_SIZE];

static void says_what_random_lists_say(void **state)
{
    (void)state;
    for (int round = 0; round < 4000; round++) {
        uint32_t count;

        random_list();
        assert_true(model_list(model_source, model_apart));
        count = model_count(model_source, model_apart);
        assert_true(count <= MODEL_SIZE);
        if (count > UNPACK_MAX_DESCRIPTORS) {
            build_badly(UNPACK_MAX_DESCRIPTORS, RX_PROBLEM_TOO_MANY, TCPX_INVALID_USAGE, "need");
            continue;
        }
        build_well(count);
        compare(model_source, model_apart);
        if (count > 0)
            build_badly(count - 1, RX_PROBLEM_TOO_MANY, TCPX_INVALID_USAGE, "descriptors");
    }
}

static void spoil(void)
{
    struct rx_fragment *victim = &fragments[random_below(scatter.count)];

    switch (random_below(6)) {
    case 0:
        victim->length++;
        break;
    case 1:
        victim->destination_offset--;
        break;
    case 2:
        victim->destination_offset += 1 + random_below(5);
        break;
    case 3:
        victim->source_offset += random_below((uint32_t)POOL_SIZE);
        break;
    case 4:
        *victim = fragments[--scatter.count];
        break;
    default:
        request.message_size += random_below(2);
        request.destination_size = request.message_size;
        break;
    }
}

static void judges_spoilt_lists_as_the_model_does(void **state)
{
    uint32_t refused = 0;

    (void)state;
    for (int round = 0; round < 4000; round++) {
        bool good;
        int result;

        random_list();
        request.largest = 0;
        spoil();
        good = model_list(model_source, model_apart);
        result = build(UNPACK_MAX_DESCRIPTORS);
        assert_int_equal(result == TCPX_SUCCESS, good);
        assert_int_equal(problem == RX_PROBLEM_NONE, good);
        if (good)
            compare(model_source, model_apart);
        else
            refused++;
    }
    assert_in_range(refused, 1000, 3900);
}

/* Orders that make a careless sort slow or wrong; each must come out as 2048 merged into one. */
static void sorts_any_order(void **state)
{
    (void)state;
    for (uint32_t pattern = 0; pattern < 5; pattern++) {
        start();
        for (uint32_t i = 0; i < MAX_FRAGMENTS; i++) {
            uint32_t place = pattern == 0   ? i
                             : pattern == 1 ? MAX_FRAGMENTS - 1 - i
                             : pattern == 2 ? i ^ 1
                             : pattern == 3 ? i / 2 + (i % 2) * (MAX_FRAGMENTS / 2)
                                            : (i * 1021) % MAX_FRAGMENTS;

            device(place * 16, 16, place * 16);
        }
        build_well(1);
        expect(0, 0, 16 * MAX_FRAGMENTS, 0);
    }
}

static int make_guard(void **state)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t room =
        (UNPACK_MAX_DESCRIPTORS * sizeof(struct unpack_descriptor) + page - 1) / page * page;
    unsigned char *area =
        mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    (void)state;
    if (area == MAP_FAILED || mprotect(area + room, page, PROT_NONE) != 0)
        return -1;
    end_of_room = (struct unpack_descriptor *)(void *)(area + room);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builds_nothing_for_an_empty_message),
        cmocka_unit_test(merges_where_both_sides_go_on),
        cmocka_unit_test(does_not_merge_across_a_jump_of_the_source),
        cmocka_unit_test(does_not_merge_across_a_jump_of_the_destination),
        cmocka_unit_test(accepts_a_list_in_any_order),
        cmocka_unit_test(cuts_to_the_largest_length),
        cmocka_unit_test(leaves_host_fragments_to_the_caller),
        cmocka_unit_test(describes_a_host_buffer_inside_the_pool),
        cmocka_unit_test(fills_the_whole_pool),
        cmocka_unit_test(stops_a_merge_before_it_wraps),
        cmocka_unit_test(keeps_64_bits_of_the_destination),
        cmocka_unit_test(refuses_what_32_bits_cannot_say),
        cmocka_unit_test(refuses_a_gap),
        cmocka_unit_test(refuses_an_overlap),
        cmocka_unit_test(refuses_what_lies_outside_the_destination),
        cmocka_unit_test(refuses_what_lies_outside_a_source),
        cmocka_unit_test(refuses_an_empty_fragment),
        cmocka_unit_test(refuses_more_than_fit),
        cmocka_unit_test(says_what_random_lists_say),
        cmocka_unit_test(judges_spoilt_lists_as_the_model_does),
        cmocka_unit_test(sorts_any_order),
    };

    return cmocka_run_group_tests_name("rx_descriptor", tests, make_guard, NULL);
}
