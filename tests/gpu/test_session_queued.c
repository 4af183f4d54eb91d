/*
 * Sessions with no_kernels: while a kernel spins, and another one is queued behind it, lists of
 * small pieces of GPU memory are sent, received, read and written, as a program needs whose kernels
 * wait for them. Without the option such a list waits for the kernels. Runs on a real GPU, and on
 * the stand-in driver, with CUDA_DEVICE_MAX_CONNECTIONS=1.
 */
#include "tests/gpu/world_spinner.h"
#include "tests/limit.h"
#include "tests/skip.h"

#include "tcpx.h"

#include <pthread.h>

enum {
    PIECES = 64,
    PIECE = 1000,
    STRIDE = 2048,
    ROOM = PIECES * STRIDE,
    WAIT_MS = 2000, /* less than the kernel spins */
};

/* Two sessions between this process and itself, and memory of each on the GPU. */
static struct {
    struct tcpx_session_listener *listener;
    struct tcpx_session *sessions[2];
    struct tcpx_memory *registered[2];
    struct tcpx_window *windows[2];
    struct tcpx_remote *remote; /* the second window, in the first session */
    void *memory[2];
    int accepted;
} both;

static uint8_t bytes[2][ROOM];

static struct tcpx_session_options options_of(int channels, int no_kernels)
{
    struct tcpx_session_options options;

    tcpx_session_options_init(&options);
    options.channels = channels;
    options.plugin_path = "builtin";
    options.windows = 1;
    options.no_kernels = no_kernels;
    return options;
}

static void *accept_one(void *argument)
{
    (void)argument;
    both.accepted = tcpx_session_accept(both.listener, (int)limit_ms(10000), &both.sessions[1]);
    return NULL;
}

static void fill(void)
{
    for (size_t i = 0; i < ROOM; i++) {
        bytes[0][i] = (uint8_t)(i * 7 + i / 251);
        bytes[1][i] = 0xaa;
    }
    for (int i = 0; i < 2; i++)
        assert_success(tcpx_gpu_write(both.memory[i], bytes[i], ROOM));
}

static void sessions_open(int channels, int no_kernels)
{
    const struct tcpx_session_options options = options_of(channels, no_kernels);
    uint8_t key[TCPX_KEY_BYTES];
    pthread_t thread;
    int port;

    assert_success(tcpx_session_listen("127.0.0.1", 0, &options, &both.listener));
    assert_success(tcpx_session_port(both.listener, &port));
    assert_int_equal(pthread_create(&thread, NULL, accept_one, NULL), 0);
    assert_success(
        tcpx_session_connect("127.0.0.1", port, &options, (int)limit_ms(10000), &both.sessions[0]));
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_success(both.accepted);
    tcpx_session_stop_listening(both.listener);
    for (int i = 0; i < 2; i++) {
        assert_success(tcpx_gpu_alloc(0, ROOM, &both.memory[i]));
        assert_success(
            tcpx_session_register(both.sessions[i], both.memory[i], ROOM, &both.registered[i]));
        assert_success(tcpx_window_open(0, both.memory[i], ROOM,
                                        TCPX_WINDOW_READ | TCPX_WINDOW_WRITE, &both.windows[i]));
    }
    assert_success(tcpx_window_key(both.windows[1], key));
    assert_success(tcpx_remote_open(both.sessions[0], key, sizeof key, &both.remote));
    fill();
}

static void sessions_close(void)
{
    for (int i = 0; i < 2; i++) {
        assert_success(tcpx_window_close(both.windows[i], (int)limit_ms(10000)));
        tcpx_session_close(both.sessions[i]);
    }
    for (int i = 0; i < 2; i++)
        assert_success(tcpx_gpu_free(both.memory[i]));
}

/* --- transfers ------------------------------------------------------------------------------- */

enum kind { SENDS, READS, WRITES };

static void begin_list(struct tcpx_transfer *transfers[2])
{
    struct tcpx_piece pieces[PIECES];

    for (int i = 0; i < PIECES; i++)
        pieces[i] = (struct tcpx_piece){(uint64_t)i * STRIDE, PIECE};
    for (int side = 1; side >= 0; side--) {
        const struct tcpx_move move = {
            .memory = both.registered[side], .pieces = pieces, .piece_count = PIECES};

        assert_success(
            (side == 0 ? tcpx_send : tcpx_receive)(both.sessions[side], &move, &transfers[side]));
    }
}

static void begin_access(enum kind kind, struct tcpx_transfer *transfers[2])
{
    struct tcpx_part parts[PIECES];
    const struct tcpx_access access = {.parts = parts, .part_count = PIECES};

    for (int i = 0; i < PIECES; i++)
        parts[i] = (struct tcpx_part){both.windows[0], (uint64_t)i * STRIDE, both.remote,
                                      (uint64_t)i * STRIDE, PIECE};
    transfers[1] = NULL;
    assert_success(
        (kind == READS ? tcpx_read : tcpx_write)(both.sessions[0], &access, &transfers[0]));
}

static void begin(enum kind kind, struct tcpx_transfer *transfers[2])
{
    if (kind == SENDS)
        begin_list(transfers);
    else
        begin_access(kind, transfers);
}

/* Whether both have ended well before the time is over. */
static bool all_end(struct tcpx_transfer *transfers[2], int timeout_ms)
{
    bool all = true;

    for (int i = 0; i < 2; i++) {
        if (transfers[i] == NULL)
            continue;
        if (tcpx_transfer_wait(transfers[i], timeout_ms) == TCPX_SUCCESS)
            transfers[i] = NULL;
        else
            all = false;
    }
    return all;
}

/* The pieces have arrived, and nothing between them has changed. */
static void check(enum kind kind)
{
    const int to = kind == READS ? 0 : 1;

    assert_success(tcpx_gpu_read(bytes[0], both.memory[0], ROOM));
    assert_success(tcpx_gpu_read(bytes[1], both.memory[1], ROOM));
    for (int i = 0; i < PIECES; i++)
        assert_memory_equal(bytes[0] + (size_t)i * STRIDE, bytes[1] + (size_t)i * STRIDE, PIECE);
    for (int i = 0; i < PIECES; i++)
        for (size_t k = PIECE; k < STRIDE; k++) {
            size_t at = (size_t)i * STRIDE + k;

            assert_int_equal(bytes[to][at], to == 1 ? 0xaa : (uint8_t)(at * 7 + at / 251));
        }
}

/* What a transfer needs of the driver that may wait, before a kernel spins. */
static void warm_up(enum kind kind)
{
    struct tcpx_transfer *transfers[2];

    begin(kind, transfers);
    assert_true(all_end(transfers, (int)limit_ms(10000)));
    check(kind);
    fill();
}

static void try_kind(enum kind kind, bool passes)
{
    struct tcpx_transfer *transfers[2];
    bool ended;
    bool spun;

    warm_up(kind);
    assert_true(world_spinner(spinner_start));
    begin(kind, transfers);
    ended = all_end(transfers, passes ? WAIT_MS : 200);
    spun = spinner_still_spins(&spinner);
    assert_true(spinner_stop(&spinner));
    assert_true(spun);
    assert_int_equal(ended, passes);
    assert_true(all_end(transfers, (int)limit_ms(10000)));
    check(kind);
}

static void try_all(int no_kernels)
{
    sessions_open(1, no_kernels);
    for (int kind = SENDS; kind <= WRITES; kind++)
        try_kind((enum kind)kind, no_kernels != 0);
    sessions_close();
}

TEST(test_lists_pass_kernels)
{
    try_all(1);
}

/* Whether a kernel of ours waits for the program's is the driver's matter; the stand-in's does. */
TEST(test_lists_that_wait)
{
    if (dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), "fakecuda_calls") == NULL)
        skip_because("what a real driver does here is not promised");
    try_all(0);
}

/* In chunks lists are gathered by a kernel. */
TEST(test_lists_in_chunks)
{
    const struct tcpx_piece pieces[2] = {{0, 10}, {100, 10}};
    struct tcpx_move move = {.pieces = pieces, .piece_count = 2};
    struct tcpx_transfer *transfer;

    sessions_open(2, 1);
    move.memory = both.registered[0];
    assert_int_equal(tcpx_send(both.sessions[0], &move, &transfer), TCPX_INVALID_USAGE);
    assert_non_null(strstr(tcpx_last_error(), "over 2 channels needs a kernel"));
    sessions_close();
}

TEST(test_wrong_values)
{
    struct tcpx_session_options options = options_of(1, 2);
    struct tcpx_session_listener *listener;

    assert_int_equal(tcpx_session_listen("127.0.0.1", 0, &options, &listener),
                     TCPX_INVALID_ARGUMENT);
    assert_non_null(strstr(tcpx_last_error(), "no_kernels is 2: 0 or 1"));
}

static int set_up(void)
{
    if (world_open(4 << 20, 4 << 20) == 0 && world_spinner(spinner_open))
        return 0;
    fprintf(stderr, "no GPU, or no kernel: %s\n", tcpx_last_error());
    return -1;
}

static int tear_down(void)
{
    bool closed = world_spinner(spinner_close);

    return world_close() != 0 || !closed;
}

static int begin_suite(void)
{
    if (!spinner_has_one_channel()) {
        fprintf(stderr, "this is for CUDA_DEVICE_MAX_CONNECTIONS=1\n");
        return 1;
    }
    return 0;
}

SUITE(.name = "lists behind queued kernels", .begin = begin_suite, .set_up = set_up,
      .tear_down = tear_down);
