/*
 * Device-memory TCP, as the rooms above use it. net/link: the pool that a link's payload arrives
 * in, and its connections steered there. net/gpu: sockets that receive into a pool, the control
 * messages of each read, and GPU memory that a NIC sends from.
 */
#ifndef TCPX_NET_DEVMEM_DEVMEM_H
#define TCPX_NET_DEVMEM_DEVMEM_H

#include "gpu/gpu.h"
#include "net/device/device.h"
#include "net/devmem/control_messages.h"
#include "net/devmem/descriptors.h"
#include "net/devmem/devmem_uapi.h"
#include "net/nic/nic.h"
#include "net/wire/wire.h"

#include <net/if.h>
#include <stdatomic.h>
#include <sys/types.h>

/* --- pools --------------------------------------------------------------------------------- */

/*
 * GPU memory that payload is received into: bound to receive queues of a NIC (devmem TCP), or
 * simulated by a test that has registered its own operations. All comms of this process that
 * receive through one NIC for one GPU share a pool. Also the sockets whose payload arrives there,
 * which behave alike in both cases.
 */

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
    void *own;            /* of the operations */
    uint64_t tokens_back; /* that were returned */
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
    void (*unbind)(struct devmem_memory *memory); /* by any thread, also more than once */
    /* *pages: those that are in sockets, or received and not returned. */
    int (*count_out)(struct devmem_memory *memory, uint64_t *pages);

    int (*open_socket)(struct devmem_memory *memory, struct devmem_socket *socket); /* optional */
    void (*close_socket)(struct devmem_socket *socket);                             /* optional */
    /* recvmsg() with DEVMEM_MSG_FLAG. */
    ssize_t (*receive)(struct devmem_socket *socket, struct msghdr *message, int flags);
    /* setsockopt(DEVMEM_SO_DONTNEED): how many fragments came back, or -1. Also during receive().
     */
    int (*return_tokens)(struct devmem_socket *socket, const struct devmem_token_range *ranges,
                         unsigned count);
    /* How often there was no page for bytes that had arrived; optional, as the kernel has it not.
     */
    uint64_t (*starved)(const struct devmem_socket *socket);
};

struct devmem_pool {
    const struct devmem_pool_ops *ops;
    int gpu;
    struct devmem_memory memory; /* constant once the pool is open */
    atomic_uint keepers;
    atomic_ullong kept; /* pages, by all of them together */

    /* the lock of all pools guards these */
    struct devmem_pool *next;
    bool changing; /* it is being opened or closed */
    unsigned users;
    unsigned connections; /* that arrive there */
};

/*
 * The pool of a NIC and a GPU. The first caller allocates and exports the memory, finds receive
 * queues, has headers split off, binds the memory to the queues and keeps other traffic away from
 * them; the error text says which of these was not possible. Callers for one NIC wait for each
 * other, not for those of other NICs; called without any lock.
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

/* --- pages that are kept (page_quota.c) ---------------------------------------------------- */

/* A comm that leaves payload in the pool until somebody else has read it. One thread at a time. */
struct page_keeper {
    struct devmem_pool *pool;
    uint64_t pages;
};

/* The pool has another user meanwhile. page_keeper_leave() lets all of its pages go. */
void page_keeper_join(struct page_keeper *keeper, struct devmem_pool *pool);
void page_keeper_leave(struct page_keeper *keeper);

/*
 * Whether the comm may keep so many more pages. All comms together keep at most a quarter of the
 * pool, and each its share of that, so that one that lets nothing go takes no pages away from
 * others.
 */
MUST_CHECK bool page_keeper_take(struct page_keeper *keeper, uint64_t pages);
void page_keeper_give(struct page_keeper *keeper, uint64_t pages);

/* --- a socket whose payload arrives in a pool ---------------------------------------------- */

/* `fd` stays the caller's; nothing else reads from it. */
MUST_CHECK int devmem_socket_open(struct devmem_pool *pool, int fd, struct devmem_socket *socket);

/* All zero is allowed. The kernel takes tokens back when `fd` itself is closed. */
void devmem_socket_close(struct devmem_socket *socket);

/* By the operation; 0 without it. */
uint64_t devmem_socket_starved(const struct devmem_socket *socket);

/* Returns tokens; false: the socket does not know all of them. By one thread at a time. */
MUST_CHECK bool devmem_socket_return(struct devmem_socket *socket, const struct token_list *tokens);

/* --- the receiving end of a link ----------------------------------------------------------- */

/*
 * Devmem TCP at the receiving end of a link: the pool that its payload arrives in, and the rules of
 * the NIC that steer it there.
 */
struct devmem_link {
    struct devmem_pool *pool;
    struct nic_rule rules[WIRE_MOST_SOCKETS];
    unsigned count;
    unsigned joined; /* connections in the pool, also those without a rule */
    /* While connections are steered: */
    unsigned steered;       /* connections that have been tried */
    unsigned queue;         /* of the next one, if it has joined already */
    uint64_t patience_ends; /* when it stops waiting for others that change the NIC's rules */
};

/*
 * The pool for links that are accepted on a device, for a GPU's memory. NULL: they do without, and
 * the reason was logged. Fails only where UCCL_TCPX_DEVMEM=on asks for devmem TCP.
 */
MUST_CHECK int devmem_link_pool(const struct net_device *device, int gpu,
                                struct devmem_pool **pool);

MUST_CHECK int devmem_link_open(struct devmem_pool *pool, struct devmem_link **link);

/*
 * Steers connections 1 to `sockets` - 1, which carry payload only. One that cannot be steered
 * arrives in ordinary memory. Never waits: TCPX_IN_PROGRESS while another process changes the NIC's
 * rules, then the caller tries again.
 */
MUST_CHECK int devmem_link_steer(struct devmem_link *link, const int *forward, unsigned sockets);

/* Called after the link's sockets have been closed. NULL is allowed. */
void devmem_link_close(struct devmem_link *link);

/* --- memory that a NIC sends from ---------------------------------------------------------- */

/*
 * GPU memory that a NIC sends from: a dma-buf of it, bound to the NIC, for as long as the memory is
 * registered.
 */
struct devmem_source {
    struct devmem_source *next;
    struct devmem_source **here;
    unsigned ifindex;
    gpu_address start; /* of the dma-buf: whole pages */
    uint64_t bytes;
    struct nic_binding binding;
    uint32_t id; /* of the dma-buf, as sends name it, also when the binding has ended */
};

/* Binds the whole pages around the range. The error text says what was not possible. */
MUST_CHECK int devmem_source_take(const struct net_device *device, struct gpu *gpu,
                                  gpu_address address, uint64_t bytes,
                                  struct devmem_source **source);
/* NULL is allowed. */
void devmem_source_give(struct devmem_source *source);

/* --- zero-copy sends ----------------------------------------------------------------------- */

/*
 * Zero-copy sends of one socket: the kernel reads the bytes where they lie, until the peer has
 * acknowledged them. It numbers such sends, and reports their completions by number on the socket's
 * error queue.
 */
enum { ZEROCOPY_MOST = 256 };

struct zerocopy_send {
    void *owner;
    uint64_t bytes;
    bool completed;
};

/* All zero for a fresh socket. Numbers are the kernel's: from 0, and they wrap. */
struct zerocopy {
    struct zerocopy_send ring[ZEROCOPY_MOST];
    uint32_t oldest; /* that zerocopy_take() has not returned */
    uint32_t next;   /* number of the next send */
};

/* Called before the first send. */
MUST_CHECK int zerocopy_allow(int socket);

/* Whether one more send can be in flight. */
bool zerocopy_has_room(const struct zerocopy *sends);

/* Whether there is a send that zerocopy_take() has not returned. */
bool zerocopy_in_flight(const struct zerocopy *sends);

/* Bytes of this owner in such sends. */
uint64_t zerocopy_bytes_of(const struct zerocopy *sends, const void *owner);

/* A sendmsg() with MSG_ZEROCOPY has taken that many bytes. */
void zerocopy_started(struct zerocopy *sends, void *owner, uint64_t bytes);

/* Reads the completions that have arrived, without waiting. */
MUST_CHECK int zerocopy_poll(struct zerocopy *sends, int socket);

/* Sends `first` to `last`, both included, have completed; false: not all of them are in flight. */
MUST_CHECK bool zerocopy_complete(struct zerocopy *sends, uint32_t first, uint32_t last);

/* Whether the oldest one has completed. */
bool zerocopy_has_completed(const struct zerocopy *sends);

/* Removes the oldest send, if it has completed. False: it is not complete, or the list is empty. */
bool zerocopy_take(struct zerocopy *sends, void **owner, uint64_t *bytes);

#endif
