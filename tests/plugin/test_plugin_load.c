/*
 * The plugin as a file that NCCL opens: what it exports and needs, that it loads anywhere, and that
 * its beginning and its end can come in every order, fail in words, and leave nothing behind.
 */
#include "tests/plugin/plugin_test.h"

/* --- the file -------------------------------------------------------------------------------- */

/* A data object for each version, and nothing else that NCCL looks for. */
TEST(test_symbols_by_name)
{
    static const char *const others[] = {
        "ncclNetPlugin_v4",      "ncclNetPlugin_v5",     "ncclNetPlugin_v13",
        "ncclCollNetPlugin_v6",  "ncclCollNetPlugin_v8", "ncclCollNetPlugin_v11",
        "ncclCollNetPlugin_v12", "ncclGinPlugin_v11",    "ncclTunerPlugin_v4",
        "ncclProfiler_v4",       "ncclTunerPlugin_v3",   "tcpx_version"};
    void *loaded = plugin_load();

    assert_non_null(loaded);
    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++) {
        struct plugin plugin;

        assert_true(plugin_find(loaded, version, &plugin));
    }
    for (size_t i = 0; i < COUNT_OF(others); i++)
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

TEST(test_exports)
{
    char command[4200];

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
TEST(test_imports)
{
    char command[4200];

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

    memcpy(&member, (const char *)plugin->table + index * sizeof member, sizeof member);
    return member == NULL;
}

/* NCCL calls what is there: what must be is, and what would change its mind is not. */
TEST(test_members)
{
    enum { REG_DMABUF = 8, DEVICE_MR = 17, CONSUMED = 18, MAKE_VDEVICE = 19, SET_ATTR = 21 };

    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++)
        for (size_t i = 0; i < nccl_net_members[version - FIRST_VERSION]; i++) {
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
TEST_OF(test_no_cuda_in_host_mode, IN_HOST_MODE)
{
    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++)
        assert_plugin_moves(&plugins[version]);
    assert_false(is_mapped("libcuda"));
    assert_false(is_mapped("libnvidia"));
}

/* --- beginnings and ends --------------------------------------------------------------------- */

/* Each communicator has a context of its own; they end in any order, and begin again. */
VERSIONS_CASE(contexts, WITH_CONTEXT)
{
    enum { CONTEXTS = 4 };
    static const int orders[][CONTEXTS] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}};

    for (size_t turn = 0; turn < COUNT_OF(orders); turn++) {
        struct plugin contexts[CONTEXTS];

        for (int i = 0; i < CONTEXTS; i++) {
            contexts[i] = *plugin;
            contexts[i].context = (void *)1;
            assert_works(plugin_init(&contexts[i]));
            assert_non_null(contexts[i].context);
            assert_ptr_not_equal(contexts[i].context, (void *)1);
            for (int k = 0; k < i; k++)
                assert_ptr_not_equal(contexts[i].context, contexts[k].context);
        }
        for (int i = 0; i < CONTEXTS; i++) {
            assert_plugin_moves(&contexts[orders[turn][i]]);
            assert_works(plugin_finalize(&contexts[orders[turn][i]]));
        }
    }
}

/* NCCL 2.28 ends what never began. */
VERSIONS_CASE(finalize_nothing, WITH_CONTEXT)
{
    struct plugin nothing = *plugin;

    nothing.context = NULL;
    for (int i = 0; i < 3; i++)
        assert_works(plugin_finalize(&nothing));
}

/* Old NCCLs and old compat layers begin more often than they end. */
VERSIONS_CASE(init_again, ALL_VERSIONS)
{
    int descriptors = open_descriptors();

    for (int i = 0; i < 20; i++) {
        struct plugin again = another_context(plugin);

        assert_works(plugin_finalize(&again));
    }
    assert_true(settles(open_descriptors, descriptors));
    assert_plugin_moves(plugin);
}

/* --- in processes of their own --------------------------------------------------------------- */

/* Of a process that has loaded nothing yet. */
static struct plugin first_of(int version)
{
    struct plugin plugin;

    library = plugin_load();
    assert_non_null(library);
    assert_true(plugin_find(library, version, &plugin));
    return plugin;
}

/* What a table says before init is called: NCCL reads the name then. Then everything works. */
static int run_bare(void)
{
    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++) {
        struct plugin plugin = first_of(version);
        int count = 0;

        assert_string_equal(plugin_name(&plugin), "TCPX");
        assert_works(plugin_init(&plugin));
        assert_works(plugin_devices(&plugin, &count));
        assert_true(count >= 1);
        assert_plugin_moves(&plugin);
        assert_works(plugin_finalize(&plugin));
        plugin_log_print();
        assert_int_equal(plugin_log_warnings(), 0);
    }
    assert_false(is_mapped("libcuda"));
    return 0;
}

/* A first call fails; a NULL context is finalized, as NCCL 2.28 does; nothing is left. */
static int fails_without_trace(int version, const char *variable)
{
    struct plugin plugin = first_of(version);
    int descriptors = open_descriptors();
    int threads = running_threads();
    int count = 0;
    int result;

    plugin_log_clear();
    result = plugin_init(&plugin);
    /* an old table may hold the failure back, since NCCL 2.28 does not survive it there */
    if (result == NCCL_SUCCESS && version < 11)
        result = plugin_devices(&plugin, &count);
    assert_int_not_equal(result, NCCL_SUCCESS);
    assert_null(plugin.context);
    plugin_log_print();
    assert_int_equal(plugin_log_warnings(), 1);
    assert_true(plugin_log_warned(variable));
    assert_works(plugin_finalize(&plugin));
    assert_true(settles(open_descriptors, descriptors) && settles(running_threads, threads));
    return result;
}

/* With a variable that is not understood; after it is corrected all is well. */
static int run_bad_variable(void)
{
    struct plugin plugin;

    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++) {
        assert_int_equal(fails_without_trace(version, "UCCL_TCPX_SOCKETS"), NCCL_INVALID_ARGUMENT);
        assert_true(plugin_log_warned("banana"));
    }
    setenv("UCCL_TCPX_SOCKETS", "1", 1);
    plugin = first_of(LAST_VERSION);
    assert_works(plugin_init(&plugin));
    assert_plugin_moves(&plugin);
    return plugin_finalize(&plugin);
}

/* Whichever error it is. */
static int run_no_interface(void)
{
    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++) {
        (void)fails_without_trace(version, "NCCL_SOCKET_IFNAME");
        assert_true(plugin_log_warned("nosuch"));
    }
    return 0;
}

static int run_bad_mode(void)
{
    int result = fails_without_trace(LAST_VERSION, "UCCL_TCPX_PLUGIN_MODE");

    return result == NCCL_INVALID_ARGUMENT ? 0 : 1;
}

/* Loaded and unloaded again and again, with communicators that were never ended or were. */
static int run_reload(void)
{
    int descriptors = 0;
    int threads = 0;

    for (int turn = 0; turn < 20; turn++) {
        struct plugin plugin = first_of(FIRST_VERSION + turn % VERSIONS);

        assert_works(plugin_init(&plugin));
        assert_plugin_moves(&plugin);
        assert_works(plugin_finalize(&plugin));
        assert_int_equal(dlclose(library), 0);
        if (turn == 0) {
            nap_ms(50); /* threads that are ending */
            descriptors = open_descriptors();
            threads = running_threads();
        }
        assert_true(settles(open_descriptors, descriptors) && settles(running_threads, threads));
    }
    return 0;
}

/* Unloaded in the middle: its threads go on with code that is still there, or have ended. */
static int run_unload_busy(void)
{
    enum { BYTES = 1 << 20 };
    static uint8_t memory[LAST_VERSION + 1][2][BYTES]; /* those of before are still in use */

    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++) {
        struct plugin plugin = first_of(version);
        struct pair pair;

        assert_works(plugin_init(&plugin));
        pair_open(&pair, &plugin);
        (void)start_receive(&pair, memory[version][0], BYTES);
        (void)start_send(&pair, memory[version][1], BYTES);
        assert_int_equal(dlclose(library), 0);
        nap_ms(20);
    }
    return plugin_load() != NULL ? 0 : 1;
}

/* Each row is a test: a process with these variables and no others, which succeeds. */
static const struct {
    const char *name;
    int (*run)(void);
    const char *variables[5];
} rows[] = {
    {"test_a_bare_environment", run_bare, {"NCCL_SOCKET_IFNAME=lo"}},
    {"test_a_variable_that_makes_no_sense",
     run_bad_variable,
     {"NCCL_SOCKET_IFNAME=lo", "UCCL_TCPX_SOCKETS=banana"}},
    {"test_no_interface", run_no_interface, {"NCCL_SOCKET_IFNAME=nosuch"}},
    {"test_a_mode_that_does_not_exist",
     run_bad_mode,
     {"NCCL_SOCKET_IFNAME=lo", "UCCL_TCPX_PLUGIN_MODE=gpu"}},
    {"test_reload", run_reload, {"NCCL_SOCKET_IFNAME=lo"}},
    {"test_reload_with_sockets",
     run_reload,
     {"NCCL_SOCKET_IFNAME=lo", "UCCL_TCPX_THREADS=3", "UCCL_TCPX_SOCKETS=4"}},
    {"test_unload_with_live_comms",
     run_unload_busy,
     {"NCCL_SOCKET_IFNAME=lo", "UCCL_TCPX_THREADS=3", "UCCL_TCPX_SOCKETS=2",
      "ASAN_OPTIONS=detect_leaks=0"}},
};

static void run_row(void **state)
{
    intptr_t row = (intptr_t)*state;

    assert_int_equal(plugin_exec(rows[row].name, rows[row].variables), 0);
}

static int begin_suite(void)
{
    struct child_program programs[COUNT_OF(rows)];

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        programs[i] = (struct child_program){rows[i].name, rows[i].run};
        suite_add(__LINE__, (struct CMUnitTest){.name = rows[i].name,
                                                .test_func = run_row,
                                                .initial_state = (void *)i});
    }
    child_dispatch(programs, COUNT_OF(programs));
    return stay_on_loopback();
}

PLUGIN_SUITE("plugin loading", begin_suite);
