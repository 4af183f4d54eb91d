/*
 * Peers of comms that match in order and break the rules of messages ahead of their receives: a lie
 * ends the comm before it does harm. Each lie is a row: what the peer says and the comm does, the
 * last of which is the lie.
 */
#include "tests/support/ahead_peer.h"

enum what { NOTHING, SLICE, EAGER, SLICES, BYTES, RECORD, RECEIVE, HOLD, MOVE, ARRIVE };

struct step {
    enum what what;
    bool with_bytes; /* behind the record */
    unsigned socket;
    bool on_credit;
    uint32_t sequence;
    uint64_t total;
    uint64_t offset;
    uint64_t length;
    struct wire_record record;
};

#define STEP(...)                                                                                  \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define SLICE_STEP(on, bytes, credit, of, at, count)                                               \
    STEP(.what = SLICE, .with_bytes = (bytes), .socket = (on), .on_credit = (credit),              \
         .total = (of), .offset = (at), .length = (count))
/* The record of a slice of message 0, ahead of its receive; also with the bytes. */
#define SAY_AHEAD(socket, total, offset, length)                                                   \
    SLICE_STEP(socket, false, true, total, offset, length)
#define PUT_AHEAD(socket, total, offset, length)                                                   \
    SLICE_STEP(socket, true, true, total, offset, length)
/* The same for a receive that is posted. */
#define SAY_POSTED(socket, total, offset, length)                                                  \
    SLICE_STEP(socket, false, false, total, offset, length)
#define PUT_POSTED(socket, total, offset, length)                                                  \
    SLICE_STEP(socket, true, false, total, offset, length)
/* 5000 bytes of another message. */
#define SAY_FAR(number)                                                                            \
    STEP(.what = SLICE, .on_credit = true, .sequence = (number), .total = 5000, .length = 5000)
#define SAY_EAGER(number, bytes) STEP(.what = EAGER, .sequence = (number), .length = (bytes))
#define PUT_EAGER(number, bytes)                                                                   \
    STEP(.what = EAGER, .with_bytes = true, .sequence = (number), .length = (bytes))
/* Message 0 as a whole, in slices; bytes without a record; any record. */
#define PUT_WHOLE(bytes) STEP(.what = SLICES, .length = (bytes))
#define PUT_BYTES(bytes) STEP(.what = BYTES, .length = (bytes))
#define SAY(on, ...)     STEP(.what = RECORD, .socket = (on), .record = {__VA_ARGS__})
/* The comm posts a receive; keeps a message; is moved on; has delivered message 0. */
#define RECEIVES(room)  STEP(.what = RECEIVE, .length = (room))
#define HOLDS(bytes)    STEP(.what = HOLD, .length = (bytes))
#define MOVES()         STEP(.what = MOVE)
#define DELIVERS(bytes) STEP(.what = ARRIVE, .length = (bytes))

struct lie {
    const char *test;
    const char *lie;
    uint8_t sockets;
    uint64_t credit;
    struct step steps[4];
};

#define LIE(test, lie, sockets, credit, ...)                                                       \
    {                                                                                              \
        test, lie, sockets, credit,                                                                \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

static void take_step(struct ahead_peer *peer, const struct step *step)
{
    static uint8_t room[AHEAD_CREDIT];

    switch (step->what) {
    case NOTHING:
        break;
    case SLICE:
        (step->with_bytes ? ahead_put_slice : ahead_say_slice)(peer, step->socket, step->sequence,
                                                               step->total, step->offset,
                                                               step->length, step->on_credit);
        break;
    case EAGER:
        (step->with_bytes ? ahead_put_eager : ahead_say_eager)(peer, step->sequence, step->length);
        break;
    case SLICES:
        ahead_put_slices(peer, 0, step->length);
        break;
    case BYTES:
        ahead_put(peer, 0, ahead_text.bytes, step->length);
        break;
    case RECORD:
        hand_say(peer->link.forward[step->socket], &step->record);
        break;
    case RECEIVE:
        must_receive(peer->comm, room, step->length, 0);
        break;
    case HOLD:
        ahead_wait_held(peer, step->length + WIRE_EAGER_CHARGE);
        break;
    case MOVE:
        inside_move_on(peer->comm);
        break;
    case ARRIVE:
        ahead_must_arrive(peer, 0, step->length);
        break;
    }
}

enum { ALL = AHEAD_CREDIT, LONGEST = ALL - WIRE_EAGER_CHARGE };

static const struct lie lies[] = {
    /* The sender knew its room. */
    LIE("test_too_long_without_credit", "too long without credit", 1, ALL, RECEIVES(100),
        SAY_POSTED(0, 101, 0, 101)),
    LIE("test_lies", "no credit, no receive", 1, ALL, SAY_POSTED(0, 5000, 0, 5000)),
    LIE("test_lies", "one byte beyond the credit", 1, ALL, SAY_AHEAD(0, LONGEST + 1, 0, 1)),
    LIE("test_lies", "a length of 64 bits", 1, ALL, SAY_AHEAD(0, UINT64_MAX, 0, 1)),
    LIE("test_lies", "a length whose charge wraps", 1, ALL, SAY_AHEAD(0, UINT64_MAX - 63, 0, 1)),
    LIE("test_lies", "an eager one beyond the credit", 1, ALL,
        PUT_WHOLE(LONGEST - WIRE_EAGER_CHARGE - 99), PUT_EAGER(1, 100)),
    LIE("test_lies", "an empty one without credit", 1, 0, SAY_EAGER(0, 0)),
    LIE("test_lies", "two lengths, kept", 2, ALL, PUT_AHEAD(0, 5000, 0, 100), HOLDS(5000),
        SAY_AHEAD(1, 5001, 100, 100)),
    LIE("test_lies", "two lengths, posted", 2, ALL, RECEIVES(ALL), PUT_POSTED(0, 5000, 0, 100),
        MOVES(), SAY_POSTED(1, 5001, 100, 100)),
    LIE("test_lies", "beyond its length", 1, ALL, SAY_AHEAD(0, 5000, 4000, 1001)),
    LIE("test_lies", "no length", 1, ALL, RECEIVES(ALL), SAY_POSTED(0, 0, 0, 100)),
    LIE("test_lies", "longer than a slice", 1, ALL,
        SAY_AHEAD(0, AHEAD_SLICE + 1, 0, AHEAD_SLICE + 1)),
    LIE("test_lies", "for another socket", 2, ALL,
        SAY(1, .type = WIRE_SLICE, .flags = WIRE_ON_CREDIT, .length = 5000, .tag = 5000)),
    LIE("test_lies", "256 ahead", 1, ALL, SAY_FAR(WIRE_MOST_AHEAD)),
    LIE("test_lies", "one behind", 1, ALL, SAY_FAR(UINT32_MAX)),
    LIE("test_lies", "an eager one for a receive that is not posted", 1, ALL,
        SAY(0, .type = WIRE_EAGER, .length = 10)),
    LIE("test_lies", "an eager one that is too long for its receive", 1, ALL, RECEIVES(9),
        SAY(0, .type = WIRE_EAGER, .length = 10)),
    /* only comms with tags count the POSTs */
    LIE("test_lies", "an eager one behind a receive", 1, ALL, RECEIVES(ALL),
        SAY(0, .type = WIRE_EAGER, .flags = WIRE_ON_CREDIT, .offset = 1, .length = 10)),
    LIE("test_lies", "a receive that is over", 1, ALL, PUT_EAGER(0, 10), DELIVERS(10),
        SAY_EAGER(0, 10)),
    LIE("test_lies", "an eager one with a tag", 1, ALL,
        SAY(0, .type = WIRE_EAGER, .flags = WIRE_ON_CREDIT, .tag = 1)),
    LIE("test_lies", "TOOLONG of a message that has begun", 1, ALL, PUT_AHEAD(0, 5000, 0, 100),
        HOLDS(5000), RECEIVES(200), SAY(0, .type = WIRE_TOOLONG, .length = 5000)),
    /* A message that is there twice would be written to when it is gone. */
    /* of more bytes than the message has, before they are all there */
    LIE("test_twice", "two slices of the same bytes", 2, ALL, SAY_AHEAD(0, 50000, 0, 50000),
        PUT_BYTES(1000), HOLDS(50000), SAY_AHEAD(1, 50000, 0, 50000)),
    /* of the same length, of which no byte has come */
    LIE("test_twice", "EAGER behind a slice", 2, ALL, SAY_AHEAD(1, 1000, 0, 1000), HOLDS(1000),
        SAY_EAGER(0, 1000)),
    LIE("test_twice", "EAGER twice", 2, ALL, PUT_EAGER(0, 1000), HOLDS(1000), SAY_EAGER(0, 1000)),
    LIE("test_twice", "an empty EAGER twice", 2, ALL, PUT_EAGER(0, 0), HOLDS(0), SAY_EAGER(0, 0)),
    LIE("test_twice", "a slice behind all", 2, ALL, PUT_WHOLE(50000), HOLDS(50000),
        SAY_AHEAD(1, 50000, 49999, 1)),
};

TABLE_TEST(lies)
{
    struct ahead_peer peer;

    ahead_open(&peer, NET_RECEIVER, row->sockets, row->credit);
    for (size_t i = 0; i < COUNT_OF(row->steps); i++)
        take_step(&peer, &row->steps[i]);
    ahead_must_break(&peer, row->lie);
}

/* The same where nobody looks at the comm's state: the harm that it would do. */
TEST(test_twice_does_no_harm)
{
    static uint8_t data[100000];
    struct net_request *request = NULL;
    struct ahead_peer peer;

    ahead_open(&peer, NET_RECEIVER, 2, AHEAD_CREDIT);
    ahead_say_slice(&peer, 0, 0, 50000, 0, 50000, true);
    ahead_put(&peer, 0, ahead_text.bytes, 1000);
    ahead_wait_held(&peer, 50000 + WIRE_EAGER_CHARGE);
    ahead_put_slice(&peer, 1, 0, 50000, 0, 50000, true);
    if (net_irecv(peer.comm, data, sizeof data, 0, &request) == TCPX_SUCCESS && request != NULL)
        (void)end_of(request, NULL);
    ahead_put_slice(&peer, 1, 1, 60000, 0, 60000, true); /* whose memory takes that one's place */
    for (int i = 0; i < 1000; i++)
        inside_move_on(peer.comm);
    ahead_put(&peer, 0, ahead_text.bytes, 49000);
    ahead_must_break(&peer, "two slices of the same bytes");
}

/* More is freed than was charged, or less than before. */
TEST(test_lies_about_credit)
{
    static struct ahead_peer peer;

    for (int lie = 0; lie < 4; lie++) {
        uint64_t charged = 50000 + WIRE_EAGER_CHARGE;

        ahead_open(&peer, NET_SENDER, 1, AHEAD_CREDIT);
        ahead_must_send(&peer, 0, 50000);
        ahead_read_message(&peer, 0);
        if (lie % 2 == 1) {
            peer.freed = charged;
            ahead_say_post(&peer, 50000);
        }
        hand_say(peer.link.reverse,
                 &(struct wire_record){.type = lie < 2 ? WIRE_CREDIT : WIRE_POST,
                                       .sequence = lie < 2 ? 0 : peer.posts,
                                       .offset = lie % 2 == 1 ? charged - 1 : charged + 1});
        ahead_must_break(&peer, "credit");
    }
}

SUITE(.name = "lies about messages ahead", .set_up = ahead_set_up, .tear_down = ahead_tear_down);
