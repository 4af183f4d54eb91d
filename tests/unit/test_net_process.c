/*
 * Two processes: what is done is delivered even if its sender exits at once, and the death of
 * either side at any moment is an error on the other in bounded time. No descriptor is kept in
 * either case. Many comms share few threads.
 */
#include "net/io/io.h"
#include "tests/support/pair.h"
#include "tests/unit/net_traffic.h"
#include "tests/unit/nursery.h"

#include <sched.h>

static const struct net_link_options options = PAIR_DEFAULTS(.sockets = 2, .eager_credit = 32768);

enum { LARGE = 300000, SMALL = 1000 };

static uint8_t data[4 << 20];
static uint8_t arrived[4 << 20];

static void child_send(struct net_comm *comm, uint64_t bytes, uint64_t tag)
{
    struct net_request *request = NULL;
    bool done = false;

    while (request == NULL)
        if (net_isend(comm, data, bytes, tag, &request) != TCPX_SUCCESS)
            _exit(12);
    while (!done)
        if (net_test(request, &done, NULL) != TCPX_SUCCESS)
            _exit(13);
}

static struct net_listener *parent_listen(uint8_t handle[NET_HANDLE_BYTES])
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
    struct net_comm *comm = connect_comm_or_exit(&options, handle);
    bool with_large = handle[NET_HANDLE_BYTES];

    child_send(comm, SMALL, 1);
    if (with_large)
        child_send(comm, LARGE, 2);
    child_send(comm, 0, 3);
    net_comm_close(comm);
}

TEST(test_exit_right_after_done)
{
    int turns = turns_of(1000);
    uint8_t handle[NET_HANDLE_BYTES + 1];
    struct net_listener *listener = parent_listen(handle);
    int before = open_descriptors();

    for (int turn = 0; turn < turns; turn++) {
        bool with_large = turn % 2 == 0;
        struct net_comm *comm;
        pid_t child;

        handle[NET_HANDLE_BYTES] = with_large;
        child = nursery_fork(send_and_exit, handle, sizeof handle);
        comm = accept_comm(listener);
        if (turn % 10 == 1) /* a receiver that comes when the sender is long gone */
            assert_int_equal(nursery_wait(child), 0);
        if (with_large) /* what is announced is sent when there is a receive, so that comes first */
            receive(comm, LARGE, 2);
        receive(comm, SMALL, 1);
        receive(comm, 0, 3);
        if (turn % 10 != 1)
            assert_int_equal(nursery_wait(child), 0);
        net_comm_close(comm);
    }
    assert_int_equal(open_descriptors(), before);
    net_listener_close(listener);
}

static void send_for_ever(const uint8_t *handle)
{
    struct net_comm *comm = connect_comm_or_exit(&options, handle);

    for (;;)
        child_send(comm, sizeof data, 1);
}

/* The receiver's view, and then the sender's: the other is killed at some moment of a transfer. */
TEST(test_a_killed_sender)
{
    int turns = turns_of(200);
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener = parent_listen(handle);
    int before = open_descriptors();

    for (int turn = 0; turn < turns; turn++) {
        struct net_request *request = NULL;
        struct net_comm *comm;
        uint64_t killed = 0;
        uint64_t kill_at;
        int result = TCPX_SUCCESS;
        pid_t child = nursery_fork(send_for_ever, handle, sizeof handle);

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
        assert_text("127.0.0.1:");
        nursery_wait(child);
        net_comm_close(comm);
    }
    assert_int_equal(open_descriptors(), before);
    net_listener_close(listener);
}

static void receive_for_ever(const uint8_t *nothing)
{
    struct net_device device = loopback(AF_INET);
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    struct net_request *request = NULL;
    struct net_listener *listener;
    struct net_comm *comm;
    struct net_link link;
    bool accepted = false;
    bool done = false;

    (void)nothing;
    if (net_listen(&device, &options, nursery_shared->bytes, &listener) != TCPX_SUCCESS)
        _exit(1);
    atomic_store(&nursery_shared->flag, 1);
    while (!accepted)
        if (net_accept(listener, &link, &accepted) != TCPX_SUCCESS || deadline_passed(deadline))
            _exit(2);
    if (net_comm_create(&link, NET_RECEIVER, &comm) != TCPX_SUCCESS)
        _exit(3);
    for (;;) {
        if (request == NULL && net_irecv(comm, arrived, sizeof arrived, 1, &request) != 0)
            _exit(4);
        if (net_test(request, &done, NULL) != 0)
            _exit(5);
        if (done)
            request = NULL;
    }
}

TEST(test_a_killed_receiver)
{
    int turns = turns_of(200);
    int before = open_descriptors();

    for (int turn = 0; turn < turns; turn++) {
        uint8_t handle[NET_HANDLE_BYTES];
        struct net_request *request = NULL;
        struct net_comm *comm;
        struct net_link link;
        uint64_t deadline = deadline_after_ms(LIMIT_MS);
        uint64_t killed;
        bool connected = false;
        int result = TCPX_SUCCESS;
        pid_t child;

        atomic_store(&nursery_shared->flag, 0);
        child = nursery_fork(receive_for_ever, NULL, 0);
        while (atomic_load(&nursery_shared->flag) == 0) {
            assert_false(deadline_passed(deadline));
            sched_yield();
        }
        memcpy(handle, nursery_shared->bytes, sizeof handle);
        while (!connected) {
            assert_success(net_connect(NULL, &options, handle, &link, &connected));
            assert_false(deadline_passed(deadline));
        }
        assert_success(net_comm_create(&link, NET_SENDER, &comm));
        for (int i = 0; i < turn % 20; i++) {
            bool done;

            if (request == NULL)
                assert_success(net_isend(comm, data, sizeof data, 1, &request));
            assert_success(net_test(request, &done, NULL));
            if (done)
                request = NULL;
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
        nursery_wait(child);
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
        comms[i] = connect_comm_or_exit(&one_socket, handle);
        memset(buffers[i], i, sizeof buffers[i]);
        if (net_isend(comms[i], buffers[i], sizeof buffers[i], 1, &requests[i]) != TCPX_SUCCESS)
            _exit(22);
    }
    for (int i = 0; i < COMMS; i++)
        for (bool done = false; !done;)
            if (net_test(requests[i], &done, NULL) != TCPX_SUCCESS)
                _exit(23);
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
    child = nursery_fork(send_on_many, handle, sizeof handle);
    for (int i = 0; i < COMMS; i++) {
        comms[i] = accept_comm(listener);
        assert_success(net_irecv(comms[i], buffers[i], sizeof buffers[i], 1, &requests[i]));
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
    assert_int_equal(nursery_wait(child), 0);
    for (int i = 0; i < COMMS; i++)
        net_comm_close(comms[i]);
    net_listener_close(listener);
    assert_int_equal(open_descriptors(), before);
    assert_int_equal(io_threads(), 0);
}

static int begin_suite(void)
{
    fill_bytes(data, sizeof data);
    nursery_start();
    return 0;
}

SUITE(.name = "processes", .begin = begin_suite);
