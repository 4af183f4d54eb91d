/*
 * Slots that the GPU may still read when it cannot be asked any more: a kernel unpacks from the
 * descriptors in a slot, and every question whether it has ended fails, while a comm receives, when
 * it is closed, or when the work could not be begun as a whole. Such a slot is not used again. The
 * unpacking kernels wait behind one that spins, over the stand-in driver; fragments come from the
 * software NIC.
 */
#include "tests/fakecuda/controls.h"
#include "tests/gpu/world_spinner.h"
#include "tests/support/comm_inside.h"

enum {
    BYTES = 50000, /* as many slices as a socket has parts, each of some ten fragments */
    ROOM = BYTES + 2 * GPU_MARGIN,
    MOST_SLOTS = 64,
    CASE_MS = 20000,
};

/* --- the pool of slots --------------------------------------------------------------------- */

/* Slots that the next comm would get, the first one first: the one that was given back last. */
struct slot_list {
    unsigned count;
    const uint8_t *hosts[MOST_SLOTS];
};

static struct slot_list look_at_slots(void)
{
    struct slot_list slots;

    slots.count = inside_free_slots(slots.hosts, MOST_SLOTS);
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

static void open_pair(struct gpu_pair *pair)
{
    gpu_pair_open(pair, PAIR_OPTIONS(.sockets = 2, .framing = WIRE_SEPARATE, .eager_credit = 32768),
                  ROOM);
    place_fill(&pair->receiver.place, ROOM, 0, NULL, 0);
}

static void begin(struct gpu_pair *pair, unsigned number)
{
    assert_success(gpu_pair_receive(pair, BYTES));
    pair->sender.request = must_send(pair->sender.comm, text_of(&world.text, number), BYTES, 1);
}

/* Until all bytes are in pages, and wait to be unpacked. */
static void receive_all(struct gpu_pair *pair)
{
    uint64_t deadline = deadline_after_ms(CASE_MS);

    while (pair->receiver.request != NULL &&
           (inside_moved(pair->receiver.comm, pair->receiver.request) < BYTES ||
            pair->sender.request != NULL)) {
        assert_success(gpu_end_step(&pair->sender, false));
        assert_success(gpu_end_step(&pair->receiver, false));
        assert_false(deadline_passed(deadline));
    }
    assert_non_null(pair->receiver.request);
}

/* Until the receive has ended; returns how. */
static int finish(struct gpu_pair *pair)
{
    uint64_t deadline = deadline_after_ms(CASE_MS);
    int result = pair->receiver.result;

    while (pair->receiver.request != NULL) {
        result = gpu_end_step(&pair->receiver, false);
        if (gpu_end_step(&pair->sender, false) != TCPX_SUCCESS && result == TCPX_SUCCESS)
            result = TCPX_REMOTE_ERROR;
        assert_false(deadline_passed(deadline));
    }
    return result;
}

static const uint8_t *look(struct gpu_pair *pair)
{
    return place_look(&pair->receiver.place, ROOM) + GPU_MARGIN;
}

/* All that waits for it is over, too. */
static void kernel_stop(void)
{
    assert_true(spinner_stop(&spinner));
    assert_success(gpu_set(world.stream, world.window.device + ROOM - 1, 0, 1));
    world_drain();
}

/* --- cases --------------------------------------------------------------------------------- */

/* A message whose unpacking has begun and cannot end; returns how many slots it has. */
static unsigned begin_to_unpack(struct gpu_pair *pair, struct slot_list *free_slots)
{
    open_pair(pair);
    assert_true(world_spinner(spinner_start));
    begin(pair, 1);
    receive_all(pair);
    *free_slots = look_at_slots();
    assert_true(spinner_still_spins(&spinner));
    return inside_slots_used(pair->receiver.comm);
}

/* Of the message, or not written. */
static void assert_own_bytes(struct gpu_pair *pair, unsigned number)
{
    const uint8_t *seen = look(pair);
    const uint8_t *message = text_of(&world.text, number);

    for (unsigned i = 0; i < BYTES; i++)
        if (seen[i] != message[i] && seen[i] != GPU_MARK)
            fail_msg("byte %u is of another comm", i);
}

/* The others go on, with other slots: what the kernel reads late is as it was. */
TEST(test_no_answer_while_receiving)
{
    struct slot_list free_slots;
    struct gpu_pair pair;
    struct gpu_pair other;
    unsigned used;
    unsigned again;
    int result;

    open_pair(&other);
    used = begin_to_unpack(&pair, &free_slots);
    fakecuda.fault("cuEventQuery=2");
    result = finish(&pair);
    fakecuda.fault(NULL);
    again = given_back(&free_slots, used);
    begin(&other, 2);
    receive_all(&other);
    kernel_stop();
    assert_int_equal(result, TCPX_CUDA_ERROR);
    assert_int_equal(again, 0);
    assert_success(finish(&other));
    assert_memory_equal(look(&other), text_of(&world.text, 2), BYTES);
    assert_own_bytes(&pair, 1);
    gpu_pair_free(&pair);
    gpu_pair_free(&other);
}

/* A single question that fails costs the comm, but no slot: they come back when the kernel ends. */
TEST(test_one_answer_is_missing)
{
    struct slot_list free_slots;
    struct gpu_pair pair;
    unsigned used = begin_to_unpack(&pair, &free_slots);
    unsigned too_early;
    int result;

    fakecuda.fault("cuEventQuery@1=2");
    result = gpu_end_step(&pair.receiver, false);
    fakecuda.fault(NULL);
    too_early = given_back(&free_slots, used);
    kernel_stop();
    assert_success(result); /* it has not ended as long as something writes there */
    assert_int_equal(too_early, 0);
    assert_int_equal(finish(&pair), TCPX_CUDA_ERROR);
    assert_int_equal(given_back(&free_slots, used), used);
    gpu_pair_free(&pair);
}

TEST(test_no_answer_at_close)
{
    struct slot_list free_slots;
    struct gpu_pair pair;
    struct gpu_pair other;
    unsigned used;
    unsigned again;

    open_pair(&other);
    used = begin_to_unpack(&pair, &free_slots);
    fakecuda.fault("cuEventQuery=2");
    gpu_end_close(&pair.receiver);
    fakecuda.fault(NULL);
    again = given_back(&free_slots, used);
    kernel_stop();
    assert_int_equal(again, 0);
    begin(&other, 3);
    assert_success(finish(&other));
    assert_memory_equal(look(&other), text_of(&world.text, 3), BYTES);
    gpu_pair_free(&pair);
    gpu_pair_free(&other);
}

/* Whether the slot of the first part can be had again when the comm is closed. */
static bool begin_in_vain(const char *faults)
{
    struct slot_list before;
    struct slot_list after;
    struct gpu_pair pair;

    open_pair(&pair);
    before = look_at_slots();
    fakecuda.fault(faults);
    begin(&pair, 4);
    assert_int_not_equal(finish(&pair), TCPX_SUCCESS);
    fakecuda.fault(NULL);
    gpu_pair_free(&pair);
    after = look_at_slots();
    return has(&after, before.hosts[0]);
}

/*
 * The kernel cannot be launched, but copies before it may run: the slot's event tells, if it can be
 * recorded. Two records fail in turn; the software NIC makes one to three before those of the slot.
 */
TEST(test_work_that_cannot_begin)
{
    enum { MOST_TURNS = 100 };
    bool retired = false;
    struct gpu_pair other;

    open_pair(&other);
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
    assert_memory_equal(look(&other), text_of(&world.text, 5), BYTES);
    gpu_pair_free(&other);
}

/* A receiver whose GPU could not be opened as a whole receives into host memory as before. */
TEST(test_a_gpu_that_cannot_be_opened)
{
    enum { MOST_TURNS = 20 };
    static uint8_t room[BYTES];
    int result = TCPX_INTERNAL_ERROR;

    for (int i = 1; i <= MOST_TURNS && result != TCPX_SUCCESS; i++) {
        struct gpu_pair pair;
        char faults[40];

        gpu_pair_connect(&pair, PAIR_OPTIONS(.sockets = 3, .framing = WIRE_SEPARATE), ROOM);
        snprintf(faults, sizeof faults, "cuStreamCreate@%d=2", i);
        fakecuda.fault(faults);
        result = net_register(pair.receiver.comm, place_at(&pair.receiver.place, 0), ROOM,
                              &pair.receiver.memory);
        fakecuda.fault(NULL);
        memset(room, 0, sizeof room);
        pair_move(&(struct pair){pair.sender.comm, pair.receiver.comm}, text_of(&world.text, i),
                  room, BYTES, 1);
        assert_memory_equal(room, text_of(&world.text, i), BYTES);
        gpu_pair_free(&pair);
        /* the first stream is the comm's, the others are those of the further sockets */
        assert_true(result != TCPX_SUCCESS || i > 2);
    }
    assert_success(result);
}

/* --- the program --------------------------------------------------------------------------- */

static int set_up(void)
{
    return world_open(BYTES, ROOM) != 0 || inside_slots_open(MOST_SLOTS) != TCPX_SUCCESS ||
           !world_spinner(spinner_open);
}

static int tear_down(void)
{
    bool closed = world_spinner(spinner_close);

    inside_slots_close();
    return world_close() != 0 || !closed;
}

static int begin_suite(void)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    setenv("UCCL_TCPX_SOFT_DEVMEM", "7", 1); /* fragments of at most 300 bytes */
    setenv("UCCL_TCPX_UNPACK_IMPL", "kernel", 1);
    setenv("UCCL_TCPX_THREADS", "0", 1);
    return fakecuda_find();
}

SUITE(.name = "devmem_faults", .begin = begin_suite, .set_up = set_up, .tear_down = tear_down);
