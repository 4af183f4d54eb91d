/*
 * The state of a comm, as the files of this room and net/gpu share it. Each group of members names
 * the file that works on it. comm_lock.h explains which lock guards what.
 *
 * A lane is one of the comm's sockets: the forward ones by their number, the reverse one behind
 * them. A thread may move a lane on when it is not busy; progress.h says which threads do.
 */
#ifndef TCPX_NET_COMM_COMM_STATE_H
#define TCPX_NET_COMM_COMM_STATE_H

#include "base/key_fifo.h"
#include "base/queue.h"
#include "net/comm/comm.h"
#include "net/comm/comm_lock.h"
#include "net/comm/mover.h"
#include "net/comm/sink.h"
#include "net/comm/source.h"
#include "net/comm/stages.h"
#include "net/io/io.h"
#include "net/link/link.h"

/*
 * How much one turn moves over one socket at most, in bytes and in system calls, so that no socket
 * starves the others and no peer holds a caller with slices of a few bytes.
 */
enum { COMM_TURN_BYTES = 2 << 20, COMM_TURN_CALLS = 64 };

struct lane {
    struct io_task task; /* of the I/O thread that owns its socket, if one does */
    struct net_comm *comm;
    unsigned number;
    bool busy;
    enum lane_wait wait; /* when it was last moved on */
    bool is_woken;       /* its owner was woken, and has not come yet */
    bool missed;         /* its owner came while another thread was moving it */
    bool has_error;      /* epoll has reported it, and its cause is not known yet */
    bool peer_has_ended; /* an event said so: a short read is not the last one */
};

enum request_state {
    REQUEST_FREE,
    REQUEST_WAITING, /* send: not matched with a receive; receive: no message yet */
    REQUEST_MOVING,
    REQUEST_DONE,
    REQUEST_FAILED,
    REQUEST_REPORTED, /* test() has reported completion; waits for consumed() */
};

struct net_request {
    /*
     * What test() reads, in a line of the cache of its own, so that a caller that polls does not
     * slow the owner of the socket down. The state is written with the lock, but for FREE; without
     * it, DONE is seen with all that came before.
     */
    _Atomic(enum request_state) state;
    atomic_bool is_looked_at; /* test() has nothing to move, and frees it when it is done; in any
                                 order */
    struct net_comm *comm;

    /* of its isend or irecv in the comm */
    uint64_t order __attribute__((aligned(64)));
    uint8_t *data;
    const struct net_part *parts; /* instead of the data; NULL: none (parts.h) */
    uint32_t part_count;
    uint64_t bytes; /* of the message; of the room, until a receive knows its message */
    uint64_t room;  /* receive; send that is too long: what its receive has */
    uint64_t tag;
    uint64_t moved;
    bool is_place;     /* `sequence` is the number of a place, otherwise */
    uint32_t sequence; /* of the receive that this is, or that this send goes to */
    bool has_sequence; /* that receive is posted, and `sequence` is its number */
    unsigned users;    /* system calls and copies that touch the data while the lock is free */
    int result;        /* why it failed, */
    char *text;        /* in words; NULL: there was no memory for them */
    struct sleeper *sleeper; /* waits for its end; NULL: none */
    void *owner;             /* of a place that has not ended */
    bool is_listed;          /* a place that has: what discards its bytes since does not count */
    bool cancelled; /* by its caller, or a send by the receiver: its memory is not its own */
    bool is_orphan; /* cancelled, and its caller has been told: it is freed when it ends */
    struct net_request *next_free; /* while it is free */

    /* send */
    const struct source_ops *source;
    uint64_t handed_out;         /* bytes that have been given to a socket */
    unsigned records_queued;     /* planned and not sent */
    bool too_long;               /* fails when TOOLONG has been sent */
    bool ahead;                  /* goes ahead of its receive, on credit */
    struct net_request *earlier; /* sends that wait for their receive, in the order of isend */
    struct net_request *later;
    struct net_request *older; /* sends with bytes that no socket has taken, in the same order */
    struct net_request *newer;

    /* receive */
    const struct sink_ops *sink;
    bool matched;               /* its message has begun */
    bool satisfied;             /* it misses no bytes */
    uint64_t begun;             /* bytes of all slices that have begun */
    uint64_t copying;           /* bytes that arrived and are being copied to their place */
    struct unexpected *arrived; /* its message, which came first and is not copied out yet */
    bool is_cut;                /* the sender has cancelled it: */
    uint64_t cut_at;            /* so many bytes have come, or will */
    bool is_in_row;             /* it may be looked for by its tag, among these: */
    struct net_request *earlier_in_row;
    struct net_request *later_in_row;

    struct request_gpu gpu; /* net/gpu's */
};

/* What a forward socket of the sender is sending: records, and the payload of the last one. */
enum { OUTGOING_RECORDS = 16 };
struct outgoing {
    uint8_t records[OUTGOING_RECORDS * WIRE_RECORD_BYTES];
    size_t records_bytes;
    size_t records_sent;
    struct net_request *record_owners[OUTGOING_RECORDS]; /* of planned records */
    unsigned record_owner_count;
    struct net_request *request; /* whose payload this is; NULL: there is none */
    const uint8_t *payload;      /* NULL: its source sends it by itself, or it is in parts */
    uint64_t payload_left;
    uint64_t at;         /* where in the message that begins */
    void *piece;         /* of the mover, to be given back when it is sent */
    uint8_t *own;        /* the payload of a send that was cancelled, to be freed then */
    uint64_t counts;     /* bytes that the request has moved once this is sent */
    uint64_t total;      /* bytes sent since the hello */
    unsigned idle_turns; /* calls that found nothing to send */
    uint64_t loaded_at;  /* when it began with this; 0: it was idle */
    int unsent_limit;    /* bytes that it holds unsent, at most */
    bool full;           /* its socket did not take everything */
    bool records_only;   /* a caller sends: slices are left to the owners of the sockets */
    bool lost;           /* its connection failed: nothing more is sent */
};

static inline bool outgoing_is_idle(const struct outgoing *outgoing)
{
    return outgoing->records_sent == outgoing->records_bytes && outgoing->payload_left == 0;
}

/* A record to be sent on forward socket 0, in this order. */
struct planned {
    struct wire_record record;   /* of EAGER: the request's bytes follow, */
    struct net_request *request; /* NULL: none waits for it */
    uint8_t *own;                /* or these, of a send that was cancelled */
};

struct post {
    uint32_t sequence;
    uint64_t tag;
    uint64_t room;
};

/* A forward socket of the receiver. */
enum { INCOMING_AHEAD = 2048 };
struct incoming {
    uint8_t record[WIRE_RECORD_BYTES];
    size_t record_have;
    uint8_t ahead[INCOMING_AHEAD]; /* what was read together with a record, and is not taken yet: */
    size_t ahead_from;
    size_t ahead_to;
    struct rx_payload payload; /* of the last record */
    struct queue slices;       /* separate framing: struct wire_record, announced and not begun */
    bool stalled;              /* it holds a record whose receive is not posted, */
    uint32_t stalled_for;      /* which has this number; of a place, */
    uint64_t stalled_ns;       /* for so long, as far as this process ran, */
    uint64_t stalled_seen;     /* when it was looked at last */
    bool unread; /* its socket may have bytes: it waits for its turn, or for memory to read into */
    bool ended;
    uint64_t total; /* bytes that were taken, records included */
};

/* A message without a receive. With tags it is in a list, in order it is found by its number. */
struct unexpected {
    struct unexpected *next;
    uint64_t tag;
    uint64_t posts_heard; /* with tags: by the sender when it sent this */
    uint64_t bytes;
    uint64_t capacity; /* of data; 0: not worth keeping for another message */
    uint64_t begun;    /* in order: bytes of all slices that have begun, */
    uint64_t moved;    /* bytes that have arrived, */
    uint32_t sequence; /* and the number of its receive */
    uint8_t data[];
};

/* Receives without a message whose tags have the same hash, in the order of their irecv. */
struct receive_row {
    struct net_request *first;
    struct net_request *last;
};

/* The sending side. */
struct comm_tx {
    struct outgoing outgoing[WIRE_MOST_SOCKETS];

    /* tx_match */
    struct queue planned;              /* struct planned, */
    unsigned ownerless;                /* of which so many have no request */
    struct key_fifo posts;             /* struct post by tag, not matched with a send yet */
    struct key_fifo waiting;           /* struct net_request * by tag: sends without a receive, */
    struct net_request *first_waiting; /* and all of them in their order */
    struct net_request *last_waiting;
    uint64_t *unposted; /* tags of messages that went before their POST; with tags only */
    unsigned unposted_count;
    unsigned unposted_room;
    uint64_t posts_heard;
    uint64_t credit_charged;
    uint64_t credit_freed;

    /* tx_work: opened sends with bytes that no socket has taken */
    struct net_request *oldest_untaken;
    struct net_request *newest_untaken;

    /* tx_reverse */
    uint8_t input[64 * WIRE_RECORD_BYTES];
    size_t input_bytes;
    bool can_send_more; /* a record arrived that lets sends go on */
    bool reverse_ended; /* the receiver has closed; it counts when no call is under way */

    unsigned full;  /* lanes whose socket is */
    bool zero_copy; /* the kernel reports arrivals as errors of the sockets */
};

/* The receiving side. */
struct comm_rx {
    struct incoming incoming[WIRE_MOST_SOCKETS];
    const struct sink_ops *lane_sinks[WIRE_MOST_SOCKETS]; /* instead of the receive's own */

    /* rx_announce */
    struct queue queued; /* struct wire_record, for the reverse socket */
    uint8_t output[32 * WIRE_RECORD_BYTES];
    size_t output_bytes;
    size_t output_sent;
    uint64_t last_post;        /* when the application posted a receive */
    uint64_t queued_since;     /* when it posted the oldest that is not announced */
    bool announce_now;         /* a message waits for it */
    bool announce_soon;        /* a message that is not small may wait for it */
    bool announce_is_planned;  /* the owner of the reverse lane looks at the time */
    bool peer_closed_reverse;  /* POST and CREDIT can no longer be delivered */
    uint64_t credit_freed;     /* all that was charged and is free again */
    uint64_t credit_announced; /* of that, in records that are queued, */
    uint64_t credit_sent;      /* and in those that are on their way */

    /* rx_match */
    struct receive_row *by_tag;       /* as many as by_sequence; with tags */
    struct net_request **by_sequence; /* a receive at its number modulo the length, */
    unsigned by_sequence_mask;        /* which is this + 1, */
    bool has_displaced;               /* unless a later one has taken its place */

    /* rx_place */
    struct key_fifo places; /* struct net_request * by number: outstanding ones */
    uint32_t newest_place;  /* of those that are opened in order */

    /* rx_unexpected */
    struct unexpected *numbered[WIRE_MOST_AHEAD]; /* in order: by their sequence */
    struct unexpected *claimed;                   /* their receives wait for the rest */
    struct unexpected *spare;                     /* memory of earlier ones, to be used again */
    uint64_t memory;                              /* bytes of all these */
    struct unexpected *first_tagged;              /* with tags: complete ones */
    struct unexpected **last_tagged;
    uint64_t held; /* bytes that unexpected messages are charged with now */

    /* rx_record */
    char abort_text[WIRE_ABORT_TEXT + 1];
    uint32_t abort_result;
    bool abort_begun;

    unsigned orphans;     /* receives and open places that were cancelled and not ended since */
    unsigned stalled;     /* lanes that hold a record whose receive is not posted */
    unsigned unsatisfied; /* receives that miss bytes */
    unsigned unread;      /* lanes that have left bytes in their socket */
};

/* What a comm has done since it was opened. */
struct stats_sample {
    uint64_t at;
    uint64_t bytes;
    uint64_t retransmitted;
    struct stage_times times;
    struct unpack_counts unpack;
};

struct net_comm {
    struct comm_lock lock;
    struct net_link link;
    enum net_side side;

    /* request */
    struct net_request *requests;
    unsigned most_requests;            /* that there can be */
    unsigned used_requests;            /* all others were never used, and no loop visits them */
    struct net_request *free_requests; /* to be used first, */
    _Atomic(struct net_request *) just_freed; /* and those that were freed without the lock */
    uint64_t next_order;
    struct queue ended; /* owners of places that have ended */
    uint64_t messages;  /* that have been moved whole */
    unsigned pending;   /* requests that are neither done nor failed */

    /* fail */
    int result; /* TCPX_SUCCESS, or why no request can go on */
    char text[256];
    bool aborted;       /* ABORT was sent, and all sockets are shut down */
    bool copies_failed; /* nothing more gets to GPU memory, not even what has arrived */
    uint64_t lost_at;   /* when bytes last came after a connection was lost; 0: none was */
    char lost_text[256];

    uint32_t next_sequence; /* of a receive; at a sender, of the next POST */
    bool sequence_wrapped;  /* from now on a number may still be in use by an old receive */
    struct comm_tx tx;
    struct comm_rx rx;

    /* what net/gpu attached */
    const struct mover_ops *mover; /* NULL: no GPU memory, nor device-memory TCP */
    struct comm_gpu *gpu;
    const struct unpack_ops *unpack; /* NULL: the transport unpacks by itself */
    struct unpack_queue_state *unpack_queue;
    struct unpack_counts unpack_counts;
    struct net_memory *memories; /* all that are registered with this comm */

    /* accounting: for how long the stages were at work */
    struct stage_copies copying;
    struct stage_calls calling; /* sendmsg at a sender, recvmsg at a receiver */
    struct stage_throttle throttle;

    /* stats, which has a lock of its own for these */
    bool is_sampled;
    struct net_comm *next_sampled;
    struct stats_sample sample; /* when it was last looked at */

    /* lanes and progress */
    struct io_group io;
    struct lane lanes[WIRE_MOST_SOCKETS + 1];
    bool callers_move;    /* calls move all lanes on: there are no I/O threads, or few CPUs; */
    bool owned;           /* I/O threads move all lanes on; both for a moment on few CPUs */
    uint64_t polls;       /* calls that moved the comm on, */
    uint64_t polls_seen;  /* as its I/O thread saw it last, */
    uint64_t called_at;   /* and when it saw that there had been one */
    bool time_is_counted; /* the reverse lane's task runs every 2 ms */
    bool gpu_is_polled;   /* the owner of the reverse lane polls the GPU */
    bool waits_changed;   /* a lane waits for something else than sleepers know */
    atomic_bool waits_are_long; /* the latest one slept; any order would do */

    /* request and wait: who learns of the ends of requests */
    struct sleeper *sleeping;       /* calls that wait for a request to end */
    struct sleeper *spare_sleepers; /* descriptors for the next ones */
    struct io_task *notified;       /* is woken when a request ends; NULL: none */
};

static inline unsigned comm_reverse_lane(const struct net_comm *comm)
{
    return comm->link.sockets;
}

/* Then a message has the number of its receive. */
static inline bool comm_is_in_order(const struct net_comm *comm)
{
    return comm->link.match == WIRE_MATCH_FIFO;
}

/* The receive of this number is posted; the next one has the next number. */
static inline void comm_advance_sequence(struct net_comm *comm, uint32_t posted)
{
    comm->next_sequence = wire_sequence((uint64_t)posted + 1);
    comm->sequence_wrapped = comm->sequence_wrapped || comm->next_sequence <= posted;
}

#endif
