/*
 * Shows that other people's network plugins can be found, loaded, started and used through every
 * version of NCCL's table: with our own plugin, which is as it should be, and with the quirky one
 * of tests/quirky_plugin, one library for each version. All of it is host memory here;
 * tests/gpu/test_import_cuda.c has the rest.
 */
#include "tests/quirky_plugin/drive.h"

#include "base/fork.h"

#include <fcntl.h>
#include <pthread.h>

/* --- finding ------------------------------------------------------------------------------- */

static void case_newest(const uint8_t *argument)
{
    struct import_table table = {0};
    int version = version_in(argument);
    void *library = dlopen(file_of(version), RTLD_NOW | RTLD_LOCAL);

    CHECK(library != NULL);
    CHECK(import_table_find(library, &table) == TCPX_SUCCESS);
    CHECK(table.version == (version == OWN ? NEWEST : version));
    CHECK(version == OWN || strcmp(table.name, QUIRKY_NAME) == 0);
    CHECK(table.raw != NULL && table.context == NULL);
    CHECK(version == OWN || counts_of(version)->inits == 0);
}

/* The newest table is the one that is taken, and nothing is called for that. */
TEST(newest, run_each)

static void case_no_table(const uint8_t *argument)
{
    struct import_table table;
    void *library = dlopen(file("libtcpx.so"), RTLD_NOW | RTLD_LOCAL);

    (void)argument;
    CHECK(library != NULL);
    CHECK(import_table_find(library, &table) == TCPX_INVALID_ARGUMENT);
    CHECK(said("ncclNetPlugin_v6") && said("ncclNetPlugin_v12"));
    library = dlopen(file("tests/quirky_plugin/libnameless.so"), RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
    CHECK(import_table_find(library, &table) == TCPX_INVALID_ARGUMENT);
    CHECK(said("ncclNetPlugin_v8 has no name"));
}

/* A library without a table, and one whose newest table has no name, are refused in words. */
TEST(no_table, run_child, 0)

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

static void case_once(const uint8_t *argument)
{
    enum { THREADS = 4 };
    struct opening openings[THREADS];
    const struct import_plugin *again = NULL;
    char link[] = "/tmp/tcpx_import_XXXXXX";
    char path[64];
    char *whole = realpath(file_of(7), NULL);
    pthread_t threads[THREADS];
    int result;

    (void)argument;
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

    CHECK(chdir(folder()) == 0);
    again = NULL;
    CHECK(import_open("tests/quirky_plugin/libquirky_v7.so", &again) == TCPX_SUCCESS);
    CHECK(again == openings[0].plugin);
    CHECK(chdir("tests/quirky_plugin") == 0);
    again = NULL;
    CHECK(import_open("libquirky_v7.so", &again) == TCPX_SUCCESS); /* no search for a library */
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

/* A file is loaded once, by whatever name and from however many threads at once. */
TEST(once, run_child, 0)

static void case_two(const uint8_t *argument)
{
    const struct import_plugin *older = open_plugin(6);
    const struct import_plugin *newer = open_plugin(NEWEST);

    (void)argument;
    CHECK(older != newer);
    CHECK(open_plugin(6) == older);
    CHECK(open_plugin(OWN) != newer);
    CHECK(open_plugin(NEWEST) == newer);
}

/* Several plugins stay apart in one process. */
TEST(two, run_child, 0)

static void case_no_plugin(const uint8_t *argument)
{
    const struct import_plugin *plugin = NULL;
    char text[] = "/tmp/tcpx_import_XXXXXX";
    int fd = mkstemp(text);

    (void)argument;
    CHECK(import_open("/nowhere/libplugin.so", &plugin) == TCPX_SYSTEM_ERROR);
    CHECK(said("/nowhere/libplugin.so") && said("No such file"));
    CHECK(fd >= 0 && write(fd, "no ELF\n", 7) == 7);
    CHECK(import_open(text, &plugin) == TCPX_SYSTEM_ERROR);
    CHECK(said("cannot be loaded") && said(text));
    unlink(text);
    CHECK(import_open(file("libtcpx.so"), &plugin) == TCPX_INVALID_ARGUMENT);
    CHECK(said("libtcpx.so") && said("is not a network plugin") && said("none of the tables"));
    CHECK(import_open(file("tests/quirky_plugin/libnameless.so"), &plugin) ==
          TCPX_INVALID_ARGUMENT);
    CHECK(said("libnameless.so is not a network plugin") && said("has no name"));
    CHECK(plugin == NULL);
}

/* What is not there, no library or no plugin is refused, and the text says which file and why. */
TEST(no_plugin, run_child, 0)

static void case_init_fails(const uint8_t *argument)
{
    const struct import_plugin *plugin = NULL;
    int version = version_in(argument);

    setenv("QUIRKY_FAIL_INIT", "2", 1);
    CHECK_FAILS(import_open(file_of(version), &plugin), TCPX_SYSTEM_ERROR, "init");
    CHECK(plugin == NULL);
    CHECK(counts_of(version)->finalizes == 0);
}

/* The plugin's own result comes back when it does not start. */
TEST(init_fails, run_each_quirky)

static void case_no_device(const uint8_t *argument)
{
    const struct import_plugin *plugin = NULL;
    int version = version_in(argument);

    setenv("QUIRKY_DEVICES", "0", 1);
    CHECK(import_open(file_of(version), &plugin) == TCPX_SYSTEM_ERROR);
    CHECK(said(QUIRKY_NAME " has found no device"));
    /* The same again, and not that it was started before. */
    CHECK(import_open(file_of(version_in(argument)), &plugin) == TCPX_SYSTEM_ERROR);
    CHECK(said(QUIRKY_NAME " has found no device"));
    CHECK(counts_of(version)->finalizes == (version >= 11 ? 1 : 0));
    CHECK(plugin == NULL);
}

/* A plugin without a device is an error, and is ended where its table can say so. */
TEST(no_device, run_each_quirky)

static void case_bad_count(const uint8_t *argument)
{
    const struct import_plugin *plugin = NULL;

    setenv("QUIRKY_DEVICES", "-1", 1);
    CHECK(import_open(file_of(version_in(argument)), &plugin) == TCPX_INTERNAL_ERROR);
    CHECK(said("devices says -1"));
}

/* A number of devices that cannot be is the plugin's error. */
TEST(bad_count, run_each_quirky)

/* As somebody else in the process would have it, before we do. */
static void load_first(int version, struct import_table *table)
{
    void *library = dlopen(file_of(version), RTLD_NOW | RTLD_LOCAL);

    CHECK(library != NULL);
    CHECK(import_table_find(library, table) == TCPX_SUCCESS);
}

static void case_started_by_others(const uint8_t *argument)
{
    const struct import_plugin *plugin = NULL;
    struct import_table theirs;

    load_first(version_in(argument), &theirs);
    setenv(chunk_variable, "524288", 1);
    CHECK(import_table_init(&theirs) == TCPX_SUCCESS);
    log_set_nccl_logger(keep_line);
    CHECK(import_open(file_of(version_in(argument)), &plugin) == TCPX_SUCCESS);
    CHECK(plugin->devices > 0);
    CHECK(logged("somebody else in this process has started"));
}

/* A plugin that refuses its second start is used as its first user has started it. */
TEST(started_by_others, run_each_quirky)

static void case_loaded_by_others(const uint8_t *argument)
{
    const struct import_plugin *plugin = NULL;
    struct import_table theirs;

    load_first(version_in(argument), &theirs);
    setenv("QUIRKY_FAIL_INIT", "3", 1);
    CHECK(import_open(file_of(version_in(argument)), &plugin) == TCPX_INTERNAL_ERROR);
    CHECK(plugin == NULL);
}

/* The same result of one that nobody has started is a failure: there is nothing to use. */
TEST(loaded_by_others, run_each_quirky)

/* --- the environment ----------------------------------------------------------------------- */

static bool chunk_is(const char *text)
{
    const char *value = getenv(chunk_variable);

    return value != NULL && strcmp(value, text) == 0;
}

static void case_environment(const uint8_t *argument)
{
    unsetenv(chunk_variable);
    log_set_nccl_logger(keep_line);
    open_plugin(version_in(argument));
    CHECK(chunk_is("524288"));
    CHECK(logged("NCCL_DYNAMIC_CHUNK_SIZE=524288 set for GPUDirectTCPX_quirky"));
    CHECK(logged("quirky: init, table version")); /* its lines are among ours */
}

/* What the plugin cannot do without is set, and the log says so. */
TEST(environment, run_each_quirky)

static void case_environment_kept(const uint8_t *argument)
{
    bool is_set = version_in(argument) % 2 == 0;

    setenv(chunk_variable, is_set ? "4096" : "", 1);
    log_set_nccl_logger(keep_line);
    open_plugin(version_in(argument));
    CHECK(chunk_is(is_set ? "4096" : "524288"));
    CHECK(logged(chunk_variable) == !is_set);
}

/* What the user has set stays, unless it is empty. */
TEST(environment_kept, run_each_quirky)

static void case_environment_of_others(const uint8_t *argument)
{
    (void)argument;
    unsetenv(chunk_variable);
    open_plugin(OWN);
    CHECK(getenv(chunk_variable) == NULL);
}

/* A plugin that does not need it gets nothing set. */
TEST(environment_of_others, run_child, 0)

/* --- choosing ------------------------------------------------------------------------------ */

static const char path_variable[] = "UCCL_TCPX_PLUGIN_PATH";

static void case_choose(const uint8_t *argument)
{
    char path[IMPORT_PATH_BYTES] = "?";
    bool builtin = false;
    int which = version_in(argument);

    if (which == 0) {
        setenv(path_variable, "builtin", 1);
        CHECK(import_choose(path, &builtin) == TCPX_SUCCESS);
        CHECK(builtin && *path == '\0');
    } else if (which == 1) {
        setenv(path_variable, "/etc/passwd", 1);
        CHECK(import_choose(path, &builtin) == TCPX_SUCCESS);
        CHECK(!builtin && strcmp(path, "/etc/passwd") == 0);
    } else if (which == 2) {
        setenv(path_variable, "/nowhere/libplugin.so", 1);
        CHECK(import_choose(path, &builtin) == TCPX_SYSTEM_ERROR);
        CHECK(said("UCCL_TCPX_PLUGIN_PATH") && said("/nowhere/libplugin.so") &&
              said("No such file"));
    } else {
        bool there = access(IMPORT_USUAL_PATH, F_OK) == 0;

        unsetenv(path_variable);
        CHECK(import_choose(path, &builtin) == TCPX_SUCCESS);
        CHECK(builtin == !there);
        CHECK(strcmp(path, there ? IMPORT_USUAL_PATH : "") == 0);
    }
}

/* The named file, else the usual one, else none; a named one must be there. */
static void test_choose(void **state)
{
    (void)state;
    for (int which = 0; which < 4; which++)
        run_child(case_choose, which);
}

/* --- properties ---------------------------------------------------------------------------- */

static void case_properties(const uint8_t *argument)
{
    check_properties(version_in(argument), false);
}

/* Every member of every version's properties arrives. */
TEST(properties, run_each_quirky)

static void case_properties_last_part(const uint8_t *argument)
{
    struct net_properties_v12 properties;

    setenv("QUIRKY_DEVICES", "3", 1);
    CHECK(import_properties(&open_plugin(version_in(argument))->table, 2, &properties) ==
          TCPX_SUCCESS);
    CHECK(properties.parts.devices[0] == (version_in(argument) >= 9 ? 5 : 2));
}

/* A device of an old table is a part of its own. */
TEST(properties_last_part, run_each_quirky)

static void case_properties_own(const uint8_t *argument)
{
    struct net_properties_v12 properties;

    (void)argument;
    CHECK(import_properties(&open_plugin(OWN)->table, 0, &properties) == TCPX_SUCCESS);
    CHECK(strcmp(properties.name, "lo") == 0);
    CHECK((properties.pointer_support & NET_POINTER_HOST) != 0);
    CHECK(properties.max_receives >= 1);
}

/* So do our own plugin's. */
TEST(properties_own, run_child, 0)

/* --- connections --------------------------------------------------------------------------- */

static void case_connect(const uint8_t *argument)
{
    int version = version_in(argument);
    struct pair pair = connect_pair(&open_plugin(version)->table);

    CHECK(pair.on_gpu.type == NET_DEVICE_HOST && pair.on_gpu.version == 0);
    CHECK(pair.on_gpu.handle == NULL && pair.on_gpu.size == 0);
    CHECK(pair.on_gpu.needs_proxy_progress == 0);
    CHECK(version == OWN || pair.polls >= 4);
    close_pair(&pair);
}

/* connect and accept say "not yet" until both ends are there, and that there is no queue. */
TEST(connect, run_each)

static void case_handle_is_clean(const uint8_t *argument)
{
    const struct import_table *table = &open_plugin(version_in(argument))->table;
    uint8_t handle[NET_TABLE_HANDLE_BYTES];
    void *listener;

    memset(handle, 0xA5, sizeof handle);
    CHECK(import_listen(table, 0, handle, &listener) == TCPX_SUCCESS);
    for (size_t i = 80; i < sizeof handle; i++)
        CHECK(handle[i] == 0);
    CHECK(import_close_listen(table, listener) == TCPX_SUCCESS);
}

/* What the plugin leaves untouched in a handle is 0 and not what was there before: it travels. */
TEST(handle_is_clean, run_each_quirky)

static void case_bad_calls(const uint8_t *argument)
{
    int version = version_in(argument);
    const struct import_table *table = &open_plugin(version)->table;
    struct net_device_handle on_gpu = {0};
    uint8_t handle[NET_TABLE_HANDLE_BYTES];
    void *listener;
    void *comm = &comm;

    CHECK_FAILS(import_listen(table, 7, handle, &listener), TCPX_INTERNAL_ERROR, "listen");
    CHECK(listener == NULL);
    CHECK(import_listen(table, 0, handle, &listener) == TCPX_SUCCESS);
    CHECK_FAILS(import_connect(table, 7, handle, &comm), TCPX_INTERNAL_ERROR, "connect");
    CHECK(comm == NULL);
    if (version >= 7)
        CHECK_FAILS(import_accept(table, listener, &comm, NULL), TCPX_INTERNAL_ERROR, "accept");
    CHECK(import_accept(table, listener, &comm, &on_gpu) == TCPX_SUCCESS);
    CHECK(comm == NULL);
    memset(handle + 80, 0x11, 8);
    CHECK_FAILS(import_connect(table, 0, handle, &comm), TCPX_INTERNAL_ERROR, "connect");
    CHECK(counts_of(version)->unknown_states == 1);
    memset(handle + 80, 0, 8);
    CHECK(import_close_listen(table, listener) == TCPX_SUCCESS);
    CHECK(import_connect(table, 0, handle, &comm) == TCPX_SUCCESS && comm == NULL);
    CHECK_FAILS(import_connect(table, 0, handle, &comm), TCPX_SYSTEM_ERROR, "connect");
}

/* A call that the plugin refuses fails with its result, and the text names plugin and call. */
TEST(bad_calls, run_each_quirky)

static void case_second_accept(const uint8_t *argument)
{
    const struct import_table *table = &open_plugin(version_in(argument))->table;
    struct net_device_handle on_gpu = {0};
    uint8_t handle[NET_TABLE_HANDLE_BYTES];
    uint8_t stale[NET_TABLE_HANDLE_BYTES];
    void *listener;
    void *sender = NULL;
    void *receiver = NULL;

    CHECK(import_listen(table, 0, handle, &listener) == TCPX_SUCCESS);
    for (int i = 0; i < 1000 && sender == NULL; i++)
        CHECK(import_connect(table, 0, handle, &sender) == TCPX_SUCCESS);
    memcpy(stale, handle, sizeof stale);
    for (int i = 0; i < 1000 && receiver == NULL; i++)
        CHECK(import_accept(table, listener, &receiver, &on_gpu) == TCPX_SUCCESS);
    CHECK(sender != NULL && receiver != NULL);
    CHECK_FAILS(import_accept(table, listener, &receiver, &on_gpu), TCPX_INTERNAL_ERROR, "accept");
    CHECK(receiver == NULL);
    CHECK_FAILS(import_connect(table, 0, stale, &sender), TCPX_INTERNAL_ERROR, "connect");
}

/* The quirky plugin takes one accept for a listener, and one connect for a copy of a handle. */
TEST(second_accept, run_each_quirky)

/* --- memory -------------------------------------------------------------------------------- */

static bool refused_in_words(int result, const char *name, int version, const char *number)
{
    char version_text[32];

    snprintf(version_text, sizeof version_text, "version %d", version);
    return result == TCPX_INVALID_ARGUMENT && said(name) && said(version_text) && said(number);
}

static void case_large_memory(const uint8_t *argument)
{
    const size_t bytes = ((size_t)1 << 32) + 4096;
    int version = version_in(argument);
    const struct import_table *table = &open_plugin(version)->table;
    struct pair pair = connect_pair(table);
    uint8_t *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void *memory = &memory;
    void *request;
    uint64_t sent;

    CHECK(data != MAP_FAILED);
    if (version == 6 || version == 7) {
        CHECK(refused_in_words(import_register(table, pair.sender, data, (size_t)INT_MAX + 1,
                                               NET_POINTER_HOST, &memory),
                               QUIRKY_NAME, version, "2147483648"));
        CHECK(memory == NULL);
        memory = register_host(&pair, pair.sender, data, INT_MAX);
        CHECK(import_isend(table, pair.sender, data + INT_MAX - 100, 100, 0, memory, &request) ==
              TCPX_SUCCESS);
    } else {
        memory = register_host(&pair, pair.sender, data, bytes);
        CHECK(import_isend(table, pair.sender, data + bytes - 100, 100, 0, memory, &request) ==
              TCPX_SUCCESS);
    }
    wait_for(&pair, request, &sent);
    CHECK(import_deregister(table, pair.sender, memory) == TCPX_SUCCESS);
}

/* Memory beyond 2 GiB is registered whole, or refused where the table cannot say its length. */
TEST(large_memory, run_each)

static void case_other_memory(const uint8_t *argument)
{
    const struct import_table *table = &open_plugin(version_in(argument))->table;
    struct pair pair = connect_pair(table);
    uint8_t data[16];
    void *memory = &memory;

    CHECK_FAILS(import_register(table, pair.receiver, data, sizeof data, NET_POINTER_CUDA, &memory),
                TCPX_INTERNAL_ERROR, "regMr");
    CHECK(memory == NULL);
    close_pair(&pair);
}

/* The type of memory reaches the plugin. */
TEST(other_memory, run_each_quirky)

/* --- data ---------------------------------------------------------------------------------- */

enum { MOST = 1 << 20 };

/* Whether test() says the sizes: of the quirky plugin, only the oldest table does. */
static bool says_sizes(const struct pair *pair)
{
    return strcmp(pair->table->name, QUIRKY_NAME) != 0 || pair->table->version == 6;
}

/* Waits for the oldest receive, which is of `bytes` bytes. */
static void take(struct pair *pair, void *request, size_t bytes)
{
    uint64_t said_bytes = 77;

    wait_for(pair, request, &said_bytes);
    CHECK(said_bytes == (says_sizes(pair) ? bytes : IMPORT_BYTES_UNSAID));
    CHECK(import_consumed(pair->table, pair->receiver, request) == TCPX_SUCCESS);
}

struct buffers {
    uint8_t *from;
    uint8_t *to;
    void *from_memory;
    void *to_memory;
};

static struct buffers make_buffers(struct pair *pair, size_t bytes)
{
    struct buffers buffers = {.from = malloc(bytes), .to = malloc(bytes)};

    CHECK(buffers.from != NULL && buffers.to != NULL);
    memset(buffers.from, 0x5A, bytes);
    buffers.from_memory = register_host(pair, pair->sender, buffers.from, bytes);
    buffers.to_memory = register_host(pair, pair->receiver, buffers.to, bytes);
    return buffers;
}

static void free_buffers(struct pair *pair, struct buffers *buffers)
{
    CHECK(import_deregister(pair->table, pair->sender, buffers->from_memory) == TCPX_SUCCESS);
    CHECK(import_deregister(pair->table, pair->receiver, buffers->to_memory) == TCPX_SUCCESS);
    free(buffers->from);
    free(buffers->to);
}

static void *post_send(struct pair *pair, struct buffers *buffers, size_t at, size_t bytes)
{
    void *request = NULL;

    CHECK(import_isend(pair->table, pair->sender, buffers->from + at, bytes, 5,
                       buffers->from_memory, &request) == TCPX_SUCCESS);
    CHECK(request != NULL);
    return request;
}

static void *post_receive(struct pair *pair, struct buffers *buffers, size_t at, size_t bytes)
{
    void *request = NULL;

    CHECK(import_irecv(pair->table, pair->receiver, buffers->to + at, bytes, 5, buffers->to_memory,
                       &request) == TCPX_SUCCESS);
    CHECK(request != NULL);
    return request;
}

/* A sender and a receiver that one thread moves on in turns: neither can wait for the other. */
static void exchange(struct pair *pair, struct buffers *buffers, size_t bytes, uint64_t message)
{
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);
    uint64_t sent = 99;
    void *receive = post_receive(pair, buffers, 0, bytes + 16);
    void *send;
    int done[2] = {0, 0};
    uint64_t got = 77;

    for (size_t i = 0; i < bytes; i++)
        buffers->from[i] = byte_at(message, i);
    memset(buffers->to, 0, bytes + 16);
    send = post_send(pair, buffers, 0, bytes);
    while (done[0] == 0 || done[1] == 0) {
        if (done[0] == 0)
            CHECK(import_test(pair->table, send, &done[0], &sent) == TCPX_SUCCESS);
        if (done[1] == 0)
            CHECK(import_test(pair->table, receive, &done[1], &got) == TCPX_SUCCESS);
        CHECK(!deadline_passed(deadline));
    }
    CHECK(sent == (says_sizes(pair) ? bytes : IMPORT_BYTES_UNSAID));
    CHECK(got == (says_sizes(pair) ? bytes : IMPORT_BYTES_UNSAID));
    for (size_t i = 0; i < bytes; i++)
        CHECK(buffers->to[i] == byte_at(message, i));
    for (size_t i = bytes; i < bytes + 16; i++)
        CHECK(buffers->to[i] == 0);
    CHECK(import_consumed(pair->table, pair->receiver, receive) == TCPX_SUCCESS);
}

static void case_data(const uint8_t *argument)
{
    static const size_t lengths[] = {0,    1,      2,      15,       16,     17,     4095,
                                     4096, 4097,   8191,   65536,    100001, 524287, 524288,
                                     0,    524289, 777777, MOST - 1, MOST};
    const struct import_table *table = &open_plugin(version_in(argument))->table;
    struct pair ways[2] = {connect_pair(table), connect_pair(table)};
    struct buffers buffers[2] = {make_buffers(&ways[0], MOST + 16),
                                 make_buffers(&ways[1], MOST + 16)};
    enum { COUNT = sizeof lengths / sizeof *lengths };

    for (uint64_t message = 0; message < 2 * COUNT; message++)
        for (int way = 0; way < 2; way++)
            exchange(&ways[way], &buffers[way],
                     lengths[way == 0 ? message % COUNT : COUNT - 1 - message % COUNT],
                     2 * message + (uint64_t)way);
    for (int way = 0; way < 2; way++) {
        free_buffers(&ways[way], &buffers[way]);
        close_pair(&ways[way]);
    }
}

/* Messages of every length arrive whole, both ways, with their sizes where the plugin says them. */
TEST(data, run_each)

enum { DEPTH = 16, PIECE = 3000 };

static void case_many(const uint8_t *argument)
{
    struct pair pair = connect_pair(&open_plugin(version_in(argument))->table);
    struct buffers buffers = make_buffers(&pair, DEPTH * PIECE);
    void *sends[DEPTH];
    void *receives[DEPTH];
    uint64_t bytes;

    for (uint64_t turn = 0; turn < 5; turn++) {
        memset(buffers.to, 0, DEPTH * PIECE);
        for (size_t i = 0; i < DEPTH * PIECE; i++)
            buffers.from[i] = byte_at(turn, i);
        for (size_t i = 0; i < DEPTH; i++) {
            receives[i] = post_receive(&pair, &buffers, i * PIECE, PIECE);
            sends[i] = post_send(&pair, &buffers, i * PIECE, PIECE - i);
        }
        for (size_t i = 0; i < DEPTH; i++)
            wait_for(&pair, sends[i], &bytes);
        for (size_t i = 0; i < DEPTH; i++) {
            uint8_t *to = buffers.to + i * PIECE;

            take(&pair, receives[i], PIECE - i);
            for (size_t j = 0; j < PIECE; j++)
                CHECK(to[j] == (j < PIECE - i ? byte_at(turn, i * PIECE + j) : 0));
        }
    }
    free_buffers(&pair, &buffers);
    close_pair(&pair);
}

/* As many requests at once as the plugin takes, finished and consumed in their order. */
TEST(many, run_each)

static void case_long_messages(const uint8_t *argument)
{
    const size_t beyond = ((size_t)1 << 32) + 100;
    int version = version_in(argument);
    const struct import_table *table = &open_plugin(version)->table;
    struct pair pair = connect_pair(table);
    struct buffers buffers = make_buffers(&pair, PIECE);
    uint8_t *room = mmap(NULL, beyond, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void *send = &send;
    void *receive = &receive;
    uint64_t bytes;

    CHECK(room != MAP_FAILED);
    if (version <= 8) {
        CHECK(import_longest(table) == (size_t)1 << 30); /* as NCCL has it */
        CHECK(refused_in_words(import_isend(table, pair.sender, buffers.from, ((size_t)1 << 30) + 1,
                                            0, buffers.from_memory, &send),
                               QUIRKY_NAME, version, "1073741825"));
        CHECK(refused_in_words(
            import_irecv(table, pair.receiver, buffers.to, beyond, 0, buffers.to_memory, &receive),
            QUIRKY_NAME, version, "4294967396"));
        CHECK(send == NULL && receive == NULL);
        return;
    }
    CHECK(import_longest(table) > beyond);
    CHECK_FAILS(
        import_isend(table, pair.sender, buffers.from, beyond, 0, buffers.from_memory, &send),
        TCPX_INTERNAL_ERROR, "isend");
    CHECK(send == NULL);
    CHECK(import_deregister(table, pair.receiver, buffers.to_memory) == TCPX_SUCCESS);
    buffers.to_memory = register_host(&pair, pair.receiver, room, beyond);
    CHECK(import_irecv(table, pair.receiver, room, beyond, 0, buffers.to_memory, &receive) ==
          TCPX_SUCCESS);
    send = post_send(&pair, &buffers, 0, PIECE);
    wait_for(&pair, send, &bytes);
    take(&pair, receive, PIECE);
    CHECK(room[0] == 0x5A && room[PIECE - 1] == 0x5A && room[PIECE] == 0);
}

/* A length that the table cannot say is refused; one that it can arrives at the plugin whole. */
TEST(long_messages, run_each_quirky)

/* --- what the quirky plugin does not forgive ----------------------------------------------- */

static void case_order_of_tests(const uint8_t *argument)
{
    int version = version_in(argument);
    const struct import_table *table = &open_plugin(version)->table;
    struct pair pair = connect_pair(table);
    struct buffers buffers = make_buffers(&pair, PIECE);
    void *first = post_send(&pair, &buffers, 0, 10);
    void *second = post_send(&pair, &buffers, 0, 10);
    uint64_t bytes = 77;
    int done = 77;

    CHECK_FAILS(import_test(table, second, &done, &bytes), TCPX_INTERNAL_ERROR, "test");
    CHECK(done == 0 && bytes == 77);
    wait_for(&pair, first, &bytes);
    CHECK(bytes == (version == 6 ? 10 : IMPORT_BYTES_UNSAID));
    CHECK(import_test(table, first, &done, &bytes) == TCPX_SUCCESS && done == 0);
    wait_for(&pair, second, &bytes);
}

/* The oldest request is tested, until it is done and not again. */
TEST(order_of_tests, run_each_quirky)

static void case_too_many(const uint8_t *argument)
{
    const struct import_table *table = &open_plugin(version_in(argument))->table;
    struct pair pair = connect_pair(table);
    struct buffers buffers = make_buffers(&pair, PIECE);
    void *request = &request;

    for (int i = 0; i < DEPTH; i++) {
        post_send(&pair, &buffers, 0, 1);
        post_receive(&pair, &buffers, 0, 1);
    }
    CHECK_FAILS(import_isend(table, pair.sender, buffers.from, 1, 0, buffers.from_memory, &request),
                TCPX_INTERNAL_ERROR, "isend");
    CHECK(request == NULL);
    CHECK_FAILS(import_irecv(table, pair.receiver, buffers.to, 1, 0, buffers.to_memory, &request),
                TCPX_INTERNAL_ERROR, "irecv");
    CHECK_FAILS(import_isend(table, pair.sender, buffers.from, 1, 0, NULL, &request),
                TCPX_INTERNAL_ERROR, "isend");
}

/* The 17th request is an error. */
TEST(too_many, run_each_quirky)

static void case_consumed(const uint8_t *argument)
{
    const struct import_table *table = &open_plugin(version_in(argument))->table;
    struct pair pair = connect_pair(table);
    struct buffers buffers = make_buffers(&pair, PIECE);
    void *receives[DEPTH];
    uint64_t bytes;

    for (int i = 0; i < DEPTH; i++) {
        receives[i] = post_receive(&pair, &buffers, 0, PIECE);
        wait_for(&pair, post_send(&pair, &buffers, 0, PIECE), &bytes);
    }
    for (int i = 0; i < DEPTH; i++)
        wait_for(&pair, receives[i], &bytes);
    for (int i = 0; i < DEPTH; i++)
        post_receive(&pair, &buffers, 0, PIECE);
    CHECK(import_consumed(table, pair.receiver, receives[0]) == TCPX_SUCCESS);
}

/* Where there is no queue, receives end when they are done, and nobody needs to be told. */
TEST(consumed, run_each_quirky)

static void case_progress(const uint8_t *argument)
{
    struct pair pair = connect_pair(&open_plugin(version_in(argument))->table);
    struct buffers buffers = make_buffers(&pair, PIECE);
    void *receive = post_receive(&pair, &buffers, 0, PIECE);
    void *send = post_send(&pair, &buffers, 0, PIECE);
    uint64_t deadline = deadline_after_ms(100);
    uint64_t bytes;
    int done = 0;

    memset(buffers.to, 0, PIECE);
    while (!deadline_passed(deadline)) {
        CHECK(import_test(pair.table, receive, &done, &bytes) == TCPX_SUCCESS);
        CHECK(done == 0); /* and there is no deadline */
    }
    wait_for(&pair, send, &bytes);
    usleep(100000);
    CHECK(buffers.to[0] == 0); /* it has long arrived */
    wait_for(&pair, receive, &bytes);
    CHECK(buffers.to[0] == 0x5A);
}

/* Bytes move inside test() only, at either end, and nobody loses patience. */
TEST(progress, run_each_quirky)

static void case_early_close(const uint8_t *argument)
{
    const struct import_table *table = &open_plugin(version_in(argument))->table;
    struct pair pair = connect_pair(table);
    struct buffers buffers = make_buffers(&pair, PIECE);
    void *receive = post_receive(&pair, &buffers, 0, PIECE);
    uint64_t bytes;
    int done;

    wait_for(&pair, post_send(&pair, &buffers, 0, PIECE), &bytes);
    CHECK(import_close_send(table, pair.sender) == TCPX_SUCCESS);
    CHECK_FAILS(import_test(table, receive, &done, &bytes), TCPX_SYSTEM_ERROR, "test");
    CHECK(import_close_recv(table, pair.receiver) == TCPX_SUCCESS);
}

/* A sender that closes too early is the receiver's error 2. */
TEST(early_close, run_each_quirky)

static void case_no_leak(const uint8_t *argument)
{
    struct pair pair;
    struct buffers buffers;

    setenv(chunk_variable, "1024", 1);
    pair = connect_pair(&open_plugin(version_in(argument))->table);
    buffers = make_buffers(&pair, PIECE + 16);
    for (uint64_t i = 0; i < 200; i++)
        exchange(&pair, &buffers, PIECE, i);
    CHECK(counts_of(version_in(argument))->free_pages == 0); /* there is no pool */
}

/* Receives into host memory may have any number of chunks. */
TEST(no_leak, run_each_quirky)

static void case_no_chunk(const uint8_t *argument)
{
    struct import_table table;
    void *library = dlopen(file_of(version_in(argument)), RTLD_NOW | RTLD_LOCAL);
    struct pair pair;
    struct buffers buffers;
    void *request;

    unsetenv(chunk_variable);
    CHECK(library != NULL && import_table_find(library, &table) == TCPX_SUCCESS);
    CHECK(import_table_init(&table) == TCPX_SUCCESS);
    CHECK((table.context != NULL) == (table.version >= 11));
    pair = connect_pair(&table);
    buffers = make_buffers(&pair, PIECE);
    CHECK_FAILS(
        import_isend(&table, pair.sender, buffers.from, 1, 0, buffers.from_memory, &request),
        TCPX_INTERNAL_ERROR, "isend");
    close_pair(&pair);
    CHECK_FAILS(import_table_init(&table), TCPX_INTERNAL_ERROR, "init"); /* a second start */
    import_table_finalize(&table);
    CHECK(counts_of(version_in(argument))->finalizes == (table.version >= 11 ? 1 : 0));
    CHECK(table.context == NULL);
}

/* Without a loader that knows it, the quirky plugin cannot send, and it does not start twice. */
TEST(no_chunk, run_each_quirky)

static void case_dead_peer(const uint8_t *argument)
{
    struct pair pair = connect_pair(&open_plugin(version_in(argument))->table);
    struct buffers buffers = make_buffers(&pair, PIECE);
    uint64_t bytes;

    CHECK(import_close_recv(pair.table, pair.receiver) == TCPX_SUCCESS);
    for (int i = 0; i < 3; i++)
        wait_for(&pair, post_send(&pair, &buffers, 0, PIECE), &bytes);
}

/* A dead peer is a signal. */
static void test_dead_peer(void **state)
{
    int status;
    int version = 7;

    (void)state;
    status = nursery_wait(nursery_fork(case_dead_peer, &version, sizeof version));
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGPIPE);
}

/* --- forks --------------------------------------------------------------------------------- */

static void case_fork(const uint8_t *argument)
{
    const struct import_plugin *plugin = NULL;
    int status;
    pid_t pid;

    (void)argument;
    CHECK(fork_watch() == TCPX_SUCCESS);
    open_plugin(7);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK(import_open(file_of(7), &plugin) == TCPX_INVALID_USAGE);
        CHECK(said("forked") && plugin == NULL);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        _exit(1); /* it has said why */
}

/* A forked child may not use what its parent has started. */
TEST(fork, run_child, 0)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_newest),
        cmocka_unit_test(test_no_table),
        cmocka_unit_test(test_once),
        cmocka_unit_test(test_two),
        cmocka_unit_test(test_no_plugin),
        cmocka_unit_test(test_init_fails),
        cmocka_unit_test(test_no_device),
        cmocka_unit_test(test_bad_count),
        cmocka_unit_test(test_started_by_others),
        cmocka_unit_test(test_loaded_by_others),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_environment_kept),
        cmocka_unit_test(test_environment_of_others),
        cmocka_unit_test(test_choose),
        cmocka_unit_test(test_properties),
        cmocka_unit_test(test_properties_last_part),
        cmocka_unit_test(test_properties_own),
        cmocka_unit_test(test_connect),
        cmocka_unit_test(test_handle_is_clean),
        cmocka_unit_test(test_bad_calls),
        cmocka_unit_test(test_second_accept),
        cmocka_unit_test(test_large_memory),
        cmocka_unit_test(test_other_memory),
        cmocka_unit_test(test_data),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_long_messages),
        cmocka_unit_test(test_order_of_tests),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_consumed),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_early_close),
        cmocka_unit_test(test_no_leak),
        cmocka_unit_test(test_no_chunk),
        cmocka_unit_test(test_dead_peer),
        cmocka_unit_test(test_fork),
    };

    forget_environment();
    setenv("QUIRKY_CUDA", "0", 1); /* there may be a driver */
    nursery_start();
    return cmocka_run_group_tests_name("import", tests, NULL, NULL);
}
