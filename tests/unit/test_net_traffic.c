/*
 * Messages in both directions at once between two threads: random sizes, tags and orders, posted
 * and tested in whatever order, every byte checked and an unreadable page behind every buffer. Then
 * receives that come late, never, or with too little room. All of it in every mode of a comm.
 */
#include "tests/unit/net_traffic.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

enum {
    EAGER_LIMIT = 4096,
    SLICE = 65536,
    LONGEST = 1 << 20,
    SPARE_ROOM = 3000,
    SLOTS = COMM_REQUESTS + 2, /* so that it is the comm that says "busy" */
};

struct mode {
    uint8_t sockets;
    enum wire_match match;
    enum wire_framing framing;
};

static const struct mode modes[] = {
    {1, WIRE_MATCH_FIFO, WIRE_INLINE},  {2, WIRE_MATCH_FIFO, WIRE_INLINE},
    {4, WIRE_MATCH_FIFO, WIRE_INLINE},  {1, WIRE_MATCH_TAG, WIRE_INLINE},
    {2, WIRE_MATCH_TAG, WIRE_INLINE},   {4, WIRE_MATCH_TAG, WIRE_INLINE},
    {2, WIRE_MATCH_TAG, WIRE_SEPARATE}, {4, WIRE_MATCH_TAG, WIRE_SEPARATE},
};

enum { MODES = sizeof modes / sizeof *modes };

struct pair {
    struct net_comm *sender;
    struct net_comm *receiver;
};

static struct text text;

/*
 * The kernel then takes a message piece by piece, where it would have had room for many. The room
 * is more than one segment of loopback: less than that is acknowledged late, and takes long.
 */
static void narrow(const struct net_link *link)
{
    const int bytes = 40000;

    for (int i = 0; i < link->sockets; i++)
        assert_int_equal(setsockopt(link->forward[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes),
                         0);
}

static struct pair make_pair(const struct mode *mode, bool narrowed)
{
    const struct net_link_options options = {.sockets = mode->sockets,
                                             .match = mode->match,
                                             .framing = mode->framing,
                                             .eager_limit = EAGER_LIMIT,
                                             .eager_credit = 32768,
                                             .largest_slice = SLICE,
                                             .timeout_ms = 60000,
                                             .handshake_ms = 5000};
    struct net_link sender;
    struct net_link receiver;
    struct pair pair;

    make_link_pair(&options, &sender, &receiver);
    if (narrowed)
        narrow(&sender);
    assert_success(net_comm_create(&sender, NET_SENDER, &pair.sender));
    assert_success(net_comm_create(&receiver, NET_RECEIVER, &pair.receiver));
    return pair;
}

static void close_pair(struct pair *pair)
{
    net_comm_close(pair->sender);
    net_comm_close(pair->receiver);
}

/* --- the messages of one direction ---------------------------------------------------------- */

struct message {
    uint64_t tag;
    uint64_t bytes;
};

struct stream {
    struct message *messages;
    int *send_order; /* which message is sent first, second, ... */
    int *receive_order;
    int count;
    uint64_t first_number; /* in the text; every other one is the other direction's */
    bool tags_count;
};

static uint64_t random_size(uint64_t *random)
{
    static const uint64_t edges[] = {0,           1,
                                     31,          32,
                                     33,          EAGER_LIMIT - 1,
                                     EAGER_LIMIT, EAGER_LIMIT + 1,
                                     SLICE - 1,   SLICE,
                                     SLICE + 1,   2 * SLICE - 1,
                                     2 * SLICE,   2 * SLICE + 1};

    if (random_below(random, 64) == 0)
        return random_below(random, LONGEST + 1);
    switch (random_below(random, 8)) {
    case 0:
        return edges[random_below(random, sizeof edges / sizeof *edges)];
    case 1:
        return random_below(random, 40000);
    default:
        return random_below(random, 3000);
    }
}

static uint64_t random_tag(uint64_t *random)
{
    static const uint64_t often[] = {0, 1, 2, UINT64_MAX, 1u << 31};

    return random_below(random, 4) == 0 ? random_next(random)
                                        : often[random_below(random, sizeof often / sizeof *often)];
}

static bool same_tag(const struct stream *stream, int a, int b)
{
    return !stream->tags_count || stream->messages[a].tag == stream->messages[b].tag;
}

/* An order of its own for a block of messages: each tag's stay in theirs. */
static void mix(const struct stream *stream, uint64_t *random, int first, int count, int *order)
{
    bool taken[COMM_REQUESTS] = {false};

    for (int i = 0; i < count; i++) {
        int at = (int)random_below(random, (uint64_t)count);
        int earliest = 0;

        while (taken[at])
            at = (at + 1) % count;
        while (taken[earliest] || !same_tag(stream, first + earliest, first + at))
            earliest++;
        taken[earliest] = true;
        order[i] = first + earliest;
    }
}

/*
 * Both ends go through the same blocks, each in its own order. A block is no longer than the window
 * of a comm, so that both ends can always post all of the first one that is not over.
 */
static struct stream stream_create(const struct mode *mode, uint64_t *random, int count,
                                   int direction)
{
    struct stream stream = {.messages = calloc((size_t)count, sizeof *stream.messages),
                            .send_order = calloc((size_t)count, sizeof *stream.send_order),
                            .receive_order = calloc((size_t)count, sizeof *stream.receive_order),
                            .count = count,
                            .first_number = (uint64_t)direction,
                            .tags_count = mode->match == WIRE_MATCH_TAG};

    assert_non_null(stream.messages);
    assert_non_null(stream.send_order);
    assert_non_null(stream.receive_order);
    for (int i = 0; i < count; i++)
        stream.messages[i] =
            (struct message){.tag = random_tag(random), .bytes = random_size(random)};
    for (int first = 0; first < count; first += COMM_REQUESTS) {
        int block = count - first < COMM_REQUESTS ? count - first : COMM_REQUESTS;

        mix(&stream, random, first, block, stream.send_order + first);
        mix(&stream, random, first, block, stream.receive_order + first);
    }
    return stream;
}

static void stream_destroy(struct stream *stream)
{
    free(stream->messages);
    free(stream->send_order);
    free(stream->receive_order);
}

static const uint8_t *bytes_of(const struct stream *stream, int message)
{
    return text_of(&text, stream->first_number + 2 * (uint64_t)message);
}

/* --- one end: a thread with a comm for each direction --------------------------------------- */

struct posted {
    struct net_request *request; /* NULL: this slot is free */
    int message;
    uint64_t room;
    uint8_t *buffer;
};

struct end {
    struct net_comm *sender;
    struct net_comm *receiver;
    const struct stream *out;
    const struct stream *in;
    struct slots send_slots;
    struct slots receive_slots;
    struct posted sends[SLOTS];
    struct posted receives[SLOTS];
    int next_send;
    int next_receive;
    int sent;
    int received;
    uint64_t random;
    uint64_t mood;      /* what it does not do for now */
    uint64_t mood_left; /* turns */
    atomic_bool *stop;
    char problem[300];
};

enum { POSTS_NO_SENDS = 1, POSTS_NO_RECEIVES = 2, TESTS_NO_RECEIVES = 3, MOODS = 8 };

/* No cmocka in a thread: the first problem is kept, and both ends stop. */
static bool fine(struct end *end, const char *what, int result)
{
    if (result == TCPX_SUCCESS)
        return true;
    snprintf(end->problem, sizeof end->problem, "%s: %s: %s", what, tcpx_result_name(result),
             tcpx_last_error());
    atomic_store(end->stop, true);
    return false;
}

static struct posted *free_slot(struct posted *all, int *index)
{
    for (*index = 0; *index < SLOTS; ++*index)
        if (all[*index].request == NULL)
            return &all[*index];
    return NULL;
}

static bool post_send(struct end *end)
{
    int slot;
    struct posted *posted = free_slot(end->sends, &slot);
    const struct message *message;

    if (end->mood == POSTS_NO_SENDS || posted == NULL || end->next_send == end->out->count)
        return false;
    posted->message = end->out->send_order[end->next_send];
    message = &end->out->messages[posted->message];
    posted->buffer = slot_buffer(&end->send_slots, slot, message->bytes);
    memcpy(posted->buffer, bytes_of(end->out, posted->message), message->bytes);
    if (!fine(
            end, "isend",
            net_isend(end->sender, posted->buffer, message->bytes, message->tag, &posted->request)))
        return false;
    end->next_send += posted->request != NULL;
    return posted->request != NULL;
}

static bool post_receive(struct end *end)
{
    int slot;
    struct posted *posted = free_slot(end->receives, &slot);
    const struct message *message;

    if (end->mood == POSTS_NO_RECEIVES || posted == NULL || end->next_receive == end->in->count)
        return false;
    posted->message = end->in->receive_order[end->next_receive];
    message = &end->in->messages[posted->message];
    posted->room = message->bytes;
    if (random_below(&end->random, 3) == 0)
        posted->room += random_below(&end->random, SPARE_ROOM);
    posted->buffer = slot_marked(&end->receive_slots, slot, posted->room);
    if (!fine(
            end, "irecv",
            net_irecv(end->receiver, posted->buffer, posted->room, message->tag, &posted->request)))
        return false;
    end->next_receive += posted->request != NULL;
    return posted->request != NULL;
}

static bool test_send(struct end *end, struct posted *posted)
{
    bool done = false;

    if (posted->request == NULL ||
        !fine(end, "test of a send", net_test(posted->request, &done, NULL)) || !done)
        return false;
    /* Whoever still reads this sends something else. */
    memset(posted->buffer, 0xee, end->out->messages[posted->message].bytes);
    posted->request = NULL;
    end->sent++;
    return true;
}

static bool test_receive(struct end *end, struct posted *posted)
{
    const struct message *message = &end->in->messages[posted->message];
    uint64_t bytes = 0;
    bool done = false;

    if (end->mood == TESTS_NO_RECEIVES || posted->request == NULL ||
        !fine(end, "test of a receive", net_test(posted->request, &done, &bytes)) || !done)
        return false;
    posted->request = NULL;
    end->received++;
    if (bytes == message->bytes &&
        slot_holds(posted->buffer, posted->room, bytes_of(end->in, posted->message), bytes))
        return true;
    snprintf(end->problem, sizeof end->problem,
             "message %d: %llu of %llu bytes, or they are others, or there are some around it",
             posted->message, (unsigned long long)bytes, (unsigned long long)message->bytes);
    atomic_store(end->stop, true);
    return false;
}

/* A few requests, whichever; true if one was done. */
static bool test_some(struct end *end)
{
    bool done = false;

    for (int i = 0; i < 8 && !atomic_load(end->stop); i++) {
        int slot = (int)random_below(&end->random, SLOTS);

        if (random_below(&end->random, 2) == 0)
            done = test_send(end, &end->sends[slot]) || done;
        else
            done = test_receive(end, &end->receives[slot]) || done;
    }
    return done;
}

/* Now and then an end stops doing one thing, so that the other end runs into its limits. */
static void change_mood(struct end *end)
{
    if (end->mood_left-- > 0)
        return;
    end->mood = random_below(&end->random, MOODS);
    end->mood_left = random_below(&end->random, 400);
}

static bool take_turn(struct end *end)
{
    change_mood(end);
    switch (random_below(&end->random, 4)) {
    case 0:
        return post_send(end);
    case 1:
        return post_receive(end);
    default:
        return test_some(end);
    }
}

static bool is_over(const struct end *end)
{
    return end->sent == end->out->count && end->received == end->in->count;
}

static void *run_end(void *argument)
{
    struct end *end = argument;
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    unsigned idle_turns = 0;

    while (!is_over(end) && !atomic_load(end->stop)) {
        idle_turns = take_turn(end) ? 0 : idle_turns + 1;
        if (idle_turns % 32 == 31)
            sched_yield(); /* there may be fewer cores than threads */
        if (deadline_passed(deadline)) {
            snprintf(end->problem, sizeof end->problem, "%d of %d sent and %d of %d received",
                     end->sent, end->out->count, end->received, end->in->count);
            atomic_store(end->stop, true);
        }
    }
    return NULL;
}

static void end_create(struct end *end, const struct stream *out, const struct stream *in,
                       atomic_bool *stop)
{
    *end = (struct end){.out = out, .in = in, .stop = stop, .random = out->first_number + 77};
    end->send_slots = slots_create(SLOTS, LONGEST);
    end->receive_slots = slots_create(SLOTS, LONGEST + SPARE_ROOM);
}

static void end_destroy(struct end *end)
{
    slots_destroy(&end->send_slots);
    slots_destroy(&end->receive_slots);
}

/* --- traffic -------------------------------------------------------------------------------- */

static void run_traffic(const struct mode *mode, int count)
{
    static uint64_t random = 4711;
    static struct end ends[2];
    struct pair pairs[2] = {make_pair(mode, false), make_pair(mode, true)};
    struct stream streams[2];
    pthread_t threads[2];
    atomic_bool stop = false;

    for (int i = 0; i < 2; i++)
        streams[i] = stream_create(mode, &random, count, i);
    for (int i = 0; i < 2; i++) {
        end_create(&ends[i], &streams[i], &streams[1 - i], &stop);
        ends[i].sender = pairs[i].sender;
        ends[i].receiver = pairs[1 - i].receiver;
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_end, &ends[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++)
        if (ends[i].problem[0] != '\0')
            fail_msg("%d sockets, end %d: %s", mode->sockets, i, ends[i].problem);
    for (int i = 0; i < 2; i++) {
        assert_true(is_over(&ends[i]));
        close_pair(&pairs[i]);
        end_destroy(&ends[i]);
        stream_destroy(&streams[i]);
    }
}

/* TCPX_TEST_MESSAGES is how many go in each framing, over its modes and both directions. */
static int messages_of_a_framing(void)
{
    const char *wanted = getenv("TCPX_TEST_MESSAGES");
    long count = wanted != NULL ? strtol(wanted, NULL, 10) : 10000;

    return count < 1 || count > 100000000 ? 10000 : (int)count;
}

static void traffic_in(enum wire_match match, enum wire_framing framing)
{
    int descriptors = open_descriptors();
    int of_framing = 0;

    for (int i = 0; i < MODES; i++)
        of_framing += modes[i].framing == framing;
    for (int i = 0; i < MODES; i++)
        if (modes[i].match == match && modes[i].framing == framing)
            run_traffic(&modes[i], messages_of_a_framing() / (2 * of_framing) + 1);
    assert_int_equal(open_descriptors(), descriptors);
}

static void test_inline_in_order(void **state)
{
    (void)state;
    traffic_in(WIRE_MATCH_FIFO, WIRE_INLINE);
}

static void test_inline_with_tags(void **state)
{
    (void)state;
    traffic_in(WIRE_MATCH_TAG, WIRE_INLINE);
}

static void test_separate_with_tags(void **state)
{
    (void)state;
    traffic_in(WIRE_MATCH_TAG, WIRE_SEPARATE);
}

/* --- late, never, too small ----------------------------------------------------------------- */

/* A request and how it ended. */
struct ending {
    struct net_request *request;
    bool ended;
    int result;
    uint64_t bytes;
};

static void end_all(struct ending *endings, int count)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    int left = count;

    while (left > 0) {
        for (int i = 0; i < count; i++)
            if (!endings[i].ended) {
                endings[i].result =
                    net_test(endings[i].request, &endings[i].ended, &endings[i].bytes);
                endings[i].ended = endings[i].ended || endings[i].result != TCPX_SUCCESS;
                left -= endings[i].ended;
            }
        assert_false(deadline_passed(deadline));
    }
}

/* Sends that cannot go before their receives, as many as a comm takes; and one more. */
static struct stream fill_with_sends(const struct mode *mode, struct net_comm *sender,
                                     struct ending *endings)
{
    static uint64_t random = 99;
    struct stream stream = stream_create(mode, &random, COMM_REQUESTS, 0);
    struct net_request *more = (struct net_request *)&stream;

    for (int i = 0; i < COMM_REQUESTS; i++) {
        int message = stream.send_order[i];

        stream.messages[message].bytes = EAGER_LIMIT + 1 + random_below(&random, 3 * SLICE);
        endings[i] = (struct ending){0};
        assert_success(net_isend(sender, bytes_of(&stream, message), stream.messages[message].bytes,
                                 stream.messages[message].tag, &endings[i].request));
        assert_non_null(endings[i].request);
    }
    for (int i = 0; i < 500; i++) {
        bool done;

        assert_success(
            net_test(endings[random_below(&random, COMM_REQUESTS)].request, &done, NULL));
        assert_false(done);
        assert_success(net_isend(sender, text.bytes, (uint64_t)i * 100, 0, &more));
        assert_null(more);
    }
    return stream;
}

static void receives_come_late(const struct mode *mode)
{
    struct slots slots = slots_create(COMM_REQUESTS, 4 * SLICE);
    struct pair pair = make_pair(mode, false);
    struct ending endings[2 * COMM_REQUESTS];
    struct ending *receives = endings + COMM_REQUESTS;
    struct stream stream = fill_with_sends(mode, pair.sender, endings);

    for (int i = 0; i < COMM_REQUESTS; i++) {
        const struct message *message = &stream.messages[stream.receive_order[i]];

        receives[i] = (struct ending){0};
        assert_success(net_irecv(pair.receiver, slot_marked(&slots, i, message->bytes),
                                 message->bytes, message->tag, &receives[i].request));
        assert_non_null(receives[i].request);
    }
    end_all(endings, 2 * COMM_REQUESTS);
    for (int i = 0; i < COMM_REQUESTS; i++) {
        int number = stream.receive_order[i];
        uint64_t bytes = stream.messages[number].bytes;

        assert_success(endings[i].result);
        assert_success(receives[i].result);
        assert_int_equal(receives[i].bytes, bytes);
        assert_true(
            slot_holds(slot_buffer(&slots, i, bytes), bytes, bytes_of(&stream, number), bytes));
    }
    close_pair(&pair);
    stream_destroy(&stream);
    slots_destroy(&slots);
}

static void test_receives_that_come_late(void **state)
{
    (void)state;
    for (int i = 0; i < MODES; i++)
        receives_come_late(&modes[i]);
}

static void assert_all_lost(struct ending *endings, int count)
{
    uint64_t start = clock_now();

    end_all(endings, count);
    for (int i = 0; i < count; i++)
        assert_int_equal(endings[i].result, TCPX_REMOTE_ERROR);
    assert_true(clock_now() - start < limit_ns(5000000000u));
}

/* Nobody receives, and then one of the two closes; the other is told. */
static void receives_never_come(const struct mode *mode, bool sender_closes)
{
    struct pair pair = make_pair(mode, false);
    struct ending sends[COMM_REQUESTS];
    struct ending receive = {0};
    struct stream stream = fill_with_sends(mode, pair.sender, sends);
    uint8_t byte;
    int result;

    if (sender_closes) {
        net_comm_close(pair.sender);
        pair.sender = NULL;
        result = net_irecv(pair.receiver, &byte, 1, 5, &receive.request);
        if (result == TCPX_SUCCESS)
            assert_all_lost(&receive, 1);
        else
            assert_int_equal(result, TCPX_REMOTE_ERROR);
    } else {
        net_comm_close(pair.receiver);
        pair.receiver = NULL;
        assert_all_lost(sends, COMM_REQUESTS);
    }
    close_pair(&pair);
    stream_destroy(&stream);
}

static void sends_never_come(const struct mode *mode)
{
    struct pair pair = make_pair(mode, false);
    struct ending receives[COMM_REQUESTS] = {{0}};
    struct net_request *more = (struct net_request *)&pair;
    uint8_t bytes[COMM_REQUESTS];

    for (int i = 0; i < COMM_REQUESTS; i++) {
        assert_success(
            net_irecv(pair.receiver, &bytes[i], 1, (uint64_t)i % 3, &receives[i].request));
        assert_non_null(receives[i].request);
    }
    for (int i = 0; i < 100; i++) {
        bool done;

        assert_success(net_test(receives[i % COMM_REQUESTS].request, &done, NULL));
        assert_false(done);
        assert_success(net_irecv(pair.receiver, bytes, 1, 0, &more));
        assert_null(more);
    }
    net_comm_close(pair.sender);
    assert_all_lost(receives, COMM_REQUESTS);
    net_comm_close(pair.receiver);
}

static void test_what_never_comes(void **state)
{
    int descriptors = open_descriptors();

    (void)state;
    for (int i = 0; i < MODES; i++) {
        receives_never_come(&modes[i], true);
        receives_never_come(&modes[i], false);
        sends_never_come(&modes[i]);
    }
    assert_int_equal(open_descriptors(), descriptors);
}

/* Messages of one tag, of which every other one has too little room. */
static void some_have_no_room(const struct mode *mode, bool receives_first)
{
    enum { COUNT = 10, BYTES = 3 * SLICE + 5 };
    static const uint64_t rooms[] = {0, 1, EAGER_LIMIT, SLICE, BYTES - 1};
    struct slots slots = slots_create(COUNT, BYTES);
    struct pair pair = make_pair(mode, false);
    struct ending endings[2 * COUNT] = {{0}};

    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < COUNT; i++) {
            uint64_t room = i % 2 == 0 ? BYTES : rooms[i / 2];

            if ((turn == 0) == receives_first)
                assert_success(net_irecv(pair.receiver, slot_marked(&slots, i, room), room, 7,
                                         &endings[COUNT + i].request));
            else
                assert_success(net_isend(pair.sender, text_of(&text, (uint64_t)i), BYTES, 7,
                                         &endings[i].request));
        }
    end_all(endings, 2 * COUNT);
    for (int i = 0; i < COUNT; i++) {
        bool fits = i % 2 == 0;
        uint64_t room = fits ? BYTES : rooms[i / 2];

        assert_int_equal(endings[i].result, fits ? TCPX_SUCCESS : TCPX_INVALID_USAGE);
        assert_int_equal(endings[COUNT + i].result, fits ? TCPX_SUCCESS : TCPX_INVALID_USAGE);
        assert_true(slot_holds(slot_buffer(&slots, i, room), room, text_of(&text, (uint64_t)i),
                               fits ? BYTES : 0));
    }
    close_pair(&pair);
    slots_destroy(&slots);
}

static void test_receives_that_are_too_small(void **state)
{
    (void)state;
    for (int i = 0; i < MODES; i++) {
        some_have_no_room(&modes[i], true);
        some_have_no_room(&modes[i], false);
    }
}

/* One comm first, so that what a process keeps for all of its comms is there already. */
static int set_up(void **state)
{
    struct pair pair = make_pair(&modes[0], false);

    (void)state;
    close_pair(&pair);
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
        cmocka_unit_test(test_inline_in_order),
        cmocka_unit_test(test_inline_with_tags),
        cmocka_unit_test(test_separate_with_tags),
        cmocka_unit_test(test_receives_that_come_late),
        cmocka_unit_test(test_what_never_comes),
        cmocka_unit_test(test_receives_that_are_too_small),
    };

    return cmocka_run_group_tests_name("traffic", tests, set_up, tear_down);
}
