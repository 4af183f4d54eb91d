/*
 * A sender that goes ahead of the receives uses what it was granted, to the byte, and not one byte
 * or message more, however the receives are announced. The receiver is a peer by hand, which checks
 * every record and byte.
 */
#include "tests/support/ahead_peer.h"

/* To the byte: what fits the credit goes, and one byte more does not. */
TEST(test_credit_to_the_byte)
{
    enum { BYTES = 100000, LAST = BYTES - 70000 - 3 * WIRE_EAGER_CHARGE };
    static struct ahead_peer peer;

    for (uint8_t sockets = 1; sockets <= 3; sockets++)
        for (unsigned over = 0; over < 2; over++) {
            ahead_open(&peer, NET_SENDER, sockets, BYTES);
            ahead_must_send(&peer, 0, 40000);
            ahead_must_send(&peer, 1, 30000);
            ahead_must_send(&peer, 2, LAST + over);
            ahead_must_send(&peer, 3, 0);
            for (uint32_t i = 0; i < 3 - over; i++)
                ahead_read_message(&peer, i);
            ahead_read_for(&peer, 20);
            assert_int_equal(ahead_is_whole(&peer, 2), over == 0);
            assert_false(peer.coming[2].begun && over);
            assert_false(peer.coming[3].begun);
            /* a receive without any of it freed: the next one goes, but not on credit */
            for (int i = 0; i < 3; i++)
                ahead_say_post(&peer, BYTES);
            ahead_read_message(&peer, 2);
            assert_int_equal(peer.coming[2].on_credit, over == 0);
            ahead_say_post(&peer, 0);
            ahead_read_message(&peer, 3);
            ahead_close(&peer);
        }
}

TEST(test_no_more_than_the_window)
{
    static struct ahead_peer peer;
    uint64_t give_up = deadline_after_ms(limit_ms(10000));
    uint64_t enough = deadline_after_ms(50);
    uint32_t sent = 0;

    ahead_open(&peer, NET_SENDER, 2, AHEAD_CREDIT);
    while (!deadline_passed(enough) || (sent <= WIRE_MOST_AHEAD && !deadline_passed(give_up))) {
        struct net_request *request = NULL;

        if (sent < 300)
            assert_success(net_isend(peer.comm, ahead_text.bytes, 0, 0, &request));
        sent += request != NULL;
        if (request != NULL && sent <= WIRE_MOST_AHEAD)
            must_end(request);
        ahead_read(&peer);
    }
    assert_true(sent > WIRE_MOST_AHEAD);
    assert_true(ahead_is_whole(&peer, WIRE_MOST_AHEAD - 1));
    assert_false(peer.coming[WIRE_MOST_AHEAD].begun);
    ahead_say_post(&peer, 0);
    ahead_read_message(&peer, WIRE_MOST_AHEAD);
    ahead_read_for(&peer, 5);
    assert_false(peer.coming[WIRE_MOST_AHEAD + 1].begun);
    ahead_close(&peer);
}

/* Receives that are announced before, behind and together; freed as it comes. */
TEST(test_posts_in_any_rhythm)
{
    static const uint64_t credits[] = {0, 100, 65536, AHEAD_CREDIT};
    static struct ahead_peer peer;
    uint64_t random = 23;

    for (int turn = 0; turn < turns_of(24); turn++) {
        enum { COUNT = 60 };
        struct net_request *requests[COUNT] = {NULL};
        bool ended[COUNT] = {false};
        bool freed[COUNT] = {false};
        uint64_t sizes[COUNT];
        unsigned sent = 0;
        unsigned left = COUNT;
        uint64_t deadline = deadline_after_ms(AHEAD_SOON_MS);

        ahead_open(&peer, NET_SENDER, (uint8_t)(1 + turn % 3), credits[turn % 4]);
        for (unsigned i = 0; i < COUNT; i++)
            sizes[i] = random_below(&random, 3) == 0 ? random_below(&random, 200000)
                                                     : random_below(&random, 5000);
        while (left > 0 || peer.posts < COUNT) {
            if (random_below(&random, 2) == 0 && sent < COUNT) {
                assert_success(net_isend(peer.comm, text_of(&ahead_text, sent), sizes[sent], 0,
                                         &requests[sent]));
                sent += requests[sent] != NULL;
            }
            for (uint64_t posts = random_below(&random, 40) == 0 ? random_below(&random, 9) : 0;
                 posts > 0 && peer.posts < COUNT; posts--) {
                uint32_t next = peer.posts;
                bool small = random_below(&random, 8) == 0 && sizes[next] > 0;
                unsigned open = 0;

                for (unsigned i = 0; i < next; i++)
                    open += !ahead_is_whole(&peer, i);
                if (open >= COMM_REQUESTS)
                    break;
                for (unsigned i = 0; i < next; i++)
                    if (!freed[i] && ahead_is_whole(&peer, i) && peer.coming[i].on_credit) {
                        freed[i] = true;
                        peer.freed += sizes[i] + WIRE_EAGER_CHARGE;
                    }
                ahead_say_post(&peer, small ? sizes[next] - 1 : sizes[next] + 5);
            }
            for (unsigned i = 0; i < sent; i++) {
                bool done = false;
                int result;

                if (ended[i])
                    continue;
                result = net_test(requests[i], &done, NULL);
                ended[i] = done || result != TCPX_SUCCESS;
                left -= ended[i];
                if (result == TCPX_SUCCESS)
                    continue;
                assert_int_equal(result, TCPX_INVALID_USAGE);
                assert_true(i < peer.posts && peer.rooms[i] < sizes[i]);
            }
            ahead_read(&peer);
            if (deadline_passed(deadline))
                fail_msg("%u sends have not ended", left);
        }
        for (uint32_t i = 0; i < COUNT; i++) {
            ahead_read_message(&peer, i);
            assert_true(peer.coming[i].too_long || peer.coming[i].total == sizes[i]);
        }
        ahead_close(&peer);
    }
}

SUITE(.name = "credit of a sender", .set_up = ahead_set_up, .tear_down = ahead_tear_down);
