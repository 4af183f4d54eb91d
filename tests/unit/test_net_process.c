/*
 * Two processes: what is done is delivered even if its sender exits at once, and the death of
 * either side at any moment is an error on the other in bounded time. No descriptor is kept in
 * either case. Many comms share few threads.
 */
#include "net/io/io.h"
#include "tests/support/child.h"
#include "tests/support/pair.h"
#include "tests/unit/net_traffic.h"

#include <sched.h>

static const struct net_link_options options = PAIR_DEFAULTS(.sockets = 2, .eager_credit = 32768);

enum { LARGE = 300000, SMALL = 1000 };

static uint8_t data[4 << 20];
static uint8_t arrived[4 << 20];

/* Until it is done, in a child: a failed assertion ends it. */
static void send_one(struct net_comm *comm, uint64_t bytes, uint64_t tag)
{
    must_end(must_send(comm, data, bytes, tag));
}

static struct net_listener *listen_on_loopback(uint8_t handle[NET_HANDLE_BYTES])
{
    struct net_device device = loopback(AF_INET);
    struct net_listener *listener;

    assert_success(net_listen(&device, &options, handle, &listener));
    return listener;
}

static void receive(struct net_comm *comm, uint64_t bytes, uint64_t tag)
{
    memset(arrived, 0, bytes);
    assert_int_equal(must_end(must_receive(comm, arrived, bytes, tag)), bytes);
    assert_memory_equal(arrived, data, bytes);
}

static void send_and_exit(const uint8_t *handle)
{
    struct net_comm *comm = connect_comm(&options, handle);
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
    struct net_listener *listener = listen_on_loopback(handle);
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

static void send_for_ever(const uint8_t *handle)
{
    struct net_comm *comm = connect_comm(&options, handle);

    for (;;)
        send_one(comm, sizeof data, 1);
}

/* The receiver's view, and then the sender's: the other is killed at some moment of a transfer. */
TEST(test_a_killed_sender)
{
    int turns = turns_of(200);
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener = listen_on_loopback(handle);
    int before = open_descriptors();

    for (int turn = 0; turn < turns; turn++) {
        struct net_request *request = NULL;
        struct net_comm *comm;
        uint64_t killed = 0;
        uint64_t kill_at;
        int result = TCPX_SUCCESS;
        pid_t child = child_fork(send_for_ever, handle, sizeof handle);

        comm = accept_comm(listener);
        kill_at = clock_now() + (uint64_t)(turn * 37 % 100) * 100000;
        while (result == TCPX_SUCCESS) {
            bool done = false;

            if (killed == 0 && clock_now() >= kill_at) {
                kill(child, SIGKILL);
                killed = clock_now();
            }
            if (request == NULL)
                result = net_irecv(comm, arrived, sizeof arrived, 1, &request);
            if (result == TCPX_SUCCESS)
                result = net_test(request, &done, NULL);
            if (done)
                request = NULL;
            assert_true(killed == 0 || clock_now() - killed < limit_ns(2000000000u));
        }
        assert_true(killed != 0);
        assert_int_equal(result, TCPX_REMOTE_ERROR);
        expect_text("127.0.0.1:");
        child_wait(child);
        net_comm_close(comm);
    }
    assert_int_equal(open_descriptors(), before);
    net_listener_close(listener);
}

static void receive_for_ever(const uint8_t *nothing)
{
    struct net_listener *listener = listen_on_loopback(child_shared->bytes);
    struct net_comm *comm;

    (void)nothing;
    atomic_store(&child_shared->flag, 1);
    comm = accept_comm(listener);
    for (;;)
        must_end(must_receive(comm, arrived, sizeof arrived, 1));
}

TEST(test_a_killed_receiver)
{
    int turns = turns_of(200);
    int before = open_descriptors();

    for (int turn = 0; turn < turns; turn++) {
        struct net_request *request = NULL;
        struct net_comm *comm;
        uint64_t deadline = deadline_after_ms(LIMIT_MS);
        uint64_t killed;
        int result = TCPX_SUCCESS;
        pid_t child;

        atomic_store(&child_shared->flag, 0);
        child = child_fork(receive_for_ever, NULL, 0);
        while (atomic_load(&child_shared->flag) == 0) {
            assert_false(deadline_passed(deadline));
            sched_yield();
        }
        comm = connect_comm(&options, child_shared->bytes);
        for (int i = 0; i < turn % 20; i++) {
            if (request == NULL)
                request = must_send(comm, data, sizeof data, 1);
            (void)request_is_done(&request);
            nap_us(turn * 13 % 50 * 10);
        }
        kill(child, SIGKILL);
        killed = clock_now();
        while (result == TCPX_SUCCESS) {
            bool done = false;

            if (request == NULL)
                result = net_isend(comm, data, sizeof data, 1, &request);
            if (result == TCPX_SUCCESS && request != NULL)
                result = net_test(request, &done, NULL);
            if (done)
                request = NULL;
            assert_true(clock_now() - killed < limit_ns(2000000000u));
        }
        assert_int_equal(result, TCPX_REMOTE_ERROR);
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
    struct net_device device = loopback(AF_INET);
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener;
    int before = open_descriptors();
    int left = COMMS;
    struct io_plan plan;
    pid_t child;

    assert_success(io_plan(&plan));
    assert_success(net_listen(&device, &one_socket, handle, &listener));
    child = child_fork(send_on_many, handle, sizeof handle);
    for (int i = 0; i < COMMS; i++) {
        comms[i] = accept_comm(listener);
        requests[i] = must_receive(comms[i], buffers[i], sizeof buffers[i], 1);
    }
    assert_in_range(io_threads(), plan.threads > 0, plan.threads);
    /* an I/O thread has two of its own */
    assert_in_range(open_descriptors(), before + 1 + 2 * COMMS,
                    before + 1 + 2 * COMMS + 2 * (int)plan.threads);
    while (left > 0)
        for (int i = 0; i < COMMS; i++) {
            left -= requests[i] != NULL && request_is_done(&requests[i]);
            assert_false(deadline_passed(deadline));
        }
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
