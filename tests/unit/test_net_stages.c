/*
 * The account of a comm's stages: which of them limits is told from the times of both ends, for
 * each stage that is made slow, with and without I/O threads; the times are plausible; a comm that
 * has nothing to do waits for nothing; and a session tells the same.
 */
#include "base/config.h"
#include "tests/support/child.h"
#include "tests/support/gpu_pair.h"

#include <pthread.h>
#include <stdlib.h>

enum { MESSAGE = 4 << 20, MESSAGES = 4, TOTAL = MESSAGE * MESSAGES, IN_FLIGHT = 2 };

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

/* One end of a comm in a thread of its own. A failed assertion ends the child. */
struct end {
    struct gpu_end at;
    bool sends;
    int messages;
    struct stage_times times; /* when its last request had ended */
};

static uint8_t pattern[TOTAL];

static struct net_request *begin(struct end *end, int message, uint64_t bytes)
{
    const struct net_buffer buffer = {.data = place_at(&end->at.place, (uint64_t)message * MESSAGE),
                                      .bytes = bytes,
                                      .memory = end->at.memory};
    struct net_request *request;

    assert_success(end->sends ? net_isend_buffer(end->at.comm, &buffer, 0, &request)
                              : net_irecv_buffer(end->at.comm, &buffer, 0, &request));
    assert_non_null(request);
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
            assert_success(net_wait(requests[i - IN_FLIGHT], deadline, &done, NULL));
        assert_true(done);
        if (i < end->messages)
            requests[i] = begin(end, i, MESSAGE);
    }
    net_get_stages(end->at.comm, &end->times);
    return NULL;
}

/* The plan of a child. */
static struct plan use_plan(const uint8_t *argument)
{
    struct plan plan;

    memcpy(&plan, argument, sizeof plan);
    alarm(LIMIT_MS / 1000);
    assert_int_equal(setenv("UCCL_TCPX_GPU", "host", 1), 0);
    assert_int_equal(setenv(CONFIG_THROTTLE, plan.throttle, 1), 0);
    assert_int_equal(setenv("UCCL_TCPX_THREADS", plan.threads, 1), 0);
    assert_int_equal(setenv("UCCL_TCPX_SOFT_DEVMEM", plan.devmem, 1), 0);
    /* too few pages for a slow unpack */
    assert_int_equal(setenv("UCCL_TCPX_DEVMEM_BYTES", "1M", 1), 0);
    return plan;
}

static struct pair open_pair(const struct plan *plan)
{
    struct net_link_options options;

    assert_success(net_link_defaults(WIRE_MATCH_TAG, &options));
    options.sockets = plan->sockets;
    if (plan->separate)
        options.framing = WIRE_SEPARATE;
    return pair_open(&options);
}

static void prepare(struct end *end, const struct plan *plan, struct net_comm *comm)
{
    *end = (struct end){.at.comm = comm, .messages = plan->messages};
    place_create(&end->at.place, plan->in_gpu, TOTAL);
    if (plan->in_gpu)
        assert_success(net_register(comm, place_at(&end->at.place, 0), TOTAL, &end->at.memory));
}

/* Both ends; the sender has the pattern. */
static void open_ends(const struct plan *plan, struct end *sender, struct end *receiver)
{
    struct pair pair;

    assert_int_equal(world_open(1, 1), 0);
    pair = open_pair(plan);
    prepare(sender, plan, pair.sender);
    prepare(receiver, plan, pair.receiver);
    sender->sends = true;
    fill_bytes(pattern, TOTAL);
    place_fill(&sender->at.place, TOTAL, 0, pattern, TOTAL);
    place_fill(&receiver->at.place, TOTAL, 0, NULL, 0);
}

static void close_ends(struct end *sender, struct end *receiver)
{
    gpu_end_close(&sender->at);
    gpu_end_close(&receiver->at);
    place_destroy(&sender->at.place);
    place_destroy(&receiver->at.place);
    world_close();
}

/* Both ends, each by its own thread; every byte is compared. */
static void transfer(const uint8_t *argument)
{
    const struct plan plan = use_plan(argument);
    struct end sender;
    struct end receiver;
    struct outcome outcome;
    pthread_t thread;
    uint64_t start;

    open_ends(&plan, &sender, &receiver);
    start = clock_now();
    assert_int_equal(pthread_create(&thread, NULL, move_all, &sender), 0);
    move_all(&receiver);
    assert_int_equal(pthread_join(thread, NULL), 0);
    outcome.span_ns = clock_now() - start;
    outcome.sender = sender.times;
    outcome.receiver = receiver.times;
    assert_memory_equal(place_look(&receiver.at.place, TOTAL), pattern,
                        (size_t)plan.messages * MESSAGE);
    memcpy(child_shared->bytes, &outcome, sizeof outcome);
    close_ends(&sender, &receiver);
}

static struct outcome in_child(child_run *run, const struct plan *plan)
{
    struct outcome outcome;

    child_succeeds(run, plan, sizeof *plan);
    memcpy(&outcome, child_shared->bytes, sizeof outcome);
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
static enum limiting_stage limit_of(const struct stage_times *sender,
                                    const struct stage_times *receiver, uint64_t span_ns)
{
    uint64_t held_ns[LIMIT_STAGES];

    stages_hold_up(sender, receiver, span_ns, held_ns);
    return stages_limit(held_ns, span_ns);
}

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
    return limit_of(&outcome.sender, &outcome.receiver, outcome.span_ns);
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

/* clang-format off */
#define PLAN(threads_, sockets_, in_gpu_)                                                          \
    {.threads = (threads_), .devmem = "0", .sockets = (sockets_), .in_gpu = (in_gpu_),             \
     .messages = MESSAGES, .rate = 32}
/* Through the device-memory path, whose reads and unpacks are others, and slow ones. */
#define DEVMEM_PLAN(threads_)                                                                      \
    {.threads = (threads_), .devmem = "4", .sockets = 3, .in_gpu = true, .messages = 2, .rate = 6}
/* clang-format on */

/*
 * By the calls alone over one socket and over some; by I/O threads over one and over some. The rate
 * is so low that nothing else is slower, also under a sanitizer on a busy machine, and the messages
 * are many enough for all buffers on their way.
 */
static const struct plan plans[] = {
    PLAN("0", 1, true),  PLAN("0", 3, true),  PLAN("3", 1, true), PLAN("3", 4, true),
    PLAN("0", 1, false), PLAN("3", 4, false), DEVMEM_PLAN("0"),   DEVMEM_PLAN("3"),
};

static const struct {
    const char *test;
    const char *stage;
    enum limiting_stage expected;
    unsigned first; /* of the plans, */
    unsigned end;   /* up to this one: there are no copies without a GPU */
} slow_stages[] = {
    {"test_finds_slow_copies_out", "d2h", LIMIT_COPY_OUT, 0, 4},
    {"test_finds_slow_send", "send", LIMIT_SEND, 0, 6},
    {"test_finds_slow_network", "network", LIMIT_NETWORK, 0, 6},
    {"test_finds_slow_receive", "recv", LIMIT_RECEIVE, 0, 6},
    {"test_finds_slow_unpack", "unpack", LIMIT_COPY_IN, 0, 4},
    {"test_finds_slow_devmem_unpack", "unpack", LIMIT_COPY_IN, 6, 7},
    {"test_finds_slow_devmem_receive", "recv", LIMIT_RECEIVE, 7, 8},
};

TABLE_TEST(slow_stages)
{
    for (unsigned i = row->first; i < row->end; i++) {
        struct plan plan = plans[i];

        snprintf(plan.throttle, sizeof plan.throttle, "%s:%uM", row->stage, plan.rate);
        check_found(&plan, row->expected);
    }
}

/* --- who waits ----------------------------------------------------------------------------- */

/* What a comm has accounted in the next 60 ms. */
static struct stage_times look(struct net_comm *comm, struct net_request *request)
{
    struct stage_times before;
    struct stage_times after;

    net_get_stages(comm, &before);
    for (int i = 0; i < 6; i++) {
        nap_ms(10);
        if (request != NULL)
            must_go_on(request);
    }
    net_get_stages(comm, &after);
    return (struct stage_times){.copy_out_ns = after.copy_out_ns - before.copy_out_ns,
                                .write_ns = after.write_ns - before.write_ns,
                                .write_wait_ns = after.write_wait_ns - before.write_wait_ns,
                                .read_ns = after.read_ns - before.read_ns,
                                .read_wait_ns = after.read_wait_ns - before.read_wait_ns,
                                .copy_in_ns = after.copy_in_ns - before.copy_in_ns};
}

static void expect_nothing(struct net_comm *comm, struct net_request *request)
{
    const struct stage_times nothing = {0};
    struct stage_times times = look(comm, request);

    assert_memory_equal(&times, &nothing, sizeof times);
}

/*
 * Nobody waits without a request; a receive without a message waits, a send without a receive does
 * not; a sender waits for a receiver that does not read, and a failed comm for nobody.
 */
static void check_waits(const uint8_t *argument)
{
    enum { LEAST = 50000000, LARGE = 64 << 20 };
    const struct plan plan = use_plan(argument);
    struct pair pair = open_pair(&plan);
    uint8_t *memory = calloc(1, LARGE);
    struct net_request *request;
    struct net_request *send;
    struct stage_times times;

    assert_non_null(memory);
    pair_move(&pair, memory + MESSAGE, memory, MESSAGE, 7);
    expect_nothing(pair.sender, NULL);
    expect_nothing(pair.receiver, NULL);

    send = must_send(pair.sender, memory, LARGE, 0);
    expect_nothing(pair.sender, send);
    request = must_receive(pair.receiver, memory, LARGE, 1);
    times = look(pair.receiver, request);
    assert_true(times.read_wait_ns >= LEAST && times.read_ns < limit_ns(LEAST / 10));
    assert_int_equal(times.write_ns + times.write_wait_ns + times.copy_in_ns, 0);

    must_receive(pair.receiver, memory, LARGE, 0);
    nap_ms(50);
    for (int turn = 0; turn < 100; turn++)
        must_go_on(send); /* the receiver's calls do not come: its sockets fill */
    nap_ms(50);
    times = look(pair.sender, send);
    assert_true(times.write_wait_ns >= LEAST);
    comm_end(&pair.receiver);
    assert_int_not_equal(end_of(send, NULL), TCPX_SUCCESS);
    expect_nothing(pair.sender, NULL);
    pair_close(&pair);
    free(memory);
}

TEST(test_waits)
{
    for (uint8_t sockets = 1; sockets <= 3; sockets++)
        in_child(check_waits,
                 &(struct plan){
                     .threads = "0", .devmem = "0", .sockets = sockets, .separate = sockets == 2});
}

/* A receiver that has no slot for what may have come does not wait for bytes. */
static void check_held(const uint8_t *argument)
{
    enum { LEAST = 50000000, PART = 512 << 10, MOST_SLOTS = 16 };
    const struct plan plan = use_plan(argument);
    const int slots = 4 * plan.sockets + 2; /* as copies.c has it */
    struct net_request *receives[MOST_SLOTS + 1];
    struct stage_times times;
    struct end sender;
    struct end receiver;

    open_ends(&plan, &sender, &receiver);
    for (int i = 0; i <= slots; i++) {
        struct net_request *send;

        receives[i] = begin(&receiver, 0, PART);
        send = begin(&sender, 0, PART);
        while (!request_is_done(&send))
            must_go_on(receives[i]);
        nap_ms(2);
        must_go_on(receives[i]);
    }
    times = look(receiver.at.comm, receives[slots]);
    assert_true(times.copy_in_ns >= LEAST && times.read_wait_ns == 0 && times.read_ns == 0);
    close_ends(&sender, &receiver);
}

TEST(test_held)
{
    for (uint8_t sockets = 1; sockets <= 2; sockets++)
        in_child(check_held, &(struct plan){.throttle = "unpack:1M",
                                            .threads = "0",
                                            .devmem = "0",
                                            .sockets = sockets,
                                            .separate = sockets == 2,
                                            .in_gpu = true});
}

/* --- the rule ------------------------------------------------------------------------------ */

TEST(test_rule)
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
         {.read_wait_ns = 50, .read_ns = 40, .copy_in_ns = 100},
         LIMIT_SEND},
        /* a margin of a fifth, from both sides */
        {{.write_ns = 100}, {.read_ns = 79}, LIMIT_SEND},
        {{.write_ns = 100}, {.read_ns = 80}, LIMIT_BALANCED},
        {{.write_ns = 80}, {.read_ns = 100}, LIMIT_BALANCED},
        {{.write_ns = 79}, {.read_ns = 100}, LIMIT_RECEIVE},
        {{.write_ns = 50, .write_wait_ns = 45},
         {.read_ns = 50, .read_wait_ns = 45},
         LIMIT_BALANCED},
        {{.write_ns = 0}, {.read_ns = 0}, LIMIT_NONE},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(limit_of(&cases[i].sender, &cases[i].receiver, 100), cases[i].expected);
    assert_string_equal(limiting_stage_name(LIMIT_NONE), "none");
    assert_string_equal(limiting_stage_name(LIMIT_COPY_OUT), "D2H copy");
    assert_string_equal(limiting_stage_name(LIMIT_SEND), "send");
    assert_string_equal(limiting_stage_name(LIMIT_NETWORK), "network");
    assert_string_equal(limiting_stage_name(LIMIT_RECEIVE), "receive");
    assert_string_equal(limiting_stage_name(LIMIT_COPY_IN), "unpack (H2D)");
    assert_string_equal(limiting_stage_name(LIMIT_BALANCED), "balanced");
}

/* Times that overlap count once. */
TEST(test_overlap)
{
    struct stage_calls calls = {.since = 100};
    struct stage_copies copies = {0};
    uint64_t start = clock_now();

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
TEST(test_calls_in_vain)
{
    struct stage_calls calls = {0};
    uint64_t start = clock_now();

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

TEST(test_throttle_variable)
{
    static const char *const bad[] = {"recv",     "recv:",    "recv:x",     "recv:0",
                                      "recv:-1M", "recv:1K",  "recv:2T",    ":1M",
                                      "net:1M",   "recv :1M", "recv:1M:1M", "a-very-long-stage:1M"};
    struct config config;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(setenv(CONFIG_THROTTLE, bad[i], 1), 0);
        assert_int_equal(config_read(&config), TCPX_INVALID_ARGUMENT);
        expect_text(CONFIG_THROTTLE);
        expect_text("d2h|send|network|recv|unpack");
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

    assert_true(memory != NULL);
    tcpx_session_options_init(&options);
    options.gpu = -1;
    options.plugin_path = "builtin";
    assert_success(end->listener != NULL ? tcpx_session_accept(end->listener, LIMIT_MS, &session)
                                         : tcpx_session_connect("127.0.0.1", end->port, &options,
                                                                LIMIT_MS, &session));
    assert_success(tcpx_session_register(session, memory, TOTAL, &move.memory));
    assert_success(end->listener != NULL ? tcpx_receive(session, &move, &transfer)
                                         : tcpx_send(session, &move, &transfer));
    assert_success(tcpx_transfer_wait(transfer, LIMIT_MS));
    end->statistics.size = sizeof end->statistics;
    assert_success(tcpx_session_get_statistics(session, &end->statistics));
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

    use_plan(argument);
    assert_true(pthread_barrier_init(&looked, NULL, 2) == 0);
    assert_true(setenv("NCCL_SOCKET_IFNAME", "lo", 1) == 0);
    assert_true(setenv("UCCL_TCPX_NUM_CHANNELS", "2", 1) == 0);
    tcpx_session_options_init(&options);
    options.gpu = -1;
    options.plugin_path = "builtin";
    assert_success(tcpx_session_listen("127.0.0.1", 0, &options, &server.listener));
    assert_success(tcpx_session_port(server.listener, &client.port));
    assert_true(pthread_create(&thread, NULL, use_session, &client) == 0);
    use_session(&server);
    assert_true(pthread_join(thread, NULL) == 0);
    pthread_barrier_destroy(&looked);
    tcpx_session_stop_listening(server.listener);
    assert_true(client.statistics.write_ns > 0 && client.statistics.read_ns == 0);
    assert_true(client.statistics.write_ns + client.statistics.write_wait_ns <=
                clock_now() - start);
    assert_true(server.statistics.read_ns > 0 && server.statistics.write_ns == 0);
    assert_true(server.statistics.read_ns + server.statistics.read_wait_ns <= clock_now() - start);
    assert_true(client.statistics.copy_out_ns == 0 && server.statistics.copy_in_ns == 0);
}

TEST(test_session_tells)
{
    const struct plan plan = {.threads = "1", .devmem = "0"};

    in_child(check_session, &plan);
}

SUITE(.name = "net stages", .begin = child_begin);
