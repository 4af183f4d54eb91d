/*
 * What the tests share that drive the quirky plugin through src/plugin_host: processes, the files,
 * a pair of comms. A plugin is a matter of the whole process, so every case runs in one of its own.
 */
#ifndef TCPX_TESTS_QUIRKY_DRIVE_H
#define TCPX_TESTS_QUIRKY_DRIVE_H

#include "tests/unit/nursery.h"

#include "base/clock.h"
#include "plugin_host/loader.h"
#include "tests/limit.h"
#include "tests/quirky_plugin/quirky.h"
#include "tests/skip.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

enum { OLDEST = 6, NEWEST = 12, OWN = 0 };

#define DEADLINE_MS limit_ms(20000)

/* --- processes ----------------------------------------------------------------------------- */

/* In a child: says what is wrong where the parent finds it, and ends. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            complain(__FILE__, __LINE__, #condition);                                              \
    } while (0)

static inline _Noreturn void complain(const char *where, int line, const char *what)
{
    snprintf((char *)nursery_shared->bytes, sizeof nursery_shared->bytes, "%s:%d: %s; %s", where,
             line, what, error_text());
    _exit(1);
}

static inline void run_child(nursery_run *run, int version)
{
    int status = nursery_wait(nursery_fork(run, &version, sizeof version));

    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    if (WIFSIGNALED(status))
        fail_msg("table %d: signal %d", version, WTERMSIG(status));
    fail_msg("table %d: %s", version, (char *)nursery_shared->bytes);
}

static inline void run_each_quirky(nursery_run *run)
{
    for (int version = OLDEST; version <= NEWEST; version++)
        run_child(run, version);
}

/* The quirky plugin in each version, and our own. */
static inline void run_each(nursery_run *run)
{
    run_each_quirky(run);
    run_child(run, OWN);
}

/* What one child shows. */
#define TEST(name, how, ...)                                                                       \
    static void test_##name(void **state)                                                          \
    {                                                                                              \
        (void)state;                                                                               \
        how(case_##name __VA_OPT__(, ) __VA_ARGS__);                                               \
    }

static inline int version_in(const uint8_t *argument)
{
    int version;

    memcpy(&version, argument, sizeof version);
    return version;
}

/* --- files --------------------------------------------------------------------------------- */

/* Absolute, since a test goes to other folders. */
static inline const char *folder(void)
{
    static char path[PATH_MAX];
    const char *given = getenv("TCPX_TEST_PLUGINS");
    char program[PATH_MAX - 16];
    char beside[PATH_MAX];
    ssize_t length;

    if (*path != '\0')
        return path;
    length = readlink("/proc/self/exe", program, sizeof program - 1);
    CHECK(length > 0);
    program[length] = '\0';
    *strrchr(program, '/') = '\0';
    snprintf(beside, sizeof beside, "%s/../..", program);
    CHECK(realpath(given != NULL ? given : beside, path) != NULL);
    return path;
}

/* Good until the next call. */
static inline const char *file(const char *name)
{
    static char path[PATH_MAX + 64];

    snprintf(path, sizeof path, "%s/%s", folder(), name);
    return path;
}

static inline const char *file_of(int version)
{
    char name[64] = "libnccl-net-tcpx.so";

    if (version != OWN)
        snprintf(name, sizeof name, "tests/quirky_plugin/libquirky_v%d.so", version);
    return file(name);
}

static inline const struct import_plugin *open_plugin(int version)
{
    const struct import_plugin *plugin = NULL;

    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    CHECK(import_open(file_of(version), &plugin) == TCPX_SUCCESS);
    CHECK(plugin != NULL);
    CHECK(plugin->devices >= 1);
    CHECK(plugin->table.version == (version == OWN ? NEWEST : version));
    return plugin;
}

static inline const struct quirky_counts *counts_of(int version)
{
    void *library = dlopen(file_of(version), RTLD_NOW | RTLD_NOLOAD);
    const struct quirky_counts *counts = library != NULL ? dlsym(library, "quirky_counts") : NULL;

    CHECK(counts != NULL);
    return counts;
}

/* --- the log ------------------------------------------------------------------------------- */

static char log_text[65536];

static inline void keep_line(int level, unsigned long flags, const char *from, int line,
                             const char *format, ...)
{
    size_t used = strlen(log_text);
    va_list arguments;

    (void)level;
    (void)flags;
    (void)from;
    (void)line;
    va_start(arguments, format);
    vsnprintf(log_text + used, sizeof log_text - used, format, arguments);
    va_end(arguments);
}

static inline bool logged(const char *text)
{
    return strstr(log_text, text) != NULL;
}

static inline bool said(const char *text)
{
    return strstr(error_text(), text) != NULL;
}

/* A failure of the quirky plugin, with a text that names it and the call. */
#define CHECK_FAILS(call, result, name)                                                            \
    do {                                                                                           \
        CHECK((call) == (result));                                                                 \
        CHECK(said(QUIRKY_NAME ": " name " failed with"));                                         \
    } while (0)

/* --- the environment ----------------------------------------------------------------------- */

#define chunk_variable "NCCL_DYNAMIC_CHUNK_SIZE"

/* What each case is about is its own affair. */
static inline void forget_environment(void)
{
    static const char *const variables[] = {chunk_variable,
                                            "UCCL_TCPX_PLUGIN_PATH",
                                            "QUIRKY_DEVICES",
                                            "QUIRKY_FRAGMENT_BYTES",
                                            "QUIRKY_FAIL_INIT",
                                            "QUIRKY_INIT_MS",
                                            "QUIRKY_POOL_PAGES",
                                            "QUIRKY_CUDA",
                                            "NCCL_NSOCKS_PERTHREAD",
                                            "NCCL_SOCKET_NTHREADS",
                                            "UCCL_TCPX_PLUGIN_MODE",
                                            "QUIRKY_STEERED",
                                            "QUIRKY_LINEAR",
                                            "QUIRKY_PCI",
                                            "QUIRKY_HANG"};

    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
}

/* --- properties ---------------------------------------------------------------------------- */

/* What the version cannot say is what NCCL fills in. */
static inline void check_filled_in(const struct net_properties_v12 *properties, int version)
{
    CHECK(properties->registration_is_global == (version >= 8 ? 3 : 0));
    CHECK(properties->force_flush == (version >= 9 ? 4 : 0));
    CHECK(properties->parts.count == (version >= 9 ? 2 : 1));
    CHECK(properties->parts.devices[0] == (version >= 9 ? 5 : 0));
    CHECK(properties->parts.devices[1] == (version >= 9 ? 6 : 0));
    CHECK(properties->parts.devices[3] == (version >= 9 ? 9 : 0));
    CHECK(properties->parts.devices[4] == 0 && properties->parts.devices[7] == 0);
    CHECK(properties->max_p2p_bytes == (version >= 9 ? 10000000000 : 1073741824));
    CHECK(properties->max_collective_bytes == (version >= 9 ? 11000000000 : 536870912));
    CHECK(properties->max_multi_request == (version >= 11 ? 12 : 1));
    CHECK(properties->rail == (version >= 12 ? 13 : -1));
    CHECK(properties->plane == (version >= 12 ? 14 : -1));
}

/* Every member of the version's properties. */
static inline void check_properties(int version, bool unpacks)
{
    const struct import_table *table = &open_plugin(version)->table;
    struct net_properties_v12 properties;

    memset(&properties, 0xA5, sizeof properties);
    CHECK(import_properties(table, 0, &properties) == TCPX_SUCCESS);
    CHECK(strcmp(properties.name, "quirky0") == 0 &&
          strcmp(properties.pci_path, QUIRKY_PCI_PATH) == 0);
    CHECK(properties.guid == 0x1122334455667788);
    CHECK(properties.pointer_support == (NET_POINTER_HOST | (unpacks ? NET_POINTER_CUDA : 0)));
    CHECK(properties.speed == 12345 && properties.port == 2);
    CHECK(properties.latency == 1.5f);
    CHECK(properties.max_comms == 65536 && properties.max_receives == 1);
    CHECK(properties.device_type == (unpacks ? NET_DEVICE_UNPACK : NET_DEVICE_HOST));
    CHECK(properties.device_version == (unpacks ? UNPACK_VERSION : 0));
    check_filled_in(&properties, version);
    CHECK_FAILS(import_properties(table, 1, &properties), TCPX_INTERNAL_ERROR, "getProperties");
    CHECK(properties.speed == 12345); /* written on success only */
}

/* --- connections --------------------------------------------------------------------------- */

struct pair {
    const struct import_table *table;
    void *sender;
    void *receiver;
    struct net_device_handle on_gpu;
    int polls;
    uint64_t received; /* receives that were waited for */
};

/* One way, both ends in this process. */
static inline struct pair connect_pair(const struct import_table *table)
{
    struct pair pair = {.table = table};
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);
    uint8_t handle[NET_TABLE_HANDLE_BYTES];
    void *listener;

    memset(handle, 0xA5, sizeof handle);
    CHECK(import_listen(table, 0, handle, &listener) == TCPX_SUCCESS);
    while (pair.sender == NULL || pair.receiver == NULL) {
        if (pair.sender == NULL)
            CHECK(import_connect(table, 0, handle, &pair.sender) == TCPX_SUCCESS);
        if (pair.receiver == NULL)
            CHECK(import_accept(table, listener, &pair.receiver, &pair.on_gpu) == TCPX_SUCCESS);
        CHECK(!deadline_passed(deadline));
        pair.polls++;
    }
    CHECK(import_close_listen(table, listener) == TCPX_SUCCESS);
    return pair;
}

static inline void close_pair(struct pair *pair)
{
    CHECK(import_close_send(pair->table, pair->sender) == TCPX_SUCCESS);
    CHECK(import_close_recv(pair->table, pair->receiver) == TCPX_SUCCESS);
}

/* --- memory and data ----------------------------------------------------------------------- */

static inline void *register_memory(const struct pair *pair, void *comm, void *data, size_t bytes,
                                    int type)
{
    void *memory = NULL;

    CHECK(import_register(pair->table, comm, data, bytes, type, &memory) == TCPX_SUCCESS);
    return memory; /* NULL is as good as any */
}

static inline void *register_host(const struct pair *pair, void *comm, void *data, size_t bytes)
{
    return register_memory(pair, comm, data, bytes, NET_POINTER_HOST);
}

static inline void wait_for(const struct pair *pair, void *request, uint64_t *bytes)
{
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);
    int done = 0;

    while (done == 0) {
        CHECK(import_test(pair->table, request, &done, bytes) == TCPX_SUCCESS);
        CHECK(!deadline_passed(deadline));
    }
}

static inline uint8_t byte_at(uint64_t message, size_t i)
{
    return (uint8_t)(i * 31 + (i >> 8) * 7 + message * 101 + 1);
}

#endif
