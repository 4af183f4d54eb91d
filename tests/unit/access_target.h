/*
 * A peer by hand whose windows this side reads and writes: what begins an access here, what the
 * peer hears of it, and how it ends.
 */
#ifndef TCPX_TESTS_ACCESS_TARGET_H
#define TCPX_TESTS_ACCESS_TARGET_H

#include "tests/unit/access_says.h"

static struct tcpx_remote *remote; /* of the peer, which has no such window */

static inline void open_target(struct access_peer *peer)
{
    uint8_t key[TCPX_KEY_BYTES];

    world_open(peer);
    assert_success(tcpx_window_key(window, key));
    assert_success(tcpx_remote_open(peer->session, key, sizeof key, &remote));
}

static inline struct tcpx_transfer *begin(struct access_peer *peer, bool is_read, uint64_t bytes,
                                          const char *note, int timeout_ms)
{
    const struct tcpx_part part = {window, 0, remote, 0, bytes};
    const struct tcpx_access access = {.parts = &part,
                                       .part_count = 1,
                                       .note = note,
                                       .note_bytes = note != NULL ? strlen(note) : 0,
                                       .timeout_ms = timeout_ms};
    struct tcpx_transfer *transfer;

    assert_success((is_read ? tcpx_read : tcpx_write)(peer->session, &access, &transfer));
    return transfer;
}

/* What the peer hears of an access: its head. */
static inline struct access_head hear_begin(struct access_peer *peer)
{
    uint8_t bytes[CONTROL_LARGEST];
    struct access_head head;
    const uint8_t *note;
    const uint8_t *items;
    size_t count;
    size_t length = hear(peer, ACCESS_BEGIN, bytes, sizeof bytes);

    assert_success(access_head_read(bytes, length, &head, &note, &items, &count));
    assert_int_equal(count, head.items);
    return head;
}

static inline struct access_head hear_first(struct access_peer *peer)
{
    uint8_t bytes[ACCESS_BIND_BYTES];

    assert_int_equal(hear(peer, ACCESS_BIND, bytes, sizeof bytes), sizeof bytes);
    return hear_begin(peer);
}

static inline void say_answer(struct access_peer *peer, uint64_t id, int result)
{
    const struct access_answer answer = {.id = id, .result = result, .text = "not today"};
    uint8_t bytes[ACCESS_ANSWER_BYTES];

    say(peer, ACCESS_ANSWER, bytes, access_answer_write(&answer, bytes));
}

static inline void must_end_with(struct tcpx_transfer *transfer, int result, const char *words)
{
    int seen = tcpx_transfer_wait(transfer, (int)PATIENCE_MS);

    if (seen != result)
        fail_msg("%s instead of %s: %s", tcpx_result_name(seen), tcpx_result_name(result),
                 tcpx_last_error());
    if (words[0] != '\0')
        expect_text(words);
}

#endif
