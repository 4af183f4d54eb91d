/*
 * What net/gpu adds to a comm that has GPU memory: it moves bytes between that memory and the
 * sources and sinks of the comm. The comm knows it only by these operations. All are called with
 * the comm's lock. GPU completions do not wake threads, so threads that make progress poll.
 */
#ifndef TCPX_NET_COMM_MOVER_H
#define TCPX_NET_COMM_MOVER_H

#include "base/error.h"
#include "net/comm/comm.h"

struct source_ops;
struct sink_ops;

/* What a request has of it. */
struct request_gpu {
    uint32_t source_id; /* send: the dma-buf that the NIC reads it from; 0: none */
    uint64_t source_at; /* where in there its first byte is */
    bool gated;         /* send: its data is not complete on the GPU yet */
    uint64_t staged;    /* send: bytes that copies to host memory have begun for */
};

/* Memory that was registered with a comm. GPU memory has more of it, in net/gpu. */
struct net_memory {
    const struct source_ops *source;
    const struct sink_ops *sink;
    void (*release)(struct net_memory *memory); /* frees it */
    struct net_memory *next;                    /* of this comm */
    struct net_memory **here;
};

/* Bytes of a send that are in host memory now. */
struct tx_piece {
    struct net_request *request;
    uint64_t offset; /* in the message */
    uint64_t bytes;
    const uint8_t *data;
    void *piece; /* for piece_sent() */
};

struct mover_ops {
    /* --- any comm --- */
    /* Completes the copies that have ended. */
    void (*poll)(struct net_comm *comm);
    /* Whether a copy is in flight; whether a send waits until its data is complete on the GPU. */
    bool (*has_copies)(const struct net_comm *comm);
    bool (*has_gated_sends)(const struct net_comm *comm);
    void (*close)(struct net_comm *comm);

    /* --- a sender --- */
    /* A send begins: its place in the memory, and what it has to wait for on the GPU. */
    int (*begin_send)(struct net_comm *comm, const struct net_buffer *buffer,
                      struct net_request *request);
    /* Starts as many copies to host memory as there is room for. */
    void (*prepare)(struct net_comm *comm);
    /* Pieces that are ready; the oldest one, which take_piece() removes. */
    unsigned (*count_pieces)(const struct net_comm *comm);
    bool (*next_piece)(struct net_comm *comm, struct tx_piece *piece);
    void (*take_piece)(struct net_comm *comm);
    void (*piece_sent)(struct net_comm *comm, void *piece);
    /* A send was cancelled: its pieces that are not taken are dropped, and no more are made. */
    void (*forget_send)(struct net_comm *comm, const struct net_request *request);
    /* Reads the completions of a socket's zero-copy sends; whether there are such sends. */
    void (*poll_socket)(struct net_comm *comm, unsigned socket);
    bool (*has_zero_copy)(const struct net_comm *comm, unsigned socket);
    /* The comm has failed: no more bytes are read from the callers' memory. */
    void (*abort_sends)(struct net_comm *comm);
    /* The comm is closed: waits a short while for zero-copy sends to complete, then as abort. */
    void (*close_sends)(struct net_comm *comm);

    /* --- a receiver --- */
    /* Polls, and copies unexpected messages to their receives. */
    void (*deliver_unexpected)(struct net_comm *comm);
    /*
     * Warns when there is no memory for what arrives. Cheap while bytes arrive. May release the
     * lock for a while.
     */
    void (*watch)(struct net_comm *comm);
    /* Makes the caller's stream wait for the copies of a receive, if all of them have begun. */
    int (*finish_on_stream)(struct net_comm *comm, struct net_request *request, void *stream,
                            bool *handed_over);
};

/* A queue of descriptors from which the GPU unpacks receives by itself. */
struct unpack_ops {
    /* Whether a receive can begin now; begins it. */
    bool (*has_room)(const struct net_comm *comm, const struct net_buffer *buffer);
    int (*begin)(struct net_comm *comm, const struct net_buffer *buffer,
                 struct net_request *request);
    /* All bytes have arrived; the receive has been consumed, or has failed. */
    void (*publish)(struct net_comm *comm, const struct net_request *request);
    void (*release)(struct net_comm *comm, const struct net_request *request);
    void (*close)(struct net_comm *comm);
};

#endif
