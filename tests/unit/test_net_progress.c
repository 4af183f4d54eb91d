/*
 * Who moves a comm on: I/O threads carry what no call does and sleep when there is nothing to do, a
 * wait costs no CPU. A forked child has nothing of its parent's connections.
 */
#include "net/link/budget.h"
#include "tests/support/child.h"
#include "tests/support/pair.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

enum { LARGE = 32 << 20 };

static uint8_t data[LARGE];
static uint8_t arrived[LARGE];

static const struct net_link_options options =
    PAIR_DEFAULTS(.sockets = 4, .largest_slice = 256 << 10);

/* --- without calls ------------------------------------------------------------------------- */

/* The few calls that this makes, with longer and longer pauses, could not carry so much. */
static void move_without_calls(const struct net_link_options *wanted)
{
    enum { CALLS = 8 };
    struct pair pair = pair_open(wanted);
    struct net_request *send = must_send(pair.sender, data, sizeof data, 1);
    struct net_request *receive;
    int calls = 0;

    memset(arrived, 0, sizeof arrived);
    receive = must_receive(pair.receiver, arrived, sizeof arrived, 1);
    while (!request_is_done(&send) || !request_is_done(&receive)) {
        assert_true(calls < CALLS);
        nap_ms(limit_ms(60u << calls++));
    }
    assert_memory_equal(arrived, data, sizeof data);
    pair_close(&pair);
}

TEST(test_nobody_calls)
{
    if (!threads_are_wanted())
        skip_because("there are no I/O threads");
    move_without_calls(PAIR_OPTIONS(.largest_slice = 256 << 10));
    move_without_calls(&options);
    move_without_calls(
        PAIR_OPTIONS(.sockets = 4, .largest_slice = 256 << 10, .framing = WIRE_SEPARATE));
}

/* Calls that come and go: the threads take over, and give back. */
TEST(test_calls_that_pause)
{
    struct pair pair = pair_open(&options);

    for (uint32_t i = 0; i < 40; i++) {
        struct net_request *send;
        struct net_request *receive;
        uint64_t bytes = i % 2 ? 1000 : 3000000;

        memset(arrived, 0, bytes);
        receive = must_receive(pair.receiver, arrived, bytes, i);
        nap_ms(i % 3 * 4);
        send = must_send(pair.sender, data, bytes, i);
        nap_ms(i % 4 * 3);
        must_end_both(send, receive);
        assert_memory_equal(arrived, data, bytes);
    }
    pair_close(&pair);
}

TEST(test_nothing_to_do_costs_nothing)
{
    enum { COMMS = 16 };
    struct pair pairs[COMMS];
    struct rusage before;
    struct rusage after;
    double seconds;

    for (int i = 0; i < COMMS; i++) {
        pairs[i] = pair_open(&options);
        /* a receive whose message never comes, and a send whose receive never comes */
        must_receive(pairs[i].receiver, arrived, sizeof arrived, 1);
        must_send(pairs[i].sender, data, sizeof data, 2);
    }
    nap_ms(500); /* until they sleep */
    getrusage(RUSAGE_SELF, &before);
    seconds = cpu_seconds();
    nap_ms(1000);
    seconds = cpu_seconds() - seconds;
    getrusage(RUSAGE_SELF, &after);
    assert_true(seconds < 0.01);
    assert_in_range(after.ru_nvcsw - before.ru_nvcsw, 0, 20);
    for (int i = 0; i < COMMS; i++)
        pair_close(&pairs[i]);
    assert_int_equal(io_threads(), 0);
}

/* --- waits --------------------------------------------------------------------------------- */

struct late {
    struct pair pair;
    atomic_bool may_send; /* soon */
    int result;
};

static void *send_late(void *argument)
{
    struct late *late = argument;
    struct net_request *request;
    bool done = false;

    while (!atomic_load(&late->may_send))
        nap_ms(5);
    nap_ms(300);
    late->result = net_isend(late->pair.sender, data, sizeof data, 1, &request);
    if (late->result == TCPX_SUCCESS)
        late->result = net_wait(request, deadline_after_ms(LIMIT_MS), &done, NULL);
    if (late->result == TCPX_SUCCESS && !done)
        late->result = TCPX_IN_PROGRESS;
    return NULL;
}

TEST(test_a_wait)
{
    struct late late = {.pair = pair_open(&options)};
    struct net_request *request = must_receive(late.pair.receiver, arrived, sizeof arrived, 1);
    uint64_t bytes = 0;
    pthread_t thread;
    bool done;
    double seconds;
    uint64_t start;

    start = clock_now();
    assert_success(net_wait(request, deadline_after_ms(50), &done, &bytes));
    assert_false(done);
    assert_true(clock_now() - start >= 50000000u);

    memset(arrived, 0, sizeof arrived);
    assert_int_equal(pthread_create(&thread, NULL, send_late, &late), 0);
    seconds = cpu_seconds();
    assert_success(net_wait(request, deadline_after_ms(600), &done, &bytes));
    assert_false(done);
    assert_true(cpu_seconds() - seconds < 0.1);
    atomic_store(&late.may_send, true);
    assert_success(net_wait(request, deadline_after_ms(LIMIT_MS), &done, &bytes));
    assert_true(done);
    assert_int_equal(bytes, sizeof data);
    pthread_join(thread, NULL);
    assert_int_equal(late.result, TCPX_SUCCESS);
    assert_memory_equal(arrived, data, sizeof data);
    pair_close(&late.pair);
}

/* One of two threads that wait on the same comm, each for a tag of its own. */
struct waiter {
    struct net_comm *comm;
    uint64_t tag;
    atomic_uint posted;
    atomic_uint ended;
    int result;
};

enum { WAITS = 1000 };

static void *wait_often(void *argument)
{
    struct waiter *waiter = argument;
    uint8_t message[8];

    for (unsigned i = 0; i < WAITS && waiter->result == TCPX_SUCCESS; i++) {
        struct net_request *request = NULL;
        bool done = false;

        while (request == NULL && waiter->result == TCPX_SUCCESS)
            waiter->result =
                net_irecv(waiter->comm, message, sizeof message, waiter->tag, &request);
        atomic_fetch_add(&waiter->posted, 1);
        if (waiter->result == TCPX_SUCCESS)
            waiter->result = net_wait(request, deadline_after_ms(LIMIT_MS), &done, NULL);
        if (waiter->result == TCPX_SUCCESS && !done)
            waiter->result = TCPX_IN_PROGRESS;
        atomic_fetch_add(&waiter->ended, 1);
    }
    return NULL;
}

/*
 * Each is woken by its own message: none takes the wake-up of the other, which would then sleep for
 * 50 ms. With one descriptor for both it was one pair of 1000.
 */
TEST(test_waits_side_by_side)
{
    enum { LATE_MS = 40 };
    struct pair pair = pair_open(PAIR_OPTIONS(.sockets = 1));
    struct waiter waiters[2] = {{.comm = pair.receiver, .tag = 1},
                                {.comm = pair.receiver, .tag = 2}};
    pthread_t threads[2];
    unsigned late = 0;

    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, wait_often, &waiters[i]), 0);
    for (unsigned round = 0; round < WAITS; round++) {
        struct net_request *sends[2];
        uint64_t start;

        for (int i = 0; i < 2; i++)
            until(atomic_load(&waiters[i].posted) > round, sched_yield());
        nap_us(500); /* both sleep */
        start = clock_now();
        for (uint64_t i = 0; i < 2; i++)
            sends[i] = must_send(pair.sender, data, 8, 1 + i);
        for (int i = 0; i < 2; i++)
            until(atomic_load(&waiters[i].ended) > round, nap_us(100));
        late += clock_now() - start > limit_ns(LATE_MS * 1000000u);
        for (int i = 0; i < 2; i++)
            assert_int_equal(must_end(sends[i]), 8);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(waiters[i].result, TCPX_SUCCESS);
    }
    if (late > 0)
        fail_msg("%u of %d pairs of waits took more than %d ms", late, WAITS, LATE_MS);
    pair_close(&pair);
}

/* A wait ends, too, when the comm fails. */
TEST(test_a_wait_for_nothing)
{
    struct pair pair = pair_open(&options);
    struct net_request *request = must_receive(pair.receiver, arrived, sizeof arrived, 1);
    bool done = false;

    comm_end(&pair.sender);
    assert_int_equal(net_wait(request, DEADLINE_NEVER, &done, NULL), TCPX_REMOTE_ERROR);
    expect_text("has closed the comm");
    pair_close(&pair);
}

/* --- failures ------------------------------------------------------------------------------ */

/* The receiver has all bytes and closes, while a thread of the sender has yet to say so. */
TEST(test_a_receiver_that_closes_at_once)
{
    enum { TURNS = 200, BYTES = 600000 };

    for (int turn = 0; turn < TURNS; turn++) {
        struct pair pair = pair_open(&options);
        struct net_request *receive = must_receive(pair.receiver, arrived, BYTES, 1);
        struct net_request *send = must_send(pair.sender, data, BYTES, 1);
        bool sent = true;

        until(request_is_done(&receive), (void)request_is_done(&send));
        comm_end(&pair.receiver);
        if (send != NULL)
            assert_success(net_wait(send, deadline_after_ms(LIMIT_MS), &sent, NULL));
        assert_true(sent);
        pair_close(&pair);
    }
}

/* --- forks --------------------------------------------------------------------------------- */

TEST(test_a_forked_child_is_refused)
{
    struct net_device device = loopback(AF_INET);
    uint8_t handle[NET_HANDLE_BYTES];
    uint8_t other[NET_HANDLE_BYTES];
    int before = open_descriptors();
    struct net_listener *listener = listen_locally(&options, handle);
    struct pair pair = pair_open(&options);
    struct net_request *request = must_receive(pair.receiver, arrived, 100, 1);
    bool done = false;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        struct net_request *mine = NULL;
        struct net_listener *new_listener;
        struct net_link link;
        int wrong = open_descriptors() != before;

        wrong += net_isend(pair.sender, data, 1, 1, &mine) != TCPX_INVALID_USAGE;
        wrong += net_irecv(pair.receiver, data, 1, 1, &mine) != TCPX_INVALID_USAGE;
        wrong += net_test(request, &done, NULL) != TCPX_INVALID_USAGE;
        wrong += net_wait(request, DEADLINE_NEVER, &done, NULL) != TCPX_INVALID_USAGE;
        wrong += net_accept(listener, &link, &done) != TCPX_INVALID_USAGE;
        wrong += net_connect(NULL, &options, handle, &link, &done) != TCPX_INVALID_USAGE;
        wrong += net_listen(&device, &options, other, &new_listener) != TCPX_INVALID_USAGE;
        wrong += strstr(tcpx_last_error(), "forked") == NULL;
        pair_close(&pair);
        net_listener_close(listener);
        _exit(wrong);
    }
    assert_int_equal(child_wait(child), 0);

    /* and the parent's go on */
    must_send(pair.sender, data, 100, 1);
    assert_success(net_wait(request, deadline_after_ms(LIMIT_MS), &done, NULL));
    assert_true(done);
    pair_close(&pair);
    net_listener_close(listener);
    assert_int_equal(open_descriptors(), before);
}

/* Has a child of its own that lives longer. */
static void fork_and_send_for_ever(const uint8_t *handle)
{
    struct net_comm *comm = connect_comm(&options, handle);
    pid_t child = fork();

    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, 0);
        nap_ms(10000);
        _exit(0);
    }
    (void)comm;
    memcpy(child_shared->bytes, &child, sizeof child);
    atomic_store(&child_shared->flag, 1);
    nap_ms(60000);
}

TEST(test_a_child_does_not_keep_its_parents_connections)
{
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener = listen_locally(&options, handle);
    struct net_request *request;
    struct net_comm *comm;
    uint64_t start;
    pid_t grandchild;
    pid_t child;
    bool done;

    atomic_store(&child_shared->flag, 0);
    child = child_fork(fork_and_send_for_ever, handle, sizeof handle);
    comm = accept_comm(listener);
    request = must_receive(comm, arrived, sizeof arrived, 1);
    until(atomic_load(&child_shared->flag) != 0, nap_ms(1));
    memcpy(&grandchild, child_shared->bytes, sizeof grandchild);
    kill(child, SIGKILL);
    start = clock_now();
    assert_int_equal(net_wait(request, deadline_after_ms(limit_ms(5000)), &done, NULL),
                     TCPX_REMOTE_ERROR);
    assert_true(clock_now() - start < limit_ns(2000000000u));
    assert_int_equal(kill(grandchild, SIGKILL), 0); /* it was still there */
    child_wait(child);
    net_comm_close(comm);
    net_listener_close(listener);
}

/* --- budget -------------------------------------------------------------------------------- */

TEST(test_the_budget_of_a_process)
{
    unsigned granted;

    assert_success(budget_take(1, 20, &granted));
    assert_int_equal(granted, 20);
    assert_success(budget_take(1, 20, &granted)); /* a quarter of the 12 that are left */
    assert_int_equal(granted, 3);
    assert_success(budget_take(2, 100, &granted)); /* another process has its own */
    assert_int_equal(granted, 32);
    assert_success(budget_take(2, 1, &granted));
    assert_int_equal(granted, 0);
    budget_give(1, 20);
    assert_success(budget_take(1, 20, &granted));
    assert_int_equal(granted, 8);
    budget_give(1, 8);
    budget_give(1, 3);
    budget_give(2, 32);
    assert_success(budget_take(1, 1000, &granted));
    assert_int_equal(granted, 32);
    budget_give(1, 32);
}

/* Links get fewer sockets when their process has many already, and closing gives them back. */
TEST(test_links_share_the_budget)
{
    enum { LINKS = 3 };
    const unsigned expected[LINKS] = {31, 2, 2}; /* 30 beyond the first, and then one each */
    const struct net_link_options wanted = PAIR_DEFAULTS(.sockets = 31);
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener = listen_locally(&wanted, handle);
    struct net_link sending[LINKS];
    struct net_link receiving[LINKS];

    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < LINKS; i++) {
            make_link(listener, &wanted, handle, &sending[i], &receiving[i]);
            assert_int_equal(sending[i].sockets, expected[i]);
            assert_int_equal(receiving[i].sockets, expected[i]);
        }
        for (int i = 0; i < LINKS; i++) {
            net_link_close(&sending[i]);
            net_link_close(&receiving[i]);
        }
    }
    net_listener_close(listener);
}

static int begin_suite(void)
{
    child_begin();
    fill_bytes(data, sizeof data);
    return 0;
}

SUITE(.name = "progress", .begin = begin_suite);
