/*
 * A program that makes no call for three timeouts while a link is being made, at either end and at
 * every stage, has its link when it goes on. The rows of a table are that many links, which share
 * the time of silence. Connections that never present the token are still dropped.
 */
#include "tests/net_calls/net_calls.h"
#include "tests/support/basics.h"
#include "tests/unit/links.h"

enum { SOCKETS = 3, TIMEOUT_MS = 1000, SILENCE_MS = 5000 };

static const struct net_link_options usual = {
    .sockets = SOCKETS,
    USUAL_LINK,
    .timeout_ms = TIMEOUT_MS,
    .handshake_ms = TIMEOUT_MS,
};

enum { ALL = -1 };

static const struct row {
    const char *what;
    int writes;            /* of hellos that succeed before the silence */
    size_t most;           /* bytes of each; 0: any */
    unsigned accept_calls; /* before the silence */
    bool ready_is_held;    /* in these */
    bool connect_goes_on;  /* during the silence */
    bool accept_goes_on;
} rows[] = {
    {"no accept yet, connect is silent", ALL, 0, 0, false, false, false},
    {"no accept yet, connect goes on", ALL, 0, 0, false, true, false},
    {"no hello is out, both are silent", 0, 0, 0, false, false, false},
    {"no hello is out, accept goes on", 0, 0, 1, false, false, true},
    {"half of the hellos are out, both are silent", 2, 0, 3, false, false, false},
    {"half of the hellos are out, accept goes on", 2, 0, 3, false, false, true},
    {"half of the hellos are out, accept is silent", 2, 0, 3, false, true, false},
    {"a part of one hello is out, both are silent", 1, 20, 3, false, false, false},
    {"a part of one hello is out, accept goes on", 1, 20, 3, false, false, true},
    {"a part of one hello is out, accept is silent", 1, 20, 3, false, true, false},
    {"all hellos are heard, READY is held, both are silent", ALL, 0, 5, true, false, false},
    {"all hellos are heard, READY is held, accept goes on", ALL, 0, 5, true, false, true},
    {"all hellos are heard, READY is held, connect goes on", ALL, 0, 5, true, true, false},
    {"accepted, connect is silent", ALL, 0, 5, false, false, false},
};
enum { ROWS = sizeof rows / sizeof *rows };

struct link_of_row {
    struct net_listener *listener;
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_link sender;
    struct net_link receiver;
    bool connected;
    bool accepted;
};

static struct link_of_row links[ROWS];

static void call_connect(struct link_of_row *link)
{
    if (!link->connected)
        assert_success(net_connect(NULL, &usual, link->handle, &link->sender, &link->connected));
}

static void call_accept(struct link_of_row *link)
{
    if (!link->accepted)
        assert_success(net_accept(link->listener, &link->receiver, &link->accepted));
}

static void begin(const struct row *row, struct link_of_row *link)
{
    struct net_device device = loopback(AF_INET);

    assert_success(net_listen(&device, &usual, link->handle, &link->listener));
    calls_reset();
    if (row->writes != ALL)
        CALLS_PLAN(CALL_SEND, .first = (unsigned)row->writes, .count = 1000, .error = EAGAIN,
                   .most = row->most);
    call_connect(link);
    calls_reset();
    if (row->ready_is_held)
        CALLS_PLAN(CALL_SEND, .count = 1000, .error = EAGAIN);
    for (unsigned i = 0; i < row->accept_calls; i++) {
        nap_ms(2);
        call_accept(link);
    }
    calls_reset();
    assert_false(link->connected);
}

/* From here on a row is a link like any other. */
static void go_on(struct link_of_row *link)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);

    call_accept(link);
    while (!link->connected || !link->accepted) {
        call_connect(link);
        call_accept(link);
        nap_ms(2);
        assert_false(deadline_passed(deadline));
    }
    close_joined(&link->sender, &link->receiver);
    net_listener_close(link->listener);
}

/* An attempt that the listener may have accepted is not ended by another one of the process. */
static void connect_another(void)
{
    struct net_link sender;
    struct net_link receiver;

    make_link_pair(&usual, &sender, &receiver);
    net_link_close(&sender);
    net_link_close(&receiver);
}

static void go_on_where(bool all_hellos_are_out)
{
    for (int i = 0; i < ROWS; i++)
        if ((rows[i].writes == ALL) == all_hellos_are_out) {
            print_message("# %s\n", rows[i].what);
            go_on(&links[i]);
        }
}

TEST(test_silence)
{
    uint64_t silent_until;

    for (int i = 0; i < ROWS; i++)
        begin(&rows[i], &links[i]);
    silent_until = deadline_after_ms(SILENCE_MS);
    while (!deadline_passed(silent_until)) {
        for (int i = 0; i < ROWS; i++) {
            if (rows[i].connect_goes_on)
                call_connect(&links[i]);
            if (rows[i].accept_goes_on)
                call_accept(&links[i]);
        }
        nap_ms(2);
    }
    go_on_where(false);
    connect_another();
    go_on_where(true);
}

/* Of these, and of a peer with the token that has left, nothing is kept. */
TEST(test_strangers_are_not_kept)
{
    enum { STRANGERS = 20 };
    struct net_device device = loopback(AF_INET);
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    uint8_t handle[NET_HANDLE_BYTES];
    uint8_t half[NET_HANDLE_BYTES];
    struct net_listener *listener;
    struct net_handle parsed;
    struct net_link link;
    bool done;
    int strangers[STRANGERS];
    int before;

    assert_success(net_listen(&device, &usual, handle, &listener));
    assert_success(net_handle_read(handle, &parsed));
    for (int i = 0; i < STRANGERS; i++) {
        strangers[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(strangers[i], (struct sockaddr *)&parsed.address,
                                 socket_address_length(&parsed.address)),
                         0);
        if (i % 2 == 0)
            assert_int_equal(send(strangers[i], "TCPX", 4, MSG_NOSIGNAL), 4);
    }
    before = open_descriptors();
    memcpy(half, handle, sizeof half);
    calls_reset();
    CALLS_PLAN(CALL_SEND, .first = 2, .count = 1000, .error = EAGAIN);
    assert_success(net_connect(NULL, &usual, half, &link, &done));
    nap_ms(2);
    assert_success(net_accept(listener, &link, &done));
    assert_true(open_descriptors() > before);
    net_connect_cancel(half);
    calls_reset();
    while (open_descriptors() > before) {
        assert_success(net_accept(listener, &link, &done));
        assert_false(done);
        nap_ms(2);
        assert_false(deadline_passed(deadline));
    }
    for (int i = 0; i < STRANGERS; i++) {
        uint8_t byte;

        assert_true(recv(strangers[i], &byte, 1, MSG_DONTWAIT) <= 0);
        close(strangers[i]);
    }
    net_listener_close(listener);
}

SUITE(.name = "silence while a link is made");
