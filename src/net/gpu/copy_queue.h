/*
 * Copies between GPU memory and pinned slots, on one stream, in order. Each has a function that is
 * called at its end. A failure of the GPU is a failure of the comm.
 */
#ifndef TCPX_NET_GPU_COPY_QUEUE_H
#define TCPX_NET_GPU_COPY_QUEUE_H

#include "net/gpu/comm_gpu.h"

struct copy {
    struct pinned_slot *slot;
    struct net_request *request; /* NULL: detached by copy_queue_disown() */
    uint64_t offset;             /* in the message */
    uint64_t bytes;
    uint64_t not_before; /* it does not count as ended: a slow stage, for tests */
    /* Called when the copy has ended; the slot belongs to the called function. */
    void (*ended)(struct net_comm *comm, const struct copy *copy);
};

/* A copy whose start had this result. False: it failed, and so has the comm. */
bool copy_queue_add(struct net_comm *comm, const struct copy *copy, int result);

/* Completes the copies that have ended. */
void copy_queue_poll(struct net_comm *comm);

/* Detaches the copies of this request from it; returns how many. */
unsigned copy_queue_disown(struct net_comm *comm, const struct net_request *request);

/* Waits for all copies: the buffers are the caller's again afterwards. */
void copy_queue_close(struct net_comm *comm);

#endif
