/*
 * One listening port for all listeners of a process: connections find their listener by their first
 * bytes, in whatever parts these come, and a listener whose program is late loses none.
 */
#include "net/socket/port.h"
#include "net/socket/socket.h"
#include "tests/unit/net_pair.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>

enum { KEY_AT = 24, HELLO = 64, PORTS = 4 };

/* UCCL_TCPX_PORT: below the ports that the system chooses, and another range in each process. */
static uint16_t first_port;
static char range[16];

static const uint8_t kinds[][PORT_KIND_BYTES + 1] = {"TCPX", "boot"};

static struct half_open_table
    table; /* of all listeners here: its time limit, and accept()'s lack */

static struct sockaddr_storage address_of(const char *text, uint16_t port)
{
    union socket_address any = {.ipv4 = {.sin_family = AF_INET, .sin_port = htons(port)}};

    assert_int_equal(inet_pton(AF_INET, text, &any.ipv4.sin_addr), 1);
    return any.storage;
}

static struct port_sign keyed(uint8_t key)
{
    struct port_sign sign = {.has_key = true, .key_at = KEY_AT};

    memcpy(sign.kind, kinds[0], sizeof sign.kind);
    memset(sign.key, key, sizeof sign.key);
    return sign;
}

static struct port_sign keyless(void)
{
    struct port_sign sign = {0};

    memcpy(sign.kind, kinds[1], sizeof sign.kind);
    return sign;
}

static struct port *listen_at(const char *address, uint16_t number, struct port_sign sign)
{
    struct sockaddr_storage where = address_of(address, number);
    struct port *port;

    assert_success(port_open(&where, &sign, &table, &port));
    return port;
}

static uint16_t number_of_port(const struct port *port)
{
    union socket_address any;

    port_address(port, &any.storage);
    return ntohs(any.ipv4.sin_port);
}

static int connect_to(const char *address, uint16_t number)
{
    struct sockaddr_storage where = address_of(address, number);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&where, sizeof(struct sockaddr_in)), 0);
    return fd;
}

/* The first bytes of a connection to the listener with this key; the last byte is its number. */
static void write_hello(uint8_t bytes[HELLO], uint8_t key, uint8_t number)
{
    memset(bytes, 0, HELLO);
    memcpy(bytes, kinds[0], PORT_KIND_BYTES);
    memset(bytes + KEY_AT, key, PORT_KEY_BYTES);
    bytes[HELLO - 1] = number;
}

static int connect_with(uint16_t port, uint8_t key, uint8_t number)
{
    uint8_t bytes[HELLO];
    int fd = connect_to("127.0.0.1", port);

    write_hello(bytes, key, number);
    assert_int_equal(send(fd, bytes, sizeof bytes, 0), sizeof bytes);
    return fd;
}

static int accept_soon(struct port *port)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    int fd = -1;

    while (fd < 0 && !deadline_passed(deadline)) {
        assert_success(port_accept(port, &table, &fd));
        if (fd < 0)
            nap_us(200);
    }
    assert_true(fd >= 0);
    return fd;
}

/* The number that an accepted connection was given: none of its bytes has been read before. */
static uint8_t number_of_hello(int fd)
{
    uint8_t bytes[HELLO] = {0};
    size_t have = 0;
    uint64_t deadline = deadline_after_ms(LIMIT_MS);

    while (have < sizeof bytes && !deadline_passed(deadline))
        assert_int_equal(socket_receive_rest(fd, bytes, sizeof bytes, &have), 1);
    assert_int_equal(have, sizeof bytes);
    return bytes[HELLO - 1];
}

static void expect(struct port *port, uint8_t number)
{
    int fd = accept_soon(port);

    assert_int_equal(number_of_hello(fd), number);
    socket_close(&fd);
}

static void expect_none(struct port *port)
{
    int fd = 0;

    for (int i = 0; i < 20; i++) {
        assert_success(port_accept(port, &table, &fd));
        assert_int_equal(fd, -1);
        nap_ms(1);
    }
}

/* Whether the other side has closed it. */
static void expect_end(struct port *stepped, int fd)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    uint8_t byte;
    int accepted;

    for (;;) {
        ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);

        if (got == 0 || (got < 0 && errno == ECONNRESET))
            break;
        assert_false(deadline_passed(deadline));
        assert_success(port_accept(stepped, &table, &accepted));
        assert_int_equal(accepted, -1);
        nap_ms(1);
    }
    close(fd);
}

TEST(test_listeners_share_one_port)
{
    struct port *first = listen_at("127.0.0.1", 0, keyed(1));
    struct port *second = listen_at("127.0.0.1", 0, keyed(2));
    struct port *bootstrap = listen_at("127.0.0.1", 0, keyless());
    uint16_t number = number_of_port(first);
    const char *greeting = "bootstrap";
    int fds[3];

    assert_in_range(number, first_port, first_port + PORTS - 1);
    assert_int_equal(number_of_port(second), number);
    assert_int_equal(number_of_port(bootstrap), number);
    fds[0] = connect_with(number, 2, 20);
    fds[1] = connect_with(number, 1, 10);
    fds[2] = connect_to("127.0.0.1", number);
    assert_int_equal(send(fds[2], greeting, strlen(greeting), 0), strlen(greeting));
    expect(first, 10);
    expect(second, 20);
    close(accept_soon(bootstrap));
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    port_close(second);
    port_close(first);
    port_close(bootstrap);
}

TEST(test_the_port_is_free_again)
{
    struct port *port = listen_at("127.0.0.1", 0, keyed(1));
    uint16_t number = number_of_port(port);
    int fd = connect_with(number, 1, 1);
    int accepted = accept_soon(port);

    port_close(port);
    port = listen_at("127.0.0.1", number, keyed(1));
    assert_int_equal(number_of_port(port), number);
    port_close(port);
    close(fd);
    socket_close(&accepted);
}

/* With 1 byte at a time, and with a pause at each place. */
TEST(test_first_bytes_in_parts)
{
    struct port *port = listen_at("127.0.0.1", 0, keyed(1));
    uint8_t bytes[HELLO];

    write_hello(bytes, 1, 77);
    for (int cut = 1; cut < HELLO; cut += 3) {
        int fd = connect_to("127.0.0.1", number_of_port(port));
        int accepted = -1;

        assert_int_equal(send(fd, bytes, (size_t)cut, 0), cut);
        for (int i = 0; i < 3 && accepted < 0; i++) {
            assert_success(port_accept(port, &table, &accepted));
            nap_us(300);
        }
        assert_true(accepted < 0 || cut >= KEY_AT + PORT_KEY_BYTES);
        assert_int_equal(send(fd, bytes + cut, (size_t)(HELLO - cut), 0), HELLO - cut);
        accepted = accepted >= 0 ? accepted : accept_soon(port);
        assert_int_equal(number_of_hello(accepted), 77);
        socket_close(&accepted);
        close(fd);
    }
    port_close(port);
}

TEST(test_strangers)
{
    struct port *port = listen_at("127.0.0.1", 0, keyed(1));
    uint16_t number = number_of_port(port);
    uint8_t bytes[HELLO];
    int fd;

    fd = connect_to("127.0.0.1", number);
    assert_int_equal(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, 0), 18);
    expect_end(port, fd);
    /* Nothing of a hello but its beginning, and then an end. */
    fd = connect_to("127.0.0.1", number);
    assert_int_equal(send(fd, "TCPX", 4, 0), 4);
    expect_none(port);
    shutdown(fd, SHUT_WR);
    expect_end(port, fd);
    /* An unknown key is the listener's to judge: it can say what is wrong. */
    fd = connect_with(number, 9, 90);
    expect(port, 90);
    close(fd);
    /* A connection to another address of this host. */
    write_hello(bytes, 1, 1);
    fd = connect_to("127.0.0.2", number);
    assert_int_equal(send(fd, bytes, sizeof bytes, 0), sizeof bytes);
    expect_end(port, fd);
    port_close(port);
}

/* More than a listener's row and the port's places take; the other listener is served meanwhile. */
TEST(test_a_late_listener_loses_nothing)
{
    enum { CONNECTIONS = 150 };
    struct port *late = listen_at("127.0.0.1", 0, keyed(1));
    struct port *prompt = listen_at("127.0.0.1", 0, keyed(2));
    uint16_t number = number_of_port(late);
    bool seen[CONNECTIONS] = {0};
    int fds[CONNECTIONS];
    int other;

    for (int i = 0; i < CONNECTIONS; i++) {
        fds[i] = connect_with(number, 1, (uint8_t)i);
        if (i % 10 == 0)
            expect_none(prompt);
    }
    other = connect_with(number, 2, 200);
    expect(prompt, 200);
    for (int i = 0; i < CONNECTIONS; i++) {
        int fd = accept_soon(late);
        uint8_t which = number_of_hello(fd);

        assert_true(which < CONNECTIONS && !seen[which]);
        seen[which] = true;
        socket_close(&fd);
    }
    for (int i = 0; i < CONNECTIONS; i++)
        close(fds[i]);
    close(other);
    port_close(prompt);
    port_close(late);
}

/* Silent ones never keep out a connection with a key: they are dropped, the oldest first. */
TEST(test_many_that_say_little)
{
    enum { SILENT = 300 };
    struct port *port = listen_at("127.0.0.1", 0, keyed(1));
    int fds[SILENT];
    int fd;

    for (int i = 0; i < SILENT; i++) {
        fds[i] = connect_to("127.0.0.1", number_of_port(port));
        assert_int_equal(send(fds[i], "TC", 2, 0), 2);
    }
    fd = connect_with(number_of_port(port), 1, 5);
    expect(port, 5);
    close(fd);
    for (int i = 0; i < SILENT; i++)
        close(fds[i]);
    port_close(port);
}

/* A sleeper is woken when another listener's call finds its connection. */
TEST(test_wake_up)
{
    struct port *sleeper = listen_at("127.0.0.1", 0, keyed(1));
    struct port *other = listen_at("127.0.0.1", 0, keyed(2));
    struct pollfd polled[PORT_POLLED];
    unsigned count = port_poll(sleeper, polled);
    int fd;

    assert_int_equal(poll(polled, count, 0), 0);
    fd = connect_with(number_of_port(sleeper), 1, 1);
    assert_true(poll(polled, count, (int)LIMIT_MS) > 0);
    expect_none(other);
    assert_true(poll(polled, count, (int)LIMIT_MS) > 0);
    expect(sleeper, 1);
    assert_int_equal(poll(polled, count, 0), 0);
    close(fd);
    /* Bytes that do not tell yet do not keep it awake. */
    fd = connect_to("127.0.0.1", number_of_port(sleeper));
    assert_int_equal(send(fd, "TC", 2, 0), 2);
    assert_true(poll(polled, count, (int)LIMIT_MS) > 0);
    expect_none(sleeper);
    assert_int_equal(poll(polled, count, 0), 0);
    close(fd);
    port_close(other);
    port_close(sleeper);
}

/* Those that connections cannot tell apart have other ports of the range, until there is none. */
TEST(test_range)
{
    struct sockaddr_storage any = address_of("0.0.0.0", 0);
    struct port_sign sign = keyless();
    struct port *ports[PORTS];
    struct port *more;

    for (int i = 0; i < PORTS; i++) {
        ports[i] = listen_at("0.0.0.0", 0, sign);
        assert_int_equal(number_of_port(ports[i]), first_port + i);
    }
    assert_int_equal(port_open(&any, &sign, &table, &more), TCPX_SYSTEM_ERROR);
    assert_non_null(strstr(error_text(), range));
    for (int i = 0; i < PORTS; i++)
        port_close(ports[i]);
    /* One that was asked for by number, and that the range does not have. */
    more = listen_at("127.0.0.1", (uint16_t)(first_port + PORTS), sign);
    ports[0] = listen_at("127.0.0.1", 0, keyed(1));
    assert_int_equal(number_of_port(more), first_port + PORTS);
    assert_int_equal(number_of_port(ports[0]), first_port);
    port_close(ports[0]);
    port_close(more);
}

static int begin_suite(void)
{
    first_port = (uint16_t)(20000 + (getpid() % 2000) * (PORTS + 1));
    snprintf(range, sizeof range, "%u-%u", first_port, first_port + PORTS - 1);
    setenv("UCCL_TCPX_PORT", range, 1);
    half_open_start(&table, 5000);
    return 0;
}

SUITE(.name = "the port of a process", .begin = begin_suite);
