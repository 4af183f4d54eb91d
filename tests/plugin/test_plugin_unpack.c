/*
 * The plugin where NCCL's kernels unpack (UCCL_TCPX_PLUGIN_MODE=unpack), driven with host memory,
 * so that any kind of GPU will do: device handles, requests that live until they are consumed, and
 * the warning about an environment that would make NCCL go wrong. What the kernels read is looked
 * at by test_plugin_gpu.c.
 */
#include "tests/plugin/plugin_test.h"

#include <strings.h>

enum { DEPTH = 16, BYTES = 1000 };

/* A pair whose accept is given a struct that says what it expects, as NCCL's. */
struct queue {
    struct pair pair;
    struct nccl_device_handle handle;
};

static void queue_open(struct queue *queue, const struct plugin *plugin)
{
    queue->handle = (struct nccl_device_handle){.type = NCCL_DEVICE_UNPACK, .version = 7};
    pair_listen(&queue->pair, plugin, plugin);
    queue->pair.devices[1] = &queue->handle;
    pair_meet(&queue->pair);
    assert_ptr_equal(queue->pair.devices[1], &queue->handle);
}

static void queue_close(struct queue *queue)
{
    pair_close(&queue->pair);
}

#define QUEUE_CASE(name) OPENED_CASE(queue, queue, name, WITH_QUEUE)

/* What accept gives to the kernels; with needsProxyProgress 0 NCCL would wait for ever. */
VERSIONS_CASE(device_handles, WITH_QUEUE)
{
    struct queue queues[3];

    for (int i = 0; i < 3; i++) {
        const struct nccl_device_handle *handle = &queues[i].handle;

        queue_open(&queues[i], plugin);
        assert_int_equal(handle->type, NCCL_DEVICE_UNPACK);
        assert_int_equal(handle->version, NCCL_UNPACK_VERSION);
        assert_int_equal(handle->needs_proxy_progress, 1);
        assert_non_null(handle->handle);
        for (int k = 0; k < i; k++)
            assert_ptr_not_equal(handle->handle, queues[k].handle.handle);
    }
    for (int i = 0; i < 3; i++) {
        assert_pair_moves(&queues[i].pair);
        queue_close(&queues[i]);
    }
}

/* The next receive and send; done, but not consumed. */
static void *move_one(const struct pair *pair, uint64_t number, uint8_t *buffer)
{
    void *receive = start_receive(pair, buffer, BYTES);
    void *send = start_send(pair, text_of(number), BYTES);

    assert_int_equal(finish_both(pair, send, receive), BYTES);
    assert_memory_equal(buffer, text_of(number), BYTES);
    return receive;
}

/* As NCCL: up to 8 under way, tested and consumed in order, far beyond the 16 slots. */
QUEUE_CASE(consumed_in_order)
{
    enum { MESSAGES = 400, AHEAD = 8 };
    static uint8_t buffers[AHEAD][BYTES];
    const struct pair *pair = &queue->pair;
    void *receives[AHEAD];
    void *sends[AHEAD];
    int started = 0;

    for (int consumed = 0; consumed < MESSAGES; consumed++) {
        for (; started < MESSAGES && started - consumed < AHEAD; started++) {
            receives[started % AHEAD] = start_receive(pair, buffers[started % AHEAD], BYTES);
            sends[started % AHEAD] =
                start_send(pair, text_of((uint64_t)started), started % 5 == 0 ? 0 : BYTES);
        }
        finish_both(pair, sends[consumed % AHEAD], receives[consumed % AHEAD]);
        if (consumed % 5 != 0)
            assert_memory_equal(buffers[consumed % AHEAD], text_of((uint64_t)consumed), BYTES);
        consume(pair, receives[consumed % AHEAD]);
    }
}

/* In any other order, too: NCCL does not, but nothing says that it must not. */
QUEUE_CASE(consumed_in_another_order)
{
    static uint8_t buffers[DEPTH][BYTES];
    void *receives[DEPTH];

    for (uint64_t turn = 0; turn < 6; turn++) {
        for (uint64_t i = 0; i < DEPTH; i++)
            receives[i] = move_one(&queue->pair, turn * DEPTH + i, buffers[i]);
        for (int i = 0; i < DEPTH; i++) {
            int which = turn % 3 == 0 ? DEPTH - 1 - i : turn % 3 == 1 ? i * 5 % DEPTH : i ^ 1;

            consume(&queue->pair, receives[which]);
        }
    }
}

/* A slot is the kernel's until its receive is consumed: 16 that are not, and the comm is busy. */
QUEUE_CASE(not_consumed)
{
    static uint8_t buffers[DEPTH + 1][BYTES];
    const struct pair *pair = &queue->pair;
    void *receives[DEPTH];
    void *beyond = (void *)1;

    for (uint64_t i = 0; i < DEPTH; i++)
        receives[i] = move_one(pair, i, buffers[i]);
    for (int i = 0; i < 100; i++) {
        assert_works(plugin_irecv(plugin, pair->receiver, buffers[DEPTH], BYTES, 0, NULL, &beyond));
        assert_null(beyond);
        beyond = (void *)2;
    }
    consume(pair, receives[0]);
    (void)move_one(pair, DEPTH, buffers[DEPTH]);
    /* and a comm may end with all of them */
}

/* NCCL's bootstrap gives no place for a handle and never consumes: requests do not run out. */
PAIR_CASE(bootstrap_never_consumes, ALL_VERSIONS)
{
    static uint8_t buffer[BYTES];

    for (uint64_t i = 0; i < 200; i++)
        (void)move_one(pair, i, buffer);
}

/* The proxy's receives of such a comm are consumed, which is then nothing. */
PAIR_CASE(consumed_without_a_queue, WITH_QUEUE)
{
    static uint8_t buffer[BYTES];

    for (uint64_t i = 0; i < 50; i++)
        consume(pair, move_one(pair, i, buffer));
}

/* Queue and bounce memory of a comm go with it: many come and go with the memory of a few. */
VERSIONS_CASE(queues_come_and_go, WITH_QUEUE)
{
    int descriptors = open_descriptors();
    static uint8_t buffer[BYTES];
    struct queue queue;

    for (uint64_t i = 0; i < (uint64_t)turns_of(100); i++) {
        queue_open(&queue, plugin);
        (void)move_one(&queue.pair, i, buffer);
        queue_close(&queue);
    }
    assert_true(settles(open_descriptors, descriptors));
}

/* A receive of more than a slot can describe is refused; NCCL's are at most 4 MiB. */
QUEUE_CASE(more_than_a_slot_holds)
{
    static uint8_t buffer[(4 << 20) + 1];
    const struct pair *pair = &queue->pair;
    void *request = (void *)1;
    int result;

    move_message(pair, 1, 4 << 20, buffer, 4 << 20);
    result = plugin_irecv(plugin, pair->receiver, buffer, sizeof buffer, 0, NULL, &request);
    if (result == NCCL_SUCCESS)
        assert_non_null(request);
    else
        assert_null(request);
}

/* --- the warning ----------------------------------------------------------------------------- */

/* Exit status: how many warnings there were; 50 and more if they do not name what is missing. */
static int run_count_warnings(void)
{
    static const char *const names[] = {"NCCL_PROTO", "NCCL_PAT_ENABLE", "NCCL_GRAPH_REGISTER",
                                        "NCCL_LOCAL_REGISTER"};
    unsigned warnings;

    if (load_all() != 0)
        return 100;
    warnings = plugin_log_warnings();
    for (int i = 0; i < 4; i++) {
        const char *set = getenv(names[i]);
        bool right = set != NULL && strcasecmp(set, i == 0 ? "Simple" : "0") == 0;

        if (plugin_log_warned(names[i]) == right)
            return 50 + i;
    }
    return (int)warnings;
}

/* "NAME=what it is here" in `text`; NULL: it is not set. */
static const char *inherit(const char *name, char *text, size_t room)
{
    const char *value = getenv(name);

    snprintf(text, room, "%s=%s", name, value != NULL ? value : "");
    return value != NULL ? text : NULL;
}

/* The child has the GPU of this process, and what is given; NULL: it does not get that one. */
static int warnings_with(const char *const given[4])
{
    char texts[2][4200];
    const char *const wanted[] = {"NCCL_SOCKET_IFNAME=lo",
                                  "UCCL_TCPX_PLUGIN_MODE=unpack",
                                  inherit("UCCL_TCPX_GPU", texts[0], sizeof texts[0]),
                                  inherit("LD_LIBRARY_PATH", texts[1], sizeof texts[1]),
                                  given[0],
                                  given[1],
                                  given[2],
                                  given[3]};
    const char *some[COUNT_OF(wanted) + 1] = {NULL};
    int status;

    for (size_t i = 0, count = 0; i < COUNT_OF(wanted); i++)
        if (wanted[i] != NULL)
            some[count++] = wanted[i];
    status = plugin_exec("count-warnings", some);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* One line for the whole process that names all that is missing, and nothing that is not. */
TEST(test_warnings)
{
    static const char proto[] = "NCCL_PROTO=Simple";
    static const char pat[] = "NCCL_PAT_ENABLE=0";
    static const char graph[] = "NCCL_GRAPH_REGISTER=0";
    static const char local[] = "NCCL_LOCAL_REGISTER=0";
    static const struct {
        const char *variables[4];
        int warnings;
    } rows[] = {
        {{proto, pat, graph, local}, 0},
        {{NULL, NULL, NULL, NULL}, 1},
        {{NULL, pat, graph, local}, 1},
        {{proto, NULL, graph, local}, 1},
        {{proto, pat, NULL, local}, 1},
        {{proto, pat, graph, NULL}, 1},
        {{"NCCL_PROTO=LL,Simple", pat, graph, local}, 1},
        {{proto, "NCCL_PAT_ENABLE=1", graph, local}, 1},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(warnings_with(rows[i].variables), rows[i].warnings);
}

static int begin_suite(void)
{
    static const struct child_program programs[] = {{"count-warnings", run_count_warnings}};

    child_dispatch(programs, COUNT_OF(programs));
    if (!mode_is("unpack")) {
        fprintf(stderr, "UCCL_TCPX_PLUGIN_MODE is not unpack\n");
        return 1;
    }
    return stay_on_loopback();
}

PLUGIN_SUITE("plugin unpack", begin_suite);
