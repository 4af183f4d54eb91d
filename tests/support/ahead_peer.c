#include "tests/support/ahead_peer.h"

#include <errno.h>

struct text ahead_text;

int ahead_set_up(void)
{
    ahead_text = text_create(AHEAD_LONGEST);
    return 0;
}

int ahead_tear_down(void)
{
    text_destroy(&ahead_text);
    return 0;
}

struct net_link_options ahead_options(uint8_t sockets, uint64_t credit)
{
    return *PAIR_OPTIONS(.sockets = sockets, .match = WIRE_MATCH_FIFO,
                         .eager_limit = credit < AHEAD_EAGER_LIMIT ? credit : AHEAD_EAGER_LIMIT,
                         .eager_credit = credit, .largest_slice = AHEAD_SLICE);
}

void ahead_open(struct ahead_peer *peer, enum net_side comm_side, uint8_t sockets, uint64_t credit)
{
    const struct net_link_options options = ahead_options(sockets, credit);
    struct by_hand hand = by_hand_open(comm_side, &options);

    *peer = (struct ahead_peer){.link = hand.link, .comm = hand.comm, .credit = credit};
}

void ahead_close(struct ahead_peer *peer)
{
    net_comm_close(peer->comm);
    net_link_close(&peer->link);
}

void ahead_must_break(struct ahead_peer *peer, const char *lie)
{
    uint64_t deadline = deadline_after_ms(limit_ms(1000));

    while (inside_result(peer->comm) == TCPX_SUCCESS) {
        inside_move_on(peer->comm);
        if (deadline_passed(deadline))
            fail_msg("believed: %s", lie);
    }
    assert_int_equal(inside_result(peer->comm), TCPX_REMOTE_ERROR);
    expect_text("broke the protocol");
    ahead_close(peer);
}

/* --- it sends -------------------------------------------------------------------------------- */

void ahead_put(struct ahead_peer *peer, unsigned socket, const uint8_t *bytes, uint64_t count)
{
    uint64_t deadline = deadline_after_ms(AHEAD_SOON_MS);

    while (count > 0) {
        ssize_t sent = send(peer->link.forward[socket], bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent < 0 && errno != EAGAIN)
            return; /* the comm has ended the connection: its text says why */
        if (sent < 0)
            inside_move_on(peer->comm);
        bytes += sent > 0 ? sent : 0;
        count -= sent > 0 ? (uint64_t)sent : 0;
        assert_false(deadline_passed(deadline));
    }
}

void ahead_say_slice(struct ahead_peer *peer, unsigned socket, uint32_t sequence, uint64_t total,
                     uint64_t offset, uint64_t length, bool on_credit)
{
    hand_say(peer->link.forward[socket],
             &(struct wire_record){.type = WIRE_SLICE,
                                   .flags = on_credit ? WIRE_ON_CREDIT : 0,
                                   .socket = (uint16_t)socket,
                                   .sequence = sequence,
                                   .offset = offset,
                                   .length = length,
                                   .tag = total});
}

void ahead_put_slice(struct ahead_peer *peer, unsigned socket, uint32_t sequence, uint64_t total,
                     uint64_t offset, uint64_t length, bool on_credit)
{
    ahead_say_slice(peer, socket, sequence, total, offset, length, on_credit);
    ahead_put(peer, socket, text_of(&ahead_text, sequence) + offset, length);
}

void ahead_say_eager(struct ahead_peer *peer, uint32_t sequence, uint64_t bytes)
{
    hand_say(peer->link.forward[0], &(struct wire_record){.type = WIRE_EAGER,
                                                          .flags = WIRE_ON_CREDIT,
                                                          .sequence = sequence,
                                                          .length = bytes});
    peer->charged += bytes + WIRE_EAGER_CHARGE;
}

void ahead_put_eager(struct ahead_peer *peer, uint32_t sequence, uint64_t bytes)
{
    ahead_say_eager(peer, sequence, bytes);
    ahead_put(peer, 0, text_of(&ahead_text, sequence), bytes);
}

void ahead_put_slices(struct ahead_peer *peer, uint32_t sequence, uint64_t bytes)
{
    unsigned socket = sequence;

    for (uint64_t at = 0; at < bytes; at += AHEAD_SLICE, socket++)
        ahead_put_slice(peer, socket % peer->link.sockets, sequence, bytes, at,
                        bytes - at < AHEAD_SLICE ? bytes - at : AHEAD_SLICE, true);
    peer->charged += bytes + WIRE_EAGER_CHARGE;
}

void ahead_put_whole(struct ahead_peer *peer, uint32_t sequence, uint64_t bytes)
{
    if (bytes <= AHEAD_EAGER_LIMIT)
        ahead_put_eager(peer, sequence, bytes);
    else
        ahead_put_slices(peer, sequence, bytes);
}

static void hear_one(struct ahead_peer *peer, const struct wire_record *record)
{
    if (record->type == WIRE_ABORT) {
        peer->ended = true;
        return;
    }
    assert_true(record->type == WIRE_POST || record->type == WIRE_CREDIT);
    /* never back, and never more than there was */
    assert_true(record->offset >= peer->freed);
    assert_true(record->offset <= peer->charged);
    peer->freed = record->offset;
    if (record->type == WIRE_POST) {
        assert_int_equal(record->sequence, peer->posts);
        assert_true(peer->posts < AHEAD_POSTS);
        peer->rooms[peer->posts++] = record->length;
    }
}

void ahead_hear(struct ahead_peer *peer)
{
    ssize_t got = recv(peer->link.reverse, peer->heard + peer->heard_bytes,
                       sizeof peer->heard - peer->heard_bytes, MSG_DONTWAIT);
    size_t at = 0;

    if (got <= 0)
        return;
    peer->heard_bytes += (size_t)got;
    for (; peer->heard_bytes - at >= WIRE_RECORD_BYTES && !peer->ended; at += WIRE_RECORD_BYTES) {
        struct wire_record record;

        assert_int_equal(wire_record_read(peer->heard + at, WIRE_REVERSE, &record), WIRE_FINE);
        hear_one(peer, &record);
    }
    peer->heard_bytes -= at;
    memmove(peer->heard, peer->heard + at, peer->heard_bytes);
}

void ahead_hear_posts(struct ahead_peer *peer, unsigned posts)
{
    soon(peer->posts >= posts, {
        inside_move_on(peer->comm);
        ahead_hear(peer);
    });
}

void ahead_wait_held(struct ahead_peer *peer, uint64_t bytes)
{
    soon(inside_held(peer->comm) == bytes, {
        inside_move_on(peer->comm);
        assert_success(inside_result(peer->comm));
    });
}

void ahead_must_arrive(struct ahead_peer *peer, uint32_t sequence, uint64_t bytes)
{
    static uint8_t arrived[AHEAD_LONGEST];

    memset(arrived, 0, bytes);
    assert_int_equal(must_end(must_receive(peer->comm, arrived, bytes, 0)), bytes);
    assert_memory_equal(arrived, text_of(&ahead_text, sequence), bytes);
}

/* --- it receives ----------------------------------------------------------------------------- */

void ahead_say_post(struct ahead_peer *peer, uint64_t room)
{
    hand_say(peer->link.reverse, &(struct wire_record){.type = WIRE_POST,
                                                       .sequence = peer->posts,
                                                       .offset = peer->freed,
                                                       .length = room});
    peer->rooms[peer->posts++] = room;
}

struct net_request *ahead_must_send(struct ahead_peer *peer, uint32_t sequence, uint64_t bytes)
{
    return must_send(peer->comm, text_of(&ahead_text, sequence), bytes, 0);
}

static void begin_message(struct ahead_peer *peer, const struct wire_record *record,
                          struct ahead_coming *coming)
{
    bool eager = record->type == WIRE_EAGER;
    bool charged = (record->flags & WIRE_ON_CREDIT) != 0;

    coming->begun = true;
    coming->on_credit = charged;
    coming->total = eager ? record->length : record->tag;
    if (charged)
        peer->charged += coming->total + WIRE_EAGER_CHARGE;
    if (record->sequence < peer->posts) {
        assert_true(coming->total <= peer->rooms[record->sequence] || charged);
        return;
    }
    assert_true(charged);
    assert_true(peer->charged - peer->freed <= peer->credit);
    if (record->sequence - peer->posts > peer->most_ahead)
        peer->most_ahead = record->sequence - peer->posts;
    assert_true(peer->most_ahead < WIRE_MOST_AHEAD);
}

static void read_record(struct ahead_peer *peer, unsigned socket)
{
    struct ahead_socket *reading = &peer->sockets[socket];
    struct wire_record record;
    struct ahead_coming *coming;

    reading->have = 0;
    if (wire_record_read(reading->record, WIRE_FORWARD, &record) != WIRE_FINE)
        fail_msg("%s", error_text());
    if (record.type == WIRE_FIN)
        return;
    assert_true(record.sequence < AHEAD_MESSAGES);
    coming = &peer->coming[record.sequence];
    if (record.type == WIRE_TOOLONG) {
        assert_true(record.sequence < peer->posts && !coming->begun);
        assert_true(record.length > peer->rooms[record.sequence]);
        coming->too_long = true;
        return;
    }
    assert_true(record.type == WIRE_SLICE || (record.type == WIRE_EAGER && socket == 0));
    assert_false(coming->too_long);
    if (!coming->begun)
        begin_message(peer, &record, coming);
    else
        assert_int_equal(record.type, WIRE_SLICE);
    if (record.type == WIRE_SLICE) {
        assert_int_equal(record.socket, socket);
        assert_int_equal(record.tag, coming->total);
        assert_int_equal((record.flags & WIRE_ON_CREDIT) != 0, coming->on_credit);
        assert_true(record.length <= AHEAD_SLICE);
    } else {
        assert_int_equal(record.tag, 0);
        assert_true(record.length <= AHEAD_EAGER_LIMIT);
    }
    coming->begun_bytes += record.length;
    assert_true(coming->begun_bytes <= coming->total);
    reading->sequence = record.sequence;
    reading->offset = record.offset;
    reading->left = record.length;
}

static void read_socket(struct ahead_peer *peer, unsigned socket)
{
    static uint8_t bytes[AHEAD_SLICE];
    struct ahead_socket *reading = &peer->sockets[socket];

    for (;;) {
        bool payload = reading->left > 0;
        ssize_t got =
            recv(peer->link.forward[socket], payload ? bytes : reading->record + reading->have,
                 payload ? reading->left : WIRE_RECORD_BYTES - reading->have, MSG_DONTWAIT);

        if (got <= 0)
            return;
        if (!payload) {
            reading->have += (size_t)got;
            if (reading->have == WIRE_RECORD_BYTES)
                read_record(peer, socket);
            continue;
        }
        assert_memory_equal(bytes, text_of(&ahead_text, reading->sequence) + reading->offset,
                            (size_t)got);
        reading->offset += (uint64_t)got;
        reading->left -= (uint64_t)got;
        peer->coming[reading->sequence].bytes += (uint64_t)got;
    }
}

void ahead_read(struct ahead_peer *peer)
{
    for (unsigned i = 0; i < peer->link.sockets; i++)
        read_socket(peer, i);
}

void ahead_read_for(struct ahead_peer *peer, uint64_t milliseconds)
{
    for (uint64_t deadline = deadline_after_ms(milliseconds); !deadline_passed(deadline);) {
        inside_move_on(peer->comm);
        ahead_read(peer);
    }
}

bool ahead_is_whole(const struct ahead_peer *peer, uint32_t sequence)
{
    const struct ahead_coming *coming = &peer->coming[sequence];

    return coming->too_long || (coming->begun && coming->bytes == coming->total);
}

void ahead_read_message(struct ahead_peer *peer, uint32_t sequence)
{
    soon(ahead_is_whole(peer, sequence), {
        inside_move_on(peer->comm);
        ahead_read(peer);
    });
}
