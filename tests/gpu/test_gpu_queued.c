/*
 * Copies that somebody's kernel waits for. A kernel spins, another one is queued behind it, and the
 * driver has one channel for kernels (CUDA_DEVICE_MAX_CONNECTIONS=1): copies of every size, in both
 * directions, through the GPU layer and through comms, arrive while the kernel spins. What needs
 * the channel would arrive when the kernel has ended by itself, and that is the failure. Messages
 * of a single byte are the exception (gpu.h), but no longer message is cut so that one is left.
 * Runs on a real GPU, and on the stand-in driver, which has the same channel.
 */
#include "gpu/gpu.h"
#include "tests/spinning_kernel.h"
#include "tests/support/pair.h"
#include "tests/unit/net_traffic.h"

#include <sched.h>

enum {
    LARGEST = 4 << 20,
    MARGIN = 64,
    ROOM = LARGEST + 4 * MARGIN,
    MARK = 0xaa,
    WAIT_MS = 2000, /* less than the kernel spins */
    AT_ONCE = 6,    /* messages of a comm that are under way together */
};

static struct gpu *gpu;
static struct gpu_stream *stream;
static struct gpu_event *event;
static struct gpu_memory device;
static struct gpu_pinned near_end;
static struct gpu_pinned far_end;
static struct text text;
static struct spinner spinner;

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
    struct gpu_scope scope;

    text = text_create(LARGEST);
    if (gpu_open(0, &gpu) != TCPX_SUCCESS || gpu_stream_create(gpu, &stream) != TCPX_SUCCESS ||
        gpu_event_create(gpu, GPU_EVENT_PLAIN, &event) != TCPX_SUCCESS ||
        gpu_memory_alloc(gpu, ROOM, 4096, &device) != TCPX_SUCCESS ||
        gpu_pinned_alloc(gpu, ROOM, GPU_PINNED_PLAIN, &near_end) != TCPX_SUCCESS ||
        gpu_pinned_alloc(gpu, ROOM, GPU_PINNED_PLAIN, &far_end) != TCPX_SUCCESS ||
        gpu_enter(gpu, &scope) != TCPX_SUCCESS || !spinner_open(&spinner)) {
        fprintf(stderr, "no GPU, or no kernel: %s\n", tcpx_last_error());
        return -1;
    }
    gpu_leave(gpu, &scope);
    return 0;
}

static int tear_down(void)
{
    struct gpu_scope scope;

    if (gpu_enter(gpu, &scope) == TCPX_SUCCESS) {
        spinner_close(&spinner);
        gpu_leave(gpu, &scope);
    }
    gpu_pinned_free(gpu, &near_end);
    gpu_pinned_free(gpu, &far_end);
    gpu_memory_free(gpu, &device);
    gpu_event_destroy(event);
    gpu_stream_destroy(stream);
    gpu_close(gpu);
    text_destroy(&text);
    return 0;
}

static void kernel_start(void)
{
    struct gpu_scope scope;
    bool started;

    assert_success(gpu_enter(gpu, &scope));
    started = spinner_start(&spinner);
    gpu_leave(gpu, &scope);
    assert_true(started);
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
    return gpu_event_record(event, stream) == TCPX_SUCCESS &&
           gpu_event_wait(event, deadline_after_ms(WAIT_MS)) == TCPX_SUCCESS;
}

/* --- the GPU layer -----------------------------------------------------------------------------
 */

/* To the device and back, from and to addresses that are aligned to nothing. */
static bool there_and_back(uint64_t bytes, unsigned number)
{
    uint64_t at = MARGIN + number % 7;
    uint8_t *from = (uint8_t *)near_end.host + MARGIN + number % 5;
    uint8_t *seen = far_end.host;
    const uint8_t *message = text_of(&text, number);

    memset(far_end.host, MARK, bytes + 4 * MARGIN);
    if (gpu_copy_to_device(stream, device.address, far_end.host, bytes + 4 * MARGIN) !=
            TCPX_SUCCESS ||
        !drain())
        return false;
    memcpy(from, message, bytes);
    if (gpu_copy_to_device(stream, device.address + at, from, bytes) != TCPX_SUCCESS || !drain())
        return false;
    memset(far_end.host, 0, bytes + 4 * MARGIN);
    if (gpu_copy_to_host(stream, seen, device.address, bytes + 4 * MARGIN) != TCPX_SUCCESS ||
        !drain())
        return false;
    for (uint64_t i = 0; i < at; i++)
        if (seen[i] != MARK)
            return false;
    for (uint64_t i = at + bytes; i < bytes + 4 * MARGIN; i++)
        if (seen[i] != MARK)
            return false;
    return memcmp(seen + at, message, bytes) == 0;
}

TEST(test_copies_in_and_out)
{
    enum { ENOUGH = 4 };
    unsigned failed = 0;

    for (unsigned i = 0; i < SIZES && failed < ENOUGH; i++) {
        bool arrived;

        kernel_start();
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

    memcpy(near_end.host, text_of(&text, 5), LARGEST);
    assert_success(gpu_copy_to_device(stream, device.address, near_end.host, LARGEST));
    assert_true(drain());
    for (unsigned i = 0; i < SIZES && wrong == 0; i++) {
        uint64_t bytes = size_of(i);
        uint64_t at = bytes + i % 9 <= LARGEST ? i % 9 : 0;
        uint8_t *to = (uint8_t *)far_end.host + i % 3;

        memset(to, MARK, bytes + 1);
        kernel_start();
        if (gpu_copy_to_host(stream, to, device.address + at, bytes) != TCPX_SUCCESS || !drain() ||
            memcmp(to, text_of(&text, 5) + at, bytes) != 0 || to[bytes] != MARK)
            wrong = bytes;
        kernel_stop();
    }
    if (wrong != 0)
        fail_msg("a copy of %llu bytes out of the GPU waits, or is wrong",
                 (unsigned long long)wrong);
}

/* --- comms -------------------------------------------------------------------------------------
 */

/* Both ends' memory; in host memory, the same bytes of a pinned area that the GPU is not told of.
 */
struct ends {
    struct pair comms;
    struct gpu_memory from;
    struct gpu_memory to;
    struct net_memory *from_memory;
    struct net_memory *to_memory;
    uint8_t *from_host;
    uint8_t *to_host;
};

enum { STRIDE = LARGEST + 2 * MARGIN, AREA = AT_ONCE * STRIDE };

static void ends_open(struct ends *ends, const struct net_link_options *options)
{
    *ends = (struct ends){.from_host = malloc(AREA), .to_host = malloc(AREA)};
    assert_true(ends->from_host != NULL && ends->to_host != NULL);
    ends->comms = pair_open(options);
    assert_success(gpu_memory_alloc(gpu, AREA, 4096, &ends->from));
    assert_success(gpu_memory_alloc(gpu, AREA, 4096, &ends->to));
    assert_success(net_register(ends->comms.sender, (void *)(uintptr_t)ends->from.address, AREA,
                                &ends->from_memory));
    assert_success(net_register(ends->comms.receiver, (void *)(uintptr_t)ends->to.address, AREA,
                                &ends->to_memory));
}

static void ends_close(struct ends *ends)
{
    net_deregister(ends->comms.sender, ends->from_memory);
    net_deregister(ends->comms.receiver, ends->to_memory);
    pair_close(&ends->comms);
    gpu_memory_free(gpu, &ends->from);
    gpu_memory_free(gpu, &ends->to);
    free(ends->from_host);
    free(ends->to_host);
}

/* Puts a message for each size where it is sent from, and marks where it is received. */
static void ends_fill(struct ends *ends, const uint64_t *sizes)
{
    for (unsigned i = 0; i < AT_ONCE; i++) {
        uint64_t at = (uint64_t)i * STRIDE;
        uint64_t bytes = sizes[i] + 2 * MARGIN;

        memset(ends->from_host + at, MARK, bytes);
        memset(ends->to_host + at, MARK, bytes);
        memcpy(ends->from_host + at + i, text_of(&text, i), sizes[i]);
        assert_success(
            gpu_copy_to_device(stream, ends->from.address + at, ends->from_host + at, bytes));
        assert_success(
            gpu_copy_to_device(stream, ends->to.address + at, ends->to_host + at, bytes));
    }
    assert_true(drain());
}

static void post(struct ends *ends, bool from_gpu, bool to_gpu, const uint64_t *sizes,
                 struct net_request *sends[AT_ONCE], struct net_request *receives[AT_ONCE])
{
    for (unsigned i = 0; i < AT_ONCE; i++) {
        uint64_t from = (uint64_t)i * STRIDE + i;
        uint64_t to = (uint64_t)i * STRIDE + 1 + i % 3;
        const struct net_buffer receive = {
            .data = to_gpu ? (void *)(uintptr_t)(ends->to.address + to) : ends->to_host + to,
            .bytes = sizes[i],
            .memory = to_gpu ? ends->to_memory : NULL};
        const struct net_buffer send = {.data = from_gpu
                                                    ? (void *)(uintptr_t)(ends->from.address + from)
                                                    : ends->from_host + from,
                                        .bytes = sizes[i],
                                        .memory = from_gpu ? ends->from_memory : NULL};

        assert_success(net_irecv_buffer(ends->comms.receiver, &receive, i, &receives[i]));
        assert_success(net_isend_buffer(ends->comms.sender, &send, i, &sends[i]));
    }
}

/* How many of the requests have not ended at the deadline. */
static unsigned finish(struct net_request *sends[AT_ONCE], struct net_request *receives[AT_ONCE])
{
    uint64_t deadline = deadline_after_ms(WAIT_MS);
    unsigned left = 2 * AT_ONCE;

    while (left > 0 && !deadline_passed(deadline)) {
        left = 0;
        for (unsigned i = 0; i < 2 * AT_ONCE; i++) {
            struct net_request **request = i < AT_ONCE ? &sends[i] : &receives[i - AT_ONCE];
            bool done = false;

            if (*request == NULL)
                continue;
            assert_success(net_test(*request, &done, NULL));
            if (done)
                *request = NULL;
            left += !done;
        }
        sched_yield();
    }
    return left;
}

static bool has_arrived(struct ends *ends, bool to_gpu, unsigned number, uint64_t bytes)
{
    uint64_t at = 1 + number % 3;
    uint64_t all = bytes + 2 * MARGIN;
    uint8_t *here = ends->to_host + (uint64_t)number * STRIDE;

    if (to_gpu) {
        memset(here, 0, all);
        if (gpu_copy_to_host(stream, here, ends->to.address + (uint64_t)number * STRIDE, all) !=
                TCPX_SUCCESS ||
            !drain())
            return false;
    }
    for (uint64_t k = 0; k < all; k++)
        if ((k < at || k >= at + bytes) && here[k] != MARK)
            return false;
    return memcmp(here + at, text_of(&text, number), bytes) == 0;
}

static bool all_arrived(struct ends *ends, bool to_gpu, const uint64_t *sizes)
{
    for (unsigned i = 0; i < AT_ONCE; i++)
        if (!has_arrived(ends, to_gpu, i, sizes[i]))
            return false;
    return true;
}

/* Once without the kernel, so that all that is made at the first use is there, as under NCCL. */
static void move_while_it_spins(struct ends *ends, bool from_gpu, bool to_gpu,
                                const uint64_t *sizes, bool spins)
{
    struct net_request *sends[AT_ONCE];
    struct net_request *receives[AT_ONCE];
    unsigned left;
    bool arrived;

    ends_fill(ends, sizes);
    if (spins)
        kernel_start();
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
    struct ends ends;

    ends_open(&ends, options);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        move_while_it_spins(&ends, from_gpu, to_gpu, sizes[i], i > 0);
    ends_close(&ends);
}

static const struct {
    uint8_t sockets;
    enum wire_framing framing;
} ways[] = {{1, WIRE_INLINE}, {3, WIRE_INLINE}, {3, WIRE_SEPARATE}};

static struct net_link_options options_of(unsigned way)
{
    return (struct net_link_options){.sockets = ways[way].sockets,
                                     .match = WIRE_MATCH_TAG,
                                     .framing = ways[way].framing,
                                     .eager_limit = 4096,
                                     .eager_credit = 65536,
                                     .largest_slice = 256 << 10,
                                     .timeout_ms = 60000,
                                     .handshake_ms = 5000};
}

TEST(test_comms)
{
    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
        const struct net_link_options options = options_of(i);

        move_all(&options, true, true);
        move_all(&options, false, true);
        move_all(&options, true, false);
    }
}

/* A message of one byte is the exception: it may wait for the kernel, and arrives behind it. */
TEST(test_single_bytes)
{
    static const uint64_t sizes[AT_ONCE] = {1, 1, 7, 1, 4097, 1};

    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
        const struct net_link_options options = options_of(i);
        struct net_request *sends[AT_ONCE];
        struct net_request *receives[AT_ONCE];
        struct ends ends;

        ends_open(&ends, &options);
        move_while_it_spins(&ends, true, true, sizes, false);
        ends_fill(&ends, sizes);
        kernel_start();
        post(&ends, true, true, sizes, sends, receives);
        kernel_stop();
        assert_int_equal(finish(sends, receives), 0);
        assert_true(all_arrived(&ends, true, sizes));
        ends_close(&ends);
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
    kernel_start();
    assert_success(gpu_enter(gpu, &scope));
    assert_int_equal(/* NOLINT(clang-analyzer-core.CallAndMessage): dlsym() has set it */
                     copy(device.address, near_end.host, 8, gpu_stream_native(stream)), 0);
    gpu_leave(gpu, &scope);
    assert_success(gpu_event_record(event, stream));
    done = gpu_event_wait(event, deadline_after_ms(100)) == TCPX_SUCCESS;
    kernel_stop();
    assert_success(gpu_event_wait(event, deadline_after_ms(WAIT_MS)));
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
