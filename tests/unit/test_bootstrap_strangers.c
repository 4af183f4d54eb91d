/*
 * Shows that strangers which are silent, talk garbage, end early or fill every place do not keep a
 * peer out, and that a listener of another protocol or version is an error in words.
 */
#include "tests/unit/bootstrap_peers.h"

/* What each test begins with: a listener, and a greeting that is right. */
static struct bootstrap_listener *listener;
static uint8_t greeting[BOOTSTRAP_GREETING_BYTES];

static int set_up(void **state)
{
    remember_descriptors(state);
    greeting_bytes(BOOTSTRAP_CONNECTS, false, greeting);
    listener = listen_at("127.0.0.1", 0, NULL);
    return 0;
}

/* A peer still gets in, whatever has happened. */
static int tear_down(void **state)
{
    meet(listener, "127.0.0.1", NULL);
    bootstrap_listener_close(listener);
    return compare_descriptors(state);
}

static int stranger_says(const void *bytes, size_t count)
{
    int fd = connect_raw(bootstrap_port(listener));

    if (count > 0)
        say(fd, bytes, count);
    return fd;
}

static void accept_and_close(void)
{
    control_close(accept_peer(listener), 0);
}

/* Whether it has ended, in order or not. */
static bool has_ended(int fd)
{
    uint8_t bytes[1000];
    ssize_t count;

    do {
        count = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    } while (count > 0);
    return count == 0 || errno != EAGAIN;
}

static void assert_ended(int fd)
{
    uint64_t deadline = IN_TIME;

    while (!has_ended(fd)) {
        assert_false(deadline_passed(deadline));
        nap_ms(1);
    }
}

#define STRANGERS_TEST(function) TEST_WITH(function, set_up, tear_down)

STRANGERS_TEST(test_strangers)
{
    static const char web[] = "GET / HTTP/1.1\r\nHost: a-host-with-a-long-name.example\r\n\r\n";
    int fds[] = {stranger_says(NULL, 0), stranger_says(greeting, 20),
                 stranger_says("\001\002\003\004\005\006\007", 7),
                 stranger_says(web, sizeof web - 1)};

    meet(listener, "127.0.0.1", NULL);
    assert_ended(fds[2]);
    assert_ended(fds[3]);
    /* The silent one and the one with half of a greeting have their time. */
    for (int i = 0; i < 2; i++)
        assert_false(has_ended(fds[i]));
    meet(listener, "127.0.0.1", NULL);
    /* And the half one can still become whole. */
    say(fds[1], greeting + 20, sizeof greeting - 20);
    accept_and_close();
    for (int i = 0; i < 4; i++)
        close(fds[i]);
}

STRANGERS_TEST(test_all_places_taken)
{
    enum { STRANGERS = 64 + 30 };
    struct control *control;
    int fds[STRANGERS];
    int dropped = 0;

    for (int i = 0; i < STRANGERS; i++) {
        fds[i] = stranger_says("tcpx", 4);
        assert_int_equal(bootstrap_accept(listener, deadline_after_ms(1), &control),
                         TCPX_IN_PROGRESS);
    }
    meet(listener, "127.0.0.1", NULL);
    for (int i = 0; i < STRANGERS; i++) {
        dropped += has_ended(fds[i]);
        close(fds[i]);
    }
    assert_int_equal(dropped, STRANGERS - 63); /* the last one made place for the peer */
}

/* Five seconds, however often it is asked for peers meanwhile. */
STRANGERS_TEST(test_half_open_ones_have_their_time)
{
    uint64_t start = clock_now();
    int fd = stranger_says(greeting, 47);

    accept_nobody(listener, "did not say in time who it is");
    assert_true(clock_now() - start >= (uint64_t)5000 * 1000000);
    assert_true(clock_now() - start < limit_ns((uint64_t)20000 * 1000000));
    assert_ended(fd);
    close(fd);
}

STRANGERS_TEST(test_time_without_listening_is_not_theirs)
{
    struct control *control;
    int fd = stranger_says(greeting, 20);

    assert_true(wait_readable(fd, MOMENT_MS) == false);
    meet(listener, "127.0.0.1", NULL);
    nap_ms(5200);
    assert_int_equal(bootstrap_accept(listener, deadline_after_ms(10), &control), TCPX_IN_PROGRESS);
    assert_null(strstr(error_text(), "dropped"));
    say(fd, greeting + 20, sizeof greeting - 20);
    accept_and_close();
    close(fd);
}

/* Also behind a whole greeting: a peer that has gone away by then is no peer. */
STRANGERS_TEST(test_strangers_that_end_at_every_byte)
{
    for (size_t i = 1; i <= sizeof greeting; i++) {
        char word[100] = "closed the connection";

        if (i < sizeof greeting)
            snprintf(word, sizeof word, "closed the connection after %zu of 48 bytes", i);
        close_lingering(stranger_says(greeting, i), PATIENCE_MS / 1000);
        accept_nobody(listener, word);
    }
}

/* --- greetings that cannot be ---------------------------------------------------------------- */

/* A byte that differs from the right one, and what each side says of it. */
static const struct flaw {
    size_t at;
    uint8_t flip;
    int result; /* of a connect */
    const char *to_listener;
    const char *to_client;
} flaws[] = {
    {8, 3, TCPX_INVALID_USAGE, "of the session protocol, this side versions 2 to 2",
     "speaks versions 1 to 1 of the session protocol, this side versions 2 to 2"},
    {10, 4, TCPX_REMOTE_ERROR, "role 5, expected 1", "role 6, expected 2"},
    {11, 1, TCPX_INVALID_USAGE, "has a shared secret, this side has none",
     "has a shared secret, this side has none"},
    {11, 2, TCPX_REMOTE_ERROR, "flags 0x02", "flags 0x02"},
    {12, 1, TCPX_INVALID_USAGE, "versions 3 to 2", "versions 3 to 2"},
    {13, 32, TCPX_INVALID_USAGE, "versions 8194 to 2", "versions 8194 to 2"},
    {14, 64, TCPX_REMOTE_ERROR, "reserved byte", "reserved byte"},
    {15, 128, TCPX_REMOTE_ERROR, "reserved byte", "reserved byte"},
};
enum { MAGIC_BYTES = 8, FLAWS = MAGIC_BYTES + sizeof flaws / sizeof *flaws };

/* The bytes of the magic are the first flaws. */
static struct flaw flaw_number(size_t i)
{
    if (i >= MAGIC_BYTES)
        return flaws[i - MAGIC_BYTES];
    return (struct flaw){i, (uint8_t)(1u << i), TCPX_REMOTE_ERROR, "speaks another protocol",
                         "speaks another protocol"};
}

/* Each byte of what is not the nonce, from a stranger to the listener. */
STRANGERS_TEST(test_greetings_that_cannot_be)
{
    for (size_t i = 0; i < FLAWS; i++) {
        struct flaw flaw = flaw_number(i);
        int fd;

        greeting[flaw.at] ^= flaw.flip;
        fd = stranger_says(greeting, sizeof greeting);
        greeting[flaw.at] ^= flaw.flip;
        accept_nobody(listener, flaw.to_listener);
        close(fd);
    }
}

STRANGERS_TEST(test_servers_that_end_at_every_byte)
{
    greeting_bytes(BOOTSTRAP_LISTENS, false, greeting);
    for (size_t i = 1; i < sizeof greeting; i++) {
        char word[100];

        snprintf(word, sizeof word, "in the middle of its greeting, after %zu of 48 bytes", i);
        assert_answer_fails(greeting, i, NULL, TCPX_REMOTE_ERROR, word);
    }
}

STRANGERS_TEST(test_servers_that_are_not_ours)
{
    assert_answer_fails("SSH-2.0-OpenSSH_9\r\n", 19, NULL, TCPX_REMOTE_ERROR,
                        "speaks another protocol");
    assert_answer_fails("t\n", 2, NULL, TCPX_REMOTE_ERROR, "speaks another protocol");
    greeting_bytes(BOOTSTRAP_LISTENS, false, greeting);
    for (size_t i = 0; i < FLAWS; i++) {
        struct flaw flaw = flaw_number(i);

        greeting[flaw.at] ^= flaw.flip;
        assert_answer_fails(greeting, sizeof greeting, NULL, flaw.result, flaw.to_client);
        greeting[flaw.at] ^= flaw.flip;
    }
}

/* Our own words are no greeting of a listener. */
STRANGERS_TEST(test_a_server_that_echoes)
{
    assert_answer_fails(NULL, BOOTSTRAP_GREETING_BYTES, NULL, TCPX_REMOTE_ERROR,
                        "greets with role 1, expected 2");
}

/* A greeting in two pieces is one greeting; and what follows it at once is the first message. */
STRANGERS_TEST(test_a_greeting_in_pieces)
{
    uint8_t answer[BOOTSTRAP_GREETING_BYTES + 64];
    size_t length = BOOTSTRAP_GREETING_BYTES;

    greeting_bytes(BOOTSTRAP_LISTENS, false, answer);
    length += frame(3, "hello", 5, answer + length);
    for (size_t first = 1; first < length; first += 4) {
        struct control *control;
        struct client client;

        answer_client(&client, NULL, answer, length, first);
        control = join_client(&client);
        assert_message(control, 3, "hello", 5);
        control_close(control, 0);
    }
}

/* A server that closes without a word, or resets, was not ready yet: the client tries again. */
STRANGERS_TEST(test_servers_that_were_not_ready)
{
    struct client client;
    uint16_t port;
    int listening = listen_raw_at(free_port(), &port);

    start_client(&client, "127.0.0.1", port, NULL, PATIENCE_MS);
    for (int i = 0; i < 4; i++) {
        int fd = accept_raw(listening, greeting, sizeof greeting);

        if (i % 2 == 0)
            close_lingering(fd, 0);
        else
            close(fd);
    }
    close(listening);
    accept_waiting(&client, port, NULL);
}

SUITE(.name = "strangers at the bootstrap");
