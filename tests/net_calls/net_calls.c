/* The library's calls of libc, some of which fail or do less. */
#include "tests/net_calls/net_calls.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

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

void calls_reset(void)
{
    pthread_mutex_lock(&lock);
    memset(plans, 0, sizeof plans);
    for (int i = 0; i < NET_CALLS; i++)
        plans[i].fd = -1;
    pthread_mutex_unlock(&lock);
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

static ssize_t counted(enum net_call call, ssize_t moved)
{
    int error = errno;

    pthread_mutex_lock(&lock);
    if (moved > 0)
        plans[call].bytes += (uint64_t)moved;
    pthread_mutex_unlock(&lock);
    errno = error;
    return moved;
}

/* The error of this call, 0 if it is made; *most: how many bytes it may move, if not 0. */
static int next(enum net_call call, int fd, size_t *most)
{
    struct plan *plan = &plans[call];
    int error = 0;

    pthread_mutex_lock(&lock);
    if (plan->fd < 0 || plan->fd == fd) {
        plan->random = plan->random * 1664525u + 1013904223u;
        if (plan->half ? plan->random >> 31 != 0
                       : plan->made >= plan->first && plan->made - plan->first < plan->count)
            error = plan->error;
        plan->made++;
        *most = plan->most;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

static bool fails(enum net_call call, int fd, size_t *bytes)
{
    size_t most = 0;
    int error = next(call, fd, &most);

    if (most != 0 && *bytes > most)
        *bytes = most;
    errno = error;
    return error != 0;
}

/* The same message with at most `bytes` bytes, in `parts`; the library uses two at most. */
static struct msghdr shortened(const struct msghdr *message, size_t bytes, struct iovec parts[2])
{
    struct msghdr less = *message;

    less.msg_iovlen = 0;
    for (size_t i = 0; i < message->msg_iovlen && i < 2; i++) {
        parts[i] = message->msg_iov[i];
        if (parts[i].iov_len > bytes)
            parts[i].iov_len = bytes;
        bytes -= parts[i].iov_len;
        less.msg_iovlen++;
    }
    less.msg_iov = parts;
    return less;
}

/* --- what the library calls ---------------------------------------------------------------- */

ssize_t test_send(int fd, const void *bytes, size_t count, int flags);
ssize_t test_recv(int fd, void *bytes, size_t count, int flags);
ssize_t test_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t test_recvmsg(int fd, struct msghdr *message, int flags);
int test_poll(struct pollfd *all, nfds_t count, int timeout);
int test_epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event);
int test_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                        void *argument);

ssize_t test_send(int fd, const void *bytes, size_t count, int flags)
{
    return fails(CALL_SEND, fd, &count) ? -1 : counted(CALL_SEND, send(fd, bytes, count, flags));
}

ssize_t test_recv(int fd, void *bytes, size_t count, int flags)
{
    return fails(CALL_RECV, fd, &count) ? -1 : counted(CALL_RECV, recv(fd, bytes, count, flags));
}

ssize_t test_sendmsg(int fd, const struct msghdr *message, int flags)
{
    size_t bytes = SIZE_MAX;
    struct iovec parts[2];
    struct msghdr less;

    if (fails(CALL_SENDMSG, fd, &bytes))
        return -1;
    if (bytes == SIZE_MAX)
        return counted(CALL_SENDMSG, sendmsg(fd, message, flags));
    less = shortened(message, bytes, parts);
    return counted(CALL_SENDMSG, sendmsg(fd, &less, flags));
}

ssize_t test_recvmsg(int fd, struct msghdr *message, int flags)
{
    size_t bytes = SIZE_MAX;
    struct iovec parts[2];
    struct msghdr less;

    if (fails(CALL_RECVMSG, fd, &bytes))
        return -1;
    if (bytes == SIZE_MAX)
        return counted(CALL_RECVMSG, recvmsg(fd, message, flags));
    less = shortened(message, bytes, parts);
    return counted(CALL_RECVMSG, recvmsg(fd, &less, flags));
}

/* Nothing is ready, whatever the error. */
int test_poll(struct pollfd *all, nfds_t count, int timeout)
{
    size_t none = 0;

    return fails(CALL_POLL, all[0].fd, &none) ? 0 : poll(all, count, timeout);
}

int test_epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event)
{
    size_t none = 0;

    return operation == EPOLL_CTL_ADD && fails(CALL_EPOLL_ADD, fd, &none)
               ? -1
               : epoll_ctl(epoll, operation, fd, event);
}

int test_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                        void *argument)
{
    size_t none = 0;

    return fails(CALL_PTHREAD_CREATE, -1, &none)
               ? errno
               : pthread_create(thread, attributes, run, argument);
}
