/*
 * Two processes: what is done is delivered even if its sender exits at once, and the death of
 * either side at any moment is an error on the other in bounded time. No descriptor is kept in
 * either case, and no buffer is touched after its request has failed. Many comms share few threads.
 */
#include "net/io/io.h"
#include "tests/support/child.h"
#include "tests/support/pair.h"
#include "tests/unit/net_traffic.h"

#include <sched.h>

/* What peers are like that are killed. */
static const struct way {
    struct net_link_options options;
    uint64_t bytes; /* of each message */
} ways[] = {
    {PAIR_DEFAULTS(.sockets = 2, .eager_credit = 32768), 4 << 20},
    {PAIR_DEFAULTS(.sockets = 4, .largest_slice = 256 << 10), 32 << 20},
};

static const struct net_link_options *const options = &ways[0].options;

enum { LARGE = 300000, SMALL = 1000 };

static uint8_t data[32 << 20];
static uint8_t arrived[32 << 20];

/* Until it is done, in a child: a failed assertion ends it. */
static void send_one(struct net_comm *comm, uint64_t bytes, uint64_t tag)
{
    must_end(must_send(comm, data, bytes, tag));
}

static void receive(struct net_comm *comm, uint64_t bytes, uint64_t tag)
{
    memset(arrived, 0, bytes);
    assert_int_equal(must_end(must_receive(comm, arrived, bytes, tag)), bytes);
    assert_memory_equal(arrived, data, bytes);
}

static void send_and_exit(const uint8_t *handle)
{
    struct net_comm *comm = connect_comm(options, handle);
    bool with_large = handle[NET_HANDLE_BYTES];

    send_one(comm, SMALL, 1);
    if (with_large)
        send_one(comm, LARGE, 2);
    send_one(comm, 0, 3);
    net_comm_close(comm);
}

TEST(test_exit_right_after_done)
{
    int turns = turns_of(1000);
    uint8_t handle[NET_HANDLE_BYTES + 1];
    struct net_listener *listener = listen_locally(options, handle);
    int before = open_descriptors();

    for (int turn = 0; turn < turns; turn++) {
        bool with_large = turn % 2 == 0;
        struct net_comm *comm;
        pid_t child;

        handle[NET_HANDLE_BYTES] = with_large;
        child = child_fork(send_and_exit, handle, sizeof handle);
        comm = accept_comm(listener);
        if (turn % 10 == 1) /* a receiver that comes when the sender is long gone */
            assert_int_equal(child_wait(child), 0);
        if (with_large) /* what is announced is sent when there is a receive, so that comes first */
            receive(comm, LARGE, 2);
        receive(comm, SMALL, 1);
        receive(comm, 0, 3);
        if (turn % 10 != 1)
            assert_int_equal(child_wait(child), 0);
        net_comm_close(comm);
    }
    assert_int_equal(open_descriptors(), before);
    net_listener_close(listener);
}

/* --- peers that are killed ----------------------------------------------------------------- */

/* Moves messages until the peer, which is killed after a while, is missed; that must be soon. */
static void miss_peer(struct net_comm *comm, bool sends, uint64_t bytes, pid_t child,
                      uint64_t after_ns)
{
    uint64_t kill_at = clock_now() + after_ns;
    struct net_request *request = NULL;
    uint64_t killed = 0;
    int result = TCPX_SUCCESS;

    while (result == TCPX_SUCCESS) {
        bool done = false;

        if (killed == 0 && clock_now() >= kill_at) {
            kill(child, SIGKILL);
            killed = clock_now();
        }
        if (request == NULL)
            result = sends ? net_isend(comm, data, bytes, 1, &request)
                           : net_irecv(comm, arrived, bytes, 1, &request);
        if (result == TCPX_SUCCESS && request != NULL)
            result = net_test(request, &done, NULL);
        if (done)
            request = NULL;
        assert_true(killed == 0 || clock_now() - killed < limit_ns(2000000000u));
    }
    assert_true(killed != 0);
    assert_int_equal(result, TCPX_REMOTE_ERROR);
    expect_text("127.0.0.1:");
}

static void send_for_ever(const uint8_t *handle)
{
    const struct way *way = &ways[handle[NET_HANDLE_BYTES]];
    struct net_comm *comm = connect_comm(&way->options, handle);

    for (;;)
        send_one(comm, way->bytes, 1);
}

/* Threads may be in the middle of reading into the buffer, which is left alone all the same. */
static void miss_senders(uint8_t number, int turns)
{
    const struct way *way = &ways[number];
    uint8_t handle[NET_HANDLE_BYTES + 1];
    struct net_listener *listener = listen_locally(&way->options, handle);
    int before = open_descriptors();

    handle[NET_HANDLE_BYTES] = number;
    for (int turn = 0; turn < turns; turn++) {
        pid_t child = child_fork(send_for_ever, handle, sizeof handle);
        struct net_comm *comm = accept_comm(listener);

        miss_peer(comm, false, way->bytes, child, (uint64_t)(turn * 37 % 100) * 100000);
        memset(arrived, 0xee, way->bytes);
        nap_ms(2);
        for (size_t i = 0; i < way->bytes; i++)
            if (arrived[i] != 0xee)
                fail_msg("byte %zu was written after the failure", i);
        child_wait(child);
        net_comm_close(comm);
    }
    assert_int_equal(open_descriptors(), before);
    net_listener_close(listener);
}

TEST(test_a_killed_sender)
{
    miss_senders(0, turns_of(200));
}

TEST(test_a_buffer_is_left_alone_after_a_failure)
{
    miss_senders(1, 50);
}

static void receive_for_ever(const uint8_t *nothing)
{
    struct net_listener *listener = listen_locally(options, child_shared->bytes);
    struct net_comm *comm;

    (void)nothing;
    atomic_store(&child_shared->flag, 1);
    comm = accept_comm(listener);
    for (;;)
        must_end(must_receive(comm, arrived, ways[0].bytes, 1));
}

TEST(test_a_killed_receiver)
{
    int turns = turns_of(200);
    int before = open_descriptors();

    for (int turn = 0; turn < turns; turn++) {
        struct net_comm *comm;
        pid_t child;

        atomic_store(&child_shared->flag, 0);
        child = child_fork(receive_for_ever, NULL, 0);
        until(atomic_load(&child_shared->flag) != 0, sched_yield());
        comm = connect_comm(options, child_shared->bytes);
        miss_peer(comm, true, ways[0].bytes, child,
                  (uint64_t)(turn % 20) * (uint64_t)(turn * 13 % 50) * 10000);
        child_wait(child);
        net_comm_close(comm);
    }
    assert_int_equal(open_descriptors(), before);
}

/* --- many ---------------------------------------------------------------------------------- */

enum { COMMS = 256 };

static struct net_comm *comms[COMMS];
static struct net_request *requests[COMMS];
static uint8_t buffers[COMMS][20000];

static const struct net_link_options one_socket = PAIR_DEFAULTS(.eager_credit = 32768);

static void send_on_many(const uint8_t *handle)
{
    for (int i = 0; i < COMMS; i++) {
        comms[i] = connect_comm(&one_socket, handle);
        memset(buffers[i], i, sizeof buffers[i]);
        requests[i] = must_send(comms[i], buffers[i], sizeof buffers[i], 1);
    }
    for (int i = 0; i < COMMS; i++)
        must_end(requests[i]);
}

/* Each of many comms moves its own bytes and costs two descriptors; the threads serve them all. */
TEST(test_many_comms)
{
    uint8_t handle[NET_HANDLE_BYTES];
    int before = open_descriptors();
    struct net_listener *listener = listen_locally(&one_socket, handle);
    int left = COMMS;
    struct io_plan plan;
    pid_t child;

    assert_success(io_plan(&plan));
    child = child_fork(send_on_many, handle, sizeof handle);
    for (int i = 0; i < COMMS; i++) {
        comms[i] = accept_comm(listener);
        requests[i] = must_receive(comms[i], buffers[i], sizeof buffers[i], 1);
    }
    assert_in_range(io_threads(), plan.threads > 0, plan.threads);
    /* an I/O thread has two of its own, and all of them one by which other processes count us */
    assert_in_range(open_descriptors(), before + 1 + 2 * COMMS,
                    before + 1 + 2 * COMMS + 2 * (int)plan.threads + 1);
    until(left == 0, {
        for (int i = 0; i < COMMS; i++)
            left -= requests[i] != NULL && request_is_done(&requests[i]);
    });
    /* in whatever order they were accepted, each has the bytes of one of the child's, and all do */
    bool seen[COMMS] = {false};
    for (int i = 0; i < COMMS; i++) {
        assert_false(seen[buffers[i][0]]);
        seen[buffers[i][0]] = true;
        for (size_t k = 1; k < sizeof buffers[i]; k++)
            assert_int_equal(buffers[i][k], buffers[i][0]);
    }
    assert_int_equal(child_wait(child), 0);
    for (int i = 0; i < COMMS; i++)
        net_comm_close(comms[i]);
    net_listener_close(listener);
    assert_int_equal(open_descriptors(), before);
    assert_int_equal(io_threads(), 0);
}

static int begin_suite(void)
{
    fill_bytes(data, sizeof data);
    return child_begin();
}

SUITE(.name = "processes", .begin = begin_suite);
