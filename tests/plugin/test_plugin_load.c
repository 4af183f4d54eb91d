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

/* What a shell command prints, to which $plugin is the file; until the next call. */
static const char *output_of(const char *command)
{
    static char text[4096];
    FILE *output;

    if (system("command -v nm >/dev/null && command -v readelf >/dev/null") != 0)
        skip_because("nm or readelf is not installed");
    setenv("plugin", plugin_path(), 1);
    output = popen(command, "r");
    assert_non_null(output);
    text[fread(text, 1, sizeof text - 1, output)] = '\0';
    pclose(output);
    return text;
}

/* The runtime marks of a sanitizer, and the name of a symbol version, are nobody's. */
TEST(test_exports)
{
    const char *kinds_and_names =
        output_of("nm -D --defined-only \"$plugin\" | sed 's/@.*//; s/ [DRBV] / data /' |"
                  "awk '$2 != \"A\" && $3 !~ /^__(odr_|start_|stop_)?asan/ { print $2, $3 }' |"
                  "LC_ALL=C sort");

    assert_string_equal(kinds_and_names, "data ncclNetPlugin_v10\n"
                                         "data ncclNetPlugin_v11\n"
                                         "data ncclNetPlugin_v12\n"
                                         "data ncclNetPlugin_v6\n"
                                         "data ncclNetPlugin_v7\n"
                                         "data ncclNetPlugin_v8\n"
                                         "data ncclNetPlugin_v9\n");
}

/* Nothing but libc, so that no library's version decides whether it loads. */
TEST(test_imports)
{
    if (SANITIZED)
        skip_because("a sanitizer brings its runtime");
#ifdef __GLIBC__ /* others do not give their symbols versions */
    assert_string_equal(output_of("nm -D --undefined-only \"$plugin\" |"
                                  "awk '$1 != \"w\" && $2 !~ /@GLIBC_/ { print $2 }'"),
                        "");
#endif
    assert_string_equal(output_of("readelf -d \"$plugin\" | grep -F '(NEEDED)' |"
                                  "grep -v -e '\\[libc\\.so' -e '\\[ld-linux'"),
                        "");
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

        assert_string_equal(plugin.table->name, "TCPX");
        assert_works(plugin_init(&plugin));
        assert_works(plugin.table->devices(&count));
        assert_true(count >= 1);
        assert_plugin_moves(&plugin);
        assert_works(plugin_finalize(&plugin));
        assert_string_equal(plugin_log_last(), "");
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
        result = plugin.table->devices(&count);
    assert_int_not_equal(result, NCCL_SUCCESS);
    assert_null(plugin.context);
    if (plugin_log_warnings() != 1 || !plugin_log_warned(variable))
        fail_msg("%u warnings: %s", plugin_log_warnings(), plugin_log_last());
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
