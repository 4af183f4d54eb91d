/*
 * GPU memory that payload is received into: bound to receive queues of a NIC (devmem TCP), or
 * simulated by a test that has registered its own operations. All comms of this process that
 * receive through one NIC for one GPU share a pool. Also the sockets whose payload arrives there,
 * which behave alike in both cases.
 */
#ifndef TCPX_NET_DEVMEM_DEVMEM_POOL_H
#define TCPX_NET_DEVMEM_DEVMEM_POOL_H

#include "gpu/gpu.h"
#include "net/device/device.h"
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

/*
 * What a pool is made of. devmem_queues.c has the operations over the kernel's devmem TCP. Tests
 * register others, which simulate a NIC (tests/support/soft_devmem_pool.c). Operations marked
 * "optional" may be NULL.
 */
struct devmem_pool_ops {
    MUST_CHECK int (*open)(struct devmem_memory *memory);
    void (*close)(struct devmem_memory *memory);

    /* Of a NIC: optional where memory has no interface. */
    unsigned (*next_queue)(struct devmem_memory *memory);
    void (*unbind)(struct devmem_memory *memory);
    /* *pages: those that are in sockets, or received and not returned. */
    int (*count_out)(struct devmem_memory *memory, uint64_t *pages);

    int (*open_socket)(struct devmem_memory *memory, struct devmem_socket *socket); /* optional */
    void (*close_socket)(struct devmem_socket *socket);                             /* optional */
    /* recvmsg() with DEVMEM_MSG_FLAG. */
    ssize_t (*receive)(struct devmem_socket *socket, struct msghdr *message, int flags);
    /* setsockopt(DEVMEM_SO_DONTNEED): how many fragments came back, or -1. */
    int (*return_tokens)(struct devmem_socket *socket, const struct devmem_token_range *ranges,
                         unsigned count);
    /* How often there was no page for bytes that had arrived. Optional: the kernel does not tell.
     */
    uint64_t (*starved)(const struct devmem_socket *socket);
};

/* `users` and `connections` are guarded by the lock of all pools; the rest is constant. */
struct devmem_pool {
    struct devmem_pool *next;
    const struct devmem_pool_ops *ops;
    int gpu;
    unsigned users;
    unsigned connections; /* that arrive there */
    struct devmem_memory memory;
};

/*
 * The pool of a NIC and a GPU. The first caller allocates and exports the memory, finds receive
 * queues, has headers split off, binds the memory to the queues and keeps other traffic away from
 * them; the error text says which of these was not possible.
 */
MUST_CHECK int devmem_pool_take(const struct net_device *device, int gpu,
                                struct devmem_pool **pool);

/* The simulated pool of a GPU; an error in a library without one. */
MUST_CHECK int devmem_pool_take_soft(int gpu, struct devmem_pool **pool);

/* What devmem_pool_take_soft() opens. Called before anything else is, by tests only. */
void devmem_pool_set_soft(const struct devmem_pool_ops *ops);

/* One more user of a pool that has one. */
struct devmem_pool *devmem_pool_share(struct devmem_pool *pool);

/* The last user undoes what the first one did. NULL is allowed. */
void devmem_pool_give(struct devmem_pool *pool);

int devmem_pool_gpu(const struct devmem_pool *pool);

/* How many bytes of it a packet occupies, at least. */
uint64_t devmem_page_bytes(void);

/*
 * One more connection arrives in the pool of a NIC. Returns its queue, each in turn; *pages: how
 * many pages it may hold, so that all connections together leave some. devmem_pool_leave() takes
 * the number of connections that have ended.
 */
unsigned devmem_pool_join(struct devmem_pool *pool, uint64_t *pages);
void devmem_pool_leave(struct devmem_pool *pool, unsigned connections);

/* Nothing more arrives there; what has arrived stays. For tests. */
void devmem_pool_unbind(struct devmem_pool *pool);

/* --- a socket whose payload arrives there ---------------------------------------------------- */

/* `fd` stays the caller's; nothing else reads from it. */
MUST_CHECK int devmem_socket_open(struct devmem_pool *pool, int fd, struct devmem_socket *socket);

/* All zero is allowed. The kernel takes tokens back when `fd` itself is closed. */
void devmem_socket_close(struct devmem_socket *socket);

/* As the operation. */
uint64_t devmem_socket_starved(const struct devmem_socket *socket);

#endif
