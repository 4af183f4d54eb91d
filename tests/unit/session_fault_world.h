/*
 * What both sides of tests/unit/test_session_faults.c work with: the transport that the variable
 * TCPX_TEST_TRANSPORT names, what the two processes tell each other, and what must not leak.
 *
 *   whole   the built-in transport with one channel: whole messages (also if it is not set)
 *   pieces  the built-in transport with two channels, lists of pieces
 *   own     our own plugin, by its path
 *   6 to 12 the quirky plugin with the table of that version
 */
#ifndef TCPX_TESTS_SESSION_FAULT_WORLD_H
#define TCPX_TESTS_SESSION_FAULT_WORLD_H

#include "tests/quirky_plugin/drive.h"

#include "tests/fakecuda/fakecuda.h"
#include "tests/unit/nursery.h"

#include <dirent.h>
#include <malloc.h>

enum {
    CHANNELS = 2, /* at most */
    CHUNK = 256 << 10,
    MESSAGE = (2 << 20) + 12345,
    CHUNKS = (MESSAGE + CHUNK - 1) / CHUNK,
    ECHO = 300000,
};

/* Tags: those of the peer's receives, of its sends, and one that it never speaks of. */
enum { TO_PEER = 5, FROM_PEER = 6, TO_NOBODY = 7, ECHO_THERE = 8, ECHO_BACK = 9 };

/* What a sanitizer makes slower. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* Whoever waits for somebody that is gone is told within this time. */
#define BOUND_MS    limit_ms(SANITIZED ? 6000 : 2000)
#define PATIENCE_MS limit_ms(20000)

/* --- the transport ------------------------------------------------------------------------- */

static struct {
    const char *name;
    const char *plugin; /* "builtin" or a file */
    unsigned channels;
    bool pieces;
    bool chunks;  /* everything goes in chunks */
    bool forgets; /* a connection that is not completed is never given back: only the quirky one */
} world;

static inline void world_read(void)
{
    static char path[PATH_MAX + 64];
    const char *name = getenv("TCPX_TEST_TRANSPORT");

    world.name = name != NULL ? name : "whole";
    world.plugin = "builtin";
    world.pieces = strcmp(world.name, "pieces") == 0;
    world.chunks = strcmp(world.name, "whole") != 0;
    world.channels = world.chunks ? CHANNELS : 1;
    if (strcmp(world.name, "own") == 0)
        snprintf(path, sizeof path, "%s", file_of(OWN));
    else if (world.chunks && !world.pieces)
        snprintf(path, sizeof path, "%s", file_of(atoi(world.name)));
    world.forgets = *path != '\0' && strcmp(world.name, "own") != 0;
    if (*path != '\0')
        world.plugin = path;
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("UCCL_TCPX_TIMEOUT_MS", "1000", 1);
    setenv("UCCL_TCPX_GPU", "host", 0);
}

static inline void world_options(struct tcpx_session_options *options)
{
    tcpx_session_options_init(options);
    options->channels = (int)world.channels;
    options->chunk_bytes = CHUNK;
    options->plugin_path = world.plugin;
}

/* A list of two where that is what travels; it is copied by whoever gets it. */
static inline struct tcpx_move world_move(struct tcpx_memory *memory, uint64_t bytes, uint64_t tag)
{
    static _Thread_local struct tcpx_piece list[2];
    struct tcpx_move move = {.memory = memory, .bytes = bytes, .tag = tag};

    if (!world.pieces)
        return move;
    list[0] = (struct tcpx_piece){.offset = 0, .bytes = bytes / 3};
    list[1] = (struct tcpx_piece){.offset = bytes / 3, .bytes = bytes - bytes / 3};
    move.pieces = list;
    move.piece_count = 2;
    return move;
}

/* --- what the two processes tell each other ------------------------------------------------ */

struct shared {
    atomic_int port;           /* where the peer listens; 0: not yet */
    atomic_int reached;        /* the peer is where it should be */
    atomic_int go;             /* the peer may go on */
    atomic_uint_fast64_t gone; /* when the peer ended, stopped or said the last word */
};

static struct shared *shared;

/* In main, before the first process is forked. */
static inline void shared_start(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        _exit(1);
}

static inline void nap(uint64_t microseconds)
{
    const struct timespec pause = {.tv_sec = (time_t)(microseconds / 1000000),
                                   .tv_nsec = (long)(microseconds % 1000000) * 1000};

    nanosleep(&pause, NULL);
}

/* Its value, once it is not 0; 0 if that takes too long. */
static inline int await_number(atomic_int *number)
{
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);

    while (atomic_load(number) == 0 && !deadline_passed(deadline))
        nap(50);
    return atomic_load(number);
}

/* --- memory -------------------------------------------------------------------------------- */

/* Of GPU 0 or of the host. */
struct buffer {
    void *address;
    bool on_gpu;
};

static inline bool buffer_make(struct buffer *buffer, bool on_gpu, uint64_t bytes)
{
    *buffer = (struct buffer){.on_gpu = on_gpu};
    if (on_gpu)
        return tcpx_gpu_alloc(0, bytes, &buffer->address) == TCPX_SUCCESS;
    buffer->address = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return buffer->address != NULL;
}

static inline bool buffer_free(struct buffer *buffer)
{
    if (buffer->on_gpu)
        return tcpx_gpu_free(buffer->address) == TCPX_SUCCESS;
    free(buffer->address);
    return true;
}

static inline bool buffer_write(const struct buffer *buffer, const uint8_t *from, uint64_t bytes)
{
    if (buffer->on_gpu)
        return tcpx_gpu_write(buffer->address, from, bytes) == TCPX_SUCCESS;
    memcpy(buffer->address, from, bytes);
    return true;
}

static inline bool buffer_read(const struct buffer *buffer, uint8_t *to, uint64_t bytes)
{
    if (buffer->on_gpu)
        return tcpx_gpu_read(to, buffer->address, bytes) == TCPX_SUCCESS;
    memcpy(to, buffer->address, bytes);
    return true;
}

/* What the peer sends; made once, before there is a second process. */
static uint8_t peers_message[MESSAGE];

static inline void fill_message(uint8_t *bytes, uint64_t count, uint64_t message)
{
    for (uint64_t i = 0; i < count; i++)
        bytes[i] = byte_at(message, i);
}

/* --- what must not leak -------------------------------------------------------------------- */

struct counts {
    int descriptors;
    int threads;
    uint64_t gpu_bytes;      /* of the emulated GPU */
    uint64_t reserved_bytes; /* of address space: what the emulated GPU has pinned is among it */
    struct fakecuda_balance balance;
};

static inline int entries_of(const char *folder_name)
{
    DIR *directory = opendir(folder_name);
    int count = 0;

    if (directory == NULL)
        return -1;
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

/* Only the error says how much of the memory of an emulated GPU is in use. */
static inline uint64_t emulated_bytes(void)
{
    const char *text;
    unsigned long long used = 0;
    void *address;

    if (tcpx_gpu_alloc(0, (uint64_t)1 << 62, &address) == TCPX_SUCCESS)
        return 0;
    text = strstr(tcpx_last_error(), "asked for, ");
    if (text != NULL)
        used = strtoull(text + strlen("asked for, "), NULL, 10);
    return used;
}

/* Nameless address space without any access, guard pages of stacks left aside. */
static inline uint64_t reserved_bytes(void)
{
    enum { GUARD = 65536 };
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    uint64_t sum = 0;

    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        unsigned long long from;
        unsigned long long to;
        unsigned long long inode;
        char access[8];

        if (sscanf(line, "%llx-%llx %7s %*s %*s %llu", &from, &to, access, &inode) == 4 &&
            strcmp(access, "---p") == 0 && inode == 0 && to - from > GUARD)
            sum += to - from;
    }
    if (maps != NULL)
        fclose(maps);
    return sum;
}

static inline void count_standin(struct fakecuda_balance *balance)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    fakecuda_balance_call *ask;

    memset(balance, 0, sizeof *balance);
    if (library == NULL)
        return;
    *(void **)&ask = dlsym(library, "fakecuda_balance");
    if (ask != NULL)
        ask(balance);
    dlclose(library);
}

static inline void count_all(struct counts *counts)
{
    *counts = (struct counts){.descriptors = entries_of("/proc/self/fd"),
                              .threads = entries_of("/proc/self/task"),
                              .gpu_bytes = emulated_bytes(),
                              .reserved_bytes = SANITIZED ? 0 : reserved_bytes()};
    count_standin(&counts->balance);
}

static inline bool counts_equal(const struct counts *one, const struct counts *other)
{
    return one->descriptors == other->descriptors && one->threads == other->threads &&
           one->gpu_bytes == other->gpu_bytes && one->reserved_bytes == other->reserved_bytes &&
           memcmp(&one->balance, &other->balance, sizeof one->balance) == 0;
}

static inline void counts_print(const char *when, const struct counts *counts)
{
    const struct fakecuda_balance *balance = &counts->balance;

    print_message("%s: %d descriptors, %d threads, %llu bytes of GPU memory, %llu reserved; "
                  "%d contexts, %d memories, %d registered, %d streams, %d events, %d modules\n",
                  when, counts->descriptors, counts->threads, (unsigned long long)counts->gpu_bytes,
                  (unsigned long long)counts->reserved_bytes, balance->contexts, balance->memory,
                  balance->registered, balance->streams, balance->events, balance->modules);
}

#endif
