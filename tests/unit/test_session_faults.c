/*
 * A session whose peer fails at some stage: while the two find each other, agree, connect, move
 * data, unpack or close. Whatever the peer does, or does not do any more, the other side is told in
 * bounded time, in words; nothing is left of the session; and the next one works. Peers are
 * processes (session_fault_peer.h); the transport is the one that TCPX_TEST_TRANSPORT names.
 */
#include "tests/unit/session_fault_peer.h"

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>

/* The time of a wait that nothing but its own deadline ends. */
enum { SHORT_MS = 60 };

static struct tcpx_session_listener *listener;
static int listener_port;
static struct counts usual;
static uint8_t data[MESSAGE];
static uint8_t seen[MESSAGE];
static uint64_t longest_ms; /* that anybody had to wait for an error or a close */
static char longest_what[200];
static const char *stage_name = "";
static int forgiven;  /* descriptors that a plugin may still have */
static pid_t playing; /* the peer that is there; 0: none */

#define assert_success(call)                                                                       \
    do {                                                                                           \
        int result_ = (call);                                                                      \
        if (result_ != TCPX_SUCCESS)                                                               \
            fail_msg("%s: %s: %s: %s", stage_name, #call, tcpx_result_name(result_),               \
                     tcpx_last_error());                                                           \
    } while (0)

/* All of them, or so many percent as a sanitizer wants. */
static unsigned turns_of(unsigned all)
{
    const char *percent = getenv("TCPX_TEST_TURNS");
    unsigned turns = percent != NULL ? all * (unsigned)atoi(percent) / 100 : all;

    return turns > 2 ? turns : 2;
}

/* --- time ---------------------------------------------------------------------------------- */

static uint64_t ms_since(uint64_t moment)
{
    uint64_t now = clock_now();

    return now > moment ? (now - moment) / 1000000 : 0;
}

static void check_spent(const char *what, uint64_t spent, uint64_t most)
{
    if (spent > most)
        fail_msg("%s: %s took %" PRIu64 " ms, at most %" PRIu64 " are allowed", stage_name, what,
                 spent, most);
}

/* Of an error or a close: since the peer was gone, or since a deadline. */
static void check_bound(const char *what, uint64_t moment)
{
    uint64_t spent = ms_since(moment);

    if (spent > longest_ms) {
        longest_ms = spent;
        snprintf(longest_what, sizeof longest_what, "%s (%s)", what, stage_name);
    }
    check_spent(what, spent, BOUND_MS);
}

/* Of what succeeds: whatever the machine is busy with, a stall is longer. */
static void check_no_stall(const char *what, uint64_t start)
{
    check_spent(what, ms_since(start), PATIENCE_MS / 2);
}

/* --- peers --------------------------------------------------------------------------------- */

static pid_t launch(struct part *part)
{
    atomic_store(&shared->port, 0);
    atomic_store(&shared->reached, 0);
    atomic_store(&shared->go, 0);
    atomic_store(&shared->gone, UINT64_MAX);
    memset(nursery_shared->failure, 0, sizeof nursery_shared->failure);
    part->port = (uint16_t)listener_port;
    playing = nursery_fork(part->stage < OPEN ? play_by_hand : play_by_library, part, sizeof *part);
    return playing;
}

/* A peer that could not play its part has said so. */
static void check_status(int status)
{
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
        fail_msg("%s: the peer: %s", stage_name, nursery_shared->failure);
    if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
        fail_msg("%s: the peer got signal %d", stage_name, WTERMSIG(status));
}

static void reap(pid_t pid)
{
    kill(pid, SIGKILL);
    playing = 0;
    check_status(nursery_wait(pid));
}

static int open_session(bool peer_listens, int timeout_ms, struct tcpx_session **session)
{
    struct tcpx_session_options options;
    int port;

    *session = NULL;
    if (!peer_listens)
        return tcpx_session_accept(listener, timeout_ms, session);
    world_options(&options);
    port = await_number(&shared->port);
    assert_true(port != 0);
    return tcpx_session_connect("127.0.0.1", port, &options, timeout_ms, session);
}

static void open_in_time(const struct part *part, struct tcpx_session **session)
{
    uint64_t start = clock_now();

    assert_success(open_session(part->listens, PATIENCE_MS, session));
    check_no_stall("the opening", start);
}

static void await_peer(void)
{
    uint64_t start = clock_now();

    assert_true(await_number(&shared->reached) != 0);
    check_no_stall("the peer", start);
}

static void close_in_time(struct tcpx_session *session)
{
    uint64_t start = clock_now();

    tcpx_session_close(session);
    check_bound("the close", start);
}

/* --- what must hold after each stage ------------------------------------------------------- */

static bool is_as_usual(struct counts *now)
{
    struct counts forgiving;

    count_all(now);
    forgiving = *now;
    if (now->descriptors > usual.descriptors && now->descriptors <= usual.descriptors + forgiven)
        forgiving.descriptors = usual.descriptors;
    return counts_equal(&forgiving, &usual);
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
            fail_msg("%s: something is left", stage_name);
        }
        nap(1000);
    }
}

/*
 * A plugin cannot be told that nobody wants a connection any more that is being made. Ours finds
 * out by itself when the timeout is over and another one is made; the quirky one never does.
 */
static void forgive_plugin(void)
{
    if (strcmp(world.plugin, "builtin") != 0)
        forgiven += 4 * (int)world.channels;
}

static void check_next_session(bool peer_listens, bool on_gpu);

static void stop_forgiving(void)
{
    struct counts now;

    if (forgiven == 0)
        return;
    forgiven = 0;
    if (!world.forgets) {
        nap(1100000);
        check_next_session(false, false);
        check_counts();
        return;
    }
    count_all(&now);
    usual.descriptors = now.descriptors;
}

static void move_echo(struct tcpx_session *session, struct tcpx_memory *from,
                      struct tcpx_memory *to)
{
    struct tcpx_transfer *send;
    struct tcpx_transfer *receive;
    struct tcpx_move move = world_move(from, ECHO, ECHO_THERE);

    assert_success(tcpx_send(session, &move, &send));
    move = world_move(to, ECHO, ECHO_BACK);
    assert_success(tcpx_receive(session, &move, &receive));
    assert_success(tcpx_transfer_wait(send, PATIENCE_MS));
    assert_success(tcpx_transfer_wait(receive, PATIENCE_MS));
}

/* A fresh peer, and verified data both ways. */
static void check_next_session(bool peer_listens, bool on_gpu)
{
    static uint64_t message;
    struct part part = {.stage = ECHOES, .listens = peer_listens, .on_gpu = !on_gpu};
    struct buffer buffers[2];
    struct tcpx_memory *memories[2];
    struct tcpx_session *session;
    uint64_t start = clock_now();
    pid_t pid = launch(&part);

    message++;
    assert_success(open_session(peer_listens, PATIENCE_MS, &session));
    for (int i = 0; i < 2; i++) {
        assert_true(buffer_make(&buffers[i], on_gpu == (i == 0), ECHO));
        assert_success(tcpx_session_register(session, buffers[i].address, ECHO, &memories[i]));
    }
    fill_message(data, ECHO, message);
    memset(seen, 0, ECHO);
    assert_true(buffer_write(&buffers[0], data, ECHO));
    assert_true(buffer_write(&buffers[1], seen, ECHO));
    move_echo(session, memories[0], memories[1]);
    assert_true(buffer_read(&buffers[1], seen, ECHO));
    assert_memory_equal(data, seen, ECHO);
    tcpx_session_close(session);
    for (int i = 0; i < 2; i++)
        assert_true(buffer_free(&buffers[i]));
    playing = 0;
    check_status(nursery_wait(pid));
    check_no_stall("the next session", start);
}

static void check_afterwards(const struct part *part)
{
    /* who has not greeted is the listener's, until it looks again */
    if (part->listens || part->stage > HALF_GREETING)
        check_counts();
    check_next_session(part->listens, part->on_gpu);
    check_counts();
}

/* --- texts --------------------------------------------------------------------------------- */

static void check_names_peer(int result)
{
    if (strstr(tcpx_last_error(), "127.0.0.1") == NULL)
        fail_msg("%s: %s does not name the peer: %s", stage_name, tcpx_result_name(result),
                 tcpx_last_error());
}

/* --- while a session is made --------------------------------------------------------------- */

/* Whether only its own deadline can end the tested side's wait. */
static bool is_for_deadline(const struct part *part)
{
    if (part->ending == STOPS || part->ending == STAYS)
        return part->stage != ODD_AGREEMENT || part->count == HANDLES;
    return part->listens ? part->stage == TCP : part->stage <= HALF_GREETING;
}

static void check_opening(const struct part *part, int result, uint64_t start, int timeout_ms)
{
    bool deadline = is_for_deadline(part);

    if (result == TCPX_SUCCESS)
        fail_msg("%s: the session was made", stage_name);
    if (!deadline && result == TCPX_IN_PROGRESS)
        fail_msg("%s: nothing but the deadline ended it: %s", stage_name, tcpx_last_error());
    check_bound("the error",
                deadline ? start + (uint64_t)timeout_ms * 1000000 : atomic_load(&shared->gone));
    if (part->stage == ODD_AGREEMENT && part->count != HANDLES)
        assert_true(strstr(tcpx_last_error(), "peer") != NULL ||
                    strstr(tcpx_last_error(), "agreement") != NULL ||
                    strstr(tcpx_last_error(), "127.0.0.1") != NULL);
    else if (result != TCPX_IN_PROGRESS || part->listens ||
             strstr(tcpx_last_error(), "no peer came to port") == NULL)
        check_names_peer(result);
}

/* False: the peer was not where it should be before a deadline had passed. */
static bool try_opening(struct part *part, int timeout_ms)
{
    pid_t pid = launch(part);
    bool odd = part->stage == ODD_AGREEMENT && part->count != HANDLES;
    struct tcpx_session *session;
    uint64_t start;
    int result;

    if (part->listens)
        assert_true(await_number(&shared->port) != 0);
    start = clock_now();
    result = open_session(part->listens, timeout_ms, &session);
    check_opening(part, result, start, timeout_ms);
    if (result == TCPX_IN_PROGRESS && atomic_load(&shared->reached) == 0) {
        kill(pid, SIGKILL);
        playing = 0;
        nursery_wait(pid);
        return false;
    }
    if (odd) /* the peer hears why */
        await_peer();
    reap(pid);
    return true;
}

static void run_opening(enum stage stage, unsigned count, enum ending ending)
{
    for (int peer_listens = 0; peer_listens < 2; peer_listens++) {
        struct part part = {
            .stage = stage, .count = count, .ending = ending, .listens = peer_listens};
        int timeout_ms = is_for_deadline(&part) ? (int)SHORT_MS : (int)PATIENCE_MS;

        while (!try_opening(&part, timeout_ms)) {
            assert_true((unsigned)timeout_ms < PATIENCE_MS);
            timeout_ms *= 4;
        }
        if (stage >= ODD_AGREEMENT)
            forgive_plugin();
        check_afterwards(&part);
    }
}

#define STAGE(...)                                                                                 \
    static char stage_text[100];                                                                   \
    snprintf(stage_text, sizeof stage_text, __VA_ARGS__);                                          \
    stage_name = stage_text

static void test_bootstrap(void **state)
{
    static const struct {
        enum stage stage;
        enum ending ending;
        const char *name;
    } stages[] = {
        {TCP, DIES, "TCP only, killed"},
        {TCP, STOPS, "TCP only, stopped"},
        {TCP, HANGS_UP, "TCP only, closed"},
        {HALF_GREETING, DIES, "half a greeting, killed"},
        {HALF_GREETING, STOPS, "half a greeting, stopped"},
        {HALF_GREETING, HANGS_UP, "half a greeting, closed"},
        {GREETING, DIES, "greeting, killed"},
        {GREETING, STOPS, "greeting, stopped"},
        {GREETING, HANGS_UP, "greeting, closed"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
        stage_name = stages[i].name;
        run_opening(stages[i].stage, 0, stages[i].ending);
    }
}

static void test_odd_agreements(void **state)
{
    (void)state;
    stage_name = "half an agreement, killed";
    run_opening(HALF_AGREEMENT, 0, DIES);
    stage_name = "half an agreement, stopped";
    run_opening(HALF_AGREEMENT, 0, STOPS);
    stage_name = "half an agreement, closed";
    run_opening(HALF_AGREEMENT, 0, HANGS_UP);
    for (unsigned odd = 0; odd < HANDLES; odd++) {
        STAGE("odd agreement %u", odd);
        run_opening(ODD_AGREEMENT, odd, STAYS);
    }
}

static void test_agreed(void **state)
{
    (void)state;
    stage_name = "agreement, killed";
    run_opening(AGREED, 0, DIES);
    stage_name = "agreement, stopped";
    run_opening(AGREED, 0, STOPS);
    stage_name = "agreement with handles that are none";
    run_opening(ODD_AGREEMENT, HANDLES, STAYS);
}

static void test_connecting(void **state)
{
    (void)state;
    for (unsigned count = 0; count <= 2 * world.channels; count++) {
        STAGE("%u of %u connections", count, 2 * world.channels);
        if (world.forgets && count % 2 == 0 && count < 2 * world.channels)
            continue;
        run_opening(CONNECTED, count, DIES);
        if (count % 2 == 0)
            run_opening(CONNECTED, count, HANGS_UP);
        if (count % 2 == 1 || count == 2 * world.channels)
            run_opening(CONNECTED, count, STOPS);
    }
}

/* --- transfers ----------------------------------------------------------------------------- */

enum { TRANSFERS = 3 };

/* What the tested side has under way: two that the peer may take part in, and one that it cannot.
 */
struct moves {
    struct tcpx_session *session;
    struct buffer buffers[TRANSFERS];
    struct tcpx_memory *memories[TRANSFERS];
    struct tcpx_transfer *transfers[TRANSFERS];
    int results[TRANSFERS];
    bool sends[TRANSFERS];
};

static void begin_moves(struct moves *moves, struct tcpx_session *session, const struct part *part)
{
    *moves = (struct moves){.session = session};
    memset(data, 0x5A, MESSAGE);
    for (int i = 0; i < TRANSFERS; i++) {
        bool sends = part->sends == (i == TRANSFERS - 1);
        uint64_t tag = i == TRANSFERS - 1 ? TO_NOBODY : sends ? TO_PEER : FROM_PEER;
        struct tcpx_move move;

        moves->sends[i] = sends;
        assert_true(buffer_make(&moves->buffers[i], part->on_gpu == (i < TRANSFERS - 1), MESSAGE));
        assert_true(buffer_write(&moves->buffers[i], data, MESSAGE));
        assert_success(tcpx_session_register(session, moves->buffers[i].address, MESSAGE,
                                             &moves->memories[i]));
        move = world_move(moves->memories[i], MESSAGE, tag);
        moves->results[i] = sends ? tcpx_send(session, &move, &moves->transfers[i])
                                  : tcpx_receive(session, &move, &moves->transfers[i]);
        if (moves->results[i] != TCPX_SUCCESS)
            moves->transfers[i] = NULL;
    }
}

/* What the peer has done may be enough for some of them. */
static bool may_succeed(const struct part *part, const struct moves *moves, int number)
{
    if (number == TRANSFERS - 1)
        return false;
    if (part->stage == RECEIVES || part->stage == CLOSES)
        return !world.chunks && number < (int)part->count;
    if (part->stage != MOVED)
        return false;
    if (world.chunks)
        return number == 0 && !moves->sends[0] && part->count == CHUNKS;
    return number <= (int)part->count;
}

static void check_result(const struct part *part, struct moves *moves, int number)
{
    int result = moves->results[number];

    if (result == TCPX_SUCCESS) {
        if (!may_succeed(part, moves, number))
            fail_msg("%s: transfer %d is done", stage_name, number);
        if (!moves->sends[number]) {
            assert_true(buffer_read(&moves->buffers[number], seen, MESSAGE));
            assert_int_equal(memcmp(seen, peers_message, MESSAGE), 0);
        }
    } else if (result != TCPX_IN_PROGRESS) {
        check_names_peer(result);
    } else if (strstr(tcpx_last_error(), "was not done in time") == NULL) {
        fail_msg("%s: %s", stage_name, tcpx_last_error());
    }
}

/* The peer is gone, and everything ends by itself. */
static void await_errors(const struct part *part, struct moves *moves)
{
    for (int i = 0; i < TRANSFERS; i++) {
        if (moves->transfers[i] != NULL)
            moves->results[i] = tcpx_transfer_wait(moves->transfers[i], PATIENCE_MS);
        if (moves->results[i] == TCPX_IN_PROGRESS)
            fail_msg("%s: transfer %d was told of nothing: %s", stage_name, i, tcpx_last_error());
        check_bound("the error of a transfer", atomic_load(&shared->gone));
        check_result(part, moves, i);
        moves->transfers[i] = NULL;
    }
}

/* The peer is there and does nothing: the deadline of each call ends it. */
static void await_deadlines(const struct part *part, struct moves *moves, int timeout_ms)
{
    for (int i = 0; i < TRANSFERS; i++) {
        uint64_t deadline = deadline_after_ms((uint64_t)timeout_ms);

        if (moves->transfers[i] != NULL)
            moves->results[i] = tcpx_transfer_wait(moves->transfers[i], timeout_ms);
        check_bound("a wait", deadline);
        check_result(part, moves, i);
        if (moves->results[i] != TCPX_IN_PROGRESS)
            moves->transfers[i] = NULL;
        timeout_ms = 1;
    }
}

/* Memory of a transfer that has failed is the caller's again when the session is closed. */
static void check_is_mine(const struct buffer *buffers, int count)
{
    memset(data, 0xC3, MESSAGE);
    for (int i = 0; i < count; i++)
        assert_true(buffer_write(&buffers[i], data, MESSAGE));
    nap(1000);
    for (int i = 0; i < count; i++) {
        assert_true(buffer_read(&buffers[i], seen, MESSAGE));
        assert_int_equal(memcmp(seen, data, MESSAGE), 0);
    }
}

/* Until then it may be refused. */
static void check_deregistration(struct tcpx_session *session, struct tcpx_memory *memory)
{
    int result = tcpx_session_deregister(session, memory);

    if (result != TCPX_INVALID_USAGE)
        assert_success(result);
}

static void end_moves(struct moves *moves, bool deregister)
{
    for (int i = 0; i < TRANSFERS && deregister; i++)
        check_deregistration(moves->session, moves->memories[i]);
    close_in_time(moves->session);
    check_is_mine(moves->buffers, TRANSFERS);
    for (int i = 0; i < TRANSFERS; i++)
        assert_true(buffer_free(&moves->buffers[i]));
}

/* The peer plays its part, and all transfers must end. */
static void run_part(struct part *part)
{
    pid_t pid = launch(part);
    struct tcpx_session *session;
    struct moves moves;
    uint64_t start = clock_now();
    int result = open_session(part->listens, PATIENCE_MS, &session);

    check_no_stall("the opening", start);
    /* a peer that is gone as soon as it is ready may take the session along */
    if (part->stage == IS_READY && result != TCPX_SUCCESS) {
        check_bound("the error", atomic_load(&shared->gone));
        check_names_peer(result);
        reap(pid);
        check_afterwards(part);
        return;
    }
    assert_success(result);
    begin_moves(&moves, session, part);
    if (part->ending == STOPS || part->ending == STAYS) {
        await_peer();
        await_deadlines(part, &moves, SHORT_MS);
    } else {
        await_errors(part, &moves);
    }
    end_moves(&moves, part->count % 2 == 0);
    reap(pid);
    check_afterwards(part);
}

/* Both roles, both directions, both kinds of memory: by turns, not all with all. */
static void run_roles(struct part part, unsigned turn)
{
    for (int sends = 0; sends < 2; sends++) {
        part.sends = sends;
        part.listens = (turn + (unsigned)sends) % 2;
        part.on_gpu = turn / 2 % 2;
        run_part(&part);
    }
}

static void test_gone_when_ready(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 4; turn++) {
        STAGE("ready, killed");
        run_roles((struct part){.stage = IS_READY, .ending = DIES}, turn);
    }
    for (unsigned turn = 0; turn < 2; turn++) {
        stage_name = "session made, killed";
        run_roles((struct part){.stage = OPEN, .ending = DIES}, turn);
        stage_name = "memory registered, killed";
        run_roles((struct part){.stage = REGISTERED, .ending = DIES}, turn);
    }
    stage_name = "memory registered, stopped";
    run_roles((struct part){.stage = REGISTERED, .ending = STOPS}, 0);
    stage_name = "nothing is posted";
    run_roles((struct part){.stage = SILENT, .ending = STAYS}, 1);
}

static void test_offered(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 4; turn++) {
        stage_name = "offered, killed";
        run_roles((struct part){.stage = OFFERED, .ending = DIES}, turn);
    }
    stage_name = "offered, closed";
    run_roles((struct part){.stage = OFFERED, .ending = HANGS_UP}, 0);
    stage_name = "offered, stopped";
    run_roles((struct part){.stage = OFFERED, .ending = STOPS}, 1);
}

/* Granted but nothing sent, some of it, all of it but not acknowledged. */
static void test_moved(void **state)
{
    static const unsigned chunks[] = {0, 1, 4, CHUNKS - 1, CHUNKS};
    static const unsigned messages[] = {0, 1, 2};
    const unsigned *counts = world.chunks ? chunks : messages;
    size_t stages =
        world.chunks ? sizeof chunks / sizeof *chunks : sizeof messages / sizeof *messages;

    (void)state;
    for (size_t i = 0; i < stages; i++) {
        STAGE("%u %s moved", counts[i], world.chunks ? "chunks" : "messages");
        run_roles((struct part){.stage = MOVED, .count = counts[i], .ending = DIES}, (unsigned)i);
        run_roles((struct part){.stage = MOVED, .count = counts[i], .ending = DIES},
                  (unsigned)i + 2);
        if (i % 2 == 0)
            run_roles((struct part){.stage = MOVED, .count = counts[i], .ending = STOPS},
                      (unsigned)i);
        if (world.chunks && i % 2 == 1)
            run_roles((struct part){.stage = MOVED, .count = counts[i], .ending = HANGS_UP},
                      (unsigned)i);
    }
}

/* Whoever waits for the eventfd is woken. */
static void await_events(const struct part *part, struct moves *moves, int fd)
{
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);
    int left = TRANSFERS;

    while (left > 0) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        uint64_t count;

        left = 0;
        assert_true(poll(&ready, 1, PATIENCE_MS) == 1);
        assert_int_equal(read(fd, &count, sizeof count), sizeof count);
        for (int i = 0; i < TRANSFERS; i++) {
            int done = 0;

            if (moves->transfers[i] == NULL)
                continue;
            moves->results[i] = tcpx_transfer_test(moves->transfers[i], &done);
            left += moves->results[i] == TCPX_SUCCESS;
            if (moves->results[i] == TCPX_SUCCESS)
                continue;
            check_bound("the error of a transfer", atomic_load(&shared->gone));
            check_result(part, moves, i);
            moves->transfers[i] = NULL;
        }
        assert_false(deadline_passed(deadline));
    }
}

static void test_events(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 4; turn++) {
        struct part part = {.stage = SILENT,
                            .ending = STAYS,
                            .listens = turn % 2,
                            .sends = turn / 2,
                            .on_gpu = turn % 2};
        struct tcpx_session *session;
        struct moves moves;
        pid_t pid;
        int fd;

        stage_name = "killed while the eventfd is waited for";
        pid = launch(&part);
        open_in_time(&part, &session);
        assert_success(tcpx_session_event_fd(session, &fd));
        begin_moves(&moves, session, &part);
        await_peer();
        atomic_store(&shared->gone, clock_now());
        kill(pid, SIGKILL);
        await_events(&part, &moves, fd);
        end_moves(&moves, turn % 2);
        reap(pid);
        check_afterwards(&part);
    }
}

/* --- what nobody may say ------------------------------------------------------------------- */

static void test_garbage(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < GARBAGES; kind++) {
        struct part part = {.stage = GARBAGE,
                            .count = kind,
                            .ending = kind == HALF_A_MESSAGE ? DIES : STAYS,
                            .listens = kind % 2,
                            .on_gpu = kind / 2 % 2};
        struct tcpx_session *session;
        struct moves moves;
        pid_t pid;

        STAGE("garbage %u", kind);
        pid = launch(&part);
        open_in_time(&part, &session);
        begin_moves(&moves, session, &part);
        await_errors(&part, &moves);
        for (int i = 0; i < TRANSFERS; i++)
            assert_int_equal(moves.results[i], TCPX_REMOTE_ERROR);
        end_moves(&moves, true);
        reap(pid);
        check_afterwards(&part);
    }
    stage_name = "half a message, stopped";
    run_part(&(struct part){.stage = GARBAGE, .count = HALF_A_MESSAGE, .ending = STOPS});
}

/* --- memory after a failure ---------------------------------------------------------------- */

/*
 * A receive has failed, and the peer still sends its bytes: they do no harm, and when the session
 * is closed they do not arrive.
 */
static void run_late(struct part *part, bool closes)
{
    struct tcpx_session *session;
    struct tcpx_memory *memory;
    struct tcpx_transfer *transfer;
    struct tcpx_move move;
    struct buffer buffer;
    pid_t pid = launch(part);

    open_in_time(part, &session);
    assert_true(buffer_make(&buffer, part->on_gpu, MESSAGE));
    assert_success(tcpx_session_register(session, buffer.address, MESSAGE, &memory));
    move = world_move(memory, MESSAGE, FROM_PEER);
    assert_success(tcpx_receive(session, &move, &transfer));
    assert_int_equal(tcpx_transfer_wait(transfer, PATIENCE_MS), TCPX_REMOTE_ERROR);
    check_bound("the error of the receive", atomic_load(&shared->gone));
    check_names_peer(TCPX_REMOTE_ERROR);
    check_deregistration(session, memory);
    memset(data, 0xC3, MESSAGE);
    if (closes) {
        close_in_time(session);
        assert_true(buffer_write(&buffer, data, MESSAGE));
    }
    atomic_store(&shared->go, 1);
    await_peer();
    if (!closes) {
        close_in_time(session);
        assert_true(buffer_write(&buffer, data, MESSAGE));
    }
    assert_true(buffer_read(&buffer, seen, MESSAGE));
    assert_int_equal(memcmp(seen, data, MESSAGE), 0);
    assert_true(buffer_free(&buffer));
    reap(pid);
    check_afterwards(part);
}

static void test_late_data(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 4; turn++) {
        bool on_gpu = turn % 2;
        bool closes = turn / 2;

        STAGE("data for %s memory after the %s", on_gpu ? "GPU" : "host",
              closes ? "close" : "failure");
        run_late(&(struct part){.stage = LATE,
                                .ending = STAYS,
                                .sends = true,
                                .listens = on_gpu != closes,
                                .on_gpu = on_gpu},
                 closes);
    }
}

/* A chunk of zero bytes is not the chunk that was due: the receive fails, and is never done. */
static void test_empty_chunks(void **state)
{
    static const unsigned chunks[] = {0, 3, CHUNKS - 1};
    (void)state;
    for (unsigned turn = 0; turn < 2 * sizeof chunks / sizeof *chunks; turn++) {
        /* From version 7 on the quirky plugin says lengths only of what the GPU unpacks. */
        const bool on_gpu = turn % 2 == 1 || strcmp(world.name, "7") == 0;
        struct part part = {.stage = EMPTY,
                            .count = chunks[turn / 2],
                            .ending = STAYS,
                            .listens = turn % 2,
                            .sends = true,
                            .on_gpu = on_gpu};
        struct tcpx_session *session;
        struct moves moves;
        pid_t pid;

        STAGE("chunk %u has zero bytes", part.count);
        pid = launch(&part);
        open_in_time(&part, &session);
        begin_moves(&moves, session, &part);
        await_errors(&part, &moves);
        for (int i = 0; i < TRANSFERS; i++)
            assert_int_equal(moves.results[i], TCPX_REMOTE_ERROR);
        end_moves(&moves, true);
        reap(pid);
        check_afterwards(&part);
    }
}

/* --- peers that are real ------------------------------------------------------------------- */

/* The peer's GPU takes its time, and the peer is killed meanwhile. */
static void test_unpacking(void **state)
{
    (void)state;
    for (int listens = 0; listens < 2; listens++) {
        struct part part = {
            .stage = RECEIVES, .count = 2, .listens = listens, .on_gpu = true, .delay_us = 150000};
        struct tcpx_session *session;
        struct moves moves;
        pid_t pid;

        stage_name = "killed while it unpacks";
        pid = launch(&part);
        open_in_time(&part, &session);
        await_peer();
        begin_moves(&moves, session, &part);
        nap(60000);
        atomic_store(&shared->gone, clock_now());
        kill(pid, SIGKILL);
        await_errors(&part, &moves);
        end_moves(&moves, true);
        reap(pid);
        check_afterwards(&part);
    }
}

static void test_closing(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 8; turn++) {
        struct part part = {.stage = CLOSES,
                            .count = turn % 2,
                            .ending = turn % 4 < 2 ? STAYS : DIES,
                            .listens = turn / 2 % 2,
                            .sends = turn / 4 % 2,
                            .on_gpu = turn % 2};
        struct tcpx_session *session;
        struct moves moves;
        pid_t pid;

        STAGE("closed by the peer %u", turn);
        pid = launch(&part);
        open_in_time(&part, &session);
        await_peer();
        atomic_store(&shared->gone, UINT64_MAX);
        if (turn % 2 == 0) /* else the peer is faster */
            begin_moves(&moves, session, &part);
        atomic_store(&shared->go, 1);
        if (turn % 2 == 1)
            begin_moves(&moves, session, &part);
        await_errors(&part, &moves);
        end_moves(&moves, true);
        reap(pid);
        check_afterwards(&part);
    }
}

/* The tested side as the counterpart of a peer that works: until a call fails. */
static int work_until_error(struct tcpx_session *session, struct tcpx_memory *from,
                            struct tcpx_memory *to, int timeout_ms)
{
    int result = TCPX_SUCCESS;

    for (unsigned turn = 0; result == TCPX_SUCCESS; turn++) {
        const uint64_t bytes = turn % 3 == 0 ? MESSAGE : turn % 3 == 1 ? 1000 : 70000;
        struct tcpx_transfer *transfers[2] = {NULL, NULL};
        struct tcpx_move move = world_move(from, bytes, TO_PEER);

        result = tcpx_send(session, &move, &transfers[0]);
        move = world_move(to, bytes, FROM_PEER);
        if (result == TCPX_SUCCESS)
            result = tcpx_receive(session, &move, &transfers[1]);
        for (int i = 0; i < 2; i++)
            if (result == TCPX_SUCCESS && transfers[i] != NULL)
                result = tcpx_transfer_wait(transfers[i], timeout_ms);
    }
    return result;
}

struct working {
    struct part part;
    struct tcpx_session *session;
    struct buffer buffers[2];
    struct tcpx_memory *memories[2];
    pid_t pid;
};

static void working_open(struct working *working, struct part part)
{
    working->part = part;
    working->pid = launch(&working->part);
    open_in_time(&part, &working->session);
    for (int i = 0; i < 2; i++) {
        assert_true(buffer_make(&working->buffers[i], part.on_gpu == (i == 0), MESSAGE));
        assert_success(tcpx_session_register(working->session, working->buffers[i].address, MESSAGE,
                                             &working->memories[i]));
    }
}

static void working_end(struct working *working)
{
    close_in_time(working->session);
    for (int i = 0; i < 2; i++)
        assert_true(buffer_free(&working->buffers[i]));
}

struct assassin {
    pid_t pid;
    int signal;
    uint64_t after_us;
};

static void *strike(void *argument)
{
    const struct assassin *assassin = argument;

    nap(assassin->after_us);
    atomic_store(&shared->gone, clock_now());
    kill(assassin->pid, assassin->signal);
    return NULL;
}

/* A peer that is stopped in the middle of its work: the caller's deadline, or the socket's. */
static void test_stopped_at_work(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 2; turn++) {
        int timeout_ms = world.chunks ? 4 * SHORT_MS : TCPX_DEFAULT_TIMEOUT;
        struct working working;
        struct assassin assassin = {.signal = SIGSTOP, .after_us = 3000 + turn * 5000};
        pthread_t thread;
        int result;

        stage_name = "stopped at work";
        working_open(&working,
                     (struct part){.stage = WORKS, .listens = turn % 2, .on_gpu = turn % 2});
        assassin.pid = working.pid;
        assert_int_equal(pthread_create(&thread, NULL, strike, &assassin), 0);
        result =
            work_until_error(working.session, working.memories[0], working.memories[1], timeout_ms);
        pthread_join(thread, NULL);
        /* two waits at most, each as long as UCCL_TCPX_TIMEOUT_MS */
        check_bound("the end of the wait", atomic_load(&shared->gone) + 2000000000u);
        if (result != TCPX_IN_PROGRESS)
            check_names_peer(result);
        working_end(&working);
        reap(working.pid);
        check_afterwards(&working.part);
    }
}

/* The tested side closes in the middle of everything: it is not kept, and the peer is told. */
static void test_closing_at_work(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 4; turn++) {
        struct working working;
        struct tcpx_transfer *transfer;
        struct tcpx_move move;
        uint64_t closed;
        int status;

        STAGE("closed by the tested side, turn %u", turn);
        working_open(&working,
                     (struct part){.stage = WORKS, .listens = turn % 2, .on_gpu = turn / 2});
        for (unsigned i = 0; i <= turn; i++) {
            move = world_move(working.memories[0], MESSAGE, TO_PEER);
            assert_success(tcpx_send(working.session, &move, &transfer));
            move = world_move(working.memories[1], MESSAGE, FROM_PEER);
            assert_success(tcpx_receive(working.session, &move, &transfer));
        }
        nap(turn * 700);
        working_end(&working);
        closed = clock_now();
        playing = 0;
        status = nursery_wait(working.pid); /* a CHECK of the peer fails: that of a transfer */
        check_bound("the end of the peer", closed);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 1);
        assert_non_null(strstr(nursery_shared->failure, "tcpx_"));
        check_afterwards(&working.part);
    }
}

static uint64_t random_number(uint64_t *random)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

/* At any moment of a mixed load. */
static void test_random_kills(void **state)
{
    const char *given = getenv("TCPX_TEST_SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : clock_now() / 1000 % 1000000;
    uint64_t random = seed * 0x9e3779b97f4a7c15u + 1;
    unsigned rounds = turns_of(24);

    (void)state;
    print_message("# %u rounds, TCPX_TEST_SEED=%" PRIu64 "\n", rounds, seed);
    for (unsigned round = 0; round < rounds; round++) {
        struct part part = {.stage = WORKS,
                            .listens = random_number(&random) >> 32 & 1,
                            .on_gpu = random_number(&random) >> 32 & 1};
        struct assassin assassin = {.signal = SIGKILL,
                                    .after_us = (random_number(&random) >> 32) % 20000};
        struct working working;
        pthread_t thread;
        int result;

        STAGE("random kill, round %u of seed %" PRIu64, round, seed);
        working_open(&working, part);
        assassin.pid = working.pid;
        assert_int_equal(pthread_create(&thread, NULL, strike, &assassin), 0);
        result = work_until_error(working.session, working.memories[0], working.memories[1],
                                  PATIENCE_MS);
        pthread_join(thread, NULL);
        check_bound("the error", atomic_load(&shared->gone));
        check_names_peer(result);
        reap(working.pid);
        if (round % 6 == 0) /* another session is not concerned, even before this one is closed */
            check_next_session(part.listens, part.on_gpu);
        working_end(&working);
        check_counts();
    }
}

/* The same while the session is being made. */
static void test_random_kills_of_the_opening(void **state)
{
    uint64_t random = clock_now() | 1;
    unsigned rounds = world.forgets ? 2 : turns_of(16);

    (void)state;
    for (unsigned round = 0; round < rounds; round++) {
        struct part part = {.stage = OPEN, .ending = DIES, .listens = round % 2};
        struct assassin assassin = {.signal = SIGKILL,
                                    .after_us = (random_number(&random) >> 32) % 6000};
        struct tcpx_session *session;
        pthread_t thread;
        uint64_t deadline;
        int result;

        STAGE("killed %" PRIu64 " us after its start", assassin.after_us);
        assassin.pid = launch(&part);
        if (part.listens)
            assert_true(await_number(&shared->port) != 0);
        assert_int_equal(pthread_create(&thread, NULL, strike, &assassin), 0);
        deadline = deadline_after_ms(SHORT_MS);
        result = open_session(part.listens, SHORT_MS, &session);
        check_bound("the opening", deadline);
        pthread_join(thread, NULL);
        if (result == TCPX_SUCCESS)
            close_in_time(session);
        reap(assassin.pid);
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

static int start(void **state)
{
    struct tcpx_session_options options;

    (void)state;
    world_options(&options);
    assert_success(tcpx_session_listen("127.0.0.1", 0, &options, &listener));
    assert_success(tcpx_session_port(listener, &listener_port));
    /* What is started once and stays. */
    for (int i = 0; i < 4; i++)
        check_next_session(i % 2, i / 2);
    nap(20000);
    count_all(&usual);
    counts_print("# usual", &usual);
    return 0;
}

/* What a test that has failed left behind is not the next one's fault. */
static int start_over(void **state)
{
    (void)state;
    if (playing == 0)
        return 0;
    kill(playing, SIGKILL);
    nursery_wait(playing);
    playing = 0;
    forgiven = 0;
    count_all(&usual);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    tcpx_session_stop_listening(listener);
    print_message("# %s: errors and closes took %" PRIu64 " ms at most: %s\n", world.name,
                  longest_ms, longest_what);
    return 0;
}

#define FAULT_TEST(test) cmocka_unit_test_setup(test, start_over)
#define ANY_TRANSPORT                                                                              \
    FAULT_TEST(test_gone_when_ready), FAULT_TEST(test_moved), FAULT_TEST(test_events),             \
        FAULT_TEST(test_unpacking), FAULT_TEST(test_closing), FAULT_TEST(test_stopped_at_work),    \
        FAULT_TEST(test_closing_at_work), FAULT_TEST(test_random_kills)
#define IN_CHUNKS                                                                                  \
    FAULT_TEST(test_offered), FAULT_TEST(test_garbage), FAULT_TEST(test_late_data),                \
        FAULT_TEST(test_empty_chunks), FAULT_TEST(test_agreed), FAULT_TEST(test_connecting),       \
        FAULT_TEST(test_random_kills_of_the_opening)
/* What does not depend on the transport is walked through once. */
static int run_all(void)
{
    const struct CMUnitTest whole[] = {FAULT_TEST(test_bootstrap), FAULT_TEST(test_odd_agreements),
                                       ANY_TRANSPORT};
    const struct CMUnitTest chunks[] = {ANY_TRANSPORT, IN_CHUNKS};

    if (!world.chunks)
        return cmocka_run_group_tests_name("session faults", whole, start, finish);
    return cmocka_run_group_tests_name("session faults", chunks, start, finish);
}

int main(void)
{
#ifdef M_ARENA_MAX
    mallopt(M_ARENA_MAX, 1); /* arenas reserve address space that nobody asked for */
#endif
    world_read();
    fill_message(peers_message, MESSAGE, FROM_PEER);
    shared_start();
    nursery_start();
    return run_all();
}
