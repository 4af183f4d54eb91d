/*
 * Cancelled sends and receives: at every stage, by both sides, against a peer that is honest,
 * silent, late or lies. After its end nothing touches the memory of a cancelled request, and the
 * comm goes on.
 */
#include "tests/support/comm_inside.h"
#include "tests/support/pair.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { ROOM = 40000, RELEASED = 0xdd };

static uint8_t data[32 << 20]; /* more than the sockets take */
static uint8_t room[8 << 20];

static const struct net_link_options *options_of(uint8_t sockets)
{
    static struct net_link_options options;

    options = *PAIR_OPTIONS(.sockets = sockets, .eager_credit = 32768, .largest_slice = 1 << 20);
    return &options;
}

static void cancel(struct net_request *request)
{
    assert_success(net_cancel(request));
}

static void must_be_cancelled(struct net_request *request)
{
    must_fail(request, TCPX_CANCELLED, "was cancelled");
}

static void assert_released(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_int_equal(bytes[i], RELEASED);
}

/* --- receives ------------------------------------------------------------------------------- */

/* The peer has no message for it, so the next receive of the tag gets the next message. */
TEST(test_a_receive_without_a_message)
{
    struct pair pair = pair_open(options_of(2));
    uint64_t posted = 0;

    fill_bytes(data, ROOM);
    for (int late = 0; late < 2; late++)
        for (uint64_t bytes = 10; bytes <= ROOM; bytes *= 20) {
            struct net_request *cancelled = must_receive(pair.receiver, room, ROOM, 5);
            struct net_request *send;

            if (late) /* the POST is there */
                nap_ms(5);
            cancel(cancelled);
            must_be_cancelled(cancelled);
            memset(room, RELEASED, ROOM);
            posted++;
            until(inside_posts_heard(pair.sender) == posted &&
                      inside_posts_waiting(pair.sender) == 0,
                  inside_move_on(pair.sender);
                  inside_move_on(pair.receiver));
            posted++;
            send = must_send(pair.sender, data, bytes, 5);
            assert_int_equal(must_end_both(send, must_receive(pair.receiver, room + ROOM, ROOM, 5)),
                             bytes);
            assert_memory_equal(room + ROOM, data, bytes);
            assert_released(room, ROOM);
        }
    pair_close(&pair);
}

static void say_slice(const struct by_hand *hand, uint16_t socket, uint32_t sequence,
                      uint64_t offset, uint64_t length)
{
    hand_say(hand->link.forward[socket], &(struct wire_record){.type = WIRE_SLICE,
                                                               .socket = socket,
                                                               .sequence = sequence,
                                                               .offset = offset,
                                                               .length = length,
                                                               .tag = ROOM});
}

/* A peer that is late, or has not heard of it, or does not care: its bytes go nowhere. */
TEST(test_a_receive_in_the_middle_of_slices)
{
    struct by_hand hand = by_hand_open(NET_RECEIVER, options_of(2));
    struct net_request *receive = must_receive(hand.comm, room, ROOM, 5);

    fill_bytes(data, ROOM);
    say_slice(&hand, 0, 0, 0, 10000);
    hand_put(hand.link.forward[0], data, 5000);
    say_slice(&hand, 1, 0, 10000, 10000);
    hand_put(hand.link.forward[1], data, 100);
    nap_ms(5);
    must_go_on(receive);
    cancel(receive);
    must_be_cancelled(receive);
    memset(room, RELEASED, ROOM);
    hand_put(hand.link.forward[0], data, 5000);
    hand_put(hand.link.forward[1], data, 9900);
    say_slice(&hand, 1, 0, 20000, 20000);
    hand_put(hand.link.forward[1], data, 20000);
    /* number 0 is free again when all has come: the next one is another */
    receive = must_receive(hand.comm, room + ROOM, 5, 5);
    hand_say(hand.link.forward[0],
             &(struct wire_record){.type = WIRE_EAGER, .sequence = 1, .length = 5});
    hand_put(hand.link.forward[0], data, 5);
    assert_int_equal(must_end(receive), 5);
    assert_released(room, ROOM);
    by_hand_close(&hand);
}

/* The sender's answers: after nothing, after a part; and the room for new receives comes back. */
TEST(test_answers_to_cancelled_receives)
{
    struct by_hand hand = by_hand_open(NET_RECEIVER, options_of(2));
    struct net_request *receives[COMM_REQUESTS];
    struct net_request *none;

    for (uint32_t i = 0; i < COMM_REQUESTS; i++)
        receives[i] = must_receive(hand.comm, room + (size_t)i * ROOM, ROOM, 5);
    for (uint32_t i = 0; i < COMM_REQUESTS; i++) {
        cancel(receives[i]);
        must_be_cancelled(receives[i]);
    }
    memset(room, RELEASED, (size_t)COMM_REQUESTS * ROOM);
    /* the places are kept until the sender has answered */
    assert_success(net_irecv(hand.comm, data, 1, 6, &none));
    assert_null(none);
    for (uint32_t i = 0; i < COMM_REQUESTS; i++) {
        uint64_t bytes = i % 2 * 100;

        if (bytes > 0) {
            say_slice(&hand, i % 4 == 1, i, 0, bytes);
            hand_put(hand.link.forward[i % 4 == 1], data, bytes);
        }
        hand_say(hand.link.forward[0],
                 &(struct wire_record){.type = WIRE_CANCELLED, .sequence = i, .length = bytes});
    }
    for (uint32_t i = 0; i < COMM_REQUESTS; i++) {
        until(none != NULL, assert_success(net_irecv(hand.comm, data, 1, 6, &none)));
        none = NULL;
    }
    assert_released(room, (size_t)COMM_REQUESTS * ROOM);
    by_hand_close(&hand);
}

/* It goes nowhere, and the next message of the tag goes to the next receive. */
TEST(test_a_receive_whose_message_is_on_credit)
{
    struct by_hand hand = by_hand_open(NET_RECEIVER, options_of(1));
    struct net_request *receive = must_receive(hand.comm, room, ROOM, 5);
    const struct wire_record record = {
        .type = WIRE_EAGER, .flags = WIRE_ON_CREDIT, .length = 3000, .tag = 5};

    fill_bytes(data, ROOM);
    cancel(receive);
    must_be_cancelled(receive);
    memset(room, RELEASED, ROOM);
    hand_say(hand.link.forward[0], &record);
    hand_put(hand.link.forward[0], data, 3000);
    receive = must_receive(hand.comm, room + ROOM, ROOM, 5);
    hand_say(hand.link.forward[0], &record);
    hand_put(hand.link.forward[0], data + 1, 3000);
    assert_int_equal(must_end(receive), 3000);
    assert_memory_equal(room + ROOM, data + 1, 3000);
    assert_released(room, ROOM);
    by_hand_close(&hand);
}

TEST(test_the_sender_hears_of_a_cancelled_receive)
{
    struct by_hand hand = by_hand_open(NET_SENDER, options_of(1));
    struct net_request *send = must_send(hand.comm, data, sizeof data, 5);
    uint8_t byte;

    socket_set_buffer(hand.link.forward[0], SO_RCVBUF, 4096);
    hand_say(hand.link.reverse,
             &(struct wire_record){.type = WIRE_POST, .length = sizeof data, .tag = 5});
    until(recv(hand.link.forward[0], &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1,
          inside_move_on(hand.comm));
    must_go_on(send);
    hand_say(hand.link.reverse, &(struct wire_record){.type = WIRE_CANCEL});
    must_fail(send, TCPX_REMOTE_ERROR, "has cancelled its receive of tag 5");
    memset(data, RELEASED, sizeof data);
    by_hand_close(&hand);
}

/* --- sends ---------------------------------------------------------------------------------- */

/* It was not sent, and so the next one of its tag is the one that is received. */
TEST(test_a_send_without_a_receive)
{
    struct pair pair = pair_open(options_of(2));
    struct net_request *sends[3];

    fill_bytes(data, sizeof data);
    for (size_t i = 0; i < 3; i++)
        sends[i] = must_send(pair.sender, data + i, ROOM, 5);
    cancel(sends[1]);
    must_be_cancelled(sends[1]);
    cancel(sends[0]);
    must_be_cancelled(sends[0]);
    assert_int_equal(must_end_both(sends[2], must_receive(pair.receiver, room, ROOM, 5)), ROOM);
    assert_memory_equal(room, data + 2, ROOM);
    pair_close(&pair);
}

struct reader {
    uint8_t record[WIRE_RECORD_BYTES];
    size_t have;
    uint64_t left; /* of a slice */
};

/* Adds up the bytes of slices, none of which was written after the cancel. */
static void read_on(int fd, struct reader *reader, uint64_t *slices, uint64_t *told)
{
    static uint8_t bytes[65536];
    bool in_slice = reader->left > 0;
    size_t want = in_slice ? (size_t)reader->left : WIRE_RECORD_BYTES - reader->have;
    ssize_t got = recv(fd, in_slice ? bytes : reader->record + reader->have,
                       in_slice && want > sizeof bytes ? sizeof bytes : want, MSG_DONTWAIT);
    struct wire_record record;

    if (got <= 0)
        return;
    if (in_slice) {
        for (ssize_t i = 0; i < got; i++)
            assert_int_not_equal(bytes[i], RELEASED);
        reader->left -= (uint64_t)got;
        *slices += (uint64_t)got;
        return;
    }
    reader->have += (size_t)got;
    if (reader->have < WIRE_RECORD_BYTES)
        return;
    reader->have = 0;
    assert_int_equal(wire_record_read(reader->record, WIRE_FORWARD, &record), WIRE_FINE);
    if (record.type == WIRE_CANCELLED)
        *told = record.length;
    else
        reader->left = record.length;
}

/* Its socket is full, and the peer does not read: it ends all the same. */
TEST(test_a_send_that_does_not_get_on)
{
    struct by_hand hand = by_hand_open(NET_SENDER, options_of(2));
    struct net_request *send = must_send(hand.comm, data, sizeof data, 5);
    struct reader readers[2] = {{.have = 0}};
    uint64_t told = UINT64_MAX;
    uint64_t slices = 0;
    uint8_t byte;

    memset(data, 1, sizeof data);
    hand_say(hand.link.reverse,
             &(struct wire_record){.type = WIRE_POST, .length = sizeof data, .tag = 5});
    until(recv(hand.link.forward[0], &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1,
          inside_move_on(hand.comm));
    nap_ms(20);
    must_go_on(send);
    cancel(send);
    must_be_cancelled(send);
    memset(data, RELEASED, sizeof data);
    /* what was begun comes as it was, and then how much that is */
    until(slices == told, {
        inside_move_on(hand.comm);
        for (unsigned i = 0; i < 2; i++)
            read_on(hand.link.forward[i], &readers[i], &slices, &told);
    });
    assert_true(slices < sizeof data);
    by_hand_close(&hand);
}

/* Until the peer, which does not read, has all that the socket takes. */
static void fill_socket(struct net_comm *comm, struct net_request *send)
{
    uint64_t before;

    do {
        before = inside_handed_out(comm, send);
        for (int i = 0; i < 20; i++) {
            inside_move_on(comm);
            nap_ms(5);
        }
    } while (before == 0 || inside_handed_out(comm, send) != before);
}

/* Behind a full socket: nothing of it has begun. */
TEST(test_a_small_message_to_a_place)
{
    struct by_hand hand = by_hand_open(NET_SENDER, options_of(1));
    const struct net_buffer buffer = {.data = room, .bytes = 100};
    struct net_request *first = must_send(hand.comm, data, sizeof data, 5);
    struct net_request *small = NULL;

    hand_say(hand.link.reverse,
             &(struct wire_record){.type = WIRE_POST, .length = sizeof data, .tag = 5});
    fill_socket(hand.comm, first);
    assert_success(net_isend_place(hand.comm, &buffer, 1, NULL, &small));
    must_go_on(small);
    cancel(small);
    must_be_cancelled(small);
    must_go_on(first);
    cancel(first);
    must_be_cancelled(first);
    by_hand_close(&hand);
}

/* What is left of them waits for the socket, so that no further ones begin; later they do. */
TEST(test_many_small_messages_behind_a_full_socket)
{
    struct pair pair = pair_open(options_of(1));
    struct net_request *receive = must_receive(pair.receiver, data, sizeof data, 5);
    struct net_request *last = NULL;
    uint32_t place = 0;
    bool was_busy = false;

    /* the bytes of the first place wait for it, and hold up all others */
    for (unsigned i = 0; i < 2000; i++) {
        const struct net_buffer buffer = {.data = room, .bytes = place == 0 ? sizeof room : 100};
        struct net_request *send;

        assert_success(net_isend_place(pair.sender, &buffer, place + 1, NULL, &send));
        was_busy |= send == NULL;
        if (send == NULL)
            continue;
        if (++place == 1)
            fill_socket(pair.sender, send);
        cancel(send);
        end_of(send, NULL);
    }
    assert_true(was_busy);
    assert_success(inside_result(pair.sender));
    for (uint32_t i = 1; i <= place; i++) {
        const struct net_buffer nowhere = {.bytes = i == 1 ? sizeof room : 100};
        struct net_request *discards = NULL;

        until(discards != NULL,
              assert_success(net_irecv_place(pair.receiver, &nowhere, i, NULL, &discards));
              inside_move_on(pair.sender));
        must_fail(discards, TCPX_CANCELLED, "was cancelled");
    }
    until(last != NULL, assert_success(net_isend(pair.sender, room, 10, 5, &last));
          inside_move_on(pair.receiver));
    must_end_both(last, receive);
    pair_close(&pair);
}

/* Sends without a byte, which leave nothing that would have to be freed. */
TEST(test_empty_messages_behind_a_full_socket)
{
    struct by_hand hand = by_hand_open(NET_SENDER, options_of(1));
    struct net_request *first = must_send(hand.comm, data, sizeof data, 5);

    hand_say(hand.link.reverse,
             &(struct wire_record){.type = WIRE_POST, .length = sizeof data, .tag = 5});
    fill_socket(hand.comm, first);
    for (int i = 0; i < 3; i++) {
        struct net_request *empty = must_send(hand.comm, data, 0, 6);

        must_go_on(empty);
        cancel(empty);
        must_be_cancelled(empty);
    }
    cancel(first);
    must_be_cancelled(first);
    by_hand_close(&hand);
}

TEST(test_the_receiver_hears_of_a_cancelled_send)
{
    struct by_hand hand = by_hand_open(NET_RECEIVER, options_of(2));
    struct net_request *receive = must_receive(hand.comm, room, ROOM, 5);

    hand_say(hand.link.forward[0], &(struct wire_record){.type = WIRE_CANCELLED});
    must_fail(receive, TCPX_REMOTE_ERROR, "has cancelled a message with tag 5");
    /* a part of it is still on its way on another socket */
    receive = must_receive(hand.comm, room, ROOM, 6);
    hand_say(hand.link.forward[0],
             &(struct wire_record){.type = WIRE_SLICE, .sequence = 1, .length = 10, .tag = ROOM});
    hand_put(hand.link.forward[0], data, 10);
    hand_say(hand.link.forward[0],
             &(struct wire_record){.type = WIRE_CANCELLED, .sequence = 1, .length = 30});
    nap_ms(5);
    must_go_on(receive);
    say_slice(&hand, 1, 1, 10, 20);
    hand_put(hand.link.forward[1], data, 19);
    nap_ms(5);
    must_go_on(receive);
    hand_put(hand.link.forward[1], data, 1);
    must_fail(receive, TCPX_REMOTE_ERROR, "has cancelled a message with tag 6");
    by_hand_close(&hand);
}

/* --- wrong use and lies ----------------------------------------------------------------------- */

TEST(test_what_has_ended_is_not_cancelled)
{
    struct pair pair = pair_open(options_of(1));
    struct net_request *send = must_send(pair.sender, data, 10, 1);
    struct net_request *receive = must_receive(pair.receiver, room, 10, 1);

    until(inside_messages(pair.receiver) == 1, inside_move_on(pair.sender);
          inside_move_on(pair.receiver));
    cancel(receive);
    assert_int_equal(must_end(receive), 10);
    cancel(send);
    must_end(send);
    pair_close(&pair);
}

TEST(test_messages_in_order_cannot_be_cancelled)
{
    struct pair pair = pair_open(PAIR_OPTIONS(.match = WIRE_MATCH_FIFO));
    struct net_request *receive = must_receive(pair.receiver, room, 10, 0);

    assert_int_equal(net_cancel(receive), TCPX_INVALID_USAGE);
    pair_close(&pair);
}

static const struct {
    const char *test;
    uint64_t before; /* bytes of a slice of receive 0 */
    struct wire_record record;
    unsigned times;
} lies[] = {
    {"test_lies", 0, {.type = WIRE_CANCELLED, .sequence = 1}, 1},
    {"test_lies", 100, {.type = WIRE_CANCELLED, .length = 99}, 1},
    {"test_lies", 100, {.type = WIRE_CANCELLED, .length = ROOM}, 1},
    {"test_lies", 100, {.type = WIRE_CANCELLED, .length = 200}, 2},
};

TABLE_TEST(lies)
{
    struct by_hand hand = by_hand_open(NET_RECEIVER, options_of(2));
    struct net_request *receive = must_receive(hand.comm, room, ROOM, 5);

    if (row->before > 0) {
        say_slice(&hand, 0, 0, 0, row->before);
        hand_put(hand.link.forward[0], data, row->before);
    }
    for (unsigned i = 0; i < row->times; i++)
        hand_say(hand.link.forward[0], &row->record);
    must_fail(receive, TCPX_REMOTE_ERROR, "broke the protocol: CANCELLED");
    by_hand_close(&hand);
}

/* More than was said to come; a message for a receive that was given up. */
TEST(test_slices_behind_the_end)
{
    for (int before = 0; before < 2; before++) {
        struct by_hand hand = by_hand_open(NET_RECEIVER, options_of(2));
        struct net_request *receive = must_receive(hand.comm, room, ROOM, 5);
        struct net_request *other = must_receive(hand.comm, room, ROOM, 6);

        if (before) {
            say_slice(&hand, 0, 0, 0, 100);
            hand_put(hand.link.forward[0], data, 100);
        }
        hand_say(hand.link.forward[0],
                 &(struct wire_record){.type = WIRE_CANCELLED, .length = before ? 150 : 0});
        say_slice(&hand, 1, 0, 200, 51);
        nap_ms(5);
        assert_int_not_equal(end_of(receive, NULL), TCPX_SUCCESS);
        /* by the slice or by the record of the end, whichever is read first */
        must_fail(other, TCPX_REMOTE_ERROR, "broke the protocol: ");
        by_hand_close(&hand);
    }
}

/* Numbers that are not there, or whose messages are on their way, are passed over. */
TEST(test_floods_of_cancels)
{
    struct by_hand hand = by_hand_open(NET_SENDER, options_of(1));
    struct net_request *send = must_send(hand.comm, data, 100, 5);

    must_end(send);
    for (uint32_t i = 0; i < 5000; i++)
        hand_say(hand.link.reverse, &(struct wire_record){.type = WIRE_CANCEL, .sequence = i});
    inside_move_on(hand.comm);
    send = must_send(hand.comm, data, 100, 5);
    must_end(send);
    by_hand_close(&hand);
}

/* --- everything at once ------------------------------------------------------------------------
 */

enum { MESSAGES = 3000, SLOTS = 24, TAGS = 3, LONGEST = 300000 };

struct side {
    struct net_comm *comm;
    uint64_t random;
    bool sends;
    uint8_t (*rooms)[LONGEST];
    atomic_uint ended;
    unsigned whole;
    unsigned cancelled;
};

/* The content of a message says which one it is. */
static uint8_t mark_of(unsigned number, size_t at)
{
    return (uint8_t)((number * 7 + at / 1000) % 200 + 1);
}

static void fill_message(uint8_t *bytes, unsigned number, size_t count)
{
    memcpy(bytes, &number, sizeof number);
    for (size_t i = sizeof number; i < count; i++)
        bytes[i] = mark_of(number, i);
}

static void check_message(const uint8_t *bytes, size_t count, unsigned *last)
{
    unsigned number;

    memcpy(&number, bytes, sizeof number);
    assert_true(number < MESSAGES);
    for (size_t i = sizeof number; i < count; i += 97)
        assert_int_equal(bytes[i], mark_of(number, i));
    assert_true(*last == UINT32_MAX || number > *last);
    *last = number;
}

struct slot {
    struct net_request *request;
    uint64_t tag;
    uint64_t bytes;
    bool cancelled;
};

static void *run_side(void *argument)
{
    struct side *side = argument;
    struct slot slots[SLOTS] = {{0}};
    unsigned begun = 0;
    unsigned open = 0;
    uint64_t deadline = deadline_after_ms(LIMIT_MS);

    while (begun < MESSAGES || open > 0) {
        unsigned which = (unsigned)random_below(&side->random, SLOTS);
        struct slot *slot = &slots[which];
        uint8_t *bytes = side->rooms[which];

        assert_false(deadline_passed(deadline));
        if (slot->request == NULL && begun < MESSAGES) {
            uint64_t small = random_below(&side->random, 2);

            slot->tag = begun % TAGS;
            slot->bytes = 8 + random_below(&side->random, small ? 5000 : LONGEST - 8);
            slot->cancelled = false;
            memset(bytes, RELEASED, LONGEST);
            if (side->sends) {
                fill_message(bytes, begun, slot->bytes);
                assert_success(
                    net_isend(side->comm, bytes, slot->bytes, slot->tag, &slot->request));
            } else {
                assert_success(net_irecv(side->comm, bytes, LONGEST, slot->tag, &slot->request));
            }
            begun += slot->request != NULL;
            open += slot->request != NULL;
        } else if (slot->request != NULL) {
            bool done = false;
            uint64_t moved = 0;
            int result;

            if (random_below(&side->random, 20) == 0 || begun == MESSAGES) {
                assert_success(net_cancel(slot->request));
                slot->cancelled = true;
            }
            result = net_test(slot->request, &done, &moved);
            if (result == TCPX_SUCCESS && !done)
                continue;
            if (result != TCPX_SUCCESS)
                assert_true(result == (slot->cancelled ? TCPX_CANCELLED : TCPX_REMOTE_ERROR) ||
                            result == TCPX_REMOTE_ERROR);
            if (done && !side->sends) {
                unsigned last = UINT32_MAX;

                check_message(bytes, moved, &last);
                for (uint64_t i = moved; i < LONGEST; i += 61)
                    assert_int_equal(bytes[i], RELEASED);
            }
            side->whole += done;
            side->cancelled += result == TCPX_CANCELLED;
            slot->request = NULL;
            open--;
            /* from here on it is the caller's: a later write would be seen in another message */
            memset(bytes, RELEASED, LONGEST);
        }
    }
    side->ended = 1;
    return NULL;
}

TEST(test_many_at_once)
{
    for (uint8_t sockets = 1; sockets <= 3; sockets += 2) {
        struct pair pair = pair_open(options_of(sockets));
        struct side sides[2] = {{.comm = pair.receiver, .random = 77 + sockets},
                                {.comm = pair.sender, .random = 99 + sockets, .sends = true}};
        pthread_t threads[2];

        for (int i = 0; i < 2; i++) {
            sides[i].rooms = malloc(SLOTS * sizeof *sides[i].rooms);
            assert_non_null(sides[i].rooms);
            assert_int_equal(pthread_create(&threads[i], NULL, run_side, &sides[i]), 0);
        }
        while (!sides[0].ended || !sides[1].ended) /* the peer of one that has ended still moves */
            for (int i = 0; i < 2; i++)
                inside_move_on(sides[i].comm);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
            free(sides[i].rooms);
        }
        assert_true(sides[0].whole > 0 && sides[0].cancelled > 0 && sides[1].cancelled > 0);
        pair_move(&pair, data, room, ROOM, 7);
        pair_close(&pair);
    }
}

SUITE(.name = "cancelled requests");
