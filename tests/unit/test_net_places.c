/*
 * Messages to places, which both sides know by a number: before and after the place is opened, in
 * any order, cancelled by either side, beside messages with tags; and peers that name places which
 * are not there.
 */
#include "tests/limit.h"
#include "tests/support/comm_inside.h"
#include "tests/support/pair.h"

#include <stdlib.h>

enum { ROOM = 300000, RELEASED = 0xdd };

static uint8_t data[ROOM];
static uint8_t room[16][ROOM];

static const struct net_link_options *options_of(uint8_t sockets, enum wire_framing framing)
{
    static struct net_link_options options;

    options = *PAIR_OPTIONS(.sockets = sockets, .framing = framing, .eager_credit = 32768);
    return &options;
}

static struct net_request *send_to(struct net_comm *comm, const void *from, uint64_t bytes,
                                   uint32_t place)
{
    const struct net_buffer buffer = {.data = (void *)(uintptr_t)from, .bytes = bytes};
    struct net_request *request = NULL;

    assert_success(net_isend_place(comm, &buffer, place, NULL, &request));
    assert_non_null(request);
    return request;
}

static struct net_request *open_place(struct net_comm *comm, void *to, uint64_t bytes,
                                      uint32_t place)
{
    const struct net_buffer buffer = {.data = to, .bytes = bytes};
    struct net_request *request = NULL;

    /* A request that was cancelled is free again when the bytes of its sender have been discarded.
     */
    for (uint64_t deadline = deadline_after_ms(limit_ms(5000));
         request == NULL && !deadline_passed(deadline);)
        assert_success(net_irecv_place(comm, &buffer, place, NULL, &request));
    assert_non_null(request);
    return request;
}

static void must_be_refused(struct net_comm *comm, uint32_t place)
{
    const struct net_buffer buffer = {.data = room, .bytes = 10};
    struct net_request *request;

    assert_int_equal(net_irecv_place(comm, &buffer, place, NULL, &request), TCPX_INVALID_USAGE);
}

static void assert_released(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_int_equal(bytes[i], RELEASED);
}

/* --- both sides are honest ------------------------------------------------------------------ */

static const struct {
    const char *test;
    uint8_t sockets;
    enum wire_framing framing;
    bool late; /* the places are opened after their bytes have come */
} ways[] = {
    {"test_one_socket", 1, WIRE_INLINE, false}, {"test_three_sockets", 3, WIRE_INLINE, false},
    {"test_late", 1, WIRE_INLINE, true},        {"test_late_on_three", 3, WIRE_INLINE, true},
    {"test_separate", 3, WIRE_SEPARATE, false}, {"test_late_separate", 3, WIRE_SEPARATE, true},
};

TABLE_TEST(ways)
{
    static const uint64_t lengths[] = {1, 64, 4096, 4097, 65536, 65537, 200000, ROOM - 8};
    enum { COUNT = sizeof lengths / sizeof *lengths };
    struct pair pair = pair_open(options_of(row->sockets, row->framing));
    struct net_request *sends[COUNT];
    struct net_request *places[COUNT];

    fill_bytes(data, sizeof data);
    for (uint32_t round = 0; round < 20; round++) {
        uint32_t first = round * COUNT + 1;

        memset(room, 0, sizeof room);
        for (uint32_t i = 0; i < COUNT && !row->late; i++)
            places[i] = open_place(pair.receiver, room[i], lengths[i], first + i);
        for (uint32_t i = 0; i < COUNT; i++)
            sends[i] = send_to(pair.sender, data + i, lengths[i], first + i);
        if (row->late)
            until(inside_stalled(pair.receiver) > 0, inside_move_on(pair.sender);
                  inside_move_on(pair.receiver));
        for (uint32_t i = 0; i < COUNT && row->late; i++)
            places[i] = open_place(pair.receiver, room[i], lengths[i], first + i);
        for (uint32_t i = 0; i < COUNT; i++) {
            assert_int_equal(must_end_both(sends[i], places[i]), lengths[i]);
            assert_memory_equal(room[i], data + i, lengths[i]);
        }
    }
    pair_close(&pair);
}

/* A later place does not have to wait for an earlier one, nor messages with tags for either. */
TEST(test_open_places_in_any_order)
{
    struct pair pair = pair_open(options_of(2, WIRE_INLINE));
    struct net_request *place[3];

    fill_bytes(data, sizeof data);
    for (uint32_t i = 0; i < 3; i++)
        place[i] = open_place(pair.receiver, room[i], 10000, NET_OPEN_PLACE + 7 * i);
    must_be_refused(pair.receiver, NET_OPEN_PLACE + 7);
    for (uint32_t i = 3; i-- > 0;) {
        must_end_both(send_to(pair.sender, data + i, 10000, NET_OPEN_PLACE + 7 * i), place[i]);
        assert_memory_equal(room[i], data + i, 10000);
        pair_move(&pair, data, room[4], 5000, i);
    }
    /* the number is free again */
    place[0] = open_place(pair.receiver, room[0], 10000, NET_OPEN_PLACE);
    must_end_both(send_to(pair.sender, data, 10000, NET_OPEN_PLACE), place[0]);
    pair_close(&pair);
}

TEST(test_numbers_count_up)
{
    struct pair pair = pair_open(options_of(1, WIRE_INLINE));

    must_be_refused(pair.receiver, 0);
    must_be_refused(pair.receiver, 2);
    must_end_both(send_to(pair.sender, data, 10, 1), open_place(pair.receiver, room, 10, 1));
    must_be_refused(pair.receiver, 1);
    pair_close(&pair);
}

TEST(test_messages_in_order_have_no_places)
{
    struct pair pair = pair_open(PAIR_OPTIONS(.match = WIRE_MATCH_FIFO));
    const struct net_buffer buffer = {.data = data, .bytes = 10};
    struct net_request *request;

    must_be_refused(pair.receiver, 1);
    assert_int_equal(net_isend_place(pair.sender, &buffer, 1, NULL, &request), TCPX_INVALID_USAGE);
    pair_close(&pair);
}

/* --- cancelled ------------------------------------------------------------------------------- */

static void cancel(struct net_request *request)
{
    assert_success(net_cancel(request));
    must_fail(request, TCPX_CANCELLED, "was cancelled");
}

/* The place discards, before its bytes come, and the comm goes on. */
TEST(test_a_place_that_discards)
{
    for (uint64_t bytes = 100; bytes <= ROOM; bytes *= 50) {
        struct pair pair = pair_open(options_of(2, WIRE_INLINE));

        for (uint32_t i = 1; i <= 100; i++) {
            cancel(open_place(pair.receiver, room[0], bytes, i));
            memset(room[0], RELEASED, ROOM);
            must_end_both(send_to(pair.sender, data, bytes, i), NULL);
        }
        /* those whose bytes were not read yet take the room of others */
        until(net_has_room(pair.receiver), inside_move_on(pair.receiver));
        pair_move(&pair, data, room[1], 5000, 1);
        assert_released(room[0], ROOM);
        pair_close(&pair);
    }
}

/*
 * What the sender says of cancelled receives is behind the bytes of a place that is not open yet.
 * It opens all the same, however many receives have been cancelled.
 */
TEST(test_a_place_behind_cancelled_receives)
{
    struct by_hand hand =
        by_hand_open(NET_RECEIVER, PAIR_OPTIONS(.requests = 2 * NET_PLACES + 2000));
    struct wire_record small = {
        .type = WIRE_EAGER, .flags = WIRE_TO_PLACE, .sequence = 1, .length = 10};
    struct net_request *receive;
    uint32_t cancelled = 0;

    do {
        assert_success(net_irecv(hand.comm, room[0], 10, 5, &receive));
        if (receive == NULL)
            break;
        cancel(receive);
    } while (++cancelled < 3 * NET_PLACES + 2000);
    hand_say(hand.link.forward[0], &small);
    hand_put(hand.link.forward[0], data, 10);
    for (uint32_t i = 0; i < cancelled; i++)
        hand_say(hand.link.forward[0],
                 &(struct wire_record){.type = WIRE_CANCELLED, .sequence = i});
    assert_int_equal(must_end(open_place(hand.comm, room[0], 10, 1)), 10);
    until(receive != NULL, assert_success(net_irecv(hand.comm, room[0], 10, 5, &receive)));
    by_hand_close(&hand);
}

/* The sender stops, and the place ends with the bytes that had begun; or both are done. */
TEST(test_a_send_that_is_cancelled)
{
    struct pair pair = pair_open(options_of(2, WIRE_INLINE));

    fill_bytes(data, sizeof data);
    for (uint32_t i = 1; i <= 200; i++) {
        struct net_request *place = NULL;
        struct net_request *send;

        if (i % 3 == 0)
            place = open_place(pair.receiver, room[0], ROOM, i);
        send = send_to(pair.sender, data, ROOM, i);
        for (uint32_t k = 0; k < i % 7; k++)
            inside_move_on(pair.sender);
        assert_success(net_cancel(send));
        if (place == NULL)
            place = open_place(pair.receiver, room[0], ROOM, i);
        if (end_of(send, NULL) == TCPX_SUCCESS) {
            assert_int_equal(must_end(place), ROOM);
            assert_memory_equal(room[0], data, ROOM);
        } else {
            must_fail(place, TCPX_CANCELLED, "has cancelled place");
        }
        assert_false(inside_stalled(pair.receiver) > 0);
    }
    pair_move(&pair, data, room[1], 5000, 1);
    pair_close(&pair);
}

/* --- lies ------------------------------------------------------------------------------------ */

static const struct {
    const char *test;
    struct wire_record record;
} lies[] = {
    {"test_place_0", {.type = WIRE_SLICE, .length = 10, .tag = 10}},
    {"test_a_place_that_is_gone", {.type = WIRE_SLICE, .sequence = 1, .length = 10, .tag = 10}},
    {"test_a_place_far_ahead",
     {.type = WIRE_SLICE, .sequence = 4 + NET_PLACES, .length = 10, .tag = 10}},
    {"test_an_open_place_that_is_not",
     {.type = WIRE_SLICE, .sequence = NET_OPEN_PLACE + 1, .length = 10, .tag = 10}},
    {"test_a_longer_message", {.type = WIRE_SLICE, .sequence = 2, .length = 10, .tag = 101}},
    {"test_a_shorter_message", {.type = WIRE_SLICE, .sequence = 2, .length = 10, .tag = 99}},
    {"test_a_shorter_small_message", {.type = WIRE_EAGER, .sequence = 2, .length = 99}},
    {"test_an_end_without_a_place", {.type = WIRE_CANCELLED, .sequence = 1}},
    {"test_an_end_of_all", {.type = WIRE_CANCELLED, .sequence = 2, .length = 100}},
};

TABLE_TEST(lies)
{
    struct by_hand hand = by_hand_open(NET_RECEIVER, options_of(1, WIRE_INLINE));
    struct wire_record small = {
        .type = WIRE_EAGER, .flags = WIRE_TO_PLACE, .sequence = 1, .length = 10};
    struct wire_record lie = row->record;
    struct net_request *gone = open_place(hand.comm, room[0], 10, 1);
    struct net_request *place;

    hand_say(hand.link.forward[0], &small);
    hand_put(hand.link.forward[0], data, 10);
    assert_int_equal(must_end(gone), 10);
    place = open_place(hand.comm, room[0], 100, 2);
    lie.flags = WIRE_TO_PLACE;
    hand_say(hand.link.forward[0], &lie);
    must_fail(place, TCPX_REMOTE_ERROR, "broke the protocol");
    by_hand_close(&hand);
}

/* Of as many places as may come late, each waits for its own. */
TEST(test_bytes_of_the_last_possible_place)
{
    struct by_hand hand = by_hand_open(NET_RECEIVER, options_of(1, WIRE_INLINE));
    struct net_request *places[16];

    hand_say(hand.link.forward[0],
             &(struct wire_record){
                 .type = WIRE_EAGER, .flags = WIRE_TO_PLACE, .sequence = 16, .length = 10});
    hand_put(hand.link.forward[0], data, 10);
    for (uint32_t i = 0; i < 16; i++) {
        places[i] = open_place(hand.comm, room[i], 10, i + 1);
        inside_move_on(hand.comm);
    }
    assert_int_equal(must_end(places[15]), 10);
    must_go_on(places[0]);
    by_hand_close(&hand);
}

SUITE(.name = "places");
