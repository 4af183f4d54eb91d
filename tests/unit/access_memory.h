/*
 * Memory of windows in tests of peers that do what they may not: a page of poison, the window, and
 * a page that cannot be touched, with a copy of what should be there; and two sessions between this
 * process and itself, which go on whatever happens to another one.
 */
#ifndef TCPX_TESTS_ACCESS_MEMORY_H
#define TCPX_TESTS_ACCESS_MEMORY_H

#include "tests/limit.h"
#include "tests/support/guard_page.h"
#include "tests/support/pair.h"

#include "tcpx.h"

#include <pthread.h>

enum { WINDOW_BYTES = 3 * 65536, MARGIN = 4096, POISON = 0xe1, RELEASED = 0xdd };

static uint8_t *window_memory;                         /* of the windows, all of them */
static uint8_t window_expected[MARGIN + WINDOW_BYTES]; /* the margin before it, too */

/* Of a suite, and before each test. */
static inline void memory_make(void)
{
    uint8_t *end = guard_page_after(MARGIN + WINDOW_BYTES);

    assert_non_null(end);
    window_memory = end - WINDOW_BYTES;
}

static inline void memory_poison(void)
{
    memset(window_expected, POISON, sizeof window_expected);
    memcpy(window_memory - MARGIN, window_expected, sizeof window_expected);
}

/* From now on this is there. */
static inline void memory_expect(uint64_t at, uint64_t bytes, uint8_t byte)
{
    memset(window_expected + MARGIN + at, byte, bytes);
}

/* The program uses it for something else. */
static inline void memory_reuse(uint64_t at, uint64_t bytes)
{
    memory_expect(at, bytes, RELEASED);
    memset(window_memory + at, RELEASED, bytes);
}

static inline void memory_check(void)
{
    const uint8_t *seen = window_memory - MARGIN;

    for (size_t i = 0; i < sizeof window_expected; i++)
        if (seen[i] != window_expected[i])
            fail_msg("byte %zd of the window is 0x%02x instead of 0x%02x", (ssize_t)i - MARGIN,
                     seen[i], window_expected[i]);
}

/* --- sessions that go on --------------------------------------------------------------------- */

static struct {
    struct tcpx_session *sessions[2];
    struct tcpx_window *windows[2];
    struct tcpx_remote *remote; /* the second window, in the first session */
    uint8_t memory[2][30000];
    struct tcpx_session_listener *listener;
} bystanders;

static inline void *accept_bystander(void *argument)
{
    int *result = argument;

    *result = tcpx_session_accept(bystanders.listener, (int)LIMIT_MS, &bystanders.sessions[1]);
    return NULL;
}

static inline void bystanders_open(const struct tcpx_session_options *options)
{
    uint8_t key[TCPX_KEY_BYTES];
    pthread_t thread;
    int accepted;
    int port;

    assert_success(tcpx_session_listen("127.0.0.1", 0, options, &bystanders.listener));
    assert_success(tcpx_session_port(bystanders.listener, &port));
    assert_int_equal(pthread_create(&thread, NULL, accept_bystander, &accepted), 0);
    assert_success(
        tcpx_session_connect("127.0.0.1", port, options, (int)LIMIT_MS, &bystanders.sessions[0]));
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_success(accepted);
    tcpx_session_stop_listening(bystanders.listener);
    for (int i = 0; i < 2; i++)
        assert_success(tcpx_window_open(-1, bystanders.memory[i], sizeof bystanders.memory[i],
                                        TCPX_WINDOW_READ | TCPX_WINDOW_WRITE,
                                        &bystanders.windows[i]));
    assert_success(tcpx_window_key(bystanders.windows[1], key));
    assert_success(tcpx_remote_open(bystanders.sessions[0], key, sizeof key, &bystanders.remote));
}

/* There and back, through other memory than before. */
static inline void bystanders_check(void)
{
    static uint8_t turn;
    const uint64_t half = sizeof bystanders.memory[0] / 2;
    struct tcpx_part part = {bystanders.windows[0], 0, bystanders.remote, half, half};
    const struct tcpx_access access = {.parts = &part, .part_count = 1};
    struct tcpx_transfer *transfer;

    memset(bystanders.memory[0], ++turn, half);
    assert_success(tcpx_write(bystanders.sessions[0], &access, &transfer));
    assert_success(tcpx_transfer_wait(transfer, (int)LIMIT_MS));
    part.offset = half;
    assert_success(tcpx_read(bystanders.sessions[0], &access, &transfer));
    assert_success(tcpx_transfer_wait(transfer, (int)LIMIT_MS));
    assert_memory_equal(bystanders.memory[0], bystanders.memory[0] + half, half);
}

static inline void bystanders_close(void)
{
    for (int i = 0; i < 2; i++) {
        assert_success(tcpx_window_close(bystanders.windows[i], (int)LIMIT_MS));
        tcpx_session_close(bystanders.sessions[i]);
    }
}

#endif
