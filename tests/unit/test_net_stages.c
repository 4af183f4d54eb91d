/*
 * The account of a comm's stages: which of them limits is told from the times of both ends, for
 * each stage that is made slow, with and without I/O threads; the times are plausible; a comm that
 * has nothing to do waits for nothing; and a session tells the same.
 */
#include "base/config.h"
#include "gpu/gpu.h"
#include "tests/unit/net_pair.h"
#include "tests/unit/nursery.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { MESSAGE = 4 << 20, MESSAGES = 4, TOTAL = MESSAGE * MESSAGES, IN_FLIGHT = 2 };

static void nap_ms(long milliseconds)
{
    const struct timespec pause = {.tv_sec = milliseconds / 1000,
                                   .tv_nsec = milliseconds % 1000 * 1000000};

    nanosleep(&pause, NULL);
}

/* --- transfers in a process of their own --------------------------------------------------- */

struct plan {
    char throttle[32];
    char threads[8];
    char devmem[8];
    uint8_t sockets;
    bool in_gpu;
    bool separate; /* framing */
    int messages;
    unsigned rate; /* of the throttle, in MiB per second */
};

/* What a child found out. */
struct outcome {
    struct stage_times sender;
    struct stage_times receiver;
    uint64_t span_ns;
};

/* One end of a comm in a thread of its own. */
struct end {
    struct net_comm *comm;
    bool sends;
    int messages;
    struct gpu_memory gpu; /* bytes 0: host memory */
    uint8_t *host;
    struct net_memory *memory;
    struct stage_times times; /* when its last request had ended */
};

#define must(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "# line %d: %s: %s\n", __LINE__, #condition, tcpx_last_error());       \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static uint8_t *place(const struct end *end, int message)
{
    uint64_t at = (uint64_t)message * MESSAGE;

    return end->gpu.bytes > 0 ? (uint8_t *)(uintptr_t)(end->gpu.address + at) : end->host + at;
}

static struct net_request *begin(struct end *end, int message)
{
    const struct net_buffer buffer = {
        .data = place(end, message), .bytes = MESSAGE, .memory = end->memory};
    struct net_request *request;

    must((end->sends ? net_isend_buffer(end->comm, &buffer, 0, &request)
                     : net_irecv_buffer(end->comm, &buffer, 0, &request)) == TCPX_SUCCESS);
    must(request != NULL);
    return request;
}

static void *move_all(void *argument)
{
    struct end *end = argument;
    struct net_request *requests[MESSAGES];
    uint64_t deadline = deadline_after_ms(LIMIT_MS);

    for (int i = 0; i < end->messages + IN_FLIGHT; i++) {
        bool done = true;

        if (i >= IN_FLIGHT)
            must(net_wait(requests[i - IN_FLIGHT], deadline, &done, NULL) == TCPX_SUCCESS);
        must(done);
        if (i < end->messages)
            requests[i] = begin(end, i);
    }
    net_get_stages(end->comm, &end->times);
    return NULL;
}

/* A pattern that is different at every boundary of slices. */
static void fill(const struct end *end, struct gpu *gpu, struct gpu_stream *stream)
{
    enum { PERIOD = 4099 };
    struct gpu_event *event;

    for (uint64_t i = 0; i < PERIOD && end->sends; i++)
        end->host[i] = (uint8_t)(i * 7 + i / 251);
    for (uint64_t at = PERIOD, some; at < TOTAL && end->sends; at += some) {
        some = at < TOTAL - at ? at : TOTAL - at;
        memcpy(end->host + at, end->host, some);
    }
    if (end->gpu.bytes == 0)
        return;
    must(gpu_event_create(gpu, GPU_EVENT_PLAIN, &event) == TCPX_SUCCESS);
    must(gpu_copy_to_device(stream, end->gpu.address, end->host, TOTAL) == TCPX_SUCCESS);
    must(gpu_event_record(event, stream) == TCPX_SUCCESS);
    must(gpu_event_wait(event, deadline_after_ms(LIMIT_MS)) == TCPX_SUCCESS);
    gpu_event_destroy(event);
}

static void fetch(const struct end *end, struct gpu *gpu, struct gpu_stream *stream)
{
    struct gpu_event *event;

    if (end->gpu.bytes == 0)
        return;
    must(gpu_event_create(gpu, GPU_EVENT_PLAIN, &event) == TCPX_SUCCESS);
    must(gpu_copy_to_host(stream, end->host, end->gpu.address, TOTAL) == TCPX_SUCCESS);
    must(gpu_event_record(event, stream) == TCPX_SUCCESS);
    must(gpu_event_wait(event, deadline_after_ms(LIMIT_MS)) == TCPX_SUCCESS);
    gpu_event_destroy(event);
}

static void open_pair(const struct plan *plan, struct end *sender, struct end *receiver)
{
    struct net_link_options options;

    must(net_link_defaults(WIRE_MATCH_TAG, &options) == TCPX_SUCCESS);
    options.sockets = plan->sockets;
    if (plan->separate)
        options.framing = WIRE_SEPARATE;
    make_comm_pair(&options, &sender->comm, &receiver->comm);
    sender->sends = true;
}

static void use_plan(const struct plan *plan)
{
    alarm(LIMIT_MS / 1000);
    must(setenv("UCCL_TCPX_GPU", "host", 1) == 0);
    must(setenv(CONFIG_THROTTLE, plan->throttle, 1) == 0);
    must(setenv("UCCL_TCPX_THREADS", plan->threads, 1) == 0);
    must(setenv("UCCL_TCPX_SOFT_DEVMEM", plan->devmem, 1) == 0);
    must(setenv("UCCL_TCPX_DEVMEM_BYTES", "1M", 1) == 0); /* too few pages for a slow unpack */
}

static void prepare(struct end *end, const struct plan *plan, struct gpu *gpu,
                    struct gpu_stream *stream)
{
    end->messages = plan->messages;
    end->host = calloc(1, TOTAL);
    must(end->host != NULL);
    if (plan->in_gpu) {
        must(gpu_memory_alloc(gpu, TOTAL, 4096, &end->gpu) == TCPX_SUCCESS);
        must(net_register(end->comm, (void *)(uintptr_t)end->gpu.address, TOTAL, &end->memory) ==
             TCPX_SUCCESS);
    }
    fill(end, gpu, stream);
}

static void finish(struct end *end, struct gpu *gpu)
{
    net_comm_close(end->comm);
    if (end->gpu.bytes > 0)
        gpu_memory_free(gpu, &end->gpu);
    free(end->host);
}

/* Both ends, each by its own thread; every byte is compared. */
static void transfer(const uint8_t *argument)
{
    struct plan plan;
    struct end sender = {0};
    struct end receiver = {0};
    struct outcome outcome;
    struct gpu *gpu;
    struct gpu_stream *stream;
    pthread_t thread;
    uint64_t start;

    memcpy(&plan, argument, sizeof plan);
    use_plan(&plan);
    must(gpu_open(0, &gpu) == TCPX_SUCCESS && gpu_stream_create(gpu, &stream) == TCPX_SUCCESS);
    open_pair(&plan, &sender, &receiver);
    prepare(&sender, &plan, gpu, stream);
    prepare(&receiver, &plan, gpu, stream);
    start = clock_now();
    must(pthread_create(&thread, NULL, move_all, &sender) == 0);
    move_all(&receiver);
    must(pthread_join(thread, NULL) == 0);
    outcome.span_ns = clock_now() - start;
    outcome.sender = sender.times;
    outcome.receiver = receiver.times;
    fetch(&receiver, gpu, stream);
    must(memcmp(sender.host, receiver.host, (size_t)plan.messages * MESSAGE) == 0);
    memcpy(nursery_shared->bytes, &outcome, sizeof outcome);
    finish(&sender, gpu);
    finish(&receiver, gpu);
    gpu_stream_destroy(stream);
    gpu_close(gpu);
}

static struct outcome in_child(nursery_run *run, const struct plan *plan)
{
    struct outcome outcome;

    assert_int_equal(nursery_wait(nursery_fork(run, plan, sizeof *plan)), 0);
    memcpy(&outcome, nursery_shared->bytes, sizeof outcome);
    return outcome;
}

static void tell(const struct plan *plan, const struct outcome *outcome)
{
    const struct stage_times *sender = &outcome->sender;
    const struct stage_times *receiver = &outcome->receiver;
    double percent = 100.0 / (double)outcome->span_ns;

    print_message("# '%s' threads %s sockets %u: %.0f ms; out %.0f%% write %.0f%% wait %.0f%% | "
                  "wait %.0f%% read %.0f%% in %.0f%%\n",
                  plan->throttle, plan->threads, plan->sockets, (double)outcome->span_ns / 1e6,
                  (double)sender->copy_out_ns * percent, (double)sender->write_ns * percent,
                  (double)sender->write_wait_ns * percent, (double)receiver->read_wait_ns * percent,
                  (double)receiver->read_ns * percent, (double)receiver->copy_in_ns * percent);
}

/* No stage was at work for longer than there was time, and none of the other side's was. */
static void check_bounds(const struct outcome *outcome)
{
    const struct stage_times *sender = &outcome->sender;
    const struct stage_times *receiver = &outcome->receiver;
    uint64_t most = outcome->span_ns + outcome->span_ns / 100;

    assert_true(sender->copy_out_ns <= most);
    assert_true(sender->write_ns + sender->write_wait_ns <= most);
    assert_true(receiver->read_ns + receiver->read_wait_ns <= most);
    assert_true(receiver->copy_in_ns <= most);
    assert_true(sender->write_ns > 0 && receiver->read_ns > 0);
    assert_int_equal(sender->read_ns + sender->read_wait_ns + sender->copy_in_ns, 0);
    assert_int_equal(receiver->write_ns + receiver->write_wait_ns + receiver->copy_out_ns, 0);
}

/* What holds whichever stage is the slowest. */
static enum limiting_stage find(const struct plan *plan)
{
    struct outcome outcome = in_child(transfer, plan);
    uint64_t least_ns = (uint64_t)plan->messages * MESSAGE * 1000 / plan->rate / 1049 * 750;

    tell(plan, &outcome);
    check_bounds(&outcome);
    if (plan->in_gpu)
        assert_true(outcome.sender.copy_out_ns > 0 && outcome.receiver.copy_in_ns > 0);
    else
        assert_int_equal(outcome.sender.copy_out_ns + outcome.receiver.copy_in_ns, 0);
    if (outcome.span_ns < least_ns)
        fail_msg("%s: it took %llu ns instead of at least %llu", plan->throttle,
                 (unsigned long long)outcome.span_ns, (unsigned long long)least_ns);
    return stages_limit(&outcome.sender, &outcome.receiver, outcome.span_ns);
}

/* On a machine that is busy another stage can be the slowest for once. */
static void check_found(const struct plan *plan, enum limiting_stage expected)
{
    enum limiting_stage found = find(plan);

    for (int more = 0; more < 3 && found != expected; more++)
        found = find(plan);
    if (found != expected)
        fail_msg("%s: %s instead of %s", plan->throttle, limiting_stage_name(found),
                 limiting_stage_name(expected));
}

/* --- each stage in turn -------------------------------------------------------------------- */

/*
 * The rate is so low that nothing else is slower, also under a sanitizer on a busy machine, and the
 * messages are many enough for all buffers on their way.
 */
static void check_way(const char *stage, const char *threads, uint8_t sockets, bool in_gpu,
                      enum limiting_stage expected)
{
    struct plan plan = {
        .devmem = "0", .sockets = sockets, .in_gpu = in_gpu, .messages = MESSAGES, .rate = 32};

    snprintf(plan.throttle, sizeof plan.throttle, "%s:%uM", stage, plan.rate);
    snprintf(plan.threads, sizeof plan.threads, "%s", threads);
    check_found(&plan, expected);
}

/* By the calls alone over one socket and over some; by I/O threads over one and over some. */
static void check_with_gpu(const char *stage, enum limiting_stage expected)
{
    check_way(stage, "0", 1, true, expected);
    check_way(stage, "0", 3, true, expected);
    check_way(stage, "3", 1, true, expected);
    check_way(stage, "3", 4, true, expected);
}

static void check_with_host(const char *stage, enum limiting_stage expected)
{
    check_way(stage, "0", 1, false, expected);
    check_way(stage, "3", 4, false, expected);
}

static void test_finds_slow_copies_out(void **state)
{
    (void)state;
    check_with_gpu("d2h", LIMIT_COPY_OUT);
}

static void test_finds_slow_send(void **state)
{
    (void)state;
    check_with_gpu("send", LIMIT_SEND);
    check_with_host("send", LIMIT_SEND);
}

static void test_finds_slow_network(void **state)
{
    (void)state;
    check_with_gpu("network", LIMIT_NETWORK);
    check_with_host("network", LIMIT_NETWORK);
}

static void test_finds_slow_receive(void **state)
{
    (void)state;
    check_with_gpu("recv", LIMIT_RECEIVE);
    check_with_host("recv", LIMIT_RECEIVE);
}

static void test_finds_slow_unpack(void **state)
{
    (void)state;
    check_with_gpu("unpack", LIMIT_COPY_IN);
}

/* The same through the device-memory path, whose reads and unpacks are others, and slow ones. */
static void test_finds_slow_devmem(void **state)
{
    const struct plan unpack = {.throttle = "unpack:6M",
                                .threads = "0",
                                .devmem = "4",
                                .sockets = 3,
                                .in_gpu = true,
                                .messages = 2,
                                .rate = 6};
    const struct plan receive = {.throttle = "recv:6M",
                                 .threads = "3",
                                 .devmem = "4",
                                 .sockets = 3,
                                 .in_gpu = true,
                                 .messages = 2,
                                 .rate = 6};

    (void)state;
    check_found(&unpack, LIMIT_COPY_IN);
    check_found(&receive, LIMIT_RECEIVE);
}

/* --- who waits ----------------------------------------------------------------------------- */

static void advance(struct net_request *request)
{
    bool done;

    must(net_test(request, &done, NULL) == TCPX_SUCCESS && !done);
}

/* What a comm has accounted in the next 60 ms. */
static struct stage_times look(struct net_comm *comm, struct net_request *request)
{
    struct stage_times before;
    struct stage_times after;

    net_get_stages(comm, &before);
    for (int i = 0; i < 6; i++) {
        nap_ms(10);
        if (request != NULL)
            advance(request);
    }
    net_get_stages(comm, &after);
    return (struct stage_times){.copy_out_ns = after.copy_out_ns - before.copy_out_ns,
                                .write_ns = after.write_ns - before.write_ns,
                                .write_wait_ns = after.write_wait_ns - before.write_wait_ns,
                                .read_ns = after.read_ns - before.read_ns,
                                .read_wait_ns = after.read_wait_ns - before.read_wait_ns,
                                .copy_in_ns = after.copy_in_ns - before.copy_in_ns};
}

static uint64_t sum(const struct stage_times *times)
{
    return times->copy_out_ns + times->write_ns + times->write_wait_ns + times->read_ns +
           times->read_wait_ns + times->copy_in_ns;
}

/* One message, by this thread. */
static void pass_one(struct net_comm *sender, struct net_comm *receiver, uint8_t *memory)
{
    struct net_request *send;
    struct net_request *receive;
    bool sent = false;
    bool received = false;

    must(net_irecv(receiver, memory, MESSAGE, 7, &receive) == TCPX_SUCCESS && receive != NULL);
    must(net_isend(sender, memory + MESSAGE, MESSAGE, 7, &send) == TCPX_SUCCESS && send != NULL);
    while (!sent || !received) {
        must(sent || net_test(send, &sent, NULL) == TCPX_SUCCESS);
        must(received || net_test(receive, &received, NULL) == TCPX_SUCCESS);
    }
}

/*
 * Nobody waits without a request; a receive without a message waits, a send without a receive does
 * not; a sender waits for a receiver that does not read, and a failed comm for nobody.
 */
static void check_waits(const uint8_t *argument)
{
    enum { LEAST = 50000000, LARGE = 64 << 20 };
    struct end sender = {0};
    struct end receiver = {0};
    struct net_request *request;
    struct net_request *send;
    struct stage_times times;
    uint8_t *memory = calloc(1, LARGE);
    struct plan plan;

    memcpy(&plan, argument, sizeof plan);
    use_plan(&plan);
    open_pair(&plan, &sender, &receiver);
    must(memory != NULL);
    pass_one(sender.comm, receiver.comm, memory);
    times = look(sender.comm, NULL);
    must(sum(&times) == 0);
    times = look(receiver.comm, NULL);
    must(sum(&times) == 0);

    must(net_isend(sender.comm, memory, LARGE, 0, &send) == TCPX_SUCCESS && send != NULL);
    times = look(sender.comm, send);
    must(sum(&times) == 0);
    must(net_irecv(receiver.comm, memory, LARGE, 1, &request) == TCPX_SUCCESS && request != NULL);
    times = look(receiver.comm, request);
    must(times.read_wait_ns >= LEAST && times.read_ns < limit_ns(LEAST / 10));
    must(times.write_ns + times.write_wait_ns + times.copy_in_ns == 0);

    must(net_irecv(receiver.comm, memory, LARGE, 0, &request) == TCPX_SUCCESS && request != NULL);
    nap_ms(50);
    for (int turn = 0; turn < 100; turn++)
        advance(send); /* the receiver's calls do not come: its sockets fill */
    nap_ms(50);
    times = look(sender.comm, send);
    must(times.write_wait_ns >= LEAST);
    net_comm_close(receiver.comm);
    while (net_test(send, &(bool){false}, NULL) == TCPX_SUCCESS)
        ;
    times = look(sender.comm, NULL);
    must(sum(&times) == 0);
    net_comm_close(sender.comm);
    free(memory);
}

static void test_waits(void **state)
{
    const struct plan plan = {.threads = "0", .devmem = "0", .sockets = 1};
    const struct plan parallel = {.threads = "0", .devmem = "0", .sockets = 3};
    const struct plan separate = {.threads = "0", .devmem = "0", .sockets = 2, .separate = true};

    (void)state;
    in_child(check_waits, &plan);
    in_child(check_waits, &parallel);
    in_child(check_waits, &separate);
}

/* A receiver that has no slot for what may have come does not wait for bytes. */
static void check_held(const uint8_t *argument)
{
    enum { LEAST = 50000000, PART = 512 << 10, MOST_SLOTS = 16 };
    struct end sender = {0};
    struct end receiver = {0};
    struct net_request *receives[MOST_SLOTS + 1];
    struct stage_times times;
    struct gpu *gpu;
    struct gpu_stream *stream;
    struct plan plan;
    int slots;

    memcpy(&plan, argument, sizeof plan);
    slots = 4 * plan.sockets + 2; /* as copies.c has it */
    use_plan(&plan);
    must(gpu_open(0, &gpu) == TCPX_SUCCESS && gpu_stream_create(gpu, &stream) == TCPX_SUCCESS);
    open_pair(&plan, &sender, &receiver);
    prepare(&sender, &plan, gpu, stream);
    prepare(&receiver, &plan, gpu, stream);
    for (int i = 0; i <= slots; i++) {
        const struct net_buffer to = {
            .data = place(&receiver, 0), .bytes = PART, .memory = receiver.memory};
        const struct net_buffer from = {
            .data = place(&sender, 0), .bytes = PART, .memory = sender.memory};
        struct net_request *send;
        bool sent = false;

        must(net_irecv_buffer(receiver.comm, &to, 0, &receives[i]) == TCPX_SUCCESS);
        must(net_isend_buffer(sender.comm, &from, 0, &send) == TCPX_SUCCESS);
        must(receives[i] != NULL && send != NULL);
        while (!sent) {
            must(net_test(send, &sent, NULL) == TCPX_SUCCESS);
            advance(receives[i]);
        }
        nap_ms(2);
        advance(receives[i]);
    }
    times = look(receiver.comm, receives[slots]);
    must(times.copy_in_ns >= LEAST && times.read_wait_ns == 0 && times.read_ns == 0);
    finish(&sender, gpu);
    finish(&receiver, gpu);
    gpu_stream_destroy(stream);
    gpu_close(gpu);
}

static void test_held(void **state)
{
    const struct plan plan = {
        .throttle = "unpack:1M", .threads = "0", .devmem = "0", .sockets = 1, .in_gpu = true};
    struct plan separate = plan;

    (void)state;
    separate.sockets = 2;
    separate.separate = true;
    in_child(check_held, &plan);
    in_child(check_held, &separate);
}

/* --- the rule ------------------------------------------------------------------------------ */

static void test_rule(void **state)
{
    static const struct {
        struct stage_times sender;
        struct stage_times receiver;
        enum limiting_stage expected;
    } cases[] = {
        {{.write_ns = 5}, {.read_wait_ns = 95, .read_ns = 4}, LIMIT_NONE},
        {{.copy_out_ns = 95, .write_ns = 20}, {.read_wait_ns = 80}, LIMIT_COPY_OUT},
        /* a copy that nobody looked after behind a write that went on and on */
        {{.copy_out_ns = 100, .write_ns = 90}, {.read_wait_ns = 70, .read_ns = 30}, LIMIT_SEND},
        {{.write_ns = 95}, {.read_wait_ns = 40, .read_ns = 60}, LIMIT_SEND},
        {{.copy_out_ns = 30, .write_ns = 10, .write_wait_ns = 90},
         {.read_wait_ns = 85, .read_ns = 15},
         LIMIT_NETWORK},
        {{.write_ns = 10, .write_wait_ns = 90}, {.read_wait_ns = 3, .read_ns = 97}, LIMIT_RECEIVE},
        {{.write_ns = 10, .write_wait_ns = 90}, {.read_ns = 96, .copy_in_ns = 99}, LIMIT_RECEIVE},
        {{.write_ns = 10, .write_wait_ns = 90},
         {.read_wait_ns = 2, .read_ns = 20, .copy_in_ns = 99},
         LIMIT_COPY_IN},
        /* the sum of its parts is more than there was time, by a little */
        {{.write_ns = 60, .write_wait_ns = 41, .copy_out_ns = 100},
         {.read_wait_ns = 50, .read_ns = 51, .copy_in_ns = 100},
         LIMIT_SEND},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(stages_limit(&cases[i].sender, &cases[i].receiver, 100),
                         cases[i].expected);
    assert_string_equal(limiting_stage_name(LIMIT_NONE), "none");
    assert_string_equal(limiting_stage_name(LIMIT_COPY_OUT), "D2H copy");
    assert_string_equal(limiting_stage_name(LIMIT_SEND), "send");
    assert_string_equal(limiting_stage_name(LIMIT_NETWORK), "network");
    assert_string_equal(limiting_stage_name(LIMIT_RECEIVE), "receive");
    assert_string_equal(limiting_stage_name(LIMIT_COPY_IN), "unpack (H2D)");
}

/* Times that overlap count once. */
static void test_overlap(void **state)
{
    struct stage_calls calls = {.since = 100};
    struct stage_copies copies = {0};
    uint64_t start = clock_now();

    (void)state;
    stages_account(&calls, 110, false);
    assert_int_equal(calls.work_ns + calls.wait_ns, 0);
    stages_wait(&calls, true, 120);
    stages_wait(&calls, false, 150);
    assert_int_equal(calls.wait_ns, 30);
    stages_account(&calls, 170, true);
    assert_int_equal(calls.work_ns, 20);

    stages_copy_began(&copies);
    nap_ms(5);
    stages_copy_began(&copies);
    nap_ms(5);
    assert_true(stages_copies_until(&copies, clock_now()) >= 10000000);
    stages_copy_ended(&copies);
    assert_int_equal(copies.work_ns, 0);
    stages_copy_ended(&copies);
    assert_true(copies.work_ns >= 10000000 && copies.work_ns <= clock_now() - start);
    assert_int_equal(stages_copies_until(&copies, clock_now()), copies.work_ns);
}

/* Whoever polls makes calls that move nothing: those belong to the wait. */
static void test_calls_in_vain(void **state)
{
    struct stage_calls calls = {0};
    uint64_t start = clock_now();

    (void)state;
    calls.since = start;
    calls.waits = true;
    stages_call_begins(&calls);
    nap_ms(5);
    stages_call_ended(&calls, false);
    assert_int_equal(calls.work_ns, 0);
    assert_int_equal(calls.wait_ns, calls.since - start);
    stages_call_begins(&calls);
    stages_call_begins(&calls);
    nap_ms(5);
    stages_call_ended(&calls, false); /* the other one goes on */
    stages_call_ended(&calls, true);
    assert_true(calls.work_ns >= 5000000);
    assert_int_equal(calls.work_ns + calls.wait_ns, calls.since - start);
}

/* --- the variable -------------------------------------------------------------------------- */

static void test_throttle_variable(void **state)
{
    static const char *const bad[] = {"recv",     "recv:",    "recv:x",     "recv:0",
                                      "recv:-1M", "recv:1K",  "recv:2T",    ":1M",
                                      "net:1M",   "recv :1M", "recv:1M:1M", "a-very-long-stage:1M"};
    struct config config;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(setenv(CONFIG_THROTTLE, bad[i], 1), 0);
        assert_int_equal(config_read(&config), TCPX_INVALID_ARGUMENT);
        assert_non_null(strstr(tcpx_last_error(), CONFIG_THROTTLE));
        assert_non_null(strstr(tcpx_last_error(), "d2h|send|network|recv|unpack"));
    }
    assert_int_equal(setenv(CONFIG_THROTTLE, "unpack:3M", 1), 0);
    assert_success(config_read(&config));
    assert_int_equal(config.throttled, CONFIG_THROTTLE_UNPACK);
    assert_int_equal(config.throttle_rate, 3 << 20);
    assert_int_equal(setenv(CONFIG_THROTTLE, "", 1), 0);
    assert_success(config_read(&config));
    assert_int_equal(config.throttled, CONFIG_THROTTLE_NONE);
    assert_int_equal(unsetenv(CONFIG_THROTTLE), 0);
    assert_success(config_read(&config));
    assert_int_equal(config.throttled, CONFIG_THROTTLE_NONE);
}

/* --- sessions ------------------------------------------------------------------------------ */

struct session_end {
    struct tcpx_session_listener *listener; /* NULL: it connects */
    int port;
    pthread_barrier_t *looked; /* a session that ends is something to read */
    struct tcpx_session_statistics statistics;
};

static void *use_session(void *argument)
{
    struct session_end *end = argument;
    struct tcpx_session_options options;
    struct tcpx_session *session;
    struct tcpx_transfer *transfer;
    struct tcpx_move move = {.bytes = TOTAL};
    void *memory = calloc(1, TOTAL);

    must(memory != NULL);
    tcpx_session_options_init(&options);
    options.gpu = -1;
    options.plugin_path = "builtin";
    must((end->listener != NULL ? tcpx_session_accept(end->listener, LIMIT_MS, &session)
                                : tcpx_session_connect("127.0.0.1", end->port, &options, LIMIT_MS,
                                                       &session)) == TCPX_SUCCESS);
    must(tcpx_session_register(session, memory, TOTAL, &move.memory) == TCPX_SUCCESS);
    must((end->listener != NULL ? tcpx_receive(session, &move, &transfer)
                                : tcpx_send(session, &move, &transfer)) == TCPX_SUCCESS);
    must(tcpx_transfer_wait(transfer, LIMIT_MS) == TCPX_SUCCESS);
    end->statistics.size = sizeof end->statistics;
    must(tcpx_session_get_statistics(session, &end->statistics) == TCPX_SUCCESS);
    pthread_barrier_wait(end->looked);
    tcpx_session_close(session);
    free(memory);
    return NULL;
}

/* Over two channels: their average is no more than the time there was. */
static void check_session(const uint8_t *argument)
{
    pthread_barrier_t looked;
    struct session_end server = {.looked = &looked};
    struct session_end client = {.looked = &looked};
    struct tcpx_session_options options;
    uint64_t start = clock_now();
    pthread_t thread;
    struct plan plan;

    memcpy(&plan, argument, sizeof plan);
    use_plan(&plan);
    must(pthread_barrier_init(&looked, NULL, 2) == 0);
    must(setenv("NCCL_SOCKET_IFNAME", "lo", 1) == 0);
    must(setenv("UCCL_TCPX_NUM_CHANNELS", "2", 1) == 0);
    tcpx_session_options_init(&options);
    options.gpu = -1;
    options.plugin_path = "builtin";
    must(tcpx_session_listen("127.0.0.1", 0, &options, &server.listener) == TCPX_SUCCESS);
    must(tcpx_session_port(server.listener, &client.port) == TCPX_SUCCESS);
    must(pthread_create(&thread, NULL, use_session, &client) == 0);
    use_session(&server);
    must(pthread_join(thread, NULL) == 0);
    pthread_barrier_destroy(&looked);
    tcpx_session_stop_listening(server.listener);
    must(client.statistics.write_ns > 0 && client.statistics.read_ns == 0);
    must(client.statistics.write_ns + client.statistics.write_wait_ns <= clock_now() - start);
    must(server.statistics.read_ns > 0 && server.statistics.write_ns == 0);
    must(server.statistics.read_ns + server.statistics.read_wait_ns <= clock_now() - start);
    must(client.statistics.copy_out_ns == 0 && server.statistics.copy_in_ns == 0);
}

static void test_session_tells(void **state)
{
    const struct plan plan = {.threads = "1", .devmem = "0"};

    (void)state;
    in_child(check_session, &plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rule),
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_calls_in_vain),
        cmocka_unit_test(test_throttle_variable),
        cmocka_unit_test(test_waits),
        cmocka_unit_test(test_held),
        cmocka_unit_test(test_finds_slow_copies_out),
        cmocka_unit_test(test_finds_slow_send),
        cmocka_unit_test(test_finds_slow_network),
        cmocka_unit_test(test_finds_slow_receive),
        cmocka_unit_test(test_finds_slow_unpack),
        cmocka_unit_test(test_finds_slow_devmem),
        cmocka_unit_test(test_session_tells),
    };

    nursery_start();
    return cmocka_run_group_tests_name("net stages", tests, NULL, NULL);
}
