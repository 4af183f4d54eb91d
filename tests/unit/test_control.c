/*
 * Shows that the messages of a control connection arrive whole and in order, however slowly they
 * come; that what cannot be a message, a refusal and an end are errors that name the peer; and how
 * long a close may wait.
 */
#include "tests/unit/bootstrap_peers.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <sys/wait.h>

/* What each test begins with: a control at one end, a plain blocking socket at the other. */
static struct control *control;
static int raw;

static void open_control(void)
{
    uint16_t port;
    int listening = listen_raw(&port);
    int fd;

    raw = connect_raw(port);
    fd = accept(listening, NULL, NULL);
    assert_true(fd >= 0);
    close(listening);
    assert_success(control_create(fd, PEER, SESSION_VERSION, &control));
    assert_int_equal(control_fd(control), fd);
    assert_string_equal(control_peer(control), PEER);
}

static void close_both(unsigned linger_ms)
{
    if (raw >= 0)
        close(raw);
    raw = -1;
    control_close(control, linger_ms);
    control = NULL;
}

static int set_up(void **state)
{
    remember_descriptors(state);
    open_control();
    return 0;
}

static int tear_down(void **state)
{
    close_both(0);
    return compare_descriptors(state);
}

/* The plain socket becomes a control, too. */
static struct control *control_raw(void)
{
    struct control *other;

    assert_success(control_create(raw, PEER, SESSION_VERSION, &other));
    raw = -1;
    return other;
}

/* Again at every call, and the peer is named. */
static void assert_no_message(size_t room, const char *word)
{
    for (int again = 0; again < 2; again++)
        assert_fails(await_message(control, room), TCPX_REMOTE_ERROR, word);
    expect_text(PEER);
}

/* The same after these bytes, and perhaps the end; then there is a new connection. */
static void assert_refused(const void *bytes, size_t length, bool ends, size_t room,
                           const char *word)
{
    if (length > 0)
        say(raw, bytes, length);
    if (ends) {
        close(raw);
        raw = -1;
    }
    assert_no_message(room, word);
    close_both(0);
    open_control();
}

#define CONTROL_TEST(function) TEST_WITH(function, set_up, tear_down)

CONTROL_TEST(test_messages_of_every_size)
{
    static const size_t sizes[] = {0, 1, 7, 8, 9, 1000, 4096, 32768, 65535, 65536};
    struct control *other = control_raw();

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        exchange(control, other, (uint8_t)i, sizes[i]);
        exchange(other, control, (uint8_t)(CONTROL_REFUSED - 1 - i), sizes[i]);
    }
    assert_false(control_has_unsent(control));
    assert_fails(control_send(control, 1, "", CONTROL_LARGEST + 1), TCPX_INVALID_ARGUMENT,
                 "65537 bytes");
    assert_fails(control_send(control, CONTROL_REFUSED, "", 0), TCPX_INVALID_ARGUMENT, "255");
    exchange(control, other, 1, 10);
    control_close(other, 0);
    control_close(NULL, 0);
}

CONTROL_TEST(test_slow_writer)
{
    uint8_t bytes[64];
    uint8_t text[20];
    uint8_t type;
    size_t length = frame(9, "twenty bytes of text", 20, bytes);

    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < length; i++) {
            size_t count = 77;
            bool there = true;

            assert_success(control_receive(control, &type, text, sizeof text, &count, &there));
            assert_false(there);
            say(raw, bytes + i, 1);
            assert_true(wait_readable(control_fd(control), PATIENCE_MS));
            assert_success(control_receive(control, &type, text, sizeof text, &count, &there));
            assert_int_equal(there, i == length - 1);
            assert_int_equal(count, there ? 20 : 77);
        }
    assert_memory_equal(text, "twenty bytes of text", 20);
}

/* Messages that came together are handed out one by one, though one call has read them all. */
CONTROL_TEST(test_messages_at_once)
{
    uint8_t bytes[1000];
    size_t length = 0;

    for (uint8_t i = 0; i < 20; i++)
        length += frame(i, &i, i % 2, bytes + length);
    say(raw, bytes, length);
    assert_true(wait_readable(control_fd(control), PATIENCE_MS));
    for (uint8_t i = 0; i < 20; i++) {
        uint8_t type;
        uint8_t byte;
        size_t count;
        bool there;

        assert_success(control_receive(control, &type, &byte, 1, &count, &there));
        assert_true(there);
        assert_int_equal(type, i);
        assert_int_equal(count, i % 2);
        assert_true(count == 0 || byte == i);
    }
    assert_false(wait_readable(control_fd(control), 0));
}

static void send_held(size_t bytes)
{
    static const uint8_t payload[4096];

    assert_success(control_send(control, 3, payload, bytes));
}

/* They go with the flush or, so that the peer does not wait, when there are many. */
CONTROL_TEST(test_held_messages)
{
    uint8_t got[64];

    control_hold(control, true);
    send_held(1);
    send_held(2);
    assert_int_equal(control_unsent_bytes(control), 2 * CONTROL_HEADER_BYTES + 3);
    assert_false(wait_readable(raw, 0));
    assert_success(control_flush(control));
    assert_int_equal(recv(raw, got, sizeof got, MSG_DONTWAIT), 2 * CONTROL_HEADER_BYTES + 3);
    for (size_t held = 0; held < CONTROL_MOST_HELD; held = control_unsent_bytes(control))
        send_held(4096);
    assert_false(wait_readable(raw, 0));
    send_held(4096);
    assert_int_equal(control_unsent_bytes(control), CONTROL_HEADER_BYTES + 4096);
    control_hold(control, false);
    send_held(0);
    assert_false(control_has_unsent(control));
}

CONTROL_TEST(test_an_end_at_every_byte)
{
    uint8_t bytes[64];
    size_t length = frame(9, "four", 4, bytes);

    for (size_t i = 0; i < length; i++) {
        char word[100];

        snprintf(word, sizeof word, i == 0 ? PEER " closed the connection" : "after %zu of", i);
        assert_refused(bytes, i, true, 4, word);
    }
}

CONTROL_TEST(test_messages_that_cannot_be)
{
    static const struct {
        uint8_t bytes[CONTROL_HEADER_BYTES + 4];
        size_t length;
        size_t room;
        const char *word;
    } rows[] = {
        {{9, 0x80, 0, 0, 4, 0, 0, 0, 'f', 'o', 'u', 'r'}, 12, 4, "is 0x80, expected 0"},
        {{9, 0, 0x80, 0, 4, 0, 0, 0, 'f', 'o', 'u', 'r'}, 12, 4, "is 0x80, expected 0"},
        {{9, 0, 0, 0x80, 4, 0, 0, 0, 'f', 'o', 'u', 'r'}, 12, 4, "is 0x80, expected 0"},
        {{9, 0, 0, 0, 4, 0, 0, 0, 'f', 'o', 'u', 'r'},
         12,
         3,
         "type 9 with 4 bytes, expected are at most 3"},
        {{9, 0, 0, 0, 1, 0, 1, 0}, 8, CONTROL_LARGEST, "65537 bytes, possible"},
        {{9, 0, 0, 0, 255, 255, 255, 255}, 8, CONTROL_LARGEST, "4294967295 bytes"},
        {{CONTROL_REFUSED, 0, 0, 0, 1, 0, 1, 0}, 8, CONTROL_LARGEST, "65537 bytes, possible"},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_refused(rows[i].bytes, rows[i].length, false, rows[i].room, rows[i].word);
}

static void assert_refusal_is_cut(void)
{
    assert_int_equal(strlen(error_text()), strlen(PEER " refused: ") + CONTROL_REFUSAL_TEXT);
}

CONTROL_TEST(test_refusals)
{
    struct control *other = control_raw();
    char text[1000];

    memset(text, 'x', sizeof text);
    memcpy(text, "no\n\033[31m\xc3 way ", 14);
    text[sizeof text - 1] = '\0';
    control_refuse(other, text);
    control_close(other, 0);
    assert_no_message(1, PEER " refused: no??[31m? way xxx");
    assert_refusal_is_cut();
}

/* A refusal of somebody else's making. */
CONTROL_TEST(test_a_long_refusal)
{
    static char text[CONTROL_LARGEST];
    static uint8_t bytes[CONTROL_HEADER_BYTES + CONTROL_LARGEST];

    memset(text, '\t', sizeof text);
    say(raw, bytes, frame(CONTROL_REFUSED, text, sizeof text, bytes));
    assert_no_message(0, PEER " refused: ????");
    assert_refusal_is_cut();
}

/* A side that only sends gets the reason, too, although its bytes were not read. */
CONTROL_TEST(test_a_refusal_reaches_a_sender)
{
    uint64_t deadline = IN_TIME;
    struct control *other = control_raw();
    int result;

    assert_success(control_send(control, 1, "unread", 6));
    assert_true(wait_readable(control_fd(other), PATIENCE_MS));
    control_refuse(other, "channels: 4 here, 2 there");
    control_close(other, 1000);
    do {
        result = control_send(control, 1, "more", 4);
        assert_false(deadline_passed(deadline));
    } while (result == TCPX_SUCCESS);
    assert_fails(result, TCPX_REMOTE_ERROR, PEER " refused: channels: 4 here, 2 there");
}

CONTROL_TEST(test_queue_overflow)
{
    enum { BYTES = 40000 };
    struct control *other = control_raw();
    unsigned sent = 0;
    int result;

    while ((result = control_send(control, (uint8_t)(sent % 200), pattern(BYTES, sent), BYTES)) ==
           TCPX_SUCCESS)
        assert_true(sent++ < 10000);
    assert_fails(result, TCPX_REMOTE_ERROR, PEER " does not read: 41");
    assert_true(control_has_unsent(control));
    assert_true(sent * BYTES > CONTROL_MOST_UNSENT - 2 * BYTES);
    /* A small one finds room still; nothing was queued by halves. */
    assert_success(control_send(control, 201, "last", 4));
    for (unsigned i = 0; i < sent; i++) {
        assert_success(control_flush(control));
        assert_message(other, (uint8_t)(i % 200), pattern(BYTES, i), BYTES);
    }
    assert_message(other, 201, "last", 4);
    assert_false(control_has_unsent(control));
    control_close(other, 0);
}

/* The other end, which reads slowly at first. */
struct reader {
    pthread_t thread;
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
        if (send(raw, bytes, sizeof bytes, MSG_NOSIGNAL) < 0)
            return NULL;
    while (reader->count < reader->expected) {
        ssize_t count = recv(raw, bytes, sizeof bytes, 0);

        if (count <= 0)
            break;
        reader->count += (size_t)count;
        if (reader->count < 1000000)
            nap_ms(1);
    }
    if (reader->answers)
        (void)!send(raw, answer, frame(77, NULL, 0, answer), MSG_NOSIGNAL);
    return NULL;
}

/* More than the kernel takes, so that some of it waits with us; how many bytes in all. */
static size_t queue_some(void)
{
    size_t sent = 0;

    for (int waiting = 0; waiting < 30; waiting += control_has_unsent(control)) {
        assert_success(control_send(control, 1, pattern(CONTROL_LARGEST, 1), CONTROL_LARGEST));
        sent += CONTROL_HEADER_BYTES + CONTROL_LARGEST;
    }
    assert_true(control_has_unsent(control));
    return sent;
}

/* Queues, lets the reader read, and ends the connection in this way; all of it has been read. */
static void assert_all_is_read(struct reader *reader, void (*end)(void))
{
    size_t sent = queue_some();

    reader->expected = reader->answers ? sent : SIZE_MAX;
    assert_int_equal(pthread_create(&reader->thread, NULL, read_slowly, reader), 0);
    end();
    assert_int_equal(pthread_join(reader->thread, NULL), 0);
    assert_int_equal(reader->count, sent);
}

static void await_the_answer(void)
{
    assert_message(control, 77, NULL, 0);
}

static void close_the_control(void)
{
    control_close(control, PATIENCE_MS);
    control = NULL;
}

/* The answer to what is queued comes only if it is sent while we wait. */
CONTROL_TEST(test_await_sends_meanwhile)
{
    assert_all_is_read(&(struct reader){.answers = true}, await_the_answer);
}

/* What was queued arrives, although the peer is slow, and first sends a lot that we never read. */
CONTROL_TEST(test_close_delivers)
{
    assert_all_is_read(&(struct reader){.chatter = 32 << 20}, close_the_control);
}

/* A peer that has shut down its sending side still gets everything. */
CONTROL_TEST(test_close_delivers_to_who_only_reads)
{
    assert_int_equal(shutdown(raw, SHUT_WR), 0);
    assert_true(wait_readable(control_fd(control), PATIENCE_MS));
    assert_all_is_read(&(struct reader){.count = 0}, close_the_control);
}

static uint64_t close_took(unsigned linger_ms)
{
    uint64_t start = clock_now();

    control_close(control, linger_ms);
    control = NULL;
    return clock_now() - start;
}

/* A peer that does not read costs the linger, not more; and nothing once all is at its host. */
CONTROL_TEST(test_close_does_not_wait)
{
    uint64_t took;

    assert_success(control_send(control, 1, "unread", 6));
    assert_true(close_took(PATIENCE_MS) < limit_ns((uint64_t)10000 * 1000000));
    close_both(0);
    open_control();
    queue_some();
    took = close_took(MOMENT_MS);
    assert_true(took >= (uint64_t)MOMENT_MS * 1000000);
    assert_true(took < limit_ns((uint64_t)10000 * 1000000));
}

static int bytes_in_flight(void)
{
    int bytes;

    assert_int_equal(ioctl(control_fd(control), SIOCOUTQ, &bytes), 0);
    return bytes;
}

/* Until the host of a peer that does not read takes no more, while nothing waits with us. */
static void fill_the_way(void)
{
    enum { LATEST_ACK_MS = 300 };
    int sent = 0;

    while (bytes_in_flight() == 0) {
        uint64_t deadline = deadline_after_ms(LATEST_ACK_MS);

        assert_true(sent++ < 10000);
        assert_success(control_send(control, 1, pattern(16384, 0), 16384));
        while (bytes_in_flight() > 0 && !deadline_passed(deadline))
            nap_ms(1);
    }
    assert_false(control_has_unsent(control));
}

/* With a linger that would be noticed. */
static void assert_closes_at_once(void)
{
    assert_true(close_took(PATIENCE_MS) < (uint64_t)PATIENCE_MS / 2 * 1000000);
}

/* What can no longer arrive is not waited for, whether the end was noticed before or not. */
CONTROL_TEST(test_close_after_the_end)
{
    /* The end is in order, and only the last message meets a reset. */
    close(raw);
    raw = -1;
    assert_true(wait_readable(control_fd(control), PATIENCE_MS));
    assert_success(control_send(control, 1, "too late", 8));
    assert_closes_at_once();
    for (int noticed = 0; noticed < 2; noticed++) {
        open_control();
        fill_the_way();
        close_lingering(raw, 0);
        raw = -1;
        if (noticed)
            assert_fails(await_message(control, 0), TCPX_REMOTE_ERROR, PEER);
        assert_closes_at_once();
    }
}

CONTROL_TEST(test_await_deadline)
{
    uint8_t bytes[64];
    uint64_t start = clock_now();

    assert_fails(control_await(control, "its handles", &message.type, message.payload, 8,
                               &message.bytes, deadline_after_ms(MOMENT_MS)),
                 TCPX_IN_PROGRESS, PEER " has not sent its handles in time");
    assert_true(clock_now() - start >= (uint64_t)MOMENT_MS * 1000000);
    /* What is there counts, however late it is asked for. */
    say(raw, bytes, frame(5, "late", 4, bytes));
    assert_true(wait_readable(control_fd(control), PATIENCE_MS));
    assert_success(
        control_await(control, "it", &message.type, message.payload, 8, &message.bytes, 0));
    assert_int_equal(message.type, 5);
}

static atomic_int signals;

static void count_signal(int number)
{
    (void)number;
    atomic_fetch_add(&signals, 1);
}

CONTROL_TEST(test_signals_do_not_disturb)
{
    struct sigaction action = {.sa_handler = count_signal};
    struct itimerval often = {{0, 1000}, {0, 1000}};
    struct itimerval never = {{0, 0}, {0, 0}};
    uint64_t start = clock_now();

    assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    assert_int_equal(control_await(control, "it", &message.type, NULL, 0, &message.bytes,
                                   deadline_after_ms(MOMENT_MS)),
                     TCPX_IN_PROGRESS);
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    assert_true(clock_now() - start >= (uint64_t)MOMENT_MS * 1000000);
    assert_true(atomic_load(&signals) > 0);
}

CONTROL_TEST(test_a_descriptor_that_is_no_socket)
{
    struct control *other;
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    close(ends[1]);
    assert_fails(control_create(ends[0], PEER, SESSION_VERSION, &other), TCPX_SYSTEM_ERROR,
                 "TCP_NODELAY");
    assert_int_equal(fcntl(ends[0], F_GETFD), -1);
}

/* A descriptor that was not opened by us is known from control_create() on. */
CONTROL_TEST(test_a_given_descriptor_and_a_child)
{
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0)
        _exit(fcntl(control_fd(control), F_GETFD) == -1 ? 0 : 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

SUITE(.name = "control connections");
