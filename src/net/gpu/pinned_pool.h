/*
 * Pinned host memory that sockets and a GPU share: slots of one size, from one bounded pool for
 * each purpose and GPU of this process, shared by all comms. Each comm that joined is guaranteed
 * one slot, so that no other comm can stop it, and takes more while there are any.
 */
#ifndef TCPX_NET_GPU_PINNED_POOL_H
#define TCPX_NET_GPU_PINNED_POOL_H

#include "gpu/gpu.h"

#include <pthread.h>
#include <stdbool.h>

enum pinned_purpose {
    PINNED_STAGING, /* slots between sockets and copies, with an event each */
    /* Slots that kernels read, one for each comm: in one piece, since a kernel knows one base. */
    PINNED_BOUNCE,
};

/* Belongs to the comm that took it. */
struct pinned_slot {
    uint8_t *host;           /* page-aligned */
    gpu_address device;      /* the same bytes for the GPU */
    struct gpu_event *event; /* staging: for the copy from it or into it */
    struct pinned_slot *next;
};

struct pinned_chunk;

struct pinned_pool {
    pthread_mutex_t lock; /* guards everything but slots in use; taken last */
    enum pinned_purpose purpose;
    struct gpu *gpu;
    int device;
    unsigned members;
    unsigned most_members; /* each is guaranteed one slot */
    uint64_t slot_bytes;
    unsigned most;   /* slots, pinned or not yet */
    unsigned pinned; /* slots there are */
    unsigned extra;  /* taken by members that had one already */
    unsigned wanted; /* by all members together */
    struct pinned_slot *unused;
    struct pinned_chunk *chunks;
};

/* What one comm has of a pool. The comm's lock guards it. */
struct pinned_share {
    struct pinned_pool *pool; /* NULL: nothing */
    unsigned used;
    unsigned most;
};

/*
 * At most `most` slots, one of them guaranteed. Bounce slots have `slot_bytes` bytes, in whole
 * pages; the settings decide the size of staging slots. Fails if the pool has no slot left to
 * guarantee.
 */
MUST_CHECK int pinned_join(enum pinned_purpose purpose, int device, uint64_t slot_bytes,
                           unsigned most, struct pinned_share *share);

/* All slots have been given back. */
void pinned_leave(struct pinned_share *share);

/* *slot is NULL when there is none now. */
MUST_CHECK int pinned_take(struct pinned_share *share, struct pinned_slot **slot);
void pinned_give(struct pinned_share *share, struct pinned_slot *slot);

/* A copy may use the slot for an unknown time: it is replaced, and freed with the pool. */
void pinned_retire(struct pinned_share *share, struct pinned_slot *slot);

/* Where a bounce pool begins, for the GPU. */
gpu_address pinned_base(const struct pinned_share *share);

#endif
