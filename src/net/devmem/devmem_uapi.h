/*
 * The kernel's interface of device-memory TCP, for both kernels: mainline (since 6.12) and the
 * older GPUDirect-TCPX one, called legacy here. All names are ours, so that neither an old nor a
 * new kernel header is needed and none can collide.
 */
#ifndef TCPX_NET_DEVMEM_DEVMEM_UAPI_H
#define TCPX_NET_DEVMEM_DEVMEM_UAPI_H

#include <stdint.h>
#include <sys/socket.h>

/* Flag of recvmsg, the same number on both kernels. */
#define DEVMEM_MSG_FLAG 0x2000000

/* Mainline: control messages and socket option, all at SOL_SOCKET. */
#define DEVMEM_SCM_LINEAR  78
#define DEVMEM_SCM_DMABUF  79
#define DEVMEM_SO_DONTNEED 80 /* returns the number of fragments freed, not 0 */

/* A larger return of tokens is refused (ranges) or cut short (fragments). */
#define DEVMEM_DONTNEED_MAX_RANGES    128
#define DEVMEM_DONTNEED_MAX_FRAGMENTS 1024

/* errno of a recvmsg whose control buffer cannot hold one message; libc has no name for it. */
#define DEVMEM_ETOOSMALL 525

/* Legacy. */
#define DEVMEM_LEGACY_SCM_LINEAR 98
#define DEVMEM_LEGACY_SCM_DEVICE 99

#ifdef SCM_DEVMEM_DMABUF
_Static_assert(SCM_DEVMEM_LINEAR == DEVMEM_SCM_LINEAR, "this architecture has its own numbers");
_Static_assert(SCM_DEVMEM_DMABUF == DEVMEM_SCM_DMABUF, "this architecture has its own numbers");
#endif

/* Further control messages of a TCP socket, which its owner has to ask for. */
#define DEVMEM_SCM_TIMESTAMP        29
#define DEVMEM_SCM_TIMESTAMPNS      35
#define DEVMEM_SCM_TIMESTAMPING     37
#define DEVMEM_SCM_TIMESTAMP_NEW    63
#define DEVMEM_SCM_TIMESTAMPNS_NEW  64
#define DEVMEM_SCM_TIMESTAMPING_NEW 65
#define DEVMEM_SOL_TCP              6
#define DEVMEM_TCP_CM_INQ           36

/* Payload of both mainline messages; a linear one has only `size`. */
struct devmem_fragment {
    uint64_t offset; /* in the dma-buf */
    uint32_t size;
    uint32_t token;
    uint32_t dmabuf_id;
    uint32_t flags; /* reserved, 0 */
};

_Static_assert(sizeof(struct devmem_fragment) == 24, "kernel layout");

/* Payload of both legacy messages; a linear one has only `size`. */
struct devmem_legacy_fragment {
    uint32_t offset; /* in the pool */
    uint32_t size;
    uint32_t token;
};

_Static_assert(sizeof(struct devmem_legacy_fragment) == 12, "kernel layout");

/* Argument of the DONTNEED option: an array of ranges of tokens, [first, first + count). */
struct devmem_token_range {
    uint32_t first;
    uint32_t count;
};

_Static_assert(sizeof(struct devmem_token_range) == 8, "kernel layout");

#endif
