/* Notices a fork by handlers; the one in the child makes fork_check() cost one load. */
#include "base/fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Any order would do: only a forked child writes it, while it has one thread. */
static atomic_bool forked;

static pthread_once_t watch_once = PTHREAD_ONCE_INIT;
static int watch_error;

/*
 * Guards the variables below, and is held during a fork; not while a descriptor is opened or
 * closed, since a close can take long (that of a binding ends it in the kernel). A fork waits for
 * these.
 */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t nobody_is_busy = PTHREAD_COND_INITIALIZER;
static unsigned busy;          /* descriptors that are being opened or closed */
static unsigned char *is_ours; /* by descriptor */
static int is_ours_length;

/*
 * A child that calls us gets an error, and its text has a place only from this thread's first one
 * on. Memory for it is taken now: in the child, another thread's lock may be held for ever.
 */
static void before(void)
{
    error_text();
    pthread_mutex_lock(&lock);
    while (busy > 0)
        pthread_cond_wait(&nobody_is_busy, &lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    atomic_store_explicit(&forked, true, memory_order_relaxed);
    for (int fd = 0; fd < is_ours_length; fd++)
        if (is_ours[fd])
            close(fd);
    is_ours_length = 0;
    /* Threads of the parent that waited, to fork themselves, do not exist here. */
    pthread_cond_init(&nobody_is_busy, NULL);
    pthread_mutex_unlock(&lock);
}

static void watch(void)
{
    watch_error = pthread_atfork(before, in_parent, in_child);
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
                         "this process was forked after tcpx had started; its GPU, threads and "
                         "connections belong to the parent: start tcpx in the child only, or use "
                         "exec");
    return TCPX_SUCCESS;
}

/* With the lock. */
static void end_busy(void)
{
    if (--busy == 0)
        pthread_cond_broadcast(&nobody_is_busy);
}

void fork_hold(void)
{
    pthread_mutex_lock(&lock);
    busy++;
    pthread_mutex_unlock(&lock);
}

static bool remember(int fd)
{
    if (fd >= is_ours_length) {
        int length = fd + 64;
        unsigned char *grown = realloc(is_ours, (size_t)length);

        if (grown == NULL)
            return false;
        memset(grown + is_ours_length, 0, (size_t)(length - is_ours_length));
        is_ours = grown;
        is_ours_length = length;
    }
    is_ours[fd] = 1;
    return true;
}

bool fork_release(int opened)
{
    bool remembered;

    pthread_mutex_lock(&lock);
    remembered = opened < 0 || remember(opened);
    if (!remembered)
        close(opened);
    end_busy();
    pthread_mutex_unlock(&lock);
    return remembered;
}

void fork_close(int fd)
{
    pthread_mutex_lock(&lock);
    if (fd < is_ours_length)
        is_ours[fd] = 0;
    busy++;
    pthread_mutex_unlock(&lock);
    close(fd);
    pthread_mutex_lock(&lock);
    end_busy();
    pthread_mutex_unlock(&lock);
}
