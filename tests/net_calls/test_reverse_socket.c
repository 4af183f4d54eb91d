/*
 * A receiver that cannot write on its reverse socket any more, for whatever reason, still receives
 * what was sent; the sender fails in bounded time what it cannot send without a POST. Where memory
 * is short for a moment, nothing is lost.
 */
#include "tests/net_calls/net_calls.h"
#include "tests/support/pair.h"

#include <errno.h>

enum { EAGER = 4096, MESSAGES = 6, LARGE = 3 << 20 };

static uint8_t data[LARGE];
static uint8_t arrived[LARGE];

/* Before anything that was sent is read. */
static void fail_to_write(struct net_request *request)
{
    uint64_t deadline = deadline_after_ms(10000);
    bool done = false;

    while (calls_made(CALL_SEND) == 0) {
        assert_success(net_test(request, &done, NULL));
        assert_false(done || deadline_passed(deadline));
        nap_ms(1);
    }
    CALLS_PLAN(CALL_RECVMSG);
}

static int lost;

static bool is_lost(int fd, const void *bytes, size_t count)
{
    (void)bytes;
    (void)count;
    return fd == lost;
}

static void lose_reverse_socket(uint8_t sockets, int error)
{
    struct net_link sending;
    struct net_link receiving;
    struct net_request *request;
    struct net_request *large;
    struct pair pair;

    make_link_pair(PAIR_OPTIONS(.sockets = sockets, .largest_slice = 100000), &sending, &receiving);
    calls_reset();
    lost = receiving.reverse;
    CALLS_PLAN(CALL_SEND, .count = 1000000, .error = error, .concerns = is_lost);
    CALLS_PLAN(CALL_RECVMSG, .count = 1000000, .error = EAGAIN);
    pair = pair_of(&sending, &receiving);
    for (uint64_t i = 0; i < MESSAGES; i++)
        assert_success(end_within(must_send(pair.sender, data, EAGER - i, i), NULL, 10000));
    large = must_send(pair.sender, data, LARGE, 99);
    for (uint64_t i = 0; i < MESSAGES; i++) {
        uint64_t bytes = 0;

        memset(arrived, 0, EAGER);
        request = must_receive(pair.receiver, arrived, EAGER, i);
        if (i == 0)
            fail_to_write(request);
        assert_success(end_within(request, &bytes, 10000));
        assert_int_equal(bytes, EAGER - i);
        assert_memory_equal(arrived, data, bytes);
        /* The send that waits for its POST is told in bounded time. */
        if (i == MESSAGES / 2)
            assert_int_equal(end_within(large, NULL, 10000), TCPX_REMOTE_ERROR);
    }
    comm_end(&pair.sender);
    /* and then the receiver, by its forward sockets */
    if (net_irecv(pair.receiver, arrived, LARGE, 99, &request) == TCPX_SUCCESS)
        assert_int_equal(end_within(request, NULL, 10000), TCPX_REMOTE_ERROR);
    pair_close(&pair);
    calls_reset();
}

TEST(test_a_lost_reverse_socket)
{
    static const int errors[] = {ETIMEDOUT, EHOSTUNREACH, ENETDOWN, EPIPE, ECONNRESET};

    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        for (uint8_t sockets = 1; sockets <= 3; sockets += 2) {
            print_message("# %s, %u sockets\n", strerror(errors[i]), sockets);
            lose_reverse_socket(sockets, errors[i]);
        }
}

TEST(test_a_shortage)
{
    static const int errors[] = {ENOBUFS, ENOMEM, EAGAIN, EINTR};

    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        struct pair pair = pair_open(PAIR_OPTIONS(.sockets = 2, .largest_slice = 100000));

        calls_reset();
        CALLS_PLAN(CALL_SEND, .half = true, .error = errors[i]);
        for (int k = 0; k < 20; k++)
            pair_move(&pair, data, arrived, LARGE, 1);
        pair_close(&pair);
        calls_reset();
    }
}

static int begin_suite(void)
{
    fill_bytes(data, sizeof data);
    return 0;
}

SUITE(.name = "the reverse socket", .begin = begin_suite);
