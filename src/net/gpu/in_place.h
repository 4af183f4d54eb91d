/*
 * Payload that stays in the pages it arrived in until the GPU has unpacked it: in mode unpack,
 * descriptors name the pages of the pool themselves, and tokens go back to the kernel when the
 * receive is consumed. Each receive may also have gaps, whose bytes are in its pinned bounce
 * memory. The comm's lock guards all of this.
 */
#ifndef TCPX_NET_GPU_IN_PLACE_H
#define TCPX_NET_GPU_IN_PLACE_H

#include "net/gpu/comm_gpu.h"
#include "net/gpu/devmem_part.h"

/*
 * Descriptors go to `queue`, of at most `longest` bytes each (0: any); the pool begins `pool_at`
 * bytes behind what they count from.
 */
MUST_CHECK int in_place_create(struct devmem_pool *pool, struct unpack_queue *queue,
                               uint64_t pool_at, uint32_t longest, struct in_place **in_place);

/* Returns the tokens of all receives, to sockets that are still open. NULL is allowed. */
void in_place_destroy(struct in_place *in_place);

/*
 * Describes the part of a receive where it is, and takes its tokens over. False: it has to be
 * copied, since the comm keeps as many pages as it may, or the receive has too many pieces.
 */
MUST_CHECK bool in_place_take(struct net_comm *comm, struct devmem_socket *socket,
                              const struct devmem_part *part);

/* How many descriptors and bytes of a receive that is. `in_place`: NULL is allowed from here on. */
uint32_t in_place_descriptors(const struct in_place *in_place, const struct net_request *request);
uint64_t in_place_bytes(const struct in_place *in_place, const struct net_request *request);

/* The next range of the message that is not in place. *gap: the one before; all zero at first. */
struct byte_range {
    uint64_t start;
    uint64_t end;
};
bool in_place_next_gap(const struct in_place *in_place, const struct net_request *request,
                       struct byte_range *gap);

/* The receive has been consumed. False: its sockets do not know all of its tokens. */
MUST_CHECK bool in_place_release(struct in_place *in_place, const struct net_request *request);

#endif
