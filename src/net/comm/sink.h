/*
 * Where the bytes of a record go. The receiving side (rx_lane.c) knows a sink only by these
 * operations. Here: host memory of a receive, memory for an unexpected message, the text of an
 * ABORT, and a scratch buffer for bytes that are not wanted. In net/gpu: staging memory, bounce
 * memory, and sockets that receive into device memory. All but copy_in() have the comm's lock.
 */
#ifndef TCPX_NET_COMM_SINK_H
#define TCPX_NET_COMM_SINK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/* What a lane (one socket of a comm) waits for after a thread has moved it. */
enum lane_wait {
    LANE_IDLE,         /* work */
    LANE_FOR_INPUT,    /* bytes of the peer */
    LANE_FOR_ROOM,     /* room in the socket */
    LANE_FOR_ARRIVALS, /* completions of zero-copy sends */
    LANE_SOON,         /* a copy of the GPU, which has to be polled */
    LANE_MORE,         /* nothing: its turn is over */
    LANE_BUSY,         /* another thread owns it */
};

struct net_comm;
struct net_request;
struct sink_ops;
struct unexpected;

/* What a socket is in the middle of receiving. */
struct rx_payload {
    const struct sink_ops *sink; /* NULL: nothing */
    struct net_request *request; /* whose bytes these are, */
    struct unexpected *message;  /* or the message without a receive; or neither */
    uint8_t *place;              /* host memory for the next bytes, if the sink has such */
    uint64_t at;                 /* where in the message the next bytes belong */
    uint64_t left;
    uint64_t bytes; /* of the whole payload */
};

enum { SINK_SCRATCH_BYTES = 16384 };

struct sink_ops {
    /* Receives into this memory may be announced late if they are small. */
    bool in_host;

    /* Reads the socket itself, as recv(). After EAGAIN *wait is LANE_FOR_INPUT or LANE_SOON. */
    ssize_t (*read)(struct net_comm *comm, unsigned socket, int *error, enum lane_wait *wait);

    /* Whether there is memory for the next bytes; NULL: always. */
    bool (*reserve)(struct net_comm *comm, unsigned socket);
    /* The place for as many of the next `room` bytes as it takes. */
    struct iovec (*next)(struct net_comm *comm, unsigned socket, uint8_t *scratch, uint64_t room);
    /* As next, for bytes that go to several places: lists at most `most`, and returns how many. */
    unsigned (*scatter)(struct net_comm *comm, unsigned socket, uint64_t room, struct iovec *list,
                        unsigned most);
    /* So many more bytes have arrived there. */
    void (*filled)(struct net_comm *comm, unsigned socket, uint64_t bytes);

    /* The payload will not be complete: gives back what reserve() took. NULL: nothing. */
    void (*abandon)(struct net_comm *comm, unsigned socket);

    /* The payload, possibly empty, is complete. */
    void (*complete)(struct net_comm *comm, const struct rx_payload *payload);

    /*
     * Copies an unexpected message that is not empty to its receive. The lock may be free
     * meanwhile. NULL: the mover copies it, a piece at a time.
     */
    void (*copy_in)(const struct net_comm *comm, const struct net_request *request,
                    const uint8_t *data, uint64_t bytes);
};

/* `next` and `filled` of a sink whose bytes go to `place`. */
struct iovec sink_next_at_place(struct net_comm *comm, unsigned socket, uint8_t *scratch,
                                uint64_t room);
void sink_filled_at_place(struct net_comm *comm, unsigned socket, uint64_t bytes);

/* The bytes of a payload have arrived at their receive, or are being copied there. */
void sink_complete_receive(struct net_comm *comm, const struct rx_payload *payload);

/* `next` and `filled` of a sink whose bytes are not wanted. */
struct iovec sink_discard_next(struct net_comm *comm, unsigned socket, uint8_t *scratch,
                               uint64_t room);
void sink_discard_filled(struct net_comm *comm, unsigned socket, uint64_t bytes);

extern const struct sink_ops sink_host;
extern const struct sink_ops sink_parts; /* host memory, as a list of parts */
extern const struct sink_ops sink_discard;

#endif
