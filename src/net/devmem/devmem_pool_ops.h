/*
 * What a pool of devmem_pool.h is made of: memory that payload arrives in, and sockets whose
 * payload arrives there. devmem_queues.c has the operations over the kernel's devmem TCP. Tests
 * register others, which simulate a NIC (tests/support/soft_devmem_pool.c).
 */
#ifndef TCPX_NET_DEVMEM_DEVMEM_POOL_OPS_H
#define TCPX_NET_DEVMEM_DEVMEM_POOL_OPS_H

#include "gpu/gpu.h"
#include "net/devmem/devmem_uapi.h"

#include <net/if.h>
#include <sys/types.h>

/* The memory of one pool. The pool sets the first three, open() the others. */
struct devmem_memory {
    struct gpu *gpu;
    unsigned ifindex; /* 0: no NIC of this machine */
    char interface[IFNAMSIZ];
    struct gpu_memory memory;
    uint32_t dmabuf_id; /* as fragments name it */
    void *own;          /* of the operations */
};

struct devmem_socket {
    const struct devmem_pool_ops *ops;
    int fd;
    void *own; /* of the operations */
};

/* Operations marked "optional" may be NULL. */
struct devmem_pool_ops {
    MUST_CHECK int (*open)(struct devmem_memory *memory);
    void (*close)(struct devmem_memory *memory);

    /* Of a NIC: optional where memory has no interface. */
    unsigned (*next_queue)(struct devmem_memory *memory);
    void (*unbind)(struct devmem_memory *memory);
    int (*count_out)(struct devmem_memory *memory, uint64_t *pages);

    int (*open_socket)(struct devmem_memory *memory, struct devmem_socket *socket); /* optional */
    void (*close_socket)(struct devmem_socket *socket);                             /* optional */
    ssize_t (*receive)(struct devmem_socket *socket, struct msghdr *message, int flags);
    int (*return_tokens)(struct devmem_socket *socket, const struct devmem_token_range *ranges,
                         unsigned count);
    uint64_t (*starved)(const struct devmem_socket *socket); /* optional */
};

#endif
