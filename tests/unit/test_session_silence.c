/*
 * A live process whose program makes no call for three timeouts loses nothing: in whatever stage
 * its sessions are, over small socket buffers, everything arrives when the program goes on. A peer
 * that is killed, or stopped with more outstanding than the buffers hold, is an error in bounded
 * time.
 */
#include "tests/unit/session_pair.h"

#include <sys/socket.h>
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

/* Each way at the same time, in processes of its own: nearly all of the time is silence. */
static const struct {
    bool builtin; /* else our own plugin */
    const char *sockets;
    int channels;
} ways[] = {{true, "1", 1}, {true, "5", 1}, {true, "1", 3}, {false, "1", 1}, {false, "5", 2}};

static struct tcpx_session_options way_options(const struct side *me)
{
    struct tcpx_session_options options = small_chunks();

    setenv("UCCL_TCPX_SOCKETS", ways[me->variant].sockets, 1);
    options.gpu = -1;
    options.channels = ways[me->variant].channels;
    options.plugin_path =
        ways[me->variant].builtin ? "builtin" : path_in_build("libnccl-net-tcpx.so");
    return options;
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
    for (unsigned i = 0; i < stage->count; i++)
        running->transfers[i] =
            begin_part(running->session, sending, &running->area, i * stage->bytes, stage->bytes,
                       i % 7, 2 * stage->pieces);
}

static void open_stage(struct side *me, struct running *running, const struct stage *stage)
{
    const struct tcpx_session_options options = way_options(me);

    *running = (struct running){.session = open_session(me, &options)};
    running->transfers = calloc(stage->count + 1, sizeof *running->transfers);
    CHECK(running->transfers != NULL);
    area_open(&running->area, running->session, false, stage->count * stage->bytes + 1,
              me->number == stage->sender, 11);
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
        nap_us(1000);
    }
}

static void begin_stage(struct side *me, struct running *running, const struct stage *stage)
{
    bool sending = me->number == stage->sender;

    if (stage->sender >= 0 && (sending || stage->posted))
        begin_all(running, stage, sending);
    if (sending && stage->waits_done)
        test_for_a_while(running, stage);
}

static void end_stage(struct side *me, struct running *running, const struct stage *stage)
{
    bool sending = me->number == stage->sender;

    if (stage->sender >= 0 && !sending && !stage->posted)
        begin_all(running, stage, false);
    STAGE("%s", stage->name);
    for (unsigned i = 0; i < stage->count; i++)
        if (running->transfers[i] != NULL)
            FINISH(running->transfers[i]);
    if (stage->sender >= 0)
        CHECK_MOVED(&running->area, sending, 0, stage->count * stage->bytes, 11, 0);
    /* The session is as alive as before, both ways. */
    ping(me, running->session, 0, 101);
    ping(me, running->session, 1, 103);
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
    meet(me);
    nap_us(SILENCE_MS * 1000);
    for (int i = 0; i < STAGES; i++)
        if (stages[i].pieces == pieces)
            end_stage(me, &running[i], &stages[i]);
}

/* The control connection is what must be read. */
VARIANTS_CASE(lists, COUNT_OF(ways))
{
    run_stages(me, true);
}

/* The sockets of the data are, over the built-in transport with one channel. */
VARIANTS_CASE(messages, COUNT_OF(ways))
{
    run_stages(me, false);
}

/* --- stages before it is open ---------------------------------------------------------------- */

enum { PEERS = 3, LISTENERS = 2 };

/* The second one has a secret, where secrets work. */
static void choose_options(const struct side *me, struct tcpx_session_options options[LISTENERS])
{
    bool secret = secrets_work();

    for (int i = 0; i < LISTENERS; i++)
        options[i] = way_options(me);
    if (secret)
        options[1].secret_file = secret_write("a secret of some length\n");
    else if (me->variant == 0 && me->number == 0)
        dprintf(STDOUT_FILENO, "# libsodium is not installed: nothing with a secret\n");
}

static void listen_and_be_silent(const struct tcpx_session_options options[LISTENERS],
                                 struct tcpx_session *sessions[LISTENERS][PEERS])
{
    struct tcpx_session_listener *listeners[LISTENERS];

    for (unsigned i = 0; i < LISTENERS; i++)
        listeners[i] = listen_here(i, &options[i]);
    for (int i = 0; i < LISTENERS; i++)
        CHECK_SUCCESS(tcpx_session_accept(listeners[i], WAIT_MS, &sessions[i][0]));
    nap_us(SILENCE_MS * 1000);
    for (int i = 0; i < LISTENERS; i++) {
        for (int k = 1; k < PEERS; k++)
            CHECK_SUCCESS(tcpx_session_accept(listeners[i], WAIT_MS, &sessions[i][k]));
        tcpx_session_stop_listening(listeners[i]);
    }
}

static void connect_all(const struct tcpx_session_options options[LISTENERS],
                        struct tcpx_session *sessions[LISTENERS][PEERS])
{
    struct opening all[LISTENERS * PEERS];

    for (unsigned i = 0; i < LISTENERS * PEERS; i++)
        all[i] = (struct opening){.options = &options[i / PEERS], .place = i / PEERS};
    open_all(all, LISTENERS * PEERS);
    for (unsigned i = 0; i < LISTENERS * PEERS; i++)
        sessions[i / PEERS][i % PEERS] = all[i].session;
}

/*
 * Three peers each call two listeners, one of them with a secret, whose program accepts one and is
 * then silent: the others are in the kernel's queue, or have greeted and wait for an answer.
 */
VARIANTS_CASE(before_open, COUNT_OF(ways))
{
    struct tcpx_session *sessions[LISTENERS][PEERS] = {{NULL}};
    struct tcpx_session_options options[LISTENERS];

    choose_options(me, options);
    if (me->number == 0)
        listen_and_be_silent(options, sessions);
    else
        connect_all(options, sessions);
    meet(me);
    if (options[1].secret_file != NULL)
        unlink(options[1].secret_file);
    for (int i = 0; i < LISTENERS; i++)
        for (int k = 0; k < PEERS; k++)
            tcpx_session_close(sessions[i][k]);
}

/* --- peers that are not alive ---------------------------------------------------------------- */

/*
 * The receiver is stopped, and more is sent than the socket buffers hold: offers, or small messages
 * that need no receive to be sent; or it is killed, and a receive waits for it. All fail in time.
 */
static const struct {
    const char *name;
    bool sends;
    unsigned pieces;
    unsigned count;
} dead_ends[] = {
    {"offers", true, 1, 4000}, {"messages", true, 0, 4000}, {"a receive", false, 0, 1}};

enum { DEAD_ENDS = COUNT_OF(dead_ends) };

static void check_dead_end(struct tcpx_session *session, int number)
{
    enum { BYTES = 1000 };
    uint64_t since = now_ms();
    struct tcpx_transfer *last = NULL;
    int result = TCPX_SUCCESS;
    struct area area;

    STAGE("%s", dead_ends[number].name);
    area_make(&area, session, false, BYTES);
    for (unsigned i = 0; i < dead_ends[number].count && result == TCPX_SUCCESS; i++)
        result = try_begin(session, dead_ends[number].sends,
                           move_of(&area, 0, BYTES, 1, dead_ends[number].pieces), &last);
    if (result == TCPX_SUCCESS)
        result = tcpx_transfer_wait(last, BOUND_MS);
    CHECK_RESULT(result, TCPX_REMOTE_ERROR);
    CHECK(now_ms() - since < BOUND_MS);
    tcpx_session_close(session);
    area_free(&area);
}

VARIANTS_CASE(not_alive, COUNT_OF(ways))
{
    const struct tcpx_session_options options = way_options(me);
    struct tcpx_session *sessions[DEAD_ENDS];

    for (int i = 0; i < DEAD_ENDS; i++) {
        sessions[i] = open_session(me, &options);
        ping(me, sessions[i], 0, 1);
    }
    if (me->number == 0)
        atomic_store(&meeting->number, (uint64_t)getpid());
    meet(me);
    if (me->number == 0)
        raise(SIGSTOP);
    nap_us(20000);
    for (int i = 0; i < DEAD_ENDS; i++) {
        if (!dead_ends[i].sends)
            kill((pid_t)atomic_load(&meeting->number), SIGKILL);
        check_dead_end(sessions[i], i);
    }
}

static int silence_begin(void)
{
    setenv("UCCL_TCPX_PLUGIN_PATH", "builtin", 1);
    setenv("UCCL_TCPX_TIMEOUT_MS", "1000", 1);
    return sides_begin();
}

SIDES_SUITE("silence", silence_begin);
