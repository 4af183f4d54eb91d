/*
 * How a comm ends when its sockets do not end together: a FIN that was cut short is still an end,
 * and messages whose sends are done arrive although another connection of their comm was lost.
 */
#include "tests/support/comm_inside.h"
#include "tests/support/pair.h"

enum { SOCKETS = 3, PART = 20000, WHOLE = SOCKETS * PART };

static const struct net_link_options options =
    PAIR_DEFAULTS(.sockets = SOCKETS, .eager_credit = 32768);

static uint8_t data[WHOLE];
static uint8_t room[WHOLE];

/* Part `socket` of message 0, on its socket; and how many bytes that were. */
static uint64_t put_part(const struct net_link *raw, uint16_t socket)
{
    hand_say(raw->forward[socket], &(struct wire_record){.type = WIRE_SLICE,
                                                         .socket = socket,
                                                         .offset = (uint64_t)socket * PART,
                                                         .length = PART,
                                                         .tag = WHOLE});
    hand_put(raw->forward[socket], data + (size_t)socket * PART, PART);
    return WIRE_RECORD_BYTES + PART;
}

/* Its ends are seen one after the other, the cut ones first. */
static void end_with_part_of_fin(size_t fin_bytes)
{
    struct by_hand hand = by_hand_open(NET_RECEIVER, &options);
    struct net_request *receive;

    memset(room, 0, sizeof room);
    receive = must_receive(hand.comm, room, sizeof room, 5);
    for (uint16_t i = SOCKETS; i-- > 0;) {
        uint64_t total = put_part(&hand.link, i);

        hand_say_part(hand.link.forward[i],
                      &(struct wire_record){.type = WIRE_FIN, .length = total}, fin_bytes);
        shutdown(hand.link.forward[i], SHUT_WR);
        for (int turn = 0; turn < 3 && i > 0; turn++) {
            must_go_on(receive);
            nap_ms(1);
        }
    }
    must_end(receive);
    assert_memory_equal(room, data, sizeof data);
    by_hand_close(&hand);
}

TEST(test_a_fin_in_parts)
{
    for (size_t fin_bytes = 0; fin_bytes <= WIRE_RECORD_BYTES; fin_bytes++)
        end_with_part_of_fin(fin_bytes);
}

/* Closed in the middle of the second message, whose first bytes came on another socket. */
TEST(test_what_is_done_arrives_beside_a_lost_connection)
{
    for (int reset = 0; reset < 2; reset++) {
        struct by_hand hand = by_hand_open(NET_RECEIVER, &options);
        struct net_request *first;
        struct net_request *second;
        uint8_t other[100];

        memset(room, 0, sizeof room);
        first = must_receive(hand.comm, room, sizeof room, 5);
        second = must_receive(hand.comm, other, sizeof other, 6);
        put_part(&hand.link, 2);
        nap_ms(2);
        put_part(&hand.link, 1);
        hand_say(hand.link.forward[1],
                 &(struct wire_record){
                     .type = WIRE_SLICE, .sequence = 1, .socket = 1, .length = 100, .tag = 100});
        hand_put(hand.link.forward[1], data, 50);
        /* a reset destroys what was not read */
        until(inside_received(hand.comm, 1) == 2 * WIRE_RECORD_BYTES + PART + 50,
              must_go_on(first));
        if (reset)
            socket_reset(&hand.link.forward[1]);
        else
            close(hand.link.forward[1]);
        hand.link.forward[1] = -1;
        for (int turn = 0; turn < 5; turn++) {
            must_go_on(first);
            nap_ms(1);
        }
        put_part(&hand.link, 0);
        shutdown(hand.link.forward[0], SHUT_WR);
        shutdown(hand.link.forward[2], SHUT_WR);
        must_end(first);
        assert_memory_equal(room, data, sizeof data);
        must_fail(second, TCPX_REMOTE_ERROR, "");
        by_hand_close(&hand);
    }
}

/* The peer lives on, but does not send the rest: an error, and not much later. */
TEST(test_a_lost_connection_is_an_error)
{
    struct by_hand hand = by_hand_open(NET_RECEIVER, &options);
    struct net_request *receive = must_receive(hand.comm, room, sizeof room, 5);

    put_part(&hand.link, 0);
    hand_say_part(
        hand.link.forward[1],
        &(struct wire_record){.type = WIRE_SLICE, .socket = 1, .length = 100, .tag = WHOLE},
        WIRE_RECORD_BYTES - 1);
    shutdown(hand.link.forward[1], SHUT_WR);
    must_fail(receive, TCPX_REMOTE_ERROR, "lost in the middle");
    by_hand_close(&hand);
}

enum { MESSAGES = 4 };

/* Until the send is done; the receiver has to read, or its sockets stay full. */
static void must_end_beside(struct net_request *send, struct net_request *receives[MESSAGES])
{
    until(request_is_done(&send), {
        for (int i = 0; i < MESSAGES; i++)
            (void)request_is_done(&receives[i]);
    });
}

/* Sockets that are full when their sender closes do not take its FIN, or only a part of it. */
TEST(test_closing_with_full_sockets)
{
    enum { ROUNDS = 150, BYTES = 100000 };
    static uint8_t rooms[MESSAGES][BYTES];
    static uint8_t bytes[BYTES];

    fill_bytes(bytes, BYTES);
    for (int round = 0; round < ROUNDS; round++) {
        struct net_request *receives[MESSAGES];
        struct net_request *sends[MESSAGES];
        struct pair pair = pair_open(&options);

        for (int i = 0; i < SOCKETS; i++)
            socket_set_buffer(inside_link(pair.sender)->forward[i], SO_SNDBUF, 8192);
        memset(rooms, 0, sizeof rooms);
        for (uint64_t i = 0; i < MESSAGES; i++)
            receives[i] = must_receive(pair.receiver, rooms[i], BYTES, i);
        for (uint64_t i = 0; i < MESSAGES; i++)
            sends[i] = must_send(pair.sender, bytes, BYTES - (uint64_t)round, i);
        for (int i = 0; i < MESSAGES; i++)
            must_end_beside(sends[i], receives);
        comm_end(&pair.sender);
        for (int i = 0; i < MESSAGES; i++) {
            must_end_both(NULL, receives[i]);
            assert_memory_equal(rooms[i], bytes, BYTES - (uint64_t)round);
        }
        pair_close(&pair);
    }
}

static int begin_suite(void)
{
    fill_bytes(data, sizeof data);
    return 0;
}

SUITE(.name = "ends of comms", .begin = begin_suite);
