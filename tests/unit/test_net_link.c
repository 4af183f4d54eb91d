/*
 * How links are made: both ends driven by turns in one thread and from two, many on one listener,
 * over IPv4 and IPv6; and how strangers, silence, slow talkers and other versions are kept out
 * without disturbing anyone. Every test also shows that no descriptor is kept.
 */
#include "tests/unit/net_pair.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const struct net_link_options usual = {
    .sockets = 1,
    .match = WIRE_MATCH_TAG,
    .framing = WIRE_INLINE,
    .eager_limit = 8192,
    .eager_credit = 65536,
    .largest_slice = 524288,
    .timeout_ms = 60000,
    .handshake_ms = 5000,
};

static int descriptors_before;

static int remember_descriptors(void **state)
{
    (void)state;
    descriptors_before = open_descriptors();
    return 0;
}

static int compare_descriptors(void **state)
{
    (void)state;
    return open_descriptors() == descriptors_before ? 0 : -1;
}

static struct net_listener *listen_on(int family, const struct net_link_options *options,
                                      uint8_t handle[NET_HANDLE_BYTES])
{
    struct net_device device = loopback(family);
    struct net_listener *listener;

    assert_success(net_listen(&device, options, handle, &listener));
    return listener;
}

/* One byte over every socket of a link, in its direction. */
static void assert_joined(const struct net_link *sender, const struct net_link *receiver)
{
    assert_int_equal(sender->sockets, receiver->sockets);
    for (uint8_t i = 0; i <= sender->sockets; i++) {
        bool reverse = i == sender->sockets;
        int from = reverse ? receiver->reverse : sender->forward[i];
        int to = reverse ? sender->reverse : receiver->forward[i];
        struct pollfd readable = {.fd = to, .events = POLLIN};
        uint8_t byte = 0;

        assert_int_equal(send(from, &i, 1, MSG_NOSIGNAL), 1);
        assert_int_equal(poll(&readable, 1, LIMIT_MS), 1);
        assert_int_equal(recv(to, &byte, 1, 0), 1);
        assert_int_equal(byte, i);
    }
}

static struct sockaddr_storage address_of(const uint8_t handle[NET_HANDLE_BYTES])
{
    struct net_handle parsed;

    assert_success(net_handle_read(handle, &parsed));
    return parsed.address;
}

/* A connection of somebody who is not us; blocking. */
static int stranger(const uint8_t handle[NET_HANDLE_BYTES])
{
    struct sockaddr_storage address = address_of(handle);
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, socket_address_length(&address)), 0);
    return fd;
}

/* Lets the listener work until the stranger is told something or thrown out; what it is told. */
static ssize_t answer_to(struct net_listener *listener, int fd, void *bytes, size_t room)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    size_t have = 0;

    for (;;) {
        struct net_link link;
        bool accepted;
        ssize_t got = recv(fd, (uint8_t *)bytes + have, room - have, MSG_DONTWAIT);

        if (got > 0)
            have += (size_t)got;
        if (have == room || got == 0 || (got < 0 && errno != EAGAIN))
            return have > 0 ? (ssize_t)have : got;
        assert_success(net_accept(listener, &link, &accepted));
        assert_false(accepted);
        assert_false(deadline_passed(deadline));
    }
}

static void hello_bytes(const uint8_t handle[NET_HANDLE_BYTES], uint8_t bytes[WIRE_HELLO_BYTES])
{
    struct wire_hello hello = {.role = WIRE_FORWARD,
                               .sockets = 1,
                               .match = WIRE_MATCH_TAG,
                               .framing = WIRE_INLINE,
                               .comm = 77};
    struct net_handle parsed;

    assert_success(net_handle_read(handle, &parsed));
    memcpy(hello.token, parsed.token, sizeof hello.token);
    wire_hello_write(&hello, bytes);
}

/* --- links --------------------------------------------------------------------------------- */

static void test_links_of_every_size(void **state)
{
    static const uint8_t sizes[] = {1, 2, 3, 8, 33, 64};

    (void)state;
    for (size_t i = 0; i < sizeof sizes; i++) {
        struct net_link_options options = usual;
        struct net_link sender;
        struct net_link receiver;
        uint8_t handle[NET_HANDLE_BYTES];
        struct net_listener *listener;

        options.sockets = sizes[i];
        listener = listen_on(AF_INET, &options, handle);
        make_link(listener, &options, handle, &sender, &receiver);
        assert_joined(&sender, &receiver);
        assert_int_equal(sender.eager_limit, 8192);
        assert_int_equal(sender.eager_credit, 65536);
        assert_int_equal(sender.largest_slice, 524288);
        assert_memory_equal(sender.peer, "127.0.0.1:", 10);
        assert_memory_equal(receiver.peer, "127.0.0.1:", 10);
        net_link_close(&sender);
        net_link_close(&receiver);
        net_link_close(&receiver);
        net_listener_close(listener);
    }
    net_listener_close(NULL);
}

static void test_ipv6(void **state)
{
    struct net_device device = loopback(AF_INET6);
    struct net_link sender;
    struct net_link receiver;
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener;

    (void)state;
    if (net_listen(&device, &usual, handle, &listener) != TCPX_SUCCESS) {
        skip_because("no IPv6 here: %s", tcpx_last_error());
    }
    make_link(listener, &usual, handle, &sender, &receiver);
    assert_joined(&sender, &receiver);
    assert_memory_equal(sender.peer, "[::1]:", 6);
    net_link_close(&sender);
    net_link_close(&receiver);
    net_listener_close(listener);
}

static void test_a_listener_serves_many(void **state)
{
    enum { LINKS = 100 };
    struct net_link senders[LINKS];
    struct net_link receivers[LINKS];
    uint8_t original[NET_HANDLE_BYTES];
    uint8_t handles[LINKS][NET_HANDLE_BYTES];
    struct net_listener *listener = listen_on(AF_INET, &usual, original);
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    bool connected[LINKS] = {false};
    int done = 0;
    int accepted_count = 0;

    (void)state;
    for (int i = 0; i < LINKS; i++)
        memcpy(handles[i], original, sizeof original);
    while (done < LINKS || accepted_count < LINKS) {
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
        assert_false(deadline_passed(deadline));
    }
    for (int i = 0; i < LINKS; i++) {
        net_link_close(&senders[i]);
        net_link_close(&receivers[i]);
    }
    net_listener_close(listener);
}

struct accepting {
    struct net_listener *listener;
    int wanted;
    int taken;
    char problem[200];
};

static void *accept_in_thread(void *argument)
{
    struct accepting *accepting = argument;
    uint64_t deadline = deadline_after_ms(LIMIT_MS);

    while (accepting->taken < accepting->wanted && !deadline_passed(deadline)) {
        struct net_link link;
        bool accepted = false;

        if (net_accept(accepting->listener, &link, &accepted) != TCPX_SUCCESS) {
            snprintf(accepting->problem, sizeof accepting->problem, "%s", tcpx_last_error());
            break;
        }
        if (accepted) {
            accepting->taken++;
            net_link_close(&link);
        }
    }
    return NULL;
}

static void test_two_threads(void **state)
{
    enum { LINKS = 50 };
    struct net_link_options options = usual;
    uint8_t original[NET_HANDLE_BYTES];
    struct accepting accepting = {.wanted = LINKS};
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    pthread_t thread;

    (void)state;
    options.sockets = 4;
    accepting.listener = listen_on(AF_INET, &options, original);
    assert_int_equal(pthread_create(&thread, NULL, accept_in_thread, &accepting), 0);
    for (int i = 0; i < LINKS; i++) {
        uint8_t handle[NET_HANDLE_BYTES];
        struct net_link link;
        bool connected = false;

        memcpy(handle, original, sizeof handle);
        while (!connected && !deadline_passed(deadline))
            assert_success(net_connect(NULL, &options, handle, &link, &connected));
        assert_true(connected);
        net_link_close(&link);
    }
    pthread_join(thread, NULL);
    assert_string_equal(accepting.problem, "");
    assert_int_equal(accepting.taken, LINKS);
    net_listener_close(accepting.listener);
}

/* --- handles ------------------------------------------------------------------------------- */

static void expect_no_connection(uint8_t handle[NET_HANDLE_BYTES],
                                 const struct net_link_options *options,
                                 struct net_listener *listener, int expected, const char *words)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    struct net_link link = {.reverse = 4711};
    bool connected = false;
    int result;

    do {
        struct net_link unwanted;
        bool accepted;

        result = net_connect(NULL, options, handle, &link, &connected);
        assert_false(connected);
        if (listener != NULL) {
            assert_success(net_accept(listener, &unwanted, &accepted));
            assert_false(accepted);
        }
        assert_false(deadline_passed(deadline));
    } while (result == TCPX_SUCCESS);
    assert_int_equal(link.reverse, 4711);
    if (result != expected || strstr(tcpx_last_error(), words) == NULL)
        fail_msg("%s: '%s' instead of '%s'", tcpx_result_name(result), tcpx_last_error(), words);
}

static void test_handles(void **state)
{
    uint8_t handle[NET_HANDLE_BYTES] = "GET / HTTP/1.1";
    struct net_listener *listener;
    struct net_handle parsed;

    (void)state;
    expect_no_connection(handle, &usual, NULL, TCPX_INVALID_ARGUMENT, "not a handle");
    listener = listen_on(AF_INET, &usual, handle);
    /* another version */
    handle[4] = 9;
    expect_no_connection(handle, &usual, NULL, TCPX_INVALID_ARGUMENT, "version 9");
    handle[4] = WIRE_VERSION;
    /* another family */
    handle[6] = 5;
    expect_no_connection(handle, &usual, NULL, TCPX_INVALID_ARGUMENT, "family 5");
    handle[6] = 4;
    /* another framing */
    handle[7] = 9;
    expect_no_connection(handle, &usual, NULL, TCPX_INVALID_ARGUMENT, "framing 9");
    handle[7] = WIRE_INLINE;
    /* an attempt that is none of ours starts a new one, whatever the number */
    assert_success(net_handle_read(handle, &parsed));
    parsed.attempt = 0x123456789abcdef;
    net_handle_write(&parsed, handle);
    struct net_link sender;
    struct net_link receiver;
    make_link(listener, &usual, handle, &sender, &receiver);
    assert_success(net_handle_read(handle, &parsed));
    assert_int_equal(parsed.attempt, 0);
    net_link_close(&sender);
    net_link_close(&receiver);
    net_listener_close(listener);
}

static void test_a_wrong_token(void **state)
{
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener = listen_on(AF_INET, &usual, handle);
    uint8_t wrong[NET_HANDLE_BYTES];
    struct net_link sender;
    struct net_link receiver;

    (void)state;
    memcpy(wrong, handle, sizeof wrong);
    wrong[40] ^= 1;
    expect_no_connection(wrong, &usual, listener, TCPX_REMOTE_ERROR, "token");
    make_link(listener, &usual, handle, &sender, &receiver);
    net_link_close(&sender);
    net_link_close(&receiver);
    net_listener_close(listener);
}

static void test_ends_that_want_different_things(void **state)
{
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener = listen_on(AF_INET, &usual, handle);
    struct net_link_options options = usual;

    (void)state;
    options.match = WIRE_MATCH_FIFO;
    expect_no_connection(handle, &options, listener, TCPX_REMOTE_ERROR, "in another way");
    options = usual;
    /* as the handle of another listener would have it */
    handle[7] = WIRE_SEPARATE;
    expect_no_connection(handle, &options, listener, TCPX_REMOTE_ERROR, "another framing");
    handle[7] = WIRE_INLINE;
    options.sockets = 0;
    expect_no_connection(handle, &options, listener, TCPX_INVALID_ARGUMENT, "0 sockets");
    options.sockets = 65;
    expect_no_connection(handle, &options, listener, TCPX_INVALID_ARGUMENT, "65 sockets");
    net_listener_close(listener);
}

static void test_the_listener_decides_about_framing(void **state)
{
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_link_options separate = usual;
    struct net_link_options one_socket = usual;
    struct net_listener *listener;
    struct net_link sender;
    struct net_link receiver;

    (void)state;
    separate.framing = WIRE_SEPARATE;
    one_socket.sockets = 1;
    listener = listen_on(AF_INET, &separate, handle);
    make_link(listener, &one_socket, handle, &sender, &receiver);
    assert_int_equal(sender.framing, WIRE_SEPARATE);
    assert_int_equal(receiver.framing, WIRE_SEPARATE);
    /* one for records, and one for payload */
    assert_int_equal(sender.sockets, 2);
    assert_int_equal(receiver.sockets, 2);
    net_link_close(&sender);
    net_link_close(&receiver);
    net_listener_close(listener);
}

static void test_nobody_there(void **state)
{
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener = listen_on(AF_INET, &usual, handle);
    struct net_link link;
    bool connected = true;

    (void)state;
    net_listener_close(listener);
    expect_no_connection(handle, &usual, NULL, TCPX_SYSTEM_ERROR, "127.0.0.1:");

    /* a listener that goes away in the middle */
    listener = listen_on(AF_INET, &usual, handle);
    for (int i = 0; i < 3; i++)
        assert_success(net_connect(NULL, &usual, handle, &link, &connected));
    assert_false(connected);
    net_listener_close(listener);
    int result = TCPX_SUCCESS;
    for (uint64_t deadline = deadline_after_ms(LIMIT_MS);
         result == TCPX_SUCCESS && !deadline_passed(deadline);)
        result = net_connect(NULL, &usual, handle, &link, &connected);
    assert_int_not_equal(result, TCPX_SUCCESS);
}

static void test_cancel(void **state)
{
    uint8_t handle[NET_HANDLE_BYTES];
    uint8_t untouched[NET_HANDLE_BYTES];
    struct net_listener *listener = listen_on(AF_INET, &usual, handle);
    struct net_link link;
    bool connected = true;

    (void)state;
    memcpy(untouched, handle, sizeof handle);
    net_connect_cancel(handle);
    assert_success(net_connect(NULL, &usual, handle, &link, &connected));
    assert_false(connected);
    net_connect_cancel(handle);
    assert_memory_equal(handle, untouched, sizeof handle);
    memset(handle, 0xff, sizeof handle);
    net_connect_cancel(handle);
    net_listener_close(listener);
}

/* --- strangers ----------------------------------------------------------------------------- */

static void test_garbage_is_dropped(void **state)
{
    static const char *const lines[] = {
        "GET / HTTP/1.1\r\nHost: example\r\nUser-Agent: a scan that goes on and on and on\r\n\r\n",
        "SSH-2.0-OpenSSH_9.2p1 Debian-2 and a little more so that it fills the sixty-four bytes",
    };
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener = listen_on(AF_INET, &usual, handle);
    struct net_link sender;
    struct net_link receiver;
    uint8_t bytes[300];

    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        int fd = stranger(handle);

        assert_true(send(fd, lines[i], strlen(lines[i]), MSG_NOSIGNAL) > 0);
        assert_true(answer_to(listener, fd, bytes, sizeof bytes) <= 0);
        close(fd);
    }
    make_link(listener, &usual, handle, &sender, &receiver);
    net_link_close(&sender);
    net_link_close(&receiver);
    net_listener_close(listener);
}

static void test_another_version_is_told_so(void **state)
{
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener = listen_on(AF_INET, &usual, handle);
    uint8_t hello[WIRE_HELLO_BYTES];
    uint8_t bytes[WIRE_RECORD_BYTES + WIRE_ABORT_TEXT + 1] = {0};
    struct wire_record record;
    int fd = stranger(handle);

    (void)state;
    hello_bytes(handle, hello);
    hello[4] = 2;
    assert_int_equal(send(fd, hello, sizeof hello, MSG_NOSIGNAL), (ssize_t)sizeof hello);
    assert_true(answer_to(listener, fd, bytes, sizeof bytes - 1) > WIRE_RECORD_BYTES);
    assert_int_equal(wire_record_read(bytes, WIRE_FORWARD, &record), WIRE_FINE);
    assert_int_equal(record.type, WIRE_ABORT);
    assert_non_null(strstr((char *)bytes + WIRE_RECORD_BYTES, "version 1, you version 2"));
    close(fd);
    net_listener_close(listener);
}

static void test_silence_and_half_links(void **state)
{
    enum { SILENT = 300, SLOW = 5 };
    struct net_link_options options = usual;
    uint8_t handle[NET_HANDLE_BYTES];
    uint8_t hello[WIRE_HELLO_BYTES];
    struct net_listener *listener;
    struct net_link sender;
    struct net_link receiver;
    int silent[SILENT];
    int slow[SLOW];
    int half;
    uint8_t byte;

    (void)state;
    options.handshake_ms = 300;
    listener = listen_on(AF_INET, &options, handle);
    hello_bytes(handle, hello);
    /* more silent ones than the listener keeps, some that talk a byte at a time, half of a link */
    for (int i = 0; i < SILENT; i++)
        silent[i] = stranger(handle);
    for (int i = 0; i < SLOW; i++) {
        slow[i] = stranger(handle);
        assert_int_equal(send(slow[i], hello, 1, MSG_NOSIGNAL), 1);
    }
    half = stranger(handle);
    assert_int_equal(send(half, hello, sizeof hello, MSG_NOSIGNAL), (ssize_t)sizeof hello);
    for (int i = 0; i < 5; i++) {
        make_link(listener, &options, handle, &sender, &receiver);
        assert_joined(&sender, &receiver);
        net_link_close(&sender);
        net_link_close(&receiver);
    }
    /* in time, all of them are thrown out */
    for (int i = 0; i < SILENT; i++) {
        assert_true(answer_to(listener, silent[i], &byte, 1) <= 0);
        close(silent[i]);
    }
    for (int i = 0; i < SLOW; i++) {
        send(slow[i], hello + 1, 1, MSG_NOSIGNAL);
        assert_true(answer_to(listener, slow[i], &byte, 1) <= 0);
        close(slow[i]);
    }
    /* whoever knows the token may be late */
    assert_int_equal(recv(half, &byte, 1, MSG_DONTWAIT), -1);
    assert_int_equal(errno, EAGAIN);
    close(half);
    net_listener_close(listener);
}

static void accept_nothing(struct net_listener *listener, unsigned milliseconds)
{
    uint64_t deadline = deadline_after_ms(milliseconds);

    do {
        struct net_link link;
        bool accepted;

        assert_success(net_accept(listener, &link, &accepted));
        assert_false(accepted);
    } while (!deadline_passed(deadline));
}

/* What a peer could not know: that this program did not read for a while. */
static void test_a_late_accept(void **state)
{
    struct net_link_options options = usual;
    uint8_t handle[NET_HANDLE_BYTES];
    uint8_t hello[WIRE_HELLO_BYTES];
    struct net_listener *listener;
    struct net_link sender;
    struct net_link receiver;
    uint8_t byte;
    int slow;

    (void)state;
    options.handshake_ms = 300;
    listener = listen_on(AF_INET, &options, handle);
    hello_bytes(handle, hello);
    slow = stranger(handle);
    assert_int_equal(send(slow, hello, 40, MSG_NOSIGNAL), 40);
    make_link(listener, &options, handle, &sender, &receiver);
    net_link_close(&sender);
    net_link_close(&receiver);
    for (int i = 0; i < 2; i++) {
        usleep(3 * 300 * 1000);
        accept_nothing(listener, 0);
    }
    assert_int_equal(send(slow, hello + 40, sizeof hello - 40, MSG_NOSIGNAL), 24);
    accept_nothing(listener, 400);
    assert_int_equal(recv(slow, &byte, 1, MSG_DONTWAIT), -1);
    assert_int_equal(errno, EAGAIN);
    close(slow);
    net_listener_close(listener);
}

/* One connection for each socket of `count` links, but for the last of each. */
static int connect_all_but_one(const uint8_t handle[NET_HANDLE_BYTES], uint8_t sockets, int count,
                               uint64_t first_comm, int *fds)
{
    struct wire_hello hello = {
        .sockets = sockets, .role = WIRE_FORWARD, .match = WIRE_MATCH_TAG, .framing = WIRE_INLINE};
    struct net_handle parsed;
    int made = 0;

    assert_success(net_handle_read(handle, &parsed));
    memcpy(hello.token, parsed.token, sizeof hello.token);
    for (int i = 0; i < count; i++)
        for (uint8_t index = 0; index < sockets; index++) {
            uint8_t bytes[WIRE_HELLO_BYTES];

            hello.comm = first_comm + (uint64_t)i;
            hello.index = index;
            wire_hello_write(&hello, bytes);
            fds[made] = stranger(handle);
            assert_int_equal(send(fds[made++], bytes, sizeof bytes, MSG_NOSIGNAL),
                             (ssize_t)sizeof bytes);
        }
    return made;
}

/* A peer with the token can neither take all descriptors nor keep others out for ever. */
static void test_half_links_are_bounded(void **state)
{
    enum { DESCRIPTORS = 600, LINKS = 8 };
    struct net_link_options options = usual;
    struct rlimit before;
    struct rlimit few;
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener;
    struct net_link sender;
    struct net_link receiver;
    int fds[LINKS * 64];
    int made;
    int held;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    options.handshake_ms = 300;
    few = (struct rlimit){.rlim_cur = DESCRIPTORS, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    listener = listen_on(AF_INET, &options, handle);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    made = connect_all_but_one(handle, 64, LINKS, 1, fds);
    held = open_descriptors();
    accept_nothing(listener, 100);
    held = open_descriptors() - held;
    print_message("# %d descriptors held of %d that came\n", held, made);
    assert_true(held <= DESCRIPTORS / 2);
    /* an honest link gets a place when the others have had their time */
    accept_nothing(listener, 400);
    make_link(listener, &options, handle, &sender, &receiver);
    assert_joined(&sender, &receiver);
    net_link_close(&sender);
    net_link_close(&receiver);
    for (int i = 0; i < made; i++)
        close(fds[i]);
    net_listener_close(listener);
}

static void test_a_place_is_taken_once(void **state)
{
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener = listen_on(AF_INET, &usual, handle);
    uint8_t hello[WIRE_HELLO_BYTES];
    uint8_t byte;
    int first = stranger(handle);
    int second = stranger(handle);

    (void)state;
    hello_bytes(handle, hello);
    assert_int_equal(send(first, hello, sizeof hello, MSG_NOSIGNAL), (ssize_t)sizeof hello);
    for (int i = 0; i < 1000; i++) {
        struct net_link link;
        bool accepted;

        assert_success(net_accept(listener, &link, &accepted));
        assert_false(accepted);
    }
    assert_int_equal(send(second, hello, sizeof hello, MSG_NOSIGNAL), (ssize_t)sizeof hello);
    assert_true(answer_to(listener, second, &byte, 1) <= 0);
    assert_int_equal(recv(first, &byte, 1, MSG_DONTWAIT), -1);
    assert_int_equal(errno, EAGAIN);
    close(first);
    close(second);
    net_listener_close(listener);
}

#define LINK_TEST(function)                                                                        \
    cmocka_unit_test_setup_teardown(function, remember_descriptors, compare_descriptors)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LINK_TEST(test_links_of_every_size),
        LINK_TEST(test_ipv6),
        LINK_TEST(test_a_listener_serves_many),
        LINK_TEST(test_two_threads),
        LINK_TEST(test_handles),
        LINK_TEST(test_a_wrong_token),
        LINK_TEST(test_ends_that_want_different_things),
        LINK_TEST(test_the_listener_decides_about_framing),
        LINK_TEST(test_nobody_there),
        LINK_TEST(test_cancel),
        LINK_TEST(test_garbage_is_dropped),
        LINK_TEST(test_another_version_is_told_so),
        LINK_TEST(test_silence_and_half_links),
        LINK_TEST(test_a_late_accept),
        LINK_TEST(test_half_links_are_bounded),
        LINK_TEST(test_a_place_is_taken_once),
    };

    return cmocka_run_group_tests_name("links", tests, NULL, NULL);
}
