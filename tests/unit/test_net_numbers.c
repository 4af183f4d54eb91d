/*
 * Numbers of receives wrap. A receive that stays outstanding keeps its number: with tags later
 * receives leave it out, in order they wait. The tests begin shortly before the numbers wrap.
 */
#include "tests/support/comm_inside.h"
#include "tests/support/pair.h"

enum { LARGE = 256 << 10 };

static uint8_t data[LARGE];
static uint8_t old_room[LARGE];
static uint8_t new_room[LARGE];

/* As after that many receives. */
static void jump_to(const struct pair *pair, uint64_t receives)
{
    inside_jump_to(pair->sender, receives);
    inside_jump_to(pair->receiver, receives);
}

TEST(test_an_old_receive_keeps_its_number)
{
    struct pair pair = pair_open(PAIR_OPTIONS(.sockets = 2));
    struct net_request *old_receives[3];

    pair_move(&pair, data, new_room, 10, 1);
    for (uint64_t i = 0; i < 3; i++) /* receives 1, 2 and 3 */
        old_receives[i] = must_receive(pair.receiver, old_room, LARGE, 100 + i);
    pair_move(&pair, data, new_room, LARGE, 1);
    jump_to(&pair, ((uint64_t)1 << 32) - 3);
    memset(old_room, 0x5a, sizeof old_room);
    for (int i = 0; i < 12; i++)
        pair_move(&pair, data, new_room, i % 2 == 0 ? LARGE : 100, 1);
    for (size_t i = 0; i < sizeof old_room; i++)
        assert_int_equal(old_room[i], 0x5a);
    for (uint64_t i = 3; i-- > 0;) {
        must_end_both(must_send(pair.sender, data, LARGE, 100 + i), old_receives[i]);
        assert_memory_equal(old_room, data, LARGE);
    }
    pair_close(&pair);
}

/* A message cannot change its number: the next receive is put off instead. */
TEST(test_in_order_the_next_receive_waits)
{
    struct pair pair = pair_open(PAIR_OPTIONS(.sockets = 2, .match = WIRE_MATCH_FIFO));
    struct net_request *old = must_receive(pair.receiver, old_room, LARGE, 0);
    struct net_request *next;

    inside_set_next_order(pair.receiver, ((uint64_t)1 << 32) - WIRE_MOST_AHEAD);
    assert_success(net_irecv(pair.receiver, new_room, LARGE, 0, &next));
    assert_null(next);
    must_end_both(must_send(pair.sender, data, LARGE, 0), old);
    assert_memory_equal(old_room, data, LARGE);
    must_receive(pair.receiver, new_room, LARGE, 0);
    pair_close(&pair);
}

/* The same numbers again and again, in order, past the wrap, ahead of the receives and behind. */
TEST(test_in_order_past_the_wrap)
{
    struct pair pair = pair_open(PAIR_OPTIONS(.sockets = 2, .match = WIRE_MATCH_FIFO));

    jump_to(&pair, ((uint64_t)1 << 32) - 20);
    for (int i = 0; i < 40; i++) {
        uint64_t bytes = i % 3 == 0 ? LARGE : 50 + (uint64_t)i;
        struct net_request *send = must_send(pair.sender, data, bytes, 0);

        memset(new_room, 0, sizeof new_room);
        must_end_both(send, must_receive(pair.receiver, new_room, LARGE, 0));
        assert_memory_equal(new_room, data, bytes);
    }
    pair_close(&pair);
}

static int begin_suite(void)
{
    fill_bytes(data, sizeof data);
    return 0;
}

SUITE(.name = "numbers of receives", .begin = begin_suite);
