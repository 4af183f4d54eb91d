/*
 * Comms that match in order with both ends ours, each far ahead of the other by turns: random
 * traffic by one thread and by two, receives that somebody waits for, and receives after which no
 * call comes.
 */
#include "tests/support/ahead_peer.h"
#include "tests/support/traffic.h"

#include <pthread.h>
#include <sched.h>

static struct pair open_pair(uint8_t sockets, uint64_t credit)
{
    const struct net_link_options options = ahead_options(sockets, credit);

    return pair_open(&options);
}

static struct traffic_stream make_stream(int count, uint64_t seed)
{
    static const uint64_t edges[] = {0,
                                     1,
                                     31,
                                     AHEAD_EAGER_LIMIT - 1,
                                     AHEAD_EAGER_LIMIT,
                                     4097,
                                     AHEAD_SLICE - 1,
                                     AHEAD_SLICE,
                                     AHEAD_SLICE + 1,
                                     2 * AHEAD_SLICE,
                                     262144,
                                     262145,
                                     AHEAD_CREDIT - 64,
                                     AHEAD_CREDIT,
                                     AHEAD_LONGEST};
    static const struct traffic_sizes sizes = {
        .edges = edges,
        .edge_count = sizeof edges / sizeof *edges,
        .below = {AHEAD_CREDIT, 20000, 20000, 20000, 20000, 20000, 20000}};

    return traffic_stream_create(&ahead_text, WIRE_MATCH_FIFO, &sizes, &seed, count, 1, 0);
}

/* Each far ahead of the other by turns, and neither. */
static void run_traffic(uint8_t sockets, uint64_t credit, int count)
{
    static struct traffic traffic;
    struct traffic_stream stream = make_stream(count, 99 + sockets + credit);
    struct pair pair = open_pair(sockets, credit);

    traffic_create(&traffic, &stream, &stream, AHEAD_LONGEST);
    traffic.sender = pair.sender;
    traffic.receiver = pair.receiver;
    traffic.waits = true;
    until(traffic_is_over(&traffic), {
        traffic_turn(&traffic);
        assert_true(inside_held(pair.receiver) <= credit);
    });
    traffic_must_be_fine(&traffic, "one thread");
    assert_int_equal(inside_held(pair.receiver), 0);
    pair_close(&pair);
    traffic_destroy(&traffic);
    traffic_stream_destroy(&stream);
}

TEST(test_traffic)
{
    static const uint64_t credits[] = {0, 64 << 10, AHEAD_CREDIT, 8 << 20};

    for (uint8_t sockets = 1; sockets <= 5; sockets++)
        for (int i = 0; i < 4; i++)
            run_traffic(sockets, credits[i], turns_of(300));
}

/* --- a thread at each end -------------------------------------------------------------------- */

static void run_ends(uint8_t sockets, uint64_t credit, int count)
{
    static struct traffic ends[2];
    struct traffic_stream stream = make_stream(count, 7 + sockets + credit);
    struct traffic_stream none = make_stream(0, 1);
    struct pair pair = open_pair(sockets, credit);
    char where[40];

    traffic_create(&ends[0], &stream, &none, AHEAD_LONGEST);
    traffic_create(&ends[1], &none, &stream, AHEAD_LONGEST);
    ends[0].sender = pair.sender;
    ends[1].receiver = pair.receiver;
    ends[1].waits = true;
    ends[0].naps = ends[1].naps = true;
    snprintf(where, sizeof where, "%u sockets, credit %d", sockets, (int)credit);
    traffic_run_both(ends, where);
    assert_int_equal(inside_held(pair.receiver), 0);
    assert_int_equal(inside_stalled(pair.receiver), 0);
    assert_int_equal(inside_given_back(pair.receiver), inside_charged(pair.sender));
    pair_close(&pair);
    for (int i = 0; i < 2; i++)
        traffic_destroy(&ends[i]);
    traffic_stream_destroy(&stream);
    traffic_stream_destroy(&none);
}

TEST(test_a_thread_at_each_end)
{
    static const uint64_t credits[] = {0, 64 << 10, AHEAD_CREDIT};

    for (uint8_t sockets = 1; sockets <= 3; sockets++)
        for (int i = 0; i < 3; i++)
            run_ends(sockets, credits[i], turns_of(400));
}

/* Sends of one size, as many at once as the comm takes; there is no cmocka in a thread. */
struct stream_of_sends {
    struct net_comm *comm;
    uint64_t bytes;
    int count;
    int result;
};

static void *send_all(void *argument)
{
    struct stream_of_sends *sends = argument;
    struct net_request *requests[COMM_REQUESTS];
    int started = 0;

    for (int ended = 0; ended < sends->count && sends->result == TCPX_SUCCESS; ended++) {
        bool done = false;

        while (started < sends->count && started < ended + COMM_REQUESTS &&
               sends->result == TCPX_SUCCESS) {
            struct net_request **request = &requests[started % COMM_REQUESTS];

            sends->result = net_isend(sends->comm, ahead_text.bytes, sends->bytes, 0, request);
            if (*request == NULL)
                break;
            started++;
        }
        if (sends->result == TCPX_SUCCESS)
            sends->result =
                net_wait(requests[ended % COMM_REQUESTS], deadline_after_ms(LIMIT_MS), &done, NULL);
        if (sends->result == TCPX_SUCCESS && !done)
            sends->result = TCPX_IN_PROGRESS;
    }
    return NULL;
}

/*
 * The sender has no credit for the message, so that it waits to hear of the receive; and a caller
 * that waits for that has announced it before it sleeps. Most of the time: a machine may be busy.
 */
TEST(test_a_wait_is_not_long)
{
    enum { COUNT = 40, QUICK_NS = 10000000 };
    static const struct {
        uint64_t credit;
        uint64_t bytes;
    } ways[] = {{100, 12}, {100, 101}, {0, 0}, {64 << 10, 65 << 10}, {64 << 10, 8 << 10}};
    static uint8_t room[65 << 10];

    for (unsigned way = 0; way < 2 * sizeof ways / sizeof *ways; way++) {
        uint64_t bytes = ways[way / 2].bytes;
        struct pair pair = open_pair((uint8_t)(1 + way % 2), ways[way / 2].credit);
        struct stream_of_sends sends = {.comm = pair.sender, .bytes = bytes, .count = COUNT};
        pthread_t thread;
        int quick = 0;

        assert_int_equal(pthread_create(&thread, NULL, send_all, &sends), 0);
        for (int i = 0; i < COUNT; i++) {
            struct net_request *receive = NULL;
            uint64_t start = 0;
            bool done = false;

            memset(room, 0, bytes);
            while (receive == NULL)
                assert_success(net_irecv(pair.receiver, room, bytes, 0, &receive));
            start = clock_now();
            assert_success(net_wait(receive, deadline_after_ms(LIMIT_MS), &done, NULL));
            quick += clock_now() - start < limit_ns(QUICK_NS);
            assert_true(done);
            assert_memory_equal(room, ahead_text.bytes, bytes);
        }
        pthread_join(thread, NULL);
        assert_int_equal(sends.result, TCPX_SUCCESS);
        if (quick < COUNT * 3 / 4)
            fail_msg("%d of %d messages of %d bytes come soon", quick, COUNT, (int)bytes);
        pair_close(&pair);
    }
}

/* --- nobody calls ---------------------------------------------------------------------------- */

/* The ended request is seen, but no call is made. */
static bool ends_by_itself(struct net_comm *comm, struct net_request *request, uint64_t most_ms)
{
    bool ended = false;

    for (uint64_t deadline = deadline_after_ms(most_ms); !ended && !deadline_passed(deadline);) {
        ended = inside_has_ended(comm, request);
        sched_yield();
    }
    return ended;
}

/* A receive is announced though no further call follows it. */
TEST(test_nobody_calls_after_a_receive)
{
    static const uint64_t sizes[] = {10, 5000, 50000, AHEAD_LONGEST};
    static uint8_t arrived[AHEAD_LONGEST];

    if (!threads_are_wanted())
        skip_because("there are no I/O threads");
    for (int way = 0; way < 16; way++) {
        struct pair pair = open_pair((uint8_t)(1 + way % 2), 64 << 10);
        uint64_t bytes = sizes[way / 4];
        struct net_request *send = NULL;
        struct net_request *receive = NULL;

        memset(arrived, 0, bytes);
        for (int i = 0; i < 2; i++)
            if ((i == 0) == (way / 2 % 2 == 0))
                receive = must_receive(pair.receiver, arrived, bytes, 0);
            else
                send = must_send(pair.sender, ahead_text.bytes, bytes, 0);
        if (!ends_by_itself(pair.receiver, receive, limit_ms(1000)) ||
            !ends_by_itself(pair.sender, send, limit_ms(1000)))
            fail_msg("%d bytes do not come by themselves", (int)bytes);
        assert_memory_equal(arrived, ahead_text.bytes, bytes);
        pair_close(&pair);
    }
}

/*
 * The same where the I/O threads look after the comm already, and the receive is so small that its
 * announcement was put off; but its message is too long, so that the sender waits for that.
 */
TEST(test_nobody_calls_after_a_small_receive)
{
    struct pair pair;
    struct net_request *send = NULL;
    struct net_request *receive;
    uint8_t data[100];

    if (!threads_are_wanted())
        skip_because("there are no I/O threads");
    for (int i = 0; i < turns_of(20); i++) {
        pair = open_pair(1, 64 << 10);
        receive = must_receive(pair.receiver, data, sizeof data, 0);
        nap_us(20000); /* until they look after it */
        send = must_send(pair.sender, ahead_text.bytes, 10, 0);
        assert_true(ends_by_itself(pair.receiver, receive, limit_ms(1000)));
        must_receive(pair.receiver, data, sizeof data, 0);
        assert_int_equal(must_end(send), 10);
        send = must_send(pair.sender, ahead_text.bytes, 1 << 20, 0);
        if (!ends_by_itself(pair.sender, send, limit_ms(1000)))
            fail_msg("try %d: the receive was not announced", i);
        pair_close(&pair);
    }
}

/* All messages are there: whoever posts their receives needs no other call, and is never busy. */
TEST(test_nothing_but_receives)
{
    struct pair pair = open_pair(1, AHEAD_CREDIT);
    uint64_t give_up = deadline_after_ms(limit_ms(10000));
    uint8_t data[100];

    for (uint64_t i = 0; i < 200; i++)
        must_end(must_send(pair.sender, text_of(&ahead_text, i), 100, 0));
    soon(inside_held(pair.receiver) >= 200 * (100 + WIRE_EAGER_CHARGE),
         inside_move_on(pair.receiver));
    for (int i = 0; i < 200; i++) {
        struct net_request *receive = NULL;

        for (int tries = 0; receive == NULL; tries++) {
            assert_success(net_irecv(pair.receiver, data, sizeof data, 0, &receive));
            /* An owner may be writing what was announced before. */
            assert_true(inside_calls_move(pair.receiver, 0) ? tries < 3
                                                            : !deadline_passed(give_up));
        }
        assert_true(inside_has_ended(pair.receiver, receive));
        assert_int_equal(must_end(receive), 100);
        assert_memory_equal(data, text_of(&ahead_text, (uint64_t)i), 100);
    }
    pair_close(&pair);
}

SUITE(.name = "traffic ahead of receives", .set_up = ahead_set_up, .tear_down = ahead_tear_down);
