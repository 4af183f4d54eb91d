/*
 * Fuzzes one end of a comm against a peer that is not one of ours. An input is the settings of a
 * link and a script: what the application does, and what the peer writes, holds back, corrupts or
 * ends. The peer keeps its own books of docs/protocol.md: what a broken rule must lead to, where
 * each byte of a receive comes from, and what a sender may say.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "tests/fuzz/promise.h"

#include "net/comm_state.h"

enum {
    MOST_MESSAGES = 64, /* receives or sends of one run */
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

/* Bits of the byte that a step of the peer takes besides its operands. */
enum { HOLD = 0x80 };

struct script {
    const uint8_t *data;
    size_t left;
};

/* A receive or a send of the application. */
struct message {
    struct net_request *request; /* NULL once it has ended */
    uint64_t tag;
    uint64_t bytes; /* receive: the room */
    bool ended;
};

/* What the peer has said about one receive (receiver), or heard about one send (sender). */
struct said {
    bool opened;
    bool twice;
    bool too_long;
    uint64_t open_tag;
    uint64_t open_length;
    uint64_t too_long_length;
    uint64_t slices; /* bytes of all of them */
    uint64_t reach;  /* the end of the farthest */
};

struct outbox {
    uint8_t bytes[OUTBOX];
    size_t length;
    uint64_t total; /* ever put here */
    bool fin;
    bool shut;
};

struct inbox {
    uint8_t bytes[INBOX];
    size_t length;
    size_t parsed;
    bool fin;
    bool end;
};

struct slice {
    unsigned message;
    uint64_t offset;
    uint64_t length;
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
    struct said said[256];
    unsigned eager_tags;                 /* bits: tags that have had an EAGER */
    struct outbox out[MOST_SOCKETS + 1]; /* the last one: the reverse socket */

    /* against a sender */
    struct inbox in[MOST_SOCKETS];
    struct post_said posts[256];
    unsigned post_count;
    uint64_t freed_told;
    uint64_t charged;
    bool seen[MOST_MESSAGES]; /* its OPEN, EAGER or TOOLONG has come */
    bool whole[MOST_MESSAGES];
    uint64_t covered[MOST_MESSAGES];
    uint8_t map[MOST_MESSAGES][MOST_ROOM];
    unsigned slot_of_post[256]; /* which message a posted receive gets */
    struct slice expected[MOST_SOCKETS][MOST_SLICES];
    unsigned expected_count[MOST_SOCKETS];
    unsigned expected_at[MOST_SOCKETS];
} now;

static uint8_t *slots;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t next(void)
{
    if (now.script.left == 0)
        return 0;
    now.script.left--;
    return *now.script.data++;
}

/* What stands at an offset of any message: never one of the two marks. */
static uint8_t content(uint64_t offset)
{
    return (uint8_t)(offset % 151 + 1);
}

static uint8_t *room_of(unsigned message)
{
    return slots + (size_t)message * 2 * SLOT + SLOT - now.messages[message].bytes;
}

/* --- the link ------------------------------------------------------------------------------ */

static void make_socket(int *ours, int *theirs)
{
    int pair[2];

    PROMISE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    *ours = pair[0];
    *theirs = pair[1];
}

static void make_link(void)
{
    static const uint64_t limits[] = {0, 1, 40, 200};
    static const uint64_t credits[] = {0, 64, 200, 1000};
    static const uint64_t slices[] = {8, 16, 100, 512};
    uint8_t shape = next();
    uint8_t sizes = next();
    const int least = 1;

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
    for (unsigned i = 0; i < now.link.sockets; i++)
        make_socket(&now.link.forward[i], &now.raw.forward[i]);
    make_socket(&now.link.reverse, &now.raw.reverse);
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
            else if (now.clean)
                PROMISE(room[k] == POISON || room[k] == content(k));
    }
}

static void check_comm(void)
{
    uint64_t done = 0;
    uint64_t aside = 0;

    for (int i = 0; i < COMM_REQUESTS; i++) {
        const struct net_request *request = &now.comm->requests[i];

        done += request->state == REQUEST_DONE;
        if (request->state == REQUEST_FAILED)
            PROMISE(request->result != TCPX_SUCCESS && request->text[0] != '\0');
        if (now.comm->result != TCPX_SUCCESS)
            PROMISE(request->state != REQUEST_WAITING && request->state != REQUEST_MOVING);
    }
    PROMISE(now.comm->messages == now.done + done);
    if (now.comm->result != TCPX_SUCCESS) {
        PROMISE(now.comm->text[0] != '\0');
        /* The kernel meets the unreadable page without a signal; an ABORT may use such words. */
        PROMISE(strstr(now.comm->text, "gave up") != NULL ||
                strstr(now.comm->text, "Bad address") == NULL);
    }
    for (const struct eager_message *one = now.comm->eager_first; one != NULL; one = one->next)
        aside += one->bytes + WIRE_EAGER_CHARGE;
    PROMISE(aside == now.comm->eager_held && aside <= now.link.eager_credit);
    check_memory();
}

/* --- the application ----------------------------------------------------------------------- */

static void start_one(void)
{
    struct message *message = &now.messages[now.count];
    uint8_t tag = next();
    uint64_t bytes = (uint64_t)next() * (tag & 0x80 ? 2 : 1);
    bool had_failed = now.comm->result != TCPX_SUCCESS;
    bool aside;
    int result;

    if (now.count == MOST_MESSAGES)
        return;
    *message = (struct message){.tag = tag & 3, .bytes = bytes};
    if (now.link.match == WIRE_MATCH_FIFO)
        message->tag = 0;
    aside = receiver_has_put_aside(now.comm, message->tag);
    if (now.side == NET_RECEIVER) {
        memset(room_of(now.count) - 64, POISON, bytes + 64);
        result = net_irecv(now.comm, room_of(now.count), bytes, message->tag, &message->request);
    } else {
        result = net_isend(now.comm, slots + (size_t)2 * MOST_MESSAGES * SLOT, bytes, message->tag,
                           &message->request);
    }
    if (had_failed)
        PROMISE(result != TCPX_SUCCESS || (now.side == NET_RECEIVER && aside));
    if (result != TCPX_SUCCESS) {
        PROMISE(had_failed && error_text()[0] != '\0' && message->request == NULL);
        return;
    }
    now.count += message->request != NULL;
}

static void drain(void);

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
        PROMISE(result != TCPX_SUCCESS || !now.clean || now.whole[which]);
        return;
    }
    room = room_of(which);
    if (result == TCPX_SUCCESS) {
        PROMISE(bytes <= message->bytes);
        if (now.clean && said->opened && !said->twice && !(now.eager_tags >> message->tag & 1))
            PROMISE(bytes == said->open_length && said->slices >= bytes);
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
    PROMISE(done || result != TCPX_SUCCESS || now.comm->result == TCPX_SUCCESS);
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
    sent = send(raw_fd(socket), out->bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0)
        return;
    out->length -= (size_t)sent;
    memmove(out->bytes, out->bytes + sent, out->length);
}

/* False if there is no place any more, so that the step is left out as a whole. */
static bool has_place(unsigned socket, size_t bytes)
{
    const struct outbox *out = &now.out[socket];

    return !out->shut && out->length + bytes <= sizeof out->bytes;
}

static void put(unsigned socket, const void *bytes, size_t length)
{
    struct outbox *out = &now.out[socket];

    memcpy(out->bytes + out->length, bytes, length);
    out->length += length;
    out->total += length;
    if (out->fin && now.clean)
        now.must_fail = true;
}

static void put_record(unsigned socket, const struct wire_record *record)
{
    uint8_t bytes[WIRE_RECORD_BYTES];

    wire_record_write(record, bytes);
    put(socket, bytes, sizeof bytes);
}

static void put_content(unsigned socket, uint64_t offset, uint64_t length)
{
    uint8_t bytes[MOST_ROOM];

    for (uint64_t i = 0; i < length; i++)
        bytes[i] = content(offset + i);
    put(socket, bytes, length);
}

/* A rule was broken that holds whatever has happened before. */
static void broke_if(bool broke)
{
    now.must_fail = now.must_fail || (broke && now.clean);
}

static void put_open(unsigned socket)
{
    uint8_t sequence = next();
    struct wire_record record = {
        .type = WIRE_OPEN, .sequence = sequence, .length = next() + 1u, .tag = next() & 3};
    struct said *said = &now.said[sequence];

    if (sequence < now.count && (record.tag & 1) == 0) /* mostly the right one */
        record.tag = now.messages[sequence].tag;
    if (!has_place(socket, WIRE_RECORD_BYTES))
        return;
    put_record(socket, &record);
    broke_if(socket != 0);
    if (socket != 0 || !now.clean)
        return;
    said->twice = said->twice || said->opened;
    said->opened = true;
    said->open_tag = record.tag;
    said->open_length = record.length;
}

static void put_eager(unsigned socket)
{
    struct wire_record record = {.type = WIRE_EAGER, .length = next(), .tag = next() & 3};

    if (now.link.match == WIRE_MATCH_FIFO && record.tag != 3)
        record.tag = 0;
    if (!has_place(socket, WIRE_RECORD_BYTES + record.length))
        return;
    put_record(socket, &record);
    put_content(socket, 0, record.length);
    now.eager_tags |= 1u << record.tag;
    broke_if(socket != 0 || record.length > now.link.eager_limit);
    broke_if(now.link.match == WIRE_MATCH_FIFO && record.tag != 0);
}

static void put_slice(unsigned socket)
{
    uint8_t sequence = next();
    uint8_t offset = next();
    uint8_t length = next();
    struct wire_record record = {.type = WIRE_SLICE,
                                 .socket = (uint16_t)socket,
                                 .sequence = sequence,
                                 .offset = offset,
                                 .length = length % 128 + 1u};
    bool separate = now.link.framing == WIRE_SEPARATE;
    unsigned carrier = separate ? 0 : socket;
    struct said *said = &now.said[sequence];

    if (length >= 128) /* the rest of the receive */
        record.length = sequence < now.count && offset < now.messages[sequence].bytes
                            ? now.messages[sequence].bytes - offset
                            : 1;
    if (!has_place(carrier, WIRE_RECORD_BYTES + record.length) || !has_place(socket, record.length))
        return;
    put_record(carrier, &record);
    if (!separate || socket != 0)
        put_content(socket, offset, record.length);
    broke_if((separate && socket == 0) || record.length > now.link.largest_slice);
    if (!now.clean)
        return;
    said->slices += record.length;
    if (said->reach < offset + record.length)
        said->reach = offset + record.length;
}

static void put_too_long(unsigned socket)
{
    uint8_t sequence = next();
    struct wire_record record = {
        .type = WIRE_TOOLONG, .sequence = sequence, .length = next() * 2u + 1};

    if (!has_place(socket, WIRE_RECORD_BYTES))
        return;
    put_record(socket, &record);
    broke_if(socket != 0);
    if (socket == 0 && now.clean) {
        now.said[sequence].too_long = true;
        now.said[sequence].too_long_length = record.length;
    }
}

static void put_fin(unsigned socket)
{
    uint8_t wrong = next();
    uint64_t length = now.out[socket].total + (wrong > 250);

    if (!has_place(socket, WIRE_RECORD_BYTES) || (socket != 0 && now.link.framing == WIRE_SEPARATE))
        return;
    put_record(socket, &(struct wire_record){.type = WIRE_FIN, .length = length});
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
    put_record(socket, &record);
    put(socket, text, record.length);
    broke_if(true);
}

static void put_post(void)
{
    uint8_t how = next();
    struct wire_record record = {.type = WIRE_POST,
                                 .sequence = now.post_count,
                                 .offset = now.freed_told,
                                 .length = (uint64_t)next() * (how & 4 ? 2 : 1),
                                 .tag = now.link.match == WIRE_MATCH_FIFO ? 0 : how & 3};

    if (how > 250) { /* not the next one */
        record.sequence += how - 250u;
        broke_if(true);
    }
    if (!has_place(MOST_SOCKETS, WIRE_RECORD_BYTES) || now.post_count == 256)
        return;
    if ((how & 8) && now.charged > now.freed_told) /* all that was charged and seen */
        record.offset = now.charged;
    put_record(MOST_SOCKETS, &record);
    if (!now.clean)
        return;
    now.freed_told = record.offset;
    now.posts[now.post_count++] = (struct post_said){.tag = record.tag, .room = record.length};
}

static void put_credit(void)
{
    uint8_t how = next();
    uint64_t freed = now.charged;

    if (!has_place(MOST_SOCKETS, WIRE_RECORD_BYTES))
        return;
    if (how > 240 && now.freed_told > 0) {
        freed = now.freed_told - 1;
        broke_if(true);
    }
    put_record(MOST_SOCKETS, &(struct wire_record){.type = WIRE_CREDIT, .offset = freed});
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
    now.clean = false; /* before: a piece of a record behind FIN is not seen yet */
    put(socket, bytes, length);
}

static void shut(unsigned socket)
{
    now.out[socket].shut = true;
    shutdown(raw_fd(socket), SHUT_WR);
}

/* --- what a sender says -------------------------------------------------------------------- */

/* The next message of a tag, which is the one that is opened. */
static unsigned next_of_tag(uint64_t tag, unsigned *position)
{
    *position = 0;
    for (unsigned i = 0; i < MOST_MESSAGES; i++)
        if (i < now.count && now.messages[i].tag == tag) {
            if (!now.seen[i])
                return i;
            ++*position;
        }
    return MOST_MESSAGES;
}

static unsigned post_of(uint64_t tag, unsigned position)
{
    for (unsigned i = 0; i < now.post_count; i++)
        if (now.posts[i].tag == tag && position-- == 0)
            return i;
    return 256;
}

static void hear_open_like(const struct wire_record *record)
{
    unsigned position;
    unsigned which;
    unsigned post;
    const struct message *message;

    if (record->type == WIRE_TOOLONG)
        PROMISE(record->sequence < now.post_count);
    which = next_of_tag(
        record->type == WIRE_TOOLONG ? now.posts[record->sequence].tag : record->tag, &position);
    PROMISE(which < MOST_MESSAGES);
    message = &now.messages[which];
    post = post_of(message->tag, position);
    now.seen[which] = true;
    PROMISE(record->length == message->bytes);
    if (record->type == WIRE_EAGER) {
        PROMISE(message->bytes <= now.link.eager_limit);
        PROMISE(post < 256 || now.charged - now.freed_told + message->bytes + WIRE_EAGER_CHARGE <=
                                  now.link.eager_credit);
        now.charged += message->bytes + WIRE_EAGER_CHARGE;
        now.whole[which] = true;
        return;
    }
    PROMISE(post < 256 && post == record->sequence);
    now.slot_of_post[post] = which;
    PROMISE((record->type == WIRE_TOOLONG) == (message->bytes > now.posts[post].room));
    now.whole[which] = record->type == WIRE_TOOLONG;
}

static void check_content(const uint8_t *bytes, uint64_t offset, uint64_t length)
{
    for (uint64_t i = 0; i < length; i++)
        PROMISE(bytes[i] == content(offset + i));
}

static struct slice hear_slice_record(const struct wire_record *record)
{
    unsigned which;
    struct slice slice;

    PROMISE(record->sequence < now.post_count && record->length <= now.link.largest_slice);
    which = now.slot_of_post[record->sequence];
    slice = (struct slice){.message = which, .offset = record->offset, .length = record->length};
    PROMISE(which < MOST_MESSAGES);
    PROMISE(record->offset + record->length <= now.messages[which].bytes);
    return slice;
}

static void hear_slice_bytes(const struct slice *slice, const uint8_t *bytes)
{
    unsigned which = slice->message;

    check_content(bytes, slice->offset, slice->length);
    for (uint64_t i = slice->offset; i < slice->offset + slice->length; i++)
        PROMISE(now.map[which][i]++ == 0);
    now.covered[which] += slice->length;
    if (now.covered[which] == now.messages[which].bytes)
        now.whole[which] = true;
}

/* One record with what follows it; false if it is not all there. */
static bool hear_one(unsigned socket)
{
    struct inbox *in = &now.in[socket];
    const uint8_t *bytes = in->bytes + in->parsed;
    size_t have = in->length - in->parsed;
    bool separate = now.link.framing == WIRE_SEPARATE;
    struct wire_record record;
    size_t payload = 0;

    if (separate && socket > 0) {
        const struct slice *slice = &now.expected[socket][now.expected_at[socket]];

        if (now.expected_at[socket] == now.expected_count[socket] || have < slice->length)
            return false;
        hear_slice_bytes(slice, bytes);
        now.expected_at[socket]++;
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
    /* A slice on another socket may overtake its OPEN; then it waits for it here. */
    if (have < WIRE_RECORD_BYTES + payload ||
        (socket > 0 && record.type == WIRE_SLICE && record.sequence < now.post_count &&
         now.slot_of_post[record.sequence] == MOST_MESSAGES))
        return false;
    bytes += WIRE_RECORD_BYTES;
    if (record.type == WIRE_SLICE) {
        struct slice slice = hear_slice_record(&record);

        PROMISE(separate ? record.socket > 0 && record.socket < now.link.sockets
                         : record.socket == socket);
        if (separate)
            now.expected[record.socket][now.expected_count[record.socket]++] = slice;
        else
            hear_slice_bytes(&slice, bytes);
    } else if (record.type == WIRE_FIN) {
        PROMISE(record.length == in->parsed);
        in->fin = true;
    } else if (record.type != WIRE_ABORT) {
        PROMISE(socket == 0);
        hear_open_like(&record);
        if (record.type == WIRE_EAGER)
            check_content(bytes, 0, payload);
    }
    in->parsed += WIRE_RECORD_BYTES + payload;
    return true;
}

/* Takes all that the sender has said. Socket 0 is read last and parsed first: OPEN is there. */
static void drain(void)
{
    for (unsigned i = now.link.sockets; i-- > 0;) {
        struct inbox *in = &now.in[i];
        ssize_t got = 1;

        while (got > 0 && in->length < sizeof in->bytes) {
            got = recv(now.raw.forward[i], in->bytes + in->length, sizeof in->bytes - in->length,
                       MSG_DONTWAIT);
            if (got > 0)
                in->length += (size_t)got;
        }
        in->end = in->end || got == 0;
    }
    /* Without well-formed POSTs there is nothing to compare with. */
    for (unsigned i = 0; i < now.link.sockets && now.clean; i++)
        while (hear_one(i))
            ;
}

/* --- the script ---------------------------------------------------------------------------- */

static void peer_of_receiver(uint8_t what, unsigned socket)
{
    /* With separate framing another socket has no records that could be misplaced. */
    unsigned open_socket = what & 8 && now.link.framing == WIRE_INLINE ? socket : 0;

    switch (what % 8) {
    case 0:
    case 1:
        put_open(open_socket);
        break;
    case 2:
        put_eager(open_socket);
        break;
    case 3:
    case 4:
        put_slice(socket);
        break;
    case 5:
        put_too_long(0);
        break;
    case 6:
        put_fin(socket);
        break;
    default:
        put_abort(socket);
        break;
    }
}

static void peer_of_sender(uint8_t what)
{
    if (what % 8 < 5)
        put_post();
    else if (what % 8 < 7)
        put_credit();
    else
        put_abort(MOST_SOCKETS);
}

static void step(void)
{
    uint8_t what = next();
    uint8_t where = next();
    unsigned socket =
        now.side == NET_SENDER ? MOST_SOCKETS : (where & 0x3f) % (unsigned)now.link.sockets;

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
        break;
    default:
        if (now.side == NET_SENDER)
            peer_of_sender(what);
        else
            peer_of_receiver(what, socket);
        if (!(where & HOLD))
            for (unsigned i = 0; i <= MOST_SOCKETS; i++)
                if (i < now.link.sockets || i == MOST_SOCKETS)
                    flush(i, OUTBOX);
        break;
    }
    check_comm();
}

/* What the books of the peer say about a receiver that has read everything. */
static void judge(void)
{
    for (unsigned i = 0; i < 256; i++) {
        const struct said *said = &now.said[i];
        const struct message *message = &now.messages[i % MOST_MESSAGES];

        if (!said->opened && said->slices == 0 && !said->too_long)
            continue;
        if (i >= now.count) {
            now.must_fail = true;
            continue;
        }
        if (said->opened && (said->twice || said->too_long || said->open_tag != message->tag ||
                             said->open_length > message->bytes ||
                             said->slices > said->open_length || said->reach > said->open_length))
            now.must_fail = true;
        if (said->too_long && (said->slices > 0 || said->too_long_length <= message->bytes))
            now.must_fail = true;
        if (said->reach > message->bytes)
            now.must_fail = true;
    }
}

static void settle_all(void)
{
    bool held = false;

    for (unsigned i = 0; i <= MOST_SOCKETS; i++)
        if (i < now.link.sockets || i == MOST_SOCKETS) {
            flush(i, OUTBOX);
            held = held || now.out[i].length > 0;
        }
    for (int i = 0; i < 8; i++) {
        /* Not by a test: there may be no request, and a new one would change what is right. */
        pthread_mutex_lock(&now.comm->lock);
        progress(now.comm);
        pthread_mutex_unlock(&now.comm->lock);
        test_all();
        if (now.side == NET_SENDER)
            drain();
        check_comm();
    }
    if (now.side == NET_RECEIVER)
        judge();
    PROMISE(!now.must_fail || held || now.comm->result != TCPX_SUCCESS);
    if (now.comm->result != TCPX_SUCCESS)
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
        PROMISE(!now.seen[i] || now.whole[i]);
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
    for (uint64_t i = 0; i < SLOT; i++)
        slots[(size_t)2 * MOST_MESSAGES * SLOT + i] = content(i);
}

static void forget(void)
{
    for (unsigned i = 0; i < MOST_SOCKETS; i++) {
        now.in[i].length = now.in[i].parsed = 0;
        now.in[i].fin = now.in[i].end = false;
        now.expected_count[i] = now.expected_at[i] = 0;
    }
    for (unsigned i = 0; i <= MOST_SOCKETS; i++) {
        now.out[i].length = now.out[i].total = 0;
        now.out[i].fin = now.out[i].shut = false;
    }
    memset(now.messages, 0, sizeof now.messages);
    memset(now.said, 0, sizeof now.said);
    memset(now.seen, 0, sizeof now.seen);
    memset(now.whole, 0, sizeof now.whole);
    memset(now.covered, 0, sizeof now.covered);
    memset(now.map, 0, sizeof now.map);
    for (unsigned i = 0; i < 256; i++)
        now.slot_of_post[i] = MOST_MESSAGES;
    now.count = now.post_count = now.eager_tags = 0;
    now.done = now.freed_told = now.charged = 0;
    now.clean = true;
    now.must_fail = false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    prepare();
    forget();
    now.script = (struct script){.data = data, .left = size};
    make_link();
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
