/*
 * Numbers of receives wrap. A receive that stays outstanding keeps its number: with tags later
 * receives leave it out, in order they wait. The tests begin shortly before the numbers wrap.
 */
#include "tests/support/comm_inside.h"
#include "tests/unit/net_traffic.h"

enum { LARGE = 256 << 10 };

static const struct net_link_options options = {
    .sockets = 2,
    .match = WIRE_MATCH_TAG,
    .framing = WIRE_INLINE,
    .eager_limit = 4096,
    .eager_credit = 65536,
    .largest_slice = 64 << 10,
    .timeout_ms = 60000,
    .handshake_ms = 5000,
};

static uint8_t data[LARGE];
static uint8_t old_room[LARGE];
static uint8_t new_room[LARGE];

/* As after that many receives. */
static void jump_to(struct net_comm *sender, struct net_comm *receiver, uint64_t receives)
{
    inside_jump_to(sender, receives);
    inside_jump_to(receiver, receives);
}

static void must_end(struct net_request *request)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    bool done = false;

    while (!done) {
        assert_success(net_test(request, &done, NULL));
        assert_false(deadline_passed(deadline));
    }
}

static void move(struct net_comm *sender, struct net_comm *receiver, uint8_t *room, uint64_t bytes,
                 uint64_t tag)
{
    struct net_request *send;
    struct net_request *receive;

    memset(room, 0, LARGE);
    assert_success(net_irecv(receiver, room, LARGE, tag, &receive));
    assert_success(net_isend(sender, data, bytes, tag, &send));
    assert_non_null(receive);
    assert_non_null(send);
    must_end(send);
    must_end(receive);
    assert_memory_equal(room, data, bytes);
}

static void test_an_old_receive_keeps_its_number(void **state)
{
    struct net_comm *sender;
    struct net_comm *receiver;
    struct net_request *old_send;
    struct net_request *old_receives[3];

    (void)state;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 31 + i / 255);
    make_comm_pair(&options, &sender, &receiver);
    move(sender, receiver, new_room, 10, 1);
    for (uint64_t i = 0; i < 3; i++) /* receives 1, 2 and 3 */
        assert_success(net_irecv(receiver, old_room, LARGE, 100 + i, &old_receives[i]));
    move(sender, receiver, new_room, LARGE, 1);
    jump_to(sender, receiver, ((uint64_t)1 << 32) - 3);
    memset(old_room, 0x5a, sizeof old_room);
    for (int i = 0; i < 12; i++)
        move(sender, receiver, new_room, i % 2 == 0 ? LARGE : 100, 1);
    for (size_t i = 0; i < sizeof old_room; i++)
        assert_int_equal(old_room[i], 0x5a);
    for (uint64_t i = 3; i-- > 0;) {
        assert_success(net_isend(sender, data, LARGE, 100 + i, &old_send));
        must_end(old_receives[i]);
        must_end(old_send);
        assert_memory_equal(old_room, data, LARGE);
    }
    net_comm_close(sender);
    net_comm_close(receiver);
}

/* A message cannot change its number: the next receive is put off instead. */
static void test_in_order_the_next_receive_waits(void **state)
{
    struct net_link_options wanted = options;
    struct net_comm *sender;
    struct net_comm *receiver;
    struct net_request *old;
    struct net_request *next;
    struct net_request *send;

    (void)state;
    wanted.match = WIRE_MATCH_FIFO;
    make_comm_pair(&wanted, &sender, &receiver);
    assert_success(net_irecv(receiver, old_room, LARGE, 0, &old));
    inside_set_next_order(receiver, ((uint64_t)1 << 32) - WIRE_MOST_AHEAD);
    assert_success(net_irecv(receiver, new_room, LARGE, 0, &next));
    assert_null(next);
    assert_success(net_isend(sender, data, LARGE, 0, &send));
    must_end(old);
    must_end(send);
    assert_memory_equal(old_room, data, LARGE);
    assert_success(net_irecv(receiver, new_room, LARGE, 0, &next));
    assert_non_null(next);
    net_comm_close(sender);
    net_comm_close(receiver);
}

/* The same numbers again and again, in order, past the wrap, ahead of the receives and behind. */
static void test_in_order_past_the_wrap(void **state)
{
    struct net_link_options wanted = options;
    struct net_comm *sender;
    struct net_comm *receiver;

    (void)state;
    wanted.match = WIRE_MATCH_FIFO;
    make_comm_pair(&wanted, &sender, &receiver);
    jump_to(sender, receiver, ((uint64_t)1 << 32) - 20);
    for (int i = 0; i < 40; i++) {
        uint64_t bytes = i % 3 == 0 ? LARGE : 50 + (uint64_t)i;
        struct net_request *send;
        struct net_request *receive;

        memset(new_room, 0, sizeof new_room);
        assert_success(net_isend(sender, data, bytes, 0, &send));
        assert_success(net_irecv(receiver, new_room, LARGE, 0, &receive));
        must_end(send);
        must_end(receive);
        assert_memory_equal(new_room, data, bytes);
    }
    net_comm_close(sender);
    net_comm_close(receiver);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_old_receive_keeps_its_number),
        cmocka_unit_test(test_in_order_the_next_receive_waits),
        cmocka_unit_test(test_in_order_past_the_wrap),
    };

    return cmocka_run_group_tests_name("numbers of receives", tests, NULL, NULL);
}
