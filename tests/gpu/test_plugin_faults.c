/*
 * Shows that the faults of Google's plugin, which tests/quirky_plugin has, do no harm to a program
 * that uses it through tcpx: nothing is lost, nothing is overwritten, and what cannot work is
 * refused or reported in words. Through every version of NCCL's table.
 *
 * TCPX_TEST_TRANSFERS=count: of every size class, instead of a few.
 */
#include "tests/quirky_plugin/drive.h"

#include "plugin_host/bounded.h"
#include "plugin_host/connection.h"
#include "plugin_host/memory.h"
#include "plugin_host/request.h"
#include "plugin_host/held.h"
#include "tests/gpu/gpu_test.h"

#include <pthread.h>

enum { FIRST = 7, PAGE = 4096, PIECE = 3000 };

/* Under the thread sanitizer each of these many processes would end with a second of waiting. */
const char *__tsan_default_options(void);

const char *__tsan_default_options(void)
{
    return "atexit_sleep_ms=0";
}

static void check_status(int status, int version)
{
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("table %d: status %d: %s", version, status, (char *)nursery_shared->bytes);
}

/* Tables that can say that receives are unpacked. */
static void run_each_unpacking(nursery_run *run)
{
    for (int version = FIRST; version <= NEWEST; version++)
        run_child(run, version);
}

/* All versions at the same time: for what mostly waits. */
static void run_each_at_once(nursery_run *run)
{
    pid_t pids[NEWEST + 1];

    for (int version = OLDEST; version <= NEWEST; version++)
        pids[version] = nursery_fork(run, &version, sizeof version);
    for (int version = OLDEST; version <= NEWEST; version++)
        check_status(nursery_wait(pids[version]), version);
}

/* --- a way from one comm to another -------------------------------------------------------- */

struct way {
    const struct import_plugin *plugin;
    struct import_comm *sender;
    struct import_comm *receiver;
    uint8_t *from;
    uint8_t *to;
    size_t bytes;
    struct import_memory *from_memory;
    struct import_memory *to_memory;
};

static struct import_memory *register_host_memory(struct import_comm *comm, void *data,
                                                  size_t bytes)
{
    struct import_memory *memory = NULL;

    CHECK(import_comm_register(comm, data, bytes, NET_POINTER_HOST, &memory) == TCPX_SUCCESS);
    return memory;
}

static int try_accept(const struct import_plugin *plugin, struct way *way)
{
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);
    uint8_t handle[NET_TABLE_HANDLE_BYTES];
    struct import_listener *listener;
    int result = TCPX_SUCCESS;

    CHECK(import_comm_listen(plugin, 0, handle, &listener) == TCPX_SUCCESS);
    while (result == TCPX_SUCCESS && (way->sender == NULL || way->receiver == NULL)) {
        if (way->sender == NULL)
            CHECK(import_comm_connect(plugin, 0, handle, &way->sender) == TCPX_SUCCESS);
        if (way->receiver == NULL)
            result = import_comm_accept(listener, &way->receiver);
        CHECK(!deadline_passed(deadline));
    }
    if (result == TCPX_SUCCESS)
        CHECK(import_listener_close(listener) == TCPX_SUCCESS);
    return result;
}

static struct way make_way(int version, size_t bytes)
{
    struct way way = {.plugin = open_plugin(version), .bytes = bytes};

    CHECK(try_accept(way.plugin, &way) == TCPX_SUCCESS);
    way.from = malloc(bytes);
    way.to = malloc(bytes);
    CHECK(way.from != NULL && way.to != NULL);
    way.from_memory = register_host_memory(way.sender, way.from, bytes);
    way.to_memory = register_host_memory(way.receiver, way.to, bytes);
    return way;
}

static struct import_request *post_send(struct way *way, size_t at, size_t bytes)
{
    struct import_request *request = NULL;

    CHECK(import_comm_isend(way->sender, way->from + at, bytes, 0, way->from_memory, &request) ==
          TCPX_SUCCESS);
    CHECK(request != NULL);
    return request;
}

static struct import_request *post_receive(struct way *way, size_t at, size_t room)
{
    struct import_request *request = NULL;

    CHECK(import_comm_irecv(way->receiver, way->to + at, room, 0, way->to_memory, &request) ==
          TCPX_SUCCESS);
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

    while (!sent || !received) {
        if (!sent)
            CHECK(import_request_test(send, &sent, &bytes) == TCPX_SUCCESS);
        if (!received)
            CHECK(import_request_test(receive, &received, &bytes) == TCPX_SUCCESS);
        CHECK(!deadline_passed(deadline));
    }
}

static void end_way(struct way *way)
{
    CHECK(import_comm_close(way->sender, true) == TCPX_SUCCESS);
    CHECK(import_comm_close(way->receiver, true) == TCPX_SUCCESS);
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

static void case_tokens(const uint8_t *argument)
{
    static const size_t classes[] = {0,    1,    15,   1447,      1448,      1449,
                                     4095, 4096, 4097, CHUNK / 2, CHUNK - 1, CHUNK};
    const char *text = getenv("TCPX_TEST_TRANSFERS");
    long transfers = text != NULL ? strtol(text, NULL, 10) : 64;
    const struct quirky_counts *counts;
    struct way way;

    use_sockets();
    way = make_way(version_in(argument), (size_t)8 * CHUNK);
    counts = counts_of(version_in(argument));
    CHECK(import_comm_longest(way.sender) == CHUNK && import_comm_longest(way.receiver) == CHUNK);
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        for (long moved = 0; moved < transfers; moved += 8)
            move_window(&way, classes[i], (uint64_t)moved);
    CHECK(counts->lost_pages == 0);
    CHECK(counts->free_pages == (version_in(argument) >= FIRST ? POOL : 0));
    end_way(&way);
}

/*
 * A request is never longer than a chunk of the plugin, however many sockets it has: no two chunks
 * of one meet on a socket, and no page of its pool is lost. Its sockets are steered: what is meant
 * for host memory arrives there all the same.
 */
TEST(tokens, run_each_quirky)

/* --- closing ------------------------------------------------------------------------------- */

static int pipe_ends[2];

static void tell(int end, const void *what, size_t bytes)
{
    CHECK(write(end, what, bytes) == (ssize_t)bytes);
}

static void hear(int end, void *what, size_t bytes)
{
    CHECK(read(end, what, bytes) == (ssize_t)bytes);
}

static void case_close(const uint8_t *argument)
{
    enum { COUNT = 12, LATE_MS = 700 };
    struct way way = make_way(version_in(argument), (size_t)COUNT * PIECE);
    struct import_request *receives[COUNT];
    struct import_request *send = NULL;
    uint64_t since;

    for (size_t i = 0; i < (size_t)COUNT * PIECE; i++)
        way.from[i] = byte_at(3, i);
    for (size_t i = 0; i < COUNT; i++)
        send = post_send(&way, i * PIECE, PIECE);
    finish(send, NULL);
    CHECK(import_comm_close(way.sender, false) == TCPX_SUCCESS);
    memset(way.from, 0, (size_t)COUNT * PIECE);
    CHECK(held_count() > 0);
    usleep(LATE_MS * 1000);
    for (size_t i = 0; i < COUNT; i++)
        receives[i] = post_receive(&way, i * PIECE, PIECE);
    for (size_t i = 0; i < COUNT; i++)
        finish(NULL, receives[i]);
    for (size_t i = 0; i < (size_t)COUNT * PIECE; i++)
        CHECK(way.to[i] == byte_at(3, i));
    CHECK(import_comm_close(way.receiver, true) == TCPX_SUCCESS);
    since = clock_now();
    while (held_count() > 0)
        CHECK(clock_now() - since < 5000000000);
}

/* What was sent and is done arrives, although the receiver first looks long after the close. */
TEST(close, run_each_at_once)

static void case_close_waits(const uint8_t *argument)
{
    struct way way;
    struct import_request *last;
    uint64_t since;
    int result;

    setenv("UCCL_TCPX_TIMEOUT_MS", "1000", 1);
    way = make_way(version_in(argument), PIECE);
    finish(post_send(&way, 0, PIECE), post_receive(&way, 0, PIECE));
    last = post_receive(&way, 0, PIECE);
    since = clock_now();
    CHECK(import_comm_close(way.sender, false) == TCPX_SUCCESS);
    result = result_of(last, DEADLINE_MS);
    CHECK(result == TCPX_SYSTEM_ERROR && said("test failed"));
    CHECK(clock_now() - since > 500000000);
    CHECK(held_count() == 0);
}

/* A receiver that waits for more than was sent learns after UCCL_TCPX_TIMEOUT_MS that nothing
 * comes. */
TEST(close_waits, run_child, 8)

/* Sends, closes and exits, all at once. */
static void case_sender_exits(const uint8_t *argument)
{
    struct way way = {.plugin = open_plugin(version_in(argument)), .bytes = PIECE};
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);
    uint8_t handle[NET_TABLE_HANDLE_BYTES];

    hear(pipe_ends[0], handle, sizeof handle);
    while (way.sender == NULL) {
        CHECK(import_comm_connect(way.plugin, 0, handle, &way.sender) == TCPX_SUCCESS);
        CHECK(!deadline_passed(deadline));
    }
    way.from = malloc(PIECE);
    CHECK(way.from != NULL);
    memset(way.from, 0x5A, PIECE);
    way.from_memory = register_host_memory(way.sender, way.from, PIECE);
    finish(post_send(&way, 0, PIECE), NULL);
    CHECK(import_comm_close(way.sender, false) == TCPX_SUCCESS);
    nursery_shared->flag = 1;
    exit(0); /* NOLINT(concurrency-mt-unsafe): no other thread of this test exits */
}

static void case_receiver_is_late(const uint8_t *argument)
{
    enum { LATE_MS = 700 };
    struct way way = {.plugin = open_plugin(version_in(argument)), .bytes = PIECE};
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);
    uint8_t handle[NET_TABLE_HANDLE_BYTES];
    struct import_listener *listener;

    CHECK(import_comm_listen(way.plugin, 0, handle, &listener) == TCPX_SUCCESS);
    tell(pipe_ends[1], handle, sizeof handle);
    while (way.receiver == NULL) {
        CHECK(import_comm_accept(listener, &way.receiver) == TCPX_SUCCESS);
        CHECK(!deadline_passed(deadline));
    }
    while (nursery_shared->flag == 0)
        CHECK(!deadline_passed(deadline));
    usleep(LATE_MS * 1000);
    way.to = calloc(1, PIECE);
    CHECK(way.to != NULL);
    way.to_memory = register_host_memory(way.receiver, way.to, PIECE);
    finish(NULL, post_receive(&way, 0, PIECE));
    CHECK(way.to[0] == 0x5A && way.to[PIECE - 1] == 0x5A);
    CHECK(import_comm_close(way.receiver, true) == TCPX_SUCCESS);
}

/* The same of a sender whose process ends at once. */
static void test_close_and_exit(void **state)
{
    (void)state;
    for (int version = OLDEST; version <= NEWEST; version += 3) {
        pid_t receiver;
        pid_t sender;

        nursery_shared->flag = 0;
        receiver = nursery_fork(case_receiver_is_late, &version, sizeof version);
        sender = nursery_fork(case_sender_exits, &version, sizeof version);
        check_status(nursery_wait(sender), version);
        check_status(nursery_wait(receiver), version);
    }
}

/* --- the end of the process ---------------------------------------------------------------- */

/* Both ends of messages that the plugin does not survive. */
static void move_until_the_end(int version, size_t bytes)
{
    struct way way = make_way(version, bytes);

    for (int i = 0; i < 100; i++)
        finish(post_send(&way, 0, bytes), post_receive(&way, 0, bytes));
    _exit(0);
}

static void case_linear(const uint8_t *argument)
{
    dup2(pipe_ends[1], STDERR_FILENO);
    setenv("QUIRKY_LINEAR", "5", 1);
    move_until_the_end(version_in(argument), 65536);
}

static void case_fragments(const uint8_t *argument)
{
    dup2(pipe_ends[1], STDERR_FILENO);
    setenv("QUIRKY_FRAGMENT_BYTES", "16", 1);
    move_until_the_end(version_in(argument), 524288);
}

static void *keep_asking(void *argument)
{
    while (true)
        (void)!result_of(argument, 1000000);
    return NULL;
}

static void case_own_exit(const uint8_t *argument)
{
    struct way way;
    pthread_t thread;

    dup2(pipe_ends[1], STDERR_FILENO);
    way = make_way(version_in(argument), PIECE);
    CHECK(pthread_create(&thread, NULL, keep_asking, post_receive(&way, 0, PIECE)) == 0);
    usleep(50000);
    exit(3); /* NOLINT(concurrency-mt-unsafe): no other thread of this test exits */
}

/* What `run` has left on standard error, with its status. */
static int status_and_words(nursery_run *run, int version, char *words, size_t room)
{
    int status = nursery_wait(nursery_fork(run, &version, sizeof version));
    ssize_t got;

    assert_int_equal(write(pipe_ends[1], "\n", 1), 1);
    got = read(pipe_ends[0], words, room - 1);
    assert_true(got > 0);
    words[got] = '\0';
    return status;
}

static void check_last_words(nursery_run *run, const char *expected)
{
    for (int version = FIRST; version <= NEWEST; version++) {
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
static void test_exit(void **state)
{
    (void)state;
    check_last_words(case_linear, "landed on host memory");
    check_last_words(case_fragments, "more than 2048 fragments");
}

/* A program that exits while its threads are in the plugin is not told that. */
static void test_own_exit(void **state)
{
    char words[2000];
    int status = status_and_words(case_own_exit, NEWEST, words, sizeof words);

    (void)state;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 3);
    assert_null(strstr(words, "has ended the process"));
}

/* --- the size of its chunks ---------------------------------------------------------------- */

struct setting {
    int version;
    bool is_good;
    char text[32];
};

static void case_chunk_size(const uint8_t *argument)
{
    const struct import_plugin *plugin = NULL;
    struct setting setting;
    int result;

    memcpy(&setting, argument, sizeof setting);
    setenv(chunk_variable, setting.text, 1);
    result = import_open(file_of(setting.version), &plugin);
    if (!setting.is_good) {
        CHECK(result == TCPX_INVALID_USAGE && plugin == NULL);
        CHECK(said(chunk_variable) && said(setting.text) && said("524288"));
        CHECK(counts_of(setting.version)->inits == 0); /* it has not read it yet */
        return;
    }
    CHECK(result == TCPX_SUCCESS);
    CHECK(plugin->longest == counts_of(setting.version)->chunk_bytes ||
          (plugin->longest == 2 << 20 && counts_of(setting.version)->chunk_bytes > 2 << 20));
    setenv(chunk_variable, "77", 1); /* too late for the plugin, and for us */
    CHECK(plugin->longest != 77);
}

/* A value that the plugin would read as another is refused; about others both agree. */
static void test_chunk_size(void **state)
{
    static const struct setting settings[] = {
        {0, false, "0"},       {0, false, "512K"},
        {0, false, "garbage"}, {0, false, "-4096"},
        {0, false, "1e6"},     {0, false, "99999999999999999999"},
        {0, false, " "},       {0, true, ""},
        {0, true, "4096"},     {0, true, "0x10000"},
        {0, true, "1"},        {0, true, " 65536"},
        {0, true, "4194304"},  {0, false, "2147483648"},
    };

    (void)state;
    for (int version = OLDEST; version <= NEWEST; version++)
        for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
            struct setting setting = settings[i];
            int status;

            setting.version = version;
            status = nursery_wait(nursery_fork(case_chunk_size, &setting, sizeof setting));
            if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
                fail_msg("table %d, '%s': %s", version, setting.text,
                         (char *)nursery_shared->bytes);
        }
}

static void case_started_without(const uint8_t *argument)
{
    const struct import_plugin *plugin = NULL;
    struct import_table theirs;
    void *library = dlopen(file_of(version_in(argument)), RTLD_NOW | RTLD_LOCAL);

    CHECK(library != NULL && import_table_find(library, &theirs) == TCPX_SUCCESS);
    CHECK(import_table_init(&theirs) == TCPX_SUCCESS);
    CHECK(import_open(file_of(version_in(argument)), &plugin) == TCPX_INVALID_USAGE);
    CHECK(said(chunk_variable) && said("somebody else"));
}

/* Somebody else has started it without one: it moves chunks of 0 bytes, whatever is set now. */
TEST(started_without, run_each_quirky)

/* --- no PCI path --------------------------------------------------------------------------- */

static void case_no_pci_path(const uint8_t *argument)
{
    struct way way = {.plugin = NULL};
    struct import_memory *memory;
    struct gpu_memory on_gpu;
    struct gpu *gpu;

    setenv("QUIRKY_PCI", "0", 1);
    CHECK(gpu_open(0, &gpu) == TCPX_SUCCESS);
    CHECK(gpu_memory_alloc(gpu, PAGE, PAGE, &on_gpu) == TCPX_SUCCESS);
    way.plugin = open_plugin(version_in(argument));
    CHECK(try_accept(way.plugin, &way) == TCPX_INVALID_USAGE);
    CHECK(said("quirky0 has no PCI path"));
    CHECK(way.sender != NULL);
    CHECK(import_comm_register(way.sender, (void *)(uintptr_t)on_gpu.address, PAGE,
                               NET_POINTER_CUDA, &memory) == TCPX_INVALID_USAGE);
    CHECK(said("quirky0 has no PCI path"));
}

/* Where the plugin would crash without the NIC's PCI path, it is not asked to. */
TEST(no_pci_path, run_each_unpacking)

/* --- calls that hang ----------------------------------------------------------------------- */

struct hang {
    int version;
    char call[32];
};

static bool is(const struct hang *hang, const char *call)
{
    return strcmp(hang->call, call) == 0;
}

/* One that is left behind has this result and text, after a second. */
#define CHECK_LEFT(call)                                                                           \
    do {                                                                                           \
        uint64_t since_ = clock_now();                                                             \
        CHECK((call) == TCPX_SYSTEM_ERROR);                                                        \
        CHECK(said("has not returned for "));                                                      \
        CHECK(clock_now() - since_ < 10000000000);                                                 \
    } while (0)

static void hang_while_connecting(const struct hang *hang, const struct import_plugin *plugin)
{
    uint8_t handle[NET_TABLE_HANDLE_BYTES];
    struct import_listener *listener = NULL;
    struct net_properties_v12 properties;
    struct import_comm *comm = NULL;

    if (!is(hang, "listen"))
        CHECK(import_comm_listen(plugin, 0, handle, &listener) == TCPX_SUCCESS);
    setenv("QUIRKY_HANG", hang->call, 1);
    if (is(hang, "getProperties"))
        CHECK_LEFT(bounded_properties(plugin, 0, &properties));
    if (is(hang, "listen"))
        CHECK_LEFT(import_comm_listen(plugin, 0, handle, &listener));
    if (is(hang, "connect")) {
        CHECK_LEFT(import_comm_connect(plugin, 0, handle, &comm));
        CHECK(import_comm_connect(plugin, 0, handle, &comm) == TCPX_SYSTEM_ERROR);
        import_comm_connect_forget(plugin, handle);
    }
    if (is(hang, "closeListen"))
        CHECK_LEFT(import_listener_close(listener));
    if (is(hang, "accept")) {
        CHECK_LEFT(import_comm_accept(listener, &comm));
        CHECK(import_comm_accept(listener, &comm) == TCPX_SYSTEM_ERROR);
        CHECK(import_listener_close(listener) == TCPX_SYSTEM_ERROR);
    }
}

static void hang_later(const struct hang *hang, struct way *way)
{
    struct import_request *request = NULL;
    struct import_memory *memory;
    uint8_t bytes[16];

    setenv("QUIRKY_HANG", hang->call, 1);
    if (is(hang, "closeSend")) {
        CHECK_LEFT(import_comm_close(way->sender, false));
        return;
    }
    if (is(hang, "closeRecv")) {
        CHECK_LEFT(import_comm_close(way->receiver, true));
        return;
    }
    if (is(hang, "regMr"))
        CHECK_LEFT(
            import_comm_register(way->receiver, bytes, sizeof bytes, NET_POINTER_HOST, &memory));
    else
        CHECK_LEFT(import_comm_deregister(way->receiver, way->to_memory));
    /* with a call inside, the comm is the plugin's */
    if (is(hang, "regMr"))
        CHECK(import_comm_irecv(way->receiver, way->to, 0, 0, way->to_memory, &request) ==
              TCPX_SYSTEM_ERROR);
    CHECK(import_comm_close(way->receiver, true) == TCPX_SYSTEM_ERROR);
    CHECK(said("has not returned"));
}

static void case_hang(const uint8_t *argument)
{
    const char *timeout_ms = getenv("TCPX_TEST_HANG_MS"); /* a real driver starts slowly */
    struct hang hang;
    struct way other;

    memcpy(&hang, argument, sizeof hang);
    alarm(60);
    setenv("UCCL_TCPX_TIMEOUT_MS", timeout_ms != NULL ? timeout_ms : "1000", 1);
    if (is(&hang, "devices")) {
        const struct import_plugin *plugin;

        setenv("QUIRKY_HANG", hang.call, 1);
        CHECK_LEFT(import_open(file_of(hang.version), &plugin));
        return;
    }
    other = make_way(hang.version, PIECE);
    if (is(&hang, "listen") || is(&hang, "connect") || is(&hang, "accept") ||
        is(&hang, "closeListen") || is(&hang, "getProperties")) {
        hang_while_connecting(&hang, other.plugin);
    } else {
        struct way way = make_way(hang.version, PIECE);

        finish(post_send(&way, 0, PIECE), post_receive(&way, 0, PIECE));
        hang_later(&hang, &way);
    }
    unsetenv("QUIRKY_HANG");
    finish(post_send(&other, 0, PIECE), post_receive(&other, 0, PIECE));
    end_way(&other);
}

/* A call of the plugin that does not return is left behind in time, and other comms go on. */
static void test_hang(void **state)
{
    static const char *const calls[] = {"devices",   "getProperties", "listen",  "connect",
                                        "accept",    "regMr",         "deregMr", "closeSend",
                                        "closeRecv", "closeListen"};
    enum { COUNT = sizeof calls / sizeof *calls };
    pid_t pids[COUNT];

    (void)state;
    for (int version = OLDEST; version <= NEWEST; version += 3) {
        for (int i = 0; i < COUNT; i++) {
            struct hang hang = {.version = version};

            snprintf(hang.call, sizeof hang.call, "%s", calls[i]);
            pids[i] = nursery_fork(case_hang, &hang, sizeof hang);
        }
        for (int i = 0; i < COUNT; i++) {
            int status = nursery_wait(pids[i]);

            if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
                fail_msg("table %d, %s: status %d: %s", version, calls[i], status,
                         (char *)nursery_shared->bytes);
        }
    }
}

/* --- receives that are too short ----------------------------------------------------------- */

static void case_short(const uint8_t *argument)
{
    struct way way = make_way(version_in(argument), 8192);
    struct import_request *receive;

    memset(way.from, 0x5A, 8192);
    memset(way.to, 0xA5, 8192);
    finish(post_send(&way, 0, 1000), post_receive(&way, 0, 2000)); /* that is no fault */
    CHECK(way.to[999] == 0x5A && way.to[1000] == 0xA5);
    receive = post_receive(&way, 0, 1000);
    finish(post_send(&way, 0, 5000), NULL);
    CHECK(result_of(receive, DEADLINE_MS) == TCPX_REMOTE_ERROR);
    CHECK(said(QUIRKY_NAME) && said("1000"));
    for (size_t i = 1000; i < 8192; i++)
        CHECK(way.to[i] == 0xA5);
}

/* A message that is longer than its receive is an error, and nothing behind it is overwritten. */
TEST(short, run_each_quirky)

static void case_short_on_host(const uint8_t *argument)
{
    setenv("QUIRKY_CUDA", "0", 1);
    case_short(argument);
}

/* The same where the plugin receives into host memory itself. */
TEST(short_on_host, run_each_quirky)

static void case_far_too_long(const uint8_t *argument)
{
    enum { LONG = 3 * CHUNK };
    struct pair raw = {.polls = 0};
    struct way way = {.bytes = LONG};
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);
    uint8_t handle[NET_TABLE_HANDLE_BYTES];
    struct import_listener *listener;
    struct import_request *receive;
    void *request;
    int done = 0;
    uint64_t bytes;

    setenv("QUIRKY_CUDA", "0", 1);
    setenv(chunk_variable, "16384", 1);
    way.plugin = open_plugin(version_in(argument));
    raw.table = &way.plugin->table;
    CHECK(import_comm_listen(way.plugin, 0, handle, &listener) == TCPX_SUCCESS);
    while (raw.sender == NULL || way.receiver == NULL) {
        if (raw.sender == NULL)
            CHECK(import_connect(raw.table, 0, handle, &raw.sender) == TCPX_SUCCESS);
        if (way.receiver == NULL)
            CHECK(import_comm_accept(listener, &way.receiver) == TCPX_SUCCESS);
        CHECK(!deadline_passed(deadline));
    }
    way.from = malloc(LONG);
    way.to = calloc(1, LONG);
    CHECK(way.from != NULL && way.to != NULL);
    memset(way.from, 0x5A, LONG);
    way.to_memory = register_host_memory(way.receiver, way.to, LONG);
    receive = post_receive(&way, 0, 100);
    CHECK(import_isend(raw.table, raw.sender, way.from, LONG, 0,
                       register_host(&raw, raw.sender, way.from, LONG), &request) == TCPX_SUCCESS);
    while (done == 0)
        CHECK(import_test(raw.table, request, &done, &bytes) == TCPX_SUCCESS);
    CHECK(result_of(receive, 200) != TCPX_SUCCESS);
    for (size_t i = 0; i < LONG; i++)
        CHECK(way.to[i] == 0);
}

/* Nor by a peer that keeps to no limit at all. */
TEST(far_too_long, run_each_quirky)

/* --- handles ------------------------------------------------------------------------------- */

static void case_sockets_in_handle(const uint8_t *argument)
{
    static const int32_t counts[] = {0, -1, 9, 1 << 30};
    const struct import_plugin *plugin = open_plugin(version_in(argument));
    uint8_t handle[NET_TABLE_HANDLE_BYTES];
    struct import_listener *listener;
    struct import_comm *comm;

    CHECK(import_comm_listen(plugin, 0, handle, &listener) == TCPX_SUCCESS);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        memcpy(handle + 36, &counts[i], sizeof counts[i]);
        CHECK(import_comm_connect(plugin, 0, handle, &comm) == TCPX_INVALID_ARGUMENT);
        CHECK(said("sockets"));
    }
}

/* A handle of a peer with more sockets than the plugin has room for does not get there. */
TEST(sockets_in_handle, run_each_quirky)

/* test_plugin_faults [pattern] */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens),       cmocka_unit_test(test_close),
        cmocka_unit_test(test_close_waits),  cmocka_unit_test(test_close_and_exit),
        cmocka_unit_test(test_exit),         cmocka_unit_test(test_own_exit),
        cmocka_unit_test(test_chunk_size),   cmocka_unit_test(test_started_without),
        cmocka_unit_test(test_no_pci_path),  cmocka_unit_test(test_hang),
        cmocka_unit_test(test_short),        cmocka_unit_test(test_short_on_host),
        cmocka_unit_test(test_far_too_long), cmocka_unit_test(test_sockets_in_handle),
    };

    forget_environment();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (pipe(pipe_ends) != 0)
        return 1;
    nursery_start();
    return cmocka_run_group_tests_name("plugin-faults", tests, NULL, NULL);
}
