/*
 * Fuzzes one end of a comm against a peer that is not one of ours. An input is the settings of a
 * link and a script: what the application does, and what the peer writes, holds back, corrupts or
 * ends. The peer keeps its own books of docs/protocol.md: what a broken rule must lead to, where
 * each byte of a receive comes from, and what a sender may say.
 */
#include <sys/mman.h>
#include <sys/socket.h>

#include "tests/fuzz/fuzz.h"
#include "tests/support/comm_inside.h"

enum {
    MOST_MESSAGES = 64, /* receives or sends of one run */
    MOST_NUMBERS = 512, /* of messages that a sender may speak of */
    MOST_ROOM = 512,    /* bytes of one */
    SLOT = 4096,        /* a receive's page; an unreadable one follows */
    MOST_SOCKETS = 3,   /* forward sockets */
    OUTBOX = 8192,      /* what the peer holds back on one socket */
    INBOX = 1 << 18,    /* what a sender says on one socket */
    MOST_SLICES = 8192, /* of one socket, announced on another */
    MOST_STEPS = 200,
    POISON = 0xaa,   /* before a message is there */
    RELEASED = 0xdd, /* after its request has ended */
};

/* Bits of the byte that a step takes besides its operands: the peer's; and time passes first. */
enum { HOLD = 0x80, LATER = 0x40 };

/* A receive or a send of the application; and what a sender has said of it so far. */
struct message {
    struct net_request *request; /* NULL once it has ended */
    uint64_t tag;
    uint64_t bytes; /* receive: the room */
    bool ended;
    bool seen; /* its EAGER, TOOLONG or first slice has come */
    bool on_credit;
    bool whole;
    uint64_t covered;
    uint8_t map[MOST_ROOM];
};

/* What the peer has said about one receive (receiver), or heard about one send (sender). */
struct said {
    bool opened;
    bool twice; /* or of different lengths, or of both kinds */
    bool eager;
    bool on_credit;
    bool mixed; /* on credit and not: what is charged depends on which came first */
    bool overlaps;
    bool too_long;
    uint64_t open_length;
    uint64_t too_long_length;
    uint64_t slices; /* bytes of all of them */
    uint64_t reach;  /* the end of the farthest */
};

struct outbox {
    size_t length;
    uint64_t total; /* ever put here */
    bool fin;
    bool shut;
};

struct inbox {
    size_t length;
    size_t parsed;
    bool fin;
    bool end;
    unsigned announced; /* slices, separate framing */
    unsigned taken;
};

struct post_said {
    uint64_t tag;
    uint64_t room;
};

static struct {
    struct script script;
    struct net_link link; /* the comm's end */
    struct net_link raw;
    struct net_comm *comm;
    enum net_side side;
    struct message messages[MOST_MESSAGES];
    unsigned count;
    uint64_t done;
    bool clean;     /* every byte so far was well-formed */
    bool must_fail; /* a rule was broken that needs no state to see */
    struct said said[MOST_NUMBERS];
    unsigned eager_tags;                 /* bits: tags that have had an EAGER on credit */
    struct outbox out[MOST_SOCKETS + 1]; /* the last one: the reverse socket */

    /* against a receiver */
    bool honest; /* no rule was broken, as a sender can know; none on credit where tags match */
    uint8_t heard[WIRE_RECORD_BYTES];
    size_t heard_bytes;
    bool heard_abort;
    unsigned heard_posts;
    uint64_t heard_freed;
    uint64_t most_kept; /* bytes of memory for messages without a receive */

    /* against a sender */
    struct inbox in[MOST_SOCKETS];
    struct post_said posts[256];
    unsigned post_count;
    unsigned opened_of_tag[4]; /* the messages up to the last one that went on credit */
    uint64_t freed_told;
    uint64_t charged;
} now;

/* Large, and so not cleared as a whole before each input. */
static uint8_t said_map[MOST_NUMBERS][MOST_ROOM]; /* which bytes were sent */
static uint8_t out_bytes[MOST_SOCKETS + 1][OUTBOX];
static uint8_t in_bytes[MOST_SOCKETS][INBOX];
static struct wire_record expected[MOST_SOCKETS][MOST_SLICES]; /* slices announced on socket 0 */

static uint8_t *slots;
static uint8_t *content; /* of any message, by offset: never one of the two marks */

static uint8_t next(void)
{
    return script_next(&now.script);
}

static uint8_t *room_of(unsigned message)
{
    return slots + (size_t)message * 2 * SLOT + SLOT - now.messages[message].bytes;
}

/* --- the link ------------------------------------------------------------------------------ */

static void make_link(void)
{
    static const uint64_t limits[] = {0, 1, 40, 200};
    static const uint64_t credits[] = {0, 64, 200, 1000};
    static const uint64_t slices[] = {8, 16, 100, 512};
    uint8_t shape = next();
    uint8_t sizes = next();
    const int least = 1;
    int pair[2];

    now.side = shape & 1 ? NET_SENDER : NET_RECEIVER;
    now.link = (struct net_link){.sockets = (uint8_t)(1 + (shape >> 1) % MOST_SOCKETS),
                                 .match = shape & 64 ? WIRE_MATCH_FIFO : WIRE_MATCH_TAG,
                                 .framing = shape & 128 ? WIRE_SEPARATE : WIRE_INLINE,
                                 .eager_limit = limits[sizes & 3],
                                 .eager_credit = credits[sizes >> 2 & 3],
                                 .largest_slice = slices[sizes >> 4 & 3],
                                 .peer = "the peer"};
    if (now.link.framing == WIRE_SEPARATE && now.link.sockets < 2)
        now.link.sockets = 2;
    if (now.link.eager_limit > now.link.eager_credit)
        now.link.eager_limit = now.link.eager_credit;
    now.raw = now.link;
    for (unsigned i = 0; i < WIRE_MOST_SOCKETS; i++)
        now.link.forward[i] = now.raw.forward[i] = -1;
    for (unsigned i = 0; i <= now.link.sockets; i++) {
        PROMISE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
        *(i < now.link.sockets ? &now.link.forward[i] : &now.link.reverse) = pair[0];
        *(i < now.link.sockets ? &now.raw.forward[i] : &now.raw.reverse) = pair[1];
    }
    /* The kernel's least, so that a peer which does not read is felt. */
    for (unsigned i = 0; i < now.link.sockets && sizes & 0x40; i++)
        PROMISE(setsockopt(now.link.forward[i], SOL_SOCKET, SO_SNDBUF, &least, sizeof least) == 0);
}

/* --- what must always hold ----------------------------------------------------------------- */

static void check_memory(void)
{
    for (unsigned i = 0; i < now.count && now.side == NET_RECEIVER; i++) {
        const struct message *message = &now.messages[i];
        const uint8_t *room = room_of(i);

        for (const uint8_t *at = room - 64; at < room; at++)
            PROMISE(*at == POISON);
        for (uint64_t k = 0; k < message->bytes; k++)
            if (message->ended)
                PROMISE(room[k] == RELEASED);
            else if (now.clean && !now.said[i].overlaps)
                PROMISE(room[k] == POISON || room[k] == content[k]);
    }
}

static bool in_order(void)
{
    return now.link.match == WIRE_MATCH_FIFO;
}

static uint64_t charge_of(uint64_t bytes)
{
    return bytes + WIRE_EAGER_CHARGE;
}

static void check_comm(void)
{
    const char *broken = inside_broken_rule(now.comm, now.done, &now.most_kept);

    if (broken != NULL) {
        fprintf(stderr, "broken: %s\n", broken);
        abort();
    }
    /* The kernel meets the unreadable page without a signal; an ABORT may use such words. */
    if (inside_result(now.comm) != TCPX_SUCCESS)
        PROMISE(strstr(error_text(), "gave up") != NULL ||
                strstr(error_text(), "Bad address") == NULL);
    check_memory();
}

/* --- the application ----------------------------------------------------------------------- */

static void start_one(void)
{
    struct message *message = &now.messages[now.count];
    uint8_t tag = next();
    uint64_t bytes = (uint64_t)next() * (tag & 0x80 ? 2 : 1);
    bool had_failed = inside_result(now.comm) != TCPX_SUCCESS;
    bool aside;
    int result;

    if (now.count == MOST_MESSAGES)
        return;
    *message = (struct message){.tag = tag & 3, .bytes = bytes};
    if (in_order())
        message->tag = 0;
    aside = inside_has_unexpected(now.comm, message->tag);
    if (now.side == NET_RECEIVER) {
        memset(room_of(now.count) - 64, POISON, bytes + 64);
        result = net_irecv(now.comm, room_of(now.count), bytes, message->tag, &message->request);
    } else {
        result = net_isend(now.comm, content, bytes, message->tag, &message->request);
    }
    if (had_failed)
        PROMISE(result != TCPX_SUCCESS || (now.side == NET_RECEIVER && aside));
    if (result != TCPX_SUCCESS) {
        PROMISE(had_failed && error_text()[0] != '\0' && message->request == NULL);
        return;
    }
    now.count += message->request != NULL;
    /*
     * Some of what a receiver does depends on how long ago a receive was posted. The script decides
     * that, or the same input would not do the same twice.
     */
    if (now.side == NET_RECEIVER)
        inside_keep_posting(now.comm, true);
}

static bool drain(void);

static void end_one(unsigned which, int result, uint64_t bytes)
{
    struct message *message = &now.messages[which];
    const struct said *said = &now.said[which];
    const uint8_t *room;

    message->request = NULL;
    message->ended = true;
    now.done += result == TCPX_SUCCESS;
    if (now.side == NET_SENDER) {
        PROMISE(result != TCPX_SUCCESS || bytes == message->bytes);
        drain();
        PROMISE(result != TCPX_SUCCESS || !now.clean || message->whole);
        return;
    }
    room = room_of(which);
    if (now.honest)
        PROMISE((result != TCPX_SUCCESS) ==
                (said->too_long || (said->opened && said->open_length > message->bytes)));
    if (result == TCPX_SUCCESS) {
        PROMISE(bytes <= message->bytes);
        if (now.clean && !said->twice && !(now.eager_tags >> message->tag & 1))
            PROMISE(said->opened && bytes == said->open_length && said->slices >= bytes);
        if (now.honest)
            PROMISE(memcmp(room, content, bytes) == 0);
        for (uint64_t k = bytes; k < message->bytes; k++)
            PROMISE(room[k] == POISON);
    }
    memset(room_of(which), RELEASED, message->bytes);
}

static void test_one(unsigned which)
{
    struct message *message = &now.messages[which];
    uint64_t bytes = UINT64_MAX;
    bool done = false;
    int result;

    if (which >= now.count || message->request == NULL)
        return;
    result = net_test(message->request, &done, &bytes);
    PROMISE(result == TCPX_SUCCESS || (!done && error_text()[0] != '\0'));
    PROMISE(done || result != TCPX_SUCCESS || inside_result(now.comm) == TCPX_SUCCESS);
    if (done || result != TCPX_SUCCESS) {
        struct net_request *ended = message->request;

        end_one(which, result, bytes);
        /* Once, and not again. */
        PROMISE(net_test(ended, &done, NULL) == TCPX_INVALID_USAGE && !done);
    }
}

static void test_all(void)
{
    for (unsigned i = 0; i < now.count; i++)
        test_one(i);
}

/* --- what the peer writes ------------------------------------------------------------------ */

static int raw_fd(unsigned socket)
{
    return socket == MOST_SOCKETS ? now.raw.reverse : now.raw.forward[socket];
}

static void flush(unsigned socket, size_t most)
{
    struct outbox *out = &now.out[socket];
    size_t length = out->length < most ? out->length : most;
    ssize_t sent;

    if (length == 0 || out->shut)
        return;
    sent = send(raw_fd(socket), out_bytes[socket], length, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0)
        return;
    out->length -= (size_t)sent;
    memmove(out_bytes[socket], out_bytes[socket] + sent, out->length);
}

/* False if there is no place any more, so that the step is left out as a whole. */
static bool has_place(unsigned socket, size_t bytes)
{
    const struct outbox *out = &now.out[socket];

    return !out->shut && out->length + bytes <= OUTBOX;
}

static void put(unsigned socket, const void *bytes, size_t length)
{
    struct outbox *out = &now.out[socket];

    memcpy(out_bytes[socket] + out->length, bytes, length);
    out->length += length;
    out->total += length;
    if (out->fin && now.clean)
        now.must_fail = true;
}

/* With the payload, which may be NULL; false as above. */
static bool say(unsigned socket, const struct wire_record *record, const uint8_t *payload)
{
    uint8_t bytes[WIRE_RECORD_BYTES];

    if (!has_place(socket, WIRE_RECORD_BYTES + (payload != NULL ? record->length : 0)))
        return false;
    wire_record_write(record, bytes);
    put(socket, bytes, sizeof bytes);
    if (payload != NULL)
        put(socket, payload, record->length);
    return true;
}

/* A rule was broken that holds whatever has happened before. */
static void broke_if(bool broke)
{
    now.must_fail = now.must_fail || (broke && now.clean);
}

/* What a receiver has said so far. */
static void hear_receiver(void)
{
    struct wire_record record;

    while (!now.heard_abort &&
           recv(now.raw.reverse, now.heard + now.heard_bytes, 1, MSG_DONTWAIT) == 1) {
        if (++now.heard_bytes < WIRE_RECORD_BYTES)
            continue;
        now.heard_bytes = 0;
        PROMISE(wire_record_read(now.heard, WIRE_REVERSE, &record) == WIRE_FINE);
        if (record.type == WIRE_ABORT) {
            now.heard_abort = true;
            return;
        }
        PROMISE(record.type == WIRE_POST || record.type == WIRE_CREDIT);
        PROMISE(record.offset >= now.heard_freed && (!now.honest || record.offset <= now.charged));
        now.heard_freed = record.offset;
        if (record.type == WIRE_CREDIT)
            continue;
        PROMISE(record.sequence == now.heard_posts && record.sequence < MOST_MESSAGES);
        PROMISE(record.tag == now.messages[record.sequence].tag);
        PROMISE(record.length == now.messages[record.sequence].bytes);
        now.heard_posts++;
    }
}

/* Whether a sender that keeps the rules would begin such a message now. */
static bool may_begin(uint32_t sequence, uint64_t bytes, bool eager, bool on_credit)
{
    bool is_posted = sequence < now.heard_posts;

    if (now.said[sequence].opened || now.said[sequence].too_long ||
        (eager && bytes > now.link.eager_limit))
        return false;
    if (is_posted && !on_credit)
        return bytes <= now.messages[sequence].bytes;
    return on_credit && in_order() && !is_posted && sequence - now.heard_posts < WIRE_MOST_AHEAD &&
           (eager || now.link.framing == WIRE_INLINE) &&
           now.charged - now.heard_freed + charge_of(bytes) <= now.link.eager_credit;
}

static void note_bytes(struct said *said, uint64_t offset, uint64_t length)
{
    said->slices += length;
    if (said->reach < offset + length)
        said->reach = offset + length;
}

/* The books of a message, of which this piece is said. */
static void note_piece(uint32_t sequence, uint64_t total, bool eager, bool on_credit,
                       uint64_t offset, uint64_t length)
{
    struct said *said = &now.said[sequence];
    uint8_t *map = said_map[sequence];

    if (!now.clean)
        return;
    if (!said->opened) {
        now.honest = now.honest && may_begin(sequence, total, eager, on_credit);
        said->opened = true;
        said->eager = eager;
        said->on_credit = on_credit;
        said->open_length = total;
        now.charged += on_credit ? charge_of(total) : 0;
    } else {
        said->twice = said->twice || eager || said->eager || said->open_length != total;
        said->mixed = said->mixed || said->on_credit != on_credit;
    }
    for (uint64_t i = offset; i < offset + length && i < MOST_ROOM; i++)
        said->overlaps = said->overlaps || map[i]++ != 0;
    note_bytes(said, offset, length);
    now.honest = now.honest && !said->twice && !said->mixed && !said->overlaps && !said->too_long &&
                 said->reach <= total;
}

/* Says the number of its receive, or that of the message, which is the same. */
static void put_numbered_eager(unsigned socket)
{
    struct wire_record record = {.type = WIRE_EAGER, .length = next()};
    uint8_t how = next();

    record.sequence = next();
    record.flags = how & 16 ? 0 : WIRE_ON_CREDIT;
    if (!in_order())
        record.flags = 0;
    if ((how & 7) == 3) {
        record.tag = 1;
    } else if (how & 4) { /* the next that is due, mostly by the rules */
        record.sequence %= MOST_MESSAGES;
        while (now.said[record.sequence].opened || now.said[record.sequence].too_long)
            record.sequence++;
        record.flags = record.sequence >= now.heard_posts && in_order() ? WIRE_ON_CREDIT : 0;
        if (!(how & 8) && !may_begin(record.sequence, record.length, true, record.flags != 0))
            return;
    }
    if (!say(socket, &record, content))
        return;
    note_piece(record.sequence, record.length, true, record.flags != 0, 0, record.length);
    broke_if(socket != 0 || record.length > now.link.eager_limit || record.tag != 0);
    now.honest = now.honest && !now.must_fail;
}

/* The receiver finds the receive. */
static void put_tagged_eager(unsigned socket)
{
    struct wire_record record = {
        .type = WIRE_EAGER, .flags = WIRE_ON_CREDIT, .length = next(), .tag = next()};

    record.offset = record.tag & 4 ? record.tag >> 3 : now.heard_posts;
    record.tag &= 3;
    if (!say(socket, &record, content))
        return;
    now.honest = false;
    now.eager_tags |= 1u << record.tag;
    broke_if(socket != 0 || record.length > now.link.eager_limit || record.offset > MOST_MESSAGES);
}

/* False: a step that is left out. */
static bool send_slice(unsigned socket, const struct wire_record *record)
{
    bool separate = now.link.framing == WIRE_SEPARATE;

    if (!has_place(separate ? 0 : socket, WIRE_RECORD_BYTES + record->length) ||
        !has_place(socket, record->length))
        return false;
    say(separate ? 0 : socket, record, separate ? NULL : content + record->offset);
    if (separate && socket != 0)
        put(socket, content + record->offset, record->length);
    broke_if((separate && socket == 0) || record->length > now.link.largest_slice);
    return true;
}

/* What a sender that keeps the rules could send next of a message, from an offset on. */
static bool next_piece(struct wire_record *record)
{
    const struct said *said = &now.said[record->sequence];
    const uint8_t *map = said_map[record->sequence];
    uint64_t most = record->length;

    if (said->opened) {
        record->tag = said->open_length;
        record->flags = said->on_credit ? WIRE_ON_CREDIT : 0;
    } else {
        record->flags = record->sequence >= now.heard_posts && in_order() ? WIRE_ON_CREDIT : 0;
        if (!may_begin(record->sequence, record->tag, false, record->flags != 0))
            return false;
    }
    if (said->eager || said->too_long || record->tag == 0)
        return false;
    record->offset %= record->tag;
    for (uint64_t i = 0; i < record->tag && map[record->offset] != 0; i++)
        record->offset = (record->offset + 1) % record->tag;
    most = most < now.link.largest_slice ? most : now.link.largest_slice;
    for (record->length = 0; record->length < most && record->offset + record->length < record->tag;
         record->length++)
        if (map[record->offset + record->length] != 0)
            break;
    return record->length > 0;
}

/* Every slice says of how long a message it is, and whether that was opened on credit. */
static void put_slice(unsigned socket)
{
    uint8_t which = next();
    struct wire_record record = {.type = WIRE_SLICE,
                                 .socket = (uint16_t)socket,
                                 .sequence = which,
                                 .offset = next(),
                                 .length = next() + 1u};
    uint8_t how = next();

    record.tag = next() * 2u + 1;
    if (how & 1) { /* by the rules */
        record.sequence = which & 0x40 ? which % MOST_MESSAGES : now.heard_posts + (which & 7);
        if (how & 2)
            record.sequence = now.heard_posts + WIRE_MOST_AHEAD - 1;
        if (!next_piece(&record))
            return;
    } else {
        if (how & 2) /* about the end of what may be ahead */
            record.sequence = now.count + WIRE_MOST_AHEAD - 4 + which % 8;
        if (how & 4 && now.said[record.sequence].opened)
            record.tag = now.said[record.sequence].open_length;
        if (how & 8 && record.tag != 0 && record.offset < record.tag &&
            record.length > record.tag - record.offset)
            record.length = record.tag - record.offset;
        if (how & 16)
            record.tag = 0;
        record.flags = how & 32 ? WIRE_ON_CREDIT : 0;
    }
    if (!send_slice(socket, &record))
        return;
    broke_if(record.offset + record.length > record.tag);
    broke_if(record.flags != 0 && (now.link.framing == WIRE_SEPARATE || !in_order()));
    note_piece(record.sequence, record.tag, false, record.flags != 0, record.offset, record.length);
    now.honest = now.honest && !now.must_fail;
}

static void put_too_long(unsigned socket)
{
    uint8_t sequence = next();
    struct wire_record record = {
        .type = WIRE_TOOLONG, .sequence = sequence, .length = next() * 2u + 1};
    struct said *said = &now.said[sequence];

    if (!say(socket, &record, NULL))
        return;
    now.honest = now.honest && sequence < now.heard_posts &&
                 record.length > now.messages[sequence].bytes && !said->opened && !said->too_long;
    if (!now.clean)
        return;
    said->twice = said->twice || said->too_long;
    said->too_long = true;
    said->too_long_length = record.length;
}

static void put_fin(unsigned socket)
{
    uint8_t wrong = next();
    struct wire_record record = {.type = WIRE_FIN, .length = now.out[socket].total + (wrong > 250)};

    if ((socket != 0 && now.link.framing == WIRE_SEPARATE) || !say(socket, &record, NULL))
        return;
    now.honest = false;
    broke_if(wrong > 250);
    now.out[socket].fin = true;
}

static void put_abort(unsigned socket)
{
    uint8_t text[WIRE_ABORT_TEXT];
    struct wire_record record = {.type = WIRE_ABORT, .sequence = next() % 7 + 1u};

    record.length = next() % (WIRE_ABORT_TEXT + 1u);
    if (!has_place(socket, WIRE_RECORD_BYTES + record.length) ||
        (socket != 0 && socket != MOST_SOCKETS && now.link.framing == WIRE_SEPARATE))
        return;
    for (uint64_t i = 0; i < record.length; i++)
        text[i] = next();
    say(socket, &record, text);
    now.honest = false;
    broke_if(true);
}

static void put_post(unsigned reverse)
{
    uint8_t how = next();
    struct wire_record record = {.type = WIRE_POST,
                                 .sequence = now.post_count,
                                 .offset = now.freed_told,
                                 .length = (uint64_t)next() * (how & 4 ? 2 : 1),
                                 .tag = in_order() ? 0 : how & 3};

    if (how > 250) { /* not the next one */
        record.sequence += how - 250u;
        broke_if(true);
    }
    if (!has_place(reverse, WIRE_RECORD_BYTES) || now.post_count == 256)
        return;
    if ((how & 8) && now.charged > now.freed_told) /* all that was charged and seen */
        record.offset = now.charged;
    say(reverse, &record, NULL);
    if (!now.clean)
        return;
    now.freed_told = record.offset;
    now.posts[now.post_count++] = (struct post_said){.tag = record.tag, .room = record.length};
}

static void put_credit(unsigned reverse)
{
    uint8_t how = next();
    uint64_t freed = now.charged;

    if (!has_place(reverse, WIRE_RECORD_BYTES))
        return;
    if (how > 240 && now.freed_told > 0) {
        freed = now.freed_told - 1;
        broke_if(true);
    }
    say(reverse, &(struct wire_record){.type = WIRE_CREDIT, .offset = freed}, NULL);
    if (now.clean && freed > now.freed_told)
        now.freed_told = freed;
}

static void put_junk(unsigned socket)
{
    uint8_t bytes[64];
    size_t length = next() % sizeof bytes + 1;

    if (!has_place(socket, length))
        return;
    for (size_t i = 0; i < length; i++)
        bytes[i] = next();
    now.honest = false;
    now.clean = false; /* before: a piece of a record behind FIN is not seen yet */
    put(socket, bytes, length);
}

static void shut(unsigned socket)
{
    now.out[socket].shut = true;
    now.honest = false;
    shutdown(raw_fd(socket), SHUT_WR);
}

/* --- what a sender says -------------------------------------------------------------------- */

/* The message of a tag that so many others came before; MOST_MESSAGES: none. */
static unsigned message_of_tag(uint64_t tag, unsigned position)
{
    for (unsigned i = 0; i < now.count; i++)
        if (now.messages[i].tag == tag && position-- == 0)
            return i;
    return MOST_MESSAGES;
}

/* How many of the first POSTs have this tag. */
static unsigned posts_of_tag(uint64_t tag, uint64_t count)
{
    unsigned found = 0;

    for (unsigned i = 0; i < count; i++)
        found += now.posts[i].tag == tag;
    return found;
}

/* The k-th of its tag, as its receive is. */
static unsigned message_of_post(unsigned post)
{
    PROMISE(post < now.post_count);
    return in_order()
               ? post
               : message_of_tag(now.posts[post].tag, posts_of_tag(now.posts[post].tag, post));
}

/* Of an EAGER on credit, which is behind those that have a POST and those that went so before. */
static unsigned message_on_credit(const struct wire_record *record)
{
    unsigned *opened = &now.opened_of_tag[record->tag & 3];
    unsigned posted;

    PROMISE(record->tag <= 3 && record->sequence == 0 && record->offset <= now.post_count);
    posted = posts_of_tag(record->tag, record->offset);
    *opened = (*opened > posted ? *opened : posted) + 1;
    return message_of_tag(record->tag, *opened - 1);
}

static unsigned message_of(const struct wire_record *record)
{
    if (in_order())
        return record->sequence;
    return record->flags != 0 ? message_on_credit(record) : message_of_post(record->sequence);
}

/* A message that goes before its POST has come, as far as that can be told here. */
static void charge(unsigned post, uint64_t bytes)
{
    PROMISE(post < now.post_count ||
            now.charged - now.freed_told + charge_of(bytes) <= now.link.eager_credit);
    now.charged += charge_of(bytes);
}

/* Any record of a message: which one it is of. */
static unsigned hear_message(const struct wire_record *record)
{
    unsigned which = message_of(record);
    struct message *message = &now.messages[which];
    bool on_credit = record->flags != 0;
    uint64_t bytes = record->type == WIRE_SLICE ? record->tag : record->length;

    PROMISE(which < now.count && bytes == message->bytes);
    if (message->seen) {
        PROMISE(record->type == WIRE_SLICE && on_credit == message->on_credit);
        return which;
    }
    message->seen = true;
    message->on_credit = on_credit;
    if (record->type == WIRE_EAGER)
        PROMISE(bytes <= now.link.eager_limit);
    else if (record->type == WIRE_SLICE)
        PROMISE(bytes > now.link.eager_limit);
    if (on_credit) {
        PROMISE(!in_order() || which < now.post_count + WIRE_MOST_AHEAD);
        PROMISE(!in_order() || (record->type == WIRE_EAGER && record->tag == 0) ||
                (record->type == WIRE_SLICE && now.link.framing == WIRE_INLINE));
        charge(in_order() ? which : now.post_count, bytes);
    } else {
        PROMISE(record->sequence < now.post_count &&
                (record->type == WIRE_TOOLONG) == (bytes > now.posts[record->sequence].room));
    }
    message->whole = record->type != WIRE_SLICE;
    return which;
}

static void hear_slice_record(const struct wire_record *record)
{
    unsigned which;

    PROMISE(record->length <= now.link.largest_slice && (in_order() || record->flags == 0));
    which = hear_message(record);
    PROMISE(record->offset + record->length <= now.messages[which].bytes);
}

static void hear_slice_bytes(const struct wire_record *record, const uint8_t *bytes)
{
    struct message *message = &now.messages[message_of(record)];

    PROMISE(memcmp(bytes, content + record->offset, record->length) == 0);
    for (uint64_t i = 0; i < record->length; i++)
        PROMISE(message->map[record->offset + i]++ == 0);
    message->covered += record->length;
    if (message->covered == message->bytes)
        message->whole = true;
}

/* One record with what follows it; false if it is not all there. */
static bool hear_one(unsigned socket)
{
    struct inbox *in = &now.in[socket];
    const uint8_t *bytes = in_bytes[socket] + in->parsed;
    size_t have = in->length - in->parsed;
    bool separate = now.link.framing == WIRE_SEPARATE;
    struct wire_record record;
    size_t payload = 0;

    if (separate && socket > 0) {
        const struct wire_record *slice = &expected[socket][in->taken];

        if (in->taken == in->announced || have < slice->length)
            return false;
        hear_slice_bytes(slice, bytes);
        in->taken++;
        in->parsed += slice->length;
        return true;
    }
    if (have < WIRE_RECORD_BYTES)
        return false;
    PROMISE(!in->fin);
    PROMISE(wire_record_read(bytes, WIRE_FORWARD, &record) == WIRE_FINE);
    if (record.type == WIRE_EAGER || record.type == WIRE_ABORT ||
        (record.type == WIRE_SLICE && !separate))
        payload = record.length;
    if (have < WIRE_RECORD_BYTES + payload)
        return false;
    bytes += WIRE_RECORD_BYTES;
    if (record.type == WIRE_SLICE) {
        hear_slice_record(&record);
        PROMISE(separate ? record.socket > 0 && record.socket < now.link.sockets
                         : record.socket == socket);
        if (separate)
            expected[record.socket][now.in[record.socket].announced++] = record;
        else
            hear_slice_bytes(&record, bytes);
    } else if (record.type == WIRE_FIN) {
        PROMISE(record.length == in->parsed);
        in->fin = true;
    } else if (record.type != WIRE_ABORT) {
        PROMISE(socket == 0);
        hear_message(&record);
        if (record.type == WIRE_EAGER)
            PROMISE(memcmp(bytes, content, payload) == 0);
    }
    in->parsed += WIRE_RECORD_BYTES + payload;
    return true;
}

/*
 * Takes all that the sender has said; false: nothing. Socket 0 is read last and parsed first: with
 * separate framing all records are there.
 */
static bool drain(void)
{
    bool any = false;

    for (unsigned i = now.link.sockets; i-- > 0;) {
        struct inbox *in = &now.in[i];
        ssize_t got = 1;

        while (got > 0 && in->length < INBOX) {
            got = recv(now.raw.forward[i], in_bytes[i] + in->length, INBOX - in->length,
                       MSG_DONTWAIT);
            if (got > 0)
                in->length += (size_t)got;
            any = any || got > 0;
        }
        in->end = in->end || got == 0;
    }
    /* Without well-formed POSTs there is nothing to compare with. */
    for (unsigned i = 0; i < now.link.sockets && now.clean; i++)
        while (hear_one(i))
            ;
    return any;
}

/* --- the script ---------------------------------------------------------------------------- */

static void speak(uint8_t what, unsigned socket)
{
    /* To a receiver with tags; in order, which has more to say with slices; to a sender. */
    static void (*const puts_what[3][8])(unsigned) = {
        {put_slice, put_numbered_eager, put_tagged_eager, put_slice, put_slice, put_too_long,
         put_fin, put_abort},
        {put_slice, put_slice, put_numbered_eager, put_slice, put_slice, put_too_long, put_fin,
         put_abort},
        {put_post, put_post, put_post, put_post, put_post, put_credit, put_credit, put_abort}};
    void (*put_it)(unsigned) = puts_what[now.side == NET_SENDER ? 2 : in_order()][what % 8];

    /* With separate framing another socket has no records that could be misplaced. */
    if (put_it == put_too_long || ((put_it == put_tagged_eager || put_it == put_numbered_eager) &&
                                   (!(what & 8) || now.link.framing != WIRE_INLINE)))
        socket = 0;
    put_it(socket);
}

static void step(void)
{
    uint8_t what = next();
    uint8_t where = next();
    unsigned socket =
        now.side == NET_SENDER ? MOST_SOCKETS : (where & 0x3f) % (unsigned)now.link.sockets;

    if (where & LATER && now.side == NET_RECEIVER)
        inside_let_time_pass(now.comm);
    switch (what >> 4 & 7) {
    case 0:
    case 1:
        start_one();
        break;
    case 2:
        test_one(where % MOST_MESSAGES);
        break;
    case 3:
        test_all();
        break;
    case 4:
        flush(socket, what & 8 ? OUTBOX : next());
        break;
    case 5:
        if ((what & 15) == 0)
            put_junk(socket);
        else if ((what & 15) == 1)
            shut(socket);
        else if (now.side == NET_SENDER)
            drain();
        else
            inside_move_on(now.comm);
        break;
    default:
        speak(what, socket);
        for (unsigned i = 0; i <= MOST_SOCKETS && !(where & HOLD); i++)
            flush(i, OUTBOX);
        break;
    }
    if (now.side == NET_RECEIVER)
        hear_receiver();
    check_comm();
}

/* Whether what was said about message i breaks a rule; *kept: charged for those without a receive.
 */
static bool breaks_rule(unsigned i, uint64_t *kept)
{
    const struct said *said = &now.said[i];
    const struct message *message = &now.messages[i % MOST_MESSAGES];

    if (!said->opened && said->slices == 0 && !said->too_long)
        return false;
    if (said->opened && (said->twice || said->too_long || said->slices > said->open_length ||
                         said->reach > said->open_length))
        return true;
    if (i >= now.count) {
        *kept += charge_of(said->open_length);
        return !in_order() || said->too_long || (!said->on_credit && !said->mixed) ||
               *kept > now.link.eager_credit || i - now.count >= WIRE_MOST_AHEAD;
    }
    if (said->too_long &&
        (said->twice || said->slices > 0 || said->too_long_length <= message->bytes))
        return true;
    return !in_order() && said->opened && said->open_length > message->bytes;
}

/* A receiver that has been told no lie has every message, says so, and has counted the credit. */
static void judge_honest(void)
{
    PROMISE(inside_result(now.comm) == TCPX_SUCCESS && inside_stalled(now.comm) == 0);
    PROMISE(inside_given_back(now.comm) + inside_held(now.comm) == now.charged);
    PROMISE(now.heard_posts == now.count);
    for (unsigned i = 0; i < now.count; i++) {
        const struct said *said = &now.said[i];

        if (said->too_long || (said->opened && said->slices == said->open_length))
            PROMISE(now.messages[i].request == NULL);
    }
}

/* A sender has sent what was asked for, and ahead of that what the credit is good for. */
static void judge_sender(void)
{
    uint64_t used = now.charged - now.freed_told;

    if (!in_order() || !now.clean || inside_result(now.comm) != TCPX_SUCCESS)
        return;
    PROMISE(now.charged == inside_charged(now.comm));
    for (unsigned i = 0; i < now.count; i++) {
        uint64_t bytes = now.messages[i].bytes;

        if (i < now.post_count || now.messages[i].seen) {
            PROMISE(now.messages[i].whole && now.messages[i].request == NULL);
            continue;
        }
        PROMISE((bytes > now.link.eager_limit && now.link.framing != WIRE_INLINE) ||
                used + charge_of(bytes) > now.link.eager_credit);
        break;
    }
}

static void settle_all(void)
{
    enum { LEAST_TURNS = 8, MOST_TURNS = 4000 };
    uint64_t kept = 0;
    bool held = false;
    bool moved = true;

    for (unsigned i = 0; i <= MOST_SOCKETS; i++) {
        flush(i, OUTBOX);
        held = held || now.out[i].length > 0;
    }
    if (now.side == NET_RECEIVER)
        inside_let_time_pass(now.comm);
    for (int i = 0; i < LEAST_TURNS || (moved && i < MOST_TURNS); i++) {
        inside_move_on(now.comm);
        test_all();
        moved = now.side == NET_SENDER && drain();
        check_comm();
    }
    if (now.side == NET_RECEIVER) {
        hear_receiver();
        for (unsigned i = 0; i < MOST_NUMBERS; i++)
            now.must_fail = breaks_rule(i, &kept) || now.must_fail;
        if (now.honest && !held)
            judge_honest();
    } else if (!held) {
        judge_sender();
    }
    PROMISE(!now.must_fail || held || inside_result(now.comm) != TCPX_SUCCESS);
    if (inside_result(now.comm) != TCPX_SUCCESS)
        start_one();
}

/* A sender that ends in order has sent whole what it opened. */
static void check_end(void)
{
    bool fin = false;

    drain();
    for (unsigned i = 0; i < now.link.sockets; i++) {
        PROMISE(now.in[i].end);
        fin = fin || now.in[i].fin;
    }
    for (unsigned i = 0; i < now.count && fin && now.clean; i++)
        PROMISE(!now.messages[i].seen || now.messages[i].whole);
}

static void prepare(void)
{
    static bool prepared;

    if (prepared)
        return;
    prepared = true;
    /* Whoever else moved the sockets on, the same input would not do the same twice. */
    PROMISE(setenv("UCCL_TCPX_THREADS", "0", 1) == 0);
    slots = mmap(NULL, (size_t)(2 * MOST_MESSAGES + 1) * SLOT, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    PROMISE(slots != MAP_FAILED);
    for (size_t i = 0; i < MOST_MESSAGES; i++)
        PROMISE(mprotect(slots + (2 * i + 1) * SLOT, SLOT, PROT_NONE) == 0);
    content = slots + (size_t)2 * MOST_MESSAGES * SLOT;
    for (uint64_t i = 0; i < SLOT; i++)
        content[i] = (uint8_t)(i % 151 + 1);
}

static void forget(void)
{
    for (unsigned i = 0; i < MOST_NUMBERS; i++)
        if (now.said[i].opened)
            memset(said_map[i], 0, sizeof said_map[i]);
    memset(&now, 0, sizeof now);
    now.clean = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    prepare();
    forget();
    now.script = (struct script){.data = data, .left = size};
    make_link();
    now.honest = now.side == NET_RECEIVER;
    PROMISE(net_comm_create(&now.link, now.side, &now.comm) == TCPX_SUCCESS);
    for (int i = 0; i < MOST_STEPS && now.script.left > 0; i++)
        step();
    if (data != NULL && size > 1 && !(data[1] & 0x80)) /* or closed in the middle of things */
        settle_all();
    net_comm_close(now.comm);
    if (now.side == NET_SENDER)
        check_end();
    net_link_close(&now.raw);
    return 0;
}
