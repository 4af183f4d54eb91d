#include "tests/support/traffic.h"

#include <pthread.h>
#include <sched.h>

enum { SPARE_ROOM = 3000 };

/* --- messages -------------------------------------------------------------------------------- */

uint64_t traffic_size(const struct traffic_sizes *sizes, uint64_t *random)
{
    uint64_t kinds = 1;
    uint64_t kind;

    while (kinds <= 8 && sizes->below[kinds - 1] != 0)
        kinds++;
    if (sizes->rarely != 0 && random_below(random, 64) == 0)
        return random_below(random, sizes->rarely + 1);
    kind = random_below(random, kinds);
    return kind == 0 ? sizes->edges[random_below(random, sizes->edge_count)]
                     : random_below(random, sizes->below[kind - 1]);
}

static uint64_t random_tag(uint64_t *random)
{
    static const uint64_t often[] = {0, 1, 2, UINT64_MAX, 1u << 31};

    return random_below(random, 4) == 0 ? random_next(random)
                                        : often[random_below(random, sizeof often / sizeof *often)];
}

static bool same_tag(const struct traffic_stream *stream, int a, int b)
{
    return !stream->tags_count || stream->messages[a].tag == stream->messages[b].tag;
}

/* An order of its own for a block of messages: each tag's stay in theirs. */
static void mix(const struct traffic_stream *stream, uint64_t *random, int first, int count,
                int *order)
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

struct traffic_stream traffic_stream_create(const struct text *text, enum wire_match match,
                                            const struct traffic_sizes *sizes, uint64_t *random,
                                            int count, int block, int direction)
{
    struct traffic_stream stream = {.messages = calloc((size_t)count, sizeof *stream.messages),
                                    .send_order = calloc((size_t)count, sizeof *stream.send_order),
                                    .receive_order =
                                        calloc((size_t)count, sizeof *stream.receive_order),
                                    .count = count,
                                    .text = text,
                                    .first_number = (uint64_t)direction,
                                    .tags_count = match == WIRE_MATCH_TAG};

    assert_non_null(stream.messages);
    assert_non_null(stream.send_order);
    assert_non_null(stream.receive_order);
    for (int i = 0; i < count; i++)
        stream.messages[i] = (struct traffic_message){.tag = random_tag(random),
                                                      .bytes = traffic_size(sizes, random)};
    for (int first = 0; first < count; first += block) {
        int some = count - first < block ? count - first : block;

        mix(&stream, random, first, some, stream.send_order + first);
        mix(&stream, random, first, some, stream.receive_order + first);
    }
    return stream;
}

void traffic_stream_destroy(struct traffic_stream *stream)
{
    free(stream->messages);
    free(stream->send_order);
    free(stream->receive_order);
}

const uint8_t *traffic_bytes_of(const struct traffic_stream *stream, int message)
{
    return text_of(stream->text, stream->first_number + 2 * (uint64_t)message);
}

/* --- buffers --------------------------------------------------------------------------------- */

static void prepare_host(struct traffic *traffic, struct traffic_slot *slot, const uint8_t *message,
                         uint64_t bytes)
{
    bool sends = message != NULL;
    int number = (int)(slot - (sends ? traffic->sends : traffic->receives));

    if (sends)
        slot->buffer.data = slot_buffer(&traffic->send_slots, number, bytes);
    else
        slot->buffer.data = slot_marked(&traffic->receive_slots, number, bytes);
    if (sends)
        memcpy(slot->buffer.data, message, bytes);
}

/* A send or a receive of so many bytes. */
static void prepare(struct traffic *traffic, struct traffic_slot *slot, const uint8_t *message,
                    uint64_t bytes)
{
    slot->room = bytes;
    slot->buffer.bytes = bytes;
    if (traffic->memory != NULL)
        traffic->memory->prepare(slot, message, bytes);
    else
        prepare_host(traffic, slot, message, bytes);
}

static bool holds(const struct traffic *traffic, struct traffic_slot *slot, const uint8_t *message,
                  uint64_t bytes)
{
    return traffic->memory != NULL ? traffic->memory->holds(slot, message, bytes)
                                   : slot_holds(slot->buffer.data, slot->room, message, bytes);
}

/* A send is done: what still reads its buffer sends something else. */
static void spoil(const struct traffic *traffic, struct traffic_slot *slot)
{
    if (traffic->memory != NULL)
        traffic->memory->prepare(slot, NULL, slot->room);
    else
        memset(slot->buffer.data, 0xee, slot->room);
}

void traffic_create(struct traffic *traffic, const struct traffic_stream *out,
                    const struct traffic_stream *in, uint64_t longest)
{
    *traffic = (struct traffic){
        .out = out, .in = in, .slots = TRAFFIC_SLOTS, .random = out->first_number + 77};
    traffic->send_slots = slots_create(TRAFFIC_SLOTS, longest);
    traffic->receive_slots = slots_create(TRAFFIC_SLOTS, longest + SPARE_ROOM);
}

void traffic_destroy(struct traffic *traffic)
{
    slots_destroy(&traffic->send_slots);
    slots_destroy(&traffic->receive_slots);
}

/* --- turns ----------------------------------------------------------------------------------- */

enum { POSTS_NO_SENDS = 1, POSTS_NO_RECEIVES = 2, TESTS_NO_RECEIVES = 3, MOODS = 8 };

/* The first problem is kept, and all stop. */
static bool is_fine(struct traffic *traffic, const char *what, int result)
{
    if (result == TCPX_SUCCESS)
        return true;
    snprintf(traffic->problem, sizeof traffic->problem, "%s: %s: %s", what,
             tcpx_result_name(result), tcpx_last_error());
    return false;
}

static struct traffic_slot *free_slot(struct traffic *traffic, struct traffic_slot *all)
{
    int first = (int)random_below(&traffic->random, (uint64_t)traffic->slots);

    for (int i = 0; i < traffic->slots; i++)
        if (all[(first + i) % traffic->slots].request == NULL)
            return &all[(first + i) % traffic->slots];
    return NULL;
}

static bool post_send(struct traffic *traffic)
{
    struct traffic_slot *slot = free_slot(traffic, traffic->sends);
    const struct traffic_message *message;

    if (traffic->mood == POSTS_NO_SENDS || slot == NULL ||
        traffic->next_send == traffic->out->count)
        return false;
    slot->message = traffic->out->send_order[traffic->next_send];
    message = &traffic->out->messages[slot->message];
    prepare(traffic, slot, traffic_bytes_of(traffic->out, slot->message), message->bytes);
    if (!is_fine(traffic, "isend",
                 net_isend_buffer(traffic->sender, &slot->buffer, message->tag, &slot->request)))
        return false;
    traffic->next_send += slot->request != NULL;
    return slot->request != NULL;
}

static bool post_receive(struct traffic *traffic)
{
    struct traffic_slot *slot = free_slot(traffic, traffic->receives);
    const struct traffic_message *message;
    uint64_t spare = 0;

    if (traffic->mood == POSTS_NO_RECEIVES || slot == NULL ||
        traffic->next_receive == traffic->in->count)
        return false;
    slot->message = traffic->in->receive_order[traffic->next_receive];
    message = &traffic->in->messages[slot->message];
    if (random_below(&traffic->random, 3) == 0)
        spare = random_below(&traffic->random, SPARE_ROOM);
    prepare(traffic, slot, NULL, message->bytes + spare);
    if (!is_fine(traffic, "irecv",
                 net_irecv_buffer(traffic->receiver, &slot->buffer, message->tag, &slot->request)))
        return false;
    traffic->next_receive += slot->request != NULL;
    return slot->request != NULL;
}

static bool test_send(struct traffic *traffic, struct traffic_slot *slot)
{
    bool done = false;

    if (slot->request == NULL ||
        !is_fine(traffic, "test of a send", net_test(slot->request, &done, NULL)) || !done)
        return false;
    spoil(traffic, slot);
    slot->request = NULL;
    traffic->sent++;
    return true;
}

static bool test_receive(struct traffic *traffic, struct traffic_slot *slot)
{
    const struct traffic_message *message = &traffic->in->messages[slot->message];
    bool by_waiting = traffic->waits && random_below(&traffic->random, 4) == 0;
    uint64_t bytes = 0;
    bool done = false;

    if (traffic->mood == TESTS_NO_RECEIVES || slot->request == NULL ||
        !is_fine(traffic, "test of a receive",
                 by_waiting ? net_wait(slot->request, deadline_after_ms(1), &done, &bytes)
                            : net_test(slot->request, &done, &bytes)) ||
        !done)
        return false;
    slot->request = NULL;
    traffic->received++;
    if (bytes == message->bytes &&
        holds(traffic, slot, traffic_bytes_of(traffic->in, slot->message), bytes))
        return true;
    snprintf(traffic->problem, sizeof traffic->problem,
             "message %d: %llu of %llu bytes, or they are others, or there are some around it",
             slot->message, (unsigned long long)bytes, (unsigned long long)message->bytes);
    return false;
}

/* A few requests, whichever; true if one was done. */
static bool test_some(struct traffic *traffic)
{
    bool done = false;

    for (int i = 0; i < 8 && traffic->problem[0] == '\0'; i++) {
        int slot = (int)random_below(&traffic->random, (uint64_t)traffic->slots);

        if (random_below(&traffic->random, 2) == 0)
            done = test_send(traffic, &traffic->sends[slot]) || done;
        else
            done = test_receive(traffic, &traffic->receives[slot]) || done;
    }
    return done;
}

/* Now and then it stops doing one thing, so that the other end runs into its limits. */
static void change_mood(struct traffic *traffic)
{
    if (traffic->mood_left-- > 0)
        return;
    traffic->mood = random_below(&traffic->random, MOODS);
    traffic->mood_left = random_below(&traffic->random, 400);
}

bool traffic_turn(struct traffic *traffic)
{
    change_mood(traffic);
    if (traffic->naps && random_below(&traffic->random, 64) == 0)
        nap_us((long)random_below(&traffic->random, 300));
    switch (random_below(&traffic->random, 4)) {
    case 0:
        return post_send(traffic);
    case 1:
        return post_receive(traffic);
    default:
        return test_some(traffic);
    }
}

bool traffic_is_over(const struct traffic *traffic)
{
    return traffic->problem[0] != '\0' ||
           (traffic->sent == traffic->out->count && traffic->received == traffic->in->count);
}

void *traffic_run(void *argument)
{
    struct traffic *traffic = argument;
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    unsigned idle_turns = 0;

    while (!traffic_is_over(traffic) && (traffic->stop == NULL || !atomic_load(traffic->stop))) {
        idle_turns = traffic_turn(traffic) ? 0 : idle_turns + 1;
        if (idle_turns % 32 == 31)
            sched_yield(); /* there may be fewer cores than threads */
        if (deadline_passed(deadline))
            snprintf(traffic->problem, sizeof traffic->problem,
                     "%d of %d sent and %d of %d received", traffic->sent, traffic->out->count,
                     traffic->received, traffic->in->count);
    }
    if (traffic->stop != NULL && traffic->problem[0] != '\0')
        atomic_store(traffic->stop, true);
    return NULL;
}

void traffic_must_be_fine(const struct traffic *traffic, const char *where)
{
    if (traffic->problem[0] != '\0')
        fail_msg("%s: %s", where, traffic->problem);
    assert_true(traffic_is_over(traffic));
}

void traffic_run_both(struct traffic both[2], const char *where)
{
    atomic_bool stop = false;
    pthread_t threads[2];

    for (int i = 0; i < 2; i++) {
        both[i].stop = &stop;
        assert_int_equal(pthread_create(&threads[i], NULL, traffic_run, &both[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++)
        if (both[i].problem[0] != '\0')
            fail_msg("%s, end %d: %s", where, i, both[i].problem);
    for (int i = 0; i < 2; i++)
        traffic_must_be_fine(&both[i], where);
}
