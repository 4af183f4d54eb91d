/*
 * Messages over a comm, both ends driven in one thread: random sizes, tags, orders and modes, every
 * byte checked and an unreadable page behind every receive; what does not fit, what comes late,
 * what is never asked for; and how each end learns that the other is gone or lies.
 */
#include "tests/unit/net_pair.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct pair {
    struct net_comm *sender;
    struct net_comm *receiver;
};

static struct net_link_options options_of(uint8_t sockets, enum wire_match match,
                                          enum wire_framing framing)
{
    return (struct net_link_options){.sockets = sockets,
                                     .match = match,
                                     .framing = framing,
                                     .eager_limit = 4096,
                                     .eager_credit = 32768,
                                     .largest_slice = 100000,
                                     .timeout_ms = 60000,
                                     .handshake_ms = 5000};
}

static struct pair make_pair(const struct net_link_options *options)
{
    struct net_link sender;
    struct net_link receiver;
    struct pair pair;

    make_link_pair(options, &sender, &receiver);
    assert_success(net_comm_create(&sender, NET_SENDER, &pair.sender));
    assert_success(net_comm_create(&receiver, NET_RECEIVER, &pair.receiver));
    return pair;
}

static struct pair tag_pair(void)
{
    struct net_link_options options = options_of(1, WIRE_MATCH_TAG, WIRE_INLINE);

    return make_pair(&options);
}

static void close_pair(struct pair *pair)
{
    net_comm_close(pair->sender);
    net_comm_close(pair->receiver);
}

static struct net_request *must_send(struct net_comm *comm, const void *data, uint64_t bytes,
                                     uint64_t tag)
{
    struct net_request *request = NULL;

    assert_success(net_isend(comm, data, bytes, tag, &request));
    assert_non_null(request);
    return request;
}

static struct net_request *must_receive(struct net_comm *comm, void *data, uint64_t room,
                                        uint64_t tag)
{
    struct net_request *request = NULL;

    assert_success(net_irecv(comm, data, room, tag, &request));
    assert_non_null(request);
    return request;
}

/* Tests both by turns until both are done. */
static uint64_t finish(struct net_request *send, struct net_request *receive)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    uint64_t bytes = 0;
    bool sent = send == NULL;
    bool received = receive == NULL;

    while (!sent || !received) {
        if (!sent)
            assert_success(net_test(send, &sent, NULL));
        if (!received)
            assert_success(net_test(receive, &received, &bytes));
        assert_false(deadline_passed(deadline));
    }
    return bytes;
}

/* The result of a request that must fail. */
static int failure(struct net_request *request, struct net_request *other)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);

    for (;;) {
        bool done;
        int result = net_test(request, &done, NULL);

        if (result != TCPX_SUCCESS)
            return result;
        assert_false(done);
        if (other != NULL)
            assert_success(net_test(other, &done, NULL));
        assert_false(deadline_passed(deadline));
    }
}

#define assert_text(words)                                                                         \
    do {                                                                                           \
        if (strstr(tcpx_last_error(), words) == NULL)                                              \
            fail_msg("'%s' is not in '%s'", words, tcpx_last_error());                             \
    } while (0)

/* --- random traffic ------------------------------------------------------------------------ */

static uint64_t random_state = 42;

static uint64_t below(uint64_t limit)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545f4914f6cdd1du % limit;
}

enum { BLOCK = 12, BLOCKS = 100, MESSAGES = BLOCK * BLOCKS, LARGEST = 700000 };

struct message {
    uint64_t tag;
    uint64_t bytes;
    uint8_t seed;
};

static uint8_t content(const struct message *message, uint64_t at)
{
    return (uint8_t)(message->seed + at * 7 + (at >> 8) * 13 + (at >> 16));
}

static uint64_t random_size(void)
{
    static const uint64_t edges[] = {0, 1, 31, 32, 33, 4095, 4096, 4097, 99999, 100000, 100001};

    switch (below(6)) {
    case 0:
        return edges[below(sizeof edges / sizeof *edges)];
    case 1:
        return below(LARGEST);
    case 2:
        return below(20000);
    default:
        return below(5000);
    }
}

/* Receive buffers that end at an unreadable page, so that a byte too many is a fault. */
static uint64_t guarded_bytes;

static uint8_t *guarded_slots;

static void make_guarded(void)
{
    guarded_bytes = (LARGEST + 4096 + 4095) & ~4095u;
    guarded_slots = mmap(NULL, 2 * BLOCK * (guarded_bytes + 4096), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(guarded_slots, MAP_FAILED);
    for (int i = 0; i < 2 * BLOCK; i++)
        assert_int_equal(
            mprotect(guarded_slots + i * (guarded_bytes + 4096) + guarded_bytes, 4096, PROT_NONE),
            0);
}

static uint8_t *guarded(int slot, uint64_t room)
{
    return guarded_slots + slot * (guarded_bytes + 4096) + guarded_bytes - room;
}

/* The messages of a block in an order of their own: each tag's stay in order. */
static void shuffle_block(const struct message *messages, int first, int *order)
{
    int position[BLOCK];

    for (int i = 0; i < BLOCK; i++)
        position[i] = i;
    for (int i = BLOCK; i > 1; i--) {
        int k = (int)below((uint64_t)i);
        int swap = position[i - 1];

        position[i - 1] = position[k];
        position[k] = swap;
    }
    /* sort equal tags back */
    for (int i = 0; i < BLOCK; i++)
        for (int k = i + 1; k < BLOCK; k++)
            if (messages[first + position[i]].tag == messages[first + position[k]].tag &&
                position[i] > position[k]) {
                int swap = position[i];

                position[i] = position[k];
                position[k] = swap;
            }
    for (int i = 0; i < BLOCK; i++)
        order[i] = first + position[i];
}

static void random_traffic(const struct net_link_options *options)
{
    static struct message messages[MESSAGES];
    static uint8_t *payloads[MESSAGES];
    struct pair pair = make_pair(options);
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    int send_order[MESSAGES];
    int receive_order[MESSAGES];
    struct net_request *sends[MESSAGES] = {NULL};
    struct net_request *receives[2 * BLOCK] = {NULL};
    int receiving[2 * BLOCK] = {0};
    uint64_t rooms[2 * BLOCK] = {0};
    int next_send = 0;
    int next_receive = 0;
    int sent = 0;
    int received = 0;

    for (int i = 0; i < MESSAGES; i++) {
        messages[i] = (struct message){.tag = options->match == WIRE_MATCH_TAG ? below(5) : 0,
                                       .bytes = random_size(),
                                       .seed = (uint8_t)i};
        payloads[i] = malloc(messages[i].bytes + 1);
        for (uint64_t k = 0; k < messages[i].bytes; k++)
            payloads[i][k] = content(&messages[i], k);
    }
    for (int block = 0; block < BLOCKS; block++) {
        shuffle_block(messages, block * BLOCK, send_order + block * BLOCK);
        shuffle_block(messages, block * BLOCK, receive_order + block * BLOCK);
    }
    while (sent < MESSAGES || received < MESSAGES) {
        /* one of the four things, at random, so that each end is ahead now and then */
        uint64_t what = below(4);

        if (what == 0 && next_send < MESSAGES && next_send < sent + 2 * BLOCK) {
            int i = send_order[next_send];

            assert_success(
                net_isend(pair.sender, payloads[i], messages[i].bytes, messages[i].tag, &sends[i]));
            next_send += sends[i] != NULL;
        } else if (what == 1 && next_receive < MESSAGES) {
            int i = receive_order[next_receive];
            int slot = 0;

            while (slot < 2 * BLOCK && receives[slot] != NULL)
                slot++;
            if (slot < 2 * BLOCK) {
                rooms[slot] = messages[i].bytes + (below(2) ? 0 : below(4096));
                memset(guarded(slot, rooms[slot]), 0xaa, rooms[slot]);
                assert_success(net_irecv(pair.receiver, guarded(slot, rooms[slot]), rooms[slot],
                                         messages[i].tag, &receives[slot]));
                receiving[slot] = i;
                next_receive += receives[slot] != NULL;
            }
        } else if (what == 2) {
            for (int i = 0; i < MESSAGES; i++) {
                bool done = false;

                if (sends[i] == NULL)
                    continue;
                assert_success(net_test(sends[i], &done, NULL));
                if (done) {
                    sends[i] = NULL;
                    memset(payloads[i], 0xee, messages[i].bytes);
                    sent++;
                }
            }
        } else {
            for (int slot = 0; slot < 2 * BLOCK; slot++) {
                const struct message *message = &messages[receiving[slot]];
                const uint8_t *data = guarded(slot, rooms[slot]);
                uint64_t bytes = 0;
                bool done = false;

                if (receives[slot] == NULL)
                    continue;
                assert_success(net_test(receives[slot], &done, &bytes));
                if (!done)
                    continue;
                receives[slot] = NULL;
                received++;
                assert_int_equal(bytes, message->bytes);
                for (uint64_t k = 0; k < rooms[slot]; k++)
                    if (data[k] != (k < bytes ? content(message, k) : 0xaa))
                        fail_msg("message %d, byte %d of %d", receiving[slot], (int)k, (int)bytes);
            }
        }
        assert_false(deadline_passed(deadline));
    }
    close_pair(&pair);
    for (int i = 0; i < MESSAGES; i++)
        free(payloads[i]);
}

static void test_random_traffic(void **state)
{
    static const uint8_t sockets[] = {1, 2, 4};

    (void)state;
    make_guarded();
    for (size_t i = 0; i < sizeof sockets; i++)
        for (int match = WIRE_MATCH_FIFO; match <= WIRE_MATCH_TAG; match++)
            for (int framing = WIRE_INLINE; framing <= WIRE_SEPARATE; framing++) {
                struct net_link_options options = options_of(sockets[i], match, framing);

                if (framing == WIRE_SEPARATE && sockets[i] < 2)
                    continue;
                random_traffic(&options);
            }
    munmap(guarded_slots, 2 * BLOCK * (guarded_bytes + 4096));
}

/* No credit at all, and slices of a byte: nothing depends on their size. */
static void test_the_smallest_settings(void **state)
{
    struct net_link_options options = options_of(3, WIRE_MATCH_TAG, WIRE_INLINE);
    static uint8_t data[5000];
    static uint8_t arrived[5000];

    (void)state;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 11);
    for (int framing = WIRE_INLINE; framing <= WIRE_SEPARATE; framing++) {
        struct pair pair;

        options.framing = framing;
        options.eager_limit = 0;
        options.eager_credit = 0;
        options.largest_slice = WIRE_LEAST_SLICE;
        pair = make_pair(&options);
        for (uint64_t bytes = 0; bytes <= 5000; bytes = bytes * 7 + 1) {
            struct net_request *send = must_send(pair.sender, data, bytes, 1);
            struct net_request *receive = must_receive(pair.receiver, arrived, bytes, 1);

            assert_int_equal(finish(send, receive), bytes);
            assert_memory_equal(arrived, data, bytes);
        }
        close_pair(&pair);
    }
}

static void test_a_large_message(void **state)
{
    enum { BYTES = 100 << 20 };
    struct net_link_options options = options_of(4, WIRE_MATCH_FIFO, WIRE_INLINE);
    uint8_t *data = malloc(BYTES);
    uint8_t *arrived = malloc(BYTES);
    struct pair pair;

    (void)state;
    options.largest_slice = 524288;
    pair = make_pair(&options);
    for (size_t i = 0; i < BYTES / 8; i++)
        ((uint64_t *)(void *)data)[i] = i * 0x9e3779b97f4a7c15u;
    assert_int_equal(finish(must_send(pair.sender, data, BYTES, 0),
                            must_receive(pair.receiver, arrived, BYTES, 0)),
                     BYTES);
    assert_int_equal(memcmp(arrived, data, BYTES), 0);
    close_pair(&pair);
    free(data);
    free(arrived);
}

/* --- windows, late and missing receives ---------------------------------------------------- */

static void test_busy_is_no_error(void **state)
{
    struct pair pair = tag_pair();
    struct net_request *requests[COMM_REQUESTS];
    struct net_request *more = (struct net_request *)&pair;
    static uint8_t data[100000];
    bool done;

    (void)state;
    for (int i = 0; i < COMM_REQUESTS; i++)
        requests[i] = must_send(pair.sender, data, sizeof data, (uint64_t)i);
    assert_success(net_isend(pair.sender, data, 1, 0, &more));
    assert_null(more);
    for (int i = 0; i < 100; i++) {
        assert_success(net_test(requests[5], &done, NULL));
        assert_false(done);
    }
    /* one receive of a tag in the middle makes room */
    finish(requests[20], must_receive(pair.receiver, data, sizeof data, 20));
    more = must_send(pair.sender, data, 1, 99);
    close_pair(&pair);
}

static void test_a_receive_that_comes_late(void **state)
{
    struct pair pair = tag_pair();
    uint8_t data[8000] = {1, 2, 3};
    uint8_t arrived[8000];
    struct net_request *small = must_send(pair.sender, data, 100, 7);
    struct net_request *large = must_send(pair.sender, data, sizeof data, 8);
    bool done = false;

    (void)state;
    /* the small one is done without its receive, the large one waits for it */
    finish(small, NULL);
    for (int i = 0; i < 1000; i++) {
        assert_success(net_test(large, &done, NULL));
        assert_false(done);
    }
    assert_int_equal(finish(large, must_receive(pair.receiver, arrived, sizeof arrived, 8)),
                     sizeof data);
    assert_memory_equal(arrived, data, sizeof data);
    assert_int_equal(finish(NULL, must_receive(pair.receiver, arrived, sizeof arrived, 7)), 100);
    close_pair(&pair);
}

/* Far more receives than a comm can have at once come and go while some old ones wait. */
static void test_old_receives_among_many(void **state)
{
    enum { OLD = 5, OTHERS = 1000, BYTES = 300000 };
    static uint8_t data[OLD][BYTES];
    static uint8_t arrived[OLD][BYTES];
    struct net_link_options options = options_of(2, WIRE_MATCH_TAG, WIRE_INLINE);
    struct pair pair = make_pair(&options);
    struct net_request *old[OLD];

    (void)state;
    for (size_t i = 0; i < sizeof data; i++)
        data[i / BYTES][i % BYTES] = (uint8_t)(i * 13 + i / 251);
    memset(arrived, 0, sizeof arrived);
    for (uint64_t i = 0; i < OLD; i++)
        old[i] = must_receive(pair.receiver, arrived[i], BYTES, 100 + i);
    for (uint64_t i = 0; i < OTHERS; i++) {
        uint8_t other[5000] = {0};
        uint64_t bytes = i % 3 == 0 ? sizeof other : i % 100;
        struct net_request *receive = must_receive(pair.receiver, other, bytes, i % 7);

        assert_int_equal(finish(must_send(pair.sender, data[0], bytes, i % 7), receive), bytes);
        assert_memory_equal(other, data[0], bytes);
    }
    for (uint64_t i = OLD; i-- > 0;)
        assert_int_equal(finish(must_send(pair.sender, data[i], BYTES, 100 + i), old[i]), BYTES);
    assert_memory_equal(arrived, data, sizeof data);
    close_pair(&pair);
}

/* Messages that nobody asks for use up the credit, and others still pass. */
static void test_credit_runs_out(void **state)
{
    struct pair pair = tag_pair();
    uint8_t data[4000] = {9};
    uint8_t arrived[4000];
    struct net_request *sends[12];
    int done_early = 0;

    (void)state;
    for (int i = 0; i < 12; i++)
        sends[i] = must_send(pair.sender, data, sizeof data, 1);
    for (int turn = 0; turn < 1000; turn++)
        for (int i = 0; i < 12; i++) {
            bool done = false;

            if (sends[i] != NULL)
                assert_success(net_test(sends[i], &done, NULL));
            if (done) {
                sends[i] = NULL;
                done_early++;
            }
        }
    assert_int_equal(done_early, 32768 / 4064);
    /* another tag, empty: its receive is posted, so that it needs no credit */
    assert_int_equal(
        finish(must_send(pair.sender, NULL, 0, 2), must_receive(pair.receiver, NULL, 0, 2)), 0);
    for (int i = 0; i < 12; i++)
        assert_int_equal(finish(sends[i], must_receive(pair.receiver, arrived, 4000, 1)), 4000);
    close_pair(&pair);
}

static void test_messages_that_are_too_long(void **state)
{
    struct pair pair = tag_pair();
    uint8_t data[10000] = {5};
    uint8_t arrived[10000];
    struct net_request *receive;
    struct net_request *send;

    (void)state;
    memset(arrived, 0xaa, sizeof arrived);
    /* announced: both ends are told */
    send = must_send(pair.sender, data, 10000, 1);
    receive = must_receive(pair.receiver, arrived, 9999, 1);
    assert_int_equal(failure(send, NULL), TCPX_INVALID_USAGE);
    assert_text("room for 9999");
    assert_int_equal(failure(receive, NULL), TCPX_INVALID_USAGE);
    assert_text("room for 9999 bytes, but its message");
    close_pair(&pair);
}

static void test_an_eager_message_that_is_too_long(void **state)
{
    struct pair pair = tag_pair();
    uint8_t data[1000] = {5};
    uint8_t arrived[1000];
    struct net_request *receive;

    (void)state;
    for (int late = 0; late < 2; late++) {
        memset(arrived, 0xaa, sizeof arrived);
        finish(must_send(pair.sender, data, 1000, 1), NULL);
        if (late) /* let it arrive first */
            finish(must_send(pair.sender, data, 10, 2),
                   must_receive(pair.receiver, arrived + 900, 10, 2));
        receive = must_receive(pair.receiver, arrived, 500, 1);
        assert_int_equal(failure(receive, NULL), TCPX_INVALID_USAGE);
        assert_text("has 1000");
        for (int i = 0; i < 900; i++)
            assert_int_equal(arrived[i], 0xaa);
        /* and the comm goes on */
        assert_int_equal(finish(must_send(pair.sender, data, 1000, 1),
                                must_receive(pair.receiver, arrived, 1000, 1)),
                         1000);
    }
    close_pair(&pair);
}

static void test_wrong_use(void **state)
{
    struct pair pair = tag_pair();
    struct net_request *request = NULL;
    uint8_t byte = 0;

    (void)state;
    assert_int_equal(net_isend(pair.receiver, &byte, 1, 0, &request), TCPX_INVALID_USAGE);
    assert_text("a send on the receiver's end");
    assert_int_equal(net_irecv(pair.sender, &byte, 1, 0, &request), TCPX_INVALID_USAGE);
    close_pair(&pair);
    net_comm_close(NULL);
}

/* --- ends ---------------------------------------------------------------------------------- */

static void test_what_is_done_is_delivered_after_close(void **state)
{
    enum { BYTES = 300000 };
    static uint8_t data[BYTES];
    static uint8_t arrived[BYTES];

    (void)state;
    for (int sockets = 1; sockets <= 3; sockets++) {
        struct net_link_options options = options_of((uint8_t)sockets, WIRE_MATCH_TAG, WIRE_INLINE);
        struct pair pair = make_pair(&options);
        struct net_request *large = must_receive(pair.receiver, arrived, BYTES, 1);
        struct net_request *send;
        bool done = false;

        memset(arrived, 0, BYTES);
        memset(data, 0x40 + sockets, BYTES);
        /* the POST must reach the sender; from then on only the sender moves */
        send = must_send(pair.sender, data, BYTES, 1);
        for (uint64_t deadline = deadline_after_ms(LIMIT_MS); !done;) {
            assert_success(net_test(send, &done, NULL));
            assert_false(deadline_passed(deadline));
        }
        finish(must_send(pair.sender, data, 5, 2), NULL);
        net_comm_close(pair.sender);
        assert_int_equal(finish(NULL, large), BYTES);
        assert_memory_equal(arrived, data, BYTES);
        assert_int_equal(finish(NULL, must_receive(pair.receiver, arrived, 10, 2)), 5);
        /* and then it is over, in words: of the receive, if the end has been seen, or its test */
        struct net_request *late;
        int result = net_irecv(pair.receiver, arrived, 10, 3, &late);

        if (result == TCPX_SUCCESS)
            result = failure(late, NULL);
        assert_int_equal(result, TCPX_REMOTE_ERROR);
        assert_text("has closed the comm");
        net_comm_close(pair.receiver);
    }
}

static void test_a_receiver_that_goes_away(void **state)
{
    static uint8_t data[1 << 20];
    struct pair pair = tag_pair();
    struct net_request *send = must_send(pair.sender, data, sizeof data, 1);
    struct net_request *none;

    (void)state;
    net_comm_close(pair.receiver);
    assert_int_equal(failure(send, NULL), TCPX_REMOTE_ERROR);
    assert_text("127.0.0.1:");
    assert_text("a send of 1048576 bytes with tag 1 had moved 0");
    assert_int_equal(net_isend(pair.sender, data, 1, 1, &none), TCPX_REMOTE_ERROR);
    net_comm_close(pair.sender);
}

static void test_a_sender_that_is_lost_in_a_message(void **state)
{
    static uint8_t data[256 << 20];
    static uint8_t arrived[sizeof data];
    struct pair pair = tag_pair();
    struct net_request *receive = must_receive(pair.receiver, arrived, sizeof arrived, 1);
    bool done;

    (void)state;
    must_send(pair.sender, data, sizeof data, 1);
    assert_success(net_test(receive, &done, NULL));
    net_comm_close(pair.sender);
    assert_int_equal(failure(receive, NULL), TCPX_REMOTE_ERROR);
    assert_text("a receive of 268435456 bytes");
    net_comm_close(pair.receiver);
}

/* --- peers that lie ------------------------------------------------------------------------ */

/* One end is a comm, the other end is ours to write what we want. */
static struct net_comm *against_raw(enum net_side side, struct net_link *raw)
{
    struct net_link_options options = options_of(2, WIRE_MATCH_TAG, WIRE_INLINE);
    struct net_link sender;
    struct net_link receiver;
    struct net_comm *comm;

    make_link_pair(&options, &sender, &receiver);
    *raw = side == NET_SENDER ? receiver : sender;
    assert_success(net_comm_create(side == NET_SENDER ? &sender : &receiver, side, &comm));
    return comm;
}

static void say_raw(int fd, const struct wire_record *record)
{
    uint8_t bytes[WIRE_RECORD_BYTES];

    wire_record_write(record, bytes);
    assert_int_equal(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), (ssize_t)sizeof bytes);
}

static void expect_refusal(int socket, const struct wire_record *record, const char *words)
{
    struct net_link raw;
    struct net_comm *comm = against_raw(NET_RECEIVER, &raw);
    uint8_t data[100];
    struct net_request *receive = must_receive(comm, data, sizeof data, 5);

    memset(data, 0xaa, sizeof data);
    say_raw(raw.forward[socket], record);
    assert_int_equal(failure(receive, NULL), TCPX_REMOTE_ERROR);
    assert_text("broke the protocol");
    assert_text(words);
    for (size_t i = 0; i < sizeof data; i++)
        assert_int_equal(data[i], 0xaa);
    net_comm_close(comm);
    net_link_close(&raw);
}

static void test_senders_that_lie(void **state)
{
    (void)state;
    expect_refusal(
        0, &(struct wire_record){.type = WIRE_OPEN, .sequence = 1, .length = 5, .tag = 5}, "OPEN");
    expect_refusal(0, &(struct wire_record){.type = WIRE_OPEN, .length = 101, .tag = 5}, "OPEN");
    expect_refusal(0, &(struct wire_record){.type = WIRE_OPEN, .length = 5, .tag = 6}, "OPEN");
    expect_refusal(1, &(struct wire_record){.type = WIRE_OPEN, .length = 5, .tag = 5}, "socket 1");
    expect_refusal(0, &(struct wire_record){.type = WIRE_SLICE, .offset = 100, .length = 1},
                   "slice");
    expect_refusal(0, &(struct wire_record){.type = WIRE_SLICE, .sequence = 9, .length = 1},
                   "slice");
    expect_refusal(0, &(struct wire_record){.type = WIRE_SLICE, .socket = 1, .length = 1},
                   "socket 1 on socket 0");
    expect_refusal(0, &(struct wire_record){.type = WIRE_EAGER, .length = 4097, .tag = 6},
                   "an eager message of 4097 bytes");
    expect_refusal(0, &(struct wire_record){.type = WIRE_TOOLONG, .length = 50}, "TOOLONG");
    expect_refusal(0, &(struct wire_record){.type = WIRE_FIN, .length = 7}, "an end after 7");
    expect_refusal(0, &(struct wire_record){.type = WIRE_POST, .length = 7}, "POST");
}

/* Whoever finds the lie tells the liar, and ends the streams: nobody waits for a dead comm. */
static void test_a_liar_is_told(void **state)
{
    struct net_link raw;
    struct net_comm *comm = against_raw(NET_RECEIVER, &raw);
    uint8_t data[100];
    uint8_t heard[1000] = {0};
    struct wire_record record;
    struct net_request *receive = must_receive(comm, data, sizeof data, 5);
    size_t have = 0;
    ssize_t got = 1;

    (void)state;
    say_raw(raw.forward[0], &(struct wire_record){.type = WIRE_TOOLONG, .length = 50});
    assert_int_equal(failure(receive, NULL), TCPX_REMOTE_ERROR);
    for (uint64_t deadline = deadline_after_ms(LIMIT_MS); got != 0;) {
        got = recv(raw.reverse, heard + have, sizeof heard - 1 - have, MSG_DONTWAIT);
        have += got > 0 ? (size_t)got : 0;
        assert_false(deadline_passed(deadline));
    }
    /* the POST of the receive if it was said already, then the reason, then the end */
    assert_int_equal(wire_record_read(heard, WIRE_REVERSE, &record), WIRE_FINE);
    if (record.type == WIRE_POST)
        memmove(heard, heard + WIRE_RECORD_BYTES, sizeof heard - WIRE_RECORD_BYTES);
    assert_int_equal(wire_record_read(heard, WIRE_REVERSE, &record), WIRE_FINE);
    assert_int_equal(record.type, WIRE_ABORT);
    assert_non_null(strstr((char *)heard + WIRE_RECORD_BYTES, "TOOLONG"));
    net_comm_close(comm);
    net_link_close(&raw);
}

static void test_a_record_behind_fin(void **state)
{
    struct net_link raw;
    struct net_comm *comm = against_raw(NET_RECEIVER, &raw);
    uint8_t data[100];
    struct net_request *receive = must_receive(comm, data, sizeof data, 5);

    (void)state;
    say_raw(raw.forward[0], &(struct wire_record){.type = WIRE_FIN});
    say_raw(raw.forward[0], &(struct wire_record){.type = WIRE_EAGER, .tag = 5});
    assert_int_equal(failure(receive, NULL), TCPX_REMOTE_ERROR);
    assert_text("behind FIN");
    net_comm_close(comm);
    net_link_close(&raw);
}

static void test_more_than_the_credit(void **state)
{
    static const uint8_t payload[4000];
    struct net_link raw;
    struct net_comm *comm = against_raw(NET_RECEIVER, &raw);
    uint8_t data[100];
    struct net_request *receive = must_receive(comm, data, sizeof data, 5);

    (void)state;
    /* eight of them are put aside, the ninth is too many */
    for (int i = 0; i < 9; i++) {
        say_raw(raw.forward[0],
                &(struct wire_record){.type = WIRE_EAGER, .length = sizeof payload, .tag = 6});
        assert_int_equal(send(raw.forward[0], payload, sizeof payload, MSG_NOSIGNAL),
                         (ssize_t)sizeof payload);
    }
    assert_int_equal(failure(receive, NULL), TCPX_REMOTE_ERROR);
    assert_text("beyond its credit");
    net_comm_close(comm);
    net_link_close(&raw);
}

static void test_receivers_that_lie(void **state)
{
    static const struct wire_record lies[] = {
        {.type = WIRE_CREDIT, .offset = 1},
        {.type = WIRE_POST, .offset = 1 << 20},
        {.type = WIRE_READY, .length = 1, .offset = 1, .tag = 64},
        {.type = WIRE_OPEN, .length = 5},
    };
    static uint8_t data[100000];

    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct net_link raw;
        struct net_comm *comm = against_raw(NET_SENDER, &raw);
        struct net_request *send = must_send(comm, data, sizeof data, 5);

        say_raw(raw.reverse, &lies[i]);
        assert_int_equal(failure(send, NULL), TCPX_REMOTE_ERROR);
        assert_text("broke the protocol");
        net_comm_close(comm);
        net_link_close(&raw);
    }
    /* more receives than there can be */
    struct net_link raw;
    struct net_comm *comm = against_raw(NET_SENDER, &raw);
    struct net_request *send = must_send(comm, data, sizeof data, 5);
    for (uint32_t i = 0; i <= COMM_REQUESTS; i++)
        say_raw(raw.reverse, &(struct wire_record){.type = WIRE_POST, .sequence = i, .tag = 77});
    assert_int_equal(failure(send, NULL), TCPX_REMOTE_ERROR);
    assert_text("more than 32");
    net_comm_close(comm);
    net_link_close(&raw);
}

static void test_a_peer_that_gives_up_says_why(void **state)
{
    struct net_link raw;
    struct net_comm *comm = against_raw(NET_RECEIVER, &raw);
    uint8_t data[100];
    struct net_request *receive = must_receive(comm, data, sizeof data, 5);

    (void)state;
    say_raw(raw.forward[0], &(struct wire_record){.type = WIRE_ABORT, .sequence = 1, .length = 12});
    assert_int_equal(send(raw.forward[0], "no GPU today", 12, MSG_NOSIGNAL), 12);
    assert_int_equal(failure(receive, NULL), TCPX_REMOTE_ERROR);
    assert_text("gave up with TCPX_CUDA_ERROR: no GPU today");
    net_comm_close(comm);
    net_link_close(&raw);

    comm = against_raw(NET_SENDER, &raw);
    struct net_request *send_request = must_send(comm, data, sizeof data, 5);
    finish(send_request, NULL);
    must_send(comm, data, 0, 6);
    say_raw(raw.reverse, &(struct wire_record){.type = WIRE_ABORT, .sequence = 5, .length = 3});
    assert_int_equal(send(raw.reverse, "bye", 3, MSG_NOSIGNAL), 3);
    struct net_request *none = NULL;
    int result = TCPX_SUCCESS;
    for (uint64_t deadline = deadline_after_ms(LIMIT_MS);
         result == TCPX_SUCCESS && !deadline_passed(deadline);)
        result = net_isend(comm, data, 100000 % 7, 9, &none);
    assert_int_equal(result, TCPX_REMOTE_ERROR);
    assert_text("gave up with TCPX_INVALID_USAGE: bye");
    net_comm_close(comm);
    net_link_close(&raw);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_traffic),
        cmocka_unit_test(test_the_smallest_settings),
        cmocka_unit_test(test_a_large_message),
        cmocka_unit_test(test_busy_is_no_error),
        cmocka_unit_test(test_a_receive_that_comes_late),
        cmocka_unit_test(test_old_receives_among_many),
        cmocka_unit_test(test_credit_runs_out),
        cmocka_unit_test(test_messages_that_are_too_long),
        cmocka_unit_test(test_an_eager_message_that_is_too_long),
        cmocka_unit_test(test_wrong_use),
        cmocka_unit_test(test_what_is_done_is_delivered_after_close),
        cmocka_unit_test(test_a_receiver_that_goes_away),
        cmocka_unit_test(test_a_sender_that_is_lost_in_a_message),
        cmocka_unit_test(test_senders_that_lie),
        cmocka_unit_test(test_a_liar_is_told),
        cmocka_unit_test(test_a_record_behind_fin),
        cmocka_unit_test(test_more_than_the_credit),
        cmocka_unit_test(test_receivers_that_lie),
        cmocka_unit_test(test_a_peer_that_gives_up_says_why),
    };

    return cmocka_run_group_tests_name("comms", tests, NULL, NULL);
}
