/* One listening socket, and which listener each of its connections is for. */
#include "net/socket/shared_port.h"

#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"
#include "net/socket/listening.h"
#include "net/socket/socket.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    MOST_UNKNOWN = 128, /* connections whose listener is not known yet, or has no room for more */
    ACCEPTS_PER_CALL = 64,
    PEEK_BYTES = 64,
    UNKNOWN_MS = 5000,
};

/* Only this much of a pause between two calls counts against a connection. */
#define COUNTED_PAUSE_NS 100000000u

/* A connection at the shared port that no listener has yet. */
struct unknown {
    struct half_open half;
    bool is_held; /* its listener is known, and has no room for more at the moment */
};

struct shared_port {
    int fd;
    int epoll; /* of the listening socket and of all unknown connections */
    struct sockaddr_storage address;
    struct shared_member *members;
    struct half_open_table table;
    struct unknown unknown[MOST_UNKNOWN];
};

/* Guards the shared port, its table and what its members share. */
static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;
static struct shared_port *shared; /* NULL: no listener shares */

/* --- the port ------------------------------------------------------------------------------ */

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
    result = listening_open(&ours->table, everywhere.storage, range, &ours->fd, &ours->address);
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
    for (const struct shared_member *member = shared != NULL ? shared->members : NULL;
         member != NULL; member = member->next)
        if (!sign->has_key && !member->sign.has_key &&
            memcmp(member->sign.kind, sign->kind, PORT_KIND_BYTES) == 0)
            return false;
    return true;
}

/* Whether a listener that wants this port, or any if it is 0, can share. */
static bool shared_can_have(const struct config_ports *range, uint16_t wanted)
{
    return range->first != 0 &&
           (wanted == 0 || (wanted >= range->first && wanted <= range->last &&
                            (shared == NULL || listening_port(&shared->address) == wanted)));
}

int shared_port_join(struct shared_member *member, const struct config_ports *range, bool *joined)
{
    uint16_t wanted = listening_port(&member->address);
    int result = TCPX_SUCCESS;

    pthread_mutex_lock(&shared_lock);
    *joined = shared_can_have(range, wanted) && shared_can_tell(&member->sign);
    if (*joined && shared == NULL)
        result = shared_open(range, wanted);
    if (*joined && result == TCPX_SUCCESS) {
        listening_set_port(&member->address, listening_port(&shared->address));
        member->next = shared->members;
        shared->members = member;
    }
    pthread_mutex_unlock(&shared_lock);
    return result;
}

void shared_port_leave(struct shared_member *member)
{
    struct shared_member **at;

    pthread_mutex_lock(&shared_lock);
    for (at = &shared->members; *at != member; at = &(*at)->next)
        ;
    *at = member->next;
    while (member->arrived_count > 0)
        socket_close(&member->arrived[--member->arrived_count]);
    if (shared->members == NULL)
        shared_close();
    pthread_mutex_unlock(&shared_lock);
}

/* --- whose connection ---------------------------------------------------------------------- */

/* Whether a connection has come to the address of this listener. */
static bool member_is_at(const struct shared_member *member, int fd)
{
    union socket_address local = {0};
    union socket_address listens = {.storage = member->address};
    socklen_t length = sizeof local.storage;
    size_t bytes;
    size_t others;
    const void *one;
    const void *other;

    if (listening_is_any(&member->address))
        return true;
    if (getsockname(fd, (struct sockaddr *)&local.storage, &length) != 0)
        return false;
    socket_address_unmap(&local.storage);
    one = socket_address_bytes(&local, &bytes);
    other = socket_address_bytes(&listens, &others);
    return bytes == others && memcmp(one, other, bytes) == 0;
}

static bool member_is_kind(const struct shared_member *member, const uint8_t *bytes, size_t have)
{
    size_t compared = have < PORT_KIND_BYTES ? have : PORT_KIND_BYTES;

    return memcmp(member->sign.kind, bytes, compared) == 0;
}

enum whose { WHOSE_NONE, WHOSE_UNDECIDED, WHOSE_FOUND };

/*
 * A connection of a kind that has a listener, but with no listener's key, goes to any of that kind,
 * which says what is wrong with it.
 */
static enum whose shared_find(int fd, const uint8_t *bytes, size_t have,
                              struct shared_member **found)
{
    enum whose whose = WHOSE_NONE;

    for (struct shared_member *member = shared->members; member != NULL; member = member->next) {
        const struct port_sign *sign = &member->sign;

        if (!member_is_kind(member, bytes, have) || !member_is_at(member, fd))
            continue;
        if (have < PORT_KIND_BYTES || (sign->has_key && have < sign->key_at + PORT_KEY_BYTES))
            return WHOSE_UNDECIDED;
        *found = member;
        whose = WHOSE_FOUND;
        if (!sign->has_key || socket_is_token(sign->key, bytes + sign->key_at, PORT_KEY_BYTES))
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

static void unknown_give(struct unknown *unknown, struct shared_member *member)
{
    const uint64_t one = 1;

    unknown->is_held = member->arrived_count == SHARED_PORT_ARRIVED;
    if (unknown->is_held)
        return;
    if (epoll_ctl(shared->epoll, EPOLL_CTL_DEL, unknown->half.fd, NULL) != 0)
        log_debug("a connection was not watched: %s", strerror(errno));
    member->arrived[member->arrived_count++] = unknown->half.fd;
    unknown->half.fd = -1;
    if (write(member->wake_up, &one, sizeof one) < 0)
        log_debug("a listener is being woken already");
}

/* Gives the connection to its listener, if its first bytes tell which; `ended`: no more will come.
 */
static void unknown_step(struct unknown *unknown, bool ended)
{
    struct shared_member *member = NULL;
    uint8_t bytes[PEEK_BYTES];
    ssize_t have = recv(unknown->half.fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);

    if (have == 0 || (have < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
        unknown_drop(unknown, have == 0 ? "it closed" : strerror(errno));
        return;
    }
    if (have < 0)
        return;
    switch (shared_find(unknown->half.fd, bytes, (size_t)have, &member)) {
    case WHOSE_NONE:
        unknown_drop(unknown, "no listener of this process expects it");
        return;
    case WHOSE_FOUND:
        unknown_give(unknown, member);
        return;
    case WHOSE_UNDECIDED:
        if (ended)
            unknown_drop(unknown, "it closed");
        return;
    }
}

/* --- accepting ----------------------------------------------------------------------------- */

/* Whether one more connection can be accepted. */
static bool shared_has_room(void)
{
    for (int i = 0; i < MOST_UNKNOWN; i++)
        if (shared->unknown[i].half.fd < 0 || !shared->unknown[i].is_held)
            return true;
    return false;
}

/* A free place, or that of the oldest connection whose listener is not known. */
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
    unknown_drop(oldest, "there are too many");
    return oldest;
}

static int shared_accept(void)
{
    int result = TCPX_SUCCESS;
    int fd;

    for (int i = 0; i < ACCEPTS_PER_CALL && shared_has_room(); i++) {
        struct unknown *place;

        result = half_open_accept(&shared->table, shared->fd, &fd);
        if (result != TCPX_SUCCESS || fd < 0)
            break;
        place = shared_place();
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

static int member_take_arrived(struct shared_member *member)
{
    uint64_t ignored;
    int fd = member->arrived[0];

    memmove(&member->arrived[0], &member->arrived[1],
            --member->arrived_count * sizeof member->arrived[0]);
    if (member->arrived_count == 0 && read(member->wake_up, &ignored, sizeof ignored) < 0)
        log_debug("a listener was woken without a reason");
    return fd;
}

int shared_port_accept(struct shared_member *member, struct half_open_table *table, int *fd)
{
    int result = TCPX_SUCCESS;

    *fd = -1;
    pthread_mutex_lock(&shared_lock);
    if (member->arrived_count == 0)
        result = shared_step();
    table->backoff_ends = shared->table.backoff_ends;
    if (member->arrived_count > 0)
        *fd = member_take_arrived(member);
    pthread_mutex_unlock(&shared_lock);
    return *fd >= 0 ? TCPX_SUCCESS : result;
}

unsigned shared_port_poll(const struct shared_member *member, struct pollfd polled[PORT_POLLED])
{
    pthread_mutex_lock(&shared_lock);
    polled[0] = (struct pollfd){.fd = shared->epoll, .events = POLLIN};
    polled[1] = (struct pollfd){.fd = member->wake_up, .events = POLLIN};
    pthread_mutex_unlock(&shared_lock);
    return 2;
}
