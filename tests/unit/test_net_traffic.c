/*
 * Messages in both directions at once between two threads, and by one thread: random sizes, tags
 * and orders, posted and tested in whatever order, every byte checked and an unreadable page behind
 * every buffer. Then receives that come late, never, or with too little room. All of it in every
 * mode of a comm.
 */
#include "tests/support/traffic.h"

enum { EAGER_LIMIT = 4096, CREDIT = 32768, SLICE = 65536, LONGEST = 1 << 20 };

struct mode {
    uint8_t sockets;
    enum wire_match match;
    enum wire_framing framing;
};

static const struct mode modes[] = {
    {1, WIRE_MATCH_FIFO, WIRE_INLINE},   {2, WIRE_MATCH_FIFO, WIRE_INLINE},
    {4, WIRE_MATCH_FIFO, WIRE_INLINE},   {1, WIRE_MATCH_TAG, WIRE_INLINE},
    {2, WIRE_MATCH_TAG, WIRE_INLINE},    {4, WIRE_MATCH_TAG, WIRE_INLINE},
    {2, WIRE_MATCH_TAG, WIRE_SEPARATE},  {4, WIRE_MATCH_TAG, WIRE_SEPARATE},
    {2, WIRE_MATCH_FIFO, WIRE_SEPARATE}, {4, WIRE_MATCH_FIFO, WIRE_SEPARATE},
};

enum { MODES = sizeof modes / sizeof *modes };

static struct text text;

/*
 * The kernel then takes a message piece by piece, where it would have had room for many. The room
 * is more than one segment of loopback: less than that is acknowledged late, and takes long.
 */
static void narrow(const struct net_link *link)
{
    for (int i = 0; i < link->sockets; i++)
        socket_set_buffer(link->forward[i], SO_SNDBUF, 40000);
}

static struct pair make_pair(const struct mode *mode, bool narrowed)
{
    struct net_link sender;
    struct net_link receiver;

    make_link_pair(PAIR_OPTIONS(.sockets = mode->sockets, .match = mode->match,
                                .framing = mode->framing, .eager_credit = CREDIT,
                                .largest_slice = SLICE),
                   &sender, &receiver);
    if (narrowed)
        narrow(&sender);
    return pair_of(&sender, &receiver);
}

static struct traffic_stream make_stream(const struct mode *mode, uint64_t *random, int count,
                                         int direction)
{
    static const uint64_t edges[] = {0,           1,
                                     31,          32,
                                     33,          EAGER_LIMIT - 1,
                                     EAGER_LIMIT, EAGER_LIMIT + 1,
                                     SLICE - 1,   SLICE,
                                     SLICE + 1,   2 * SLICE - 1,
                                     2 * SLICE,   2 * SLICE + 1};
    static const struct traffic_sizes sizes = {
        .edges = edges,
        .edge_count = sizeof edges / sizeof *edges,
        .below = {40000, 3000, 3000, 3000, 3000, 3000, 3000},
        .rarely = LONGEST,
    };

    return traffic_stream_create(&text, mode->match, &sizes, random, count, COMM_REQUESTS,
                                 direction);
}

/* --- traffic -------------------------------------------------------------------------------- */

/* Both directions at once, with a thread at each end. */
static void run_traffic(const struct mode *mode, int count)
{
    static uint64_t random = 4711;
    static struct traffic ends[2];
    struct pair pairs[2] = {make_pair(mode, false), make_pair(mode, true)};
    struct traffic_stream streams[2];
    char where[40];

    for (int i = 0; i < 2; i++)
        streams[i] = make_stream(mode, &random, count, i);
    for (int i = 0; i < 2; i++) {
        traffic_create(&ends[i], &streams[i], &streams[1 - i], LONGEST);
        ends[i].sender = pairs[i].sender;
        ends[i].receiver = pairs[1 - i].receiver;
    }
    snprintf(where, sizeof where, "%d sockets", mode->sockets);
    traffic_run_both(ends, where);
    for (int i = 0; i < 2; i++) {
        pair_close(&pairs[i]);
        traffic_destroy(&ends[i]);
        traffic_stream_destroy(&streams[i]);
    }
}

/* TCPX_TEST_MESSAGES is how many go in each framing, over its modes and both directions. */
static int messages_of_a_framing(void)
{
    return (int)number_of("TCPX_TEST_MESSAGES", 10000);
}

static const struct {
    const char *test;
    enum wire_match match;
    enum wire_framing framing;
} ways[] = {
    {"test_inline_in_order", WIRE_MATCH_FIFO, WIRE_INLINE},
    {"test_inline_with_tags", WIRE_MATCH_TAG, WIRE_INLINE},
    {"test_separate_in_order", WIRE_MATCH_FIFO, WIRE_SEPARATE},
    {"test_separate_with_tags", WIRE_MATCH_TAG, WIRE_SEPARATE},
};

TABLE_TEST(ways)
{
    int descriptors = open_descriptors();
    int of_framing = 0;

    for (int i = 0; i < MODES; i++)
        of_framing += modes[i].framing == row->framing;
    for (int i = 0; i < MODES; i++)
        if (modes[i].match == row->match && modes[i].framing == row->framing)
            run_traffic(&modes[i], messages_of_a_framing() / (2 * of_framing) + 1);
    assert_int_equal(open_descriptors(), descriptors);
}

/* Both ends of one direction. */
static void run_in_one_thread(const struct mode *mode, bool narrowed)
{
    static uint64_t random = 42;
    static struct traffic traffic;
    struct pair pair = make_pair(mode, narrowed);
    struct traffic_stream stream = make_stream(mode, &random, 600, 0);

    traffic_create(&traffic, &stream, &stream, LONGEST);
    traffic.sender = pair.sender;
    traffic.receiver = pair.receiver;
    traffic_run(&traffic);
    traffic_must_be_fine(&traffic, "one thread");
    pair_close(&pair);
    traffic_destroy(&traffic);
    traffic_stream_destroy(&stream);
}

/* --- late, never, too small ----------------------------------------------------------------- */

/* A request and how it ended. */
struct ending {
    struct net_request *request;
    bool ended;
    int result;
    uint64_t bytes;
};

static void end_all(struct ending *endings, int count)
{
    int left = count;

    until(left == 0, {
        for (int i = 0; i < count; i++)
            if (!endings[i].ended) {
                endings[i].result =
                    net_test(endings[i].request, &endings[i].ended, &endings[i].bytes);
                endings[i].ended = endings[i].ended || endings[i].result != TCPX_SUCCESS;
                left -= endings[i].ended;
            }
    });
}

/* Sends that cannot go before their receives, as many as a comm takes; and one more. */
static struct traffic_stream fill_with_sends(const struct mode *mode, struct net_comm *sender,
                                             struct ending *endings)
{
    static uint64_t random = 99;
    uint64_t least = mode->match == WIRE_MATCH_TAG ? EAGER_LIMIT + 1 : CREDIT + 1;
    struct traffic_stream stream = make_stream(mode, &random, COMM_REQUESTS, 0);
    struct net_request *more = (struct net_request *)&stream;

    for (int i = 0; i < COMM_REQUESTS; i++) {
        int message = stream.send_order[i];

        stream.messages[message].bytes = least + random_below(&random, 3 * SLICE);
        endings[i] = (struct ending){
            .request = must_send(sender, traffic_bytes_of(&stream, message),
                                 stream.messages[message].bytes, stream.messages[message].tag)};
    }
    for (int i = 0; i < 500; i++) {
        must_go_on(endings[random_below(&random, COMM_REQUESTS)].request);
        assert_success(net_isend(sender, text.bytes, (uint64_t)i * 100, 0, &more));
        assert_null(more);
    }
    return stream;
}

static void receives_come_late(const struct mode *mode, bool narrowed)
{
    struct slots slots = slots_create(COMM_REQUESTS, 4 * SLICE);
    struct pair pair = make_pair(mode, narrowed);
    struct ending endings[2 * COMM_REQUESTS];
    struct ending *receives = endings + COMM_REQUESTS;
    struct traffic_stream stream = fill_with_sends(mode, pair.sender, endings);

    for (int i = 0; i < COMM_REQUESTS; i++) {
        const struct traffic_message *message = &stream.messages[stream.receive_order[i]];

        receives[i] = (struct ending){
            .request = must_receive(pair.receiver, slot_marked(&slots, i, message->bytes),
                                    message->bytes, message->tag)};
    }
    end_all(endings, 2 * COMM_REQUESTS);
    for (int i = 0; i < COMM_REQUESTS; i++) {
        int number = stream.receive_order[i];
        uint64_t bytes = stream.messages[number].bytes;

        assert_success(endings[i].result);
        assert_success(receives[i].result);
        assert_int_equal(receives[i].bytes, bytes);
        assert_true(slot_holds(slot_buffer(&slots, i, bytes), bytes,
                               traffic_bytes_of(&stream, number), bytes));
    }
    pair_close(&pair);
    traffic_stream_destroy(&stream);
    slots_destroy(&slots);
}

static void assert_all_lost(struct ending *endings, int count)
{
    uint64_t start = clock_now();

    end_all(endings, count);
    for (int i = 0; i < count; i++)
        assert_int_equal(endings[i].result, TCPX_REMOTE_ERROR);
    assert_true(clock_now() - start < limit_ns(5000000000u));
}

/* Nobody receives, and then one of the two closes; the other is told. */
static void receives_never_come(const struct mode *mode, bool sender_closes)
{
    struct pair pair = make_pair(mode, false);
    struct ending sends[COMM_REQUESTS];
    struct ending receive = {0};
    struct traffic_stream stream = fill_with_sends(mode, pair.sender, sends);
    uint8_t byte;
    int result;

    if (sender_closes) {
        comm_end(&pair.sender);
        result = net_irecv(pair.receiver, &byte, 1, 5, &receive.request);
        if (result == TCPX_SUCCESS)
            assert_all_lost(&receive, 1);
        else
            assert_int_equal(result, TCPX_REMOTE_ERROR);
    } else {
        comm_end(&pair.receiver);
        assert_all_lost(sends, COMM_REQUESTS);
    }
    pair_close(&pair);
    traffic_stream_destroy(&stream);
}

static void sends_never_come(const struct mode *mode, bool narrowed)
{
    struct pair pair = make_pair(mode, narrowed);
    struct ending receives[COMM_REQUESTS] = {{0}};
    struct net_request *more = (struct net_request *)&pair;
    uint8_t bytes[COMM_REQUESTS];

    for (int i = 0; i < COMM_REQUESTS; i++)
        receives[i].request = must_receive(pair.receiver, &bytes[i], 1, (uint64_t)i % 3);
    for (int i = 0; i < 100; i++) {
        must_go_on(receives[i % COMM_REQUESTS].request);
        assert_success(net_irecv(pair.receiver, bytes, 1, 0, &more));
        assert_null(more);
    }
    comm_end(&pair.sender);
    assert_all_lost(receives, COMM_REQUESTS);
    pair_close(&pair);
}

/* Messages of one tag, of which every other one has too little room. */
static void some_have_no_room(const struct mode *mode, bool receives_first)
{
    enum { COUNT = 10, BYTES = 3 * SLICE + 5 };
    static const uint64_t rooms[] = {0, 1, EAGER_LIMIT, SLICE, BYTES - 1};
    struct slots slots = slots_create(COUNT, BYTES);
    struct pair pair = make_pair(mode, false);
    struct ending endings[2 * COUNT] = {{0}};

    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < COUNT; i++) {
            uint64_t room = i % 2 == 0 ? BYTES : rooms[i / 2];

            if ((turn == 0) == receives_first)
                endings[COUNT + i].request =
                    must_receive(pair.receiver, slot_marked(&slots, i, room), room, 7);
            else
                endings[i].request = must_send(pair.sender, text_of(&text, (uint64_t)i), BYTES, 7);
        }
    end_all(endings, 2 * COUNT);
    for (int i = 0; i < COUNT; i++) {
        bool fits = i % 2 == 0;
        uint64_t room = fits ? BYTES : rooms[i / 2];

        assert_int_equal(endings[i].result, fits ? TCPX_SUCCESS : TCPX_INVALID_USAGE);
        assert_int_equal(endings[COUNT + i].result, fits ? TCPX_SUCCESS : TCPX_INVALID_USAGE);
        assert_true(slot_holds(slot_buffer(&slots, i, room), room, text_of(&text, (uint64_t)i),
                               fits ? BYTES : 0));
    }
    pair_close(&pair);
    slots_destroy(&slots);
}

/* All of these are done twice in each mode. */
static const struct {
    const char *test;
    void (*check)(const struct mode *mode, bool second);
} in_all_modes[] = {
    {"test_one_thread", run_in_one_thread},
    {"test_receives_that_come_late", receives_come_late},
    {"test_receives_that_never_come", receives_never_come},
    {"test_sends_that_never_come", sends_never_come},
    {"test_receives_that_are_too_small", some_have_no_room},
};

TABLE_TEST(in_all_modes)
{
    int descriptors = open_descriptors();

    for (int i = 0; i < 2 * MODES; i++)
        row->check(&modes[i / 2], i % 2 == 1);
    assert_int_equal(open_descriptors(), descriptors);
}

/* One comm first, so that what a process keeps for all of its comms is there already. */
static int set_up(void)
{
    struct pair pair = make_pair(&modes[0], false);

    pair_close(&pair);
    text = text_create(LONGEST);
    return 0;
}

static int tear_down(void)
{
    text_destroy(&text);
    return 0;
}

SUITE(.name = "traffic", .set_up = set_up, .tear_down = tear_down);
