/*
 * What the tests of the plugin share: all versions loaded once, two ends of a connection, messages
 * that can be told apart, and processes that are counted by what they hold. Its assertions work in
 * child_fork() and child_exec() too: there they end the process.
 */
#ifndef TCPX_TESTS_PLUGIN_TEST_H
#define TCPX_TESTS_PLUGIN_TEST_H

#include "tests/limit.h"
#include "tests/plugin/plugin_driver.h"
#include "tests/skip.h"
#include "tests/support/basics.h"
#include "tests/support/child.h"
#include "tests/support/guard_page.h"
#include "tests/support/suite.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_MS (limit_ms(60000))
#define SOON_MS  (limit_ms(10000))

/* What "at once" is at most, for a close that waits for nobody. */
#define CLOSE_MS limit_ms(SANITIZED ? 5000 : 1000)

#define assert_works(call)                                                                         \
    do {                                                                                           \
        int result_ = (call);                                                                      \
        if (result_ != NCCL_SUCCESS)                                                               \
            fail_msg("%s: %d: %s", #call, result_, plugin_log_last());                             \
    } while (0)

/* --- time and amounts ------------------------------------------------------------------------ */

/* True; a test that is still in its loop at the deadline has failed. */
#define in_time(deadline) (assert_true(now_ms() < (deadline)), true)

/* Waits a little until there are so many again: what ends in the background takes its moment. */
static inline bool settles(int (*count)(void), int expected)
{
    uint64_t deadline = now_ms() + limit_ms(2000);

    while (count() != expected) {
        if (now_ms() > deadline)
            return false;
        nap_ms(1);
    }
    return true;
}

static inline long resident_kib(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long total = 0;
    long resident = 0;

    if (file == NULL || fscanf(file, "%ld %ld", &total, &resident) != 2)
        resident = 0;
    if (file != NULL)
        fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static inline const char *mode(void)
{
    const char *set = getenv("UCCL_TCPX_PLUGIN_MODE");

    return set != NULL ? set : "host";
}

static inline bool mode_is(const char *name)
{
    return strcmp(mode(), name) == 0;
}

/* --- the plugin ------------------------------------------------------------------------------ */

static void *library;
static struct plugin plugins[LAST_VERSION + 1]; /* by version */

/* Loopback only, whatever the environment says. Before anything is loaded. */
static inline int stay_on_loopback(void)
{
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    unsetenv("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME");
    return 0;
}

/* For a group of tests, and for a process of its own: not 0 if something does not work. */
static inline int load_all(void)
{
    library = plugin_load();
    if (library == NULL)
        return -1;
    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++)
        if (!plugin_find(library, version, &plugins[version]) ||
            plugin_init(&plugins[version]) != NCCL_SUCCESS) {
            fprintf(stderr, "version %d: %s\n", version, plugin_log_last());
            return -1;
        }
    return 0;
}

static inline int unload_all(void)
{
    int result = 0;

    if (library == NULL) /* cmocka comes here also when the set-up has failed */
        return -1;
    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++)
        if (plugins[version].table != NULL)
            result |= plugin_finalize(&plugins[version]);
    return result | dlclose(library);
}

/* Another communicator of this process. */
static inline struct plugin another_context(const struct plugin *plugin)
{
    struct plugin other = *plugin;

    other.context = NULL;
    assert_works(plugin_init(&other));
    return other;
}

/* --- two ends -------------------------------------------------------------------------------- */

struct pair {
    const struct plugin *from;
    const struct plugin *to;
    void *sender;
    void *receiver;
    void *listening;
    uint8_t handle[HANDLE_BYTES];
    struct nccl_device_handle *devices[2]; /* what connect and accept may fill in, or NULL */
};

/* Nothing but a listener. */
static inline void pair_listen(struct pair *pair, const struct plugin *from,
                               const struct plugin *to)
{
    *pair = (struct pair){.from = from, .to = to};
    assert_works(plugin_listen(to, 0, pair->handle, &pair->listening));
    assert_non_null(pair->listening);
}

static inline void pair_close_listen(struct pair *pair)
{
    assert_works(pair->to->table->close_listen(pair->listening));
    pair->listening = NULL;
}

/* One call, unless that end is there. */
static inline void pair_connect(struct pair *pair)
{
    if (pair->sender == NULL)
        assert_works(plugin_connect(pair->from, 0, pair->handle, &pair->sender, &pair->devices[0]));
}

static inline void pair_accept(struct pair *pair)
{
    if (pair->receiver == NULL)
        assert_works(plugin_accept(pair->to, pair->listening, &pair->receiver, &pair->devices[1]));
}

/* Until both ends are there, as one thread of NCCL's may do. The listener is closed. */
static inline void pair_meet(struct pair *pair)
{
    uint64_t deadline = now_ms() + LIMIT_MS;

    while ((pair->sender == NULL || pair->receiver == NULL) && in_time(deadline)) {
        pair_connect(pair);
        pair_accept(pair);
    }
    pair_close_listen(pair);
}

static inline void pair_open(struct pair *pair, const struct plugin *plugin)
{
    pair_listen(pair, plugin, plugin);
    pair_meet(pair);
}

static inline void pair_close_sender(struct pair *pair)
{
    assert_works(pair->from->table->close_send(pair->sender));
    pair->sender = NULL;
}

static inline void pair_close_receiver(struct pair *pair)
{
    assert_works(pair->to->table->close_recv(pair->receiver));
    pair->receiver = NULL;
}

/* What is open of it. */
static inline void pair_close(struct pair *pair)
{
    if (pair->sender != NULL)
        pair_close_sender(pair);
    if (pair->receiver != NULL)
        pair_close_receiver(pair);
}

/* Closing waits for nobody. */
static inline void pair_close_at_once(struct pair *pair, bool sender_first)
{
    uint64_t before = now_ms();

    if (sender_first)
        pair_close_sender(pair);
    pair_close_receiver(pair);
    pair_close(pair);
    assert_true(now_ms() - before < CLOSE_MS);
}

/* --- cases ----------------------------------------------------------------------------------- */

/* Bits by version; the other bits say in which modes a case runs only. */
enum {
    ALL_VERSIONS = 0x1fc0,
    WITH_QUEUE = 0x1f80,
    WITH_CONTEXT = 0x1800,
    SOME_VERSIONS = 0x1240, /* for what takes long */
    IN_HOST_MODE = 0x10000,
    IN_UNPACK_MODE = 0x20000,
    WHEN_LATE = 0x40000, /* and only with UCCL_TCPX_TIMEOUT_MS=1000, as no other case */
    LATE_TIMEOUT_MS = 1000
};

#define VERSION(number) (1 << (number))

static inline void plugin_enter(const char *name, CMUnitTestFunction function, int versions,
                                int line)
{
    static char names[256][80];
    static size_t count;

    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++)
        if ((versions & VERSION(version)) != 0 && count < COUNT_OF(names)) {
            intptr_t state = version | (versions & (IN_HOST_MODE | IN_UNPACK_MODE));

            snprintf(names[count], sizeof names[count], "%s_v%d", name, version);
            suite_add(line, (struct CMUnitTest){.name = names[count++],
                                                .test_func = function,
                                                .initial_state = (void *)state});
        }
}

static inline const struct plugin *plugin_of(void *const *state)
{
    return &plugins[(intptr_t)*state & 0xff];
}

/* A test that runs once for each of the versions: its body follows, with `plugin`. */
#define VERSIONS_CASE(name, versions)                                                              \
    static void case_##name(const struct plugin *plugin);                                          \
    static void test_##name(void **state)                                                          \
    {                                                                                              \
        case_##name(plugin_of(state));                                                             \
    }                                                                                              \
    __attribute__((constructor)) static void enter_##name(void)                                    \
    {                                                                                              \
        plugin_enter("test_" #name, test_##name, versions, __LINE__);                              \
    }                                                                                              \
    static void case_##name(const struct plugin *plugin)

/* The same with something that KIND_open() opens for it, and KIND_close() closes. */
#define OPENED_CASE(kind, variable, name, versions)                                                \
    static void opened_case_##name(const struct plugin *plugin, struct kind *variable);            \
    VERSIONS_CASE(name, versions)                                                                  \
    {                                                                                              \
        static struct kind opened;                                                                 \
                                                                                                   \
        kind##_open(&opened, plugin);                                                              \
        opened_case_##name(plugin, &opened);                                                       \
        kind##_close(&opened);                                                                     \
    }                                                                                              \
    static void opened_case_##name(const struct plugin *plugin __attribute__((unused)),            \
                                   struct kind *variable __attribute__((unused)))

/* Of the pair, what is left open is closed. */
#define PAIR_CASE(name, versions) OPENED_CASE(pair, pair, name, versions)

static inline bool plugin_wants(intptr_t state)
{
    bool is_late = number_of("UCCL_TCPX_TIMEOUT_MS", 0) == LATE_TIMEOUT_MS;

    return ((state & IN_HOST_MODE) == 0 || mode_is("host")) &&
           ((state & IN_UNPACK_MODE) == 0 || mode_is("unpack")) &&
           ((state & WHEN_LATE) != 0) == is_late;
}

/*
 * NCCL's proxy makes no call on an idle comm, and a straggler makes none at all: neither is a lost
 * peer. Between beginning and end there is no call for three timeouts.
 */
static inline void be_late(void (*begin)(int version), void (*end)(int version))
{
    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++)
        begin(version);
    nap_ms(3 * LATE_TIMEOUT_MS);
    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++)
        end(version);
}

/* The rest of a program of these tests. */
#define PLUGIN_SUITE(about, how_to_begin)                                                          \
    SUITE(.name = about, .begin = how_to_begin, .set_up = load_all, .tear_down = unload_all,       \
          .wants = plugin_wants)

/* Runs this program as a child, with these variables and no others. */
static inline int plugin_exec(const char *name, const char *const *variables)
{
    char plugin[4200];
    const char *all[16] = {plugin};

    snprintf(plugin, sizeof plugin, "TCPX_TEST_PLUGIN=%s", plugin_path());
    for (int i = 0; variables[i] != NULL && i < 14; i++)
        all[i + 1] = variables[i];
    return child_exec(name, all);
}

/* --- messages -------------------------------------------------------------------------------- */

/* Every message is a piece of one text, by its number, so that one in another's place shows. */
enum { TEXT_LONGEST = 4 << 20, TEXT_STARTS = 65521 };

static inline uint8_t *text_of(uint64_t number)
{
    static uint8_t *text;

    if (text == NULL) {
        uint64_t state = 0x1234567;
        uint64_t word;

        text = malloc(TEXT_LONGEST + TEXT_STARTS + sizeof word);
        if (text == NULL)
            abort();
        for (size_t i = 0; i < TEXT_LONGEST + TEXT_STARTS; i += sizeof word) {
            word = random_next(&state);
            memcpy(text + i, &word, sizeof word);
        }
    }
    return text + number * 7919 % TEXT_STARTS;
}

/* A buffer between bytes that are looked at and a page that nobody may touch. */
enum { MARGIN = 64, MARK = 0xee, ROOM_MOST = TEXT_LONGEST + 5000 };

/* One of just so many bytes, all marked; until the next call. */
static inline uint8_t *guarded_buffer(size_t room)
{
    static uint8_t *end;

    if (end == NULL)
        end = guard_page_after(MARGIN + ROOM_MOST);
    assert_true(end != NULL && room <= ROOM_MOST);
    memset(end - room - MARGIN, MARK, room + MARGIN);
    return end - room;
}

static inline bool all_marked(const uint8_t *at, size_t count)
{
    return count == 0 || (at[0] == MARK && memcmp(at, at + 1, count - 1) == 0);
}

/* It has the message, and nothing around that was touched. */
static inline void assert_holds(const uint8_t *buffer, size_t room, const uint8_t *message,
                                size_t bytes)
{
    assert_true(bytes <= room);
    if (bytes > 0 && memcmp(buffer, message, bytes) != 0)
        fail_msg("a message of %zu bytes is wrong", bytes);
    if (!all_marked(buffer - MARGIN, MARGIN) || !all_marked(buffer + bytes, room - bytes))
        fail_msg("bytes around a message of %zu were written", bytes);
}

/* --- requests -------------------------------------------------------------------------------- */

/* A comm may be busy for a moment. `memory` is a registration, or NULL for host memory. */
static inline void *start_send_of(const struct pair *pair, void *data, int64_t bytes, void *memory)
{
    uint64_t deadline = now_ms() + LIMIT_MS;
    void *request = NULL;

    while (request == NULL && in_time(deadline))
        assert_works(plugin_isend(pair->from, pair->sender, data, bytes, 0, memory, &request));
    return request;
}

static inline void *start_receive_of(const struct pair *pair, void *data, int64_t room,
                                     void *memory)
{
    uint64_t deadline = now_ms() + LIMIT_MS;
    void *request = NULL;

    while (request == NULL && in_time(deadline))
        assert_works(plugin_irecv(pair->to, pair->receiver, data, room, 0, memory, &request));
    return request;
}

static inline void *start_send(const struct pair *pair, void *data, int64_t bytes)
{
    return start_send_of(pair, data, bytes, NULL);
}

static inline void *start_receive(const struct pair *pair, void *data, int64_t room)
{
    return start_receive_of(pair, data, room, NULL);
}

/* Until both are done; the other end is moved on, too, since there may be no thread that does. */
static inline int finish_both(const struct pair *pair, void *send, void *receive)
{
    uint64_t deadline = now_ms() + LIMIT_MS;
    int bytes = 0;
    int sent = send == NULL;
    int received = receive == NULL;

    while ((!sent || !received) && in_time(deadline)) {
        if (!sent)
            assert_works(pair->from->table->test(send, &sent, NULL));
        if (!received)
            assert_works(pair->to->table->test(receive, &received, &bytes));
    }
    return bytes;
}

/* As finish_both(), where the message is longer than its receive: only that must fail. */
static inline void finish_too_long(const struct pair *pair, void *send, void *receive)
{
    uint64_t deadline = now_ms() + SOON_MS;
    int sending = NCCL_SUCCESS;
    int receiving = NCCL_SUCCESS;
    int sent = 0;
    int received = 0;

    while ((receiving == NCCL_SUCCESS || (sending == NCCL_SUCCESS && !sent)) && in_time(deadline)) {
        if (sending == NCCL_SUCCESS && !sent)
            sending = pair->from->table->test(send, &sent, NULL);
        if (receiving == NCCL_SUCCESS)
            receiving = pair->to->table->test(receive, &received, NULL);
        assert_false(received);
    }
    assert_int_equal(receiving, NCCL_INVALID_USAGE);
    assert_true(sent || sending == NCCL_INVALID_USAGE);
}

/* Until the request is done, or fails with the result that is returned. */
static inline int result_of(const struct plugin *plugin, void *request, uint64_t deadline)
{
    int result = NCCL_SUCCESS;
    int done = 0;

    while (result == NCCL_SUCCESS && !done && in_time(deadline))
        result = plugin->table->test(request, &done, NULL);
    return result;
}

/* What the end of the peer is. */
static inline void assert_is_loss(int result)
{
    assert_true(result == NCCL_SYSTEM || result == NCCL_REMOTE);
}

static inline void consume(const struct pair *pair, void *receive)
{
    assert_works(plugin_consumed(pair->to, pair->receiver, receive));
}

/* One message, of this number, into a buffer of at least its size. */
static inline void move_message(const struct pair *pair, uint64_t number, size_t bytes,
                                uint8_t *buffer, size_t room)
{
    void *receive = start_receive(pair, buffer, (int64_t)room);
    void *send = start_send(pair, text_of(number), (int64_t)bytes);

    assert_int_equal(finish_both(pair, send, receive), bytes);
    consume(pair, receive);
    if (bytes > 0 && memcmp(buffer, text_of(number), bytes) != 0)
        fail_msg("message %d of %zu bytes is wrong", (int)number, bytes);
}

/* That a pair works: something small and something that is more than a socket takes at once. */
static inline void assert_pair_moves(const struct pair *pair)
{
    static _Thread_local uint8_t buffer[200000];

    move_message(pair, 1, 100, buffer, sizeof buffer);
    move_message(pair, 2, sizeof buffer, buffer, sizeof buffer);
}

/* Opens a pair that works, and closes it. */
static inline void assert_plugin_moves(const struct plugin *plugin)
{
    struct pair pair;

    pair_open(&pair, plugin);
    assert_pair_moves(&pair);
    pair_close(&pair);
}

#endif
