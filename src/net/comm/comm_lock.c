/* The lock of a comm, and the check that a thread holds it. */
#include "net/comm/comm_lock.h"

#include <stdio.h>
#include <stdlib.h>

/* Most holders release it soon, so a short spin is cheaper than a sleep. */
void comm_lock_init(struct comm_lock *lock)
{
    pthread_mutexattr_t spins;

    pthread_mutexattr_init(&spins);
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP /* musl has no such kind: its plain one spins */
    pthread_mutexattr_settype(&spins, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
    pthread_mutex_init(&lock->mutex, &spins);
    pthread_mutexattr_destroy(&spins);
#ifdef TCPX_CHECK_LOCKS
    lock->held = false;
#endif
}

void comm_lock_destroy(struct comm_lock *lock)
{
    pthread_mutex_destroy(&lock->mutex);
}

#ifdef TCPX_CHECK_LOCKS
void comm_lock_note(struct comm_lock *lock, bool held)
{
    lock->held = held;
    lock->holder = pthread_self();
}

void comm_lock_check(const struct comm_lock *lock, const char *function)
{
    if (lock->held && pthread_equal(lock->holder, pthread_self()))
        return;
    fprintf(stderr, "%s() was called without the lock of its comm\n", function);
    abort();
}
#endif
