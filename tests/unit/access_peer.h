/*
 * A peer of a session by hand, in the process of the tested side: it finds the session, agrees and
 * connects as any peer does, and then says on the control connection whatever a test wants. What
 * concerns windows is in access_says.h.
 */
#ifndef TCPX_TESTS_ACCESS_PEER_H
#define TCPX_TESTS_ACCESS_PEER_H

#include "tests/support/pair.h"

#include "session/agreement.h"
#include "session/bootstrap.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>

/* For what must happen. */
#define PATIENCE_MS limit_ms(10000)
/* A call that needs no peer. */
#define AT_ONCE_MS limit_ms(500)
/* The session's timeout, and a while. */
#define GIVES_UP_MS limit_ms(4000)

enum { PEER_AGREEMENT, PEER_READY, PEER_OFFER, PEER_GRANT, PEER_REFUSE, PEER_DONE, PEER_GOODBYE };

struct access_peer {
    struct tcpx_session *session; /* the tested side */
    struct control *control;
    struct agreement mine;
    struct agreement theirs;
    struct net_link to;   /* carries bytes to the tested side, */
    struct net_link from; /* and from it */
    uint64_t next_id;
    uint32_t next_place;
};

static inline struct tcpx_session_options access_options(int gpu, int windows)
{
    struct tcpx_session_options options;

    tcpx_session_options_init(&options);
    options.gpu = gpu;
    options.channels = 1;
    options.chunk_bytes = 1 << 20;
    options.plugin_path = "builtin";
    options.windows = windows;
    return options;
}

/* --- opening ------------------------------------------------------------------------------- */

struct accepting {
    struct tcpx_session_listener *listener;
    struct tcpx_session *session;
    int result;
    char why[400];
};

static inline void *accept_one(void *argument)
{
    struct accepting *accepting = argument;

    accepting->result =
        tcpx_session_accept(accepting->listener, (int)PATIENCE_MS, &accepting->session);
    snprintf(accepting->why, sizeof accepting->why, "%s", tcpx_last_error());
    return NULL;
}

static inline void peer_greet(struct access_peer *peer, int port)
{
    const struct bootstrap_greeting greeting = {.role = BOOTSTRAP_CONNECTS, .nonce = {1}};
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    uint8_t bytes[BOOTSTRAP_GREETING_BYTES];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    bootstrap_greeting_write(&greeting, bytes);
    hand_put(fd, bytes, sizeof bytes);
    assert_int_equal(recv(fd, bytes, sizeof bytes, MSG_WAITALL), (ssize_t)sizeof bytes);
    assert_success(control_create(fd, "the tested side", SESSION_VERSION, &peer->control));
}

/* --- messages ------------------------------------------------------------------------------ */

/* The tested side may have ended the session already. */
static inline void say(struct access_peer *peer, uint8_t type, const void *bytes, size_t count)
{
    if (control_send(peer->control, type, bytes, count) == TCPX_SUCCESS)
        (void)!control_send_all(peer->control, deadline_after_ms(PATIENCE_MS));
}

static inline void say_number(struct access_peer *peer, uint8_t type, uint64_t number)
{
    const uint64_t wire = htole64(number);

    say(peer, type, &wire, sizeof wire);
}

/* Returns its length. */
static inline size_t hear(struct access_peer *peer, uint8_t type, void *bytes, size_t room)
{
    uint8_t seen = UINT8_MAX;
    size_t length = 0;

    assert_success(control_await(peer->control, "a message", &seen, bytes, room, &length,
                                 deadline_after_ms(PATIENCE_MS)));
    assert_int_equal(seen, type);
    return length;
}

/* Nothing has come, and nothing has ended. */
static inline void hear_nothing(struct access_peer *peer)
{
    uint8_t bytes[CONTROL_LARGEST];
    uint8_t type;
    size_t length;
    bool there;

    assert_success(control_receive(peer->control, &type, bytes, sizeof bytes, &length, &there));
    assert_false(there);
}

static inline void hear_number(struct access_peer *peer, uint8_t type, uint64_t number)
{
    uint64_t wire;

    assert_int_equal(hear(peer, type, &wire, sizeof wire), sizeof wire);
    assert_int_equal(le64toh(wire), number);
}

static inline void peer_agree(struct access_peer *peer, struct net_listener **listener)
{
    struct net_link_options options;
    const struct net_device device = loopback(AF_INET);
    uint8_t bytes[AGREEMENT_BYTES];
    size_t length;

    assert_success(net_link_defaults(WIRE_MATCH_TAG, &options));
    options.gpu = -1;
    assert_success(net_listen(&device, &options, peer->mine.handles[0], listener));
    peer->mine.version = SESSION_VERSION;
    peer->mine.channels = 1;
    peer->mine.chunk_bytes = 1 << 20;
    snprintf(peer->mine.transport, sizeof peer->mine.transport, "builtin");
    peer->mine.windows = true;
    memset(peer->mine.nonce, 0x4e, sizeof peer->mine.nonce);
    say(peer, PEER_AGREEMENT, bytes, agreement_encode(&peer->mine, bytes));
    length = hear(peer, PEER_AGREEMENT, bytes, sizeof bytes);
    assert_success(agreement_decode(bytes, length, &peer->theirs));
}

static inline void peer_connect(struct access_peer *peer, struct net_listener *listener)
{
    struct net_link_options options;
    const struct net_device device = loopback(AF_INET);
    bool connected = false;
    bool accepted = false;

    assert_success(net_link_defaults(WIRE_MATCH_TAG, &options));
    until(connected && accepted, {
        if (!connected)
            assert_success(
                net_connect(&device, &options, peer->theirs.handles[0], &peer->to, &connected));
        if (!accepted)
            assert_success(net_accept(listener, &peer->from, &accepted));
    });
    net_listener_close(listener);
    say(peer, PEER_READY, NULL, 0);
    assert_int_equal(hear(peer, PEER_READY, NULL, 0), 0);
}

static inline void peer_open(struct access_peer *peer, const struct tcpx_session_options *options)
{
    struct accepting accepting = {0};
    struct net_listener *listener;
    pthread_t thread;
    int port;

    *peer = (struct access_peer){.next_place = 1};
    assert_success(tcpx_session_listen("127.0.0.1", 0, options, &accepting.listener));
    assert_success(tcpx_session_port(accepting.listener, &port));
    assert_int_equal(pthread_create(&thread, NULL, accept_one, &accepting), 0);
    peer_greet(peer, port);
    peer_agree(peer, &listener);
    peer_connect(peer, listener);
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (accepting.result != TCPX_SUCCESS)
        fail_msg("%s", accepting.why);
    tcpx_session_stop_listening(accepting.listener);
    peer->session = accepting.session;
}

static inline void peer_close(struct access_peer *peer)
{
    tcpx_session_close(peer->session);
    control_close(peer->control, 0);
    net_link_close(&peer->to);
    net_link_close(&peer->from);
}

#endif
