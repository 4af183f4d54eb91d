/*
 * I/O threads that cannot be started, and descriptors that epoll does not take: whatever of them
 * fails, messages arrive, with and without calls, nothing burns CPU, and the next comm works.
 */
#include "net/io/io.h"
#include "tests/net_calls/net_calls.h"
#include "tests/unit/net_pair.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

enum { THREADS = 3, SOCKETS = 4, BYTES = 6 << 20 };

static uint8_t data[BYTES];
static uint8_t arrived[BYTES];

static const struct net_link_options options = {
    .sockets = SOCKETS,
    .match = WIRE_MATCH_TAG,
    .framing = WIRE_INLINE,
    .eager_limit = 4096,
    .eager_credit = 65536,
    .largest_slice = 256 << 10,
    .timeout_ms = 60000,
    .handshake_ms = 5000,
};

static double cpu_seconds(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static void nap_ms(long milliseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = milliseconds * 1000000}, NULL);
}

/* A thread that has just begun has no name yet, and one that has ended is still listed. */
static void assert_threads(unsigned wanted)
{
    uint64_t deadline = deadline_after_ms(5000);

    while (io_threads() != wanted && !deadline_passed(deadline))
        nap_ms(1);
    assert_int_equal(io_threads(), wanted);
}

/* Without I/O threads nothing moves by itself; with one, nothing has to be called. */
static void exchange(struct net_comm *sender, struct net_comm *receiver, uint64_t bytes,
                     bool by_itself)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    struct net_request *send;
    struct net_request *receive;
    uint64_t got = 0;
    bool sent = false;
    bool received = false;
    int calls = 0;

    memset(arrived, 0, bytes);
    assert_success(net_irecv(receiver, arrived, bytes, 1, &receive));
    assert_success(net_isend(sender, data, bytes, 1, &send));
    while (!sent || !received) {
        if (by_itself) {
            assert_true(calls++ < 20);
            nap_ms(250);
        }
        if (!sent)
            assert_success(net_test(send, &sent, NULL));
        if (!received)
            assert_success(net_test(receive, &received, &got));
        assert_false(deadline_passed(deadline));
    }
    assert_int_equal(got, bytes);
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
    struct net_comm *sender;
    struct net_comm *receiver;

    make_comm_pair(&options, &sender, &receiver);
    assert_threads(threads_wanted);
    for (uint64_t bytes = 1; bytes <= BYTES; bytes *= 9)
        exchange(sender, receiver, bytes, false);
    exchange(sender, receiver, BYTES, threads_wanted > 0);
    assert_idle_costs_nothing();
    net_comm_close(sender);
    net_comm_close(receiver);
    assert_threads(0);
}

static void test_threads_that_cannot_start(void **state)
{
    (void)state;
    for (unsigned started = 0; started <= THREADS; started++) {
        print_message("# %u of %d threads can be started\n", started, THREADS);
        calls_reset();
        calls_fail(CALL_PTHREAD_CREATE, started, 1000, EAGAIN);
        check_pair(started);
    }
    /* and one that fails once only */
    for (unsigned failing = 0; failing < THREADS; failing++) {
        calls_reset();
        calls_fail(CALL_PTHREAD_CREATE, failing, 1, EAGAIN);
        check_pair(failing == 0 ? THREADS : THREADS - 1);
    }
    calls_reset();
    check_pair(THREADS);
}

/*
 * One comm has its lanes where they belong, and stays; of another one descriptor is refused. A
 * level-triggered event of a comm that is gone would come for ever.
 */
static void test_descriptors_that_are_refused(void **state)
{
    enum { ADDED = SOCKETS + 1 };
    struct net_comm *sender;
    struct net_comm *receiver;

    (void)state;
    calls_reset();
    make_comm_pair(&options, &sender, &receiver);
    for (unsigned refused = 0; refused < 2 * ADDED; refused++) {
        struct net_comm *second_sender;
        struct net_comm *second_receiver;

        calls_fail(CALL_EPOLL_ADD, refused, 1, ENOSPC);
        make_comm_pair(&options, &second_sender, &second_receiver);
        exchange(second_sender, second_receiver, BYTES, false);
        exchange(sender, receiver, BYTES, false);
        if (refused % ADDED == ADDED - 1)
            assert_idle_costs_nothing();
        net_comm_close(second_sender);
        /* The ends of streams lie in the receiver's sockets now. */
        if (refused % ADDED == ADDED - 1)
            assert_idle_costs_nothing();
        net_comm_close(second_receiver);
    }
    exchange(sender, receiver, BYTES, true);
    net_comm_close(sender);
    net_comm_close(receiver);
    assert_threads(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_that_cannot_start),
        cmocka_unit_test(test_descriptors_that_are_refused),
    };

    setenv("UCCL_TCPX_THREADS", "3", 1);
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7 + i / 253);
    calls_reset();
    return cmocka_run_group_tests_name("I/O threads", tests, NULL, NULL);
}
