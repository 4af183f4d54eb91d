/*
 * The data path of every version, as NCCL uses it and as it may: every byte in its place and none
 * elsewhere, messages in order, "busy" instead of an error, and an error in bounded time where
 * there has to be one. Both ends are in one process, and mostly in one thread. With
 * UCCL_TCPX_TIMEOUT_MS=1000 it is only about programs that make no call for longer than that.
 */
#include "tests/plugin/plugin_test.h"
#include "tests/unit/aftermath.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>

enum { REQUESTS = 32 }; /* NCCL_NET_MAX_REQUESTS */

/* NCCL hands over what was there before: hints, and requests that ended long ago. */
static void *poison(int which)
{
    static int stale;
    void *const poisons[] = {(void *)1, (void *)2, &stale, (void *)-1};

    return poisons[which % 4];
}

/* --- requests -------------------------------------------------------------------------------- */

enum { FULL_BYTES = 50000 };

static uint8_t full_buffers[REQUESTS][FULL_BYTES];

/*
 * 32 requests of an end are under way at once; one more is "busy", not an error. Whatever *request
 * holds before, afterwards it is the plugin's: a request of its own, or NULL.
 */
static void fill(const struct pair *pair, bool sends, int64_t bytes, int which,
                 void *requests[REQUESTS])
{
    for (int i = 0; i <= REQUESTS; i++) {
        void *request = poison(which);

        if (sends)
            assert_works(plugin_isend(pair->from, pair->sender, text_of((uint64_t)i), bytes, i,
                                      NULL, &request));
        else
            assert_works(plugin_irecv(pair->to, pair->receiver, full_buffers[i % REQUESTS], bytes,
                                      -i, NULL, &request));
        assert_ptr_not_equal(request, poison(which));
        if (i == REQUESTS) {
            assert_null(request);
            return;
        }
        assert_non_null(request);
        for (int k = 0; k < i; k++)
            assert_ptr_not_equal(request, requests[k]);
        requests[i] = request;
    }
}

VERSIONS_CASE(requests_are_always_written, ALL_VERSIONS)
{
    for (int which = 0; which < 4; which++) {
        void *receives[REQUESTS];
        void *sends[REQUESTS];
        struct pair pair;

        pair_open(&pair, plugin);
        fill(&pair, false, 64, which, receives);
        for (int i = 0; i < REQUESTS; i++) {
            sends[i] = poison(which);
            assert_works(plugin_isend(plugin, pair.sender, text_of(1), 64, 0, NULL, &sends[i]));
            assert_ptr_not_equal(sends[i], poison(which));
            if (sends[i] == NULL)
                sends[i] = start_send(&pair, text_of(1), 64);
        }
        for (int i = 0; i < REQUESTS; i++)
            assert_int_equal(finish_both(&pair, sends[i], receives[i]), 64);
        pair_close(&pair);
    }
}

PAIR_CASE(thirty_two_and_one_more, ALL_VERSIONS)
{
    void *receives[REQUESTS];
    void *sends[REQUESTS];

    fill(pair, true, FULL_BYTES, 0, sends);
    fill(pair, false, FULL_BYTES, 1, receives);
    for (int i = 0; i < REQUESTS; i++) {
        assert_int_equal(finish_both(pair, sends[i], receives[i]), FULL_BYTES);
        assert_memory_equal(full_buffers[i], text_of((uint64_t)i), FULL_BYTES);
    }
    /* and there is room again */
    assert_pair_moves(pair);
}

/* --- sizes ----------------------------------------------------------------------------------- */

/* Every size arrives whole, in a buffer that fits and in one that is larger, and tells its size. */
PAIR_CASE(sizes, ALL_VERSIONS)
{
    static const size_t sizes[] = {0,    1,     2,     15,    16,     17,      127,
                                   128,  129,   4095,  4096,  4097,   8191,    8192,
                                   8193, 65535, 65536, 65537, 131072, 1048576, 4194304};

    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        for (size_t more = 0; more <= 5000; more += 5000) {
            uint8_t *buffer = guarded_buffer(sizes[i] + more);

            move_message(pair, i, sizes[i], buffer, sizes[i] + more);
            assert_holds(buffer, sizes[i] + more, text_of(i), sizes[i]);
        }
}

/* A message of no bytes needs no memory, but takes a receive as any other. */
PAIR_CASE(nothing_is_a_message, ALL_VERSIONS)
{
    uint8_t bytes[3] = {0};
    void *receives[3];
    void *sends[3];

    for (int i = 0; i < 3; i++)
        receives[i] = start_receive(pair, i == 0 ? NULL : &bytes[i], i == 0 ? 0 : 1);
    for (int i = 0; i < 3; i++)
        sends[i] = start_send(pair, i < 2 ? NULL : text_of(0), i < 2 ? 0 : 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(finish_both(pair, sends[i], receives[i]), i < 2 ? 0 : 1);
    assert_int_equal(bytes[1], 0);
    assert_int_equal(bytes[2], *text_of(0));
}

/* One of 256 MiB, with the bytes of its middle and its ends in place. */
PAIR_CASE(a_huge_message, VERSION(12))
{
    size_t bytes = SANITIZED || turns_of(100) < 100 ? (size_t)40 << 20 : (size_t)256 << 20;
    uint64_t *data = malloc(bytes);
    uint64_t *arrived = malloc(bytes);
    void *receive;

    assert_true(data != NULL && arrived != NULL);
    for (size_t i = 0; i < bytes / 8; i++)
        data[i] = i * 0x9e3779b97f4a7c15u;
    receive = start_receive(pair, arrived, (int64_t)bytes);
    assert_int_equal(finish_both(pair, start_send(pair, data, (int64_t)bytes), receive), bytes);
    assert_true(memcmp(data, arrived, bytes) == 0);
    free(data);
    free(arrived);
}

/* --- a message that does not fit ------------------------------------------------------------- */

/*
 * A message longer than its receive is error 5 for the receive, and not one byte is written. Its
 * send fails in the same way, unless it had left before the room was known.
 */
VERSIONS_CASE(a_message_that_is_too_long, ALL_VERSIONS)
{
    static const struct {
        size_t bytes, room;
    } cases[] = {{1, 0}, {100, 99}, {5000, 100}, {100000, 99999}, {3000000, 7}};

    for (size_t i = 0; i < 2 * COUNT_OF(cases); i++) {
        size_t room = cases[i / 2].room;
        uint8_t *buffer = guarded_buffer(room);
        void *receive = NULL;
        struct pair pair;
        void *send;

        pair_open(&pair, plugin);
        plugin_log_clear();
        if (i % 2 == 0)
            receive = start_receive(&pair, buffer, (int64_t)room);
        send = start_send(&pair, text_of(i), (int64_t)cases[i / 2].bytes);
        if (i % 2 != 0)
            receive = start_receive(&pair, buffer, (int64_t)room);
        finish_too_long(&pair, send, receive);
        assert_true(plugin_log_warnings() > 0);
        assert_holds(buffer, room, NULL, 0);
        pair_close(&pair);
        assert_holds(buffer, room, NULL, 0);
    }
}

/* --- order ----------------------------------------------------------------------------------- */

/* Random sizes, many at a time; tags differ at both ends and mean nothing. */
static void mixed_traffic(const struct pair *pair, int messages, uint64_t seed)
{
    enum { DEEP = 8, MOST = 60000 };
    static _Thread_local uint8_t buffers[DEEP][MOST];
    size_t sizes[DEEP] = {0};
    void *receives[DEEP] = {NULL};
    void *sends[DEEP] = {NULL};
    int posted = 0;
    int sent = 0;
    int received = 0;
    int finished = 0; /* sends */
    uint64_t deadline = now_ms() + LIMIT_MS;

    while ((received < messages || finished < messages) && in_time(deadline)) {
        int bytes = 0;
        int done = 0;

        if (posted < messages && posted - received < DEEP && random_next(&seed) % 2 == 0) {
            receives[posted % DEEP] = poison(posted);
            assert_works(plugin_irecv(pair->to, pair->receiver, buffers[posted % DEEP], MOST,
                                      posted * 3, NULL, &receives[posted % DEEP]));
            posted += receives[posted % DEEP] != NULL;
        }
        if (sent < messages && sent - finished < DEEP && sent - received < DEEP &&
            random_next(&seed) % 2 == 0) {
            uint64_t kind = random_next(&seed) >> 32;

            sizes[sent % DEEP] = kind % 4 == 0 ? kind / 4 % (MOST + 1) : kind / 4 % 500;
            sends[sent % DEEP] = poison(sent);
            assert_works(plugin_isend(pair->from, pair->sender, text_of((uint64_t)sent),
                                      (int64_t)sizes[sent % DEEP], -sent, NULL,
                                      &sends[sent % DEEP]));
            sent += sends[sent % DEEP] != NULL;
        }
        if (finished < sent) {
            assert_works(pair->from->table->test(sends[finished % DEEP], &done, &bytes));
            finished += done;
        }
        done = 0;
        if (received < posted) {
            assert_works(pair->to->table->test(receives[received % DEEP], &done, &bytes));
            if (done) {
                assert_true(received < sent);
                assert_int_equal(bytes, sizes[received % DEEP]);
                if (memcmp(buffers[received % DEEP], text_of((uint64_t)received), (size_t)bytes) !=
                    0)
                    fail_msg("message %d is wrong or not in its turn", received);
                consume(pair, receives[received++ % DEEP]);
            }
        }
    }
}

PAIR_CASE(mixed_traffic, ALL_VERSIONS)
{
    mixed_traffic(pair, turns_of(1000) + 20, 0x77);
}

/* Ends of different versions understand each other: two machines may have two NCCLs. */
TEST(test_versions_mix)
{
    static const int mixes[][2] = {{6, 12}, {12, 6}, {8, 9}, {10, 7}, {11, 10}};

    for (size_t i = 0; i < COUNT_OF(mixes); i++) {
        struct pair pair;

        pair_listen(&pair, &plugins[mixes[i][0]], &plugins[mixes[i][1]]);
        pair_meet(&pair);
        mixed_traffic(&pair, 100, i + 1);
        pair_close(&pair);
    }
}

/* A sender that is far ahead is held back: memory does not grow with what it would like to send. */
PAIR_CASE(a_sender_far_ahead, ALL_VERSIONS)
{
    enum { MESSAGES = 1000, BYTES = 4000 };
    static uint8_t buffer[BYTES];
    void *sends[REQUESTS];
    int started = 0;
    int finished = 0;
    int busy = 0;
    int received = 0;
    uint64_t deadline = now_ms() + LIMIT_MS;
    void *receive = NULL;
    long before = resident_kib();

    while (received < MESSAGES && in_time(deadline)) {
        int done = 0;

        if (started < MESSAGES && started - finished < REQUESTS) {
            assert_works(plugin_isend(plugin, pair->sender, text_of((uint64_t)started), BYTES, 0,
                                      NULL, &sends[started % REQUESTS]));
            started += sends[started % REQUESTS] != NULL;
        }
        if (finished < started) {
            assert_works(plugin->table->test(sends[finished % REQUESTS], &done, NULL));
            finished += done;
        }
        busy = done ? 0 : busy + 1;
        if (started < MESSAGES && busy < 1000 && receive == NULL)
            continue; /* as far as it gets without a receive */
        done = 0;
        if (receive == NULL)
            receive = start_receive(pair, buffer, BYTES);
        assert_works(plugin->table->test(receive, &done, NULL));
        if (!done)
            continue;
        assert_memory_equal(buffer, text_of((uint64_t)received), BYTES);
        received++;
        receive = received < MESSAGES ? start_receive(pair, buffer, BYTES) : NULL;
    }
    if (!SANITIZED)
        assert_true(resident_kib() - before < 16384);
}

/* test() of another than the oldest request is no error and does no harm. */
PAIR_CASE(test_in_another_order, ALL_VERSIONS)
{
    static uint8_t buffers[3][70000];

    for (size_t bytes = 100; bytes <= 70000; bytes += 69900) {
        void *receives[3];
        void *sends[3];
        int sent[3] = {0};
        int received[3] = {0};
        uint64_t deadline = now_ms() + LIMIT_MS;
        int done = 0;

        for (int i = 0; i < 3; i++)
            receives[i] = start_receive(pair, buffers[i], (int64_t)bytes);
        /* before there is anything to receive */
        for (int i = 2; i >= 0; i--) {
            assert_works(plugin->table->test(receives[i], &done, NULL));
            assert_false(done);
        }
        for (int i = 0; i < 3; i++)
            sends[i] = start_send(pair, text_of((uint64_t)i), (int64_t)bytes);
        /* The youngest first, for a while; then in any order, until all are done. */
        for (int turn = 0; turn < 3000 || !received[0] || !received[1] || !received[2] ||
                           !sent[0] || !sent[1] || !sent[2];
             turn++) {
            assert_true(now_ms() < deadline);
            for (int i = 2; i >= (turn < 1000 ? 2 : turn < 2000 ? 1 : 0); i--) {
                if (!sent[i])
                    assert_works(plugin->table->test(sends[i], &sent[i], NULL));
                if (!received[i])
                    assert_works(plugin->table->test(receives[i], &received[i], NULL));
            }
        }
        for (int i = 0; i < 3; i++)
            assert_memory_equal(buffers[i], text_of((uint64_t)i), bytes);
    }
    assert_pair_moves(pair);
}

/* A receive that is not done says so, and does not touch the size. */
PAIR_CASE(not_done, ALL_VERSIONS)
{
    uint8_t buffer[100];
    void *receive = start_receive(pair, buffer, sizeof buffer);

    for (int i = 0; i < 1000; i++) {
        int bytes = 0x5a5a5a;
        int done = 7;

        assert_works(plugin->table->test(receive, &done, &bytes));
        assert_int_equal(done, 0);
        assert_int_equal(bytes, 0x5a5a5a);
    }
    assert_int_equal(finish_both(pair, start_send(pair, text_of(0), 50), receive), 50);
}

/* --- endurance ------------------------------------------------------------------------------- */

/* Many small messages, and memory and descriptors stay what they were. */
static void endure(const struct pair *pair, int messages)
{
    uint8_t buffer[64];
    int descriptors;
    long before;

    for (uint64_t i = 0; i < 1000; i++)
        move_message(pair, i, i % 65, buffer, sizeof buffer);
    before = resident_kib();
    descriptors = open_descriptors();
    for (uint64_t i = 0; i < (uint64_t)messages; i++)
        move_message(pair, i, i % 65, buffer, sizeof buffer);
    assert_int_equal(open_descriptors(), descriptors);
    if (!SANITIZED)
        assert_true(resident_kib() - before < 1024);
}

PAIR_CASE(endurance, ALL_VERSIONS)
{
    endure(pair, turns_of(10000));
}

PAIR_CASE(long_endurance, VERSION(11))
{
    endure(pair, turns_of(100000));
}

static atomic_int alarms;

static void count_alarm(int number)
{
    (void)number;
    atomic_fetch_add(&alarms, 1);
}

/* Signals that interrupt every system call: nothing is lost, nothing fails. */
VERSIONS_CASE(interrupted, SOME_VERSIONS)
{
    const struct itimerval often = {.it_interval.tv_usec = 100, .it_value.tv_usec = 100};
    const struct itimerval never = {.it_value.tv_usec = 0};
    struct sigaction action = {.sa_handler = count_alarm}; /* without SA_RESTART */
    struct sigaction old;
    struct pair pair;

    sigaction(SIGALRM, &action, &old);
    atomic_store(&alarms, 0);
    setitimer(ITIMER_REAL, &often, NULL);
    pair_open(&pair, plugin);
    for (int turn = 0; atomic_load(&alarms) < 300; turn++)
        mixed_traffic(&pair, 50, (uint64_t)turn + 1);
    pair_close(&pair);
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &old, NULL);
}

/* --- memory ---------------------------------------------------------------------------------- */

struct registrar {
    const struct pair *pair;
    atomic_bool stop;
    atomic_int turns;
    atomic_int failures;
};

static void *register_and_forget(void *argument)
{
    struct registrar *registrar = argument;
    const struct plugin *plugin = registrar->pair->from;
    void *const comms[2] = {registrar->pair->sender, registrar->pair->receiver};
    static uint8_t memory[100000];

    while (!atomic_load(&registrar->stop))
        for (int i = 0; i < 2; i++) {
            void *mhandle = NULL;
            void *device = NULL;

            if (plugin_reg(plugin, comms[i], memory, sizeof memory, NCCL_PTR_HOST, &mhandle) != 0 ||
                plugin_device_mr(plugin, comms[i], mhandle, &device) != 0 ||
                plugin->table->dereg_mr(comms[i], mhandle) != 0)
                atomic_fetch_add(&registrar->failures, 1);
            atomic_fetch_add(&registrar->turns, 1);
        }
    return NULL;
}

/* The service thread registers memory with comms that the progress thread is using. */
PAIR_CASE(registration_during_traffic, ALL_VERSIONS)
{
    struct registrar registrar = {.pair = pair};
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, register_and_forget, &registrar), 0);
    for (uint64_t turn = 1; turn < 5 || atomic_load(&registrar.turns) < 20; turn++)
        mixed_traffic(pair, turns_of(300), turn);
    atomic_store(&registrar.stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&registrar.failures), 0);
}

/* Registered memory works as the protocol buffers of NCCL do; what was left registered is freed. */
PAIR_CASE(registered_memory, ALL_VERSIONS)
{
    enum { BYTES = 300000 };
    static uint8_t from[BYTES];
    static uint8_t to[BYTES];
    void *memories[2] = {NULL, NULL};

    memcpy(from, text_of(5), sizeof from);
    for (int turn = 0; turn < 2; turn++) { /* the second ones are left */
        assert_works(plugin_reg(plugin, pair->sender, from, BYTES, NCCL_PTR_HOST, &memories[0]));
        assert_works(plugin_reg(plugin, pair->receiver, to, BYTES, NCCL_PTR_HOST, &memories[1]));
        if (turn == 1)
            return;
        for (size_t at = 0; at < 20 * 5000; at += 5000) {
            void *receive = start_receive_of(pair, to + at, 20000, memories[1]);
            void *send = start_send_of(pair, from + at, 20000, memories[0]);

            assert_int_equal(finish_both(pair, send, receive), 20000);
        }
        assert_memory_equal(to, from, 19 * 5000 + 20000);
        assert_works(plugin->table->dereg_mr(pair->sender, memories[0]));
        assert_works(plugin->table->dereg_mr(pair->receiver, memories[1]));
    }
}

/* GPU memory is not what a plugin without a GPU can take, in either way it may be offered. */
PAIR_CASE(gpu_memory_is_refused, ALL_VERSIONS | IN_HOST_MODE)
{
    static uint8_t memory[8192] __attribute__((aligned(4096)));
    void *const comms[2] = {pair->sender, pair->receiver};
    int descriptors = open_descriptors();

    for (int i = 0; i < 2; i++) {
        void *mhandle = NULL;

        plugin_log_clear();
        assert_true(plugin_reg(plugin, comms[i], memory, 8192, NCCL_PTR_CUDA, &mhandle) != 0);
        assert_true(plugin_log_warnings() > 0);
        if (plugin->table->reg_mr_dmabuf != NULL)
            assert_true(plugin->table->reg_mr_dmabuf(comms[i], memory, 8192, NCCL_PTR_CUDA, 0,
                                                     STDIN_FILENO, &mhandle) != 0);
    }
    assert_int_equal(open_descriptors(), descriptors);
    assert_pair_moves(pair);
}

/* What was received is where it should be already: a flush has nothing to wait for. */
PAIR_CASE(flush, ALL_VERSIONS)
{
    static uint8_t buffer[5000];

    move_message(pair, 0, sizeof buffer, buffer, sizeof buffer);
    for (int which = 0; which < 4; which++) {
        void *request = poison(which);

        assert_works(plugin_iflush(plugin, pair->receiver, buffer, sizeof buffer, NULL, &request));
        assert_null(request);
    }
}

/* --- what is no request ---------------------------------------------------------------------- */

/* A grouped receive was never offered, and a size cannot be negative. The comm does not suffer. */
PAIR_CASE(calls_that_make_no_sense, ALL_VERSIONS)
{
    uint8_t memory[2][16];
    void *data[2] = {memory[0], memory[1]};
    const int64_t sizes[2] = {16, 16};
    int tags[2] = {0, 0};
    void *mhandles[2] = {NULL, NULL};
    void *request = NULL;
    int result;

    for (int n = 0; n <= 2; n += 2) {
        result = plugin_irecv_n(plugin, pair->receiver, n, data, sizes, tags, mhandles, &request);
        assert_true(result == NCCL_INVALID_ARGUMENT || result == NCCL_INVALID_USAGE);
        assert_null(request);
    }
    if (plugin->version <= 8) {
        result = plugin_isend(plugin, pair->sender, memory[0], -1, 0, NULL, &request);
        assert_int_equal(result, NCCL_INVALID_ARGUMENT);
        assert_null(request);
        result = plugin_irecv(plugin, pair->receiver, memory[0], -1, 0, NULL, &request);
        assert_int_equal(result, NCCL_INVALID_ARGUMENT);
        assert_null(request);
    }
    assert_pair_moves(pair);
}

/* Hints are taken or not, in the middle of traffic; nothing else happens. */
PAIR_CASE(attributes, ALL_VERSIONS)
{
    struct nccl_attr attr;

    memset(&attr, 0xff, sizeof attr); /* all undefined */
    assert_works(plugin_set_attr(plugin, &attr));
    for (int i = 0; i < 100; i++) {
        attr.send.max_concurrent_peers = i;
        attr.algo = 1u << i % 8;
        assert_works(plugin_set_attr(plugin, &attr));
        if (i % 20 == 0)
            assert_pair_moves(pair);
    }
}

/* --- the end of a comm ----------------------------------------------------------------------- */

/* What a sender was told is done arrives, though it closed at once and before anybody looked. */
VERSIONS_CASE(close_right_after_done, ALL_VERSIONS)
{
    enum { SMALL = 10, LARGE = 300000 };
    static uint8_t buffer[SMALL][1000];
    static uint8_t large[LARGE];
    struct pair pair;

    for (int turn = 0, turns = turns_of(20); turn < turns; turn++) {
        uint64_t deadline = now_ms() + LIMIT_MS;
        void *receive;
        void *send;
        int received;
        int sent;

        pair_open(&pair, plugin);
        /* A large one goes when its receive is there; whoever receives it must be driven, too. */
        receive = start_receive(&pair, large, LARGE);
        send = start_send(&pair, text_of(99), LARGE);
        for (sent = 0, received = 0; !sent;) {
            assert_works(plugin->table->test(send, &sent, NULL));
            if (!sent && !received)
                assert_works(plugin->table->test(receive, &received, NULL));
            assert_true(now_ms() < deadline);
        }
        for (uint64_t i = 0; i < SMALL; i++)
            finish_both(&pair, start_send(&pair, text_of(i), 1000), NULL);
        pair_close_sender(&pair);
        if (!received)
            assert_int_equal(finish_both(&pair, NULL, receive), LARGE);
        assert_memory_equal(large, text_of(99), LARGE);
        for (int i = 0; i < SMALL; i++) {
            receive = start_receive(&pair, buffer[i], 1000);
            assert_int_equal(finish_both(&pair, NULL, receive), 1000);
            assert_memory_equal(buffer[i], text_of((uint64_t)i), 1000);
        }
        pair_close_receiver(&pair);
    }
}

/* Closing does not wait for requests, whose buffers are the caller's again. */
VERSIONS_CASE(close_with_requests_in_flight, ALL_VERSIONS)
{
    int descriptors = open_descriptors();
    static uint8_t buffers[8][1 << 20];

    for (int turn = 0; turn < 6; turn++) {
        struct pair pair;

        pair_open(&pair, plugin);
        for (int i = 0; turn % 3 != 0 && i < 8; i++)
            (void)start_receive(&pair, buffers[i], sizeof buffers[i]);
        for (uint64_t i = 0; turn % 3 != 1 && i < 8; i++)
            (void)start_send(&pair, text_of(i), sizeof buffers[i]);
        pair_close_at_once(&pair, turn < 3);
        memset(buffers, 0, sizeof buffers);
    }
    nap_ms(20);
    for (size_t i = 0; i < sizeof buffers; i++)
        if (((uint8_t *)buffers)[i] != 0)
            fail_msg("written after the close");
    assert_true(settles(open_descriptors, descriptors));
}

/*
 * After every error that test() returns, the buffer is the caller's again: messages that are too
 * long, and a sender that goes while its data is on its way.
 */
PAIR_CASE(after_an_error, ALL_VERSIONS)
{
    enum { COUNT = 6, BYTES = 1 << 20, LATER_MS = 30 };
    static struct aftermath aftermath;
    static uint8_t buffers[COUNT][BYTES];
    void *receives[COUNT];
    int failures = 0;

    for (int i = 0; i < COUNT; i++)
        receives[i] = start_receive(pair, buffers[i], i % 3 == 0 ? 100 : BYTES);
    for (int i = 0; i < COUNT; i++)
        (void)start_send(pair, text_of((uint64_t)i), BYTES);
    nap_ms(1);
    pair_close_sender(pair);
    for (int i = 0; i < COUNT; i++) {
        failures += result_of(plugin, receives[i], now_ms() + LIMIT_MS) != NCCL_SUCCESS;
        assert_true(aftermath_of(&aftermath, buffers[i], BYTES, NULL, NULL));
    }
    assert_true(failures >= 2);
    assert_int_equal(aftermath_look(&aftermath, LATER_MS), 0);
}

/* --- several at once ------------------------------------------------------------------------- */

struct worker {
    struct pair pair;
    uint64_t seed;
};

static void *work(void *argument)
{
    struct worker *worker = argument;

    mixed_traffic(&worker->pair, turns_of(2000), worker->seed);
    return NULL;
}

/* Two comms in two threads, as two communicators have them, of two contexts where there are any. */
VERSIONS_CASE(two_threads, ALL_VERSIONS)
{
    struct plugin second = another_context(plugin);
    struct worker workers[2] = {{.seed = 3}, {.seed = 4}};
    pthread_t threads[2];

    if (second.version >= 11) {
        assert_non_null(second.context);
        assert_ptr_not_equal(second.context, plugin->context);
    }
    (void)text_of(0);
    pair_open(&workers[0].pair, plugin);
    pair_open(&workers[1].pair, &second);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    /* one communicator ends while the other goes on */
    pair_close(&workers[1].pair);
    assert_works(plugin_finalize(&second));
    mixed_traffic(&workers[0].pair, 50, 5);
    pair_close(&workers[0].pair);
}

/* --- programs that are late ------------------------------------------------------------------ */

enum { LATE_MESSAGES = 4, LATE_BYTES = 1 << 20 };

static struct pair late_receivers[LAST_VERSION + 1];
static struct pair late_senders[LAST_VERSION + 1];
static uint8_t late_rooms[LAST_VERSION + 1][REQUESTS][64];
static void *late_receives[LAST_VERSION + 1][REQUESTS];

/* Sends are done before their receives, and receives are announced to a silent sender. */
static void begin_late(int version)
{
    struct pair *pair = &late_receivers[version];

    pair_open(pair, &plugins[version]);
    for (uint64_t i = 0; i < LATE_MESSAGES; i++)
        finish_both(pair, start_send(pair, text_of(i), LATE_BYTES), NULL);
    pair = &late_senders[version];
    pair_open(pair, &plugins[version]);
    for (int i = 0; i < REQUESTS; i++)
        late_receives[version][i] = start_receive(pair, late_rooms[version][i], 64);
}

static void end_late(int version)
{
    static uint8_t room[LATE_BYTES];
    struct pair *pair = &late_receivers[version];

    for (uint64_t i = 0; i < LATE_MESSAGES; i++) {
        void *receive = start_receive(pair, room, LATE_BYTES);

        assert_int_equal(finish_both(pair, NULL, receive), LATE_BYTES);
        consume(pair, receive);
        assert_memory_equal(room, text_of(i), LATE_BYTES);
    }
    pair_close(pair);
    pair = &late_senders[version];
    for (int i = 0; i < REQUESTS; i++) {
        void *send = start_send(pair, text_of((uint64_t)i), 64);

        assert_int_equal(finish_both(pair, send, late_receives[version][i]), 64);
        consume(pair, late_receives[version][i]);
        assert_memory_equal(late_rooms[version][i], text_of((uint64_t)i), 64);
    }
    pair_close(pair);
}

TEST_OF(test_late_programs, WHEN_LATE)
{
    be_late(begin_late, end_late);
}

PLUGIN_SUITE("plugin data", stay_on_loopback);
