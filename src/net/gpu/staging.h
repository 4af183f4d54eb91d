/*
 * Pinned host memory between sockets and a GPU: slots of one size, from one bounded pool per GPU of
 * this process, pinned once and shared by all comms. A comm has one slot for sure, so that no other
 * comm can stop it, and takes more while there are any.
 */
#ifndef TCPX_NET_GPU_STAGING_H
#define TCPX_NET_GPU_STAGING_H

#include "gpu/gpu.h"

struct staging;

/* Belongs to whoever took it. */
struct staging_slot {
    uint8_t *host;
    gpu_address device;      /* the same bytes for the GPU */
    struct gpu_event *event; /* for the copy from it or into it */
    struct staging_slot *next;
};

/* What one comm has of a pool. Its owner's lock guards it. */
struct staging_share {
    struct staging *staging; /* NULL: nothing */
    unsigned used;
    unsigned most;
};

/* At most `most` slots, one of them for sure: fails in words when the pool has none left for it. */
MUST_CHECK int staging_join(int device, unsigned most, struct staging_share *share);

/* All slots have been given back. */
void staging_leave(struct staging_share *share);

/* *slot is NULL when there is none now. */
MUST_CHECK int staging_take(struct staging_share *share, struct staging_slot **slot);
void staging_give(struct staging_share *share, struct staging_slot *slot);

/* Of a slot that a copy may still use, nobody knows how long: it is replaced, and freed at the end.
 */
void staging_retire(struct staging_share *share, struct staging_slot *slot);

uint64_t staging_slot_bytes(const struct staging_share *share);
struct gpu *staging_gpu(const struct staging_share *share);

#endif
