/*
 * How sessions come to be: several threads, sessions, peers and processes at once, peers that do
 * not agree or are late, and the path that a session names.
 *
 * TCPX_TEST_TURNS=percent of all rounds, of which less than half make transfers smaller, too.
 */
#include "tests/unit/session_threads.h"

#include <sys/resource.h>

/* Several threads, each with memory and tags of its own, on one session. */
SESSION_CASE(threads, SMALL_CHUNK, IN_BRIEF)
{
    struct part parts[5];

    for (unsigned i = 0; i < COUNT_OF(parts); i++) {
        parts[i] = part_of(me->number, session, i);
        parts[i].closes = false;
    }
    run_parts(parts, COUNT_OF(parts));
}

/* Several sessions to one peer from one listener, which is gone before they are used. */
SIDES_CASE(sessions, 2, IN_FULL)
{
    struct tcpx_session_options options = small_chunks();
    struct tcpx_session_listener *listener;
    struct tcpx_session *session;
    struct part parts[4];

    options.channels = 1;
    listener = me->number == 0 ? listen_here(0, &options) : NULL;
    for (unsigned i = 0; i < COUNT_OF(parts); i++) {
        CHECK_SUCCESS(me->number == 0 ? tcpx_session_accept(listener, WAIT_MS, &session)
                                      : connect_to(0, &options, &session));
        parts[i] = part_of(me->number, session, i);
    }
    tcpx_session_stop_listening(listener);
    run_parts(parts, COUNT_OF(parts));
}

/* The transport's I/O threads look after all sessions: none has a thread of its own. */
SIDES_CASE(threads_of_many, 2, IN_FULL)
{
    struct tcpx_session_options options = small_chunks();
    struct tcpx_session *sessions[6];
    unsigned others = 0;

    options.gpu = -1; /* an emulated one is a thread */
    options.channels = 2;
    for (unsigned i = 0; i < COUNT_OF(sessions); i++) {
        unsigned now;
        int fd;

        sessions[i] = open_session(me, &options);
        CHECK_SUCCESS(tcpx_session_event_fd(sessions[i], &fd));
        ping(me, sessions[i], 0, 2 * i + 1); /* in host memory */
        now = threads_called("") - threads_called("tcpx-io-");
        if (i == 0)
            others = now;
        CHECK(now == others || !is_moved_by_threads(sessions[i]));
    }
    for (unsigned i = 0; i < COUNT_OF(sessions); i++)
        tcpx_session_close(sessions[i]);
}

/* Two peers at one listener, each with bytes of its own. */
SIDES_CASE(two_peers, 3, IN_FULL)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *session;
    struct part parts[2];

    if (me->number == 0) {
        struct tcpx_session_listener *listener = listen_here(0, &options);

        for (unsigned i = 0; i < 2; i++) {
            CHECK_SUCCESS(tcpx_session_accept(listener, WAIT_MS, &session));
            parts[i] = part_of(0, session, i);
            atomic_store(&meeting->number, i + 1);
        }
        run_parts(parts, 2);
        tcpx_session_stop_listening(listener);
        return;
    }
    /* one after the other, so that it is known who is who */
    for (uint64_t since = now_ms(); atomic_load(&meeting->number) + 1 < (unsigned)me->number;)
        check_others(since);
    CHECK_SUCCESS(connect_to(0, &options, &session));
    parts[0] = part_of(1, session, (unsigned)me->number - 1);
    run_parts(parts, 1);
}

/* Both ends of two sessions, in opposite directions, in one process. */
SIDES_CASE(one_process, 1, IN_BRIEF)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session_listener *listener = listen_here(0, &options);
    struct opening openings[4];
    struct part parts[4];

    for (unsigned i = 0; i < 4; i += 2) {
        openings[i] = (struct opening){.options = &options};
        openings[i + 1] = (struct opening){.listener = listener};
        open_all(&openings[i], 2);
    }
    for (unsigned i = 0; i < 4; i++)
        parts[i] = part_of((int)(i == 1 || i == 2), openings[i].session, i / 2);
    run_parts(parts, 4);
    tcpx_session_stop_listening(listener);
}

/* Each process listens and connects to the other, at once. */
SIDES_CASE(each_other, 2, IN_FULL)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session_listener *listener = listen_here((unsigned)me->number, &options);
    struct opening openings[2] = {{.listener = listener},
                                  {.options = &options, .place = (unsigned)!me->number}};
    struct part parts[2];

    open_all(openings, 2);
    for (int i = 0; i < 2; i++)
        parts[i] = part_of(i, openings[i].session, (unsigned)(me->number ^ i));
    run_parts(parts, 2);
    tcpx_session_stop_listening(listener);
}

/* Several threads wait for peers on one listener, and each gets one. */
SIDES_CASE(accepts_at_once, 2, IN_FULL)
{
    enum { THREADS = 4 };
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session_listener *listener = me->number == 0 ? listen_here(0, &options) : NULL;
    struct opening openings[THREADS];

    for (unsigned i = 0; i < THREADS; i++)
        openings[i] = (struct opening){.listener = listener, .options = &options, .talks = me};
    open_all(openings, THREADS);
    for (unsigned i = 0; i < THREADS; i++)
        tcpx_session_close(openings[i].session);
    tcpx_session_stop_listening(listener);
}

/* What only one side cannot do, the other hears from it; here it is out of descriptors. */
SIDES_CASE(one_gives_up, 2, IN_FULL)
{
    struct tcpx_session_options options = usual_options();
    struct tcpx_session *session = NULL;
    struct rlimit before;
    struct rlimit few;

    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    open_and_ping(me, &options, 0, 1); /* what is made once is there */
    options.channels = 48;
    few = before;
    few.rlim_cur = (rlim_t)open_descriptors() + 25;
    if (me->number == 1) {
        CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
        CHECK(try_open(me, &options, &session) != TCPX_SUCCESS && session == NULL);
        CHECK(strlen(tcpx_last_error()) > 10);
        snprintf(meeting->note, sizeof meeting->note, "%.60s", tcpx_last_error());
        CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
        meet(me);
    } else {
        uint64_t since = now_ms();

        CHECK(try_open(me, &options, &session) == TCPX_REMOTE_ERROR && session == NULL);
        CHECK(now_ms() - since < SOON_MS);
        meet(me);
        CHECK(strstr(tcpx_last_error(), meeting->note) != NULL);
    }
    options.channels = 2;
    open_and_ping(me, &options, 1, 2);
}

/* Only who has the same secret is a peer. */
SIDES_CASE(secret, 2, IN_FULL)
{
    struct tcpx_session_options options = usual_options();
    struct tcpx_session_listener *listener;
    struct tcpx_session *session = NULL;
    const char *path;

    if (!secrets_work())
        skip_case("libsodium is not installed");
    options.secret_file = path = secret_write("the one");
    open_and_ping(me, &options, 0, 1);

    /* another, and none: a stranger does not disturb the listener, which waits for its time */
    for (int turn = 0; turn < 4; turn++) {
        unsigned place = me->opened++;

        session = NULL;
        options.secret_file = turn % 2 == me->number && turn >= 2 ? NULL : path;
        secret_write(turn % 2 == me->number ? "another one" : "the one");
        if (me->number == 0) {
            listener = listen_here(place, &options);
            CHECK_ERROR(tcpx_session_accept(listener, 100, &session), TCPX_IN_PROGRESS, "secret");
            tcpx_session_stop_listening(listener);
        } else {
            int result = connect_to(place, &options, &session);

            CHECK(result != TCPX_SUCCESS && result != TCPX_IN_PROGRESS);
            CHECK(strstr(tcpx_last_error(), "secret") != NULL);
        }
        CHECK(session == NULL);
        meet(me);
    }
    unlink(path);
}

/* A peer that begins to listen later is found; one that is stopped meanwhile is not missed. */
SIDES_CASE(late_listener, 2, IN_FULL)
{
    const struct tcpx_session_options options = usual_options();
    struct tcpx_session_listener *listener;
    struct tcpx_session *session;
    int port;

    if (me->number == 0) { /* a port that nobody has, and that nobody gets by chance meanwhile */
        int result = TCPX_SYSTEM_ERROR;

        for (port = 20000 + getpid() % 10000; result != TCPX_SUCCESS; port++)
            result = tcpx_session_listen("127.0.0.1", port, &options, &listener);
        CHECK_SUCCESS(tcpx_session_port(listener, &port));
        tcpx_session_stop_listening(listener);
        atomic_store(&meeting->ports[0], port);
        meet(me);
        nap_us(50000);
        CHECK_SUCCESS(tcpx_session_listen("127.0.0.1", port, &options, &listener));
        CHECK_SUCCESS(tcpx_session_accept(listener, WAIT_MS, &session));
        tcpx_session_stop_listening(listener);
    } else {
        meet(me);
        CHECK_SUCCESS(connect_to(0, &options, &session));
    }
    ping(me, session, 0, 1);
    tcpx_session_close(session);
}

/* The path names the peer, the transport, and what becomes of GPU memory. */
SESSION_CASE(path, SMALL_CHUNK, IN_BRIEF)
{
    const char *plugin = getenv("UCCL_TCPX_PLUGIN_PATH");
    const char *mode = getenv("UCCL_TCPX_PLUGIN_MODE");
    const char *path = tcpx_session_path(session);

    CHECK(strstr(path, "127.0.0.1") != NULL && strchr(path, '\n') == NULL);
    CHECK(strstr(path, " over lo") != NULL || strstr(path, "quirky") != NULL);
    if (plugin == NULL || strcmp(plugin, "builtin") == 0) {
        CHECK(strstr(path, "built-in transport") != NULL);
        CHECK(strstr(path, "GPU memory by the transport") != NULL);
    } else if (strstr(plugin, "quirky") != NULL) {
        char version[40];

        snprintf(version, sizeof version, "table version %s", strstr(plugin, "_v") + 2);
        *strchr(version, '.') = '\0';
        CHECK(strstr(path, "plugin GPUDirectTCPX_quirky") != NULL);
        CHECK(strstr(path, version) != NULL);
        CHECK(strstr(path, "GPU memory staged") != NULL ||
              strstr(path, "GPU memory unpacked") != NULL);
    } else {
        CHECK(strstr(path, "plugin ") != NULL);
        CHECK(strstr(path, mode == NULL || strcmp(mode, "host") == 0 ? "GPU memory staged"
                           : strcmp(mode, "cuda") == 0               ? "GPU memory directly"
                                                       : "GPU memory unpacked") != NULL);
    }
}

SIDES_SUITE("session peers", sides_begin);
