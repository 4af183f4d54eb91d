/*
 * Pinned host memory that sockets and a GPU share: slots of one size, from one bounded pool for
 * each purpose and GPU of this process, shared by all comms. Each comm that joined is guaranteed
 * one slot, so that no other comm can stop it, and takes more while there are any.
 */
#ifndef TCPX_NET_GPU_PINNED_POOL_H
#define TCPX_NET_GPU_PINNED_POOL_H

#include "gpu/gpu.h"

#include <stdbool.h>

enum pinned_purpose {
    PINNED_STAGING, /* slots between sockets and copies, with an event each */
    /* Slots that kernels read, one for each comm: in one piece, since a kernel knows one base. */
    PINNED_BOUNCE,
};

struct pinned_pool;

/* Belongs to the comm that took it. */
struct pinned_slot {
    uint8_t *host;           /* page-aligned */
    gpu_address device;      /* the same bytes for the GPU */
    struct gpu_event *event; /* staging: for the copy from it or into it */
    struct pinned_slot *next;
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

uint64_t pinned_slot_bytes(const struct pinned_share *share);
struct gpu *pinned_gpu(const struct pinned_share *share);

/* Where a bounce pool begins, for the GPU. */
gpu_address pinned_base(const struct pinned_share *share);

#endif
