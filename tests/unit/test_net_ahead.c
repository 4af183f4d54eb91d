/*
 * Messages that go ahead of their receives, in comms that match in order. One end is ours, the
 * other speaks the protocol by hand and says what it wants in any order, within the rules and
 * against them: every byte gets to its place, memory and credit are bounded by what was granted,
 * and a lie ends the comm before it does harm. Then both ends are ours, each far ahead of the
 * other by turns.
 */
#include "net/io/io.h"
#include "tests/support/comm_inside.h"
#include "tests/unit/net_traffic.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>

enum {
    EAGER_LIMIT = 4096,
    SLICE = 65536,
    LONGEST = 3 << 20,
    CREDIT = 300 << 10,
    MOST_POSTS = 2048,
};

#define SOON_MS limit_ms(5000) /* milliseconds are normal */

static struct text text;

static struct net_link_options options_of(uint8_t sockets, uint64_t credit)
{
    return (struct net_link_options){.sockets = sockets,
                                     .match = WIRE_MATCH_FIFO,
                                     .framing = WIRE_INLINE,
                                     .eager_limit = credit < EAGER_LIMIT ? credit : EAGER_LIMIT,
                                     .eager_credit = credit,
                                     .largest_slice = SLICE,
                                     .timeout_ms = 60000,
                                     .handshake_ms = 5000};
}

/* TCPX_TEST_TURNS percent of what is done over and over. */
static int turns(int count)
{
    const char *percent = getenv("TCPX_TEST_TURNS");
    long wanted = percent != NULL ? strtol(percent, NULL, 10) : 100;

    count = (int)(count * (wanted < 1 || wanted > 100 ? 100 : wanted) / 100);
    return count < 1 ? 1 : count;
}

static bool threads_are_wanted(void)
{
    struct io_plan plan;

    assert_success(io_plan(&plan));
    return plan.threads > 0;
}

static double cpu_seconds(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

#define assert_text(words)                                                                         \
    do {                                                                                           \
        if (strstr(tcpx_last_error(), words) == NULL)                                              \
            fail_msg("'%s' is not in '%s'", words, tcpx_last_error());                             \
    } while (0)

/* --- what both kinds of peers share --------------------------------------------------------- */

static struct net_request *must_receive(struct net_comm *comm, void *data, uint64_t room)
{
    struct net_request *request = NULL;

    assert_success(net_irecv(comm, data, room, 0, &request));
    assert_non_null(request);
    return request;
}

/* The end of a request: its result, and the bytes if it is done. */
static int end_of(struct net_request *request, uint64_t *bytes)
{
    uint64_t deadline = deadline_after_ms(SOON_MS);

    for (;;) {
        bool done = false;
        int result = net_test(request, &done, bytes);

        if (done || result != TCPX_SUCCESS)
            return result;
        if (deadline_passed(deadline))
            fail_msg("a request does not end");
    }
}

static uint64_t must_end(struct net_request *request)
{
    uint64_t bytes = UINT64_MAX;

    assert_success(end_of(request, &bytes));
    return bytes;
}

/* --- a sender by hand ------------------------------------------------------------------------ */

struct hand {
    struct net_link link; /* the other end of the comm */
    struct net_comm *comm;
    uint64_t charged; /* sender: what an honest one would have counted */
    uint64_t freed;   /* as the receiver has said */
    unsigned posts;
    uint64_t rooms[MOST_POSTS];
    bool ended; /* the comm says nothing any more */
    uint8_t heard[64 * WIRE_RECORD_BYTES];
    size_t heard_bytes;
};

static void make_hand(struct hand *hand, enum net_side ours, uint8_t sockets, uint64_t credit)
{
    const struct net_link_options options = options_of(sockets, credit);
    struct net_link sender;
    struct net_link receiver;

    *hand = (struct hand){0};
    make_link_pair(&options, &sender, &receiver);
    hand->link = ours == NET_RECEIVER ? sender : receiver;
    assert_success(net_comm_create(ours == NET_RECEIVER ? &receiver : &sender, ours, &hand->comm));
}

static void close_hand(struct hand *hand)
{
    net_comm_close(hand->comm);
    net_link_close(&hand->link);
}

static void say(int fd, const struct wire_record *record)
{
    uint8_t bytes[WIRE_RECORD_BYTES];
    ssize_t sent;

    wire_record_write(record, bytes);
    sent = send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
        return; /* the comm has ended the connection: its text says why */
    assert_int_equal(sent, (ssize_t)sizeof bytes);
}

/* All of it, though the socket may have no room: the comm is moved on then. */
static void put(struct hand *hand, unsigned socket, const uint8_t *bytes, uint64_t count)
{
    uint64_t deadline = deadline_after_ms(SOON_MS);

    while (count > 0) {
        ssize_t sent = send(hand->link.forward[socket], bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent < 0 && errno != EAGAIN)
            return; /* the comm has ended the connection: its text says why */
        if (sent < 0)
            inside_move_on(hand->comm);
        bytes += sent > 0 ? sent : 0;
        count -= sent > 0 ? (uint64_t)sent : 0;
        assert_false(deadline_passed(deadline));
    }
}

static void say_slice(struct hand *hand, unsigned socket, uint32_t sequence, uint64_t total,
                      uint64_t offset, uint64_t length, bool on_credit)
{
    say(hand->link.forward[socket], &(struct wire_record){.type = WIRE_SLICE,
                                                          .flags = on_credit ? WIRE_ON_CREDIT : 0,
                                                          .socket = (uint16_t)socket,
                                                          .sequence = sequence,
                                                          .offset = offset,
                                                          .length = length,
                                                          .tag = total});
}

static void put_slice(struct hand *hand, unsigned socket, uint32_t sequence, uint64_t total,
                      uint64_t offset, uint64_t length, bool on_credit)
{
    say_slice(hand, socket, sequence, total, offset, length, on_credit);
    put(hand, socket, text_of(&text, sequence) + offset, length);
}

static void say_eager(struct hand *hand, uint32_t sequence, uint64_t bytes)
{
    say(hand->link.forward[0],
        &(struct wire_record){.type = WIRE_EAGER, .sequence = sequence, .length = bytes});
    hand->charged += bytes + WIRE_EAGER_CHARGE;
}

static void put_eager(struct hand *hand, uint32_t sequence, uint64_t bytes)
{
    say_eager(hand, sequence, bytes);
    put(hand, 0, text_of(&text, sequence), bytes);
}

/* A whole message ahead of its receive, in slices over all sockets. */
static void put_ahead(struct hand *hand, uint32_t sequence, uint64_t bytes)
{
    unsigned socket = sequence;

    for (uint64_t at = 0; at < bytes; at += SLICE, socket++)
        put_slice(hand, socket % hand->link.sockets, sequence, bytes, at,
                  bytes - at < SLICE ? bytes - at : SLICE, true);
    hand->charged += bytes + WIRE_EAGER_CHARGE;
}

static void hear_one(struct hand *hand, const struct wire_record *record)
{
    if (record->type == WIRE_ABORT) {
        hand->ended = true;
        return;
    }
    assert_true(record->type == WIRE_POST || record->type == WIRE_CREDIT);
    /* never back, and never more than there was */
    assert_true(record->offset >= hand->freed);
    assert_true(record->offset <= hand->charged);
    hand->freed = record->offset;
    if (record->type == WIRE_POST) {
        assert_int_equal(record->sequence, hand->posts);
        assert_true(hand->posts < MOST_POSTS);
        hand->rooms[hand->posts++] = record->length;
    }
}

/* What the receiver has said. */
static void hear(struct hand *hand)
{
    ssize_t got = recv(hand->link.reverse, hand->heard + hand->heard_bytes,
                       sizeof hand->heard - hand->heard_bytes, MSG_DONTWAIT);
    size_t at = 0;

    if (got <= 0)
        return;
    hand->heard_bytes += (size_t)got;
    for (; hand->heard_bytes - at >= WIRE_RECORD_BYTES && !hand->ended; at += WIRE_RECORD_BYTES) {
        struct wire_record record;

        assert_int_equal(wire_record_read(hand->heard + at, WIRE_REVERSE, &record), WIRE_FINE);
        hear_one(hand, &record);
    }
    hand->heard_bytes -= at;
    memmove(hand->heard, hand->heard + at, hand->heard_bytes);
}

static void hear_posts(struct hand *hand, unsigned posts)
{
    uint64_t deadline = deadline_after_ms(SOON_MS);

    while (hand->posts < posts) {
        inside_move_on(hand->comm);
        hear(hand);
        if (deadline_passed(deadline))
            fail_msg("%u of %u receives are announced", hand->posts, posts);
    }
}

/* Until the comm keeps so much, or has failed. */
static void wait_held(struct hand *hand, uint64_t bytes)
{
    uint64_t deadline = deadline_after_ms(SOON_MS);

    while (inside_held(hand->comm) != bytes) {
        inside_move_on(hand->comm);
        assert_success(inside_result(hand->comm));
        if (deadline_passed(deadline))
            fail_msg("%d bytes are kept, expected %d", (int)inside_held(hand->comm), (int)bytes);
    }
}

static void must_break(struct hand *hand, const char *lie)
{
    uint64_t deadline = deadline_after_ms(limit_ms(1000));

    while (inside_result(hand->comm) == TCPX_SUCCESS) {
        inside_move_on(hand->comm);
        if (deadline_passed(deadline))
            fail_msg("believed: %s", lie);
    }
    assert_int_equal(inside_result(hand->comm), TCPX_REMOTE_ERROR);
    assert_text("broke the protocol");
    close_hand(hand);
}

static uint8_t arrived[LONGEST];

static void must_arrive(struct hand *hand, uint32_t sequence, uint64_t bytes)
{
    memset(arrived, 0, bytes);
    assert_int_equal(must_end(must_receive(hand->comm, arrived, bytes)), bytes);
    assert_memory_equal(arrived, text_of(&text, sequence), bytes);
}

/* --- within the rules --------------------------------------------------------------------------
 */

struct piece {
    uint32_t sequence;
    uint64_t total;
    uint64_t offset;
    uint64_t length;
};

/* Messages in slices of any length, which come in any order over all sockets. */
static void test_slices_in_any_order(void **state)
{
    enum { MESSAGES = 5, MOST_PIECES = 200 };
    uint64_t random = 17;

    (void)state;
    for (int turn = 0; turn < turns(40); turn++) {
        struct hand hand;
        struct piece pieces[MOST_PIECES];
        uint64_t sizes[MESSAGES];
        unsigned count = 0;

        make_hand(&hand, NET_RECEIVER, (uint8_t)(1 + turn % 3), CREDIT);
        for (uint32_t i = 0; i < MESSAGES; i++) {
            sizes[i] = 1 + random_below(&random, CREDIT / MESSAGES - WIRE_EAGER_CHARGE);
            hand.charged += sizes[i] + WIRE_EAGER_CHARGE;
            for (uint64_t at = 0, next; at < sizes[i]; at = next) {
                next = at + 1 + random_below(&random, SLICE);
                next = next < sizes[i] && count + MESSAGES < MOST_PIECES ? next : sizes[i];
                pieces[count++] = (struct piece){i, sizes[i], at, next - at};
            }
        }
        for (unsigned left = count; left > 0; left--) {
            unsigned pick = (unsigned)random_below(&random, left);
            const struct piece *piece = &pieces[pick];

            put_slice(&hand, (unsigned)random_below(&random, hand.link.sockets), piece->sequence,
                      piece->total, piece->offset, piece->length, true);
            pieces[pick] = pieces[left - 1];
            if (random_below(&random, 3) == 0)
                inside_move_on(hand.comm);
        }
        for (uint32_t i = 0; i < MESSAGES; i++)
            must_arrive(&hand, i, sizes[i]);
        hear_posts(&hand, MESSAGES);
        assert_int_equal(inside_held(hand.comm), 0);
        close_hand(&hand);
    }
}

/* What is charged comes back once, all of it, whether the receive or the message was first. */
static void test_credit_comes_back(void **state)
{
    static uint8_t room[CREDIT];
    uint64_t random = 5;
    struct hand hand;
    uint32_t next = 0;

    (void)state;
    make_hand(&hand, NET_RECEIVER, 2, CREDIT);
    for (int turn = 0; turn < turns(400); turn++, next++) {
        uint64_t bytes = random_below(&random, 3) == 0 ? random_below(&random, CREDIT - 64)
                                                       : random_below(&random, EAGER_LIMIT + 1);
        bool receive_first = random_below(&random, 2) == 0;
        struct net_request *request =
            receive_first ? must_receive(hand.comm, room, sizeof room) : NULL;

        /* as an honest sender, which has nothing unless it was told so */
        for (uint64_t deadline = deadline_after_ms(SOON_MS);
             hand.charged - hand.freed + bytes + WIRE_EAGER_CHARGE > CREDIT;) {
            inside_move_on(hand.comm);
            hear(&hand);
            if (hand.posts > next)
                break; /* it may go without credit */
            if (deadline_passed(deadline) && receive_first)
                fail_msg("credit is missing: %d bytes", (int)(hand.charged - hand.freed));
            if (!receive_first) {
                request = must_receive(hand.comm, room, sizeof room);
                receive_first = true;
            }
        }
        if (bytes <= EAGER_LIMIT)
            put_eager(&hand, next, bytes);
        else
            put_ahead(&hand, next, bytes);
        if (!receive_first)
            request = must_receive(hand.comm, room, sizeof room);
        assert_int_equal(must_end(request), bytes);
        assert_memory_equal(room, text_of(&text, next), bytes);
        hear(&hand);
    }
    /* the rest comes with the next receive */
    must_receive(hand.comm, room, sizeof room);
    hear_posts(&hand, next + 1);
    assert_int_equal(hand.freed, hand.charged);
    close_hand(&hand);
}

/* 256 messages from the first that is not posted, and not one more. */
static void test_the_window(void **state)
{
    struct hand hand;

    (void)state;
    make_hand(&hand, NET_RECEIVER, 1, CREDIT);
    for (uint32_t i = WIRE_MOST_AHEAD; i-- > 0;)
        put_eager(&hand, i, i);
    for (uint32_t i = 0; i < WIRE_MOST_AHEAD; i++)
        must_arrive(&hand, i, i);
    put_eager(&hand, 2 * WIRE_MOST_AHEAD - 1, 10);
    wait_held(&hand, 10 + WIRE_EAGER_CHARGE);
    put_eager(&hand, 2 * WIRE_MOST_AHEAD, 10);
    must_break(&hand, "more than the window");
}

/*
 * A message of which a part is late on another socket, while the receives behind it go on: what
 * comes 256 later is within the window.
 */
static void test_a_late_slice_in_a_full_window(void **state)
{
    static uint8_t late[20000];
    struct net_request *request;
    struct hand hand;

    (void)state;
    make_hand(&hand, NET_RECEIVER, 2, CREDIT);
    put_slice(&hand, 0, 0, sizeof late, 0, 1000, true);
    hand.charged += sizeof late + WIRE_EAGER_CHARGE;
    wait_held(&hand, sizeof late + WIRE_EAGER_CHARGE);
    request = must_receive(hand.comm, late, sizeof late);
    for (uint32_t i = 1; i < WIRE_MOST_AHEAD; i++) {
        put_eager(&hand, i, 10);
        must_arrive(&hand, i, 10);
    }
    hear_posts(&hand, WIRE_MOST_AHEAD);
    put_eager(&hand, WIRE_MOST_AHEAD, 10);
    wait_held(&hand, sizeof late + 10 + 2 * WIRE_EAGER_CHARGE);
    put_slice(&hand, 1, 0, sizeof late, 1000, sizeof late - 1000, true);
    assert_int_equal(must_end(request), sizeof late);
    assert_memory_equal(late, text_of(&text, 0), sizeof late);
    must_arrive(&hand, WIRE_MOST_AHEAD, 10);
    close_hand(&hand);
}

static void must_be_bounded(struct net_comm *comm)
{
    uint64_t all = inside_kept_memory(comm);

    if (all > 2 * CREDIT)
        fail_msg("%d bytes for a credit of %d", (int)all, CREDIT);
}

/* Where no receive follows that would say it, the sender still hears of its credit. */
static void test_credit_without_a_receive(void **state)
{
    enum { SMALL_CREDIT = 20000, COUNT = 8 };
    static uint8_t rooms[COUNT][EAGER_LIMIT];
    struct net_request *requests[COUNT];
    struct hand hand;

    (void)state;
    make_hand(&hand, NET_RECEIVER, 1, SMALL_CREDIT);
    for (int i = 0; i < COUNT; i++)
        requests[i] = must_receive(hand.comm, rooms[i], sizeof rooms[i]);
    hear_posts(&hand, COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        put_eager(&hand, i, EAGER_LIMIT);
        assert_int_equal(must_end(requests[i]), EAGER_LIMIT);
    }
    for (uint64_t deadline = deadline_after_ms(SOON_MS);
         hand.charged - hand.freed > SMALL_CREDIT / 2;) {
        inside_move_on(hand.comm);
        hear(&hand);
        assert_false(deadline_passed(deadline));
    }
    assert_int_equal(hand.posts, COUNT);
    close_hand(&hand);
}

/* Memory for another message of any length is within the credit, too. */
static void test_memory_is_bounded(void **state)
{
    enum { LARGE = 256 << 10 };
    struct hand hand;

    (void)state;
    make_hand(&hand, NET_RECEIVER, 1, CREDIT);
    for (uint32_t i = 0; i < 100; i++) {
        put_ahead(&hand, i, LARGE);
        wait_held(&hand, LARGE + WIRE_EAGER_CHARGE + i * (10 + WIRE_EAGER_CHARGE));
        must_arrive(&hand, i, LARGE);
        put_eager(&hand, i + 128, 10);
        wait_held(&hand, (i + 1) * (10 + WIRE_EAGER_CHARGE));
        hear(&hand);
    }
    must_be_bounded(hand.comm);
    close_hand(&hand);
    /* each longer than all before it, so that the memory of none of them is of use */
    make_hand(&hand, NET_RECEIVER, 1, CREDIT);
    for (uint32_t i = 0; i < 29; i++) {
        put_ahead(&hand, i, (i + 1) * (CREDIT / 30));
        wait_held(&hand, (i + 1) * (CREDIT / 30) + WIRE_EAGER_CHARGE);
        must_be_bounded(hand.comm);
        must_arrive(&hand, i, (i + 1) * (CREDIT / 30));
    }
    must_be_bounded(hand.comm);
    close_hand(&hand);
}

/* --- too long -----------------------------------------------------------------------------------
 */

/* On credit nobody could know: the receive fails, not a byte is written, and the comm goes on. */
static void test_too_long_on_credit(void **state)
{
    static const uint64_t rooms[] = {0, 1, 999, 49999};
    static uint8_t data[50000];

    (void)state;
    for (int way = 0; way < 16; way++) {
        uint64_t room = rooms[way % 4];
        uint64_t bytes = room < 1000 && way < 8 ? 1000 : sizeof data;
        bool receive_first = way / 4 % 2 == 0;
        struct net_request *request = NULL;
        struct hand hand;

        make_hand(&hand, NET_RECEIVER, 2, CREDIT);
        memset(data, SLOT_MARK, sizeof data);
        if (receive_first)
            request = must_receive(hand.comm, data, room);
        if (bytes <= EAGER_LIMIT)
            put_eager(&hand, 0, bytes);
        else
            put_ahead(&hand, 0, bytes);
        if (!receive_first) {
            wait_held(&hand, bytes + WIRE_EAGER_CHARGE);
            request = must_receive(hand.comm, data, room);
        }
        assert_int_equal(end_of(request, NULL), TCPX_INVALID_USAGE);
        assert_true(all_marked(data, sizeof data));
        put_eager(&hand, 1, 10);
        must_arrive(&hand, 1, 10);
        must_receive(hand.comm, data, 0);
        hear_posts(&hand, 3);
        assert_int_equal(hand.freed, hand.charged);
        close_hand(&hand);
    }
}

/* The sender knew its room. */
static void test_too_long_without_credit(void **state)
{
    uint8_t data[100];
    struct hand hand;

    (void)state;
    make_hand(&hand, NET_RECEIVER, 1, CREDIT);
    must_receive(hand.comm, data, sizeof data);
    say_slice(&hand, 0, 0, 101, 0, 101, false);
    must_break(&hand, "too long without credit");
}

/* A receive that is too small waits for the rest of its message; then there is none. */
static void test_too_long_and_lost(void **state)
{
    static const uint64_t rooms[] = {0, 1, 999};
    uint8_t data[1000];

    (void)state;
    for (int way = 0; way < 6; way++) {
        struct net_request *request;
        struct hand hand;

        make_hand(&hand, NET_RECEIVER, 1, CREDIT);
        request = must_receive(hand.comm, data, rooms[way % 3]);
        if (way < 3)
            say_eager(&hand, 0, 1000);
        else
            say_slice(&hand, 0, 0, 50000, 0, 50000, true);
        put(&hand, 0, text.bytes, 10);
        inside_move_on(hand.comm);
        shutdown(hand.link.forward[0], SHUT_WR);
        assert_int_equal(end_of(request, NULL), TCPX_REMOTE_ERROR);
        close_hand(&hand);
    }
}

/* --- lies ----------------------------------------------------------------------------------------
 */

static void test_lies(void **state)
{
    static uint8_t room[CREDIT];
    struct hand hand;

    (void)state;
    /* without credit, and without a receive */
    make_hand(&hand, NET_RECEIVER, 1, CREDIT);
    say_slice(&hand, 0, 0, 5000, 0, 5000, false);
    must_break(&hand, "no credit, no receive");
    /* beyond the credit, by one byte */
    make_hand(&hand, NET_RECEIVER, 1, CREDIT);
    say_slice(&hand, 0, 0, CREDIT - WIRE_EAGER_CHARGE + 1, 0, 1, true);
    must_break(&hand, "one byte beyond the credit");
    make_hand(&hand, NET_RECEIVER, 1, CREDIT);
    say_slice(&hand, 0, 0, UINT64_MAX, 0, 1, true);
    must_break(&hand, "a length of 64 bits");
    make_hand(&hand, NET_RECEIVER, 1, CREDIT);
    say_slice(&hand, 0, 0, UINT64_MAX - 63, 0, 1, true);
    must_break(&hand, "a length whose charge wraps");
    make_hand(&hand, NET_RECEIVER, 1, CREDIT);
    put_ahead(&hand, 0, CREDIT - 2 * WIRE_EAGER_CHARGE - 99);
    put_eager(&hand, 1, 100);
    must_break(&hand, "an eager one beyond the credit");
    /* no credit at all: not even an empty one */
    make_hand(&hand, NET_RECEIVER, 1, 0);
    say_eager(&hand, 0, 0);
    must_break(&hand, "an empty one without credit");
    /* two lengths of one message, ahead and of a posted receive */
    make_hand(&hand, NET_RECEIVER, 2, CREDIT);
    put_slice(&hand, 0, 0, 5000, 0, 100, true);
    wait_held(&hand, 5000 + WIRE_EAGER_CHARGE);
    say_slice(&hand, 1, 0, 5001, 100, 100, true);
    must_break(&hand, "two lengths, kept");
    make_hand(&hand, NET_RECEIVER, 2, CREDIT);
    must_receive(hand.comm, room, sizeof room);
    put_slice(&hand, 0, 0, 5000, 0, 100, false);
    inside_move_on(hand.comm);
    say_slice(&hand, 1, 0, 5001, 100, 100, false);
    must_break(&hand, "two lengths, posted");
    /* beyond its own length */
    make_hand(&hand, NET_RECEIVER, 1, CREDIT);
    say_slice(&hand, 0, 0, 5000, 4000, 1001, true);
    must_break(&hand, "beyond its length");
    /* no length: a comm with tags has such slices */
    make_hand(&hand, NET_RECEIVER, 1, CREDIT);
    must_receive(hand.comm, room, sizeof room);
    say_slice(&hand, 0, 0, 0, 0, 100, false);
    must_break(&hand, "no length");
    /* longer than a slice may be */
    make_hand(&hand, NET_RECEIVER, 1, CREDIT);
    say_slice(&hand, 0, 0, SLICE + 1, 0, SLICE + 1, true);
    must_break(&hand, "longer than a slice");
    /* for another socket */
    make_hand(&hand, NET_RECEIVER, 2, CREDIT);
    say(hand.link.forward[1],
        &(struct wire_record){
            .type = WIRE_SLICE, .flags = WIRE_ON_CREDIT, .length = 5000, .tag = 5000});
    must_break(&hand, "for another socket");
    /* 256 ahead */
    make_hand(&hand, NET_RECEIVER, 1, CREDIT);
    say_slice(&hand, 0, WIRE_MOST_AHEAD, 5000, 0, 5000, true);
    must_break(&hand, "256 ahead");
    make_hand(&hand, NET_RECEIVER, 1, CREDIT);
    say_slice(&hand, 0, UINT32_MAX, 5000, 0, 5000, true);
    must_break(&hand, "one behind");
    /* an OPEN, which only comms with tags have */
    make_hand(&hand, NET_RECEIVER, 1, CREDIT);
    must_receive(hand.comm, room, sizeof room);
    say(hand.link.forward[0], &(struct wire_record){.type = WIRE_OPEN, .length = 5000});
    must_break(&hand, "OPEN");
    /* for a receive that is over */
    make_hand(&hand, NET_RECEIVER, 1, CREDIT);
    put_eager(&hand, 0, 10);
    must_arrive(&hand, 0, 10);
    say_eager(&hand, 0, 10);
    must_break(&hand, "a receive that is over");
    /* an eager one with a tag */
    make_hand(&hand, NET_RECEIVER, 1, CREDIT);
    say(hand.link.forward[0], &(struct wire_record){.type = WIRE_EAGER, .tag = 1});
    must_break(&hand, "an eager one with a tag");
    /* too long, but the message has begun */
    make_hand(&hand, NET_RECEIVER, 1, CREDIT);
    put_slice(&hand, 0, 0, 5000, 0, 100, true);
    wait_held(&hand, 5000 + WIRE_EAGER_CHARGE);
    must_receive(hand.comm, room, 200);
    say(hand.link.forward[0], &(struct wire_record){.type = WIRE_TOOLONG, .length = 5000});
    must_break(&hand, "TOOLONG of a message that has begun");
}

/* A message that is there twice would be written to when it is gone. */
static void test_twice(void **state)
{
    struct hand hand;

    (void)state;
    /* slices of more bytes than the message has, before they are all there */
    make_hand(&hand, NET_RECEIVER, 2, CREDIT);
    say_slice(&hand, 0, 0, 50000, 0, 50000, true);
    put(&hand, 0, text.bytes, 1000);
    wait_held(&hand, 50000 + WIRE_EAGER_CHARGE);
    say_slice(&hand, 1, 0, 50000, 0, 50000, true);
    must_break(&hand, "two slices of the same bytes");
    /* an eager one behind slices of the same length, of which none has come */
    make_hand(&hand, NET_RECEIVER, 2, CREDIT);
    say_slice(&hand, 1, 0, 1000, 0, 1000, true);
    wait_held(&hand, 1000 + WIRE_EAGER_CHARGE);
    say_eager(&hand, 0, 1000);
    must_break(&hand, "EAGER behind a slice");
    /* and behind another eager one */
    make_hand(&hand, NET_RECEIVER, 2, CREDIT);
    put_eager(&hand, 0, 1000);
    wait_held(&hand, 1000 + WIRE_EAGER_CHARGE);
    say_eager(&hand, 0, 1000);
    must_break(&hand, "EAGER twice");
    /* even if they are empty */
    make_hand(&hand, NET_RECEIVER, 2, CREDIT);
    put_eager(&hand, 0, 0);
    wait_held(&hand, WIRE_EAGER_CHARGE);
    say_eager(&hand, 0, 0);
    must_break(&hand, "an empty EAGER twice");
    /* one more byte of a message that is all there */
    make_hand(&hand, NET_RECEIVER, 2, CREDIT);
    put_ahead(&hand, 0, 50000);
    wait_held(&hand, 50000 + WIRE_EAGER_CHARGE);
    say_slice(&hand, 1, 0, 50000, 49999, 1, true);
    must_break(&hand, "a slice behind all");
}

/* The same where nobody looks at the comm's state: the harm that it would do. */
static void test_twice_does_no_harm(void **state)
{
    static uint8_t data[100000];
    struct net_request *request = NULL;
    struct hand hand;

    (void)state;
    make_hand(&hand, NET_RECEIVER, 2, CREDIT);
    say_slice(&hand, 0, 0, 50000, 0, 50000, true);
    put(&hand, 0, text.bytes, 1000);
    wait_held(&hand, 50000 + WIRE_EAGER_CHARGE);
    put_slice(&hand, 1, 0, 50000, 0, 50000, true);
    if (net_irecv(hand.comm, data, sizeof data, 0, &request) == TCPX_SUCCESS && request != NULL)
        (void)end_of(request, NULL);
    put_slice(&hand, 1, 1, 60000, 0, 60000, true); /* whose memory takes that one's place */
    for (int i = 0; i < 1000; i++)
        inside_move_on(hand.comm);
    put(&hand, 0, text.bytes, 49000);
    must_break(&hand, "two slices of the same bytes");
}

/* --- ends ----------------------------------------------------------------------------------------
 */

/* What came whole before the end is there for receives that are posted afterwards, in order. */
static void test_kept_beyond_the_end(void **state)
{
    static uint8_t data[100000];

    (void)state;
    for (int broken = 0; broken < 2; broken++) {
        struct net_request *request = NULL;
        struct hand hand;

        make_hand(&hand, NET_RECEIVER, 2, CREDIT);
        put_eager(&hand, 0, 100);
        put_ahead(&hand, 1, 100000);
        put_eager(&hand, 2, 0);
        if (broken)
            put_slice(&hand, 1, 3, 5000, 0, 4999, true);
        for (unsigned i = 0; i < 2; i++)
            shutdown(hand.link.forward[i], SHUT_WR);
        for (uint64_t deadline = deadline_after_ms(SOON_MS);
             inside_result(hand.comm) == TCPX_SUCCESS;) {
            inside_move_on(hand.comm);
            assert_false(deadline_passed(deadline));
        }
        must_arrive(&hand, 0, 100);
        must_arrive(&hand, 1, 100000);
        must_arrive(&hand, 2, 0);
        assert_int_equal(net_irecv(hand.comm, data, sizeof data, 0, &request), TCPX_REMOTE_ERROR);
        assert_null(request);
        close_hand(&hand);
    }
}

/* A message that has begun ahead and never ends is an error, whoever was first. */
static void test_the_end_in_a_message(void **state)
{
    static uint8_t data[5000];

    (void)state;
    for (int first = 0; first < 2; first++) {
        struct net_request *request = NULL;
        struct hand hand;

        make_hand(&hand, NET_RECEIVER, 2, CREDIT);
        put_slice(&hand, 1, 0, 5000, 0, 4999, true);
        wait_held(&hand, 5000 + WIRE_EAGER_CHARGE);
        if (first)
            request = must_receive(hand.comm, data, sizeof data);
        for (unsigned i = 0; i < 2; i++)
            shutdown(hand.link.forward[i], SHUT_WR);
        if (!first && net_irecv(hand.comm, data, sizeof data, 0, &request) != TCPX_SUCCESS)
            request = NULL;
        if (request != NULL) {
            assert_int_equal(end_of(request, NULL), TCPX_REMOTE_ERROR);
            assert_text("in the middle of a message");
        }
        close_hand(&hand);
    }
}

/* --- stalls -------------------------------------------------------------------------------------
 */

/*
 * A record is held back on the caller's lane, all requests have ended, and nobody calls. That is
 * made here at the first try on an idle machine; on another it takes some.
 */
static bool make_stall(struct hand *hand)
{
    static uint8_t room[CREDIT];

    for (int i = 0; i < 200; i++) {
        struct net_request *request;

        make_hand(hand, NET_RECEIVER, 1, CREDIT);
        put_eager(hand, 0, 10);
        put_eager(hand, 1, 10);
        put_ahead(hand, 2, 5000);
        nap_us(1000);
        request = must_receive(hand->comm, room, sizeof room);
        if (inside_stalled(hand->comm) == 1 && inside_has_ended(hand->comm, request)) {
            assert_int_equal(must_end(request), 10);
            return true;
        }
        close_hand(hand);
    }
    return false;
}

static void test_a_stall_costs_nothing(void **state)
{
    struct hand hand;
    double seconds;

    (void)state;
    if (!threads_are_wanted())
        skip_because("there are no I/O threads");
    if (!make_stall(&hand))
        skip_because("no stall came about: the machine is too busy");
    nap_us(50000);
    assert_int_equal(inside_stalled(hand.comm), 0);
    seconds = cpu_seconds();
    nap_us(300000);
    seconds = cpu_seconds() - seconds;
    if (seconds > 0.005)
        fail_msg("%d us of CPU in 300 ms", (int)(seconds * 1e6));
    must_arrive(&hand, 1, 10);
    must_arrive(&hand, 2, 5000);
    close_hand(&hand);
}

/* It ends with the comm, at once. */
static void test_a_stall_ends_with_its_comm(void **state)
{
    struct hand hand;
    uint64_t start;

    (void)state;
    if (!make_stall(&hand))
        skip_because("no stall came about: the machine is too busy");
    start = clock_now();
    close_hand(&hand);
    assert_true(clock_now() - start < limit_ns(1000000000u));
}

/* By the I/O threads alone where they are at it, by calls otherwise. */
static void let_it_move(struct net_comm *comm, unsigned lane)
{
    if (inside_calls_move(comm, lane))
        inside_move_on(comm);
    sched_yield();
}

/* One message is kept, and a slice of another one is held back on the last socket. */
static void make_long_stall(struct hand *hand, uint8_t sockets, uint32_t kept, uint32_t stalled)
{
    unsigned lane = sockets - 1u;
    uint64_t deadline = deadline_after_ms(SOON_MS);

    make_hand(hand, NET_RECEIVER, sockets, CREDIT);
    put_eager(hand, kept, 10);
    wait_held(hand, 10 + WIRE_EAGER_CHARGE);
    inside_keep_posting(hand->comm, true);
    put_slice(hand, lane, stalled, 5000, 0, 5000, true);
    hand->charged += 5000 + WIRE_EAGER_CHARGE;
    while (inside_stalled(hand->comm) == 0) {
        let_it_move(hand->comm, lane);
        if (deadline_passed(deadline))
            fail_msg("a slice without a receive is not held back");
    }
    assert_int_equal(inside_held(hand->comm), 10 + WIRE_EAGER_CHARGE);
}

/* With nothing to take at once the next receive would have to wait for the socket. */
static void test_the_first_is_not_held_back(void **state)
{
    (void)state;
    for (uint8_t sockets = 1; sockets <= 2; sockets++) {
        struct hand hand;

        make_hand(&hand, NET_RECEIVER, sockets, CREDIT);
        inside_keep_posting(hand.comm, true);
        put_slice(&hand, sockets - 1u, 0, 5000, 0, 5000, true);
        wait_held(&hand, 5000 + WIRE_EAGER_CHARGE);
        assert_int_equal(inside_stalled(hand.comm), 0);
        must_arrive(&hand, 0, 5000);
        close_hand(&hand);
    }
}

/* No receive comes for it, and none at all any more: then it is kept. */
static void test_a_stall_ends_in_time(void **state)
{
    (void)state;
    for (uint8_t sockets = 1; sockets <= 3; sockets++) {
        struct hand hand;

        make_long_stall(&hand, sockets, 0, 1);
        inside_keep_posting(hand.comm, false);
        for (uint64_t deadline = deadline_after_ms(SOON_MS);
             inside_held(hand.comm) != 5010 + 2 * WIRE_EAGER_CHARGE;) {
            let_it_move(hand.comm, sockets - 1u);
            if (deadline_passed(deadline))
                fail_msg("%u sockets: a slice is held back for ever", sockets);
        }
        assert_int_equal(inside_stalled(hand.comm), 0);
        must_arrive(&hand, 0, 10);
        must_arrive(&hand, 1, 5000);
        close_hand(&hand);
    }
}

/* Its receive ends it at once, however busily others are posted. */
static void test_a_stall_ends_with_its_receive(void **state)
{
    static uint8_t room[5000];

    (void)state;
    for (uint8_t sockets = 1; sockets <= 3; sockets++) {
        struct net_request *request;
        struct hand hand;

        make_long_stall(&hand, sockets, 1, 0);
        request = must_receive(hand.comm, room, sizeof room);
        inside_keep_posting(hand.comm, true);
        assert_int_equal(must_end(request), sizeof room);
        assert_memory_equal(room, text_of(&text, 0), sizeof room);
        must_arrive(&hand, 1, 10);
        must_receive(hand.comm, room, sizeof room);
        hear_posts(&hand, 3);
        assert_int_equal(hand.freed, hand.charged);
        close_hand(&hand);
    }
}

/* What comes on the other socket gets to its receives while one is held back. */
static void test_others_go_on_beside_a_stall(void **state)
{
    static uint8_t room[50000];
    struct hand hand;
    bool beside = false;

    (void)state;
    for (int i = 0; i < 20 && !beside; i++) { /* a busy machine may end the stall too early */
        struct net_request *small;
        struct net_request *large;

        make_long_stall(&hand, 2, 3, 2);
        small = must_receive(hand.comm, room, 100);
        inside_keep_posting(hand.comm, true);
        large = must_receive(hand.comm, room + 100, sizeof room - 100);
        inside_keep_posting(hand.comm, true);
        put_eager(&hand, 0, 100);
        put_slice(&hand, 0, 1, 40000, 0, 40000, false);
        assert_int_equal(must_end(small), 100);
        assert_int_equal(must_end(large), 40000);
        assert_memory_equal(room, text_of(&text, 0), 100);
        assert_memory_equal(room + 100, text_of(&text, 1), 40000);
        beside = inside_stalled(hand.comm) == 1;
        must_arrive(&hand, 2, 5000);
        must_arrive(&hand, 3, 10);
        close_hand(&hand);
    }
    assert_true(beside);
}

/* The connection breaks while a record is held back: that is told, not waited for. */
static void test_a_stall_on_a_broken_connection(void **state)
{
    const struct linger at_once = {.l_onoff = 1};
    static uint8_t room[5000];

    (void)state;
    for (uint8_t sockets = 1; sockets <= 3; sockets++) {
        unsigned lane = sockets - 1u;
        struct net_request *request = NULL;
        struct hand hand;
        int result;

        make_long_stall(&hand, sockets, 0, 1);
        setsockopt(hand.link.forward[lane], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close(hand.link.forward[lane]);
        hand.link.forward[lane] = -1;
        nap_us(1000);
        inside_keep_posting(hand.comm, false);
        for (uint64_t deadline = deadline_after_ms(SOON_MS);
             inside_result(hand.comm) == TCPX_SUCCESS;) {
            let_it_move(hand.comm, lane);
            if (deadline_passed(deadline))
                fail_msg("%u sockets: nobody is told of the end", sockets);
        }
        must_arrive(&hand, 0, 10);
        /* this message may have come before the end, but no other */
        for (int i = 0; i < 2; i++) {
            result = net_irecv(hand.comm, room, sizeof room, 0, &request);
            if (result == TCPX_SUCCESS)
                result = end_of(request, NULL);
            assert_true(result == TCPX_REMOTE_ERROR || (i == 0 && result == TCPX_SUCCESS));
        }
        close_hand(&hand);
    }
}

/* --- a receiver by hand ------------------------------------------------------------------------
 */

enum { MOST_MESSAGES = 600 };

/* What a forward socket is in the middle of. */
struct mouth {
    uint8_t record[WIRE_RECORD_BYTES];
    size_t have;
    uint32_t sequence;
    uint64_t offset;
    uint64_t left;
};

struct coming {
    bool begun;
    bool on_credit;
    bool too_long;
    uint64_t total;
    uint64_t begun_bytes; /* of all its records */
    uint64_t bytes;       /* that are here */
};

struct reader {
    struct hand hand;
    struct mouth mouths[WIRE_MOST_SOCKETS];
    struct coming coming[MOST_MESSAGES];
    uint64_t unposted; /* charged for messages that came before their POST */
    uint64_t credit;
    uint32_t most_ahead; /* the farthest, from the first without a POST */
};

static void make_reader(struct reader *reader, uint8_t sockets, uint64_t credit)
{
    *reader = (struct reader){.credit = credit};
    make_hand(&reader->hand, NET_SENDER, sockets, credit);
}

static void say_post(struct reader *reader, uint64_t room)
{
    say(reader->hand.link.reverse, &(struct wire_record){.type = WIRE_POST,
                                                         .sequence = reader->hand.posts,
                                                         .offset = reader->hand.freed,
                                                         .length = room});
    reader->hand.rooms[reader->hand.posts++] = room;
}

static void begin_message(struct reader *reader, const struct wire_record *record,
                          struct coming *coming)
{
    bool eager = record->type == WIRE_EAGER;
    bool charged = eager || (record->flags & WIRE_ON_CREDIT) != 0;

    coming->begun = true;
    coming->on_credit = charged;
    coming->total = eager ? record->length : record->tag;
    if (charged)
        reader->hand.charged += coming->total + WIRE_EAGER_CHARGE;
    if (record->sequence < reader->hand.posts) {
        assert_true(coming->total <= reader->hand.rooms[record->sequence] || charged);
        return;
    }
    assert_true(charged);
    assert_true(reader->hand.charged - reader->hand.freed <= reader->credit);
    if (record->sequence - reader->hand.posts > reader->most_ahead)
        reader->most_ahead = record->sequence - reader->hand.posts;
    assert_true(reader->most_ahead < WIRE_MOST_AHEAD);
}

static void read_record(struct reader *reader, unsigned socket)
{
    struct mouth *mouth = &reader->mouths[socket];
    struct wire_record record;
    struct coming *coming;

    mouth->have = 0;
    if (wire_record_read(mouth->record, WIRE_FORWARD, &record) != WIRE_FINE)
        fail_msg("%s", error_text());
    if (record.type == WIRE_FIN)
        return;
    assert_true(record.sequence < MOST_MESSAGES);
    coming = &reader->coming[record.sequence];
    if (record.type == WIRE_TOOLONG) {
        assert_true(record.sequence < reader->hand.posts && !coming->begun);
        assert_true(record.length > reader->hand.rooms[record.sequence]);
        coming->too_long = true;
        return;
    }
    assert_true(record.type == WIRE_SLICE || (record.type == WIRE_EAGER && socket == 0));
    assert_false(coming->too_long);
    if (!coming->begun)
        begin_message(reader, &record, coming);
    else
        assert_int_equal(record.type, WIRE_SLICE);
    if (record.type == WIRE_SLICE) {
        assert_int_equal(record.socket, socket);
        assert_int_equal(record.tag, coming->total);
        assert_int_equal((record.flags & WIRE_ON_CREDIT) != 0, coming->on_credit);
        assert_true(record.length <= SLICE);
    } else {
        assert_int_equal(record.tag, 0);
        assert_true(record.length <= EAGER_LIMIT);
    }
    coming->begun_bytes += record.length;
    assert_true(coming->begun_bytes <= coming->total);
    mouth->sequence = record.sequence;
    mouth->offset = record.offset;
    mouth->left = record.length;
}

/* All that is there on one socket; true: there was something. */
static bool read_socket(struct reader *reader, unsigned socket)
{
    static uint8_t bytes[SLICE];
    struct mouth *mouth = &reader->mouths[socket];
    bool any = false;

    for (;;) {
        bool payload = mouth->left > 0;
        ssize_t got =
            recv(reader->hand.link.forward[socket], payload ? bytes : mouth->record + mouth->have,
                 payload ? mouth->left : WIRE_RECORD_BYTES - mouth->have, MSG_DONTWAIT);

        if (got <= 0)
            return any;
        any = true;
        if (!payload) {
            mouth->have += (size_t)got;
            if (mouth->have == WIRE_RECORD_BYTES)
                read_record(reader, socket);
            continue;
        }
        assert_memory_equal(bytes, text_of(&text, mouth->sequence) + mouth->offset, (size_t)got);
        mouth->offset += (uint64_t)got;
        mouth->left -= (uint64_t)got;
        reader->coming[mouth->sequence].bytes += (uint64_t)got;
    }
}

static void read_all(struct reader *reader)
{
    for (unsigned i = 0; i < reader->hand.link.sockets; i++)
        read_socket(reader, i);
}

/* For a while: what is to come has come then. */
static void read_for(struct reader *reader, uint64_t milliseconds)
{
    for (uint64_t deadline = deadline_after_ms(milliseconds); !deadline_passed(deadline);) {
        inside_move_on(reader->hand.comm);
        read_all(reader);
    }
}

static bool is_whole(const struct reader *reader, uint32_t sequence)
{
    const struct coming *coming = &reader->coming[sequence];

    return coming->too_long || (coming->begun && coming->bytes == coming->total);
}

static void read_message(struct reader *reader, uint32_t sequence)
{
    for (uint64_t deadline = deadline_after_ms(SOON_MS); !is_whole(reader, sequence);) {
        inside_move_on(reader->hand.comm);
        read_all(reader);
        if (deadline_passed(deadline))
            fail_msg("message %u does not come", sequence);
    }
}

static struct net_request *must_send(struct reader *reader, uint32_t sequence, uint64_t bytes)
{
    struct net_request *request = NULL;

    assert_success(net_isend(reader->hand.comm, text_of(&text, sequence), bytes, 0, &request));
    assert_non_null(request);
    return request;
}

/* To the byte: what fits the credit goes, and one byte more does not. */
static void test_credit_to_the_byte(void **state)
{
    enum { BYTES = 100000, LAST = BYTES - 70000 - 3 * WIRE_EAGER_CHARGE };
    static struct reader reader;

    (void)state;
    for (uint8_t sockets = 1; sockets <= 3; sockets++)
        for (unsigned over = 0; over < 2; over++) {
            make_reader(&reader, sockets, BYTES);
            must_send(&reader, 0, 40000);
            must_send(&reader, 1, 30000);
            must_send(&reader, 2, LAST + over);
            must_send(&reader, 3, 0);
            read_for(&reader, 20);
            assert_true(is_whole(&reader, 0) && is_whole(&reader, 1));
            assert_int_equal(is_whole(&reader, 2), over == 0);
            assert_false(reader.coming[2].begun && over);
            assert_false(reader.coming[3].begun);
            /* a receive without any of it freed: the next one goes, but not on credit */
            for (int i = 0; i < 3; i++)
                say_post(&reader, BYTES);
            read_message(&reader, 2);
            assert_int_equal(reader.coming[2].on_credit, over == 0);
            say_post(&reader, 0);
            read_message(&reader, 3);
            close_hand(&reader.hand);
        }
}

static void test_no_more_than_the_window(void **state)
{
    static struct reader reader;
    uint32_t sent = 0;

    (void)state;
    make_reader(&reader, 2, CREDIT);
    for (uint64_t deadline = deadline_after_ms(50); !deadline_passed(deadline);) {
        struct net_request *request = NULL;
        bool done;

        if (sent < 300)
            assert_success(net_isend(reader.hand.comm, text.bytes, 0, 0, &request));
        sent += request != NULL;
        if (request != NULL && sent <= WIRE_MOST_AHEAD)
            for (done = false; !done;)
                assert_success(net_test(request, &done, NULL));
        read_all(&reader);
    }
    assert_true(sent > WIRE_MOST_AHEAD);
    assert_true(is_whole(&reader, WIRE_MOST_AHEAD - 1));
    assert_false(reader.coming[WIRE_MOST_AHEAD].begun);
    say_post(&reader, 0);
    read_message(&reader, WIRE_MOST_AHEAD);
    read_for(&reader, 5);
    assert_false(reader.coming[WIRE_MOST_AHEAD + 1].begun);
    close_hand(&reader.hand);
}

/* Receives that are announced before, behind and together; freed as it comes. */
static void test_posts_in_any_rhythm(void **state)
{
    static const uint64_t credits[] = {0, 100, 65536, CREDIT};
    static struct reader reader;
    uint64_t random = 23;

    (void)state;
    for (int turn = 0; turn < turns(24); turn++) {
        enum { COUNT = 60 };
        struct net_request *requests[COUNT] = {NULL};
        bool ended[COUNT] = {false};
        bool freed[COUNT] = {false};
        uint64_t sizes[COUNT];
        unsigned sent = 0;
        unsigned left = COUNT;
        uint64_t deadline = deadline_after_ms(SOON_MS);

        make_reader(&reader, (uint8_t)(1 + turn % 3), credits[turn % 4]);
        for (unsigned i = 0; i < COUNT; i++)
            sizes[i] = random_below(&random, 3) == 0 ? random_below(&random, 200000)
                                                     : random_below(&random, 5000);
        while (left > 0 || reader.hand.posts < COUNT) {
            if (random_below(&random, 2) == 0 && sent < COUNT) {
                assert_success(net_isend(reader.hand.comm, text_of(&text, sent), sizes[sent], 0,
                                         &requests[sent]));
                sent += requests[sent] != NULL;
            }
            for (uint64_t posts = random_below(&random, 40) == 0 ? random_below(&random, 9) : 0;
                 posts > 0 && reader.hand.posts < COUNT; posts--) {
                uint32_t next = reader.hand.posts;
                bool small = random_below(&random, 8) == 0 && sizes[next] > 0;
                unsigned open = 0;

                for (unsigned i = 0; i < next; i++)
                    open += !is_whole(&reader, i);
                if (open >= COMM_REQUESTS)
                    break;
                for (unsigned i = 0; i < next; i++)
                    if (!freed[i] && is_whole(&reader, i) && reader.coming[i].on_credit) {
                        freed[i] = true;
                        reader.hand.freed += sizes[i] + WIRE_EAGER_CHARGE;
                    }
                say_post(&reader, small ? sizes[next] - 1 : sizes[next] + 5);
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
                assert_true(i < reader.hand.posts && reader.hand.rooms[i] < sizes[i]);
            }
            read_all(&reader);
            if (deadline_passed(deadline))
                fail_msg("%u sends have not ended", left);
        }
        for (uint32_t i = 0; i < COUNT; i++) {
            read_message(&reader, i);
            assert_true(reader.coming[i].too_long || reader.coming[i].total == sizes[i]);
        }
        close_hand(&reader.hand);
    }
}

/* More is freed than was charged, or less than before. */
static void test_lies_about_credit(void **state)
{
    static struct reader reader;

    (void)state;
    for (int lie = 0; lie < 4; lie++) {
        uint64_t charged = 50000 + WIRE_EAGER_CHARGE;

        make_reader(&reader, 1, CREDIT);
        must_send(&reader, 0, 50000);
        read_message(&reader, 0);
        if (lie % 2 == 1) {
            reader.hand.freed = charged;
            say_post(&reader, 50000);
        }
        say(reader.hand.link.reverse,
            &(struct wire_record){.type = lie < 2 ? WIRE_CREDIT : WIRE_POST,
                                  .sequence = lie < 2 ? 0 : reader.hand.posts,
                                  .offset = lie % 2 == 1 ? charged - 1 : charged + 1});
        must_break(&reader.hand, "credit");
    }
}

/* --- both are ours ------------------------------------------------------------------------------
 */

enum { SLOTS = COMM_REQUESTS, SPARE_ROOM = 3000 };

struct traffic {
    struct net_comm *sender;
    struct net_comm *receiver;
    struct slots slots;
    uint64_t *sizes;
    int count;
    struct net_request *sends[SLOTS];
    struct net_request *receives[SLOTS];
    uint8_t *rooms[SLOTS];
    uint64_t room_bytes[SLOTS];
    int next_send;
    int next_receive;
    int sent;
    int received;
    uint64_t random;
};

static uint64_t random_size(uint64_t *random)
{
    static const uint64_t edges[] = {0,           1,           31,        EAGER_LIMIT - 1,
                                     EAGER_LIMIT, 4097,        SLICE - 1, SLICE,
                                     SLICE + 1,   2 * SLICE,   131072,    262144,
                                     262145,      CREDIT - 64, CREDIT,    LONGEST};

    switch (random_below(random, 8)) {
    case 0:
        return edges[random_below(random, sizeof edges / sizeof *edges)];
    case 1:
        return random_below(random, CREDIT);
    default:
        return random_below(random, 20000);
    }
}

static void post_one_send(struct traffic *traffic)
{
    int slot = traffic->next_send % SLOTS;

    if (traffic->next_send == traffic->count || traffic->sends[slot] != NULL)
        return;
    assert_success(net_isend(traffic->sender, text_of(&text, (uint64_t)traffic->next_send),
                             traffic->sizes[traffic->next_send], 0, &traffic->sends[slot]));
    traffic->next_send += traffic->sends[slot] != NULL;
}

static void post_one_receive(struct traffic *traffic)
{
    int slot = traffic->next_receive % SLOTS;
    uint64_t room;

    if (traffic->next_receive == traffic->count || traffic->receives[slot] != NULL)
        return;
    room = traffic->sizes[traffic->next_receive];
    if (random_below(&traffic->random, 3) == 0)
        room += random_below(&traffic->random, SPARE_ROOM);
    traffic->rooms[slot] = slot_marked(&traffic->slots, slot, room);
    traffic->room_bytes[slot] = room;
    assert_success(
        net_irecv(traffic->receiver, traffic->rooms[slot], room, 0, &traffic->receives[slot]));
    traffic->next_receive += traffic->receives[slot] != NULL;
}

static void end_sends(struct traffic *traffic)
{
    for (int i = traffic->sent; i < traffic->next_send; i++) {
        bool done = false;

        if (traffic->sends[i % SLOTS] == NULL)
            continue;
        assert_success(net_test(traffic->sends[i % SLOTS], &done, NULL));
        if (done)
            traffic->sends[i % SLOTS] = NULL;
    }
    while (traffic->sent < traffic->next_send && traffic->sends[traffic->sent % SLOTS] == NULL)
        traffic->sent++;
}

/* The oldest, by a test or a wait. */
static void end_receives(struct traffic *traffic)
{
    int slot = traffic->received % SLOTS;
    uint64_t size = traffic->sizes[traffic->received];
    uint64_t bytes = 0;
    bool done = false;

    if (traffic->received == traffic->next_receive)
        return;
    if (random_below(&traffic->random, 4) == 0)
        assert_success(net_wait(traffic->receives[slot], deadline_after_ms(1), &done, &bytes));
    else
        assert_success(net_test(traffic->receives[slot], &done, &bytes));
    if (!done)
        return;
    assert_int_equal(bytes, size);
    if (!slot_holds(traffic->rooms[slot], traffic->room_bytes[slot],
                    text_of(&text, (uint64_t)traffic->received), bytes))
        fail_msg("message %d of %d bytes is another", traffic->received, (int)size);
    traffic->receives[slot] = NULL;
    traffic->received++;
}

/* Each far ahead of the other by turns, and neither. */
static void run_traffic(uint8_t sockets, uint64_t credit, int count)
{
    const struct net_link_options options = options_of(sockets, credit);
    struct traffic traffic = {.count = count, .random = 99 + sockets + credit};
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    uint64_t mood = 0;

    traffic.slots = slots_create(SLOTS, LONGEST + SPARE_ROOM);
    traffic.sizes = calloc((size_t)count + 1, sizeof *traffic.sizes);
    assert_non_null(traffic.sizes);
    for (int i = 0; i < count; i++)
        traffic.sizes[i] = random_size(&traffic.random);
    make_comm_pair(&options, &traffic.sender, &traffic.receiver);
    for (int turn = 0; traffic.received < count || traffic.sent < count; turn++) {
        if (turn % 64 == 0)
            mood = random_below(&traffic.random, 3);
        if (mood != 1) {
            post_one_send(&traffic);
            end_sends(&traffic);
        }
        if (mood != 2) {
            post_one_receive(&traffic);
            end_receives(&traffic);
        }
        assert_true(inside_held(traffic.receiver) <= credit);
        if (deadline_passed(deadline))
            fail_msg("%d sockets, credit %d: %d sent, %d received of %d", sockets, (int)credit,
                     traffic.sent, traffic.received, count);
    }
    assert_int_equal(inside_held(traffic.receiver), 0);
    net_comm_close(traffic.sender);
    net_comm_close(traffic.receiver);
    slots_destroy(&traffic.slots);
    free(traffic.sizes);
}

static void test_traffic(void **state)
{
    static const uint64_t credits[] = {0, 64 << 10, CREDIT, 8 << 20};

    (void)state;
    for (uint8_t sockets = 1; sockets <= 5; sockets++)
        for (int i = 0; i < 4; i++)
            run_traffic(sockets, credits[i], turns(300));
}

/* --- a thread at each end -----------------------------------------------------------------------
 */

struct end {
    struct net_comm *comm;
    const uint64_t *sizes;
    int count;
    struct slots slots; /* of the receiver */
    uint64_t random;
    bool naps;
    uint64_t *took_ns; /* of each wait; NULL: nobody wants to know */
    char problem[200]; /* since a thread cannot assert */
};

/* Waits for the oldest, which has to come. */
static bool wait_for_end(struct end *end, struct net_request *request, int number, uint64_t *bytes)
{
    uint64_t start = clock_now();
    bool done = false;
    int result = net_wait(request, deadline_after_ms(LIMIT_MS), &done, bytes);

    if (end->took_ns != NULL)
        end->took_ns[number] = clock_now() - start;
    if (result != TCPX_SUCCESS || !done)
        snprintf(end->problem, sizeof end->problem, "message %d of %d bytes: %s", number,
                 (int)end->sizes[number], done ? tcpx_last_error() : "does not come");
    return end->problem[0] == '\0';
}

static void nap_at_times(struct end *end)
{
    if (end->naps && random_below(&end->random, 16) == 0)
        nap_us((long)random_below(&end->random, 300));
}

/* Starts some, up to a number of them that changes, and waits for the oldest. */
static void *send_all(void *argument)
{
    struct end *end = argument;
    struct net_request *requests[SLOTS];
    int started = 0;

    for (int i = 0; i < end->count; i++) {
        int most = i + 1 + (int)random_below(&end->random, SLOTS);

        for (bool busy = false; started < end->count && started < most && !busy;) {
            struct net_request **request = &requests[started % SLOTS];

            if (net_isend(end->comm, text_of(&text, (uint64_t)started), end->sizes[started], 0,
                          request) != TCPX_SUCCESS) {
                snprintf(end->problem, sizeof end->problem, "send %d: %s", started,
                         tcpx_last_error());
                return NULL;
            }
            busy = *request == NULL;
            started += !busy;
        }
        nap_at_times(end);
        if (started > i && !wait_for_end(end, requests[i % SLOTS], i, NULL))
            return NULL;
        i -= started == i; /* it was busy: once more */
    }
    return NULL;
}

static void *receive_all(void *argument)
{
    struct end *end = argument;
    struct net_request *requests[SLOTS];
    uint8_t *rooms[SLOTS];
    int started = 0;

    for (int i = 0; i < end->count; i++) {
        int most = end->took_ns != NULL ? i + 1 : i + 1 + (int)random_below(&end->random, SLOTS);
        uint64_t bytes = 0;

        for (bool busy = false; started < end->count && started < most && !busy;) {
            int slot = started % SLOTS;

            rooms[slot] = slot_marked(&end->slots, slot, end->sizes[started]);
            if (net_irecv(end->comm, rooms[slot], end->sizes[started], 0, &requests[slot]) !=
                TCPX_SUCCESS) {
                snprintf(end->problem, sizeof end->problem, "receive %d: %s", started,
                         tcpx_last_error());
                return NULL;
            }
            busy = requests[slot] == NULL;
            started += !busy;
        }
        nap_at_times(end);
        if (started > i && !wait_for_end(end, requests[i % SLOTS], i, &bytes))
            return NULL;
        if (started > i &&
            (bytes != end->sizes[i] ||
             !slot_holds(rooms[i % SLOTS], end->sizes[i], text_of(&text, (uint64_t)i), bytes))) {
            snprintf(end->problem, sizeof end->problem, "message %d of %d bytes is another", i,
                     (int)end->sizes[i]);
            return NULL;
        }
        i -= started == i;
    }
    return NULL;
}

static void run_ends(uint8_t sockets, uint64_t credit, int count, const uint64_t *sizes,
                     uint64_t *took_ns)
{
    const struct net_link_options options = options_of(sockets, credit);
    struct end sender = {.count = count, .sizes = sizes, .naps = took_ns == NULL};
    struct end receiver = {.count = count, .sizes = sizes, .naps = sender.naps};
    pthread_t threads[2];

    sender.random = 7 + sockets + credit;
    receiver.random = 8 + sockets + credit;
    receiver.took_ns = took_ns;
    receiver.slots = slots_create(SLOTS, LONGEST);
    make_comm_pair(&options, &sender.comm, &receiver.comm);
    assert_int_equal(pthread_create(&threads[0], NULL, send_all, &sender), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, receive_all, &receiver), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    if (sender.problem[0] != '\0' || receiver.problem[0] != '\0')
        fail_msg("%u sockets, credit %d: %s; %s", sockets, (int)credit, sender.problem,
                 receiver.problem);
    assert_int_equal(inside_held(receiver.comm), 0);
    assert_int_equal(inside_stalled(receiver.comm), 0);
    assert_int_equal(inside_given_back(receiver.comm), inside_charged(sender.comm));
    net_comm_close(sender.comm);
    net_comm_close(receiver.comm);
    slots_destroy(&receiver.slots);
}

static void test_a_thread_at_each_end(void **state)
{
    enum { COUNT = 400 };
    static const uint64_t credits[] = {0, 64 << 10, CREDIT};
    static uint64_t sizes[COUNT];
    uint64_t random = 41;

    (void)state;
    for (uint8_t sockets = 1; sockets <= 3; sockets++)
        for (int i = 0; i < 3; i++) {
            for (int k = 0; k < COUNT; k++)
                sizes[k] = random_size(&random);
            run_ends(sockets, credits[i], turns(COUNT), sizes, NULL);
        }
}

/*
 * The sender has no credit for the message, so that it waits to hear of the receive; and whoever
 * waits for that has announced it before he goes to sleep. Most of the time: a machine may be busy.
 */
static void test_a_wait_is_not_long(void **state)
{
    enum { COUNT = 40, QUICK_NS = 10000000 };
    static const struct {
        uint64_t credit;
        uint64_t bytes;
    } ways[] = {{100, 12}, {100, 101}, {0, 0}, {64 << 10, 65 << 10}, {64 << 10, 8 << 10}};
    static uint64_t sizes[COUNT];
    static uint64_t took_ns[COUNT];

    (void)state;
    for (unsigned way = 0; way < 2 * sizeof ways / sizeof *ways; way++) {
        int quick = 0;

        for (int i = 0; i < COUNT; i++)
            sizes[i] = ways[way / 2].bytes;
        run_ends((uint8_t)(1 + way % 2), ways[way / 2].credit, COUNT, sizes, took_ns);
        for (int i = 0; i < COUNT; i++)
            quick += took_ns[i] < limit_ns(QUICK_NS);
        if (quick < COUNT * 3 / 4)
            fail_msg("%d of %d messages of %d bytes come soon", quick, COUNT,
                     (int)ways[way / 2].bytes);
    }
}

/* --- nobody calls -------------------------------------------------------------------------------
 */

/* The ended request is seen, but no call is made. */
static bool ends_by_itself(struct net_comm *comm, struct net_request *request, uint64_t most_ms)
{
    bool ended = false;

    for (uint64_t deadline = deadline_after_ms(most_ms); !ended && !deadline_passed(deadline);) {
        ended = inside_has_ended(comm, request);
        sched_yield();
    }
    return ended;
}

/* A receive is announced though no further call follows it. */
static void test_nobody_calls_after_a_receive(void **state)
{
    static const uint64_t sizes[] = {10, 5000, 50000, LONGEST};

    (void)state;
    if (!threads_are_wanted())
        skip_because("there are no I/O threads");
    for (int way = 0; way < 16; way++) {
        const struct net_link_options options = options_of((uint8_t)(1 + way % 2), 64 << 10);
        uint64_t bytes = sizes[way / 4];
        struct net_comm *sender;
        struct net_comm *receiver;
        struct net_request *send = NULL;
        struct net_request *receive = NULL;

        make_comm_pair(&options, &sender, &receiver);
        memset(arrived, 0, bytes);
        for (int i = 0; i < 2; i++)
            if ((i == 0) == (way / 2 % 2 == 0))
                receive = must_receive(receiver, arrived, bytes);
            else
                assert_success(net_isend(sender, text.bytes, bytes, 0, &send));
        if (!ends_by_itself(receiver, receive, limit_ms(1000)) ||
            !ends_by_itself(sender, send, limit_ms(1000)))
            fail_msg("%d bytes do not come by themselves", (int)bytes);
        assert_memory_equal(arrived, text.bytes, bytes);
        net_comm_close(sender);
        net_comm_close(receiver);
    }
}

/*
 * The same where the I/O threads look after the comm already, and the receive is so small that its
 * announcement was put off; but its message is too long, so that the sender waits for that.
 */
static void test_nobody_calls_after_a_small_receive(void **state)
{
    const struct net_link_options options = options_of(1, 64 << 10);
    struct net_comm *sender;
    struct net_comm *receiver;
    struct net_request *send = NULL;
    struct net_request *receive;
    uint8_t data[100];

    (void)state;
    if (!threads_are_wanted())
        skip_because("there are no I/O threads");
    for (int i = 0; i < turns(20); i++) {
        make_comm_pair(&options, &sender, &receiver);
        receive = must_receive(receiver, data, sizeof data);
        nap_us(20000); /* until they look after it */
        assert_success(net_isend(sender, text.bytes, 10, 0, &send));
        assert_true(ends_by_itself(receiver, receive, limit_ms(1000)));
        must_receive(receiver, data, sizeof data);
        assert_int_equal(must_end(send), 10);
        assert_success(net_isend(sender, text.bytes, 1 << 20, 0, &send));
        if (!ends_by_itself(sender, send, limit_ms(1000)))
            fail_msg("try %d: the receive was not announced", i);
        net_comm_close(sender);
        net_comm_close(receiver);
    }
}

/* All messages are there: whoever posts their receives needs no other call, and is never busy. */
static void test_nothing_but_receives(void **state)
{
    const struct net_link_options options = options_of(1, CREDIT);
    struct net_comm *sender;
    struct net_comm *receiver;
    uint8_t data[100];

    (void)state;
    make_comm_pair(&options, &sender, &receiver);
    for (int i = 0; i < 200; i++) {
        struct net_request *send;

        assert_success(net_isend(sender, text_of(&text, (uint64_t)i), 100, 0, &send));
        must_end(send);
    }
    for (uint64_t deadline = deadline_after_ms(SOON_MS);
         inside_held(receiver) < 200 * (100 + WIRE_EAGER_CHARGE);) {
        inside_move_on(receiver);
        assert_false(deadline_passed(deadline));
    }
    for (int i = 0; i < 200; i++) {
        struct net_request *receive = NULL;

        for (int tries = 0; receive == NULL; tries++) {
            assert_success(net_irecv(receiver, data, sizeof data, 0, &receive));
            assert_true(tries < 3);
        }
        assert_true(inside_has_ended(receiver, receive));
        assert_int_equal(must_end(receive), 100);
        assert_memory_equal(data, text_of(&text, (uint64_t)i), 100);
    }
    net_comm_close(sender);
    net_comm_close(receiver);
}

static int set_up(void **state)
{
    (void)state;
    text = text_create(LONGEST);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    text_destroy(&text);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices_in_any_order),
        cmocka_unit_test(test_credit_comes_back),
        cmocka_unit_test(test_the_window),
        cmocka_unit_test(test_a_late_slice_in_a_full_window),
        cmocka_unit_test(test_credit_without_a_receive),
        cmocka_unit_test(test_memory_is_bounded),
        cmocka_unit_test(test_too_long_on_credit),
        cmocka_unit_test(test_too_long_without_credit),
        cmocka_unit_test(test_too_long_and_lost),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_twice),
        cmocka_unit_test(test_twice_does_no_harm),
        cmocka_unit_test(test_kept_beyond_the_end),
        cmocka_unit_test(test_the_end_in_a_message),
        cmocka_unit_test(test_a_stall_costs_nothing),
        cmocka_unit_test(test_a_stall_ends_with_its_comm),
        cmocka_unit_test(test_the_first_is_not_held_back),
        cmocka_unit_test(test_a_stall_ends_in_time),
        cmocka_unit_test(test_a_stall_ends_with_its_receive),
        cmocka_unit_test(test_others_go_on_beside_a_stall),
        cmocka_unit_test(test_a_stall_on_a_broken_connection),
        cmocka_unit_test(test_credit_to_the_byte),
        cmocka_unit_test(test_no_more_than_the_window),
        cmocka_unit_test(test_posts_in_any_rhythm),
        cmocka_unit_test(test_lies_about_credit),
        cmocka_unit_test(test_traffic),
        cmocka_unit_test(test_a_thread_at_each_end),
        cmocka_unit_test(test_a_wait_is_not_long),
        cmocka_unit_test(test_nobody_calls_after_a_receive),
        cmocka_unit_test(test_nobody_calls_after_a_small_receive),
        cmocka_unit_test(test_nothing_but_receives),
    };

    return cmocka_run_group_tests_name("ahead", tests, set_up, tear_down);
}
