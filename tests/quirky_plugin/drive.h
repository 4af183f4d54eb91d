/*
 * What the tests share that drive the quirky plugin through src/plugin_host: processes, the files,
 * the log, the environment. A plugin is a matter of the whole process, so every case runs in one of
 * its own.
 */
#ifndef TCPX_TESTS_QUIRKY_DRIVE_H
#define TCPX_TESTS_QUIRKY_DRIVE_H

#include "tests/support/basics.h"
#include "tests/support/check.h"
#include "tests/support/suite.h"

#include "base/clock.h"
#include "plugin_host/plugin_host.h"
#include "tests/limit.h"
#include "tests/quirky_plugin/quirky.h"
#include "tests/skip.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

/* Versions of tables; OWN: our own plugin. */
enum {
    OWN = 0,
    OLDEST = 6,
    UNPACKING = 7, /* the first with a queue */
    NEWEST = 12
};

enum { CASE_LIMIT_MS = 100000 }; /* for child_limit_ms */

#define DEADLINE_MS limit_ms(20000)

/* True; a case that is still in its loop at the deadline has failed. */
#define in_time(deadline)                                                                          \
    ({                                                                                             \
        CHECK(!deadline_passed(deadline));                                                         \
        true;                                                                                      \
    })

static const char *check_detail(void)
{
    return error_text();
}

/* --- processes ----------------------------------------------------------------------------- */

/* Under the thread sanitizer each of these many processes would end with a second of waiting. */
const char *__tsan_default_options(void);

const char *__tsan_default_options(void)
{
    return "atexit_sleep_ms=0";
}

/* What a child does, with the version of a table, or OWN. */
struct drive_order {
    void (*run)(int version);
    int version;
};

static inline void drive_child(const uint8_t *argument)
{
    const struct drive_order *order = (const void *)argument;

    order->run(order->version);
}

static inline pid_t drive_fork(void (*run)(int version), int version)
{
    struct drive_order order = {run, version};

    return child_fork(drive_child, &order, sizeof order);
}

static inline void drive_judge(int status, int version)
{
    char subject[32];

    snprintf(subject, sizeof subject, "table %d", version);
    child_judge(status, subject);
}

static inline void drive_run(void (*run)(int version), int version)
{
    drive_judge(child_wait(drive_fork(run, version)), version);
}

static inline void run_once(void (*run)(int version))
{
    drive_run(run, OWN);
}

/* The quirky plugin in each version, */
static inline void run_each_quirky(void (*run)(int version))
{
    for (int version = OLDEST; version <= NEWEST; version++)
        drive_run(run, version);
}

/* that can say that receives are unpacked, */
static inline void run_each_unpacking(void (*run)(int version))
{
    for (int version = UNPACKING; version <= NEWEST; version++)
        drive_run(run, version);
}

/* and our own besides. */
static inline void run_each(void (*run)(int version))
{
    run_each_quirky(run);
    run_once(run);
}

/* All versions at the same time: for what mostly waits. */
static inline void run_each_at_once(void (*run)(int version))
{
    pid_t pids[NEWEST + 1];

    for (int version = OLDEST; version <= NEWEST; version++)
        pids[version] = drive_fork(run, version);
    for (int version = OLDEST; version <= NEWEST; version++)
        drive_judge(child_wait(pids[version]), version);
}

/* A test that one of these runs in children: its body follows, with the version. */
#define CASE(name, how)                                                                            \
    static void case_##name(int version);                                                          \
    TEST(test_##name)                                                                              \
    {                                                                                              \
        how(case_##name);                                                                          \
    }                                                                                              \
    static void case_##name(int version __attribute__((unused)))

/* --- files --------------------------------------------------------------------------------- */

/* Absolute, and good until the next call. */
static inline const char *file_of(int version)
{
    char name[64] = "libnccl-net-tcpx.so";

    if (version != OWN)
        snprintf(name, sizeof name, "tests/quirky_plugin/libquirky_v%d.so", version);
    return path_in_build(name);
}

static inline const struct import_plugin *open_plugin(int version)
{
    const struct import_plugin *plugin = NULL;

    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    CHECK_SUCCESS(import_open(file_of(version), &plugin));
    CHECK(plugin != NULL);
    CHECK(plugin->devices >= 1);
    CHECK(plugin->table.version == (version == OWN ? NEWEST : version));
    return plugin;
}

/* It cannot be opened: this result, and a text that contains `words`. */
static inline void check_not_opened(const char *path, int result, const char *words)
{
    const struct import_plugin *plugin = NULL;

    CHECK_ERROR(import_open(path, &plugin), result, words);
    CHECK(plugin == NULL);
}

static inline const struct import_table *open_table(int version)
{
    return &open_plugin(version)->table;
}

/* As somebody else in the process would have it, before we do. */
static inline void load_first(int version, struct import_table *table)
{
    void *library = dlopen(file_of(version), RTLD_NOW | RTLD_LOCAL);

    CHECK(library != NULL);
    CHECK_SUCCESS(import_table_find(library, table));
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

#define said(text) check_said(text)

static inline bool logged(const char *text)
{
    return strstr(log_text, text) != NULL;
}

/* A failure of the quirky plugin, with a text that names it and the call. */
#define CHECK_FAILS_WITH(call, result, name)                                                       \
    do {                                                                                           \
        CHECK((call) == (result));                                                                 \
        CHECK(check_said(QUIRKY_NAME ": " name " failed with"));                                   \
    } while (0)
#define CHECK_FAILS(call, name) CHECK_FAILS_WITH(call, TCPX_INTERNAL_ERROR, name)

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

    for (size_t i = 0; i < COUNT_OF(variables); i++)
        unsetenv(variables[i]);
}

/* --- properties ---------------------------------------------------------------------------- */

/* Every member of the version's properties; what it cannot say is what NCCL fills in. */
static inline void check_properties(int version, bool unpacks)
{
    const size_t limits = offsetof(struct net_properties_v12, max_p2p_bytes);
    const struct import_table *table = open_table(version);
    struct net_properties_v12 expected = {QUIRKY_PROPERTIES(unpacks)};
    struct net_properties_v12 properties;

    if (version < 8)
        expected.registration_is_global = 0;
    if (version < 9) {
        expected.force_flush = 0;
        expected.parts = (struct net_virtual){.count = 1};
        expected.max_p2p_bytes = 1073741824;
        expected.max_collective_bytes = 536870912;
    }
    if (version < 11)
        expected.max_multi_request = 1;
    if (version < 12)
        expected.rail = expected.plane = -1;
    memset(&properties, 0xA5, sizeof properties);
    CHECK_SUCCESS(import_properties(table, 0, &properties));
    CHECK(strcmp(properties.name, "quirky0") == 0 &&
          strcmp(properties.pci_path, QUIRKY_PCI_PATH) == 0);
    expected.name = properties.name;
    expected.pci_path = properties.pci_path;
    CHECK(memcmp(&properties, &expected, offsetof(struct net_properties_v12, parts)) == 0);
    CHECK(memcmp(&properties.parts, &expected.parts, sizeof expected.parts) == 0);
    CHECK(memcmp(&properties.max_p2p_bytes, &expected.max_p2p_bytes, sizeof expected - limits) ==
          0);
    CHECK_FAILS(import_properties(table, 1, &properties), "getProperties");
    CHECK(properties.speed == 12345); /* written on success only */
}

/* The bytes of a message. */
static inline uint8_t byte_at(uint64_t message, size_t i)
{
    return (uint8_t)(i * 31 + (i >> 8) * 7 + message * 101 + 1);
}

#endif
