/*
 * A peer that is silent in some stage of its access, or does not read what it has asked for: the
 * window can be closed at once, its memory is the program's again, and whatever the peer says
 * afterwards goes nowhere. Neither side takes the other for a liar then.
 */
#include "tests/unit/access_says.h"

#include <sys/ioctl.h>

enum { GOOD }; /* the number of the window */

/* A session and one window, bound as 0. */
static void open_with_window(struct access_peer *peer)
{
    world_open(peer);
    say_bind(peer, GOOD, window);
    must_begin(peer);
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

    put_part_of_slice(peer, head.place, LONG, HALF, 1000, POISON);
    must_arrive(peer, WIRE_RECORD_BYTES + 1000);
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
    world_close(&peer);
}

/* --- reads that nobody reads ----------------------------------------------------------------- */

/* More than sockets take; the first half in slices, the rest whole behind their records. */
enum { READS = 600, READ_BYTES = 100000, SMALL_READ_BYTES = 1000 };

static uint64_t bytes_of_read(uint64_t read)
{
    return read < READS / 2 ? READ_BYTES : SMALL_READ_BYTES;
}

/* What has come to the places of reads, the first of which has this id. */
struct drained {
    uint64_t first;
    uint64_t bytes[READS];
    bool is_cut[READS];
    unsigned whole;
};

/* The tested side's socket takes nothing more, and what has come does not change for a while. */
static void must_be_full(struct access_peer *peer)
{
    enum { STILL = 20 };
    int before = -1;
    int there = 0;
    int still = 0;

    until(still == STILL, {
        assert_int_equal(ioctl(peer->from.forward[0], FIONREAD, &there), 0);
        still = there > 0 && there == before ? still + 1 : 0;
        before = there;
        nap_us(1000);
    });
}

static void begin_reads(struct access_peer *peer, struct drained *drained)
{
    *drained = (struct drained){.first = peer->next_id};
    for (int i = 0; i < READS; i++) {
        const uint64_t bytes = bytes_of_read((uint64_t)i);
        struct access_head head = next_head(peer, ACCESS_READ, bytes, 1);

        head.has_note = true;
        say_head(peer, &head, &(struct access_item){GOOD, 0, bytes}, 1);
        if (i == READS / 2)
            must_be_full(peer);
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
        if (drained->bytes[read] < bytes_of_read(read))
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
    world_close(&peer);
}

/* Each once; one that a call is sending when it is cancelled is confirmed later than others. */
static void hear_all_cancelled(struct access_peer *peer, const struct drained *drained)
{
    bool is_confirmed[READS] = {false};

    for (unsigned i = 0; i < READS; i++) {
        uint64_t id;

        assert_int_equal(hear(peer, ACCESS_CANCELLED, &id, sizeof id), sizeof id);
        id = le64toh(id) - drained->first;
        assert_true(id < READS && !is_confirmed[id]);
        is_confirmed[id] = true;
    }
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
    hear_all_cancelled(&peer, &drained);
    must_close(&window);
    memory_reuse(0, WINDOW_BYTES);
    drain_reads(&peer, &drained, false);
    must_be_heard(&peer);
    assert_int_equal(notes_of(&peer), 0);
    world_close(&peer);
}

SUITE(.name = "silent peers that access windows", .set_up = access_set_up,
      .tear_down = access_tear_down);
