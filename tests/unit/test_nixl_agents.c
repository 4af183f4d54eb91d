/*
 * The NIXL backend below its C++ file: agents of one process, with memory of the host and of two
 * emulated GPUs at each. Reads, writes and notices, also of lists over several GPUs; requests that
 * are given up, peers that are forgotten, and several threads at once.
 */
#include "net/socket/socket.h"
#include "nixl_plugin/nixl_plugin.h"
#include "tcpx.h"
#include "tests/limit.h"
#include "tests/support/basics.h"
#include "tests/support/suite.h"

#include <pthread.h>
#include <sys/socket.h>

enum { PLACES = 3, BYTES = 1 << 20, BLOCK = 4096, BLOCKS = BYTES / BLOCK };
enum { WAIT_MS = 20000 };

struct end {
    struct nixl_agent *agent;
    struct nixl_text name;
    void *memory[PLACES]; /* of the host, GPU 0 and GPU 1 */
    struct nixl_region *regions[PLACES];
    struct nixl_remote *remotes[PLACES]; /* the other end's */
};

static struct nixl_text text(const char *string)
{
    return (struct nixl_text){string, strlen(string)};
}

/* --- memory ---------------------------------------------------------------------------------- */

static uint8_t byte_of(unsigned seed, size_t at)
{
    return (uint8_t)((at >> 8) * 31 + at + 1 + seed * 101u);
}

static void put(struct end *end, int place, const void *bytes)
{
    if (place == 0)
        memcpy(end->memory[0], bytes, BYTES);
    else
        assert_int_equal(tcpx_gpu_write(end->memory[place], bytes, BYTES), TCPX_SUCCESS);
}

static void get(struct end *end, int place, void *bytes)
{
    if (place == 0)
        memcpy(bytes, end->memory[0], BYTES);
    else
        assert_int_equal(tcpx_gpu_read(bytes, end->memory[place], BYTES), TCPX_SUCCESS);
}

static void fill(struct end *end, int place, unsigned seed)
{
    uint8_t *bytes = malloc(BYTES);

    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = byte_of(seed, i);
    put(end, place, bytes);
    free(bytes);
}

/* Block i is block `from[i]` of what fill() wrote; -1: it is not looked at. */
static void check_blocks(struct end *end, int place, unsigned seed, const int *from)
{
    uint8_t *bytes = malloc(BYTES);

    get(end, place, bytes);
    for (int i = 0; i < BLOCKS; i++)
        for (size_t k = 0; from[i] >= 0 && k < BLOCK; k++)
            if (bytes[i * BLOCK + k] != byte_of(seed, (size_t)from[i] * BLOCK + k))
                fail_msg("place %d, block %d, byte %zu", place, i, k);
    free(bytes);
}

/* --- agents ---------------------------------------------------------------------------------- */

static void begin(struct end *end, const char *name, const char *timeout_ms)
{
    struct nixl_options *options = nixl_options_create();

    *end = (struct end){.name = text(name)};
    assert_true(nixl_options_set(options, "timeout_ms", timeout_ms));
    end->agent = nixl_agent_create(end->name, options);
    assert_non_null(end->agent);
    end->memory[0] = malloc(BYTES);
    for (int i = 0; i < PLACES; i++) {
        if (i > 0)
            assert_int_equal(tcpx_gpu_alloc(i - 1, BYTES, &end->memory[i]), TCPX_SUCCESS);
        assert_int_equal(
            nixl_region_open(end->agent, i - 1, (uintptr_t)end->memory[i], BYTES, &end->regions[i]),
            NIXL_SUCCESS);
    }
}

static void know(struct end *end, struct end *other)
{
    assert_int_equal(nixl_peer_load(end->agent, other->name, nixl_agent_endpoint(other->agent)),
                     NIXL_SUCCESS);
    for (int i = 0; i < PLACES; i++)
        assert_int_equal(nixl_remote_open(end->agent, other->name,
                                          nixl_region_key(other->regions[i]), &end->remotes[i]),
                         NIXL_SUCCESS);
}

static void unknow(struct end *end, struct end *other)
{
    for (int i = 0; i < PLACES; i++)
        nixl_remote_close(end->remotes[i]);
    assert_int_equal(nixl_peer_forget(end->agent, other->name), NIXL_SUCCESS);
}

static void end_agent(struct end *end)
{
    for (int i = 0; i < PLACES; i++)
        assert_int_equal(nixl_region_close(end->regions[i]), NIXL_SUCCESS);
    nixl_agent_destroy(end->agent);
    free(end->memory[0]);
    assert_int_equal(tcpx_gpu_free(end->memory[1]), TCPX_SUCCESS);
    assert_int_equal(tcpx_gpu_free(end->memory[2]), TCPX_SUCCESS);
}

static void begin_both(struct end *a, struct end *b)
{
    begin(a, "a", "60000");
    begin(b, "b", "60000");
    know(a, b);
    know(b, a);
}

static void end_both(struct end *a, struct end *b)
{
    unknow(a, b);
    unknow(b, a);
    end_agent(a);
    end_agent(b);
}

/* --- requests -------------------------------------------------------------------------------- */

static void add_block(struct nixl_request *request, struct end *a, struct end *b, int here,
                      int here_block, int there, int there_block)
{
    const struct nixl_piece piece = {
        .region = a->regions[here],
        .address = (uintptr_t)a->memory[here] + (size_t)here_block * BLOCK,
        .remote = a->remotes[there],
        .remote_address = (uintptr_t)b->memory[there] + (size_t)there_block * BLOCK,
        .bytes = BLOCK};

    assert_int_equal(nixl_request_add(request, &piece), NIXL_SUCCESS);
}

static struct nixl_request *create(struct end *a, struct end *b, bool is_read, size_t count)
{
    struct nixl_request *request;

    assert_int_equal(nixl_request_create(a->agent, b->name, is_read, count, &request),
                     NIXL_SUCCESS);
    return request;
}

/* All blocks, to or from those that `there_block` names. */
static struct nixl_request *request_of(struct end *a, struct end *b, bool is_read, int here,
                                       int there, const int *there_block)
{
    struct nixl_request *request = create(a, b, is_read, BLOCKS);

    for (int i = 0; i < BLOCKS; i++)
        add_block(request, a, b, here, i, there, there_block[i]);
    assert_int_equal(nixl_request_prepare(request), NIXL_SUCCESS);
    return request;
}

static enum nixl_status wait_for(struct nixl_request *request)
{
    const uint64_t begun = now_ms();
    enum nixl_status status;

    do
        status = nixl_request_check(request);
    while (status == NIXL_IN_PROG && now_ms() - begun < limit_ms(WAIT_MS));
    return status;
}

static enum nixl_status run(struct nixl_request *request, const char *notice)
{
    const struct nixl_text told = text(notice != NULL ? notice : "");
    enum nixl_status status = nixl_request_post(request, notice != NULL ? &told : NULL);

    return status == NIXL_IN_PROG ? wait_for(request) : status;
}

/* The next notice is that; others are not there yet. */
static void expect_notice(struct end *end, const char *from, struct nixl_text expected)
{
    const uint64_t begun = now_ms();
    struct nixl_notice *notice;

    do
        notice = nixl_notices_take(end->agent);
    while (notice == NULL && now_ms() - begun < limit_ms(WAIT_MS));
    if (notice == NULL) {
        fail_msg("no notice came");
        return;
    }
    assert_null(notice->next);
    assert_int_equal(notice->from.length, strlen(from));
    assert_memory_equal(notice->from.bytes, from, notice->from.length);
    assert_int_equal(notice->text.length, expected.length);
    assert_memory_equal(notice->text.bytes, expected.bytes, expected.length);
    free(notice);
}

static void shuffle(int *numbers, uint64_t seed)
{
    for (int i = 0; i < BLOCKS; i++)
        numbers[i] = i;
    for (int i = BLOCKS - 1; i > 0; i--) {
        int other = (int)random_below(&seed, (uint64_t)i + 1);
        int number = numbers[i];

        numbers[i] = numbers[other];
        numbers[other] = number;
    }
}

static void invert(const int *numbers, int *out)
{
    for (int i = 0; i < BLOCKS; i++)
        out[numbers[i]] = i;
}

/* --- tests ----------------------------------------------------------------------------------- */

TEST(test_every_pair_of_memories)
{
    int numbers[BLOCKS];
    int inverse[BLOCKS];
    struct end a;
    struct end b;

    begin_both(&a, &b);
    shuffle(numbers, 3);
    invert(numbers, inverse);
    for (int here = 0; here < PLACES; here++)
        for (int there = 0; there < PLACES; there++) {
            struct nixl_request *write = request_of(&a, &b, false, here, there, numbers);
            struct nixl_request *read = request_of(&a, &b, true, here, there, inverse);
            unsigned seed = (unsigned)(here * PLACES + there);

            assert_int_equal(nixl_request_check(write), NIXL_ERR_NOT_POSTED);
            fill(&a, here, seed);
            assert_int_equal(run(write, "written"), NIXL_SUCCESS);
            expect_notice(&b, "a", text("written"));
            check_blocks(&b, there, seed, inverse);
            fill(&b, there, seed + 50);
            assert_int_equal(run(read, ""), NIXL_SUCCESS);
            expect_notice(&b, "a", text(""));
            check_blocks(&a, here, seed + 50, inverse);
            nixl_request_free(write);
            nixl_request_free(read);
        }
    end_both(&a, &b);
}

/* One list over all memories: several accesses, and one notice behind them. */
TEST(test_a_list_over_several_gpus)
{
    int same[BLOCKS];
    struct nixl_request *request;
    struct end a;
    struct end b;

    begin_both(&a, &b);
    request = create(&a, &b, false, BLOCKS);
    for (int i = 0; i < BLOCKS; i++)
        add_block(request, &a, &b, i % PLACES, i, i / PLACES % PLACES, i);
    assert_int_equal(nixl_request_prepare(request), NIXL_SUCCESS);
    for (unsigned turn = 0; turn < 5; turn++) {
        for (int place = 0; place < PLACES; place++)
            fill(&a, place, turn);
        assert_int_equal(run(request, "all of it"), NIXL_SUCCESS);
        expect_notice(&b, "a", text("all of it"));
        for (int place = 0; place < PLACES; place++) {
            for (int i = 0; i < BLOCKS; i++)
                same[i] = i / PLACES % PLACES == place ? i : -1;
            check_blocks(&b, place, turn, same);
        }
    }
    nixl_request_free(request);
    end_both(&a, &b);
}

/* Posted, and given up before it is known how far it is: then this side's memory is left alone. */
TEST(test_requests_that_are_given_up)
{
    const int turns = turns_of(40);
    uint64_t random = 5;
    int same[BLOCKS];
    struct end a;
    struct end b;
    char *large = calloc(1, 100001);

    begin_both(&a, &b);
    for (int i = 0; i < BLOCKS; i++)
        same[i] = i;
    memset(large, 'x', 100000);
    for (int turn = 0; turn < turns; turn++) {
        int here = (int)random_below(&random, PLACES);
        int there = (int)random_below(&random, PLACES);
        struct nixl_request *request = request_of(&a, &b, true, here, there, same);
        const struct nixl_text notice = text(large);

        fill(&b, there, 1);
        assert_int_equal(nixl_request_post(request, turn % 2 == 0 ? &notice : NULL), NIXL_IN_PROG);
        nap_us(random_below(&random, 2000));
        nixl_request_free(request);
        fill(&a, here, 2);
        request = request_of(&a, &b, false, here, there, same);
        assert_int_equal(run(request, NULL), NIXL_SUCCESS);
        nixl_request_free(request);
        check_blocks(&a, here, 2, same);
        check_blocks(&b, there, 2, same);
    }
    free(large);
    end_both(&a, &b);
}

TEST(test_notices_of_any_length)
{
    static const size_t lengths[] = {0, 1, 32743, 32744, 32745, 65488, 65489, 1000000, 3};
    const struct nixl_text nobody = text("nobody");
    int same[BLOCKS];
    struct nixl_request *request;
    struct end a;
    struct end b;
    char *bytes = malloc(1000000);

    begin_both(&a, &b);
    for (int i = 0; i < BLOCKS; i++)
        same[i] = i;
    request = request_of(&a, &b, false, 0, 0, same);
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        const struct nixl_text notice = {bytes, lengths[i]};

        for (size_t k = 0; k < lengths[i]; k++)
            bytes[k] = (char)byte_of((unsigned)i, k);
        assert_int_equal(nixl_notice_send(a.agent, b.name, notice), NIXL_SUCCESS);
        expect_notice(&b, "a", notice);
        assert_int_equal(nixl_request_post(request, &notice), NIXL_IN_PROG);
        assert_int_equal(wait_for(request), NIXL_SUCCESS);
        expect_notice(&b, "a", notice);
    }
    assert_int_equal(nixl_notice_send(a.agent, nobody, nobody), NIXL_ERR_NOT_FOUND);
    nixl_request_free(request);
    free(bytes);
    end_both(&a, &b);
}

/* Under way, or on the way to a peer that is not there. */
TEST(test_peers_that_are_forgotten)
{
    int same[BLOCKS];
    struct end a;
    struct end b;
    const struct nixl_text before =
        text("tcpx 1 nixl-00000000000000000000000000000000 9 127.0.0.1");

    begin_both(&a, &b);
    for (int i = 0; i < BLOCKS; i++)
        same[i] = i;
    for (int turn = 0; turn < 3; turn++) {
        struct nixl_request *request = request_of(&a, &b, true, 0, 1, same);

        assert_int_equal(nixl_request_post(request, NULL), NIXL_IN_PROG);
        if (turn == 1)
            assert_int_equal(nixl_peer_load(a.agent, b.name, before), NIXL_SUCCESS);
        unknow(&a, &b);
        assert_int_equal(nixl_request_check(request), NIXL_ERR_REMOTE_DISCONNECT);
        assert_int_equal(nixl_request_post(request, NULL), NIXL_ERR_REMOTE_DISCONNECT);
        nixl_request_free(request);
        know(&a, &b);
    }
    end_both(&a, &b);
}

/* All connections of this process. */
static int sever(void)
{
    int severed = 0;

    for (int fd = 3; fd < 1024; fd++) {
        union socket_address peer;
        socklen_t length = sizeof peer;

        if (getpeername(fd, (struct sockaddr *)&peer.storage, &length) == 0 &&
            shutdown(fd, SHUT_RDWR) == 0)
            severed++;
    }
    return severed;
}

/* Until it does not meet a connection that has just broken. */
static void run_again(struct nixl_request *request, const char *notice)
{
    const uint64_t begun = now_ms();
    enum nixl_status status;

    do
        status = run(request, notice);
    while (status == NIXL_ERR_REMOTE_DISCONNECT && now_ms() - begun < limit_ms(WAIT_MS));
    assert_int_equal(status, NIXL_SUCCESS);
}

/* A network that breaks connections of agents that live: the next use makes another one. */
TEST(test_connections_that_break)
{
    const struct nixl_text hello = text("hello");
    int same[BLOCKS];
    struct nixl_request *request;
    struct end a;
    struct end b;

    begin_both(&a, &b);
    for (int i = 0; i < BLOCKS; i++)
        same[i] = i;
    request = request_of(&a, &b, false, 0, 0, same);
    for (unsigned turn = 0; turn < 3; turn++) {
        fill(&a, 0, turn);
        run_again(request, "here");
        expect_notice(&b, "a", text("here"));
        check_blocks(&b, 0, turn, same);
        assert_true(sever() >= 2);
    }
    run_again(request, NULL);
    assert_int_equal(nixl_notice_send(a.agent, b.name, hello), NIXL_SUCCESS);
    expect_notice(&b, "a", hello);
    nixl_request_free(request);
    end_both(&a, &b);
}

TEST(test_an_agent_and_itself)
{
    int numbers[BLOCKS];
    int inverse[BLOCKS];
    struct nixl_request *request;
    struct end a;

    begin(&a, "itself", "60000");
    shuffle(numbers, 7);
    invert(numbers, inverse);
    for (int i = 0; i < PLACES; i++)
        assert_int_equal(nixl_remote_open_own(a.agent, a.regions[i], &a.remotes[i]), NIXL_SUCCESS);
    assert_int_equal(nixl_peer_connect(a.agent, a.name), NIXL_SUCCESS);
    fill(&a, 0, 1);
    request = request_of(&a, &a, false, 0, 2, numbers);
    assert_int_equal(run(request, "hello"), NIXL_SUCCESS);
    expect_notice(&a, "itself", text("hello"));
    check_blocks(&a, 2, 1, inverse);
    nixl_request_free(request);
    for (int i = 0; i < PLACES; i++)
        nixl_remote_close(a.remotes[i]);
    end_agent(&a);
}

/* --- several threads ------------------------------------------------------------------------- */

struct worker {
    pthread_t thread;
    struct end *a;
    struct end *b;
    int number;
    int failures;
};

static void *work(void *argument)
{
    struct worker *worker = argument;
    const int turns = turns_of(30);

    for (int turn = 0; turn < turns; turn++) {
        int place = (worker->number + turn) % PLACES;
        int there = (worker->number + turn / 3) % PLACES;
        struct nixl_request *request;
        struct nixl_piece piece = {
            .region = worker->a->regions[place],
            .address = (uintptr_t)worker->a->memory[place] + (size_t)worker->number * BLOCK,
            .remote = worker->a->remotes[there],
            .remote_address = (uintptr_t)worker->b->memory[there] + (size_t)worker->number * BLOCK,
            .bytes = BLOCK};

        worker->failures += nixl_request_create(worker->a->agent, worker->b->name, turn % 2 == 0, 1,
                                                &request) != NIXL_SUCCESS ||
                            nixl_request_add(request, &piece) != NIXL_SUCCESS ||
                            nixl_request_prepare(request) != NIXL_SUCCESS ||
                            run(request, "x") != NIXL_SUCCESS;
        nixl_request_free(request);
    }
    return NULL;
}

TEST(test_several_threads)
{
    const int turns = turns_of(30);
    struct worker workers[4];
    int told = 0;
    struct end a;
    struct end b;

    begin_both(&a, &b);
    for (int i = 0; i < 4; i++) {
        bool turned = i % 2 != 0;

        workers[i] = (struct worker){.a = turned ? &b : &a, .b = turned ? &a : &b, .number = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        assert_int_equal(workers[i].failures, 0);
    }
    for (uint64_t begun = now_ms(); told < 4 * turns && now_ms() - begun < limit_ms(WAIT_MS);)
        for (int i = 0; i < 2; i++)
            for (struct nixl_notice *notice = nixl_notices_take(i == 0 ? a.agent : b.agent), *next;
                 notice != NULL; notice = next) {
                next = notice->next;
                free(notice);
                told++;
            }
    assert_int_equal(told, 4 * turns);
    end_both(&a, &b);
}

/* --- time ------------------------------------------------------------------------------------ */

/* Nobody listens there: it ends in its time, and the agent does in less. */
TEST(test_a_deadline)
{
    const struct nixl_text endpoint =
        text("tcpx 1 nixl-00000000000000000000000000000000 9 127.0.0.1 127.0.0.2");
    int same[BLOCKS];
    struct nixl_request *request;
    struct end a;
    struct end b;

    begin(&a, "a", "300");
    begin(&b, "b", "60000");
    for (int i = 0; i < BLOCKS; i++)
        same[i] = i;
    assert_int_equal(nixl_peer_load(a.agent, b.name, endpoint), NIXL_SUCCESS);
    for (int i = 0; i < PLACES; i++)
        assert_int_equal(
            nixl_remote_open(a.agent, b.name, nixl_region_key(b.regions[i]), &a.remotes[i]),
            NIXL_SUCCESS);
    request = create(&a, &b, false, 1);
    /* The port of the host is in the key: that of b, who is another one than `endpoint` says. */
    add_block(request, &a, &b, 0, same[0], 0, same[0]);
    assert_int_equal(nixl_request_prepare(request), NIXL_SUCCESS);
    assert_int_equal(run(request, NULL), NIXL_ERR_REMOTE_DISCONNECT);
    nixl_request_free(request);
    unknow(&a, &b);
    end_agent(&a);
    end_agent(&b);
}

static int set_up(void)
{
    setenv("UCCL_TCPX_GPU", "host", 1);
    setenv("UCCL_TCPX_HOST_GPUS", "2", 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    return 0;
}

SUITE(.name = "agents of NIXL", .begin = set_up);
