/*
 * Shows that the parser of devmem control messages places every byte a kernel can describe, of
 * either layout, and answers everything else with a text of its own and every token it could read.
 * Control buffers end at a guard page, so that reading one byte too far is a crash.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "net/devmem/control_messages.h"
#include "tests/support/guard_page.h"
#include "tests/unit/checks.h"

#define POOL_SIZE     (1u << 20)
#define HOST_SIZE     65536
#define DMABUF_ID     7
#define MAX_FRAGMENTS 64
#define CONTROL_ROOM  16384

struct bench {
    unsigned char *guard; /* the first byte that must not be read */
    unsigned char control[CONTROL_ROOM];
    size_t control_size;
    struct msghdr message;
    struct devmem_call call;
    struct scatter_fragment fragments[MAX_FRAGMENTS];
    struct scatter_list scatter;
    struct devmem_token_range ranges[MAX_FRAGMENTS];
    struct token_list tokens;
};

static struct bench bench;

static void start(enum devmem_layout layout)
{
    unsigned char *guard = bench.guard;

    memset(&bench, 0, sizeof bench);
    bench.guard = guard;
    bench.call = (struct devmem_call){
        .layout = layout,
        .message = &bench.message,
        .dmabuf_id = DMABUF_ID,
        .pool_size = POOL_SIZE,
        .host_size = HOST_SIZE,
    };
    scatter_list_init(&bench.scatter, bench.fragments, MAX_FRAGMENTS);
    token_list_init(&bench.tokens, bench.ranges, MAX_FRAGMENTS);
}

/* --- control messages ---------------------------------------------------------------------- */

static void put(int level, int type, const void *payload, size_t size)
{
    struct cmsghdr header = {.cmsg_len = CMSG_LEN(size), .cmsg_level = level, .cmsg_type = type};

    assert_true(bench.control_size + CMSG_SPACE(size) <= sizeof bench.control);
    memcpy(bench.control + bench.control_size, &header, sizeof header);
    memcpy(bench.control + bench.control_size + CMSG_LEN(0), payload, size);
    bench.control_size += CMSG_SPACE(size);
}

/* In the form of the call's kernel; `device`: or else linear. */
static void put_fragment(bool device, struct devmem_fragment fragment)
{
    struct devmem_legacy_fragment legacy = {(uint32_t)fragment.offset, fragment.size,
                                            fragment.token};

    if (bench.call.layout == DEVMEM_LAYOUT_LEGACY)
        put(SOL_SOCKET, device ? 99 : 98, &legacy, sizeof legacy);
    else
        put(SOL_SOCKET, device ? 79 : 78, &fragment, sizeof fragment);
    bench.call.received += fragment.size;
}

static void put_device(uint64_t offset, uint32_t size, uint32_t token)
{
    put_fragment(true, (struct devmem_fragment){offset, size, token, DMABUF_ID, 0});
}

/* Fills the fields that mean nothing with nonsense. */
static void put_linear(uint32_t size)
{
    put_fragment(false, (struct devmem_fragment){UINT64_MAX, size, 77, 99, 0xff});
}

static int parse(void)
{
    unsigned char *control = bench.guard - bench.control_size;

    memcpy(control, bench.control, bench.control_size);
    bench.message.msg_control = bench.control_size > 0 || bench.call.received != 0 ? control : NULL;
    bench.message.msg_controllen = bench.control_size;
    return control_messages_read(&bench.call, &bench.scatter, &bench.tokens);
}

/* The scatter list must be untouched, the text must say `words`. */
static void parse_badly(int result, const char *words)
{
    struct scatter_list before = bench.scatter;

    assert_int_equal(parse(), result);
    expect_text(words);
    assert_memory_equal(&bench.scatter, &before, sizeof before);
}

static void expect_ranges(const struct devmem_token_range *ranges, uint32_t count)
{
    assert_int_equal(bench.tokens.count, count);
    assert_memory_equal(bench.ranges, ranges, count * sizeof *ranges);
}

/* --- calls, and what must be in the lists behind them -------------------------------------- */

enum { END, DEVICE, LINEAR, OTHER, ROOM = 8 };

struct call {
    const char *name; /* of the test that it belongs to */
    struct {
        int kind;
        uint64_t offset;
        uint32_t size;
        uint32_t token;
        uint32_t dmabuf_id; /* 0: the right one */
        uint32_t flags;
        int level; /* of an OTHER: with `size` bytes, which describe nothing */
        int type;
    } messages[ROOM];
    enum devmem_layout layout;
    bool either;   /* it is the same with the other layout */
    ssize_t more;  /* bytes received than the messages describe */
    int longer;    /* so much than the messages is the control buffer */
    int flags;     /* of the message */
    uint32_t room; /* for fragments, and for ranges; 0: enough */
    uint64_t pool; /* its size; 0: as usual */
    uint64_t destination;
    uint64_t host;
    const char *words; /* of the error; NULL: none */
    struct scatter_fragment fragments[ROOM];
    struct devmem_token_range ranges[ROOM];
};

/* clang-format off */
#define PAGE(...) {.kind = DEVICE, __VA_ARGS__}
#define LINE(length) {.kind = LINEAR, .size = (length)}
#define SOME(level_, type_, bytes)                                                                \
    {.kind = OTHER, .level = (level_), .type = (type_), .size = (bytes)}
#define BEYOND_32 (UINT64_C(1) << 33)

#define UNKNOWN(level_, type_)                                                                     \
    {"refuses_an_unknown_message_but_keeps_tokens",                                                \
     {PAGE(0, 100, 1), SOME(level_, type_, 8), PAGE(4096, 100, 2), PAGE(8192, 100, 40)},           \
     .words = "control message 1: unknown", .ranges = {{1, 2}, {40, 1}}}
#define FOREIGN(layout_, type_, words_)                                                           \
    {"refuses_messages_of_the_other_kernel", {SOME(SOL_SOCKET, type_, 12)},                        \
     .layout = (layout_), .more = 10, .words = (words_)}
#define OUTSIDE(offset_, size_)                                                                    \
    {"refuses_pages_outside_the_pool", {PAGE(offset_, size_, 6)},                                  \
     .words = "in a pool of 1048576 bytes", .ranges = {{6, 1}}}

#define GPU  SCATTER_POOL
#define HOST SCATTER_HOST

/* Fragments: offset, destination, length, source. */
static const struct call calls[] = {
    {"places_device_pages",
     {PAGE(8192, 4096, 1), PAGE(0, 100, 2), PAGE(POOL_SIZE - 1, 1, 9)},
     .either = true, .destination = 1000,
     .fragments = {{8192, 1000, 4096, GPU}, {0, 5096, 100, GPU}, {POOL_SIZE - 1, 5196, 1, GPU}},
     .ranges = {{1, 2}, {9, 1}}},
    {"places_linear_bytes_in_order",
     {LINE(30), PAGE(4096, 70, 5), LINE(7)},
     .either = true, .host = 500,
     .fragments = {{500, 0, 30, HOST}, {4096, 30, 70, GPU}, {530, 100, 7, HOST}},
     .ranges = {{5, 1}}},
    {"takes_a_call_without_messages_as_plain",
     .either = true, .more = 1234, .host = 10, .destination = 99,
     .fragments = {{10, 99, 1234, HOST}}},
    {"takes_the_end_of_a_stream", .either = true},
    {"merges_tokens_only_upwards_and_never_around",
     {PAGE(0, 1, UINT32_MAX - 1), PAGE(1, 1, UINT32_MAX), PAGE(2, 1, 0), PAGE(3, 1, 1),
      PAGE(4, 1, 3), PAGE(5, 1, 2), PAGE(6, 1, 2)},
     .fragments = {{0, 0, 1, GPU}, {1, 1, 1, GPU}, {2, 2, 1, GPU}, {3, 3, 1, GPU}, {4, 4, 1, GPU},
                   {5, 5, 1, GPU}, {6, 6, 1, GPU}},
     .ranges = {{UINT32_MAX - 1, 2}, {0, 2}, {3, 1}, {2, 1}, {2, 1}}},
    {"handles_offsets_beyond_32_bits",
     {PAGE((UINT64_C(1) << 40) - 4096, 4096, 1), PAGE(0, UINT32_MAX, 2), PAGE(0, UINT32_MAX, 3)},
     .pool = UINT64_C(1) << 40, .destination = BEYOND_32,
     .fragments = {{(UINT64_C(1) << 40) - 4096, BEYOND_32, 4096, GPU},
                   {0, BEYOND_32 + 4096, UINT32_MAX, GPU},
                   {0, BEYOND_32 + 4096 + UINT32_MAX, UINT32_MAX, GPU}},
     .ranges = {{1, 3}}},
    {"keeps_only_the_token_of_an_empty_fragment",
     {PAGE(POOL_SIZE, 0, 4), LINE(0), PAGE(64, 8, 5)},
     .fragments = {{64, 0, 8, GPU}},
     .ranges = {{4, 2}}},
    {"skips_what_the_owner_asked_for",
     {SOME(SOL_SOCKET, 29, 48), SOME(SOL_SOCKET, 35, 48), SOME(SOL_SOCKET, 37, 48),
      SOME(SOL_SOCKET, 63, 48), SOME(SOL_SOCKET, 64, 48), SOME(SOL_SOCKET, 65, 48),
      PAGE(0, 5, 1), SOME(6, 36, 4)},
     .fragments = {{0, 0, 5, GPU}},
     .ranges = {{1, 1}}},
    {"skips_what_the_owner_asked_for",
     {SOME(6, 36, 4)}, .more = 9, .fragments = {{0, 0, 9, HOST}}},
    {"refuses_truncated_control",
     {PAGE(0, 100, 1), PAGE(4096, 100, 2)},
     .layout = DEVMEM_LAYOUT_LEGACY, .longer = -8, .more = 400, .flags = MSG_CTRUNC,
     .words = "cut off after 56 bytes", .ranges = {{1, 1}}},
    /* Also when nothing is left that could be taken for a message. */
    {"refuses_truncated_control",
     .more = 400, .flags = MSG_CTRUNC, .words = "400 bytes received"},
    {"refuses_a_broken_chain",
     {PAGE(0, 100, 1)}, .longer = 15, .words = "15 bytes left", .ranges = {{1, 1}}},
    UNKNOWN(SOL_SOCKET, 1), UNKNOWN(SOL_SOCKET, 80), UNKNOWN(SOL_SOCKET, 97),
    UNKNOWN(6, 35), UNKNOWN(0, 79), UNKNOWN(41, 36),
    /* Taken for plain data, device bytes would become whatever the iovec held. */
    FOREIGN(DEVMEM_LAYOUT_MAINLINE, 98, "of the legacy kernel"),
    FOREIGN(DEVMEM_LAYOUT_MAINLINE, 99, "of the legacy kernel"),
    FOREIGN(DEVMEM_LAYOUT_LEGACY, 78, "of the mainline kernel"),
    FOREIGN(DEVMEM_LAYOUT_LEGACY, 79, "of the mainline kernel"),
    /* With nothing else in the call its bytes must not pass as plain. */
    {"refuses_a_payload_of_another_size",
     {SOME(SOL_SOCKET, 78, 4)}, .more = 4, .words = "type 78 with 4 bytes, expected 24"},
    {"refuses_reserved_flags",
     {PAGE(0, 10, 3, .flags = 0x80000000u)}, .words = "flags 0x80000000", .ranges = {{3, 1}}},
    {"refuses_another_dmabuf",
     {PAGE(0, 10, 3), PAGE(0, 10, 4, DMABUF_ID + 1)},
     .words = "dma-buf 8, expected 7", .ranges = {{3, 2}}},
    OUTSIDE(POOL_SIZE, 1), OUTSIDE(POOL_SIZE - 1, 2), OUTSIDE(0, POOL_SIZE + 1),
    OUTSIDE(UINT64_MAX, 1), OUTSIDE(UINT64_MAX - 9, 10), OUTSIDE(UINT32_MAX, 1),
    OUTSIDE(POOL_SIZE + 1, 0),
    {"refuses_pages_outside_the_pool",
     {PAGE(UINT32_MAX, 2, 6)},
     .layout = DEVMEM_LAYOUT_LEGACY, .words = "offset 4294967295 length 2", .ranges = {{6, 1}}},
    {"refuses_more_host_bytes_than_room",
     {LINE(6), LINE(4)},
     .host = HOST_SIZE - 10,
     .fragments = {{HOST_SIZE - 10, 0, 6, HOST}, {HOST_SIZE - 4, 6, 4, HOST}}},
    {"refuses_more_host_bytes_than_room",
     {LINE(6), LINE(4), LINE(1)}, .host = HOST_SIZE - 10, .words = "1 bytes after 10"},
    {"refuses_more_host_bytes_than_room", .more = HOST_SIZE + 1, .words = "room for 65536"},
    {"refuses_lengths_that_disagree",
     {LINE(30), PAGE(0, 100, 1)}, .more = -1, .words = "describe 130", .ranges = {{1, 1}}},
    {"refuses_lengths_that_disagree",
     {LINE(30), PAGE(0, 100, 1)}, .more = 1, .words = "describe 130", .ranges = {{1, 1}}},
    /* Device bytes at what looks like the end of the stream. */
    {"refuses_lengths_that_disagree",
     {PAGE(0, 100, 1)}, .more = -100, .words = "gave 0 bytes", .ranges = {{1, 1}}},
    /* Bytes that only empty messages describe are not plain. */
    {"refuses_lengths_that_disagree",
     {PAGE(0, 0, 1)}, .more = 50, .words = "gave 50 bytes", .ranges = {{1, 1}}},
    {"refuses_more_fragments_than_fit",
     {PAGE(0, 100, 5), PAGE(4096, 100, 6), PAGE(8192, 100, 7)},
     .room = 2, .words = "message 2: all 2 fragments are in use", .ranges = {{5, 3}}},
    {"refuses_more_tokens_than_fit",
     {PAGE(0, 0, 2), PAGE(0, 100, 4), PAGE(0, 0, 6)},
     .room = 2, .words = "message 2: all 2 token ranges are in use", .ranges = {{2, 1}, {4, 1}}},
    {"reports_the_first_problem",
     {PAGE(0, 100, 2), PAGE(0, 100, 3), PAGE(POOL_SIZE, 100, 4)},
     .room = 1, .words = "message 1: all 1 fragments are in use", .ranges = {{2, 3}}},
    {"reports_the_first_problem",
     {PAGE(POOL_SIZE, 100, 2), PAGE(0, 100, 3), PAGE(0, 100, 4)},
     .room = 1, .words = "message 0: offset 1048576 length 100", .ranges = {{2, 3}}},
};
/* clang-format on */

enum { CALLS = sizeof calls / sizeof *calls };

/* Behind what earlier calls have left in the lists. */
static void prepare(const struct call *call)
{
    static const char nothing[64];

    bench.control_size = 0;
    bench.call.received = 0;
    for (unsigned i = 0; i < ROOM && call->messages[i].kind != END; i++) {
        uint32_t id = call->messages[i].dmabuf_id;

        if (call->messages[i].kind == LINEAR)
            put_linear(call->messages[i].size);
        else if (call->messages[i].kind == OTHER)
            put(call->messages[i].level, call->messages[i].type, nothing, call->messages[i].size);
        else
            put_fragment(true,
                         (struct devmem_fragment){call->messages[i].offset, call->messages[i].size,
                                                  call->messages[i].token, id != 0 ? id : DMABUF_ID,
                                                  call->messages[i].flags});
    }
    bench.control_size += (size_t)call->longer;
    bench.call.received += call->more;
    bench.call.destination_offset = call->destination;
    bench.call.host_offset = call->host;
    bench.message.msg_flags = call->flags;
    if (call->pool != 0)
        bench.call.pool_size = call->pool;
    if (call->room != 0)
        bench.scatter.capacity = bench.tokens.capacity = call->room;
}

/* `before`: the list as it was. */
static void expect_fragments(const struct call *call, const struct scatter_list *before)
{
    uint64_t bytes[2] = {0, 0};
    uint32_t pages = 0;
    uint32_t count = 0;

    for (; count < ROOM && call->fragments[count].length > 0; count++) {
        const struct scatter_fragment *found = &bench.fragments[before->count + count];
        const struct scatter_fragment *expected = &call->fragments[count];

        assert_true(before->count + count < bench.scatter.count);
        assert_int_equal(found->source, expected->source);
        assert_int_equal(found->source_offset, expected->source_offset);
        assert_int_equal(found->length, expected->length);
        assert_int_equal(found->destination_offset, expected->destination_offset);
        bytes[expected->source] += expected->length;
    }
    for (unsigned i = 0; i < ROOM; i++)
        pages += call->messages[i].kind == DEVICE;
    assert_int_equal(bench.scatter.count, before->count + count);
    assert_int_equal(bench.scatter.device_fragments, before->device_fragments + pages);
    assert_int_equal(bench.scatter.device_bytes, before->device_bytes + bytes[SCATTER_POOL]);
    assert_int_equal(bench.scatter.plain_bytes, before->plain_bytes + (uint64_t)call->more);
    assert_int_equal(bench.scatter.linear_bytes,
                     before->linear_bytes + bytes[SCATTER_HOST] - (uint64_t)call->more);
}

static void check_next_call(const struct call *call)
{
    const struct scatter_list before = bench.scatter;
    uint32_t ranges = 0;

    prepare(call);
    if (call->words != NULL) {
        parse_badly(TCPX_SYSTEM_ERROR, call->words);
    } else {
        assert_int_equal(parse(), TCPX_SUCCESS);
        expect_fragments(call, &before);
    }
    while (ranges < ROOM && call->ranges[ranges].count > 0)
        ranges++;
    expect_ranges(call->ranges, ranges);
}

static void check_call(const struct call *call, enum devmem_layout layout)
{
    start(layout);
    check_next_call(call);
}

TABLE_TEST(calls)
{
    check_call(row, row->layout);
    if (row->either)
        check_call(row, DEVMEM_LAYOUT_LEGACY);
}

/* --- what a table cannot say --------------------------------------------------------------- */

static const enum devmem_layout layouts[] = {DEVMEM_LAYOUT_MAINLINE, DEVMEM_LAYOUT_LEGACY};

TEST(appends_call_after_call)
{
    start(DEVMEM_LAYOUT_MAINLINE);
    put_device(0, 10, 1);
    assert_int_equal(parse(), TCPX_SUCCESS);
    bench.control_size = 0;
    bench.call.received = 0;
    bench.call.destination_offset = 10;
    put_device(4096, 20, 2);
    assert_int_equal(parse(), TCPX_SUCCESS);
    assert_int_equal(bench.scatter.count, 2);
    assert_int_equal(bench.fragments[1].source_offset, 4096);
    assert_int_equal(bench.fragments[1].destination_offset, 10);
    assert_int_equal(bench.scatter.device_bytes, 30);
    expect_ranges(&(struct devmem_token_range){1, 2}, 1);
}

TEST(reads_a_buffer_without_the_last_padding)
{
    for (size_t cut = 0; cut <= CMSG_SPACE(12) - CMSG_LEN(12); cut++) {
        start(DEVMEM_LAYOUT_LEGACY);
        put_device(4096, 11, 3);
        bench.control_size -= cut;
        assert_int_equal(parse(), TCPX_SUCCESS);
        assert_int_equal(bench.scatter.count, 1);
        assert_int_equal(bench.fragments[0].source_offset, 4096);
        assert_int_equal(bench.fragments[0].length, 11);
    }
}

TEST(refuses_messages_of_a_wrong_length)
{
    static const size_t lengths[] = {0, 1, 15, CMSG_LEN(24) + 1, SIZE_MAX, SIZE_MAX - 7};

    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        start(DEVMEM_LAYOUT_MAINLINE);
        put_device(0, 100, 1);
        put_device(4096, 100, 2);
        memcpy(bench.control + CMSG_SPACE(24), &lengths[i], sizeof lengths[i]);
        parse_badly(TCPX_SYSTEM_ERROR, "control message 1: length");
        expect_ranges(&(struct devmem_token_range){1, 1}, 1);
    }
}

TEST(refuses_payloads_of_every_other_size)
{
    char payload[64] = {0};

    for (size_t layout = 0; layout < 2; layout++) {
        bool mainline = layouts[layout] == DEVMEM_LAYOUT_MAINLINE;

        for (size_t size = 0; size < sizeof payload; size++) {
            if (size == (mainline ? 24 : 12))
                continue;
            start(layouts[layout]);
            put(SOL_SOCKET, mainline ? 79 : 99, payload, size);
            put_device(0, 100, 8);
            parse_badly(TCPX_SYSTEM_ERROR, "bytes, expected");
            expect_ranges(&(struct devmem_token_range){8, 1}, 1);
        }
    }
}

TEST(refuses_a_call_without_sense)
{
    start(DEVMEM_LAYOUT_MAINLINE);
    put_device(0, 1, 1);
    bench.call.received = -1;
    parse_badly(TCPX_INVALID_ARGUMENT, "recvmsg failed");

    bench.call.received = 1;
    bench.call.layout = (enum devmem_layout)2;
    parse_badly(TCPX_INVALID_ARGUMENT, "layout 2");

    bench.call.layout = DEVMEM_LAYOUT_MAINLINE;
    bench.call.destination_offset = UINT64_MAX;
    parse_badly(TCPX_INVALID_ARGUMENT, "at destination offset");

    bench.call.destination_offset = 0;
    bench.call.host_offset = HOST_SIZE + 1;
    parse_badly(TCPX_INVALID_ARGUMENT, "in a host buffer of 65536");
    assert_int_equal(bench.tokens.count, 0);

    bench.call.host_offset = 0;
    bench.message.msg_control = NULL;
    bench.message.msg_controllen = 40;
    assert_int_equal(control_messages_read(&bench.call, &bench.scatter, &bench.tokens),
                     TCPX_INVALID_ARGUMENT);
}

/* At most 1024 tokens in 128 ranges at a time, each token once and in order. */
TEST(returns_tokens_in_calls_that_the_kernel_takes)
{
    static struct devmem_token_range ranges[300];
    struct token_list tokens = {.ranges = ranges, .count = 300};
    struct devmem_token_range batch[DEVMEM_DONTNEED_MAX_RANGES];
    struct token_cursor cursor = {.range = 0};
    uint32_t most[] = {3000, 1}; /* one long range, then short ones */
    uint32_t range = 0, done = 0, count, calls_made = 0;
    unsigned in_batch;

    for (uint32_t i = 0; i < 300; i++)
        ranges[i] = (struct devmem_token_range){i * 5000, most[i > 0]};
    for (; (in_batch = token_list_batch(&tokens, &cursor, batch, &count)) > 0; calls_made++) {
        uint32_t sum = 0;

        for (unsigned i = 0; i < in_batch; i++) {
            assert_int_equal(batch[i].first, ranges[range].first + done);
            assert_in_range(batch[i].count, 1, ranges[range].count - done);
            sum += batch[i].count;
            done += batch[i].count;
            if (done == ranges[range].count) {
                range++;
                done = 0;
            }
        }
        assert_int_equal(sum, count);
        assert_true(count <= DEVMEM_DONTNEED_MAX_FRAGMENTS);
    }
    assert_int_equal(range, 300);
    assert_int_equal(calls_made, 2 + 3); /* 1024, 1024, 952 + 72 short, 128, 99 */
}

TEST(sizes_control_buffers_as_the_kernel_does)
{
    assert_int_equal(control_messages_space(DEVMEM_LAYOUT_MAINLINE, 1), 40);
    assert_int_equal(control_messages_space(DEVMEM_LAYOUT_LEGACY, 2048), 65536);
    assert_true(control_messages_space(DEVMEM_LAYOUT_MAINLINE, UINT32_MAX) ==
                (size_t)40 * UINT32_MAX);
}

static bool is_of_one_problem(const struct call *call)
{
    return call->words != NULL && strcmp(call->name, "reports_the_first_problem") != 0;
}

/* No text of one test has the words of another. */
TEST(names_every_problem_differently)
{
    for (unsigned i = 0; i < CALLS; i++) {
        if (!is_of_one_problem(&calls[i]))
            continue;
        start(calls[i].layout);
        prepare(&calls[i]);
        parse_badly(TCPX_SYSTEM_ERROR, calls[i].words);
        for (unsigned k = 0; k < CALLS; k++)
            if (is_of_one_problem(&calls[k]) && strcmp(calls[k].name, calls[i].name) != 0)
                assert_null(strstr(error_text(), calls[k].words));
    }
}

/* --- kernels that are made of random choices ----------------------------------------------- */

static uint32_t below(uint32_t limit)
{
    static uint64_t state = 20;

    return (uint32_t)random_below(&state, limit);
}

/* In the last range, where it continues that. */
static void expect_token(struct call *call, unsigned *ranges, uint32_t token)
{
    struct devmem_token_range *next = &call->ranges[*ranges];

    if (*ranges > 0 && next[-1].first + next[-1].count == token) {
        next[-1].count++;
        return;
    }
    *next = (struct devmem_token_range){token, 1};
    (*ranges)++;
}

/* A call whose messages and result are chosen together, at these places of message and iovec. */
static struct call random_call(uint64_t *destination, uint64_t *host)
{
    struct call call = {.destination = *destination, .host = *host};
    bool plain = below(8) == 0;
    unsigned count = plain ? 1 : 1 + below(ROOM);
    unsigned ranges = 0;
    uint32_t token = below(1u << 31);

    for (unsigned i = 0; i < count; i++) {
        bool device = !plain && below(4) != 0;
        uint32_t size = 1 + below(device ? 4096 : 200);
        uint32_t offset = below(POOL_SIZE - size + 1);

        call.fragments[i] = (struct scatter_fragment){device ? offset : *host, *destination, size,
                                                      device ? GPU : HOST};
        *destination += size;
        *host += device ? 0 : size;
        if (plain) {
            call.more = size;
            continue;
        }
        token = below(3) == 0 ? below(1u << 31) : token + 1;
        call.messages[i].kind = device ? DEVICE : LINEAR;
        call.messages[i].offset = offset;
        call.messages[i].size = size;
        call.messages[i].token = token;
        if (device)
            expect_token(&call, &ranges, token);
    }
    return call;
}

TEST(places_what_random_kernels_deliver)
{
    for (int round = 0; round < 3000; round++) {
        uint64_t destination = 0;
        uint64_t host = 0;

        start(layouts[round % 2]);
        for (uint32_t left = 1 + below(8); left > 0; left--) {
            struct call call = random_call(&destination, &host);

            check_next_call(&call);
            bench.tokens.count = 0;
        }
    }
}

/* Whatever one changed byte means, the call succeeds as a whole or leaves the list alone. */
TEST(survives_every_changed_byte)
{
    int result;

    for (size_t layout = 0; layout < 2; layout++) {
        uint64_t destination = 0;
        uint64_t host = 0;
        struct call call;

        do
            call = random_call(&destination, &host);
        while (call.more > 0);
        start(layouts[layout]);
        prepare(&call);
        for (size_t at = 0; at < bench.control_size; at++) {
            for (unsigned int bit = 0; bit < 8; bit++) {
                scatter_list_init(&bench.scatter, bench.fragments, MAX_FRAGMENTS);
                bench.tokens.count = 0;
                bench.control[at] ^= (unsigned char)(1u << bit);
                result = parse();
                assert_int_equal(result == TCPX_SUCCESS, bench.scatter.count > 0);
                bench.control[at] ^= (unsigned char)(1u << bit);
            }
        }
    }
}

static int make_guard(void)
{
    bench.guard = guard_page_after(CONTROL_ROOM);
    return bench.guard != NULL ? 0 : -1;
}

SUITE(.name = "rx_cmsg_parser", .set_up = make_guard);
