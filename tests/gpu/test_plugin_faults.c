/*
 * Shows that the faults of Google's plugin, which tests/quirky_plugin has, do no harm to a program
 * that uses it through tcpx: nothing is lost, nothing is overwritten, and what cannot work is
 * refused or reported in words. Through every version of NCCL's table.
 *
 * TCPX_TEST_TRANSFERS=count: of every size class, instead of a few.
 */
#include "tests/quirky_plugin/drive.h"

#include "plugin_host/held.h"
#include "plugin_host/plugin_host.h"
#include "tests/gpu/gpu_test.h"

#include <pthread.h>

enum { PAGE = 4096, PIECE = 3000, LATE_MS = 700 };

/* --- a way from one comm to another -------------------------------------------------------- */

struct way {
    const struct import_plugin *plugin;
    struct import_listener *listener;
    uint8_t handle[NET_TABLE_HANDLE_BYTES];
    struct import_comm *sender;
    struct import_comm *receiver;
    uint8_t *from;
    uint8_t *to;
    size_t bytes;
    struct import_memory *from_memory;
    struct import_memory *to_memory;
};

static void way_listen(struct way *way)
{
    CHECK_SUCCESS(import_comm_listen(way->plugin, 0, way->handle, &way->listener));
}

static void way_connect(struct way *way)
{
    if (way->sender == NULL)
        CHECK_SUCCESS(import_comm_connect(way->plugin, 0, way->handle, &way->sender));
}

/* The listener stays open where accept fails. */
static int try_accept(struct way *way)
{
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);
    int result = TCPX_SUCCESS;

    way_listen(way);
    while (result == TCPX_SUCCESS && (way->sender == NULL || way->receiver == NULL) &&
           in_time(deadline)) {
        way_connect(way);
        if (way->receiver == NULL)
            result = import_comm_accept(way->listener, &way->receiver);
    }
    if (result == TCPX_SUCCESS)
        CHECK_SUCCESS(import_listener_close(way->listener));
    return result;
}

static uint8_t *give_memory_to(struct import_comm *comm, size_t bytes,
                               struct import_memory **memory)
{
    uint8_t *data = comm != NULL ? calloc(1, bytes) : NULL;

    CHECK(data != NULL || comm == NULL);
    if (data != NULL)
        CHECK_SUCCESS(import_comm_register(comm, data, bytes, NET_POINTER_HOST, memory));
    return data;
}

/* To the ends that are here. */
static void give_memory(struct way *way)
{
    way->from = give_memory_to(way->sender, way->bytes, &way->from_memory);
    way->to = give_memory_to(way->receiver, way->bytes, &way->to_memory);
}

static struct way make_way(int version, size_t bytes)
{
    struct way way = {.plugin = open_plugin(version), .bytes = bytes};

    CHECK_SUCCESS(try_accept(&way));
    give_memory(&way);
    return way;
}

static struct import_request *post_send(struct way *way, size_t at, size_t bytes)
{
    struct import_request *request = NULL;

    CHECK_SUCCESS(
        import_comm_isend(way->sender, way->from + at, bytes, 0, way->from_memory, &request));
    CHECK(request != NULL);
    return request;
}

static struct import_request *post_receive(struct way *way, size_t at, size_t room)
{
    struct import_request *request = NULL;

    CHECK_SUCCESS(
        import_comm_irecv(way->receiver, way->to + at, room, 0, way->to_memory, &request));
    CHECK(request != NULL);
    return request;
}

/* The result of a request, when there is one; TCPX_IN_PROGRESS: not in time. */
static int result_of(struct import_request *request, unsigned limit_ms)
{
    uint64_t deadline = deadline_after_ms(limit_ms);
    uint64_t bytes = 0;
    bool done = false;
    int result = TCPX_SUCCESS;

    while (result == TCPX_SUCCESS && !done) {
        result = import_request_test(request, &done, &bytes);
        if (result == TCPX_SUCCESS && !done && deadline_passed(deadline))
            return TCPX_IN_PROGRESS;
    }
    return result;
}

static void finish(struct import_request *send, struct import_request *receive)
{
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);
    bool sent = send == NULL;
    bool received = receive == NULL;
    uint64_t bytes;

    while ((!sent || !received) && in_time(deadline)) {
        if (!sent)
            CHECK_SUCCESS(import_request_test(send, &sent, &bytes));
        if (!received)
            CHECK_SUCCESS(import_request_test(receive, &received, &bytes));
    }
}

/* From the beginning of the memory to that of the other end. */
static void move(struct way *way, size_t bytes, size_t room)
{
    finish(post_send(way, 0, bytes), post_receive(way, 0, room));
}

static void end_way(struct way *way)
{
    CHECK_SUCCESS(import_comm_close(way->sender, true));
    CHECK_SUCCESS(import_comm_close(way->receiver, true));
    free(way->from);
    free(way->to);
}

/* --- tokens -------------------------------------------------------------------------------- */

enum { CHUNK = 16384, POOL = 256 };

static void use_sockets(void)
{
    setenv(chunk_variable, "16384", 1);
    setenv("NCCL_NSOCKS_PERTHREAD", "4", 1);
    setenv("QUIRKY_POOL_PAGES", "256", 1);
    setenv("QUIRKY_FRAGMENT_BYTES", "1448", 1);
}

/* A window of messages of one length into host memory, which is verified. */
static void move_window(struct way *way, size_t bytes, uint64_t message)
{
    enum { WINDOW = 8 };
    struct import_request *sends[WINDOW];
    struct import_request *receives[WINDOW];

    for (size_t i = 0; i < WINDOW; i++) {
        for (size_t k = 0; k < bytes; k++)
            way->from[i * CHUNK + k] = byte_at(message + i, k);
        memset(way->to + i * CHUNK, 0, bytes);
        receives[i] = post_receive(way, i * CHUNK, bytes);
        sends[i] = post_send(way, i * CHUNK, bytes);
    }
    for (size_t i = 0; i < WINDOW; i++)
        finish(sends[i], receives[i]);
    for (size_t i = 0; i < WINDOW; i++)
        CHECK(memcmp(way->to + i * CHUNK, way->from + i * CHUNK, bytes) == 0);
}

/*
 * A request is never longer than a chunk of the plugin, however many sockets it has: no two chunks
 * of one meet on a socket, and no page of its pool is lost. Its sockets are steered: what is meant
 * for host memory arrives there all the same.
 */
CASE(tokens, run_each_quirky)
{
    static const size_t classes[] = {0,    1,    15,   1447,      1448,      1449,
                                     4095, 4096, 4097, CHUNK / 2, CHUNK - 1, CHUNK};
    uint64_t transfers = number_of("TCPX_TEST_TRANSFERS", 64);
    const struct quirky_counts *counts;
    struct way way;

    use_sockets();
    way = make_way(version, (size_t)8 * CHUNK);
    counts = counts_of(version);
    CHECK(import_comm_facts(way.sender).longest == CHUNK &&
          import_comm_facts(way.receiver).longest == CHUNK);
    for (size_t i = 0; i < COUNT_OF(classes); i++)
        for (uint64_t moved = 0; moved < transfers; moved += 8)
            move_window(&way, classes[i], (uint64_t)moved);
    CHECK(counts->lost_pages == 0);
    CHECK(counts->free_pages == (version >= UNPACKING ? POOL : 0));
    end_way(&way);
}

/* --- closing ------------------------------------------------------------------------------- */

/* What was sent and is done arrives, although the receiver first looks long after the close. */
CASE(close, run_each_at_once)
{
    enum { COUNT = 12 };
    struct way way = make_way(version, (size_t)COUNT * PIECE);
    struct import_request *receives[COUNT];
    struct import_request *send = NULL;
    uint64_t since;

    for (size_t i = 0; i < (size_t)COUNT * PIECE; i++)
        way.from[i] = byte_at(3, i);
    for (size_t i = 0; i < COUNT; i++)
        send = post_send(&way, i * PIECE, PIECE);
    finish(send, NULL);
    CHECK_SUCCESS(import_comm_close(way.sender, false));
    memset(way.from, 0, (size_t)COUNT * PIECE);
    CHECK(held_count() > 0);
    usleep(LATE_MS * 1000);
    for (size_t i = 0; i < COUNT; i++)
        receives[i] = post_receive(&way, i * PIECE, PIECE);
    for (size_t i = 0; i < COUNT; i++)
        finish(NULL, receives[i]);
    for (size_t i = 0; i < (size_t)COUNT * PIECE; i++)
        CHECK(way.to[i] == byte_at(3, i));
    CHECK_SUCCESS(import_comm_close(way.receiver, true));
    since = clock_now();
    while (held_count() > 0)
        CHECK(clock_now() - since < 5000000000);
}

static void run_8(void (*run)(int version))
{
    drive_run(run, 8);
}

/* A receiver that waits for more than was sent learns after UCCL_TCPX_TIMEOUT_MS that nothing
 * comes. */
CASE(close_waits, run_8)
{
    struct way way;
    struct import_request *last;
    uint64_t since;
    int result;

    setenv("UCCL_TCPX_TIMEOUT_MS", "1000", 1);
    way = make_way(version, PIECE);
    move(&way, PIECE, PIECE);
    last = post_receive(&way, 0, PIECE);
    since = clock_now();
    CHECK_SUCCESS(import_comm_close(way.sender, false));
    result = result_of(last, DEADLINE_MS);
    CHECK(result == TCPX_SYSTEM_ERROR && said("test failed"));
    CHECK(clock_now() - since > 500000000);
    CHECK(held_count() == 0);
}

enum { NOTHING, LISTENS, HAS_CLOSED };

/* The other process has got so far. */
static void await_flag(int value)
{
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);

    while (child_shared->flag < value)
        CHECK(!deadline_passed(deadline));
}

/* Sends, closes and exits, all at once. */
static void send_and_exit(int version)
{
    struct way way = {.plugin = open_plugin(version), .bytes = PIECE};
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);

    await_flag(LISTENS);
    memcpy(way.handle, child_shared->bytes, sizeof way.handle);
    while (way.sender == NULL && in_time(deadline))
        way_connect(&way);
    give_memory(&way);
    memset(way.from, 0x5A, PIECE);
    finish(post_send(&way, 0, PIECE), NULL);
    CHECK_SUCCESS(import_comm_close(way.sender, false));
    child_shared->flag = HAS_CLOSED;
    exit(0); /* NOLINT(concurrency-mt-unsafe): no other thread of this test exits */
}

static void receive_late(int version)
{
    struct way way = {.plugin = open_plugin(version), .bytes = PIECE};
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);

    way_listen(&way);
    memcpy(child_shared->bytes, way.handle, sizeof way.handle);
    child_shared->flag = LISTENS;
    while (way.receiver == NULL && in_time(deadline))
        CHECK_SUCCESS(import_comm_accept(way.listener, &way.receiver));
    await_flag(HAS_CLOSED);
    usleep(LATE_MS * 1000);
    give_memory(&way);
    finish(NULL, post_receive(&way, 0, PIECE));
    CHECK(way.to[0] == 0x5A && way.to[PIECE - 1] == 0x5A);
    CHECK_SUCCESS(import_comm_close(way.receiver, true));
}

/* The same of a sender whose process ends at once. */
TEST(test_close_and_exit)
{
    for (int version = OLDEST; version <= NEWEST; version += 3) {
        pid_t receiver;
        pid_t sender;

        child_shared->flag = NOTHING;
        receiver = drive_fork(receive_late, version);
        sender = drive_fork(send_and_exit, version);
        drive_judge(child_wait(sender), version);
        drive_judge(child_wait(receiver), version);
    }
}

/* --- the end of the process ---------------------------------------------------------------- */

static int pipe_ends[2]; /* what children write to standard error */

/* Both ends of messages that the plugin does not survive. */
static void move_until_the_end(int version, size_t bytes)
{
    struct way way;

    dup2(pipe_ends[1], STDERR_FILENO);
    way = make_way(version, bytes);
    for (int i = 0; i < 100; i++)
        move(&way, bytes, bytes);
    _exit(0);
}

static void move_linear(int version)
{
    setenv("QUIRKY_LINEAR", "5", 1);
    move_until_the_end(version, 65536);
}

static void move_fragments(int version)
{
    setenv("QUIRKY_FRAGMENT_BYTES", "16", 1);
    move_until_the_end(version, 524288);
}

static void *keep_asking(void *argument)
{
    while (true)
        (void)!result_of(argument, 1000000);
    return NULL;
}

static void exit_in_plugin(int version)
{
    struct way way;
    pthread_t thread;

    dup2(pipe_ends[1], STDERR_FILENO);
    way = make_way(version, PIECE);
    CHECK(pthread_create(&thread, NULL, keep_asking, post_receive(&way, 0, PIECE)) == 0);
    usleep(50000);
    exit(3); /* NOLINT(concurrency-mt-unsafe): no other thread of this test exits */
}

/* What `run` has left on standard error, with its status. */
static int status_and_words(void (*run)(int version), int version, char *words, size_t room)
{
    int status = child_wait(drive_fork(run, version));
    ssize_t got;

    assert_int_equal(write(pipe_ends[1], "\n", 1), 1);
    got = read(pipe_ends[0], words, room - 1);
    assert_true(got > 0);
    words[got] = '\0';
    return status;
}

static void check_last_words(void (*run)(int version), const char *expected)
{
    for (int version = UNPACKING; version <= NEWEST; version++) {
        char words[2000];
        int status = status_and_words(run, version, words, sizeof words);

        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 1);
        if (strstr(words, QUIRKY_NAME " has ended the process by exit()") == NULL ||
            strstr(words, expected) == NULL)
            fail_msg("table %d: %s", version, words);
    }
}

/* A plugin that ends the process, from whichever thread, does not do so without a word. */
TEST(test_exit)
{
    check_last_words(move_linear, "landed on host memory");
    check_last_words(move_fragments, "more than 2048 fragments");
}

/* A program that exits while its threads are in the plugin is not told that. */
TEST(test_own_exit)
{
    char words[2000];
    int status = status_and_words(exit_in_plugin, NEWEST, words, sizeof words);

    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 3);
    assert_null(strstr(words, "has ended the process"));
}

/* --- the size of its chunks ---------------------------------------------------------------- */

/* Row `which` of a table of this test, with the table of a version of the plugin. */
struct row {
    int version;
    int which;
};

static pid_t fork_row(child_run *run, int version, int which)
{
    return child_fork(run, &(struct row){version, which}, sizeof(struct row));
}

static const struct {
    bool is_good;
    const char *text;
} settings[] = {
    {false, "0"},       {false, "512K"},
    {false, "garbage"}, {false, "-4096"},
    {false, "1e6"},     {false, "99999999999999999999"},
    {false, " "},       {true, ""},
    {true, "4096"},     {true, "0x10000"},
    {true, "1"},        {true, " 65536"},
    {true, "4194304"},  {false, "2147483648"},
};

static void open_with_chunk_size(const uint8_t *argument)
{
    const struct row *row = (const void *)argument;
    const char *text = settings[row->which].text;
    const struct import_plugin *plugin;
    const struct quirky_counts *counts;

    setenv(chunk_variable, text, 1);
    if (!settings[row->which].is_good) {
        check_not_opened(file_of(row->version), TCPX_INVALID_USAGE, chunk_variable);
        CHECK(said(text) && said("524288"));
        CHECK(counts_of(row->version)->inits == 0); /* it has not read it yet */
        return;
    }
    plugin = open_plugin(row->version);
    counts = counts_of(row->version);
    CHECK(plugin->longest == counts->chunk_bytes ||
          (plugin->longest == 2 << 20 && counts->chunk_bytes > 2 << 20));
    setenv(chunk_variable, "77", 1); /* too late for the plugin, and for us */
    CHECK(plugin->longest != 77);
}

/* A value that the plugin would read as another is refused; about others both agree. */
TEST(test_chunk_size)
{
    for (int version = OLDEST; version <= NEWEST; version++)
        for (int i = 0; i < (int)COUNT_OF(settings); i++)
            child_judge(child_wait(fork_row(open_with_chunk_size, version, i)), settings[i].text);
}

/* Somebody else has started it without one: it moves chunks of 0 bytes, whatever is set now. */
CASE(started_without, run_each_quirky)
{
    struct import_table theirs;

    load_first(version, &theirs);
    CHECK_SUCCESS(import_table_init(&theirs));
    check_not_opened(file_of(version), TCPX_INVALID_USAGE, "another library of this process");
    CHECK(said(chunk_variable));
}

/* --- no PCI path --------------------------------------------------------------------------- */

/* Where the plugin would crash without the NIC's PCI path, it is not asked to. */
CASE(no_pci_path, run_each_unpacking)
{
    struct way way = {.plugin = NULL};
    struct import_memory *memory;
    struct gpu_memory on_gpu;
    struct gpu *gpu;

    setenv("QUIRKY_PCI", "0", 1);
    CHECK_SUCCESS(gpu_open(0, &gpu));
    CHECK_SUCCESS(gpu_memory_alloc(gpu, PAGE, PAGE, &on_gpu));
    way.plugin = open_plugin(version);
    CHECK(try_accept(&way) == TCPX_INVALID_USAGE);
    CHECK(said("quirky0 has no PCI path"));
    CHECK(way.sender != NULL);
    CHECK(import_comm_register(way.sender, (void *)(uintptr_t)on_gpu.address, PAGE,
                               NET_POINTER_CUDA, &memory) == TCPX_INVALID_USAGE);
    CHECK(said("quirky0 has no PCI path"));
}

/* --- calls that hang ----------------------------------------------------------------------- */

/* A call that is left behind has this result and text, after a second. */
#define CHECK_LEFT(call)                                                                           \
    do {                                                                                           \
        uint64_t since_ = clock_now();                                                             \
        CHECK((call) == TCPX_SYSTEM_ERROR);                                                        \
        CHECK(said("has not returned for "));                                                      \
        CHECK(clock_now() - since_ < 10000000000);                                                 \
    } while (0)

#define CHECK_LOST(call) CHECK_ERROR(call, TCPX_SYSTEM_ERROR, "")

static const char *const hangs[] = {"devices",   "getProperties", "listen",  "connect",
                                    "accept",    "regMr",         "deregMr", "closeSend",
                                    "closeRecv", "closeListen"};

/* The call of that name, with a way that works and listens. */
static void call_named(const char *name, struct way *way)
{
    struct net_properties_v12 properties;
    struct import_request *request = NULL;
    struct import_listener *listener;
    struct import_memory *memory;
    struct import_comm *comm;
    uint8_t bytes[16];

#define IS(text) (strcmp(name, text) == 0)
    if (IS("getProperties"))
        CHECK_LEFT(bounded_properties(way->plugin, 0, &properties));
    if (IS("listen"))
        CHECK_LEFT(import_comm_listen(way->plugin, 0, way->handle, &listener));
    if (IS("connect")) {
        CHECK_LEFT(import_comm_connect(way->plugin, 0, way->handle, &comm));
        CHECK_LOST(import_comm_connect(way->plugin, 0, way->handle, &comm));
        import_comm_connect_forget(way->plugin, way->handle);
    }
    if (IS("accept")) {
        CHECK_LEFT(import_comm_accept(way->listener, &comm));
        CHECK_LOST(import_comm_accept(way->listener, &comm));
        CHECK_LOST(import_listener_close(way->listener));
    }
    if (IS("closeListen"))
        CHECK_LEFT(import_listener_close(way->listener));
    if (IS("closeSend"))
        CHECK_LEFT(import_comm_close(way->sender, false));
    if (IS("closeRecv"))
        CHECK_LEFT(import_comm_close(way->receiver, true));
    if (IS("regMr")) {
        CHECK_LEFT(
            import_comm_register(way->receiver, bytes, sizeof bytes, NET_POINTER_HOST, &memory));
        CHECK_LOST(import_comm_irecv(way->receiver, way->to, 0, 0, way->to_memory, &request));
    }
    if (IS("deregMr"))
        CHECK_LEFT(import_comm_deregister(way->receiver, way->to_memory));
    if (IS("regMr") || IS("deregMr")) { /* with a call inside, the comm is the plugin's */
        CHECK_LOST(import_comm_close(way->receiver, true));
        CHECK(said("has not returned"));
    }
#undef IS
}

static void call_and_hang(const uint8_t *argument)
{
    const struct row *row = (const void *)argument;
    const char *timeout_ms = getenv("TCPX_TEST_HANG_MS"); /* a real driver starts slowly */
    const char *name = hangs[row->which];
    const struct import_plugin *plugin;
    struct way other;
    struct way way;

    setenv("UCCL_TCPX_TIMEOUT_MS", timeout_ms != NULL ? timeout_ms : "1000", 1);
    if (row->which == 0) { /* it hangs when it is opened */
        setenv("QUIRKY_HANG", name, 1);
        CHECK_LEFT(import_open(file_of(row->version), &plugin));
        return;
    }
    other = make_way(row->version, PIECE);
    way = make_way(row->version, PIECE);
    move(&way, PIECE, PIECE);
    way_listen(&way);
    setenv("QUIRKY_HANG", name, 1);
    call_named(name, &way);
    unsetenv("QUIRKY_HANG");
    move(&other, PIECE, PIECE);
    end_way(&other);
}

/* A call of the plugin that does not return is left behind in time, and other comms go on. */
TEST(test_hang)
{
    pid_t pids[COUNT_OF(hangs)];

    child_limit_ms = CASE_LIMIT_MS;
    for (int version = OLDEST; version <= NEWEST; version += 3) {
        for (int i = 0; i < (int)COUNT_OF(hangs); i++)
            pids[i] = fork_row(call_and_hang, version, i);
        for (size_t i = 0; i < COUNT_OF(hangs); i++)
            child_judge(child_wait(pids[i]), hangs[i]);
    }
    child_limit_ms = 0;
}

/* --- receives that are too short ----------------------------------------------------------- */

/* A message that is longer than its receive is an error, and nothing behind it is overwritten. */
CASE(short, run_each_quirky)
{
    struct way way = make_way(version, 8192);
    struct import_request *receive;

    memset(way.from, 0x5A, 8192);
    memset(way.to, 0xA5, 8192);
    move(&way, 1000, 2000); /* that is no fault */
    CHECK(way.to[999] == 0x5A && way.to[1000] == 0xA5);
    receive = post_receive(&way, 0, 1000);
    finish(post_send(&way, 0, 5000), NULL);
    CHECK(result_of(receive, DEADLINE_MS) == TCPX_REMOTE_ERROR);
    CHECK(said(QUIRKY_NAME) && said("1000"));
    for (size_t i = 1000; i < 8192; i++)
        CHECK(way.to[i] == 0xA5);
}

/* The same where the plugin receives into host memory itself. */
CASE(short_on_host, run_each_quirky)
{
    setenv("QUIRKY_CUDA", "0", 1);
    case_short(version);
}

/* Nor by a peer that keeps to no limit at all. */
CASE(far_too_long, run_each_quirky)
{
    enum { LONG = 3 * CHUNK };
    struct way way = {.bytes = LONG};
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);
    const struct import_table *table;
    struct import_request *receive;
    static uint8_t from[LONG];
    void *sender = NULL;
    void *memory;
    void *request;
    int done = 0;
    uint64_t bytes;

    setenv("QUIRKY_CUDA", "0", 1);
    setenv(chunk_variable, "16384", 1);
    way.plugin = open_plugin(version);
    table = &way.plugin->table;
    way_listen(&way);
    while ((sender == NULL || way.receiver == NULL) && in_time(deadline)) {
        if (sender == NULL)
            CHECK_SUCCESS(import_connect(table, 0, way.handle, &sender));
        if (way.receiver == NULL)
            CHECK_SUCCESS(import_comm_accept(way.listener, &way.receiver));
    }
    give_memory(&way);
    memset(from, 0x5A, LONG);
    receive = post_receive(&way, 0, 100);
    CHECK_SUCCESS(import_register(table, sender, from, LONG, NET_POINTER_HOST, &memory));
    CHECK_SUCCESS(import_isend(table, sender, from, LONG, 0, memory, &request));
    while (done == 0)
        CHECK_SUCCESS(import_test(table, request, &done, &bytes));
    CHECK(result_of(receive, 200) != TCPX_SUCCESS);
    for (size_t i = 0; i < LONG; i++)
        CHECK(way.to[i] == 0);
}

/* --- handles ------------------------------------------------------------------------------- */

/* A handle of a peer with more sockets than the plugin has room for does not get there. */
CASE(sockets_in_handle, run_each_quirky)
{
    static const int32_t counts[] = {0, -1, 9, 1 << 30};
    struct way way = {.plugin = open_plugin(version)};

    way_listen(&way);
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        memcpy(way.handle + 36, &counts[i], sizeof counts[i]);
        CHECK(import_comm_connect(way.plugin, 0, way.handle, &way.sender) == TCPX_INVALID_ARGUMENT);
        CHECK(said("sockets"));
    }
}

static int begin_suite(void)
{
    forget_environment();
    if (pipe(pipe_ends) != 0)
        return 1;
    return child_begin();
}

SUITE(.name = "plugin-faults", .begin = begin_suite);
