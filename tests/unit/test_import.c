/*
 * Shows that other people's network plugins can be found, loaded, started and used through every
 * version of NCCL's table: with our own plugin, which is as it should be, and with the quirky one
 * of tests/quirky_plugin, one library for each version. All of it is host memory here;
 * tests/gpu/test_import_cuda.c has the rest.
 */
#define EACH_TABLE        run_each
#define EACH_QUIRKY_TABLE run_each_quirky
#include "tests/quirky_plugin/traffic.h"

#include "base/fork.h"
#include "plugin_host/quirks.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

/* --- finding ------------------------------------------------------------------------------- */

/* The newest table is the one that is taken, and nothing is called for that. */
CASE(newest, run_each)
{
    struct import_table table = {0};

    load_first(version, &table);
    CHECK(table.version == (version == OWN ? NEWEST : version));
    CHECK(version == OWN || strcmp(table.name, QUIRKY_NAME) == 0);
    CHECK(table.raw != NULL && table.context == NULL);
    CHECK(version == OWN || counts_of(version)->inits == 0);
}

/* A library without a table, and one whose newest table has no name, are refused in words. */
CASE(no_table, run_once)
{
    struct import_table table;
    void *library = dlopen(path_in_build("libtcpx.so"), RTLD_NOW | RTLD_LOCAL);

    CHECK(library != NULL);
    CHECK(import_table_find(library, &table) == TCPX_INVALID_ARGUMENT);
    CHECK(said("ncclNetPlugin_v6") && said("ncclNetPlugin_v12"));
    library = dlopen(path_in_build("tests/quirky_plugin/libnameless.so"), RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
    CHECK(import_table_find(library, &table) == TCPX_INVALID_ARGUMENT);
    CHECK(said("ncclNetPlugin_v8 has no name"));
}

/* --- the environment ------------------------------------------------------------------------ */

static atomic_uint times_read;
static atomic_bool enough_read;

static void *read_environment(void *argument)
{
    (void)argument;
    for (; !enough_read; times_read++)
        CHECK(getenv("TCPX_TEST_NOT_THERE") == NULL);
    return NULL;
}

/* A plugin's variable is set while other threads read the environment. */
CASE(environment_is_read, run_once)
{
    const struct import_quirks *quirks = import_quirks_of("GPUDirectTCPX_v7");
    char name[32];
    pthread_t reader;
    size_t longest;
    bool was_set;

    for (int i = 0; i < 1000; i++) { /* so that it takes a while to read */
        snprintf(name, sizeof name, "TCPX_TEST_FILLER_%d", i);
        CHECK(setenv(name, "1", 1) == 0);
    }
    for (int round = 0; round < 50; round++) {
        CHECK(unsetenv(quirks->variable) == 0);
        CHECK(setenv("TCPX_TEST_ROUND", "1", 1) == 0); /* the array is libc's again */
        CHECK(unsetenv("TCPX_TEST_ROUND") == 0);
        times_read = 0;
        enough_read = false;
        CHECK(pthread_create(&reader, NULL, read_environment, NULL) == 0);
        while (times_read == 0)
            ;
        CHECK_SUCCESS(import_quirks_prepare(quirks, "a plugin", &longest, &was_set));
        enough_read = true;
        CHECK(pthread_join(reader, NULL) == 0);
        CHECK(!was_set && strcmp(getenv(quirks->variable), quirks->value) == 0);
        CHECK(strcmp(getenv(name), "1") == 0);
    }
}

/* --- opening ------------------------------------------------------------------------------- */

struct opening {
    const char *path;
    const struct import_plugin *plugin;
};

static void *open_in_thread(void *argument)
{
    struct opening *opening = argument;

    if (import_open(opening->path, &opening->plugin) != TCPX_SUCCESS)
        opening->plugin = NULL;
    return NULL;
}

/* A second name for a file, of which `link` is a variable here. */
static bool link_file(const char *from, const char *to)
{
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0) == 0;
}

/* A file is loaded once, by whatever name and from however many threads at once. */
CASE(once, run_once)
{
    enum { THREADS = 4 };
    struct opening openings[THREADS];
    const struct import_plugin *again = NULL;
    char link[] = "/tmp/tcpx_import_XXXXXX";
    char path[64];
    char *whole = realpath(file_of(7), NULL);
    pthread_t threads[THREADS];
    int result;

    CHECK(whole != NULL);
    setenv("QUIRKY_INIT_MS", "50", 1); /* long enough for all threads to meet there */
    for (int i = 0; i < THREADS; i++) {
        openings[i] = (struct opening){.path = whole};
        CHECK(pthread_create(&threads[i], NULL, open_in_thread, &openings[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(openings[i].plugin != NULL && openings[i].plugin == openings[0].plugin);
    CHECK(strcmp(openings[0].plugin->path, whole) == 0);

    CHECK(mkdtemp(link) != NULL);
    snprintf(path, sizeof path, "%s/plugin.so", link);
    CHECK(symlink(whole, path) == 0);
    result = import_open(path, &again);
    unlink(path);
    rmdir(link);
    CHECK(result == TCPX_SUCCESS && again == openings[0].plugin);

    CHECK(chdir(path_in_build("")) == 0);
    again = NULL;
    CHECK_SUCCESS(import_open("tests/quirky_plugin/libquirky_v7.so", &again));
    CHECK(again == openings[0].plugin);
    CHECK(chdir("tests/quirky_plugin") == 0);
    again = NULL;
    CHECK_SUCCESS(import_open("libquirky_v7.so", &again)); /* no search for a library */
    CHECK(again == openings[0].plugin);

    unlink("another_name.so");
    CHECK(link_file("libquirky_v7.so", "another_name.so"));
    again = NULL;
    result = import_open("another_name.so", &again);
    unlink("another_name.so");
    CHECK(result == TCPX_SUCCESS);
    CHECK(again == openings[0].plugin);
    CHECK(counts_of(7)->inits == 1);
    free(whole);
}

/* Several plugins stay apart in one process. */
CASE(two, run_once)
{
    const struct import_plugin *older = open_plugin(6);
    const struct import_plugin *newer = open_plugin(NEWEST);

    CHECK(older != newer);
    CHECK(open_plugin(6) == older);
    CHECK(open_plugin(OWN) != newer);
    CHECK(open_plugin(NEWEST) == newer);
}

/* What is not there, no library or no plugin is refused, and the text says which file and why. */
CASE(no_plugin, run_once)
{
    char text[] = "/tmp/tcpx_import_XXXXXX";
    int fd = mkstemp(text);

    check_not_opened("/nowhere/libplugin.so", TCPX_SYSTEM_ERROR, "/nowhere/libplugin.so");
    CHECK(said("No such file"));
    CHECK(fd >= 0 && write(fd, "no ELF\n", 7) == 7);
    check_not_opened(text, TCPX_SYSTEM_ERROR, "cannot be loaded");
    CHECK(said(text));
    unlink(text);
    check_not_opened(path_in_build("libtcpx.so"), TCPX_INVALID_ARGUMENT, "is not a network plugin");
    CHECK(said("libtcpx.so") && said("none of the tables"));
    check_not_opened(path_in_build("tests/quirky_plugin/libnameless.so"), TCPX_INVALID_ARGUMENT,
                     "libnameless.so is not a network plugin");
    CHECK(said("has no name"));
}

/* The plugin's own result comes back when it does not start. */
CASE(init_fails, run_each_quirky)
{
    setenv("QUIRKY_FAIL_INIT", "2", 1);
    check_not_opened(file_of(version), TCPX_SYSTEM_ERROR, QUIRKY_NAME ": init failed with");
    CHECK(counts_of(version)->finalizes == 0);
}

/* A plugin without a device is an error, and is ended where its table can say so. */
CASE(no_device, run_each_quirky)
{
    setenv("QUIRKY_DEVICES", "0", 1);
    for (int i = 0; i < 2; i++) /* the second time, too: not that it was started before */
        check_not_opened(file_of(version), TCPX_SYSTEM_ERROR, QUIRKY_NAME " has found no device");
    CHECK(counts_of(version)->finalizes == (version >= 11 ? 1 : 0));
}

/* A number of devices that cannot be is the plugin's error. */
CASE(bad_count, run_each_quirky)
{
    setenv("QUIRKY_DEVICES", "-1", 1);
    check_not_opened(file_of(version), TCPX_INTERNAL_ERROR, "its devices call returned -1 devices");
}

/* A plugin that refuses its second start is used as its first user has started it. */
CASE(started_by_others, run_each_quirky)
{
    const struct import_plugin *plugin = NULL;
    struct import_table theirs;

    load_first(version, &theirs);
    setenv(chunk_variable, "524288", 1);
    CHECK_SUCCESS(import_table_init(&theirs));
    log_set_nccl_logger(keep_line);
    CHECK_SUCCESS(import_open(file_of(version), &plugin));
    CHECK(plugin->devices > 0);
    CHECK(logged("another library of this process has started it already"));
}

/* The same result of one that nobody has started is a failure: there is nothing to use. */
CASE(loaded_by_others, run_each_quirky)
{
    struct import_table theirs;

    load_first(version, &theirs);
    setenv("QUIRKY_FAIL_INIT", "3", 1);
    check_not_opened(file_of(version), TCPX_INTERNAL_ERROR, "");
}

/* --- the environment ----------------------------------------------------------------------- */

static bool chunk_is(const char *text)
{
    const char *value = getenv(chunk_variable);

    return value != NULL && strcmp(value, text) == 0;
}

/* What the plugin cannot do without is set, and the log says so. */
CASE(environment, run_each_quirky)
{
    unsetenv(chunk_variable);
    log_set_nccl_logger(keep_line);
    open_plugin(version);
    CHECK(chunk_is("524288"));
    CHECK(logged("NCCL_DYNAMIC_CHUNK_SIZE=524288 set for GPUDirectTCPX_quirky"));
    CHECK(logged("quirky: init, table version")); /* its lines are among ours */
}

/* What the user has set stays, unless it is empty. */
CASE(environment_kept, run_each_quirky)
{
    bool is_set = version % 2 == 0;

    setenv(chunk_variable, is_set ? "4096" : "", 1);
    log_set_nccl_logger(keep_line);
    open_plugin(version);
    CHECK(chunk_is(is_set ? "4096" : "524288"));
    CHECK(logged(chunk_variable) == !is_set);
}

/* A plugin that does not need it gets nothing set. */
CASE(environment_of_others, run_once)
{
    unsetenv(chunk_variable);
    open_plugin(OWN);
    CHECK(getenv(chunk_variable) == NULL);
}

/* --- choosing ------------------------------------------------------------------------------ */

/* What the variable says, or NULL, and what is chosen. */
static const struct {
    const char *set;
    int result;
    const char *path;
} choices[] = {{"builtin", TCPX_SUCCESS, ""},
               {"/etc/passwd", TCPX_SUCCESS, "/etc/passwd"},
               {"/nowhere/libplugin.so", TCPX_SYSTEM_ERROR, NULL},
               {NULL, TCPX_SUCCESS, ""}};

static void choose(int which)
{
    const char *expected_path = choices[which].path;
    char path[IMPORT_PATH_BYTES] = "?";
    bool builtin = false;

    if (choices[which].set != NULL)
        setenv("UCCL_TCPX_PLUGIN_PATH", choices[which].set, 1);
    else if (access(IMPORT_USUAL_PATH, F_OK) == 0)
        expected_path = IMPORT_USUAL_PATH;
    CHECK(import_choose(path, &builtin) == choices[which].result);
    if (choices[which].result == TCPX_SUCCESS)
        CHECK(strcmp(path, expected_path) == 0 && builtin == (*path == '\0'));
    else
        CHECK(said("UCCL_TCPX_PLUGIN_PATH") && said(choices[which].set) && said("No such file"));
}

/* The named file, else the usual one, else none; a named one must be there. */
TEST(test_choose)
{
    for (int which = 0; which < (int)COUNT_OF(choices); which++)
        drive_run(choose, which);
}

/* --- properties ---------------------------------------------------------------------------- */

/* Every member of every version's properties arrives. */
CASE(properties, run_each_quirky)
{
    check_properties(version, false);
}

/* A device of an old table is a part of its own. */
CASE(properties_last_part, run_each_quirky)
{
    struct net_properties_v12 properties;

    setenv("QUIRKY_DEVICES", "3", 1);
    CHECK_SUCCESS(import_properties(open_table(version), 2, &properties));
    CHECK(properties.parts.devices[0] == (version >= 9 ? 5 : 2));
}

/* So do our own plugin's. */
CASE(properties_own, run_once)
{
    struct net_properties_v12 properties;

    CHECK_SUCCESS(import_properties(open_table(OWN), 0, &properties));
    CHECK(strcmp(properties.name, "lo") == 0);
    CHECK((properties.pointer_support & NET_POINTER_HOST) != 0);
    CHECK(properties.max_receives >= 1);
}

/* --- connections --------------------------------------------------------------------------- */

/* connect and accept say "not yet" until both ends are there, and that there is no queue. */
CASE(connect, run_each)
{
    struct pair pair = connect_pair(open_table(version));

    CHECK(pair.on_gpu.type == NET_DEVICE_HOST && pair.on_gpu.version == 0);
    CHECK(pair.on_gpu.handle == NULL && pair.on_gpu.size == 0);
    CHECK(pair.on_gpu.needs_proxy_progress == 0);
    CHECK(version == OWN || pair.polls >= 4);
    close_pair(&pair);
}

/* What the plugin leaves untouched in a handle is 0 and not what was there before: it travels. */
CASE(handle_is_clean, run_each_quirky)
{
    struct pair pair = listen_pair(open_table(version));

    for (size_t i = 80; i < sizeof pair.handle; i++)
        CHECK(pair.handle[i] == 0);
    CHECK_SUCCESS(import_close_listen(pair.table, pair.listener));
}

/* A call that the plugin refuses fails with its result, and the text names plugin and call. */
CASE(bad_calls, run_each_quirky)
{
    const struct import_table *table = open_table(version);
    struct pair pair = {.listener = &pair};
    void *comm = &comm;

    CHECK_FAILS(import_listen(table, 7, pair.handle, &pair.listener), "listen");
    CHECK(pair.listener == NULL);
    pair = listen_pair(table);
    CHECK_FAILS(import_connect(table, 7, pair.handle, &comm), "connect");
    CHECK(comm == NULL);
    if (version >= 7)
        CHECK_FAILS(import_accept(table, pair.listener, &comm, NULL), "accept");
    CHECK_SUCCESS(import_accept(table, pair.listener, &comm, &pair.on_gpu));
    CHECK(comm == NULL);
    memset(pair.handle + 80, 0x11, 8);
    CHECK_FAILS(import_connect(table, 0, pair.handle, &comm), "connect");
    CHECK(counts_of(version)->unknown_states == 1);
    memset(pair.handle + 80, 0, 8);
    CHECK_SUCCESS(import_close_listen(table, pair.listener));
    CHECK(import_connect(table, 0, pair.handle, &comm) == TCPX_SUCCESS && comm == NULL);
    CHECK_FAILS_WITH(import_connect(table, 0, pair.handle, &comm), TCPX_SYSTEM_ERROR, "connect");
}

/* The quirky plugin takes one accept for a listener, and one connect for a copy of a handle. */
CASE(second_accept, run_each_quirky)
{
    struct pair pair = listen_pair(open_table(version));

    meet(&pair); /* and the handle stays as the last connect has left it */
    CHECK_FAILS(import_accept(pair.table, pair.listener, &pair.receiver, &pair.on_gpu), "accept");
    CHECK(pair.receiver == NULL);
    CHECK_FAILS(import_connect(pair.table, 0, pair.handle, &pair.sender), "connect");
}

/* --- memory -------------------------------------------------------------------------------- */

/* Addresses, of which few ever become memory. */
static uint8_t *reserve(size_t bytes)
{
    uint8_t *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    CHECK(data != MAP_FAILED);
    return data;
}

/* The table cannot say the number; the text names the plugin, the version and the number. */
static bool refused_in_words(int result, int version, const char *number)
{
    char version_text[32];

    snprintf(version_text, sizeof version_text, "version %d", version);
    return result == TCPX_INVALID_ARGUMENT && said(QUIRKY_NAME) && said(version_text) &&
           said(number);
}

/* Memory beyond 2 GiB is registered whole, or refused where the table cannot say its length. */
CASE(large_memory, run_each)
{
    const struct import_table *table = open_table(version);
    bool is_refused = version == 6 || version == 7;
    size_t bytes = is_refused ? INT_MAX : ((size_t)1 << 32) + 4096;
    struct pair pair = connect_pair(table);
    uint8_t *data = reserve(bytes + 1);
    void *memory = &memory;
    void *request;

    if (is_refused) {
        CHECK(refused_in_words(
            import_register(table, pair.sender, data, bytes + 1, NET_POINTER_HOST, &memory),
            version, "2147483648"));
        CHECK(memory == NULL);
    }
    memory = register_memory(&pair, pair.sender, data, bytes, NET_POINTER_HOST);
    CHECK_SUCCESS(import_isend(table, pair.sender, data + bytes - 100, 100, 0, memory, &request));
    wait_for(&pair, request);
    CHECK_SUCCESS(import_deregister(table, pair.sender, memory));
}

/* The type of memory reaches the plugin. */
CASE(other_memory, run_each_quirky)
{
    struct pair pair = connect_pair(open_table(version));
    uint8_t data[16];

    check_not_registered(&pair, pair.receiver, data, sizeof data, NET_POINTER_CUDA);
    close_pair(&pair);
}

/* --- what only host memory shows ------------------------------------------------------------ */

/* A length that the table cannot say is refused; one that it can arrives at the plugin whole. */
CASE(long_messages, run_each_quirky)
{
    const size_t beyond = ((size_t)1 << 32) + 100;
    struct pair pair = open_pair(version, PIECE);
    uint8_t *room = reserve(beyond);
    void *send = &send;
    void *receive = &receive;

    if (version <= 8) {
        const size_t most = (size_t)1 << 30;

        CHECK(import_longest(pair.table) == most); /* as NCCL has it */
        CHECK(refused_in_words(try_send(&pair, HOST, 0, most + 1, &send), version, "1073741825"));
        CHECK(
            refused_in_words(try_receive(&pair, HOST, 0, beyond, &receive), version, "4294967396"));
        CHECK(send == NULL && receive == NULL);
        return;
    }
    CHECK(import_longest(pair.table) > beyond);
    CHECK_FAILS(try_send(&pair, HOST, 0, beyond, &send), "isend");
    CHECK(send == NULL);
    CHECK_SUCCESS(import_deregister(pair.table, pair.receiver, pair.to[HOST].registered));
    pair.to[HOST].registered =
        register_memory(&pair, pair.receiver, room, beyond, NET_POINTER_HOST);
    pair.to[HOST].at = room;
    receive = post_receive(&pair, HOST, 0, beyond);
    send_whole(&pair, HOST, PIECE);
    CHECK(is_size(&pair, wait_for(&pair, receive), PIECE));
    consume(&pair, receive);
    CHECK(room[0] == 0x5A && room[PIECE - 1] == 0x5A && room[PIECE] == 0);
}

/* Where there is no queue, receives end when they are done, and nobody needs to be told. */
CASE(consumed, run_each_quirky)
{
    struct pair pair = open_pair(version, PIECE);
    void *receives[DEPTH];

    for (int i = 0; i < DEPTH; i++)
        receives[i] = move(&pair, HOST, HOST, PIECE);
    for (int i = 0; i < DEPTH; i++)
        post_receive(&pair, HOST, 0, PIECE);
    consume(&pair, receives[0]);
}

/* Receives into host memory may have any number of chunks. */
CASE(no_leak, run_each_quirky)
{
    struct pair pair;

    setenv(chunk_variable, "1024", 1);
    pair = open_pair(version, PIECE + EXTRA);
    for (uint64_t i = 0; i < 200; i++)
        exchange(&pair, HOST, HOST, PIECE, i);
    CHECK(counts_of(version)->free_pages == 0); /* there is no pool */
}

/* --- forks --------------------------------------------------------------------------------- */

static void open_when_forked(const uint8_t *argument)
{
    (void)argument;
    check_not_opened(file_of(7), TCPX_INVALID_USAGE, "forked");
}

/* A forked child may not use what its parent has started. */
CASE(fork, run_once)
{
    CHECK_SUCCESS(fork_watch());
    open_plugin(7);
    CHECK(child_wait(child_try_fork_here(open_when_forked, NULL)) == 0);
}

static int begin_suite(void)
{
    forget_environment();
    setenv("QUIRKY_CUDA", "0", 1); /* there may be a driver */
    child_limit_ms = CASE_LIMIT_MS;
    return child_begin();
}

SUITE(.name = "import", .begin = begin_suite);
