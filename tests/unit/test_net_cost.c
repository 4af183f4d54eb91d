/*
 * What a message of 64 bytes costs while many are outstanding, both ends driven by one thread
 * without I/O threads. All figures are printed; asserted is a ratio within the run: a message among
 * thousands costs at most half as much again as one among a few.
 */
#include "tests/support/pair.h"

#include <stdlib.h>
#include <time.h>

enum { MOST = 4096, BYTES = 64, MESSAGES = 8192, ROUNDS = 2 };

static const unsigned outstanding[] = {16, 128, 512, MOST};
enum { STEPS = sizeof outstanding / sizeof *outstanding };

enum order { RECEIVES_FIRST, SENDS_FIRST };

static uint8_t sent_bytes[MOST][BYTES];
static uint8_t arrived[MOST][BYTES];
static struct net_request *sends[MOST];
static struct net_request *receives[MOST];

struct world {
    const char *name;
    enum wire_match match;
    uint64_t tags; /* how many different ones; 0: each message has its own */
    enum order order;
    struct pair pair;
};

/* Time of this thread, which a busy machine does not add to. */
static uint64_t cpu_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t tag_of(const struct world *world, unsigned i)
{
    return world->tags == 0 ? i : i % world->tags;
}

static void start_sends(struct world *world, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        sends[i] = must_send(world->pair.sender, sent_bytes[i], BYTES, tag_of(world, i));
}

/* A receiver that has not announced its earlier receives yet is busy for a moment. */
static void start_receives(struct world *world, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        for (receives[i] = NULL; receives[i] == NULL;)
            assert_success(
                net_irecv(world->pair.receiver, arrived[i], BYTES, tag_of(world, i), &receives[i]));
}

/* Each end waits for its oldest, so that the number of calls does not depend on the number. */
static void finish_all(unsigned count)
{
    unsigned send = 0;
    unsigned receive = 0;

    until(send == count && receive == count, {
        bool done = true;

        while (done && send < count) {
            assert_success(net_test(sends[send], &done, NULL));
            send += done;
        }
        for (done = true; done && receive < count;) {
            assert_success(net_test(receives[receive], &done, NULL));
            receive += done;
        }
    });
}

static void exchange(struct world *world, unsigned count)
{
    if (world->order == SENDS_FIRST)
        start_sends(world, count);
    start_receives(world, count);
    if (world->order == RECEIVES_FIRST)
        start_sends(world, count);
    finish_all(count);
}

static double cost_ns(struct world *world, unsigned count)
{
    double best = 0;

    for (int round = 0; round < ROUNDS; round++) {
        uint64_t began = cpu_ns();
        double cost;

        for (unsigned moved = 0; moved < MESSAGES; moved += count)
            exchange(world, count);
        cost = (double)(cpu_ns() - began) / MESSAGES;
        best = best == 0 || cost < best ? cost : best;
    }
    memset(arrived, 0, sizeof arrived);
    exchange(world, count);
    assert_memory_equal(arrived, sent_bytes, (size_t)count * BYTES);
    return best;
}

static void measure(struct world *world)
{
    double costs[STEPS];

    world->pair = pair_open(PAIR_OPTIONS(.match = world->match, .eager_limit = 8192,
                                         .largest_slice = 2 << 20, .requests = MOST));
    for (int i = 0; i < STEPS; i++)
        costs[i] = cost_ns(world, outstanding[i]);
    print_message("# %s:", world->name);
    for (int i = 0; i < STEPS; i++)
        print_message(" %u: %.0f ns", outstanding[i], costs[i]);
    print_message("\n");
    for (int i = 1; i < STEPS; i++)
        assert_true(costs[i] < 1.5 * costs[0]);
    pair_close(&world->pair);
}

TEST(test_cost)
{
    struct world worlds[] = {
        {.name = "in order, receives first", .match = WIRE_MATCH_FIFO},
        {.name = "in order, sends first", .match = WIRE_MATCH_FIFO, .order = SENDS_FIRST},
        {.name = "one tag, receives first", .match = WIRE_MATCH_TAG, .tags = 1},
        {.name = "one tag, sends first", .match = WIRE_MATCH_TAG, .tags = 1, .order = SENDS_FIRST},
        {.name = "many tags, receives first", .match = WIRE_MATCH_TAG},
        {.name = "many tags, sends first", .match = WIRE_MATCH_TAG, .order = SENDS_FIRST},
    };

    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
        measure(&worlds[i]);
}

static int begin_suite(void)
{
    setenv("UCCL_TCPX_THREADS", "0", 1);
    fill_bytes(sent_bytes[0], sizeof sent_bytes);
    return 0;
}

SUITE(.name = "cost against the number outstanding", .begin = begin_suite);
