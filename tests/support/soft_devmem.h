/*
 * Software devmem: a socket that answers as a mainline devmem-TCP socket does, over any stream
 * socket, so that the receive path behind recvmsg can run on any machine. Payload lands in GPU
 * memory, in pages taken in random order, and is told by the kernel's own control messages; the
 * pages come back by token. The transport uses it instead of recvmsg and setsockopt where
 * soft_devmem_pool.c says so, tests do to choose how unpleasant the NIC is.
 *
 * One thread at a time reads a socket; tokens may be returned meanwhile. A pool may serve sockets
 * of several threads.
 */
#ifndef TCPX_TESTS_SUPPORT_SOFT_DEVMEM_H
#define TCPX_TESTS_SUPPORT_SOFT_DEVMEM_H

#include "gpu/gpu.h"
#include "net/devmem/devmem_uapi.h"

#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

enum {
    SOFT_DEVMEM_PAGE = 4096,
    SOFT_DEVMEM_CALL_BYTES = 1 << 20,  /* one recvmsg returns no more than this, */
    SOFT_DEVMEM_CALL_FRAGMENTS = 1024, /* in no more pieces */
};

struct soft_devmem_pool;
struct soft_devmem;

/*
 * How the NIC behaves. All that is random comes from the seed: sockets that are opened in the same
 * order and read the same chunks get the same pieces, and in the same pages as long as one thread
 * uses the pool.
 */
struct soft_devmem_options {
    uint64_t seed;
    uint64_t pool_bytes;         /* whole pages */
    uint32_t smallest_fragment;  /* unless fewer bytes are there; 0: 1 */
    uint32_t largest_fragment;   /* 0: as large as its part of a page */
    uint32_t full_percent;       /* of the fragments are as large as they may be */
    uint32_t fragments_per_page; /* equal parts that a page is shared in; 0: 1 */
    uint32_t unaligned_percent;  /* of the fragments begin anywhere in their part of a page */
    uint32_t linear_percent;     /* of the pieces go to the iovec, with a linear message */
    uint32_t plain_percent;      /* go there in a call of their own, without any message */
    uint64_t break_after;        /* bytes of a socket; from then on ENODEV. 0: never */
};

/* --- the pool: GPU memory in pages, as a dma-buf bound to a NIC ---------------------------- */

MUST_CHECK int soft_devmem_pool_create(struct gpu *gpu, const struct soft_devmem_options *options,
                                       struct soft_devmem_pool **pool);

/* All its sockets have been closed, and nothing reads its memory any more. NULL is allowed. */
void soft_devmem_pool_destroy(struct soft_devmem_pool *pool);

/* The bounce buffer that the fragments' offsets count from. */
const struct gpu_memory *soft_devmem_pool_memory(const struct soft_devmem_pool *pool);

/* The dma-buf id that its fragments carry: from 1, another for each pool of the process. */
uint32_t soft_devmem_pool_id(const struct soft_devmem_pool *pool);

/* A page is free when every fragment in it has come back. */
uint64_t soft_devmem_pool_pages(const struct soft_devmem_pool *pool);
uint64_t soft_devmem_pool_free_pages(struct soft_devmem_pool *pool);

/* --- a socket ------------------------------------------------------------------------------ */

/* `fd`: a connected stream socket, which stays the caller's; no one else reads from it. */
MUST_CHECK int soft_devmem_open(struct soft_devmem_pool *pool, int fd, struct soft_devmem **socket);

/* Returns all tokens, as the kernel does when a socket is gone. NULL is allowed. */
void soft_devmem_close(struct soft_devmem *socket);

/*
 * recvmsg() with DEVMEM_MSG_FLAG and MSG_DONTWAIT; other flags are EINVAL. It returns at most as
 * many bytes as the iovec has, no more than fit into the control buffer, and leaves the rest in
 * `fd`. On an error nothing is taken and the message is as it was:
 *
 *   EAGAIN   nothing to read, or no page is free; then it comes also where the call might wait,
 *            and goes on until a token of any of the pool's sockets comes back
 *   525      the control buffer cannot hold one message (DEVMEM_ETOOSMALL)
 *   EFAULT   DEVMEM_MSG_FLAG is missing, or bytes belong into an iovec that is NULL
 *   ENODEV   the stream is broken, as break_after wanted it
 *   EIO      the GPU failed, and the socket for good; tcpx_last_error() tells how
 *
 * Other than the kernel's, `fd` is readable for poll() while no page is free. A call waits until
 * its copies to the GPU are done: what a fragment tells is there.
 */
ssize_t soft_devmem_recvmsg(struct soft_devmem *socket, struct msghdr *message, int flags);

/*
 * setsockopt(DEVMEM_SO_DONTNEED): returns how many tokens were outstanding and are free now. Others
 * are skipped. It looks at DEVMEM_DONTNEED_MAX_FRAGMENTS tokens at most, of
 * DEVMEM_DONTNEED_MAX_RANGES ranges; more of these are EINVAL.
 */
int soft_devmem_dontneed(struct soft_devmem *socket, const struct devmem_token_range *ranges,
                         unsigned count);

struct soft_devmem_statistics {
    uint64_t tokens_out;     /* handed out */
    uint64_t tokens_back;    /* returned */
    uint64_t tokens_held;    /* the difference: outstanding */
    uint64_t tokens_unknown; /* asked to be returned, but not outstanding */
    uint64_t starved;        /* calls that got nothing because no page was free */
    uint64_t device_bytes;
    uint64_t linear_bytes;
    uint64_t plain_bytes;
};

void soft_devmem_get_statistics(const struct soft_devmem *socket,
                                struct soft_devmem_statistics *statistics);

#endif
