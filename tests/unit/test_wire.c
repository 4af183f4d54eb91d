/*
 * Shows that the bytes on the wire are these and no others, that every valid hello and record comes
 * back as it was written, and that each field a peer may not send is refused in words, with the
 * outputs left alone.
 */
#include "tests/unit/checks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/wire/wire.h"

enum { UNTOUCHED = 0x5a, ROUNDS = 20000 };

/* Where the fields stand, written down a second time. */
enum {
    HELLO_MAGIC = 0,
    HELLO_VERSION = 4,
    HELLO_ROLE = 6,
    HELLO_INDEX = 7,
    HELLO_SOCKETS = 8,
    HELLO_MATCH = 9,
    HELLO_FRAMING = 10,
    HELLO_COMM = 16,
    HELLO_LEAST = 40,
    HELLO_RESERVED = 42,
    HELLO_CAPABILITIES = 44,
    HELLO_CAPABILITIES_END = 48,
    RECORD_FLAGS = 1,
};

static uint64_t random_state = 0x9e3779b97f4a7c15;

static uint64_t random_number(void)
{
    return random_next(&random_state);
}

/* Small ones and both ends of the range turn up, too. */
static uint64_t random_size(uint64_t least)
{
    uint64_t number = random_number() >> (random_number() % 64);

    if (random_number() % 16 == 0)
        number = UINT64_MAX;
    return number < least ? least : number;
}

static const struct wire_hello good_hello = {
    .role = WIRE_FORWARD,
    .index = 3,
    .sockets = 5,
    .match = WIRE_MATCH_TAG,
    .framing = WIRE_SEPARATE,
    .comm = 0x1122334455667788,
    .token = {0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad,
              0xae, 0xaf},
    .capabilities = 0xb1b2b3b4,
};

/* One valid record of each type, the bytes it is, and which fields it must leave zero. */
struct example {
    enum wire_role role;
    const char *name;
    const char *unused;
    struct wire_record record;
    uint8_t bytes[WIRE_RECORD_BYTES];
};

/* clang-format off */
static const struct example examples[] = {
    {WIRE_REVERSE, "READY", "",
     {.type = WIRE_READY, .socket = 2, .offset = 0x100000, .length = 0x4000, .tag = 0x80000},
     {1, 0, 2, 0, 0, 0, 0, 0,
      0, 0, 0x10, 0, 0, 0, 0, 0,
      0, 0x40, 0, 0, 0, 0, 0, 0,
      0, 0, 8, 0, 0, 0, 0, 0}},
    {WIRE_REVERSE, "POST", "socket",
     {.type = WIRE_POST, .sequence = 0x01020304, .offset = 0x1112131415161718,
      .length = 0x2122232425262728, .tag = 0x3132333435363738},
     {2, 0, 0, 0, 0x04, 0x03, 0x02, 0x01,
      0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
      0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,
      0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31}},
    {WIRE_REVERSE, "CREDIT", "socket sequence length tag",
     {.type = WIRE_CREDIT, .offset = 0x0102030405060708},
     {3, 0, 0, 0, 0, 0, 0, 0,
      8, 7, 6, 5, 4, 3, 2, 1,
      0, 0, 0, 0, 0, 0, 0, 0,
      0, 0, 0, 0, 0, 0, 0, 0}},
    {WIRE_REVERSE, "CANCEL", "socket offset length tag",
     {.type = WIRE_CANCEL, .sequence = 0x01020304},
     {4, 0, 0, 0, 0x04, 0x03, 0x02, 0x01,
      0, 0, 0, 0, 0, 0, 0, 0,
      0, 0, 0, 0, 0, 0, 0, 0,
      0, 0, 0, 0, 0, 0, 0, 0}},
    {WIRE_FORWARD, "EAGER", "socket offset tag",
     {.type = WIRE_EAGER, .sequence = 0x01020304, .length = 0x1234},
     {17, 0, 0, 0, 0x04, 0x03, 0x02, 0x01,
      0, 0, 0, 0, 0, 0, 0, 0,
      0x34, 0x12, 0, 0, 0, 0, 0, 0,
      0, 0, 0, 0, 0, 0, 0, 0}},
    {WIRE_FORWARD, "EAGER", "socket",
     {.type = WIRE_EAGER, .flags = WIRE_ON_CREDIT, .offset = 0x1112131415161718, .length = 0x1234,
      .tag = 0x3132333435363738},
     {17, 1, 0, 0, 0, 0, 0, 0,
      0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
      0x34, 0x12, 0, 0, 0, 0, 0, 0,
      0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31}},
    {WIRE_FORWARD, "SLICE", "",
     {.type = WIRE_SLICE, .socket = 63, .sequence = 0x01020304, .offset = 0x1112131415161718,
      .length = 0x2122232425262728, .tag = UINT64_MAX},
     {18, 0, 63, 0, 0x04, 0x03, 0x02, 0x01,
      0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
      0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,
      255, 255, 255, 255, 255, 255, 255, 255}},
    {WIRE_FORWARD, "SLICE", "",
     {.type = WIRE_SLICE, .flags = WIRE_ON_CREDIT, .socket = 63, .sequence = 0x01020304,
      .offset = 0x1112131415161718, .length = 0x2122232425262728, .tag = 0x5152535455565758},
     {18, 1, 63, 0, 0x04, 0x03, 0x02, 0x01,
      0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
      0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,
      0x58, 0x57, 0x56, 0x55, 0x54, 0x53, 0x52, 0x51}},
    {WIRE_FORWARD, "SLICE", "",
     {.type = WIRE_SLICE, .flags = WIRE_TO_PLACE, .socket = 63, .sequence = 0x81020304,
      .offset = 0x1112131415161718, .length = 0x2122232425262728, .tag = 0x5152535455565758},
     {18, 2, 63, 0, 0x04, 0x03, 0x02, 0x81,
      0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
      0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,
      0x58, 0x57, 0x56, 0x55, 0x54, 0x53, 0x52, 0x51}},
    {WIRE_FORWARD, "TOOLONG", "socket offset tag",
     {.type = WIRE_TOOLONG, .sequence = 0x01020304, .length = 0x2122232425262728},
     {19, 0, 0, 0, 0x04, 0x03, 0x02, 0x01,
      0, 0, 0, 0, 0, 0, 0, 0,
      0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,
      0, 0, 0, 0, 0, 0, 0, 0}},
    {WIRE_FORWARD, "CANCELLED", "socket offset tag",
     {.type = WIRE_CANCELLED, .flags = WIRE_TO_PLACE, .sequence = 0x01020304,
      .length = 0x2122232425262728},
     {21, 2, 0, 0, 0x04, 0x03, 0x02, 0x01,
      0, 0, 0, 0, 0, 0, 0, 0,
      0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,
      0, 0, 0, 0, 0, 0, 0, 0}},
    {WIRE_FORWARD, "FIN", "socket sequence offset tag",
     {.type = WIRE_FIN, .length = 0x2122232425262728},
     {20, 0, 0, 0, 0, 0, 0, 0,
      0, 0, 0, 0, 0, 0, 0, 0,
      0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,
      0, 0, 0, 0, 0, 0, 0, 0}},
    {WIRE_FORWARD, "ABORT", "socket offset tag",
     {.type = WIRE_ABORT, .sequence = TCPX_REMOTE_ERROR, .length = 200},
     {32, 0, 0, 0, 6, 0, 0, 0,
      0, 0, 0, 0, 0, 0, 0, 0,
      200, 0, 0, 0, 0, 0, 0, 0,
      0, 0, 0, 0, 0, 0, 0, 0}},
};

static const uint8_t good_hello_bytes[WIRE_HELLO_BYTES] = {
    'T', 'C', 'P', 'X', 2, 0, 1, 3,
    5, 2, 2, 0, 0, 0, 0, 0,
    0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
    0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7,
    0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf,
    2, 0, 0, 0, 0xb4, 0xb3, 0xb2, 0xb1,
};
/* clang-format on */

#define EXAMPLES COUNT_OF(examples)

static void refuse_hello(const uint8_t *bytes, enum wire_problem expected, const char *text)
{
    struct wire_hello hello;
    struct versions versions;

    memset(&hello, UNTOUCHED, sizeof hello);
    memset(&versions, UNTOUCHED, sizeof versions);
    error_keep("%s", "");
    assert_int_equal(wire_hello_read(bytes, &hello, &versions), expected);
    assert_string_equal(error_text(), text);
    expect_untouched(&hello, sizeof hello);
    if (expected != WIRE_OTHER_VERSION)
        expect_untouched(&versions, sizeof versions);
}

/* The good hello with one byte changed. */
static void refuse_hello_byte(size_t at, uint8_t value, const char *text)
{
    uint8_t bytes[WIRE_HELLO_BYTES];

    memcpy(bytes, good_hello_bytes, sizeof bytes);
    bytes[at] = value;
    refuse_hello(bytes, WIRE_MALFORMED, text);
}

static void refuse_bytes(const uint8_t *bytes, enum wire_role role, const char *text)
{
    struct wire_record record;

    memset(&record, UNTOUCHED, sizeof record);
    error_keep("%s", "");
    assert_int_equal(wire_record_read(bytes, role, &record), WIRE_MALFORMED);
    assert_string_equal(error_text(), text);
    expect_untouched(&record, sizeof record);
}

static void refuse(struct wire_record record, enum wire_role role, const char *text)
{
    uint8_t bytes[WIRE_RECORD_BYTES];

    wire_record_write(&record, bytes);
    refuse_bytes(bytes, role, text);
}

/* It has no padding. */
static void assert_same_record(const struct wire_record *a, const struct wire_record *b)
{
    assert_memory_equal(a, b, sizeof *a);
}

static void take(struct wire_record record, enum wire_role role)
{
    uint8_t bytes[WIRE_RECORD_BYTES];
    struct wire_record seen;

    wire_record_write(&record, bytes);
    if (wire_record_read(bytes, role, &seen) != WIRE_FINE)
        fail_msg("%s", error_text());
    assert_same_record(&seen, &record);
}

static void assert_same_hello(const struct wire_hello *a, const struct wire_hello *b)
{
    assert_int_equal(a->role, b->role);
    assert_int_equal(a->index, b->index);
    assert_int_equal(a->sockets, b->sockets);
    assert_int_equal(a->match, b->match);
    assert_int_equal(a->framing, b->framing);
    assert_true(a->comm == b->comm);
    assert_memory_equal(a->token, b->token, sizeof a->token);
    assert_int_equal(a->capabilities, b->capabilities);
}

static void take_hello(struct wire_hello hello)
{
    uint8_t bytes[WIRE_HELLO_BYTES];
    struct wire_hello seen;
    struct versions versions = {0};

    wire_hello_write(&hello, bytes);
    if (wire_hello_read(bytes, &seen, &versions) != WIRE_FINE)
        fail_msg("%s", error_text());
    assert_int_equal(versions.least, WIRE_LEAST_VERSION);
    assert_int_equal(versions.greatest, WIRE_VERSION);
    assert_int_equal(seen.version, WIRE_VERSION);
    assert_same_hello(&seen, &hello);
}

TEST(test_bytes_of_a_hello)
{
    uint8_t bytes[WIRE_HELLO_BYTES];
    struct wire_hello hello;
    struct versions versions;

    memset(bytes, UNTOUCHED, sizeof bytes);
    wire_hello_write(&good_hello, bytes);
    assert_memory_equal(bytes, good_hello_bytes, sizeof bytes);
    assert_int_equal(wire_hello_read(good_hello_bytes, &hello, &versions), WIRE_FINE);
    assert_int_equal(hello.version, 2);
    assert_same_hello(&hello, &good_hello);
}

TEST(test_bytes_of_every_record)
{
    uint8_t bytes[WIRE_RECORD_BYTES];
    struct wire_record record;

    for (size_t i = 0; i < EXAMPLES; i++) {
        memset(bytes, UNTOUCHED, sizeof bytes);
        wire_record_write(&examples[i].record, bytes);
        assert_memory_equal(bytes, examples[i].bytes, sizeof bytes);
        assert_int_equal(wire_record_read(examples[i].bytes, examples[i].role, &record), WIRE_FINE);
        assert_same_record(&record, &examples[i].record);
    }
}

TEST(test_random_hellos_come_back)
{
    for (int i = 0; i < ROUNDS; i++) {
        struct wire_hello hello = {
            .role = random_number() % 2 ? WIRE_FORWARD : WIRE_REVERSE,
            .match = random_number() % 2 ? WIRE_MATCH_FIFO : WIRE_MATCH_TAG,
            .sockets = (uint8_t)(1 + random_number() % WIRE_MOST_SOCKETS),
            .comm = random_size(0),
            .capabilities = (uint32_t)random_number(),
        };

        hello.framing = hello.sockets > 1 && random_number() % 2 ? WIRE_SEPARATE : WIRE_INLINE;
        if (hello.role == WIRE_FORWARD)
            hello.index = (uint8_t)(random_number() % hello.sockets);
        for (int j = 0; j < WIRE_TOKEN_BYTES; j++)
            hello.token[j] = (uint8_t)random_number();
        take_hello(hello);
    }
}

static uint64_t random_field(const struct example *example, const char *field)
{
    return strstr(example->unused, field) == NULL ? random_size(0) : 0;
}

/* All fields that the type has, with values that fit together. */
static struct wire_record random_record(const struct example *example)
{
    struct wire_record record = {
        .type = example->record.type,
        .flags = example->record.flags,
        .sequence = (uint32_t)random_field(example, "sequence"),
        .offset = random_field(example, "offset"),
        .length = random_field(example, "length"),
        .tag = random_field(example, "tag"),
    };

    switch (example->record.type) {
    case WIRE_READY:
        record.socket = WIRE_VERSION;
        record.sequence = 0;
        record.length = record.length > record.offset ? record.offset : record.length;
        record.tag = record.tag < 64 ? 64 : record.tag;
        break;
    case WIRE_TOOLONG:
        record.length = record.length < 1 ? 1 : record.length;
        break;
    case WIRE_SLICE:
        record.socket = (uint16_t)(random_number() % WIRE_MOST_SOCKETS);
        record.length = record.length < 1 ? 1 : record.length;
        if (record.offset > UINT64_MAX - record.length)
            record.offset = UINT64_MAX - record.length;
        record.tag = random_size(record.offset + record.length); /* the length of its message */
        break;
    case WIRE_ABORT:
        record.sequence = (uint32_t)(1 + random_number() % 7);
        record.length = random_number() % (WIRE_ABORT_TEXT + 1);
        break;
    }
    return record;
}

TEST(test_random_records_come_back)
{
    for (int i = 0; i < ROUNDS; i++) {
        const struct example *example = &examples[random_number() % EXAMPLES];

        take(random_record(example), example->role);
    }
}

/* clang-format off */
static const struct {
    enum wire_role role;
    struct wire_record record;
} edges[] = {
    {WIRE_REVERSE, {.type = WIRE_READY, .socket = 2, .tag = 64}},
    {WIRE_REVERSE, {.type = WIRE_READY, .socket = 2, .offset = 9, .length = 9, .tag = 64}},
    {WIRE_REVERSE, {.type = WIRE_POST}},
    {WIRE_REVERSE, {.type = WIRE_CREDIT}},
    {WIRE_FORWARD, {.type = WIRE_EAGER}},
    {WIRE_FORWARD, {.type = WIRE_EAGER, .flags = WIRE_ON_CREDIT}},
    {WIRE_FORWARD, {.type = WIRE_SLICE, .offset = UINT64_MAX - 1, .length = 1, .tag = UINT64_MAX}},
    {WIRE_FORWARD, {.type = WIRE_SLICE, .length = UINT64_MAX, .tag = UINT64_MAX}},
    {WIRE_FORWARD, {.type = WIRE_SLICE, .length = 1, .tag = 1}},
    {WIRE_FORWARD, {.type = WIRE_SLICE, .offset = 1, .length = UINT64_MAX - 1, .tag = UINT64_MAX}},
    {WIRE_FORWARD, {.type = WIRE_EAGER, .sequence = UINT32_MAX}},
    {WIRE_FORWARD, {.type = WIRE_EAGER, .flags = WIRE_TO_PLACE, .sequence = UINT32_MAX}},
    {WIRE_FORWARD, {.type = WIRE_CANCELLED}},
    {WIRE_FORWARD, {.type = WIRE_CANCELLED, .length = UINT64_MAX}},
    {WIRE_FORWARD, {.type = WIRE_TOOLONG, .length = 1}},
    {WIRE_FORWARD, {.type = WIRE_FIN}},
    {WIRE_FORWARD, {.type = WIRE_ABORT, .sequence = 1}},
    {WIRE_REVERSE, {.type = WIRE_ABORT, .sequence = 7, .length = 200}},
};
/* clang-format on */

TEST(test_edges_are_taken)
{
    static const struct wire_hello hellos[] = {
        {WIRE_FORWARD, 0, 1, WIRE_MATCH_TAG, WIRE_INLINE, 1, {0}, 0, 0},
        {WIRE_REVERSE, 0, 1, WIRE_MATCH_TAG, WIRE_INLINE, 1, {0}, 0, 0},
        {WIRE_FORWARD, 63, 64, WIRE_MATCH_TAG, WIRE_INLINE, 1, {0}, 0, 0},
        {WIRE_FORWARD, 1, 2, WIRE_MATCH_TAG, WIRE_SEPARATE, 1, {0}, UINT32_MAX, 0},
    };

    for (size_t i = 0; i < COUNT_OF(hellos); i++)
        take_hello(hellos[i]);
    for (size_t i = 0; i < COUNT_OF(edges); i++)
        take(edges[i].record, edges[i].role);
}

TEST(test_names)
{
    for (unsigned type = 0; type < 1000; type++) {
        const char *name = "unknown";

        for (size_t i = 0; i < EXAMPLES; i++)
            if (examples[i].record.type == type)
                name = examples[i].name;
        assert_string_equal(wire_type_name(type), name);
    }
    assert_string_equal(wire_type_name(UINT32_MAX), "unknown");
}

TEST(test_another_magic)
{
    uint8_t bytes[WIRE_HELLO_BYTES] = "GET / HTTP/1.1\r\n";

    refuse_hello(bytes, WIRE_NOT_TCPX, "hello: magic 0x20544547, expected 0x58504354");
    memcpy(bytes, good_hello_bytes, sizeof bytes);
    for (size_t i = HELLO_MAGIC; i < HELLO_VERSION; i++) {
        char text[80];

        bytes[i] ^= 1;
        snprintf(text, sizeof text, "hello: magic 0x%08x, expected 0x58504354",
                 0x58504354u ^ 1u << 8 * i);
        refuse_hello(bytes, WIRE_NOT_TCPX, text);
        bytes[i] ^= 1;
    }
}

/* Versions that have none in common with ours, and what is said of them. */
static const struct {
    unsigned greatest;
    unsigned least;
    const char *text;
} other_versions[] = {
    {0, 0, "hello: versions 0 to 0 of the protocol, expected 2 to 2"},
    {1, 0,
     "hello: versions 1 to 1 of the protocol, expected 2 to 2"}, /* it did not say its least */
    {3, 3, "hello: versions 3 to 3 of the protocol, expected 2 to 2"},
    {258, 0xffff, "hello: versions 65535 to 258 of the protocol, expected 2 to 2"},
};

static void write_versions(uint8_t *bytes, unsigned greatest, unsigned least)
{
    bytes[HELLO_VERSION] = (uint8_t)greatest;
    bytes[HELLO_VERSION + 1] = (uint8_t)(greatest >> 8);
    bytes[HELLO_LEAST] = (uint8_t)least;
    bytes[HELLO_LEAST + 1] = (uint8_t)(least >> 8);
}

/* Also where the rest of the hello would be refused: another version may say anything there. */
TEST(test_other_versions)
{
    for (size_t i = 0; i < COUNT_OF(other_versions); i++) {
        uint8_t bytes[WIRE_HELLO_BYTES];
        struct wire_hello hello;
        struct versions versions = {0};

        memset(bytes, 0xff, sizeof bytes);
        memcpy(bytes, good_hello_bytes, HELLO_VERSION);
        write_versions(bytes, other_versions[i].greatest, other_versions[i].least);
        refuse_hello(bytes, WIRE_OTHER_VERSION, other_versions[i].text);
        assert_int_equal(wire_hello_read(bytes, &hello, &versions), WIRE_OTHER_VERSION);
        assert_int_equal(versions.greatest, other_versions[i].greatest);
    }
}

/* A later one that speaks ours, too, and may use what we reserve; and ours that speaks older ones.
 */
TEST(test_versions_in_common)
{
    uint8_t bytes[WIRE_HELLO_BYTES];
    struct versions versions;
    struct wire_hello hello;

    for (unsigned greatest = 2; greatest < 5; greatest++)
        for (unsigned least = 1; least <= 2; least++) {
            memcpy(bytes, good_hello_bytes, sizeof bytes);
            write_versions(bytes, greatest, least);
            bytes[HELLO_RESERVED] = greatest > 2;
            bytes[WIRE_HELLO_BYTES - 1] = greatest > 2;
            assert_int_equal(wire_hello_read(bytes, &hello, &versions), WIRE_FINE);
            assert_int_equal(versions.least, least);
            assert_int_equal(versions.greatest, greatest);
            assert_int_equal(hello.version, 2);
            assert_same_hello(&hello, &good_hello);
        }
}

TEST(test_hello_separate_framing_on_one_socket)
{
    uint8_t bytes[WIRE_HELLO_BYTES];

    memcpy(bytes, good_hello_bytes, sizeof bytes);
    bytes[HELLO_INDEX] = 0;
    bytes[HELLO_SOCKETS] = 1;
    refuse_hello(bytes, WIRE_MALFORMED, "hello: sockets 1, separate framing needs at least 2");
}

TEST(test_hello_reserved)
{
    for (size_t i = HELLO_FRAMING + 1; i < WIRE_HELLO_BYTES; i++) {
        char text[80];

        if (i == HELLO_COMM)
            i = HELLO_RESERVED;
        if (i == HELLO_CAPABILITIES)
            i = HELLO_CAPABILITIES_END;
        snprintf(text, sizeof text, "hello: reserved byte %zu is 0x80, expected 0", i);
        refuse_hello_byte(i, 0x80, text);
    }
}

TEST(test_unknown_types)
{
    for (unsigned type = 0; type <= UINT8_MAX; type++) {
        char text[80];

        if (strcmp(wire_type_name(type), "unknown") != 0)
            continue;
        snprintf(text, sizeof text, "record type %u is not known", type);
        refuse((struct wire_record){.type = (uint8_t)type, .length = 1}, WIRE_FORWARD, text);
        refuse((struct wire_record){.type = (uint8_t)type, .length = 1}, WIRE_REVERSE, text);
    }
}

TEST(test_types_on_the_other_socket)
{
    for (size_t i = 0; i < EXAMPLES; i++) {
        const struct example *example = &examples[i];
        bool forward = example->role == WIRE_FORWARD;
        enum wire_role other = forward ? WIRE_REVERSE : WIRE_FORWARD;
        char text[80];

        if (example->record.type == WIRE_ABORT) {
            take(example->record, other);
            continue;
        }
        snprintf(text, sizeof text, "%s: type %u on a %s socket", example->name,
                 example->record.type, forward ? "reverse" : "forward");
        refuse(example->record, other, text);
    }
}

/* The flags that a type may have, one at a time. */
static unsigned possible_flags(unsigned type)
{
    if (type == WIRE_SLICE || type == WIRE_EAGER)
        return WIRE_ON_CREDIT | WIRE_TO_PLACE;
    return type == WIRE_CANCELLED ? WIRE_TO_PLACE : 0;
}

TEST(test_flags)
{
    for (size_t i = 0; i < EXAMPLES; i++) {
        uint8_t bytes[WIRE_RECORD_BYTES];
        char text[80];

        memcpy(bytes, examples[i].bytes, sizeof bytes);
        for (int bit = 0; bit < 8; bit++) {
            bytes[RECORD_FLAGS] = (uint8_t)(1 << bit);
            if (possible_flags(examples[i].record.type) & 1u << bit)
                continue;
            snprintf(text, sizeof text, "%s: flags 0x%02x, expected 0", examples[i].name, 1 << bit);
            refuse_bytes(bytes, examples[i].role, text);
        }
        bytes[RECORD_FLAGS] = WIRE_ON_CREDIT | WIRE_TO_PLACE;
        snprintf(text, sizeof text, "%s: flags 0x03, expected 0", examples[i].name);
        refuse_bytes(bytes, examples[i].role, text);
    }
}

/* What only an EAGER on credit has. */
static void refuse_eager_with_more(const uint8_t *bytes, uint64_t offset, uint64_t tag)
{
    char text[120];

    snprintf(text, sizeof text,
             "EAGER: offset %" PRIu64 " and tag %" PRIu64
             " with the number of a receive, expected 0",
             offset, tag);
    refuse_bytes(bytes, WIRE_FORWARD, text);
}

/* Every bit of every field that a type does not use. */
TEST(test_unused_fields)
{
    static const struct {
        const char *name;
        size_t at, size;
    } fields[] = {
        {"socket", 2, 2}, {"sequence", 4, 4}, {"offset", 8, 8}, {"length", 16, 8}, {"tag", 24, 8},
    };

    for (size_t i = 0; i < EXAMPLES; i++) {
        for (size_t j = 0; j < sizeof fields / sizeof *fields; j++) {
            if (strstr(examples[i].unused, fields[j].name) == NULL)
                continue;
            for (size_t bit = 0; bit < 8 * fields[j].size; bit++) {
                uint8_t bytes[WIRE_RECORD_BYTES];
                char text[80];

                memcpy(bytes, examples[i].bytes, sizeof bytes);
                bytes[fields[j].at + bit / 8] = (uint8_t)(1 << bit % 8);
                if (examples[i].record.type == WIRE_EAGER &&
                    strcmp(fields[j].name, "socket") != 0) {
                    refuse_eager_with_more(bytes, j == 2 ? UINT64_C(1) << bit : 0,
                                           j == 4 ? UINT64_C(1) << bit : 0);
                    continue;
                }
                snprintf(text, sizeof text, "%s: %s %" PRIu64 ", expected 0", examples[i].name,
                         fields[j].name, UINT64_C(1) << bit);
                refuse_bytes(bytes, examples[i].role, text);
            }
        }
    }
}

static void expect_abort_text(const char *text, const char *sent)
{
    uint8_t bytes[WIRE_ABORT_BYTES];

    assert_int_equal(wire_abort_write(TCPX_CUDA_ERROR, text, bytes),
                     WIRE_RECORD_BYTES + strlen(sent));
    assert_memory_equal(bytes + WIRE_RECORD_BYTES, sent, strlen(sent));
}

/* A peer gets no addresses of this process, no control characters and no half characters. */
TEST(test_abort_texts)
{
    char text[WIRE_ABORT_TEXT + 8] = "";
    char cut[WIRE_ABORT_TEXT] = "";

    expect_abort_text("", "");
    expect_abort_text("copying 16 bytes from 0x7f22e08e0000 to GPU 0 at 0x10000",
                      "copying 16 bytes from 0x... to GPU 0 at 0x...");
    expect_abort_text("flags 0x02", "flags 0x02");
    expect_abort_text("\x7f \xc2\x9b \x9b \n \xc3\xbc", "? ? ? ? \xc3\xbc");
    memset(cut, 'x', sizeof cut - 1);
    snprintf(text, sizeof text, "%s\xc3\xbc", cut); /* its last byte would be the 201st */
    expect_abort_text(text, cut);
}

/* --- refusals --------------------------------------------------------------------------------- */

/* The good hello with one byte changed. The rows of one name are a test. */
static const struct {
    const char *test;
    size_t at;
    uint8_t value;
    const char *text;
} hello_refusals[] = {
    {"test_hello_role", HELLO_ROLE, 0, "hello: role 0 is not known"},
    {"test_hello_role", HELLO_ROLE, 3, "hello: role 3 is not known"},
    {"test_hello_sockets", HELLO_SOCKETS, 0, "hello: sockets 0, possible are 1 to 64"},
    {"test_hello_sockets", HELLO_SOCKETS, 65, "hello: sockets 65, possible are 1 to 64"},
    {"test_hello_index", HELLO_INDEX, 5, "hello: index 5 of 5 sockets"},
    {"test_hello_index", HELLO_INDEX, 255, "hello: index 255 of 5 sockets"},
    {"test_hello_index_of_the_reverse_socket", HELLO_ROLE, WIRE_REVERSE,
     "hello: index 3 of the reverse socket, expected 0"},
    {"test_hello_match", HELLO_MATCH, 0, "hello: match 0 is not known"},
    {"test_hello_match", HELLO_MATCH, 3, "hello: match 3 is not known"},
    {"test_hello_framing", HELLO_FRAMING, 0, "hello: framing 0 is not known"},
    {"test_hello_framing", HELLO_FRAMING, 3, "hello: framing 3 is not known"},
};

/* clang-format off */

/* Records that no peer may send. The rows of one name are a test. */
static const struct {
    const char *test;
    enum wire_role role;
    struct wire_record record;
    const char *text;
} record_refusals[] = {
    {"test_ready_with_a_limit_beyond_the_credit", WIRE_REVERSE,
     {.type = WIRE_READY, .socket = 2, .offset = 4096, .length = 4097, .tag = 64},
     "READY: length 4097 (eager limit) with offset 4096 (eager credit), it must not be more"},
    {"test_ready_without_a_slice", WIRE_REVERSE,
     {.type = WIRE_READY, .socket = 2, .offset = 4096, .length = 4096},
     "READY: tag 0 (largest slice), at least 64 is possible"},
    {"test_ready_without_a_slice", WIRE_REVERSE,
     {.type = WIRE_READY, .socket = 2, .offset = 4096, .length = 4096, .tag = 63},
     "READY: tag 63 (largest slice), at least 64 is possible"},
    {"test_ready_of_another_version", WIRE_REVERSE,
     {.type = WIRE_READY, .socket = 3, .offset = 4096, .length = 4096, .tag = 64},
     "READY: socket 3 (version), possible are 2 to 2"},
    {"test_ready_of_another_version", WIRE_REVERSE,
     {.type = WIRE_READY, .socket = 1, .offset = 4096, .length = 4096, .tag = 64},
     "READY: socket 1 (version), possible are 2 to 2"},
    {"test_ready_with_more_than_was_offered", WIRE_REVERSE,
     {.type = WIRE_READY, .socket = 2, .sequence = 0x80000000, .tag = 64},
     "READY: sequence 0x80000000 (capabilities), possible are 0x0"},
    {"test_slice_of_nothing", WIRE_FORWARD, {.type = WIRE_SLICE, .offset = 1},
     "SLICE: length 0, at least 1 is possible"},
    {"test_slice_on_a_socket_that_cannot_be", WIRE_FORWARD,
     {.type = WIRE_SLICE, .socket = 64, .length = 1},
     "SLICE: socket 64, at most 63 is possible"},
    {"test_slice_on_a_socket_that_cannot_be", WIRE_FORWARD,
     {.type = WIRE_SLICE, .socket = 65535, .length = 1},
     "SLICE: socket 65535, at most 63 is possible"},
    {"test_slice_that_wraps", WIRE_FORWARD, {.type = WIRE_SLICE, .offset = UINT64_MAX, .length = 1},
     "SLICE: length 1 at offset 18446744073709551615 ends beyond 64 bits"},
    {"test_slice_that_wraps", WIRE_FORWARD, {.type = WIRE_SLICE, .offset = 1, .length = UINT64_MAX},
     "SLICE: length 18446744073709551615 at offset 1 ends beyond 64 bits"},
    {"test_slice_beyond_its_message", WIRE_FORWARD,
     {.type = WIRE_SLICE, .offset = 4, .length = 2, .tag = 5},
     "SLICE: length 2 at offset 4 ends beyond tag 5 (length of the message)"},
    {"test_slice_beyond_its_message", WIRE_FORWARD,
     {.type = WIRE_SLICE, .length = UINT64_MAX, .tag = 1},
     "SLICE: length 18446744073709551615 at offset 0 ends beyond tag 1 (length of the message)"},
    {"test_slice_beyond_its_message", WIRE_FORWARD, {.type = WIRE_SLICE, .length = 1},
     "SLICE: length 1 at offset 0 ends beyond tag 0 (length of the message)"},
    {"test_nothing_is_not_too_long", WIRE_FORWARD, {.type = WIRE_TOOLONG, .sequence = 1},
     "TOOLONG: length 0, at least 1 is possible"},
    {"test_abort_without_a_result", WIRE_FORWARD, {.type = WIRE_ABORT, .length = 1},
     "ABORT: sequence 0 (result), possible are 1 to 7"},
    {"test_abort_without_a_result", WIRE_REVERSE, {.type = WIRE_ABORT, .sequence = 8, .length = 1},
     "ABORT: sequence 8 (result), possible are 1 to 7"},
    {"test_abort_without_a_result", WIRE_REVERSE, {.type = WIRE_ABORT, .sequence = UINT32_MAX},
     "ABORT: sequence 4294967295 (result), possible are 1 to 7"},
    {"test_abort_with_a_long_text", WIRE_FORWARD,
     {.type = WIRE_ABORT, .sequence = 1, .length = 201},
     "ABORT: length 201, at most 200 is possible"},
    {"test_abort_with_a_long_text", WIRE_REVERSE,
     {.type = WIRE_ABORT, .sequence = 1, .length = UINT64_MAX},
     "ABORT: length 18446744073709551615, at most 200 is possible"},
};
/* clang-format on */

TABLE_TEST(hello_refusals)
{
    refuse_hello_byte(row->at, row->value, row->text);
}

TABLE_TEST(record_refusals)
{
    refuse(row->record, row->role, row->text);
}

SUITE(.name = "wire");
