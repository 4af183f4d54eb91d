/*
 * The plugin as a file that NCCL opens: what it exports and needs, that it loads anywhere, and that
 * its beginning and its end can come in every order, fail in words, and leave nothing behind.
 */
#include "tests/plugin/plugin_exec.h"

#include <ctype.h>

/* --- the file -------------------------------------------------------------------------------- */

/* A data object for each version, and nothing else that NCCL looks for. */
static void test_symbols_by_name(void **state)
{
    static const char *const others[] = {
        "ncclNetPlugin_v4",      "ncclNetPlugin_v5",     "ncclNetPlugin_v13",
        "ncclCollNetPlugin_v6",  "ncclCollNetPlugin_v8", "ncclCollNetPlugin_v11",
        "ncclCollNetPlugin_v12", "ncclGinPlugin_v11",    "ncclTunerPlugin_v4",
        "ncclProfiler_v4",       "ncclTunerPlugin_v3",   "tcpx_version"};
    void *loaded = plugin_load();

    (void)state;
    assert_non_null(loaded);
    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++) {
        struct plugin plugin;

        assert_true(plugin_find(loaded, version, &plugin));
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (dlsym(loaded, others[i]) != NULL)
            fail_msg("%s is exported", others[i]);
    dlclose(loaded);
}

/* Calls `look` with each line that a command prints; false if there is no such command. */
static bool each_line(const char *command, void (*look)(const char *line))
{
    char line[1000];
    FILE *output = popen(command, "r");
    int lines = 0;

    assert_non_null(output);
    while (fgets(line, sizeof line, output) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        look(line);
        lines++;
    }
    return pclose(output) == 0 && lines > 0;
}

static unsigned versions_seen; /* a bit for each */

static void look_at_export(const char *line)
{
    char name[200];
    char kind;
    int version;
    int end = 0;

    if (sscanf(line, "%*x %c %199s", &kind, name) != 2)
        return;
    /* the runtime marks of a sanitizer, and the name of a symbol version, are nobody's */
    if (kind == 'A' || strncmp(name, "__asan", 6) == 0 || strncmp(name, "__odr_asan", 10) == 0 ||
        strncmp(name, "__start_asan", 12) == 0 || strncmp(name, "__stop_asan", 11) == 0)
        return;
    name[strcspn(name, "@")] = '\0';
    if (sscanf(name, "ncclNetPlugin_v%d%n", &version, &end) != 1 || name[end] != '\0' ||
        version < FIRST_VERSION || version > LAST_VERSION)
        fail_msg("%s is exported", name);
    if (strchr("DRBV", kind) == NULL)
        fail_msg("%s is of kind %c, not data", name, kind);
    versions_seen |= 1u << version;
}

static void test_exports(void **state)
{
    char command[4200];

    (void)state;
    snprintf(command, sizeof command, "nm -D --defined-only '%s' 2>/dev/null", plugin_path());
    versions_seen = 0;
    if (!each_line(command, look_at_export))
        skip_because("nm is not installed");
    assert_int_equal(versions_seen, 0x1fc0);
}

static void look_at_import(const char *line)
{
    char name[200];
    char kind;

    if (sscanf(line, " %c %199s", &kind, name) != 2)
        return;
#ifdef __GLIBC__ /* others do not give their symbols versions */
    if (kind != 'w' && strstr(name, "@GLIBC_") == NULL)
        fail_msg("%s is needed, but not from libc", name);
#endif
}

static void look_at_needed(const char *line)
{
    const char *name = strchr(line, '[');

    if (strstr(line, "(NEEDED)") == NULL || name == NULL)
        return;
    if (strncmp(name, "[libc.so", 8) != 0 && strncmp(name, "[ld-linux", 9) != 0)
        fail_msg("%s is needed", name);
}

/* Nothing but libc, so that no library's version decides whether it loads. */
static void test_imports(void **state)
{
    char command[4200];

    (void)state;
    if (SANITIZED)
        skip_because("a sanitizer brings its runtime");
    snprintf(command, sizeof command, "nm -D --undefined-only '%s' 2>/dev/null", plugin_path());
    if (!each_line(command, look_at_import))
        skip_because("nm is not installed");
    snprintf(command, sizeof command, "readelf -d '%s' 2>/dev/null", plugin_path());
    if (!each_line(command, look_at_needed))
        skip_because("readelf is not installed");
}

/* --- the tables ------------------------------------------------------------------------------ */

static bool is_empty(const struct plugin *plugin, size_t index)
{
    const void *member;

    memcpy(&member, (const char *)plugin->table.any + index * sizeof member, sizeof member);
    return member == NULL;
}

/* NCCL calls what is there: what must be is, and what would change its mind is not. */
static void test_members(void **state)
{
    static const size_t lengths[] = {17, 19, 19, 20, 20, 22, 22};
    enum { REG_DMABUF = 8, DEVICE_MR = 17, CONSUMED = 18, MAKE_VDEVICE = 19, SET_ATTR = 21 };

    (void)state;
    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++)
        for (size_t i = 0; i < lengths[version - FIRST_VERSION]; i++) {
            bool empty = is_empty(&plugins[version], i);

            if (i == CONSUMED)
                assert_int_equal(empty, !mode_is("unpack"));
            else if (i == MAKE_VDEVICE)
                assert_true(empty);
            else if (i != REG_DMABUF && i != DEVICE_MR && i != SET_ATTR && empty)
                fail_msg("member %zu of version %d is NULL", i, version);
        }
}

static bool is_mapped(const char *name)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    bool found = false;
    char line[1000];

    if (maps == NULL)
        return false;
    while (fgets(line, sizeof line, maps) != NULL)
        found = found || strstr(line, name) != NULL;
    fclose(maps);
    return found;
}

/* A plugin that moves host memory does not touch the driver, though it can be found. */
static void test_no_cuda_in_host_mode(void **state)
{
    struct pair pair;

    (void)state;
    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++) {
        pair_open(&pair, &plugins[version]);
        assert_pair_moves(&pair);
        pair_close(&pair);
    }
    assert_false(is_mapped("libcuda"));
    assert_false(is_mapped("libnvidia"));
}

/* --- beginnings and ends --------------------------------------------------------------------- */

/* Each communicator has a context of its own; they end in any order, and begin again. */
static void test_contexts(void **state)
{
    enum { CONTEXTS = 4 };
    static const int orders[][CONTEXTS] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}};

    for (size_t turn = 0; turn < 3; turn++) {
        struct plugin contexts[CONTEXTS];

        for (int i = 0; i < CONTEXTS; i++) {
            contexts[i] = *plugin_of(state);
            contexts[i].context = (void *)1;
            assert_works(plugin_init(&contexts[i]));
            assert_non_null(contexts[i].context);
            assert_ptr_not_equal(contexts[i].context, (void *)1);
            for (int k = 0; k < i; k++)
                assert_ptr_not_equal(contexts[i].context, contexts[k].context);
        }
        for (int i = 0; i < CONTEXTS; i++) {
            struct plugin *ending = &contexts[orders[turn][i]];
            struct pair pair;

            pair_open(&pair, ending);
            assert_pair_moves(&pair);
            pair_close(&pair);
            assert_works(plugin_finalize(ending));
        }
    }
}

/* NCCL 2.28 ends what never began. */
static void test_finalize_nothing(void **state)
{
    struct plugin plugin = *plugin_of(state);

    plugin.context = NULL;
    for (int i = 0; i < 3; i++)
        assert_works(plugin_finalize(&plugin));
}

/* Old NCCLs and old compat layers begin more often than they end. */
static void test_init_again(void **state)
{
    struct plugin plugin = *plugin_of(state);
    int descriptors = open_descriptors();
    struct pair pair;

    for (int i = 0; i < 20; i++) {
        assert_works(plugin_init(&plugin));
        if (plugin.version >= 11)
            assert_works(plugin_finalize(&plugin));
    }
    assert_true(settles(open_descriptors, descriptors));
    pair_open(&pair, plugin_of(state));
    assert_pair_moves(&pair);
    pair_close(&pair);
}

/* --- in processes of their own --------------------------------------------------------------- */

/* A connection and a message, without cmocka. */
static int small_exchange(const struct plugin *plugin)
{
    uint64_t deadline = now_ms() + SOON_MS;
    uint8_t handle[HANDLE_BYTES] = {0};
    void *sender = NULL;
    void *receiver = NULL;
    void *listening = NULL;
    void *requests[2] = {NULL, NULL};
    char to[6] = "";
    char from[6] = "hello";
    int done[2] = {0, 0};

    if (plugin_listen(plugin, 0, handle, &listening) != NCCL_SUCCESS)
        return 40;
    while (sender == NULL || receiver == NULL) {
        if (now_ms() > deadline)
            return 41;
        if (sender == NULL && plugin_connect(plugin, 0, handle, &sender, NULL) != NCCL_SUCCESS)
            return 42;
        if (receiver == NULL && plugin_accept(plugin, listening, &receiver, NULL) != NCCL_SUCCESS)
            return 43;
    }
    if (plugin_irecv(plugin, receiver, to, sizeof to, 0, NULL, &requests[0]) != NCCL_SUCCESS ||
        plugin_isend(plugin, sender, from, sizeof from, 0, NULL, &requests[1]) != NCCL_SUCCESS)
        return 44;
    while (!done[0] || !done[1]) {
        if (now_ms() > deadline)
            return 45;
        for (int i = 0; i < 2; i++)
            if (!done[i] && plugin_test(plugin, requests[i], &done[i], NULL) != NCCL_SUCCESS)
                return 46;
    }
    if (memcmp(to, from, sizeof to) != 0 || plugin_close_send(plugin, sender) != NCCL_SUCCESS ||
        plugin_close_recv(plugin, receiver) != NCCL_SUCCESS ||
        plugin_close_listen(plugin, listening) != NCCL_SUCCESS)
        return 47;
    return 0;
}

/* What a table says before init is called: NCCL reads the name then. Then everything works. */
static int run_bare(void)
{
    library = plugin_load();
    if (library == NULL)
        return 1;
    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++) {
        struct plugin plugin;
        int count = 0;
        int result;

        if (!plugin_find(library, version, &plugin) || strcmp(plugin_name(&plugin), "TCPX") != 0)
            return 2;
        if (plugin_init(&plugin) != NCCL_SUCCESS ||
            plugin_devices(&plugin, &count) != NCCL_SUCCESS || count < 1)
            return 3;
        result = small_exchange(&plugin);
        if (result != 0 || plugin_finalize(&plugin) != NCCL_SUCCESS)
            return result;
        if (plugin_log_warnings() > 0) {
            plugin_log_print();
            return 4;
        }
    }
    return is_mapped("libcuda") ? 5 : 0;
}

static void test_a_bare_environment(void **state)
{
    const char *const bare[] = {"NCCL_SOCKET_IFNAME=lo", NULL};

    (void)state;
    assert_int_equal(exec_child("bare", bare), 0);
}

/* A first call fails; a NULL context is finalized, as NCCL 2.28 does; nothing is left. */
static int fails_without_trace(int version, const char *variable)
{
    struct plugin plugin;
    int descriptors = open_descriptors();
    int threads = running_threads();
    int count = 0;
    int result;

    if (!plugin_find(library, version, &plugin))
        return 10;
    plugin_log_clear();
    result = plugin_init(&plugin);
    /* an old table may hold the failure back, since NCCL 2.28 does not survive it there */
    if (result == NCCL_SUCCESS && version < 11)
        result = plugin_devices(&plugin, &count);
    if (result == NCCL_SUCCESS)
        return 11;
    if (plugin.context != NULL)
        return 12;
    if (plugin_log_warnings() != 1 || !plugin_log_warned(variable)) {
        plugin_log_print();
        return 13;
    }
    if (plugin_finalize(&plugin) != NCCL_SUCCESS)
        return 14;
    if (!settles(open_descriptors, descriptors) || !settles(running_threads, threads))
        return 15;
    return result == NCCL_INVALID_ARGUMENT ? 0 : 100 + result;
}

/* With a variable that is not understood; after it is corrected all is well. */
static int run_bad_variable(void)
{
    struct plugin plugin;
    int result;

    library = plugin_load();
    if (library == NULL)
        return 1;
    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++) {
        result = fails_without_trace(version, "UCCL_TCPX_SOCKETS");
        if (result != 0)
            return result;
        if (!plugin_log_warned("banana"))
            return 16;
    }
    setenv("UCCL_TCPX_SOCKETS", "1", 1);
    if (!plugin_find(library, LAST_VERSION, &plugin) || plugin_init(&plugin) != NCCL_SUCCESS)
        return 17;
    result = small_exchange(&plugin);
    return result != 0 ? result : plugin_finalize(&plugin);
}

static void test_a_variable_that_makes_no_sense(void **state)
{
    const char *const banana[] = {"NCCL_SOCKET_IFNAME=lo", "UCCL_TCPX_SOCKETS=banana", NULL};

    (void)state;
    assert_int_equal(exec_child("bad-variable", banana), 0);
}

static int run_no_interface(void)
{
    library = plugin_load();
    if (library == NULL)
        return 1;
    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++) {
        int result = fails_without_trace(version, "NCCL_SOCKET_IFNAME");

        if (result != 0 && result < 100) /* whichever error it is */
            return result;
        if (!plugin_log_warned("nosuch"))
            return 16;
    }
    return 0;
}

static void test_no_interface(void **state)
{
    const char *const none[] = {"NCCL_SOCKET_IFNAME=nosuch", NULL};

    (void)state;
    assert_int_equal(exec_child("no-interface", none), 0);
}

static void test_a_mode_that_does_not_exist(void **state)
{
    const char *const none[] = {"NCCL_SOCKET_IFNAME=lo", "UCCL_TCPX_PLUGIN_MODE=gpu", NULL};

    (void)state;
    assert_int_equal(exec_child("bad-mode", none), 0);
}

static int run_bad_mode(void)
{
    library = plugin_load();
    return library == NULL ? 1 : fails_without_trace(LAST_VERSION, "UCCL_TCPX_PLUGIN_MODE");
}

/* Loaded and unloaded again and again, with communicators that were never ended or were. */
static int run_reload(void)
{
    int descriptors = 0;
    int threads = 0;

    for (int turn = 0; turn < 20; turn++) {
        struct plugin plugin;
        int result;

        library = plugin_load();
        if (library == NULL || !plugin_find(library, FIRST_VERSION + turn % VERSIONS, &plugin) ||
            plugin_init(&plugin) != NCCL_SUCCESS)
            return 1;
        result = small_exchange(&plugin);
        if (result != 0)
            return result;
        if (plugin_finalize(&plugin) != NCCL_SUCCESS || dlclose(library) != 0)
            return 2;
        if (turn == 0) {
            nap_ms(50); /* threads that are ending */
            descriptors = open_descriptors();
            threads = running_threads();
        }
        if (!settles(open_descriptors, descriptors) || !settles(running_threads, threads))
            return 3;
    }
    return 0;
}

static void test_reload(void **state)
{
    const char *const bare[] = {"NCCL_SOCKET_IFNAME=lo", NULL};
    const char *const busy[] = {"NCCL_SOCKET_IFNAME=lo", "UCCL_TCPX_THREADS=3",
                                "UCCL_TCPX_SOCKETS=4", NULL};

    (void)state;
    assert_int_equal(exec_child("reload", bare), 0);
    assert_int_equal(exec_child("reload", busy), 0);
}

/* Unloaded in the middle: its threads go on with code that is still there, or have ended. */
static int run_unload_busy(void)
{
    static uint8_t memory[LAST_VERSION + 1][2][1 << 20]; /* those of before are still in use */

    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++) {
        uint8_t handle[HANDLE_BYTES] = {0};
        void *sender = NULL;
        void *receiver = NULL;
        void *listening = NULL;
        void *requests[2] = {NULL, NULL};
        struct plugin plugin;

        library = plugin_load();
        if (library == NULL || !plugin_find(library, version, &plugin) ||
            plugin_init(&plugin) != NCCL_SUCCESS ||
            plugin_listen(&plugin, 0, handle, &listening) != NCCL_SUCCESS)
            return 1;
        while (sender == NULL || receiver == NULL)
            if ((sender == NULL && plugin_connect(&plugin, 0, handle, &sender, NULL)) ||
                (receiver == NULL && plugin_accept(&plugin, listening, &receiver, NULL)))
                return 2;
        if (plugin_irecv(&plugin, receiver, memory[version][0], sizeof memory[version][0], 0, NULL,
                         &requests[0]) ||
            plugin_isend(&plugin, sender, memory[version][1], sizeof memory[version][1], 0, NULL,
                         &requests[1]))
            return 3;
        if (dlclose(library) != 0)
            return 4;
        nap_ms(20);
    }
    library = plugin_load();
    return library == NULL ? 5 : 0;
}

static void test_unload_with_live_comms(void **state)
{
    const char *const busy[] = {"NCCL_SOCKET_IFNAME=lo", "UCCL_TCPX_THREADS=3",
                                "UCCL_TCPX_SOCKETS=2", "ASAN_OPTIONS=detect_leaks=0", NULL};

    (void)state;
    assert_int_equal(exec_child("unload-busy", busy), 0);
}

int main(int argc, char **argv)
{
    static const struct exec_child children[] = {
        {"bare", run_bare},
        {"bad-variable", run_bad_variable},
        {"no-interface", run_no_interface},
        {"bad-mode", run_bad_mode},
        {"reload", run_reload},
        {"unload-busy", run_unload_busy},
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_symbols_by_name),
        cmocka_unit_test(test_exports),
        cmocka_unit_test(test_imports),
        cmocka_unit_test(test_members),
        VERSION_TEST(test_contexts, 11),
        VERSION_TEST(test_contexts, 12),
        VERSION_TEST(test_finalize_nothing, 11),
        VERSION_TEST(test_finalize_nothing, 12),
        EACH_VERSION(test_init_again),
        cmocka_unit_test(test_a_bare_environment),
        cmocka_unit_test(test_a_variable_that_makes_no_sense),
        cmocka_unit_test(test_no_interface),
        cmocka_unit_test(test_a_mode_that_does_not_exist),
        cmocka_unit_test(test_reload),
        cmocka_unit_test(test_unload_with_live_comms),
        /* the last one: the other modes use it */
        cmocka_unit_test(test_no_cuda_in_host_mode),
    };
    size_t count = sizeof tests / sizeof *tests - (mode_is("host") ? 0 : 1);

    exec_dispatch(argc, argv, children, sizeof children / sizeof *children);
    stay_on_loopback();
    return _cmocka_run_group_tests("plugin loading", tests, count, load_all, unload_all);
}
