/*
 * All locking of the transport.
 *
 * 1. A comm's lock guards everything in struct net_comm (comm_state.h), its requests, and what the
 *    rooms above attach to it (net/gpu). It is held for a few instructions at a time. A thread that
 *    moves bytes first marks the lane (one socket of the comm) as busy; then it may release the
 *    lock around a system call, because all other threads leave a busy lane alone: its `outgoing`
 *    or `incoming`, its buffers, and the data of the request that the call touches, which is held
 *    by request_hold() meanwhile.
 * 2. The I/O threads (net/io) have locks of their own. They call into a comm without them.
 * 3. The pools of pinned memory (net/gpu/pinned_pool) and of device memory (net/devmem), the table
 *    of listeners' half-open connections and the NIC's steering each have a lock that is the last
 *    one taken: a comm's lock may be held when it is taken, never the other way round.
 *
 * So the order is: comm, then one of (2) or (3). No thread holds the locks of two comms.
 *
 * Functions that need the lock say so by COMM_LOCKED() in their first line; builds with
 * TCPX_CHECK_LOCKS, which sanitizer builds are, abort there if the calling thread does not hold it.
 */
#ifndef TCPX_NET_COMM_COMM_LOCK_H
#define TCPX_NET_COMM_COMM_LOCK_H

#include <pthread.h>
#include <stdbool.h>

struct comm_lock {
    pthread_mutex_t mutex;
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

static inline void comm_lock_take(struct comm_lock *lock)
{
    pthread_mutex_lock(&lock->mutex);
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
