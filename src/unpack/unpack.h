/*
 * Unpack: from the bounce buffer, where a receive has left its bytes in fragments, to the user's
 * buffer, as the descriptors say (net/devmem/descriptors.h makes them). Three ways do the same, and
 * the best one is taken for the list at hand unless UCCL_TCPX_UNPACK_IMPL names one:
 *
 *   d2d     one copy for each run of fragments that lie side by side at both ends
 *   host    fragments are gathered in host memory, then copied to the GPU in one piece
 *   kernel  one launch for all fragments of all receives, at any alignment
 *
 * Work is asynchronous: submit queues it, a ticket shows when it is done. An engine belongs to one
 * thread at a time. Descriptors and buffers stay as they are until then.
 */
#ifndef TCPX_UNPACK_UNPACK_H
#define TCPX_UNPACK_UNPACK_H

#include "abi/unpack_queue.h"
#include "gpu/gpu.h"

/* In the order of the words of UCCL_TCPX_UNPACK_IMPL. */
enum unpack_impl { UNPACK_AUTO, UNPACK_D2D, UNPACK_HOST, UNPACK_KERNEL };

/* How many submits can be pending. */
enum { UNPACK_PENDING = 64 };

struct unpack_engine;

/* One receive. Nothing here is checked: the maker of the descriptors did that. */
struct unpack_list {
    gpu_address bounce;
    const void *bounce_host; /* the same bytes for the CPU; NULL where they are in GPU memory */
    gpu_address destination;
    const struct unpack_descriptor *descriptors;
    gpu_address descriptors_device; /* the same array for the GPU */
    uint32_t count;
    uint32_t longest; /* fragment; 0: not known, and the engine looks at all of them */
    uint64_t bytes;   /* of all fragments; looked at only where `longest` is known */
};

/* As UCCL_TCPX_UNPACK_IMPL is set, or as `impl`. */
MUST_CHECK int unpack_create(struct gpu *gpu, struct unpack_engine **engine);
MUST_CHECK int unpack_create_as(struct gpu *gpu, enum unpack_impl impl,
                                struct unpack_engine **engine);
/* Queued work is finished in the background; the host way is waited for. NULL is allowed. */
void unpack_destroy(struct unpack_engine *engine);

/*
 * Queues all fragments of all lists. With `written_by_nic`, what a NIC has written into GPU memory
 * is made visible first. TCPX_IN_PROGRESS: UNPACK_PENDING submits are not done yet; nothing was
 * queued, poll and try again. Only the host way may wait in here, when its staging memory is full.
 */
MUST_CHECK int unpack_submit(struct unpack_engine *engine, const struct unpack_list *lists,
                             uint32_t list_count, bool written_by_nic, uint64_t *ticket);

/*
 * Tickets complete in the order of their submits; a poll may report several at once. A failure is
 * the result of all later ones, too.
 */
MUST_CHECK int unpack_poll(struct unpack_engine *engine, uint64_t ticket, bool *done);
MUST_CHECK int unpack_wait(struct unpack_engine *engine, uint64_t ticket, uint64_t deadline);

/* The stream that the work is on, to make it wait for a caller's or a caller's wait for it. */
struct gpu_stream *unpack_stream(struct unpack_engine *engine);

/* "auto", "d2d", "host", "kernel". */
const char *unpack_impl_name(enum unpack_impl impl);

#endif
