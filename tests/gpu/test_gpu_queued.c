/*
 * Copies that somebody's kernel waits for. A kernel spins, another one is queued behind it, and the
 * driver has one channel for kernels (CUDA_DEVICE_MAX_CONNECTIONS=1): copies of every size, in both
 * directions, through the GPU layer and through comms, arrive while the kernel spins. What needs
 * the channel would arrive when the kernel has ended by itself, and that is the failure. Messages
 * of a single byte are the exception (gpu.h), but no longer message is cut so that one is left.
 * Runs on a real GPU, and on the stand-in driver, which has the same channel.
 */
#include "tests/gpu/world_spinner.h"

#include <sched.h>

enum {
    LARGEST = 4 << 20,
    MARGIN = 64,
    ROOM = LARGEST + 4 * MARGIN,
    WAIT_MS = 2000, /* less than the kernel spins */
    AT_ONCE = 6,    /* messages of a comm that are under way together */
};

static struct gpu_memory device;
static struct gpu_pinned far_end;

/* Every size from 2 to 64, and those around what drivers treat differently. */
static const uint64_t larger[] = {
    65,     127,    128,    129,           255,         1000,   1023,  1024,  4095,
    4096,   4097,   8191,   12345,         16384,       23456,  24576, 24577, 32767,
    32768,  32769,  49151,  65534,         65535,       65536,  65537, 99999, 131072,
    262143, 262144, 524289, (1 << 20) + 1, LARGEST - 1, LARGEST};
enum { SMALL = 63, SIZES = SMALL + sizeof larger / sizeof *larger };

static uint64_t size_of(unsigned number)
{
    return number < SMALL ? number + 2 : larger[number - SMALL];
}

static int set_up(void)
{
    if (world_open(LARGEST, ROOM) == 0 &&
        gpu_memory_alloc(world.gpu, ROOM, 4096, &device) == TCPX_SUCCESS &&
        gpu_pinned_alloc(world.gpu, ROOM, &far_end) == TCPX_SUCCESS && world_spinner(spinner_open))
        return 0;
    fprintf(stderr, "no GPU, or no kernel: %s\n", tcpx_last_error());
    return -1;
}

static int tear_down(void)
{
    bool closed = world_spinner(spinner_close);

    gpu_pinned_free(world.gpu, &far_end);
    gpu_memory_free(world.gpu, &device);
    return world_close() != 0 || !closed;
}

/* The kernel is let go before anything is judged: a failure must not leave it behind. */
static void kernel_stop(void)
{
    bool spun = spinner_still_spins(&spinner);

    assert_true(spinner_stop(&spinner));
    if (!spun)
        fail_msg("the kernel had ended: something waited for it");
}

/* What is on the stream is over soon, or never. */
static bool drain(void)
{
    return gpu_event_record(world.event, world.stream) == TCPX_SUCCESS &&
           gpu_event_wait(world.event, deadline_after_ms(WAIT_MS)) == TCPX_SUCCESS;
}

/* --- the GPU layer -----------------------------------------------------------------------------
 */

/* To the device and back, from and to addresses that are aligned to nothing. */
static bool there_and_back(uint64_t bytes, unsigned number)
{
    uint64_t at = MARGIN + number % 7;
    uint8_t *from = (uint8_t *)world.window.host + MARGIN + number % 5;
    uint8_t *seen = far_end.host;
    const uint8_t *message = text_of(&world.text, number);

    memset(far_end.host, GPU_MARK, bytes + 4 * MARGIN);
    if (gpu_copy_to_device(world.stream, device.address, far_end.host, bytes + 4 * MARGIN) !=
            TCPX_SUCCESS ||
        !drain())
        return false;
    memcpy(from, message, bytes);
    if (gpu_copy_to_device(world.stream, device.address + at, from, bytes) != TCPX_SUCCESS ||
        !drain())
        return false;
    memset(far_end.host, 0, bytes + 4 * MARGIN);
    if (gpu_copy_to_host(world.stream, seen, device.address, bytes + 4 * MARGIN) != TCPX_SUCCESS ||
        !drain())
        return false;
    for (uint64_t i = 0; i < at; i++)
        if (seen[i] != GPU_MARK)
            return false;
    for (uint64_t i = at + bytes; i < bytes + 4 * MARGIN; i++)
        if (seen[i] != GPU_MARK)
            return false;
    return memcmp(seen + at, message, bytes) == 0;
}

TEST(test_copies_in_and_out)
{
    enum { ENOUGH = 4 };
    unsigned failed = 0;

    for (unsigned i = 0; i < SIZES && failed < ENOUGH; i++) {
        bool arrived;

        assert_true(world_spinner(spinner_start));
        arrived = there_and_back(size_of(i), i);
        assert_true(spinner_stop(&spinner));
        if (!arrived)
            print_message("# a copy of %llu bytes waits for the kernel, or is wrong\n",
                          (unsigned long long)size_of(i));
        failed += !arrived;
        assert_true(drain());
    }
    assert_int_equal(failed, 0);
}

/* A copy out of every size, on its own: the one above was of more bytes than it looked at. */
TEST(test_copies_out)
{
    uint64_t wrong = 0;

    memcpy(world.window.host, text_of(&world.text, 5), LARGEST);
    assert_success(gpu_copy_to_device(world.stream, device.address, world.window.host, LARGEST));
    assert_true(drain());
    for (unsigned i = 0; i < SIZES && wrong == 0; i++) {
        uint64_t bytes = size_of(i);
        uint64_t at = bytes + i % 9 <= LARGEST ? i % 9 : 0;
        uint8_t *to = (uint8_t *)far_end.host + i % 3;

        memset(to, GPU_MARK, bytes + 1);
        assert_true(world_spinner(spinner_start));
        if (gpu_copy_to_host(world.stream, to, device.address + at, bytes) != TCPX_SUCCESS ||
            !drain() || memcmp(to, text_of(&world.text, 5) + at, bytes) != 0 ||
            to[bytes] != GPU_MARK)
            wrong = bytes;
        kernel_stop();
    }
    if (wrong != 0)
        fail_msg("a copy of %llu bytes out of the GPU waits, or is wrong",
                 (unsigned long long)wrong);
}

/* --- comms -------------------------------------------------------------------------------------
 */

enum { STRIDE = LARGEST + 2 * MARGIN, AREA = AT_ONCE * STRIDE };

/* Puts a message for each size where it is sent from, and marks where it is received. */
static void ends_fill(struct gpu_pair *ends, const uint64_t *sizes)
{
    const struct place *from = &ends->sender.place;
    const struct place *to = &ends->receiver.place;

    for (unsigned i = 0; i < AT_ONCE; i++) {
        uint64_t at = (uint64_t)i * STRIDE;
        uint64_t bytes = sizes[i] + 2 * MARGIN;

        memset(from->host + at, GPU_MARK, bytes);
        memset(to->host + at, GPU_MARK, bytes);
        memcpy(from->host + at + i, text_of(&world.text, i), sizes[i]);
        assert_success(
            gpu_copy_to_device(world.stream, from->device.address + at, from->host + at, bytes));
        assert_success(
            gpu_copy_to_device(world.stream, to->device.address + at, to->host + at, bytes));
    }
    assert_true(drain());
}

/* In its GPU memory, or in the host memory of the same place. */
static struct net_buffer buffer_at(const struct gpu_end *end, bool in_gpu, uint64_t at,
                                   uint64_t bytes)
{
    return (struct net_buffer){.data = in_gpu ? place_at(&end->place, at) : end->place.host + at,
                               .bytes = bytes,
                               .memory = in_gpu ? end->memory : NULL};
}

static void post(struct gpu_pair *ends, bool from_gpu, bool to_gpu, const uint64_t *sizes,
                 struct net_request *sends[AT_ONCE], struct net_request *receives[AT_ONCE])
{
    for (unsigned i = 0; i < AT_ONCE; i++) {
        uint64_t at = (uint64_t)i * STRIDE;
        const struct net_buffer receive =
            buffer_at(&ends->receiver, to_gpu, at + 1 + i % 3, sizes[i]);
        const struct net_buffer send = buffer_at(&ends->sender, from_gpu, at + i, sizes[i]);

        assert_success(net_irecv_buffer(ends->receiver.comm, &receive, i, &receives[i]));
        assert_success(net_isend_buffer(ends->sender.comm, &send, i, &sends[i]));
    }
}

/* How many of the requests have not ended at the deadline. */
static unsigned finish(struct net_request *sends[AT_ONCE], struct net_request *receives[AT_ONCE])
{
    uint64_t deadline = deadline_after_ms(WAIT_MS);
    unsigned left = 2 * AT_ONCE;

    while (left > 0 && !deadline_passed(deadline)) {
        left = 0;
        for (unsigned i = 0; i < AT_ONCE; i++) {
            left += !request_is_done(&sends[i]);
            left += !request_is_done(&receives[i]);
        }
        sched_yield();
    }
    return left;
}

static bool has_arrived(struct gpu_pair *ends, bool to_gpu, unsigned number, uint64_t bytes)
{
    uint64_t at = 1 + number % 3;
    uint64_t all = bytes + 2 * MARGIN;
    uint8_t *here = ends->receiver.place.host + (uint64_t)number * STRIDE;

    if (to_gpu) {
        memset(here, 0, all);
        if (gpu_copy_to_host(world.stream, here,
                             ends->receiver.place.device.address + (uint64_t)number * STRIDE,
                             all) != TCPX_SUCCESS ||
            !drain())
            return false;
    }
    for (uint64_t k = 0; k < all; k++)
        if ((k < at || k >= at + bytes) && here[k] != GPU_MARK)
            return false;
    return memcmp(here + at, text_of(&world.text, number), bytes) == 0;
}

static bool all_arrived(struct gpu_pair *ends, bool to_gpu, const uint64_t *sizes)
{
    for (unsigned i = 0; i < AT_ONCE; i++)
        if (!has_arrived(ends, to_gpu, i, sizes[i]))
            return false;
    return true;
}

/* Once without the kernel, so that all that is made at the first use is there, as under NCCL. */
static void move_while_it_spins(struct gpu_pair *ends, bool from_gpu, bool to_gpu,
                                const uint64_t *sizes, bool spins)
{
    struct net_request *sends[AT_ONCE];
    struct net_request *receives[AT_ONCE];
    unsigned left;
    bool arrived;

    ends_fill(ends, sizes);
    if (spins)
        assert_true(world_spinner(spinner_start));
    post(ends, from_gpu, to_gpu, sizes, sends, receives);
    left = finish(sends, receives);
    arrived = left == 0 && all_arrived(ends, to_gpu, sizes);
    if (spins)
        kernel_stop();
    if (left > 0)
        fail_msg("%u requests wait for the kernel (sizes %llu to %llu)", left,
                 (unsigned long long)sizes[0], (unsigned long long)sizes[AT_ONCE - 1]);
    assert_true(arrived);
}

static void move_all(const struct net_link_options *options, bool from_gpu, bool to_gpu)
{
    static const uint64_t sizes[][AT_ONCE] = {{3, 1000, 32768, 65537, 300000, LARGEST},
                                              {2, 3, 5, 8, 63, 64},
                                              {127, 1000, 4096, 4097, 8191, 16383},
                                              {24576, 32767, 32768, 32769, 49152, 65535},
                                              {65537, 131073, 262145, 524289, 1048577, LARGEST - 1},
                                              {2, 4097, 16385, 32769, 98305, 2097153}};
    struct gpu_pair ends;

    gpu_pair_open(&ends, options, AREA);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        move_while_it_spins(&ends, from_gpu, to_gpu, sizes[i], i > 0);
    gpu_pair_free(&ends);
}

static const struct {
    uint8_t sockets;
    enum wire_framing framing;
} ways[] = {{1, WIRE_INLINE}, {3, WIRE_INLINE}, {3, WIRE_SEPARATE}};

static const struct net_link_options *options_of(unsigned way)
{
    static struct net_link_options options;

    options = *PAIR_OPTIONS(.sockets = ways[way].sockets, .framing = ways[way].framing,
                            .largest_slice = 256 << 10);
    return &options;
}

TEST(test_comms)
{
    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
        move_all(options_of(i), true, true);
        move_all(options_of(i), false, true);
        move_all(options_of(i), true, false);
    }
}

/* A message of one byte is the exception: it may wait for the kernel, and arrives behind it. */
TEST(test_single_bytes)
{
    static const uint64_t sizes[AT_ONCE] = {1, 1, 7, 1, 4097, 1};

    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct net_request *sends[AT_ONCE];
        struct net_request *receives[AT_ONCE];
        struct gpu_pair ends;

        gpu_pair_open(&ends, options_of(i), AREA);
        move_while_it_spins(&ends, true, true, sizes, false);
        ends_fill(&ends, sizes);
        assert_true(world_spinner(spinner_start));
        post(&ends, true, true, sizes, sends, receives);
        kernel_stop();
        assert_int_equal(finish(sends, receives), 0);
        assert_true(all_arrived(&ends, true, sizes));
        gpu_pair_free(&ends);
    }
}

/* --- what it is about ---------------------------------------------------------------------------
 */

/* Whether small plain copies wait here is the driver's matter; the stand-in's do. */
TEST(test_a_plain_copy)
{
    int (*copy)(uint64_t to, const void *from, size_t bytes, void *stream);
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    struct gpu_scope scope;
    bool done;

    *(void **)&copy = dlsym(library, "cuMemcpyHtoDAsync_v2");
    assert_true(copy != NULL);
    assert_true(world_spinner(spinner_start));
    assert_success(gpu_enter(world.gpu, &scope));
    assert_int_equal(/* NOLINT(clang-analyzer-core.CallAndMessage): dlsym() has set it */
                     copy(device.address, world.window.host, 8, gpu_stream_native(world.stream)),
                     0);
    gpu_leave(world.gpu, &scope);
    assert_success(gpu_event_record(world.event, world.stream));
    done = gpu_event_wait(world.event, deadline_after_ms(100)) == TCPX_SUCCESS;
    kernel_stop();
    assert_success(gpu_event_wait(world.event, deadline_after_ms(WAIT_MS)));
    print_message("# a plain copy of 8 bytes %s here\n",
                  done ? "does not wait" : "waits for the kernel");
    if (dlsym(library, "fakecuda_calls") != NULL)
        assert_false(done);
    dlclose(library);
}

static int begin_suite(void)
{
    if (!spinner_has_one_channel()) {
        fprintf(stderr, "this is for CUDA_DEVICE_MAX_CONNECTIONS=1\n");
        return 1;
    }
    return 0;
}

SUITE(.name = "copies behind queued kernels", .begin = begin_suite, .set_up = set_up,
      .tear_down = tear_down);
