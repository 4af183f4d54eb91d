/*
 * The transport with GPU memory: random messages from host and GPU memory into host and GPU memory,
 * in every mode of a comm, with every byte checked and the bytes around each buffer; sends that
 * wait for the caller's work on the GPU; many comms that share one small staging pool; a peer that
 * takes nothing; and a GPU that fails. Runs on any backend.
 */
#include "gpu/gpu.h"
#include "tests/unit/net_traffic.h"

#include <sched.h>

enum {
    EAGER_LIMIT = 4096,
    SLICE = 64 << 10,
    LONGEST = 600000,
    SLOTS = 12,
    MARGIN = 64,
    MARK = 0xaa,
};

static struct gpu *gpu;
static struct gpu_stream *stream;
static struct gpu_event *event;
static struct text text;

static int set_up(void **state)
{
    (void)state;
    text = text_create(LONGEST);
    return gpu_open(0, &gpu) != TCPX_SUCCESS || gpu_stream_create(gpu, &stream) != TCPX_SUCCESS ||
           gpu_event_create(gpu, GPU_EVENT_PLAIN, &event) != TCPX_SUCCESS;
}

static int tear_down(void **state)
{
    (void)state;
    text_destroy(&text);
    gpu_event_destroy(event);
    gpu_stream_destroy(stream);
    gpu_close(gpu);
    return 0;
}

static void drain(void)
{
    assert_success(gpu_event_record(event, stream));
    assert_success(gpu_event_wait(event, deadline_after_ms(LIMIT_MS)));
}

static unsigned messages_wanted(void)
{
    const char *wanted = getenv("TCPX_TEST_MESSAGES");

    return wanted != NULL ? (unsigned)atoi(wanted) : 2000;
}

/* --- buffers in either memory -------------------------------------------------------------- */

/* One place of `room` bytes with a margin on either side. */
struct place {
    bool in_gpu;
    struct gpu_memory device;
    uint8_t *host;
};

static void place_create(struct place *place, bool in_gpu, uint64_t room)
{
    place->in_gpu = in_gpu;
    place->host = malloc(room + 2 * (uint64_t)MARGIN);
    assert_non_null(place->host);
    if (in_gpu)
        assert_success(gpu_memory_alloc(gpu, room + 2 * (uint64_t)MARGIN, 4096, &place->device));
}

static void place_destroy(struct place *place)
{
    if (place->in_gpu)
        gpu_memory_free(gpu, &place->device);
    free(place->host);
}

/* Whether the message is there and nothing else was written up to `room`. */
static bool place_holds(struct place *place, uint64_t at, const uint8_t *message, uint64_t bytes,
                        uint64_t room)
{
    uint64_t all = at + room + MARGIN;

    if (place->in_gpu) {
        assert_success(gpu_copy_to_host(stream, place->host, place->device.address, all));
        drain();
    }
    for (uint64_t i = 0; i < at; i++)
        if (place->host[i] != MARK)
            return false;
    for (uint64_t i = at + bytes; i < all; i++)
        if (place->host[i] != MARK)
            return false;
    return memcmp(place->host + at, message, bytes) == 0;
}

/* Marks all, and puts a message at `at` if there is one. */
static void place_prepare(struct place *place, uint64_t at, const uint8_t *message, uint64_t bytes,
                          uint64_t room)
{
    uint64_t all = at + room + MARGIN;

    memset(place->host, MARK, all);
    if (message != NULL)
        memcpy(place->host + at, message, bytes);
    if (place->in_gpu) {
        assert_success(gpu_copy_to_device(stream, place->device.address, place->host, all));
        drain();
    }
}

static void *place_at(const struct place *place, uint64_t at)
{
    return place->in_gpu ? (void *)(uintptr_t)(place->device.address + at) : place->host + at;
}

/* --- random traffic ------------------------------------------------------------------------ */

struct message {
    uint64_t tag;
    uint64_t bytes;
    uint64_t number;
};

struct slot {
    struct place place;
    struct net_memory *memory;
    struct net_request *request; /* NULL: free */
    struct message message;
    uint64_t at;
    uint64_t room;
};

struct traffic {
    struct net_comm *sender;
    struct net_comm *receiver;
    struct slot sends[SLOTS];
    struct slot receives[SLOTS];
    uint64_t random;
    uint64_t sender_random; /* both sides make the same messages up */
    uint64_t receiver_random;
    unsigned sent;
    unsigned posted;
    unsigned received;
    unsigned count;
};

static struct message next_message(uint64_t *random, uint64_t number)
{
    static const uint64_t edges[] = {0,     1,         EAGER_LIMIT, EAGER_LIMIT + 1,
                                     SLICE, SLICE + 1, 3 * SLICE,   4096};
    struct message message = {.number = number, .tag = random_below(random, 3)};

    switch (random_below(random, 8)) {
    case 0:
        message.bytes = edges[random_below(random, sizeof edges / sizeof *edges)];
        break;
    case 1:
        message.bytes = random_below(random, LONGEST + 1);
        break;
    case 2:
        message.bytes = random_below(random, 100000);
        break;
    default:
        message.bytes = random_below(random, 8000);
    }
    return message;
}

static void slots_open(struct traffic *traffic, struct net_comm *comm, struct slot *slots)
{
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &slots[i];

        *slot = (struct slot){.request = NULL};
        place_create(&slot->place, random_below(&traffic->random, 3) != 0, LONGEST + 2 * MARGIN);
        if (slot->place.in_gpu || i % 2 == 0)
            assert_success(
                net_register(comm, place_at(&slot->place, 0), LONGEST + 3 * MARGIN, &slot->memory));
    }
}

static void slots_close(struct net_comm *comm, struct slot *slots)
{
    for (int i = 0; i < SLOTS; i++) {
        net_deregister(comm, slots[i].memory);
        place_destroy(&slots[i].place);
    }
}

static struct slot *free_slot(struct traffic *traffic, struct slot *slots)
{
    int first = (int)random_below(&traffic->random, SLOTS);

    for (int i = 0; i < SLOTS; i++)
        if (slots[(first + i) % SLOTS].request == NULL)
            return &slots[(first + i) % SLOTS];
    return NULL;
}

static void post_send(struct traffic *traffic)
{
    struct slot *slot = free_slot(traffic, traffic->sends);
    struct net_buffer buffer;
    uint64_t before = traffic->sender_random;

    if (slot == NULL || traffic->sent == traffic->count)
        return;
    slot->message = next_message(&traffic->sender_random, traffic->sent);
    slot->at = MARGIN + random_below(&traffic->random, MARGIN);
    place_prepare(&slot->place, slot->at, text_of(&text, slot->message.number), slot->message.bytes,
                  slot->message.bytes);
    buffer = (struct net_buffer){.data = place_at(&slot->place, slot->at),
                                 .bytes = slot->message.bytes,
                                 .memory = slot->memory};
    assert_success(net_isend_buffer(traffic->sender, &buffer, slot->message.tag, &slot->request));
    if (slot->request == NULL)
        traffic->sender_random = before;
    else
        traffic->sent++;
}

static void post_receive(struct traffic *traffic)
{
    struct slot *slot = free_slot(traffic, traffic->receives);
    struct net_buffer buffer;
    uint64_t before = traffic->receiver_random;

    if (slot == NULL || traffic->posted == traffic->count)
        return;
    slot->message = next_message(&traffic->receiver_random, traffic->posted);
    slot->at = MARGIN + random_below(&traffic->random, MARGIN);
    slot->room = slot->message.bytes;
    if (slot->room + MARGIN <= LONGEST)
        slot->room += random_below(&traffic->random, MARGIN);
    place_prepare(&slot->place, slot->at, NULL, 0, slot->room);
    buffer = (struct net_buffer){
        .data = place_at(&slot->place, slot->at), .bytes = slot->room, .memory = slot->memory};
    assert_success(net_irecv_buffer(traffic->receiver, &buffer, slot->message.tag, &slot->request));
    if (slot->request == NULL)
        traffic->receiver_random = before;
    else
        traffic->posted++;
}

static bool test_one(struct traffic *traffic, struct slot *slot, bool receiving)
{
    uint64_t bytes = 0;
    bool done = false;

    if (slot->request == NULL)
        return false;
    assert_success(net_test(slot->request, &done, &bytes));
    if (!done)
        return false;
    slot->request = NULL;
    if (!receiving) { /* whoever still reads this sends something else */
        place_prepare(&slot->place, slot->at, NULL, 0, slot->message.bytes);
        return true;
    }
    assert_int_equal(bytes, slot->message.bytes);
    if (!place_holds(&slot->place, slot->at, text_of(&text, slot->message.number), bytes,
                     slot->room))
        fail_msg("message %llu of %llu bytes is wrong, or something around it",
                 (unsigned long long)slot->message.number, (unsigned long long)bytes);
    traffic->received++;
    return true;
}

static void turn(struct traffic *traffic)
{
    bool moved = false;

    if (random_below(&traffic->random, 2) == 0)
        post_send(traffic);
    if (random_below(&traffic->random, 2) == 0)
        post_receive(traffic);
    for (int i = 0; i < 4; i++) {
        int slot = (int)random_below(&traffic->random, SLOTS);

        moved = test_one(traffic, &traffic->sends[slot], false) || moved;
        slot = (int)random_below(&traffic->random, SLOTS);
        moved = test_one(traffic, &traffic->receives[slot], true) || moved;
    }
    if (!moved)
        sched_yield();
}

static bool is_over(const struct traffic *traffic)
{
    for (int i = 0; i < SLOTS; i++)
        if (traffic->sends[i].request != NULL)
            return false;
    return traffic->received == traffic->count && traffic->sent == traffic->count;
}

static struct net_link_options options_of(uint8_t sockets, enum wire_match match,
                                          enum wire_framing framing)
{
    return (struct net_link_options){.sockets = sockets,
                                     .match = match,
                                     .framing = framing,
                                     .eager_limit = EAGER_LIMIT,
                                     .eager_credit = 32768,
                                     .largest_slice = SLICE,
                                     .timeout_ms = 60000,
                                     .handshake_ms = 5000};
}

static void traffic_open(struct traffic *traffic, const struct net_link_options *options,
                         unsigned count, uint64_t seed)
{
    *traffic = (struct traffic){
        .random = seed, .sender_random = seed + 1, .receiver_random = seed + 1, .count = count};
    make_comm_pair(options, &traffic->sender, &traffic->receiver);
    slots_open(traffic, traffic->sender, traffic->sends);
    slots_open(traffic, traffic->receiver, traffic->receives);
}

static void traffic_close(struct traffic *traffic)
{
    slots_close(traffic->sender, traffic->sends);
    slots_close(traffic->receiver, traffic->receives);
    net_comm_close(traffic->sender);
    net_comm_close(traffic->receiver);
}

static void random_traffic(const struct net_link_options *options, unsigned count, uint64_t seed)
{
    static struct traffic traffic;
    uint64_t deadline = deadline_after_ms(2 * LIMIT_MS);

    traffic_open(&traffic, options, count, seed);
    while (!is_over(&traffic)) {
        turn(&traffic);
        assert_false(deadline_passed(deadline));
    }
    traffic_close(&traffic);
}

static void test_random_traffic(void **state)
{
    static const struct {
        uint8_t sockets;
        enum wire_match match;
        enum wire_framing framing;
    } modes[] = {
        {1, WIRE_MATCH_FIFO, WIRE_INLINE},   {3, WIRE_MATCH_FIFO, WIRE_INLINE},
        {1, WIRE_MATCH_TAG, WIRE_INLINE},    {4, WIRE_MATCH_TAG, WIRE_INLINE},
        {2, WIRE_MATCH_TAG, WIRE_SEPARATE},  {4, WIRE_MATCH_TAG, WIRE_SEPARATE},
        {3, WIRE_MATCH_FIFO, WIRE_SEPARATE},
    };
    enum { MODES = sizeof modes / sizeof *modes };

    (void)state;
    for (unsigned i = 0; i < MODES; i++) {
        struct net_link_options options =
            options_of(modes[i].sockets, modes[i].match, modes[i].framing);

        random_traffic(&options, messages_wanted() / MODES + 1, 77 + i);
    }
}

/* Both ways at once, in one process: neither direction's pool stops the other. */
static void test_both_ways(void **state)
{
    static struct traffic there;
    static struct traffic back;
    struct net_link_options options = options_of(2, WIRE_MATCH_TAG, WIRE_INLINE);
    uint64_t deadline = deadline_after_ms(2 * LIMIT_MS);

    (void)state;
    traffic_open(&there, &options, messages_wanted() / 10 + 1, 5);
    traffic_open(&back, &options, messages_wanted() / 10 + 1, 6);
    while (!is_over(&there) || !is_over(&back)) {
        turn(&there);
        turn(&back);
        assert_false(deadline_passed(deadline));
    }
    traffic_close(&there);
    traffic_close(&back);
}

/* --- one message --------------------------------------------------------------------------- */

struct one {
    struct net_comm *sender;
    struct net_comm *receiver;
    struct place from;
    struct place to;
    struct net_memory *from_memory;
    struct net_memory *to_memory;
    struct net_request *send;
    struct net_request *receive;
};

static void one_open(struct one *one, const struct net_link_options *options)
{
    *one = (struct one){.send = NULL};
    make_comm_pair(options, &one->sender, &one->receiver);
    place_create(&one->from, true, LONGEST + 2 * MARGIN);
    place_create(&one->to, true, LONGEST + 2 * MARGIN);
    assert_success(net_register(one->sender, place_at(&one->from, 0), LONGEST, &one->from_memory));
    assert_success(net_register(one->receiver, place_at(&one->to, 0), LONGEST, &one->to_memory));
}

static void one_close(struct one *one)
{
    net_deregister(one->sender, one->from_memory);
    net_deregister(one->receiver, one->to_memory);
    net_comm_close(one->sender);
    net_comm_close(one->receiver);
    place_destroy(&one->from);
    place_destroy(&one->to);
}

static void one_post_receive(struct one *one, uint64_t bytes)
{
    place_prepare(&one->to, MARGIN, NULL, 0, bytes);
    assert_success(net_irecv_buffer(one->receiver,
                                    &(struct net_buffer){.data = place_at(&one->to, MARGIN),
                                                         .bytes = bytes,
                                                         .memory = one->to_memory},
                                    1, &one->receive));
}

static void one_post_send(struct one *one, uint64_t bytes, enum net_after after, void *what)
{
    assert_success(net_isend_buffer(one->sender,
                                    &(struct net_buffer){.data = place_at(&one->from, MARGIN),
                                                         .bytes = bytes,
                                                         .memory = one->from_memory,
                                                         .after = after,
                                                         .after_what = what},
                                    1, &one->send));
}

static bool is_done(struct net_request **request)
{
    bool done = false;

    if (*request == NULL)
        return true;
    assert_success(net_test(*request, &done, NULL));
    if (done)
        *request = NULL;
    return done;
}

static bool both_are_done(struct one *one)
{
    bool sent = is_done(&one->send);
    bool received = is_done(&one->receive);

    return sent && received;
}

static void one_finish(struct one *one, uint64_t bytes, uint64_t number)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);

    while (!both_are_done(one))
        assert_false(deadline_passed(deadline));
    assert_true(place_holds(&one->to, MARGIN, text_of(&text, number), bytes, bytes));
}

/* The data is written by work that is still on the caller's stream when the send begins. */
static void test_a_send_after_the_callers_work(void **state)
{
    struct net_link_options options = options_of(2, WIRE_MATCH_TAG, WIRE_INLINE);
    struct gpu_pinned pinned;
    struct gpu_event *written;
    struct one one;

    (void)state;
    one_open(&one, &options);
    assert_success(gpu_pinned_alloc(gpu, LONGEST, GPU_PINNED_PLAIN, &pinned));
    assert_success(gpu_event_create(gpu, GPU_EVENT_PLAIN, &written));
    for (uint64_t i = 0; i < 6; i++) {
        uint64_t bytes = i % 2 ? 3000 : LONGEST;

        place_prepare(&one.from, MARGIN, NULL, 0, bytes);
        one_post_receive(&one, bytes);
        memcpy(pinned.host, text_of(&text, i), bytes);
        for (int k = 0; k < 8; k++) /* to be late */
            assert_success(gpu_set(stream, one.from.device.address + MARGIN, MARK, bytes));
        assert_success(
            gpu_copy_to_device(stream, one.from.device.address + MARGIN, pinned.host, bytes));
        assert_success(gpu_event_record(written, stream));
        if (i % 3 == 0)
            one_post_send(&one, bytes, NET_AFTER_EVENT, gpu_event_native(written));
        else
            one_post_send(&one, bytes, NET_AFTER_STREAM, gpu_stream_native(stream));
        one_finish(&one, bytes, i);
    }
    gpu_event_destroy(written);
    gpu_pinned_free(gpu, &pinned);
    one_close(&one);
}

/* The caller's stream is made to wait, and what it reads then is there. */
static void test_a_stream_that_waits_for_a_receive(void **state)
{
    struct net_link_options options = options_of(2, WIRE_MATCH_TAG, WIRE_INLINE);
    struct gpu_pinned pinned;
    struct one one;

    (void)state;
    one_open(&one, &options);
    assert_success(gpu_pinned_alloc(gpu, LONGEST, GPU_PINNED_PLAIN, &pinned));
    for (uint64_t i = 0; i < 10; i++) {
        uint64_t size = i % 2 ? 3000 : LONGEST;
        uint64_t deadline = deadline_after_ms(LIMIT_MS);
        uint64_t bytes = 0;
        bool done = false;

        place_prepare(&one.from, MARGIN, text_of(&text, i), size, size);
        one_post_receive(&one, size);
        if (i % 3 == 0) /* from host memory; it may have been put aside */
            assert_success(net_isend(one.sender, text_of(&text, i), size, 1, &one.send));
        else
            one_post_send(&one, size, NET_AFTER_NOTHING, NULL);
        while (!done) {
            (void)is_done(&one.send);
            assert_success(
                net_test_on_stream(one.receive, gpu_stream_native(stream), &done, &bytes));
            assert_false(deadline_passed(deadline));
        }
        assert_int_equal(bytes, size);
        assert_success(gpu_copy_to_host(stream, pinned.host, one.to.device.address + MARGIN, size));
        drain();
        assert_memory_equal(pinned.host, text_of(&text, i), size);
        while (!is_done(&one.send))
            assert_false(deadline_passed(deadline));
    }
    gpu_pinned_free(gpu, &pinned);
    one_close(&one);
}

/* A small message that came before its receive into GPU memory, from a sender in host memory. */
static void test_a_message_that_was_put_aside(void **state)
{
    struct net_link_options options = options_of(1, WIRE_MATCH_TAG, WIRE_INLINE);
    struct one one;

    (void)state;
    one_open(&one, &options);
    for (uint64_t i = 0; i < 20; i++) {
        uint64_t bytes = 1 + i * 200;
        struct net_request *early;
        bool done = false;

        assert_success(net_isend(one.sender, text_of(&text, i), bytes, 1, &early));
        assert_success(net_wait(early, deadline_after_ms(LIMIT_MS), &done, NULL));
        assert_true(done);
        nap_us(1000);
        one_post_receive(&one, bytes);
        one_finish(&one, bytes, i);
    }
    one_close(&one);
}

/* --- sharing ------------------------------------------------------------------------------- */

static void test_many_comms_share_a_pool(void **state)
{
    enum { COMMS = 64 };
    static struct one many[COMMS];
    struct net_link_options options = options_of(1, WIRE_MATCH_TAG, WIRE_INLINE);
    uint64_t deadline = deadline_after_ms(2 * LIMIT_MS);
    int left = COMMS;

    (void)state;
    for (int i = 0; i < COMMS; i++) {
        one_open(&many[i], &options);
        place_prepare(&many[i].from, MARGIN, text_of(&text, (uint64_t)i), LONGEST, LONGEST);
        one_post_receive(&many[i], LONGEST);
        one_post_send(&many[i], LONGEST, NET_AFTER_NOTHING, NULL);
    }
    while (left > 0) {
        left = 0;
        for (int i = 0; i < COMMS; i++)
            left += !both_are_done(&many[i]);
        assert_false(deadline_passed(deadline));
    }
    for (int i = 0; i < COMMS; i++) {
        assert_true(
            place_holds(&many[i].to, MARGIN, text_of(&text, (uint64_t)i), LONGEST, LONGEST));
        one_close(&many[i]);
    }
}

/* The last tag's receive comes first: what has no receive yet takes no slot from what has. */
static void test_receives_in_another_order(void **state)
{
    enum { TAGS = 12 };
    struct net_link_options options = options_of(2, WIRE_MATCH_TAG, WIRE_INLINE);
    struct net_request *sends[TAGS];
    struct net_request *receives[TAGS];
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    struct place places[TAGS];
    struct net_memory *memories[TAGS];
    struct one one;
    int left = TAGS;

    (void)state;
    one_open(&one, &options);
    place_prepare(&one.from, MARGIN, text_of(&text, 9), LONGEST, LONGEST);
    for (int i = 0; i < TAGS; i++)
        assert_success(net_isend_buffer(one.sender,
                                        &(struct net_buffer){.data = place_at(&one.from, MARGIN),
                                                             .bytes = LONGEST,
                                                             .memory = one.from_memory},
                                        (uint64_t)i, &sends[i]));
    for (int i = TAGS - 1; i >= 0; i--) {
        place_create(&places[i], true, LONGEST + 2 * MARGIN);
        place_prepare(&places[i], MARGIN, NULL, 0, LONGEST);
        assert_success(net_register(one.receiver, place_at(&places[i], 0), LONGEST, &memories[i]));
        assert_success(net_irecv_buffer(one.receiver,
                                        &(struct net_buffer){.data = place_at(&places[i], MARGIN),
                                                             .bytes = LONGEST,
                                                             .memory = memories[i]},
                                        (uint64_t)i, &receives[i]));
    }
    while (left > 0) {
        left = 0;
        for (int i = 0; i < TAGS; i++) {
            left += !is_done(&sends[i]);
            left += !is_done(&receives[i]);
        }
        assert_false(deadline_passed(deadline));
    }
    for (int i = 0; i < TAGS; i++) {
        assert_true(place_holds(&places[i], MARGIN, text_of(&text, 9), LONGEST, LONGEST));
        net_deregister(one.receiver, memories[i]);
        place_destroy(&places[i]);
    }
    one_close(&one);
}

/* A peer that announces receives and then reads nothing holds up its own comm and no other. */
static void test_a_peer_that_takes_nothing(void **state)
{
    enum { STUCK = 3 };
    struct net_link_options options = options_of(1, WIRE_MATCH_TAG, WIRE_INLINE);
    struct net_comm *senders[STUCK];
    struct net_link peers[STUCK];
    struct place from;
    struct net_memory *memories[STUCK];
    struct one good;

    (void)state;
    place_create(&from, true, LONGEST);
    for (int i = 0; i < STUCK; i++) {
        struct net_link sending;
        struct net_request *request;

        make_link_pair(&options, &sending, &peers[i]);
        assert_success(net_comm_create(&sending, NET_SENDER, &senders[i]));
        assert_success(net_register(senders[i], place_at(&from, 0), LONGEST, &memories[i]));
        for (uint32_t k = 0; k < 30; k++) {
            uint8_t bytes[WIRE_RECORD_BYTES];

            wire_record_write(
                &(struct wire_record){
                    .type = WIRE_POST, .sequence = k, .length = LONGEST, .tag = 1},
                bytes);
            assert_int_equal(send(peers[i].reverse, bytes, sizeof bytes, MSG_NOSIGNAL),
                             sizeof bytes);
        }
        for (int k = 0; k < 30; k++) {
            assert_success(net_isend_buffer(senders[i],
                                            &(struct net_buffer){.data = place_at(&from, 0),
                                                                 .bytes = LONGEST,
                                                                 .memory = memories[i]},
                                            1, &request));
            assert_non_null(request);
        }
    }
    one_open(&good, &options);
    for (uint64_t i = 0; i < 10; i++) {
        place_prepare(&good.from, MARGIN, text_of(&text, i), LONGEST, LONGEST);
        one_post_receive(&good, LONGEST);
        one_post_send(&good, LONGEST, NET_AFTER_NOTHING, NULL);
        one_finish(&good, LONGEST, i);
    }
    one_close(&good);
    for (int i = 0; i < STUCK; i++) {
        net_deregister(senders[i], memories[i]);
        net_comm_close(senders[i]);
        net_link_close(&peers[i]);
    }
    place_destroy(&from);
}

/* --- the end of a comm --------------------------------------------------------------------- */

/* Done is done: what the sender has got rid of arrives, also in GPU memory. */
static void test_a_sender_that_closes_at_once(void **state)
{
    struct net_link_options options = options_of(2, WIRE_MATCH_TAG, WIRE_INLINE);

    (void)state;
    for (uint64_t i = 0; i < 20; i++) {
        uint64_t bytes = i % 3 == 0 ? 2000 : LONGEST;
        struct one one;
        bool done = false;

        one_open(&one, &options);
        place_prepare(&one.from, MARGIN, text_of(&text, i), bytes, bytes);
        if (i % 3 == 0) { /* from host memory, before there is a receive */
            assert_success(net_isend(one.sender, text_of(&text, i), bytes, 1, &one.send));
        } else {
            one_post_receive(&one, bytes);
            one_post_send(&one, bytes, NET_AFTER_NOTHING, NULL);
        }
        while (!is_done(&one.send))
            if (one.receive != NULL && !done) {
                assert_success(net_test(one.receive, &done, NULL));
                one.receive = done ? NULL : one.receive;
            }
        net_deregister(one.sender, one.from_memory);
        net_comm_close(one.sender);
        one.sender = NULL;
        one.from_memory = NULL;
        if (i % 3 == 0) {
            nap_us(500);
            one_post_receive(&one, bytes);
        }
        one_finish(&one, bytes, i);
        one_close(&one);
    }
}

static void test_a_peer_that_goes_away(void **state)
{
    struct net_link_options options = options_of(2, WIRE_MATCH_TAG, WIRE_INLINE);

    (void)state;
    for (int i = 0; i < 20; i++) {
        struct one one;
        uint64_t deadline = deadline_after_ms(LIMIT_MS);
        bool done = false;
        int result = TCPX_SUCCESS;

        one_open(&one, &options);
        place_prepare(&one.from, MARGIN, text_of(&text, 0), LONGEST, LONGEST);
        one_post_receive(&one, LONGEST);
        one_post_send(&one, LONGEST, NET_AFTER_NOTHING, NULL);
        for (int k = 0; k < i; k++)
            (void)is_done(&one.send);
        net_deregister(one.sender, one.from_memory);
        net_comm_close(one.sender);
        one.sender = NULL;
        one.from_memory = NULL;
        while (!done && result == TCPX_SUCCESS) {
            result = net_test(one.receive, &done, NULL);
            assert_false(deadline_passed(deadline));
        }
        if (!done)
            assert_int_equal(result, TCPX_REMOTE_ERROR);
        one_close(&one);
    }
}

static void test_wrong_use(void **state)
{
    struct net_link_options options = options_of(1, WIRE_MATCH_TAG, WIRE_INLINE);
    struct net_memory *memory;
    struct one one;

    (void)state;
    one_open(&one, &options);
    assert_int_not_equal(
        net_register(one.sender, place_at(&one.from, 0), (uint64_t)1 << 50, &memory), TCPX_SUCCESS);
    assert_success(net_register(one.sender, text.bytes, 100, &memory)); /* host memory */
    net_deregister(one.sender, memory);
    net_deregister(one.sender, NULL);
    one_close(&one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_traffic),
        cmocka_unit_test(test_both_ways),
        cmocka_unit_test(test_a_send_after_the_callers_work),
        cmocka_unit_test(test_a_stream_that_waits_for_a_receive),
        cmocka_unit_test(test_a_message_that_was_put_aside),
        cmocka_unit_test(test_many_comms_share_a_pool),
        cmocka_unit_test(test_receives_in_another_order),
        cmocka_unit_test(test_a_peer_that_takes_nothing),
        cmocka_unit_test(test_a_sender_that_closes_at_once),
        cmocka_unit_test(test_a_peer_that_goes_away),
        cmocka_unit_test(test_wrong_use),
    };

    return cmocka_run_group_tests_name("net_gpu", tests, set_up, tear_down);
}
