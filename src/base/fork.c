/* Notices a fork by a handler that runs in the child, so that asking costs one load. */
#include "base/fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

static atomic_bool forked;

static pthread_once_t watch_once = PTHREAD_ONCE_INIT;
static int watch_error;

static void in_child(void)
{
    /* relaxed: a forked child starts with one thread */
    atomic_store_explicit(&forked, true, memory_order_relaxed);
}

static void watch(void)
{
    watch_error = pthread_atfork(NULL, NULL, in_child);
}

int fork_watch(void)
{
    pthread_once(&watch_once, watch);
    if (watch_error != 0)
        return error_system(watch_error, "cannot watch for forks");
    return TCPX_SUCCESS;
}

int fork_check(void)
{
    if (__builtin_expect(atomic_load_explicit(&forked, memory_order_relaxed), false))
        return error_set(TCPX_INVALID_USAGE,
                         "this process was forked after tcpx had started; its GPU and threads "
                         "belong to the parent: start tcpx in the child only, or use exec");
    return TCPX_SUCCESS;
}
