/*
 * A peer that reads and writes windows and does not keep to the protocol: each violation ends its
 * session in words on both sides, each access that is not allowed is refused alone. No byte of the
 * windows or beside them changes, they can be closed at once, and other sessions go on.
 */
#include "tests/unit/access_says.h"

/* Numbers that the peer has bound before it lies. */
enum { ANY, READ_ONLY, WRITE_ONLY, PRIVATE, WRONG_KEY, NUMBERS, UNBOUND = NUMBERS };

static struct tcpx_window *windows[WRONG_KEY];

/* A fresh session, and windows over the same memory. */
static void lies_begin(struct access_peer *peer, int allowed)
{
    static const int access[] = {TCPX_WINDOW_READ | TCPX_WINDOW_WRITE, TCPX_WINDOW_READ,
                                 TCPX_WINDOW_WRITE, 0};
    const struct tcpx_session_options options = access_options(-1, allowed);
    struct access_bind wrong;

    memory_poison();
    for (int i = 0; i < WRONG_KEY; i++)
        assert_success(tcpx_window_open(-1, window_memory, WINDOW_BYTES, access[i], &windows[i]));
    peer_open(peer, &options);
    for (uint32_t i = 0; i < WRONG_KEY && allowed; i++)
        say_bind(peer, i, windows[i]);
    wrong = bind_of(peer, WRONG_KEY, windows[ANY]);
    wrong.proof[15] ^= 1;
    if (allowed)
        say_this_bind(peer, &wrong);
}

static void lies_end(struct access_peer *peer)
{
    memory_check();
    for (int i = 0; i < WRONG_KEY; i++)
        if (windows[i] != NULL)
            must_close(&windows[i]);
    memory_reuse(0, WINDOW_BYTES);
    peer_close(peer);
    memory_check();
    bystanders_check();
}

static void say_zeros(struct access_peer *peer, uint8_t type, size_t bytes)
{
    static const uint8_t zeros[CONTROL_LARGEST];

    say(peer, type, zeros, bytes);
}

/* --- numbers of windows -------------------------------------------------------------------- */

static void bind_twice(struct access_peer *peer)
{
    say_bind(peer, ANY, windows[ANY]);
}

static void bind_refused_again(struct access_peer *peer)
{
    say_bind(peer, WRONG_KEY, windows[ANY]);
}

static void bind_beyond(struct access_peer *peer)
{
    say_bind(peer, MOST_NUMBERS, windows[ANY]);
}

static void bind_far_beyond(struct access_peer *peer)
{
    say_bind(peer, UINT32_MAX, windows[ANY]);
}

static void bind_short(struct access_peer *peer)
{
    say_zeros(peer, ACCESS_BIND, ACCESS_BIND_BYTES - 1);
}

static void bind_odd(struct access_peer *peer)
{
    const struct access_bind bind = bind_of(peer, UNBOUND, windows[ANY]);
    uint8_t bytes[ACCESS_BIND_BYTES];

    access_bind_write(&bind, bytes);
    bytes[4] = 1;
    say(peer, ACCESS_BIND, bytes, sizeof bytes);
}

static void unbind_none(struct access_peer *peer)
{
    say_number(peer, ACCESS_UNBIND, UNBOUND);
}

static void unbind_twice(struct access_peer *peer)
{
    say_number(peer, ACCESS_UNBIND, ANY);
    say_number(peer, ACCESS_UNBIND, ANY);
}

/* Its low half is a number that is bound. */
static void unbind_wide(struct access_peer *peer)
{
    say_number(peer, ACCESS_UNBIND, (uint64_t)1 << 32 | ANY);
}

/* --- the beginning of an access -------------------------------------------------------------- */

static void begin_as(struct access_peer *peer, struct access_head head)
{
    say_head(peer, &head, &(struct access_item){ANY, 0, head.bytes}, 1);
}

#define BEGIN_WITH(name, how, ...)                                                                 \
    static void name(struct access_peer *peer)                                                     \
    {                                                                                              \
        struct access_head head = next_head(peer, how, 100, 1);                                    \
                                                                                                   \
        __VA_ARGS__;                                                                               \
        begin_as(peer, head);                                                                      \
    }

BEGIN_WITH(begin_later_id, ACCESS_WRITE, head.id = 1)
BEGIN_WITH(begin_no_id, ACCESS_READ, head.id = UINT64_MAX)
BEGIN_WITH(begin_channel_1, ACCESS_READ, head.channel = 1)
BEGIN_WITH(begin_channel_many, ACCESS_WRITE, head.channel = UINT16_MAX)
BEGIN_WITH(begin_kind_0, ACCESS_WRITE, head.kind = (enum access_kind)0)
BEGIN_WITH(begin_kind_3, ACCESS_WRITE, head.kind = (enum access_kind)3)
BEGIN_WITH(begin_kind_16, ACCESS_WRITE, head.kind = (enum access_kind)17)
BEGIN_WITH(begin_no_place, ACCESS_WRITE, head.place = 0)
BEGIN_WITH(begin_later_place, ACCESS_WRITE, head.place = 2)
BEGIN_WITH(begin_open_place, ACCESS_WRITE, head.place = NET_OPEN_PLACE)
BEGIN_WITH(begin_read_no_place, ACCESS_READ, head.place = 0)
BEGIN_WITH(begin_read_place, ACCESS_READ, head.place = 1)
BEGIN_WITH(begin_note_unsaid, ACCESS_WRITE, head.note_bytes = 1)
BEGIN_WITH(begin_note_long, ACCESS_WRITE, head.has_note = true;
           head.note_bytes = TCPX_NOTE_BYTES + 1)
BEGIN_WITH(begin_parts_many, ACCESS_WRITE, head.items = MOST_PARTS + 1)
BEGIN_WITH(begin_parts_none, ACCESS_WRITE, head.items = 0)

static void begin_same_id(struct access_peer *peer)
{
    struct access_head head = next_head(peer, ACCESS_READ, 0, 1);

    begin_as(peer, head);
    begin_as(peer, head);
}

static void begin_place_twice(struct access_peer *peer)
{
    begin_as(peer, next_head(peer, ACCESS_WRITE, 100, 1));
    peer->next_place = 1;
    begin_as(peer, next_head(peer, ACCESS_WRITE, 100, 1));
}

static void begin_place_of_none(struct access_peer *peer)
{
    struct access_head head = next_head(peer, ACCESS_WRITE, 0, 1);

    head.place = 1;
    begin_as(peer, head);
}

static void begin_short(struct access_peer *peer)
{
    say_zeros(peer, ACCESS_BEGIN, ACCESS_HEAD_BYTES - 1);
}

/* The note would end behind the message. */
static void begin_note_cut(struct access_peer *peer)
{
    struct access_head head = next_head(peer, ACCESS_WRITE, 0, 0);
    uint8_t bytes[ACCESS_HEAD_BYTES + 9];

    head.has_note = true;
    head.note_bytes = 10;
    access_head_write(&head, bytes);
    say(peer, ACCESS_BEGIN, bytes, sizeof bytes);
}

static void begin_part_cut(struct access_peer *peer)
{
    struct access_head head = next_head(peer, ACCESS_WRITE, 100, 1);
    uint8_t bytes[ACCESS_HEAD_BYTES + ACCESS_ITEM_BYTES - 1] = {0};

    access_head_write(&head, bytes);
    say(peer, ACCESS_BEGIN, bytes, sizeof bytes);
}

/* --- lists ----------------------------------------------------------------------------------- */

static void list_of(struct access_peer *peer, uint64_t bytes, uint32_t parts,
                    const struct access_item *items, size_t count)
{
    const struct access_head head = next_head(peer, ACCESS_WRITE, bytes, parts);

    say_head(peer, &head, items, count);
}

#define PARTS(...)                                                                                 \
    (const struct access_item[])                                                                   \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

static void begin_in_list(struct access_peer *peer)
{
    list_of(peer, 100, 2, PARTS({ANY, 0, 50}), 1);
    list_of(peer, 100, 1, PARTS({ANY, 0, 100}), 1);
}

static void list_with_more_parts(struct access_peer *peer)
{
    list_of(peer, 100, 1, PARTS({ANY, 0, 50}, {ANY, 50, 50}), 2);
}

static void list_with_more_later(struct access_peer *peer)
{
    list_of(peer, 100, 2, PARTS({ANY, 0, 50}), 1);
    say_more(peer, PARTS({ANY, 50, 25}, {ANY, 75, 25}), 2);
}

static void list_with_more_bytes(struct access_peer *peer)
{
    list_of(peer, 100, 2, PARTS({ANY, 0, 50}, {ANY, 50, 51}), 2);
}

static void list_whose_sum_wraps(struct access_peer *peer)
{
    list_of(peer, 100, 2, PARTS({ANY, 0, UINT64_MAX}, {ANY, 0, 101}), 2);
}

/* All of it is 2^64 - 1, and one more wraps it. */
static void list_whose_whole_wraps(struct access_peer *peer)
{
    list_of(peer, UINT64_MAX, 2, PARTS({UNBOUND, 0, UINT64_MAX}, {UNBOUND, 0, 1}), 2);
}

static void list_with_fewer_bytes(struct access_peer *peer)
{
    list_of(peer, 100, 2, PARTS({ANY, 0, 50}, {ANY, 50, 49}), 2);
}

/* What it holds of a window that has no number any more is given back all the same. */
static void list_with_fewer_and_unbound(struct access_peer *peer)
{
    list_of(peer, 100, 2, PARTS({ANY, 0, 50}), 1);
    say_number(peer, ACCESS_UNBIND, ANY);
    say_more(peer, PARTS({WRITE_ONLY, 50, 49}), 1);
}

static void list_refused_with_fewer(struct access_peer *peer)
{
    list_of(peer, 100, 2, PARTS({UNBOUND, 0, 50}, {UNBOUND, 50, 49}), 2);
}

static void part_odd(struct access_peer *peer)
{
    uint8_t bytes[ACCESS_HEAD_BYTES + ACCESS_ITEM_BYTES];
    const struct access_head head = next_head(peer, ACCESS_WRITE, 100, 1);

    access_head_write(&head, bytes);
    access_item_write(&(struct access_item){ANY, 0, 100}, bytes + ACCESS_HEAD_BYTES);
    bytes[ACCESS_HEAD_BYTES + 7] = 1;
    say(peer, ACCESS_BEGIN, bytes, sizeof bytes);
}

static void more_without_list(struct access_peer *peer)
{
    say_more(peer, PARTS({ANY, 0, 100}), 1);
}

static void more_behind_list(struct access_peer *peer)
{
    list_of(peer, 100, 1, PARTS({ANY, 0, 100}), 1);
    say_more(peer, PARTS({ANY, 0, 0}), 1);
}

static void more_of_none(struct access_peer *peer)
{
    list_of(peer, 100, 2, PARTS({ANY, 0, 50}), 1);
    say_more(peer, NULL, 0);
}

static void more_cut(struct access_peer *peer)
{
    list_of(peer, 100, 2, PARTS({ANY, 0, 50}), 1);
    say_zeros(peer, ACCESS_MORE, ACCESS_ITEM_BYTES + 1);
}

/* --- ends ------------------------------------------------------------------------------------ */

/* A read that waits for FINISHED, and its id. */
static uint64_t read_with_note(struct access_peer *peer)
{
    struct access_head head = next_head(peer, ACCESS_READ, 10, 1);
    uint8_t bytes[10];

    head.has_note = true;
    begin_as(peer, head);
    take_bytes(peer, head.place, bytes, sizeof bytes);
    return head.id;
}

static void finished_none(struct access_peer *peer)
{
    say_number(peer, ACCESS_FINISHED, 0);
}

static void finished_write(struct access_peer *peer)
{
    struct access_head head = next_head(peer, ACCESS_WRITE, 100, 1);

    head.has_note = true;
    begin_as(peer, head);
    say_number(peer, ACCESS_FINISHED, head.id);
}

static void finished_without_note(struct access_peer *peer)
{
    begin_as(peer, next_head(peer, ACCESS_READ, 100, 1));
    say_number(peer, ACCESS_FINISHED, 0);
}

static void finished_twice(struct access_peer *peer)
{
    uint64_t id = read_with_note(peer);

    say_number(peer, ACCESS_FINISHED, id);
    say_number(peer, ACCESS_FINISHED, id);
}

static void finished_in_list(struct access_peer *peer)
{
    struct access_head head = next_head(peer, ACCESS_READ, 100, 2);

    head.has_note = true;
    say_head(peer, &head, PARTS({ANY, 0, 50}), 1);
    say_number(peer, ACCESS_FINISHED, head.id);
}

static void cancel_none(struct access_peer *peer)
{
    say_number(peer, ACCESS_CANCEL, 0);
}

static void cancel_far(struct access_peer *peer)
{
    say_number(peer, ACCESS_CANCEL, UINT64_MAX);
}

static void cancel_twice(struct access_peer *peer)
{
    list_of(peer, 100, 2, PARTS({ANY, 0, 50}), 1);
    say_number(peer, ACCESS_CANCEL, 0);
    say_number(peer, ACCESS_CANCEL, 0);
}

static void cancel_short(struct access_peer *peer)
{
    say_zeros(peer, ACCESS_CANCEL, 4);
}

/* --- notes, and answers to nothing ----------------------------------------------------------- */

static void note_too_long(struct access_peer *peer)
{
    say_zeros(peer, ACCESS_NOTE, TCPX_NOTE_BYTES + 1);
}

/* One byte more than the credit, which notes of 0 bytes use, too. */
static void notes_beyond_credit(struct access_peer *peer)
{
    for (int i = 0; i <= MOST_NOTES / NOTE_CHARGE; i++)
        say_zeros(peer, ACCESS_NOTE, 0);
}

static void notes_of_accesses_beyond_credit(struct access_peer *peer)
{
    for (int i = 0; i < 32; i++) {
        struct access_head head = next_head(peer, ACCESS_WRITE, 0, 0);

        head.has_note = true;
        head.note_bytes = TCPX_NOTE_BYTES;
        say_head(peer, &head, NULL, 0);
    }
}

static void taken_nothing(struct access_peer *peer)
{
    say_number(peer, ACCESS_TAKEN, 0);
}

static void taken_too_much(struct access_peer *peer)
{
    say_number(peer, ACCESS_TAKEN, 1);
}

static void answer_none(struct access_peer *peer)
{
    const struct access_answer answer = {.id = 0};
    uint8_t bytes[ACCESS_ANSWER_BYTES];

    say(peer, ACCESS_ANSWER, bytes, access_answer_write(&answer, bytes));
}

static void answer_short(struct access_peer *peer)
{
    say_zeros(peer, ACCESS_ANSWER, 15);
}

static void cancelled_none(struct access_peer *peer)
{
    say_number(peer, ACCESS_CANCELLED, 0);
}

static void unknown_message(struct access_peer *peer)
{
    say_zeros(peer, ACCESS_DATA + 1, 8);
}

static const struct {
    const char *test;
    void (*lie)(struct access_peer *peer);
    const char *words;
} lies[] = {
    {"test_numbers", bind_twice, "which is taken or not possible"},
    {"test_numbers", bind_refused_again, "which is taken or not possible"},
    {"test_numbers", bind_beyond, "window number 65536"},
    {"test_numbers", bind_far_beyond, "which is taken or not possible"},
    {"test_numbers", bind_short, "a binding of 31 bytes"},
    {"test_numbers", bind_odd, "where 0 is expected"},
    {"test_numbers", unbind_none, "which stands for none"},
    {"test_numbers", unbind_twice, "which stands for none"},
    {"test_numbers", unbind_wide, "which stands for none"},
    {"test_beginnings", begin_later_id, "access 1 where access 0 is expected"},
    {"test_beginnings", begin_no_id, "where access 0 is expected"},
    {"test_beginnings", begin_same_id, "access 0 where access 1 is expected"},
    {"test_beginnings", begin_in_list, "where access 1 is expected"},
    {"test_beginnings", begin_channel_1, "of channel 1 for a read"},
    {"test_beginnings", begin_channel_many, "of channel 65535 for a write"},
    {"test_beginnings", begin_kind_0, "an access of kind 0"},
    {"test_beginnings", begin_kind_3, "an access of kind 3"},
    {"test_beginnings", begin_kind_16, "an access of kind 17"},
    {"test_beginnings", begin_no_place, "an access of 100 bytes at place 0"},
    {"test_beginnings", begin_later_place, "place 2 of channel 0 for a write"},
    {"test_beginnings", begin_open_place, "place 2147483648 of channel 0 for a write"},
    {"test_beginnings", begin_place_twice, "place 1 of channel 0 for a write"},
    {"test_beginnings", begin_place_of_none, "an access of 0 bytes at place 1"},
    {"test_beginnings", begin_read_no_place, "an access of 100 bytes at place 0"},
    {"test_beginnings", begin_read_place, "place 1 of channel 0 for a read"},
    {"test_beginnings", begin_short, "an access of 31 bytes"},
    {"test_beginnings", begin_note_unsaid, "a note of 1 bytes"},
    {"test_beginnings", begin_note_long, "a note of 32769 bytes"},
    {"test_beginnings", begin_note_cut, "with a note of 10"},
    {"test_beginnings", begin_part_cut, "and 1 parts"},
    {"test_beginnings", begin_parts_many, "1048577 parts"},
    {"test_beginnings", begin_parts_none, "and 0 parts"},
    {"test_lists", list_with_more_parts, "and 1 parts"},
    {"test_lists", list_with_more_later, "more parts than access 0 has"},
    {"test_lists", list_with_more_bytes, "have more bytes than it"},
    {"test_lists", list_whose_sum_wraps, "have more bytes than it"},
    {"test_lists", list_whose_whole_wraps, "have more bytes than it"},
    {"test_lists", list_with_fewer_bytes, "have fewer bytes than it"},
    {"test_lists", list_with_fewer_and_unbound, "have fewer bytes than it"},
    {"test_lists", list_refused_with_fewer, "have fewer bytes than it"},
    {"test_lists", part_odd, "where 0 is expected"},
    {"test_lists", more_without_list, "that no access waits for"},
    {"test_lists", more_behind_list, "that no access waits for"},
    {"test_lists", more_of_none, "that no access waits for"},
    {"test_lists", more_cut, "that no access waits for"},
    {"test_ends", finished_none, "has no end to be told of"},
    {"test_ends", finished_write, "has no end to be told of"},
    {"test_ends", finished_without_note, "has no end to be told of"},
    {"test_ends", finished_twice, "has no end to be told of"},
    {"test_ends", finished_in_list, "has no end to be told of"},
    {"test_ends", cancel_none, "a cancel of access 0, which is none"},
    {"test_ends", cancel_far, "which is none"},
    {"test_ends", cancel_twice, "a cancel of access 0, which is none"},
    {"test_ends", cancel_short, "a number of 4 bytes"},
    {"test_notes", note_too_long, "a note of 32769 bytes"},
    {"test_notes", notes_beyond_credit, "bytes of notes that are not taken"},
    {"test_notes", notes_of_accesses_beyond_credit, "bytes of notes that are not taken"},
    {"test_notes", taken_nothing, "0 bytes of notes taken"},
    {"test_notes", taken_too_much, "1 bytes of notes taken"},
    {"test_answers", answer_none, "an answer to access 0"},
    {"test_answers", answer_short, "an answer of 15 bytes"},
    {"test_answers", cancelled_none, "access 0 was not cancelled"},
    {"test_answers", unknown_message, "type 18"},
};

TABLE_TEST(lies)
{
    struct access_peer peer;

    lies_begin(&peer, 1);
    row->lie(&peer);
    must_break(&peer, row->words);
    lies_end(&peer);
}

/* --- a session that does not allow windows ---------------------------------------------------- */

TEST(test_windows_that_are_not_allowed)
{
    static void (*const tries[])(struct access_peer *) = {bind_twice, begin_same_id};

    for (unsigned i = 0; i < COUNT_OF(tries); i++) {
        struct access_peer peer;

        lies_begin(&peer, 0);
        assert_false(peer.theirs.windows);
        tries[i](&peer);
        must_break(&peer, "in a session without windows");
        lies_end(&peer);
    }
}

SUITE(.name = "lies of peers that access windows", .set_up = access_set_up,
      .tear_down = access_tear_down);
