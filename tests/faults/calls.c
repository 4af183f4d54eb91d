/*
 * What the library calls instead of libc: each does what its namesake does, unless a fault is due
 * (faults.h) or the test has planned something for it (net_calls.h).
 * Only what a kernel may do is done to a socket: nothing shorter than one byte, no EAGAIN where the
 * call may block, no piece of a datagram, and no fault for an eventfd's write, which cannot fail. A
 * socket that was said to be empty or full, and is not, has an event afterwards, as if that had
 * just changed: edge-triggered epoll reports it again.
 */
#include "tests/faults/calls.h"

#include "tests/faults/faults.h"
#include "tests/net_calls/net_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/uio.h>

enum { MOST_PARTS = 16 }; /* of a message; the library has two, and those of devmem */

static bool is_stream(int fd)
{
    int type = 0;
    socklen_t length = sizeof type;

    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM;
}

static bool never_blocks(int fd, int flags)
{
    return (flags & MSG_DONTWAIT) != 0 || (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0;
}

static bool fails(enum faults_kind kind, int error)
{
    if (!faults_hit(kind))
        return false;
    errno = error;
    return true;
}

/* Half of the time one byte; otherwise any number, small ones as often as large ones. */
static size_t fewer(enum faults_kind kind, size_t bytes)
{
    size_t most = bytes;

    if (bytes < 2 || !faults_hit(kind))
        return bytes;
    if (faults_below(2) == 0)
        return 1;
    for (uint64_t halvings = faults_below(24); halvings > 0 && most > 3; halvings--)
        most /= 2;
    return 1 + (size_t)faults_below(most - 1);
}

/* --- events ---------------------------------------------------------------------------------- */

enum { MOST_WAITED_FOR = 4096 };

/* How a descriptor is registered with epoll. */
static struct {
    int epoll; /* 0: it is not */
    struct epoll_event event;
} waited_for[MOST_WAITED_FOR];

static pthread_mutex_t waited_for_lock = PTHREAD_MUTEX_INITIALIZER;

static void note_waited_for(int epoll, int operation, int fd, const struct epoll_event *event)
{
    if (fd >= MOST_WAITED_FOR)
        return;
    pthread_mutex_lock(&waited_for_lock);
    waited_for[fd].epoll = operation == EPOLL_CTL_DEL ? 0 : epoll;
    if (operation != EPOLL_CTL_DEL)
        waited_for[fd].event = *event;
    pthread_mutex_unlock(&waited_for_lock);
}

/* What is ready now is reported again. */
static void repeat_events(int fd)
{
    int error = errno;

    if (fd >= MOST_WAITED_FOR)
        return;
    pthread_mutex_lock(&waited_for_lock);
    if (waited_for[fd].epoll > 0)
        epoll_ctl(waited_for[fd].epoll, EPOLL_CTL_MOD, fd, &waited_for[fd].event);
    pthread_mutex_unlock(&waited_for_lock);
    errno = error;
}

/* --- sockets -------------------------------------------------------------------------------- */

static bool io_fails(int fd, int flags)
{
    if (fails(FAULT_INTERRUPTED, EINTR))
        return true;
    if (!never_blocks(fd, flags) || !fails(FAULT_AGAIN, EAGAIN))
        return false;
    repeat_events(fd);
    return true;
}

/* By plan, of the test. */
static bool is_planned_to_fail(enum net_call call, int fd, const void *bytes, size_t *count)
{
    if (!calls_fails(call, fd, bytes, count))
        return false;
    if (errno == EAGAIN)
        repeat_events(fd);
    return true;
}

/* `moved` of `wanted` bytes: fewer by a fault, perhaps. */
static ssize_t may_be_fewer(int fd, ssize_t moved, size_t wanted)
{
    if (moved > 0 && (size_t)moved < wanted)
        repeat_events(fd);
    return moved;
}

static bool send_fails(int fd, int flags)
{
    return io_fails(fd, flags) || ((flags & MSG_ZEROCOPY) == 0 && fails(FAULT_NO_BUFFERS, ENOBUFS));
}

ssize_t faulty_send(int fd, const void *bytes, size_t count, int flags)
{
    size_t wanted = count;

    if (is_planned_to_fail(CALL_SEND, fd, bytes, &count))
        return -1;
    if (!is_stream(fd))
        return send(fd, bytes, count, flags);
    if (send_fails(fd, flags))
        return -1;
    return calls_moved(
        CALL_SEND,
        may_be_fewer(fd, send(fd, bytes, fewer(FAULT_SHORT_WRITE, count), flags), wanted));
}

ssize_t faulty_recv(int fd, void *bytes, size_t count, int flags)
{
    size_t wanted = count;

    if (is_planned_to_fail(CALL_RECV, fd, NULL, &count) || io_fails(fd, flags))
        return -1;
    if (is_stream(fd))
        count = fewer(FAULT_SHORT_READ, count);
    return calls_moved(CALL_RECV, may_be_fewer(fd, recv(fd, bytes, count, flags), wanted));
}

/* A datagram that is cut short loses its rest. */
ssize_t faulty_recvfrom(int fd, void *bytes, size_t count, int flags, struct sockaddr *from,
                        socklen_t *length)
{
    return io_fails(fd, flags) ? -1 : recvfrom(fd, bytes, count, flags, from, length);
}

/* The first bytes of a message, at most `most`; `parts` has room for its description. */
static struct msghdr cut(enum faults_kind kind, const struct msghdr *message, size_t most,
                         struct iovec parts[MOST_PARTS])
{
    struct msghdr shorter = *message;
    size_t left = 0;
    size_t count = 0;

    if (message->msg_iovlen > MOST_PARTS)
        return shorter;
    for (size_t i = 0; i < (size_t)message->msg_iovlen; i++)
        left += message->msg_iov[i].iov_len;
    left = fewer(kind, left < most ? left : most);
    for (; count < (size_t)message->msg_iovlen && left > 0; count++) {
        parts[count] = message->msg_iov[count];
        if (parts[count].iov_len > left)
            parts[count].iov_len = left;
        left -= parts[count].iov_len;
    }
    if (count == 0)
        return shorter;
    shorter.msg_iov = parts;
    shorter.msg_iovlen = count;
    return shorter;
}

ssize_t faulty_sendmsg(int fd, const struct msghdr *message, int flags)
{
    struct iovec parts[MOST_PARTS];
    struct msghdr shorter;
    size_t most = SIZE_MAX;

    if (is_planned_to_fail(CALL_SENDMSG, fd, NULL, &most))
        return -1;
    if (!is_stream(fd))
        return sendmsg(fd, message, flags);
    if (send_fails(fd, flags))
        return -1;
    shorter = cut(FAULT_SHORT_WRITE, message, most, parts);
    return calls_moved(CALL_SENDMSG, may_be_fewer(fd, sendmsg(fd, &shorter, flags), SIZE_MAX));
}

/* What the kernel tells about the message is told of the caller's own description. */
ssize_t faulty_recvmsg(int fd, struct msghdr *message, int flags)
{
    struct iovec parts[MOST_PARTS];
    struct iovec *own = message->msg_iov;
    size_t own_count = message->msg_iovlen;
    size_t most = SIZE_MAX;
    ssize_t got;

    if (is_planned_to_fail(CALL_RECVMSG, fd, NULL, &most) || io_fails(fd, flags))
        return -1;
    if (is_stream(fd) && (flags & MSG_ERRQUEUE) == 0)
        *message = cut(FAULT_SHORT_READ, message, most, parts);
    got = recvmsg(fd, message, flags);
    message->msg_iov = own;
    message->msg_iovlen = own_count;
    return calls_moved(CALL_RECVMSG, may_be_fewer(fd, got, SIZE_MAX));
}

/* Files and pipes; what an eventfd holds has been taken by another reader. */
ssize_t faulty_read(int fd, void *bytes, size_t count)
{
    if (count == sizeof(uint64_t) && never_blocks(fd, 0))
        return fails(FAULT_AGAIN, EAGAIN) ? -1 : read(fd, bytes, count);
    return fails(FAULT_INTERRUPTED, EINTR) ? -1 : read(fd, bytes, fewer(FAULT_SHORT_READ, count));
}

/* An interrupted connect() goes on. */
int faulty_connect(int fd, const struct sockaddr *address, socklen_t length)
{
    int result = connect(fd, address, length);

    if (result != 0 && errno == EINPROGRESS && faults_hit(FAULT_INTERRUPTED))
        errno = EINTR;
    return result;
}

static bool is_a_descriptor_left(int fd)
{
    int spare = fcntl(fd, F_DUPFD_CLOEXEC, 0);

    if (spare >= 0)
        close(spare);
    return spare >= 0;
}

/* The kernel takes a descriptor first: without one, there is no other error than that. */
int faulty_accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
    static const int want[] = {EMFILE, ENFILE, ENOMEM, ENOBUFS};

    if (is_a_descriptor_left(fd) &&
        (io_fails(fd, 0) || fails(FAULT_ABORTED, ECONNABORTED) ||
         fails(FAULT_NO_ACCEPT, want[faults_below(sizeof want / sizeof *want)])))
        return -1;
    return accept4(fd, address, length, flags);
}

/* --- waiting -------------------------------------------------------------------------------- */

int faulty_poll(struct pollfd *all, nfds_t count, int timeout_ms)
{
    if (count > 0 && calls_fails(CALL_POLL, -1, NULL, NULL))
        return 0; /* nothing is ready, whatever the error */
    return timeout_ms != 0 && fails(FAULT_INTERRUPTED, EINTR) ? -1 : poll(all, count, timeout_ms);
}

int faulty_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms)
{
    if (timeout_ms != 0 && fails(FAULT_INTERRUPTED, EINTR))
        return -1;
    return epoll_wait(epoll, events, most > 1 && faults_hit(FAULT_FEWER) ? 1 : most, timeout_ms);
}

int faulty_nanosleep(const struct timespec *pause, struct timespec *left)
{
    if (fails(FAULT_INTERRUPTED, EINTR)) {
        if (left != NULL)
            *left = *pause;
        return -1;
    }
    return nanosleep(pause, left);
}

/* --- what may not be had -------------------------------------------------------------------- */

/* Only what is added takes memory and counts against the user's limit. */
int faulty_epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event)
{
    if (operation == EPOLL_CTL_ADD && calls_fails(CALL_EPOLL_ADD, fd, NULL, NULL))
        return -1;
    note_waited_for(epoll, operation, fd, event);
    return epoll_ctl(epoll, operation, fd, event);
}

/* Defines a replacement that has this result where the call fails by plan. */
#define REPLACE(type, name, parameters, call, result, ...)                                         \
    type faulty_##name parameters                                                                  \
    {                                                                                              \
        return calls_fails(call, -1, NULL, NULL) ? (result) : name(__VA_ARGS__);                   \
    }

REPLACE(int, socket, (int family, int type, int protocol), CALL_DESCRIPTOR, -1, family, type,
        protocol)
REPLACE(int, eventfd, (unsigned count, int flags), CALL_DESCRIPTOR, -1, count, flags)
REPLACE(int, epoll_create1, (int flags), CALL_DESCRIPTOR, -1, flags)
REPLACE(int, pthread_create,
        (pthread_t * thread, const pthread_attr_t *attributes, void *(*run)(void *),
         void *argument),
        CALL_PTHREAD_CREATE, errno, thread, attributes, run, argument)
REPLACE(void *, malloc, (size_t bytes), CALL_MEMORY, NULL, bytes)
REPLACE(void *, calloc, (size_t count, size_t bytes), CALL_MEMORY, NULL, count, bytes)
REPLACE(void *, realloc, (void *old, size_t bytes), CALL_MEMORY, NULL, old, bytes)
REPLACE(void *, aligned_alloc, (size_t alignment, size_t bytes), CALL_MEMORY, NULL, alignment,
        bytes)
REPLACE(int, posix_memalign, (void **memory, size_t alignment, size_t bytes), CALL_MEMORY, errno,
        memory, alignment, bytes)
REPLACE(char *, strdup, (const char *text), CALL_MEMORY, NULL, text)
