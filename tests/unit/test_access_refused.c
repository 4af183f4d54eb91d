/*
 * Accesses of a peer that are not allowed: each is refused alone, in words, its bytes go nowhere,
 * and the session goes on. And bytes that a peer sends to places where they may not go.
 */
#include "tests/unit/access_says.h"

enum { GOOD, READ_ONLY, WRITE_ONLY, PRIVATE, GONE, REFUSED, UNBOUND, NEVER = 40000 };

static struct tcpx_window *others[PRIVATE + 1]; /* by their numbers; the first one is none */

static int accesses_of(int number)
{
    return number == READ_ONLY ? TCPX_WINDOW_READ : number == WRITE_ONLY ? TCPX_WINDOW_WRITE : 0;
}

/* A session and one window, bound as 0. */
static void open_with_window(struct access_peer *peer)
{
    world_open(peer);
    say_bind(peer, GOOD, window);
    must_begin(peer);
}

/* --- refusals ------------------------------------------------------------------------------ */

#define TO(number, offset, bytes)                                                                  \
    {                                                                                              \
        number, offset, bytes                                                                      \
    }

static const struct {
    const char *test;
    struct access_item items[2]; /* the second one may have no bytes */
    enum access_kind kind;       /* 0: both */
    const char *words;
} refusals[] = {
    {"test_number_never_bound", {TO(NEVER, 0, 100)}, 0, "no such window"},
    {"test_number_impossible", {TO(UINT32_MAX, 0, 100)}, 0, "no such window"},
    {"test_number_given_up", {TO(UNBOUND, 0, 100)}, 0, "no such window"},
    {"test_wrong_key", {TO(REFUSED, 0, 100)}, 0, "no such window, or a wrong key"},
    {"test_window_gone", {TO(GONE, 0, 100)}, 0, "closed"},
    {"test_rights", {TO(READ_ONLY, 0, 100)}, ACCESS_WRITE, "the window cannot be written"},
    {"test_rights", {TO(WRITE_ONLY, 0, 100)}, ACCESS_READ, "the window cannot be read"},
    {"test_rights", {TO(PRIVATE, 0, 100)}, ACCESS_WRITE, "the window cannot be written"},
    {"test_rights", {TO(PRIVATE, 0, 100)}, ACCESS_READ, "the window cannot be read"},
    {"test_bounds", {TO(GOOD, WINDOW_BYTES, 1)}, 0, "are not in a window"},
    {"test_bounds", {TO(GOOD, WINDOW_BYTES - 99, 100)}, 0, "are not in a window"},
    {"test_bounds", {TO(GOOD, 0, WINDOW_BYTES + 1)}, 0, "are not in a window"},
    {"test_bounds", {TO(GOOD, UINT64_MAX, 2)}, 0, "are not in a window"},
    {"test_bounds", {TO(GOOD, UINT64_MAX - 99, 100)}, 0, "are not in a window"},
    {"test_bounds", {TO(GOOD, (uint64_t)1 << 63, 100)}, 0, "are not in a window"},
    {"test_bounds_without_bytes", {TO(GOOD, UINT64_MAX, 0), TO(GOOD, 0, 10)}, 0, "not in a window"},
    {"test_second_part", {TO(GOOD, 0, 100), TO(GOOD, WINDOW_BYTES, 1)}, 0, "are not in a window"},
    {"test_second_part", {TO(GOOD, 0, 100), TO(READ_ONLY, 0, 1)}, ACCESS_WRITE, "be written"},
    {"test_second_part", {TO(GOOD, 0, 100), TO(NEVER, 0, 1)}, 0, "no such window"},
    {"test_second_part", {TO(GOOD, 0, 100), TO(REFUSED, 0, 1)}, 0, "a wrong key"},
};

static void bind_others(struct access_peer *peer)
{
    struct tcpx_window *gone;
    struct access_bind wrong = bind_of(peer, REFUSED, window);

    for (int i = READ_ONLY; i <= PRIVATE; i++) {
        assert_success(
            tcpx_window_open(-1, window_memory, WINDOW_BYTES, accesses_of(i), &others[i]));
        say_bind(peer, (uint32_t)i, others[i]);
    }
    assert_success(tcpx_window_open(-1, window_memory, WINDOW_BYTES, 3, &gone));
    say_bind(peer, GONE, gone);
    must_serve(peer, GOOD, 7, POISON);
    must_close(&gone);
    wrong.proof[0] ^= 0x80;
    say_this_bind(peer, &wrong);
    say_bind(peer, UNBOUND, window);
    say_number(peer, ACCESS_UNBIND, UNBOUND);
}

/* Both of its bytes and its end may come at any time. */
static void must_refuse(struct access_peer *peer, const struct access_item *items,
                        enum access_kind kind, const char *words)
{
    uint64_t bytes = items[0].bytes + items[1].bytes;
    bool is_two = items[1].bytes > 0;
    struct access_head head = next_head(peer, kind, bytes, is_two ? 2 : 1);

    head.has_note = true;
    head.note_bytes = 10;
    say_head(peer, &head, items, is_two ? 2 : 1);
    hear_answer(peer, head.id, TCPX_INVALID_USAGE, words);
    if (kind == ACCESS_READ)
        take_end(peer, head.place);
    else if (bytes <= WINDOW_BYTES + 1 && head.id % 2 == 0)
        put_slice(peer, head.place, bytes, 0, bytes, 0x66);
    else
        put_end(peer, head.place, 0);
}

TABLE_TEST(refusals)
{
    struct access_peer peer;

    open_with_window(&peer);
    bind_others(&peer);
    for (int kind = ACCESS_WRITE; kind <= ACCESS_READ; kind++)
        for (int again = 0; again < 2 && (row->kind == 0 || (int)row->kind == kind); again++)
            must_refuse(&peer, row->items, (enum access_kind)kind, row->words);
    memory_check();
    must_serve(&peer, GOOD, WINDOW_BYTES - 1, 0x33);
    memory_expect(WINDOW_BYTES - 1, 1, 0x33);
    for (int i = READ_ONLY; i <= PRIVATE; i++)
        must_close(&others[i]);
    world_close(&peer);
}

/* Not in a session without a GPU, and not together with host memory. */
TEST(test_windows_of_gpus)
{
    enum { BYTES = 4096 };
    uint8_t bytes[BYTES];
    uint8_t seen[BYTES];
    void *memory;

    memset(bytes, POISON, sizeof bytes);
    assert_success(tcpx_gpu_alloc(0, BYTES, &memory));
    for (int gpu = -1; gpu <= 0; gpu++) {
        const struct tcpx_session_options options = access_options(gpu, 1);
        const struct access_item items[3] = {TO(GOOD, 0, 100), TO(1, 0, 100)};
        struct tcpx_window *on_gpu;
        struct access_peer peer;

        memory_poison();
        assert_success(tcpx_gpu_write(memory, bytes, sizeof bytes));
        assert_success(tcpx_window_open(-1, window_memory, WINDOW_BYTES, 3, &window));
        assert_success(tcpx_window_open(0, memory, BYTES, 3, &on_gpu));
        peer_open(&peer, &options);
        say_bind(&peer, GOOD, window);
        say_bind(&peer, 1, on_gpu);
        must_begin(&peer);
        for (int kind = ACCESS_WRITE; kind <= ACCESS_READ; kind++)
            must_refuse(&peer, gpu == 0 ? items : items + 1, (enum access_kind)kind,
                        gpu == 0 ? "in GPU memory and in host memory" : "for host memory only");
        if (gpu == 0)
            must_serve(&peer, 1, 0, POISON);
        must_close(&on_gpu);
        assert_success(tcpx_gpu_read(seen, memory, sizeof seen));
        assert_memory_equal(seen, bytes, sizeof seen);
        world_close(&peer);
    }
    assert_success(tcpx_gpu_free(memory));
}

/* No note of an access that was refused, and its credit comes back. */
TEST(test_notes_of_refusals)
{
    struct access_peer peer;
    uint8_t note[TCPX_NOTE_BYTES];
    uint64_t taken = 0;
    size_t bytes;
    int there;

    open_with_window(&peer);
    for (uint64_t charged = 0; charged < (uint64_t)3 * MOST_NOTES;) {
        struct access_head head = next_head(&peer, ACCESS_WRITE, 0, 1);

        head.has_note = true;
        head.note_bytes = TCPX_NOTE_BYTES;
        charged += TCPX_NOTE_BYTES + NOTE_CHARGE;
        say_head(&peer, &head, &(struct access_item){NEVER, 0, 0}, 1);
        hear_answer(&peer, head.id, TCPX_INVALID_USAGE, "no such window");
        if (charged - taken >= MOST_NOTES / 4) {
            uint64_t sum;

            assert_int_equal(hear(&peer, ACCESS_TAKEN, &sum, sizeof sum), sizeof sum);
            assert_int_equal(le64toh(sum), charged);
            taken = charged;
        }
    }
    assert_success(tcpx_note_take(peer.session, note, sizeof note, &bytes, &there));
    assert_int_equal(there, 0);
    world_close(&peer);
}

/* --- proofs ---------------------------------------------------------------------------------- */

static void must_refuse_bind(struct access_peer *peer, const struct access_bind *bind)
{
    struct access_head head;

    say_this_bind(peer, bind);
    head = say_access(peer, ACCESS_WRITE, bind->number, 0, 100);
    put_slice(peer, head.place, 100, 0, 100, 0x66);
    hear_answer(peer, head.id, TCPX_INVALID_USAGE, "no such window, or a wrong key");
}

/* Proofs that somebody has made who has the key, but for something else; and guesses. */
TEST(test_proofs)
{
    struct access_peer peer;
    struct window_key key;
    struct access_bind bind;
    uint8_t zeros[WINDOW_SECRET_BYTES] = {0};

    open_with_window(&peer);
    key = key_of(window);
    for (uint32_t i = 1; i <= 7; i++) {
        struct proof_of of = {peer.mine.nonce, peer.theirs.nonce, key.id, i};

        bind = (struct access_bind){.number = i, .id = key.id};
        if (i == 1)
            of.number = 2; /* of another number */
        if (i == 2) {      /* of the other direction */
            of.asks = peer.theirs.nonce;
            of.serves = peer.mine.nonce;
        }
        if (i == 3) /* of another session */
            of.serves = zeros;
        if (i == 4) /* of another window */
            of.id++;
        if (i == 5) /* of no window */
            bind.id = of.id = key.id + 1000;
        make_proof(&of, i >= 5 ? zeros : key.secret, bind.proof);
        if (i == 7)
            memset(bind.proof, 0, sizeof bind.proof);
        must_refuse_bind(&peer, &bind);
    }
    for (uint32_t i = 0; i < ACCESS_PROOF_BYTES; i++) {
        bind = bind_of(&peer, 100 + i, window);
        bind.proof[i] ^= (uint8_t)(1 << i % 8);
        must_refuse_bind(&peer, &bind);
    }
    must_serve(&peer, GOOD, 0, POISON);
    world_close(&peer);
}

/* --- bytes ----------------------------------------------------------------------------------- */

enum { PLACE_BYTES = 1000 };

static void put_to_none(struct access_peer *peer)
{
    put_slice(peer, 0, 10, 0, 10, 1);
}

static void put_far_ahead(struct access_peer *peer)
{
    put_slice(peer, 3 + NET_PLACES, 10, 0, 10, 1);
}

static void put_to_open_place(struct access_peer *peer)
{
    put_slice(peer, NET_OPEN_PLACE, 10, 0, 10, 1);
}

static void put_longer(struct access_peer *peer)
{
    put_slice(peer, 1, PLACE_BYTES + 1, PLACE_BYTES, 1, 1);
}

static void put_shorter(struct access_peer *peer)
{
    put_slice(peer, 1, PLACE_BYTES - 1, 0, 1, 1);
}

static void put_beyond(struct access_peer *peer)
{
    put_slice(peer, 1, PLACE_BYTES, PLACE_BYTES - 1, 2, 1);
}

static void put_twice(struct access_peer *peer)
{
    put_slice(peer, 1, PLACE_BYTES, 0, PLACE_BYTES / 2, POISON);
    put_slice(peer, 1, PLACE_BYTES, 0, PLACE_BYTES / 2 + 1, POISON);
}

static void put_after_the_end(struct access_peer *peer)
{
    put_slice(peer, 1, PLACE_BYTES, 0, PLACE_BYTES, POISON);
    hear_answer(peer, 1, TCPX_SUCCESS, "");
    put_slice(peer, 1, PLACE_BYTES, 0, 1, 1);
}

static void put_end_of_all(struct access_peer *peer)
{
    put_end(peer, 1, PLACE_BYTES);
}

static void put_end_twice(struct access_peer *peer)
{
    put_slice(peer, 1, PLACE_BYTES, 0, 10, POISON);
    put_end(peer, 1, 20);
    put_end(peer, 1, 20);
}

static void put_beyond_the_end(struct access_peer *peer)
{
    put_end(peer, 1, 20);
    put_slice(peer, 1, PLACE_BYTES, 0, 21, 1);
}

static const struct {
    const char *test;
    void (*put)(struct access_peer *peer);
} bytes_that_may_not_be[] = {
    {"test_bytes_to_no_place", put_to_none},
    {"test_bytes_to_no_place", put_far_ahead},
    {"test_bytes_to_no_place", put_to_open_place},
    {"test_bytes_of_another_length", put_longer},
    {"test_bytes_of_another_length", put_shorter},
    {"test_bytes_beyond", put_beyond},
    {"test_bytes_twice", put_twice},
    {"test_bytes_after_the_end", put_after_the_end},
    {"test_ends_that_cannot_be", put_end_of_all},
    {"test_ends_that_cannot_be", put_end_twice},
    {"test_ends_that_cannot_be", put_beyond_the_end},
};

TABLE_TEST(bytes_that_may_not_be)
{
    struct access_peer peer;

    open_with_window(&peer);
    say_access(&peer, ACCESS_WRITE, GOOD, WINDOW_BYTES - PLACE_BYTES, PLACE_BYTES);
    row->put(&peer);
    say_access(&peer, ACCESS_WRITE, GOOD, 0, 1); /* a session looks at a channel that it uses */
    must_break(&peer, "broke the protocol");
    world_close(&peer);
}

SUITE(.name = "accesses of peers that are refused", .set_up = access_set_up,
      .tear_down = access_tear_down);
