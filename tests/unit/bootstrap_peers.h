/*
 * What the tests of the bootstrap and of control connections share: raw sockets on loopback, a
 * connecting side in a thread of its own, strangers, and messages.
 */
#ifndef TCPX_TESTS_BOOTSTRAP_PEERS_H
#define TCPX_TESTS_BOOTSTRAP_PEERS_H

#include "tests/unit/checks.h"
#include "tests/unit/net_pair.h"
#include "tests/unit/tree.h"

#include "session/bootstrap.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>

#define PEER        "the other one"
#define PATIENCE_MS limit_ms(20000) /* for what must happen */
#define IN_TIME     deadline_after_ms(PATIENCE_MS)

enum { MOMENT_MS = 100 }; /* for what must not happen: long enough to see it */

#define assert_fails(call, result, word)                                                           \
    do {                                                                                           \
        assert_int_equal(call, result);                                                            \
        expect_text(word);                                                                         \
    } while (0)

/* --- raw connections ------------------------------------------------------------------------ */

static inline struct sockaddr_in loopback_address(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static inline int socket_raw(void)
{
    int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), 0);
    return fd;
}

/*
 * A port where no process listens just now, below those that the kernel gives to clients, so that
 * none of them takes it meanwhile.
 */
static inline uint16_t free_port(void)
{
    enum { FIRST = 24000, COUNT = 8000, TRIES = 100 };
    static unsigned next;
    bool is_free = false;
    uint16_t port = 0;

    for (int i = 0; i < TRIES && !is_free; i++) {
        struct sockaddr_in6 address = {.sin6_family = AF_INET6};
        int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

        port = (uint16_t)(FIRST + ((unsigned)getpid() * 31 + next++ * 7) % COUNT);
        address.sin6_port = htons(port);
        is_free = fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
        close(fd);
    }
    assert_true(is_free);
    return port;
}

/* On this port; 0: on any. */
static inline int listen_raw_at(uint16_t wanted, uint16_t *port)
{
    struct sockaddr_in address = loopback_address(wanted);
    socklen_t length = sizeof address;
    int fd = socket_raw();
    int on = 1;

    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(fd, 128), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

static inline int listen_raw(uint16_t *port)
{
    return listen_raw_at(0, port);
}

static inline int connect_raw(uint16_t port)
{
    struct sockaddr_in address = loopback_address(port);
    int fd = socket_raw();

    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

/* Accepts, and reads exactly so many bytes. */
static inline int accept_raw(int listening, void *bytes, size_t count)
{
    int fd = accept(listening, NULL, NULL);

    assert_true(fd >= 0);
    assert_int_equal(recv(fd, bytes, count, MSG_WAITALL), (ssize_t)count);
    return fd;
}

/* Blocking, all of it. */
static inline void say(int fd, const void *bytes, size_t count)
{
    assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), (ssize_t)count);
}

static inline bool wait_readable(int fd, int ms)
{
    struct pollfd readable = {.fd = fd, .events = POLLIN};

    return poll(&readable, 1, ms) == 1;
}

/* Returns once the other side's kernel has acknowledged the FIN; without seconds it is a reset. */
static inline void close_lingering(int fd, int seconds)
{
    struct linger linger = {.l_onoff = 1, .l_linger = seconds};

    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    assert_int_equal(close(fd), 0);
}

/* --- messages ------------------------------------------------------------------------------- */

static inline size_t frame(uint8_t type, const void *payload, uint32_t length, uint8_t *bytes)
{
    control_header_write(type, length, bytes);
    if (length > 0)
        memcpy(bytes + CONTROL_HEADER_BYTES, payload, length);
    return CONTROL_HEADER_BYTES + length;
}

/* The latest message that was received. */
static struct {
    uint8_t type;
    size_t bytes;
    uint8_t payload[CONTROL_LARGEST];
} message;

static inline int await_message(struct control *control, size_t room)
{
    return control_await(control, "it", &message.type, message.payload, room, &message.bytes,
                         IN_TIME);
}

static inline void assert_message(struct control *control, uint8_t type, const void *payload,
                                  size_t bytes)
{
    assert_success(await_message(control, bytes));
    assert_int_equal(message.type, type);
    assert_int_equal(message.bytes, bytes);
    if (bytes > 0)
        assert_memory_equal(message.payload, payload, bytes);
}

static inline const uint8_t *pattern(size_t count, unsigned seed)
{
    static uint8_t bytes[CONTROL_LARGEST];

    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)((i * 31 + i / 256 + seed) & 0xff);
    return bytes;
}

static inline void exchange(struct control *from, struct control *to, uint8_t type, size_t bytes)
{
    const uint8_t *sent = pattern(bytes, type);

    memset(message.payload, 0, bytes);
    assert_success(control_send(from, type, bytes > 0 ? sent : NULL, bytes));
    assert_message(to, type, sent, bytes);
    assert_success(control_flush(from));
}

/* --- the connecting side, in a thread of its own --------------------------------------------- */

struct client {
    pthread_t thread;
    const char *host;
    const char *secret;
    uint64_t deadline;
    uint16_t port;
    int result;
    char text[1024];
    struct control *control;
};

static inline void *run_client(void *argument)
{
    struct client *client = argument;

    client->result = bootstrap_connect(client->host, client->port, client->secret, client->deadline,
                                       &client->control);
    if (client->result != TCPX_SUCCESS)
        snprintf(client->text, sizeof client->text, "%s", error_text());
    return NULL;
}

static inline void start_client(struct client *client, const char *host, uint16_t port,
                                const char *secret, unsigned limit)
{
    *client = (struct client){
        .host = host, .port = port, .secret = secret, .deadline = deadline_after_ms(limit)};
    assert_int_equal(pthread_create(&client->thread, NULL, run_client, client), 0);
}

static inline struct control *join_client(struct client *client)
{
    assert_int_equal(pthread_join(client->thread, NULL), 0);
    if (client->result != TCPX_SUCCESS)
        fail_msg("connect: %s: %s", tcpx_result_name(client->result), client->text);
    return client->control;
}

static inline void join_failed(struct client *client, int result, const char *word)
{
    assert_int_equal(pthread_join(client->thread, NULL), 0);
    if (client->result != result || strstr(client->text, word) == NULL)
        fail_msg("%s: \"%s\" does not say \"%s\"", tcpx_result_name(client->result), client->text,
                 word);
}

/* --- the listening side ----------------------------------------------------------------------- */

static inline struct bootstrap_listener *listen_at(const char *address, uint16_t port,
                                                   const char *secret)
{
    struct bootstrap_listener *listener;

    assert_success(bootstrap_listen(address, port, secret, &listener));
    return listener;
}

static inline struct control *accept_peer(struct bootstrap_listener *listener)
{
    struct control *control;

    assert_success(bootstrap_accept(listener, IN_TIME, &control));
    return control;
}

/* A peer that has waited for this listener comes in. */
static inline void accept_waiting(struct client *client, uint16_t port, const char *secret)
{
    struct bootstrap_listener *listener = listen_at(NULL, port, secret);
    struct control *accepted = accept_peer(listener);

    assert_int_equal(bootstrap_port(listener), port);
    control_close(join_client(client), 0);
    control_close(accepted, 0);
    bootstrap_listener_close(listener);
}

static inline void meet(struct bootstrap_listener *listener, const char *host, const char *secret)
{
    struct control *accepted;
    struct control *connected;
    struct client client;

    start_client(&client, host, bootstrap_port(listener), secret, PATIENCE_MS);
    accepted = accept_peer(listener);
    connected = join_client(&client);
    exchange(connected, accepted, 1, 300);
    exchange(accepted, connected, 2, 300);
    assert_null(strstr(control_peer(accepted), "ffff"));
    control_close(connected, 0);
    control_close(accepted, 0);
}

/* Looks until somebody was dropped for this reason; nobody is let in. */
static inline void accept_nobody(struct bootstrap_listener *listener, const char *reason)
{
    uint64_t deadline = IN_TIME;
    struct control *control;

    do {
        assert_int_equal(bootstrap_accept(listener, deadline_after_ms(10), &control),
                         TCPX_IN_PROGRESS);
        if (deadline_passed(deadline))
            fail_msg("nobody was dropped for \"%s\"", reason);
    } while (strstr(error_text(), reason) == NULL);
    expect_text("; the latest connection was dropped: 127.0.0.1:");
}

static inline void greeting_bytes(enum bootstrap_role role, bool secret,
                                  uint8_t bytes[BOOTSTRAP_GREETING_BYTES])
{
    struct bootstrap_greeting greeting = {.role = (uint8_t)role, .secret = secret, .nonce = {1}};

    bootstrap_greeting_write(&greeting, bytes);
}

/* --- a server by hand ------------------------------------------------------------------------- */

/*
 * A client of a server that answers its greeting with these bytes, `first` of them before a pause,
 * and closes; NULL: with the greeting itself.
 */
static inline void answer_client(struct client *client, const char *secret, const uint8_t *answer,
                                 size_t length, size_t first)
{
    uint8_t greeting[BOOTSTRAP_GREETING_BYTES];
    uint16_t port;
    int listening = listen_raw(&port);
    int fd;

    start_client(client, "127.0.0.1", port, secret, PATIENCE_MS);
    fd = accept_raw(listening, greeting, sizeof greeting);
    answer = answer != NULL ? answer : greeting;
    if (first > 0) {
        say(fd, answer, first);
        nap_ms(2);
    }
    say(fd, answer + first, length - first);
    close(fd);
    close(listening);
}

static inline void assert_answer_fails(const void *answer, size_t length, const char *secret,
                                       int result, const char *word)
{
    struct client client;
    char name[40];

    answer_client(&client, secret, answer, length, 0);
    join_failed(&client, result, word);
    snprintf(name, sizeof name, "127.0.0.1:%u ", client.port);
    expect_part(client.text, name);
}

/* --- secrets -----------------------------------------------------------------------------------
 */

static char secret_path[PATH_MAX];
static char same_path[PATH_MAX];
static char other_path[PATH_MAX];

static inline void write_file(const char *path, const void *bytes, size_t count, mode_t mode)
{
    tree_put_bytes(path, bytes, count);
    assert_int_equal(chmod(path, mode), 0);
}

static inline int make_secrets(void)
{
    assert_int_equal(tree_make(), 0);
    snprintf(secret_path, sizeof secret_path, "%s", tree_path("/secret"));
    snprintf(same_path, sizeof same_path, "%s", tree_path("/same"));
    snprintf(other_path, sizeof other_path, "%s", tree_path("/other"));
    write_file(secret_path, "swordfish\n", 10, 0600);
    write_file(same_path, "swordfish\n", 10, 0400);
    write_file(other_path, "swordfish", 9, 0600);
    return 0;
}

/* A test without libsodium is a skip. */
static inline void need_sodium(void)
{
    struct secret *secret;

    if (secret_load(secret_path, secret_libraries, &secret) != TCPX_SUCCESS)
        skip_because("%s", error_text());
    secret_free(secret);
}

/* --- descriptors ------------------------------------------------------------------------------ */

static int descriptors;

static inline int remember_descriptors(void **state)
{
    (void)state;
    descriptors = open_descriptors();
    return 0;
}

static inline int compare_descriptors(void **state)
{
    (void)state;
    return open_descriptors() == descriptors ? 0 : -1;
}

/* A test that must not keep a descriptor. */
#define BOOTSTRAP_TEST(function) TEST_WITH(function, remember_descriptors, compare_descriptors)

#endif
