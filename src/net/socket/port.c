/* A listening socket of its own for each listener, or one for all. */
#include "net/socket/port.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/fork.h"
#include "base/log.h"
#include "net/socket/socket.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    BACKLOG = 4096,
    MOST_UNKNOWN = 128, /* connections whose listener is not known yet, or has no room for more */
    MOST_ARRIVED = 64,  /* connections that wait for their listener's next call */
    ACCEPTS_PER_CALL = 64,
    PEEK_BYTES = 64,
    UNKNOWN_MS = 5000,
};

/* Only this much of a pause between two calls counts against a connection. */
#define COUNTED_PAUSE_NS 100000000u

struct port {
    int fd; /* its own listening socket; -1: it shares the process's */
    struct sockaddr_storage address;

    /* --- of a shared port; guarded by shared_lock */
    struct port *next;
    struct port_sign sign;
    int arrived[MOST_ARRIVED]; /* connections for this listener, in their order */
    unsigned arrived_count;
    int wake_up; /* an eventfd: another listener's call has found a connection for this one */
};

/* A connection at the shared port that no listener has yet. */
struct unknown {
    struct half_open half;
    bool is_held; /* its listener is known, and has no room for more at the moment */
};

struct shared_port {
    int fd;
    int epoll; /* of the listening socket and of all unknown connections */
    struct sockaddr_storage address;
    struct port *members;
    struct half_open_table table;
    struct unknown unknown[MOST_UNKNOWN];
};

/* Guards the shared port, its table and what its members share. */
static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;
static struct shared_port *shared; /* NULL: no listener shares */

static uint16_t port_number(const struct sockaddr_storage *address)
{
    union socket_address any = {.storage = *address};

    return ntohs(any.ipv4.sin_port); /* both families have it in the same place */
}

/* --- listening ----------------------------------------------------------------------------- */

/* SO_REUSEADDR: a program that is started again gets its port again. A negative result: errno. */
static int port_listen_on(const struct half_open_table *table,
                          const struct sockaddr_storage *address, int *fd,
                          struct sockaddr_storage *bound)
{
    const int on = 1;
    const int off = 0;
    socklen_t length = sizeof *bound;
    int result = socket_open(address->ss_family, fd);
    int error;

    if (result != TCPX_SUCCESS)
        return result;
    memset(bound, 0, sizeof *bound);
    if ((address->ss_family != AF_INET6 ||
         setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0) &&
        setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        half_open_listen(table, *fd, address, BACKLOG) &&
        getsockname(*fd, (struct sockaddr *)bound, &length) == 0)
        return TCPX_SUCCESS;
    error = errno;
    socket_close(fd);
    return -error;
}

static bool port_is_any(const struct sockaddr_storage *address)
{
    static const uint8_t zeros[16];
    union socket_address any = {.storage = *address};
    size_t length;
    const void *bytes = socket_address_bytes(&any, &length);

    return memcmp(bytes, zeros, length) == 0;
}

static void port_set_number(struct sockaddr_storage *address, uint16_t number)
{
    union socket_address any = {.storage = *address};

    any.ipv4.sin_port = htons(number);
    *address = any.storage;
}

/* As port_listen_on(). All addresses: a socket of IPv6 accepts IPv4, too, where there is IPv6. */
static int port_listen(const struct half_open_table *table, const struct sockaddr_storage *address,
                       int *fd, struct sockaddr_storage *bound)
{
    union socket_address ipv4 = {
        .ipv4 = {.sin_family = AF_INET, .sin_port = htons(port_number(address))}};
    int result = port_listen_on(table, address, fd, bound);

    if (address->ss_family == AF_INET6 && port_is_any(address) &&
        (result == -EADDRNOTAVAIL || result == -EAFNOSUPPORT || result > 0))
        result = port_listen_on(table, &ipv4.storage, fd, bound);
    return result;
}

/* The port of the address or, if that is 0, the first of the range that is free. */
static int port_listen_in(const struct half_open_table *table, struct sockaddr_storage address,
                          const struct config_ports *range, int *fd, struct sockaddr_storage *bound)
{
    bool anywhere = port_number(&address) == 0 && range->first != 0;
    unsigned first = anywhere ? range->first : port_number(&address);
    unsigned last = anywhere ? range->last : first;
    char name[SOCKET_NAME_BYTES];
    int result = -EADDRINUSE;

    for (unsigned number = first; number <= last && result == -EADDRINUSE; number++) {
        port_set_number(&address, (uint16_t)number);
        result = port_listen(table, &address, fd, bound);
    }
    if (result >= 0)
        return result;
    if (anywhere && result == -EADDRINUSE)
        return error_system(EADDRINUSE,
                            "cannot listen on a port of UCCL_TCPX_PORT=%u-%u: each process of this "
                            "host needs one",
                            first, last);
    socket_address_name(&address, name);
    return error_system(-result, "cannot listen on %s", name);
}

/* --- the shared port ----------------------------------------------------------------------- */

static bool shared_watch(const struct shared_port *ours, int fd, void *unknown)
{
    struct epoll_event event = {
        .events = unknown != NULL ? EPOLLIN | EPOLLRDHUP | EPOLLET : EPOLLIN, .data.ptr = unknown};

    return epoll_ctl(ours->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static int shared_open(const struct config_ports *range, uint16_t wanted)
{
    const union socket_address everywhere = {
        .ipv6 = {.sin6_family = AF_INET6, .sin6_port = htons(wanted)}};
    struct shared_port *ours = calloc(1, sizeof *ours);
    int result;

    if (ours == NULL)
        return error_system(ENOMEM, "a listener");
    half_open_start(&ours->table, UNKNOWN_MS);
    for (int i = 0; i < MOST_UNKNOWN; i++)
        half_open_add_place(&ours->table, &ours->unknown[i].half);
    result = port_listen_in(&ours->table, everywhere.storage, range, &ours->fd, &ours->address);
    if (result != TCPX_SUCCESS)
        goto free_ours;
    fork_hold();
    ours->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!fork_release(ours->epoll) || ours->epoll < 0) {
        result = error_system(errno, "a listener");
        goto close_socket;
    }
    if (!shared_watch(ours, ours->fd, NULL)) {
        result = error_system(errno, "a listener");
        goto close_epoll;
    }
    shared = ours;
    return TCPX_SUCCESS;

close_epoll:
    fork_close(ours->epoll);
close_socket:
    socket_close(&ours->fd);
free_ours:
    free(ours);
    return result;
}

static void shared_close(void)
{
    for (int i = 0; i < MOST_UNKNOWN; i++)
        socket_close(&shared->unknown[i].half.fd);
    fork_close(shared->epoll);
    socket_close(&shared->fd);
    free(shared);
    shared = NULL;
}

/* Connections must tell which listener they are for. */
static bool shared_can_tell(const struct port_sign *sign)
{
    for (const struct port *port = shared != NULL ? shared->members : NULL; port != NULL;
         port = port->next)
        if (!sign->has_key && !port->sign.has_key &&
            memcmp(port->sign.kind, sign->kind, PORT_KIND_BYTES) == 0)
            return false;
    return true;
}

/* Whether a listener that wants this port, or any if it is 0, can share. */
static bool shared_can_have(const struct config_ports *range, uint16_t wanted)
{
    return range->first != 0 &&
           (wanted == 0 || (wanted >= range->first && wanted <= range->last &&
                            (shared == NULL || port_number(&shared->address) == wanted)));
}

/* *joined: whether it shares. */
static int port_join(struct port *port, const struct config_ports *range, bool *joined)
{
    uint16_t wanted = port_number(&port->address);
    int result = TCPX_SUCCESS;

    pthread_mutex_lock(&shared_lock);
    *joined = shared_can_have(range, wanted) && shared_can_tell(&port->sign);
    if (*joined && shared == NULL)
        result = shared_open(range, wanted);
    if (*joined && result == TCPX_SUCCESS) {
        port_set_number(&port->address, port_number(&shared->address));
        port->next = shared->members;
        shared->members = port;
    }
    pthread_mutex_unlock(&shared_lock);
    return result;
}

int port_open(const struct sockaddr_storage *address, const struct port_sign *sign,
              const struct half_open_table *table, struct port **out)
{
    const struct config *config;
    struct port *port;
    bool joined = false;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    port = calloc(1, sizeof *port);
    if (port == NULL)
        return error_system(ENOMEM, "a listener");
    *port = (struct port){.fd = -1, .wake_up = -1, .sign = *sign, .address = *address};
    if (config->ports.first != 0) {
        fork_hold();
        port->wake_up = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        result = fork_release(port->wake_up) && port->wake_up >= 0
                     ? port_join(port, &config->ports, &joined)
                     : error_system(errno, "a listener");
    }
    if (result == TCPX_SUCCESS && !joined)
        result = port_listen_in(table, *address, &config->ports, &port->fd, &port->address);
    if (result != TCPX_SUCCESS) {
        port_close(port);
        return result;
    }
    *out = port;
    return TCPX_SUCCESS;
}

static void port_leave(struct port *port)
{
    struct port **at;

    pthread_mutex_lock(&shared_lock);
    for (at = shared != NULL ? &shared->members : &port->next; *at != NULL; at = &(*at)->next)
        if (*at == port) {
            *at = port->next;
            break;
        }
    while (port->arrived_count > 0)
        socket_close(&port->arrived[--port->arrived_count]);
    if (shared != NULL && shared->members == NULL)
        shared_close();
    pthread_mutex_unlock(&shared_lock);
}

void port_close(struct port *port)
{
    if (port == NULL)
        return;
    if (port->fd >= 0)
        socket_close(&port->fd);
    else
        port_leave(port);
    if (port->wake_up >= 0)
        fork_close(port->wake_up);
    free(port);
}

void port_address(const struct port *port, struct sockaddr_storage *address)
{
    *address = port->address;
}

/* --- whose connection ---------------------------------------------------------------------- */

/* Whether a connection has come to the address of this listener. */
static bool port_is_at(const struct port *port, int fd)
{
    union socket_address local = {0};
    union socket_address listens = {.storage = port->address};
    socklen_t length = sizeof local.storage;
    size_t bytes;
    size_t others;
    const void *one;
    const void *other;

    if (port_is_any(&port->address))
        return true;
    if (getsockname(fd, (struct sockaddr *)&local.storage, &length) != 0)
        return false;
    socket_address_unmap(&local.storage);
    one = socket_address_bytes(&local, &bytes);
    other = socket_address_bytes(&listens, &others);
    return bytes == others && memcmp(one, other, bytes) == 0;
}

static bool port_is_kind(const struct port *port, const uint8_t *bytes, size_t have)
{
    size_t compared = have < PORT_KIND_BYTES ? have : PORT_KIND_BYTES;

    return memcmp(port->sign.kind, bytes, compared) == 0;
}

enum whose { WHOSE_NONE, WHOSE_UNDECIDED, WHOSE_FOUND };

/*
 * A connection of a kind that has a listener, but with no listener's key, goes to any of that kind,
 * which says what is wrong with it.
 */
static enum whose shared_find(int fd, const uint8_t *bytes, size_t have, struct port **found)
{
    enum whose whose = WHOSE_NONE;

    for (struct port *port = shared->members; port != NULL; port = port->next) {
        const struct port_sign *sign = &port->sign;

        if (!port_is_kind(port, bytes, have) || !port_is_at(port, fd))
            continue;
        if (have < PORT_KIND_BYTES || (sign->has_key && have < sign->key_at + PORT_KEY_BYTES))
            return WHOSE_UNDECIDED;
        *found = port;
        whose = WHOSE_FOUND;
        if (!sign->has_key || memcmp(sign->key, bytes + sign->key_at, PORT_KEY_BYTES) == 0)
            return WHOSE_FOUND;
    }
    return whose;
}

static void unknown_drop(struct unknown *unknown, const char *why)
{
    char name[SOCKET_NAME_BYTES];

    socket_peer_name(unknown->half.fd, name);
    log_debug("connection from %s dropped: %s", name, why);
    socket_close(&unknown->half.fd);
    unknown->is_held = false;
}

static void unknown_give(struct unknown *unknown, struct port *port)
{
    const uint64_t one = 1;

    unknown->is_held = port->arrived_count == MOST_ARRIVED;
    if (unknown->is_held)
        return;
    if (epoll_ctl(shared->epoll, EPOLL_CTL_DEL, unknown->half.fd, NULL) != 0)
        log_debug("a connection was not watched: %s", strerror(errno));
    port->arrived[port->arrived_count++] = unknown->half.fd;
    unknown->half.fd = -1;
    if (write(port->wake_up, &one, sizeof one) < 0)
        log_debug("a listener is being woken already");
}

/* Gives the connection to its listener, if its first bytes tell which; `ended`: no more will come.
 */
static void unknown_step(struct unknown *unknown, bool ended)
{
    struct port *port = NULL;
    uint8_t bytes[PEEK_BYTES];
    ssize_t have = recv(unknown->half.fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);

    if (have == 0 || (have < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
        unknown_drop(unknown, have == 0 ? "it closed" : strerror(errno));
        return;
    }
    if (have < 0)
        return;
    switch (shared_find(unknown->half.fd, bytes, (size_t)have, &port)) {
    case WHOSE_NONE:
        unknown_drop(unknown, "no listener of this process expects it");
        return;
    case WHOSE_FOUND:
        unknown_give(unknown, port);
        return;
    case WHOSE_UNDECIDED:
        if (ended)
            unknown_drop(unknown, "it closed");
        return;
    }
}

/* --- accepting ----------------------------------------------------------------------------- */

/* A free place, or that of the oldest connection whose listener is not known; NULL: none. */
static struct unknown *shared_place(void)
{
    struct unknown *oldest = NULL;

    for (int i = 0; i < MOST_UNKNOWN; i++) {
        struct unknown *place = &shared->unknown[i];

        if (place->half.fd < 0)
            return place;
        if (!place->is_held && (oldest == NULL || place->half.deadline < oldest->half.deadline))
            oldest = place;
    }
    if (oldest != NULL)
        unknown_drop(oldest, "there are too many");
    return oldest;
}

static int shared_accept(void)
{
    int result = TCPX_SUCCESS;
    int fd = 0;

    for (int i = 0; i < ACCEPTS_PER_CALL && fd >= 0 && result == TCPX_SUCCESS; i++) {
        struct unknown *place = shared_place();

        if (place == NULL)
            break;
        result = half_open_accept(&shared->table, shared->fd, &fd);
        if (result != TCPX_SUCCESS || fd < 0)
            break;
        half_open_enter(&shared->table, &place->half, fd);
        if (!shared_watch(shared, fd, place))
            unknown_drop(place, strerror(errno));
        else
            unknown_step(place, false);
    }
    return result;
}

static int shared_step(void)
{
    struct epoll_event events[MOST_UNKNOWN];
    int count = epoll_wait(shared->epoll, events, MOST_UNKNOWN, 0);

    half_open_advance(&shared->table, COUNTED_PAUSE_NS);
    for (int i = 0; i < count; i++) {
        struct unknown *unknown = events[i].data.ptr;

        if (unknown != NULL && unknown->half.fd >= 0)
            unknown_step(unknown, (events[i].events & ~(uint32_t)EPOLLIN) != 0);
    }
    for (int i = 0; i < MOST_UNKNOWN; i++) {
        struct unknown *unknown = &shared->unknown[i];

        if (unknown->half.fd >= 0 && unknown->is_held)
            unknown_step(unknown, false);
        else if (unknown->half.fd >= 0 && shared->table.clock >= unknown->half.deadline)
            unknown_drop(unknown, "it did not say in time what it is for");
    }
    return shared_accept();
}

static int port_take_arrived(struct port *port)
{
    uint64_t ignored;
    int fd = port->arrived[0];

    memmove(&port->arrived[0], &port->arrived[1], --port->arrived_count * sizeof port->arrived[0]);
    if (port->arrived_count == 0 && read(port->wake_up, &ignored, sizeof ignored) < 0)
        log_debug("a listener was woken without a reason");
    return fd;
}

int port_accept(struct port *port, struct half_open_table *table, int *fd)
{
    int result = TCPX_SUCCESS;

    if (port->fd >= 0)
        return half_open_accept(table, port->fd, fd);
    *fd = -1;
    pthread_mutex_lock(&shared_lock);
    if (port->arrived_count == 0)
        result = shared_step();
    table->backoff_ends = shared->table.backoff_ends;
    if (port->arrived_count > 0)
        *fd = port_take_arrived(port);
    pthread_mutex_unlock(&shared_lock);
    return *fd >= 0 ? TCPX_SUCCESS : result;
}

unsigned port_poll(const struct port *port, struct pollfd polled[PORT_POLLED])
{
    if (port->fd >= 0) {
        polled[0] = (struct pollfd){.fd = port->fd, .events = POLLIN};
        return 1;
    }
    pthread_mutex_lock(&shared_lock);
    polled[0] = (struct pollfd){.fd = shared->epoll, .events = POLLIN};
    polled[1] = (struct pollfd){.fd = port->wake_up, .events = POLLIN};
    pthread_mutex_unlock(&shared_lock);
    return 2;
}
