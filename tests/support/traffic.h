/*
 * Random messages over comms: sizes, tags and orders are random, requests are posted and tested in
 * whatever order, and every byte is checked as well as the bytes around each buffer. One object
 * drives the sending end of one comm and the receiving end of another, or of the same; a thread may
 * have it, since problems are kept and not asserted.
 */
#ifndef TCPX_TESTS_SUPPORT_TRAFFIC_H
#define TCPX_TESTS_SUPPORT_TRAFFIC_H

#include "tests/support/pair.h"
#include "tests/unit/net_traffic.h"

#include <stdatomic.h>

enum { TRAFFIC_SLOTS = COMM_REQUESTS + 2 }; /* so that it is the comm that is busy */

/* Which sizes there are: one of `edges`, or any below one of `below`, all as often. */
struct traffic_sizes {
    const uint64_t *edges;
    unsigned edge_count;
    uint64_t below[8]; /* ends with 0 */
    uint64_t rarely;   /* any up to this one in 64 times; 0: never */
};

uint64_t traffic_size(const struct traffic_sizes *sizes, uint64_t *random);

struct traffic_message {
    uint64_t tag;
    uint64_t bytes;
};

/* The messages of one direction, and the orders in which they are sent and received. */
struct traffic_stream {
    struct traffic_message *messages;
    int *send_order; /* which message is sent first, second, ... */
    int *receive_order;
    int count;
    const struct text *text;
    uint64_t first_number; /* in the text; every other one is the other direction's */
    bool tags_count;
};

/*
 * Both ends go through the same blocks of messages, each in its own order: each tag's messages stay
 * in theirs. `block`: at most COMM_REQUESTS, so that both ends can always post all of the first one
 * that is not over; 1: in order.
 */
struct traffic_stream traffic_stream_create(const struct text *text, enum wire_match match,
                                            const struct traffic_sizes *sizes, uint64_t *random,
                                            int count, int block, int direction);
void traffic_stream_destroy(struct traffic_stream *stream);
const uint8_t *traffic_bytes_of(const struct traffic_stream *stream, int message);

/* One buffer of either end. */
struct traffic_slot {
    struct net_request *request; /* NULL: this slot is free */
    int message;
    uint64_t room;
    struct net_buffer buffer;
    void *place; /* of `traffic_memory` */
};

/* Where the buffers are. The usual one is host memory between unreadable pages. */
struct traffic_memory {
    /* Sets slot->buffer.data, and puts the message there; NULL: room for one, all marked. */
    void (*prepare)(struct traffic_slot *slot, const uint8_t *message, uint64_t bytes);
    /* Whether the message is there, and all marks around it. */
    bool (*holds)(struct traffic_slot *slot, const uint8_t *message, uint64_t bytes);
};

struct traffic {
    struct net_comm *sender;
    struct net_comm *receiver;
    const struct traffic_stream *out;
    const struct traffic_stream *in;
    const struct traffic_memory *memory; /* NULL: the usual one */
    struct slots send_slots;
    struct slots receive_slots;
    struct traffic_slot sends[TRAFFIC_SLOTS];
    struct traffic_slot receives[TRAFFIC_SLOTS];
    int slots;  /* that are used, of each */
    bool waits; /* some receives are waited for, a millisecond at most */
    bool naps;  /* at times for some microseconds */
    int next_send;
    int next_receive;
    int sent;
    int received;
    uint64_t random;
    uint64_t mood;      /* what it does not do for now */
    uint64_t mood_left; /* turns */
    atomic_bool *stop;  /* set by whichever finds a problem; may be NULL */
    char problem[300];
};

/* Messages have at most `longest` bytes. Some fields may be set afterwards. */
void traffic_create(struct traffic *traffic, const struct traffic_stream *out,
                    const struct traffic_stream *in, uint64_t longest);
void traffic_destroy(struct traffic *traffic);

/* One step; true if something was posted or has ended. */
bool traffic_turn(struct traffic *traffic);
bool traffic_is_over(const struct traffic *traffic);
/* Turns until it is over, or there is a problem. A thread can begin here. */
void *traffic_run(void *argument);

/* Fails the test if there was a problem. */
void traffic_must_be_fine(const struct traffic *traffic, const char *where);

/* Two of them, a thread for each, to the end. */
void traffic_run_both(struct traffic both[2], const char *where);

#endif
