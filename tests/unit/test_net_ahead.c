/*
 * Messages that go ahead of their receives, in comms that match in order. The receiver is ours, the
 * sender speaks the protocol by hand and within the rules: every byte gets to its place, and memory
 * and credit are bounded by what was granted. What came whole outlives its sender.
 */
#include "tests/support/ahead_peer.h"

struct piece {
    uint32_t sequence;
    uint64_t total;
    uint64_t offset;
    uint64_t length;
};

/* Messages in slices of any length, which come in any order over all sockets. */
TEST(test_slices_in_any_order)
{
    enum { MESSAGES = 5, MOST_PIECES = 200 };
    uint64_t random = 17;

    for (int turn = 0; turn < turns_of(40); turn++) {
        struct ahead_peer peer;
        struct piece pieces[MOST_PIECES];
        uint64_t sizes[MESSAGES];
        unsigned count = 0;

        ahead_open(&peer, NET_RECEIVER, (uint8_t)(1 + turn % 3), AHEAD_CREDIT);
        for (uint32_t i = 0; i < MESSAGES; i++) {
            sizes[i] = 1 + random_below(&random, AHEAD_CREDIT / MESSAGES - WIRE_EAGER_CHARGE);
            peer.charged += sizes[i] + WIRE_EAGER_CHARGE;
            for (uint64_t at = 0, next; at < sizes[i]; at = next) {
                next = at + 1 + random_below(&random, AHEAD_SLICE);
                next = next < sizes[i] && count + MESSAGES < MOST_PIECES ? next : sizes[i];
                pieces[count++] = (struct piece){i, sizes[i], at, next - at};
            }
        }
        for (unsigned left = count; left > 0; left--) {
            unsigned pick = (unsigned)random_below(&random, left);
            const struct piece *piece = &pieces[pick];

            ahead_put_slice(&peer, (unsigned)random_below(&random, peer.link.sockets),
                            piece->sequence, piece->total, piece->offset, piece->length, true);
            pieces[pick] = pieces[left - 1];
            if (random_below(&random, 3) == 0)
                inside_move_on(peer.comm);
        }
        for (uint32_t i = 0; i < MESSAGES; i++)
            ahead_must_arrive(&peer, i, sizes[i]);
        ahead_hear_posts(&peer, MESSAGES);
        assert_int_equal(inside_held(peer.comm), 0);
        ahead_close(&peer);
    }
}

/* What is charged comes back once, all of it, whether the receive or the message was first. */
TEST(test_credit_comes_back)
{
    static uint8_t room[AHEAD_CREDIT];
    uint64_t random = 5;
    struct ahead_peer peer;
    uint32_t next = 0;

    ahead_open(&peer, NET_RECEIVER, 2, AHEAD_CREDIT);
    for (int turn = 0; turn < turns_of(400); turn++, next++) {
        uint64_t bytes = random_below(&random, 3) == 0
                             ? random_below(&random, AHEAD_CREDIT - 64)
                             : random_below(&random, AHEAD_EAGER_LIMIT + 1);
        bool receive_first = random_below(&random, 2) == 0;
        struct net_request *request =
            receive_first ? must_receive(peer.comm, room, sizeof room, 0) : NULL;

        /* as an honest sender, which has nothing unless it was told so */
        for (uint64_t deadline = deadline_after_ms(AHEAD_SOON_MS);
             peer.charged - peer.freed + bytes + WIRE_EAGER_CHARGE > AHEAD_CREDIT;) {
            inside_move_on(peer.comm);
            ahead_hear(&peer);
            if (peer.posts > next)
                break; /* it may go without credit */
            if (deadline_passed(deadline) && receive_first)
                fail_msg("credit is missing: %d bytes", (int)(peer.charged - peer.freed));
            if (!receive_first) {
                request = must_receive(peer.comm, room, sizeof room, 0);
                receive_first = true;
            }
        }
        ahead_put_whole(&peer, next, bytes);
        if (!receive_first)
            request = must_receive(peer.comm, room, sizeof room, 0);
        assert_int_equal(must_end(request), bytes);
        assert_memory_equal(room, text_of(&ahead_text, next), bytes);
        ahead_hear(&peer);
    }
    /* the rest comes with the next receive */
    must_receive(peer.comm, room, sizeof room, 0);
    ahead_hear_posts(&peer, next + 1);
    assert_int_equal(peer.freed, peer.charged);
    ahead_close(&peer);
}

/* 256 messages from the first that is not posted, and not one more. */
TEST(test_the_window)
{
    struct ahead_peer peer;

    ahead_open(&peer, NET_RECEIVER, 1, AHEAD_CREDIT);
    for (uint32_t i = WIRE_MOST_AHEAD; i-- > 0;)
        ahead_put_eager(&peer, i, i);
    for (uint32_t i = 0; i < WIRE_MOST_AHEAD; i++)
        ahead_must_arrive(&peer, i, i);
    ahead_put_eager(&peer, 2 * WIRE_MOST_AHEAD - 1, 10);
    ahead_wait_held(&peer, 10 + WIRE_EAGER_CHARGE);
    ahead_put_eager(&peer, 2 * WIRE_MOST_AHEAD, 10);
    ahead_must_break(&peer, "more than the window");
}

/*
 * A message of which a part is late on another socket, while the receives behind it go on: what
 * comes 256 later is within the window.
 */
TEST(test_a_late_slice_in_a_full_window)
{
    static uint8_t late[20000];
    struct net_request *request;
    struct ahead_peer peer;

    ahead_open(&peer, NET_RECEIVER, 2, AHEAD_CREDIT);
    ahead_put_slice(&peer, 0, 0, sizeof late, 0, 1000, true);
    peer.charged += sizeof late + WIRE_EAGER_CHARGE;
    ahead_wait_held(&peer, sizeof late + WIRE_EAGER_CHARGE);
    request = must_receive(peer.comm, late, sizeof late, 0);
    for (uint32_t i = 1; i < WIRE_MOST_AHEAD; i++) {
        ahead_put_eager(&peer, i, 10);
        ahead_must_arrive(&peer, i, 10);
    }
    ahead_hear_posts(&peer, WIRE_MOST_AHEAD);
    ahead_put_eager(&peer, WIRE_MOST_AHEAD, 10);
    ahead_wait_held(&peer, sizeof late + 10 + 2 * WIRE_EAGER_CHARGE);
    ahead_put_slice(&peer, 1, 0, sizeof late, 1000, sizeof late - 1000, true);
    assert_int_equal(must_end(request), sizeof late);
    assert_memory_equal(late, text_of(&ahead_text, 0), sizeof late);
    ahead_must_arrive(&peer, WIRE_MOST_AHEAD, 10);
    ahead_close(&peer);
}

/* Where no receive follows that would say it, the sender still hears of its credit. */
TEST(test_credit_without_a_receive)
{
    enum { SMALL_CREDIT = 20000, COUNT = 8 };
    static uint8_t rooms[COUNT][AHEAD_EAGER_LIMIT];
    struct net_request *requests[COUNT];
    struct ahead_peer peer;

    ahead_open(&peer, NET_RECEIVER, 1, SMALL_CREDIT);
    for (int i = 0; i < COUNT; i++)
        requests[i] = must_receive(peer.comm, rooms[i], sizeof rooms[i], 0);
    ahead_hear_posts(&peer, COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        ahead_put_eager(&peer, i, AHEAD_EAGER_LIMIT);
        assert_int_equal(must_end(requests[i]), AHEAD_EAGER_LIMIT);
    }
    soon(peer.charged - peer.freed <= SMALL_CREDIT / 2, {
        inside_move_on(peer.comm);
        ahead_hear(&peer);
    });
    assert_int_equal(peer.posts, COUNT);
    ahead_close(&peer);
}

static void must_be_bounded(struct net_comm *comm)
{
    uint64_t all = inside_kept_memory(comm);

    if (all > 2 * AHEAD_CREDIT)
        fail_msg("%d bytes for a credit of %d", (int)all, AHEAD_CREDIT);
}

/* Memory for another message of any length is within the credit, too. */
TEST(test_memory_is_bounded)
{
    enum { LARGE = 256 << 10 };
    struct ahead_peer peer;

    ahead_open(&peer, NET_RECEIVER, 1, AHEAD_CREDIT);
    for (uint32_t i = 0; i < 100; i++) {
        ahead_put_slices(&peer, i, LARGE);
        ahead_wait_held(&peer, LARGE + WIRE_EAGER_CHARGE + i * (10 + WIRE_EAGER_CHARGE));
        ahead_must_arrive(&peer, i, LARGE);
        ahead_put_eager(&peer, i + 128, 10);
        ahead_wait_held(&peer, (i + 1) * (10 + WIRE_EAGER_CHARGE));
        ahead_hear(&peer);
    }
    must_be_bounded(peer.comm);
    ahead_close(&peer);
    /* each longer than all before it, so that the memory of none of them is of use */
    ahead_open(&peer, NET_RECEIVER, 1, AHEAD_CREDIT);
    for (uint32_t i = 0; i < 29; i++) {
        ahead_put_slices(&peer, i, (i + 1) * (AHEAD_CREDIT / 30));
        ahead_wait_held(&peer, (i + 1) * (AHEAD_CREDIT / 30) + WIRE_EAGER_CHARGE);
        must_be_bounded(peer.comm);
        ahead_must_arrive(&peer, i, (i + 1) * (AHEAD_CREDIT / 30));
    }
    must_be_bounded(peer.comm);
    ahead_close(&peer);
}

/* --- too long ------------------------------------------------------------------------------- */

/* On credit nobody could know: the receive fails, not a byte is written, and the comm goes on. */
TEST(test_too_long_on_credit)
{
    static const uint64_t rooms[] = {0, 1, 999, 49999};
    static uint8_t data[50000];

    for (int way = 0; way < 16; way++) {
        uint64_t room = rooms[way % 4];
        uint64_t bytes = room < 1000 && way < 8 ? 1000 : sizeof data;
        bool receive_first = way / 4 % 2 == 0;
        struct net_request *request = NULL;
        struct ahead_peer peer;

        ahead_open(&peer, NET_RECEIVER, 2, AHEAD_CREDIT);
        memset(data, SLOT_MARK, sizeof data);
        if (receive_first)
            request = must_receive(peer.comm, data, room, 0);
        ahead_put_whole(&peer, 0, bytes);
        if (!receive_first) {
            ahead_wait_held(&peer, bytes + WIRE_EAGER_CHARGE);
            request = must_receive(peer.comm, data, room, 0);
        }
        must_fail(request, TCPX_INVALID_USAGE, "");
        assert_true(all_marked(data, sizeof data));
        ahead_put_eager(&peer, 1, 10);
        ahead_must_arrive(&peer, 1, 10);
        must_receive(peer.comm, data, 0, 0);
        ahead_hear_posts(&peer, 3);
        assert_int_equal(peer.freed, peer.charged);
        ahead_close(&peer);
    }
}

/* A receive that is too small waits for the rest of its message; then there is none. */
TEST(test_too_long_and_lost)
{
    static const uint64_t rooms[] = {0, 1, 999};
    uint8_t data[1000];

    for (int way = 0; way < 6; way++) {
        struct net_request *request;
        struct ahead_peer peer;

        ahead_open(&peer, NET_RECEIVER, 1, AHEAD_CREDIT);
        request = must_receive(peer.comm, data, rooms[way % 3], 0);
        if (way < 3)
            ahead_say_eager(&peer, 0, 1000);
        else
            ahead_say_slice(&peer, 0, 0, 50000, 0, 50000, true);
        ahead_put(&peer, 0, ahead_text.bytes, 10);
        inside_move_on(peer.comm);
        shutdown(peer.link.forward[0], SHUT_WR);
        must_fail(request, TCPX_REMOTE_ERROR, "");
        ahead_close(&peer);
    }
}

/* --- ends ----------------------------------------------------------------------------------- */

/* What came whole before the end is there for receives that are posted afterwards, in order. */
TEST(test_kept_beyond_the_end)
{
    static uint8_t data[100000];

    for (int broken = 0; broken < 2; broken++) {
        struct net_request *request = NULL;
        struct ahead_peer peer;

        ahead_open(&peer, NET_RECEIVER, 2, AHEAD_CREDIT);
        ahead_put_eager(&peer, 0, 100);
        ahead_put_slices(&peer, 1, 100000);
        ahead_put_eager(&peer, 2, 0);
        if (broken)
            ahead_put_slice(&peer, 1, 3, 5000, 0, 4999, true);
        for (unsigned i = 0; i < 2; i++)
            shutdown(peer.link.forward[i], SHUT_WR);
        soon(inside_result(peer.comm) != TCPX_SUCCESS, inside_move_on(peer.comm));
        ahead_must_arrive(&peer, 0, 100);
        ahead_must_arrive(&peer, 1, 100000);
        ahead_must_arrive(&peer, 2, 0);
        assert_int_equal(net_irecv(peer.comm, data, sizeof data, 0, &request), TCPX_REMOTE_ERROR);
        assert_null(request);
        ahead_close(&peer);
    }
}

/* A message that has begun ahead and never ends is an error, whoever was first. */
TEST(test_the_end_in_a_message)
{
    static uint8_t data[5000];

    for (int first = 0; first < 2; first++) {
        struct net_request *request = NULL;
        struct ahead_peer peer;

        ahead_open(&peer, NET_RECEIVER, 2, AHEAD_CREDIT);
        ahead_put_slice(&peer, 1, 0, 5000, 0, 4999, true);
        ahead_wait_held(&peer, 5000 + WIRE_EAGER_CHARGE);
        if (first)
            request = must_receive(peer.comm, data, sizeof data, 0);
        for (unsigned i = 0; i < 2; i++)
            shutdown(peer.link.forward[i], SHUT_WR);
        if (!first && net_irecv(peer.comm, data, sizeof data, 0, &request) != TCPX_SUCCESS)
            request = NULL;
        if (request != NULL)
            must_fail(request, TCPX_REMOTE_ERROR, "in the middle of a message");
        ahead_close(&peer);
    }
}

SUITE(.name = "ahead", .set_up = ahead_set_up, .tear_down = ahead_tear_down);
