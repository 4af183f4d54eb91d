/*
 * GPU memory that payload is received into: bound to receive queues of a NIC (devmem TCP), or
 * simulated by a test that has registered its own operations (devmem_pool_ops.h). All comms of this
 * process that receive through one NIC for one GPU share a pool. Also the sockets whose payload
 * arrives there, which behave alike in both cases.
 */
#ifndef TCPX_NET_DEVMEM_DEVMEM_POOL_H
#define TCPX_NET_DEVMEM_DEVMEM_POOL_H

#include "gpu/gpu.h"
#include "net/device/device.h"
#include "net/devmem/devmem_uapi.h"

#include <sys/types.h>

struct devmem_pool;
struct devmem_pool_ops;

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
const struct gpu_memory *devmem_pool_memory(const struct devmem_pool *pool);

/* How many bytes of it a packet occupies, at least. */
uint64_t devmem_page_bytes(void);

/* The dma-buf that its fragments name. */
uint32_t devmem_pool_id(const struct devmem_pool *pool);

/* NULL: a simulated pool. */
const char *devmem_pool_interface(const struct devmem_pool *pool);

/*
 * One more connection arrives in the pool of a NIC. Returns its queue, each in turn; *pages: how
 * many pages it may hold, so that all connections together leave some. devmem_pool_leave() takes
 * the number of connections that have ended.
 */
unsigned devmem_pool_join(struct devmem_pool *pool, uint64_t *pages);
void devmem_pool_leave(struct devmem_pool *pool, unsigned connections);

/* Nothing more arrives there; what has arrived stays. For tests. */
void devmem_pool_unbind(struct devmem_pool *pool);

/* *out: pages of a NIC's pool that are in sockets, or received and not returned. */
MUST_CHECK int devmem_pool_count_out(struct devmem_pool *pool, uint64_t *out);

/* --- a socket whose payload arrives there ---------------------------------------------------- */

struct devmem_socket;

/* `fd` stays the caller's; nothing else reads from it. */
MUST_CHECK int devmem_socket_open(struct devmem_pool *pool, int fd, struct devmem_socket **socket);

/* NULL is allowed. The kernel takes tokens back when `fd` itself is closed. */
void devmem_socket_close(struct devmem_socket *socket);

/* recvmsg() with DEVMEM_MSG_FLAG. */
ssize_t devmem_socket_receive(struct devmem_socket *socket, struct msghdr *message, int flags);

/* setsockopt(DEVMEM_SO_DONTNEED): how many fragments came back, or -1. */
int devmem_socket_return(struct devmem_socket *socket, const struct devmem_token_range *ranges,
                         unsigned count);

/* How often there was no page for bytes that had arrived. The kernel does not report it: 0. */
uint64_t devmem_socket_starved(const struct devmem_socket *socket);

#endif
