/*
 * Accesses of a peer that are not allowed: each is refused alone, in words, its bytes go nowhere,
 * and the session goes on. Windows that are closed while a peer is silent in some stage of an
 * access, whatever it sends afterwards; and bytes that a peer sends to places where they may not
 * go.
 */
#include "tests/unit/access_peer.h"

enum { GOOD, READ_ONLY, WRITE_ONLY, PRIVATE, GONE, REFUSED, UNBOUND, NEVER = 40000 };

static struct tcpx_window *window;              /* NULL: it is closed */
static struct tcpx_window *others[PRIVATE + 1]; /* by their numbers; the first one is none */

static int accesses_of(int number)
{
    return number == READ_ONLY ? TCPX_WINDOW_READ : number == WRITE_ONLY ? TCPX_WINDOW_WRITE : 0;
}

/* A session and one window, bound as 0. */
static void open_with_window(struct access_peer *peer)
{
    const struct tcpx_session_options options = access_options(-1, 1);

    memory_poison();
    assert_success(tcpx_window_open(-1, window_memory, WINDOW_BYTES,
                                    TCPX_WINDOW_READ | TCPX_WINDOW_WRITE, &window));
    peer_open(peer, &options);
    say_bind(peer, GOOD, window);
    must_begin(peer);
}

static void close_all(struct access_peer *peer)
{
    memory_check();
    if (window != NULL)
        must_close(&window);
    peer_close(peer);
    memory_check();
    bystanders_check();
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
    close_all(&peer);
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
    close_all(&peer);
}

/* --- proofs ---------------------------------------------------------------------------------- */

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
        struct access_head head;

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
        say_this_bind(&peer, &bind);
        head = say_access(&peer, ACCESS_WRITE, i, 0, 100);
        put_slice(&peer, head.place, 100, 0, 100, 0x66);
        hear_answer(&peer, head.id, TCPX_INVALID_USAGE, "no such window, or a wrong key");
    }
    must_serve(&peer, GOOD, 0, POISON);
    close_all(&peer);
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
    close_all(&peer);
}

/* --- silence, and windows that are closed meanwhile ------------------------------------------ */

enum { LONG = WINDOW_BYTES - 100, HALF = LONG / 2 };

/* What the peer says when the window is closed: the rest, as it would have come. */
struct silence {
    const char *test;
    struct access_head (*stop)(struct access_peer *peer);
    void (*then)(struct access_peer *peer, const struct access_head *head);
    bool is_refused;
};

static struct access_head silent_when_bound(struct access_peer *peer)
{
    must_serve(peer, GOOD, 0, POISON);
    return (struct access_head){0};
}

static struct access_head silent_in_list(struct access_peer *peer)
{
    const struct access_head head = next_head(peer, ACCESS_WRITE, LONG, 2);

    say_head(peer, &head, &(struct access_item){GOOD, 0, HALF}, 1);
    return head;
}

static void then_list(struct access_peer *peer, const struct access_head *head)
{
    say_more(peer, &(struct access_item){GOOD, HALF, LONG - HALF}, 1);
    put_slice(peer, head->place, LONG, 0, LONG, 0x66);
}

static struct access_head silent_in_read_list(struct access_peer *peer)
{
    const struct access_head head = next_head(peer, ACCESS_READ, LONG, 2);

    say_head(peer, &head, &(struct access_item){GOOD, 0, HALF}, 1);
    return head;
}

static void then_read_list(struct access_peer *peer, const struct access_head *head)
{
    say_more(peer, &(struct access_item){GOOD, HALF, LONG - HALF}, 1);
    take_end(peer, head->place);
}

static struct access_head silent_before_bytes(struct access_peer *peer)
{
    return say_access(peer, ACCESS_WRITE, GOOD, 0, LONG);
}

static void then_bytes(struct access_peer *peer, const struct access_head *head)
{
    put_slice(peer, head->place, LONG, 0, LONG, 0x66);
}

/* In the middle of a slice, of which some bytes are in the window. */
static struct access_head silent_in_slice(struct access_peer *peer)
{
    const struct access_head head = say_access(peer, ACCESS_WRITE, GOOD, 0, LONG);
    uint8_t bytes[1000];

    memset(bytes, POISON, sizeof bytes);
    hand_say(peer->to.forward[0], &(struct wire_record){.type = WIRE_SLICE,
                                                        .flags = WIRE_TO_PLACE,
                                                        .sequence = head.place,
                                                        .length = HALF,
                                                        .tag = LONG});
    hand_put(peer->to.forward[0], bytes, sizeof bytes);
    must_arrive(peer, WIRE_RECORD_BYTES + sizeof bytes);
    return head;
}

static void then_slice(struct access_peer *peer, const struct access_head *head)
{
    static uint8_t bytes[LONG];

    hand_put(peer->to.forward[0], bytes, HALF - 1000);
    put_slice(peer, head->place, LONG, HALF, LONG - HALF, 0x66);
}

static struct access_head silent_between_slices(struct access_peer *peer)
{
    const struct access_head head = say_access(peer, ACCESS_WRITE, GOOD, 0, LONG);

    put_slice(peer, head.place, LONG, 0, HALF, POISON);
    must_arrive(peer, WIRE_RECORD_BYTES + HALF);
    return head;
}

static void then_end(struct access_peer *peer, const struct access_head *head)
{
    put_end(peer, head->place, HALF);
}

static const struct silence silences[] = {
    {"test_silent_when_bound", silent_when_bound, NULL, false},
    {"test_silent_in_list", silent_in_list, then_list, true},
    {"test_silent_in_list", silent_in_read_list, then_read_list, true},
    {"test_silent_before_bytes", silent_before_bytes, then_bytes, true},
    {"test_silent_before_bytes", silent_before_bytes, then_end, true},
    {"test_silent_in_slice", silent_in_slice, then_slice, true},
    {"test_silent_between_slices", silent_between_slices, then_end, true},
};

TABLE_TEST(silences)
{
    struct access_peer peer;
    struct access_head head;

    open_with_window(&peer);
    head = row->stop(&peer);
    must_be_heard(&peer);
    must_close(&window);
    memory_reuse(0, WINDOW_BYTES);
    if (row->then != NULL)
        row->then(&peer, &head);
    if (row->is_refused)
        hear_answer(&peer, head.id, TCPX_INVALID_USAGE, "the window was closed");
    head = next_head(&peer, ACCESS_WRITE, 0, 1); /* the number stays taken */
    say_head(&peer, &head, &(struct access_item){GOOD, 0, 0}, 1);
    hear_answer(&peer, head.id, TCPX_INVALID_USAGE, "the window was closed");
    hear_nothing(&peer);
    close_all(&peer);
}

/* --- reads that nobody reads ----------------------------------------------------------------- */

enum { READS = 300, READ_BYTES = 100000 }; /* more than sockets take */

/* What has come to the places of reads, the first of which has this id. */
struct drained {
    uint64_t first;
    uint64_t bytes[READS];
    bool is_cut[READS];
    unsigned whole;
};

static void begin_reads(struct access_peer *peer, struct drained *drained)
{
    *drained = (struct drained){.first = peer->next_id};
    for (int i = 0; i < READS; i++) {
        struct access_head head = next_head(peer, ACCESS_READ, READ_BYTES, 1);

        head.has_note = true;
        say_head(peer, &head, &(struct access_item){GOOD, 0, READ_BYTES}, 1);
    }
    must_be_heard(peer);
}

/* As an honest initiator: what has come whole is FINISHED. All of it is what was there before. */
static void drain_reads(struct access_peer *peer, struct drained *drained, bool says_finished)
{
    static uint8_t bytes[READ_BYTES];

    for (unsigned ended = 0; ended < READS;) {
        const struct wire_record record = take_record(peer);
        uint64_t read = record.sequence - NET_OPEN_PLACE - drained->first;

        assert_true(read < READS && !drained->is_cut[read]);
        if (record.type == WIRE_CANCELLED) {
            drained->is_cut[read] = true;
            assert_int_equal(record.length, drained->bytes[read]);
            ended++;
            continue;
        }
        assert_true(record.length <= READ_BYTES);
        take_raw(peer, bytes, record.length);
        for (uint64_t i = 0; i < record.length; i++)
            assert_int_equal(bytes[i], POISON);
        drained->bytes[read] += record.length;
        if (drained->bytes[read] < READ_BYTES)
            continue;
        ended++;
        drained->whole++;
        if (says_finished)
            say_number(peer, ACCESS_FINISHED, drained->first + read);
    }
    assert_true(drained->whole > 0 && drained->whole < READS);
}

static unsigned notes_of(struct access_peer *peer)
{
    uint8_t note[TCPX_NOTE_BYTES];
    unsigned count = 0;
    size_t bytes;
    int there = 1;

    while (there != 0) {
        assert_success(tcpx_note_take(peer->session, note, sizeof note, &bytes, &there));
        count += there != 0;
    }
    return count;
}

/* Those whose bytes are all on their way have been read: nobody is told another thing. */
TEST(test_window_closed_while_nobody_reads)
{
    struct access_peer peer;
    struct drained drained;

    open_with_window(&peer);
    begin_reads(&peer, &drained);
    must_close(&window);
    memory_reuse(0, WINDOW_BYTES);
    drain_reads(&peer, &drained, true);
    for (unsigned i = 0; i < READS - drained.whole; i++) {
        uint8_t bytes[ACCESS_ANSWER_BYTES];
        struct access_answer answer;
        size_t length = hear(&peer, ACCESS_ANSWER, bytes, sizeof bytes);

        assert_success(access_answer_read(bytes, length, &answer));
        expect_part(answer.text, "the window was closed");
        if (!drained.is_cut[answer.id - drained.first])
            fail_msg("read %u has all its bytes, and was refused",
                     (unsigned)(answer.id - drained.first));
    }
    must_be_heard(&peer);
    assert_int_equal(notes_of(&peer), drained.whole);
    close_all(&peer);
}

/* The peer gives them up, and takes what is on its way. */
TEST(test_cancels_while_nobody_reads)
{
    struct access_peer peer;
    struct drained drained;

    open_with_window(&peer);
    begin_reads(&peer, &drained);
    for (unsigned i = 0; i < READS; i++)
        say_number(&peer, ACCESS_CANCEL, drained.first + i);
    for (unsigned i = 0; i < READS; i++)
        hear_number(&peer, ACCESS_CANCELLED, drained.first + i);
    must_close(&window);
    memory_reuse(0, WINDOW_BYTES);
    drain_reads(&peer, &drained, false);
    must_be_heard(&peer);
    assert_int_equal(notes_of(&peer), 0);
    close_all(&peer);
}

SUITE(.name = "accesses of peers that are refused", .set_up = access_set_up,
      .tear_down = access_tear_down);
