/*
 * A record whose receive is not posted can be held back in its socket for a moment, so that its
 * bytes need no copy. Such a stall costs nothing, ends in time, with its receive, its comm or its
 * connection, and other sockets go on beside it. The sender is a peer by hand.
 */
#include "tests/support/ahead_peer.h"

#include <sched.h>

/* By the I/O threads alone where they are at it, by calls otherwise. */
static void let_it_move(struct net_comm *comm, unsigned lane)
{
    if (inside_calls_move(comm, lane))
        inside_move_on(comm);
    sched_yield();
}

/* One message is kept, and a slice of another one is held back on the last socket. */
static void make_long_stall(struct ahead_peer *peer, uint8_t sockets, uint32_t kept,
                            uint32_t stalled)
{
    unsigned lane = sockets - 1u;

    ahead_open(peer, NET_RECEIVER, sockets, AHEAD_CREDIT);
    ahead_put_eager(peer, kept, 10);
    ahead_wait_held(peer, 10 + WIRE_EAGER_CHARGE);
    inside_keep_posting(peer->comm, true);
    ahead_put_slice(peer, lane, stalled, 5000, 0, 5000, true);
    peer->charged += 5000 + WIRE_EAGER_CHARGE;
    soon(inside_stalled(peer->comm) != 0, let_it_move(peer->comm, lane));
    assert_int_equal(inside_held(peer->comm), 10 + WIRE_EAGER_CHARGE);
}

/* Nobody calls: the stall ends by itself, and nothing polls for it any more. */
TEST(test_a_stall_costs_nothing)
{
    struct ahead_peer peer;
    double seconds;

    if (!threads_are_wanted())
        skip_because("there are no I/O threads");
    make_long_stall(&peer, 1, 0, 1);
    inside_keep_posting(peer.comm, false);
    nap_us(50000);
    assert_int_equal(inside_stalled(peer.comm), 0);
    seconds = cpu_seconds();
    nap_us(300000);
    seconds = cpu_seconds() - seconds;
    if (seconds > 0.005)
        fail_msg("%d us of CPU in 300 ms", (int)(seconds * 1e6));
    ahead_must_arrive(&peer, 0, 10);
    ahead_must_arrive(&peer, 1, 5000);
    ahead_close(&peer);
}

/* It ends with the comm, at once. */
TEST(test_a_stall_ends_with_its_comm)
{
    struct ahead_peer peer;
    uint64_t start;

    make_long_stall(&peer, 1, 0, 1);
    start = clock_now();
    ahead_close(&peer);
    assert_true(clock_now() - start < limit_ns(1000000000u));
}

/*
 * Where calls read the socket, the next receive would have to wait for it with nothing to take at
 * once. An owner reads for the receive as soon as it is posted.
 */
TEST(test_only_owners_hold_back_the_first)
{
    for (uint8_t sockets = 1; sockets <= 2; sockets++) {
        struct ahead_peer peer;

        ahead_open(&peer, NET_RECEIVER, sockets, AHEAD_CREDIT);
        inside_keep_posting(peer.comm, true);
        ahead_put_slice(&peer, sockets - 1u, 0, 5000, 0, 5000, true);
        if (inside_calls_move(peer.comm, 0))
            ahead_wait_held(&peer, 5000 + WIRE_EAGER_CHARGE);
        else
            soon(inside_stalled(peer.comm) == 1, sched_yield());
        assert_int_equal(inside_stalled(peer.comm), !inside_calls_move(peer.comm, 0));
        ahead_must_arrive(&peer, 0, 5000);
        ahead_close(&peer);
    }
}

/* No receive comes for it, and none at all any more: then it is kept. */
TEST(test_a_stall_ends_in_time)
{
    for (uint8_t sockets = 1; sockets <= 3; sockets++) {
        struct ahead_peer peer;

        make_long_stall(&peer, sockets, 0, 1);
        inside_keep_posting(peer.comm, false);
        soon(inside_held(peer.comm) == 5010 + 2 * WIRE_EAGER_CHARGE,
             let_it_move(peer.comm, sockets - 1u));
        assert_int_equal(inside_stalled(peer.comm), 0);
        ahead_must_arrive(&peer, 0, 10);
        ahead_must_arrive(&peer, 1, 5000);
        ahead_close(&peer);
    }
}

/* Its receive ends it at once, however busily others are posted. */
TEST(test_a_stall_ends_with_its_receive)
{
    static uint8_t room[5000];

    for (uint8_t sockets = 1; sockets <= 3; sockets++) {
        struct net_request *request;
        struct ahead_peer peer;

        make_long_stall(&peer, sockets, 1, 0);
        request = must_receive(peer.comm, room, sizeof room, 0);
        inside_keep_posting(peer.comm, true);
        assert_int_equal(must_end(request), sizeof room);
        assert_memory_equal(room, text_of(&ahead_text, 0), sizeof room);
        ahead_must_arrive(&peer, 1, 10);
        must_receive(peer.comm, room, sizeof room, 0);
        ahead_hear_posts(&peer, 3);
        assert_int_equal(peer.freed, peer.charged);
        ahead_close(&peer);
    }
}

/* What comes on the other socket gets to its receives while one is held back. */
TEST(test_others_go_on_beside_a_stall)
{
    static uint8_t room[50000];
    struct ahead_peer peer;
    bool beside = false;

    for (int i = 0; i < 20 && !beside; i++) { /* a busy machine may end the stall too early */
        struct net_request *small;
        struct net_request *large;

        make_long_stall(&peer, 2, 3, 2);
        small = must_receive(peer.comm, room, 100, 0);
        inside_keep_posting(peer.comm, true);
        large = must_receive(peer.comm, room + 100, sizeof room - 100, 0);
        inside_keep_posting(peer.comm, true);
        ahead_put_eager(&peer, 0, 100);
        ahead_put_slice(&peer, 0, 1, 40000, 0, 40000, false);
        assert_int_equal(must_end(small), 100);
        assert_int_equal(must_end(large), 40000);
        assert_memory_equal(room, text_of(&ahead_text, 0), 100);
        assert_memory_equal(room + 100, text_of(&ahead_text, 1), 40000);
        beside = inside_stalled(peer.comm) == 1;
        ahead_must_arrive(&peer, 2, 5000);
        ahead_must_arrive(&peer, 3, 10);
        ahead_close(&peer);
    }
    assert_true(beside);
}

/* The connection breaks while a record is held back: that is told, not waited for. */
TEST(test_a_stall_on_a_broken_connection)
{
    static uint8_t room[5000];

    for (uint8_t sockets = 1; sockets <= 3; sockets++) {
        unsigned lane = sockets - 1u;
        struct net_request *request = NULL;
        struct ahead_peer peer;
        int result;

        make_long_stall(&peer, sockets, 0, 1);
        socket_reset(&peer.link.forward[lane]);
        nap_us(1000);
        inside_keep_posting(peer.comm, false);
        soon(inside_result(peer.comm) != TCPX_SUCCESS, let_it_move(peer.comm, lane));
        ahead_must_arrive(&peer, 0, 10);
        /* this message may have come before the end, but no other */
        for (int i = 0; i < 2; i++) {
            result = net_irecv(peer.comm, room, sizeof room, 0, &request);
            if (result == TCPX_SUCCESS)
                result = end_of(request, NULL);
            assert_true(result == TCPX_REMOTE_ERROR || (i == 0 && result == TCPX_SUCCESS));
        }
        ahead_close(&peer);
    }
}

SUITE(.name = "stalls", .set_up = ahead_set_up, .tear_down = ahead_tear_down);
