/*
 * Shows how two processes find each other and talk: over IPv4 and IPv6, whoever starts first, while
 * strangers are silent, talk garbage or fill every place; that another protocol, version or secret
 * is an error in words on both sides; and that the messages afterwards arrive whole and in order,
 * however slowly they come, or say who went away.
 */
#include "tests/unit/net_pair.h"
#include "tests/unit/nursery.h"

#include "net/socket/socket.h"
#include "session/bootstrap.h"
#include "session/control.h"
#include "session/greeting.h"
#include "session/secret.h"
#include "tests/limit.h"
#include "tests/skip.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>

#define PEER "the other one"

#define PATIENCE_MS limit_ms(20000) /* for what must happen */

enum { MOMENT_MS = 100 }; /* for what must not happen: long enough to see it */

static void nap_ms(unsigned ms)
{
    usleep(ms * 1000);
}

#define assert_says(word)                                                                          \
    do {                                                                                           \
        if (strstr(error_text(), word) == NULL)                                                    \
            fail_msg("\"%s\" does not say \"%s\"", error_text(), word);                            \
    } while (0)

#define assert_fails(call, result, word)                                                           \
    do {                                                                                           \
        assert_int_equal(call, result);                                                            \
        assert_says(word);                                                                         \
    } while (0)

/* --- raw connections ------------------------------------------------------------------------ */

static int listen_raw(uint16_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int on = 1;

    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(fd, 128), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

static int connect_raw(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int on = 1;

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), 0);
    return fd;
}

/* A control at one end, a plain blocking socket at the other. */
static struct control *control_and_raw(int *raw)
{
    struct control *control;
    uint16_t port;
    int listening = listen_raw(&port);
    int fd;

    *raw = connect_raw(port);
    fd = accept(listening, NULL, NULL);
    assert_true(fd >= 0);
    close(listening);
    assert_success(control_create(fd, PEER, &control));
    assert_int_equal(control_fd(control), fd);
    assert_string_equal(control_peer(control), PEER);
    return control;
}

static void control_pair(struct control *pair[2])
{
    int raw;

    pair[0] = control_and_raw(&raw);
    assert_success(control_create(raw, PEER, &pair[1]));
}

/* Blocking, all of it. */
static void say(int fd, const void *bytes, size_t count)
{
    assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), (ssize_t)count);
}

static bool wait_readable(int fd, int ms)
{
    struct pollfd readable = {.fd = fd, .events = POLLIN};

    return poll(&readable, 1, ms) == 1;
}

static size_t frame(uint8_t type, const void *payload, uint32_t length, uint8_t *bytes)
{
    control_header_write(type, length, bytes);
    if (length > 0)
        memcpy(bytes + CONTROL_HEADER_BYTES, payload, length);
    return CONTROL_HEADER_BYTES + length;
}

static void fill_pattern(uint8_t *bytes, size_t count, unsigned seed)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)((i * 31 + i / 256 + seed) & 0xff);
}

/* --- messages ------------------------------------------------------------------------------- */

static void exchange(struct control *from, struct control *to, uint8_t type, size_t bytes)
{
    static uint8_t sent[CONTROL_LARGEST];
    static uint8_t got[CONTROL_LARGEST];
    size_t length;
    uint8_t seen;

    fill_pattern(sent, bytes, type);
    memset(got, 0, bytes);
    assert_success(control_send(from, type, bytes > 0 ? sent : NULL, bytes));
    assert_success(control_await(to, "a message", &seen, bytes > 0 ? got : NULL, bytes, &length,
                                 deadline_after_ms(PATIENCE_MS)));
    assert_int_equal(seen, type);
    assert_int_equal(length, bytes);
    assert_memory_equal(sent, got, bytes);
    assert_success(control_flush(from));
}

static void test_messages_of_every_size(void **state)
{
    static const size_t sizes[] = {0, 1, 7, 8, 9, 1000, 4096, 32768, 65535, 65536};
    struct control *pair[2];

    (void)state;
    control_pair(pair);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        exchange(pair[0], pair[1], (uint8_t)i, sizes[i]);
        exchange(pair[1], pair[0], (uint8_t)(CONTROL_REFUSED - 1 - i), sizes[i]);
    }
    assert_false(control_has_unsent(pair[0]));
    assert_fails(control_send(pair[0], 1, "", CONTROL_LARGEST + 1), TCPX_INVALID_ARGUMENT,
                 "65537 bytes");
    assert_fails(control_send(pair[0], CONTROL_REFUSED, "", 0), TCPX_INVALID_ARGUMENT, "255");
    exchange(pair[0], pair[1], 1, 10);
    control_close(pair[0], 0);
    control_close(pair[1], 0);
    control_close(NULL, 0);
}

static int receive(struct control *control, uint8_t *payload, size_t room, size_t *bytes,
                   bool *there)
{
    uint8_t type;

    return control_receive(control, &type, payload, room, bytes, there);
}

static void test_slow_writer(void **state)
{
    uint8_t bytes[64];
    uint8_t got[20];
    size_t length = frame(9, "twenty bytes of text", 20, bytes);
    struct control *control;
    int raw;

    (void)state;
    control = control_and_raw(&raw);
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < length; i++) {
            size_t count = 77;
            bool there = true;

            assert_success(receive(control, got, sizeof got, &count, &there));
            assert_false(there);
            say(raw, bytes + i, 1);
            assert_true(wait_readable(control_fd(control), PATIENCE_MS));
            assert_success(receive(control, got, sizeof got, &count, &there));
            assert_int_equal(there, i == length - 1);
            assert_int_equal(count, there ? 20 : 77);
        }
    assert_memory_equal(got, "twenty bytes of text", 20);
    close(raw);
    control_close(control, 0);
}

/* Messages that came together are read one by one, and poll() shows each. */
static void test_messages_at_once(void **state)
{
    uint8_t bytes[1000];
    size_t length = 0;
    struct control *control;
    int raw;

    (void)state;
    control = control_and_raw(&raw);
    for (uint8_t i = 0; i < 20; i++)
        length += frame(i, &i, i % 2, bytes + length);
    say(raw, bytes, length);
    for (uint8_t i = 0; i < 20; i++) {
        uint8_t type;
        uint8_t byte;
        size_t count;
        bool there;

        assert_true(wait_readable(control_fd(control), PATIENCE_MS));
        assert_success(control_receive(control, &type, &byte, 1, &count, &there));
        assert_true(there);
        assert_int_equal(type, i);
        assert_int_equal(count, i % 2);
        assert_true(count == 0 || byte == i);
    }
    assert_false(wait_readable(control_fd(control), 0));
    close(raw);
    control_close(control, 0);
}

static void test_an_end_at_every_byte(void **state)
{
    uint8_t bytes[64];
    size_t length = frame(9, "four", 4, bytes);

    (void)state;
    for (size_t i = 0; i < length; i++) {
        struct control *control;
        uint8_t got[4];
        uint8_t type;
        size_t count;
        char word[100];
        int raw;

        control = control_and_raw(&raw);
        if (i > 0)
            say(raw, bytes, i);
        close(raw);
        snprintf(word, sizeof word, i == 0 ? PEER " closed the connection" : "after %zu of", i);
        for (int again = 0; again < 2; again++)
            assert_fails(control_await(control, "anything", &type, got, sizeof got, &count,
                                       deadline_after_ms(PATIENCE_MS)),
                         TCPX_REMOTE_ERROR, word);
        assert_says(PEER);
        control_close(control, 0);
    }
}

static void assert_message_refused(const uint8_t *bytes, size_t length, size_t room,
                                   const char *word)
{
    static uint8_t got[CONTROL_LARGEST];
    struct control *control;
    uint8_t type;
    size_t count;
    int raw;

    control = control_and_raw(&raw);
    say(raw, bytes, length);
    for (int again = 0; again < 2; again++)
        assert_fails(
            control_await(control, "it", &type, got, room, &count, deadline_after_ms(PATIENCE_MS)),
            TCPX_REMOTE_ERROR, word);
    assert_says(PEER);
    close(raw);
    control_close(control, 0);
}

static void test_messages_that_cannot_be(void **state)
{
    uint8_t bytes[64];

    (void)state;
    for (size_t i = 1; i <= 3; i++) {
        size_t length = frame(9, "four", 4, bytes);

        bytes[i] = 0x80;
        assert_message_refused(bytes, length, 4, "is 0x80, expected 0");
    }
    assert_message_refused(bytes, frame(9, "four", 4, bytes), 3,
                           "type 9 with 4 bytes, expected are at most 3");
    control_header_write(9, CONTROL_LARGEST + 1, bytes);
    assert_message_refused(bytes, CONTROL_HEADER_BYTES, CONTROL_LARGEST, "65537 bytes, possible");
    control_header_write(9, UINT32_MAX, bytes);
    assert_message_refused(bytes, CONTROL_HEADER_BYTES, CONTROL_LARGEST, "4294967295 bytes");
    control_header_write(CONTROL_REFUSED, CONTROL_LARGEST + 1, bytes);
    assert_message_refused(bytes, CONTROL_HEADER_BYTES, CONTROL_LARGEST, "65537 bytes, possible");
}

static void test_refusals(void **state)
{
    struct control *pair[2];
    uint8_t byte;
    char text[1000];

    (void)state;
    memset(text, 'x', sizeof text);
    memcpy(text, "no\n\033[31m\xc3 way ", 14);
    text[sizeof text - 1] = '\0';
    control_pair(pair);
    control_refuse(pair[0], text);
    control_close(pair[0], 0);
    for (int again = 0; again < 2; again++) {
        size_t count;
        uint8_t type;

        assert_fails(
            control_await(pair[1], "it", &type, &byte, 1, &count, deadline_after_ms(PATIENCE_MS)),
            TCPX_REMOTE_ERROR, PEER " refused: no??[31m? way xxx");
        assert_int_equal(strlen(error_text()), strlen(PEER " refused: ") + CONTROL_REFUSAL_TEXT);
    }
    control_close(pair[1], 0);
}

/* A refusal of somebody else's making. */
static void test_a_long_refusal(void **state)
{
    static char text[CONTROL_LARGEST];
    static uint8_t bytes[CONTROL_HEADER_BYTES + CONTROL_LARGEST];
    struct control *control;
    uint8_t type;
    size_t count;
    int raw;

    (void)state;
    memset(text, '\t', sizeof text);
    control = control_and_raw(&raw);
    say(raw, bytes, frame(CONTROL_REFUSED, text, sizeof text, bytes));
    assert_fails(
        control_await(control, "it", &type, NULL, 0, &count, deadline_after_ms(PATIENCE_MS)),
        TCPX_REMOTE_ERROR, PEER " refused: ????");
    assert_int_equal(strlen(error_text()), strlen(PEER " refused: ") + CONTROL_REFUSAL_TEXT);
    close(raw);
    control_close(control, 0);
}

/* Whoever only sends hears why, too, although its bytes were not read. */
static void test_a_refusal_reaches_a_sender(void **state)
{
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);
    struct control *pair[2];
    int result;

    (void)state;
    control_pair(pair);
    assert_success(control_send(pair[1], 1, "unread", 6));
    assert_true(wait_readable(control_fd(pair[0]), PATIENCE_MS));
    control_refuse(pair[0], "channels: 4 here, 2 there");
    control_close(pair[0], 1000);
    do {
        result = control_send(pair[1], 1, "more", 4);
        assert_false(deadline_passed(deadline));
    } while (result == TCPX_SUCCESS);
    assert_fails(result, TCPX_REMOTE_ERROR, PEER " refused: channels: 4 here, 2 there");
    control_close(pair[1], 0);
}

static void test_queue_overflow(void **state)
{
    static uint8_t payload[CONTROL_LARGEST];
    static uint8_t got[CONTROL_LARGEST];
    struct control *pair[2];
    unsigned sent = 0;
    int result = TCPX_SUCCESS;

    (void)state;
    control_pair(pair);
    while (result == TCPX_SUCCESS) {
        fill_pattern(payload, 40000, sent);
        result = control_send(pair[0], (uint8_t)(sent % 200), payload, 40000);
        sent += result == TCPX_SUCCESS;
        assert_true(sent < 10000);
    }
    assert_fails(result, TCPX_REMOTE_ERROR, PEER " does not read: 41");
    assert_true(control_has_unsent(pair[0]));
    assert_true(sent * 40000 > CONTROL_MOST_UNSENT - 80000);
    /* A small one finds room still; nothing was queued by halves. */
    assert_success(control_send(pair[0], 201, "last", 4));
    for (unsigned i = 0; i <= sent; i++) {
        size_t count;
        uint8_t type;

        assert_success(control_flush(pair[0]));
        assert_success(control_await(pair[1], "it", &type, got, sizeof got, &count,
                                     deadline_after_ms(PATIENCE_MS)));
        fill_pattern(payload, 40000, i);
        assert_int_equal(type, i < sent ? i % 200 : 201);
        assert_int_equal(count, i < sent ? 40000 : 4);
        assert_memory_equal(got, i < sent ? payload : (const uint8_t *)"last", count);
    }
    assert_false(control_has_unsent(pair[0]));
    control_close(pair[0], 0);
    control_close(pair[1], 0);
}

/* Reads `count` bytes of messages, slowly at first, then answers. */
struct reader {
    pthread_t thread;
    int fd;
    size_t count; /* as it turned out */
    size_t expected;
    size_t chatter; /* bytes that it sends first, whether anybody reads them or not */
    bool answers;
};

static void *read_slowly(void *argument)
{
    struct reader *reader = argument;
    uint8_t bytes[65536] = {0};
    uint8_t answer[CONTROL_HEADER_BYTES];

    for (size_t sent = 0; sent < reader->chatter; sent += sizeof bytes)
        if (send(reader->fd, bytes, sizeof bytes, MSG_NOSIGNAL) < 0)
            return NULL;
    while (reader->count < reader->expected) {
        ssize_t got = recv(reader->fd, bytes, sizeof bytes, 0);

        if (got <= 0)
            break;
        reader->count += (size_t)got;
        if (reader->count < 1000000)
            nap_ms(1);
    }
    if (reader->answers)
        (void)!send(reader->fd, answer, frame(77, NULL, 0, answer), MSG_NOSIGNAL);
    return NULL;
}

/* More than the kernel takes, so that some of it waits with us; how many bytes in all. */
static size_t queue_some(struct control *control)
{
    static uint8_t payload[CONTROL_LARGEST];
    size_t sent = 0;

    for (int waiting = 0; waiting < 30; waiting += control_has_unsent(control)) {
        assert_success(control_send(control, 1, payload, sizeof payload));
        sent += CONTROL_HEADER_BYTES + sizeof payload;
    }
    return sent;
}

/* The answer to what is queued comes only if it is sent while we wait. */
static void test_await_sends_meanwhile(void **state)
{
    struct reader reader = {.answers = true};
    struct control *control = control_and_raw(&reader.fd);
    size_t count;
    uint8_t type;

    (void)state;
    reader.expected = queue_some(control);
    assert_true(control_has_unsent(control));
    assert_int_equal(pthread_create(&reader.thread, NULL, read_slowly, &reader), 0);
    assert_success(
        control_await(control, "it", &type, NULL, 0, &count, deadline_after_ms(PATIENCE_MS)));
    assert_int_equal(type, 77);
    assert_int_equal(pthread_join(reader.thread, NULL), 0);
    assert_int_equal(reader.count, reader.expected);
    close(reader.fd);
    control_close(control, 0);
}

/* What was queued arrives, although the peer is slow, and first sends a lot that we never read. */
static void test_close_delivers(void **state)
{
    struct reader reader = {.expected = SIZE_MAX, .chatter = 32 << 20};
    struct control *control = control_and_raw(&reader.fd);
    size_t sent;

    (void)state;
    sent = queue_some(control);
    assert_true(control_has_unsent(control));
    assert_int_equal(pthread_create(&reader.thread, NULL, read_slowly, &reader), 0);
    control_close(control, PATIENCE_MS);
    assert_int_equal(pthread_join(reader.thread, NULL), 0);
    assert_int_equal(reader.count, sent);
    close(reader.fd);
}

/* A peer that has shut down its sending side still gets everything. */
static void test_close_delivers_to_who_only_reads(void **state)
{
    struct reader reader = {.expected = SIZE_MAX};
    struct control *control = control_and_raw(&reader.fd);
    size_t sent;

    (void)state;
    assert_int_equal(shutdown(reader.fd, SHUT_WR), 0);
    assert_true(wait_readable(control_fd(control), PATIENCE_MS));
    sent = queue_some(control);
    assert_true(control_has_unsent(control));
    assert_int_equal(pthread_create(&reader.thread, NULL, read_slowly, &reader), 0);
    control_close(control, PATIENCE_MS);
    assert_int_equal(pthread_join(reader.thread, NULL), 0);
    assert_int_equal(reader.count, sent);
    close(reader.fd);
}

/* A peer that does not read costs the linger, not more; and nothing once all is at its host. */
static void test_close_does_not_wait(void **state)
{
    struct control *control;
    uint64_t start;
    int raw;

    (void)state;
    control = control_and_raw(&raw);
    assert_success(control_send(control, 1, "unread", 6));
    start = clock_now();
    control_close(control, PATIENCE_MS);
    assert_true(clock_now() - start < limit_ns((uint64_t)10000 * 1000000));
    close(raw);
    control = control_and_raw(&raw);
    queue_some(control);
    start = clock_now();
    control_close(control, MOMENT_MS);
    assert_true(clock_now() - start >= (uint64_t)MOMENT_MS * 1000000);
    assert_true(clock_now() - start < limit_ns((uint64_t)10000 * 1000000));
    close(raw);
}

static int bytes_on_their_way(const struct control *control)
{
    int bytes;

    assert_int_equal(ioctl(control_fd(control), SIOCOUTQ, &bytes), 0);
    return bytes;
}

/* Until the host of a peer that does not read takes no more, while nothing waits with us. */
static void fill_the_way(struct control *control)
{
    enum { LATEST_ACK_MS = 300 };
    static const uint8_t payload[16384];
    int sent = 0;

    while (bytes_on_their_way(control) == 0) {
        uint64_t deadline = deadline_after_ms(LATEST_ACK_MS);

        assert_true(sent++ < 10000);
        assert_success(control_send(control, 1, payload, sizeof payload));
        while (bytes_on_their_way(control) > 0 && !deadline_passed(deadline))
            nap_ms(1);
    }
    assert_false(control_has_unsent(control));
}

/* With a linger that would be noticed. */
static void assert_closes_at_once(struct control *control)
{
    uint64_t start = clock_now();

    control_close(control, PATIENCE_MS);
    assert_true(clock_now() - start < (uint64_t)PATIENCE_MS / 2 * 1000000);
}

static void close_with_reset(int fd)
{
    struct linger none = {.l_onoff = 1};

    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none), 0);
    close(fd);
}

/* What can no longer arrive is not waited for, whether the end was heard of before or not. */
static void test_close_after_the_end(void **state)
{
    struct control *control;
    size_t count;
    uint8_t type;
    int raw;

    (void)state;
    /* The end is in order, and only the last message meets a reset. */
    control = control_and_raw(&raw);
    close(raw);
    assert_true(wait_readable(control_fd(control), PATIENCE_MS));
    assert_success(control_send(control, 1, "too late", 8));
    assert_closes_at_once(control);
    for (int heard = 0; heard < 2; heard++) {
        control = control_and_raw(&raw);
        fill_the_way(control);
        close_with_reset(raw);
        if (heard)
            assert_fails(control_await(control, "it", &type, NULL, 0, &count,
                                       deadline_after_ms(PATIENCE_MS)),
                         TCPX_REMOTE_ERROR, PEER);
        assert_closes_at_once(control);
    }
}

static void test_await_deadline(void **state)
{
    struct control *control;
    uint8_t bytes[64];
    uint8_t got[8];
    uint64_t start = clock_now();
    size_t count;
    uint8_t type;
    int raw;

    (void)state;
    control = control_and_raw(&raw);
    assert_fails(control_await(control, "its handles", &type, got, sizeof got, &count,
                               deadline_after_ms(MOMENT_MS)),
                 TCPX_IN_PROGRESS, PEER " has not sent its handles in time");
    assert_true(clock_now() - start >= (uint64_t)MOMENT_MS * 1000000);
    /* What is there counts, however late it is asked for. */
    say(raw, bytes, frame(5, "late", 4, bytes));
    assert_true(wait_readable(control_fd(control), PATIENCE_MS));
    assert_success(control_await(control, "it", &type, got, sizeof got, &count, 0));
    assert_int_equal(type, 5);
    close(raw);
    control_close(control, 0);
}

static atomic_int signals;

static void count_signal(int number)
{
    (void)number;
    atomic_fetch_add(&signals, 1);
}

static void test_signals_do_not_disturb(void **state)
{
    struct sigaction action = {.sa_handler = count_signal};
    struct itimerval often = {{0, 1000}, {0, 1000}};
    struct itimerval never = {{0, 0}, {0, 0}};
    struct control *control;
    uint64_t start = clock_now();
    size_t count;
    uint8_t type;
    int raw;

    (void)state;
    control = control_and_raw(&raw);
    assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    assert_int_equal(
        control_await(control, "it", &type, NULL, 0, &count, deadline_after_ms(MOMENT_MS)),
        TCPX_IN_PROGRESS);
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    assert_true(clock_now() - start >= (uint64_t)MOMENT_MS * 1000000);
    assert_true(atomic_load(&signals) > 0);
    close(raw);
    control_close(control, 0);
}

static void test_a_descriptor_that_is_no_socket(void **state)
{
    struct control *control;
    int ends[2];

    (void)state;
    assert_int_equal(pipe(ends), 0);
    close(ends[1]);
    assert_fails(control_create(ends[0], PEER, &control), TCPX_SYSTEM_ERROR, "TCP_NODELAY");
    assert_int_equal(fcntl(ends[0], F_GETFD), -1);
}

/* --- both sides ----------------------------------------------------------------------------- */

/* The connecting side, in a thread of its own. */
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

static void *run_client(void *argument)
{
    struct client *client = argument;

    client->result = bootstrap_connect(client->host, client->port, client->secret, client->deadline,
                                       &client->control);
    if (client->result != TCPX_SUCCESS)
        snprintf(client->text, sizeof client->text, "%s", error_text());
    return NULL;
}

static void start_client(struct client *client, const char *host, uint16_t port, const char *secret,
                         unsigned limit_ms)
{
    *client = (struct client){
        .host = host, .port = port, .secret = secret, .deadline = deadline_after_ms(limit_ms)};
    assert_int_equal(pthread_create(&client->thread, NULL, run_client, client), 0);
}

static struct control *join_client(struct client *client)
{
    assert_int_equal(pthread_join(client->thread, NULL), 0);
    if (client->result != TCPX_SUCCESS)
        fail_msg("connect: %s: %s", tcpx_result_name(client->result), client->text);
    return client->control;
}

static void join_failed(struct client *client, int result, const char *word)
{
    assert_int_equal(pthread_join(client->thread, NULL), 0);
    if (client->result != result || strstr(client->text, word) == NULL)
        fail_msg("%s: \"%s\" does not say \"%s\"", tcpx_result_name(client->result), client->text,
                 word);
}

static void meet(struct bootstrap_listener *listener, const char *host, const char *secret)
{
    struct control *accepted;
    struct control *connected;
    struct client client;

    start_client(&client, host, bootstrap_port(listener), secret, PATIENCE_MS);
    assert_success(bootstrap_accept(listener, deadline_after_ms(PATIENCE_MS), &accepted));
    connected = join_client(&client);
    exchange(connected, accepted, 1, 300);
    exchange(accepted, connected, 2, 300);
    assert_null(strstr(control_peer(accepted), "ffff"));
    control_close(connected, 0);
    control_close(accepted, 0);
}

static void test_every_kind_of_address(void **state)
{
    static const char *const listening[] = {NULL, "", "127.0.0.1", "localhost"};
    struct bootstrap_listener *listener;

    (void)state;
    for (size_t i = 0; i < sizeof listening / sizeof *listening; i++) {
        assert_success(bootstrap_listen(listening[i], 0, NULL, &listener));
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

static void test_ipv6(void **state)
{
    static const char *const hosts[] = {"::1", "[::1]", "::1%1", "[::1%1]", "127.0.0.1"};
    struct bootstrap_listener *listener;

    (void)state;
    if (!has_ipv6()) {
        skip_because("this host has no ::1");
    }
    assert_success(bootstrap_listen("[::1]", 0, NULL, &listener));
    for (int i = 0; i < 4; i++)
        meet(listener, hosts[i], NULL);
    bootstrap_listener_close(listener);
    assert_success(bootstrap_listen(NULL, 0, NULL, &listener));
    for (int i = 0; i < 5; i++)
        meet(listener, hosts[i], NULL);
    bootstrap_listener_close(listener);
}

/* A port where nobody listens just now. */
/* Below those that the kernel gives to clients, so that none of them takes it meanwhile. */
static uint16_t free_port(void)
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

static void test_client_before_server(void **state)
{
    struct bootstrap_listener *listener;
    struct control *accepted;
    struct client client;
    uint16_t port = free_port();

    (void)state;
    start_client(&client, "localhost", port, NULL, PATIENCE_MS);
    nap_ms(MOMENT_MS);
    assert_success(bootstrap_listen(NULL, port, NULL, &listener));
    assert_int_equal(bootstrap_port(listener), port);
    assert_success(bootstrap_accept(listener, deadline_after_ms(PATIENCE_MS), &accepted));
    control_close(join_client(&client), 0);
    control_close(accepted, 0);
    bootstrap_listener_close(listener);
}

static void test_deadlines(void **state)
{
    struct bootstrap_listener *listener;
    struct control *control;
    uint64_t start = clock_now();
    uint16_t port = free_port();
    char word[100];

    (void)state;
    assert_fails(bootstrap_connect("127.0.0.1", port, NULL, deadline_after_ms(MOMENT_MS), &control),
                 TCPX_IN_PROGRESS, "Connection refused");
    snprintf(word, sizeof word, "no peer at 127.0.0.1 port %u in time", port);
    assert_says(word);
    assert_fails(bootstrap_connect("127.0.0.1", port, NULL, 0, &control), TCPX_IN_PROGRESS,
                 "Connection refused");
    assert_success(bootstrap_listen("127.0.0.1", 0, NULL, &listener));
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

static void test_arguments(void **state)
{
    struct bootstrap_listener *listener;
    struct control *control;
    char long_name[3000];

    (void)state;
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    assert_fails(bootstrap_connect(NULL, 1, NULL, 0, &control), TCPX_INVALID_ARGUMENT, "no host");
    assert_fails(bootstrap_connect("", 1, NULL, 0, &control), TCPX_INVALID_ARGUMENT, "no host");
    assert_fails(bootstrap_connect("[]", 1, NULL, 0, &control), TCPX_INVALID_ARGUMENT,
                 "0 characters");
    assert_fails(bootstrap_connect("::1", 0, NULL, 0, &control), TCPX_INVALID_ARGUMENT, "port 0");
    assert_fails(bootstrap_connect(long_name, 1, NULL, 0, &control), TCPX_INVALID_ARGUMENT,
                 "2999 characters");
    assert_fails(bootstrap_listen("192.0.2.1", 0, NULL, &listener), TCPX_SYSTEM_ERROR,
                 "cannot listen on 192.0.2.1:0");
    /* What no wait will mend is told at once: an address of a link, and not which. */
    if (has_ipv6())
        assert_fails(
            bootstrap_connect("fe80::1", 1, NULL, deadline_after_ms(PATIENCE_MS), &control),
            TCPX_SYSTEM_ERROR, "cannot connect to [fe80::1]:1: Invalid argument");
}

static void test_a_port_that_is_taken(void **state)
{
    struct bootstrap_listener *first;
    struct bootstrap_listener *second;

    (void)state;
    assert_success(bootstrap_listen(NULL, 0, NULL, &first));
    assert_fails(bootstrap_listen(NULL, bootstrap_port(first), NULL, &second), TCPX_SYSTEM_ERROR,
                 strerror(EADDRINUSE));
    assert_fails(bootstrap_listen("127.0.0.1", bootstrap_port(first), NULL, &second),
                 TCPX_SYSTEM_ERROR, "cannot listen on 127.0.0.1:");
    meet(first, "127.0.0.1", NULL);
    bootstrap_listener_close(first);
}

static void test_many_peers(void **state)
{
    enum { PEERS = 10 };
    struct bootstrap_listener *listener;
    struct client clients[PEERS];
    struct control *accepted[PEERS];

    (void)state;
    assert_success(bootstrap_listen(NULL, 0, NULL, &listener));
    for (int i = 0; i < PEERS; i++)
        start_client(&clients[i], "127.0.0.1", bootstrap_port(listener), NULL, PATIENCE_MS);
    for (int i = 0; i < PEERS; i++)
        assert_success(bootstrap_accept(listener, deadline_after_ms(PATIENCE_MS), &accepted[i]));
    bootstrap_listener_close(listener);
    for (int i = 0; i < PEERS; i++) {
        uint8_t byte = (uint8_t)i;

        assert_success(control_send(join_client(&clients[i]), 1, &byte, 1));
    }
    for (int i = 0; i < PEERS; i++) {
        size_t count;
        uint8_t type;
        uint8_t byte;

        assert_success(control_await(accepted[i], "it", &type, &byte, 1, &count,
                                     deadline_after_ms(PATIENCE_MS)));
        assert_true(byte < PEERS && clients[byte].control != NULL);
        control_close(clients[byte].control, 0);
        clients[byte].control = NULL;
        control_close(accepted[i], 0);
    }
}

/* Want of descriptors is borne for a second, then told; when it is over, peers come as before. */
static void test_no_descriptors_left(void **state)
{
    struct bootstrap_listener *listener;
    struct control *control;
    struct client client;
    struct rlimit usual;
    struct rlimit few;
    int first_free;

    (void)state;
    assert_success(bootstrap_listen("127.0.0.1", 0, NULL, &listener));
    start_client(&client, "127.0.0.1", bootstrap_port(listener), NULL, PATIENCE_MS);
    nap_ms(MOMENT_MS); /* it has its descriptor */
    first_free = dup(STDERR_FILENO);
    close(first_free);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    few = (struct rlimit){.rlim_cur = (rlim_t)first_free, .rlim_max = usual.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_fails(bootstrap_accept(listener, deadline_after_ms(PATIENCE_MS), &control),
                 TCPX_SYSTEM_ERROR, "could not be accepted for 1000 ms: ");
    assert_non_null(strstr(error_text(), strerror(EMFILE)));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
    assert_success(bootstrap_accept(listener, deadline_after_ms(PATIENCE_MS), &control));
    control_close(join_client(&client), 0);
    control_close(control, 0);
    bootstrap_listener_close(listener);
}

/* --- strangers ------------------------------------------------------------------------------ */

static void greeting_bytes(enum bootstrap_role role, bool secret,
                           uint8_t bytes[BOOTSTRAP_GREETING_BYTES])
{
    struct bootstrap_greeting greeting = {.role = (uint8_t)role, .secret = secret, .nonce = {1}};

    bootstrap_greeting_write(&greeting, bytes);
}

/* Looks until somebody was dropped for this reason; nobody is let in. */
static void accept_nobody(struct bootstrap_listener *listener, const char *reason)
{
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);
    struct control *control;

    do {
        assert_int_equal(bootstrap_accept(listener, deadline_after_ms(10), &control),
                         TCPX_IN_PROGRESS);
        if (deadline_passed(deadline))
            fail_msg("nobody was dropped for \"%s\"", reason);
    } while (strstr(error_text(), reason) == NULL);
    assert_says("; the latest connection was dropped: 127.0.0.1:");
}

/* Whether it has ended, in order or not. */
static bool has_ended(int fd)
{
    uint8_t bytes[1000];
    ssize_t got;

    do {
        got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    } while (got > 0);
    return got == 0 || errno != EAGAIN;
}

static void assert_ended(int fd)
{
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);

    while (!has_ended(fd)) {
        assert_false(deadline_passed(deadline));
        nap_ms(1);
    }
}

static void test_strangers(void **state)
{
    struct bootstrap_listener *listener;
    uint8_t greeting[BOOTSTRAP_GREETING_BYTES];
    uint8_t byte;
    int silent;
    int half;
    int garbage;
    int web;

    (void)state;
    greeting_bytes(BOOTSTRAP_CONNECTS, false, greeting);
    assert_success(bootstrap_listen("127.0.0.1", 0, NULL, &listener));
    silent = connect_raw(bootstrap_port(listener));
    half = connect_raw(bootstrap_port(listener));
    say(half, greeting, 20);
    garbage = connect_raw(bootstrap_port(listener));
    say(garbage, "\001\002\003\004\005\006\007", 7);
    web = connect_raw(bootstrap_port(listener));
    say(web, "GET / HTTP/1.1\r\nHost: a-host-with-a-long-name.example\r\n\r\n", 57);
    meet(listener, "127.0.0.1", NULL);
    assert_ended(garbage);
    assert_ended(web);
    /* These have their time. */
    assert_int_equal(recv(silent, &byte, 1, MSG_DONTWAIT), -1);
    assert_int_equal(recv(half, &byte, 1, MSG_DONTWAIT), -1);
    meet(listener, "127.0.0.1", NULL);
    /* And the half one can still become whole. */
    say(half, greeting + 20, sizeof greeting - 20);
    {
        struct control *control;

        assert_success(bootstrap_accept(listener, deadline_after_ms(PATIENCE_MS), &control));
        control_close(control, 0);
    }
    close(silent);
    close(half);
    close(garbage);
    close(web);
    bootstrap_listener_close(listener);
}

static void test_all_places_taken(void **state)
{
    enum { STRANGERS = 64 + 30 };
    struct bootstrap_listener *listener;
    struct control *control;
    int fds[STRANGERS];
    int dropped = 0;

    (void)state;
    assert_success(bootstrap_listen("127.0.0.1", 0, NULL, &listener));
    for (int i = 0; i < STRANGERS; i++) {
        fds[i] = connect_raw(bootstrap_port(listener));
        say(fds[i], "tcpx", 4);
        assert_int_equal(bootstrap_accept(listener, deadline_after_ms(1), &control),
                         TCPX_IN_PROGRESS);
    }
    meet(listener, "127.0.0.1", NULL);
    for (int i = 0; i < STRANGERS; i++) {
        dropped += has_ended(fds[i]);
        close(fds[i]);
    }
    assert_int_equal(dropped, STRANGERS - 63); /* the last one made place for the peer */
    meet(listener, "127.0.0.1", NULL);
    bootstrap_listener_close(listener);
}

/* Five seconds, however often it is asked for peers meanwhile. */
static void test_half_open_ones_have_their_time(void **state)
{
    struct bootstrap_listener *listener;
    uint8_t greeting[BOOTSTRAP_GREETING_BYTES];
    uint64_t start = clock_now();
    int fd;

    (void)state;
    greeting_bytes(BOOTSTRAP_CONNECTS, false, greeting);
    assert_success(bootstrap_listen("127.0.0.1", 0, NULL, &listener));
    fd = connect_raw(bootstrap_port(listener));
    say(fd, greeting, 47);
    accept_nobody(listener, "did not say in time who it is");
    assert_true(clock_now() - start >= (uint64_t)5000 * 1000000);
    assert_true(clock_now() - start < limit_ns((uint64_t)20000 * 1000000));
    assert_ended(fd);
    close(fd);
    bootstrap_listener_close(listener);
}

static void test_time_without_listening_is_not_theirs(void **state)
{
    struct bootstrap_listener *listener;
    uint8_t greeting[BOOTSTRAP_GREETING_BYTES];
    struct control *control;
    int fd;

    (void)state;
    greeting_bytes(BOOTSTRAP_CONNECTS, false, greeting);
    assert_success(bootstrap_listen("127.0.0.1", 0, NULL, &listener));
    fd = connect_raw(bootstrap_port(listener));
    say(fd, greeting, 20);
    assert_true(wait_readable(fd, MOMENT_MS) == false);
    meet(listener, "127.0.0.1", NULL);
    nap_ms(5200);
    assert_int_equal(bootstrap_accept(listener, deadline_after_ms(10), &control), TCPX_IN_PROGRESS);
    assert_null(strstr(error_text(), "dropped"));
    say(fd, greeting + 20, sizeof greeting - 20);
    assert_success(bootstrap_accept(listener, deadline_after_ms(PATIENCE_MS), &control));
    control_close(control, 0);
    close(fd);
    bootstrap_listener_close(listener);
}

/* Returns once the other side's kernel has got the end of the stream: it acknowledged the FIN. */
static void close_until_acknowledged(int fd)
{
    struct linger linger = {.l_onoff = 1, .l_linger = PATIENCE_MS / 1000};

    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    assert_int_equal(close(fd), 0);
}

static void test_strangers_that_end_at_every_byte(void **state)
{
    struct bootstrap_listener *listener;
    uint8_t greeting[BOOTSTRAP_GREETING_BYTES];

    (void)state;
    greeting_bytes(BOOTSTRAP_CONNECTS, false, greeting);
    assert_success(bootstrap_listen("127.0.0.1", 0, NULL, &listener));
    /* Also a whole greeting: whoever has gone away by then is no peer. */
    for (size_t i = 1; i <= sizeof greeting; i++) {
        char word[100] = "closed the connection";
        int fd = connect_raw(bootstrap_port(listener));

        if (i < sizeof greeting)
            snprintf(word, sizeof word, "closed the connection after %zu of 48 bytes", i);
        say(fd, greeting, i);
        close_until_acknowledged(fd);
        accept_nobody(listener, word);
    }
    meet(listener, "127.0.0.1", NULL);
    bootstrap_listener_close(listener);
}

/* Each bit of what is not the nonce, from a stranger to the listener. */
static void test_greetings_that_cannot_be(void **state)
{
    struct bootstrap_listener *listener;

    (void)state;
    assert_success(bootstrap_listen("127.0.0.1", 0, NULL, &listener));
    for (size_t i = 0; i < 16; i++) {
        uint8_t greeting[BOOTSTRAP_GREETING_BYTES];
        int fd = connect_raw(bootstrap_port(listener));

        greeting_bytes(BOOTSTRAP_CONNECTS, false, greeting);
        greeting[i] ^= (uint8_t)(1u << i % 8);
        if (i == 11)
            greeting[i] = 1;
        say(fd, greeting, sizeof greeting);
        accept_nobody(listener, i < 8     ? "speaks another protocol"
                                : i < 10  ? "of the bootstrap protocol, this side version 1"
                                : i == 10 ? "role 5, expected 1"
                                : i == 11 ? "has a shared secret, this side has none"
                                          : "reserved byte");
        close(fd);
    }
    meet(listener, "127.0.0.1", NULL);
    bootstrap_listener_close(listener);
}

/* --- a server of another kind --------------------------------------------------------------- */

/* Answers one connection with these bytes after it has heard a greeting, and closes. */
struct server {
    pthread_t thread;
    int listening;
    uint16_t port;
    const uint8_t *answer;
    size_t length;
    size_t first; /* so many of them before a pause */
    bool echoes;  /* sends back whatever comes, and nothing else */
    uint8_t heard[BOOTSTRAP_GREETING_BYTES];
};

static void *serve(void *argument)
{
    struct server *server = argument;
    uint8_t bytes[1000];
    int fd = accept(server->listening, NULL, NULL);
    ssize_t got = recv(fd, server->heard, sizeof server->heard, MSG_WAITALL);

    if (server->echoes) {
        (void)!send(fd, server->heard, sizeof server->heard, MSG_NOSIGNAL);
        while ((got = recv(fd, bytes, sizeof bytes, 0)) > 0)
            (void)!send(fd, bytes, (size_t)got, MSG_NOSIGNAL);
    } else if (got == (ssize_t)sizeof server->heard && server->length > 0) {
        int on = 1;

        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (server->first > 0)
            (void)!send(fd, server->answer, server->first, MSG_NOSIGNAL);
        nap_ms(server->first > 0 ? 2 : 0);
        (void)!send(fd, server->answer + server->first, server->length - server->first,
                    MSG_NOSIGNAL);
    }
    close(fd);
    return NULL;
}

static void start_server(struct server *server)
{
    server->listening = listen_raw(&server->port);
    assert_int_equal(pthread_create(&server->thread, NULL, serve, server), 0);
}

static void end_server(struct server *server)
{
    assert_int_equal(pthread_join(server->thread, NULL), 0);
    close(server->listening);
}

static void assert_answer_fails(const uint8_t *answer, size_t length, const char *secret,
                                int result, const char *word)
{
    struct server server = {.answer = answer, .length = length};
    struct control *control;
    char name[40];

    start_server(&server);
    assert_fails(bootstrap_connect("127.0.0.1", server.port, secret, deadline_after_ms(PATIENCE_MS),
                                   &control),
                 result, word);
    snprintf(name, sizeof name, "127.0.0.1:%u ", server.port);
    assert_says(name);
    end_server(&server);
}

static void test_servers_that_end_at_every_byte(void **state)
{
    uint8_t greeting[BOOTSTRAP_GREETING_BYTES];

    (void)state;
    greeting_bytes(BOOTSTRAP_LISTENS, false, greeting);
    for (size_t i = 1; i < sizeof greeting; i++) {
        char word[100];

        snprintf(word, sizeof word, "in the middle of its greeting, after %zu of 48 bytes", i);
        assert_answer_fails(greeting, i, NULL, TCPX_REMOTE_ERROR, word);
    }
}

static void test_servers_that_are_not_ours(void **state)
{
    uint8_t greeting[BOOTSTRAP_GREETING_BYTES];

    (void)state;
    assert_answer_fails((const uint8_t *)"SSH-2.0-OpenSSH_9\r\n", 19, NULL, TCPX_REMOTE_ERROR,
                        "speaks another protocol");
    assert_answer_fails((const uint8_t *)"t\n", 2, NULL, TCPX_REMOTE_ERROR,
                        "speaks another protocol");
    for (size_t i = 0; i < 16; i++) {
        greeting_bytes(BOOTSTRAP_LISTENS, false, greeting);
        greeting[i] ^= (uint8_t)(i == 11 ? 1 : 1u << i % 8);
        assert_answer_fails(greeting, sizeof greeting, NULL,
                            i == 8 || i == 9 || i == 11 ? TCPX_INVALID_USAGE : TCPX_REMOTE_ERROR,
                            i < 8     ? "speaks another protocol"
                            : i == 8  ? "speaks version 0 of the bootstrap protocol, this side "
                                        "version 1"
                            : i == 9  ? "speaks version 513 of the bootstrap protocol"
                            : i == 10 ? "role 6, expected 2"
                            : i == 11 ? "has a shared secret, this side has none"
                                      : "reserved byte");
    }
    greeting_bytes(BOOTSTRAP_LISTENS, false, greeting);
    greeting[11] = 2;
    assert_answer_fails(greeting, sizeof greeting, NULL, TCPX_REMOTE_ERROR, "flags 0x02");
}

/* Our own words are no greeting of a listener. */
static void test_a_server_that_echoes(void **state)
{
    struct server server = {.echoes = true};
    struct control *control;

    (void)state;
    start_server(&server);
    assert_fails(
        bootstrap_connect("127.0.0.1", server.port, NULL, deadline_after_ms(PATIENCE_MS), &control),
        TCPX_REMOTE_ERROR, "greets with role 1, expected 2");
    end_server(&server);
}

/* A greeting in two pieces is one greeting; and what follows it at once is the first message. */
static void test_a_greeting_in_pieces(void **state)
{
    uint8_t answer[BOOTSTRAP_GREETING_BYTES + 64];
    size_t length = BOOTSTRAP_GREETING_BYTES;

    (void)state;
    greeting_bytes(BOOTSTRAP_LISTENS, false, answer);
    length += frame(3, "hello", 5, answer + length);
    for (size_t first = 1; first < length; first += 4) {
        struct server server = {.answer = answer, .length = length, .first = first};
        struct control *control;
        uint8_t got[5];
        size_t count;
        uint8_t type;

        start_server(&server);
        assert_success(bootstrap_connect("127.0.0.1", server.port, NULL,
                                         deadline_after_ms(PATIENCE_MS), &control));
        assert_success(control_await(control, "it", &type, got, sizeof got, &count,
                                     deadline_after_ms(PATIENCE_MS)));
        assert_int_equal(count, 5);
        assert_memory_equal(got, "hello", 5);
        end_server(&server);
        control_close(control, 0);
    }
}

/* Who closes without a word, or resets, was not ready yet: the next one at that port is asked. */
static void test_servers_that_were_not_ready(void **state)
{
    static const struct linger at_once = {.l_onoff = 1};
    struct bootstrap_listener *listener;
    struct control *accepted;
    struct client client;
    uint16_t port;
    int listening = listen_raw(&port);

    (void)state;
    start_client(&client, "127.0.0.1", port, NULL, PATIENCE_MS);
    for (int i = 0; i < 4; i++) {
        uint8_t heard[BOOTSTRAP_GREETING_BYTES];
        int fd = accept(listening, NULL, NULL);

        assert_true(fd >= 0);
        assert_int_equal(recv(fd, heard, sizeof heard, MSG_WAITALL), (ssize_t)sizeof heard);
        if (i % 2 == 0)
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close(fd);
    }
    close(listening);
    assert_success(bootstrap_listen("127.0.0.1", port, NULL, &listener));
    assert_success(bootstrap_accept(listener, deadline_after_ms(PATIENCE_MS), &accepted));
    control_close(join_client(&client), 0);
    control_close(accepted, 0);
    bootstrap_listener_close(listener);
}

/* --- secrets -------------------------------------------------------------------------------- */

static char folder[] = "/tmp/test_bootstrap.XXXXXX";
static char secret_path[64];
static char same_path[64];
static char other_path[64];

static void write_file(const char *path, const void *bytes, size_t count, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, count), (ssize_t)count);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static int make_secrets(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(secret_path, sizeof secret_path, "%s/secret", folder);
    snprintf(same_path, sizeof same_path, "%s/same", folder);
    snprintf(other_path, sizeof other_path, "%s/other", folder);
    write_file(secret_path, "swordfish\n", 10, 0600);
    write_file(same_path, "swordfish\n", 10, 0400);
    write_file(other_path, "swordfish", 9, 0600);
    return 0;
}

static int remove_secrets(void **state)
{
    (void)state;
    unlink(secret_path);
    unlink(same_path);
    unlink(other_path);
    return rmdir(folder);
}

static void need_sodium(void)
{
    struct secret *secret;

    if (secret_load(secret_path, secret_libraries, &secret) != TCPX_SUCCESS) {
        skip_because("%s", error_text());
    }
    secret_free(secret);
}

static void test_the_right_secret(void **state)
{
    struct bootstrap_listener *listener;

    (void)state;
    need_sodium();
    assert_success(bootstrap_listen(NULL, 0, secret_path, &listener));
    for (int i = 0; i < 5; i++)
        meet(listener, "127.0.0.1", i % 2 == 0 ? secret_path : same_path);
    bootstrap_listener_close(listener);
}

/* Both sides hear what is wrong, and a true peer comes through afterwards. */
static void disagree(const char *here, const char *there, int result, const char *listener_word,
                     const char *client_word)
{
    struct bootstrap_listener *listener;
    struct client client;

    assert_success(bootstrap_listen("127.0.0.1", 0, here, &listener));
    start_client(&client, "127.0.0.1", bootstrap_port(listener), there, PATIENCE_MS);
    accept_nobody(listener, listener_word);
    join_failed(&client, result, client_word);
    assert_non_null(strstr(client.text, "127.0.0.1:"));
    meet(listener, "127.0.0.1", here);
    bootstrap_listener_close(listener);
}

static void test_other_secrets(void **state)
{
    (void)state;
    need_sodium();
    disagree(secret_path, other_path, TCPX_REMOTE_ERROR, "has another shared secret than this side",
             "refused: the two sides have different shared secrets");
    disagree(secret_path, NULL, TCPX_INVALID_USAGE, "has no shared secret, this side has one",
             "has a shared secret, this side has none");
    disagree(NULL, secret_path, TCPX_INVALID_USAGE, "has a shared secret, this side has none",
             "has no shared secret, this side has one");
}

/* Who has not the secret and sends back what it hears proves nothing. */
static void test_reflected_proofs(void **state)
{
    uint8_t greeting[BOOTSTRAP_GREETING_BYTES];
    uint8_t proof[SECRET_PROOF_BYTES];
    uint8_t bytes[64];
    uint8_t own[SECRET_NONCE_BYTES] = {1};
    uint8_t answer[BOOTSTRAP_GREETING_BYTES];
    struct bootstrap_listener *listener;
    struct control *control;
    struct secret *secret;
    struct client client;
    uint16_t port;
    int listening;
    int fd;

    (void)state;
    need_sodium();
    /* A server with the client's own nonce and, as its proof, the client's. */
    listening = listen_raw(&port);
    start_client(&client, "127.0.0.1", port, secret_path, PATIENCE_MS);
    fd = accept(listening, NULL, NULL);
    assert_int_equal(recv(fd, greeting, sizeof greeting, MSG_WAITALL), 48);
    greeting[10] = BOOTSTRAP_LISTENS;
    say(fd, greeting, sizeof greeting);
    assert_int_equal(recv(fd, bytes, 40, MSG_WAITALL), 40);
    say(fd, bytes, 40);
    join_failed(&client, TCPX_INVALID_USAGE, "has another shared secret than this side");
    assert_int_equal(recv(fd, bytes, sizeof bytes, 0) > CONTROL_HEADER_BYTES, true);
    assert_int_equal(bytes[0], CONTROL_REFUSED);
    close(fd);
    close(listening);
    /* The other way round: a client with the proof that the listener itself would give. */
    assert_success(secret_load(secret_path, secret_libraries, &secret));
    assert_success(bootstrap_listen("127.0.0.1", 0, secret_path, &listener));
    fd = connect_raw(bootstrap_port(listener));
    greeting_bytes(BOOTSTRAP_CONNECTS, true, greeting);
    say(fd, greeting, sizeof greeting);
    do {
        assert_int_equal(bootstrap_accept(listener, deadline_after_ms(10), &control),
                         TCPX_IN_PROGRESS);
    } while (!wait_readable(fd, 0));
    assert_int_equal(recv(fd, answer, sizeof answer, MSG_WAITALL), 48);
    assert_success(secret_prove(secret, BOOTSTRAP_LISTENS, answer + 16, own, proof));
    say(fd, bytes, frame(CONTROL_PROOF, proof, sizeof proof, bytes));
    accept_nobody(listener, "has another shared secret");
    close(fd);
    bootstrap_listener_close(listener);
    secret_free(secret);
}

/* A server that greets rightly, and then says this instead of its proof. */
static void answer_without_proof(const uint8_t *message, size_t length, const char *word)
{
    uint8_t answer[BOOTSTRAP_GREETING_BYTES + 100];

    greeting_bytes(BOOTSTRAP_LISTENS, true, answer);
    memcpy(answer + BOOTSTRAP_GREETING_BYTES, message, length);
    assert_answer_fails(answer, BOOTSTRAP_GREETING_BYTES + length, secret_path, TCPX_REMOTE_ERROR,
                        word);
}

static void test_no_proof(void **state)
{
    uint8_t proof[SECRET_PROOF_BYTES + 1] = {0};
    uint8_t greeting[BOOTSTRAP_GREETING_BYTES];
    uint8_t bytes[64];
    struct bootstrap_listener *listener;
    int fd;

    (void)state;
    need_sodium();
    answer_without_proof(bytes, frame(CONTROL_PROOF, proof, 31, bytes), "expected its proof");
    answer_without_proof(bytes, frame(CONTROL_PROOF, proof, 33, bytes), "at most 32");
    answer_without_proof(bytes, frame(1, proof, 32, bytes), "expected its proof");
    answer_without_proof(bytes, frame(CONTROL_REFUSED, "no", 2, bytes), "refused: no");
    assert_success(bootstrap_listen("127.0.0.1", 0, secret_path, &listener));
    greeting_bytes(BOOTSTRAP_CONNECTS, true, greeting);
    for (int i = 0; i < 4; i++) {
        static const char *const words[] = {"expected its proof", "at most 32",
                                            "another shared secret", "closed the connection"};

        fd = connect_raw(bootstrap_port(listener));
        say(fd, greeting, sizeof greeting);
        if (i < 3)
            say(fd, bytes,
                frame(i == 0 ? 1 : CONTROL_PROOF, proof, i == 1 ? 33 : SECRET_PROOF_BYTES, bytes));
        else
            shutdown(fd, SHUT_WR);
        accept_nobody(listener, words[i]);
        close(fd);
    }
    meet(listener, "127.0.0.1", secret_path);
    bootstrap_listener_close(listener);
}

/*
 * A listener that has to make place closes a connection whose proof is on its way: the client tries
 * again, until its deadline.
 */
static void test_a_client_that_gave_way(void **state)
{
    struct bootstrap_listener *listener;
    struct control *accepted;
    struct client client;
    uint8_t bytes[BOOTSTRAP_GREETING_BYTES + 100];
    uint16_t port;
    int listening = listen_raw(&port);

    (void)state;
    need_sodium();
    start_client(&client, "127.0.0.1", port, secret_path, PATIENCE_MS);
    for (int i = 0; i < 4; i++) {
        int fd = accept(listening, NULL, NULL);

        assert_true(fd >= 0);
        assert_int_equal(recv(fd, bytes, BOOTSTRAP_GREETING_BYTES, MSG_WAITALL),
                         BOOTSTRAP_GREETING_BYTES);
        greeting_bytes(BOOTSTRAP_LISTENS, true, bytes);
        say(fd, bytes, BOOTSTRAP_GREETING_BYTES);
        /* With its proof unread the end is a reset, without it an end of file. */
        if (i % 2 == 0)
            assert_int_equal(recv(fd, bytes, 40, MSG_WAITALL), 40);
        else
            assert_true(wait_readable(fd, PATIENCE_MS));
        close(fd);
    }
    close(listening);
    assert_success(bootstrap_listen("127.0.0.1", port, secret_path, &listener));
    assert_success(bootstrap_accept(listener, deadline_after_ms(PATIENCE_MS), &accepted));
    control_close(join_client(&client), 0);
    control_close(accepted, 0);
    bootstrap_listener_close(listener);
}

static void assert_bad_secret(const char *path, int result, const char *word)
{
    struct bootstrap_listener *listener;
    struct control *control;

    assert_fails(bootstrap_listen("127.0.0.1", 0, path, &listener), result, word);
    assert_says(path);
    assert_fails(bootstrap_connect("127.0.0.1", 1, path, 0, &control), result, word);
    assert_says(path);
}

static void test_secret_files(void **state)
{
    static uint8_t bytes[SECRET_LARGEST + 1];
    struct bootstrap_listener *listener;
    char path[64];

    (void)state;
    need_sodium();
    snprintf(path, sizeof path, "%s/file", folder);
    assert_bad_secret(path, TCPX_SYSTEM_ERROR, "No such file");
    assert_bad_secret(folder, TCPX_INVALID_ARGUMENT, "is not a file");
    write_file(path, "", 0, 0600);
    assert_bad_secret(path, TCPX_INVALID_ARGUMENT, "is empty");
    write_file(path, bytes, SECRET_LARGEST + 1, 0600);
    assert_bad_secret(path, TCPX_INVALID_ARGUMENT, "is too long: 1 to 4096 bytes");
    for (mode_t bit = 01; bit <= 040; bit <<= 1) {
        write_file(path, "x", 1, 0600 | bit);
        assert_bad_secret(path, TCPX_INVALID_ARGUMENT, "open to others than its owner");
    }
    write_file(path, "x", 1, 0640);
    assert_bad_secret(path, TCPX_INVALID_ARGUMENT, "its mode is 0640, expected 0600");
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_bad_secret(path, TCPX_INVALID_ARGUMENT, "is not a file");
    unlink(path);
    for (int i = 0; i < 2; i++) {
        write_file(path, bytes, i == 0 ? 1 : SECRET_LARGEST, 0600);
        assert_success(bootstrap_listen("127.0.0.1", 0, path, &listener));
        meet(listener, "127.0.0.1", path);
        bootstrap_listener_close(listener);
    }
    unlink(path);
}

static void test_without_libsodium(void **state)
{
    static const char *const nothing[] = {"libtcpx-no-such-library.so.1", NULL};
    static const char *const another[] = {"libtcpx-no-such-library.so.1", "libc.so.6", NULL};
    struct secret *secret;

    (void)state;
    assert_fails(secret_load(secret_path, nothing, &secret), TCPX_INVALID_USAGE,
                 "a shared secret needs libsodium, which is not installed (Debian: libsodium23)");
    assert_fails(secret_load(secret_path, another, &secret), TCPX_INVALID_USAGE,
                 "libc.so.6 is not: it lacks sodium_init");
    /* No secret needs no library. */
    assert_success(secret_load(NULL, nothing, &secret));
    assert_null(secret);
    assert_success(secret_load("", nothing, &secret));
    assert_null(secret);
    secret_free(NULL);
}

/* A proof depends on the secret, on who gives it, and on both nonces. */
static void test_proofs(void **state)
{
    uint8_t a[SECRET_NONCE_BYTES];
    uint8_t b[SECRET_NONCE_BYTES];
    uint8_t proof[SECRET_PROOF_BYTES];
    struct secret *secrets[3];

    (void)state;
    need_sodium();
    assert_success(secret_load(secret_path, secret_libraries, &secrets[0]));
    assert_success(secret_load(same_path, secret_libraries, &secrets[1]));
    assert_success(secret_load(other_path, secret_libraries, &secrets[2]));
    assert_success(secret_nonce(NULL, a));
    assert_success(secret_nonce(secrets[0], b));
    assert_memory_not_equal(a, b, sizeof a);
    assert_success(secret_prove(secrets[0], 1, a, b, proof));
    assert_true(secret_verify(secrets[1], 1, a, b, proof));
    assert_false(secret_verify(secrets[2], 1, a, b, proof));
    assert_false(secret_verify(secrets[1], 2, a, b, proof));
    assert_false(secret_verify(secrets[1], 1, b, a, proof));
    assert_false(secret_verify(secrets[1], 1, a, a, proof));
    for (size_t i = 0; i < 8 * sizeof proof; i++) {
        uint8_t *one = i % 3 == 0 ? a : i % 3 == 1 ? b : proof;

        one[i / 8] ^= (uint8_t)(1u << i % 8);
        assert_false(secret_verify(secrets[1], 1, a, b, proof));
        one[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    assert_true(secret_verify(secrets[1], 1, a, b, proof));
    for (int i = 0; i < 3; i++)
        secret_free(secrets[i]);
}

/* --- processes ------------------------------------------------------------------------------ */

/* Connects, says hello, and waits to be killed. */
static void connect_and_stay(const uint8_t *argument)
{
    struct control *control;
    uint16_t port;

    memcpy(&port, argument, sizeof port);
    if (bootstrap_connect("127.0.0.1", port, NULL, deadline_after_ms(PATIENCE_MS), &control) !=
            TCPX_SUCCESS ||
        control_send(control, 1, "hello", 5) != TCPX_SUCCESS)
        _exit(1);
    for (;;)
        pause();
}

static void test_peer_killed_while_awaited(void **state)
{
    struct bootstrap_listener *listener;
    struct control *control;
    uint8_t got[5];
    size_t count;
    uint8_t type;
    uint16_t port;
    pid_t pid;

    (void)state;
    assert_success(bootstrap_listen("127.0.0.1", 0, NULL, &listener));
    port = bootstrap_port(listener);
    pid = nursery_fork(connect_and_stay, &port, sizeof port);
    assert_success(bootstrap_accept(listener, deadline_after_ms(PATIENCE_MS), &control));
    assert_success(control_await(control, "hello", &type, got, sizeof got, &count,
                                 deadline_after_ms(PATIENCE_MS)));
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(control_await(control, "more", &type, got, sizeof got, &count,
                                   deadline_after_ms(PATIENCE_MS)),
                     TCPX_REMOTE_ERROR);
    assert_says(control_peer(control));
    (void)nursery_wait(pid);
    control_close(control, 0);
    bootstrap_listener_close(listener);
}

/* With unread bytes at its side, and more that it has no room for. */
static void test_peer_killed_before_close(void **state)
{
    struct bootstrap_listener *listener;
    struct control *control;
    uint16_t port;
    pid_t pid;

    (void)state;
    assert_success(bootstrap_listen("127.0.0.1", 0, NULL, &listener));
    port = bootstrap_port(listener);
    pid = nursery_fork(connect_and_stay, &port, sizeof port);
    assert_success(bootstrap_accept(listener, deadline_after_ms(PATIENCE_MS), &control));
    fill_the_way(control);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_closes_at_once(control);
    (void)nursery_wait(pid);
    bootstrap_listener_close(listener);
}

/* In the child: what is wrong is the exit status. */
static int check_child(struct bootstrap_listener *listener, struct control *control, int fd)
{
    struct control *other;
    uint8_t byte = 0;
    size_t count;
    bool there;

    if (fcntl(fd, F_GETFD) != -1 || errno != EBADF)
        return 1;
    if (control_send(control, 1, &byte, 1) != TCPX_INVALID_USAGE ||
        control_flush(control) != TCPX_INVALID_USAGE ||
        control_receive(control, &byte, &byte, 1, &count, &there) != TCPX_INVALID_USAGE)
        return 2;
    if (bootstrap_accept(listener, 0, &other) != TCPX_INVALID_USAGE ||
        bootstrap_connect("127.0.0.1", 1, NULL, 0, &other) != TCPX_INVALID_USAGE ||
        bootstrap_listen(NULL, 0, NULL, &listener) != TCPX_INVALID_USAGE)
        return 3;
    /* The number may be somebody else's now. */
    if (dup2(STDERR_FILENO, fd) != fd)
        return 4;
    control_refuse(control, "a child");
    control_close(control, 0);
    bootstrap_listener_close(listener);
    return fcntl(fd, F_GETFD) == -1 ? 5 : 0;
}

static void test_a_forked_child_holds_nothing(void **state)
{
    struct bootstrap_listener *listener;
    struct control *pair[2];
    struct client client;
    int status;
    pid_t pid;

    (void)state;
    assert_success(bootstrap_listen("127.0.0.1", 0, NULL, &listener));
    start_client(&client, "127.0.0.1", bootstrap_port(listener), NULL, PATIENCE_MS);
    assert_success(bootstrap_accept(listener, deadline_after_ms(PATIENCE_MS), &pair[0]));
    pair[1] = join_client(&client);
    for (int i = 0; i < 2; i++) {
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            _exit(check_child(listener, pair[i], control_fd(pair[i])));
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
    }
    exchange(pair[0], pair[1], 1, 100);
    exchange(pair[1], pair[0], 1, 100);
    control_close(pair[0], 0);
    control_close(pair[1], 0);
    bootstrap_listener_close(listener);
}

/* A descriptor that was not opened by us is known from control_create() on. */
static void test_a_given_descriptor_and_a_child(void **state)
{
    struct control *control;
    int status;
    int raw;
    pid_t pid;

    (void)state;
    control = control_and_raw(&raw);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(fcntl(control_fd(control), F_GETFD) == -1 ? 0 : 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    close(raw);
    control_close(control, 0);
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
    int result;
    int fd;

    (void)argument;
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
        _exit(NO_NAMESPACE);
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &lo) != 0 ||
        !put("/proc/sys/net/ipv4/ip_local_port_range", "40000 40000"))
        _exit(NO_NAMESPACE);
    result = bootstrap_connect("127.0.0.1", 40000, NULL, deadline_after_ms(MOMENT_MS), &control);
    if (result != TCPX_IN_PROGRESS)
        fprintf(stderr, "%s: %s\n", tcpx_result_name(result), error_text());
    _exit(result != TCPX_IN_PROGRESS);
}

static void test_a_connect_that_meets_itself(void **state)
{
    int status = nursery_wait(nursery_fork(connect_to_itself, NULL, 0));

    (void)state;
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_NAMESPACE) {
        skip_because("no network namespace can be made here");
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* The nursery waits for it only when it is told to. */
static bool is_zombie(pid_t pid)
{
    char path[64];
    char text[200] = "";
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    file = fopen(path, "r");
    if (file == NULL)
        return true;
    if (fgets(text, sizeof text, file) == NULL)
        text[0] = '\0';
    fclose(file);
    return strstr(text, ") Z ") != NULL;
}

/* Where a name has three addresses: one that cannot be, one where nobody listens, and ours. */
static void connect_by_name(const uint8_t *argument)
{
    static const char hosts[] = "fe80::1 tcpx-peer\n::1 tcpx-peer\n127.0.0.1 tcpx-peer\n";
    char path[sizeof folder + 6];
    struct control *control;
    uint16_t port;
    int result;
    int fd;

    memcpy(&port, argument, sizeof port);
    memcpy(path, argument + sizeof port, sizeof path);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, hosts, strlen(hosts)) != (ssize_t)strlen(hosts) || close(fd) != 0)
        _exit(2);
    if ((unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount(path, "/etc/hosts", NULL, MS_BIND, NULL) != 0)
        _exit(NO_NAMESPACE);
    if (bootstrap_connect("tcpx-peer", port, NULL, 0, &control) != TCPX_IN_PROGRESS ||
        strstr(error_text(), "Connection refused") == NULL) {
        fprintf(stderr, "not refused: %s\n", error_text());
        _exit(3);
    }
    atomic_store(&nursery_shared->flag, 1);
    result = bootstrap_connect("tcpx-peer", port, NULL, deadline_after_ms(PATIENCE_MS), &control);
    if (result != TCPX_SUCCESS)
        fprintf(stderr, "%s: %s\n", tcpx_result_name(result), error_text());
    _exit(result != TCPX_SUCCESS || strncmp(control_peer(control), "127.0.0.1:", 10) != 0);
}

static void test_a_name_of_several_addresses(void **state)
{
    struct bootstrap_listener *listener;
    struct control *control;
    uint8_t argument[2 + sizeof folder + 6] = {0};
    uint16_t port;
    int status;
    pid_t pid;

    (void)state;
    port = free_port();
    memcpy(argument, &port, sizeof port);
    snprintf((char *)argument + 2, sizeof argument - 2, "%s/hosts", folder);
    atomic_store(&nursery_shared->flag, 0);
    pid = nursery_fork(connect_by_name, argument, sizeof argument);
    while (atomic_load(&nursery_shared->flag) == 0 && !is_zombie(pid))
        nap_ms(1);
    nap_ms(MOMENT_MS); /* it has met nobody at any address */
    assert_success(bootstrap_listen("127.0.0.1", port, NULL, &listener));
    do {
        status = bootstrap_accept(listener, deadline_after_ms(MOMENT_MS), &control);
    } while (status == TCPX_IN_PROGRESS && !is_zombie(pid));
    if (status == TCPX_SUCCESS)
        control_close(control, 0);
    status = nursery_wait(pid);
    unlink((char *)argument + 2);
    bootstrap_listener_close(listener);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_NAMESPACE) {
        skip_because("no mount namespace can be made here");
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static int descriptors;

static int remember_descriptors(void **state)
{
    (void)state;
    descriptors = open_descriptors();
    return 0;
}

static int compare_descriptors(void **state)
{
    (void)state;
    return open_descriptors() == descriptors ? 0 : -1;
}

#define BOOTSTRAP_TEST(function)                                                                   \
    cmocka_unit_test_setup_teardown(function, remember_descriptors, compare_descriptors)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        BOOTSTRAP_TEST(test_messages_of_every_size),
        BOOTSTRAP_TEST(test_slow_writer),
        BOOTSTRAP_TEST(test_messages_at_once),
        BOOTSTRAP_TEST(test_an_end_at_every_byte),
        BOOTSTRAP_TEST(test_messages_that_cannot_be),
        BOOTSTRAP_TEST(test_refusals),
        BOOTSTRAP_TEST(test_a_long_refusal),
        BOOTSTRAP_TEST(test_a_refusal_reaches_a_sender),
        BOOTSTRAP_TEST(test_queue_overflow),
        BOOTSTRAP_TEST(test_await_sends_meanwhile),
        BOOTSTRAP_TEST(test_close_delivers),
        BOOTSTRAP_TEST(test_close_delivers_to_who_only_reads),
        BOOTSTRAP_TEST(test_close_does_not_wait),
        BOOTSTRAP_TEST(test_close_after_the_end),
        BOOTSTRAP_TEST(test_await_deadline),
        BOOTSTRAP_TEST(test_signals_do_not_disturb),
        BOOTSTRAP_TEST(test_a_descriptor_that_is_no_socket),
        BOOTSTRAP_TEST(test_every_kind_of_address),
        BOOTSTRAP_TEST(test_ipv6),
        BOOTSTRAP_TEST(test_client_before_server),
        BOOTSTRAP_TEST(test_deadlines),
        BOOTSTRAP_TEST(test_arguments),
        BOOTSTRAP_TEST(test_a_port_that_is_taken),
        BOOTSTRAP_TEST(test_many_peers),
        BOOTSTRAP_TEST(test_no_descriptors_left),
        BOOTSTRAP_TEST(test_strangers),
        BOOTSTRAP_TEST(test_all_places_taken),
        BOOTSTRAP_TEST(test_half_open_ones_have_their_time),
        BOOTSTRAP_TEST(test_time_without_listening_is_not_theirs),
        BOOTSTRAP_TEST(test_strangers_that_end_at_every_byte),
        BOOTSTRAP_TEST(test_greetings_that_cannot_be),
        BOOTSTRAP_TEST(test_servers_that_end_at_every_byte),
        BOOTSTRAP_TEST(test_servers_that_are_not_ours),
        BOOTSTRAP_TEST(test_a_server_that_echoes),
        BOOTSTRAP_TEST(test_a_greeting_in_pieces),
        BOOTSTRAP_TEST(test_servers_that_were_not_ready),
        BOOTSTRAP_TEST(test_the_right_secret),
        BOOTSTRAP_TEST(test_other_secrets),
        BOOTSTRAP_TEST(test_reflected_proofs),
        BOOTSTRAP_TEST(test_no_proof),
        BOOTSTRAP_TEST(test_a_client_that_gave_way),
        BOOTSTRAP_TEST(test_secret_files),
        BOOTSTRAP_TEST(test_without_libsodium),
        BOOTSTRAP_TEST(test_proofs),
        BOOTSTRAP_TEST(test_peer_killed_while_awaited),
        BOOTSTRAP_TEST(test_peer_killed_before_close),
        BOOTSTRAP_TEST(test_a_forked_child_holds_nothing),
        BOOTSTRAP_TEST(test_a_given_descriptor_and_a_child),
        BOOTSTRAP_TEST(test_a_connect_that_meets_itself),
        BOOTSTRAP_TEST(test_a_name_of_several_addresses),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    nursery_start();
    return cmocka_run_group_tests_name("bootstrap", tests, make_secrets, remove_secrets);
}
