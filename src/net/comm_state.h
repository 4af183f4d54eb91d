/* What the files of a comm share: comm.c has requests and ends, send.c and receive.c the bytes. */
#ifndef TCPX_NET_COMM_STATE_H
#define TCPX_NET_COMM_STATE_H

#include "base/queue.h"
#include "net/comm.h"

#include <pthread.h>

/* How much one call moves over one socket at most, so that no socket starves the others. */
enum { COMM_TURN_BYTES = 8 << 20 };

enum request_state {
    REQUEST_FREE,
    REQUEST_WAITING, /* send: not matched with a receive; receive: no message yet */
    REQUEST_MOVING,
    REQUEST_DONE,
    REQUEST_FAILED,
};

struct net_request {
    struct net_comm *comm;
    enum request_state state;
    uint64_t order; /* of its isend or irecv in the comm */
    uint8_t *data;
    uint64_t bytes; /* of the message; of the room, until a receive knows its message */
    uint64_t room;  /* receive */
    uint64_t tag;
    uint64_t moved;
    uint64_t handed_out; /* send: bytes that have been given to a socket */
    unsigned unsaid;     /* send: records of it that are planned and not sent */
    uint32_t sequence;   /* of the receive that this is, or that this send goes to */
    bool matched;        /* receive: its message has begun */
    uint64_t begun;      /* receive: bytes of all slices that have begun */
    uint64_t reach;      /* receive: the end of the farthest slice */
    int result;          /* why it failed */
    char text[256];
};

/* What a forward socket of the sender is sending: a record and what follows it. */
struct outgoing {
    uint8_t record[WIRE_RECORD_BYTES];
    size_t record_left;
    const uint8_t *payload;
    uint64_t payload_left;
    struct net_request *request; /* NULL: nobody waits for this */
    uint64_t counts;             /* bytes that the request has moved once this is sent */
    bool says;                   /* the record is one of its unsaid ones */
    uint64_t total;              /* bytes sent since the hello */
    unsigned idle_turns;         /* calls that found nothing to send */
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
    struct eager_message *eager; /* or a message that nobody has asked for yet */
    bool aborting;               /* or the text of an ABORT */
    bool ended;
    uint64_t total; /* bytes received, records included */
};

/* An eager message without a receive. */
struct eager_message {
    struct eager_message *next;
    uint64_t tag;
    uint64_t bytes;
    uint8_t data[];
};

struct post {
    uint32_t sequence;
    uint64_t tag;
    uint64_t room;
};

struct net_comm {
    pthread_mutex_t lock; /* guards everything here */
    struct net_link link;
    enum net_side side;
    struct net_request requests[COMM_REQUESTS];
    uint64_t next_order;
    uint64_t messages; /* that have been moved whole */
    int result;        /* TCPX_SUCCESS, or why no request can go on */
    char text[256];

    /* sender */
    struct outgoing outgoing[WIRE_MOST_SOCKETS];
    struct queue planned; /* struct planned */
    struct post posts[COMM_REQUESTS];
    unsigned post_count;
    uint64_t *eager_unposted; /* tags of eager messages whose receive is not posted yet */
    unsigned eager_unposted_count;
    unsigned eager_unposted_room;
    uint64_t eager_charged;
    uint64_t eager_freed;
    uint8_t heard[64 * WIRE_RECORD_BYTES]; /* from the reverse socket */
    size_t heard_bytes;

    /* receiver */
    struct incoming incoming[WIRE_MOST_SOCKETS];
    struct queue to_say; /* struct wire_record, for the reverse socket */
    uint8_t saying[32 * WIRE_RECORD_BYTES];
    size_t saying_bytes;
    size_t said_bytes;
    bool deaf;              /* the sender does not read any more */
    uint32_t next_sequence; /* of a receive; at a sender, of the next POST */
    struct eager_message *eager_first;
    struct eager_message **eager_last;
    uint64_t eager_held;
    uint64_t eager_given_back; /* all that was freed */
    uint64_t eager_said;       /* of which the sender knows */
    char abort_text[WIRE_ABORT_TEXT + 1];
    uint32_t abort_result;
};

/* Ends every request of the comm with this result and the text that error_set() has kept. */
void comm_fail(struct net_comm *comm, int result);

/* Ends one request, the comm goes on. */
void request_fail(struct net_request *request, int result);
void request_done(struct net_request *request);

/* Each moves its side on; a problem is a failure of the comm. */
MUST_CHECK int sender_create(struct net_comm *comm);
void sender_start(struct net_comm *comm, struct net_request *request);
void sender_progress(struct net_comm *comm);
void sender_close(struct net_comm *comm);
bool sender_is_between_records(const struct net_comm *comm);
void sender_destroy(struct net_comm *comm);

MUST_CHECK int receiver_create(struct net_comm *comm);
void receiver_start(struct net_comm *comm, struct net_request *request);
bool receiver_has_room(const struct net_comm *comm);
bool receiver_has_put_aside(const struct net_comm *comm, uint64_t tag);
void receiver_progress(struct net_comm *comm);
bool receiver_is_between_records(const struct net_comm *comm);
void receiver_destroy(struct net_comm *comm);

#endif
