/*
 * I/O threads that cannot be started, and descriptors that epoll does not take: whatever of them
 * fails, messages arrive, with and without calls, nothing burns CPU, and the next comm works.
 */
#include "tests/net_calls/net_calls.h"
#include "tests/support/pair.h"

#include <errno.h>
#include <stdlib.h>

enum { THREADS = 3, SOCKETS = 4, BYTES = 6 << 20 };

static uint8_t data[BYTES];
static uint8_t arrived[BYTES];

static const struct net_link_options options =
    PAIR_DEFAULTS(.sockets = SOCKETS, .largest_slice = 256 << 10);

/* A thread that has just begun has no name yet, and one that has ended is still listed. */
static void assert_threads(unsigned wanted)
{
    uint64_t deadline = deadline_after_ms(5000);

    while (io_threads() != wanted && !deadline_passed(deadline))
        nap_ms(1);
    assert_int_equal(io_threads(), wanted);
}

/* Without I/O threads nothing moves by itself; with one, nothing has to be called. */
static void exchange(const struct pair *pair, uint64_t bytes, bool by_itself)
{
    struct net_request *receive;
    struct net_request *send;

    if (!by_itself) {
        pair_move(pair, data, arrived, bytes, 1);
        return;
    }
    memset(arrived, 0, bytes);
    receive = must_receive(pair->receiver, arrived, bytes, 1);
    send = must_send(pair->sender, data, bytes, 1);
    for (int calls = 0; send != NULL || receive != NULL; calls++) {
        assert_true(calls < 20);
        nap_ms(250);
        (void)request_is_done(&send);
        (void)request_is_done(&receive);
    }
    assert_memory_equal(arrived, data, bytes);
}

static void assert_idle_costs_nothing(void)
{
    double before = cpu_seconds();

    nap_ms(400);
    assert_true(cpu_seconds() - before < 0.1);
}

static void check_pair(unsigned threads_wanted)
{
    struct pair pair = pair_open(&options);

    assert_threads(threads_wanted);
    for (uint64_t bytes = 1; bytes <= BYTES; bytes *= 9)
        exchange(&pair, bytes, false);
    exchange(&pair, BYTES, threads_wanted > 0);
    assert_idle_costs_nothing();
    pair_close(&pair);
    assert_threads(0);
}

TEST(test_threads_that_cannot_start)
{
    for (unsigned started = 0; started <= THREADS; started++) {
        print_message("# %u of %d threads can be started\n", started, THREADS);
        calls_reset();
        CALLS_PLAN(CALL_PTHREAD_CREATE, .first = started, .count = 1000, .error = EAGAIN);
        check_pair(started);
    }
    /* and one that fails once only: the next socket that belongs to it starts it */
    for (unsigned failing = 0; failing < THREADS; failing++) {
        calls_reset();
        CALLS_PLAN(CALL_PTHREAD_CREATE, .first = failing, .count = 1, .error = EAGAIN);
        check_pair(THREADS);
    }
    calls_reset();
    check_pair(THREADS);
}

/*
 * One comm has its lanes where they belong, and stays; of another one descriptor is refused. An
 * event of a comm that is gone would be a use of freed memory.
 */
TEST(test_descriptors_that_are_refused)
{
    enum { ADDED = SOCKETS + 1 };
    struct pair pair;

    calls_reset();
    pair = pair_open(&options);
    for (unsigned refused = 0; refused < 2 * ADDED; refused++) {
        struct pair second;

        CALLS_PLAN(CALL_EPOLL_ADD, .first = refused, .count = 1, .error = ENOSPC);
        second = pair_open(&options);
        exchange(&second, BYTES, false);
        exchange(&pair, BYTES, false);
        if (refused % ADDED == ADDED - 1)
            assert_idle_costs_nothing();
        comm_end(&second.sender);
        /* The ends of streams lie in the receiver's sockets now. */
        if (refused % ADDED == ADDED - 1)
            assert_idle_costs_nothing();
        pair_close(&second);
    }
    exchange(&pair, BYTES, true);
    pair_close(&pair);
    assert_threads(0);
}

static int begin_suite(void)
{
    setenv("UCCL_TCPX_THREADS", "3", 1);
    fill_bytes(data, sizeof data);
    return 0;
}

SUITE(.name = "I/O threads", .begin = begin_suite);
