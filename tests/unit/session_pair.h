/*
 * The two, or three, ends of sessions, each in a process of its own, and what they share: a place
 * to meet and to complain, bytes that tell one place from any other, and memory that knows what
 * should be in it. Of tcpx only tcpx.h is used here.
 */
#ifndef TCPX_TESTS_SESSION_PAIR_H
#define TCPX_TESTS_SESSION_PAIR_H

#include "tests/limit.h"
#include "tests/skip.h"
#include "tests/unit/nursery.h"

#include "tcpx.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    MOST_SIDES = 3,
    MEETINGS = 512,
    SKIPPED = 77,
    FOLLOWED = 78, /* it ended because another side had complained */
    POISON = 0xe1,
    SPEECH_BYTES =
        1048583, /* a prime: no two places of a transfer are alike that could be mixed up */
};

#define WAIT_MS            limit_ms(30000) /* for what must happen; a hang, and not slowness, fails */
#define SOON_MS            limit_ms(10000) /* how long it may take to notice that a peer is gone */
#define HANG_SECONDS       limit_ms(110)   /* of a whole case, */
#define HANG_SECONDS_LARGE limit_ms(300)

static inline uint64_t number_of(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);

    return text != NULL && *text != '\0' ? strtoull(text, NULL, 0) : otherwise;
}

/* --- processes ----------------------------------------------------------------------------- */

struct meeting {
    atomic_int ports[MEETINGS];
    atomic_uint arrived;
    atomic_bool broken;
    atomic_uint_fast64_t number; /* for whatever a case wants */
    char note[400];
    char complaints[MOST_SIDES][700];
};

/* One of the processes of a case. */
struct side {
    int number;
    int sides;
    unsigned barriers; /* that it has passed */
    unsigned opened;   /* pairs of sessions */
};

static struct meeting *meeting;
static int side_number; /* of this process */

/* Where in which file it was seen. */
#define HERE               __FILE__ ":" LINE_TEXT(__LINE__)
#define LINE_TEXT(line)    LINE_TEXT_OF(line)
#define LINE_TEXT_OF(line) #line

static inline _Noreturn void complain(const char *here, const char *what)
{
    const char *file = strrchr(here, '/');
    bool first = !atomic_exchange(&meeting->broken, true);

    snprintf(meeting->complaints[side_number], sizeof *meeting->complaints, "%s%s: %s; %s",
             first ? "first: " : "", file != NULL ? file + 1 : here, what, tcpx_last_error());
    _exit(first ? 1 : FOLLOWED);
}

/* In a child, from any of its threads: says what is wrong where the parent finds it, and ends. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            complain(HERE, #condition);                                                            \
    } while (0)

#define CHECK_SUCCESS(call)                                                                        \
    do {                                                                                           \
        int result_ = (call);                                                                      \
        if (result_ != TCPX_SUCCESS)                                                               \
            complain_of(HERE, #call, result_, "TCPX_SUCCESS");                                     \
    } while (0)

/* Fails with `expected` and a text that contains `words`. */
#define CHECK_ERROR(call, expected, words)                                                         \
    do {                                                                                           \
        int result_ = (call);                                                                      \
        if (result_ != (expected) || strstr(tcpx_last_error(), words) == NULL)                     \
            complain_of(HERE, #call, result_, #expected " with '" words "'");                      \
    } while (0)

static inline _Noreturn void complain_of(const char *here, const char *call, int result,
                                         const char *expected)
{
    char text[400];

    snprintf(text, sizeof text, "%s: %s instead of %s", call, tcpx_result_name(result), expected);
    complain(here, text);
}

static inline _Noreturn void skip_case(const char *why)
{
    snprintf(meeting->complaints[side_number], sizeof *meeting->complaints, "%s", why);
    _exit(SKIPPED);
}

static inline uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static inline void sleep_us(long microseconds)
{
    nanosleep(&(struct timespec){.tv_sec = microseconds / 1000000,
                                 .tv_nsec = microseconds % 1000000 * 1000},
              NULL);
}

/* Some other side has complained: what this one finds is only what follows from it. */
static inline void look_around(uint64_t since)
{
    if (atomic_load(&meeting->broken))
        complain(HERE, "the other side has ended");
    if (now_ms() - since > 2 * WAIT_MS)
        complain(HERE, "the other side did not come");
    sleep_us(50);
}

/* All sides are here. */
static inline void meet(struct side *me)
{
    unsigned wanted = ++me->barriers * (unsigned)me->sides;
    uint64_t since = now_ms();

    atomic_fetch_add(&meeting->arrived, 1);
    while (atomic_load(&meeting->arrived) < wanted)
        look_around(since);
}

typedef void side_run(struct side *me);

struct side_wish {
    side_run *run;
    int number;
    int sides;
};

/* Of a sanitizer, where there is one: these processes end without it. */
extern void __lsan_do_leak_check(void) __attribute__((weak));

/*
 * Programs that use CUDA have a context of their own. With a real GPU so has a side: to make one
 * and end it in each of some hundred sessions would take minutes.
 */
static inline void *hold_gpu(void)
{
    void *page = NULL;

    if (number_of("TCPX_TEST_LARGE", 0) != 0)
        CHECK_SUCCESS(tcpx_gpu_alloc(0, 4096, &page));
    return page;
}

static inline void side_process(const uint8_t *argument)
{
    struct side_wish wish;
    struct side me = {0};
    void *held;

    memcpy(&wish, argument, sizeof wish);
    me.number = side_number = wish.number;
    me.sides = wish.sides;
    alarm((unsigned)(number_of("TCPX_TEST_LARGE", 0) != 0 ? HANG_SECONDS_LARGE : HANG_SECONDS));
    held = hold_gpu();
    wish.run(&me);
    CHECK_SUCCESS(tcpx_gpu_free(held));
    if (__lsan_do_leak_check != NULL)
        __lsan_do_leak_check();
}

/* What a case has shown. A process that was killed, as its case had it, is no complaint. */
static inline void run_sides(side_run *run, int sides)
{
    int statuses[MOST_SIDES];
    pid_t pids[MOST_SIDES];
    char text[2400];
    size_t used = 0;
    bool failed = false;

    memset(meeting, 0, sizeof *meeting);
    for (int i = 0; i < sides; i++) {
        const struct side_wish wish = {.run = run, .number = i, .sides = sides};

        pids[i] = nursery_fork(side_process, &wish, sizeof wish);
    }
    for (int i = 0; i < sides; i++)
        statuses[i] = nursery_wait(pids[i]);
    for (int i = 0; i < sides; i++) {
        bool skipped = WIFEXITED(statuses[i]) && WEXITSTATUS(statuses[i]) == SKIPPED;
        bool killed = WIFSIGNALED(statuses[i]) && WTERMSIG(statuses[i]) == SIGKILL;

        if (skipped) {
            skip_because("%s", meeting->complaints[i]);
        }
        if (killed || (WIFEXITED(statuses[i]) && WEXITSTATUS(statuses[i]) == 0))
            continue;
        failed = true;
        used += (size_t)snprintf(text + used, sizeof text - used, "side %d: %s%d: %s; ", i,
                                 WIFSIGNALED(statuses[i]) ? "signal " : "status ",
                                 WIFSIGNALED(statuses[i]) ? WTERMSIG(statuses[i])
                                                          : WEXITSTATUS(statuses[i]),
                                 meeting->complaints[i]);
    }
    if (failed)
        fail_msg("%s", text);
}

/* `run_name` in two processes. */
#define CASE(name)                                                                                 \
    static void test_##name(void **state)                                                          \
    {                                                                                              \
        (void)state;                                                                               \
        run_sides(run_##name, 2);                                                                  \
    }

#define CASE_OF_THREE(name)                                                                        \
    static void test_##name(void **state)                                                          \
    {                                                                                              \
        (void)state;                                                                               \
        run_sides(run_##name, 3);                                                                  \
    }

#define CASE_OF_ONE(name)                                                                          \
    static void test_##name(void **state)                                                          \
    {                                                                                              \
        (void)state;                                                                               \
        run_sides(run_##name, 1);                                                                  \
    }

/* --- how much ------------------------------------------------------------------------------ */

/* A part of all rounds, as TCPX_TEST_TURNS says, in percent. */
static inline unsigned turns_of(unsigned all)
{
    unsigned some = (unsigned)(all * number_of("TCPX_TEST_TURNS", 100) / 100);

    return some < 1 ? 1 : some;
}

/* Of a single transfer. */
static inline uint64_t largest(void)
{
    return turns_of(100) > 50 ? 64u << 20 : 8u << 20;
}

/* --- random numbers, of a state that one thread owns ---------------------------------------- */

static inline uint64_t random_next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1du;
}

static inline uint64_t random_below(uint64_t *state, uint64_t limit)
{
    return (random_next(state) >> 11) % limit;
}

static inline bool one_in(uint64_t *state, unsigned many)
{
    return random_below(state, many) == 0;
}

static inline void shuffle(uint64_t *state, uint32_t *order, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    for (uint32_t i = count; i > 1; i--) {
        uint32_t other = (uint32_t)random_below(state, i);
        uint32_t last = order[i - 1];

        order[i - 1] = order[other];
        order[other] = last;
    }
}

/* --- what memory says ----------------------------------------------------------------------- */

static uint8_t *speech;

static inline void speech_make(void)
{
    uint64_t state = 0x7e57;

    speech = malloc(SPEECH_BYTES);
    if (speech == NULL)
        _exit(1);
    for (size_t i = 0; i < SPEECH_BYTES; i++)
        speech[i] = (uint8_t)(random_next(&state) >> 32);
}

/* Bytes [position, position + bytes) of what `seed` says. */
static inline void say_at(uint8_t *to, uint64_t bytes, uint64_t seed, uint64_t position)
{
    uint64_t at = (seed * 7919 + position) % SPEECH_BYTES;

    while (bytes > 0) {
        uint64_t step = SPEECH_BYTES - at < bytes ? SPEECH_BYTES - at : bytes;

        memcpy(to, speech + at, step);
        to += step;
        bytes -= step;
        at = 0;
    }
}

/* --- memory -------------------------------------------------------------------------------- */

/* Memory of a session that knows what should be in it. */
struct area {
    bool on_gpu;
    void *allocation;
    uint8_t *address; /* on no boundary of anything */
    uint64_t bytes;
    uint8_t *expected;
    uint8_t *scratch;
    struct tcpx_memory *memory;
};

enum { SKEW = 4096 };

static inline void area_allocate(struct area *area, bool on_gpu, uint64_t bytes, unsigned skew)
{
    *area = (struct area){.on_gpu = on_gpu, .bytes = bytes};
    if (on_gpu)
        CHECK_SUCCESS(tcpx_gpu_alloc(0, bytes + 2 * SKEW, &area->allocation));
    else
        area->allocation = malloc(bytes + 2 * SKEW);
    area->expected = malloc(bytes + 1);
    area->scratch = on_gpu ? malloc(bytes + 1) : NULL;
    CHECK(area->allocation != NULL && area->expected != NULL);
    area->address = (uint8_t *)area->allocation + skew % SKEW;
}

static inline void area_register(struct area *area, struct tcpx_session *session)
{
    CHECK_SUCCESS(tcpx_session_register(session, area->address, area->bytes, &area->memory));
}

static inline void area_make(struct area *area, struct tcpx_session *session, bool on_gpu,
                             uint64_t bytes)
{
    area_allocate(area, on_gpu, bytes, (unsigned)(bytes * 7 + 13));
    area_register(area, session);
}

static inline void area_free(struct area *area)
{
    if (area->on_gpu)
        CHECK_SUCCESS(tcpx_gpu_free(area->allocation));
    else
        free(area->allocation);
    free(area->expected);
    free(area->scratch);
    *area = (struct area){0};
}

static inline void area_drop(struct area *area, struct tcpx_session *session)
{
    CHECK_SUCCESS(tcpx_session_deregister(session, area->memory));
    area_free(area);
}

/* The memory becomes what is expected of it. */
static inline void area_write(struct area *area, uint64_t offset, uint64_t bytes)
{
    if (area->on_gpu)
        CHECK_SUCCESS(tcpx_gpu_write(area->address + offset, area->expected + offset, bytes));
    else
        memcpy(area->address + offset, area->expected + offset, bytes);
}

static inline void area_say(struct area *area, uint64_t seed)
{
    say_at(area->expected, area->bytes, seed, 0);
    area_write(area, 0, area->bytes);
}

static inline void area_poison(struct area *area)
{
    memset(area->expected, POISON, area->bytes);
    area_write(area, 0, area->bytes);
}

/* Where it is not what is expected; UINT64_MAX: nowhere. */
static inline uint64_t area_first_wrong(struct area *area, uint64_t offset, uint64_t bytes)
{
    const uint8_t *found = area->address + offset;

    if (area->on_gpu) {
        CHECK_SUCCESS(tcpx_gpu_read(area->scratch, area->address + offset, bytes));
        found = area->scratch;
    }
    if (memcmp(found, area->expected + offset, bytes) == 0)
        return UINT64_MAX;
    for (uint64_t i = 0; i < bytes; i++)
        if (found[i] != area->expected[offset + i])
            return offset + i;
    return UINT64_MAX;
}

#define CHECK_AREA(area, offset, length) check_area(area, offset, length, HERE)

static inline void check_area(struct area *area, uint64_t offset, uint64_t bytes, const char *here)
{
    uint64_t wrong = area_first_wrong(area, offset, bytes);
    char what[200];

    if (wrong == UINT64_MAX)
        return;
    snprintf(what, sizeof what, "%s memory of %llu bytes is wrong at %llu, in [%llu, %llu)",
             area->on_gpu ? "GPU" : "host", (unsigned long long)area->bytes,
             (unsigned long long)wrong, (unsigned long long)offset,
             (unsigned long long)offset + bytes);
    complain(here, what);
}

/* A window and what lies around it. */
#define CHECK_AROUND(area, offset, length) check_around(area, offset, length, HERE)

static inline void check_around(struct area *area, uint64_t offset, uint64_t bytes,
                                const char *here)
{
    const uint64_t margin = 4096;
    uint64_t from = offset > margin ? offset - margin : 0;
    uint64_t to = offset + bytes + margin;

    to = to < area->bytes ? to : area->bytes;
    check_area(area, from, to - from, here);
}

/* --- sessions ------------------------------------------------------------------------------- */

static inline struct tcpx_session_options usual_options(void)
{
    struct tcpx_session_options options;

    tcpx_session_options_init(&options);
    return options;
}

/* Chunks so small that a little memory makes many. */
enum { SMALL_CHUNK = 65536 };

static inline struct tcpx_session_options small_chunks(void)
{
    struct tcpx_session_options options = usual_options();

    options.chunk_bytes = SMALL_CHUNK;
    return options;
}

static inline struct tcpx_session_listener *listen_here(struct side *me, unsigned place,
                                                        const struct tcpx_session_options *options)
{
    struct tcpx_session_listener *listener;
    int port;

    (void)me;
    CHECK_SUCCESS(tcpx_session_listen("127.0.0.1", 0, options, &listener));
    CHECK_SUCCESS(tcpx_session_port(listener, &port));
    atomic_store(&meeting->ports[place], port);
    return listener;
}

static inline int port_of(unsigned place)
{
    uint64_t since = now_ms();
    int port;

    while ((port = atomic_load(&meeting->ports[place])) == 0)
        look_around(since);
    return port;
}

/* Side 0 listens, side 1 connects. */
static inline int try_open(struct side *me, const struct tcpx_session_options *options,
                           struct tcpx_session **session)
{
    unsigned place = me->opened++;
    int result;

    if (me->number == 0) {
        struct tcpx_session_listener *listener = listen_here(me, place, options);

        result = tcpx_session_accept(listener, WAIT_MS, session);
        tcpx_session_stop_listening(listener);
    } else {
        result = tcpx_session_connect("127.0.0.1", port_of(place), options, WAIT_MS, session);
    }
    return result;
}

static inline struct tcpx_session *open_session(struct side *me,
                                                const struct tcpx_session_options *options)
{
    struct tcpx_session *session;

    CHECK_SUCCESS(try_open(me, options, &session));
    return session;
}

static inline bool is_builtin(const struct tcpx_session *session)
{
    return strstr(tcpx_session_path(session), "built-in transport") != NULL;
}

/* What a plugin may have made smaller. */
static inline uint64_t chunk_of(const struct tcpx_session *session, uint64_t otherwise)
{
    const char *said = strstr(tcpx_session_path(session), "chunks of ");

    return said != NULL ? strtoull(said + strlen("chunks of "), NULL, 10) : otherwise;
}

static inline struct tcpx_session_statistics statistics_of(struct tcpx_session *session)
{
    struct tcpx_session_statistics statistics = {.size = sizeof statistics};

    CHECK_SUCCESS(tcpx_session_get_statistics(session, &statistics));
    return statistics;
}

static inline struct tcpx_transfer *begin(struct tcpx_session *session, bool sending,
                                          const struct tcpx_move *move)
{
    struct tcpx_transfer *transfer = NULL;

    if (sending)
        CHECK_SUCCESS(tcpx_send(session, move, &transfer));
    else
        CHECK_SUCCESS(tcpx_receive(session, move, &transfer));
    return transfer;
}

static inline struct tcpx_transfer *begin_part(struct tcpx_session *session, bool sending,
                                               const struct area *area, uint64_t offset,
                                               uint64_t bytes, uint64_t tag)
{
    const struct tcpx_move move = {
        .memory = area->memory, .offset = offset, .bytes = bytes, .tag = tag};

    return begin(session, sending, &move);
}

#define FINISH(transfer) CHECK_SUCCESS(tcpx_transfer_wait(transfer, WAIT_MS))

/* The sender says, the receiver hears: one small transfer, to see that the session is alive. */
static inline void talk(struct side *me, struct tcpx_session *session, int sender, uint64_t tag)
{
    enum { BYTES = 3000 };
    struct area area;

    area_make(&area, session, tag % 2 == 0, BYTES + 100);
    if (me->number == sender) {
        area_say(&area, tag);
        FINISH(begin_part(session, true, &area, 50, BYTES, tag));
    } else {
        area_poison(&area);
        FINISH(begin_part(session, false, &area, 7, BYTES, tag));
        say_at(area.expected + 7, BYTES, tag, 50);
        CHECK_AREA(&area, 0, area.bytes);
    }
    area_drop(&area, session);
}

/* --- what a process holds ------------------------------------------------------------------- */

static inline int entries_of(const char *path)
{
    DIR *folder = opendir(path);
    int count = 0;

    CHECK(folder != NULL);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static inline int open_descriptors(void)
{
    return entries_of("/proc/self/fd");
}

static inline int running_threads(void)
{
    return entries_of("/proc/self/task");
}

/* --- the beginning of a program ----------------------------------------------------------------
 */

/*
 * In main, before anything else: loopback, emulated GPUs and the built-in transport, unless the
 * environment says otherwise. False: there is no memory that the sides can share.
 */
static inline bool sides_start(void)
{
    setenv("UCCL_TCPX_PLUGIN_PATH", "builtin", 0);
    setenv("UCCL_TCPX_GPU", "host", 0);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    meeting =
        mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (meeting == MAP_FAILED)
        return false;
    speech_make();
    nursery_start();
    return true;
}

#endif
