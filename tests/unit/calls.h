/*
 * What the tests of the public calls share. They drive the calls of a network plugin and of
 * unpacking as tcpx.h shows them, and nothing else of tcpx, over whichever plugin and GPU the
 * environment names: what a plugin can do is asked for, and the same must hold for all that can do
 * it. Every case runs in a process of its own, with both ends in it unless it is said otherwise.
 */
#ifndef TCPX_TESTS_CALLS_H
#define TCPX_TESTS_CALLS_H

#include "tests/support/basics.h"
#include "tests/support/check.h"
#include "tests/support/suite.h"

#include "tcpx.h"

#include "tests/limit.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    DEPTH = 16, /* requests in flight */
    MARGIN = 64,
    PAGE = 4096,
    SPAN = 640 << 10,
    PIECE = 3000,
    POISON = 0xA5,
    HANG_MS = 100000,
};

#define SOON_MS limit_ms(10000) /* how long it may take to notice what has happened */

static const char *check_detail(void)
{
    return tcpx_last_error();
}

static inline bool said_number(long long number)
{
    char text[32];

    snprintf(text, sizeof text, "%lld", number);
    return check_said(text);
}

#define CHECK_REFUSED(call, words) CHECK_ERROR(call, TCPX_INVALID_ARGUMENT, words)
#define CHECK_MISUSE(call, words)  CHECK_ERROR(call, TCPX_INVALID_USAGE, words)
#define CHECK_REFUSED_NUMBER(call, number)                                                         \
    do {                                                                                           \
        CHECK((call) == TCPX_INVALID_ARGUMENT);                                                    \
        CHECK(said_number(number));                                                                \
    } while (0)

/* --- the plugin ---------------------------------------------------------------------------- */

/* What it can do, as it says itself. */
static struct plugin_facts {
    int kinds;      /* of memory: 1, host, or 2 with the GPU's */
    bool has_queue; /* its receives go through an unpack queue */
    bool unpacks;   /* and receives into GPU memory have to be unpacked */
    bool emulated;  /* the GPU: only the built-in transport reaches its memory */
    bool quirky;
    bool builtin;
} facts;

enum { HOST, GPU, KINDS };

static inline int type_of(int kind)
{
    return kind == GPU ? NCCL_PTR_CUDA : NCCL_PTR_HOST;
}

/* The first call of a process, by which the plugin is loaded. */
static inline void start(void)
{
    const char *path = getenv("UCCL_TCPX_PLUGIN_PATH");
    struct tcpx_net_properties net;
    struct tcpx_gpu_properties gpu;

    CHECK(tcpx_get_device_count() >= 1);
    CHECK_SUCCESS(tcpx_get_properties(0, &net));
    CHECK_SUCCESS(tcpx_gpu_get_properties(0, &gpu));
    CHECK(path != NULL);
    facts.quirky = strstr(path, "quirky") != NULL;
    facts.builtin = strcmp(path, "builtin") == 0;
    facts.emulated = strcmp(gpu.backend, "host") == 0;
    facts.kinds =
        (net.ptr_support & NCCL_PTR_CUDA) != 0 && (facts.builtin || !facts.emulated) ? 2 : 1;
    facts.has_queue = net.net_device_type == 1;
    facts.unpacks = facts.has_queue && facts.kinds == 2;
}

/* --- memory -------------------------------------------------------------------------------- */

struct area {
    uint8_t *address;
    size_t bytes;
    int kind;
};

static inline struct area make_area(int kind, size_t bytes)
{
    struct area area = {.bytes = (bytes + PAGE - 1) / PAGE * PAGE, .kind = kind};
    void *address = NULL;

    if (kind == GPU)
        CHECK_SUCCESS(tcpx_gpu_alloc(0, area.bytes, &address));
    else
        CHECK(posix_memalign(&address, PAGE, area.bytes) == 0);
    area.address = address;
    return area;
}

static inline void free_area(struct area *area)
{
    if (area->kind == GPU)
        CHECK_SUCCESS(tcpx_gpu_free(area->address));
    else
        free(area->address);
    area->address = NULL;
}

static inline void write_area(const struct area *area, size_t at, const void *from, size_t bytes)
{
    CHECK(at + bytes <= area->bytes);
    if (area->kind == GPU)
        CHECK_SUCCESS(tcpx_gpu_write(area->address + at, from, bytes));
    else
        memcpy(area->address + at, from, bytes);
}

static inline void read_area(const struct area *area, size_t at, void *to, size_t bytes)
{
    CHECK(at + bytes <= area->bytes);
    if (area->kind == GPU)
        CHECK_SUCCESS(tcpx_gpu_read(to, area->address + at, bytes));
    else
        memcpy(to, area->address + at, bytes);
}

static inline void check_holds(const struct area *area, size_t at, const void *expected,
                               size_t bytes)
{
    uint8_t *found = malloc(bytes + 1);

    CHECK(found != NULL);
    read_area(area, at, found, bytes);
    CHECK(memcmp(found, expected, bytes) == 0);
    free(found);
}

/* What the sources hold: each kind of memory something else. */
static uint8_t pattern[KINDS][SPAN];

/* --- connections --------------------------------------------------------------------------- */

/* One way from a sender to a receiver, with memory at both ends. */
struct way {
    void *sender;
    void *receiver;
    struct area from[KINDS]; /* SPAN bytes of the pattern */
    struct area to[KINDS];
    void *from_handle[KINDS];
    void *to_handle[KINDS];
    struct tcpx_unpack *unpack; /* made by the first settle() */
};

static inline void *register_area(void *comm, const struct area *area)
{
    void *handle = NULL;

    CHECK_SUCCESS(tcpx_reg_mr(comm, area->address, area->bytes, type_of(area->kind), &handle));
    return handle;
}

/* To the ends that are in this process. */
static inline void give_memory(struct way *way)
{
    for (int kind = 0; kind < facts.kinds; kind++) {
        if (way->sender != NULL) {
            way->from[kind] = make_area(kind, SPAN);
            write_area(&way->from[kind], 0, pattern[kind], SPAN);
            way->from_handle[kind] = register_area(way->sender, &way->from[kind]);
        }
        if (way->receiver != NULL) {
            way->to[kind] = make_area(kind, SPAN);
            way->to_handle[kind] = register_area(way->receiver, &way->to[kind]);
        }
    }
}

/* One call of each end that is not there yet. True: both are. */
static inline bool poll_way(struct way *way, void *handle, void *listener, void **device)
{
    if (way->sender == NULL)
        CHECK_SUCCESS(tcpx_connect_v5(0, handle, &way->sender, NULL));
    if (way->receiver == NULL)
        CHECK_SUCCESS(tcpx_accept_v5(listener, &way->receiver, device));
    sched_yield();
    return way->sender != NULL && way->receiver != NULL;
}

/* Both ends meet, and get their memory. */
static inline void meet(struct way *way, void *handle, void *listener, void **device)
{
    while (!poll_way(way, handle, listener, device))
        ;
    give_memory(way);
}

static inline struct way make_way(void)
{
    struct way way = {0};
    uint8_t handle[TCPX_HANDLE_BYTES];
    void *listener;

    CHECK_SUCCESS(tcpx_listen(0, handle, &listener));
    meet(&way, handle, listener, NULL);
    CHECK_SUCCESS(tcpx_close_listen(listener));
    return way;
}

static inline void close_sender(struct way *way)
{
    CHECK_SUCCESS(tcpx_close_send(way->sender));
    way->sender = NULL;
}

static inline void close_receiver(struct way *way)
{
    CHECK_SUCCESS(tcpx_close_recv(way->receiver));
    way->receiver = NULL;
}

/* What is open of it. */
static inline void end_way(struct way *way)
{
    tcpx_unpack_destroy(way->unpack);
    close_sender(way);
    close_receiver(way);
    for (int kind = 0; kind < facts.kinds; kind++) {
        free_area(&way->from[kind]);
        free_area(&way->to[kind]);
    }
}

static inline void poison(struct way *way, size_t bytes)
{
    uint8_t *all = malloc(bytes);

    CHECK(all != NULL);
    memset(all, POISON, bytes);
    for (int kind = 0; kind < facts.kinds; kind++)
        write_area(&way->to[kind], 0, all, bytes);
    free(all);
}

/* --- requests ------------------------------------------------------------------------------ */

/* NULL: the comm is busy. */
static inline void *try_send(struct way *way, int kind, size_t at, size_t bytes)
{
    void *request = &request;

    CHECK_SUCCESS(tcpx_isend(way->sender, way->from[kind].address + at, (int)bytes, 3,
                             way->from_handle[kind], &request));
    CHECK(request != &request);
    return request;
}

static inline void *try_receive(struct way *way, int kind, size_t at, size_t room)
{
    void *data = way->to[kind].address + at;
    void *request = &request;
    int size = (int)room;
    int tag = 3;

    CHECK_SUCCESS(
        tcpx_irecv(way->receiver, 1, &data, &size, &tag, &way->to_handle[kind], &request));
    CHECK(request != &request);
    return request;
}

typedef void *try_call(struct way *way, int kind, size_t at, size_t bytes);

/* A comm may be busy for a moment before its window is full: what was announced is on its way. */
static inline void *post(try_call *try, struct way *way, int kind, size_t at, size_t bytes)
{
    uint64_t since = now_ms();
    void *request;

    while ((request = try(way, kind, at, bytes)) == NULL && now_ms() - since < SOON_MS)
        sched_yield();
    CHECK(request != NULL);
    return request;
}

static inline void *post_send(struct way *way, int kind, size_t at, size_t bytes)
{
    return post(try_send, way, kind, at, bytes);
}

static inline void *post_receive(struct way *way, int kind, size_t at, size_t room)
{
    return post(try_receive, way, kind, at, room);
}

static inline bool is_done(void *request, int *size)
{
    int done = 77;

    CHECK_SUCCESS(tcpx_test(request, &done, size));
    CHECK(done == 0 || done == 1);
    return done != 0;
}

/* Both ends move while they are tested, so they are tested by turns. NULL: there is none. */
static inline void finish_two(void *send, void *receive, int *size)
{
    while (send != NULL || receive != NULL) {
        if (send != NULL && is_done(send, NULL))
            send = NULL;
        if (receive != NULL && is_done(receive, size))
            receive = NULL;
        sched_yield();
    }
}

/* A message of PIECE bytes into memory of its kind; the receive, which is done. */
static inline void *move_piece(struct way *way, int kind)
{
    void *receive = post_receive(way, kind, 0, PIECE);

    finish_two(post_send(way, kind, 0, PIECE), receive, NULL);
    return receive;
}

/* Messages of PIECE bytes into a poisoned row of pieces; by turns from each kind of memory. */
static inline void post_pieces(struct way *way, const int *targets, void **sends, void **receives,
                               int count)
{
    poison(way, (size_t)DEPTH * PIECE);
    for (int i = 0; i < count; i++) {
        receives[i] = post_receive(way, targets[i], (size_t)i * PIECE, PIECE);
        sends[i] = post_send(way, i % facts.kinds, (size_t)i * PIECE, PIECE);
    }
}

static inline void move_pieces(struct way *way, const int *targets, void **receives, int count)
{
    void *sends[DEPTH];

    post_pieces(way, targets, sends, receives, count);
    for (int i = 0; i < count; i++)
        finish_two(sends[i], receives[i], NULL);
}

static inline void check_pieces(struct way *way, const int *targets, int count)
{
    for (int i = 0; i < count; i++)
        check_holds(&way->to[targets[i]], (size_t)i * PIECE,
                    pattern[i % facts.kinds] + (size_t)i * PIECE, PIECE);
}

/* Of a receive into host memory some plugins do not say it. */
static inline void check_size(int kind, int size, size_t bytes)
{
    CHECK(size == (int)bytes || (facts.quirky && kind == HOST && size == 0));
}

static inline struct tcpx_unpack *engine_of(struct way *way)
{
    if (facts.unpacks && way->unpack == NULL)
        CHECK_SUCCESS(tcpx_unpack_create(0, &way->unpack));
    return way->unpack;
}

static inline void consume(struct way *way, void *const *requests, int count)
{
    for (int i = 0; i < count; i++)
        CHECK_SUCCESS(tcpx_irecv_consumed(way->receiver, 1, requests[i]));
}

/* Receives that are done get to where they belong, and are gone. */
static inline void settle(struct way *way, void *const *requests, int count)
{
    uint64_t ticket = 0;

    if (facts.unpacks) {
        CHECK_SUCCESS(tcpx_unpack_submit(engine_of(way), requests, (size_t)count, &ticket));
        CHECK_SUCCESS(tcpx_unpack_wait(way->unpack, ticket, TCPX_DEFAULT_TIMEOUT));
    }
    consume(way, requests, count);
}

/* --- messages ------------------------------------------------------------------------------ */

/* A message, and the room for it. */
struct message {
    int source; /* kinds of memory */
    int target;
    size_t from;
    size_t bytes;
    size_t to;
    size_t room;
    void *send;
    void *receive;
    int size; /* as the receive says it */
};

/* Every byte of the first `used` of the targets: messages where they belong, and nothing else. */
static inline void check_messages(const struct way *way, const struct message *messages, int count,
                                  size_t used)
{
    uint8_t *expected = malloc(used);

    CHECK(expected != NULL);
    for (int kind = 0; kind < facts.kinds; kind++) {
        memset(expected, POISON, used);
        for (int i = 0; i < count; i++)
            if (messages[i].target == kind)
                memcpy(expected + messages[i].to, pattern[messages[i].source] + messages[i].from,
                       messages[i].bytes);
        check_holds(&way->to[kind], 0, expected, used);
    }
    free(expected);
}

/* A way on which something went through is a good one. */
static inline void check_way(struct way *way)
{
    for (int kind = 0; kind < facts.kinds; kind++) {
        struct message message = {
            .source = kind, .target = kind, .bytes = 5000, .to = MARGIN, .room = 5001};
        int size = -1;

        poison(way, message.room + 2 * (size_t)MARGIN);
        message.receive = post_receive(way, kind, message.to, message.room);
        finish_two(post_send(way, kind, 0, message.bytes), message.receive, &size);
        check_size(kind, size, message.bytes);
        settle(way, &message.receive, 1);
        check_messages(way, &message, 1, message.room + 2 * (size_t)MARGIN);
    }
}

static inline void check_new_way(void)
{
    struct way way = make_way();

    check_way(&way);
    end_way(&way);
}

/* --- cases --------------------------------------------------------------------------------- */

enum where {
    ALWAYS,
    UNPACKING, /* where receives have to be unpacked */
    QUIRKY,    /* where a plugin keeps a pointer in its handles */
    SLOW       /* in suites that take their time */
};

/* What one child does, and a second one that it meets. */
struct calls_case {
    void (*bare)(void);
    void (*on_way)(struct way *way);
    void (*receiver)(struct way *way);
    void (*sender)(struct way *way);
};

/* child_shared->flag, where there are two processes; the handle is in child_shared->bytes. */
enum { STAGE_NOTHING, STAGE_HANDLE, STAGE_RECEIVED };

static inline void calls_accept(struct way *way)
{
    void *listener;

    CHECK_SUCCESS(tcpx_listen(0, child_shared->bytes, &listener));
    atomic_store(&child_shared->flag, STAGE_HANDLE);
    while (way->receiver == NULL) {
        CHECK_SUCCESS(tcpx_accept_v5(listener, &way->receiver, NULL));
        sched_yield();
    }
    CHECK_SUCCESS(tcpx_close_listen(listener));
    give_memory(way);
}

static inline void calls_connect(struct way *way)
{
    uint8_t handle[TCPX_HANDLE_BYTES];

    while (atomic_load(&child_shared->flag) < STAGE_HANDLE)
        nap_ms(1);
    memcpy(handle, child_shared->bytes, sizeof handle);
    while (way->sender == NULL) {
        CHECK_SUCCESS(tcpx_connect_v5(0, handle, &way->sender, NULL));
        sched_yield();
    }
    give_memory(way);
}

static inline void wait_for_receiver(void)
{
    while (atomic_load(&child_shared->flag) < STAGE_RECEIVED)
        nap_ms(1);
}

static inline void calls_child(const uint8_t *argument)
{
    const struct calls_case *how = (const void *)argument;
    struct way way = {0};

    if (how->bare != NULL) {
        how->bare();
        return;
    }
    start();
    if (how->on_way != NULL) {
        way = make_way();
        how->on_way(&way);
        end_way(&way);
    } else if (how->receiver != NULL) {
        calls_accept(&way);
        how->receiver(&way);
        close_receiver(&way);
    } else {
        calls_connect(&way);
        how->sender(&way);
        close_sender(&way);
    }
}

static inline void calls_run(const struct calls_case *how)
{
    child_succeeds(calls_child, how, sizeof *how);
}

/* The sender may be killed, as its test has it. */
static inline void calls_run_two(const struct calls_case *receiver, const struct calls_case *sender)
{
    pid_t other;
    int status;

    atomic_store(&child_shared->flag, STAGE_NOTHING);
    other = child_fork(calls_child, sender, sizeof *sender);
    calls_run(receiver);
    status = child_wait(other);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        child_judge(status, "sender");
}

/* A test in a child: its body follows. It calls start() itself, after what comes before that. */
#define CASE(name, where)                                                                          \
    static void case_##name(void);                                                                 \
    TEST_OF(test_##name, where)                                                                    \
    {                                                                                              \
        calls_run(&(struct calls_case){.bare = case_##name});                                      \
    }                                                                                              \
    static void case_##name(void)

/* One with a way that is made for it, and of which all that is left open is closed behind it. */
#define WAY_CASE(name, where)                                                                      \
    static void case_##name(struct way *way);                                                      \
    TEST_OF(test_##name, where)                                                                    \
    {                                                                                              \
        calls_run(&(struct calls_case){.on_way = case_##name});                                    \
    }                                                                                              \
    static void case_##name(struct way *way)

/* One with a process at each end: receive_NAME(), which follows, and send_NAME(). */
#define PROCESSES_CASE(name)                                                                       \
    static void receive_##name(struct way *way);                                                   \
    static void send_##name(struct way *way);                                                      \
    TEST_OF(test_##name, ALWAYS)                                                                   \
    {                                                                                              \
        calls_run_two(&(struct calls_case){.receiver = receive_##name},                            \
                      &(struct calls_case){.sender = send_##name});                                \
    }                                                                                              \
    static void receive_##name(struct way *way)

static inline void calls_look(const uint8_t *argument)
{
    (void)argument;
    start();
    memcpy(child_shared->bytes, &facts, sizeof facts);
}

static inline bool calls_applies(intptr_t where)
{
    return where == ALWAYS || (where == UNPACKING && facts.unpacks) ||
           (where == QUIRKY && facts.quirky) || (where == SLOW && turns_of(100) >= 100);
}

static inline int calls_begin(void)
{
    uint64_t random = 4711;

    setenv("UCCL_TCPX_PLUGIN_PATH", "builtin", 0);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t at = 0; at < SPAN; at++)
            pattern[kind][at] = (uint8_t)(random_next(&random) >> 32);
    child_begin();
    child_limit_ms = HANG_MS;
    if (child_wait(child_fork(calls_look, NULL, 0)) != 0) {
        fprintf(stderr, "the plugin does not start: %s\n", child_shared->failure);
        return 1;
    }
    memcpy(&facts, child_shared->bytes, sizeof facts);
    return 0;
}

#define CALLS_SUITE(about) SUITE(.name = about, .begin = calls_begin, .wants = calls_applies)

#endif
