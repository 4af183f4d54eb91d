/*
 * Turns the scatter list of a message into the smallest number of unpack descriptors. A list is
 * accepted only if it covers every byte of the message exactly once, in order, and stays inside
 * every buffer, so unpacking needs no checks. The transport calls it when a part of a message has
 * arrived.
 */
#ifndef TCPX_NET_DEVMEM_DESCRIPTORS_H
#define TCPX_NET_DEVMEM_DESCRIPTORS_H

#include <stdint.h>

#include "abi/unpack_queue.h"
#include "net/devmem/scatter_list.h"

/* What the list is checked against, and where its memory begins for those who read descriptors. */
struct scatter_sizes {
    uint64_t message;
    uint64_t pool;
    uint64_t host;           /* of the buffer that takes what is not in the pool */
    uint64_t source_at;      /* the pool, from where descriptors count */
    uint64_t destination_at; /* the message, likewise */
    uint32_t longest;        /* fragments are not merged beyond it; 0: any length */
};

/*
 * Writes the descriptors of `scatter`, in the order of their destination, to `descriptors` and
 * their number to *count. The array is written once, from its start to its end, and never read: it
 * may be mapped to a GPU. Fragments are merged where source and destination both go on, up to
 * `longest`, never beyond 4 GiB; a fragment that alone has more than 4 GiB is an error. A fragment
 * in host memory gets no descriptor: the caller finds it with scatter_list_next_host() and copies
 * it.
 *
 * On an error neither the descriptors nor *count are touched.
 */
MUST_CHECK int descriptors_build(const struct scatter_list *scatter,
                                 const struct scatter_sizes *sizes,
                                 struct unpack_descriptor *descriptors, uint32_t capacity,
                                 uint32_t *count);

#endif
