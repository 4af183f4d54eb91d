/*
 * The faults themselves: every kind is injected into each call that can have it, within what a
 * kernel may do; the same seed gives the same faults; and without a plan there are none. A suite
 * that runs with faults would show nothing if these were not there.
 */
#include "tests/faults/calls.h"
#include "tests/faults/faults.h"
#include "tests/net_calls/net_calls.h"
#include "tests/support/suite.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>

enum { CALLS = 2000, BYTES = 4096 };

static int two[2]; /* connected sockets of a test */

static void connect_two(int type)
{
    assert_int_equal(socketpair(AF_UNIX, type, 0, two), 0);
}

static void close_two(void)
{
    close(two[0]);
    close(two[1]);
}

/* How a call can end: each is counted, by sends and by receives. */
enum outcome { WHOLE, FEWER, ONE, AGAIN, INTERRUPTED, NO_BUFFERS, OUTCOMES };

static enum outcome outcome_of(ssize_t result, size_t wanted)
{
    assert_true(result != 0 &&
                (result > 0 || errno == EAGAIN || errno == EINTR || errno == ENOBUFS));
    if (result < 0)
        return errno == EAGAIN ? AGAIN : errno == EINTR ? INTERRUPTED : NO_BUFFERS;
    return result == (ssize_t)wanted ? WHOLE : result > 1 ? FEWER : ONE;
}

/* By send() and recv(), or by sendmsg() and recvmsg() with two parts. */
static ssize_t move_some(bool sends, uint8_t *bytes, bool as_message)
{
    struct iovec parts[2] = {{bytes, BYTES / 2}, {bytes + BYTES / 2, BYTES - BYTES / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t moved;

    if (!as_message)
        return sends ? faulty_send(two[0], bytes, BYTES, MSG_NOSIGNAL)
                     : faulty_recv(two[1], bytes, BYTES, 0);
    moved = sends ? faulty_sendmsg(two[0], &message, MSG_NOSIGNAL)
                  : faulty_recvmsg(two[1], &message, 0);
    assert_ptr_equal(message.msg_iov, parts);
    assert_int_equal(message.msg_iovlen, 2);
    return moved;
}

/* Bytes stay in order. */
static void transfer(bool as_message, unsigned seen[2][OUTCOMES])
{
    uint8_t bytes[BYTES];
    uint8_t next_out = 0;
    uint8_t next_in = 0;
    size_t under_way = 0;

    connect_two(SOCK_STREAM | SOCK_NONBLOCK);
    for (int call = 0; call < CALLS; call++) {
        bool sends = under_way == 0;
        ssize_t moved;

        for (int i = 0; i < BYTES; i++)
            bytes[i] = (uint8_t)(next_out + i);
        moved = move_some(sends, bytes, as_message);
        seen[sends][outcome_of(moved, sends ? BYTES : under_way)]++;
        for (ssize_t i = 0; i < moved && !sends; i++)
            assert_int_equal(bytes[i], next_in++);
        if (moved > 0)
            under_way = sends ? (size_t)moved : under_way - (size_t)moved;
        if (moved > 0 && sends)
            next_out = (uint8_t)(next_out + moved);
    }
    close_two();
}

/* Short ones of one byte and of more, EAGAIN, EINTR, ENOBUFS; most calls are as they would be. */
TEST(test_bytes)
{
    for (int as_message = 0; as_message < 2; as_message++) {
        unsigned seen[2][OUTCOMES] = {0};

        faults_by_seed(7, 4, FAULTS_ALL);
        transfer(as_message != 0, seen);
        assert_true(faults_stop() > 0);
        for (int sends = 0; sends < 2; sends++)
            for (int i = 0; i < OUTCOMES; i++)
                assert_int_equal(seen[sends][i] > 0, sends || i != NO_BUFFERS);
    }
}

/* Where a call may block, it is never told to come back. */
TEST(test_calls_that_block)
{
    uint8_t bytes[8] = {0};

    connect_two(SOCK_STREAM);
    faults_by_seed(3, 1, 1u << FAULT_AGAIN);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(faulty_send(two[0], bytes, sizeof bytes, 0), sizeof bytes);
        assert_int_equal(faulty_recv(two[1], bytes, sizeof bytes, 0), sizeof bytes);
    }
    assert_int_equal(faults_stop(), 0);
    close_two();
}

/* A datagram is whole or not there. */
TEST(test_datagrams)
{
    uint8_t bytes[64] = {0};

    connect_two(SOCK_DGRAM | SOCK_NONBLOCK);
    faults_by_seed(3, 2, FAULTS_ALL);
    for (int i = 0; i < 200; i++) {
        ssize_t got;

        assert_int_equal(faulty_send(two[0], bytes, sizeof bytes, 0), sizeof bytes);
        do
            got = faulty_recv(two[1], bytes, sizeof bytes, 0);
        while (got < 0);
        assert_int_equal(got, sizeof bytes);
    }
    assert_true(faults_stop() > 0);
    close_two();
}

/* Even where every call has a fault, one that is repeated comes to an end. */
TEST(test_repeated_calls_end)
{
    int repeats = 0;

    connect_two(SOCK_STREAM | SOCK_NONBLOCK);
    faults_by_seed(1, 1, FAULTS_ALL);
    while (faulty_send(two[0], "x", 1, 0) != 1)
        assert_true(++repeats < 100);
    while (faulty_recv(two[1], &(char){0}, 1, 0) != 1)
        assert_true(++repeats < 100);
    assert_true(faults_stop() > 0);
    close_two();
}

static int listen_somewhere(void)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&any, sizeof any), 0);
    assert_int_equal(listen(fd, 4), 0);
    return fd;
}

/* Each kind of fault in the calls that are not about bytes, and all of them within a few tries. */
TEST(test_the_other_calls)
{
    struct epoll_event event = {.events = EPOLLIN};
    unsigned interrupted = 0;
    int listening = listen_somewhere();
    int epoll = epoll_create1(0);

    connect_two(SOCK_STREAM | SOCK_NONBLOCK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(send(two[i], "x", 1, 0), 1);
        assert_int_equal(epoll_ctl(epoll, EPOLL_CTL_ADD, two[i], &event), 0);
    }
    faults_by_seed(9, 3, FAULTS_ALL);
    for (int i = 0; i < 200; i++) {
        struct epoll_event events[2];

        assert_int_equal(faulty_accept4(listening, NULL, NULL, 0), -1);
        interrupted += faulty_poll(NULL, 0, 1) < 0;
        interrupted += faulty_epoll_wait(epoll, events, 2, 1) < 0;
        interrupted += faulty_nanosleep(&(struct timespec){.tv_nsec = 1}, NULL) < 0;
    }
    faults_stop();
    assert_true(interrupted > 0);
    assert_true(faults_seen(FAULT_ABORTED) > 0);
    assert_true(faults_seen(FAULT_NO_ACCEPT) > 0);
    assert_true(faults_seen(FAULT_FEWER) > 0);
    close(listening);
    close(epoll);
    close_two();
}

static void *nothing(void *argument)
{
    return argument;
}

/* The second call alone, or all of them; those that are not meant are left alone. */
TEST(test_by_plan)
{
    struct epoll_event event = {.events = EPOLLIN};
    pthread_t thread;
    void *memory;
    int epoll = epoll_create1(0);

    calls_reset();
    CALLS_PLAN(CALL_MEMORY, .first = 1, .count = 1, .error = ENOMEM);
    free(memory = faulty_malloc(8));
    assert_non_null(memory);
    assert_null(faulty_calloc(1, 8));
    free(memory = faulty_strdup("it"));
    assert_non_null(memory);
    assert_int_equal(calls_made(CALL_MEMORY), 3);

    CALLS_PLAN(CALL_DESCRIPTOR, .count = UINT_MAX, .error = ENFILE);
    assert_int_equal(faulty_socket(AF_INET, SOCK_STREAM, 0), -1);
    assert_int_equal(errno, ENFILE);
    assert_int_equal(faulty_eventfd(0, 0), -1);
    assert_int_equal(faulty_epoll_create1(0), -1);
    assert_int_equal(calls_made(CALL_DESCRIPTOR), 3);

    CALLS_PLAN(CALL_EPOLL_ADD, .count = 1, .error = ENOSPC);
    assert_int_equal(faulty_epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &event), -1);
    assert_int_equal(errno, ENOSPC);
    assert_int_equal(calls_made(CALL_EPOLL_ADD), 1);

    CALLS_PLAN(CALL_PTHREAD_CREATE, .count = 1, .error = EAGAIN);
    assert_int_equal(faulty_pthread_create(&thread, NULL, nothing, NULL), EAGAIN);
    assert_int_equal(faulty_pthread_create(&thread, NULL, nothing, NULL), 0);
    pthread_join(thread, NULL);
    calls_reset();
    close(epoll);
}

static uint64_t pattern(uint64_t seed)
{
    uint64_t bits = 0;

    faults_by_seed(seed, 3, FAULTS_ALL);
    for (int i = 0; i < 64; i++)
        bits = bits << 1 | faults_hit(FAULT_AGAIN);
    faults_stop();
    return bits;
}

TEST(test_seeds)
{
    assert_true(pattern(5) == pattern(5));
    assert_true(pattern(5) != pattern(6));
    assert_true(pattern(5) != 0);
    assert_false(faults_hit(FAULT_AGAIN)); /* they have been stopped */
}

SUITE(.name = "faults");
