/*
 * Threads, watches, descriptors and memory that cannot be had: each call of a comm's and of a
 * session's life that asks for one fails in turn, alone and with all that follow. Whatever is
 * affected ends in time, in words or with the right bytes; both sides can be closed, and nothing
 * that was taken is kept. Without threads and watches all bytes arrive, since calls can do the
 * work.
 */
#include "tests/net_calls/net_calls.h"
#include "tests/support/basics.h"
#include "tests/support/pair.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <tcpx.h>

enum {
    MESSAGES = 4,
    BYTES = 300000, /* of the last; several slices */
    CASE_MS = 10000,
    ACCEPT_MS = 300,
    OPEN_MS = 1000,
    MOST_CALLS = 400, /* that fail in turn; there are fewer */
    RETRIES = 5,
};

static uint8_t source[BYTES];
static uint8_t arrived[2][BYTES];

/* Whether it went well; if not, it has a text. */
static bool went_well(int result)
{
    if (result == TCPX_SUCCESS)
        return true;
    assert_true(tcpx_last_error()[0] != '\0');
    return false;
}

/* --- a comm --------------------------------------------------------------------------------- */

static const struct net_link_options link_options =
    PAIR_DEFAULTS(.sockets = 3, .eager_credit = 32768, .handshake_ms = 2000);

static uint64_t message_bytes(int number)
{
    static const uint64_t bytes[MESSAGES] = {0, 100, 5000, BYTES};

    return bytes[number];
}

static bool link_up(struct net_listener *listener, uint8_t handle[NET_HANDLE_BYTES],
                    struct net_link *sending, struct net_link *receiving)
{
    uint64_t deadline = deadline_after_ms(CASE_MS);
    bool connected = false;
    bool accepted = false;
    bool well = true;

    while (well && (!connected || !accepted)) {
        if (!connected)
            well = went_well(net_connect(NULL, &link_options, handle, sending, &connected));
        if (well && !accepted)
            well = went_well(net_accept(listener, receiving, &accepted));
        assert_false(deadline_passed(deadline));
    }
    if (well)
        return true;
    if (connected)
        net_link_close(sending);
    else
        net_connect_cancel(handle);
    if (accepted)
        net_link_close(receiving);
    return false;
}

/* One end's request: NULL when it has ended or never began. */
static void step(struct net_request **request, bool *well)
{
    bool done = false;

    if (*request == NULL)
        return;
    *well = went_well(net_test(*request, &done, NULL)) && *well;
    if (done || !*well)
        *request = NULL;
}

static bool move_one(struct net_comm *sender, struct net_comm *receiver, int number)
{
    uint64_t deadline = deadline_after_ms(CASE_MS);
    uint64_t bytes = message_bytes(number);
    struct net_request *send = NULL;
    struct net_request *receive = NULL;
    bool well = true;

    memset(arrived[0], 0, sizeof arrived[0]);
    while (well && receive == NULL && !deadline_passed(deadline))
        well = went_well(net_irecv(receiver, arrived[0], bytes, 5, &receive));
    while (well && send == NULL && !deadline_passed(deadline))
        well = went_well(net_isend(sender, source, bytes, 5, &send));
    while (well && (send != NULL || receive != NULL)) {
        step(&send, &well);
        step(&receive, &well);
        assert_false(deadline_passed(deadline));
    }
    return well && memcmp(arrived[0], source, bytes) == 0;
}

static bool run_comm(void)
{
    struct net_device device = loopback(AF_INET);
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener;
    struct net_link sending;
    struct net_link receiving;
    struct net_comm *sender = NULL;
    struct net_comm *receiver = NULL;
    bool well = went_well(net_listen(&device, &link_options, handle, &listener));
    bool linked;

    if (!well)
        return false;
    linked = link_up(listener, handle, &sending, &receiving);
    net_listener_close(listener);
    if (!linked)
        return false;
    /* A link belongs to its comm, also when there is none. */
    well = went_well(net_comm_create(&sending, NET_SENDER, &sender));
    well = went_well(net_comm_create(&receiving, NET_RECEIVER, &receiver)) && well;
    for (int i = 0; i < MESSAGES && well; i++)
        well = move_one(sender, receiver, i);
    net_comm_close(sender);
    net_comm_close(receiver);
    return well;
}

/* --- a session ------------------------------------------------------------------------------ */

struct side {
    int number; /* 0 accepts, 1 connects */
    int port;
    struct tcpx_session_listener *listener;
    atomic_bool *peer_ended;
    atomic_bool ended;
    bool well;
};

static int channels;
static bool windows;

static struct tcpx_session_options session_options(void)
{
    struct tcpx_session_options options;

    tcpx_session_options_init(&options);
    options.gpu = -1;
    options.channels = channels;
    options.windows = windows;
    options.plugin_path = "builtin";
    return options;
}

/* A peer that could not even connect is not waited for. */
static int open_side(struct side *side, struct tcpx_session **session)
{
    struct tcpx_session_options options = session_options();
    int result;

    if (side->number == 1)
        return tcpx_session_connect("127.0.0.1", side->port, &options, OPEN_MS, session);
    do
        result = tcpx_session_accept(side->listener, ACCEPT_MS, session);
    while (result == TCPX_IN_PROGRESS && !atomic_load(side->peer_ended));
    return result;
}

static bool transfer(struct tcpx_session *session, struct tcpx_memory *memory, bool sends,
                     uint64_t tag)
{
    struct tcpx_move move = {.memory = memory, .bytes = BYTES, .tag = tag};
    struct tcpx_transfer *moving;

    if (!went_well(sends ? tcpx_send(session, &move, &moving)
                         : tcpx_receive(session, &move, &moving)))
        return false;
    return went_well(tcpx_transfer_wait(moving, OPEN_MS));
}

static bool exchange(const struct side *side, struct tcpx_session *session)
{
    struct tcpx_memory *from = NULL;
    struct tcpx_memory *to = NULL;
    bool well = went_well(tcpx_session_register(session, source, BYTES, &from)) &&
                went_well(tcpx_session_register(session, arrived[side->number], BYTES, &to));

    memset(arrived[side->number], 0, BYTES);
    for (int turn = 0; turn < 2 && well; turn++)
        well = turn == side->number ? transfer(session, from, true, 1)
                                    : transfer(session, to, false, 1);
    return well && memcmp(arrived[side->number], source, BYTES) == 0;
}

static void *run_side(void *argument)
{
    struct side *side = argument;
    struct tcpx_session *session;

    if (went_well(open_side(side, &session))) {
        side->well = exchange(side, session);
        tcpx_session_close(session);
    }
    atomic_store(&side->ended, true);
    return NULL;
}

static bool run_session(void)
{
    struct tcpx_session_options options = session_options();
    struct side sides[2] = {{.number = 0, .peer_ended = &sides[1].ended}, {.number = 1}};
    pthread_t thread;

    if (!went_well(tcpx_session_listen("127.0.0.1", 0, &options, &sides[0].listener)))
        return false;
    assert_success(tcpx_session_port(sides[0].listener, &sides[1].port));
    assert_int_equal(pthread_create(&thread, NULL, run_side, &sides[1]), 0);
    run_side(&sides[0]);
    /* What has not been accepted is not waited for either. */
    tcpx_session_stop_listening(sides[0].listener);
    pthread_join(thread, NULL);
    return sides[0].well && sides[1].well;
}

/* --- the cases ------------------------------------------------------------------------------ */

/* Whole messages over one channel need no thread of their own; chunks over several do. */
static const struct lack {
    const char *name;
    bool (*run)(void);
    int channels;
    enum net_call call;
    const char *what;
    int errors[2]; /* one or the other */
    bool must;     /* it goes well all the same */
} lacks[] = {
#define THREADS                                                                                    \
    CALL_PTHREAD_CREATE, "threads",                                                                \
    {                                                                                              \
        EAGAIN, EAGAIN                                                                             \
    }
#define WATCHES                                                                                    \
    CALL_EPOLL_ADD, "watches",                                                                     \
    {                                                                                              \
        ENOSPC, ENOMEM                                                                             \
    }
#define DESCRIPTORS                                                                                \
    CALL_DESCRIPTOR, "descriptors",                                                                \
    {                                                                                              \
        EMFILE, ENFILE                                                                             \
    }
#define MEMORY                                                                                     \
    CALL_MEMORY, "memory",                                                                         \
    {                                                                                              \
        ENOMEM, ENOMEM                                                                             \
    }
    {"test_threads_of_a_comm", run_comm, 0, THREADS, true},
    {"test_watches_of_a_comm", run_comm, 0, WATCHES, true},
    {"test_descriptors_of_a_comm", run_comm, 0, DESCRIPTORS, false},
    {"test_memory_of_a_comm", run_comm, 0, MEMORY, false},
    {"test_threads_of_a_session", run_session, 1, THREADS, true},
    {"test_threads_of_a_session", run_session, 2, THREADS, false},
    {"test_watches_of_a_session", run_session, 1, WATCHES, true},
    {"test_watches_of_a_session", run_session, 2, WATCHES, true},
    {"test_descriptors_of_a_session", run_session, 1, DESCRIPTORS, false},
    {"test_descriptors_of_a_session", run_session, 2, DESCRIPTORS, false},
    {"test_memory_of_a_session", run_session, 1, MEMORY, false},
    {"test_memory_of_a_session", run_session, 2, MEMORY, false},
};

/* With `count` calls failing from number `first` on; *injected: whether there were so many. */
static bool goes_well(const struct lack *lack, unsigned first, unsigned count, bool *injected)
{
    bool well;

    calls_reset();
    CALLS_PLAN(lack->call, .first = first, .count = count, .error = lack->errors[first % 2]);
    well = lack->run();
    *injected = calls_made(lack->call) > first;
    calls_reset();
    return well;
}

/* What must go well may exceed a time limit where the machine is busy, but not every time. */
static bool goes_well_at_last(const struct lack *lack, unsigned first, unsigned count)
{
    bool injected;

    for (int i = 0; i < RETRIES; i++)
        if (goes_well(lack, first, count, &injected))
            return true;
    return false;
}

/* Threads that have been joined leave this list a moment later. */
static void assert_nothing_is_left(int descriptors, unsigned threads)
{
    uint64_t deadline = deadline_after_ms(CASE_MS);

    while ((unsigned)running_threads() > threads && !deadline_passed(deadline))
        usleep(100);
    assert_int_equal((unsigned)running_threads(), threads);
    assert_int_equal(open_descriptors(), descriptors);
}

/* Each call in turn, or each with all behind it. Returns how many calls there were to fail. */
static unsigned each_call(const struct lack *lack, unsigned count)
{
    int descriptors;
    unsigned threads;
    unsigned call = 0;
    bool injected = true;

    /* What is kept for all of a process is there afterwards. */
    assert_true(goes_well_at_last(lack, 0, 0));
    descriptors = open_descriptors();
    threads = (unsigned)running_threads();
    for (; injected; call++) {
        uint64_t start = clock_now();
        bool well = goes_well(lack, call, count, &injected);

        assert_true(call < MOST_CALLS);
        if (clock_now() - start > (uint64_t)2 * CASE_MS * 1000000)
            fail_msg("call %u for %s: too slow", call, lack->what);
        if (!well && (lack->must || !injected) && !goes_well_at_last(lack, call, count))
            fail_msg("call %u for %s: %s", call, lack->what, tcpx_last_error());
        assert_nothing_is_left(descriptors, threads);
    }
    return call - 1;
}

TABLE_TEST(lacks)
{
    unsigned calls;

    channels = row->channels;
    calls = each_call(row, 1);
    each_call(row, UINT_MAX);
    print_message("# %u calls could fail for want of %s\n", calls, row->what);
    assert_true(calls > 0);
}

/* Nobody else would serve them. */
TEST(test_windows_need_a_thread)
{
    channels = 1;
    windows = true;
    calls_reset();
    CALLS_PLAN(CALL_PTHREAD_CREATE, .first = 0, .count = UINT_MAX, .error = EAGAIN);
    assert_false(run_session());
    calls_reset();
    assert_true(run_session());
    windows = false;
}

static int begin_suite(void)
{
    fill_bytes(source, BYTES);
    return 0;
}

SUITE(.name = "lacks", .begin = begin_suite);
