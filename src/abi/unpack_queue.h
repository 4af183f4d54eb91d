/*
 * NCCL's unpack queue, version 7: the memory in which a network plugin describes to NCCL's kernels,
 * or any other consumer, where the bytes of a receive are in the bounce buffer. Same bytes from
 * NCCL 2.19 on. A transport writes it, the unpack engines and the importer of foreign plugins read
 * it; the file compiles as C, C++ and CUDA.
 */
#ifndef TCPX_ABI_UNPACK_QUEUE_H
#define TCPX_ABI_UNPACK_QUEUE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define UNPACK_ASSERT(condition) static_assert(condition, #condition)
#else
#define UNPACK_ASSERT(condition) _Static_assert(condition, #condition)
#endif

#define UNPACK_VERSION         7
#define UNPACK_QUEUE_DEPTH     16                  /* receive k of a comm owns slot k % 16 */
#define UNPACK_MAX_DESCRIPTORS 2048                /* per receive */
#define UNPACK_MAX_MESSAGE     (4u * 1024u * 1024) /* bytes per receive */

/* Kernels increment the head before they use it, so that the first receive sees slot 0. */
#define UNPACK_HEAD_START UINT64_MAX

/* Values of net_device_handle.type. */
#define NET_DEVICE_HOST   0
#define NET_DEVICE_UNPACK 1

/* NCCL's loadMeta: `length` bytes from bounce + source_offset to the receive's buffer. */
struct unpack_descriptor {
    uint32_t source_offset;
    uint32_t length;
    uint64_t destination_offset;
} __attribute__((aligned(16)));

UNPACK_ASSERT(sizeof(struct unpack_descriptor) == 16);
UNPACK_ASSERT(offsetof(struct unpack_descriptor, source_offset) == 0);
UNPACK_ASSERT(offsetof(struct unpack_descriptor, length) == 4);
UNPACK_ASSERT(offsetof(struct unpack_descriptor, destination_offset) == 8);

/* NCCL's netUnpackMeta, one per receiving comm, in memory that CPU and GPU both reach. */
struct unpack_queue {
    struct unpack_descriptor descriptors[UNPACK_QUEUE_DEPTH][UNPACK_MAX_DESCRIPTORS];
    uint64_t counts[UNPACK_QUEUE_DEPTH]; /* written after the descriptors; 0: nothing to unpack */
};

UNPACK_ASSERT(sizeof(struct unpack_queue) == 524416);
UNPACK_ASSERT(offsetof(struct unpack_queue, counts) == 524288);

/* NCCL's unpackNetDeviceHandle, in memory that the GPU reads and writes. */
struct unpack_device_handle {
    struct unpack_queue *queue;
    void *bounce; /* 16-byte aligned; the same for all comms of one GPU in a process */
    uint64_t head;
};

UNPACK_ASSERT(sizeof(struct unpack_device_handle) == 24);
UNPACK_ASSERT(offsetof(struct unpack_device_handle, bounce) == 8);
UNPACK_ASSERT(offsetof(struct unpack_device_handle, head) == 16);

/* ncclNetDeviceHandle, v7 to v12: what accept fills in. */
struct net_device_handle {
    int32_t type;    /* an enum in NCCL's headers */
    int32_t version; /* UNPACK_VERSION */
    void *handle;    /* GPU address of a struct unpack_device_handle */
    size_t size;
    int32_t needs_proxy_progress; /* must be 1: with 0 NCCL waits for ever */
};

UNPACK_ASSERT(sizeof(struct net_device_handle) == 32);
UNPACK_ASSERT(offsetof(struct net_device_handle, handle) == 8);
UNPACK_ASSERT(offsetof(struct net_device_handle, size) == 16);
UNPACK_ASSERT(offsetof(struct net_device_handle, needs_proxy_progress) == 24);

#endif
