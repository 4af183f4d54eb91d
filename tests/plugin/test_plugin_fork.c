/*
 * The plugin in a process that does other things as well: forks, whose children are told and do no
 * harm; libtcpx.so beside it; several communicators driven by several threads at once.
 */
#include "tests/plugin/plugin_test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

/* --- fork ------------------------------------------------------------------------------------ */

/* What a forked child tries with what it inherited; NCCL never does, but its exit paths may. */
static int misbehave(const struct plugin *plugin, const struct pair *pair, void *listening,
                     void *const requests[2])
{
    struct plugin mine = *plugin;
    uint8_t handle[HANDLE_BYTES] = {0};
    uint8_t buffer[100];
    void *comm = NULL;
    void *request = NULL;
    int done = 0;

    if (plugin_listen(plugin, 0, handle, &comm) != NCCL_INVALID_USAGE)
        return 1;
    if (plugin_accept(plugin, listening, &comm, NULL) != NCCL_INVALID_USAGE)
        return 2;
    if (plugin_irecv(plugin, pair->receiver, buffer, sizeof buffer, 0, NULL, &request) !=
            NCCL_INVALID_USAGE ||
        request != NULL)
        return 3;
    if (plugin_isend(plugin, pair->sender, buffer, sizeof buffer, 0, NULL, &request) !=
            NCCL_INVALID_USAGE ||
        request != NULL)
        return 4;
    for (int i = 0; i < 2; i++)
        if (plugin_test(plugin, requests[i], &done, NULL) != NCCL_INVALID_USAGE || done)
            return 5;
    mine.context = NULL;
    if (plugin_init(&mine) != NCCL_INVALID_USAGE)
        return 6;
    /* These have no result that anybody looks at: they only have to return. */
    (void)plugin_close_send(plugin, pair->sender);
    (void)plugin_close_recv(plugin, pair->receiver);
    (void)plugin_close_listen(plugin, listening);
    mine = *plugin;
    (void)plugin_finalize(&mine);
    return 0;
}

static int status_of(pid_t child)
{
    uint64_t deadline = now_ms() + SOON_MS;
    int status = -1;

    while (waitpid(child, &status, WNOHANG) == 0) {
        if (now_ms() > deadline) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            return -1;
        }
        nap_ms(1);
    }
    return status;
}

/* A child's calls fail with error 5 and return; the parent's connection does not notice them. */
static void test_a_child_that_calls(void **state)
{
    const struct plugin *plugin = plugin_of(state);
    static uint8_t buffer[300000];
    uint8_t handle[HANDLE_BYTES] = {0};
    void *listening = NULL;
    void *requests[2];
    struct pair pair;

    assert_works(plugin_listen(plugin, 0, handle, &listening));
    pair_open(&pair, plugin);
    for (int turn = 0; turn < 3; turn++) {
        pid_t child;

        /* one that is in the middle of everything */
        requests[0] = start_receive(&pair, buffer, sizeof buffer);
        requests[1] = start_send(&pair, text_of(7), sizeof buffer);
        child = fork();
        assert_true(child >= 0);
        if (child == 0)
            _exit(misbehave(plugin, &pair, listening, requests));
        assert_int_equal(status_of(child), 0);
        assert_int_equal(finish_both(&pair, requests[1], requests[0]), sizeof buffer);
        assert_memory_equal(buffer, text_of(7), sizeof buffer);
    }
    assert_pair_moves(&pair);
    pair_close(&pair);
    assert_works(plugin_close_listen(plugin, listening));
}

/* A child does not hold a connection open: its peer sees the end while the child still lives. */
static void test_a_child_that_stays(void **state)
{
    const struct plugin *plugin = plugin_of(state);
    uint64_t deadline = now_ms() + SOON_MS;
    uint8_t buffer[100];
    int result = NCCL_SUCCESS;
    void *request;
    struct pair pair;
    pid_t child;

    pair_open(&pair, plugin);
    assert_pair_moves(&pair);
    child = fork();
    assert_true(child >= 0);
    if (child == 0)
        for (;;)
            pause();
    assert_pair_moves(&pair);
    request = start_receive(&pair, buffer, sizeof buffer);
    assert_works(plugin_close_send(plugin, pair.sender));
    while (result == NCCL_SUCCESS) {
        int done = 0;

        result = plugin_test(plugin, request, &done, NULL);
        assert_false(done);
        assert_true(now_ms() < deadline);
    }
    assert_true(result == NCCL_SYSTEM || result == NCCL_REMOTE);
    assert_works(plugin_close_recv(plugin, pair.receiver));
    kill(child, SIGKILL);
    status_of(child);
}

/* fork and exec, as of a helper program: nothing is inherited but what it should. */
static void test_exec_inherits_nothing(void **state)
{
    int before;
    FILE *output;
    int sockets = -1;
    struct pair pair;

    pair_open(&pair, plugin_of(state));
    before = open_descriptors();
    output = popen("ls -l /proc/self/fd | grep -c socket:", "r");
    assert_non_null(output);
    assert_int_equal(fscanf(output, "%d", &sockets), 1);
    pclose(output);
    /* standard input and output may be sockets themselves; the connection has four */
    assert_in_range(sockets, 0, 3);
    assert_int_equal(open_descriptors(), before);
    pair_close(&pair);
}

/* --- many threads ---------------------------------------------------------------------------- */

struct busy {
    struct plugin plugin; /* a communicator of its own */
    struct pair pair;
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

static void busy_open(struct busy *busy, int version)
{
    *busy = (struct busy){.plugin = plugins[version]};
    busy->plugin.context = NULL;
    assert_works(plugin_init(&busy->plugin));
    pair_open(&busy->pair, &busy->plugin);
}

static void busy_close(struct busy *busy)
{
    assert_true(busy->turns > 0);
    pair_close(&busy->pair);
    assert_works(plugin_finalize(&busy->plugin));
}

/* libtcpx.so from the plugin's folder; NULL if it is not there. */
static void *load_libtcpx(void)
{
    char path[4200];
    char *slash;

    snprintf(path, sizeof path, "%s", plugin_path());
    slash = strrchr(path, '/');
    if (slash == NULL)
        return NULL;
    snprintf(slash, sizeof path - (size_t)(slash - path), "/libtcpx.so");
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

typedef const char *version_call(void);
typedef int count_call(int *count);

/* The library and the plugin share their code, but in one process not their state. */
static void test_beside_the_library(void **state)
{
    void *tcpx = load_libtcpx();
    version_call *version;
    count_call *gpu_count;
    struct busy busy[2];
    pthread_t threads[2];

    (void)state;
    if (tcpx == NULL)
        skip_because("it is not built");
    *(void **)&version = dlsym(tcpx, "tcpx_version");
    *(void **)&gpu_count = dlsym(tcpx, "tcpx_gpu_count");
    if (version == NULL || gpu_count == NULL) {
        fail_msg("libtcpx.so does not have its functions");
        return;
    }
    (void)text_of(0);
    for (int i = 0; i < 2; i++) {
        busy_open(&busy[i], i == 0 ? 8 : 12);
        assert_int_equal(pthread_create(&threads[i], NULL, be_busy, &busy[i]), 0);
    }
    for (int i = 0; i < turns_of(100); i++) {
        int count = -1;

        assert_true(strlen(version()) > 0);
        assert_int_equal(gpu_count(&count), NCCL_SUCCESS);
        assert_true(count >= 0);
        nap_ms(1);
    }
    for (int i = 0; i < 2; i++) {
        atomic_store(&busy[i].stop, true);
        pthread_join(threads[i], NULL);
        busy_close(&busy[i]);
    }
    dlclose(tcpx);
}

/* Communicators come and go in one thread while others work in theirs. */
static void test_communicators_come_and_go(void **state)
{
    enum { THREADS = 3 };
    struct busy busy[THREADS];
    pthread_t threads[THREADS];

    (void)state;
    (void)text_of(0);
    for (int i = 0; i < THREADS; i++) {
        busy_open(&busy[i], LAST_VERSION - i);
        assert_int_equal(pthread_create(&threads[i], NULL, be_busy, &busy[i]), 0);
    }
    for (int turn = 0, turns = turns_of(40); turn < turns; turn++) {
        struct busy short_lived;

        busy_open(&short_lived, FIRST_VERSION + turn % VERSIONS);
        assert_pair_moves(&short_lived.pair);
        short_lived.turns = 1;
        busy_close(&short_lived);
    }
    for (int i = 0; i < THREADS; i++) {
        atomic_store(&busy[i].stop, true);
        pthread_join(threads[i], NULL);
        busy_close(&busy[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH_VERSION(test_a_child_that_calls),
        EACH_VERSION(test_a_child_that_stays),
        EACH_VERSION(test_exec_inherits_nothing),
        cmocka_unit_test(test_beside_the_library),
        cmocka_unit_test(test_communicators_come_and_go),
    };

    stay_on_loopback();
    return cmocka_run_group_tests_name("plugin and others", tests, load_all, unload_all);
}
