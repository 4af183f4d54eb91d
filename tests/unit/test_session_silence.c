/*
 * A live process whose program makes no call for three timeouts loses nothing: in whatever stage
 * its sessions are, over small socket buffers, everything arrives when the program goes on. A peer
 * that is killed, or stopped with more outstanding than the buffers hold, is an error in bounded
 * time.
 */
#include "tests/unit/session_pair.h"

#include <sys/stat.h>
#include <sys/syscall.h>

enum {
    TIMEOUT_MS = 1000, /* UCCL_TCPX_TIMEOUT_MS */
    SILENCE_MS = 3 * TIMEOUT_MS + 200,
    BOUND_MS = 8 * TIMEOUT_MS, /* of an error that the timeout leads to */
    BUFFER_BYTES = 16 << 10,
};

/* --- small buffers -----------------------------------------------------------------------------
 */

/* Also for a plugin, since the linker exports it. Accepted sockets inherit it. */
__attribute__((visibility("default"))) int socket(int domain, int type, int protocol);

int socket(int domain, int type, int protocol)
{
    const int bytes = BUFFER_BYTES;
    int fd = (int)syscall(SYS_socket, domain, type, protocol);

    if (fd >= 0 && domain != AF_UNIX) {
        (void)!setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
        (void)!setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    }
    return fd;
}

/* --- ways ----------------------------------------------------------------------------------------
 */

struct way {
    const char *plugin;
    const char *sockets;
    int channels;
};

static const struct way *way; /* of this process */

static struct tcpx_session_options way_options(void)
{
    struct tcpx_session_options options = small_chunks();

    options.gpu = -1;
    options.channels = way->channels;
    options.plugin_path = way->plugin;
    return options;
}

static void be_silent(struct side *me)
{
    meet(me);
    sleep_us(SILENCE_MS * 1000L);
}

/* --- stages of an open session --------------------------------------------------------------- */

enum {
    SMALL_ONES = 3000,
    SMALL_BYTES = 40,
    LARGE_ONES = 4,
    LARGE_BYTES = 1 << 20,
};

/* One of the sessions of a case, and what is outstanding on it. */
struct stage {
    const char *name;
    int sender;      /* side; -1: nobody sends */
    bool posted;     /* the receives are, before the silence */
    bool pieces;     /* over the control connection and in chunks */
    unsigned count;  /* of transfers */
    uint64_t bytes;  /* of each */
    bool waits_done; /* before the silence: those sends that need no receive are done */
};

static const struct stage stages[] = {
    {"idle", -1, false, false, 0, 0, false},
    {"small messages that are not received yet", 0, false, false, SMALL_ONES, SMALL_BYTES, true},
    {"messages of some size that are not received yet", 1, false, false, 200, 4000, true},
    {"large messages that are not received yet", 1, false, false, LARGE_ONES, LARGE_BYTES, false},
    {"offers that are not received yet", 0, false, true, SMALL_ONES, SMALL_BYTES, false},
    {"offers of large ones, to the other side", 1, false, true, LARGE_ONES, LARGE_BYTES, false},
    {"receives that are posted", 0, true, true, SMALL_ONES, SMALL_BYTES, false},
    {"large receives that are posted", 1, true, false, LARGE_ONES, LARGE_BYTES, false},
};

enum { STAGES = sizeof stages / sizeof *stages };

struct running {
    struct tcpx_session *session;
    struct tcpx_transfer **transfers;
    struct area area;
};

static void begin_all(struct running *running, const struct stage *stage, bool sending)
{
    for (unsigned i = 0; i < stage->count; i++) {
        struct tcpx_piece list[2] = {
            {.offset = i * stage->bytes, .bytes = stage->bytes / 2},
            {.offset = i * stage->bytes + stage->bytes / 2, .bytes = stage->bytes / 2}};
        struct tcpx_move move = {.memory = running->area.memory,
                                 .offset = i * stage->bytes,
                                 .bytes = stage->bytes,
                                 .tag = i % 7};

        if (stage->pieces) {
            move.pieces = list;
            move.piece_count = 2;
        }
        running->transfers[i] = begin(running->session, sending, &move);
    }
}

static void open_stage(struct side *me, struct running *running, const struct stage *stage)
{
    const struct tcpx_session_options options = way_options();

    *running = (struct running){.session = open_session(me, &options)};
    running->transfers = calloc(stage->count + 1, sizeof *running->transfers);
    CHECK(running->transfers != NULL);
    area_make(&running->area, running->session, false, stage->count * stage->bytes + 1);
}

/* Sends that need no receive are done, and gone. */
static void test_for_a_while(struct running *running, const struct stage *stage)
{
    uint64_t since = now_ms();

    while (now_ms() - since < 300) {
        for (unsigned i = 0; i < stage->count; i++) {
            int done = 0;

            if (running->transfers[i] == NULL)
                continue;
            CHECK_SUCCESS(tcpx_transfer_test(running->transfers[i], &done));
            if (done)
                running->transfers[i] = NULL;
        }
        sleep_us(1000);
    }
}

static void begin_stage(struct side *me, struct running *running, const struct stage *stage)
{
    bool sending = me->number == stage->sender;

    if (sending)
        area_say(&running->area, 11);
    else
        area_poison(&running->area);
    if (stage->sender >= 0 && (sending || stage->posted))
        begin_all(running, stage, sending);
    if (sending && stage->waits_done)
        test_for_a_while(running, stage);
}

static void end_stage(struct side *me, struct running *running, const struct stage *stage)
{
    bool sending = me->number == stage->sender;
    uint64_t bytes = stage->count * stage->bytes;

    if (stage->sender >= 0 && !sending && !stage->posted)
        begin_all(running, stage, false);
    for (unsigned i = 0; i < stage->count; i++)
        if (running->transfers[i] != NULL) {
            int result = tcpx_transfer_wait(running->transfers[i], WAIT_MS);

            if (result != TCPX_SUCCESS)
                complain_of(HERE, stage->name, result, "TCPX_SUCCESS");
        }
    if (stage->sender >= 0 && !sending) {
        say_at(running->area.expected, bytes, 11, 0);
        CHECK_AREA(&running->area, 0, bytes);
    }
    /* The session is as alive as before, both ways. */
    talk(me, running->session, 0, 101);
    talk(me, running->session, 1, 103);
    area_drop(&running->area, running->session);
    tcpx_session_close(running->session);
    free(running->transfers);
}

/* All of a kind at once, each in a session of its own. Both sides are silent. */
static void run_stages(struct side *me, bool pieces)
{
    struct running running[STAGES];

    for (int i = 0; i < STAGES; i++)
        if (stages[i].pieces == pieces)
            open_stage(me, &running[i], &stages[i]);
    for (int i = 0; i < STAGES; i++)
        if (stages[i].pieces == pieces)
            begin_stage(me, &running[i], &stages[i]);
    be_silent(me);
    for (int i = 0; i < STAGES; i++)
        if (stages[i].pieces == pieces)
            end_stage(me, &running[i], &stages[i]);
}

/* The control connection is what must be read. */
static void run_lists(struct side *me)
{
    run_stages(me, true);
}

/* The sockets of the data are, over the built-in transport with one channel. */
static void run_messages(struct side *me)
{
    run_stages(me, false);
}

/* --- stages before it is open ---------------------------------------------------------------- */

static char secret_path[] = "/tmp/test_session_silence.XXXXXX";
static bool knows_secrets; /* libsodium is there */

struct caller_of_connect {
    pthread_t thread;
    struct tcpx_session_options options;
    struct tcpx_session *session;
    int port;
    int result;
    char text[300];
};

static void *connect_run(void *argument)
{
    struct caller_of_connect *caller = argument;

    caller->result = tcpx_session_connect("127.0.0.1", caller->port, &caller->options, WAIT_MS,
                                          &caller->session);
    snprintf(caller->text, sizeof caller->text, "%s", tcpx_last_error());
    return NULL;
}

enum { PEERS = 3, LISTENERS = 2 };

static struct tcpx_session_options options_of_listener(int number)
{
    struct tcpx_session_options options = way_options();

    options.secret_file = number == 1 && knows_secrets ? secret_path : NULL;
    return options;
}

static void listen_and_be_silent(struct side *me, struct tcpx_session *sessions[LISTENERS][PEERS])
{
    struct tcpx_session_listener *listeners[LISTENERS];

    for (int i = 0; i < LISTENERS; i++) {
        const struct tcpx_session_options options = options_of_listener(i);

        listeners[i] = listen_here(me, (unsigned)i, &options);
    }
    for (int i = 0; i < LISTENERS; i++)
        CHECK_SUCCESS(tcpx_session_accept(listeners[i], WAIT_MS, &sessions[i][0]));
    sleep_us(SILENCE_MS * 1000L);
    for (int i = 0; i < LISTENERS; i++) {
        for (int k = 1; k < PEERS; k++)
            CHECK_SUCCESS(tcpx_session_accept(listeners[i], WAIT_MS, &sessions[i][k]));
        tcpx_session_stop_listening(listeners[i]);
    }
}

static void connect_all(struct tcpx_session *sessions[LISTENERS][PEERS])
{
    struct caller_of_connect callers[LISTENERS][PEERS];

    for (int i = 0; i < LISTENERS; i++)
        for (int k = 0; k < PEERS; k++) {
            struct caller_of_connect *caller = &callers[i][k];

            *caller = (struct caller_of_connect){.options = options_of_listener(i),
                                                 .port = port_of((unsigned)i)};
            CHECK(pthread_create(&caller->thread, NULL, connect_run, caller) == 0);
        }
    for (int i = 0; i < LISTENERS; i++)
        for (int k = 0; k < PEERS; k++) {
            pthread_join(callers[i][k].thread, NULL);
            if (callers[i][k].result != TCPX_SUCCESS)
                complain(HERE, callers[i][k].text);
            sessions[i][k] = callers[i][k].session;
        }
}

/*
 * Three peers each call two listeners, one of them with a secret, whose program accepts one and is
 * then silent: the others are in the kernel's queue, or have greeted and wait for an answer.
 */
static void run_before_open(struct side *me)
{
    struct tcpx_session *sessions[LISTENERS][PEERS] = {{NULL}};

    if (me->number == 0)
        listen_and_be_silent(me, sessions);
    else
        connect_all(sessions);
    meet(me);
    for (int i = 0; i < LISTENERS; i++)
        for (int k = 0; k < PEERS; k++)
            tcpx_session_close(sessions[i][k]);
}

/* --- peers that are not alive ---------------------------------------------------------------- */

/*
 * The receiver is stopped, and more is sent than the socket buffers hold: small messages that need
 * no receive to be sent, or offers. Returns the result of the last one, and how long it took.
 */
static int send_too_much(struct tcpx_session *session, bool pieces, uint64_t *took_ms)
{
    enum { COUNT = 4000, BYTES = 1000 };
    struct area area;
    uint64_t since = now_ms();
    struct tcpx_piece piece = {.bytes = BYTES};
    struct tcpx_move move = {.bytes = BYTES, .tag = 1};
    struct tcpx_transfer *last = NULL;
    int result = TCPX_SUCCESS;

    area_make(&area, session, false, BYTES);
    move.memory = area.memory;
    if (pieces) {
        move.pieces = &piece;
        move.piece_count = 1;
    }
    for (unsigned i = 0; i < COUNT && result == TCPX_SUCCESS; i++)
        result = tcpx_send(session, &move, &last);
    if (result == TCPX_SUCCESS)
        result = tcpx_transfer_wait(last, BOUND_MS);
    *took_ms = now_ms() - since;
    return result;
}

/* The peer is killed: whatever waits for it fails. */
static int receive_from_nobody(struct tcpx_session *session, uint64_t *took_ms)
{
    struct area area;
    struct tcpx_move move = {.bytes = 100, .tag = 1};
    struct tcpx_transfer *transfer;
    uint64_t since = now_ms();
    int result;

    area_make(&area, session, false, 100);
    move.memory = area.memory;
    result = tcpx_receive(session, &move, &transfer);
    if (result == TCPX_SUCCESS)
        result = tcpx_transfer_wait(transfer, BOUND_MS);
    *took_ms = now_ms() - since;
    return result;
}

static void run_not_alive(struct side *me)
{
    const struct tcpx_session_options options = way_options();
    struct tcpx_session *sessions[3];

    for (int i = 0; i < 3; i++) {
        sessions[i] = open_session(me, &options);
        talk(me, sessions[i], 0, 1);
    }
    if (me->number == 0)
        atomic_store(&meeting->number, (uint64_t)getpid());
    meet(me);
    if (me->number == 0) {
        raise(SIGSTOP);
    } else {
        pid_t peer = (pid_t)atomic_load(&meeting->number);
        uint64_t took_ms[3];
        int results[3];

        sleep_us(20000);
        for (int i = 0; i < 2; i++)
            results[i] = send_too_much(sessions[i], i == 0, &took_ms[i]);
        kill(peer, SIGKILL);
        results[2] = receive_from_nobody(sessions[2], &took_ms[2]);
        for (int i = 0; i < 3; i++) {
            if (results[i] != TCPX_REMOTE_ERROR)
                complain_of(HERE,
                            i == 0   ? "offers"
                            : i == 1 ? "messages"
                                     : "a receive",
                            results[i], "TCPX_REMOTE_ERROR");
            CHECK(took_ms[i] < BOUND_MS);
            tcpx_session_close(sessions[i]);
        }
    }
}

/* --- the table -----------------------------------------------------------------------------------
 */

static char own_plugin[300];
static const struct way ways[] = {
    {"builtin", "1", 1},  {"builtin", "5", 1},  {"builtin", "1", 3},
    {own_plugin, "1", 1}, {own_plugin, "5", 2},
};

enum { WAYS = sizeof ways / sizeof *ways };

/* Each way at the same time, in processes of its own: nearly all of the time is silence. */
struct party {
    struct meeting *meeting;
    side_run *run;
    int way;
    int number;
    bool knows_secrets;
    char secret_path[sizeof secret_path];
};

static struct meeting *meetings[WAYS];

static void party_process(const uint8_t *argument)
{
    struct party party;
    struct side me = {.sides = 2};

    memcpy(&party, argument, sizeof party);
    meeting = party.meeting;
    way = &ways[party.way];
    knows_secrets = party.knows_secrets;
    memcpy(secret_path, party.secret_path, sizeof secret_path);
    me.number = side_number = party.number;
    setenv("UCCL_TCPX_SOCKETS", way->sockets, 1);
    alarm(HANG_SECONDS);
    party.run(&me);
}

static void run_all_ways(side_run *run)
{
    pid_t pids[WAYS][2];
    bool failed = false;

    for (int i = 0; i < WAYS; i++)
        for (int side = 0; side < 2; side++) {
            struct party party = {.meeting = meetings[i],
                                  .run = run,
                                  .way = i,
                                  .number = side,
                                  .knows_secrets = knows_secrets};

            if (side == 0)
                memset(meetings[i], 0, sizeof *meetings[i]);
            memcpy(party.secret_path, secret_path, sizeof secret_path);
            pids[i][side] = nursery_fork(party_process, &party, sizeof party);
        }
    for (int i = 0; i < WAYS; i++)
        for (int side = 0; side < 2; side++) {
            int status = nursery_wait(pids[i][side]);

            if (status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
                continue;
            failed = true;
            print_message("# %s, %s sockets, %d channels: side %d: status 0x%x: %s\n",
                          i < 3 ? "builtin" : "own plugin", ways[i].sockets, ways[i].channels, side,
                          (unsigned)status, meetings[i]->complaints[side]);
        }
    assert_false(failed);
}

static void test_lists(void **state)
{
    (void)state;
    run_all_ways(run_lists);
}

static void test_messages(void **state)
{
    (void)state;
    run_all_ways(run_messages);
}

static void test_before_open(void **state)
{
    (void)state;
    run_all_ways(run_before_open);
}

static void test_not_alive(void **state)
{
    (void)state;
    run_all_ways(run_not_alive);
}

/* Without libsodium a secret is refused: then that turn is left out, in words. */
static void try_secret(const uint8_t *argument)
{
    struct tcpx_session_options options = usual_options();
    struct tcpx_session_listener *listener;

    options.gpu = -1;
    options.secret_file = (const char *)argument;
    _exit(tcpx_session_listen("127.0.0.1", 0, &options, &listener) == TCPX_SUCCESS ? 0 : 1);
}

static int make_secret(void **state)
{
    int fd = mkstemp(secret_path);

    (void)state;
    if (fd < 0 || write(fd, "a secret of some length\n", 24) != 24 || fchmod(fd, 0600) != 0)
        return -1;
    close(fd);
    knows_secrets = nursery_wait(nursery_fork(try_secret, secret_path, sizeof secret_path)) == 0;
    if (!knows_secrets)
        print_message("# libsodium is not installed: nothing with a secret\n");
    return 0;
}

static int remove_secret(void **state)
{
    (void)state;
    return unlink(secret_path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_before_open),
        cmocka_unit_test(test_not_alive),
    };
    const char *slash = strrchr(argv[0], '/');

    /* BUILD/tests/unit/test_session_silence */
    snprintf(own_plugin, sizeof own_plugin, "%.*s/../../libnccl-net-tcpx.so",
             slash != NULL ? (int)(slash - argv[0]) : 1, slash != NULL ? argv[0] : ".");
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    setenv("UCCL_TCPX_PLUGIN_PATH", "builtin", 1);
    setenv("UCCL_TCPX_GPU", "host", 0);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    setenv("UCCL_TCPX_TIMEOUT_MS", "1000", 1);
    for (int i = 0; i < WAYS; i++) {
        meetings[i] =
            mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (meetings[i] == MAP_FAILED)
            return 1;
    }
    speech_make();
    nursery_start();
    return cmocka_run_group_tests_name("silence", tests, make_secret, remove_secret);
}
