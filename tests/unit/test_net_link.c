/*
 * How links are made: both ends driven by turns in one thread and from two, many on one listener,
 * over IPv4 and IPv6; and how strangers, silence, slow talkers and other versions are kept out
 * without disturbing anyone. Every test also shows that no descriptor is kept.
 */
#include "tests/unit/links.h"

#include <pthread.h>
#include <sys/resource.h>

static const struct net_link_options usual = {
    .sockets = 1,
    USUAL_LINK,
    .timeout_ms = 60000,
    .handshake_ms = 5000,
};

/* What each test begins with: a listener with these options, and its handle. */
static struct net_link_options options;
static struct net_listener *listener;
static uint8_t handle[NET_HANDLE_BYTES];
static int descriptors;

static void listen_on(int family)
{
    struct net_device device = loopback(family);

    net_listener_close(listener);
    listener = NULL;
    assert_success(net_listen(&device, &options, handle, &listener));
}

static void stop_listening(void)
{
    net_listener_close(listener);
    listener = NULL;
}

static int set_up(void **state)
{
    (void)state;
    descriptors = open_descriptors();
    options = usual;
    listen_on(AF_INET);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    stop_listening();
    return open_descriptors() == descriptors ? 0 : -1;
}

#define LINK_TEST(function) TEST_WITH(function, set_up, tear_down)

/* Makes a link, sends over it, and closes it; what its sending end was. */
static struct net_link link_once(void)
{
    struct net_link sender;
    struct net_link receiver;
    struct net_link copy;

    make_link(listener, &options, handle, &sender, &receiver);
    assert_int_equal(strncmp(sender.peer, receiver.peer, 5), 0);
    copy = sender;
    close_joined(&sender, &receiver);
    net_link_close(&receiver);
    return copy;
}

static struct net_handle parsed_handle(void)
{
    struct net_handle parsed;

    assert_success(net_handle_read(handle, &parsed));
    return parsed;
}

static void accept_nothing(unsigned milliseconds)
{
    uint64_t deadline = deadline_after_ms(milliseconds);

    do {
        struct net_link link;
        bool accepted;

        assert_success(net_accept(listener, &link, &accepted));
        assert_false(accepted);
    } while (!deadline_passed(deadline));
}

/* A connection of somebody who is not us, and the first bytes that it sends; blocking. */
static int stranger(const void *bytes, size_t count)
{
    struct sockaddr_storage address = parsed_handle().address;
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, socket_address_length(&address)), 0);
    if (count > 0)
        assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), (ssize_t)count);
    return fd;
}

/* Lets the listener work until the stranger is told something or thrown out; what it is told. */
static ssize_t answer_to(int fd, void *bytes, size_t room)
{
    size_t have = 0;
    ssize_t got = 1;

    until(have == room || got == 0 || (got < 0 && errno != EAGAIN), {
        accept_nothing(0);
        got = recv(fd, (uint8_t *)bytes + have, room - have, MSG_DONTWAIT);
        have += got > 0 ? (size_t)got : 0;
    });
    return have > 0 ? (ssize_t)have : got;
}

/* Without a word. */
static void assert_thrown_out(int fd)
{
    uint8_t byte;

    assert_true(answer_to(fd, &byte, 1) <= 0);
    close(fd);
}

static void assert_kept(int fd)
{
    uint8_t byte;

    assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
    assert_int_equal(errno, EAGAIN);
    close(fd);
}

/* Of a link of one or more forward sockets that knows the token. */
static void hello_bytes(uint64_t comm, uint8_t sockets, uint8_t index,
                        uint8_t bytes[WIRE_HELLO_BYTES])
{
    struct wire_hello hello = hello_with(parsed_handle().token, comm);

    hello.index = index;
    hello.sockets = sockets;
    wire_hello_write(&hello, bytes);
}

/* --- links --------------------------------------------------------------------------------- */

LINK_TEST(test_links_of_every_size)
{
    static const uint8_t sizes[] = {1, 2, 3, 8, 33, 64};

    for (size_t i = 0; i < sizeof sizes; i++) {
        struct net_link sender;

        options.sockets = sizes[i];
        listen_on(AF_INET);
        sender = link_once();
        assert_int_equal(sender.eager_limit, 8192);
        assert_int_equal(sender.eager_credit, 65536);
        assert_int_equal(sender.largest_slice, 524288);
        assert_memory_equal(sender.peer, "127.0.0.1:", 10);
    }
    net_listener_close(NULL);
}

LINK_TEST(test_ipv6)
{
    struct net_device device = loopback(AF_INET6);
    struct net_listener *probe;

    if (net_listen(&device, &usual, handle, &probe) != TCPX_SUCCESS)
        skip_because("no IPv6 here: %s", tcpx_last_error());
    net_listener_close(probe);
    listen_on(AF_INET6);
    assert_memory_equal(link_once().peer, "[::1]:", 6);
}

LINK_TEST(test_a_listener_serves_many)
{
    enum { LINKS = 100 };
    struct net_link senders[LINKS];
    struct net_link receivers[LINKS];
    uint8_t handles[LINKS][NET_HANDLE_BYTES];
    bool connected[LINKS] = {false};
    int done = 0;
    int accepted_count = 0;

    for (int i = 0; i < LINKS; i++)
        memcpy(handles[i], handle, sizeof handle);
    until(done == LINKS && accepted_count == LINKS, {
        bool accepted = false;

        for (int i = 0; i < LINKS; i++)
            if (!connected[i]) {
                assert_success(net_connect(NULL, &usual, handles[i], &senders[i], &connected[i]));
                done += connected[i];
            }
        if (accepted_count < LINKS) {
            assert_success(net_accept(listener, &receivers[accepted_count], &accepted));
            accepted_count += accepted;
        }
    });
    for (int i = 0; i < LINKS; i++) {
        net_link_close(&senders[i]);
        net_link_close(&receivers[i]);
    }
}

enum { LINKS_OF_TWO_THREADS = 50 };

static void *accept_in_thread(void *problem)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    int taken = 0;

    while (taken < LINKS_OF_TWO_THREADS && !deadline_passed(deadline)) {
        struct net_link link;
        bool accepted = false;

        if (net_accept(listener, &link, &accepted) != TCPX_SUCCESS)
            break;
        if (accepted)
            net_link_close(&link);
        taken += accepted;
    }
    if (taken < LINKS_OF_TWO_THREADS)
        snprintf(problem, 200, "%d links, then: %s", taken, tcpx_last_error());
    return NULL;
}

LINK_TEST(test_two_threads)
{
    char problem[200] = "";
    pthread_t thread;

    options.sockets = 4;
    listen_on(AF_INET);
    assert_int_equal(pthread_create(&thread, NULL, accept_in_thread, problem), 0);
    for (int i = 0; i < LINKS_OF_TWO_THREADS; i++) {
        uint8_t copy[NET_HANDLE_BYTES];
        struct net_link link;
        bool connected = false;

        memcpy(copy, handle, sizeof copy);
        until(connected, assert_success(net_connect(NULL, &options, copy, &link, &connected)));
        net_link_close(&link);
    }
    pthread_join(thread, NULL);
    assert_string_equal(problem, "");
}

/* --- handles ------------------------------------------------------------------------------- */

/* With the handle as it is now. */
static void expect_no_connection(int expected, const char *words)
{
    struct net_link link = {.reverse = 4711};
    bool connected = false;
    int result = TCPX_SUCCESS;

    until(result != TCPX_SUCCESS, {
        result = net_connect(NULL, &options, handle, &link, &connected);
        assert_false(connected);
        if (listener != NULL)
            accept_nothing(0);
    });
    assert_int_equal(link.reverse, 4711);
    if (result != expected || strstr(tcpx_last_error(), words) == NULL)
        fail_msg("%s: '%s' instead of '%s'", tcpx_result_name(result), tcpx_last_error(), words);
}

/* With one byte of the handle changed. */
static void expect_no_connection_with(size_t at, uint8_t value, int expected, const char *words)
{
    uint8_t before = handle[at];

    handle[at] = value;
    expect_no_connection(expected, words);
    handle[at] = before;
}

LINK_TEST(test_handles)
{
    uint8_t good[NET_HANDLE_BYTES];
    struct net_handle parsed = parsed_handle();

    memcpy(good, handle, sizeof good);
    memcpy(handle, "GET / HTTP/1.1", 14);
    expect_no_connection(TCPX_INVALID_ARGUMENT, "not a handle");
    memcpy(handle, good, sizeof good);
    expect_no_connection_with(4, 1, TCPX_INVALID_ARGUMENT, "versions 1 to 1");
    expect_no_connection_with(10, 3, TCPX_INVALID_ARGUMENT, "versions 3 to 2");
    expect_no_connection_with(6, 5, TCPX_INVALID_ARGUMENT, "family 5");
    expect_no_connection_with(7, 9, TCPX_INVALID_ARGUMENT, "framing 9");
    /* an attempt that is none of ours starts a new one, whatever the number */
    parsed.attempt = 0x123456789abcdef;
    net_handle_write(&parsed, handle);
    link_once();
    assert_int_equal(parsed_handle().attempt, 0);
}

LINK_TEST(test_a_wrong_token)
{
    expect_no_connection_with(40, handle[40] ^ 1, TCPX_REMOTE_ERROR, "token");
    link_once();
}

LINK_TEST(test_ends_that_want_different_things)
{
    options.match = WIRE_MATCH_FIFO;
    expect_no_connection(TCPX_REMOTE_ERROR, "in another way");
    options = usual;
    /* as the handle of another listener would have it */
    expect_no_connection_with(7, WIRE_SEPARATE, TCPX_REMOTE_ERROR, "another framing");
    options.sockets = 0;
    expect_no_connection(TCPX_INVALID_ARGUMENT, "0 sockets");
    options.sockets = 65;
    expect_no_connection(TCPX_INVALID_ARGUMENT, "65 sockets");
}

LINK_TEST(test_the_listener_decides_about_framing)
{
    struct net_link sender;

    options.framing = WIRE_SEPARATE;
    listen_on(AF_INET);
    options.framing = WIRE_INLINE;
    sender = link_once();
    assert_int_equal(sender.framing, WIRE_SEPARATE);
    /* one for records, and one for payload */
    assert_int_equal(sender.sockets, 2);
}

LINK_TEST(test_nobody_there)
{
    struct net_link link;
    bool connected = true;
    int result = TCPX_SUCCESS;

    stop_listening();
    expect_no_connection(TCPX_SYSTEM_ERROR, "127.0.0.1:");

    /* a listener that goes away in the middle */
    listen_on(AF_INET);
    for (int i = 0; i < 3; i++)
        assert_success(net_connect(NULL, &usual, handle, &link, &connected));
    assert_false(connected);
    stop_listening();
    until(result != TCPX_SUCCESS, result = net_connect(NULL, &usual, handle, &link, &connected));
}

LINK_TEST(test_cancel)
{
    uint8_t untouched[NET_HANDLE_BYTES];
    struct net_link link;
    bool connected = true;

    memcpy(untouched, handle, sizeof handle);
    net_connect_cancel(handle);
    assert_success(net_connect(NULL, &usual, handle, &link, &connected));
    assert_false(connected);
    net_connect_cancel(handle);
    assert_memory_equal(handle, untouched, sizeof handle);
    memset(handle, 0xff, sizeof handle);
    net_connect_cancel(handle);
}

/* --- strangers ----------------------------------------------------------------------------- */

LINK_TEST(test_garbage_is_dropped)
{
    static const char *const lines[] = {
        "GET / HTTP/1.1\r\nHost: example\r\nUser-Agent: a scan that goes on and on and on\r\n\r\n",
        "SSH-2.0-OpenSSH_9.2p1 Debian-2 and a little more so that it fills the sixty-four bytes",
    };

    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        assert_thrown_out(stranger(lines[i], strlen(lines[i])));
    link_once();
}

LINK_TEST(test_another_version_is_told_so)
{
    uint8_t hello[WIRE_HELLO_BYTES];
    uint8_t bytes[WIRE_RECORD_BYTES + WIRE_ABORT_TEXT + 1] = {0};
    struct wire_record record;
    int fd;

    hello_bytes(77, 1, 0, hello);
    hello[4] = 3;
    hello[40] = 3;
    fd = stranger(hello, sizeof hello);
    assert_true(answer_to(fd, bytes, sizeof bytes - 1) > WIRE_RECORD_BYTES);
    assert_int_equal(wire_record_read(bytes, WIRE_FORWARD, &record), WIRE_FINE);
    assert_int_equal(record.type, WIRE_ABORT);
    assert_non_null(
        strstr((char *)bytes + WIRE_RECORD_BYTES, "versions 2 to 2, you versions 3 to 3"));
    close(fd);
}

LINK_TEST(test_silence_and_half_links)
{
    enum { SILENT = 300, SLOW = 5 };
    uint8_t hello[WIRE_HELLO_BYTES];
    int silent[SILENT];
    int slow[SLOW];
    int half;

    options.handshake_ms = 300;
    listen_on(AF_INET);
    hello_bytes(77, 1, 0, hello);
    /* more silent ones than the listener keeps, some that talk a byte at a time, half of a link */
    for (int i = 0; i < SILENT; i++)
        silent[i] = stranger(NULL, 0);
    for (int i = 0; i < SLOW; i++)
        slow[i] = stranger(hello, 1);
    half = stranger(hello, sizeof hello);
    for (int i = 0; i < 5; i++)
        link_once();
    /* in time, all of them are thrown out */
    for (int i = 0; i < SILENT; i++)
        assert_thrown_out(silent[i]);
    for (int i = 0; i < SLOW; i++) {
        send(slow[i], hello + 1, 1, MSG_NOSIGNAL);
        assert_thrown_out(slow[i]);
    }
    assert_kept(half); /* a peer that knows the token may be late */
}

/* All of them wait before the honest one. They are passed by, not waited for. */
LINK_TEST(test_more_silence_than_places)
{
    enum { SILENT = 400 };
    int silent[SILENT];
    uint64_t start;

    options.handshake_ms = limit_ms(1000);
    listen_on(AF_INET);
    for (int i = 0; i < SILENT; i++)
        silent[i] = stranger(NULL, 0);
    start = clock_now();
    link_once();
    assert_true(clock_now() - start < options.handshake_ms * 1000000ull);
    for (int i = 0; i < SILENT; i++)
        close(silent[i]);
    until(open_descriptors() == descriptors + 1, accept_nothing(0));
}

/* An honest hello that comes a moment after its connection, as on any network with a distance. */
LINK_TEST(test_a_hello_behind_a_flood)
{
    enum { FLOOD = 300 };
    struct wire_hello hello = hello_with(parsed_handle().token, 77);
    uint8_t bytes[WIRE_HELLO_BYTES];
    int honest[] = {stranger(NULL, 0), stranger(NULL, 0)};
    bool accepted = false;
    struct net_link link;
    int fds[FLOOD];

    accept_nothing(0);
    for (int i = 0; i < FLOOD; i++) {
        fds[i] = stranger(NULL, 0);
        if (i % 50 == 49)
            accept_nothing(0);
    }
    for (int i = 0; i < 2; i++) {
        hello.role = i == 0 ? WIRE_FORWARD : WIRE_REVERSE;
        wire_hello_write(&hello, bytes);
        assert_int_equal(send(honest[i], bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    }
    until_within(limit_ms(1000), accepted, assert_success(net_accept(listener, &link, &accepted)));
    net_link_close(&link);
    for (int i = 0; i < 2; i++)
        close(honest[i]);
    for (int i = 0; i < FLOOD; i++)
        close(fds[i]);
}

/* What a peer could not know: that this program did not read for a while. */
LINK_TEST(test_a_late_accept)
{
    uint8_t hello[WIRE_HELLO_BYTES];
    int slow;

    options.handshake_ms = 300;
    listen_on(AF_INET);
    hello_bytes(77, 1, 0, hello);
    slow = stranger(hello, 40);
    link_once();
    for (int i = 0; i < 2; i++) {
        usleep(3 * 300 * 1000);
        accept_nothing(0);
    }
    assert_int_equal(send(slow, hello + 40, sizeof hello - 40, MSG_NOSIGNAL), 24);
    accept_nothing(400);
    assert_kept(slow);
}

/* A peer with the token can neither take all descriptors nor keep others out for ever. */
LINK_TEST(test_half_links_are_bounded)
{
    enum { DESCRIPTORS = 600, LINKS = 8, SOCKETS = 64 };
    struct rlimit before;
    struct rlimit few;
    int fds[LINKS * SOCKETS];
    int held;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    options.handshake_ms = 300;
    few = (struct rlimit){.rlim_cur = DESCRIPTORS, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    listen_on(AF_INET);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    /* one connection for each forward socket of these links, and no reverse one */
    for (int i = 0; i < LINKS * SOCKETS; i++) {
        uint8_t hello[WIRE_HELLO_BYTES];

        hello_bytes((uint64_t)i / SOCKETS + 1, SOCKETS, (uint8_t)(i % SOCKETS), hello);
        fds[i] = stranger(hello, sizeof hello);
    }
    held = open_descriptors();
    accept_nothing(100);
    held = open_descriptors() - held;
    print_message("# %d descriptors held of %d that came\n", held, LINKS * SOCKETS);
    assert_true(held <= DESCRIPTORS / 2);
    /* an honest link gets a place when the others have had their time */
    accept_nothing(400);
    link_once();
    for (int i = 0; i < LINKS * SOCKETS; i++)
        close(fds[i]);
}

LINK_TEST(test_a_place_is_taken_once)
{
    uint8_t hello[WIRE_HELLO_BYTES];
    int first;

    hello_bytes(77, 1, 0, hello);
    first = stranger(hello, sizeof hello);
    for (int i = 0; i < 1000; i++)
        accept_nothing(0);
    assert_thrown_out(stranger(hello, sizeof hello));
    assert_kept(first);
}

SUITE(.name = "links");
