/*
 * The plugin in a process that does other things as well: forks, whose children are told and do no
 * harm; libtcpx.so beside it; several communicators driven by several threads at once.
 */
#include "tests/plugin/plugin_test.h"
#include "tests/support/check.h"

#include <pthread.h>
#include <stdatomic.h>

static const char *check_detail(void)
{
    return plugin_log_last();
}

/* --- fork ------------------------------------------------------------------------------------ */

/* What a child inherits. */
static struct {
    const struct plugin *plugin;
    struct pair *pair;
    struct pair listener;
    void *requests[2];
} inherited;

#define CHECK_REFUSED(call) CHECK((call) == NCCL_INVALID_USAGE)

/* What a forked child tries with what it inherited; NCCL never does, but its exit paths may. */
static void misbehave(const uint8_t *argument)
{
    const struct plugin *plugin = inherited.plugin;
    const struct pair *pair = inherited.pair;
    struct plugin mine = *plugin;
    uint8_t handle[HANDLE_BYTES] = {0};
    uint8_t buffer[100];
    void *comm = NULL;
    void *request = NULL;
    int done = 0;

    (void)argument;
    CHECK_REFUSED(plugin_listen(plugin, 0, handle, &comm));
    CHECK_REFUSED(plugin_accept(plugin, inherited.listener.listening, &comm, NULL));
    CHECK_REFUSED(plugin_irecv(plugin, pair->receiver, buffer, 100, 0, NULL, &request));
    CHECK_REFUSED(plugin_isend(plugin, pair->sender, buffer, 100, 0, NULL, &request));
    CHECK(request == NULL);
    for (int i = 0; i < 2; i++)
        CHECK_REFUSED(plugin->table->test(inherited.requests[i], &done, NULL));
    CHECK(!done);
    mine.context = NULL;
    CHECK_REFUSED(plugin_init(&mine));
    /* These have no result that anybody looks at: they only have to return. */
    (void)plugin->table->close_send(pair->sender);
    (void)plugin->table->close_recv(pair->receiver);
    (void)plugin->table->close_listen(inherited.listener.listening);
    mine = *plugin;
    (void)plugin_finalize(&mine);
}

/* A child's calls fail with error 5 and return; the parent's connection does not notice them. */
PAIR_CASE(a_child_that_calls, ALL_VERSIONS)
{
    static uint8_t buffer[300000];

    inherited.plugin = plugin;
    inherited.pair = pair;
    pair_listen(&inherited.listener, plugin, plugin);
    for (int turn = 0; turn < 3; turn++) {
        void *receive = start_receive(pair, buffer, sizeof buffer);
        void *send = start_send(pair, text_of(7), sizeof buffer);

        /* one that is in the middle of everything */
        inherited.requests[0] = receive;
        inherited.requests[1] = send;
        child_judge(child_wait(child_fork_here(misbehave, NULL)), "child");
        assert_int_equal(finish_both(pair, send, receive), sizeof buffer);
        assert_memory_equal(buffer, text_of(7), sizeof buffer);
    }
    assert_pair_moves(pair);
    pair_close_listen(&inherited.listener);
}

static void stay(const uint8_t *argument)
{
    (void)argument;
    for (;;)
        pause();
}

/* A child does not hold a connection open: its peer sees the end while the child still lives. */
PAIR_CASE(a_child_that_stays, ALL_VERSIONS)
{
    uint8_t buffer[100];
    void *request;
    pid_t child;

    assert_pair_moves(pair);
    child = child_fork_here(stay, NULL);
    assert_pair_moves(pair);
    request = start_receive(pair, buffer, sizeof buffer);
    pair_close_sender(pair);
    assert_is_loss(result_of(plugin, request, now_ms() + SOON_MS));
    child_kill(child);
}

/* fork and exec, as of a helper program: nothing is inherited but what it should. */
PAIR_CASE(exec_inherits_nothing, ALL_VERSIONS)
{
    int before = open_descriptors();
    FILE *output = popen("ls -l /proc/self/fd | grep -c socket:", "r");
    int sockets = -1;

    assert_non_null(output);
    assert_int_equal(fscanf(output, "%d", &sockets), 1);
    pclose(output);
    /* standard input and output may be sockets themselves; the connection has four */
    assert_in_range(sockets, 0, 3);
    assert_int_equal(open_descriptors(), before);
}

/* --- many threads ---------------------------------------------------------------------------- */

struct busy {
    struct plugin plugin; /* a communicator of its own */
    struct pair pair;
    pthread_t thread;
    atomic_bool stop;
    int turns;
};

/* As the progress thread of one communicator. A wrong byte ends the process, and so the test. */
static void *be_busy(void *argument)
{
    struct busy *busy = argument;

    do {
        assert_pair_moves(&busy->pair);
        busy->turns++;
    } while (!atomic_load(&busy->stop));
    return NULL;
}

/* Several at once: the first of version `newest`, the next of those `step` before it. */
static void busy_start(struct busy *busy, int count, int newest, int step)
{
    (void)text_of(0);
    for (int i = 0; i < count; i++) {
        busy[i] = (struct busy){.plugin = another_context(&plugins[newest - i * step])};
        pair_open(&busy[i].pair, &busy[i].plugin);
        assert_int_equal(pthread_create(&busy[i].thread, NULL, be_busy, &busy[i]), 0);
    }
}

static void busy_end(struct busy *busy, int count)
{
    for (int i = 0; i < count; i++) {
        atomic_store(&busy[i].stop, true);
        pthread_join(busy[i].thread, NULL);
        assert_true(busy[i].turns > 0);
        pair_close(&busy[i].pair);
        assert_works(plugin_finalize(&busy[i].plugin));
    }
}

typedef const char *version_call(void);
typedef int count_call(int *count);

/* The library and the plugin share their code, but in one process not their state. */
TEST(test_beside_the_library)
{
    void *tcpx = dlopen(path_in_build("libtcpx.so"), RTLD_NOW | RTLD_LOCAL);
    version_call *version;
    count_call *gpu_count;
    struct busy busy[2];

    if (tcpx == NULL) {
        skip_because("it is not built");
        return;
    }
    *(void **)&version = dlsym(tcpx, "tcpx_version");
    *(void **)&gpu_count = dlsym(tcpx, "tcpx_gpu_count");
    if (version == NULL || gpu_count == NULL) {
        fail_msg("libtcpx.so does not have its functions");
        return;
    }
    busy_start(busy, 2, 12, 4);
    for (int i = 0; i < turns_of(100); i++) {
        int count = -1;

        assert_true(strlen(version()) > 0);
        assert_int_equal(gpu_count(&count), NCCL_SUCCESS);
        assert_true(count >= 0);
        nap_ms(1);
    }
    busy_end(busy, 2);
    dlclose(tcpx);
}

/* Communicators come and go in one thread while others work in theirs. */
TEST(test_communicators_come_and_go)
{
    enum { THREADS = 3 };
    struct busy busy[THREADS];

    busy_start(busy, THREADS, LAST_VERSION, 1);
    for (int turn = 0, turns = turns_of(40); turn < turns; turn++) {
        struct plugin short_lived = another_context(&plugins[FIRST_VERSION + turn % VERSIONS]);

        assert_plugin_moves(&short_lived);
        assert_works(plugin_finalize(&short_lived));
    }
    busy_end(busy, THREADS);
}

static int begin_suite(void)
{
    child_limit_ms = 10000;
    return stay_on_loopback();
}

PLUGIN_SUITE("plugin and others", begin_suite);
