/* Sends by reference: the kernel's numbers, and its notices on a real socket. */
#include "net/devmem/devmem.h"

#include "base/clock.h"
#include "tests/limit.h"
#include "tests/skip.h"
#include "tests/support/suite.h"
#include "tests/support/tcp_pair.h"

#include <stdlib.h>
#include <string.h>

#include <poll.h>

static void expect_next(struct zerocopy *sends, void *owner, uint64_t bytes)
{
    void *who;
    uint64_t how_many;

    assert_true(zerocopy_take(sends, &who, &how_many));
    assert_ptr_equal(who, owner);
    assert_int_equal(how_many, bytes);
}

static void expect_none(struct zerocopy *sends)
{
    void *who;
    uint64_t how_many;

    assert_false(zerocopy_take(sends, &who, &how_many));
}

TEST(test_ends_come_in_any_order)
{
    struct zerocopy sends = {.oldest = 0};
    char owners[4];

    expect_none(&sends);
    for (unsigned i = 0; i < 4; i++)
        zerocopy_started(&sends, &owners[i], 10 + i);
    assert_true(zerocopy_in_flight(&sends));
    assert_true(zerocopy_complete(&sends, 2, 3));
    expect_none(&sends);
    assert_true(zerocopy_complete(&sends, 0, 0));
    expect_next(&sends, &owners[0], 10);
    expect_none(&sends);
    assert_true(zerocopy_complete(&sends, 1, 1));
    expect_next(&sends, &owners[1], 11);
    expect_next(&sends, &owners[2], 12);
    expect_next(&sends, &owners[3], 13);
    expect_none(&sends);
    assert_false(zerocopy_in_flight(&sends));
}

TEST(test_numbers_wrap)
{
    struct zerocopy sends = {.oldest = UINT32_MAX - 2, .next = UINT32_MAX - 2};

    for (uint64_t i = 0; i < 6; i++)
        zerocopy_started(&sends, NULL, i);
    assert_true(zerocopy_complete(&sends, UINT32_MAX - 2, 2));
    for (uint64_t i = 0; i < 6; i++)
        expect_next(&sends, NULL, i);
    assert_int_equal(sends.next, 3);
    assert_false(zerocopy_in_flight(&sends));
}

TEST(test_no_more_than_there_is_room_for)
{
    struct zerocopy sends = {.oldest = 5, .next = 5};

    for (unsigned i = 0; i < ZEROCOPY_MOST; i++) {
        assert_true(zerocopy_has_room(&sends));
        zerocopy_started(&sends, NULL, i);
    }
    assert_false(zerocopy_has_room(&sends));
    assert_true(zerocopy_complete(&sends, 5, 5));
    assert_false(zerocopy_has_room(&sends));
    expect_next(&sends, NULL, 0);
    assert_true(zerocopy_has_room(&sends));
}

TEST(test_notices_of_sends_that_were_not_made)
{
    struct zerocopy sends = {.oldest = 100, .next = 100};

    assert_false(zerocopy_complete(&sends, 100, 100));
    for (unsigned i = 0; i < 3; i++)
        zerocopy_started(&sends, NULL, i);
    assert_false(zerocopy_complete(&sends, 99, 100));
    assert_false(zerocopy_complete(&sends, 100, 103));
    assert_false(zerocopy_complete(&sends, 102, 101));
    assert_false(zerocopy_complete(&sends, 0, UINT32_MAX));
    expect_none(&sends);
    assert_true(zerocopy_complete(&sends, 100, 102));
    /* once more: those are gone only when they were taken out */
    assert_true(zerocopy_complete(&sends, 101, 102));
    for (uint64_t i = 0; i < 3; i++)
        expect_next(&sends, NULL, i);
    assert_false(zerocopy_complete(&sends, 101, 102));
}

/* --- a real socket ------------------------------------------------------------------------- */

static void read_all(int fd, size_t bytes)
{
    static char sink[65536];

    while (bytes > 0) {
        ssize_t got = recv(fd, sink, bytes < sizeof sink ? bytes : sizeof sink, 0);

        assert_true(got > 0);
        bytes -= (size_t)got;
    }
}

TEST(test_a_socket_tells)
{
    enum { SENDS = 40, BYTES = 30000 };
    static char data[BYTES];
    struct zerocopy sends = {.oldest = 0};
    uint64_t deadline = deadline_after_ms(limit_ms(20000));
    unsigned ended = 0;
    int pair[2] = {-1, -1};

    assert_true(tcp_pairs(&pair[0], &pair[1], 1));
    assert_int_equal(zerocopy_allow(pair[0]), TCPX_SUCCESS);
    assert_int_equal(zerocopy_poll(&sends, pair[0]), TCPX_SUCCESS);
    for (unsigned i = 0; i < SENDS; i++) {
        ssize_t sent = send(pair[0], data, sizeof data, MSG_ZEROCOPY | MSG_NOSIGNAL);

        if (sent < 0 && i == 0) {
            close(pair[0]);
            close(pair[1]);
            skip_because("this kernel does not send without a copy here");
        }
        assert_int_equal(sent, BYTES);
        zerocopy_started(&sends, &sends, (uint64_t)sent);
        read_all(pair[1], (size_t)sent);
    }
    while (ended < SENDS) {
        struct pollfd error = {.fd = pair[0]};
        void *owner;
        uint64_t bytes;

        assert_false(deadline_passed(deadline));
        assert_true(poll(&error, 1, 1000) >= 0);
        assert_int_equal(zerocopy_poll(&sends, pair[0]), TCPX_SUCCESS);
        while (zerocopy_take(&sends, &owner, &bytes)) {
            assert_ptr_equal(owner, &sends);
            assert_int_equal(bytes, BYTES);
            ended++;
        }
    }
    assert_false(zerocopy_in_flight(&sends));
    close(pair[0]);
    close(pair[1]);
}

TEST(test_not_every_socket_can)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(zerocopy_allow(fd), TCPX_SYSTEM_ERROR);
    close(fd);
}

SUITE(.name = "sends by reference");
