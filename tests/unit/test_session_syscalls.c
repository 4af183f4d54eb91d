/*
 * Sessions whose system calls do less than was asked for: no thread can be made, and sends on the
 * session's own connection take nothing, one byte, or are interrupted. Every session is made all
 * the same, and data moves both ways. Only calls of the library are redirected here, by
 * tests/session_syscalls.syms.
 */
#include "tests/unit/session_pair.h"

#include <sys/socket.h>
#include <sys/stat.h>

/* --- the calls ------------------------------------------------------------------------------ */

int session_fault_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                 void *(*run)(void *), void *argument);
ssize_t session_fault_send(int fd, const void *bytes, size_t count, int flags);

enum send_fault {
    NO_FAULT,
    NOT_NOW,      /* send number `send_number` takes nothing: EAGAIN */
    BYTE_BY_BYTE, /* each takes one byte, every third one nothing, every fifth one is interrupted */
};

static unsigned threads_allowed = UINT32_MAX;
static enum send_fault send_fault;
static unsigned send_number; /* counts down */
static unsigned sends;
static ino_t session_sockets[64]; /* those that greeted */
static unsigned session_socket_count;

int session_fault_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                 void *(*run)(void *), void *argument)
{
    if (threads_allowed == 0)
        return EAGAIN;
    threads_allowed--;
    return pthread_create(thread, attributes, run, argument);
}

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

ssize_t session_fault_send(int fd, const void *bytes, size_t count, int flags)
{
    if (send_fault == NO_FAULT || !is_session_socket(fd, bytes, count))
        return send(fd, bytes, count, flags);
    sends++;
    if (send_fault == NOT_NOW && send_number-- == 0) {
        errno = EAGAIN;
        return -1;
    }
    if (send_fault == NOT_NOW)
        return send(fd, bytes, count, flags);
    if (sends % 3 == 0 || sends % 5 == 0) {
        errno = sends % 3 == 0 ? EAGAIN : EINTR;
        return -1;
    }
    return send(fd, bytes, 1, flags);
}

/* --- sends that take less ------------------------------------------------------------------- */

static void forget_sockets(void)
{
    session_socket_count = 0;
    sends = 0;
}

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

enum { SENDS = 9 };

/* Each send of either side in turn comes when the socket is full: nothing is lost. */
static void meet_full_sockets(struct side *me, const struct tcpx_session_options *options)
{
    for (unsigned turn = 0; turn < 2 * SENDS; turn++) {
        bool moves = threads_allowed > 0 && turn % SENDS % 3 == 0;
        struct tcpx_session *session;

        forget_sockets();
        send_fault = me->number == (int)(turn / SENDS) ? NOT_NOW : NO_FAULT;
        send_number = turn % SENDS;
        session = open_session(me, options);
        if (moves)
            exchange(me, session);
        else if (threads_allowed == 0)
            meet(me); /* both are open, and no call moves either on */
        tcpx_session_close(session);
    }
}

SIDES_CASE(not_now, 2, IN_FULL)
{
    struct tcpx_session_options options = small_chunks();

    for (options.channels = 1; options.channels <= 2; options.channels++)
        meet_full_sockets(me, &options);
}

/* Also where a session has no thread that would send it later. */
SIDES_CASE(not_now_without_threads, 2, IN_FULL)
{
    struct tcpx_session_options options = usual_options();

    options.gpu = -1;
    options.channels = 1;
    threads_allowed = 0;
    meet_full_sockets(me, &options);
}

SIDES_CASE(not_now_with_a_secret, 2, IN_FULL)
{
    struct tcpx_session_options options = small_chunks();

    if (!secrets_work())
        skip_case(tcpx_last_error());
    options.secret_file = secret_write("a secret of some length\n");
    options.channels = 1;
    meet_full_sockets(me, &options);
    unlink(options.secret_file);
}

SIDES_CASE(byte_by_byte, 2, IN_FULL)
{
    for (int channels = 1; channels <= 2; channels++) {
        struct tcpx_session_options options = small_chunks();
        struct tcpx_session *session;

        forget_sockets();
        send_fault = BYTE_BY_BYTE;
        options.channels = channels;
        session = open_session(me, &options);
        exchange(me, session);
        CHECK(sends > 100);
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

        threads_allowed = allowed;
        session = open_session(me, &options);
        both_ways(me, session);
        threads_allowed = UINT32_MAX;
        tcpx_session_close(session);
        meet(me);
    }
}

/* Where a session cannot do without its thread, the reason is said, on both sides. */
SIDES_CASE(no_worker, 2, IN_FULL)
{
    struct tcpx_session_options options = usual_options();
    struct tcpx_session *session = NULL;

    options.gpu = -1;
    options.channels = 2;
    threads_allowed = me->number == 0 ? 0 : UINT32_MAX;
    CHECK_ERROR(try_open(me, &options, &session),
                me->number == 0 ? TCPX_SYSTEM_ERROR : TCPX_REMOTE_ERROR, "thread");
}

SIDES_SUITE("sessions whose calls do less", sides_begin);
