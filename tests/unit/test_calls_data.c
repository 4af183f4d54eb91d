/*
 * Messages through the public calls: of every length, in any mixture and order, as many as fit,
 * from several threads. Every byte is checked. tests/unit/calls.h says how these tests run.
 */
#include "tests/unit/calls.h"

#include <pthread.h>

/* --- batches ------------------------------------------------------------------------------- */

struct batch {
    struct way *way;
    uint64_t random;
    int count;
    size_t used; /* bytes of the targets */
    struct message messages[DEPTH];
};

static void shuffle(uint64_t *random, int *order, int count)
{
    for (int i = 0; i < count; i++)
        order[i] = i;
    for (int i = count; i > 1; i--) {
        size_t other = random_below(random, (size_t)i);
        int last = order[i - 1];

        order[i - 1] = order[other];
        order[other] = last;
    }
}

/* Side by side in the targets, with a margin around each. */
static void lay_out(struct batch *batch)
{
    size_t ends[KINDS] = {MARGIN, MARGIN};

    for (int i = 0; i < batch->count; i++) {
        struct message *message = &batch->messages[i];

        message->to = ends[message->target];
        ends[message->target] += message->room + MARGIN;
    }
    batch->used = ends[HOST] > ends[GPU] ? ends[HOST] : ends[GPU];
    CHECK(batch->used <= SPAN);
    poison(batch->way, batch->used);
}

/* Sends may come before their receives, and the other way round. */
static void post_batch(struct batch *batch)
{
    int sent = 0;
    int received = 0;

    while (sent < batch->count || received < batch->count) {
        bool sends = received == batch->count ||
                     (sent < batch->count && random_below(&batch->random, 2) == 0);
        struct message *message = &batch->messages[sends ? sent++ : received++];

        if (sends)
            message->send = post_send(batch->way, message->source, message->from, message->bytes);
        else
            message->receive =
                post_receive(batch->way, message->target, message->to, message->room);
    }
}

/* Whichever comes first is asked: the comm sees to the order. */
static void finish_batch(struct batch *batch)
{
    bool sent[DEPTH] = {false};
    bool received[DEPTH] = {false};
    int left = 2 * batch->count;

    while (left > 0) {
        int i = (int)random_below(&batch->random, (size_t)batch->count);
        struct message *message = &batch->messages[i];
        int size = -1;

        if (!sent[i] && is_done(message->send, &size)) {
            check_size(HOST, size, message->bytes);
            sent[i] = true;
            left--;
        }
        if (!received[i] && is_done(message->receive, &message->size)) {
            check_size(message->target, message->size, message->bytes);
            received[i] = true;
            left--;
        }
    }
}

/* In parts of 1 to 16, in any order; each part is consumed in any order. */
static void settle_batch(struct batch *batch)
{
    int order[DEPTH];
    void *requests[DEPTH];
    int next = 0;

    shuffle(&batch->random, order, batch->count);
    while (next < batch->count) {
        int count = 1 + (int)random_below(&batch->random, (size_t)(batch->count - next));

        for (int i = 0; i < count; i++)
            requests[i] = batch->messages[order[next + i]].receive;
        settle(batch->way, requests, count);
        next += count;
    }
}

static void check_batch(const struct batch *batch)
{
    check_messages(batch->way, batch->messages, batch->count, batch->used);
}

static void run_batch(struct batch *batch)
{
    lay_out(batch);
    post_batch(batch);
    finish_batch(batch);
    settle_batch(batch);
    check_batch(batch);
}

static void exchange_one(struct way *way, int source, int target, size_t bytes, size_t room)
{
    struct batch batch = {.way = way, .random = bytes + 1, .count = 1};

    batch.messages[0] = (struct message){
        .source = source, .target = target, .from = bytes % 1000, .bytes = bytes, .room = room};
    run_batch(&batch);
}

/* Messages of every length arrive whole, into rooms that are larger or not, and with their size. */
WAY_CASE(sizes, ALWAYS)
{
    static const size_t sizes[] = {0,    1,     2,     15,    16,    17,    23,     0,
                                   4095, 4096,  4097,  8192,  65535, 65536, 100001, 262144,
                                   511,  99999, 32767, 12345, 0,     1,     524287, 524288};

    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        for (int source = 0; source < facts.kinds; source++)
            for (int target = 0; target < facts.kinds; target++) {
                exchange_one(way, source, target, sizes[i], sizes[i]);
                exchange_one(way, source, target, sizes[i] / 2,
                             sizes[i] < 524000 ? sizes[i] + i : 524288);
            }
}

static int call_at(struct way *way, bool sends, long at, int size, void **request)
{
    void *data = way->to[HOST].address + at;

    return sends ? tcpx_isend(way->sender, way->from[HOST].address + at, size, 0,
                              way->from_handle[HOST], request)
                 : tcpx_irecv(way->receiver, 1, &data, &size, NULL, &way->to_handle[HOST], request);
}

/* The longest that is not refused for its length; INT_MAX: none is. Nothing is posted. */
static int longest(struct way *way, bool sends)
{
    void *request = &request;
    int least = 0;
    int most = INT_MAX;

    while (least < most) {
        int size = least + (most - least) / 2 + (most - least) % 2;

        CHECK(call_at(way, sends, -1, size, &request) == TCPX_INVALID_ARGUMENT);
        if (check_said("not inside"))
            least = size;
        else
            most = size - 1;
    }
    if (least < INT_MAX) {
        CHECK_REFUSED(call_at(way, sends, 0, least + 1, &request), "at most");
        CHECK(said_number(least) && said_number(least + 1));
    }
    CHECK(request == &request);
    return least;
}

/* One message of `bytes` into room of the same size; the areas are made for it. */
static void exchange_long(struct way *way, int kind, size_t bytes)
{
    struct way longer = *way;
    uint8_t *expected = malloc(bytes + MARGIN);
    void *receive;
    int size = 0;

    CHECK(expected != NULL);
    longer.from[kind] = make_area(kind, bytes);
    longer.to[kind] = make_area(kind, bytes + MARGIN);
    memset(expected, POISON, bytes + MARGIN);
    write_area(&longer.to[kind], 0, expected, bytes + MARGIN);
    for (size_t i = 0; i < bytes; i++)
        expected[i] = (uint8_t)(pattern[kind][i % SPAN] + i / SPAN);
    write_area(&longer.from[kind], 0, expected, bytes);
    longer.from_handle[kind] = register_area(way->sender, &longer.from[kind]);
    longer.to_handle[kind] = register_area(way->receiver, &longer.to[kind]);
    receive = post_receive(&longer, kind, 0, bytes);
    finish_two(post_send(&longer, kind, 0, bytes), receive, &size);
    check_size(kind, size, bytes);
    settle(way, &receive, 1);
    check_holds(&longer.to[kind], 0, expected, bytes + MARGIN);
    CHECK_SUCCESS(tcpx_dereg_mr(way->sender, longer.from_handle[kind]));
    CHECK_SUCCESS(tcpx_dereg_mr(way->receiver, longer.to_handle[kind]));
    free_area(&longer.from[kind]);
    free_area(&longer.to[kind]);
    free(expected);
}

/* The longest message goes through, and a longer one is refused in words. */
WAY_CASE(longest, ALWAYS)
{
    const int enough = 5 << 20;
    int sent = longest(way, true);
    int received = longest(way, false);

    CHECK(received <= sent);
    CHECK(!facts.quirky || (received == 524288 && sent == 524288));
    CHECK(facts.quirky || received == (facts.has_queue ? 4 << 20 : INT_MAX));
    for (int i = 0; i < turns_of(3); i++)
        for (int kind = 0; kind < facts.kinds; kind++)
            exchange_long(way, kind, (size_t)(received < enough ? received : enough));
}

static size_t random_bytes(uint64_t *random)
{
    size_t most = random_below(random, 4) == 0 ? 20000 : 5000;

    return random_below(random, 8) == 0 ? 0 : random_below(random, most);
}

static void make_messages(struct batch *batch)
{
    uint64_t *random = &batch->random;

    batch->count = 1 + (int)random_below(random, DEPTH);
    for (int i = 0; i < batch->count; i++) {
        size_t bytes = random_bytes(random);

        batch->messages[i] = (struct message){
            .source = (int)random_below(random, (size_t)facts.kinds),
            .target = (int)random_below(random, (size_t)facts.kinds),
            .from = random_below(random, SPAN - bytes),
            .bytes = bytes,
            .room = bytes + (random_below(random, 2) == 0 ? 0 : random_below(random, 5000))};
    }
}

/*
 * Any mixture of messages and of memory on one comm, tested, unpacked and consumed in any order:
 * every byte arrives, and none beside them.
 */
WAY_CASE(batches, ALWAYS)
{
    struct batch batch = {.random = 99, .way = way};

    for (int i = 0; i < turns_of(60); i++) {
        make_messages(&batch);
        run_batch(&batch);
    }
}

/* Two comms at once do not disturb each other. */
WAY_CASE(both_ways, ALWAYS)
{
    struct way other = make_way();
    struct batch batches[2] = {{.random = 5, .way = way}, {.random = 6, .way = &other}};

    for (int turn = 0; turn < turns_of(30); turn++) {
        for (int i = 0; i < 2; i++) {
            make_messages(&batches[i]);
            lay_out(&batches[i]);
            post_batch(&batches[i]);
        }
        finish_batch(&batches[turn % 2]);
        finish_batch(&batches[(turn + 1) % 2]);
        settle_batch(&batches[(turn + 1) % 2]);
        settle_batch(&batches[turn % 2]);
        for (int i = 0; i < 2; i++)
            check_batch(&batches[i]);
    }
    end_way(&other);
}

/* --- the window ---------------------------------------------------------------------------- */

static void check_window(struct way *way, int kind)
{
    void *sends[DEPTH];
    void *receives[DEPTH];
    int size = 0;

    poison(way, DEPTH * PIECE);
    for (int i = 0; i < DEPTH; i++)
        sends[i] = post_send(way, kind, (size_t)i * PIECE, PIECE);
    CHECK(try_send(way, kind, 0, PIECE) == NULL);
    CHECK(try_send(way, kind, 0, PIECE) == NULL);
    for (int i = 0; i < DEPTH; i++)
        receives[i] = post_receive(way, kind, (size_t)i * PIECE, PIECE);
    CHECK(try_receive(way, kind, 0, PIECE) == NULL);
    for (int i = 0; i < DEPTH; i++)
        finish_two(sends[i], receives[i], &size);
    if (facts.unpacks && kind == GPU) { /* done, but in flight until they are consumed */
        CHECK(try_receive(way, kind, 0, PIECE) == NULL);
        for (int i = 0; i < DEPTH; i++)
            CHECK(is_done(receives[i], &size) && size == PIECE);
    }
    settle(way, receives, DEPTH);
    check_holds(&way->to[kind], 0, pattern[kind], DEPTH * PIECE);
}

/* 16 requests are taken, the 17th is "busy" and no failure; then 16 again. */
WAY_CASE(window, ALWAYS)
{
    for (int turn = 0; turn < 6 / facts.kinds; turn++) /* more than there are places for requests */
        for (int kind = 0; kind < facts.kinds; kind++)
            check_window(way, kind);
}

static void check_reverse(struct way *way, int kind)
{
    void *sends[DEPTH];
    void *receives[DEPTH];
    int size = -1;

    for (int i = 0; i < DEPTH; i++) {
        receives[i] = post_receive(way, kind, (size_t)i * PIECE, PIECE);
        sends[i] = post_send(way, kind, (size_t)i * PIECE, PIECE - (size_t)i);
    }
    finish_two(sends[DEPTH - 1], receives[DEPTH - 1], &size); /* and with it all before it */
    check_size(kind, size, PIECE - (DEPTH - 1));
    if (facts.unpacks && kind == GPU) /* nobody has been told */
        CHECK_MISUSE(tcpx_irecv_consumed(way->receiver, 1, receives[0]), "consumed");
    for (int i = DEPTH - 2; i >= 0; i--) {
        CHECK(is_done(sends[i], NULL));
        CHECK(is_done(receives[i], &size));
        check_size(kind, size, PIECE - (size_t)i);
    }
    settle(way, receives, DEPTH);
}

/* The last request may be asked about first; the others are done before it. */
WAY_CASE(reverse, ALWAYS)
{
    for (int turn = 0; turn < 3; turn++)
        for (int kind = 0; kind < facts.kinds; kind++)
            check_reverse(way, kind);
    check_way(way);
}

/* --- streams ------------------------------------------------------------------------------- */

/* Many messages in one direction, of which both ends know what they are. */
struct flow {
    struct way *way;
    uint64_t seed;
    int count;
};

enum { SLOT = 16384 };

static struct message next_message(uint64_t *random)
{
    size_t bytes = random_below(random, 6) == 0 ? random_below(random, SLOT - MARGIN)
                                                : random_below(random, 700);
    struct message message = {.source = (int)random_below(random, (size_t)facts.kinds),
                              .target = (int)random_below(random, (size_t)facts.kinds),
                              .from = random_below(random, SPAN - SLOT),
                              .bytes = bytes};

    message.room = bytes + random_below(random, MARGIN);
    return message;
}

/* As many as there is room for, then the oldest is waited for. */
static void *send_all(void *argument)
{
    const struct flow *flow = argument;
    struct message message;
    uint64_t random = flow->seed;
    void *requests[DEPTH] = {NULL};
    int posted = 0;
    int done = 0;

    message = next_message(&random);
    while (done < flow->count) {
        void *request = NULL;

        if (posted < flow->count)
            request = try_send(flow->way, message.source, message.from, message.bytes);
        if (request != NULL) {
            CHECK(posted - done < DEPTH);
            requests[posted++ % DEPTH] = request;
            message = next_message(&random);
        } else if (is_done(requests[done % DEPTH], NULL)) {
            done++;
        } else {
            sched_yield();
        }
    }
    return NULL;
}

/* Those from `first` on, unpacked the other way round. */
static void settle_flow(struct way *way, const struct message *ring, int first, int count)
{
    void *requests[DEPTH];

    for (int i = 0; i < count; i++)
        requests[i] = ring[(first + count - 1 - i) % DEPTH].receive;
    settle(way, requests, count);
    for (int i = 0; i < count; i++) {
        const struct message *message = &ring[(first + i) % DEPTH];

        check_holds(&way->to[message->target], message->to,
                    pattern[message->source] + message->from, message->bytes);
    }
}

static void *receive_all(void *argument)
{
    const struct flow *flow = argument;
    struct message ring[DEPTH];
    struct message message;
    uint64_t random = flow->seed;
    uint64_t choices = flow->seed + 1;
    int posted = 0;
    int done = 0;
    int settled = 0;

    message = next_message(&random);
    while (settled < flow->count) {
        struct message *oldest = &ring[done % DEPTH];

        message.to = (size_t)(posted % DEPTH) * SLOT;
        message.receive = NULL;
        if (posted < flow->count && posted - settled < DEPTH)
            message.receive = try_receive(flow->way, message.target, message.to, message.room);
        if (message.receive != NULL) {
            ring[posted++ % DEPTH] = message;
            message = next_message(&random);
        } else if (done < posted && is_done(oldest->receive, &oldest->size)) {
            check_size(oldest->target, oldest->size, oldest->bytes);
            done++;
        } else if (done > settled) {
            int count = 1 + (int)random_below(&choices, (size_t)(done - settled));

            settle_flow(flow->way, ring, settled, count);
            settled += count;
        } else {
            sched_yield();
        }
    }
    return NULL;
}

static void run_flows(struct flow *flows, int count)
{
    pthread_t threads[2 * DEPTH] = {0};

    for (int i = 0; i < count; i++) {
        CHECK(pthread_create(&threads[2 * i], NULL, send_all, &flows[i]) == 0);
        CHECK(pthread_create(&threads[2 * i + 1], NULL, receive_all, &flows[i]) == 0);
    }
    for (int i = 0; i < 2 * count; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

/* Thousands of messages on one comm, as fast as they go. */
WAY_CASE(stream, ALWAYS)
{
    run_flows(&(struct flow){.way = way, .seed = 31, .count = turns_of(3000)}, 1);
}

static void *connect_and_check(void *argument)
{
    struct way *way = argument;

    *way = make_way();
    check_way(way);
    return NULL;
}

/* Several threads connect at once, and work on several comms at once. */
CASE(threads, ALWAYS)
{
    enum { WAYS = 4 };
    struct way ways[WAYS];
    struct flow flows[WAYS];
    pthread_t threads[WAYS];

    start();
    for (int i = 0; i < WAYS; i++) {
        flows[i] =
            (struct flow){.way = &ways[i], .seed = 1000 + (uint64_t)i, .count = turns_of(300)};
        CHECK(pthread_create(&threads[i], NULL, connect_and_check, &ways[i]) == 0);
    }
    for (int i = 0; i < WAYS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    run_flows(flows, WAYS);
    for (int i = 0; i < WAYS; i++)
        end_way(&ways[i]);
}

/* Two processes, of which one sends all it has, closes and ends. */
PROCESSES_CASE(processes)
{
    receive_all(&(struct flow){.way = way, .seed = 8, .count = turns_of(1000)});
    atomic_store(&child_shared->flag, STAGE_RECEIVED);
}

static void send_processes(struct way *way)
{
    send_all(&(struct flow){.way = way, .seed = 8, .count = turns_of(1000)});
    if (facts.quirky) /* whose peers lose what is under way when a process ends without exit() */
        wait_for_receiver();
}

/* --- several threads on one comm ----------------------------------------------------------- */

/* Nobody knows which message a receive gets: it says it itself. */
struct label {
    uint32_t number;
    uint32_t bytes;
};

struct crowd {
    int count;
    atomic_int sent;     /* numbers that are taken */
    atomic_int received; /* receives that are taken */
    atomic_int *seen;
};

struct member {
    struct crowd *crowd;
    struct way way; /* the crowd's, with an engine of its own */
    int index;
    bool claimed; /* a receive that is not posted yet */
    uint64_t random;
};

enum { MEMBERS = 2, MEMBER_SLOT = 4096, MEMBER_REQUESTS = 7 };

static size_t member_slot(const struct member *member, int i)
{
    return ((size_t)member->index * DEPTH + (size_t)i) * MEMBER_SLOT;
}

static void *send_labelled(void *argument)
{
    struct member *member = argument;
    struct way *way = &member->way;
    uint8_t bytes[MEMBER_SLOT];
    int number;

    while ((number = atomic_fetch_add(&member->crowd->sent, 1)) < member->crowd->count) {
        int kind = (int)random_below(&member->random, (size_t)facts.kinds);
        struct label label = {.number = (uint32_t)number,
                              .bytes =
                                  (uint32_t)(sizeof label + random_below(&member->random, 1000))};
        size_t at = member_slot(member, number % DEPTH);
        void *request;

        memcpy(bytes, pattern[HOST] + number, label.bytes);
        memcpy(bytes, &label, sizeof label);
        write_area(&way->from[kind], at, bytes, label.bytes);
        while ((request = try_send(way, kind, at, label.bytes)) == NULL)
            sched_yield();
        finish_two(request, NULL, NULL);
    }
    return NULL;
}

static void check_labelled(struct member *member, int kind, size_t at)
{
    uint8_t found[MEMBER_SLOT];
    struct label label;

    read_area(&member->way.to[kind], at, found, MEMBER_SLOT);
    memcpy(&label, found, sizeof label);
    CHECK(label.number < (uint32_t)member->crowd->count && label.bytes <= MEMBER_SLOT);
    CHECK(memcmp(found + sizeof label, pattern[HOST] + label.number + sizeof label,
                 label.bytes - sizeof label) == 0);
    CHECK(atomic_fetch_add(&member->crowd->seen[label.number], 1) == 0);
}

/* As many as the comm takes now. False: all receives are taken. */
static bool post_labelled(struct member *member, void **requests, int *targets, int *count)
{
    while (*count < MEMBER_REQUESTS) {
        if (!member->claimed &&
            atomic_fetch_add(&member->crowd->received, 1) >= member->crowd->count)
            return false;
        member->claimed = true;
        targets[*count] = (int)random_below(&member->random, (size_t)facts.kinds);
        requests[*count] =
            try_receive(&member->way, targets[*count], member_slot(member, *count), MEMBER_SLOT);
        if (requests[*count] == NULL) /* nothing is free before the older ones are done */
            break;
        member->claimed = false;
        (*count)++;
    }
    return true;
}

static void *receive_labelled(void *argument)
{
    struct member *member = argument;
    bool more = true;

    while (more) {
        void *requests[MEMBER_REQUESTS];
        int targets[MEMBER_REQUESTS];
        int count = 0;

        more = post_labelled(member, requests, targets, &count);
        for (int i = count - 1; i >= 0; i--)
            finish_two(NULL, requests[i], NULL);
        for (int i = 0; i < count; i++) {
            if (targets[i] == GPU) /* others are gone, and may be another thread's now */
                settle(&member->way, &requests[i], 1);
            check_labelled(member, targets[i], member_slot(member, i));
        }
    }
    tcpx_unpack_destroy(member->way.unpack);
    return NULL;
}

/* Two threads send and two receive on the same comms: every message arrives once, and whole. */
WAY_CASE(crowd, ALWAYS)
{
    struct crowd crowd = {.count = turns_of(1500)};
    struct member members[2 * MEMBERS];
    pthread_t threads[2 * MEMBERS];

    crowd.seen = calloc((size_t)crowd.count, sizeof *crowd.seen);
    CHECK(crowd.seen != NULL);
    for (int i = 0; i < 2 * MEMBERS; i++) {
        members[i] = (struct member){
            .crowd = &crowd, .way = *way, .index = i / 2, .random = 77 + (uint64_t)i};
        CHECK(pthread_create(&threads[i], NULL, i % 2 == 0 ? send_labelled : receive_labelled,
                             &members[i]) == 0);
    }
    for (int i = 0; i < 2 * MEMBERS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < crowd.count; i++)
        CHECK(atomic_load(&crowd.seen[i]) == 1);
    free(crowd.seen);
}

CALLS_SUITE("calls_data");
