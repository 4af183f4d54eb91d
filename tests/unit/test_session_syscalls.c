/*
 * Sessions whose system calls do less than was asked for: no thread can be made, and sends on the
 * session's own connection take nothing, one byte, or are interrupted. Every session is made all
 * the same, and data moves both ways. Only calls of the library are redirected here, by
 * tests/session_syscalls.syms.
 */
#include "tests/unit/session_pair.h"

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
    struct tcpx_piece list[2] = {{.bytes = 1000}, {.offset = 3000, .bytes = 5000}};
    struct tcpx_move move = {.tag = 9, .pieces = list, .piece_count = 2};

    talk(me, session, 0, 1);
    talk(me, session, 1, 2);
    area_make(&area, session, false, 10000);
    move.memory = area.memory;
    if (me->number == 0)
        area_say(&area, 5);
    else
        area_poison(&area);
    FINISH(begin(session, me->number == 0, &move));
    if (me->number == 1) {
        say_at(area.expected, 1000, 5, 0);
        say_at(area.expected + 3000, 5000, 5, 3000);
        CHECK_AREA(&area, 0, area.bytes);
    }
    area_drop(&area, session);
}

/* A session whose `number`th send, on the side of the culprit, comes when the socket is full. */
static void meet_a_full_socket(struct side *me, int culprit, unsigned number,
                               const struct tcpx_session_options *options)
{
    struct tcpx_session *session;

    forget_sockets();
    send_fault = me->number == culprit ? NOT_NOW : NO_FAULT;
    send_number = number;
    session = open_session(me, options);
    if (number % 3 == 0)
        exchange(me, session);
    tcpx_session_close(session);
}

enum { SENDS = 9 };

/* Nothing of what a session says is lost when the socket is full for a moment. */
static void run_not_now(struct side *me)
{
    for (int culprit = 0; culprit < 2; culprit++)
        for (int channels = 1; channels <= 2; channels++)
            for (unsigned number = 0; number < SENDS; number++) {
                struct tcpx_session_options options = small_chunks();

                options.channels = channels;
                meet_a_full_socket(me, culprit, number, &options);
            }
}
CASE(not_now)

/* Also where a session has no thread that would send it later. */
static void run_not_now_without_threads(struct side *me)
{
    struct tcpx_session_options options = usual_options();

    options.gpu = -1;
    options.channels = 1;
    for (int culprit = 0; culprit < 2; culprit++)
        for (unsigned number = 0; number < SENDS; number++) {
            struct tcpx_session *session;

            forget_sockets();
            threads_allowed = 0;
            send_fault = me->number == culprit ? NOT_NOW : NO_FAULT;
            send_number = number;
            session = open_session(me, &options);
            meet(me); /* both are open, and no call moves either on */
            tcpx_session_close(session);
        }
}
CASE(not_now_without_threads)

static void run_not_now_with_a_secret(struct side *me)
{
    struct tcpx_session_options options = small_chunks();
    struct tcpx_session_listener *listener;
    char path[] = "/tmp/test_session_syscalls.XXXXXX";
    int fd = mkstemp(path);

    CHECK(fd >= 0 && write(fd, "a secret of some length\n", 24) == 24 && fchmod(fd, 0600) == 0);
    close(fd);
    options.secret_file = path;
    options.channels = 1;
    if (tcpx_session_listen("127.0.0.1", 0, &options, &listener) != TCPX_SUCCESS) {
        unlink(path);
        skip_case(tcpx_last_error());
    }
    tcpx_session_stop_listening(listener);
    for (int culprit = 0; culprit < 2; culprit++)
        for (unsigned number = 0; number < SENDS; number++)
            meet_a_full_socket(me, culprit, number, &options);
    unlink(path);
}
CASE(not_now_with_a_secret)

static void run_byte_by_byte(struct side *me)
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
CASE(byte_by_byte)

/* --- no threads ----------------------------------------------------------------------------- */

/*
 * Both sides send and receive at once, and each waits for its send first: what comes is only moved
 * if that wait looks at it, too.
 */
static void both_ways(struct side *me, struct tcpx_session *session, bool on_gpu)
{
    enum { BYTES = 24 << 20 };
    struct tcpx_transfer *transfers[2];
    struct area areas[2];

    for (int i = 0; i < 2; i++)
        area_make(&areas[i], session, on_gpu, BYTES);
    area_say(&areas[0], (uint64_t)me->number);
    area_poison(&areas[1]);
    for (int i = 0; i < 2; i++)
        transfers[i] = begin_part(session, i == 0, &areas[i], 0, BYTES, 4);
    for (int i = 0; i < 2; i++)
        FINISH(transfers[i]);
    say_at(areas[1].expected, BYTES, (uint64_t)!me->number, 0);
    CHECK_AREA(&areas[1], 0, BYTES);
    for (int i = 0; i < 2; i++)
        area_drop(&areas[i], session);
}

static void run_no_threads(struct side *me)
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
        both_ways(me, session, false);
        threads_allowed = UINT32_MAX;
        tcpx_session_close(session);
        meet(me);
    }
}
CASE(no_threads)

/* Where a session cannot do without its thread, the reason is said, on both sides. */
static void run_no_worker(struct side *me)
{
    struct tcpx_session_options options = usual_options();
    struct tcpx_session *session = NULL;
    int result;

    options.gpu = -1;
    options.channels = 2;
    threads_allowed = me->number == 0 ? 0 : UINT32_MAX;
    result = try_open(me, &options, &session);
    if (me->number == 0) {
        CHECK(result == TCPX_SYSTEM_ERROR);
        CHECK(strstr(tcpx_last_error(), "thread") != NULL);
    } else {
        CHECK(result == TCPX_REMOTE_ERROR);
        CHECK(strstr(tcpx_last_error(), "thread") != NULL);
    }
}
CASE(no_worker)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_not_now),
        cmocka_unit_test(test_not_now_without_threads),
        cmocka_unit_test(test_not_now_with_a_secret),
        cmocka_unit_test(test_byte_by_byte),
        cmocka_unit_test(test_no_threads),
        cmocka_unit_test(test_no_worker),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (!sides_start())
        return 1;
    return cmocka_run_group_tests_name("sessions whose calls do less", tests, NULL, NULL);
}
