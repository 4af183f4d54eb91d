/*
 * What a peer by hand (access_peer.h) says of one-sided access, and puts on the sockets of the
 * channel; what it hears; and what must hold whatever that was. Around the window that it may reach
 * lies memory that it may not, and two sessions of their own show that nobody else is harmed
 * (access_memory.h).
 */
#ifndef TCPX_TESTS_ACCESS_SAYS_H
#define TCPX_TESTS_ACCESS_SAYS_H

#include "tests/support/comm_inside.h"
#include "tests/unit/access_memory.h"
#include "tests/unit/access_peer.h"

#include "session/access.h"

#include <poll.h>

/* --- one-sided access ---------------------------------------------------------------------- */

/* By whom a proof is made, and for what. */
struct proof_of {
    const uint8_t *asks;
    const uint8_t *serves;
    uint64_t id;
    uint32_t number;
};

static inline void make_proof(const struct proof_of *of, const uint8_t *secret, uint8_t *proof)
{
    const uint64_t id = htole64(of->id);
    const uint32_t number = htole32(of->number);
    uint8_t context[44];

    memcpy(context, of->asks, 16);
    memcpy(context + 16, of->serves, 16);
    memcpy(context + 32, &id, sizeof id);
    memcpy(context + 40, &number, sizeof number);
    window_proof(secret, context, sizeof context, proof);
}

static inline struct window_key key_of(const struct tcpx_window *window)
{
    uint8_t bytes[TCPX_KEY_BYTES];
    struct window_key key;

    assert_success(tcpx_window_key(window, bytes));
    assert_success(window_key_read(bytes, sizeof bytes, &key));
    return key;
}

/* As an honest peer makes it; a test may spoil it before it is said. */
static inline struct access_bind bind_of(const struct access_peer *peer, uint32_t number,
                                         const struct tcpx_window *window)
{
    const struct window_key key = key_of(window);
    struct access_bind bind = {.number = number, .id = key.id};

    make_proof(&(struct proof_of){peer->mine.nonce, peer->theirs.nonce, key.id, number}, key.secret,
               bind.proof);
    return bind;
}

static inline void say_this_bind(struct access_peer *peer, const struct access_bind *bind)
{
    uint8_t bytes[ACCESS_BIND_BYTES];

    access_bind_write(bind, bytes);
    say(peer, ACCESS_BIND, bytes, sizeof bytes);
}

static inline void say_bind(struct access_peer *peer, uint32_t number,
                            const struct tcpx_window *window)
{
    const struct access_bind bind = bind_of(peer, number, window);

    say_this_bind(peer, &bind);
}

/* The head as it is, its note, some parts, and so many bytes behind them. */
static inline void say_inline(struct access_peer *peer, const struct access_head *head,
                              const struct access_item *items, size_t count, size_t data,
                              uint8_t byte)
{
    static uint8_t bytes[CONTROL_LARGEST];
    size_t length = ACCESS_HEAD_BYTES;

    access_head_write(head, bytes);
    memset(bytes + length, 'n', head->note_bytes);
    length += head->note_bytes;
    for (size_t i = 0; i < count; i++, length += ACCESS_ITEM_BYTES)
        access_item_write(&items[i], bytes + length);
    memset(bytes + length, byte, data);
    say(peer, ACCESS_BEGIN, bytes, length + data);
}

static inline void say_head(struct access_peer *peer, const struct access_head *head,
                            const struct access_item *items, size_t count)
{
    say_inline(peer, head, items, count, 0, 0);
}

static inline void say_more(struct access_peer *peer, const struct access_item *items, size_t count)
{
    static uint8_t bytes[CONTROL_LARGEST];

    for (size_t i = 0; i < count; i++)
        access_item_write(&items[i], bytes + i * ACCESS_ITEM_BYTES);
    say(peer, ACCESS_MORE, bytes, count * ACCESS_ITEM_BYTES);
}

/* As the next access of an honest peer would begin; its id and its place are taken. */
static inline struct access_head next_head(struct access_peer *peer, enum access_kind kind,
                                           uint64_t bytes, uint32_t items)
{
    struct access_head head = {.id = peer->next_id++, .kind = kind, .bytes = bytes, .items = items};

    if (bytes > 0)
        head.place = kind == ACCESS_WRITE ? peer->next_place++ : NET_OPEN_PLACE + (uint32_t)head.id;
    return head;
}

/* One part: its head, of which the id and the place are wanted later. */
static inline struct access_head say_access(struct access_peer *peer, enum access_kind kind,
                                            uint32_t number, uint64_t offset, uint64_t bytes)
{
    const struct access_head head = next_head(peer, kind, bytes, 1);

    say_head(peer, &head, &(struct access_item){number, offset, bytes}, 1);
    return head;
}

static inline void hear_answer(struct access_peer *peer, uint64_t id, int result, const char *words)
{
    uint8_t bytes[ACCESS_ANSWER_BYTES];
    struct access_answer answer;
    size_t length = hear(peer, ACCESS_ANSWER, bytes, sizeof bytes);

    assert_success(access_answer_read(bytes, length, &answer));
    assert_int_equal(answer.id, id);
    if (answer.result != result)
        fail_msg("an answer with %d instead of %d: %s", answer.result, result, answer.text);
    expect_part(answer.text, words);
}

/* --- bytes --------------------------------------------------------------------------------- */

/* A slice of a message to a place, of which so many bytes are put. */
static inline void put_slice(struct access_peer *peer, uint32_t place, uint64_t total,
                             uint64_t offset, uint64_t length, uint8_t byte)
{
    uint8_t *bytes = malloc(length + 1);

    assert_non_null(bytes);
    memset(bytes, byte, length);
    hand_say(peer->to.forward[0], &(struct wire_record){.type = WIRE_SLICE,
                                                        .flags = WIRE_TO_PLACE,
                                                        .sequence = place,
                                                        .offset = offset,
                                                        .length = length,
                                                        .tag = total});
    hand_put(peer->to.forward[0], bytes, length);
    free(bytes);
}

static inline void put_end(struct access_peer *peer, uint32_t place, uint64_t bytes)
{
    hand_say(peer->to.forward[0], &(struct wire_record){.type = WIRE_CANCELLED,
                                                        .flags = WIRE_TO_PLACE,
                                                        .sequence = place,
                                                        .length = bytes});
}

/* A slice that says more than is put of it. */
static inline void put_part_of_slice(struct access_peer *peer, uint32_t place, uint64_t total,
                                     uint64_t length, uint64_t bytes, uint8_t byte)
{
    uint8_t put[1000];

    assert_true(bytes <= sizeof put);
    memset(put, byte, bytes);
    hand_say(peer->to.forward[0], &(struct wire_record){.type = WIRE_SLICE,
                                                        .flags = WIRE_TO_PLACE,
                                                        .sequence = place,
                                                        .length = length,
                                                        .tag = total});
    hand_put(peer->to.forward[0], put, bytes);
}

/* Exactly so many bytes that the tested side has sent on its socket. */
static inline void take_raw(struct access_peer *peer, void *into, size_t bytes)
{
    const int fd = peer->from.forward[0];
    size_t have = 0;

    while (have < bytes) {
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        ssize_t got;

        assert_int_equal(poll(&readable, 1, (int)PATIENCE_MS), 1);
        got = recv(fd, (uint8_t *)into + have, bytes - have, MSG_DONTWAIT);
        assert_true(got > 0);
        have += (size_t)got;
    }
}

static inline struct wire_record take_record(struct access_peer *peer)
{
    uint8_t raw[WIRE_RECORD_BYTES];
    struct wire_record record;

    take_raw(peer, raw, sizeof raw);
    assert_int_equal(wire_record_read(raw, WIRE_FORWARD, &record), WIRE_FINE);
    return record;
}

/* What the tested side has sent to a place: exactly these bytes, in one piece or several. */
static inline void take_bytes(struct access_peer *peer, uint32_t place, uint8_t *into,
                              uint64_t bytes)
{
    uint64_t have = 0;

    while (have < bytes) {
        const struct wire_record record = take_record(peer);

        assert_true(record.type == WIRE_EAGER || record.type == WIRE_SLICE);
        assert_int_equal(record.sequence, place);
        assert_true(record.offset + record.length <= bytes);
        take_raw(peer, into + record.offset, record.length);
        have += record.length;
    }
}

/* That a place gets none, or no more. */
static inline void take_end(struct access_peer *peer, uint32_t place)
{
    const struct wire_record record = take_record(peer);

    assert_int_equal(record.type, WIRE_CANCELLED);
    assert_int_equal(record.sequence, place);
}

/* --- what must hold ------------------------------------------------------------------------ */

/* The program is told that the session has ended, in these words. */
static inline void must_have_failed(struct access_peer *peer, const char *words)
{
    static uint8_t note[TCPX_NOTE_BYTES];
    int result = TCPX_SUCCESS;
    size_t length;
    int there;

    until(result != TCPX_SUCCESS,
          result = tcpx_note_take(peer->session, note, sizeof note, &length, &there));
    assert_int_equal(result, TCPX_REMOTE_ERROR);
    expect_text(words);
}

/* The session has ended; the peer was told why, in these words, and so is the program. */
static inline void must_break(struct access_peer *peer, const char *words)
{
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);
    static uint8_t bytes[CONTROL_LARGEST];
    uint8_t type;
    size_t length;

    while (control_await(peer->control, "a refusal", &type, bytes, sizeof bytes, &length,
                         deadline) == TCPX_SUCCESS)
        continue;
    expect_text("refused: ");
    expect_text(words);
    must_have_failed(peer, words);
}

/* An access that has ended, for must_be_heard(). */
static inline void must_begin(struct access_peer *peer)
{
    const struct access_head head = next_head(peer, ACCESS_WRITE, 0, 0);

    assert_int_equal(head.id, 0);
    say_head(peer, &head, NULL, 0);
    hear_answer(peer, 0, TCPX_SUCCESS, "");
}

/* The tested side has read all that was said, for it has answered what was said last. */
static inline void must_be_heard(struct access_peer *peer)
{
    say_number(peer, ACCESS_CANCEL, 0);
    hear_number(peer, ACCESS_CANCELLED, 0);
}

/* So many bytes more than before have been taken from the socket. */
static inline void must_arrive(struct access_peer *peer, uint64_t bytes)
{
    struct net_comm *comm = session_channel(peer->session, RECEIVING, 0)->builtin;

    until(inside_received(comm, 0) >= bytes, nap_us(100));
}

/* Its accesses go on: a write of one byte is done, and one is read. */
static inline void must_serve(struct access_peer *peer, uint32_t number, uint64_t at, uint8_t byte)
{
    struct access_head head = say_access(peer, ACCESS_WRITE, number, at, 1);
    uint8_t seen = 0;

    put_slice(peer, head.place, 1, 0, 1, byte);
    hear_answer(peer, head.id, TCPX_SUCCESS, "");
    head = say_access(peer, ACCESS_READ, number, at, 1);
    take_bytes(peer, head.place, &seen, 1);
    assert_int_equal(seen, byte);
}

/* Closes a window, which takes no peer. */
static inline void must_close(struct tcpx_window **window)
{
    uint64_t start = now_ms();

    assert_success(tcpx_window_close(*window, (int)AT_ONCE_MS));
    assert_true(now_ms() - start <= AT_ONCE_MS);
    *window = NULL;
}

/* --- a session with a window ----------------------------------------------------------------- */

static struct tcpx_window *window; /* over all of the memory; NULL: it is closed */

/* The session, and the window, which the peer has not bound. */
static inline void world_open(struct access_peer *peer)
{
    const struct tcpx_session_options options = access_options(-1, 1);

    memory_poison();
    assert_success(tcpx_window_open(-1, window_memory, WINDOW_BYTES,
                                    TCPX_WINDOW_READ | TCPX_WINDOW_WRITE, &window));
    peer_open(peer, &options);
}

static inline void world_close(struct access_peer *peer)
{
    memory_check();
    if (window != NULL)
        must_close(&window);
    peer_close(peer);
    memory_check();
    bystanders_check();
}

/* --- suites -------------------------------------------------------------------------------- */

static inline int access_set_up(void)
{
    const struct tcpx_session_options options = access_options(-1, 1);

    setenv("UCCL_TCPX_GPU", "host", 0);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("UCCL_TCPX_SOCKETS", "1", 1);
    setenv("UCCL_TCPX_TIMEOUT_MS", "1000", 1);
    setenv("UCCL_TCPX_INLINE_BYTES", "0", 0);
    memory_make();
    bystanders_open(&options);
    return 0;
}

static inline int access_tear_down(void)
{
    bystanders_close();
    return 0;
}

#endif
