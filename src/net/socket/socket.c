/* Small calls around sockets. */
#include "net/socket/socket.h"

#include "base/fork.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* Keeps a descriptor that was just opened while forks were held off; `error`: why there is none. */
static int socket_keep(int opened, int error, const char *what, int *fd)
{
    if (!fork_release(opened))
        return error_system(ENOMEM, "%s", what);
    if (opened < 0)
        return error_system(error, "%s", what);
    *fd = opened;
    return TCPX_SUCCESS;
}

int socket_open(int family, int *fd)
{
    int result = fork_watch();
    int opened;

    if (result != TCPX_SUCCESS)
        return result;
    fork_hold();
    opened = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    return socket_keep(opened, errno, "cannot open a TCP socket", fd);
}

int socket_accept(int listening, int *error)
{
    int opened;

    fork_hold();
    opened = accept4(listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    *error = errno;
    if (fork_release(opened))
        return opened;
    *error = ENOMEM;
    return -1;
}

static int socket_set_option(int fd, int level, int option, int value, const char *name)
{
    if (setsockopt(fd, level, option, &value, sizeof value) == 0)
        return TCPX_SUCCESS;
    return error_system(errno, "setsockopt %s to %d", name, value);
}

/* Half of the time for silence before the first probe, the other half for three unanswered ones. */
int socket_tune(int fd, uint64_t timeout_ms)
{
    enum { PROBES = 3 };
    int idle = (int)(timeout_ms / 2000 > 0 ? timeout_ms / 2000 : 1);
    int interval = idle / PROBES > 0 ? idle / PROBES : 1;
    int result = socket_set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");

    if (result == TCPX_SUCCESS)
        result = socket_set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
    if (result == TCPX_SUCCESS)
        result = socket_set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle, "TCP_KEEPIDLE");
    if (result == TCPX_SUCCESS)
        result = socket_set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval, "TCP_KEEPINTVL");
    if (result == TCPX_SUCCESS)
        result = socket_set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, PROBES, "TCP_KEEPCNT");
    if (result == TCPX_SUCCESS)
        result = socket_set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)timeout_ms,
                                   "TCP_USER_TIMEOUT");
    return result;
}

/* TCP reports a lack of kernel memory as EAGAIN; lower layers may report other errors. */
bool socket_is_full(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS || error == ENOMEM;
}

static bool socket_has_room(int fd)
{
    struct pollfd writable = {.fd = fd, .events = POLLOUT};

    return poll(&writable, 1, 0) > 0 && (writable.revents & POLLOUT) != 0;
}

/* An error does not mean that there is no room: poll() knows. */
size_t socket_send_now(int fd, const void *bytes, size_t count)
{
    enum { MOST_TRIES = 256 }; /* a bound only: a socket without room ends it at once */
    size_t sent = 0;

    for (int tries = 0; sent < count && tries < MOST_TRIES; tries++)
        if (!socket_send_rest(fd, bytes, count, &sent) || (sent < count && !socket_has_room(fd)))
            break;
    return sent;
}

bool socket_send_rest(int fd, const void *bytes, size_t count, size_t *sent)
{
    while (*sent < count) {
        ssize_t taken =
            send(fd, (const uint8_t *)bytes + *sent, count - *sent, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (taken >= 0)
            *sent += (size_t)taken;
        else if (errno != EINTR)
            return socket_is_full(errno);
    }
    return true;
}

int socket_receive_rest(int fd, void *bytes, size_t count, size_t *have)
{
    while (*have < count) {
        ssize_t got = recv(fd, (uint8_t *)bytes + *have, count - *have, MSG_DONTWAIT);

        if (got > 0)
            *have += (size_t)got;
        else if (got == 0)
            return 0;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 1;
        else if (errno != EINTR)
            return -1;
    }
    return 1;
}

int socket_limit_unsent(int fd, int bytes)
{
    return socket_set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, bytes, "TCP_NOTSENT_LOWAT");
}

socklen_t socket_address_length(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET    ? sizeof(struct sockaddr_in)
           : address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                            : 0;
}

void socket_address_unmap(struct sockaddr_storage *address)
{
    union socket_address any = {.storage = *address};
    union socket_address plain = {0};

    if (address->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&any.ipv6.sin6_addr))
        return;
    plain.ipv4.sin_family = AF_INET;
    plain.ipv4.sin_port = any.ipv6.sin6_port;
    memcpy(&plain.ipv4.sin_addr, any.ipv6.sin6_addr.s6_addr + 12, sizeof plain.ipv4.sin_addr);
    *address = plain.storage;
}

const void *socket_address_bytes(const union socket_address *address, size_t *length)
{
    bool is_ipv4 = address->storage.ss_family == AF_INET;

    *length = is_ipv4 ? sizeof address->ipv4.sin_addr : sizeof address->ipv6.sin6_addr;
    return is_ipv4 ? (const void *)&address->ipv4.sin_addr : &address->ipv6.sin6_addr;
}

bool socket_has_same_bits(const struct sockaddr_storage *a, const struct sockaddr_storage *b,
                          unsigned bits)
{
    const union socket_address one = {.storage = *a};
    const union socket_address other = {.storage = *b};
    size_t length;
    const uint8_t *left = socket_address_bytes(&one, &length);
    const uint8_t *right = socket_address_bytes(&other, &length);

    if (a->ss_family != b->ss_family || bits > 8 * length)
        return false;
    return memcmp(left, right, bits / 8) == 0 &&
           (bits % 8 == 0 || (left[bits / 8] ^ right[bits / 8]) >> (8 - bits % 8) == 0);
}

bool socket_is_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    return socket_has_same_bits(a, b, a->ss_family == AF_INET ? 32 : 128);
}

void socket_host_name(const struct sockaddr_storage *address, char name[SOCKET_NAME_BYTES])
{
    union socket_address any = {.storage = *address};
    size_t length;

    socket_address_unmap(&any.storage);
    if (inet_ntop(any.storage.ss_family, socket_address_bytes(&any, &length), name,
                  SOCKET_NAME_BYTES) == NULL)
        snprintf(name, SOCKET_NAME_BYTES, "unknown");
}

void socket_address_name(const struct sockaddr_storage *address, char name[SOCKET_NAME_BYTES])
{
    union socket_address any = {.storage = *address};
    char text[SOCKET_NAME_BYTES];

    socket_address_unmap(&any.storage);
    socket_host_name(&any.storage, text);
    /* Both families have their port in the same place. */
    if (socket_address_length(&any.storage) == 0)
        snprintf(name, SOCKET_NAME_BYTES, "unknown");
    else
        snprintf(name, SOCKET_NAME_BYTES, any.storage.ss_family == AF_INET ? "%s:%u" : "[%s]:%u",
                 text, ntohs(any.ipv4.sin_port));
}

void socket_peer_name(int fd, char name[SOCKET_NAME_BYTES])
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;

    if (getpeername(fd, (struct sockaddr *)&address, &length) != 0)
        address.ss_family = AF_UNSPEC;
    socket_address_name(&address, name);
}

bool socket_is_token(const uint8_t *a, const uint8_t *b, size_t count)
{
    unsigned difference = 0;

    for (size_t i = 0; i < count; i++)
        difference |= a[i] ^ b[i];
    return difference == 0;
}

int socket_random(void *bytes, size_t count)
{
    ssize_t got = getrandom(bytes, count, 0);

    if (got == (ssize_t)count)
        return TCPX_SUCCESS;
    return error_system(got < 0 ? errno : EIO, "getrandom of %zu bytes", count);
}

void socket_close(int *fd)
{
    if (*fd >= 0)
        fork_close(*fd);
    *fd = -1;
}
