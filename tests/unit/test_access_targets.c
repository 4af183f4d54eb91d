/*
 * This side reads and writes windows of a peer that lies, is silent or late: the violation ends the
 * session in words; a cancel, a deadline and the close of a window end the use of this side's
 * memory at once, in every stage; and what the peer sends afterwards goes nowhere.
 */
#include "tests/unit/access_target.h"

enum { ROOM = WINDOW_BYTES - 1000, HALF = ROOM / 2, SOON_OVER_MS = 50, WRITES = 60 };

/* The session is as good as before: a read of some bytes, which the peer serves. */
static void must_still_read(struct access_peer *peer)
{
    struct tcpx_transfer *transfer = begin(peer, true, 10, NULL, 0);
    const struct access_head head = hear_begin(peer);

    put_slice(peer, head.place, 10, 0, 10, 0x21);
    must_end_with(transfer, TCPX_SUCCESS, "");
    memory_expect(0, 10, 0x21);
    memory_check();
}

/* --- lies ------------------------------------------------------------------------------------ */

typedef void target_lies(struct access_peer *peer, const struct access_head *head);

static void answer_of_another(struct access_peer *peer, const struct access_head *head)
{
    say_answer(peer, head->id + 1, TCPX_INVALID_USAGE);
}

static void answer_that_all_is_read(struct access_peer *peer, const struct access_head *head)
{
    say_answer(peer, head->id, TCPX_SUCCESS);
}

static void answer_twice(struct access_peer *peer, const struct access_head *head)
{
    say_answer(peer, head->id, TCPX_INVALID_USAGE);
    say_answer(peer, head->id, TCPX_INVALID_USAGE);
}

static void answer_in_progress(struct access_peer *peer, const struct access_head *head)
{
    say_answer(peer, head->id, TCPX_IN_PROGRESS);
}

static void answer_cancelled(struct access_peer *peer, const struct access_head *head)
{
    say_answer(peer, head->id, TCPX_CANCELLED);
}

static void answer_with_long_text(struct access_peer *peer, const struct access_head *head)
{
    uint8_t bytes[ACCESS_ANSWER_BYTES + 1] = {0};

    bytes[0] = (uint8_t)head->id;
    bytes[8] = TCPX_INVALID_USAGE;
    bytes[12] = ACCESS_TEXT_BYTES + 1;
    say(peer, ACCESS_ANSWER, bytes, sizeof bytes);
}

static void answer_with_less_text(struct access_peer *peer, const struct access_head *head)
{
    uint8_t bytes[20] = {0};

    bytes[0] = (uint8_t)head->id;
    bytes[12] = 5;
    say(peer, ACCESS_ANSWER, bytes, sizeof bytes);
}

static void cancelled_unasked(struct access_peer *peer, const struct access_head *head)
{
    say_number(peer, ACCESS_CANCELLED, head->id);
}

static void taken_backwards(struct access_peer *peer, const struct access_head *head)
{
    (void)head;
    for (int i = 0; i < 3; i++)
        assert_success(tcpx_note_send(peer->session, "", 0));
    say_number(peer, ACCESS_TAKEN, 2 * NOTE_CHARGE);
    say_number(peer, ACCESS_TAKEN, NOTE_CHARGE);
}

static void taken_more_than_sent(struct access_peer *peer, const struct access_head *head)
{
    (void)head;
    assert_success(tcpx_note_send(peer->session, "", 0));
    say_number(peer, ACCESS_TAKEN, NOTE_CHARGE + 1);
}

static const struct {
    const char *test;
    bool is_read;
    target_lies *lie;
    const char *words;
} lies[] = {
    {"test_answers", true, answer_of_another, "an answer to access 1"},
    {"test_answers", false, answer_of_another, "an answer to access 1"},
    {"test_answers", true, answer_that_all_is_read, "an answer to access 0"},
    {"test_answers", true, answer_twice, "an answer to access 0"},
    {"test_answers", false, answer_twice, "an answer to access 0"},
    {"test_answers", false, answer_in_progress, "an answer with result 7"},
    {"test_answers", true, answer_cancelled, "an answer with result 100"},
    {"test_answers", false, answer_with_long_text, "an answer of 217 bytes"},
    {"test_answers", false, answer_with_less_text, "the text of an answer of 4 bytes"},
    {"test_cancelled_unasked", true, cancelled_unasked, "access 0 was not cancelled"},
    {"test_cancelled_unasked", false, cancelled_unasked, "access 0 was not cancelled"},
    {"test_taken", true, taken_backwards, "64 bytes of notes taken after 128"},
    {"test_taken", false, taken_more_than_sent, "65 bytes of notes taken after 0, of 64"},
};

TABLE_TEST(lies)
{
    struct access_peer peer;
    struct tcpx_transfer *transfer;
    struct access_head head;

    open_target(&peer);
    transfer = begin(&peer, row->is_read, ROOM, NULL, 0);
    head = hear_first(&peer);
    row->lie(&peer, &head);
    must_break(&peer, row->words);
    assert_int_not_equal(tcpx_transfer_wait(transfer, (int)PATIENCE_MS), TCPX_IN_PROGRESS);
    world_close(&peer);
}

/* --- bytes of a read that may not be --------------------------------------------------------- */

static void put_longer(struct access_peer *peer, const struct access_head *head)
{
    put_slice(peer, head->place, ROOM + 1, ROOM, 1, 1);
}

static void put_shorter(struct access_peer *peer, const struct access_head *head)
{
    put_slice(peer, head->place, ROOM - 1, 0, 1, 1);
}

static void put_beyond(struct access_peer *peer, const struct access_head *head)
{
    put_slice(peer, head->place, ROOM, ROOM - 1, 2, 1);
}

static void put_twice(struct access_peer *peer, const struct access_head *head)
{
    put_slice(peer, head->place, ROOM, 0, HALF, POISON);
    put_slice(peer, head->place, ROOM, 0, ROOM - HALF + 1, POISON);
}

static void put_elsewhere(struct access_peer *peer, const struct access_head *head)
{
    put_slice(peer, head->place + 1, ROOM, 0, 1, 1);
}

static void put_end_of_all(struct access_peer *peer, const struct access_head *head)
{
    put_end(peer, head->place, ROOM);
}

static void put_end_before(struct access_peer *peer, const struct access_head *head)
{
    put_slice(peer, head->place, ROOM, 0, HALF, POISON);
    put_end(peer, head->place, HALF - 1);
}

static const struct {
    const char *test;
    target_lies *put;
} wrong_bytes[] = {
    {"test_bytes_of_another_length", put_longer},
    {"test_bytes_of_another_length", put_shorter},
    {"test_bytes_beyond", put_beyond},
    {"test_bytes_twice", put_twice},
    {"test_bytes_elsewhere", put_elsewhere},
    {"test_ends_that_cannot_be", put_end_of_all},
    {"test_ends_that_cannot_be", put_end_before},
};

TABLE_TEST(wrong_bytes)
{
    struct access_peer peer;
    struct tcpx_transfer *transfer;
    struct access_head head;

    open_target(&peer);
    transfer = begin(&peer, true, ROOM, NULL, 0);
    head = hear_first(&peer);
    row->put(&peer, &head);
    must_break(&peer, "broke the protocol");
    must_end_with(transfer, TCPX_REMOTE_ERROR, "broke the protocol");
    world_close(&peer);
}

/* --- stages, and ways to give up ------------------------------------------------------------- */

static struct access_head nothing_moved(struct access_peer *peer)
{
    return hear_first(peer);
}

static struct access_head half_moved(struct access_peer *peer)
{
    const struct access_head head = hear_first(peer);

    put_slice(peer, head.place, ROOM, 0, HALF, POISON);
    must_arrive(peer, WIRE_RECORD_BYTES + HALF);
    return head;
}

/* Its record says more than there is yet. */
static struct access_head slice_begun(struct access_peer *peer)
{
    const struct access_head head = hear_first(peer);

    put_part_of_slice(peer, head.place, ROOM, ROOM, 100, POISON);
    must_arrive(peer, WIRE_RECORD_BYTES + 100);
    return head;
}

static void send_all(struct access_peer *peer, const struct access_head *head)
{
    put_slice(peer, head->place, ROOM, 0, ROOM, 0x66);
}

static void send_second_half(struct access_peer *peer, const struct access_head *head)
{
    put_slice(peer, head->place, ROOM, HALF, ROOM - HALF, 0x66);
}

static void send_rest_of_slice(struct access_peer *peer, const struct access_head *head)
{
    static uint8_t bytes[ROOM];

    (void)head;
    hand_put(peer->to.forward[0], bytes, ROOM - 100);
}

static void send_end(struct access_peer *peer, const struct access_head *head)
{
    put_end(peer, head->place, HALF);
}

/* All that had been said of it before the cancel: nothing of the memory as it is now. */
static void drain_write(struct access_peer *peer, const struct access_head *head)
{
    static uint8_t bytes[ROOM];

    for (uint64_t have = 0; have < ROOM;) {
        const struct wire_record record = take_record(peer);

        assert_int_equal(record.sequence, head->place);
        if (record.type == WIRE_CANCELLED)
            return;
        take_raw(peer, bytes, record.length);
        for (uint64_t i = 0; i < record.length; i++)
            assert_int_equal(bytes[i], POISON);
        have += record.length;
    }
}

static const struct stage {
    const char *test;
    bool is_read;
    struct access_head (*stop)(struct access_peer *peer);
    target_lies *then;
} stages[] = {
    {"test_read_without_a_byte", true, nothing_moved, send_all},
    {"test_read_in_the_middle", true, half_moved, send_second_half},
    {"test_read_in_the_middle", true, half_moved, send_end},
    {"test_read_in_a_slice", true, slice_begun, send_rest_of_slice},
    {"test_write", false, nothing_moved, drain_write},
};

enum way { BY_CANCEL, BY_CLOSE, BY_DEADLINE, WAYS };

static void give_up(struct access_peer *peer, struct tcpx_transfer *transfer, enum way way,
                    uint64_t id)
{
    uint64_t start = now_ms();

    if (way == BY_CANCEL)
        assert_success(tcpx_transfer_cancel(transfer));
    if (way == BY_CLOSE)
        must_close(&window);
    assert_true(now_ms() - start <= AT_ONCE_MS);
    hear_number(peer, ACCESS_CANCEL, id);
    memory_reuse(0, WINDOW_BYTES);
}

static void try_stage(const struct stage *stage, enum way way, bool is_confirmed)
{
    struct access_peer peer;
    struct tcpx_transfer *transfer;
    struct access_head head;

    open_target(&peer);
    transfer = begin(&peer, stage->is_read, ROOM, "note", way == BY_DEADLINE ? SOON_OVER_MS : 0);
    head = stage->stop(&peer);
    give_up(&peer, transfer, way, head.id);
    stage->then(&peer, &head);
    if (is_confirmed) {
        say_number(&peer, ACCESS_CANCELLED, head.id);
        must_end_with(transfer, TCPX_CANCELLED, "was cancelled");
        memory_check();
        if (window != NULL)
            must_still_read(&peer);
    } else {
        uint64_t start = now_ms();

        must_end_with(transfer, TCPX_CANCELLED, "was cancelled");
        assert_true(now_ms() - start <= GIVES_UP_MS);
        must_break(&peer, "was not confirmed in time");
    }
    world_close(&peer);
}

TABLE_TEST(stages)
{
    for (int way = 0; way < WAYS; way++)
        try_stage(row, (enum way)way, true);
}

TEST(test_cancels_that_are_never_confirmed)
{
    try_stage(&stages[0], BY_CANCEL, false);
    try_stage(&stages[COUNT_OF(stages) - 1], BY_CLOSE, false);
}

/* The peer says that it is done, and then that it is not, or both the other way round. */
TEST(test_answers_behind_a_cancel)
{
    for (int result = TCPX_SUCCESS; result <= TCPX_REMOTE_ERROR; result += TCPX_REMOTE_ERROR) {
        struct access_peer peer;
        struct tcpx_transfer *transfer;
        struct access_head head;

        open_target(&peer);
        transfer = begin(&peer, false, ROOM, NULL, 0);
        head = hear_first(&peer);
        drain_write(&peer, &head);
        assert_success(tcpx_transfer_cancel(transfer));
        hear_number(&peer, ACCESS_CANCEL, head.id);
        say_answer(&peer, head.id, result);
        say_number(&peer, ACCESS_CANCELLED, head.id);
        must_end_with(transfer, result == TCPX_SUCCESS ? TCPX_SUCCESS : TCPX_CANCELLED, "");
        must_still_read(&peer);
        say_number(&peer, ACCESS_CANCELLED, head.id);
        must_break(&peer, "access 0 was not cancelled");
        world_close(&peer);
    }
}

/* --- refusals, and bytes that come all the same ---------------------------------------------- */

TEST(test_bytes_of_a_refused_read)
{
    struct access_peer peer;
    struct tcpx_transfer *transfer;
    struct access_head head;

    open_target(&peer);
    transfer = begin(&peer, true, ROOM, "note", 0);
    head = hear_first(&peer);
    say_answer(&peer, head.id, TCPX_INVALID_USAGE);
    must_end_with(transfer, TCPX_INVALID_USAGE, "not today");
    memory_reuse(0, WINDOW_BYTES);
    put_slice(&peer, head.place, ROOM, 0, ROOM, 0x66);
    must_still_read(&peer);
    hear_nothing(&peer);
    world_close(&peer);
}

/* --- writes that the peer says too early are done -------------------------------------------- */

/* More than its sockets take, all of which are answered at once. */
static void begin_early(struct access_peer *peer, struct tcpx_transfer **transfers, int timeout_ms)
{
    for (unsigned i = 0; i < WRITES; i++) {
        struct access_head head;

        transfers[i] = begin(peer, false, ROOM, NULL, timeout_ms);
        head = i == 0 ? hear_first(peer) : hear_begin(peer);
        say_answer(peer, head.id, TCPX_SUCCESS);
    }
}

TEST(test_writes_that_are_done_too_early)
{
    for (int way = 0; way < WAYS; way++) {
        struct tcpx_transfer *transfers[WRITES];
        struct access_peer peer;
        uint64_t start;

        open_target(&peer);
        begin_early(&peer, transfers, way == BY_DEADLINE ? SOON_OVER_MS : 0);
        assert_int_equal(tcpx_transfer_wait(transfers[WRITES - 1], way == BY_DEADLINE ? 0 : 100),
                         TCPX_IN_PROGRESS);
        start = now_ms();
        for (unsigned i = 0; i < WRITES && way == BY_CANCEL; i++)
            assert_success(tcpx_transfer_cancel(transfers[i]));
        if (way == BY_CLOSE)
            must_close(&window);
        for (unsigned i = 0; i < WRITES; i++)
            must_end_with(transfers[i], TCPX_SUCCESS, "");
        assert_true(now_ms() - start <= GIVES_UP_MS);
        memory_reuse(0, WINDOW_BYTES);
        world_close(&peer);
    }
}

SUITE(.name = "accesses of windows of peers that lie", .set_up = access_set_up,
      .tear_down = access_tear_down);
