/* The lock of a comm, and the check that a thread holds it. */
#include "net/comm/comm_lock.h"

#include <stdio.h>
#include <stdlib.h>

void comm_lock_init(struct comm_lock *lock)
{
    pthread_mutex_init(&lock->mutex, NULL);
    lock->spins = false;
#ifdef TCPX_CHECK_LOCKS
    lock->held = false;
#endif
}

static inline void comm_lock_pause(void)
{
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

/*
 * Holders release it within a microsecond or so. To sleep and to be woken costs ten times that, and
 * the other threads of a comm would queue up behind it.
 */
void comm_lock_wait(struct comm_lock *lock)
{
    enum { TRIES = 500, PAUSES = 16 };

    for (int i = 0; i < TRIES && lock->spins; i++) {
        for (int k = 0; k < PAUSES; k++)
            comm_lock_pause();
        if (pthread_mutex_trylock(&lock->mutex) == 0)
            return;
    }
    pthread_mutex_lock(&lock->mutex);
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
