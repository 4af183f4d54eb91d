/*
 * All locking of the transport.
 *
 * 1. A comm's lock guards struct net_comm (comm_state.h), its requests, and what net/gpu attaches
 *    to it. A thread that moves a lane (one socket of the comm) marks it busy. Other threads leave
 *    a busy lane alone: its `outgoing` or `incoming` and its buffers. So the owner of the lane may
 *    release the lock while it reads or writes the socket; request_hold() protects the memory of
 *    the request meanwhile. Short system calls are made with the lock held: those that send ABORT
 *    or FIN, set socket options or wake a thread. So are calls of the GPU driver that start or
 *    query work. It is not held over calls that may wait for GPU kernels or long in the operating
 * system: attaching a GPU, pinning and freeing memory, exporting, binding and unbinding dma-bufs,
 *    counting a NIC's pages. The exception is close: no other thread is in the comm then. test()
 *    looks at the state of a request without the lock, and frees a request that is done.
 * 2. The lock of net/io guards which I/O threads run. I/O threads call into a comm without it.
 *    io_leave() waits for such calls, so its caller does not hold the comm's lock. io_wake() and
 *    io_remove() of a comm's tasks are called with the comm's lock.
 * 3. Some tables have locks of their own: pinned pools and attaching a GPU (net/gpu), pools and
 *    sources of device memory (net/devmem), connect attempts and the socket budget (net/link), the
 *    shared listening port (net/socket), the link watch (net/nic). None of these is held over the
 *    slow calls of (1) either: a thread reserves with the lock, works without it, and publishes
 *    with it.
 * 4. stats.c has a lock for the list of comms that it samples, and takes it before a comm's.
 *
 * The order is: (4), comm, then (2) or (3). None of (2) and (3) is held while a comm's lock is
 * taken. No thread holds the locks of two comms. A listener has no lock: its caller uses it from
 * one thread.
 *
 * Functions that need a comm's lock begin with COMM_LOCKED(). Builds with TCPX_CHECK_LOCKS (all
 * sanitizer builds) abort there if the calling thread does not hold it.
 */
#ifndef TCPX_NET_COMM_COMM_LOCK_H
#define TCPX_NET_COMM_COMM_LOCK_H

#include <pthread.h>
#include <stdbool.h>

struct comm_lock {
    pthread_mutex_t mutex; /* guards the comm that it is in, and the two at the end */
    bool spins;            /* there are CPUs for threads that wait awake */
#ifdef TCPX_CHECK_LOCKS
    bool held;
    pthread_t holder;
#endif
};

void comm_lock_init(struct comm_lock *lock);
void comm_lock_destroy(struct comm_lock *lock);

#ifdef TCPX_CHECK_LOCKS
void comm_lock_note(struct comm_lock *lock, bool held);
void comm_lock_check(const struct comm_lock *lock, const char *function);
#define COMM_LOCKED(comm) comm_lock_check(&(comm)->lock, __func__)
#else
static inline void comm_lock_note(struct comm_lock *lock, bool held)
{
    (void)lock;
    (void)held;
}
#define COMM_LOCKED(comm) ((void)(comm))
#endif

/* For when another thread holds it. */
void comm_lock_wait(struct comm_lock *lock);

static inline void comm_lock_take(struct comm_lock *lock)
{
    if (pthread_mutex_trylock(&lock->mutex) != 0)
        comm_lock_wait(lock);
    comm_lock_note(lock, true);
}

static inline bool comm_lock_try(struct comm_lock *lock)
{
    if (pthread_mutex_trylock(&lock->mutex) != 0)
        return false;
    comm_lock_note(lock, true);
    return true;
}

static inline void comm_lock_release(struct comm_lock *lock)
{
    comm_lock_note(lock, false);
    pthread_mutex_unlock(&lock->mutex);
}

#endif
