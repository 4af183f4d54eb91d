/*
 * The plugin where NCCL's kernels unpack (UCCL_TCPX_PLUGIN_MODE=unpack), driven with host memory,
 * so that any kind of GPU will do: device handles, requests that live until they are consumed, and
 * the warning about an environment that would make NCCL go wrong. What the kernels read is looked
 * at by test_plugin_gpu.c.
 */
#include "tests/plugin/plugin_test.h"

#include <strings.h>

enum { DEPTH = 16, BYTES = 1000 };

/* As NCCL's accept: a struct that says what it expects. */
static void open_with_queue(struct pair *pair, const struct plugin *plugin,
                            struct nccl_device_handle *handle)
{
    struct nccl_device_handle *place = handle;

    *handle = (struct nccl_device_handle){.type = NCCL_DEVICE_UNPACK, .version = 7};
    pair_open_device(pair, plugin, plugin, &place);
    assert_ptr_equal(place, handle);
}

/* What accept gives to the kernels; with needsProxyProgress 0 NCCL would wait for ever. */
VERSIONS_CASE(device_handles, WITH_QUEUE)
{
    struct nccl_device_handle handles[3];
    struct pair pairs[3];

    for (int i = 0; i < 3; i++) {
        open_with_queue(&pairs[i], plugin, &handles[i]);
        assert_int_equal(handles[i].type, NCCL_DEVICE_UNPACK);
        assert_int_equal(handles[i].version, NCCL_UNPACK_VERSION);
        assert_int_equal(handles[i].needs_proxy_progress, 1);
        assert_non_null(handles[i].handle);
        for (int k = 0; k < i; k++)
            assert_ptr_not_equal(handles[i].handle, handles[k].handle);
    }
    for (int i = 0; i < 3; i++) {
        assert_pair_moves(&pairs[i]);
        pair_close(&pairs[i]);
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
VERSIONS_CASE(consumed_in_order, WITH_QUEUE)
{
    enum { MESSAGES = 400, AHEAD = 8 };
    static uint8_t buffers[AHEAD][BYTES];
    uint64_t deadline = now_ms() + LIMIT_MS;
    struct nccl_device_handle handle;
    void *receives[AHEAD];
    void *sends[AHEAD];
    struct pair pair;
    int started = 0;

    open_with_queue(&pair, plugin, &handle);
    for (int consumed = 0; consumed < MESSAGES; consumed++) {
        for (; started < MESSAGES && started - consumed < AHEAD; started++) {
            receives[started % AHEAD] = start_receive(&pair, buffers[started % AHEAD], BYTES);
            sends[started % AHEAD] =
                start_send(&pair, text_of((uint64_t)started), started % 5 == 0 ? 0 : BYTES);
        }
        finish_both(&pair, sends[consumed % AHEAD], receives[consumed % AHEAD]);
        if (consumed % 5 != 0)
            assert_memory_equal(buffers[consumed % AHEAD], text_of((uint64_t)consumed), BYTES);
        consume(&pair, receives[consumed % AHEAD]);
        assert_true(now_ms() < deadline);
    }
    pair_close(&pair);
}

/* In any other order, too: NCCL does not, but nothing says that it must not. */
VERSIONS_CASE(consumed_in_another_order, WITH_QUEUE)
{
    static uint8_t buffers[DEPTH][BYTES];
    struct nccl_device_handle handle;
    void *receives[DEPTH];
    struct pair pair;

    open_with_queue(&pair, plugin, &handle);
    for (uint64_t turn = 0; turn < 6; turn++) {
        for (uint64_t i = 0; i < DEPTH; i++)
            receives[i] = move_one(&pair, turn * DEPTH + i, buffers[i]);
        for (int i = 0; i < DEPTH; i++) {
            int which = turn % 3 == 0 ? DEPTH - 1 - i : turn % 3 == 1 ? i * 5 % DEPTH : i ^ 1;

            consume(&pair, receives[which]);
        }
    }
    pair_close(&pair);
}

/* A slot is the kernel's until its receive is consumed: 16 that are not, and the comm is busy. */
VERSIONS_CASE(not_consumed, WITH_QUEUE)
{
    static uint8_t buffers[DEPTH + 1][BYTES];
    struct nccl_device_handle handle;
    void *receives[DEPTH];
    void *beyond = (void *)1;
    struct pair pair;

    open_with_queue(&pair, plugin, &handle);
    for (uint64_t i = 0; i < DEPTH; i++)
        receives[i] = move_one(&pair, i, buffers[i]);
    for (int i = 0; i < 100; i++) {
        assert_works(plugin_irecv(pair.to, pair.receiver, buffers[DEPTH], BYTES, 0, NULL, &beyond));
        assert_null(beyond);
        beyond = (void *)2;
    }
    consume(&pair, receives[0]);
    receives[0] = move_one(&pair, DEPTH, buffers[DEPTH]);
    /* and a comm may end with all of them */
    pair_close(&pair);
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
    struct nccl_device_handle handle;
    static uint8_t buffer[BYTES];
    struct pair pair;

    for (uint64_t i = 0; i < (uint64_t)turns_of(100); i++) {
        open_with_queue(&pair, plugin, &handle);
        (void)move_one(&pair, i, buffer);
        pair_close(&pair);
    }
    assert_true(settles(open_descriptors, descriptors));
}

/* A receive of more than a slot can describe is refused; NCCL's are at most 4 MiB. */
VERSIONS_CASE(more_than_a_slot_holds, WITH_QUEUE)
{
    static uint8_t buffer[(4 << 20) + 1];
    struct nccl_device_handle handle;
    void *request = (void *)1;
    struct pair pair;
    int result;

    open_with_queue(&pair, plugin, &handle);
    move_message(&pair, 1, 4 << 20, buffer, 4 << 20);
    result = plugin_irecv(plugin, pair.receiver, buffer, sizeof buffer, 0, NULL, &request);
    if (result == NCCL_SUCCESS)
        assert_non_null(request);
    else
        assert_null(request);
    pair_close(&pair);
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

/* The child has the GPU of this process; NULL: it does not get that one. */
static int warnings_with(const char *const given[4])
{
    const char *gpu = getenv("UCCL_TCPX_GPU");
    const char *path = getenv("LD_LIBRARY_PATH");
    const char *some[6] = {NULL};
    char gpu_variable[100];
    char path_variable[4200];
    int count = 0;
    int status;

    if (gpu != NULL) {
        snprintf(gpu_variable, sizeof gpu_variable, "UCCL_TCPX_GPU=%s", gpu);
        some[count++] = gpu_variable;
    }
    if (path != NULL) {
        snprintf(path_variable, sizeof path_variable, "LD_LIBRARY_PATH=%s", path);
        some[count++] = path_variable;
    }
    for (int i = 0; i < 4; i++)
        if (given[i] != NULL)
            some[count++] = given[i];
    status = plugin_exec("count-warnings", "NCCL_SOCKET_IFNAME=lo", "UCCL_TCPX_PLUGIN_MODE=unpack",
                         some[0], some[1], some[2], some[3], some[4], some[5], NULL);
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
