/*
 * What a side learns of its peer's end: the reason in an ABORT, although a connection broke before
 * it was read, at either end; and that a stray byte of a receiver does not destroy what it is sent.
 */
#include "tests/unit/net_pair.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>

enum { LARGE = 32 << 20 };

static uint8_t data[LARGE];

static const char reason[] = "the cat has eaten the rest";

static struct net_link_options options_of(uint8_t sockets, enum wire_framing framing)
{
    return (struct net_link_options){.sockets = sockets,
                                     .match = WIRE_MATCH_TAG,
                                     .framing = framing,
                                     .eager_limit = 4096,
                                     .eager_credit = 32768,
                                     .largest_slice = 100000,
                                     .timeout_ms = 60000,
                                     .handshake_ms = 5000};
}

static void nap_ms(long milliseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = milliseconds * 1000000}, NULL);
}

static void say(int fd, const void *bytes, size_t count)
{
    assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), (ssize_t)count);
}

static void say_record(int fd, const struct wire_record *record)
{
    uint8_t bytes[WIRE_RECORD_BYTES];

    wire_record_write(record, bytes);
    say(fd, bytes, sizeof bytes);
}

static void say_abort(int fd)
{
    uint8_t bytes[WIRE_ABORT_BYTES];

    say(fd, bytes, wire_abort_write(TCPX_INTERNAL_ERROR, reason, bytes));
}

/* Closes with a reset. */
static void reset(int *fd)
{
    const struct linger at_once = {.l_onoff = 1};

    setsockopt(*fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(*fd);
    *fd = -1;
}

static void expect_reason(struct net_request *request, const char *words, uint64_t limit_ms)
{
    uint64_t deadline = deadline_after_ms(limit_ms);
    bool done;
    int result;

    while ((result = net_test(request, &done, NULL)) == TCPX_SUCCESS) {
        assert_false(done);
        assert_false(deadline_passed(deadline));
        nap_ms(1);
    }
    assert_int_equal(result, TCPX_REMOTE_ERROR);
    if (strstr(tcpx_last_error(), words) == NULL)
        fail_msg("'%s' is not in '%s'", words, tcpx_last_error());
}

/* --- a sender ------------------------------------------------------------------------------ */

enum receivers_end { ABORT_FIRST, ABORT_LATER, NO_ABORT };

static void end_receiver(struct net_link *receiver, enum receivers_end end)
{
    if (end == ABORT_FIRST)
        say_abort(receiver->reverse);
    for (unsigned i = 0; i < receiver->sockets; i++)
        reset(&receiver->forward[i]);
    if (end == ABORT_LATER) {
        nap_ms(30);
        say_abort(receiver->reverse);
    }
}

/* The sender has filled the sockets of a raw receiver, which then ends so. */
static void sender_learns(const struct net_link_options *options, enum receivers_end end,
                          bool is_called)
{
    struct net_link sending;
    struct net_link receiver;
    struct net_comm *sender;
    struct net_request *request;
    bool done;

    make_link_pair(options, &sending, &receiver);
    assert_success(net_comm_create(&sending, NET_SENDER, &sender));
    say_record(receiver.reverse,
               &(struct wire_record){.type = WIRE_POST, .length = LARGE, .tag = 7});
    assert_success(net_isend(sender, data, LARGE, 7, &request));
    for (int i = 0; i < 50; i++) {
        nap_ms(1);
        assert_success(net_test(request, &done, NULL));
        assert_false(done);
    }
    end_receiver(&receiver, end);
    if (!is_called)
        nap_ms(100);
    expect_reason(request, end == NO_ABORT ? "broke" : reason, 10000);
    net_comm_close(sender);
    net_link_close(&receiver);
}

static void test_a_sender_learns_why(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 12; i++) {
        enum wire_framing framing = i % 2 ? WIRE_SEPARATE : WIRE_INLINE;
        struct net_link_options options = options_of(i % 3 + framing, framing);

        sender_learns(&options, i / 2 % 2 ? ABORT_LATER : ABORT_FIRST, i / 4 % 2 == 0);
    }
}

/* Without one, it is an error all the same, in bounded time. */
static void test_a_sender_does_not_wait_for_a_reason(void **state)
{
    struct net_link_options options = options_of(2, WIRE_INLINE);

    (void)state;
    sender_learns(&options, NO_ABORT, true);
}

/* An idle sender has nothing to write that could break: the reset is found all the same. */
static void test_an_idle_sender_learns_why(void **state)
{
    struct net_link_options options = options_of(3, WIRE_INLINE);
    struct net_link sending;
    struct net_link receiver;
    struct net_comm *sender;
    struct net_request *request;

    (void)state;
    make_link_pair(&options, &sending, &receiver);
    assert_success(net_comm_create(&sending, NET_SENDER, &sender));
    assert_success(net_isend(sender, data, LARGE, 7, &request));
    end_receiver(&receiver, ABORT_LATER);
    expect_reason(request, reason, 10000);
    net_comm_close(sender);
    net_link_close(&receiver);
}

/* --- a receiver ---------------------------------------------------------------------------- */

static void test_a_receiver_learns_why(void **state)
{
    (void)state;
    for (int lost = 1; lost < 3; lost++) {
        struct net_link_options options = options_of(3, WIRE_INLINE);
        struct net_link sender;
        struct net_link receiving;
        struct net_comm *receiver;
        struct net_request *request;
        static uint8_t arrived[100000];

        make_link_pair(&options, &sender, &receiving);
        assert_success(net_comm_create(&receiving, NET_RECEIVER, &receiver));
        assert_success(net_irecv(receiver, arrived, sizeof arrived, 7, &request));
        /* in the middle of a slice */
        say_record(sender.forward[0],
                   &(struct wire_record){.type = WIRE_OPEN, .length = sizeof arrived, .tag = 7});
        say_record(sender.forward[lost], &(struct wire_record){.type = WIRE_SLICE,
                                                               .socket = (uint16_t)lost,
                                                               .length = sizeof arrived});
        say(sender.forward[lost], data, 1000);
        nap_ms(5);
        reset(&sender.forward[lost]);
        nap_ms(20);
        if (lost == 1)
            say_abort(sender.forward[0]);
        expect_reason(request, lost == 1 ? reason : "broke", 10000);
        net_comm_close(receiver);
        net_link_close(&sender);
    }
}

/* --- stray bytes --------------------------------------------------------------------------- */

static void set_buffer(int fd, int option, int bytes)
{
    assert_int_equal(setsockopt(fd, SOL_SOCKET, option, &bytes, sizeof bytes), 0);
}

/* All bytes up to the end of the stream; -1 if that is a reset. */
static int64_t read_to_end(int fd)
{
    static uint8_t bytes[65536];
    int64_t total = 0;

    for (;;) {
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        ssize_t got;

        assert_int_equal(poll(&readable, 1, 10000), 1);
        got = recv(fd, bytes, sizeof bytes, 0);
        if (got < 0)
            return -1;
        if (got == 0)
            return total;
        total += got;
    }
}

/* Done is delivered, also to a receiver that has written where it should not. */
static void test_stray_bytes_of_a_receiver(void **state)
{
    enum { BYTES = 150000 };

    (void)state;
    for (uint8_t sockets = 1; sockets <= 3; sockets++) {
        struct net_link_options options = options_of(sockets, WIRE_INLINE);
        uint64_t deadline = deadline_after_ms(10000);
        struct net_link sending;
        struct net_link receiver;
        struct net_comm *sender;
        struct net_request *request;
        bool done = false;
        int64_t total = 0;

        make_link_pair(&options, &sending, &receiver);
        for (unsigned i = 0; i < sending.sockets; i++) {
            set_buffer(sending.forward[i], SO_SNDBUF, 1 << 20);
            set_buffer(receiver.forward[i], SO_RCVBUF, 20000);
        }
        assert_success(net_comm_create(&sending, NET_SENDER, &sender));
        say_record(receiver.reverse,
                   &(struct wire_record){.type = WIRE_POST, .length = BYTES, .tag = 7});
        for (unsigned i = 0; i < receiver.sockets; i++)
            say(receiver.forward[i], data, 300);
        assert_success(net_isend(sender, data, BYTES, 7, &request));
        while (!done) {
            assert_success(net_test(request, &done, NULL));
            assert_false(deadline_passed(deadline));
        }
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_sender_learns_why),
        cmocka_unit_test(test_a_sender_does_not_wait_for_a_reason),
        cmocka_unit_test(test_an_idle_sender_learns_why),
        cmocka_unit_test(test_a_receiver_learns_why),
        cmocka_unit_test(test_stray_bytes_of_a_receiver),
    };

    return cmocka_run_group_tests_name("reasons", tests, NULL, NULL);
}
