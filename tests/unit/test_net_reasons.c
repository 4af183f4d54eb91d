/*
 * What a side learns of its peer's end: the reason in an ABORT, although a connection broke before
 * it was read, at either end; and that a stray byte of a receiver does not destroy what it is sent.
 */
#include "tests/support/pair.h"

#include <poll.h>

enum { LARGE = 32 << 20, BOUND_MS = 10000 };

static uint8_t data[LARGE];

static const char reason[] = "the cat has eaten the rest";

static const struct net_link_options *options_of(uint8_t sockets, enum wire_framing framing)
{
    static struct net_link_options options;

    options = *PAIR_OPTIONS(.sockets = sockets, .framing = framing, .eager_credit = 32768,
                            .largest_slice = 100000);
    return &options;
}

static void expect_reason(struct net_request *request, const char *words)
{
    bool done = false;
    int result;

    until_within(BOUND_MS, (result = net_test(request, &done, NULL)) != TCPX_SUCCESS, {
        assert_false(done);
        nap_ms(1);
    });
    assert_int_equal(result, TCPX_REMOTE_ERROR);
    expect_text(words);
}

/* --- a sender ------------------------------------------------------------------------------ */

enum receivers_end { ABORT_FIRST, ABORT_LATER, NO_ABORT };

static void end_receiver(struct net_link *receiver, enum receivers_end end)
{
    if (end == ABORT_FIRST)
        hand_say_abort(receiver->reverse, TCPX_INTERNAL_ERROR, reason);
    for (unsigned i = 0; i < receiver->sockets; i++)
        socket_reset(&receiver->forward[i]);
    if (end == ABORT_LATER) {
        nap_ms(30);
        hand_say_abort(receiver->reverse, TCPX_INTERNAL_ERROR, reason);
    }
}

/* The sender has filled the sockets of a receiver by hand, which then ends so. */
static void sender_learns(const struct net_link_options *options, enum receivers_end end,
                          bool is_called)
{
    struct by_hand hand = by_hand_open(NET_SENDER, options);
    struct net_request *request;

    hand_say(hand.link.reverse,
             &(struct wire_record){.type = WIRE_POST, .length = LARGE, .tag = 7});
    request = must_send(hand.comm, data, LARGE, 7);
    for (int i = 0; i < 50; i++) {
        nap_ms(1);
        must_go_on(request);
    }
    end_receiver(&hand.link, end);
    if (!is_called)
        nap_ms(100);
    expect_reason(request, end == NO_ABORT ? "broke" : reason);
    by_hand_close(&hand);
}

TEST(test_a_sender_learns_why)
{
    for (unsigned i = 0; i < 12; i++) {
        enum wire_framing framing = i % 2 ? WIRE_SEPARATE : WIRE_INLINE;

        sender_learns(options_of((uint8_t)(i % 3 + framing), framing),
                      i / 2 % 2 ? ABORT_LATER : ABORT_FIRST, i / 4 % 2 == 0);
    }
}

/* Without one, it is an error all the same, in bounded time. */
TEST(test_a_sender_does_not_wait_for_a_reason)
{
    sender_learns(options_of(2, WIRE_INLINE), NO_ABORT, true);
}

/* An idle sender has nothing to write that could break: the reset is found all the same. */
TEST(test_an_idle_sender_learns_why)
{
    struct by_hand hand = by_hand_open(NET_SENDER, options_of(3, WIRE_INLINE));
    struct net_request *request = must_send(hand.comm, data, LARGE, 7);

    end_receiver(&hand.link, ABORT_LATER);
    expect_reason(request, reason);
    by_hand_close(&hand);
}

/* --- a receiver ---------------------------------------------------------------------------- */

TEST(test_a_receiver_learns_why)
{
    static uint8_t arrived[100000];

    for (uint16_t lost = 1; lost < 3; lost++) {
        struct by_hand hand = by_hand_open(NET_RECEIVER, options_of(3, WIRE_INLINE));
        struct net_request *request = must_receive(hand.comm, arrived, sizeof arrived, 7);

        /* in the middle of a slice */
        hand_say(hand.link.forward[lost], &(struct wire_record){.type = WIRE_SLICE,
                                                                .socket = lost,
                                                                .length = sizeof arrived,
                                                                .tag = sizeof arrived});
        hand_put(hand.link.forward[lost], data, 1000);
        nap_ms(5);
        socket_reset(&hand.link.forward[lost]);
        nap_ms(20);
        if (lost == 1)
            hand_say_abort(hand.link.forward[0], TCPX_INTERNAL_ERROR, reason);
        expect_reason(request, lost == 1 ? reason : "broke");
        by_hand_close(&hand);
    }
}

/* --- stray bytes --------------------------------------------------------------------------- */

/* All bytes up to the end of the stream; -1 if that is a reset. */
static int64_t read_to_end(int fd)
{
    static uint8_t bytes[65536];
    int64_t total = 0;

    for (;;) {
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        ssize_t got;

        assert_int_equal(poll(&readable, 1, BOUND_MS), 1);
        got = recv(fd, bytes, sizeof bytes, 0);
        if (got < 0)
            return -1;
        if (got == 0)
            return total;
        total += got;
    }
}

/* Done is delivered, also to a receiver that has written where it should not. */
TEST(test_stray_bytes_of_a_receiver)
{
    enum { BYTES = 150000 };

    for (uint8_t sockets = 1; sockets <= 3; sockets++) {
        struct net_link sending;
        struct net_link receiver;
        struct net_comm *sender;
        int64_t total = 0;

        make_link_pair(options_of(sockets, WIRE_INLINE), &sending, &receiver);
        for (unsigned i = 0; i < sending.sockets; i++) {
            socket_set_buffer(sending.forward[i], SO_SNDBUF, 1 << 20);
            socket_set_buffer(receiver.forward[i], SO_RCVBUF, 20000);
        }
        assert_success(net_comm_create(&sending, NET_SENDER, &sender));
        hand_say(receiver.reverse,
                 &(struct wire_record){.type = WIRE_POST, .length = BYTES, .tag = 7});
        for (unsigned i = 0; i < receiver.sockets; i++)
            hand_put(receiver.forward[i], data, 300);
        assert_success(end_within(must_send(sender, data, BYTES, 7), NULL, BOUND_MS));
        net_comm_close(sender);
        for (unsigned i = 0; i < receiver.sockets; i++) {
            int64_t got = read_to_end(receiver.forward[i]);

            assert_true(got >= 0);
            total += got;
        }
        assert_true(total > BYTES);
        net_link_close(&receiver);
    }
}

SUITE(.name = "reasons");
