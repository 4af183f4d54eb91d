/* What a test has planned for the library's calls of libc; tests/faults/calls.c asks. */
#include "tests/net_calls/net_calls.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

struct plan {
    unsigned made;
    unsigned first; /* of those that fail */
    unsigned count;
    int error;
    bool half;       /* about every second fails */
    uint32_t random; /* to choose which */
    size_t most;     /* bytes of one call; 0: any */
    int fd;          /* -1: any */
    uint64_t bytes;  /* moved */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the plans */
static struct plan plans[NET_CALLS];
static atomic_bool scripted; /* once calls_reset() was called */

void calls_reset(void)
{
    pthread_mutex_lock(&lock);
    memset(plans, 0, sizeof plans);
    for (int i = 0; i < NET_CALLS; i++)
        plans[i].fd = -1;
    pthread_mutex_unlock(&lock);
    atomic_store(&scripted, true);
}

void calls_fail(enum net_call call, unsigned first, unsigned count, int error)
{
    pthread_mutex_lock(&lock);
    plans[call].made = 0;
    plans[call].first = first;
    plans[call].count = count;
    plans[call].error = error;
    plans[call].half = false;
    pthread_mutex_unlock(&lock);
}

void calls_fail_half(enum net_call call, int error)
{
    calls_fail(call, 0, 0, error);
    pthread_mutex_lock(&lock);
    plans[call].half = true;
    plans[call].random = 1;
    pthread_mutex_unlock(&lock);
}

void calls_shorten(enum net_call call, size_t most)
{
    pthread_mutex_lock(&lock);
    plans[call].most = most;
    pthread_mutex_unlock(&lock);
}

void calls_only_of(enum net_call call, int fd)
{
    pthread_mutex_lock(&lock);
    plans[call].fd = fd;
    pthread_mutex_unlock(&lock);
}

unsigned calls_made(enum net_call call)
{
    unsigned made;

    pthread_mutex_lock(&lock);
    made = plans[call].made;
    pthread_mutex_unlock(&lock);
    return made;
}

uint64_t calls_bytes(enum net_call call)
{
    uint64_t bytes;

    pthread_mutex_lock(&lock);
    bytes = plans[call].bytes;
    pthread_mutex_unlock(&lock);
    return bytes;
}

ssize_t calls_moved(enum net_call call, ssize_t moved)
{
    int error = errno;

    pthread_mutex_lock(&lock);
    if (moved > 0)
        plans[call].bytes += (uint64_t)moved;
    pthread_mutex_unlock(&lock);
    errno = error;
    return moved;
}

bool calls_fails(enum net_call call, int fd, size_t *bytes)
{
    struct plan *plan = &plans[call];
    int error = 0;

    if (!atomic_load(&scripted))
        return false;
    pthread_mutex_lock(&lock);
    if (plan->fd < 0 || plan->fd == fd) {
        plan->random = plan->random * 1664525u + 1013904223u;
        if (plan->half ? plan->random >> 31 != 0
                       : plan->made >= plan->first && plan->made - plan->first < plan->count)
            error = plan->error;
        plan->made++;
        if (plan->most != 0 && bytes != NULL && *bytes > plan->most)
            *bytes = plan->most;
    }
    pthread_mutex_unlock(&lock);
    errno = error;
    return error != 0;
}
