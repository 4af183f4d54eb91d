/*
 * Shows that an agreement arrives as it was sent, that every field out of range is refused in words
 * and leaves the output alone, that whatever is accepted is the same bytes when written again, and
 * that a difference that matters names both values, the host and the variable.
 */
#include "session/agreement.h"
#include "tests/unit/checks.h"

#include <stdlib.h>
#include <string.h>

/* Where the fields are, said a second time: the wire must not change by accident. */
enum {
    AT_VERSION = 0,
    AT_CHANNELS = 4,
    AT_TABLE_VERSION = 8,
    AT_UNPACK = 12,
    AT_CHUNK_BYTES = 16,
    AT_PROCESS = 24,
    AT_TRANSPORT = 32,
    AT_HOST = 96,
    AT_NAME = 160,
    AT_NONCE = 224,
    AT_HANDLES = 240,
};

static struct agreement example(uint32_t channels)
{
    struct agreement agreement = {.version = SESSION_VERSION,
                                  .transport = "builtin",
                                  .table_version = 7,
                                  .channels = channels,
                                  .chunk_bytes = 524288,
                                  .unpack = 3,
                                  .process = 0x0123456789abcdef,
                                  .host = "node-1.example",
                                  .name = "decode-3"};

    for (int i = 0; i < AGREEMENT_NONCE_BYTES; i++)
        agreement.nonce[i] = (uint8_t)(0xe0 + i);
    for (uint32_t i = 0; i < channels; i++)
        for (int j = 0; j < AGREEMENT_HANDLE_BYTES; j++)
            agreement.handles[i][j] = (uint8_t)(i * 7 + (unsigned)j + 1);
    return agreement;
}

/* In a block of exactly its size, so that a sanitizer sees a read beyond it. */
static int decode(const uint8_t *bytes, size_t length, struct agreement *agreement)
{
    uint8_t *exact = malloc(length > 0 ? length : 1);
    int result;

    assert_non_null(exact);
    memcpy(exact, bytes, length);
    result = agreement_decode(exact, length, agreement);
    free(exact);
    return result;
}

static void assert_same(const struct agreement *a, const struct agreement *b)
{
    assert_int_equal(a->version, b->version);
    assert_string_equal(a->transport, b->transport);
    assert_int_equal(a->table_version, b->table_version);
    assert_int_equal(a->channels, b->channels);
    assert_int_equal(a->takes_fewer, b->takes_fewer);
    assert_true(a->chunk_bytes == b->chunk_bytes);
    assert_int_equal(a->unpack, b->unpack);
    assert_true(a->process == b->process);
    assert_string_equal(a->host, b->host);
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->windows, b->windows);
    assert_memory_equal(a->nonce, b->nonce, sizeof a->nonce);
    assert_memory_equal(a->handles, b->handles, sizeof a->handles);
}

TEST(test_round_trip)
{
    uint8_t bytes[AGREEMENT_BYTES];

    for (uint32_t channels = 1; channels <= AGREEMENT_CHANNELS; channels++) {
        struct agreement sent = example(channels);
        struct agreement got;
        size_t length = agreement_encode(&sent, bytes);

        memset(&got, 0x5a, sizeof got);
        assert_int_equal(length, AT_HANDLES + channels * AGREEMENT_HANDLE_BYTES);
        assert_int_equal(decode(bytes, length, &got), TCPX_SUCCESS);
        assert_same(&sent, &got);
    }
}

TEST(test_the_ends_of_every_range)
{
    struct agreement sent = example(2);
    struct agreement got;
    uint8_t bytes[AGREEMENT_BYTES];

    sent.chunk_bytes = AGREEMENT_MOST_CHUNK_BYTES;
    sent.table_version = UINT32_MAX;
    sent.unpack = ((uint32_t)1 << 30) - 1;
    sent.takes_fewer = true;
    sent.windows = true;
    sent.process = UINT64_MAX;
    memset(sent.transport, '~', AGREEMENT_NAME_BYTES - 1);
    memset(sent.host, ' ', AGREEMENT_NAME_BYTES - 1);
    sent.host[AGREEMENT_NAME_BYTES - 1] = '\0';
    memcpy(sent.name, sent.host, sizeof sent.name);
    assert_int_equal(decode(bytes, agreement_encode(&sent, bytes), &got), TCPX_SUCCESS);
    assert_same(&sent, &got);
    sent.chunk_bytes = 1;
    sent.takes_fewer = false;
    sent.host[0] = '\0';
    sent.name[0] = '\0';
    assert_int_equal(decode(bytes, agreement_encode(&sent, bytes), &got), TCPX_SUCCESS);
    assert_same(&sent, &got);
    sent.channels = 0;
    assert_int_equal(agreement_encode(&sent, bytes), 0);
    sent.channels = AGREEMENT_CHANNELS + 1;
    assert_int_equal(agreement_encode(&sent, bytes), 0);
}

/* The bytes of the wire, one by one; and nothing of the memory behind a name. */
TEST(test_layout)
{
    static const uint8_t head[AT_TRANSPORT] = {
        2, 0, 0, 0, 2, 0, 0, 0, 7,    0,    0,    0,    3,    0,    0,    0,
        0, 0, 8, 0, 0, 0, 0, 0, 0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01,
    };
    static const uint8_t zeros[AGREEMENT_NAME_BYTES];
    struct agreement sent = example(2);
    uint8_t bytes[AGREEMENT_BYTES];

    memset(sent.transport + 8, 'x', AGREEMENT_NAME_BYTES - 8);
    assert_int_equal(agreement_encode(&sent, bytes), AT_HANDLES + 2 * 128);
    assert_memory_equal(bytes, head, sizeof head);
    assert_string_equal((char *)bytes + AT_TRANSPORT, "builtin");
    assert_memory_equal(bytes + AT_TRANSPORT + 8, zeros, AGREEMENT_NAME_BYTES - 8);
    assert_string_equal((char *)bytes + AT_HOST, "node-1.example");
    assert_string_equal((char *)bytes + AT_NAME, "decode-3");
    assert_memory_equal(bytes + AT_NONCE, sent.nonce, AGREEMENT_NONCE_BYTES);
    assert_memory_equal(bytes + AT_HANDLES, sent.handles, 256);
    /* A name that does not end is cut. */
    memset(sent.host, 'h', sizeof sent.host);
    (void)agreement_encode(&sent, bytes);
    assert_int_equal(strlen((char *)bytes + AT_HOST), AGREEMENT_NAME_BYTES - 1);
    /* The two switches. */
    sent.takes_fewer = true;
    (void)agreement_encode(&sent, bytes);
    assert_int_equal(bytes[AT_UNPACK + 3], 0x80);
    sent.windows = true;
    (void)agreement_encode(&sent, bytes);
    assert_int_equal(bytes[AT_UNPACK + 3], 0xc0);
}

static void assert_refused(const uint8_t *bytes, size_t length, int result, const char *word)
{
    struct agreement got;

    memset(&got, 0x5a, sizeof got);
    error_keep("%s", "");
    assert_int_equal(decode(bytes, length, &got), result);
    expect_text(word);
    expect_untouched(&got, sizeof got);
}

struct mutation {
    size_t at;
    uint8_t bytes[8];
    size_t count; /* of them; more: of the first one */
    int result;
    const char *word;
};

TEST(test_every_field_out_of_range)
{
    static const struct mutation mutations[] = {
        {AT_VERSION, {0}, 4, TCPX_INVALID_USAGE, "version 0"},
        {AT_VERSION, {3}, 4, TCPX_INVALID_USAGE, "speaks version 3"},
        {AT_VERSION, {2, 0, 0, 1}, 4, TCPX_INVALID_USAGE, "this side versions 2 to 2"},
        {AT_CHANNELS, {0}, 4, TCPX_REMOTE_ERROR, "0 channels, possible are 1 to 64"},
        {AT_CHANNELS, {65}, 4, TCPX_REMOTE_ERROR, "65 channels, possible"},
        {AT_CHANNELS, {3, 0, 0, 0x80}, 4, TCPX_REMOTE_ERROR, "2147483651 channels, possible"},
        {AT_CHANNELS, {2}, 4, TCPX_REMOTE_ERROR, "expected are 496 for 2 channels"},
        {AT_CHANNELS, {4}, 4, TCPX_REMOTE_ERROR, "expected are 752 for 4 channels"},
        {AT_CHUNK_BYTES, {0}, 8, TCPX_REMOTE_ERROR, "chunks of 0 bytes"},
        {AT_CHUNK_BYTES, {1, 0, 0, 0, 0, 1}, 8, TCPX_REMOTE_ERROR, "chunks of 1099511627777"},
        {AT_CHUNK_BYTES, {0, 0, 8, 0, 0, 0, 0, 0x80}, 8, TCPX_REMOTE_ERROR, "chunks of"},
        {AT_TRANSPORT, {0}, 8, TCPX_REMOTE_ERROR, "transport has no name"},
        {AT_TRANSPORT, {0}, 1, TCPX_REMOTE_ERROR, "behind the name of its transport"},
        {AT_TRANSPORT + 2, {'\n'}, 1, TCPX_REMOTE_ERROR, "byte 2 of the name of its transport"},
        {AT_TRANSPORT + 63, {1}, 1, TCPX_REMOTE_ERROR, "byte 63 behind"},
        {AT_HOST, {0x7f}, 1, TCPX_REMOTE_ERROR, "name of its host is 0x7f"},
        {AT_HOST + 1, {0xc3}, 1, TCPX_REMOTE_ERROR, "name of its host is 0xc3"},
        {AT_HOST + 40, {'x'}, 1, TCPX_REMOTE_ERROR, "behind the name of its host"},
        {AT_HOST, {'h'}, 64, TCPX_REMOTE_ERROR, "name of its host does not end"},
        {AT_NAME, {'\t'}, 1, TCPX_REMOTE_ERROR, "name of its program is 0x09"},
        {AT_NAME + 9, {'x'}, 1, TCPX_REMOTE_ERROR, "behind the name of its program"},
        {AT_NAME, {'n'}, 64, TCPX_REMOTE_ERROR, "name of its program does not end"},
        {AT_TRANSPORT, {'t'}, 64, TCPX_REMOTE_ERROR, "name of its transport does not end"},
    };
    struct agreement sent = example(3);
    uint8_t bytes[AGREEMENT_BYTES];

    for (size_t i = 0; i < COUNT_OF(mutations); i++) {
        const struct mutation *mutation = &mutations[i];
        size_t length = agreement_encode(&sent, bytes);

        for (size_t k = 0; k < mutation->count; k++)
            bytes[mutation->at + k] = mutation->bytes[mutation->count > 8 ? 0 : k];
        assert_refused(bytes, length, mutation->result, mutation->word);
    }
}

/* One channel more than there is room for, with all its bytes. */
TEST(test_too_many_handles)
{
    struct agreement sent = example(AGREEMENT_CHANNELS);
    uint8_t bytes[AGREEMENT_BYTES + AGREEMENT_HANDLE_BYTES] = {0};

    (void)agreement_encode(&sent, bytes);
    bytes[AT_CHANNELS]++;
    assert_refused(bytes, sizeof bytes, TCPX_REMOTE_ERROR, "65 channels, possible");
}

TEST(test_every_other_length)
{
    struct agreement sent = example(2);
    uint8_t bytes[AGREEMENT_BYTES + 1] = {0};
    size_t right = agreement_encode(&sent, bytes);

    for (size_t length = 0; length <= sizeof bytes; length++)
        if (length != right)
            assert_refused(bytes, length, TCPX_REMOTE_ERROR, "bytes, expected");
    sent = example(AGREEMENT_CHANNELS);
    right = agreement_encode(&sent, bytes);
    assert_refused(bytes, right + 1, TCPX_REMOTE_ERROR, "expected are 8432 for 64 channels");
}

TEST(test_random_mutations)
{
    struct agreement sent = example(2);
    uint64_t random = 1;
    unsigned accepted = 0;

    for (int i = 0; i < 50000; i++) {
        uint8_t bytes[AGREEMENT_BYTES];
        uint8_t again[AGREEMENT_BYTES];
        struct agreement got;
        size_t length = agreement_encode(&sent, bytes);

        for (uint64_t flips = 1 + random_below(&random, 3); flips > 0; flips--)
            bytes[random_below(&random, i % 2 == 0 ? length : AT_HANDLES)] ^=
                (uint8_t)(1u << random_below(&random, 8));
        if (random_below(&random, 8) == 0)
            length = random_below(&random, length + 1);
        if (decode(bytes, length, &got) != TCPX_SUCCESS)
            continue;
        accepted++;
        assert_int_equal(agreement_encode(&got, again), length);
        assert_memory_equal(bytes, again, length);
    }
    assert_in_range(accepted, 10000, 40000);
}

static void assert_differs(const struct agreement *mine, const struct agreement *theirs,
                           const char *text)
{
    assert_int_equal(agreement_compare(mine, theirs), TCPX_INVALID_USAGE);
    assert_string_equal(error_text(), text);
}

TEST(test_differences_in_words)
{
    struct agreement mine = example(4);
    struct agreement theirs = example(4);

    assert_int_equal(agreement_compare(&mine, &theirs), TCPX_SUCCESS);
    theirs.channels = 2;
    assert_differs(&mine, &theirs,
                   "channels: 4 here, 2 at node-1.example (UCCL_TCPX_NUM_CHANNELS)");
    theirs = mine;
    theirs.chunk_bytes += (uint64_t)1 << 33;
    assert_differs(
        &mine, &theirs,
        "chunk bytes: 524288 here, 8590458880 at node-1.example (UCCL_TCPX_CHUNK_BYTES)");
    theirs = mine;
    strcpy(theirs.transport, "GPUDirectTCPX_v7");
    assert_differs(&mine, &theirs,
                   "transport: builtin here, GPUDirectTCPX_v7 at node-1.example "
                   "(UCCL_TCPX_PLUGIN_PATH)");
    theirs = mine;
    theirs.version = 3;
    theirs.host[0] = '\0';
    assert_differs(&mine, &theirs, "version of the session protocol: 2 here, 3 at the peer");
}

/* Only a number that a user has set is a condition. */
TEST(test_fewer_channels)
{
    struct agreement more = example(4);
    struct agreement fewer = example(2);

    more.takes_fewer = true;
    assert_int_equal(agreement_compare(&more, &fewer), TCPX_SUCCESS);
    assert_int_equal(agreement_compare(&fewer, &more), TCPX_SUCCESS);
    fewer.takes_fewer = true;
    assert_int_equal(agreement_compare(&more, &fewer), TCPX_SUCCESS);
    more.takes_fewer = false;
    assert_differs(&fewer, &more, "channels: 2 here, 4 at node-1.example (UCCL_TCPX_NUM_CHANNELS)");
    assert_differs(&more, &fewer, "channels: 4 here, 2 at node-1.example (UCCL_TCPX_NUM_CHANNELS)");
}

/* What is only told does not matter. */
TEST(test_what_need_not_be_equal)
{
    struct agreement mine = example(4);
    struct agreement theirs = example(4);

    theirs.table_version = 12;
    theirs.unpack = 1;
    theirs.process = 1;
    theirs.windows = true;
    strcpy(theirs.host, "other");
    strcpy(theirs.name, "another");
    memset(theirs.nonce, 0, sizeof theirs.nonce);
    memset(theirs.handles, 0, sizeof theirs.handles);
    assert_int_equal(agreement_compare(&mine, &theirs), TCPX_SUCCESS);
}

SUITE(.name = "agreement");
