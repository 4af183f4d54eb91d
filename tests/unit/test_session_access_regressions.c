/*
 * What one-sided access once got wrong, each in a process of its own with both ends of a session in
 * it: ends that cross each other, waits that nobody ended, and work that grew with what waits.
 */
#include "session/session.h"
#include "tests/limit.h"
#include "tests/support/basics.h"
#include "tests/support/check.h"
#include "tests/support/suite.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#define WAIT_MS ((int)limit_ms(20000))

static const char *check_detail(void)
{
    return tcpx_last_error();
}

/* Defines a case, and a test that runs it in a process that has used nothing before. */
#define CASE(name)                                                                                 \
    static void name(const uint8_t *argument);                                                     \
    TEST(test_##name)                                                                              \
    {                                                                                              \
        child_succeeds(name, "", 1);                                                               \
    }                                                                                              \
    static void name(const uint8_t *argument __attribute__((unused)))

/* --- a session ----------------------------------------------------------------------------------
 */

static struct tcpx_session *here;
static struct tcpx_session *there;

static void *accept_there(void *listener)
{
    CHECK_SUCCESS(tcpx_session_accept(listener, WAIT_MS, &there));
    return NULL;
}

static void open_session(int gpu)
{
    struct tcpx_session_options options;
    struct tcpx_session_listener *listener;
    pthread_t thread;
    int port;

    tcpx_session_options_init(&options);
    options.gpu = gpu;
    options.channels = 1;
    options.plugin_path = "builtin";
    options.windows = 1;
    CHECK_SUCCESS(tcpx_session_listen("127.0.0.1", 0, &options, &listener));
    CHECK_SUCCESS(tcpx_session_port(listener, &port));
    CHECK(pthread_create(&thread, NULL, accept_there, listener) == 0);
    CHECK_SUCCESS(tcpx_session_connect("127.0.0.1", port, &options, WAIT_MS, &here));
    CHECK(pthread_join(thread, NULL) == 0);
    tcpx_session_stop_listening(listener);
}

static void close_session(void)
{
    tcpx_session_close(here);
    tcpx_session_close(there);
}

static struct tcpx_window *open_window(int gpu, void *address, uint64_t bytes, int access)
{
    struct tcpx_window *window;

    CHECK_SUCCESS(tcpx_window_open(gpu, address, bytes, access, &window));
    return window;
}

static struct tcpx_remote *open_remote(const struct tcpx_window *window)
{
    uint8_t key[TCPX_KEY_BYTES];
    struct tcpx_remote *remote;

    CHECK_SUCCESS(tcpx_window_key(window, key));
    CHECK_SUCCESS(tcpx_remote_open(here, key, sizeof key, &remote));
    return remote;
}

static uint8_t ours[4 << 20];
static uint8_t theirs[2 << 20];

/* Nobody takes them, so that not even an empty one has room, and accesses with notes wait. */
static void fill_notes(void)
{
    for (size_t bytes = TCPX_NOTE_BYTES; bytes > 0; bytes /= 2)
        while (tcpx_note_send(here, ours, bytes) == TCPX_SUCCESS)
            ;
    while (tcpx_note_send(here, ours, 0) == TCPX_SUCCESS)
        ;
}

/* --- ends ---------------------------------------------------------------------------------------
 */

/* All bytes of a read may be on their way when its window is closed: then nothing refuses it. */
CASE(a_window_is_closed_under_reads)
{
    enum { ROUNDS = 400, READS = 3, MOST = 1 << 20 };
    struct tcpx_window *own;
    unsigned random = 1;

    setenv("UCCL_TCPX_THREADS", "2", 1);
    open_session(-1);
    own = open_window(-1, ours, sizeof ours, 0);
    for (int round = 0; round < ROUNDS; round++) {
        struct tcpx_window *window = open_window(-1, theirs, sizeof theirs, TCPX_WINDOW_READ);
        struct tcpx_remote *remote = open_remote(window);
        struct tcpx_transfer *reads[READS];

        for (int i = 0; i < READS; i++) {
            uint64_t bytes = (random = random * 1103515245u + 12345u) / 8 % MOST + 1;
            struct tcpx_part part = {own, (uint64_t)i * MOST, remote, 0, bytes};
            struct tcpx_access access = {.parts = &part, .part_count = 1};

            CHECK_SUCCESS(tcpx_read(here, &access, &reads[i]));
        }
        nap_us((random = random * 1103515245u + 12345u) / 8 % 1500);
        CHECK_SUCCESS(tcpx_window_close(window, WAIT_MS));
        for (int i = 0; i < READS; i++) {
            int result = tcpx_transfer_wait(reads[i], WAIT_MS);

            CHECK(result == TCPX_SUCCESS || check_said("the window was closed") ||
                  check_said("no such window"));
        }
        CHECK_SUCCESS(tcpx_remote_close(remote));
    }
    close_session();
}

/* A copy of the GPU needs longer than the peer is given to confirm; the peer has confirmed. */
CASE(a_late_copy_does_not_end_a_session)
{
    struct tcpx_transfer *write;
    struct tcpx_part part = {.bytes = 4096};
    struct tcpx_access access = {.parts = &part, .part_count = 1, .timeout_ms = WAIT_MS};
    void *memory;
    int result;

    setenv("UCCL_TCPX_GPU", "host", 1);
    setenv("UCCL_TCPX_TIMEOUT_MS", "1000", 1);
    setenv("UCCL_TCPX_HOST_GPU_DELAY_US", "1800000", 1);
    open_session(0);
    CHECK_SUCCESS(tcpx_gpu_alloc(0, part.bytes, &memory));
    part.window = open_window(0, memory, part.bytes, 0);
    part.remote = open_remote(open_window(-1, theirs, sizeof theirs, TCPX_WINDOW_WRITE));
    CHECK_SUCCESS(tcpx_write(here, &access, &write));
    while ((result = tcpx_transfer_cancel(write)) == TCPX_IN_PROGRESS)
        ;
    CHECK_SUCCESS(result);
    CHECK_ERROR(tcpx_transfer_wait(write, WAIT_MS), TCPX_CANCELLED, "was cancelled");
    CHECK_SUCCESS(tcpx_note_send(here, "", 0));
    close_session();
}

/* One that waits for its turn ends by the cancel itself. */
CASE(a_cancelled_receive_is_seen_in_the_eventfd)
{
    enum { COUNT = 4097 };
    static struct tcpx_transfer *receives[COUNT];
    struct pollfd event = {.events = POLLIN};
    struct tcpx_memory *memory;
    uint64_t count;

    open_session(-1);
    CHECK_SUCCESS(tcpx_session_register(here, ours, sizeof ours, &memory));
    CHECK_SUCCESS(tcpx_session_event_fd(here, &event.fd));
    for (unsigned i = 0; i < COUNT; i++) {
        const struct tcpx_move move = {.memory = memory, .offset = i, .bytes = 1, .tag = 7};

        CHECK_SUCCESS(tcpx_receive(here, &move, &receives[i]));
    }
    while (poll(&event, 1, 100) > 0)
        CHECK(read(event.fd, &count, sizeof count) == sizeof count);
    CHECK_SUCCESS(tcpx_transfer_cancel(receives[COUNT - 1]));
    CHECK(poll(&event, 1, WAIT_MS) == 1);
    close_session();
}

/* One that has ended before the program asks for the eventfd. */
CASE(an_early_end_is_seen_in_the_eventfd)
{
    struct tcpx_session_statistics statistics = {.size = sizeof statistics};
    struct pollfd event = {.events = POLLIN};
    struct tcpx_part part = {.bytes = 10};
    struct tcpx_access access = {.parts = &part, .part_count = 1};
    struct tcpx_transfer *read;
    uint64_t since = now_ms();

    open_session(-1);
    part.window = open_window(-1, ours, sizeof ours, 0);
    part.remote = open_remote(open_window(-1, theirs, sizeof theirs, TCPX_WINDOW_READ));
    CHECK_SUCCESS(tcpx_read(here, &access, &read));
    while (statistics.reads == 0) {
        CHECK(now_ms() - since < (uint64_t)WAIT_MS);
        nap_ms(1);
        CHECK_SUCCESS(tcpx_session_get_statistics(here, &statistics));
    }
    CHECK_SUCCESS(tcpx_session_event_fd(here, &event.fd));
    CHECK(poll(&event, 1, WAIT_MS) == 1);
    CHECK_SUCCESS(tcpx_transfer_wait(read, 0));
    close_session();
}

CASE(what_was_not_done_in_time_is_named)
{
    struct tcpx_transfer *write;
    struct tcpx_part part = {.bytes = 10};
    struct tcpx_access access = {
        .parts = &part, .part_count = 1, .note = "", .timeout_ms = WAIT_MS};

    open_session(-1);
    part.window = open_window(-1, ours, sizeof ours, 0);
    part.remote = open_remote(open_window(-1, theirs, sizeof theirs, TCPX_WINDOW_WRITE));
    fill_notes();
    CHECK_SUCCESS(tcpx_write(here, &access, &write));
    CHECK_ERROR(tcpx_transfer_wait(write, 1), TCPX_IN_PROGRESS, "the write of 10 bytes was not");
    close_session();
}

/* --- notes --------------------------------------------------------------------------------------
 */

/* What the socket has no room for is sent later, though no call follows and the worker sleeps. */
CASE(notes_leave_without_a_further_call)
{
    enum { NOTES = 6, ROUNDS = 5, ROOM = 4096 };
    static uint8_t note[TCPX_NOTE_BYTES];
    const int room = ROOM;

    setenv("UCCL_TCPX_THREADS", "0", 1);
    open_session(-1);
    CHECK(setsockopt(control_fd(here->control), SOL_SOCKET, SO_SNDBUF, &room, sizeof room) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t since = now_ms();
        int taken = 0;

        nap_ms(20); /* until the worker sleeps */
        for (int i = 0; i < NOTES; i++)
            CHECK_SUCCESS(tcpx_note_send(here, note, sizeof note));
        while (taken < NOTES && now_ms() - since < (uint64_t)WAIT_MS) {
            size_t bytes;
            int is_there;

            CHECK_SUCCESS(tcpx_note_take(there, note, sizeof note, &bytes, &is_there));
            taken += is_there;
        }
        CHECK(taken == NOTES);
    }
    close_session();
}

/* --- many ---------------------------------------------------------------------------------------
 */

static double cpu_seconds_of_process(void)
{
    struct timespec time;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Any number may wait, for a place among those under way or for room for a note. */
CASE(accesses_that_wait_cost_nothing)
{
    enum { COUNT = 40000 };
    struct tcpx_part part = {.bytes = 10};
    struct tcpx_access access = {.parts = &part, .part_count = 1, .note = "", .timeout_ms = 600000};
    struct tcpx_transfer *write;
    double before;

    open_session(-1);
    part.window = open_window(-1, ours, sizeof ours, 0);
    part.remote = open_remote(open_window(-1, theirs, sizeof theirs, TCPX_WINDOW_WRITE));
    fill_notes();
    for (int i = 0; i < COUNT; i++)
        CHECK_SUCCESS(tcpx_write(here, &access, &write));
    nap_ms(50);
    before = cpu_seconds_of_process();
    nap_ms(1000);
    CHECK(cpu_seconds_of_process() - before < 0.05);
    close_session();
}

/* --- a forked child -----------------------------------------------------------------------------
 */

static void ask_for_key(const uint8_t *window)
{
    uint8_t key[TCPX_KEY_BYTES];

    CHECK_ERROR(tcpx_window_key((const struct tcpx_window *)window, key), TCPX_INVALID_USAGE,
                "fork");
}

CASE(a_forked_child_gets_no_key)
{
    struct tcpx_window *window = open_window(-1, ours, sizeof ours, TCPX_WINDOW_READ);

    CHECK(child_wait(child_try_fork_here(ask_for_key, window)) == 0);
    CHECK_SUCCESS(tcpx_window_close(window, WAIT_MS));
}

SUITE(.name = "session_access_regressions", .begin = child_begin);
