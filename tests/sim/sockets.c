/*
 * The system calls of the library on descriptors: sockets, eventfd, epoll, poll. Their number is
 * checked, and that they belong to the calling process. Reads and writes take less than they could,
 * or say EAGAIN or EINTR, as often as the world says.
 */
#include "kernel.h"
#include "libc.h"
#include "redirected.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <string.h>

struct file files[MOST_FILES];
unsigned file_count;
static uint16_t next_port = 20000;

static int fail(int error)
{
    errno = error;
    return -1;
}

/* --- files ------------------------------------------------------------------------------------ */

struct file *file_open(enum file_kind kind, int process)
{
    for (unsigned i = 0; i < MOST_FILES; i++)
        if (files[i].kind == FILE_FREE) {
            files[i] = (struct file){.kind = kind,
                                     .process = process,
                                     .keep_idle_s = 7200,
                                     .keep_interval_s = 75,
                                     .connects_at = SIM_NEVER};
            if (i >= file_count)
                file_count = i + 1;
            return &files[i];
        }
    sim_found("the simulation has more than %d descriptors", MOST_FILES);
}

static int descriptor(const struct file *file)
{
    return FIRST_DESCRIPTOR + (int)(file - files);
}

/* NULL, with errno: there is none. Another process's is a bug of the library. */
static struct file *file_of(int fd)
{
    struct file *file;

    if (fd < FIRST_DESCRIPTOR || fd >= FIRST_DESCRIPTOR + MOST_FILES)
        sim_found("a simulated call on descriptor %d", fd);
    file = &files[fd - FIRST_DESCRIPTOR];
    if (file->kind == FILE_FREE || file->closed || file->process != sim_process())
        sim_found("process %d uses descriptor %d, which is closed or not its own", sim_process(),
                  fd);
    return file;
}

/* That of an epoll in this file, or a free one in NULL; NULL: it has none, or is no epoll. */
static struct interest *find_interest(const struct file *epoll, const struct file *file)
{
    for (unsigned i = 0; i < MOST_INTERESTS && epoll->interests != NULL; i++)
        if (epoll->interests[i].file == file)
            return &epoll->interests[i];
    return NULL;
}

static void wake_waiting(struct file *file)
{
    sim_wake(file->waiting);
    file->waiting = 0;
}

/* What is ready is an edge again. */
static void repeat_events(const struct file *file)
{
    for (unsigned i = 0; i < file_count; i++) {
        struct interest *interest = find_interest(&files[i], file);

        if (interest == NULL)
            continue;
        interest->reported = false;
        wake_waiting(&files[i]);
    }
}

void file_changed(struct file *file)
{
    wake_waiting(file);
    repeat_events(file);
    if (file->listener != NULL)
        file_changed(file->listener); /* it may be accepted now */
}

static void free_stream(struct stream *stream)
{
    if (stream != NULL)
        free(stream->bytes);
    free(stream);
}

/* The streams of a connection live until both ends are released. */
void file_release(struct file *file)
{
    if (!file->closed || file->kind == FILE_FREE)
        return;
    if (file->peer != NULL) {
        file->peer->peer = NULL;
        network_look(); /* keepalive of the other end may find that out */
    } else if (file->kind == FILE_CONNECTION) {
        free_stream(file->in);
        free_stream(file->out);
    }
    file->kind = FILE_FREE;
}

static void close_listener(struct file *file)
{
    for (unsigned i = 0; i < file->backlog_count; i++) {
        file->backlog[i]->closed = true;
        file->backlog[i]->listener = NULL;
        network_close(file->backlog[i]);
    }
    file->backlog_count = 0;
    free(file->backlog);
}

static void close_file(struct file *file)
{
    free(file->interests);
    file->interests = NULL;
    for (unsigned i = 0; i < file_count; i++) {
        struct interest *interest = find_interest(&files[i], file);

        if (interest != NULL)
            interest->file = NULL;
    }
    file->closed = true;
    if (file->kind == FILE_CONNECTION)
        network_close(file);
    else if (file->kind == FILE_LISTENER)
        close_listener(file);
    if (file->kind != FILE_CONNECTION && file->kind != FILE_FREE)
        file_release(file);
}

void sockets_close_all(int process)
{
    for (unsigned i = 0; i < file_count; i++)
        if (files[i].kind != FILE_FREE && files[i].process == process && !files[i].closed)
            close_file(&files[i]);
}

int sim_close(int fd)
{
    sim_step();
    sim_trace("%d: close %d", sim_process(), fd);
    close_file(file_of(fd));
    return 0;
}

/* --- readiness -------------------------------------------------------------------------------- */

static uint32_t connection_events(const struct file *file)
{
    const struct stream *in = file->in;
    const struct stream *out = file->out;
    uint32_t events = 0;

    if (file->connecting)
        return 0;
    if (file->error != 0)
        events |= EPOLLERR;
    if (file->over)
        return events | EPOLLIN | EPOLLOUT | EPOLLHUP | EPOLLRDHUP;
    if (in->arrived > in->read || in->ended || file->read_shut)
        events |= EPOLLIN;
    if (in->ended || file->read_shut)
        events |= EPOLLRDHUP;
    /* As in Linux: a third of the buffer is free. */
    if (out->shut || 3 * (out->send_buffer - (out->written - out->arrived)) >= out->send_buffer)
        events |= EPOLLOUT;
    if (out->shut && (in->ended || file->read_shut))
        events |= EPOLLHUP;
    return events;
}

static bool may_be_accepted(const struct file *listener, const struct file *file)
{
    return listener->defer_s == 0 || file->over || file->in->arrived > 0 || file->in->ended ||
           sim_now() > file->accepted_at + (uint64_t)listener->defer_s * SIM_S;
}

static uint32_t events_of(const struct file *file)
{
    switch (file->kind) {
    case FILE_CONNECTION:
        return connection_events(file);
    case FILE_EVENT:
        return EPOLLOUT | (file->counter > 0 ? EPOLLIN : 0u);
    case FILE_LISTENER:
        for (unsigned i = 0; i < file->backlog_count; i++)
            if (may_be_accepted(file, file->backlog[i]))
                return EPOLLIN;
        return 0;
    case FILE_SOCKET:
        return EPOLLOUT | EPOLLHUP;
    default:
        return 0;
    }
}

static uint64_t moment_after(int timeout_ms)
{
    return timeout_ms < 0 ? SIM_NEVER : sim_now() + (uint64_t)timeout_ms * SIM_MS;
}

static int poll_all(struct pollfd *all, nfds_t count)
{
    int ready = 0;

    for (nfds_t i = 0; i < count; i++) {
        uint32_t wanted = (uint32_t)(unsigned short)all[i].events | EPOLLERR | EPOLLHUP;

        all[i].revents = (short)(all[i].fd < 0 ? 0 : events_of(file_of(all[i].fd)) & wanted);
        ready += all[i].revents != 0;
    }
    return ready;
}

static void mark_waiting(const struct pollfd *all, nfds_t count, bool waits)
{
    uint64_t self = sim_self_mask();

    for (nfds_t i = 0; i < count; i++)
        if (all[i].fd >= 0 && waits)
            file_of(all[i].fd)->waiting |= self;
        else if (all[i].fd >= 0)
            files[all[i].fd - FIRST_DESCRIPTOR].waiting &= ~self; /* it may be closed now */
}

int sim_poll(struct pollfd *all, nfds_t count, int timeout_ms)
{
    uint64_t until = moment_after(timeout_ms);
    int ready;
    bool in_time = true;

    sim_step();
    if (timeout_ms != 0 && sim_one_in(sim_world.interrupt_one_in))
        return fail(EINTR);
    while ((ready = poll_all(all, count)) == 0 && in_time && timeout_ms != 0) {
        mark_waiting(all, count, true);
        in_time = sim_block(until);
        mark_waiting(all, count, false);
    }
    return ready;
}

/* --- epoll and eventfd ------------------------------------------------------------------------ */

int sim_epoll_create1(int flags)
{
    struct file *file;

    sim_step();
    file = file_open(FILE_EPOLL, sim_process());
    file->interests = calloc(MOST_INTERESTS, sizeof *file->interests);
    if (file->interests == NULL)
        sim_found("no memory for an epoll");
    return descriptor(file);
}

int sim_epoll_ctl(int fd, int operation, int other, struct epoll_event *event)
{
    struct file *epoll = file_of(fd);
    struct file *file = file_of(other);
    struct interest *interest;

    sim_step();
    interest = find_interest(epoll, file);
    if (operation == EPOLL_CTL_ADD) {
        if (interest != NULL)
            return fail(EEXIST);
        interest = find_interest(epoll, NULL);
        if (interest == NULL)
            sim_found("the simulation has more than %d descriptors in an epoll", MOST_INTERESTS);
        *interest = (struct interest){.file = file};
    }
    if (interest == NULL)
        return fail(ENOENT);
    if (operation == EPOLL_CTL_DEL) {
        interest->file = NULL;
        return 0;
    }
    interest->events = event->events;
    interest->data = event->data.u64;
    interest->reported = false;
    wake_waiting(epoll);
    return 0;
}

static int gather_events(struct file *epoll, struct epoll_event *events, int most)
{
    int count = 0;

    for (unsigned i = 0; i < MOST_INTERESTS && count < most; i++) {
        struct interest *interest = &epoll->interests[(epoll->first_interest + i) % MOST_INTERESTS];
        uint32_t ready;

        if (interest->file == NULL || ((interest->events & EPOLLET) != 0 && interest->reported))
            continue;
        ready = events_of(interest->file) & (interest->events | EPOLLERR | EPOLLHUP);
        if (ready == 0)
            continue;
        interest->reported = true;
        events[count++] = (struct epoll_event){.events = ready, .data.u64 = interest->data};
    }
    if (count == most)
        epoll->first_interest = (unsigned)sim_below(MOST_INTERESTS);
    return count;
}

int sim_epoll_wait(int fd, struct epoll_event *events, int most, int timeout_ms)
{
    struct file *epoll = file_of(fd);
    uint64_t until = moment_after(timeout_ms);
    int count;
    bool in_time = true;

    sim_step();
    if (timeout_ms != 0 && sim_one_in(sim_world.interrupt_one_in))
        return fail(EINTR);
    while ((count = gather_events(epoll, events, most)) == 0 && in_time && timeout_ms != 0) {
        epoll->waiting |= sim_self_mask();
        in_time = sim_block(until);
        epoll->waiting &= ~sim_self_mask();
    }
    return count;
}

int sim_eventfd(unsigned initial, int flags)
{
    struct file *file;

    sim_step();
    file = file_open(FILE_EVENT, sim_process());
    file->counter = initial;
    return descriptor(file);
}

/* --- bytes ------------------------------------------------------------------------------------ */

static void ring_put(struct stream *stream, const uint8_t *bytes, uint64_t count)
{
    uint64_t at = stream->written % stream->capacity;
    uint64_t first = stream->capacity - at < count ? stream->capacity - at : count;

    memcpy(stream->bytes + at, bytes, first);
    memcpy(stream->bytes, bytes + first, count - first);
    stream->written += count;
}

static void ring_get(const struct stream *stream, uint64_t from, uint8_t *bytes, uint64_t count)
{
    uint64_t at = from % stream->capacity;
    uint64_t first = stream->capacity - at < count ? stream->capacity - at : count;

    memcpy(bytes, stream->bytes + at, first);
    memcpy(bytes + first, stream->bytes, count - first);
}

size_t (*sim_liar)(int process, const uint8_t first[64], uint8_t more[32]);

static void let_lie(struct stream *out)
{
    uint8_t first[64];
    uint8_t more[32];

    ring_get(out, 0, first, sizeof first);
    ring_put(out, more, sim_liar(sim_process(), first, more));
}

static int take_error(struct file *file)
{
    int error = file->error;

    file->error = 0;
    return error;
}

/* As much of it as the parts are long and `left` says. */
static void copy_parts(const struct msghdr *message, uint64_t left, struct stream *out,
                       const struct stream *in)
{
    uint64_t at = in != NULL ? in->read : 0;

    for (size_t i = 0; i < message->msg_iovlen && left > 0; i++) {
        const struct iovec *part = &message->msg_iov[i];
        uint64_t bytes = part->iov_len < left ? part->iov_len : left;

        if (out != NULL)
            ring_put(out, part->iov_base, bytes);
        else
            ring_get(in, at, part->iov_base, bytes);
        at += bytes;
        left -= bytes;
    }
}

static uint64_t length_of(const struct msghdr *message)
{
    uint64_t length = 0;

    for (size_t i = 0; i < message->msg_iovlen; i++)
        length += message->msg_iov[i].iov_len;
    return length;
}

/* As if the rest came, or had room, only after the call. */
static uint64_t shorten(const struct file *file, uint64_t bytes)
{
    if (bytes < 2 || !sim_one_in(sim_world.short_one_in))
        return bytes;
    repeat_events(file);
    return sim_between(1, bytes);
}

/* An error although the call could go on; 0: there is none. */
static int some_error(const struct file *file)
{
    if (!sim_one_in(sim_world.again_one_in))
        return sim_one_in(sim_world.interrupt_one_in) ? EINTR : 0;
    repeat_events(file);
    return EAGAIN;
}

static ssize_t send_some(struct file *file, const struct msghdr *message)
{
    struct stream *out = file->out;
    uint64_t bytes = length_of(message);
    uint64_t room;
    int error;

    if (file->kind != FILE_CONNECTION || file->connecting || out == NULL)
        return fail(file->error != 0 ? take_error(file) : ENOTCONN);
    if (file->error != 0)
        return fail(take_error(file));
    if (file->over || out->shut)
        return fail(EPIPE);
    room = out->send_buffer - (out->written - out->arrived);
    /* A fresh connection takes a small first message whole. */
    error = out->written > 0 ? some_error(file) : 0;
    if (error == 0 && room == 0)
        error = EAGAIN;
    if (error != 0)
        return fail(error);
    if (sim_liar != NULL && out->written == 64 && room > 64) {
        let_lie(out);
        room = out->send_buffer - (out->written - out->arrived);
    }
    bytes = bytes < room ? bytes : room;
    if (out->written > 0)
        bytes = shorten(file, bytes);
    copy_parts(message, bytes, out, NULL);
    network_kick(out);
    return (ssize_t)bytes;
}

static ssize_t receive_some(struct file *file, const struct msghdr *message, bool peek)
{
    struct stream *in = file->in;
    uint64_t available;
    uint64_t bytes = length_of(message);
    int error;

    if (file->kind != FILE_CONNECTION || file->connecting || in == NULL)
        return fail(file->error != 0 ? take_error(file) : ENOTCONN);
    available = in->arrived - in->read;
    if (available == 0) {
        if (file->error != 0)
            return fail(take_error(file));
        return in->ended || file->over || file->read_shut ? 0 : fail(EAGAIN);
    }
    error = some_error(file);
    if (error != 0)
        return fail(error);
    bytes = shorten(file, bytes < available ? bytes : available);
    copy_parts(message, bytes, NULL, in);
    if (peek)
        return (ssize_t)bytes;
    in->read += bytes;
    /* The window has opened. */
    if (!file->over && file->peer != NULL)
        network_kick(in);
    return (ssize_t)bytes;
}

ssize_t sim_sendmsg(int fd, const struct msghdr *message, int flags)
{
    ssize_t sent;

    sim_step();
    sent = send_some(file_of(fd), message);
    sim_trace("%d: send %d: %zd", sim_process(), fd, sent);
    return sent;
}

ssize_t sim_send(int fd, const void *bytes, size_t count, int flags)
{
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = count};

    return sim_sendmsg(fd, &(struct msghdr){.msg_iov = &part, .msg_iovlen = 1}, flags);
}

ssize_t sim_recvmsg(int fd, struct msghdr *message, int flags)
{
    ssize_t got;

    sim_step();
    message->msg_flags = 0;
    message->msg_controllen = 0;
    got = receive_some(file_of(fd), message, (flags & MSG_PEEK) != 0);
    sim_trace("%d: recv %d: %zd", sim_process(), fd, got);
    return got;
}

ssize_t sim_recv(int fd, void *bytes, size_t count, int flags)
{
    struct iovec part = {.iov_base = bytes, .iov_len = count};

    return sim_recvmsg(fd, &(struct msghdr){.msg_iov = &part, .msg_iovlen = 1}, flags);
}

ssize_t sim_read(int fd, void *bytes, size_t count)
{
    struct file *file;

    sim_step();
    file = file_of(fd);
    if (file->kind != FILE_EVENT || count < sizeof file->counter)
        return fail(EINVAL);
    if (file->counter == 0)
        return fail(EAGAIN);
    memcpy(bytes, &file->counter, sizeof file->counter);
    file->counter = 0;
    return sizeof file->counter;
}

ssize_t sim_write(int fd, const void *bytes, size_t count)
{
    struct file *file;
    uint64_t more;

    sim_step();
    file = file_of(fd);
    if (file->kind != FILE_EVENT || count < sizeof more)
        return fail(EINVAL);
    memcpy(&more, bytes, sizeof more);
    file->counter += more;
    file_changed(file);
    return sizeof more;
}

/* --- sockets ---------------------------------------------------------------------------------- */

int sim_socket(int family, int type, int protocol)
{
    sim_step();
    if (family != AF_INET || (type & 0xf) != SOCK_STREAM)
        return fail(EAFNOSUPPORT);
    return descriptor(file_open(FILE_SOCKET, sim_process()));
}

int sim_bind(int fd, const struct sockaddr *address, socklen_t length)
{
    struct file *file = file_of(fd);
    struct sockaddr_in *local = (struct sockaddr_in *)&file->local;

    sim_step();
    memcpy(&file->local, address, length);
    if (local->sin_port == 0)
        local->sin_port = htons(next_port++);
    file->bound = true;
    return 0;
}

int sim_listen(int fd, int backlog)
{
    struct file *file = file_of(fd);

    sim_step();
    file->backlog = calloc(MOST_BACKLOG, sizeof(struct file *));
    if (file->backlog == NULL)
        sim_found("no memory for a listener");
    file->kind = FILE_LISTENER;
    return 0;
}

int sim_connect(int fd, const struct sockaddr *address, socklen_t length)
{
    struct file *file = file_of(fd);
    struct sockaddr_in *local = (struct sockaddr_in *)&file->local;

    sim_step();
    if (file->kind != FILE_SOCKET)
        return fail(EISCONN);
    if (!file->bound) {
        local->sin_family = AF_INET;
        local->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        local->sin_port = htons(next_port++);
    }
    memcpy(&file->remote, address, length);
    file->kind = FILE_CONNECTION;
    network_connect(file);
    return fail(EINPROGRESS);
}

int sim_accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
    struct file *listener = file_of(fd);

    sim_step();
    for (unsigned i = 0; i < listener->backlog_count; i++) {
        struct file *file = listener->backlog[i];

        if (!may_be_accepted(listener, file))
            continue;
        listener->backlog_count--;
        file->listener = NULL;
        memmove(&listener->backlog[i], &listener->backlog[i + 1],
                (listener->backlog_count - i) * sizeof file);
        return descriptor(file);
    }
    return fail(EAGAIN);
}

static int write_address(const struct sockaddr_storage *from, struct sockaddr *to,
                         socklen_t *length)
{
    memcpy(to, from, *length < sizeof(struct sockaddr_in) ? *length : sizeof(struct sockaddr_in));
    *length = sizeof(struct sockaddr_in);
    return 0;
}

int sim_getsockname(int fd, struct sockaddr *address, socklen_t *length)
{
    sim_step();
    return write_address(&file_of(fd)->local, address, length);
}

int sim_getpeername(int fd, struct sockaddr *address, socklen_t *length)
{
    const struct file *file = file_of(fd);

    sim_step();
    if (file->kind != FILE_CONNECTION || file->connecting || file->over)
        return fail(ENOTCONN);
    return write_address(&file->remote, address, length);
}

int sim_getsockopt(int fd, int level, int option, void *value, socklen_t *length)
{
    struct file *file = file_of(fd);

    sim_step();
    if (level != SOL_SOCKET || option != SO_ERROR || *length < sizeof(int))
        return fail(ENOPROTOOPT);
    *length = sizeof(int);
    *(int *)value = take_error(file);
    return 0;
}

int sim_setsockopt(int fd, int level, int option, const void *value, socklen_t length)
{
    struct file *file = file_of(fd);
    int number = 0;

    sim_step();
    memcpy(&number, value, length < sizeof number ? length : sizeof number);
    if (level == SOL_SOCKET && option == SO_KEEPALIVE)
        file->keep_alive = number != 0;
    else if (level == IPPROTO_TCP && option == TCP_KEEPIDLE)
        file->keep_idle_s = number;
    else if (level == IPPROTO_TCP && option == TCP_KEEPINTVL)
        file->keep_interval_s = number;
    else if (level == IPPROTO_TCP && option == TCP_USER_TIMEOUT)
        file->user_timeout_ms = number;
    else if (level == IPPROTO_TCP && option == TCP_DEFER_ACCEPT)
        file->defer_s = number;
    return 0;
}

int sim_shutdown(int fd, int how)
{
    struct file *file = file_of(fd);

    sim_step();
    sim_trace("%d: shutdown %d %d", sim_process(), fd, how);
    if (file->kind != FILE_CONNECTION || file->connecting || file->over || file->in == NULL)
        return fail(ENOTCONN);
    if (how != SHUT_WR)
        file->read_shut = true;
    if (how != SHUT_RD && !file->out->shut) {
        file->out->shut = true;
        network_kick(file->out);
    }
    file_changed(file);
    return 0;
}

/* Bytes that the peer's kernel has not acknowledged. */
int sim_ioctl(int fd, unsigned long request, ...)
{
    const struct stream *out;
    va_list arguments;
    int *value;

    va_start(arguments, request);
    value = va_arg(arguments, int *);
    va_end(arguments);
    sim_step();
    if (request != SIOCOUTQ || file_of(fd)->kind != FILE_CONNECTION)
        return fail(ENOTTY);
    out = file_of(fd)->out;
    *value = out == NULL ? 0 : (int)(out->written - out->arrived);
    return 0;
}
