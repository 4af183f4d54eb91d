/*
 * What the files of a comm share: comm.c has requests and ends, send.c and receive.c the bytes,
 * copies.c, stage.c, land.c, publish.c and devmem.c those in GPU memory, progress.c who moves them.
 *
 * A lane is one of the comm's sockets: the forward ones by their number, the reverse one behind
 * them. Whoever finds a lane that is not busy may move it on. It is busy then, so that the lock can
 * be given up during system calls; all that belongs to the lane is left alone by others meanwhile.
 */
#ifndef TCPX_NET_COMM_COMM_STATE_H
#define TCPX_NET_COMM_COMM_STATE_H

#include "base/key_fifo.h"
#include "base/queue.h"
#include "net/gpu/bounce.h"
#include "net/comm/comm.h"
#include "net/devmem/devmem_source.h"
#include "net/io/io.h"
#include "net/comm/stages.h"
#include "net/gpu/staging.h"
#include "net/devmem/zerocopy.h"

#include <pthread.h>
#include <stdatomic.h>

/*
 * How much one turn moves over one socket at most, in bytes and in system calls, so that no socket
 * starves the others and no peer holds a caller with slices of a few bytes.
 */
enum { COMM_TURN_BYTES = 2 << 20, COMM_TURN_CALLS = 64 };

/* What a lane has to wait for after it was moved on. */
enum lane_wait {
    LANE_IDLE,         /* for something to do */
    LANE_FOR_INPUT,    /* for the peer to say something */
    LANE_FOR_ROOM,     /* for the peer to take what was sent */
    LANE_FOR_ARRIVALS, /* for notices that the peer has what was sent by reference */
    LANE_SOON,         /* for the GPU */
    LANE_MORE,         /* for nothing: its turn is over */
    LANE_BUSY,         /* it was not moved on: somebody else is at it */
};

struct lane {
    bool busy;
    enum lane_wait wait; /* when it was last moved on */
    bool unwatched;      /* no I/O thread waits for it any more */
    uint32_t events;     /* for which one waits now */
};

enum request_state {
    REQUEST_FREE,
    REQUEST_WAITING, /* send: not matched with a receive; receive: no message yet */
    REQUEST_MOVING,
    REQUEST_DONE,
    REQUEST_FAILED,
    REQUEST_TOLD, /* done, and test has said so; not consumed yet */
};

struct net_request {
    struct net_comm *comm;
    enum request_state state;
    uint64_t order; /* of its isend or irecv in the comm */
    uint8_t *data;
    uint64_t bytes; /* of the message; of the room, until a receive knows its message */
    uint64_t room;  /* receive; send that is too long: what its receive has */
    uint64_t tag;
    uint64_t moved;
    uint64_t handed_out;         /* send: bytes that have been given to a socket */
    unsigned unsaid;             /* send: records of it that are planned and not sent */
    uint32_t sequence;           /* of the receive that this is, or that this send goes to */
    bool has_sequence;           /* that receive is posted, and this is its number */
    struct net_request *earlier; /* send: those that wait, too, in the order of their isend */
    struct net_request *later;
    unsigned users;              /* lanes that touch the data while the lock is free */
    bool matched;                /* receive: its message has begun */
    bool met;                    /* receive: it misses no bytes */
    uint64_t begun;              /* receive: bytes of all slices that have begun */
    uint64_t reach;              /* receive: the end of the farthest slice */
    bool in_gpu;                 /* data is a device address */
    bool too_long;               /* send: fails when the receiver has been sent TOOLONG */
    bool ahead;                  /* send: it goes ahead of its receive, on credit */
    uint32_t source_id;          /* send: the dma-buf that the NIC reads it from; 0: none */
    uint64_t source_at;          /* where in there its first byte is */
    bool gated;                  /* send: the GPU has not got to where the data is complete */
    bool bounced;                /* receive: stays in bounce memory */
    uint64_t staged;             /* send: bytes that copies to host memory have begun for */
    uint64_t landing;            /* receive: bytes that are copied to their place, */
    uint64_t landed;             /* and that have been */
    struct eager_message *aside; /* receive: the message, which came first */
    int result;                  /* why it failed */
    char text[256];
};

/* Between GPU memory and a staging slot. */
struct copy {
    struct staging_slot *slot;
    struct net_request *request;
    uint64_t offset; /* in the message */
    uint64_t bytes;
    uint64_t not_before; /* it does not count as ended: a slow stage, for tests */
};

/* What a send waits for on the GPU. */
struct gate {
    struct gpu_stream *stream;
    struct gpu_event *event;
};

struct comm_gpu {
    int device;
    struct staging_share share;
    struct gpu_stream *stream; /* NULL: no GPU memory was registered */
    struct queue copies;       /* struct copy, as they were put on the stream */
    struct queue ready;        /* sender: struct copy that a socket can send */
    bool failed;
    unsigned waiting;   /* sends: for their gates */
    struct gate *gates; /* of the requests */
};

/* What a forward socket of the sender is sending: records, and the payload of the last one. */
enum { OUTGOING_RECORDS = 4 };
struct outgoing {
    uint8_t records[OUTGOING_RECORDS * WIRE_RECORD_BYTES];
    size_t records_bytes;
    size_t records_sent;
    struct net_request *said[OUTGOING_RECORDS]; /* whose unsaid records these are */
    unsigned said_count;
    const uint8_t *payload;
    uint64_t payload_left;
    struct staging_slot *slot; /* where it is, if it comes from GPU memory through host memory */
    uint64_t source_at;        /* or where it is in its request's source */
    struct zerocopy *by_reference; /* sends from there; NULL: there can be none */
    struct net_request *request;   /* whose payload this is; NULL: there is none */
    uint64_t counts;               /* bytes that the request has moved once this is sent */
    uint64_t total;                /* bytes sent since the hello */
    unsigned idle_turns;           /* calls that found nothing to send */
    uint64_t loaded_at;            /* when it began with this; 0: it was idle */
    int unsent_limit;              /* bytes that it holds unsent, at most */
    bool full;                     /* its socket did not take all that there was */
    bool lost;                     /* its socket takes nothing any more */
};

/* What is to be sent on forward socket 0, in this order. */
struct planned {
    struct wire_record record;   /* of EAGER: the request's bytes follow */
    struct net_request *request; /* NULL: it has failed already, and nobody waits for this */
};

/* What a forward socket of the receiver is in the middle of. */
struct incoming {
    uint8_t record[WIRE_RECORD_BYTES];
    size_t record_have;
    uint8_t *payload; /* NULL: the bytes are thrown away */
    uint64_t payload_left;
    uint64_t counts;             /* bytes that the request has moved once this is here */
    struct queue slices;         /* separate framing: struct wire_record, announced and not begun */
    struct net_request *request; /* whose bytes these are */
    struct staging_slot *slot;   /* into GPU memory: where they come first */
    uint64_t slot_bytes;         /* how many are there */
    uint64_t slot_room;          /* how many will be, before they are copied on */
    uint64_t landing_at;         /* where in the message they belong */
    bool by_devmem;              /* this slice comes by device-memory TCP */
    struct eager_message *eager; /* or a message that nobody has asked for yet */
    struct eager_message *ahead; /* or a part of one that is kept by its number */
    bool aborting;               /* or the text of an ABORT */
    bool stalled;                /* it holds a record whose receive is not posted, */
    uint32_t stalled_for;        /* which has this number */
    bool left; /* its socket may have bytes that it did not take: it waits for its turn or a slot */
    bool ended;
    uint64_t total; /* bytes received, records included */
};

/* A message without a receive: with tags in a list, in order by its number (ahead.c). */
struct eager_message {
    struct eager_message *next;
    uint64_t tag;
    uint64_t bytes;
    uint64_t capacity; /* of data; 0: not worth keeping for another message */
    uint64_t begun;    /* in ahead.c: bytes of all slices that have begun, */
    uint64_t moved;    /* those that are here, */
    uint32_t sequence; /* and its receive */
    uint8_t data[];
};

struct post {
    uint32_t sequence;
    uint64_t tag;
    uint64_t room;
};

/* A receive without a message, as long as this is still the order of the request. */
struct unmatched {
    struct net_request *request;
    uint64_t order;
};

struct net_comm {
    pthread_mutex_t lock; /* guards everything here, except what belongs to a busy lane */
    struct net_link link;
    enum net_side side;
    struct net_request *requests;
    unsigned most_requests; /* that there can be */
    unsigned used_requests; /* all others are free, and nobody looks at them */
    unsigned first_free;    /* all before this one are in use */
    uint64_t next_order;
    uint64_t messages; /* that have been moved whole */
    unsigned pending;  /* requests that are neither done nor failed */
    int result;        /* TCPX_SUCCESS, or why no request can go on */
    char text[256];
    bool gave_up;     /* the peer was told, and all sockets are shut down */
    uint64_t lost_at; /* when bytes last came after a connection was lost; 0: none was */
    char lost_text[256];

    struct comm_gpu gpu;
    struct net_memory *memories;    /* those that are registered */
    atomic_bool sends_by_reference; /* what is in GPU memory, from a source, */
    atomic_bool stages_instead;     /* or has found that it cannot */
    struct devmem *devmem;          /* NULL: all sockets are plain ones */
    struct publisher *publisher;    /* NULL: the transport unpacks by itself */

    /* how long the stages were at work */
    struct stage_copies copying;
    struct stage_calls calling; /* sendmsg at a sender, recvmsg at a receiver */
    unsigned full;              /* sender: lanes whose socket is */
    unsigned unmet;             /* receives that miss bytes */
    unsigned left;              /* receiver: lanes that have left bytes in their socket */
    struct stage_throttle throttle;

    /* progress */
    struct io_member io;
    struct lane lanes[WIRE_MOST_SOCKETS + 1];
    unsigned own_lanes; /* the first ones, which calls move on; the reverse one is theirs, too */
    uint64_t polls;     /* calls that moved the comm on */
    uint64_t polls_at_tick;  /* as the I/O thread saw it last */
    uint64_t polls_at_ready; /* as an I/O thread saw it last */
    bool watched;            /* the I/O threads also move the first and the reverse lane on */
    uint64_t polls_at_watch; /* when that began */
    unsigned sleepers;       /* calls that wait for a request to end */
    int alarm;               /* tells them that one may have; -1: not needed yet */

    /* sender */
    struct outgoing outgoing[WIRE_MOST_SOCKETS];
    struct queue planned;              /* struct planned */
    struct key_fifo posts;             /* struct post by tag: those that no send goes to yet */
    struct key_fifo waiting;           /* struct net_request * by tag: sends that are not opened, */
    struct net_request *first_waiting; /* and all of them in their order */
    struct net_request *last_waiting;
    unsigned slicing;         /* opened sends with bytes that no socket has taken */
    uint64_t last_large_end;  /* when the latest send was done that others could have carried */
    bool streams;             /* such sends follow each other closely */
    uint64_t *eager_unposted; /* tags of messages that went before their POST; with tags only */
    unsigned eager_unposted_count;
    unsigned eager_unposted_room;
    uint64_t eager_charged;
    uint64_t eager_freed;
    uint8_t heard[64 * WIRE_RECORD_BYTES]; /* from the reverse socket */
    size_t heard_bytes;
    bool news; /* something was heard that lets sends go on */

    /* receiver */
    struct incoming incoming[WIRE_MOST_SOCKETS];
    struct queue to_say; /* struct wire_record, for the reverse socket */
    uint8_t saying[32 * WIRE_RECORD_BYTES];
    size_t saying_bytes;
    size_t said_bytes;
    uint64_t last_post;               /* when the application posted a receive */
    uint64_t unsaid_since;            /* when it posted the oldest that the sender does not know */
    bool say_now;                     /* somebody waits for it */
    bool deaf;                        /* the sender does not read any more */
    uint32_t next_sequence;           /* of a receive; at a sender, of the next POST */
    struct key_fifo unmatched;        /* with tags: struct unmatched by tag */
    struct net_request **by_sequence; /* a receive where its number modulo the length says, */
    unsigned by_sequence_mask;        /* which is this + 1, */
    bool has_displaced;               /* unless a later one has taken its place */
    bool sequence_wrapped; /* from now on a number may still be in use by an old receive */
    struct eager_message *ahead[WIRE_MOST_AHEAD]; /* by their sequence */
    unsigned stalled;                             /* lanes that hold such a record */
    struct eager_message *claimed;                /* those whose receive waits for the rest */
    struct eager_message *spare;                  /* memory of earlier ones, to be used again */
    uint64_t ahead_memory;                        /* bytes of all these */
    struct eager_message *eager_first;
    struct eager_message **eager_last;
    uint64_t eager_held;
    uint64_t eager_given_back; /* all that was freed */
    uint64_t eager_said;       /* of which the sender knows */
    char abort_text[WIRE_ABORT_TEXT + 1];
    uint32_t abort_result;
    bool abort_begun;
};

/* Ends every request of the comm with this result and the text that error_set() has kept. */
void comm_fail(struct net_comm *comm, int result);

/* The same when the GPU is the reason: nothing more gets there, not even what has come already. */
void comm_fail_gpu(struct net_comm *comm, int result);

/* Whether this forward connection has died: then the comm fails, or will when the others end. */
bool comm_has_broken(struct net_comm *comm, unsigned lane);

/*
 * A connection was lost, and error_text() says how. The comm fails when the others have ended: a
 * receiver may hold whole messages there, and a sender the peer's reason. If they do not end and
 * bring nothing for a while, it fails with this text.
 */
void comm_lose(struct net_comm *comm);
void comm_fail_lost(struct net_comm *comm);
void comm_fail_if_lost_for_long(struct net_comm *comm);

/* Tells the peer of the failure, unless somebody is about to: whoever ends his turn tries again. */
void comm_give_up(struct net_comm *comm);

/* The receive of this number is posted; the next one has the next number. */
static inline void comm_advance_sequence(struct net_comm *comm, uint32_t posted)
{
    comm->next_sequence = wire_sequence((uint64_t)posted + 1);
    comm->sequence_wrapped = comm->sequence_wrapped || comm->next_sequence <= posted;
}

/* Ends one request, the comm goes on. */
void request_fail(struct net_request *request, int result);
void request_done(struct net_request *request);

/* The application is through with it. */
void request_free(struct net_request *request);

/* Whether its bytes are copied to GPU memory behind the sockets. */
static inline bool request_lands(const struct net_request *request)
{
    return request->in_gpu && !request->bounced;
}

/* Whether the NIC reads its bytes where they are. */
static inline bool request_is_referred_to(const struct net_request *request)
{
    return request->source_id != 0;
}

/* Whether they are copied to host memory before the sockets. */
static inline bool request_is_staged(const struct net_request *request)
{
    return request->in_gpu && !request_is_referred_to(request);
}

/*
 * How many of `left` bytes the next piece takes, at most `most`. The rest is not a single byte if
 * that can be avoided: one byte cannot be copied to a GPU by a copy engine (gpu.h), so a message is
 * not cut into pieces of which one is.
 */
static inline uint64_t piece_bytes(uint64_t left, uint64_t most)
{
    if (left <= most)
        return left;
    return left - most == 1 && most > 2 ? most - 1 : most;
}

/* Whether test may say how it ended: nobody touches its data any more. */
bool request_has_ended(const struct net_request *request);

/* Around a system call that touches its data. NULL is allowed. */
void request_hold(struct net_request *request);
void request_let_go(struct net_request *request);

/*
 * All of the following are called with the lock. Those that move a lane on give it up during system
 * calls, and a problem there is a failure of the comm.
 */
MUST_CHECK int sender_create(struct net_comm *comm);
void sender_start(struct net_comm *comm, struct net_request *request);
enum lane_wait sender_send(struct net_comm *comm, uint16_t socket);
enum lane_wait sender_hear(struct net_comm *comm);
uint64_t sender_slice_bytes(const struct net_comm *comm, uint64_t left, uint64_t most);
uint64_t sender_bytes_to_slice(const struct net_comm *comm);
uint64_t sender_smallest_slice(const struct net_comm *comm);
/* Whether the lane has nothing to send but what it may take. */
bool sender_is_idle(const struct net_comm *comm, unsigned socket);
/* Whether a peer that reset a connection may have sent its reason on the reverse socket. */
bool sender_may_learn_why(int error);
bool sender_is_between_records(const struct net_comm *comm);
void sender_close(struct net_comm *comm);
void sender_destroy(struct net_comm *comm);

/* That many bytes more are where they belong, or at least on their way for sure. */
void sender_moved(struct net_request *request, uint64_t bytes);

/* --- GPU memory --- */

bool memory_is_in_gpu(const struct net_memory *memory);

/* A send of this memory needs no copy, if the NIC can read it. */
void memory_refer(const struct net_memory *memory, const void *data, struct net_request *request);

/* From now on the comm has memory of this GPU, and of no other. Without the lock. */
MUST_CHECK int comm_use_gpu(struct net_comm *comm, int device);

/* Closed until the GPU gets there. */
MUST_CHECK int gate_close(struct net_comm *comm, struct net_request *request, enum net_after after,
                          void *what);
bool gate_is_open(struct net_comm *comm, struct net_request *request);

/* Whether somebody should look again soon: the GPU tells nobody when it has done something. */
bool copies_are_under_way(const struct net_comm *comm);

/* A copy whose start had this result; false: it failed, and so has the comm. */
bool copies_start(struct net_comm *comm, const struct copy *copy, int result);

/* Sees which have ended. */
void copies_poll(struct net_comm *comm);
void copies_close(struct net_comm *comm);

/* Starts as many copies as there are slots; the next that a socket can send; takes that. */
void stage_ahead(struct net_comm *comm);
const struct copy *stage_peek(struct net_comm *comm);
void stage_take(struct net_comm *comm, struct copy *copy);

/* Whether there is a slot for the bytes that come next. */
bool land_has_room(struct net_comm *comm, struct incoming *incoming);
/* Sends the slot's bytes on to the GPU when it is full or nothing more belongs in it. */
void land_if_full(struct net_comm *comm, struct incoming *incoming);
void land_ended(struct net_comm *comm, const struct copy *copy);
/* Makes the caller's stream wait for all copies of a receive, if all have begun; false: not yet. */
MUST_CHECK int land_on_stream(struct net_comm *comm, struct net_request *request, void *stream,
                              bool *handed_over);
void land_all_put_aside(struct net_comm *comm);

/*
 * Device-memory TCP, if it is asked for, on the sockets of a receiver that carry payload only. A
 * read is as recv() would be; EAGAIN may also mean that pages or slots are missing: *wait tells.
 */
MUST_CHECK int devmem_open(struct net_comm *comm);
void devmem_close(struct net_comm *comm);
bool devmem_carries(const struct net_comm *comm, unsigned socket);
ssize_t devmem_read(struct net_comm *comm, unsigned socket, int *error, enum lane_wait *wait);
void devmem_poll(struct net_comm *comm);
/* Says so when the pool has run dry; costs next to nothing as long as bytes come. */
void devmem_watch(struct net_comm *comm);
bool devmem_is_under_way(const struct net_comm *comm);

/*
 * Sending by it: memory that the NIC can read where it is. *source is NULL if that is not so, or
 * not asked for. Without the lock.
 */
MUST_CHECK int devmem_send_register(struct net_comm *comm, gpu_address address, uint64_t bytes,
                                    struct devmem_source **source);
ssize_t devmem_send_some(int socket, uint32_t source_id, uint64_t at, uint64_t bytes);
/* Sees which sends the peer has. */
void devmem_send_poll(struct net_comm *comm, unsigned socket);
bool devmem_send_is_flying(const struct net_comm *comm, unsigned socket);
/* Nothing more of what is under way by reference gets to the peer. */
void devmem_send_abort(struct net_comm *comm);
/*
 * The same when the comm is closed: waits a short while for the peer to acknowledge, and then
 * resets only what could arrive as a whole message with wrong bytes. Nobody else uses the comm.
 */
void devmem_send_close(struct net_comm *comm);

/* Receives that the GPU unpacks: whether one can begin; begins it; where its next bytes go. */
bool publish_has_room(const struct net_comm *comm, const struct net_buffer *buffer);
MUST_CHECK int publish_begin(struct net_comm *comm, const struct net_buffer *buffer,
                             struct net_request *request);
uint8_t *publish_where(const struct net_comm *comm, const struct net_request *request,
                       uint64_t offset, uint64_t *most);
/* The same for the GPU; 0: that many bytes do not lie there in one piece. */
gpu_address publish_where_on_gpu(const struct net_comm *comm, const struct net_request *request,
                                 uint64_t offset, uint64_t bytes);
/* All is there. No effect on a comm without a queue. */
void publish(struct net_comm *comm, const struct net_request *request);
void publish_release(struct net_comm *comm, struct net_request *request);
void publish_close(struct net_comm *comm);

/*
 * Messages ahead of their receives. Where the message belongs that a record speaks of: *message is
 * NULL if that is its receive. False: it may not be, and the comm has failed.
 */
bool ahead_place(struct net_comm *comm, uint32_t sequence, uint64_t bytes, bool on_credit,
                 struct eager_message **message);
/* The next bytes of the socket belong there, unless they are more than there can be; they have
 * come.
 */
void ahead_aim(struct net_comm *comm, struct incoming *incoming, struct eager_message *message,
               uint64_t offset, uint64_t bytes);
void ahead_arrived(struct net_comm *comm, struct eager_message *message, uint64_t bytes);
bool ahead_has_begun(struct net_comm *comm, uint32_t sequence);
/* For a new receive: its message, if it is all there; if it is coming, it will be delivered. */
struct eager_message *ahead_take(struct net_comm *comm, struct net_request *request);
bool ahead_is_complete(struct net_comm *comm, uint32_t sequence);
/* Of an eager message, too. */
void ahead_free(struct net_comm *comm, struct eager_message *message);
void ahead_destroy(struct net_comm *comm);

MUST_CHECK int receiver_create(struct net_comm *comm);
void receiver_start(struct net_comm *comm, struct net_request *request);
bool receiver_has_room(const struct net_comm *comm);
bool receiver_has_put_aside(struct net_comm *comm, uint64_t tag);
/*
 * A forward connection was lost, and error_text() says how. The others may hold whole messages
 * whose sends are done: they are read to their ends before the comm fails.
 */
void receiver_lose(struct net_comm *comm, unsigned socket);
/* A receive that has not ended; NULL: there is none of this number. */
struct net_request *receiver_by_sequence(struct net_comm *comm, uint32_t sequence);
/* A message that came first, to its receive; it is freed. */
void receiver_deliver(struct net_comm *comm, struct net_request *request,
                      struct eager_message *message);
/* The peer has done what no peer of ours does. */
void receiver_broken(struct net_comm *comm, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
enum lane_wait receiver_receive(struct net_comm *comm, uint16_t socket);
enum lane_wait receiver_speak(struct net_comm *comm);
void receiver_done_if_all_here(struct net_comm *comm, struct net_request *request);
/* The receive misses no bytes any more, or will never get them. */
void receiver_met(struct net_comm *comm, struct net_request *request);
/* Whether the application is posting receives, so that a lane may wait for one. */
bool receiver_posts(const struct net_comm *comm);
/* `now`: also what could be said later, since no call may follow for a while. */
bool receiver_has_to_speak(struct net_comm *comm, bool now);
bool receiver_can_wait(const struct net_comm *comm, const struct net_buffer *buffer);
/* Sends the rest of a record that is half sent, so that an ABORT can follow; false: it cannot. */
bool receiver_ends_record(struct net_comm *comm);
void receiver_destroy(struct net_comm *comm);

static inline unsigned comm_reverse_lane(const struct net_comm *comm)
{
    return comm->link.sockets;
}

/* Without I/O threads, or if there can be none, the calls on the comm move everything. */
void progress_start(struct net_comm *comm);
void progress_stop(struct net_comm *comm);

/* By a call on the comm. */
void progress(struct net_comm *comm);

/* A request has ended: who sleeps for it shall look. */
void progress_alarm(struct net_comm *comm);

/*
 * Until the request may have ended, at most until the deadline. Uses no CPU, except while the GPU
 * is at something, which has to be asked.
 */
void progress_sleep(struct net_request *request, uint64_t deadline);

/* Wakes idle lanes of a sender for slices that nobody has taken. */
void progress_share_out(struct net_comm *comm);

/* Whether all that is to be sent will be taken by lanes which have been woken for it. */
bool progress_is_shared_out(const struct net_comm *comm);

/* A lane other than the caller's own has something to do that it did not have. */
void progress_wake(struct net_comm *comm, unsigned lane);

/* The comm has failed: no I/O thread has to wait for it. */
void progress_forget(struct net_comm *comm);

#endif
