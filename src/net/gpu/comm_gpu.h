/*
 * What a comm with GPU memory has of it: the state that the files of this room share. The comm's
 * lock guards it. Copies between GPU memory and pinned slots run on one stream, in order.
 */
#ifndef TCPX_NET_GPU_COMM_GPU_H
#define TCPX_NET_GPU_COMM_GPU_H

#include "net/comm/for_movers.h"
#include "net/devmem/devmem.h"
#include "net/gpu/pinned_pool.h"

#include <stdatomic.h>

/* A slot that a receiving socket fills. */
struct rx_slot {
    struct pinned_slot *slot; /* NULL: none */
    uint64_t bytes;           /* that are in it */
    uint64_t room;            /* that will be, before they are copied on */
};

/* What a send waits for on the GPU. */
struct send_gate {
    struct gpu_stream *stream;
    struct gpu_event *event;
};

struct comm_gpu {
    int device;
    struct pinned_share share;
    struct gpu_stream *stream;
    struct queue copies;     /* struct copy, as they were put on the stream */
    struct queue ready;      /* sender: struct copy that a socket can send */
    struct send_gate *gates; /* of the requests */
    unsigned gated_sends;    /* that wait for their gates */
    struct rx_slot rx_slots[WIRE_MOST_SOCKETS];
    struct rx_devmem *devmem;    /* NULL: all sockets receive into host memory */
    struct devmem_pool *rx_pool; /* the pool that the others receive into */
    struct in_place *in_place;   /* NULL: all that arrives there is copied */

    struct zerocopy *zero_copy[WIRE_MOST_SOCKETS]; /* NULL: there can be none */
    /*
     * Atomic, since registering reads them without the lock. Any order would do: both only change
     * to true, and the lock guards what follows from them.
     */
    atomic_bool sends_by_reference; /* the sockets are set up for zero-copy sends */
    atomic_bool stages_instead;     /* by-reference sends failed once: memory is staged */
};

#endif
