/*
 * Sessions whose system calls do less than was asked for: no thread can be made, and sends on the
 * session's own connection take nothing, one byte, or are interrupted. Every session is made all
 * the same, and data moves both ways.
 */
#include "tests/net_calls/net_calls.h"
#include "tests/unit/session_pair.h"

#include <sys/stat.h>

/* --- the calls ------------------------------------------------------------------------------ */

static ino_t session_sockets[64]; /* those that greeted */
static unsigned session_socket_count;

/* The connection that the bootstrap has made: its first bytes say so. */
static bool is_session_socket(int fd, const void *bytes, size_t count)
{
    struct stat about;

    if (fstat(fd, &about) != 0)
        return false;
    for (unsigned i = 0; i < session_socket_count; i++)
        if (session_sockets[i] == about.st_ino)
            return true;
    if (count < 8 || memcmp(bytes, "tcpxboot", 8) != 0 || session_socket_count == 64)
        return false;
    session_sockets[session_socket_count++] = about.st_ino;
    return true;
}

/* All calls are made as they are, and so many threads can be made. */
static void begin_with(unsigned threads)
{
    session_socket_count = 0;
    calls_reset();
    CALLS_PLAN(CALL_PTHREAD_CREATE, .first = threads, .count = UINT_MAX, .error = EAGAIN);
}

/* --- sends that take less ------------------------------------------------------------------- */

/* Both ways, whole and in pieces, so that the control connection is used. */
static void exchange(struct side *me, struct tcpx_session *session)
{
    struct area area;

    ping(me, session, 0, 1);
    ping(me, session, 1, 2);
    area_open(&area, session, false, 10000, me->number == 0, 5);
    FINISH(begin_part(session, me->number == 0, &area, 1000, 6000, 9, 2));
    CHECK_MOVED(&area, me->number == 0, 1000, 6000, 5, 1000);
    area_drop(&area, session);
}

enum { SENDS = 9, ANY_THREADS = 1000 };

/* Each send of either side in turn comes when the socket is full: nothing is lost. */
static void meet_full_sockets(struct side *me, const struct tcpx_session_options *options,
                              unsigned threads)
{
    for (unsigned turn = 0; turn < 2 * SENDS; turn++) {
        struct tcpx_session *session;

        begin_with(threads);
        if (me->number == (int)(turn / SENDS))
            CALLS_PLAN(CALL_SEND, .first = turn % SENDS, .count = 1, .error = EAGAIN,
                       .concerns = is_session_socket);
        session = open_session(me, options);
        if (threads > 0 && turn % SENDS % 3 == 0)
            exchange(me, session);
        else if (threads == 0)
            meet(me); /* both are open, and no call moves either on */
        tcpx_session_close(session);
    }
}

SIDES_CASE(not_now, 2, IN_FULL)
{
    struct tcpx_session_options options = small_chunks();

    for (options.channels = 1; options.channels <= 2; options.channels++)
        meet_full_sockets(me, &options, ANY_THREADS);
}

/* Also where a session has no thread that would send it later. */
SIDES_CASE(not_now_without_threads, 2, IN_FULL)
{
    struct tcpx_session_options options = usual_options();

    options.gpu = -1;
    options.channels = 1;
    meet_full_sockets(me, &options, 0);
}

SIDES_CASE(not_now_with_a_secret, 2, IN_FULL)
{
    struct tcpx_session_options options = small_chunks();

    if (!secrets_work())
        skip_case(tcpx_last_error());
    options.secret_file = secret_write("a secret of some length\n");
    options.channels = 1;
    meet_full_sockets(me, &options, ANY_THREADS);
    unlink(options.secret_file);
}

/* About every second send takes one byte, and the others nothing or are interrupted. */
SIDES_CASE(byte_by_byte, 2, IN_FULL)
{
    for (int turn = 0; turn < 4; turn++) {
        struct tcpx_session_options options = small_chunks();
        struct tcpx_session *session;

        begin_with(ANY_THREADS);
        CALLS_PLAN(CALL_SEND, .most = 1, .half = true, .error = turn < 2 ? EAGAIN : EINTR,
                   .concerns = is_session_socket);
        options.channels = 1 + turn % 2;
        session = open_session(me, &options);
        exchange(me, session);
        CHECK(calls_made(CALL_SEND) > 100);
        tcpx_session_close(session);
    }
}

/* --- no threads ----------------------------------------------------------------------------- */

/*
 * Both sides send and receive at once, and each waits for its send first: what comes is only moved
 * if that wait looks at it, too.
 */
static void both_ways(struct side *me, struct tcpx_session *session)
{
    enum { BYTES = 24 << 20 };
    struct tcpx_transfer *transfers[2];
    struct area areas[2];

    for (int i = 0; i < 2; i++) {
        area_open(&areas[i], session, false, BYTES, i == 0, (uint64_t)me->number);
        transfers[i] = begin_part(session, i == 0, &areas[i], 0, BYTES, 4, 0);
    }
    for (int i = 0; i < 2; i++) {
        FINISH(transfers[i]);
        CHECK_MOVED(&areas[i], i == 0, 0, BYTES, (uint64_t)!me->number, 0);
    }
    for (int i = 0; i < 2; i++)
        area_drop(&areas[i], session);
}

SIDES_CASE(no_threads, 2, IN_FULL)
{
    struct tcpx_session_options options = usual_options();

    options.gpu = -1; /* the emulated GPU is a thread */
    options.channels = 1;
    CHECK(setenv("UCCL_TCPX_THREADS", "3", 1) == 0);
    CHECK(setenv("UCCL_TCPX_SOCKETS", "4", 1) == 0);
    /* None; or some of them. */
    for (unsigned allowed = 0; allowed < 4; allowed++) {
        struct tcpx_session *session;

        begin_with(allowed);
        session = open_session(me, &options);
        both_ways(me, session);
        begin_with(ANY_THREADS);
        tcpx_session_close(session);
        meet(me);
    }
}

/* A socket is refused by the I/O threads, the session's own included: others look after it. */
SIDES_CASE(no_task, 2, IN_FULL)
{
    enum { SOCKETS = 10 };
    struct tcpx_session_options options = small_chunks();

    options.channels = 2;
    for (unsigned refused = 0; refused <= SOCKETS; refused++) {
        struct tcpx_session *session;

        begin_with(ANY_THREADS);
        CALLS_PLAN(CALL_EPOLL_ADD, .first = refused, .count = 1, .error = ENOSPC);
        session = open_session(me, &options);
        exchange(me, session);
        tcpx_session_close(session);
    }
}

/* Where a session cannot do without its thread, the reason is said, on both sides. */
SIDES_CASE(no_worker, 2, IN_FULL)
{
    struct tcpx_session_options options = usual_options();
    struct tcpx_session *session = NULL;

    options.gpu = -1;
    options.channels = 2;
    begin_with(me->number == 0 ? 0 : ANY_THREADS);
    CHECK_ERROR(try_open(me, &options, &session),
                me->number == 0 ? TCPX_SYSTEM_ERROR : TCPX_REMOTE_ERROR, "thread");
}

SIDES_SUITE("sessions whose calls do less", sides_begin);
