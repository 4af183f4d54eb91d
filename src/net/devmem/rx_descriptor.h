/*
 * Turns the scatter list of a whole message into unpack descriptors: the fewest that tell the same,
 * or small ones for a consumer that spreads its work by descriptor. A list is accepted only if it
 * covers every byte of the message exactly once and stays inside every buffer, so whoever unpacks
 * the result needs no checks. The transport calls it when a message is complete.
 */
#ifndef TCPX_NET_DEVMEM_RX_DESCRIPTOR_H
#define TCPX_NET_DEVMEM_RX_DESCRIPTOR_H

#include <stdint.h>

#include "abi/unpack_queue.h"
#include "net/devmem/rx_scatter.h"

/* Of host_base: the host buffer is no part of the bounce pool. */
#define RX_HOST_APART UINT64_MAX

struct rx_descriptor_request {
    uint64_t message_size;
    uint64_t destination_size; /* at least message_size */
    uint64_t pool_size;
    uint64_t host_size;
    uint64_t host_base; /* where the host buffer begins in the pool, or RX_HOST_APART */
    uint32_t largest;   /* bytes in one descriptor at most; 0: no limit, nothing is cut */
};

/*
 * Writes the descriptors of `scatter`, in the order of their destination, to `descriptors` and
 * their number to *count. The array is written once, from its start to its end, and never read: it
 * may be mapped to a GPU. Fragments are merged where source and destination both go on; without a
 * limit the pieces of a merge stay below 4 GiB each, but a fragment that alone is larger is
 * RX_PROBLEM_TOO_WIDE.
 *
 * With RX_HOST_APART a fragment in host memory gets no descriptor. It has been checked like the
 * others; the caller finds it with rx_scatter_next_host() and copies it. Otherwise it becomes a
 * descriptor as any other, at host_base.
 *
 * *problem is always set. On a problem neither the descriptors nor *count are touched. The order of
 * the fragments in `scatter` may change in any case; their set does not. Takes O(n log n) steps,
 * O(n) for a list in order, and no memory.
 */
MUST_CHECK int rx_descriptor_build(struct rx_scatter *scatter,
                                   const struct rx_descriptor_request *request,
                                   struct unpack_descriptor *descriptors, uint32_t capacity,
                                   uint32_t *count, enum rx_problem *problem);

#endif
