/*
 * The two, or three, ends of sessions, each in a process of its own, and what they share: a
 * barrier, a place for what they find wrong, bytes that tell one place from any other, and memory
 * that knows what should be in it. Of tcpx only tcpx.h is used here.
 */
#ifndef TCPX_TESTS_SESSION_PAIR_H
#define TCPX_TESTS_SESSION_PAIR_H

#include "tests/limit.h"
#include "tests/skip.h"
#include "tests/support/basics.h"
#include "tests/support/child.h"
#include "tests/support/suite.h"

#include "tcpx.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    MOST_SIDES = 3,
    MOST_VARIANTS = 5,
    MEETINGS = 512,
    SKIPPED = 77,
    FOLLOWED = 78, /* it ended because another side had failed */
    POISON = 0xe1,
    PATTERN_BYTES = 1048583, /* a prime: places of a transfer that could be mixed up differ */
};

#define WAIT_MS            limit_ms(30000) /* for what must happen; a hang, and not slowness, fails */
#define SOON_MS            limit_ms(10000) /* how long it may take to notice that a peer is gone */
#define HANG_SECONDS       limit_ms(110)   /* of a whole case, */
#define HANG_SECONDS_LARGE limit_ms(300)

/* --- processes ----------------------------------------------------------------------------- */

struct meeting {
    atomic_int ports[MEETINGS];
    atomic_uint arrived;
    atomic_bool broken;
    atomic_int reached;          /* a side is where it should be, */
    atomic_int go;               /* and may go on */
    atomic_uint_fast64_t gone;   /* when it left, in nanoseconds */
    atomic_uint_fast64_t number; /* for whatever a case wants */
    char note[400];
    char failures[MOST_SIDES][700];
};

struct side;
typedef void side_run(struct side *me);
typedef void session_run(struct side *me, struct tcpx_session *session);

/* Which runs of a program have a case. */
enum side_runs {
    IN_FULL,   /* those without TCPX_TEST_BRIEF: what is the same for all transports */
    IN_BRIEF,  /* all: it concerns the bytes and their transport */
    IF_LARGE,  /* where TCPX_TEST_LARGE is set, */
    IF_SOAK,   /* or TCPX_TEST_SOAK */
    IF_QUIRKY, /* over a plugin with faults */
};

struct side_case {
    side_run *run;
    session_run *with_session; /* instead: with a session that is opened before and closed after */
    uint64_t chunk_bytes;      /* of it; 0: the usual ones */
    bool without_gpu;          /* it has none, at both ends, */
    bool windows;              /* and allows access to its windows */
    unsigned gpu_delay_us;     /* for each copy of an emulated GPU */
    int sides;
    int variants; /* that run at the same time, each with all sides */
    enum side_runs runs;
};

static inline void run_sides(void **state);

/* Enters a case in the list of its program. Its body follows. */
#define ENTER_CASE(of, member, type, ...)                                                          \
    static type run_##of;                                                                          \
    __attribute__((constructor)) static void enter_##of(void)                                      \
    {                                                                                              \
        static struct side_case entered = {.member = run_##of, __VA_ARGS__};                       \
                                                                                                   \
        suite_add(__LINE__, (struct CMUnitTest){.name = "test_" #of,                               \
                                                .test_func = run_sides,                            \
                                                .initial_state = &entered});                       \
    }

/* In so many processes, each of which is `me`. */
#define SIDES_CASE(of, count, when)                                                                \
    ENTER_CASE(of, run, side_run, .sides = count, .variants = 1, .runs = when)                     \
    static void run_##of(struct side *me __attribute__((unused)))
#define VARIANTS_CASE(of, count)                                                                   \
    ENTER_CASE(of, run, side_run, .sides = 2, .variants = count)                                   \
    static void run_##of(struct side *me)
/* In two processes, with a `session` between them; the rest: other members of its side_case. */
#define SESSION_CASE(of, chunk, when, ...)                                                         \
    ENTER_CASE(of, with_session, session_run, .sides = 2, .variants = 1, .runs = when,             \
               .chunk_bytes = chunk, ##__VA_ARGS__)                                                \
    static void run_##of(struct side *me __attribute__((unused)), struct tcpx_session *session)

/* One of the processes of a case. */
struct side {
    const struct side_case *of;
    int variant;
    int number;
    int sides;
    unsigned barriers; /* that it has passed */
    unsigned opened;   /* pairs of sessions */
};

static struct meeting *meeting;   /* of this process's variant; the first one of all variants */
static int side_number = -1;      /* of this process; -1: it runs the tests, and forks the sides */
static char stage_text[160] = ""; /* what goes on: a part of what a failure prints */
#define STAGE(...) snprintf(stage_text, sizeof stage_text, __VA_ARGS__)

/* Where in which file it was seen. */
#define HERE               __FILE__ ":" LINE_TEXT(__LINE__)
#define LINE_TEXT(line)    LINE_TEXT_OF(line)
#define LINE_TEXT_OF(line) #line

/* Of a side, from any of its threads: leaves the reason where the parent finds it, and ends. */
static inline _Noreturn void fail_here(const char *here, const char *what)
{
    const char *file = strrchr(here, '/');
    bool first = !atomic_exchange(&meeting->broken, true);
    char text[sizeof *meeting->failures];

    snprintf(text, sizeof text, "%s%s: %s%s%s; %s", first ? "first: " : "",
             file != NULL ? file + 1 : here, stage_text, *stage_text != '\0' ? ": " : "", what,
             tcpx_last_error());
    if (side_number < 0)
        fail_msg("%s", text);
    memcpy(meeting->failures[side_number], text, sizeof text);
    _exit(first ? 1 : FOLLOWED);
}

static inline void check_result(const char *here, const char *call, int result, int expected,
                                const char *words)
{
    char text[400];

    if (result == expected && strstr(tcpx_last_error(), words) != NULL)
        return;
    snprintf(text, sizeof text, "%s: %s instead of %s%s%s", call, tcpx_result_name(result),
             tcpx_result_name(expected), *words != '\0' ? " with " : "", words);
    fail_here(here, text);
}

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail_here(HERE, #condition);                                                           \
    } while (0)

/* Fails with `expected` and a text that contains `words`. */
#define CHECK_ERROR(call, expected, words) check_result(HERE, #call, call, expected, words)
#define CHECK_RESULT(call, expected)       CHECK_ERROR(call, expected, "")
#define CHECK_SUCCESS(call)                CHECK_RESULT(call, TCPX_SUCCESS)
#define CHECK_REFUSED(call, words)         CHECK_ERROR(call, TCPX_INVALID_ARGUMENT, words)

static inline _Noreturn void skip_case(const char *why)
{
    snprintf(meeting->failures[side_number], sizeof *meeting->failures, "%s", why);
    _exit(SKIPPED);
}

/* When another side has failed, what this one finds is only what follows from it. */
static inline void check_others(uint64_t since)
{
    if (atomic_load(&meeting->broken))
        fail_here(HERE, "the other side has ended");
    if (now_ms() - since > 2 * WAIT_MS)
        fail_here(HERE, "the other side did not come");
    nap_us(50);
}

/* All sides are here. */
static inline void meet(struct side *me)
{
    unsigned wanted = ++me->barriers * (unsigned)me->sides;
    uint64_t since = now_ms();

    atomic_fetch_add(&meeting->arrived, 1);
    while (atomic_load(&meeting->arrived) < wanted)
        check_others(since);
}

/* --- how much ------------------------------------------------------------------------------ */

/* Of a single transfer. */
static inline uint64_t largest(void)
{
    return turns_of(100) > 50 ? 64u << 20 : 8u << 20;
}

/* --- random numbers, of a state that one thread owns ---------------------------------------- */

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

/* --- what memory contains -------------------------------------------------------------------- */

static uint8_t *pattern;

static inline void pattern_make(void)
{
    uint64_t state = 0x7e57;

    pattern = malloc(PATTERN_BYTES);
    if (pattern == NULL)
        _exit(1);
    for (size_t i = 0; i < PATTERN_BYTES; i++)
        pattern[i] = (uint8_t)(random_next(&state) >> 32);
}

/* Bytes [position, position + bytes) of what a sender with this seed has in its memory. */
static inline void pattern_copy(uint8_t *to, uint64_t bytes, uint64_t seed, uint64_t position)
{
    uint64_t at = (seed * 7919 + position) % PATTERN_BYTES;

    while (bytes > 0) {
        uint64_t step = PATTERN_BYTES - at < bytes ? PATTERN_BYTES - at : bytes;

        memcpy(to, pattern + at, step);
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
        area->allocation = aligned_alloc(SKEW, (bytes / SKEW + 3) * SKEW);
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

/* What is expected is written to the memory. */
static inline void area_write(struct area *area, uint64_t offset, uint64_t bytes)
{
    if (area->on_gpu)
        CHECK_SUCCESS(tcpx_gpu_write(area->address + offset, area->expected + offset, bytes));
    else
        memcpy(area->address + offset, area->expected + offset, bytes);
}

static inline void area_fill(struct area *area, uint64_t seed)
{
    pattern_copy(area->expected, area->bytes, seed, 0);
    area_write(area, 0, area->bytes);
}

static inline void area_poison(struct area *area)
{
    memset(area->expected, POISON, area->bytes);
    area_write(area, 0, area->bytes);
}

/* The memory of a transfer, as it is before: the sender's is full, the receiver's poisoned. */
static inline void area_begin(struct area *area, bool sends, uint64_t seed)
{
    if (sends)
        area_fill(area, seed);
    else
        area_poison(area);
}

static inline void area_open(struct area *area, struct tcpx_session *session, bool on_gpu,
                             uint64_t bytes, bool sends, uint64_t seed)
{
    area_make(area, session, on_gpu, bytes);
    area_begin(area, sends, seed);
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
    fail_here(here, what);
}

/* A transfer has ended: a receiver has the sender's bytes from `position` on, at `offset`. */
#define CHECK_MOVED(area, sends, offset, length, seed, position)                                   \
    check_moved(area, sends, offset, length, seed, position, HERE)

static inline void check_moved(struct area *area, bool sends, uint64_t offset, uint64_t bytes,
                               uint64_t seed, uint64_t position, const char *here)
{
    if (!sends)
        pattern_copy(area->expected + offset, bytes, seed, position);
    check_area(area, 0, area->bytes, here);
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

static inline struct tcpx_session_listener *listen_here(unsigned place,
                                                        const struct tcpx_session_options *options)
{
    struct tcpx_session_listener *listener;
    int port;

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
        check_others(since);
    return port;
}

static inline int connect_to(unsigned place, const struct tcpx_session_options *options,
                             struct tcpx_session **session)
{
    return tcpx_session_connect("127.0.0.1", port_of(place), options, WAIT_MS, session);
}

/* Side 0 listens, side 1 connects. */
static inline int try_open(struct side *me, const struct tcpx_session_options *options,
                           struct tcpx_session **session)
{
    unsigned place = me->opened++;
    int result;

    if (me->number == 0) {
        struct tcpx_session_listener *listener = listen_here(place, options);

        result = tcpx_session_accept(listener, WAIT_MS, session);
        tcpx_session_stop_listening(listener);
    } else {
        result = connect_to(place, options, session);
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

/* A file of this process with a secret, which may be another one than before. */
static inline const char *secret_write(const char *secret)
{
    static char path[64];
    int fd;

    snprintf(path, sizeof path, "/tmp/test_session.%d", (int)getpid());
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && write(fd, secret, strlen(secret)) == (ssize_t)strlen(secret));
    close(fd);
    return path;
}

/* False: secrets are refused here, for want of libsodium. */
static inline bool secrets_work(void)
{
    struct tcpx_session_options options = usual_options();
    struct tcpx_session_listener *listener;
    int result;

    options.secret_file = secret_write("the one");
    result = tcpx_session_listen("127.0.0.1", 0, &options, &listener);
    if (result == TCPX_SUCCESS)
        tcpx_session_stop_listening(listener);
    else
        CHECK_ERROR(result, TCPX_INVALID_USAGE, "libsodium");
    unlink(options.secret_file);
    return result == TCPX_SUCCESS;
}

/* Over one channel of the built-in transport a transfer is one message, and not cut into chunks. */
static inline bool goes_whole(const struct tcpx_session *session)
{
    return strstr(tcpx_session_path(session), "built-in transport") != NULL &&
           strstr(tcpx_session_path(session), ", 1 channel,") != NULL;
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

/* In pieces of about the same length, of which there are two at most; 0: not as a list. */
static inline struct tcpx_move move_of(const struct area *area, uint64_t offset, uint64_t bytes,
                                       uint64_t tag, unsigned pieces)
{
    static _Thread_local struct tcpx_piece list[2]; /* whatever takes a move copies its list */
    uint64_t first = pieces == 2 ? bytes / 3 : bytes;
    struct tcpx_move move = {.memory = area->memory, .offset = offset, .bytes = bytes, .tag = tag};

    list[0] = (struct tcpx_piece){.offset = offset, .bytes = first};
    list[1] = (struct tcpx_piece){.offset = offset + first, .bytes = bytes - first};
    move.pieces = pieces > 0 ? list : NULL;
    move.piece_count = pieces;
    return move;
}

static inline int try_begin(struct tcpx_session *session, bool sends, struct tcpx_move move,
                            struct tcpx_transfer **transfer)
{
    return sends ? tcpx_send(session, &move, transfer) : tcpx_receive(session, &move, transfer);
}

static inline struct tcpx_transfer *begin(struct tcpx_session *session, bool sends,
                                          struct tcpx_move move)
{
    struct tcpx_transfer *transfer = NULL;

    CHECK_SUCCESS(try_begin(session, sends, move, &transfer));
    return transfer;
}

static inline struct tcpx_transfer *begin_part(struct tcpx_session *session, bool sends,
                                               const struct area *area, uint64_t offset,
                                               uint64_t bytes, uint64_t tag, unsigned pieces)
{
    return begin(session, sends, move_of(area, offset, bytes, tag, pieces));
}

/* By those of the transport, which other sessions share. */
static inline bool is_moved_by_threads(const struct tcpx_session *session)
{
    return strstr(tcpx_session_path(session), "built-in") != NULL &&
           number_of("UCCL_TCPX_THREADS", 1) > 0;
}

#define FINISH(transfer) CHECK_SUCCESS(tcpx_transfer_wait(transfer, WAIT_MS))

/* Tests until it has ended: its result. */
static inline int test_on_stream(struct tcpx_transfer *transfer, void *stream)
{
    uint64_t since = now_ms();
    int result = TCPX_SUCCESS;

    for (int done = 0; result == TCPX_SUCCESS && done == 0; nap_us(100)) {
        result = tcpx_transfer_test_on_stream(transfer, stream, &done);
        CHECK(now_ms() - since < WAIT_MS);
    }
    return result;
}

/* One small transfer, to see that the session works. */
static inline void ping(struct side *me, struct tcpx_session *session, int sender, uint64_t tag)
{
    enum { BYTES = 3000 };
    bool sends = me->number == sender;
    uint64_t offset = sends ? 50 : 7;
    struct area area;

    area_open(&area, session, tag % 2 == 0, BYTES + 100, sends, tag);
    FINISH(begin_part(session, sends, &area, offset, BYTES, tag, 0));
    CHECK_MOVED(&area, sends, offset, BYTES, tag, 50);
    area_drop(&area, session);
}

/* A session is opened, works, and is closed. */
static inline void open_and_ping(struct side *me, const struct tcpx_session_options *options,
                                 int sender, uint64_t tag)
{
    struct tcpx_session *session = open_session(me, options);

    ping(me, session, sender, tag);
    tcpx_session_close(session);
}

/* A session that a thread of its own opens. */
struct opening {
    pthread_t thread;
    struct tcpx_session_listener *listener; /* NULL: connects */
    const struct tcpx_session_options *options;
    unsigned place;
    struct side *talks; /* as soon as it is open; NULL: it does not */
    struct tcpx_session *session;
};

static inline void *open_one(void *argument)
{
    struct opening *opening = argument;

    if (opening->listener != NULL)
        CHECK_SUCCESS(tcpx_session_accept(opening->listener, WAIT_MS, &opening->session));
    else
        CHECK_SUCCESS(connect_to(opening->place, opening->options, &opening->session));
    if (opening->talks != NULL) {
        ping(opening->talks, opening->session, 0, 4);
        ping(opening->talks, opening->session, 1, 5);
    }
    return NULL;
}

/* All of them at once. */
static inline void open_all(struct opening *openings, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        CHECK(pthread_create(&openings[i].thread, NULL, open_one, &openings[i]) == 0);
    for (unsigned i = 0; i < count; i++)
        CHECK(pthread_join(openings[i].thread, NULL) == 0);
}

/* Emulated GPUs take their time for each copy; 0: as long as the environment says. */
static inline void slow_down_gpus(unsigned microseconds)
{
    char text[16];

    if (microseconds == 0)
        return;
    snprintf(text, sizeof text, "%u", microseconds);
    CHECK(setenv("UCCL_TCPX_HOST_GPU_DELAY_US", text, 1) == 0);
    CHECK(setenv("FAKECUDA_DELAY_US", text, 1) == 0);
}

/* --- the processes of a case ----------------------------------------------------------------- */

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
    struct tcpx_session_options options = usual_options();
    struct tcpx_session *session;
    struct side me;
    void *held;

    memcpy(&me, argument, sizeof me);
    meeting += me.variant;
    side_number = me.number;
    alarm((unsigned)(number_of("TCPX_TEST_LARGE", 0) != 0 ? HANG_SECONDS_LARGE : HANG_SECONDS));
    held = hold_gpu();
    if (me.of->with_session != NULL) {
        slow_down_gpus(me.of->gpu_delay_us);
        options.chunk_bytes = me.of->chunk_bytes;
        options.gpu = me.of->without_gpu ? -1 : options.gpu;
        options.windows = me.of->windows;
        session = open_session(&me, &options);
        me.of->with_session(&me, session);
        tcpx_session_close(session);
    } else {
        me.of->run(&me);
    }
    CHECK_SUCCESS(tcpx_gpu_free(held));
    if (__lsan_do_leak_check != NULL)
        __lsan_do_leak_check();
}

/* False: a side has failed. A process that was killed, as its case had it, has not. */
static inline bool check_side(const struct side *side, int status)
{
    const char *failure = meeting[side->variant].failures[side->number];

    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
        skip_because("%s", failure);
    if (status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
        return true;
    print_message("# variant %d, side %d: %s %d: %s\n", side->variant, side->number,
                  WIFSIGNALED(status) ? "signal" : "status",
                  WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), failure);
    return false;
}

static inline void run_sides(void **state)
{
    const struct side_case *of = *state;
    struct side sides[MOST_VARIANTS * MOST_SIDES];
    pid_t pids[MOST_VARIANTS * MOST_SIDES];
    int statuses[MOST_VARIANTS * MOST_SIDES];
    int count = of->variants * of->sides;
    bool failed = false;

    memset(meeting, 0, MOST_VARIANTS * sizeof *meeting);
    for (int i = 0; i < count; i++) {
        sides[i] = (struct side){
            .of = of, .variant = i / of->sides, .number = i % of->sides, .sides = of->sides};
        pids[i] = child_fork(side_process, &sides[i], sizeof sides[i]);
    }
    for (int i = 0; i < count; i++)
        statuses[i] = child_wait(pids[i]);
    for (int i = 0; i < count; i++)
        failed = !check_side(&sides[i], statuses[i]) || failed;
    assert_false(failed);
}

/* --- programs -------------------------------------------------------------------------------- */

/*
 * What sides share, and the bytes they send: loopback, emulated GPUs and the built-in transport,
 * unless the environment says otherwise. First of all in a program; 1: there is no memory.
 */
static inline int sides_begin(void)
{
    setenv("UCCL_TCPX_PLUGIN_PATH", "builtin", 0);
    setenv("UCCL_TCPX_GPU", "host", 0);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    meeting = mmap(NULL, MOST_VARIANTS * sizeof *meeting, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (meeting == MAP_FAILED)
        return 1;
    pattern_make();
    child_begin();
    return 0;
}

static inline bool case_is_wanted(intptr_t state)
{
    const struct side_case *of = (const struct side_case *)state;
    const char *plugin = getenv("UCCL_TCPX_PLUGIN_PATH");
    bool brief = number_of("TCPX_TEST_BRIEF", 0) != 0;

    if (of->runs == IF_LARGE || of->runs == IF_SOAK)
        return !brief &&
               number_of(of->runs == IF_LARGE ? "TCPX_TEST_LARGE" : "TCPX_TEST_SOAK", 0) != 0;
    if (of->runs == IF_QUIRKY)
        return plugin != NULL && strstr(plugin, "quirky") != NULL;
    return !brief || of->runs == IN_BRIEF;
}

#define SIDES_SUITE(text, first) SUITE(.name = text, .begin = first, .wants = case_is_wanted)

#endif
