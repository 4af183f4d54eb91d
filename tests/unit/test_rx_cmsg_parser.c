/*
 * Shows that the parser of devmem control messages places every byte a kernel can describe, of
 * either flavour, and answers everything else with its own code, a text, and every token it could
 * read. Control buffers end at a guard page, so that reading one byte too far is a crash.
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
#include "net/devmem/rx_cmsg_parser.h"

#define POOL_SIZE     (1u << 20)
#define HOST_SIZE     65536
#define DMABUF_ID     7
#define MAX_FRAGMENTS 64
#define MAX_RANGES    64
#define CONTROL_ROOM  16384

struct bench {
    unsigned char *guard; /* the first byte that must not be read */
    unsigned char control[CONTROL_ROOM];
    size_t control_size;
    struct msghdr message;
    struct rx_cmsg_call call;
    struct rx_fragment fragments[MAX_FRAGMENTS];
    struct rx_scatter scatter;
    struct devmem_token_range ranges[MAX_RANGES];
    struct rx_tokens tokens;
    enum rx_problem problem;
};

static struct bench bench;

static void start(enum rx_flavour flavour)
{
    unsigned char *guard = bench.guard;

    memset(&bench, 0, sizeof bench);
    bench.guard = guard;
    bench.call = (struct rx_cmsg_call){
        .flavour = flavour,
        .message = &bench.message,
        .dmabuf_id = DMABUF_ID,
        .pool_size = POOL_SIZE,
        .host_size = HOST_SIZE,
    };
    rx_scatter_init(&bench.scatter, bench.fragments, MAX_FRAGMENTS);
    rx_tokens_init(&bench.tokens, bench.ranges, MAX_RANGES);
}

static void put(int level, int type, const void *payload, size_t size)
{
    struct cmsghdr header = {.cmsg_len = CMSG_LEN(size), .cmsg_level = level, .cmsg_type = type};

    assert_true(bench.control_size + CMSG_SPACE(size) <= sizeof bench.control);
    memcpy(bench.control + bench.control_size, &header, sizeof header);
    memcpy(bench.control + bench.control_size + CMSG_LEN(0), payload, size);
    bench.control_size += CMSG_SPACE(size);
}

static void put_mainline(int type, struct devmem_fragment fragment)
{
    put(SOL_SOCKET, type, &fragment, sizeof fragment);
}

static void put_device(uint64_t offset, uint32_t size, uint32_t token)
{
    struct devmem_legacy_fragment legacy = {(uint32_t)offset, size, token};

    if (bench.call.flavour == RX_FLAVOUR_LEGACY)
        put(SOL_SOCKET, 99, &legacy, sizeof legacy);
    else
        put_mainline(79, (struct devmem_fragment){offset, size, token, DMABUF_ID, 0});
    bench.call.received += size;
}

/* Fills the fields that mean nothing with nonsense. */
static void put_linear(uint32_t size)
{
    struct devmem_legacy_fragment legacy = {UINT32_MAX, size, 77};

    if (bench.call.flavour == RX_FLAVOUR_LEGACY)
        put(SOL_SOCKET, 98, &legacy, sizeof legacy);
    else
        put_mainline(78, (struct devmem_fragment){UINT64_MAX, size, 77, 99, 0xff});
    bench.call.received += size;
}

static int parse(void)
{
    bench.message.msg_control = bench.guard - bench.control_size;
    bench.message.msg_controllen = bench.control_size;
    memcpy(bench.message.msg_control, bench.control, bench.control_size);
    bench.problem = RX_PROBLEM_COUNT;
    return rx_cmsg_parse(&bench.call, &bench.scatter, &bench.tokens, &bench.problem);
}

static void parse_well(void)
{
    assert_int_equal(parse(), TCPX_SUCCESS);
    assert_int_equal(bench.problem, RX_PROBLEM_NONE);
}

/* The scatter list must be untouched, the text must say `words`. */
static void parse_badly(enum rx_problem problem, int result, const char *words)
{
    struct rx_scatter before = bench.scatter;

    assert_int_equal(parse(), result);
    assert_int_equal(bench.problem, problem);
    assert_non_null(strstr(error_text(), words));
    assert_memory_equal(&bench.scatter, &before, sizeof before);
}

static void expect_fragment(uint32_t index, enum rx_source source, uint64_t offset, uint64_t length,
                            uint64_t destination)
{
    const struct rx_fragment *fragment = &bench.fragments[index];

    assert_true(index < bench.scatter.count);
    assert_int_equal(fragment->source, source);
    assert_int_equal(fragment->source_offset, offset);
    assert_int_equal(fragment->length, length);
    assert_int_equal(fragment->destination_offset, destination);
}

static void expect_range(uint32_t index, uint32_t first, uint32_t count)
{
    assert_true(index < bench.tokens.count);
    assert_int_equal(bench.ranges[index].first, first);
    assert_int_equal(bench.ranges[index].count, count);
}

static const enum rx_flavour flavours[] = {RX_FLAVOUR_MAINLINE, RX_FLAVOUR_LEGACY};

static void places_device_pages(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        start(flavours[i]);
        bench.call.destination_offset = 1000;
        put_device(8192, 4096, 1);
        put_device(0, 100, 2);
        put_device(POOL_SIZE - 1, 1, 9);
        parse_well();
        assert_int_equal(bench.scatter.count, 3);
        expect_fragment(0, RX_SOURCE_DEVICE, 8192, 4096, 1000);
        expect_fragment(1, RX_SOURCE_DEVICE, 0, 100, 5096);
        expect_fragment(2, RX_SOURCE_DEVICE, POOL_SIZE - 1, 1, 5196);
        assert_int_equal(bench.scatter.device_fragments, 3);
        assert_int_equal(bench.scatter.device_bytes, 4197);
        assert_int_equal(bench.scatter.linear_fragments, 0);
        assert_int_equal(bench.tokens.count, 2);
        expect_range(0, 1, 2);
        expect_range(1, 9, 1);
    }
}

static void places_linear_bytes_in_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        start(flavours[i]);
        bench.call.host_offset = 500;
        put_linear(30);
        put_device(4096, 70, 5);
        put_linear(7);
        parse_well();
        assert_int_equal(bench.scatter.count, 3);
        expect_fragment(0, RX_SOURCE_HOST, 500, 30, 0);
        expect_fragment(1, RX_SOURCE_DEVICE, 4096, 70, 30);
        expect_fragment(2, RX_SOURCE_HOST, 530, 7, 100);
        assert_int_equal(bench.scatter.linear_fragments, 2);
        assert_int_equal(bench.scatter.linear_bytes, 37);
        assert_int_equal(bench.scatter.device_bytes, 70);
        assert_int_equal(bench.scatter.plain_reads, 0);
        assert_int_equal(bench.tokens.count, 1);
        expect_range(0, 5, 1);
    }
}

static void takes_a_call_without_messages_as_plain(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        start(flavours[i]);
        bench.call.received = 1234;
        bench.call.host_offset = 10;
        bench.call.destination_offset = 99;
        parse_well();
        assert_int_equal(bench.scatter.count, 1);
        expect_fragment(0, RX_SOURCE_HOST, 10, 1234, 99);
        assert_int_equal(bench.scatter.plain_reads, 1);
        assert_int_equal(bench.scatter.plain_bytes, 1234);
        assert_int_equal(bench.scatter.linear_fragments, 0);
        assert_int_equal(bench.tokens.count, 0);
    }
}

static void takes_the_end_of_a_stream(void **state)
{
    (void)state;
    start(RX_FLAVOUR_MAINLINE);
    assert_int_equal(rx_cmsg_parse(&bench.call, &bench.scatter, &bench.tokens, &bench.problem), 0);
    assert_int_equal(bench.problem, RX_PROBLEM_NONE);
    assert_int_equal(bench.scatter.count, 0);
    assert_int_equal(bench.scatter.plain_reads, 0);
}

static void appends_call_after_call(void **state)
{
    (void)state;
    start(RX_FLAVOUR_MAINLINE);
    put_device(0, 10, 1);
    parse_well();
    bench.control_size = 0;
    bench.call.received = 0;
    bench.call.destination_offset = 10;
    put_device(4096, 20, 2);
    parse_well();
    assert_int_equal(bench.scatter.count, 2);
    expect_fragment(1, RX_SOURCE_DEVICE, 4096, 20, 10);
    assert_int_equal(bench.scatter.device_bytes, 30);
    assert_int_equal(bench.tokens.count, 1);
    expect_range(0, 1, 2);
}

static void merges_tokens_only_upwards_and_never_around(void **state)
{
    (void)state;
    start(RX_FLAVOUR_MAINLINE);
    put_device(0, 1, UINT32_MAX - 1);
    put_device(0, 1, UINT32_MAX);
    put_device(0, 1, 0);
    put_device(0, 1, 1);
    put_device(0, 1, 3);
    put_device(0, 1, 2);
    put_device(0, 1, 2);
    parse_well();
    assert_int_equal(bench.tokens.count, 5);
    expect_range(0, UINT32_MAX - 1, 2);
    expect_range(1, 0, 2);
    expect_range(2, 3, 1);
    expect_range(3, 2, 1);
    expect_range(4, 2, 1);
}

static void handles_offsets_beyond_32_bits(void **state)
{
    (void)state;
    start(RX_FLAVOUR_MAINLINE);
    bench.call.pool_size = UINT64_C(1) << 40;
    bench.call.destination_offset = UINT64_C(1) << 33;
    put_device((UINT64_C(1) << 40) - 4096, 4096, 1);
    put_device(0, UINT32_MAX, 2);
    put_device(0, UINT32_MAX, 3);
    parse_well();
    expect_fragment(0, RX_SOURCE_DEVICE, (UINT64_C(1) << 40) - 4096, 4096, UINT64_C(1) << 33);
    expect_fragment(2, RX_SOURCE_DEVICE, 0, UINT32_MAX,
                    (UINT64_C(1) << 33) + 4096 + UINT64_C(0xffffffff));
}

static void keeps_only_the_token_of_an_empty_fragment(void **state)
{
    (void)state;
    start(RX_FLAVOUR_MAINLINE);
    put_device(POOL_SIZE, 0, 4);
    put_linear(0);
    put_device(64, 8, 5);
    parse_well();
    assert_int_equal(bench.scatter.count, 1);
    expect_fragment(0, RX_SOURCE_DEVICE, 64, 8, 0);
    assert_int_equal(bench.tokens.count, 1);
    expect_range(0, 4, 2);
}

static void skips_what_the_owner_asked_for(void **state)
{
    static const int stamps[] = {29, 35, 37, 63, 64, 65};
    char payload[48] = {0};

    (void)state;
    start(RX_FLAVOUR_MAINLINE);
    for (size_t i = 0; i < sizeof stamps / sizeof *stamps; i++)
        put(SOL_SOCKET, stamps[i], payload, sizeof payload);
    put_device(0, 5, 1);
    put(6, 36, payload, 4);
    parse_well();
    assert_int_equal(bench.scatter.count, 1);

    start(RX_FLAVOUR_MAINLINE);
    put(6, 36, payload, 4);
    bench.call.received = 9;
    parse_well();
    assert_int_equal(bench.scatter.plain_bytes, 9);
}

static void reads_a_buffer_without_the_last_padding(void **state)
{
    struct devmem_legacy_fragment legacy = {4096, 11, 3};

    (void)state;
    start(RX_FLAVOUR_LEGACY);
    put(SOL_SOCKET, 99, &legacy, sizeof legacy);
    bench.call.received = 11;
    for (size_t cut = 0; cut <= CMSG_SPACE(12) - CMSG_LEN(12); cut++) {
        bench.control_size = CMSG_SPACE(12) - cut;
        rx_scatter_reset(&bench.scatter);
        parse_well();
        expect_fragment(0, RX_SOURCE_DEVICE, 4096, 11, 0);
    }
}

static void refuses_truncated_control(void **state)
{
    (void)state;
    start(RX_FLAVOUR_LEGACY);
    put_device(0, 100, 1);
    put_device(4096, 100, 2);
    bench.control_size -= 8;
    bench.call.received += 400;
    bench.message.msg_flags = MSG_CTRUNC;
    parse_badly(RX_PROBLEM_TRUNCATED, TCPX_SYSTEM_ERROR, "cut off after 56 bytes");
    assert_int_equal(bench.tokens.count, 1);
    expect_range(0, 1, 1);

    /* Also when nothing is left that could be taken for a message. */
    start(RX_FLAVOUR_MAINLINE);
    bench.call.received = 400;
    bench.message.msg_flags = MSG_CTRUNC;
    parse_badly(RX_PROBLEM_TRUNCATED, TCPX_SYSTEM_ERROR, "400 bytes received");
}

static void refuses_a_broken_chain(void **state)
{
    static const size_t lengths[] = {0, 1, 15, CMSG_LEN(24) + 1, SIZE_MAX, SIZE_MAX - 7};

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        start(RX_FLAVOUR_MAINLINE);
        put_device(0, 100, 1);
        put_device(4096, 100, 2);
        memcpy(bench.control + CMSG_SPACE(24), &lengths[i], sizeof lengths[i]);
        parse_badly(RX_PROBLEM_BROKEN_CONTROL, TCPX_SYSTEM_ERROR, "control message 1: length");
        assert_int_equal(bench.tokens.count, 1);
        expect_range(0, 1, 1);
    }
    start(RX_FLAVOUR_MAINLINE);
    put_device(0, 100, 1);
    bench.control_size += 15;
    parse_badly(RX_PROBLEM_BROKEN_CONTROL, TCPX_SYSTEM_ERROR, "15 bytes left");
    assert_int_equal(bench.tokens.count, 1);
}

static void refuses_an_unknown_message_but_keeps_tokens(void **state)
{
    static const struct {
        int level, type;
    } unknown[] = {{SOL_SOCKET, 1}, {SOL_SOCKET, 80}, {SOL_SOCKET, 97}, {6, 35}, {0, 79}, {41, 36}};

    (void)state;
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        start(RX_FLAVOUR_MAINLINE);
        put_device(0, 100, 1);
        put(unknown[i].level, unknown[i].type, "abcdefgh", 8);
        put_device(4096, 100, 2);
        put_device(8192, 100, 40);
        parse_badly(RX_PROBLEM_UNKNOWN_MESSAGE, TCPX_SYSTEM_ERROR, "control message 1: unknown");
        assert_int_equal(bench.tokens.count, 2);
        expect_range(0, 1, 2);
        expect_range(1, 40, 1);
    }
}

/* Taken for plain data, device bytes would become whatever the iovec held. */
static void refuses_messages_of_the_other_kernel(void **state)
{
    struct devmem_legacy_fragment legacy = {0, 10, 1};

    (void)state;
    for (int type = 98; type <= 99; type++) {
        start(RX_FLAVOUR_MAINLINE);
        put(SOL_SOCKET, type, &legacy, sizeof legacy);
        bench.call.received = 10;
        parse_badly(RX_PROBLEM_OTHER_KERNEL, TCPX_SYSTEM_ERROR, "of the legacy kernel");
        assert_int_equal(bench.tokens.count, 0);
    }
    for (int type = 78; type <= 79; type++) {
        start(RX_FLAVOUR_LEGACY);
        put_mainline(type, (struct devmem_fragment){0, 10, 1, DMABUF_ID, 0});
        bench.call.received = 10;
        parse_badly(RX_PROBLEM_OTHER_KERNEL, TCPX_SYSTEM_ERROR, "of the mainline kernel");
        assert_int_equal(bench.tokens.count, 0);
    }
}

static void refuses_a_payload_of_another_size(void **state)
{
    char payload[64] = {0};

    (void)state;
    for (size_t flavour = 0; flavour < 2; flavour++) {
        for (size_t size = 0; size < sizeof payload; size++) {
            if (size == (flavours[flavour] == RX_FLAVOUR_MAINLINE ? 24 : 12))
                continue;
            start(flavours[flavour]);
            put(SOL_SOCKET, flavours[flavour] == RX_FLAVOUR_MAINLINE ? 79 : 99, payload, size);
            put_device(0, 100, 8);
            parse_badly(RX_PROBLEM_MESSAGE_SIZE, TCPX_SYSTEM_ERROR, "bytes, expected");
            assert_int_equal(bench.tokens.count, 1);
            expect_range(0, 8, 1);
        }
    }

    /* With nothing else in the call its bytes must not pass as plain. */
    start(RX_FLAVOUR_MAINLINE);
    put(SOL_SOCKET, 78, payload, 4);
    bench.call.received = 4;
    parse_badly(RX_PROBLEM_MESSAGE_SIZE, TCPX_SYSTEM_ERROR, "type 78 with 4 bytes, expected 24");
}

static void refuses_reserved_flags(void **state)
{
    (void)state;
    start(RX_FLAVOUR_MAINLINE);
    put_mainline(79, (struct devmem_fragment){0, 10, 3, DMABUF_ID, 0x80000000u});
    bench.call.received = 10;
    parse_badly(RX_PROBLEM_UNKNOWN_FLAGS, TCPX_SYSTEM_ERROR, "flags 0x80000000");
    expect_range(0, 3, 1);
}

static void refuses_another_dmabuf(void **state)
{
    (void)state;
    start(RX_FLAVOUR_MAINLINE);
    put_device(0, 10, 3);
    put_mainline(79, (struct devmem_fragment){0, 10, 4, DMABUF_ID + 1, 0});
    bench.call.received += 10;
    parse_badly(RX_PROBLEM_WRONG_DMABUF, TCPX_SYSTEM_ERROR, "dma-buf 8, expected 7");
    expect_range(0, 3, 2);
}

static void refuses_pages_outside_the_pool(void **state)
{
    static const struct {
        uint64_t offset;
        uint32_t size;
    } outside[] = {{POOL_SIZE, 1},       {POOL_SIZE - 1, 2}, {0, POOL_SIZE + 1}, {UINT64_MAX, 1},
                   {UINT64_MAX - 9, 10}, {UINT32_MAX, 1},    {POOL_SIZE + 1, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        start(RX_FLAVOUR_MAINLINE);
        put_device(outside[i].offset, outside[i].size, 6);
        parse_badly(RX_PROBLEM_OUTSIDE_POOL, TCPX_SYSTEM_ERROR, "in a pool of 1048576 bytes");
        expect_range(0, 6, 1);
    }
    start(RX_FLAVOUR_LEGACY);
    put_device(UINT32_MAX, 2, 6);
    parse_badly(RX_PROBLEM_OUTSIDE_POOL, TCPX_SYSTEM_ERROR, "offset 4294967295 length 2");
}

static void refuses_more_host_bytes_than_room(void **state)
{
    (void)state;
    start(RX_FLAVOUR_MAINLINE);
    bench.call.host_offset = HOST_SIZE - 10;
    put_linear(6);
    put_linear(4);
    parse_well();
    rx_scatter_reset(&bench.scatter);
    put_linear(1);
    parse_badly(RX_PROBLEM_OUTSIDE_HOST, TCPX_SYSTEM_ERROR, "1 bytes after 10");

    start(RX_FLAVOUR_MAINLINE);
    bench.call.received = HOST_SIZE + 1;
    parse_badly(RX_PROBLEM_OUTSIDE_HOST, TCPX_SYSTEM_ERROR, "room for 65536");
}

static void refuses_lengths_that_disagree(void **state)
{
    (void)state;
    for (int delta = -1; delta <= 1; delta += 2) {
        start(RX_FLAVOUR_MAINLINE);
        put_linear(30);
        put_device(0, 100, 1);
        bench.call.received += delta;
        parse_badly(RX_PROBLEM_LENGTH, TCPX_SYSTEM_ERROR, "describe 130");
        expect_range(0, 1, 1);
    }

    /* Device bytes at what looks like the end of the stream. */
    start(RX_FLAVOUR_MAINLINE);
    put_device(0, 100, 1);
    bench.call.received = 0;
    parse_badly(RX_PROBLEM_LENGTH, TCPX_SYSTEM_ERROR, "gave 0 bytes");

    /* Bytes that only empty messages describe are not plain. */
    start(RX_FLAVOUR_MAINLINE);
    put_device(0, 0, 1);
    bench.call.received = 50;
    parse_badly(RX_PROBLEM_LENGTH, TCPX_SYSTEM_ERROR, "gave 50 bytes");
}

static void can_be_repeated_when_fragments_are_full(void **state)
{
    (void)state;
    start(RX_FLAVOUR_MAINLINE);
    bench.scatter.capacity = 2;
    rx_tokens_init(&bench.tokens, bench.ranges, 2);
    assert_true(rx_tokens_add(&bench.tokens, 4));
    for (uint32_t i = 0; i < 3; i++)
        put_device(i * 4096, 100, 5 + i);
    parse_badly(RX_PROBLEM_FRAGMENTS_FULL, TCPX_INVALID_USAGE, "0 of 2 fragments in use");
    assert_int_equal(bench.tokens.count, 1);
    expect_range(0, 4, 1);

    bench.scatter.capacity = 3;
    parse_well();
    assert_int_equal(bench.scatter.count, 3);
    assert_int_equal(bench.tokens.count, 1);
    expect_range(0, 4, 4);
}

static void can_be_repeated_when_tokens_are_full(void **state)
{
    (void)state;
    start(RX_FLAVOUR_MAINLINE);
    rx_tokens_init(&bench.tokens, bench.ranges, 2);
    assert_true(rx_tokens_add(&bench.tokens, 1));
    put_device(0, 100, 2);
    put_device(0, 100, 4);
    put_device(0, 100, 6);
    parse_badly(RX_PROBLEM_TOKENS_FULL, TCPX_INVALID_USAGE, "1 of 2 token ranges in use");
    assert_int_equal(bench.tokens.count, 1);
    expect_range(0, 1, 1);

    bench.tokens.capacity = 3;
    parse_well();
    assert_int_equal(bench.tokens.count, 3);
    expect_range(0, 1, 2);
    assert_int_equal(bench.scatter.count, 3);

    /* A bad call whose tokens do not fit is repeated too, or they would be lost. */
    start(RX_FLAVOUR_MAINLINE);
    bench.tokens.capacity = 1;
    put_device(POOL_SIZE, 100, 2);
    put_device(0, 100, 4);
    parse_badly(RX_PROBLEM_TOKENS_FULL, TCPX_INVALID_USAGE, "0 of 1 token ranges in use");
    assert_int_equal(bench.tokens.count, 0);
    bench.tokens.capacity = 2;
    parse_badly(RX_PROBLEM_OUTSIDE_POOL, TCPX_SYSTEM_ERROR, "control message 0: offset 1048576");
    assert_int_equal(bench.tokens.count, 2);
}

/* Making room would not help a call that is bad in itself. */
static void reports_the_kernel_before_the_room(void **state)
{
    (void)state;
    start(RX_FLAVOUR_MAINLINE);
    bench.scatter.capacity = 1;
    put_device(0, 100, 2);
    put_device(0, 100, 3);
    put_device(POOL_SIZE, 100, 4);
    parse_badly(RX_PROBLEM_OUTSIDE_POOL, TCPX_SYSTEM_ERROR, "control message 2");
    expect_range(0, 2, 3);
}

static void refuses_a_call_without_sense(void **state)
{
    (void)state;
    start(RX_FLAVOUR_MAINLINE);
    put_device(0, 1, 1);
    bench.call.received = -1;
    parse_badly(RX_PROBLEM_ARGUMENT, TCPX_INVALID_ARGUMENT, "recvmsg failed");

    bench.call.received = 1;
    bench.call.flavour = (enum rx_flavour)2;
    parse_badly(RX_PROBLEM_ARGUMENT, TCPX_INVALID_ARGUMENT, "flavour 2");

    bench.call.flavour = RX_FLAVOUR_MAINLINE;
    bench.call.destination_offset = UINT64_MAX;
    parse_badly(RX_PROBLEM_ARGUMENT, TCPX_INVALID_ARGUMENT, "at destination offset");

    bench.call.destination_offset = 0;
    bench.call.host_offset = HOST_SIZE + 1;
    parse_badly(RX_PROBLEM_ARGUMENT, TCPX_INVALID_ARGUMENT, "in a host buffer of 65536");
    assert_int_equal(bench.tokens.count, 0);

    bench.call.host_offset = 0;
    bench.message.msg_control = NULL;
    bench.message.msg_controllen = 40;
    assert_int_equal(rx_cmsg_parse(&bench.call, &bench.scatter, &bench.tokens, &bench.problem),
                     TCPX_INVALID_ARGUMENT);
    assert_int_equal(bench.problem, RX_PROBLEM_ARGUMENT);
}

static void sizes_control_buffers_as_the_kernel_does(void **state)
{
    (void)state;
    assert_int_equal(rx_cmsg_space(RX_FLAVOUR_MAINLINE, 1), 40);
    assert_int_equal(rx_cmsg_space(RX_FLAVOUR_LEGACY, 2048), 65536);
    assert_true(rx_cmsg_space(RX_FLAVOUR_MAINLINE, UINT32_MAX) == (size_t)40 * UINT32_MAX);
}

static void names_every_problem_differently(void **state)
{
    (void)state;
    for (int i = 0; i < RX_PROBLEM_COUNT; i++) {
        assert_non_null(rx_problem_name((enum rx_problem)i));
        for (int k = 0; k < i; k++)
            assert_string_not_equal(rx_problem_name((enum rx_problem)i),
                                    rx_problem_name((enum rx_problem)k));
    }
    assert_string_equal(rx_problem_name(RX_PROBLEM_COUNT), "unknown problem");
    assert_string_equal(rx_problem_name((enum rx_problem) - 1), "unknown problem");
}

static uint32_t random_below(uint32_t limit)
{
    static uint64_t seed = 20;

    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((seed >> 33) % limit);
}

/*
 * A kernel made of random choices: the stream it delivers is known byte by byte, and so are the
 * tokens it handed out, so both can be compared without looking at how the parser works.
 */
struct model {
    unsigned char pool[POOL_SIZE];
    unsigned char host[HOST_SIZE];
    unsigned char stream[POOL_SIZE];
    uint32_t tokens[MAX_FRAGMENTS];
    uint32_t token_count;
    size_t length;
    size_t host_used;
};

static void deliver_device(struct model *model)
{
    uint32_t size = 1 + random_below(4096);
    uint32_t offset = random_below(POOL_SIZE - size + 1);
    uint32_t token = random_below(3) == 0 || model->token_count == 0
                         ? random_below(1u << 31)
                         : model->tokens[model->token_count - 1] + 1;

    put_device(offset, size, token);
    memcpy(model->stream + model->length, model->pool + offset, size);
    model->length += size;
    model->tokens[model->token_count++] = token;
}

static void deliver_linear(struct model *model)
{
    uint32_t size = 1 + random_below(200);

    put_linear(size);
    for (uint32_t i = 0; i < size; i++)
        model->host[model->host_used + i] = (unsigned char)random_below(256);
    memcpy(model->stream + model->length, model->host + model->host_used, size);
    model->length += size;
    model->host_used += size;
}

/* One call of recvmsg; in a plain one everything goes to the iovec. */
static void deliver_call(struct model *model)
{
    uint32_t messages = 1 + random_below(8);

    bench.control_size = 0;
    bench.call.received = 0;
    bench.call.destination_offset = model->length;
    bench.call.host_offset = model->host_used;
    if (random_below(8) == 0) {
        deliver_linear(model);
        bench.control_size = 0;
        return;
    }
    for (uint32_t i = 0; i < messages; i++) {
        if (random_below(4) == 0)
            deliver_linear(model);
        else
            deliver_device(model);
    }
}

static void compare_stream(const struct model *model)
{
    static unsigned char gathered[POOL_SIZE];

    memset(gathered, 0, model->length);
    for (uint32_t i = 0; i < bench.scatter.count; i++) {
        const struct rx_fragment *fragment = &bench.fragments[i];
        const unsigned char *from =
            fragment->source == RX_SOURCE_DEVICE ? model->pool : model->host;

        memcpy(gathered + fragment->destination_offset, from + fragment->source_offset,
               fragment->length);
    }
    assert_memory_equal(gathered, model->stream, model->length);
    assert_int_equal(bench.scatter.device_bytes + bench.scatter.linear_bytes +
                         bench.scatter.plain_bytes,
                     model->length);
    assert_int_equal(bench.scatter.linear_bytes + bench.scatter.plain_bytes, model->host_used);
}

static void compare_tokens(const struct model *model)
{
    uint32_t seen = 0;

    for (uint32_t i = 0; i < bench.tokens.count; i++) {
        for (uint32_t k = 0; k < bench.ranges[i].count; k++)
            assert_int_equal(bench.ranges[i].first + k, model->tokens[seen++]);
        if (i > 0)
            assert_true(bench.ranges[i - 1].first + bench.ranges[i - 1].count !=
                        bench.ranges[i].first);
    }
    assert_int_equal(seen, model->token_count);
}

static void places_what_random_kernels_deliver(void **state)
{
    static struct model model;

    (void)state;
    for (size_t i = 0; i < sizeof model.pool; i++)
        model.pool[i] = (unsigned char)random_below(256);
    for (int round = 0; round < 3000; round++) {
        model.length = model.host_used = model.token_count = 0;
        start(flavours[round % 2]);
        for (uint32_t calls = 1 + random_below(8); calls > 0; calls--) {
            deliver_call(&model);
            parse_well();
        }
        compare_stream(&model);
        compare_tokens(&model);
    }
}

/* Whatever one changed byte means, the call succeeds as a whole or leaves the list alone. */
static void survives_every_changed_byte(void **state)
{
    static struct model model;

    (void)state;
    for (size_t flavour = 0; flavour < 2; flavour++) {
        model.length = model.host_used = model.token_count = 0;
        start(flavours[flavour]);
        deliver_call(&model);
        for (size_t at = 0; at < bench.control_size; at++) {
            for (unsigned int bit = 0; bit < 8; bit++) {
                rx_scatter_reset(&bench.scatter);
                bench.tokens.count = 0;
                bench.control[at] ^= (unsigned char)(1u << bit);
                if (parse() != TCPX_SUCCESS)
                    assert_int_equal(bench.scatter.count, 0);
                assert_int_equal(bench.problem == RX_PROBLEM_NONE, bench.scatter.count > 0);
                bench.control[at] ^= (unsigned char)(1u << bit);
            }
        }
    }
}

static int make_guard(void **state)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t room = (CONTROL_ROOM + page - 1) / page * page;
    unsigned char *area =
        mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    (void)state;
    if (area == MAP_FAILED || mprotect(area + room, page, PROT_NONE) != 0)
        return -1;
    bench.guard = area + room;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_device_pages),
        cmocka_unit_test(places_linear_bytes_in_order),
        cmocka_unit_test(takes_a_call_without_messages_as_plain),
        cmocka_unit_test(takes_the_end_of_a_stream),
        cmocka_unit_test(appends_call_after_call),
        cmocka_unit_test(merges_tokens_only_upwards_and_never_around),
        cmocka_unit_test(handles_offsets_beyond_32_bits),
        cmocka_unit_test(keeps_only_the_token_of_an_empty_fragment),
        cmocka_unit_test(skips_what_the_owner_asked_for),
        cmocka_unit_test(reads_a_buffer_without_the_last_padding),
        cmocka_unit_test(refuses_truncated_control),
        cmocka_unit_test(refuses_a_broken_chain),
        cmocka_unit_test(refuses_an_unknown_message_but_keeps_tokens),
        cmocka_unit_test(refuses_messages_of_the_other_kernel),
        cmocka_unit_test(refuses_a_payload_of_another_size),
        cmocka_unit_test(refuses_reserved_flags),
        cmocka_unit_test(refuses_another_dmabuf),
        cmocka_unit_test(refuses_pages_outside_the_pool),
        cmocka_unit_test(refuses_more_host_bytes_than_room),
        cmocka_unit_test(refuses_lengths_that_disagree),
        cmocka_unit_test(can_be_repeated_when_fragments_are_full),
        cmocka_unit_test(can_be_repeated_when_tokens_are_full),
        cmocka_unit_test(reports_the_kernel_before_the_room),
        cmocka_unit_test(refuses_a_call_without_sense),
        cmocka_unit_test(sizes_control_buffers_as_the_kernel_does),
        cmocka_unit_test(names_every_problem_differently),
        cmocka_unit_test(places_what_random_kernels_deliver),
        cmocka_unit_test(survives_every_changed_byte),
    };

    return cmocka_run_group_tests_name("rx_cmsg_parser", tests, make_guard, NULL);
}
