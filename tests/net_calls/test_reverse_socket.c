/*
 * A receiver that cannot write on its reverse socket any more, for whatever reason, still receives
 * what was sent; the sender fails in bounded time what it cannot send without a POST. Where memory
 * is short for a moment, nothing is lost.
 */
#include "tests/net_calls/net_calls.h"
#include "tests/unit/net_pair.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

enum { EAGER = 4096, MESSAGES = 6, LARGE = 3 << 20 };

static uint8_t data[LARGE];
static uint8_t arrived[LARGE];

static struct net_link_options options_of(uint8_t sockets)
{
    return (struct net_link_options){.sockets = sockets,
                                     .match = WIRE_MATCH_TAG,
                                     .framing = WIRE_INLINE,
                                     .eager_limit = EAGER,
                                     .eager_credit = 65536,
                                     .largest_slice = 100000,
                                     .timeout_ms = 60000,
                                     .handshake_ms = 5000};
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static int end_of(struct net_request *request, uint64_t *bytes)
{
    uint64_t deadline = deadline_after_ms(10000);
    bool done = false;
    int result = TCPX_SUCCESS;

    while (!done && result == TCPX_SUCCESS) {
        result = net_test(request, &done, bytes);
        assert_false(deadline_passed(deadline));
        nap();
    }
    return result;
}

/* Before anything that was sent is read. */
static void fail_to_write(struct net_request *request)
{
    uint64_t deadline = deadline_after_ms(10000);
    bool done = false;

    while (calls_made(CALL_SEND) == 0) {
        assert_success(net_test(request, &done, NULL));
        assert_false(done || deadline_passed(deadline));
        nap();
    }
    calls_fail(CALL_RECVMSG, 0, 0, 0);
}

static void lose_reverse_socket(uint8_t sockets, int error)
{
    struct net_link_options options = options_of(sockets);
    struct net_link sending;
    struct net_link receiving;
    struct net_comm *sender;
    struct net_comm *receiver;
    struct net_request *request;
    struct net_request *large;

    make_link_pair(&options, &sending, &receiving);
    calls_reset();
    calls_fail(CALL_SEND, 0, 1000000, error);
    calls_only_of(CALL_SEND, receiving.reverse);
    calls_fail(CALL_RECVMSG, 0, 1000000, EAGAIN);
    assert_success(net_comm_create(&sending, NET_SENDER, &sender));
    assert_success(net_comm_create(&receiving, NET_RECEIVER, &receiver));
    for (uint64_t i = 0; i < MESSAGES; i++) {
        assert_success(net_isend(sender, data, EAGER - i, i, &request));
        assert_int_equal(end_of(request, NULL), TCPX_SUCCESS);
    }
    assert_success(net_isend(sender, data, LARGE, 99, &large));
    for (uint64_t i = 0; i < MESSAGES; i++) {
        uint64_t bytes = 0;

        memset(arrived, 0, EAGER);
        assert_success(net_irecv(receiver, arrived, EAGER, i, &request));
        assert_non_null(request);
        if (i == 0)
            fail_to_write(request);
        assert_success(end_of(request, &bytes));
        assert_int_equal(bytes, EAGER - i);
        assert_memory_equal(arrived, data, bytes);
        /* The send that waits for its POST is told in bounded time. */
        if (i == MESSAGES / 2)
            assert_int_equal(end_of(large, NULL), TCPX_REMOTE_ERROR);
    }
    net_comm_close(sender);
    /* and then the receiver, by its forward sockets */
    if (net_irecv(receiver, arrived, LARGE, 99, &request) == TCPX_SUCCESS)
        assert_int_equal(end_of(request, NULL), TCPX_REMOTE_ERROR);
    net_comm_close(receiver);
    calls_reset();
}

static void test_a_lost_reverse_socket(void **state)
{
    static const int errors[] = {ETIMEDOUT, EHOSTUNREACH, ENETDOWN, EPIPE, ECONNRESET};

    (void)state;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        for (uint8_t sockets = 1; sockets <= 3; sockets += 2) {
            print_message("# %s, %u sockets\n", strerror(errors[i]), sockets);
            lose_reverse_socket(sockets, errors[i]);
        }
}

static void test_a_shortage(void **state)
{
    static const int errors[] = {ENOBUFS, ENOMEM, EAGAIN, EINTR};

    (void)state;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        struct net_link_options options = options_of(2);
        struct net_comm *sender;
        struct net_comm *receiver;
        struct net_request *send;
        struct net_request *receive;
        uint64_t bytes = 0;
        bool sent = false;

        make_comm_pair(&options, &sender, &receiver);
        calls_reset();
        calls_fail_half(CALL_SEND, errors[i]);
        for (int k = 0; k < 20; k++) {
            memset(arrived, 0, LARGE);
            assert_success(net_irecv(receiver, arrived, LARGE, 1, &receive));
            assert_success(net_isend(sender, data, LARGE, 1, &send));
            for (sent = false; !sent;) {
                assert_success(net_test(send, &sent, NULL));
                if (bytes == 0)
                    assert_success(net_test(receive, &(bool){false}, &bytes));
            }
            if (bytes == 0)
                assert_success(end_of(receive, &bytes));
            assert_int_equal(bytes, LARGE);
            assert_memory_equal(arrived, data, LARGE);
            bytes = 0;
        }
        net_comm_close(sender);
        net_comm_close(receiver);
        calls_reset();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_lost_reverse_socket),
        cmocka_unit_test(test_a_shortage),
    };

    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7 + i / 253);
    calls_reset();
    return cmocka_run_group_tests_name("the reverse socket", tests, NULL, NULL);
}
