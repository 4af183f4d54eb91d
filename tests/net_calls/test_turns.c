/*
 * How much a call on a comm does at most, where no I/O thread helps: a bounded number of system
 * calls and of bytes for each socket, whatever the sizes of messages and slices are.
 */
#include "tests/net_calls/net_calls.h"
#include "tests/support/comm_inside.h"
#include "tests/support/pair.h"

#include <stdlib.h>

enum {
    LARGE = 24 << 20,
    MEDIUM = 1 << 20,
    TURNS = 2, /* of each socket in one call: a sender looks again after a POST */
};

static uint8_t data[LARGE];
static uint8_t arrived[LARGE];

struct most {
    unsigned calls;
    uint64_t bytes;
};

static void note(struct most *most, enum net_call call)
{
    if (calls_made(call) > most->calls)
        most->calls = calls_made(call);
    if (calls_bytes(call) > most->bytes)
        most->bytes = calls_bytes(call);
    calls_reset();
}

/* What one call did at most, while both ends were called by turns. */
static void exchange(const struct net_link_options *options, uint64_t bytes, struct most *sending,
                     struct most *receiving)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    struct pair pair = pair_open(options);
    struct net_request *receive;
    struct net_request *send;

    memset(arrived, 0, bytes);
    receive = must_receive(pair.receiver, arrived, bytes, 1);
    calls_reset();
    send = must_send(pair.sender, data, bytes, 1);
    note(sending, CALL_SENDMSG);
    while (send != NULL || receive != NULL) {
        /* The sender fills its sockets several times before the receiver takes anything. */
        for (int i = 0; i < 20 && send != NULL; i++) {
            (void)request_is_done(&send);
            note(sending, CALL_SENDMSG);
        }
        for (int i = 0; i < 20 && receive != NULL; i++) {
            (void)request_is_done(&receive);
            note(receiving, CALL_RECVMSG);
        }
        assert_false(deadline_passed(deadline));
    }
    assert_memory_equal(arrived, data, bytes);
    pair_close(&pair);
}

TEST(test_what_a_call_does)
{
    static const uint64_t slices[] = {WIRE_LEAST_SLICE, 4096, 512 << 10, 16 << 20};

    for (size_t i = 0; i < 4; i++)
        for (uint8_t sockets = 1; sockets <= 4; sockets += 3) {
            uint64_t bytes = slices[i] < 65536 ? MEDIUM : LARGE;
            /* A turn that is not over may make one more call. */
            uint64_t most_bytes = inside_most_turn_bytes() + slices[i] + WIRE_RECORD_BYTES;
            struct most sending = {0};
            struct most receiving = {0};

            exchange(PAIR_OPTIONS(.sockets = sockets, .largest_slice = slices[i]), bytes, &sending,
                     &receiving);
            print_message("# slices of %llu bytes, %u sockets: at most %u writes of %llu bytes, %u "
                          "reads of %llu\n",
                          (unsigned long long)slices[i], sockets, sending.calls,
                          (unsigned long long)sending.bytes, receiving.calls,
                          (unsigned long long)receiving.bytes);
            assert_true(sending.calls > 0 && receiving.calls > 0);
            assert_true(sending.calls <= TURNS * inside_most_turn_calls() * sockets);
            assert_true(receiving.calls <= TURNS * inside_most_turn_calls() * sockets);
            assert_true(sending.bytes <= TURNS * most_bytes * sockets);
            assert_true(receiving.bytes <= TURNS * most_bytes * sockets);
        }
}

/* Small messages: a read takes all that is there, records and bytes. */
TEST(test_reads_of_small_messages)
{
    enum { MESSAGES = 16, BYTES = 8, ENOUGH = 100, MOST_READS = 3 };
    struct pair pair = pair_open(PAIR_OPTIONS(.sockets = 1));
    struct net_request *receives[MESSAGES];
    unsigned left = MESSAGES;

    for (int i = 0; i < MESSAGES; i++) {
        struct net_request *send = must_send(pair.sender, data + i * BYTES, BYTES, 1);

        for (int k = 0; k < ENOUGH && send != NULL; k++)
            (void)request_is_done(&send);
        assert_null(send);
    }
    memset(arrived, 0, sizeof data[0] * MESSAGES * BYTES);
    calls_reset();
    for (int i = 0; i < MESSAGES; i++)
        receives[i] = must_receive(pair.receiver, arrived + i * BYTES, BYTES, 1);
    for (int k = 0; k < ENOUGH && left > 0; k++) {
        left = 0;
        for (int i = 0; i < MESSAGES; i++)
            left += !request_is_done(&receives[i]);
    }
    assert_int_equal(left, 0);
    assert_true(calls_made(CALL_RECVMSG) <= MOST_READS);
    assert_memory_equal(arrived, data, MESSAGES * BYTES);
    pair_close(&pair);
}

static int begin_suite(void)
{
    setenv("UCCL_TCPX_THREADS", "0", 1);
    fill_bytes(data, sizeof data);
    return 0;
}

SUITE(.name = "turns", .begin = begin_suite);
