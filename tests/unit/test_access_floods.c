/*
 * A peer that asks for as much as it can: numbers of windows, accesses, parts, cancels and refused
 * reads without end. Memory and the time of a close are bounded, the session ends in words where a
 * limit is reached, and others go on.
 */
#include "tests/unit/access_says.h"

#include <malloc.h>

enum { GOOD, NEVER = 77, MOST_HELD = 96 << 20, FLOOD = 5000 };

/* Of the heap, where that can be asked for: a sanitizer has another one, and musl does not tell. */
static size_t used_memory(void)
{
#ifdef __GLIBC__
    return SANITIZED ? 0 : mallinfo2().uordblks;
#else
    return 0;
#endif
}

static void floods_begin(struct access_peer *peer)
{
    world_open(peer);
    say_bind(peer, GOOD, window);
    must_begin(peer);
}

/* --- many messages in one call -------------------------------------------------------------- */

static struct {
    uint8_t bytes[CONTROL_LARGEST];
    size_t length;
} many;

/* False: the tested side does not read any more. */
static bool say_many(struct access_peer *peer)
{
    struct pollfd writable = {.fd = control_fd(peer->control), .events = POLLOUT};
    bool goes_on = true;

    for (size_t sent = 0; sent < many.length && goes_on;) {
        ssize_t count =
            send(writable.fd, many.bytes + sent, many.length - sent, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (count > 0)
            sent += (size_t)count;
        else
            goes_on = errno == EAGAIN && poll(&writable, 1, (int)PATIENCE_MS) == 1 &&
                      (writable.revents & (POLLERR | POLLHUP)) == 0;
    }
    many.length = 0;
    return goes_on;
}

static bool add_message(struct access_peer *peer, uint8_t type, const void *bytes, uint32_t length)
{
    bool goes_on = true;

    if (many.length + CONTROL_HEADER_BYTES + length > sizeof many.bytes)
        goes_on = say_many(peer);
    control_header_write(type, length, many.bytes + many.length);
    memcpy(many.bytes + many.length + CONTROL_HEADER_BYTES, bytes, length);
    many.length += CONTROL_HEADER_BYTES + length;
    return goes_on;
}

static bool add_number(struct access_peer *peer, uint8_t type, uint64_t number)
{
    const uint64_t wire = htole64(number);

    return add_message(peer, type, &wire, sizeof wire);
}

static void add_bind(struct access_peer *peer, uint32_t number)
{
    const struct access_bind bind = bind_of(peer, number, window);
    uint8_t bytes[ACCESS_BIND_BYTES];

    access_bind_write(&bind, bytes);
    add_message(peer, ACCESS_BIND, bytes, sizeof bytes);
}

/* --- floods ---------------------------------------------------------------------------------- */

/* Every number stands for the window, which is closed as fast as ever. */
TEST(test_all_numbers)
{
    struct access_peer peer;
    size_t before;

    floods_begin(&peer);
    before = used_memory();
    for (uint32_t i = 1; i < MOST_NUMBERS; i++)
        add_bind(&peer, i);
    say_many(&peer);
    must_serve(&peer, MOST_NUMBERS - 1, 5, POISON);
    assert_true(used_memory() - before <= MOST_HELD);
    must_close(&window);
    for (uint32_t i = 0; i < MOST_NUMBERS; i++)
        add_number(&peer, ACCESS_UNBIND, i);
    say_many(&peer);
    must_be_heard(&peer);
    assert_true(SANITIZED || used_memory() <= before + MOST_HELD / 8);
    world_close(&peer);
}

/* The same number again and again, also while an access uses what it stood for. */
TEST(test_numbers_again)
{
    struct access_peer peer;
    size_t before;

    floods_begin(&peer);
    must_be_heard(&peer);
    before = used_memory();
    for (uint32_t i = 0; i < FLOOD; i++) {
        if (i == FLOOD / 2)
            say_access(&peer, ACCESS_WRITE, GOOD, 0, 100);
        say_number(&peer, ACCESS_UNBIND, GOOD);
        say_bind(&peer, GOOD, window);
    }
    must_be_heard(&peer);
    assert_true(SANITIZED || used_memory() <= before + MOST_HELD / 8);
    must_close(&window);
    put_slice(&peer, 1, 100, 0, 100, 0x66);
    hear_answer(&peer, 1, TCPX_INVALID_USAGE, "the window was closed");
    world_close(&peer);
}

/* Reads that the peer never says to be over. */
TEST(test_accesses_without_end)
{
    struct access_peer peer;
    uint8_t byte;

    floods_begin(&peer);
    for (int i = 0; i <= 2 * MOST_ACCESSES; i++) {
        struct access_head head = next_head(&peer, ACCESS_READ, 1, 1);

        head.has_note = true;
        say_head(&peer, &head, &(struct access_item){GOOD, 0, 1}, 1);
        if (i < 2 * MOST_ACCESSES)
            take_bytes(&peer, head.place, &byte, 1);
    }
    must_break(&peer, "more than 2048 accesses");
    world_close(&peer);
}

/* Writes whose bytes never come. */
TEST(test_writes_without_bytes)
{
    struct access_peer peer;

    floods_begin(&peer);
    for (int i = 0; i <= 2 * MOST_ACCESSES; i++)
        say_access(&peer, ACCESS_WRITE, GOOD, 0, 100);
    must_break(&peer, "more than 2048 accesses");
    world_close(&peer);
}

static void say_long_list(struct access_peer *peer, uint64_t bytes)
{
    static struct access_item items[ACCESS_MORE_ITEMS];
    const struct access_head head = next_head(peer, ACCESS_WRITE, bytes, MOST_PARTS);

    for (size_t i = 0; i < COUNT_OF(items); i++)
        items[i] = (struct access_item){GOOD, i * 2, bytes / MOST_PARTS};
    say_head(peer, &head, NULL, 0);
    for (size_t left = MOST_PARTS; left > 0;) {
        size_t count = left < COUNT_OF(items) ? left : COUNT_OF(items);

        say_more(peer, items, count);
        left -= count;
    }
}

/* As many parts as there can be, several times; the last one is too many. */
TEST(test_parts_without_end)
{
    enum { LISTS = 2 * MOST_PARTS_HELD / MOST_PARTS };
    const bool is_large = number_of("TCPX_TEST_LARGE", 0) != 0;
    struct access_peer peer;
    size_t before = used_memory();

    floods_begin(&peer);
    for (int i = 0; i < (is_large ? LISTS : 1); i++)
        say_long_list(&peer, MOST_PARTS);
    must_be_heard(&peer);
    assert_true(used_memory() - before <= (size_t)2 * MOST_HELD);
    if (is_large) {
        say_long_list(&peer, MOST_PARTS);
        must_break(&peer, "accesses or 4194304 parts of them");
    } else {
        must_close(&window);
        hear_answer(&peer, 1, TCPX_INVALID_USAGE, "the window was closed");
    }
    world_close(&peer);
}

/* Answers that nobody reads. */
TEST(test_cancels_without_end)
{
    struct access_peer peer;
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);

    floods_begin(&peer);
    socket_set_buffer(control_fd(peer.control), SO_RCVBUF, 1);
    while (add_number(&peer, ACCESS_CANCEL, 0))
        assert_false(deadline_passed(deadline));
    many.length = 0;
    must_have_failed(&peer, "127.0.0.1"); /* it does not read, or its kernel does not answer */
    world_close(&peer);
}

/* What is said on the control connection goes nowhere. */
static void skip_answers(struct access_peer *peer)
{
    uint8_t bytes[16384];

    while (recv(control_fd(peer->control), bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        continue;
}

/* Reads that are refused, whose places end, and nobody reads that: then they have to wait. */
TEST(test_refusals_without_end)
{
    struct access_peer peer;
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);
    bool goes_on = true;
    size_t before;

    floods_begin(&peer);
    before = used_memory();
    while (goes_on) {
        const struct access_head head = next_head(&peer, ACCESS_READ, 100, 1);
        uint8_t bytes[ACCESS_HEAD_BYTES + ACCESS_ITEM_BYTES];

        access_head_write(&head, bytes);
        access_item_write(&(struct access_item){NEVER, 0, 100}, bytes + ACCESS_HEAD_BYTES);
        goes_on = add_message(&peer, ACCESS_BEGIN, bytes, sizeof bytes);
        skip_answers(&peer);
        assert_false(deadline_passed(deadline));
    }
    many.length = 0;
    must_have_failed(&peer, "127.0.0.1"); /* as above, or too many of them wait */
    assert_true(SANITIZED || used_memory() <= before + MOST_HELD);
    world_close(&peer);
}

SUITE(.name = "floods of peers that access windows", .set_up = access_set_up,
      .tear_down = access_tear_down);
