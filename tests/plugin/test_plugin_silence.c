/*
 * NCCL's proxy makes no call on an idle comm, and a straggler makes none at all: neither is a lost
 * peer. Sends are done, the receiver is silent for three times the timeout, then everything
 * arrives; and receives are announced to a silent sender. UCCL_TCPX_TIMEOUT_MS is set for this.
 */
#include "tests/plugin/plugin_test.h"

enum { TIMEOUT_MS = 1000, MESSAGES = 4, BYTES = 1 << 20, RECEIVES = 32 };

static struct pair late_receivers[LAST_VERSION + 1];
static struct pair late_senders[LAST_VERSION + 1];
static uint8_t rooms[LAST_VERSION + 1][RECEIVES][64];
static void *receives[LAST_VERSION + 1][RECEIVES];

static void begin(int version)
{
    struct pair *pair = &late_receivers[version];

    pair_open(pair, &plugins[version]);
    for (uint64_t i = 0; i < MESSAGES; i++)
        finish_both(pair, start_send(pair, text_of(i), BYTES), NULL);
    pair = &late_senders[version];
    pair_open(pair, &plugins[version]);
    for (int i = 0; i < RECEIVES; i++)
        receives[version][i] = start_receive(pair, rooms[version][i], sizeof rooms[version][i]);
}

static void end(int version)
{
    static uint8_t room[BYTES];
    struct pair *pair = &late_receivers[version];

    for (uint64_t i = 0; i < MESSAGES; i++) {
        void *receive = start_receive(pair, room, BYTES);

        assert_int_equal(finish_both(pair, NULL, receive), BYTES);
        consume(pair, receive);
        assert_memory_equal(room, text_of(i), BYTES);
    }
    pair_close(pair);
    pair = &late_senders[version];
    for (int i = 0; i < RECEIVES; i++) {
        void *send = start_send(pair, text_of((uint64_t)i), 64);

        assert_int_equal(finish_both(pair, send, receives[version][i]), 64);
        consume(pair, receives[version][i]);
        assert_memory_equal(rooms[version][i], text_of((uint64_t)i), 64);
    }
    pair_close(pair);
}

TEST(test_late_programs)
{
    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++)
        begin(version);
    nap_ms(3 * TIMEOUT_MS);
    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++)
        end(version);
}

static int begin_suite(void)
{
    setenv("UCCL_TCPX_TIMEOUT_MS", "1000", 1);
    return stay_on_loopback();
}

PLUGIN_SUITE("plugin silence", begin_suite);
