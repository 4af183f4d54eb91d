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
    enum pinned_purpose purpose;
    struct gpu *gpu;
    int device;
    uint64_t slot_bytes;
    unsigned most;            /* slots, pinned or not yet */
    unsigned most_members;    /* each is guaranteed one slot */
    struct gpu_memory beside; /* bounce: the first member's; all zero: none */
    gpu_address base;         /* bounce: constant once there is a chunk */
    unsigned users;           /* members and calls; the lock of the table guards it */

    pthread_mutex_t lock; /* guards the members below, but not slots in use; taken last */
    pthread_cond_t grown; /* signalled when slots have been pinned, or could not be */
    unsigned members;     /* also those that are joining */
    unsigned wanted;      /* slots, by all members together */
    unsigned pinned;      /* slots there are */
    unsigned growing;     /* slots that are being pinned, */
    unsigned growers;     /* by so many members that are joining */
    unsigned extra;       /* taken by members that had one already */
    unsigned unused_count;
    unsigned reserved; /* of these: one for each member that has none */
    struct pinned_slot *unused;
    struct pinned_chunk *chunks;
};

/* What one comm has of a pool. The comm's lock guards it. */
struct pinned_share {
    struct pinned_pool *pool; /* NULL: nothing */
    unsigned used;
    unsigned most;
    bool retired; /* a slot of it was: it gets no more */
};

/*
 * At most `most` slots, one of them guaranteed. Pins what is missing, which may take as long as
 * kernels run: called without any lock; takes of other members go on meanwhile. Bounce slots have
 * `slot_bytes` bytes, in whole pages; the settings decide the size of staging slots. Fails if the
 * pool has no slot left to guarantee.
 *
 * `beside`: device memory that kernels shall reach from the same base as bounce memory, where the
 * address space allows it and this is the first member; NULL: none.
 */
MUST_CHECK int pinned_join(enum pinned_purpose purpose, int device, uint64_t slot_bytes,
                           unsigned most, const struct gpu_memory *beside,
                           struct pinned_share *share);

/* All slots have been given back, or retired. The last member frees the pool, without a lock. */
void pinned_leave(struct pinned_share *share);

/* Pins nothing: NULL when there is none now. The guaranteed one is always there. */
struct pinned_slot *pinned_take(struct pinned_share *share);
void pinned_give(struct pinned_share *share, struct pinned_slot *slot);

/*
 * A copy may use the slot for an unknown time: it is freed with the pool, and the next member that
 * joins pins another. The comm has failed, and takes no more slots.
 */
void pinned_retire(struct pinned_share *share, struct pinned_slot *slot);

/*
 * What descriptors of bounce memory count from, for the GPU: the same for all members. It may be
 * an address of the memory `beside`, also when that is freed.
 */
gpu_address pinned_base(const struct pinned_share *share);

/* Whether descriptors, whose offsets have 32 bits, can name all of this memory, too. */
bool pinned_base_reaches(const struct pinned_share *share, const struct gpu_memory *memory);

#endif
