/*
 * Copies between GPU memory and pinned slots, on one stream, in order. Each says by a function what
 * follows its end. A failure of the GPU is a failure of the comm.
 */
#ifndef TCPX_NET_GPU_COPY_QUEUE_H
#define TCPX_NET_GPU_COPY_QUEUE_H

#include "net/gpu/comm_gpu.h"

struct copy {
    struct pinned_slot *slot;
    struct net_request *request; /* NULL: none waits for it any more */
    uint64_t offset;             /* in the message */
    uint64_t bytes;
    uint64_t not_before; /* it does not count as ended: a slow stage, for tests */
    /* It has ended, and the slot is its owner's again. */
    void (*ended)(struct net_comm *comm, const struct copy *copy);
};

/* A copy whose start had this result. False: it failed, and so has the comm. */
bool copy_queue_add(struct net_comm *comm, const struct copy *copy, int result);

/* Sees which copies have ended. */
void copy_queue_poll(struct net_comm *comm);

/* None waits for the copies of this request any more; how many these are. */
unsigned copy_queue_disown(struct net_comm *comm, const struct net_request *request);

/* Waits for all copies: the buffers are the caller's again afterwards. */
void copy_queue_close(struct net_comm *comm);

#endif
