/*
 * The transport over the stand-in driver when the driver fails: every call that a transfer makes,
 * in turn, and all of them at once. Each request ends, in success with the right bytes or in an
 * error with a text; both comms can be closed; other comms go on, and nothing that was taken is
 * kept. Runs over the stand-in only.
 */
#include "tests/support/gpu_pair.h"

#include "tests/fakecuda/controls.h"

enum {
    EAGER_LIMIT = 4096,
    LONG = 399999, /* several slices */
    SHORT = 3001,  /* comes before its receive; odd: it is copied to the GPU in two parts */
    MOST = LONG + 2 * GPU_MARGIN,
    LATE_US = 20000,
};

#define CASE_MS  limit_ms(20000)
#define CLOSE_MS limit_ms(5000)

/* How many calls of each entry point are made to fail in turn. */
static int calls_to_fail(void)
{
    return (int)number_of("TCPX_TEST_CALLS", 6);
}

static unsigned case_count;
static unsigned fault_count;
static unsigned error_count;

static const struct net_link_options options =
    PAIR_DEFAULTS(.sockets = 2, .eager_limit = EAGER_LIMIT, .eager_credit = 32768);

/* --- two ends of a comm -------------------------------------------------------------------- */

/* Marks all of it and puts a message behind the margin if there is one; on the stream, later. */
static void begin_to_fill(struct gpu_end *end, const uint8_t *message, uint64_t bytes)
{
    place_begin_to_fill(&end->place, MOST, GPU_MARGIN, message, bytes);
}

static void fill(struct gpu_end *end, const uint8_t *message, uint64_t bytes)
{
    place_fill(&end->place, MOST, GPU_MARGIN, message, bytes);
}

/* Whether the message is there, and marks are all around it. */
static bool holds(struct gpu_end *end, const uint8_t *message, uint64_t bytes)
{
    return place_holds(&end->place, MOST, GPU_MARGIN, message, bytes);
}

/* Without waiting for anything that does not come. */
static void close_in_time(struct gpu_pair *pair)
{
    uint64_t deadline = deadline_after_ms(CLOSE_MS);

    gpu_pair_close(pair);
    assert_false(deadline_passed(deadline));
}

static void free_in_time(struct gpu_pair *pair)
{
    close_in_time(pair);
    gpu_pair_free(pair);
}

/* A result that is a failure has a text, and one that is the GPU's has the driver's. */
static void check_result(int result)
{
    if (result == TCPX_SUCCESS)
        return;
    if (result != TCPX_CUDA_ERROR && result != TCPX_REMOTE_ERROR)
        fail_msg("%s: %s", tcpx_result_name(result), tcpx_last_error());
    if (strstr(tcpx_last_error(), result == TCPX_CUDA_ERROR ? "CUDA" : "") == NULL ||
        tcpx_last_error()[0] == '\0')
        fail_msg("%s says '%s'", tcpx_result_name(result), tcpx_last_error());
}

static void post_send(struct gpu_pair *pair, uint64_t bytes, enum net_after after)
{
    check_result(gpu_pair_send(pair, bytes, after, gpu_stream_native(world.stream)));
    assert_true((pair->sender.request != NULL) == (pair->sender.result == TCPX_SUCCESS));
}

static void post_receive(struct gpu_pair *pair, uint64_t bytes)
{
    check_result(gpu_pair_receive(pair, bytes));
    assert_true((pair->receiver.request != NULL) == (pair->receiver.result == TCPX_SUCCESS));
}

/* A message in host memory, of any length. */
static void post_host(struct gpu_pair *pair, uint8_t *room, const uint8_t *message, uint64_t bytes,
                      uint64_t tag)
{
    pair->receiver.request = must_receive(pair->receiver.comm, room, LONG, tag);
    pair->sender.request = must_send(pair->sender.comm, message, bytes, tag);
}

static void move_on(struct gpu_pair *pair, bool waiting)
{
    if (pair->sender.request != NULL)
        check_result(gpu_end_step(&pair->sender, waiting));
    if (pair->receiver.request != NULL)
        check_result(gpu_end_step(&pair->receiver, waiting));
}

static bool is_idle(const struct gpu_pair *pair)
{
    return pair->sender.request == NULL && pair->receiver.request == NULL;
}

/* To the end, in success. */
static void finish_well(struct gpu_pair *pair)
{
    uint64_t deadline = deadline_after_ms(CASE_MS);

    while (!is_idle(pair)) {
        move_on(pair, false);
        assert_false(deadline_passed(deadline));
    }
    assert_success(pair->sender.result);
    assert_success(pair->receiver.result);
}

/* --- comms that nothing happens to --------------------------------------------------------- */

/* One in host memory, which is used while the driver fails. */
struct mail {
    struct gpu_pair pair;
    uint64_t number;
    uint8_t arrived[LONG];
};

static struct mail mail;

static uint64_t mail_bytes(void)
{
    return mail.number % 2 == 0 ? 50000 : SHORT;
}

static void mail_turn(void)
{
    const uint8_t *message = text_of(&world.text, mail.number);

    if (is_idle(&mail.pair))
        post_host(&mail.pair, mail.arrived, message, mail_bytes(), 2);
    move_on(&mail.pair, false);
    assert_success(mail.pair.sender.result);
    assert_success(mail.pair.receiver.result);
    if (is_idle(&mail.pair)) {
        assert_memory_equal(mail.arrived, message, mail_bytes());
        mail.number++;
    }
}

/* To the end of a message that begins now, or has begun. */
static void mail_one(void)
{
    uint64_t deadline = deadline_after_ms(CASE_MS);
    uint64_t before = mail.number;

    while (mail.number == before) {
        mail_turn();
        assert_false(deadline_passed(deadline));
    }
}

/* The same in GPU memory, for afterwards. */
static void move_message(struct gpu_pair *pair, uint64_t number)
{
    fill(&pair->sender, text_of(&world.text, number), LONG);
    fill(&pair->receiver, NULL, 0);
    post_receive(pair, LONG);
    post_send(pair, LONG, NET_AFTER_NOTHING);
    finish_well(pair);
    assert_true(holds(&pair->receiver, text_of(&world.text, number), LONG));
}

static struct gpu_pair healthy;

/* The pool has grown for two more comms, and stays so. */
static void healthy_open(void)
{
    struct gpu_pair other;

    gpu_pair_open(&healthy, &options, MOST);
    gpu_pair_open(&other, &options, MOST);
    free_in_time(&other);
}

/* --- one case ------------------------------------------------------------------------------ */

enum how {
    AT_ONCE,
    GATED,     /* the sender waits for the caller's stream */
    FROM_HOST, /* the receiver alone has a GPU */
    PUT_ASIDE, /* a small message comes before its receive */
};

struct plan {
    char fault[80];
    enum how how;
    uint64_t bytes;      /* FROM_HOST; 0: LONG */
    bool register_armed; /* the fault is there before the memory is registered */
    bool close_armed;    /* and still there when the comms are closed */
    bool waiting;        /* by net_wait(), else by net_test() */
    bool shared;         /* the pool has been opened, and is used, by another comm */
};

/* What a comm can do without its GPU. */
static void host_message(struct gpu_pair *pair, uint64_t number)
{
    static uint8_t arrived[LONG];
    const uint8_t *message = text_of(&world.text, number);

    memset(arrived, 0, sizeof arrived);
    post_host(pair, arrived, message, LONG, 3);
    finish_well(pair);
    assert_memory_equal(arrived, message, LONG);
}

/* Again when it fails: the failure of a moment leaves nothing behind. */
static bool register_end(struct gpu_pair *pair, struct gpu_end *end)
{
    for (int attempt = 0; attempt < 2; attempt++) {
        end->result = net_register(end->comm, place_at(&end->place, 0), MOST, &end->memory);
        check_result(end->result);
        if (end->result == TCPX_SUCCESS)
            return true;
        error_count++;
        assert_null(end->memory);
        host_message(pair, case_count);
    }
    return false;
}

static void post_both(struct gpu_pair *pair, const struct plan *plan, const uint8_t *message)
{
    uint64_t bytes = plan->bytes != 0 ? plan->bytes : LONG;

    post_receive(pair, plan->how == PUT_ASIDE ? SHORT : bytes);
    if (plan->how == PUT_ASIDE)
        return;
    if (plan->how == FROM_HOST) {
        pair->sender.result =
            net_isend(pair->sender.comm, message, bytes, 1, &pair->sender.request);
        check_result(pair->sender.result);
        return;
    }
    post_send(pair, LONG, plan->how == GATED ? NET_AFTER_STREAM : NET_AFTER_NOTHING);
    /* A send that did not begin is no failure of its comm, and may begin when it is tried again. */
    if (pair->sender.request == NULL) {
        error_count++;
        post_send(pair, LONG, plan->how == GATED ? NET_AFTER_STREAM : NET_AFTER_NOTHING);
    }
    /* With nobody to send, only the end of the comm ends the receive. */
    if (pair->sender.request == NULL) {
        if (!plan->close_armed)
            fakecuda.fault(NULL);
        gpu_end_close(&pair->sender);
    }
}

static void finish_both(struct gpu_pair *pair, const struct plan *plan)
{
    uint64_t deadline = deadline_after_ms(CASE_MS);

    while (!is_idle(pair)) {
        move_on(pair, plan->waiting);
        mail_turn();
        if (deadline_passed(deadline))
            fail_msg("%s: a request does not end", plan->fault);
    }
}

static void prepare(struct gpu_pair *pair, const struct plan *plan, const uint8_t *message)
{
    bool done = false;

    fill(&pair->receiver, NULL, 0);
    fill(&pair->sender, NULL, 0);
    if (plan->how == PUT_ASIDE) {
        assert_success(net_wait(must_send(pair->sender.comm, message, SHORT, 1),
                                deadline_after_ms(CASE_MS), &done, NULL));
        assert_true(done);
        return;
    }
    if (plan->how == GATED) /* to be late */
        for (int i = 0; i < 4; i++)
            assert_success(
                gpu_set(world.stream, pair->sender.place.device.address, GPU_MARK, MOST));
    begin_to_fill(&pair->sender, message, LONG);
    if (plan->how != GATED)
        world_drain();
}

/* The buffers are the caller's again: whatever is still copied would be seen in these. */
static void reuse_buffers(struct gpu_pair *pair)
{
    fill(&pair->sender, NULL, 0);
    fill(&pair->receiver, NULL, 0);
}

static void check_outcome(struct gpu_pair *pair, const struct plan *plan, const uint8_t *message,
                          unsigned seen)
{
    uint64_t bytes = plan->how == PUT_ASIDE ? SHORT : LONG;

    fault_count += seen;
    error_count += pair->sender.result != TCPX_SUCCESS;
    error_count += pair->receiver.result != TCPX_SUCCESS;
    if (seen == 0 && (pair->sender.result != TCPX_SUCCESS || pair->receiver.result != TCPX_SUCCESS))
        fail_msg("%s: an error without a fault", plan->fault);
    if (pair->receiver.result == TCPX_SUCCESS && !holds(&pair->receiver, message, bytes))
        fail_msg("%s: the message is wrong", plan->fault);
}

static void run_case(const struct plan *plan)
{
    const uint8_t *message = text_of(&world.text, ++case_count);
    struct fakecuda_balance before;
    unsigned seen = fakecuda.faults_seen();
    bool registered = true;
    bool failed = false;
    struct gpu_pair pair;

    fakecuda.balance(&before);
    gpu_pair_connect(&pair, &options, MOST);
    if (!plan->register_armed)
        gpu_pair_register(&pair);
    prepare(&pair, plan, message);
    fakecuda.fault(plan->fault);
    if (plan->register_armed)
        registered = register_end(&pair, &pair.sender) && register_end(&pair, &pair.receiver);
    if (registered) {
        post_both(&pair, plan, message);
        finish_both(&pair, plan);
        failed = pair.sender.result != TCPX_SUCCESS || pair.receiver.result != TCPX_SUCCESS;
    }
    mail_one();
    if (plan->close_armed)
        close_in_time(&pair);
    fakecuda.fault(NULL);
    world_drain(); /* what a gate waited for reads the place */
    if (registered)
        check_outcome(&pair, plan, message, fakecuda.faults_seen() - seen);
    if (failed)
        reuse_buffers(&pair);
    if (plan->shared)
        move_message(&healthy, case_count);
    close_in_time(&pair);
    if (failed) {
        nap_us(2000);
        if (!holds(&pair.receiver, NULL, 0) || !holds(&pair.sender, NULL, 0))
            fail_msg("%s: a buffer was written to after its request had ended", plan->fault);
    }
    gpu_pair_free(&pair);
    if (!plan->shared) {
        healthy_open();
        move_message(&healthy, case_count);
        free_in_time(&healthy);
    }
    assert_balance(&before, plan->fault);
}

/* --- every call in turn -------------------------------------------------------------------- */

static const char *const entry_points[] = {
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpy2DAsync_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventCreate",
    "cuStreamCreate",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
    "cuMemHostRegister_v2",
    "cuMemHostGetDevicePointer_v2",
    "cuPointerGetAttributes",
    "cuDeviceGet",
    "cuDevicePrimaryCtxRetain",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuThreadExchangeStreamCaptureMode",
};

enum { ENTRY_POINTS = sizeof entry_points / sizeof *entry_points };

static const int errors[] = {719, 2}; /* the launch of something failed; out of memory */

/* Without these nothing is given back: a driver that does not let us in keeps what it has. */
static bool is_needed_to_close(const char *name)
{
    return strcmp(name, "cuCtxGetCurrent") == 0 || strcmp(name, "cuCtxPushCurrent_v2") == 0 ||
           strcmp(name, "cuThreadExchangeStreamCaptureMode") == 0;
}

static void fail_in_turn(enum how how, bool shared)
{
    unsigned cases = case_count;
    unsigned faults = fault_count;
    unsigned ended_in_errors = error_count;

    if (shared) {
        healthy_open();
        move_message(&healthy, 0);
    }
    for (int i = 0; i < ENTRY_POINTS; i++)
        for (int nth = 1; nth <= calls_to_fail(); nth++)
            for (int k = 0; k < 4; k++) {
                struct plan plan = {.how = how,
                                    .shared = shared,
                                    .register_armed = k / 2 == 1,
                                    .waiting = nth % 2 == 0,
                                    .close_armed =
                                        nth % 3 == 0 && !is_needed_to_close(entry_points[i])};

                snprintf(plan.fault, sizeof plan.fault, "%s@%d=%d", entry_points[i], nth,
                         errors[k % 2]);
                run_case(&plan);
            }
    if (shared)
        free_in_time(&healthy);
    print_message("# %u cases, %u faults, %u errors\n", case_count - cases, fault_count - faults,
                  error_count - ended_in_errors);
}

TEST(test_the_first_use_of_a_gpu)
{
    fail_in_turn(AT_ONCE, false);
}

TEST(test_a_pool_that_others_use)
{
    fail_in_turn(AT_ONCE, true);
}

TEST(test_a_receiver_only)
{
    fail_in_turn(FROM_HOST, true);
}

TEST(test_a_gate)
{
    fail_in_turn(GATED, false);
}

TEST(test_a_message_that_was_put_aside)
{
    fail_in_turn(PUT_ASIDE, false);
}

/* What fails, fails for good. */
TEST(test_calls_that_never_work)
{
    for (int i = 0; i < ENTRY_POINTS; i++)
        for (int k = 0; k < 16; k++) {
            struct plan plan = {.how = (enum how)(k / 4),
                                .register_armed = k / 2 % 2 == 1,
                                .waiting = k % 2 == 1,
                                .close_armed = !is_needed_to_close(entry_points[i])};

            snprintf(plan.fault, sizeof plan.fault, "%s=%d", entry_points[i], errors[k % 2]);
            run_case(&plan);
        }
}

/* --- receives that the GPU unpacks --------------------------------------------------------- */

static void unpack_case(const char *spec)
{
    struct net_link_options fifo = options;
    struct net_device_handle handle;
    struct fakecuda_balance before;
    struct net_request *receive;
    struct gpu_pair pair;
    uint64_t deadline = deadline_after_ms(CASE_MS);
    int result;

    fakecuda.balance(&before);
    fifo.match = WIRE_MATCH_FIFO;
    case_count++;
    gpu_pair_connect(&pair, &fifo, MOST);
    fakecuda.fault(spec);
    result = net_unpack_open(pair.receiver.comm, 0, 4096, &handle);
    check_result(result);
    if (result != TCPX_SUCCESS) /* nothing is left of it that would be in the way */
        assert_success(net_unpack_open(pair.receiver.comm, 0, 4096, &handle));
    result = net_register(pair.receiver.comm, place_at(&pair.receiver.place, 0), MOST,
                          &pair.receiver.memory);
    check_result(result);
    if (result != TCPX_SUCCESS)
        assert_success(net_register(pair.receiver.comm, place_at(&pair.receiver.place, 0), MOST,
                                    &pair.receiver.memory));
    /* What is received stays in bounce memory: no call of the driver is needed for that. */
    post_receive(&pair, LONG);
    assert_success(pair.receiver.result);
    receive = pair.receiver.request;
    pair.sender.request = must_send(pair.sender.comm, text_of(&world.text, case_count), LONG, 1);
    while (!is_idle(&pair)) {
        move_on(&pair, false);
        mail_turn();
        assert_false(deadline_passed(deadline));
    }
    assert_success(pair.sender.result);
    assert_success(pair.receiver.result);
    assert_success(net_consumed(receive));
    fakecuda.fault(NULL);
    free_in_time(&pair);
    assert_balance(&before, spec);
}

TEST(test_an_unpack_queue)
{
    for (int i = 0; i < ENTRY_POINTS; i++)
        for (int nth = 1; nth <= calls_to_fail(); nth++) {
            char spec[80];

            snprintf(spec, sizeof spec, "%s@%d=%d", entry_points[i], nth, errors[nth % 2]);
            unpack_case(spec);
        }
}

/* --- a copy that runs on ------------------------------------------------------------------- */

/* Whether each byte is the message's, or was not written. */
static bool holds_part_of(struct gpu_end *end, const uint8_t *message, uint64_t bytes)
{
    const uint8_t *seen = place_look(&end->place, MOST) + GPU_MARGIN;

    for (uint64_t i = 0; i < bytes; i++)
        if (seen[i] != message[i] && seen[i] != GPU_MARK)
            return false;
    return true;
}

/*
 * A copy is on its way when a call for it fails, and it goes on: until it has ended nobody else may
 * use its slot, or it takes their bytes. The GPU is kept busy meanwhile.
 */
static void copy_runs_on(const char *spec, uint64_t bytes, const char *delay_us)
{
    enum { BUSY_BYTES = 8 << 20, BUSY_TURNS = 40 };
    const struct plan plan = {.how = FROM_HOST, .bytes = bytes};
    struct gpu_memory busy;
    struct gpu_pair pair;
    struct gpu_pair other;

    gpu_pair_connect(&pair, &options, MOST);
    setenv("FAKECUDA_DELAY_US", delay_us, 1); /* of all that runs on its stream */
    gpu_pair_register(&pair);
    unsetenv("FAKECUDA_DELAY_US");
    gpu_pair_open(&other, &options, MOST);
    assert_success(gpu_memory_alloc(world.gpu, BUSY_BYTES, 4096, &busy));
    move_message(&other, 1); /* slots are there */
    fill(&pair.receiver, NULL, 0);
    fill(&other.receiver, NULL, 0);
    for (int i = 0; i < BUSY_TURNS; i++)
        assert_success(gpu_set(world.stream, busy.address, 0, BUSY_BYTES));
    fakecuda.fault(spec);
    post_both(&pair, &plan, text_of(&world.text, 2));
    finish_both(&pair, &plan);
    fakecuda.fault(NULL);
    assert_int_equal(pair.receiver.result, TCPX_CUDA_ERROR);
    post_both(&other, &plan, text_of(&world.text, 3));
    finish_both(&other, &plan);
    assert_success(other.receiver.result);
    world_drain();
    assert_true(holds(&other.receiver, text_of(&world.text, 3), bytes));
    if (!holds_part_of(&pair.receiver, text_of(&world.text, 2), bytes))
        fail_msg("%s: bytes of another comm were copied into the buffer of this one", spec);
    free_in_time(&pair);
    free_in_time(&other);
    gpu_memory_free(world.gpu, &busy);
}

TEST(test_a_record_that_fails)
{
    copy_runs_on("cuEventRecord@1=2", LONG, "0");
}

TEST(test_a_query_that_fails)
{
    copy_runs_on("cuEventQuery@1=2", LONG, "0");
}

/* The first part of a copy runs when the second one cannot begin. */
TEST(test_a_second_part_that_fails)
{
    copy_runs_on("cuMemcpy2DAsync_v2@2=2", SHORT, "30000");
}

/* --- two failures -------------------------------------------------------------------------- */

/* A message that had come before its comm ended cannot be copied: the GPU is why, not the end. */
TEST(test_a_failure_after_the_end)
{
    static uint8_t nothing[1];
    const struct plan plan = {.fault = "cuMemcpy2DAsync_v2@1=2", .how = PUT_ASIDE};
    struct net_request *request;
    int result;
    struct gpu_pair pair;

    gpu_pair_open(&pair, &options, MOST);
    prepare(&pair, &plan, text_of(&world.text, 1));
    gpu_end_close(&pair.sender);
    /* an I/O thread may have seen the end already */
    result = net_irecv(pair.receiver.comm, nothing, 1, 9, &request);
    if (result == TCPX_SUCCESS)
        result = end_of(request, NULL);
    check_result(result);
    assert_int_equal(result, TCPX_REMOTE_ERROR);
    fakecuda.fault(plan.fault);
    post_receive(&pair, SHORT);
    finish_both(&pair, &plan);
    fakecuda.fault(NULL);
    assert_int_equal(pair.receiver.result, TCPX_CUDA_ERROR);
    free_in_time(&pair);
}

/* --- a GPU that is lost -------------------------------------------------------------------- */

/*
 * After `turns` turns of a transfer no call works any more. What the comms had of the driver is
 * lost with it, so that there is no balance; the pool belongs to the healthy pair.
 */
static void lose_the_gpu(enum how how, unsigned turns, bool waiting)
{
    const struct plan plan = {.fault = "a lost GPU", .how = how, .waiting = waiting};
    const uint8_t *message = text_of(&world.text, ++case_count);
    struct gpu_pair pair;

    gpu_pair_open(&pair, &options, MOST);
    prepare(&pair, &plan, message);
    post_both(&pair, &plan, message);
    for (unsigned i = 0; i < turns; i++)
        move_on(&pair, false);
    fakecuda.shutdown(1);
    finish_both(&pair, &plan);
    error_count += pair.sender.result != TCPX_SUCCESS;
    error_count += pair.receiver.result != TCPX_SUCCESS;
    mail_one();
    close_in_time(&pair);
    nap_us(LATE_US); /* the stand-in does what it was told before it was lost */
    fakecuda.shutdown(0);
    world_drain();
    if (pair.receiver.result == TCPX_SUCCESS)
        assert_true(holds(&pair.receiver, message, how == PUT_ASIDE ? SHORT : LONG));
    gpu_pair_free(&pair);
}

TEST(test_a_lost_gpu)
{
    unsigned errors_before = error_count;

    healthy_open();
    move_message(&healthy, 0);
    for (unsigned turns = 0; turns < 12; turns++)
        for (int how = AT_ONCE; how <= PUT_ASIDE; how++) {
            lose_the_gpu((enum how)how, turns, turns % 2 == 1);
            move_message(&healthy, turns);
        }
    free_in_time(&healthy);
    assert_true(error_count > errors_before);
    print_message("# %u errors\n", error_count - errors_before);
}

/* --- the program --------------------------------------------------------------------------- */

static int set_up(void)
{
    if (world_open(LONG, MOST) != 0)
        return -1;
    gpu_pair_connect(&mail.pair, &options, 1);
    return 0;
}

static int tear_down(void)
{
    gpu_pair_free(&mail.pair);
    world_close();
    return 0;
}

SUITE(.name = "net_faults", .begin = fakecuda_find, .set_up = set_up, .tear_down = tear_down);
