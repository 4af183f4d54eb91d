/*
 * Shows how two processes find each other: over IPv4 and IPv6, by every kind of address, whichever
 * starts first; what is said when they do not; and that forked children and killed peers do no
 * harm.
 */
#include "tests/support/check.h"
#include "tests/unit/bootstrap_peers.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>

static const char *check_detail(void)
{
    return error_text();
}

BOOTSTRAP_TEST(test_every_kind_of_address)
{
    static const char *const listening[] = {NULL, "", "127.0.0.1", "localhost"};

    for (size_t i = 0; i < COUNT_OF(listening); i++) {
        struct bootstrap_listener *listener = listen_at(listening[i], 0, NULL);

        assert_true(bootstrap_port(listener) != 0);
        meet(listener, i == 3 ? "localhost" : "127.0.0.1", "");
        meet(listener, "localhost", NULL);
        bootstrap_listener_close(listener);
    }
    bootstrap_listener_close(NULL);
}

static bool has_ipv6(void)
{
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool has = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0;

    if (fd >= 0)
        close(fd);
    return has;
}

BOOTSTRAP_TEST(test_ipv6)
{
    static const char *const hosts[] = {"::1", "[::1]", "::1%1", "[::1%1]", "127.0.0.1"};

    if (!has_ipv6())
        skip_because("this host has no ::1");
    for (int everywhere = 0; everywhere < 2; everywhere++) {
        struct bootstrap_listener *listener = listen_at(everywhere ? NULL : "[::1]", 0, NULL);

        for (int i = 0; i < 4 + everywhere; i++)
            meet(listener, hosts[i], NULL);
        bootstrap_listener_close(listener);
    }
}

BOOTSTRAP_TEST(test_client_before_server)
{
    struct client client;
    uint16_t port = free_port();

    start_client(&client, "localhost", port, NULL, PATIENCE_MS);
    nap_ms(MOMENT_MS);
    accept_waiting(&client, port, NULL);
}

BOOTSTRAP_TEST(test_deadlines)
{
    struct bootstrap_listener *listener;
    struct control *control;
    uint64_t start = clock_now();
    uint16_t port = free_port();
    char word[100];

    assert_fails(bootstrap_connect("127.0.0.1", port, NULL, deadline_after_ms(MOMENT_MS), &control),
                 TCPX_IN_PROGRESS, "Connection refused");
    snprintf(word, sizeof word, "no peer at 127.0.0.1 port %u in time", port);
    expect_text(word);
    assert_fails(bootstrap_connect("127.0.0.1", port, NULL, 0, &control), TCPX_IN_PROGRESS,
                 "Connection refused");
    listener = listen_at("127.0.0.1", 0, NULL);
    snprintf(word, sizeof word, "no peer came to port %u in time", bootstrap_port(listener));
    assert_fails(bootstrap_accept(listener, deadline_after_ms(MOMENT_MS), &control),
                 TCPX_IN_PROGRESS, word);
    assert_null(strstr(error_text(), "dropped"));
    assert_true(clock_now() - start >= (uint64_t)2 * MOMENT_MS * 1000000);
    assert_int_equal(bootstrap_accept(listener, 0, &control), TCPX_IN_PROGRESS);
    /* It listens, and nobody accepts. */
    assert_fails(bootstrap_connect("127.0.0.1", bootstrap_port(listener), NULL,
                                   deadline_after_ms(MOMENT_MS), &control),
                 TCPX_IN_PROGRESS, "taken the connection and not greeted");
    bootstrap_listener_close(listener);
}

BOOTSTRAP_TEST(test_arguments)
{
    char long_name[3000];
    const struct {
        const char *host;
        uint16_t port;
        const char *word;
    } rows[] = {
        {NULL, 1, "name of the host"}, {"", 1, "name of the host"},       {"[]", 1, "0 characters"},
        {"::1", 0, "port 0"},          {long_name, 1, "2999 characters"},
    };
    struct bootstrap_listener *listener;
    struct control *control;

    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_fails(bootstrap_connect(rows[i].host, rows[i].port, NULL, 0, &control),
                     TCPX_INVALID_ARGUMENT, rows[i].word);
    assert_fails(bootstrap_listen("192.0.2.1", 0, NULL, &listener), TCPX_SYSTEM_ERROR,
                 "cannot listen on 192.0.2.1:0");
    /* What no wait will mend is told at once: an address of a link, and not which. */
    if (has_ipv6())
        assert_fails(bootstrap_connect("fe80::1", 1, NULL, IN_TIME, &control), TCPX_SYSTEM_ERROR,
                     "cannot connect to [fe80::1]:1: Invalid argument");
}

BOOTSTRAP_TEST(test_a_port_that_is_taken)
{
    struct bootstrap_listener *first = listen_at(NULL, 0, NULL);
    struct bootstrap_listener *second;

    assert_fails(bootstrap_listen(NULL, bootstrap_port(first), NULL, &second), TCPX_SYSTEM_ERROR,
                 strerror(EADDRINUSE));
    assert_fails(bootstrap_listen("127.0.0.1", bootstrap_port(first), NULL, &second),
                 TCPX_SYSTEM_ERROR, "cannot listen on 127.0.0.1:");
    meet(first, "127.0.0.1", NULL);
    bootstrap_listener_close(first);
}

/* A lack of descriptors is tolerated for a second, then an error; then peers come as before. */
BOOTSTRAP_TEST(test_no_descriptors_left)
{
    struct bootstrap_listener *listener = listen_at("127.0.0.1", 0, NULL);
    struct control *control;
    struct client client;
    struct rlimit usual;
    struct rlimit few;
    int first_free;

    start_client(&client, "127.0.0.1", bootstrap_port(listener), NULL, PATIENCE_MS);
    nap_ms(MOMENT_MS); /* it has its descriptor */
    first_free = dup(STDERR_FILENO);
    close(first_free);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    few = (struct rlimit){.rlim_cur = (rlim_t)first_free, .rlim_max = usual.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_fails(bootstrap_accept(listener, IN_TIME, &control), TCPX_SYSTEM_ERROR,
                 "could not be accepted for 1000 ms: ");
    assert_non_null(strstr(error_text(), strerror(EMFILE)));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
    control = accept_peer(listener);
    control_close(join_client(&client), 0);
    control_close(control, 0);
    bootstrap_listener_close(listener);
}

/* --- processes ------------------------------------------------------------------------------ */

/* What a process has that is forked. */
struct held {
    struct bootstrap_listener *listener;
    struct control *control;
};

static void check_child(const uint8_t *argument)
{
    const struct held *held = (const void *)argument;
    int fd = control_fd(held->control);
    struct bootstrap_listener *listener;
    struct control *other;
    uint8_t byte = 0;
    size_t count;
    bool there;

    CHECK(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
    CHECK(control_send(held->control, 1, &byte, 1) == TCPX_INVALID_USAGE);
    CHECK(control_flush(held->control) == TCPX_INVALID_USAGE);
    CHECK(control_receive(held->control, &byte, &byte, 1, &count, &there) == TCPX_INVALID_USAGE);
    CHECK(bootstrap_accept(held->listener, 0, &other) == TCPX_INVALID_USAGE);
    CHECK(bootstrap_connect("127.0.0.1", 1, NULL, 0, &other) == TCPX_INVALID_USAGE);
    CHECK(bootstrap_listen(NULL, 0, NULL, &listener) == TCPX_INVALID_USAGE);
    /* The number may be somebody else's now. */
    CHECK(dup2(STDERR_FILENO, fd) == fd);
    control_refuse(held->control, "a child");
    control_close(held->control, 0);
    bootstrap_listener_close(held->listener);
    CHECK(fcntl(fd, F_GETFD) != -1);
}

BOOTSTRAP_TEST(test_a_forked_child_holds_nothing)
{
    struct bootstrap_listener *listener = listen_at("127.0.0.1", 0, NULL);
    struct control *pair[2];
    struct client client;

    start_client(&client, "127.0.0.1", bootstrap_port(listener), NULL, PATIENCE_MS);
    pair[0] = accept_peer(listener);
    pair[1] = join_client(&client);
    for (int i = 0; i < 2; i++) {
        struct held held = {.listener = listener, .control = pair[i]};

        child_judge(child_wait(child_fork_here(check_child, &held)), "child");
    }
    for (int i = 0; i < 2; i++)
        exchange(pair[i], pair[1 - i], 1, 100);
    control_close(pair[0], 0);
    control_close(pair[1], 0);
    bootstrap_listener_close(listener);
}

enum { NO_NAMESPACE = 77 };

static bool put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

    if (fd >= 0)
        close(fd);
    return done;
}

/* In a network of its own with one port to give out: there a connect to that port meets itself. */
static void connect_to_itself(const uint8_t *argument)
{
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    struct control *control;
    int fd;

    (void)argument;
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
        _exit(NO_NAMESPACE);
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &lo) != 0 ||
        !put("/proc/sys/net/ipv4/ip_local_port_range", "40000 40000"))
        _exit(NO_NAMESPACE);
    CHECK(bootstrap_connect("127.0.0.1", 40000, NULL, deadline_after_ms(MOMENT_MS), &control) ==
          TCPX_IN_PROGRESS);
}

/* Status 0; a process that could not do what it wanted is a skip. */
static void assert_exited(int status, const char *lacking)
{
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_NAMESPACE)
        skip_because("no %s namespace can be made here", lacking);
    child_judge(status, "child");
}

BOOTSTRAP_TEST(test_a_connect_that_meets_itself)
{
    assert_exited(child_wait(child_fork(connect_to_itself, NULL, 0)), "network");
}

/* Whether the child has nothing more to wait for; its flag is 1 when it has come so far. */
static bool has_given_up(void)
{
    return atomic_load(&child_shared->flag) < 0 || child_shared->failure[0] != '\0';
}

static char hosts_path[] = "/tmp/test_bootstrap_hosts.XXXXXX";

/* Where a name has three addresses: one that cannot be, one where nobody listens, and ours. */
static void connect_by_name(const uint8_t *argument)
{
    static const char hosts[] = "fe80::1 tcpx-peer\n::1 tcpx-peer\n127.0.0.1 tcpx-peer\n";
    char path[sizeof hosts_path];
    struct control *control;
    uint16_t port;

    memcpy(&port, argument, sizeof port);
    memcpy(path, argument + sizeof port, sizeof path);
    CHECK(put(path, hosts));
    if ((unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount(path, "/etc/hosts", NULL, MS_BIND, NULL) != 0) {
        atomic_store(&child_shared->flag, -1);
        _exit(NO_NAMESPACE);
    }
    CHECK_ERROR(bootstrap_connect("tcpx-peer", port, NULL, 0, &control), TCPX_IN_PROGRESS,
                "Connection refused");
    atomic_store(&child_shared->flag, 1);
    CHECK_SUCCESS(bootstrap_connect("tcpx-peer", port, NULL, IN_TIME, &control));
    CHECK(strncmp(control_peer(control), "127.0.0.1:", 10) == 0);
}

BOOTSTRAP_TEST(test_a_name_of_several_addresses)
{
    struct bootstrap_listener *listener;
    struct control *control;
    uint8_t argument[2 + sizeof hosts_path] = {0};
    uint16_t port;
    int status;
    pid_t pid;

    port = free_port();
    memcpy(argument, &port, sizeof port);
    close(mkstemp(hosts_path));
    memcpy(argument + 2, hosts_path, sizeof hosts_path);
    atomic_store(&child_shared->flag, 0);
    pid = child_fork(connect_by_name, argument, sizeof argument);
    while (atomic_load(&child_shared->flag) == 0 && !has_given_up())
        nap_ms(1);
    nap_ms(MOMENT_MS); /* it has met nobody at any address */
    listener = listen_at("127.0.0.1", port, NULL);
    do {
        status = bootstrap_accept(listener, deadline_after_ms(MOMENT_MS), &control);
    } while (status == TCPX_IN_PROGRESS && !has_given_up());
    if (status == TCPX_SUCCESS)
        control_close(control, 0);
    status = child_wait(pid);
    unlink(hosts_path);
    bootstrap_listener_close(listener);
    assert_exited(status, "mount");
}

SUITE(.name = "bootstrap", .begin = child_begin);
