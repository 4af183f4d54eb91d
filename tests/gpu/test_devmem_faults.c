/*
 * Slots that the GPU may still read when it cannot be asked any more: a kernel unpacks from the
 * descriptors in a slot, and every question whether it has ended fails, while a comm receives, when
 * it is closed, or when the work could not be begun as a whole. Such a slot is not used again. The
 * unpacking kernels wait behind one that spins, over the stand-in driver; fragments come from the
 * software NIC.
 */
#include "gpu/gpu.h"
#include "tests/fakecuda/fakecuda.h"
#include "tests/spinning_kernel.h"
#include "tests/support/comm_inside.h"
#include "tests/unit/net_traffic.h"

#include <dlfcn.h>

enum {
    BYTES = 50000, /* as many slices as a socket has parts, each of some ten fragments */
    MARGIN = 64,
    ROOM = BYTES + 2 * MARGIN,
    MARK = 0xaa,
    TAG = 1,
    MOST_SLOTS = 64,
    CASE_MS = 20000,
    EXIT_SKIP = 77, /* tests/runner */
};

static fakecuda_fault_call *fault;

static struct gpu *gpu;
static struct gpu_stream *stream;
static struct gpu_event *event;
static struct gpu_pinned window; /* what GPU memory is written and read through */
static struct text text;
static struct spinner spinner;

/* --- the pool of slots --------------------------------------------------------------------- */

/* Slots that the next comm would get, the first one first: the one that was given back last. */
struct slot_list {
    unsigned count;
    const uint8_t *hosts[MOST_SLOTS];
};

static struct slot_list look_at_slots(void)
{
    struct slot_list slots;

    assert_success(inside_free_slots(slots.hosts, MOST_SLOTS, &slots.count));
    return slots;
}

static bool has(const struct slot_list *slots, const uint8_t *host)
{
    for (unsigned i = 0; i < slots->count; i++)
        if (slots->hosts[i] == host)
            return true;
    return false;
}

/* How many of `used` slots that were not to be had before have been given back since. */
static unsigned given_back(const struct slot_list *before, unsigned used)
{
    const struct slot_list now = look_at_slots();
    unsigned count = 0;

    assert_true(used > 0 && used <= now.count);
    for (unsigned i = 0; i < used; i++)
        count += !has(before, now.hosts[i]);
    return count;
}

/* --- two ends of a comm -------------------------------------------------------------------- */

struct pair {
    struct net_comm *sender;
    struct net_comm *receiver;
    struct gpu_memory to;
    struct net_memory *memory;
    struct net_request *send;
    struct net_request *receive;
};

static void drain(void)
{
    assert_success(gpu_event_record(event, stream));
    assert_success(gpu_event_wait(event, deadline_after_ms(CASE_MS)));
}

static void pair_open(struct pair *pair)
{
    static const struct net_link_options options = {.sockets = 2,
                                                    .match = WIRE_MATCH_TAG,
                                                    .framing = WIRE_SEPARATE,
                                                    .eager_limit = 4096,
                                                    .eager_credit = 32768,
                                                    .largest_slice = 64 << 10,
                                                    .timeout_ms = 60000,
                                                    .handshake_ms = 5000};

    *pair = (struct pair){.sender = NULL};
    make_comm_pair(&options, &pair->sender, &pair->receiver);
    assert_success(gpu_memory_alloc(gpu, ROOM, 4096, &pair->to));
    assert_success(
        net_register(pair->receiver, (void *)(uintptr_t)pair->to.address, ROOM, &pair->memory));
    memset(window.host, MARK, ROOM);
    assert_success(gpu_copy_to_device(stream, pair->to.address, window.host, ROOM));
    drain();
}

static void close_receiver(struct pair *pair)
{
    net_comm_close(pair->receiver);
    pair->receiver = NULL;
}

static void pair_close(struct pair *pair)
{
    net_comm_close(pair->sender);
    net_comm_close(pair->receiver);
    gpu_memory_free(gpu, &pair->to);
}

static void begin(struct pair *pair, unsigned number)
{
    const struct net_buffer buffer = {.data = (void *)(uintptr_t)(pair->to.address + MARGIN),
                                      .bytes = BYTES,
                                      .memory = pair->memory};

    assert_success(net_irecv_buffer(pair->receiver, &buffer, TAG, &pair->receive));
    assert_success(net_isend(pair->sender, text_of(&text, number), BYTES, TAG, &pair->send));
}

static int move_on(struct net_request **request)
{
    bool done = false;
    int result = *request != NULL ? net_test(*request, &done, NULL) : TCPX_SUCCESS;

    if (done || result != TCPX_SUCCESS)
        *request = NULL;
    return result;
}

/* Until all bytes are in pages, and wait to be unpacked. */
static void receive_all(struct pair *pair)
{
    uint64_t deadline = deadline_after_ms(CASE_MS);

    while (pair->receive != NULL &&
           (inside_moved(pair->receiver, pair->receive) < BYTES || pair->send != NULL)) {
        assert_success(move_on(&pair->send));
        assert_success(move_on(&pair->receive));
        assert_false(deadline_passed(deadline));
    }
    assert_non_null(pair->receive);
}

/* Until both have ended; returns how the receive did. */
static int finish(struct pair *pair)
{
    uint64_t deadline = deadline_after_ms(CASE_MS);
    int result = TCPX_SUCCESS;

    while (pair->receive != NULL) {
        result = move_on(&pair->receive);
        if (move_on(&pair->send) != TCPX_SUCCESS && result == TCPX_SUCCESS)
            result = TCPX_REMOTE_ERROR;
        assert_false(deadline_passed(deadline));
    }
    return result;
}

static const uint8_t *look(const struct pair *pair)
{
    assert_success(gpu_copy_to_host(stream, window.host, pair->to.address, ROOM));
    drain();
    return (const uint8_t *)window.host + MARGIN;
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

/* All that waits for it is over, too. */
static void kernel_stop(void)
{
    assert_true(spinner_stop(&spinner));
    assert_success(gpu_set(stream, window.device + ROOM - 1, 0, 1));
    drain();
}

/* --- cases --------------------------------------------------------------------------------- */

/* A message whose unpacking has begun and cannot end; returns how many slots it has. */
static unsigned begin_to_unpack(struct pair *pair, struct slot_list *free_slots)
{
    pair_open(pair);
    kernel_start();
    begin(pair, 1);
    receive_all(pair);
    *free_slots = look_at_slots();
    assert_true(spinner_still_spins(&spinner));
    return inside_slots_used(pair->receiver);
}

/* Of the message, or not written. */
static void assert_own_bytes(const struct pair *pair, unsigned number)
{
    const uint8_t *seen = look(pair);
    const uint8_t *message = text_of(&text, number);

    for (unsigned i = 0; i < BYTES; i++)
        if (seen[i] != message[i] && seen[i] != MARK)
            fail_msg("byte %u is of another comm", i);
}

/* The others go on, with other slots: what the kernel reads late is as it was. */
static void test_no_answer_while_receiving(void **state)
{
    struct slot_list free_slots;
    struct pair pair;
    struct pair other;
    unsigned used;
    unsigned again;
    int result;

    (void)state;
    pair_open(&other);
    used = begin_to_unpack(&pair, &free_slots);
    fault("cuEventQuery=2");
    result = finish(&pair);
    fault(NULL);
    again = given_back(&free_slots, used);
    begin(&other, 2);
    receive_all(&other);
    kernel_stop();
    assert_int_equal(result, TCPX_CUDA_ERROR);
    assert_int_equal(again, 0);
    assert_success(finish(&other));
    assert_memory_equal(look(&other), text_of(&text, 2), BYTES);
    assert_own_bytes(&pair, 1);
    pair_close(&pair);
    pair_close(&other);
}

/* A single question that fails costs the comm, but no slot: they come back when the kernel ends. */
static void test_one_answer_is_missing(void **state)
{
    struct slot_list free_slots;
    struct pair pair;
    unsigned used = begin_to_unpack(&pair, &free_slots);
    unsigned too_early;
    int result;

    (void)state;
    fault("cuEventQuery@1=2");
    result = move_on(&pair.receive);
    fault(NULL);
    too_early = given_back(&free_slots, used);
    kernel_stop();
    assert_success(result); /* it has not ended as long as something writes there */
    assert_int_equal(too_early, 0);
    assert_int_equal(finish(&pair), TCPX_CUDA_ERROR);
    assert_int_equal(given_back(&free_slots, used), used);
    pair_close(&pair);
}

static void test_no_answer_at_close(void **state)
{
    struct slot_list free_slots;
    struct pair pair;
    struct pair other;
    unsigned used;
    unsigned again;

    (void)state;
    pair_open(&other);
    used = begin_to_unpack(&pair, &free_slots);
    fault("cuEventQuery=2");
    close_receiver(&pair);
    fault(NULL);
    again = given_back(&free_slots, used);
    kernel_stop();
    assert_int_equal(again, 0);
    begin(&other, 3);
    assert_success(finish(&other));
    assert_memory_equal(look(&other), text_of(&text, 3), BYTES);
    pair_close(&pair);
    pair_close(&other);
}

/* Whether the slot of the first part can be had again when the comm is closed. */
static bool begin_in_vain(const char *faults)
{
    struct slot_list before;
    struct slot_list after;
    struct pair pair;

    pair_open(&pair);
    before = look_at_slots();
    fault(faults);
    begin(&pair, 4);
    assert_int_not_equal(finish(&pair), TCPX_SUCCESS);
    fault(NULL);
    pair_close(&pair);
    after = look_at_slots();
    return has(&after, before.hosts[0]);
}

/*
 * The kernel cannot be launched, but copies before it may run: the slot's event tells, if it can be
 * recorded. Two records fail in turn; the software NIC makes one to three before those of the slot.
 */
static void test_work_that_cannot_begin(void **state)
{
    enum { MOST_TURNS = 100 };
    bool retired = false;
    struct pair other;

    (void)state;
    pair_open(&other);
    assert_true(begin_in_vain("cuLaunchKernel=2"));
    for (int i = 0; i < MOST_TURNS && !retired; i++) {
        char faults[100];

        /* a fault that happens is not counted by those behind it: this is one and the next */
        snprintf(faults, sizeof faults, "cuLaunchKernel=2,cuEventRecord@%d=2,cuEventRecord@%d=2",
                 2 + i % 3, 2 + i % 3);
        retired = !begin_in_vain(faults);
    }
    assert_true(retired);
    begin(&other, 5);
    assert_success(finish(&other));
    assert_memory_equal(look(&other), text_of(&text, 5), BYTES);
    pair_close(&other);
}

/* --- the program --------------------------------------------------------------------------- */

static int set_up(void **state)
{
    struct gpu_scope scope;
    bool opened;

    (void)state;
    text = text_create(BYTES);
    if (gpu_open(0, &gpu) != TCPX_SUCCESS || gpu_stream_create(gpu, &stream) != TCPX_SUCCESS ||
        gpu_event_create(gpu, GPU_EVENT_PLAIN, &event) != TCPX_SUCCESS ||
        gpu_pinned_alloc(gpu, ROOM, GPU_PINNED_PLAIN, &window) != TCPX_SUCCESS ||
        inside_slots_open(MOST_SLOTS) != TCPX_SUCCESS || gpu_enter(gpu, &scope) != TCPX_SUCCESS)
        return -1;
    opened = spinner_open(&spinner);
    gpu_leave(gpu, &scope);
    return opened ? 0 : -1;
}

static int tear_down(void **state)
{
    struct gpu_scope scope;

    (void)state;
    if (gpu_enter(gpu, &scope) == TCPX_SUCCESS) {
        spinner_close(&spinner);
        gpu_leave(gpu, &scope);
    }
    text_destroy(&text);
    inside_slots_close();
    gpu_pinned_free(gpu, &window);
    gpu_event_destroy(event);
    gpu_stream_destroy(stream);
    gpu_close(gpu);
    return 0;
}

static bool find_controls(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);

    if (library == NULL)
        return false;
    fault = (fakecuda_fault_call *)dlsym(library, "fakecuda_fault");
    return fault != NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_answer_while_receiving),
        cmocka_unit_test(test_one_answer_is_missing),
        cmocka_unit_test(test_no_answer_at_close),
        cmocka_unit_test(test_work_that_cannot_begin),
    };

    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    setenv("UCCL_TCPX_SOFT_DEVMEM", "7", 1); /* fragments of at most 300 bytes */
    setenv("UCCL_TCPX_UNPACK_IMPL", "kernel", 1);
    setenv("UCCL_TCPX_THREADS", "0", 1);
    if (!find_controls()) {
        puts("libcuda.so.1 is not the stand-in driver");
        return EXIT_SKIP;
    }
    return cmocka_run_group_tests_name("devmem_faults", tests, set_up, tear_down);
}
