/*
 * Messages over a comm, both ends driven in one thread: the smallest and the largest, what does not
 * fit, what comes late, what is never asked for; and how each end learns that the other is gone or
 * lies.
 */
#include "tests/support/pair.h"

#include <stdlib.h>

static const struct net_link_options *options_of(uint8_t sockets, enum wire_match match,
                                                 enum wire_framing framing)
{
    static struct net_link_options options;

    options = *PAIR_OPTIONS(.sockets = sockets, .match = match, .framing = framing,
                            .eager_credit = 32768, .largest_slice = 100000);
    return &options;
}

static struct pair tag_pair(void)
{
    return pair_open(options_of(1, WIRE_MATCH_TAG, WIRE_INLINE));
}

/* --- sizes --------------------------------------------------------------------------------- */

/* No credit at all, and slices of a byte: nothing depends on their size. */
TEST(test_the_smallest_settings)
{
    static uint8_t data[5000];
    static uint8_t arrived[5000];

    fill_bytes(data, sizeof data);
    for (int framing = WIRE_INLINE; framing <= WIRE_SEPARATE; framing++) {
        struct pair pair =
            pair_open(PAIR_OPTIONS(.sockets = 3, .framing = framing, .eager_limit = 0,
                                   .eager_credit = 0, .largest_slice = WIRE_LEAST_SLICE));

        for (uint64_t bytes = 0; bytes <= 5000; bytes = bytes * 7 + 1)
            pair_move(&pair, data, arrived, bytes, 1);
        pair_close(&pair);
    }
}

TEST(test_a_large_message)
{
    enum { BYTES = 100 << 20 };
    struct pair pair =
        pair_open(PAIR_OPTIONS(.sockets = 4, .match = WIRE_MATCH_FIFO, .largest_slice = 524288));
    uint8_t *data = malloc(BYTES);
    uint8_t *arrived = malloc(BYTES);

    for (size_t i = 0; i < BYTES / 8; i++)
        ((uint64_t *)(void *)data)[i] = i * 0x9e3779b97f4a7c15u;
    pair_move(&pair, data, arrived, BYTES, 0);
    pair_close(&pair);
    free(data);
    free(arrived);
}

/* --- windows, late and missing receives ---------------------------------------------------- */

TEST(test_busy_is_no_error)
{
    struct pair pair = tag_pair();
    struct net_request *requests[COMM_REQUESTS];
    struct net_request *more = (struct net_request *)&pair;
    static uint8_t data[100000];
    static uint8_t arrived[sizeof data];

    for (int i = 0; i < COMM_REQUESTS; i++)
        requests[i] = must_send(pair.sender, data, sizeof data, (uint64_t)i);
    assert_success(net_isend(pair.sender, data, 1, 0, &more));
    assert_null(more);
    for (int i = 0; i < 100; i++)
        must_go_on(requests[5]);
    /* one receive of a tag in the middle makes room */
    must_end_both(requests[20], must_receive(pair.receiver, arrived, sizeof arrived, 20));
    more = must_send(pair.sender, data, 1, 99);
    pair_close(&pair);
}

/* Far more receives than a comm can have at once come and go while some old ones wait. */
TEST(test_old_receives_among_many)
{
    enum { OLD = 5, OTHERS = 1000, BYTES = 300000 };
    static uint8_t data[OLD][BYTES];
    static uint8_t arrived[OLD][BYTES];
    struct pair pair = pair_open(options_of(2, WIRE_MATCH_TAG, WIRE_INLINE));
    struct net_request *old[OLD];

    fill_bytes(data[0], sizeof data);
    memset(arrived, 0, sizeof arrived);
    for (uint64_t i = 0; i < OLD; i++)
        old[i] = must_receive(pair.receiver, arrived[i], BYTES, 100 + i);
    for (uint64_t i = 0; i < OTHERS; i++) {
        uint8_t other[5000];

        pair_move(&pair, data[0], other, i % 3 == 0 ? sizeof other : i % 100, i % 7);
    }
    for (uint64_t i = OLD; i-- > 0;)
        assert_int_equal(must_end_both(must_send(pair.sender, data[i], BYTES, 100 + i), old[i]),
                         BYTES);
    assert_memory_equal(arrived, data, sizeof data);
    pair_close(&pair);
}

/* Messages that nobody asks for use up the credit, and others still pass. */
TEST(test_credit_runs_out)
{
    struct pair pair = tag_pair();
    uint8_t data[4000] = {9};
    uint8_t arrived[4000];
    struct net_request *sends[12];
    int done_early = 0;

    for (int i = 0; i < 12; i++)
        sends[i] = must_send(pair.sender, data, sizeof data, 1);
    for (int turn = 0; turn < 1000; turn++)
        for (int i = 0; i < 12; i++)
            done_early += sends[i] != NULL && request_is_done(&sends[i]);
    assert_int_equal(done_early, 32768 / 4064);
    /* another tag, empty: its receive is posted, so that it needs no credit */
    assert_int_equal(
        must_end_both(must_send(pair.sender, NULL, 0, 2), must_receive(pair.receiver, NULL, 0, 2)),
        0);
    for (int i = 0; i < 12; i++)
        assert_int_equal(must_end_both(sends[i], must_receive(pair.receiver, arrived, 4000, 1)),
                         4000);
    pair_close(&pair);
}

TEST(test_messages_that_are_too_long)
{
    struct pair pair = tag_pair();
    uint8_t data[10000] = {5};
    uint8_t arrived[10000];
    struct net_request *send = must_send(pair.sender, data, 10000, 1);
    struct net_request *receive = must_receive(pair.receiver, arrived, 9999, 1);

    /* announced: both ends are told */
    must_fail(send, TCPX_INVALID_USAGE, "room for 9999");
    must_fail(receive, TCPX_INVALID_USAGE, "room for 9999 bytes, but its message");
    pair_close(&pair);
}

TEST(test_an_eager_message_that_is_too_long)
{
    struct pair pair = tag_pair();
    uint8_t data[1000] = {5};
    uint8_t arrived[1000];

    for (int late = 0; late < 2; late++) {
        memset(arrived, 0xaa, sizeof arrived);
        must_end_both(must_send(pair.sender, data, 1000, 1), NULL);
        if (late) /* let it arrive first */
            must_end_both(must_send(pair.sender, data, 10, 2),
                          must_receive(pair.receiver, arrived + 900, 10, 2));
        must_fail(must_receive(pair.receiver, arrived, 500, 1), TCPX_INVALID_USAGE, "has 1000");
        for (int i = 0; i < 900; i++)
            assert_int_equal(arrived[i], 0xaa);
        /* and the comm goes on */
        pair_move(&pair, data, arrived, 1000, 1);
    }
    pair_close(&pair);
}

TEST(test_wrong_use)
{
    struct pair pair = tag_pair();
    struct net_request *request = NULL;
    uint8_t byte = 0;

    assert_int_equal(net_isend(pair.receiver, &byte, 1, 0, &request), TCPX_INVALID_USAGE);
    expect_text("a send on the receiver's end");
    assert_int_equal(net_irecv(pair.sender, &byte, 1, 0, &request), TCPX_INVALID_USAGE);
    pair_close(&pair);
    net_comm_close(NULL);
}

/* --- ends ---------------------------------------------------------------------------------- */

TEST(test_what_is_done_is_delivered_after_close)
{
    enum { BYTES = 300000 };
    static uint8_t data[BYTES];
    static uint8_t arrived[BYTES];

    for (int sockets = 1; sockets <= 3; sockets++) {
        struct pair pair = pair_open(options_of((uint8_t)sockets, WIRE_MATCH_TAG, WIRE_INLINE));
        struct net_request *large = must_receive(pair.receiver, arrived, BYTES, 1);

        memset(arrived, 0, BYTES);
        memset(data, 0x40 + sockets, BYTES);
        /* the POST must reach the sender; from then on only the sender moves */
        must_end(must_send(pair.sender, data, BYTES, 1));
        must_end_both(must_send(pair.sender, data, 5, 2), NULL);
        comm_end(&pair.sender);
        assert_int_equal(must_end_both(NULL, large), BYTES);
        assert_memory_equal(arrived, data, BYTES);
        assert_int_equal(must_end_both(NULL, must_receive(pair.receiver, arrived, 10, 2)), 5);
        /* and then it is over, in words: of the receive, if the end has been seen, or its test */
        struct net_request *late;
        int result = net_irecv(pair.receiver, arrived, 10, 3, &late);

        if (result == TCPX_SUCCESS)
            result = end_of(late, NULL);
        assert_int_equal(result, TCPX_REMOTE_ERROR);
        expect_text("has closed the comm");
        pair_close(&pair);
    }
}

TEST(test_a_receiver_that_goes_away)
{
    static uint8_t data[1 << 20];
    struct pair pair = tag_pair();
    struct net_request *send = must_send(pair.sender, data, sizeof data, 1);
    struct net_request *none;

    comm_end(&pair.receiver);
    must_fail(send, TCPX_REMOTE_ERROR, "127.0.0.1:");
    expect_text("a send of 1048576 bytes with tag 1 had moved 0");
    assert_int_equal(net_isend(pair.sender, data, 1, 1, &none), TCPX_REMOTE_ERROR);
    pair_close(&pair);
}

TEST(test_a_sender_that_is_lost_in_a_message)
{
    static uint8_t data[256 << 20];
    static uint8_t arrived[sizeof data];
    struct pair pair = tag_pair();
    struct net_request *receive = must_receive(pair.receiver, arrived, sizeof arrived, 1);

    must_send(pair.sender, data, sizeof data, 1);
    must_go_on(receive);
    comm_end(&pair.sender);
    must_fail(receive, TCPX_REMOTE_ERROR, "a receive of 268435456 bytes");
    pair_close(&pair);
}

/* --- messages that pass each other --------------------------------------------------------- */

/* An eager message of tag 5 on credit, by a sender that had heard of so many receives. */
static void say_on_credit(const struct by_hand *hand, uint64_t posts_heard, uint8_t content)
{
    hand_say(hand->link.forward[0], &(struct wire_record){.type = WIRE_EAGER,
                                                          .flags = WIRE_ON_CREDIT,
                                                          .offset = posts_heard,
                                                          .length = 1,
                                                          .tag = 5});
    hand_put(hand->link.forward[0], &content, 1);
}

static void say_slice(const struct by_hand *hand, uint16_t socket, uint32_t sequence,
                      uint8_t content)
{
    hand_say(
        hand->link.forward[socket],
        &(struct wire_record){
            .type = WIRE_SLICE, .socket = socket, .sequence = sequence, .length = 1, .tag = 1});
    hand_put(hand->link.forward[socket], &content, 1);
}

/*
 * The slices of earlier messages of the tag come later, on another socket; the receives of others
 * were posted while the messages were on their way, or are posted when they have come.
 */
TEST(test_eager_messages_overtake_slices)
{
    struct by_hand hand = by_hand_open(NET_RECEIVER, options_of(2, WIRE_MATCH_TAG, WIRE_INLINE));
    uint8_t arrived[6] = {0};
    struct net_request *receives[6];

    for (size_t i = 0; i < 4; i++) /* 1 is of another tag */
        receives[i] = must_receive(hand.comm, &arrived[i], 1, i == 1 ? 6 : 5);
    /* 0 and 2 have messages; 3 is posted, but not known; 4 is not there */
    say_on_credit(&hand, 3, 'd');
    must_end(receives[3]);
    say_on_credit(&hand, 3, 'e');
    nap_ms(5);
    for (size_t i = 4; i < 6; i++)
        receives[i] = must_receive(hand.comm, &arrived[i], 1, 5);
    must_end(receives[4]);
    say_slice(&hand, 1, 2, 'c');
    say_slice(&hand, 1, 0, 'a');
    must_end(receives[2]);
    must_end(receives[0]);
    /* all that is known now is matched; the number says the place */
    hand_say(hand.link.forward[0],
             &(struct wire_record){.type = WIRE_EAGER, .sequence = 1, .length = 1});
    hand_put(hand.link.forward[0], (const uint8_t *)"b", 1);
    must_end(receives[1]);
    say_on_credit(&hand, 5, 'f');
    must_end(receives[5]);
    assert_memory_equal(arrived, "abcdef", 6);
    by_hand_close(&hand);
}

/* --- peers that lie ------------------------------------------------------------------------ */

static struct by_hand against(enum net_side comm_side)
{
    return by_hand_open(comm_side, options_of(2, WIRE_MATCH_TAG, WIRE_INLINE));
}

/* Says the record, as often as there are more of it, and then the next one; to a receive of tag 5.
 */
static const struct {
    const char *test;
    int socket;
    struct wire_record record;
    unsigned more; /* such records, with their bytes */
    struct wire_record next;
    const char *words;
} sender_lies[] = {
#define LIE(on, text, ...)                                                                         \
    {                                                                                              \
        "test_senders_that_lie", .socket = (on), .record = {__VA_ARGS__}, .words = (text)          \
    }
    LIE(0, "type 16", .type = 16, .length = 5, .tag = 5), /* version 1 had this */
    LIE(0, "an eager message", .type = WIRE_EAGER, .sequence = 1, .length = 5),
    LIE(0, "an eager message", .type = WIRE_EAGER, .length = 101),
    LIE(1, "socket 1", .type = WIRE_EAGER, .length = 5),
    LIE(0, "slice", .type = WIRE_SLICE, .offset = 100, .length = 1, .tag = 101),
    LIE(0, "slice", .type = WIRE_SLICE, .length = 1, .tag = 101),
    LIE(0, "slice", .type = WIRE_SLICE, .sequence = 9, .length = 1, .tag = 1),
    LIE(0, "slice", .type = WIRE_SLICE, .flags = WIRE_ON_CREDIT, .length = 1, .tag = 1),
    LIE(0, "socket 1 on socket 0", .type = WIRE_SLICE, .socket = 1, .length = 1, .tag = 1),
    LIE(0, "an eager message of 4097 bytes", .type = WIRE_EAGER, .flags = WIRE_ON_CREDIT,
        .length = 4097, .tag = 6),
    LIE(0, "behind 2 receives", .type = WIRE_EAGER, .flags = WIRE_ON_CREDIT, .offset = 2,
        .length = 5, .tag = 5),
    LIE(0, "with tag 5 behind", .type = WIRE_EAGER, .flags = WIRE_ON_CREDIT, .sequence = 1,
        .length = 5, .tag = 5),
    LIE(0, "TOOLONG", .type = WIRE_TOOLONG, .length = 50),
    LIE(0, "an end after 7", .type = WIRE_FIN, .length = 7),
    LIE(0, "POST", .type = WIRE_POST, .length = 7),
    {"test_a_record_behind_fin", .record = {.type = WIRE_FIN}, .next = {.type = WIRE_EAGER},
     .words = "behind FIN"},
    /* eight of them are put aside, the ninth is too many */
    {"test_more_than_the_credit",
     .record = {.type = WIRE_EAGER, .flags = WIRE_ON_CREDIT, .length = 4000, .tag = 6}, .more = 8,
     .words = "beyond its credit"},
};

TABLE_TEST(sender_lies)
{
    static const uint8_t payload[4000];
    struct by_hand hand = against(NET_RECEIVER);
    int fd = hand.link.forward[row->socket];
    uint8_t data[100];
    struct net_request *receive = must_receive(hand.comm, data, sizeof data, 5);

    memset(data, 0xaa, sizeof data);
    hand_say(fd, &row->record);
    for (unsigned i = 0; i < row->more; i++) {
        hand_put(fd, payload, row->record.length);
        hand_say(fd, &row->record);
    }
    if (row->next.type != 0)
        hand_say(fd, &row->next);
    must_fail(receive, TCPX_REMOTE_ERROR, "broke the protocol");
    expect_text(row->words);
    for (size_t k = 0; k < sizeof data; k++)
        assert_int_equal(data[k], 0xaa);
    by_hand_close(&hand);
}

/* Whoever finds the lie tells the liar, and ends the streams: nobody waits for a dead comm. */
TEST(test_a_liar_is_told)
{
    struct by_hand hand = against(NET_RECEIVER);
    uint8_t data[100];
    uint8_t heard[1000] = {0};
    struct wire_record record;
    struct net_request *receive = must_receive(hand.comm, data, sizeof data, 5);
    size_t have = 0;
    ssize_t got = 1;

    hand_say(hand.link.forward[0], &(struct wire_record){.type = WIRE_TOOLONG, .length = 50});
    must_fail(receive, TCPX_REMOTE_ERROR, "");
    until(got == 0, {
        got = recv(hand.link.reverse, heard + have, sizeof heard - 1 - have, MSG_DONTWAIT);
        have += got > 0 ? (size_t)got : 0;
    });
    /* the POST of the receive if it was said already, then the reason, then the end */
    assert_int_equal(wire_record_read(heard, WIRE_REVERSE, &record), WIRE_FINE);
    if (record.type == WIRE_POST)
        memmove(heard, heard + WIRE_RECORD_BYTES, sizeof heard - WIRE_RECORD_BYTES);
    assert_int_equal(wire_record_read(heard, WIRE_REVERSE, &record), WIRE_FINE);
    assert_int_equal(record.type, WIRE_ABORT);
    assert_non_null(strstr((char *)heard + WIRE_RECORD_BYTES, "TOOLONG"));
    by_hand_close(&hand);
}

static const struct {
    const char *test;
    struct wire_record record;
    uint32_t count; /* of such records, with rising numbers */
    const char *words;
} receiver_lies[] = {
    {"test_receivers_that_lie", {.type = WIRE_CREDIT, .offset = 1}, 1, ""},
    {"test_receivers_that_lie", {.type = WIRE_POST, .offset = 1 << 20}, 1, ""},
    {"test_receivers_that_lie", {.type = WIRE_READY, .socket = 2, .tag = 64}, 1, "READY"},
    {"test_receivers_that_lie", {.type = WIRE_EAGER, .length = 5}, 1, ""},
    /* more receives than there can be */
    {"test_receivers_that_lie", {.type = WIRE_POST, .tag = 77}, COMM_REQUESTS + 1, "more than 32"},
    {"test_credit_that_frees_nothing", {.type = WIRE_CREDIT}, 1, "CREDIT that frees nothing"},
};

TABLE_TEST(receiver_lies)
{
    static uint8_t data[100000];
    struct by_hand hand = against(NET_SENDER);
    struct net_request *send = must_send(hand.comm, data, sizeof data, 5);
    struct wire_record record = row->record;

    for (; record.sequence < row->count; record.sequence++)
        hand_say(hand.link.reverse, &record);
    must_fail(send, TCPX_REMOTE_ERROR, "broke the protocol");
    expect_text(row->words);
    by_hand_close(&hand);
}

TEST(test_a_peer_that_gives_up_says_why)
{
    struct by_hand hand = against(NET_RECEIVER);
    uint8_t data[100] = {0};
    struct net_request *receive = must_receive(hand.comm, data, sizeof data, 5);
    struct net_request *none = NULL;
    int result = TCPX_SUCCESS;

    hand_say(hand.link.forward[0],
             &(struct wire_record){.type = WIRE_ABORT, .sequence = 1, .length = 12});
    hand_put(hand.link.forward[0], "no GPU today", 12);
    must_fail(receive, TCPX_REMOTE_ERROR, "gave up with TCPX_CUDA_ERROR: no GPU today");
    by_hand_close(&hand);

    hand = against(NET_SENDER);
    must_end(must_send(hand.comm, data, sizeof data, 5));
    must_send(hand.comm, data, 0, 6);
    hand_say(hand.link.reverse,
             &(struct wire_record){.type = WIRE_ABORT, .sequence = 5, .length = 3});
    hand_put(hand.link.reverse, "bye", 3);
    until(result != TCPX_SUCCESS, result = net_isend(hand.comm, data, 100000 % 7, 9, &none));
    assert_int_equal(result, TCPX_REMOTE_ERROR);
    expect_text("gave up with TCPX_INVALID_USAGE: bye");
    by_hand_close(&hand);
}

SUITE(.name = "comms");
