/*
 * A session whose peer fails at some stage: while the two find each other, agree, connect, move
 * data, unpack or close. Whatever the peer does, or does not do any more, the other side gets an
 * error in bounded time, in words; nothing is left of the session; and the next one works. Peers
 * are processes that follow scripts (session_fault_peer.h).
 */
#include "tests/unit/session_fault_peer.h"

#include "tests/fakecuda/fakecuda.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <malloc.h>
#include <poll.h>

/* The time of a wait that nothing but its own deadline ends. */
enum { SHORT_MS = 60 };

static struct tcpx_session_listener *listener;
static int listener_port;
static pid_t playing; /* the peer that is there; 0: none */

/* --- time ---------------------------------------------------------------------------------- */

static void check_spent(const char *what, uint64_t moment, uint64_t most)
{
    uint64_t now = clock_now();
    uint64_t spent = now > moment ? (now - moment) / 1000000 : 0;
    char text[100];

    snprintf(text, sizeof text, "%s took %" PRIu64 " ms of %" PRIu64, what, spent, most);
    if (spent > most)
        fail_here(HERE, text);
}

/* Of an error or a close: since the peer was gone, or since a deadline. */
#define check_bound(what, moment) check_spent(what, moment, BOUND_MS)
/* Of what succeeds: whatever the machine is busy with, a stall is longer. */
#define check_no_stall(what, start) check_spent(what, start, PATIENCE_MS / 2)

/* --- what must not leak -------------------------------------------------------------------- */

struct counts {
    int descriptors;
    int threads;
    uint64_t gpu_bytes;      /* of the emulated GPU */
    uint64_t reserved_bytes; /* of address space: what the emulated GPU has pinned is among it */
    struct fakecuda_balance balance;
};

static struct counts usual;
static int forgiven; /* descriptors that a plugin may still have */

/* Only the error says how much of the memory of an emulated GPU is in use. */
static uint64_t emulated_bytes(void)
{
    const char *text;
    void *address;

    if (tcpx_gpu_alloc(0, (uint64_t)1 << 62, &address) == TCPX_SUCCESS)
        return 0;
    text = strstr(tcpx_last_error(), "asked for, ");
    return text != NULL ? strtoull(text + strlen("asked for, "), NULL, 10) : 0;
}

/* Nameless address space without any access, guard pages of stacks left aside. */
static uint64_t reserved_bytes(void)
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

static void count_standin(struct fakecuda_balance *balance)
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

static void count_all(struct counts *counts)
{
    *counts = (struct counts){.descriptors = open_descriptors(),
                              .threads = running_threads(),
                              .gpu_bytes = emulated_bytes(),
                              .reserved_bytes = SANITIZED ? 0 : reserved_bytes()};
    count_standin(&counts->balance);
}

static bool is_as_usual(struct counts *now)
{
    count_all(now);
    return now->descriptors >= usual.descriptors &&
           now->descriptors <= usual.descriptors + forgiven && now->threads == usual.threads &&
           now->gpu_bytes == usual.gpu_bytes && now->reserved_bytes == usual.reserved_bytes &&
           memcmp(&now->balance, &usual.balance, sizeof now->balance) == 0;
}

static void counts_print(const char *when, const struct counts *counts)
{
    const struct fakecuda_balance *balance = &counts->balance;

    print_message("# %s: %d descriptors, %d threads, %llu bytes of GPU memory, %llu reserved; "
                  "%d contexts, %d memories, %d registered, %d streams, %d events, %d modules\n",
                  when, counts->descriptors, counts->threads, (unsigned long long)counts->gpu_bytes,
                  (unsigned long long)counts->reserved_bytes, balance->contexts, balance->memory,
                  balance->registered, balance->streams, balance->events, balance->modules);
}

/* What ends in the background may take a moment. */
static void check_counts(void)
{
    uint64_t deadline = deadline_after_ms(BOUND_MS);
    struct counts now;

    while (!is_as_usual(&now)) {
        if (deadline_passed(deadline)) {
            counts_print("usual", &usual);
            counts_print("now", &now);
            fail_here(HERE, "something is left");
        }
        nap_us(1000);
    }
}

/* --- peers --------------------------------------------------------------------------------- */

static void launch(const struct script *script)
{
    if (script->name != NULL)
        STAGE("%s", script->name);
    memset(meeting, 0, sizeof *meeting);
    atomic_store(&meeting->gone, UINT64_MAX);
    atomic_store(&meeting->ports[0], script->listens ? 0 : listener_port);
    playing = child_fork(play, script, sizeof *script);
}

static int end_peer(void)
{
    int status = child_wait(playing);

    playing = 0;
    return status;
}

/* A peer that could not play its part has left the reason. */
static void reap(void)
{
    int status = end_peer();

    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
        fail_here(HERE, meeting->failures[1]);
    CHECK(!WIFSIGNALED(status) || WTERMSIG(status) == SIGKILL);
}

static void strike(int signal)
{
    atomic_store(&meeting->gone, clock_now());
    kill(playing, signal);
}

static void kill_and_reap(void)
{
    kill(playing, SIGKILL);
    reap();
}

static int try_open_with(bool peer_listens, int timeout_ms, struct tcpx_session **session)
{
    const struct tcpx_session_options options = transport_options();

    *session = NULL;
    if (!peer_listens)
        return tcpx_session_accept(listener, timeout_ms, session);
    CHECK(await_number(&meeting->ports[0]) != 0);
    return tcpx_session_connect("127.0.0.1", atomic_load(&meeting->ports[0]), &options, timeout_ms,
                                session);
}

static void await_peer(void)
{
    uint64_t start = clock_now();

    CHECK(await_number(&meeting->reached) != 0);
    check_no_stall("the peer", start);
}

static void close_in_time(struct tcpx_session *session)
{
    uint64_t start = clock_now();

    tcpx_session_close(session);
    check_bound("the close", start);
}

static void check_names_peer(void)
{
    CHECK(strstr(tcpx_last_error(), "127.0.0.1") != NULL);
}

/* --- what must hold after each stage ------------------------------------------------------- */

/* A fresh peer, and verified data both ways. */
static void check_next_session(bool peer_listens, bool on_gpu)
{
    static uint64_t seed;
    struct script script = {.stage = ECHOES, .listens = peer_listens, .on_gpu = !on_gpu};
    struct tcpx_transfer *transfers[2];
    struct area areas[2];
    struct tcpx_session *session;
    uint64_t start = clock_now();

    launch(&script);
    seed++;
    CHECK_SUCCESS(try_open_with(peer_listens, PATIENCE_MS, &session));
    for (int i = 0; i < 2; i++) {
        area_allocate(&areas[i], on_gpu == (i == 0), ECHO_BYTES, 0);
        area_register(&areas[i], session);
        area_begin(&areas[i], i == 0, seed);
        transfers[i] =
            begin_message(session, i == 0, &areas[i], ECHO_BYTES, i == 0 ? ECHO_THERE : ECHO_BACK);
    }
    for (int i = 0; i < 2; i++)
        FINISH(transfers[i]);
    CHECK_MOVED(&areas[1], false, 0, ECHO_BYTES, seed, 0);
    tcpx_session_close(session);
    for (int i = 0; i < 2; i++)
        area_free(&areas[i]);
    reap();
    check_no_stall("the next session", start);
}

static void check_afterwards(const struct script *script)
{
    /* a connection that has not greeted is the listener's, until it looks again */
    if (script->listens || script->stage > HALF_GREETING)
        check_counts();
    check_next_session(script->listens, script->on_gpu);
    check_counts();
}

/*
 * A plugin cannot be told to give up a connection that is being made. Ours finds out by itself when
 * the timeout is over and another one is made; the quirky one never does.
 */
static void forgive_plugin(void)
{
    if (strcmp(transport.plugin, "builtin") != 0)
        forgiven += 4 * (int)transport.channels;
}

static void stop_forgiving(void)
{
    struct counts now;

    if (forgiven == 0)
        return;
    forgiven = 0;
    if (!transport.forgets) {
        nap_us(1100000);
        check_next_session(false, false);
        check_counts();
        return;
    }
    count_all(&now);
    usual.descriptors = now.descriptors;
}

/* What a test that has failed left behind is not the next one's fault. */
static int forget_failure(void **state)
{
    (void)state;
    if (playing == 0)
        return 0;
    kill(playing, SIGKILL);
    end_peer();
    forgiven = 0;
    count_all(&usual);
    return 0;
}

/* Over which transports a test runs: with whole messages, in chunks. */
enum { WHOLE = 1, IN_CHUNKS = 2 };

/* What does not depend on the transport is walked through once; rows of tables are chosen. */
static bool fault_is_wanted(intptr_t state)
{
    return (uintptr_t)state > (WHOLE | IN_CHUNKS) ||
           (state & (transport.chunks ? IN_CHUNKS : WHOLE)) != 0;
}

#define FAULT_TEST(function, which)                                                                \
    SUITE_TEST(function, .setup_func = forget_failure, .initial_state = (void *)(intptr_t)(which))

/* A test for each row of a table, over transports like this one. */
#define FAULT_ROWS(table, count, function, which)                                                  \
    for (unsigned i_ = 0; i_ < (count) && fault_is_wanted(which); i_++)                            \
    suite_add(__LINE__, (struct CMUnitTest){.name = (table)[i_].name,                              \
                                            .test_func = function,                                 \
                                            .setup_func = forget_failure,                          \
                                            .initial_state = (void *)(uintptr_t) & (table)[i_]})

/* --- while a session is made --------------------------------------------------------------- */

/* An agreement that is refused in words, which the peer gets, too. */
static bool is_refused(const struct script *script)
{
    return script->stage == ODD_AGREEMENT && script->count != ODD_HANDLES;
}

/* Whether only its own deadline can end the tested side's wait. */
static bool is_for_deadline(const struct script *script)
{
    if (script->ending == STOPS || script->ending == STAYS)
        return !is_refused(script);
    return script->listens ? script->stage == TCP : script->stage <= HALF_GREETING;
}

static void check_opening(const struct script *script, int result, uint64_t start, int timeout_ms)
{
    bool deadline = is_for_deadline(script);

    CHECK(result != TCPX_SUCCESS);
    CHECK(deadline || result != TCPX_IN_PROGRESS);
    check_bound("the error",
                deadline ? start + (uint64_t)timeout_ms * 1000000 : atomic_load(&meeting->gone));
    if (is_refused(script))
        CHECK(strstr(tcpx_last_error(), odd_agreements[script->count].words) != NULL);
    else if (result != TCPX_IN_PROGRESS || script->listens ||
             strstr(tcpx_last_error(), "no peer came to port") == NULL)
        check_names_peer();
}

/* False: the peer was not where it should be before a deadline had passed. */
static bool try_opening(struct script *script, int timeout_ms)
{
    struct tcpx_session *session;
    uint64_t start;
    int result;

    launch(script);
    if (script->listens)
        CHECK(await_number(&meeting->ports[0]) != 0);
    start = clock_now();
    result = try_open_with(script->listens, timeout_ms, &session);
    check_opening(script, result, start, timeout_ms);
    if (result == TCPX_IN_PROGRESS && atomic_load(&meeting->reached) == 0) {
        kill(playing, SIGKILL);
        end_peer();
        return false;
    }
    if (is_refused(script))
        await_peer();
    kill_and_reap();
    return true;
}

/* In both roles. */
static void run_opening(struct script script)
{
    for (int peer_listens = 0; peer_listens < 2; peer_listens++) {
        int timeout_ms;

        script.listens = peer_listens;
        timeout_ms = is_for_deadline(&script) ? (int)SHORT_MS : (int)PATIENCE_MS;
        while (!try_opening(&script, timeout_ms)) {
            CHECK((unsigned)timeout_ms < PATIENCE_MS);
            timeout_ms *= 4;
        }
        if (script.stage >= ODD_AGREEMENT)
            forgive_plugin();
        check_afterwards(&script);
    }
}

static void test_odd_agreement(void **state)
{
    const struct odd_agreement *row = *state;

    run_opening((struct script)SCRIPT(row->name, ODD_AGREEMENT, STAYS,
                                      .count = (unsigned)(row - odd_agreements)));
}

/* --- transfers ----------------------------------------------------------------------------- */

enum { TRANSFERS = 3 };

/* What the tested side has under way: two for which the peer has a counterpart, and one without. */
struct moves {
    const struct script *script;
    struct tcpx_session *session;
    struct area areas[TRANSFERS];
    struct tcpx_transfer *transfers[TRANSFERS];
    int results[TRANSFERS];
    bool sends[TRANSFERS];
};

static void begin_moves(struct moves *moves, struct tcpx_session *session,
                        const struct script *script)
{
    *moves = (struct moves){.script = script, .session = session};
    for (int i = 0; i < TRANSFERS; i++) {
        bool sends = script->sends == (i == TRANSFERS - 1);
        uint64_t tag = i == TRANSFERS - 1 ? TO_NOBODY : sends ? TO_PEER : FROM_PEER;
        struct area *area = &moves->areas[i];

        moves->sends[i] = sends;
        area_of_message(area, session, script->on_gpu == (i < TRANSFERS - 1));
        area_poison(area);
        moves->results[i] = try_begin(
            session, sends, move_of(area, 0, MESSAGE, tag, transport.pieces), &moves->transfers[i]);
        if (moves->results[i] != TCPX_SUCCESS)
            moves->transfers[i] = NULL;
    }
}

/* What the peer has done may be enough for some of them. */
static bool may_succeed(const struct moves *moves, int number)
{
    const struct script *script = moves->script;

    if (number == TRANSFERS - 1)
        return false;
    if (script->stage == RECEIVES || script->stage == CLOSES)
        return !transport.chunks && number < (int)script->count;
    if (script->stage != MOVED)
        return false;
    if (transport.chunks)
        return number == 0 && !moves->sends[0] && script->count == CHUNKS;
    return number <= (int)script->count;
}

static void check_transfer(struct moves *moves, int number)
{
    int result = moves->results[number];

    if (result == TCPX_SUCCESS) {
        CHECK(may_succeed(moves, number));
        CHECK_MOVED(&moves->areas[number], moves->sends[number], 0, MESSAGE, FROM_PEER, 0);
    } else if (result == TCPX_IN_PROGRESS) {
        CHECK(strstr(tcpx_last_error(), "was not done in time") != NULL);
    } else {
        check_names_peer();
    }
    if (moves->script->outcome == ALL_FAILED)
        CHECK(result == TCPX_REMOTE_ERROR);
    if (result != TCPX_IN_PROGRESS)
        moves->transfers[number] = NULL;
}

/* All end by themselves, as the peer is gone; or it does nothing, and only deadlines end waits. */
static void await_ends(struct moves *moves, bool by_deadlines)
{
    for (int i = 0; i < TRANSFERS; i++) {
        int timeout_ms = !by_deadlines ? (int)PATIENCE_MS : i == 0 ? (int)SHORT_MS : 1;
        uint64_t deadline = deadline_after_ms((uint64_t)timeout_ms);

        if (moves->transfers[i] != NULL)
            moves->results[i] = tcpx_transfer_wait(moves->transfers[i], timeout_ms);
        CHECK(by_deadlines || moves->results[i] != TCPX_IN_PROGRESS);
        check_bound("the end of a wait", by_deadlines ? deadline : atomic_load(&meeting->gone));
        check_transfer(moves, i);
    }
}

/* A thread that waits for the eventfd is woken. */
static void await_events(struct moves *moves, int fd)
{
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);
    int left = TRANSFERS;

    while (left > 0) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        uint64_t count;

        left = 0;
        CHECK(poll(&ready, 1, PATIENCE_MS) == 1);
        CHECK(read(fd, &count, sizeof count) == (ssize_t)sizeof count);
        for (int i = 0; i < TRANSFERS; i++) {
            int done = 0;

            if (moves->transfers[i] == NULL)
                continue;
            moves->results[i] = tcpx_transfer_test(moves->transfers[i], &done);
            left += moves->results[i] == TCPX_SUCCESS;
            if (moves->results[i] == TCPX_SUCCESS)
                continue;
            check_bound("the error of a transfer", atomic_load(&meeting->gone));
            check_transfer(moves, i);
        }
        CHECK(!deadline_passed(deadline));
    }
}

/* The peer goes on to send what is late. */
static void let_late_data_come(void)
{
    atomic_store(&meeting->go, 1);
    await_peer();
}

/* When the session is closed, the memory is the caller's again. */
static void end_moves(struct moves *moves)
{
    const struct script *script = moves->script;

    /* Until the session is closed, memory of a transfer that has failed may still be refused. */
    for (int i = 0; i < TRANSFERS && !script->keeps_memory; i++) {
        int result = tcpx_session_deregister(moves->session, moves->areas[i].memory);

        if (result != TCPX_INVALID_USAGE)
            CHECK_SUCCESS(result);
    }
    if (script->stage == LATE && script->overtakes)
        let_late_data_come();
    close_in_time(moves->session);
    for (int i = 0; i < TRANSFERS; i++)
        area_fill(&moves->areas[i], 99);
    if (script->stage == LATE && !script->overtakes)
        let_late_data_come();
    nap_us(1000);
    for (int i = 0; i < TRANSFERS; i++) {
        CHECK_AREA(&moves->areas[i], 0, MESSAGE);
        area_free(&moves->areas[i]);
    }
}

static void await_outcome(struct moves *moves, int event_fd)
{
    const struct script *script = moves->script;

    if (script->killed_after > 0) {
        nap_us(script->killed_after);
        strike(SIGKILL);
    }
    if (script->by_events) {
        await_events(moves, event_fd);
    } else {
        bool by_deadlines =
            script->outcome == AS_ENDING && (script->ending == STOPS || script->ending == STAYS);

        if (by_deadlines)
            await_peer();
        await_ends(moves, by_deadlines);
    }
}

/* The peer plays its part, and all transfers must end. */
static void run_script(struct script script)
{
    struct tcpx_session *session;
    struct moves moves;
    uint64_t start;
    int event_fd = -1;
    int result;

    launch(&script);
    start = clock_now();
    result = try_open_with(script.listens, PATIENCE_MS, &session);
    check_no_stall("the opening", start);
    /* a peer that is gone as soon as it is ready may take the session along */
    if (script.stage == IS_READY && result != TCPX_SUCCESS) {
        check_bound("the error", atomic_load(&meeting->gone));
        check_names_peer();
    } else {
        CHECK_SUCCESS(result);
        if (script.by_events)
            CHECK_SUCCESS(tcpx_session_event_fd(session, &event_fd));
        if (script.is_awaited) {
            await_peer();
            atomic_store(&meeting->gone, UINT64_MAX);
        }
        atomic_store(&meeting->go, script.stage == CLOSES && script.overtakes);
        begin_moves(&moves, session, &script);
        atomic_store(&meeting->go, script.stage != LATE);
        await_outcome(&moves, event_fd);
        end_moves(&moves);
    }
    kill_and_reap();
    check_afterwards(&script);
}

/* Both roles, both directions, both kinds of memory: by turns, not all with all. */
static void run_roles(struct script script, unsigned turn)
{
    script.keeps_memory = script.count % 2 == 1;
    for (int sends = 0; sends < 2; sends++) {
        script.sends = sends;
        script.listens = (turn + (unsigned)sends) % 2;
        script.on_gpu = turn / 2 % 2;
        run_script(script);
    }
}

/* Those that stop before a session is open, in both roles; and the others. */
static const struct script opening_scripts[] = {
    SCRIPT("TCP only, killed", TCP, DIES),
    SCRIPT("TCP only, stopped", TCP, STOPS),
    SCRIPT("TCP only, closed", TCP, HANGS_UP),
    SCRIPT("half a greeting, killed", HALF_GREETING, DIES),
    SCRIPT("half a greeting, stopped", HALF_GREETING, STOPS),
    SCRIPT("half a greeting, closed", HALF_GREETING, HANGS_UP),
    SCRIPT("greeting, killed", GREETING, DIES),
    SCRIPT("greeting, stopped", GREETING, STOPS),
    SCRIPT("greeting, closed", GREETING, HANGS_UP),
    SCRIPT("half an agreement, killed", HALF_AGREEMENT, DIES),
    SCRIPT("half an agreement, stopped", HALF_AGREEMENT, STOPS),
    SCRIPT("half an agreement, closed", HALF_AGREEMENT, HANGS_UP),
};

static const struct script ready_scripts[] = {
    SCRIPT("ready, killed", IS_READY, DIES, .turns = 4),
    SCRIPT("session made, killed", OPEN, DIES, .turns = 2),
    SCRIPT("memory registered, killed", REGISTERED, DIES, .turns = 2),
    SCRIPT("memory registered, stopped", REGISTERED, STOPS, .turns = 1),
    SCRIPT("nothing is posted", SILENT, STAYS, .first_turn = 1, .turns = 1),
};

static const struct script offer_scripts[] = {
    SCRIPT("offered, killed", OFFERED, DIES, .turns = 4),
    SCRIPT("offered, closed", OFFERED, HANGS_UP, .turns = 1),
    SCRIPT("offered, stopped", OFFERED, STOPS, .first_turn = 1, .turns = 1),
};

static void test_script(void **state)
{
    const struct script *script = *state;

    if (script->turns == 0)
        run_opening(*script);
    for (unsigned turn = 0; turn < script->turns; turn++)
        run_roles(*script, script->first_turn + turn);
}

/* Granted but nothing sent, some of it, all of it but not acknowledged. */
FAULT_TEST(test_moved, WHOLE | IN_CHUNKS)
{
    static const unsigned chunks[] = {0, 1, 4, CHUNKS - 1, CHUNKS};
    static const unsigned messages[] = {0, 1, 2};
    const unsigned *counts = transport.chunks ? chunks : messages;
    unsigned stages = transport.chunks ? COUNT_OF(chunks) : COUNT_OF(messages);

    for (unsigned i = 0; i < stages; i++) {
        struct script script = {.stage = MOVED, .count = counts[i]};

        STAGE("%u %s moved", script.count, transport.chunks ? "chunks" : "messages");
        run_roles(script, i);
        run_roles(script, i + 2);
        script.ending = i % 2 == 0 ? STOPS : HANGS_UP;
        if (i % 2 == 0 || transport.chunks)
            run_roles(script, i);
    }
}

/* The end of a peer that is killed, or closes, is an event. */
FAULT_TEST(test_events, WHOLE | IN_CHUNKS)
{
    for (unsigned turn = 0; turn < 8; turn++) {
        const bool closes = turn / 4;

        run_script((struct script)SCRIPT(
            "gone while the eventfd is waited for", closes ? CLOSES : SILENT, STAYS,
            .listens = turn % 2, .sends = turn / 2 % 2, .on_gpu = turn % 2, .is_awaited = true,
            .killed_after = !closes, .by_events = true, .keeps_memory = turn % 2 == 0));
    }
}

static void test_garbage(void **state)
{
    const struct garbage *row = *state;
    unsigned kind = (unsigned)(row - garbage);

    run_script((struct script)SCRIPT(row->name, GARBAGE, kind == HALF_A_MESSAGE ? DIES : STAYS,
                                     .count = kind, .listens = kind % 2, .on_gpu = kind / 2 % 2,
                                     .outcome = ALL_FAILED));
    if (kind == HALF_A_MESSAGE)
        run_script((struct script)SCRIPT("half a message, stopped", GARBAGE, STOPS, .count = kind));
}

/* A chunk of zero bytes is not the chunk that was due: the receive fails, and is never done. */
FAULT_TEST(test_empty_chunks, IN_CHUNKS)
{
    static const unsigned chunks[] = {0, 3, CHUNKS - 1};
    /* From version 7 on the quirky plugin has lengths only of what the GPU unpacks. */
    const bool gpu_only = strcmp(transport.name, "7") == 0;

    for (unsigned turn = 0; turn < 2 * COUNT_OF(chunks); turn++)
        run_script((struct script)SCRIPT(
            "a chunk has zero bytes", EMPTY, STAYS, .count = chunks[turn / 2], .listens = turn % 2,
            .sends = true, .on_gpu = turn % 2 == 1 || gpu_only, .outcome = ALL_FAILED));
}

/* The peer's GPU takes its time, and the peer is killed meanwhile. */
FAULT_TEST(test_unpacking, WHOLE | IN_CHUNKS)
{
    for (int listens = 0; listens < 2; listens++)
        run_script((struct script)SCRIPT("killed while it unpacks", RECEIVES, DIES, .count = 2,
                                         .listens = listens, .on_gpu = true, .delay_us = 150000,
                                         .is_awaited = true, .killed_after = 60000,
                                         .outcome = ALL_ENDED));
}

FAULT_TEST(test_closing, WHOLE | IN_CHUNKS)
{
    for (unsigned turn = 0; turn < 8; turn++)
        run_script((struct script)SCRIPT(
            "closed by the peer", CLOSES, turn % 4 < 2 ? STAYS : DIES, .count = turn % 2,
            .listens = turn / 2 % 2, .sends = turn / 4 % 2, .on_gpu = turn % 2, .is_awaited = true,
            .overtakes = turn % 2 == 1, .outcome = ALL_ENDED));
}

/*
 * All has failed, and the peer still sends its bytes: they do no harm, and when the session is
 * closed they do not arrive.
 */
FAULT_TEST(test_late_data, IN_CHUNKS)
{
    for (unsigned turn = 0; turn < 4; turn++) {
        bool on_gpu = turn % 2;
        bool overtakes = turn / 2;

        run_script(
            (struct script)SCRIPT(overtakes ? "data after the failure" : "data after the close",
                                  LATE, STAYS, .sends = true, .listens = on_gpu == overtakes,
                                  .on_gpu = on_gpu, .overtakes = overtakes, .outcome = ALL_FAILED));
    }
}

/* --- peers at work ------------------------------------------------------------------------- */

struct working {
    struct script script;
    struct tcpx_session *session;
    struct area areas[2]; /* sent from, received into */
};

static void working_open(struct working *working, bool listens, bool on_gpu)
{
    uint64_t start;

    working->script =
        (struct script)SCRIPT("a peer at work", WORKS, STAYS, .listens = listens, .on_gpu = on_gpu);
    launch(&working->script);
    start = clock_now();
    CHECK_SUCCESS(try_open_with(listens, PATIENCE_MS, &working->session));
    check_no_stall("the opening", start);
    for (int i = 0; i < 2; i++)
        area_of_message(&working->areas[i], working->session, on_gpu == (i == 0));
}

static void working_end(struct working *working)
{
    close_in_time(working->session);
    for (int i = 0; i < 2; i++)
        area_free(&working->areas[i]);
}

struct assassin {
    pthread_t thread;
    int signal;
    uint64_t after_us;
};

static void *assassin_run(void *argument)
{
    const struct assassin *assassin = argument;

    nap_us(assassin->after_us);
    strike(assassin->signal);
    return NULL;
}

/* The tested side as the counterpart of a peer that works: until a call fails. */
static int work_until_struck(struct working *working, int timeout_ms, struct assassin assassin)
{
    int result = TCPX_SUCCESS;

    CHECK(pthread_create(&assassin.thread, NULL, assassin_run, &assassin) == 0);
    for (unsigned turn = 0; result == TCPX_SUCCESS; turn++) {
        struct tcpx_transfer *transfers[2] = {NULL, NULL};

        for (int i = 0; i < 2 && result == TCPX_SUCCESS; i++)
            result = try_begin(working->session, i == 0,
                               move_of(&working->areas[i], 0, bytes_of_turn(turn),
                                       i == 0 ? TO_PEER : FROM_PEER, transport.pieces),
                               &transfers[i]);
        for (int i = 0; i < 2 && result == TCPX_SUCCESS; i++)
            result = tcpx_transfer_wait(transfers[i], timeout_ms);
    }
    pthread_join(assassin.thread, NULL);
    return result;
}

/* A peer that is stopped in the middle of its work: the caller's deadline, or the socket's. */
FAULT_TEST(test_stopped_at_work, WHOLE | IN_CHUNKS)
{
    for (unsigned turn = 0; turn < 2; turn++) {
        struct working working;

        working_open(&working, turn % 2, turn % 2);
        if (work_until_struck(
                &working, transport.chunks ? 4 * SHORT_MS : TCPX_DEFAULT_TIMEOUT,
                (struct assassin){.signal = SIGSTOP, .after_us = 3000 + turn * 5000}) !=
            TCPX_IN_PROGRESS)
            check_names_peer();
        /* two waits at most, each as long as UCCL_TCPX_TIMEOUT_MS */
        check_bound("the end of the wait", atomic_load(&meeting->gone) + 2000000000u);
        working_end(&working);
        kill_and_reap();
        check_afterwards(&working.script);
    }
}

/* The tested side closes in the middle of everything: its close is prompt, and the peer fails. */
FAULT_TEST(test_closing_at_work, WHOLE | IN_CHUNKS)
{
    for (unsigned turn = 0; turn < 4; turn++) {
        struct working working;
        uint64_t closed;
        int status;

        working_open(&working, turn % 2, turn / 2);
        for (unsigned i = 0; i <= turn; i++)
            for (int k = 0; k < 2; k++)
                begin_message(working.session, k == 0, &working.areas[k], MESSAGE,
                              k == 0 ? TO_PEER : FROM_PEER);
        nap_us(turn * 700);
        working_end(&working);
        closed = clock_now();
        status = end_peer(); /* a transfer of the peer fails */
        check_bound("the end of the peer", closed);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
        CHECK(strstr(meeting->failures[1], "instead of TCPX_SUCCESS") != NULL);
        atomic_store(&meeting->broken, false);
        check_afterwards(&working.script);
    }
}

/* At any moment of a mixed load. */
FAULT_TEST(test_random_kills, WHOLE | IN_CHUNKS)
{
    uint64_t seed = number_of("TCPX_TEST_SEED", clock_now() / 1000 % 1000000);
    uint64_t random = seed * 0x9e3779b97f4a7c15u + 1;
    unsigned rounds = turns_of(24) > 2 ? turns_of(24) : 2;

    print_message("# %u rounds, TCPX_TEST_SEED=%" PRIu64 "\n", rounds, seed);
    for (unsigned round = 0; round < rounds; round++) {
        bool listens = one_in(&random, 2);
        bool on_gpu = one_in(&random, 2);
        struct working working;

        working_open(&working, listens, on_gpu);
        (void)work_until_struck(
            &working, PATIENCE_MS,
            (struct assassin){.signal = SIGKILL, .after_us = random_below(&random, 20000)});
        check_names_peer();
        check_bound("the error", atomic_load(&meeting->gone));
        kill_and_reap();
        if (round % 6 == 0) /* another session is not concerned, even before this one is closed */
            check_next_session(listens, on_gpu);
        working_end(&working);
        check_counts();
    }
}

/* --- connections that a plugin may keep ------------------------------------------------------
 */

FAULT_TEST(test_agreed, IN_CHUNKS)
{
    static const struct script scripts[] = {
        SCRIPT("agreement, killed", AGREED, DIES),
        SCRIPT("agreement, stopped", AGREED, STOPS),
        SCRIPT("agreement with handles that are none", ODD_AGREEMENT, STAYS, .count = ODD_HANDLES),
    };

    for (size_t i = 0; i < COUNT_OF(scripts); i++)
        run_opening(scripts[i]);
}

FAULT_TEST(test_connecting, IN_CHUNKS)
{
    const unsigned all = 2 * transport.channels;

    for (unsigned count = 0; count <= all; count++) {
        struct script script = {.stage = CONNECTED, .count = count, .ending = DIES};

        STAGE("%u of %u connections", count, all);
        if (transport.forgets && count % 2 == 0 && count < all)
            continue;
        run_opening(script);
        script.ending = HANGS_UP;
        if (count % 2 == 0)
            run_opening(script);
        script.ending = STOPS;
        if (count % 2 == 1 || count == all)
            run_opening(script);
    }
}

/* A peer that is killed at any moment of the opening. */
FAULT_TEST(test_random_kills_of_the_opening, IN_CHUNKS)
{
    uint64_t random = clock_now() | 1;
    unsigned rounds = transport.forgets || turns_of(16) < 2 ? 2 : turns_of(16);

    for (unsigned round = 0; round < rounds; round++) {
        struct script script = {.stage = OPEN, .ending = DIES, .listens = round % 2};
        struct assassin assassin = {.signal = SIGKILL, .after_us = random_below(&random, 6000)};
        struct tcpx_session *session;
        uint64_t deadline;

        STAGE("killed %" PRIu64 " us after its start", assassin.after_us);
        launch(&script);
        if (script.listens)
            CHECK(await_number(&meeting->ports[0]) != 0);
        CHECK(pthread_create(&assassin.thread, NULL, assassin_run, &assassin) == 0);
        deadline = deadline_after_ms(SHORT_MS);
        (void)!try_open_with(script.listens, SHORT_MS, &session);
        check_bound("the opening", deadline);
        pthread_join(assassin.thread, NULL);
        if (session != NULL)
            close_in_time(session);
        kill_and_reap();
        forgive_plugin();
        check_counts();
    }
    stop_forgiving();
    check_next_session(false, false);
}

/* What the sanitizers ask for, where they are. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void);

/* What the quirky plugin forgets of a connection that was not completed. */
const char *__lsan_default_suppressions(void)
{
    return "leak:accept_locked\n";
}

/* Processes end by the hundred here. */
const char *__tsan_default_options(void)
{
    return "atexit_sleep_ms=0";
}

/* --- the program --------------------------------------------------------------------------- */

static int faults_begin(void)
{
#ifdef M_ARENA_MAX
    mallopt(M_ARENA_MAX, 1); /* arenas reserve address space that nobody asked for */
#endif
    transport_read();
    FAULT_ROWS(opening_scripts, COUNT_OF(opening_scripts), test_script, WHOLE);
    FAULT_ROWS(ready_scripts, COUNT_OF(ready_scripts), test_script, WHOLE | IN_CHUNKS);
    FAULT_ROWS(offer_scripts, COUNT_OF(offer_scripts), test_script, IN_CHUNKS);
    FAULT_ROWS(odd_agreements, ODD_HANDLES, test_odd_agreement, WHOLE);
    FAULT_ROWS(garbage, GARBAGES, test_garbage, IN_CHUNKS);
    return sides_begin();
}

static int faults_set_up(void)
{
    const struct tcpx_session_options options = transport_options();

    listener = listen_here(0, &options);
    listener_port = atomic_load(&meeting->ports[0]);
    /* What is started once and stays. */
    for (int i = 0; i < 4; i++)
        check_next_session(i % 2, i / 2);
    nap_us(20000);
    count_all(&usual);
    counts_print("usual", &usual);
    return 0;
}

static int faults_tear_down(void)
{
    tcpx_session_stop_listening(listener);
    return 0;
}

SUITE(.name = "session faults", .begin = faults_begin, .set_up = faults_set_up,
      .tear_down = faults_tear_down, .wants = fault_is_wanted);
