/*
 * Some fragments of one slice that arrived in device memory, and how they get to their destination:
 * GPU memory, bounce memory or host memory. Bytes that arrived in ordinary memory are in a pinned
 * slot, behind the descriptors.
 */
#ifndef TCPX_NET_GPU_DEVMEM_PART_H
#define TCPX_NET_GPU_DEVMEM_PART_H

#include "net/gpu/comm_gpu.h"
#include "unpack/unpack.h"

enum { DEVMEM_PART_FRAGMENTS = 512 };

/* Some fragments of one slice, for one range of memory, and what is done with them. */
struct devmem_part {
    const struct gpu_memory *pool; /* that the fragments are in */
    struct net_request *request;
    uint64_t offset; /* in the message */
    uint64_t bytes;
    struct pinned_slot *slot; /* descriptors first, then bytes that came without a page */
    struct scatter_list scatter;
    struct token_list tokens;
    struct scatter_fragment fragments[DEVMEM_PART_FRAGMENTS];
    struct devmem_token_range ranges[DEVMEM_PART_FRAGMENTS];
    bool by_ticket; /* or by the slot's event */
    bool lost;      /* the GPU does not answer any more, and may still use the slot */
    bool discarded; /* its receive was cancelled: nothing is done with it */
    bool gathered;  /* in the slot, from where the CPU takes it */
    bool kept;      /* it stays in its pages, and its tokens with it */
    uint64_t ticket;
    uint64_t not_before; /* as that of a copy */
};

/* A part to fill with what arrives next; false: there is no slot for it now. */
bool devmem_part_begin(struct net_comm *comm, const struct rx_payload *payload,
                       const struct gpu_memory *pool, struct devmem_part *part);

/* How many fragments a part takes; room for bytes in ordinary memory; how much of it is used. */
uint32_t devmem_part_fragments(const struct net_comm *comm);
uint64_t devmem_part_host_room(const struct net_comm *comm);
uint64_t devmem_part_host_used(const struct devmem_part *part);
uint8_t *devmem_part_host_place(const struct net_comm *comm, const struct devmem_part *part);
bool devmem_part_is_full(const struct net_comm *comm, const struct devmem_part *part);

/* One of these follows: its bytes are where they stay, or are copied there. */
void devmem_part_keep(struct net_comm *comm, struct devmem_part *part);
void devmem_part_unpack(struct net_comm *comm, struct unpack_engine *engine,
                        struct devmem_part *part);

/* Queries the GPU; waits for it; and completes the part, except for its tokens. */
bool devmem_part_has_ended(struct net_comm *comm, struct unpack_engine *engine,
                           struct devmem_part *part);
void devmem_part_wait(struct unpack_engine *engine, struct devmem_part *part, uint64_t deadline);
void devmem_part_finish(struct net_comm *comm, struct devmem_part *part);

/* A slot that the GPU may still use is not given to another comm. */
void devmem_part_give_slot(struct net_comm *comm, struct devmem_part *part);

#endif
