/*
 * Shows that nobody waits for a comm whose call the driver holds up, as it does with calls that pin
 * or free memory while a kernel runs. Other comms of the GPU move bytes, are closed and opened; the
 * comm itself moves host memory. Runs over the stand-in only, which holds calls until told.
 */
#include "tests/support/gpu_pair.h"

#include "tests/fakecuda/controls.h"

#include <pthread.h>
#include <stdatomic.h>

enum { LONG = 299999, ROOM = LONG + 2 * GPU_MARGIN, MESSAGES = SANITIZED ? 3 : 10 };

/* Longer than everything that happens meanwhile; then the held call goes on, and the test fails. */
#define HOLD_MS limit_ms(20000)

static const struct net_link_options *tagged(void)
{
    static struct net_link_options options;
    bool devmem = getenv("UCCL_TCPX_SOFT_DEVMEM") != NULL;

    options =
        *PAIR_OPTIONS(.sockets = devmem ? 3 : 2, .framing = devmem ? WIRE_SEPARATE : WIRE_INLINE);
    return &options;
}

/* --- a thread that the driver holds ---------------------------------------------------------- */

struct held {
    pthread_t thread;
    struct gpu_end *end;
    struct net_device_handle handle;
    int result;
    char text[256];
    atomic_bool ended;
};

static void held_ends(struct held *held, int result)
{
    held->result = result;
    snprintf(held->text, sizeof held->text, "%s", tcpx_last_error());
    atomic_store(&held->ended, true);
}

static void *register_end(void *argument)
{
    struct held *held = argument;
    struct gpu_end *end = held->end;

    held_ends(held,
              net_register(end->comm, place_at(&end->place, 0), end->place.bytes, &end->memory));
    return NULL;
}

static void *open_unpack_queue(void *argument)
{
    struct held *held = argument;

    held_ends(held, net_unpack_open(held->end->comm, 0, 4096, &held->handle));
    return NULL;
}

static void *close_end(void *argument)
{
    struct held *held = argument;

    gpu_end_close(held->end);
    held_ends(held, TCPX_SUCCESS);
    return NULL;
}

static void held_start(struct held *held, void *(*call)(void *), struct gpu_end *end)
{
    held->end = end;
    atomic_store(&held->ended, false);
    assert_int_equal(pthread_create(&held->thread, NULL, call, held), 0);
}

/* Returns when the driver holds the call. */
static void held_begin(struct held *held, const char *entry_point, void *(*call)(void *),
                       struct gpu_end *end)
{
    fakecuda.hold(entry_point, HOLD_MS);
    held_start(held, call, end);
    until(fakecuda.held() == 1, nap_ms(1));
}

/* It was held all the time: nothing before this has waited for it. */
static void held_end(struct held *held, int result)
{
    bool waited = atomic_load(&held->ended) || fakecuda.held() == 0;

    fakecuda.hold(NULL, 0);
    assert_int_equal(pthread_join(held->thread, NULL), 0);
    assert_false(waited);
    if (held->result != result)
        fail_msg("%s: %s", tcpx_result_name(held->result), held->text);
}

/* --- what goes on meanwhile ------------------------------------------------------------------ */

static void move_messages(struct gpu_pair *pair)
{
    for (uint64_t number = 0; number < MESSAGES; number++) {
        const uint8_t *message = text_of(&world.text, number);

        place_fill(&pair->sender.place, ROOM, GPU_MARGIN, message, LONG);
        place_fill(&pair->receiver.place, ROOM, GPU_MARGIN, NULL, 0);
        assert_success(gpu_pair_receive(pair, LONG));
        assert_success(gpu_pair_send(pair, LONG, NET_AFTER_NOTHING, NULL));
        gpu_pair_must_end(pair);
        assert_true(place_holds(&pair->receiver.place, ROOM, GPU_MARGIN, message, LONG));
    }
}

/* One whose kernels are loaded. */
static void open_moving(struct gpu_pair *pair)
{
    gpu_pair_open(pair, tagged(), ROOM);
    move_messages(pair);
}

static void move_host_memory(struct gpu_pair *pair)
{
    static uint8_t room[LONG];
    const struct pair comms = {pair->sender.comm, pair->receiver.comm};

    for (uint64_t number = 0; number < MESSAGES; number++) {
        memset(room, 0, sizeof room);
        pair_move(&comms, text_of(&world.text, number), room, LONG, 5);
        assert_memory_equal(room, text_of(&world.text, number), LONG);
    }
}

/* --- pinning --------------------------------------------------------------------------------- */

TEST(test_a_comm_that_pins)
{
    struct gpu_pair moving;
    struct gpu_pair closing;
    struct gpu_pair pinning;
    struct held held;

    open_moving(&moving);
    gpu_pair_open(&closing, tagged(), ROOM);
    gpu_pair_connect(&pinning, tagged(), ROOM);
    held_begin(&held, "cuMemHostRegister_v2", register_end, &pinning.sender);
    move_messages(&moving);
    gpu_pair_close(&closing);
    move_host_memory(&pinning);
    move_messages(&moving);
    held_end(&held, TCPX_SUCCESS);
    assert_success(net_register(pinning.receiver.comm, place_at(&pinning.receiver.place, 0), ROOM,
                                &pinning.receiver.memory));
    move_messages(&pinning);
    gpu_pair_free(&moving);
    gpu_pair_free(&closing);
    gpu_pair_free(&pinning);
}

/* What it had reserved is free again, and the comm goes on without a GPU. */
TEST(test_pinning_that_fails)
{
    struct fakecuda_balance before;
    struct gpu_pair moving;
    struct gpu_pair pinning;
    struct held held;

    open_moving(&moving);
    gpu_pair_connect(&pinning, tagged(), ROOM);
    fakecuda.balance(&before);
    fakecuda.fault("cuMemHostRegister_v2@1=2");
    held_begin(&held, "cuMemHostRegister_v2", register_end, &pinning.sender);
    move_messages(&moving);
    held_end(&held, TCPX_CUDA_ERROR);
    fakecuda.fault(NULL);
    assert_balance(&before, "pinning that fails");
    move_host_memory(&pinning);
    gpu_pair_register(&pinning);
    move_messages(&pinning);
    move_messages(&moving);
    gpu_pair_free(&moving);
    gpu_pair_free(&pinning);
}

/* Two threads register memory with one comm: one of them pins, and both get what they asked for. */
TEST(test_two_registrations_of_one_comm)
{
    struct gpu_pair pair;
    struct gpu_end again;
    struct held first;
    struct held second;
    unsigned calls;

    gpu_pair_connect(&pair, tagged(), ROOM);
    calls = fakecuda.calls("cuMemHostRegister_v2");
    again = pair.sender;
    held_begin(&first, "cuMemHostRegister_v2", register_end, &pair.sender);
    held_start(&second, register_end, &again);
    move_host_memory(&pair);
    assert_false(atomic_load(&second.ended));
    held_end(&first, TCPX_SUCCESS);
    assert_int_equal(pthread_join(second.thread, NULL), 0);
    assert_int_equal(second.result, TCPX_SUCCESS);
    assert_int_equal(fakecuda.calls("cuMemHostRegister_v2") - calls, 1);
    assert_success(net_register(pair.receiver.comm, place_at(&pair.receiver.place, 0), ROOM,
                                &pair.receiver.memory));
    move_messages(&pair);
    net_deregister(pair.sender.comm, again.memory);
    move_messages(&pair);
    gpu_pair_free(&pair);
}

/* A receive that is posted meanwhile comes first: then there is no queue, and nothing is left. */
TEST(test_an_unpack_queue_that_pins)
{
    const struct net_link_options *fifo = PAIR_OPTIONS(.sockets = 2, .match = WIRE_MATCH_FIFO);
    struct fakecuda_balance before;
    struct gpu_pair moving;
    struct gpu_pair pinning;
    struct held held;

    open_moving(&moving);
    gpu_pair_connect(&pinning, fifo, ROOM);
    fakecuda.balance(&before);
    held_begin(&held, "cuMemHostRegister_v2", open_unpack_queue, &pinning.receiver);
    move_messages(&moving);
    move_host_memory(&pinning);
    held_end(&held, TCPX_INVALID_USAGE);
    assert_non_null(strstr(held.text, "before its first receive"));
    assert_balance(&before, "an unpack queue that came too late");
    gpu_pair_free(&pinning);
    gpu_pair_connect(&pinning, fifo, ROOM);
    held_begin(&held, "cuMemHostRegister_v2", open_unpack_queue, &pinning.receiver);
    gpu_pair_free(&moving);
    held_end(&held, TCPX_SUCCESS);
    assert_int_equal(held.handle.type, NET_DEVICE_UNPACK);
    gpu_pair_free(&pinning);
}

/* --- freeing --------------------------------------------------------------------------------- */

/* The last comm of a GPU is closed, which frees its pool. Others come meanwhile. */
TEST(test_a_pool_that_ends)
{
    struct gpu_pair ending;
    struct gpu_pair next;
    struct held held;

    gpu_pair_open(&ending, tagged(), ROOM);
    gpu_end_close(&ending.sender);
    held_begin(&held, "cuMemHostUnregister", close_end, &ending.receiver);
    gpu_pair_open(&next, tagged(), ROOM);
    move_messages(&next);
    held_end(&held, TCPX_SUCCESS);
    move_messages(&next);
    gpu_pair_free(&next);
    gpu_pair_free(&ending);
}

/* --- the program ----------------------------------------------------------------------------- */

static int set_up(void)
{
    return world_open(LONG, ROOM);
}

SUITE(.name = "net_pinning", .begin = fakecuda_find, .set_up = set_up, .tear_down = world_close);
