/* What a test has planned for the library's calls of libc; tests/faults/calls.c asks. */
#include "tests/net_calls/net_calls.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

struct call {
    struct call_plan plan;
    unsigned made;
    uint64_t bytes;  /* moved */
    uint32_t random; /* to choose which half fails */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the calls */
static struct call calls[NET_CALLS];
static atomic_bool scripted; /* once calls_reset() was called */

void calls_reset(void)
{
    pthread_mutex_lock(&lock);
    memset(calls, 0, sizeof calls);
    pthread_mutex_unlock(&lock);
    atomic_store(&scripted, true);
}

void calls_plan(enum net_call call, const struct call_plan *plan)
{
    pthread_mutex_lock(&lock);
    calls[call] = (struct call){.plan = *plan, .random = 1};
    pthread_mutex_unlock(&lock);
}

static struct call so_far(enum net_call call)
{
    struct call copy;

    pthread_mutex_lock(&lock);
    copy = calls[call];
    pthread_mutex_unlock(&lock);
    return copy;
}

unsigned calls_made(enum net_call call)
{
    return so_far(call).made;
}

uint64_t calls_bytes(enum net_call call)
{
    return so_far(call).bytes;
}

ssize_t calls_moved(enum net_call call, ssize_t moved)
{
    int error = errno;

    pthread_mutex_lock(&lock);
    if (moved > 0)
        calls[call].bytes += (uint64_t)moved;
    pthread_mutex_unlock(&lock);
    errno = error;
    return moved;
}

bool calls_fails(enum net_call which, int fd, const void *bytes, size_t *count)
{
    struct call *call = &calls[which];
    const struct call_plan *plan = &call->plan;
    int error = 0;

    if (!atomic_load(&scripted))
        return false;
    pthread_mutex_lock(&lock);
    if (plan->concerns == NULL || plan->concerns(fd, bytes, count != NULL ? *count : 0)) {
        call->random = call->random * 1664525u + 1013904223u;
        if (plan->half ? call->random >> 31 != 0
                       : call->made >= plan->first && call->made - plan->first < plan->count)
            error = plan->error;
        call->made++;
        if (plan->most != 0 && count != NULL && *count > plan->most)
            *count = plan->most;
    }
    pthread_mutex_unlock(&lock);
    if (error != 0)
        errno = error;
    return error != 0;
}
