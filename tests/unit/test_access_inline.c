/*
 * Inline accesses, whose bytes travel on the control connection, with a peer by hand at either end:
 * they do what others do, are refused as others are, and what a peer may not say of them ends the
 * session in words. Nothing but the window changes, and after a cancel not even that.
 */
#include "tests/unit/access_target.h"

enum { SMALL = 3000, NUMBER = 0, READ_ONLY = 1 };

/* --- the peer accesses windows of this side ------------------------------------------------- */

static struct access_head inline_head(struct access_peer *peer, enum access_kind kind,
                                      uint64_t bytes, uint32_t items)
{
    return (struct access_head){
        .id = peer->next_id++, .kind = kind, .is_inline = true, .bytes = bytes, .items = items};
}

static void say_write(struct access_peer *peer, uint64_t id_note, const struct access_item *item,
                      uint8_t byte)
{
    struct access_head head = inline_head(peer, ACCESS_WRITE, item->bytes, 1);

    head.has_note = id_note != 0;
    head.note_bytes = (uint32_t)id_note;
    say_inline(peer, &head, item, 1, item->bytes, byte);
}

/* What a read brings is one byte all over. */
static void hear_data(struct access_peer *peer, uint64_t id, uint64_t bytes, uint8_t byte)
{
    uint8_t seen[CONTROL_LARGEST];
    struct access_data data;
    size_t length = hear(peer, ACCESS_DATA, seen, sizeof seen);

    assert_success(access_data_read(seen, length, &data));
    assert_int_equal(data.id, id);
    assert_int_equal(data.bytes, bytes);
    for (size_t i = 0; i < data.bytes; i++)
        assert_int_equal(data.data[i], byte);
}

static void must_take_note(struct access_peer *peer, size_t bytes)
{
    uint8_t note[100];
    size_t seen;
    int there = 0;

    until(there, assert_success(tcpx_note_take(peer->session, note, sizeof note, &seen, &there)));
    assert_int_equal(seen, bytes);
}

static void must_have_no_note(struct access_peer *peer)
{
    uint8_t note[100];
    size_t seen;
    int there;

    assert_success(tcpx_note_take(peer->session, note, sizeof note, &seen, &there));
    assert_false(there);
}

TEST(test_writes_of_the_peer)
{
    struct access_peer peer;
    struct access_head head;

    world_open(&peer);
    say_bind(&peer, NUMBER, window);
    say_write(&peer, 20, &(struct access_item){NUMBER, 7, SMALL}, 0x31);
    hear_answer(&peer, 0, TCPX_SUCCESS, "");
    memory_expect(7, SMALL, 0x31);
    memory_check();
    must_take_note(&peer, 20);
    head = inline_head(&peer, ACCESS_WRITE, ACCESS_MOST_INLINE, 3);
    say_inline(&peer, &head,
               (const struct access_item[]){{NUMBER, WINDOW_BYTES - 10, 10},
                                            {NUMBER, 20000, 0},
                                            {NUMBER, 10000, ACCESS_MOST_INLINE - 10}},
               3, ACCESS_MOST_INLINE, 0x32);
    hear_answer(&peer, 1, TCPX_SUCCESS, "");
    memory_expect(WINDOW_BYTES - 10, 10, 0x32);
    memory_expect(10000, ACCESS_MOST_INLINE - 10, 0x32);
    must_serve(&peer, NUMBER, 5, 0x33); /* places are counted without them */
    memory_expect(5, 1, 0x33);
    world_close(&peer);
}

TEST(test_reads_of_the_peer)
{
    struct access_peer peer;
    struct access_head head;

    world_open(&peer);
    say_bind(&peer, NUMBER, window);
    head = inline_head(&peer, ACCESS_READ, SMALL, 2);
    head.has_note = true;
    head.note_bytes = 9;
    say_inline(&peer, &head,
               (const struct access_item[]){{NUMBER, 1, SMALL - 1}, {NUMBER, WINDOW_BYTES - 1, 1}},
               2, 0, 0);
    hear_data(&peer, 0, SMALL, POISON);
    must_have_no_note(&peer);
    say_number(&peer, ACCESS_FINISHED, 0);
    must_take_note(&peer, 9);
    head = inline_head(&peer, ACCESS_READ, 1, 1);
    say_inline(&peer, &head, &(struct access_item){NUMBER, 0, 1}, 1, 0, 0);
    hear_data(&peer, 1, 1, POISON);
    say_number(&peer, ACCESS_CANCEL, 1); /* too late */
    hear_number(&peer, ACCESS_CANCELLED, 1);
    world_close(&peer);
}

/* A refused write leaves its bytes behind, a refused note is not handed out. */
TEST(test_refusals)
{
    struct access_peer peer;
    struct tcpx_window *read_only;

    world_open(&peer);
    assert_success(tcpx_window_open(-1, window_memory, WINDOW_BYTES, TCPX_WINDOW_READ, &read_only));
    say_bind(&peer, NUMBER, window);
    say_bind(&peer, READ_ONLY, read_only);
    say_write(&peer, 10, &(struct access_item){NUMBER, WINDOW_BYTES - SMALL + 1, SMALL}, 0x41);
    hear_answer(&peer, 0, TCPX_INVALID_USAGE, "are not in a window of");
    say_write(&peer, 0, &(struct access_item){READ_ONLY, 0, SMALL}, 0x42);
    hear_answer(&peer, 1, TCPX_INVALID_USAGE, "cannot be written");
    say_write(&peer, 0, &(struct access_item){77, 0, SMALL}, 0x43);
    hear_answer(&peer, 2, TCPX_INVALID_USAGE, "no such window");
    must_close(&window);
    say_write(&peer, 0, &(struct access_item){NUMBER, 0, SMALL}, 0x44);
    hear_answer(&peer, 3, TCPX_INVALID_USAGE, "the window was closed");
    must_have_no_note(&peer);
    must_close(&read_only);
    world_close(&peer);
}

/* What CPU code cannot touch is not touched by a CPU. */
TEST(test_gpu_memory)
{
    const struct tcpx_session_options options = access_options(0, 1);
    struct tcpx_window *on_gpu;
    struct access_peer peer;
    void *memory;

    assert_success(tcpx_gpu_alloc(0, SMALL, &memory));
    assert_success(
        tcpx_window_open(0, memory, SMALL, TCPX_WINDOW_READ | TCPX_WINDOW_WRITE, &on_gpu));
    peer_open(&peer, &options);
    say_bind(&peer, NUMBER, on_gpu);
    say_write(&peer, 0, &(struct access_item){NUMBER, 0, SMALL}, 0x51);
    hear_answer(&peer, 0, TCPX_INVALID_USAGE, "an inline access of GPU memory");
    must_close(&on_gpu);
    peer_close(&peer);
    assert_success(tcpx_gpu_free(memory));
}

/*
 * A peer that asks and does not read the answers: they wait for it, in bounded memory, and come
 * when it reads.
 */
TEST(test_reads_that_nobody_takes)
{
    enum { READS = 1500 };
    struct access_peer peer;
    struct control *control;
    size_t unsent = 0;

    world_open(&peer);
    say_bind(&peer, NUMBER, window);
    for (int i = 0; i < READS; i++) {
        const struct access_head head = inline_head(&peer, ACCESS_READ, ACCESS_MOST_INLINE, 1);

        say_inline(&peer, &head, &(struct access_item){NUMBER, 0, ACCESS_MOST_INLINE}, 1, 0, 0);
        session_lock(peer.session);
        control = peer.session->control;
        unsent = unsent > control_unsent_bytes(control) ? unsent : control_unsent_bytes(control);
        session_unlock(peer.session);
    }
    assert_true(unsent <= CONTROL_MOST_UNSENT / 4 + CONTROL_LARGEST);
    for (uint64_t i = 0; i < READS; i++)
        hear_data(&peer, i, ACCESS_MOST_INLINE, POISON);
    world_close(&peer);
}

/* --- what the peer may not say as it accesses ----------------------------------------------- */

typedef void inline_lie(struct access_peer *peer);

static void lie_of(struct access_peer *peer, enum access_kind kind, uint64_t bytes, uint32_t items,
                   size_t data)
{
    const struct access_head head = inline_head(peer, kind, bytes, items);

    say_inline(peer, &head, &(struct access_item){NUMBER, 0, bytes}, 1, data, 1);
}

static void inline_of_nothing(struct access_peer *peer)
{
    lie_of(peer, ACCESS_WRITE, 0, 1, 0);
}

static void inline_too_long(struct access_peer *peer)
{
    lie_of(peer, ACCESS_READ, ACCESS_MOST_INLINE + 1, 1, 0);
}

static void inline_with_place(struct access_peer *peer)
{
    struct access_head head = inline_head(peer, ACCESS_WRITE, 10, 1);

    head.place = 1;
    say_inline(peer, &head, &(struct access_item){NUMBER, 0, 10}, 1, 10, 1);
}

static void inline_cut(struct access_peer *peer)
{
    lie_of(peer, ACCESS_WRITE, 100, 1, 99);
}

static void inline_with_more(struct access_peer *peer)
{
    lie_of(peer, ACCESS_WRITE, 100, 1, 100 + ACCESS_ITEM_BYTES);
}

static void inline_read_with_bytes(struct access_peer *peer)
{
    lie_of(peer, ACCESS_READ, 100, 1, 100);
}

static void inline_with_parts_later(struct access_peer *peer)
{
    lie_of(peer, ACCESS_WRITE, 100, 2, 100);
}

static void inline_with_larger_parts(struct access_peer *peer)
{
    const struct access_head head = inline_head(peer, ACCESS_WRITE, 100, 1);

    say_inline(peer, &head, &(struct access_item){NUMBER, 0, 101}, 1, 100, 1);
}

static void data_of_nothing(struct access_peer *peer)
{
    say_number(peer, ACCESS_DATA, 0);
}

static const struct {
    const char *test;
    inline_lie *lie;
    const char *words;
} lies[] = {
    {"test_lies", inline_of_nothing, "an inline access of 0 bytes"},
    {"test_lies", inline_too_long, "an inline access of 16385 bytes"},
    {"test_lies", inline_with_place, "an access of 10 bytes at place 1"},
    {"test_lies", inline_cut, "100 bytes inline"},
    {"test_lies", inline_with_more, "100 bytes inline"},
    {"test_lies", inline_read_with_bytes, "and 1 parts"},
    {"test_lies", inline_with_parts_later, "and 2 parts"},
    {"test_lies", inline_with_larger_parts, "have more bytes than it"},
    {"test_lies", data_of_nothing, "data of 8 bytes"},
};

TABLE_TEST(lies)
{
    struct access_peer peer;

    world_open(&peer);
    say_bind(&peer, NUMBER, window);
    row->lie(&peer);
    must_break(&peer, row->words);
    world_close(&peer);
}

/* --- this side accesses windows of the peer -------------------------------------------------- */

static void say_data(struct access_peer *peer, uint64_t id, size_t bytes, uint8_t byte)
{
    uint8_t message[CONTROL_LARGEST];
    const uint64_t wire = htole64(id);

    memcpy(message, &wire, sizeof wire);
    memset(message + ACCESS_DATA_HEAD_BYTES, byte, bytes);
    say(peer, ACCESS_DATA, message, ACCESS_DATA_HEAD_BYTES + bytes);
}

static struct access_head hear_inline(struct access_peer *peer)
{
    const struct access_head head = hear_first(peer);

    assert_true(head.is_inline);
    return head;
}

TEST(test_reads)
{
    struct access_peer peer;
    struct tcpx_transfer *transfer;
    struct access_head head;

    open_target(&peer);
    transfer = begin(&peer, true, SMALL, "note", 0);
    head = hear_inline(&peer);
    say_data(&peer, head.id, SMALL, 0x61);
    must_end_with(transfer, TCPX_SUCCESS, "");
    hear_number(&peer, ACCESS_FINISHED, head.id);
    memory_expect(0, SMALL, 0x61);
    memory_check();
    transfer = begin(&peer, true, SMALL, NULL, 0);
    head = hear_begin(&peer);
    say_answer(&peer, head.id, TCPX_INVALID_USAGE);
    must_end_with(transfer, TCPX_INVALID_USAGE, "not today");
    world_close(&peer);
}

/* The memory of a write is quiet when the call has returned. */
TEST(test_writes)
{
    struct access_peer peer;
    struct tcpx_transfer *transfer;
    struct access_head head;

    open_target(&peer);
    transfer = begin(&peer, false, SMALL, NULL, 0);
    must_close(&window);
    memory_reuse(0, WINDOW_BYTES);
    head = hear_inline(&peer);
    say_answer(&peer, head.id, TCPX_SUCCESS);
    must_end_with(transfer, TCPX_SUCCESS, "");
    world_close(&peer);
}

enum way { BY_CANCEL, BY_CLOSE, BY_DEADLINE, WAYS };

/* The bytes of a read that was given up go nowhere, whether the peer has sent them before or not.
 */
TEST(test_reads_that_are_given_up)
{
    for (int way = 0; way < WAYS; way++)
        for (int comes = 0; comes < 2; comes++) {
            struct access_peer peer;
            struct tcpx_transfer *transfer;
            struct access_head head;

            open_target(&peer);
            transfer = begin(&peer, true, SMALL, "note", way == BY_DEADLINE ? 50 : 0);
            head = hear_inline(&peer);
            if (way == BY_CANCEL)
                assert_success(tcpx_transfer_cancel(transfer));
            if (way == BY_CLOSE)
                must_close(&window);
            hear_number(&peer, ACCESS_CANCEL, head.id);
            memory_reuse(0, WINDOW_BYTES);
            if (comes)
                say_data(&peer, head.id, SMALL, 0x71);
            say_number(&peer, ACCESS_CANCELLED, head.id);
            must_end_with(transfer, TCPX_CANCELLED, "was cancelled");
            memory_check();
            hear_nothing(&peer);
            world_close(&peer);
        }
}

/* --- what the peer may not say as it is accessed --------------------------------------------- */

typedef void answer_lie(struct access_peer *peer, struct tcpx_transfer *transfer, uint64_t id);

static void data_short(struct access_peer *peer, struct tcpx_transfer *transfer, uint64_t id)
{
    (void)transfer;
    say_data(peer, id, SMALL - 1, 1);
}

static void data_long(struct access_peer *peer, struct tcpx_transfer *transfer, uint64_t id)
{
    (void)transfer;
    say_data(peer, id, SMALL + 1, 1);
}

static void data_longest(struct access_peer *peer, struct tcpx_transfer *transfer, uint64_t id)
{
    (void)transfer;
    say_data(peer, id, ACCESS_MOST_INLINE + 1, 1);
}

static void data_of_another(struct access_peer *peer, struct tcpx_transfer *transfer, uint64_t id)
{
    (void)transfer;
    say_data(peer, id + 1, SMALL, 1);
}

static void data_twice_after_cancel(struct access_peer *peer, struct tcpx_transfer *transfer,
                                    uint64_t id)
{
    assert_success(tcpx_transfer_cancel(transfer));
    say_data(peer, id, SMALL, 1);
    say_data(peer, id, SMALL, 1);
}

static void data_and_answer_after_cancel(struct access_peer *peer, struct tcpx_transfer *transfer,
                                         uint64_t id)
{
    assert_success(tcpx_transfer_cancel(transfer));
    say_data(peer, id, SMALL, 1);
    say_answer(peer, id, TCPX_INVALID_USAGE);
}

static void answer_that_all_is_read(struct access_peer *peer, struct tcpx_transfer *transfer,
                                    uint64_t id)
{
    (void)transfer;
    say_answer(peer, id, TCPX_SUCCESS);
}

static const struct {
    const char *test;
    bool is_read;
    uint64_t bytes;
    answer_lie *lie;
    const char *words;
} answers[] = {
    {"test_wrong_data", true, SMALL, data_short, "which does not wait for them"},
    {"test_wrong_data", true, SMALL, data_long, "which does not wait for them"},
    {"test_wrong_data", true, SMALL, data_longest, "data of 16393 bytes"},
    {"test_wrong_data", true, SMALL, data_of_another, "which does not wait for them"},
    {"test_wrong_data", false, SMALL + 1, data_long, "which does not wait for them"},
    {"test_wrong_data", true, 3 * ACCESS_MOST_INLINE, data_short, "which does not wait for them"},
    {"test_data_twice", true, SMALL, data_twice_after_cancel, "which does not wait for them"},
    {"test_data_twice", true, SMALL, data_and_answer_after_cancel, "an answer to access 0"},
    {"test_wrong_answers", true, SMALL, answer_that_all_is_read, "an answer to access 0"},
};

TABLE_TEST(answers)
{
    struct access_peer peer;
    struct tcpx_transfer *transfer;

    open_target(&peer);
    transfer = begin(&peer, row->is_read, row->bytes, NULL, 0);
    row->lie(&peer, transfer, hear_first(&peer).id);
    must_break(&peer, row->words);
    assert_int_not_equal(tcpx_transfer_wait(transfer, (int)PATIENCE_MS), TCPX_IN_PROGRESS);
    world_close(&peer);
}

static int inline_set_up(void)
{
    setenv("UCCL_TCPX_INLINE_BYTES", "8K", 1);
    return access_set_up();
}

SUITE(.name = "inline accesses", .set_up = inline_set_up, .tear_down = access_tear_down);
