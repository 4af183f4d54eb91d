/*
 * The transport with GPU memory: random messages from host and GPU memory into host and GPU memory,
 * in every mode of a comm, with every byte checked and the bytes around each buffer; sends that
 * wait for the caller's work on the GPU; many comms that share one small staging pool; a peer that
 * takes nothing; and a GPU that fails. Runs on any backend.
 */
#include "tests/support/gpu_pair.h"
#include "tests/support/traffic.h"

enum { EAGER_LIMIT = 4096, SLICE = 64 << 10, LONGEST = 600000, ROOM = LONGEST + 4 * GPU_MARGIN };

static unsigned messages_wanted(void)
{
    return (unsigned)number_of("TCPX_TEST_MESSAGES", 2000);
}

static const struct net_link_options *options_of(uint8_t sockets, enum wire_match match,
                                                 enum wire_framing framing)
{
    static struct net_link_options options;

    options = *PAIR_OPTIONS(.sockets = sockets, .match = match, .framing = framing,
                            .eager_credit = 32768, .largest_slice = SLICE);
    return &options;
}

/* Devmem has its payload on sockets of its own, behind one more for records. */
static const struct net_link_options *with_tags(uint8_t sockets)
{
    bool devmem = getenv("UCCL_TCPX_SOFT_DEVMEM") != NULL;

    return options_of(devmem ? sockets + 1 : sockets, WIRE_MATCH_TAG,
                      devmem ? WIRE_SEPARATE : WIRE_INLINE);
}

/* --- random traffic ------------------------------------------------------------------------ */

enum { SLOTS = 12, SPARE = 3000 };

/* Some buffers in GPU memory and some in host memory, at any alignment. */
struct gpu_slot {
    struct place place;
    uint64_t at;
};

static uint64_t offsets = 5; /* random numbers */

static void slot_prepare(struct traffic_slot *slot, const uint8_t *message, uint64_t bytes)
{
    struct gpu_slot *own = slot->place;

    own->at = GPU_MARGIN + random_below(&offsets, GPU_MARGIN);
    place_fill(&own->place, own->at + bytes + GPU_MARGIN, own->at, message, bytes);
    slot->buffer.data = place_at(&own->place, own->at);
}

static bool slot_is_right(struct traffic_slot *slot, const uint8_t *message, uint64_t bytes)
{
    struct gpu_slot *own = slot->place;

    return place_holds(&own->place, own->at + slot->room + GPU_MARGIN, own->at, message, bytes);
}

static const struct traffic_memory gpu_slots = {.prepare = slot_prepare, .holds = slot_is_right};

static void slots_open(struct net_comm *comm, struct traffic_slot *slots)
{
    for (int i = 0; i < SLOTS; i++) {
        struct gpu_slot *own = calloc(1, sizeof *own);

        assert_non_null(own);
        place_create(&own->place, random_below(&offsets, 3) != 0, ROOM + SPARE);
        if (own->place.in_gpu || i % 2 == 0)
            assert_success(net_register(comm, place_at(&own->place, 0), own->place.bytes,
                                        &slots[i].buffer.memory));
        slots[i].place = own;
    }
}

static void slots_close(struct net_comm *comm, struct traffic_slot *slots)
{
    for (int i = 0; i < SLOTS; i++) {
        struct gpu_slot *own = slots[i].place;

        net_deregister(comm, slots[i].buffer.memory);
        place_destroy(&own->place);
        free(own);
    }
}

/* One direction. */
struct flow {
    struct pair pair;
    struct traffic_stream stream;
    struct traffic traffic;
};

static void flow_open(struct flow *flow, const struct net_link_options *options, unsigned count,
                      uint64_t seed)
{
    static const uint64_t edges[] = {0,     1,         EAGER_LIMIT, EAGER_LIMIT + 1,
                                     SLICE, SLICE + 1, 3 * SLICE,   4096};
    static const struct traffic_sizes sizes = {
        .edges = edges,
        .edge_count = sizeof edges / sizeof *edges,
        .below = {LONGEST + 1, 100000, 8000, 8000, 8000, 8000, 8000}};

    flow->pair = pair_open(options);
    flow->stream =
        traffic_stream_create(&world.text, options->match, &sizes, &seed, (int)count, SLOTS, 0);
    traffic_create(&flow->traffic, &flow->stream, &flow->stream, 0);
    flow->traffic.sender = flow->pair.sender;
    flow->traffic.receiver = flow->pair.receiver;
    flow->traffic.memory = &gpu_slots;
    flow->traffic.slots = SLOTS;
    slots_open(flow->pair.sender, flow->traffic.sends);
    slots_open(flow->pair.receiver, flow->traffic.receives);
}

static void flow_close(struct flow *flow)
{
    traffic_must_be_fine(&flow->traffic, "GPU memory");
    slots_close(flow->pair.sender, flow->traffic.sends);
    slots_close(flow->pair.receiver, flow->traffic.receives);
    pair_close(&flow->pair);
    traffic_destroy(&flow->traffic);
    traffic_stream_destroy(&flow->stream);
}

TEST(test_random_traffic)
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
    static struct flow flow;

    for (unsigned i = 0; i < MODES; i++) {
        flow_open(&flow, options_of(modes[i].sockets, modes[i].match, modes[i].framing),
                  messages_wanted() / MODES + 1, 77 + i);
        traffic_run(&flow.traffic);
        flow_close(&flow);
    }
}

/* Both ways at once, in one process: neither direction's pool stops the other. */
TEST(test_both_ways)
{
    static struct flow there;
    static struct flow back;
    uint64_t deadline = deadline_after_ms(2 * LIMIT_MS);

    flow_open(&there, with_tags(2), messages_wanted() / 10 + 1, 5);
    flow_open(&back, with_tags(2), messages_wanted() / 10 + 1, 6);
    while (!traffic_is_over(&there.traffic) || !traffic_is_over(&back.traffic)) {
        traffic_turn(&there.traffic);
        traffic_turn(&back.traffic);
        assert_false(deadline_passed(deadline));
    }
    flow_close(&there);
    flow_close(&back);
}

/* --- one message --------------------------------------------------------------------------- */

/* A whole place with the message of this number, or without. */
static void fill(struct gpu_end *end, const uint8_t *message, uint64_t bytes)
{
    place_fill(&end->place, ROOM, GPU_MARGIN, message, bytes);
}

static void post_receive(struct gpu_pair *pair, uint64_t bytes)
{
    fill(&pair->receiver, NULL, 0);
    assert_success(gpu_pair_receive(pair, bytes));
}

static void post_send(struct gpu_pair *pair, uint64_t bytes)
{
    assert_success(gpu_pair_send(pair, bytes, NET_AFTER_NOTHING, NULL));
}

static void assert_arrived(struct gpu_pair *pair, uint64_t bytes, uint64_t number)
{
    assert_true(
        place_holds(&pair->receiver.place, ROOM, GPU_MARGIN, text_of(&world.text, number), bytes));
}

static void finish(struct gpu_pair *pair, uint64_t bytes, uint64_t number)
{
    gpu_pair_must_end(pair);
    assert_arrived(pair, bytes, number);
}

/* The data is written by work that is still on the caller's stream when the send begins. */
TEST(test_a_send_after_the_callers_work)
{
    struct gpu_event *written;
    struct gpu_pair pair;

    gpu_pair_open(&pair, with_tags(2), ROOM);
    assert_success(gpu_event_create(world.gpu, &written));
    for (uint64_t i = 0; i < 6; i++) {
        uint64_t bytes = i % 2 ? 3000 : LONGEST;
        gpu_address at = pair.sender.place.device.address + GPU_MARGIN;

        fill(&pair.sender, NULL, 0);
        post_receive(&pair, bytes);
        memcpy(world.window.host, text_of(&world.text, i), bytes);
        for (int k = 0; k < 8; k++) /* to be late */
            assert_success(gpu_set(world.stream, at, GPU_MARK, bytes));
        assert_success(gpu_copy_to_device(world.stream, at, world.window.host, bytes));
        assert_success(gpu_event_record(written, world.stream));
        if (i % 3 == 0)
            assert_success(gpu_pair_send(&pair, bytes, NET_AFTER_EVENT, gpu_event_native(written)));
        else
            assert_success(
                gpu_pair_send(&pair, bytes, NET_AFTER_STREAM, gpu_stream_native(world.stream)));
        finish(&pair, bytes, i);
    }
    gpu_event_destroy(written);
    gpu_pair_free(&pair);
}

/* The caller's stream is made to wait, and what it reads then is there. */
TEST(test_a_stream_that_waits_for_a_receive)
{
    struct gpu_pair pair;

    gpu_pair_open(&pair, with_tags(2), ROOM);
    for (uint64_t i = 0; i < 10; i++) {
        const uint8_t *message = text_of(&world.text, i);
        uint64_t size = i % 2 ? 3000 : LONGEST;
        uint64_t deadline = deadline_after_ms(LIMIT_MS);
        uint64_t bytes = 0;
        bool done = false;

        fill(&pair.sender, message, size);
        post_receive(&pair, size);
        if (i % 3 == 0) /* from host memory; it may have been put aside */
            pair.sender.request = must_send(pair.sender.comm, message, size, 1);
        else
            post_send(&pair, size);
        while (!done) {
            assert_success(gpu_end_step(&pair.sender, false));
            assert_success(net_test_on_stream(pair.receiver.request,
                                              gpu_stream_native(world.stream), &done, &bytes));
            assert_false(deadline_passed(deadline));
        }
        pair.receiver.request = NULL;
        assert_int_equal(bytes, size);
        assert_memory_equal(world_look(pair.receiver.place.device.address + GPU_MARGIN, size),
                            message, size);
        gpu_pair_must_end(&pair);
    }
    gpu_pair_free(&pair);
}

static void must_be_done(struct net_request *request)
{
    bool done = false;

    assert_success(net_wait(request, deadline_after_ms(LIMIT_MS), &done, NULL));
    assert_true(done);
}

/* A small message that came before its receive into GPU memory, from a sender in host memory. */
TEST(test_a_message_that_was_put_aside)
{
    struct gpu_pair pair;

    gpu_pair_open(&pair, with_tags(1), ROOM);
    for (uint64_t i = 0; i < 20; i++) {
        uint64_t bytes = 1 + i * 200;

        must_be_done(must_send(pair.sender.comm, text_of(&world.text, i), bytes, 1));
        nap_us(1000);
        post_receive(&pair, bytes);
        finish(&pair, bytes, i);
    }
    gpu_pair_free(&pair);
}

/*
 * Several at once: they wait for slots behind each other, and the caller sleeps while they are
 * copied.
 */
TEST(test_many_messages_that_were_put_aside)
{
    enum { MESSAGES = 24, ROUNDS = 200, BYTES = 500 };
    struct net_request *receives[MESSAGES];
    struct gpu_pair pair;

    gpu_pair_open(&pair, with_tags(1), ROOM);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct net_buffer buffer = gpu_end_buffer(&pair.receiver, BYTES);
        const uint8_t *message = text_of(&world.text, round);

        for (uint64_t i = 0; i < MESSAGES; i++)
            must_be_done(must_send(pair.sender.comm, message + i * BYTES, BYTES, 1));
        nap_us(1000);
        for (uint64_t i = 0; i < MESSAGES; i++) {
            assert_success(net_irecv_buffer(pair.receiver.comm, &buffer, 1, &receives[i]));
            buffer.data = (uint8_t *)buffer.data + BYTES;
        }
        for (uint64_t i = 0; i < MESSAGES; i++)
            must_be_done(receives[i]);
        assert_memory_equal(
            world_look(pair.receiver.place.device.address + GPU_MARGIN, MESSAGES * BYTES), message,
            MESSAGES * BYTES);
    }
    gpu_pair_free(&pair);
}

/* --- sharing ------------------------------------------------------------------------------- */

TEST(test_many_comms_share_a_pool)
{
    enum { COMMS = 64 };
    static struct gpu_pair many[COMMS];
    uint64_t deadline = deadline_after_ms(2 * LIMIT_MS);
    int left = COMMS;

    for (int i = 0; i < COMMS; i++) {
        gpu_pair_open(&many[i], with_tags(1), ROOM);
        fill(&many[i].sender, text_of(&world.text, (uint64_t)i), LONGEST);
        post_receive(&many[i], LONGEST);
        post_send(&many[i], LONGEST);
    }
    while (left > 0) {
        left = 0;
        for (int i = 0; i < COMMS; i++)
            left += !gpu_pair_step(&many[i], false);
        assert_false(deadline_passed(deadline));
    }
    for (int i = 0; i < COMMS; i++) {
        finish(&many[i], LONGEST, (uint64_t)i);
        gpu_pair_free(&many[i]);
    }
}

/* The last tag's receive comes first: what has no receive yet takes no slot from what has. */
TEST(test_receives_in_another_order)
{
    enum { TAGS = 12 };
    struct net_request *sends[TAGS];
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    struct gpu_end ends[TAGS];
    struct net_buffer buffer;
    struct gpu_pair pair;
    int left = TAGS;

    gpu_pair_open(&pair, with_tags(2), ROOM);
    fill(&pair.sender, text_of(&world.text, 9), LONGEST);
    buffer = gpu_end_buffer(&pair.sender, LONGEST);
    for (int i = 0; i < TAGS; i++)
        assert_success(net_isend_buffer(pair.sender.comm, &buffer, (uint64_t)i, &sends[i]));
    for (int i = TAGS - 1; i >= 0; i--) {
        ends[i] = (struct gpu_end){.comm = pair.receiver.comm};
        place_create(&ends[i].place, true, ROOM);
        fill(&ends[i], NULL, 0);
        assert_success(
            net_register(ends[i].comm, place_at(&ends[i].place, 0), ROOM, &ends[i].memory));
        buffer = gpu_end_buffer(&ends[i], LONGEST);
        assert_success(net_irecv_buffer(ends[i].comm, &buffer, (uint64_t)i, &ends[i].request));
    }
    while (left > 0) {
        left = 0;
        for (int i = 0; i < TAGS; i++) {
            left += !request_is_done(&sends[i]);
            left += !request_is_done(&ends[i].request);
        }
        assert_false(deadline_passed(deadline));
    }
    for (int i = 0; i < TAGS; i++) {
        assert_true(
            place_holds(&ends[i].place, ROOM, GPU_MARGIN, text_of(&world.text, 9), LONGEST));
        net_deregister(pair.receiver.comm, ends[i].memory);
        place_destroy(&ends[i].place);
    }
    gpu_pair_free(&pair);
}

/* A peer that announces receives and then reads nothing holds up its own comm and no other. */
TEST(test_a_peer_that_takes_nothing)
{
    enum { STUCK = 3 };
    struct net_memory *memories[STUCK];
    struct by_hand peers[STUCK];
    struct gpu_pair good;
    struct place from;

    place_create(&from, true, LONGEST);
    for (int i = 0; i < STUCK; i++) {
        struct net_buffer buffer = {.data = place_at(&from, 0), .bytes = LONGEST};
        struct net_request *request;

        peers[i] = by_hand_open(NET_SENDER, with_tags(1));
        assert_success(net_register(peers[i].comm, place_at(&from, 0), LONGEST, &memories[i]));
        buffer.memory = memories[i];
        for (uint32_t k = 0; k < 30; k++)
            hand_say(peers[i].link.reverse,
                     &(struct wire_record){
                         .type = WIRE_POST, .sequence = k, .length = LONGEST, .tag = 1});
        for (int k = 0; k < 30; k++) {
            assert_success(net_isend_buffer(peers[i].comm, &buffer, 1, &request));
            assert_non_null(request);
        }
    }
    gpu_pair_open(&good, with_tags(1), ROOM);
    for (uint64_t i = 0; i < 10; i++) {
        fill(&good.sender, text_of(&world.text, i), LONGEST);
        post_receive(&good, LONGEST);
        post_send(&good, LONGEST);
        finish(&good, LONGEST, i);
    }
    gpu_pair_free(&good);
    for (int i = 0; i < STUCK; i++) {
        net_deregister(peers[i].comm, memories[i]);
        by_hand_close(&peers[i]);
    }
    place_destroy(&from);
}

/* --- the end of a comm --------------------------------------------------------------------- */

/* Done is done: what the sender has got rid of arrives, also in GPU memory. */
TEST(test_a_sender_that_closes_at_once)
{
    for (uint64_t i = 0; i < 20; i++) {
        bool from_host = i % 3 == 0; /* before there is a receive */
        uint64_t bytes = from_host ? 2000 : LONGEST;
        struct gpu_pair pair;

        gpu_pair_open(&pair, with_tags(2), ROOM);
        fill(&pair.sender, text_of(&world.text, i), bytes);
        if (from_host) {
            pair.sender.request = must_send(pair.sender.comm, text_of(&world.text, i), bytes, 1);
        } else {
            post_receive(&pair, bytes);
            post_send(&pair, bytes);
        }
        while (pair.sender.request != NULL) {
            assert_success(gpu_end_step(&pair.sender, false));
            assert_success(gpu_end_step(&pair.receiver, false));
        }
        gpu_end_close(&pair.sender);
        if (from_host) {
            nap_us(500);
            post_receive(&pair, bytes);
        }
        finish(&pair, bytes, i);
        gpu_pair_free(&pair);
    }
}

TEST(test_a_peer_that_goes_away)
{
    for (int i = 0; i < 20; i++) {
        struct gpu_pair pair;
        int result;

        gpu_pair_open(&pair, with_tags(2), ROOM);
        fill(&pair.sender, text_of(&world.text, 0), LONGEST);
        post_receive(&pair, LONGEST);
        post_send(&pair, LONGEST);
        for (int k = 0; k < i; k++)
            assert_success(gpu_end_step(&pair.sender, false));
        gpu_end_close(&pair.sender);
        result = end_of(pair.receiver.request, NULL);
        assert_true(result == TCPX_SUCCESS || result == TCPX_REMOTE_ERROR);
        gpu_pair_free(&pair);
    }
}

TEST(test_wrong_use)
{
    struct net_memory *memory;
    struct gpu_pair pair;

    gpu_pair_open(&pair, with_tags(1), ROOM);
    assert_int_not_equal(
        net_register(pair.sender.comm, place_at(&pair.sender.place, 0), (uint64_t)1 << 50, &memory),
        TCPX_SUCCESS);
    assert_success(
        net_register(pair.sender.comm, world.text.bytes, 100, &memory)); /* host memory */
    net_deregister(pair.sender.comm, memory);
    net_deregister(pair.sender.comm, NULL);
    gpu_pair_free(&pair);
}

static int set_up(void)
{
    return world_open(LONGEST, LONGEST);
}

SUITE(.name = "net_gpu", .set_up = set_up, .tear_down = world_close);
