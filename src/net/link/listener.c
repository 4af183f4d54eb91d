/*
 * The accepting side of a handshake. A newcomer is a connection that has not presented the token
 * yet, or that is being refused; anybody can open one, so newcomers are bounded in number and time.
 * A gathering is a half-open link: its connections have presented the token. It stays while its
 * sockets live, since a program that is late is no dead peer; gatherings are bounded in number and
 * in descriptors. All records are sent and read in as many parts as the sockets make of them.
 */
#include "net/link/link.h"

#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    MOST_NEWCOMERS = 128,
    MOST_GATHERINGS = 128,
    LARGEST_LINK = WIRE_MOST_SOCKETS + 1,
    MOST_GATHERED = 32 * LARGEST_LINK, /* descriptors of all gatherings */
    ACCEPTS_PER_CALL = 64,
    BACKLOG = 4096,
};

/* Of the time between two calls of net_accept() only this much counts against a peer. */
#define COUNTED_PAUSE_NS 100000000u

struct newcomer {
    int fd;            /* -1: this place is free */
    uint64_t deadline; /* all deadlines here are moments of the listener's own clock */
    size_t have;
    uint8_t hello[WIRE_HELLO_BYTES];
    size_t abort_bytes; /* not 0: it is refused, and closed when it has been sent the ABORT */
    size_t abort_sent;
    uint8_t abort[WIRE_ABORT_BYTES];
};

struct gathering {
    struct net_link link;
    uint64_t comm;
    uint64_t deadline; /* from then on it may be dropped to make room, if it is not complete */
    uint64_t check_at; /* when it is looked next whether its peer is still there */
    uint64_t order;    /* the oldest has the least */
    unsigned present;  /* connections; 0: this place is free */
    bool is_steered;
    size_t ready_sent; /* bytes of READY */
};

struct net_listener {
    int fd;
    struct net_link_options options;
    uint64_t clock;     /* nanoseconds in which the program called net_accept() often enough */
    uint64_t called_at; /* when it did so last */
    uint64_t next_order;
    unsigned most_gathered;   /* descriptors */
    struct devmem_pool *pool; /* that its links' payload goes to; NULL: none */
    uint64_t want_ends;       /* when it becomes an error; 0: there is no want */
    uint8_t token[WIRE_TOKEN_BYTES];
    struct newcomer newcomers[MOST_NEWCOMERS];
    struct gathering gatherings[MOST_GATHERINGS];
};

/* --- time ---------------------------------------------------------------------------------- */

/* A peer that has spoken in time is not dropped because this program was late to read it. */
static void advance_clock(struct net_listener *listener)
{
    uint64_t now = clock_now();
    uint64_t passed = now - listener->called_at;

    listener->clock += passed < COUNTED_PAUSE_NS ? passed : COUNTED_PAUSE_NS;
    listener->called_at = now;
}

static uint64_t after_handshake(const struct net_listener *listener)
{
    return listener->clock + listener->options.handshake_ms * 1000000;
}

static bool has_passed(const struct net_listener *listener, uint64_t deadline)
{
    return listener->clock >= deadline;
}

/* --- listening ----------------------------------------------------------------------------- */

static int bind_and_listen(struct net_listener *listener, const struct net_device *device,
                           struct sockaddr_storage *bound)
{
    int silence_s = (int)(listener->options.handshake_ms + 999) / 1000;
    socklen_t length = socket_address_length(&device->address);
    char name[SOCKET_NAME_BYTES];

    /* Nobody takes a place here before he has said something: the silent ones wait in the kernel.
     */
    if (setsockopt(listener->fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &silence_s, sizeof silence_s) !=
            0 ||
        bind(listener->fd, (const struct sockaddr *)&device->address, length) != 0 ||
        listen(listener->fd, BACKLOG) != 0 ||
        getsockname(listener->fd, (struct sockaddr *)bound, &length) != 0) {
        int error = errno;

        socket_address_name(&device->address, name);
        return error_system(error, "cannot listen on %s (%s)", name, device->name);
    }
    return TCPX_SUCCESS;
}

/* A peer with the token must not take more than half of what this process may open. */
static unsigned most_gathered(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur / 2 > MOST_GATHERED)
        return MOST_GATHERED;
    return limit.rlim_cur / 2 > LARGEST_LINK ? (unsigned)limit.rlim_cur / 2 : LARGEST_LINK;
}

int net_listen(const struct net_device *device, const struct net_link_options *options,
               uint8_t handle_bytes[NET_HANDLE_BYTES], struct net_listener **out)
{
    struct net_handle handle = {0};
    struct net_listener *listener;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    listener = calloc(1, sizeof *listener);
    if (listener == NULL)
        return error_system(ENOMEM, "a listener");
    listener->options = *options;
    listener->called_at = clock_now();
    listener->most_gathered = most_gathered();
    for (int i = 0; i < MOST_NEWCOMERS; i++)
        listener->newcomers[i].fd = -1;
    result = devmem_link_pool(device, options->gpu, &listener->pool);
    if (result != TCPX_SUCCESS)
        goto free_listener;
    if (listener->pool != NULL)
        listener->options.framing = WIRE_SEPARATE;
    result = socket_open(device->address.ss_family, &listener->fd);
    if (result != TCPX_SUCCESS)
        goto give_pool;
    result = socket_random(listener->token, sizeof listener->token);
    if (result == TCPX_SUCCESS)
        result = net_handle_process(&handle.process);
    if (result == TCPX_SUCCESS)
        result = bind_and_listen(listener, device, &handle.address);
    if (result != TCPX_SUCCESS)
        goto close_socket;
    memcpy(handle.token, listener->token, sizeof handle.token);
    handle.framing = listener->options.framing;
    net_handle_write(&handle, handle_bytes);
    *out = listener;
    return TCPX_SUCCESS;

close_socket:
    socket_close(&listener->fd);
give_pool:
    devmem_pool_give(listener->pool);
free_listener:
    free(listener);
    return result;
}

static void drop_gathering(struct gathering *gathering)
{
    net_link_close(&gathering->link);
    gathering->present = 0;
}

void net_listener_close(struct net_listener *listener)
{
    if (listener == NULL || fork_check() != TCPX_SUCCESS)
        return;
    for (int i = 0; i < MOST_NEWCOMERS; i++)
        socket_close(&listener->newcomers[i].fd);
    for (int i = 0; i < MOST_GATHERINGS; i++)
        if (listener->gatherings[i].present != 0)
            drop_gathering(&listener->gatherings[i]);
    socket_close(&listener->fd);
    devmem_pool_give(listener->pool);
    free(listener);
}

/* --- newcomers ----------------------------------------------------------------------------- */

/* A free place; if there is none, that of whoever has been silent for longest. */
static struct newcomer *place_for_newcomer(struct net_listener *listener)
{
    struct newcomer *oldest = &listener->newcomers[0];

    for (int i = 0; i < MOST_NEWCOMERS; i++) {
        struct newcomer *newcomer = &listener->newcomers[i];

        if (newcomer->fd < 0)
            return newcomer;
        if (newcomer->deadline < oldest->deadline)
            oldest = newcomer;
    }
    socket_close(&oldest->fd);
    return oldest;
}

static int take_newcomers(struct net_listener *listener)
{
    for (int i = 0; i < ACCEPTS_PER_CALL; i++) {
        struct newcomer *newcomer;
        int error = 0;
        int fd = socket_accept(listener->fd, &error);

        if (fd < 0 && (error == EAGAIN || error == EWOULDBLOCK)) {
            listener->want_ends = 0; /* the kernel takes a descriptor before it looks */
            return TCPX_SUCCESS;
        }
        /* Errors of the connection that was to be accepted pass. */
        if (fd < 0 && (error == EBADF || error == EINVAL || error == ENOTSOCK || error == EFAULT))
            return error_system(error, "accept");
        if (fd < 0 && (error == EINTR || error == ECONNABORTED))
            continue;
        if (fd < 0)
            return socket_bear_want(&listener->want_ends, error);
        listener->want_ends = 0;
        newcomer = place_for_newcomer(listener);
        *newcomer = (struct newcomer){.fd = fd, .deadline = after_handshake(listener)};
    }
    return TCPX_SUCCESS;
}

/* As much of the ABORT as the socket takes now. */
static void send_abort(struct newcomer *newcomer)
{
    if (!socket_send_rest(newcomer->fd, newcomer->abort, newcomer->abort_bytes,
                          &newcomer->abort_sent))
        log_debug("a refused connection was gone already");
    else if (newcomer->abort_sent < newcomer->abort_bytes)
        return;
    /* So that the text is not destroyed by a close with unread bytes. */
    shutdown(newcomer->fd, SHUT_WR);
    socket_close(&newcomer->fd);
}

static void refuse(struct newcomer *newcomer, enum tcpx_result result, const char *reason)
{
    newcomer->abort_bytes = wire_abort_write(result, reason, newcomer->abort);
    send_abort(newcomer);
}

static void drop_newcomer(struct newcomer *newcomer, const char *reason)
{
    char name[SOCKET_NAME_BYTES];

    socket_peer_name(newcomer->fd, name);
    log_debug("connection from %s dropped: %s", name, reason);
    socket_close(&newcomer->fd);
}

/* In a time that does not tell how many bytes were right. */
static bool same_token(const uint8_t *a, const uint8_t *b)
{
    unsigned difference = 0;

    for (int i = 0; i < WIRE_TOKEN_BYTES; i++)
        difference |= a[i] ^ b[i];
    return difference == 0;
}

/* Before READY a peer sends nothing: what can be read is its end, or breaks the protocol. */
static bool is_silent(int fd)
{
    uint8_t byte;

    return fd < 0 || (recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
                      (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
}

static bool peer_is_there(const struct gathering *gathering)
{
    for (unsigned i = 0; i < gathering->link.sockets; i++)
        if (!is_silent(gathering->link.forward[i]))
            return false;
    return is_silent(gathering->link.reverse);
}

static bool is_complete(const struct gathering *gathering)
{
    return gathering->present == gathering->link.sockets + 1u;
}

static unsigned descriptors_of(const struct gathering *gathering)
{
    return gathering->present != 0 ? gathering->link.sockets + 1u : 0;
}

/* A free place for a link of so many descriptors; NULL: there is none. */
static struct gathering *free_gathering(struct net_listener *listener, unsigned descriptors)
{
    struct gathering *unused = NULL;

    for (int i = 0; i < MOST_GATHERINGS; i++) {
        descriptors += descriptors_of(&listener->gatherings[i]);
        if (listener->gatherings[i].present == 0)
            unused = &listener->gatherings[i];
    }
    return descriptors <= listener->most_gathered ? unused : NULL;
}

/* The oldest whose peer has had its time and not connected all its sockets; NULL: there is none. */
static struct gathering *oldest_incomplete(struct net_listener *listener)
{
    struct gathering *oldest = NULL;

    for (int i = 0; i < MOST_GATHERINGS; i++) {
        struct gathering *gathering = &listener->gatherings[i];

        if (gathering->present != 0 && !is_complete(gathering) &&
            has_passed(listener, gathering->deadline) &&
            (oldest == NULL || gathering->order < oldest->order))
            oldest = gathering;
    }
    return oldest;
}

/* Makes room at the cost of peers that have left, and then of those that are late. */
static struct gathering *place_for_gathering(struct net_listener *listener, unsigned descriptors)
{
    struct gathering *unused = free_gathering(listener, descriptors);
    struct gathering *late;

    for (int i = 0; i < MOST_GATHERINGS && unused == NULL; i++)
        if (listener->gatherings[i].present != 0 && !peer_is_there(&listener->gatherings[i])) {
            drop_gathering(&listener->gatherings[i]);
            unused = free_gathering(listener, descriptors);
        }
    while (unused == NULL && (late = oldest_incomplete(listener)) != NULL) {
        drop_gathering(late);
        unused = free_gathering(listener, descriptors);
    }
    return unused;
}

static struct gathering *find_gathering(struct net_listener *listener,
                                        const struct wire_hello *hello)
{
    struct gathering *unused;

    for (int i = 0; i < MOST_GATHERINGS; i++) {
        struct gathering *gathering = &listener->gatherings[i];

        if (gathering->present != 0 && gathering->comm == hello->comm)
            return gathering->link.sockets == hello->sockets ? gathering : NULL;
    }
    unused = place_for_gathering(listener, hello->sockets + 1u);
    if (unused == NULL)
        return NULL;
    *unused = (struct gathering){.comm = hello->comm,
                                 .deadline = after_handshake(listener),
                                 .check_at = after_handshake(listener),
                                 .order = listener->next_order++,
                                 .link = {.sockets = hello->sockets,
                                          .reverse = -1,
                                          .match = listener->options.match,
                                          .framing = listener->options.framing,
                                          .eager_limit = listener->options.eager_limit,
                                          .eager_credit = listener->options.eager_credit,
                                          .largest_slice = listener->options.largest_slice,
                                          .requests = listener->options.requests,
                                          .no_kernels = listener->options.no_kernels}};
    for (int i = 0; i < WIRE_MOST_SOCKETS; i++)
        unused->link.forward[i] = -1;
    return unused;
}

static void join_gathering(struct net_listener *listener, struct newcomer *newcomer,
                           const struct wire_hello *hello)
{
    struct gathering *gathering = find_gathering(listener, hello);
    int *place;

    if (gathering == NULL) {
        drop_newcomer(newcomer, "too many links are being made, or its link has other sockets");
        return;
    }
    place = hello->role == WIRE_REVERSE ? &gathering->link.reverse
                                        : &gathering->link.forward[hello->index];
    if (*place >= 0) {
        drop_newcomer(newcomer, "its place in the link is taken");
        return;
    }
    if (socket_tune(newcomer->fd, listener->options.timeout_ms) != TCPX_SUCCESS) {
        drop_newcomer(newcomer, error_text());
        return;
    }
    *place = newcomer->fd;
    newcomer->fd = -1;
    gathering->present++;
}

static void hear_hello(struct net_listener *listener, struct newcomer *newcomer)
{
    struct wire_hello hello;
    unsigned version = 0;
    char reason[WIRE_ABORT_TEXT];

    switch (wire_hello_read(newcomer->hello, &hello, &version)) {
    case WIRE_OTHER_VERSION:
        snprintf(reason, sizeof reason, "the listener speaks protocol version %u, you version %u",
                 WIRE_VERSION, version);
        refuse(newcomer, TCPX_INVALID_USAGE, reason);
        return;
    case WIRE_NOT_TCPX:
    case WIRE_MALFORMED:
        drop_newcomer(newcomer, error_text());
        return;
    case WIRE_FINE:
        break;
    }
    if (!same_token(hello.token, listener->token))
        drop_newcomer(newcomer, "it does not know the token");
    else if (hello.match != listener->options.match)
        refuse(newcomer, TCPX_INVALID_USAGE,
               "the listener matches messages to receives in another way");
    else if (hello.framing != listener->options.framing)
        refuse(newcomer, TCPX_INVALID_USAGE, "the listener uses another framing");
    else
        join_gathering(listener, newcomer, &hello);
}

static void read_hello(struct net_listener *listener, struct newcomer *newcomer)
{
    ssize_t got = recv(newcomer->fd, newcomer->hello + newcomer->have,
                       sizeof newcomer->hello - newcomer->have, 0);

    if (got > 0) {
        newcomer->have += (size_t)got;
        if (newcomer->have == sizeof newcomer->hello)
            hear_hello(listener, newcomer);
    } else if (got == 0) {
        drop_newcomer(newcomer, "it closed");
    } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        drop_newcomer(newcomer, strerror(errno));
    }
}

static void hear_newcomer(struct net_listener *listener, struct newcomer *newcomer)
{
    if (newcomer->abort_bytes > 0)
        send_abort(newcomer);
    else
        read_hello(listener, newcomer);
    if (newcomer->fd >= 0 && has_passed(listener, newcomer->deadline))
        drop_newcomer(newcomer, "it did not say in time what it is for");
}

/* --- accepting ----------------------------------------------------------------------------- */

/* Tells the connecting side that all is in place; false: it has gone. */
static bool send_ready(struct gathering *gathering)
{
    uint8_t bytes[WIRE_RECORD_BYTES];
    const struct wire_record ready = {.type = WIRE_READY,
                                      .offset = gathering->link.eager_credit,
                                      .length = gathering->link.eager_limit,
                                      .tag = gathering->link.largest_slice};

    wire_record_write(&ready, bytes);
    return socket_send_rest(gathering->link.reverse, bytes, sizeof bytes, &gathering->ready_sent);
}

/*
 * Payload goes to its queue from the first byte on: none is sent before READY. TCPX_IN_PROGRESS: to
 * be tried again at the next call.
 */
static int steer(const struct net_listener *listener, struct gathering *gathering)
{
    struct net_link *link = &gathering->link;
    int result = TCPX_SUCCESS;

    if (listener->pool == NULL)
        return TCPX_SUCCESS;
    if (link->devmem == NULL)
        result = devmem_link_open(listener->pool, &link->devmem);
    return result == TCPX_SUCCESS ? devmem_link_steer(link->devmem, link->forward, link->sockets)
                                  : result;
}

static bool has_all_peers(const struct net_link *link)
{
    struct sockaddr_storage peer;

    for (unsigned i = 0; i < link->sockets; i++) {
        socklen_t length = sizeof peer;

        if (getpeername(link->forward[i], (struct sockaddr *)&peer, &length) != 0)
            return false;
    }
    return true;
}

/* The peer learns why on its reverse socket, which takes a newcomer's place for that. */
static void refuse_peer(struct net_listener *listener, struct gathering *gathering, int result,
                        const char *why)
{
    struct newcomer *newcomer = place_for_newcomer(listener);

    *newcomer =
        (struct newcomer){.fd = gathering->link.reverse, .deadline = after_handshake(listener)};
    gathering->link.reverse = -1;
    drop_gathering(gathering);
    refuse(newcomer, (enum tcpx_result)result, why);
}

/* One that has gone in the meantime cannot be steered, and that is no failure of the listener. */
static int refuse_gathering(struct net_listener *listener, struct gathering *gathering, int result)
{
    char why[256];

    snprintf(why, sizeof why, "%s", error_text());
    if (!has_all_peers(&gathering->link)) {
        log_debug("a peer left before it was accepted: %s", why);
        drop_gathering(gathering);
        return TCPX_SUCCESS;
    }
    refuse_peer(listener, gathering, result, why);
    return error_set(result, "%s", why);
}

static int finish_gathering(struct net_listener *listener, struct gathering *gathering,
                            struct net_link *link, bool *accepted)
{
    if (!gathering->is_steered) {
        int result = steer(listener, gathering);

        if (result == TCPX_IN_PROGRESS)
            return TCPX_SUCCESS;
        if (result != TCPX_SUCCESS)
            return refuse_gathering(listener, gathering, result);
        gathering->is_steered = true;
    }
    if (!send_ready(gathering)) {
        drop_gathering(gathering);
    } else if (gathering->ready_sent == WIRE_RECORD_BYTES) {
        socket_peer_name(gathering->link.reverse, gathering->link.peer);
        *link = gathering->link;
        gathering->present = 0;
        *accepted = true;
    }
    return TCPX_SUCCESS;
}

static int look_at_gathering(struct net_listener *listener, struct gathering *gathering,
                             struct net_link *link, bool *accepted)
{
    if (gathering->present == 0)
        return TCPX_SUCCESS;
    if (is_complete(gathering))
        return finish_gathering(listener, gathering, link, accepted);
    if (!has_passed(listener, gathering->check_at))
        return TCPX_SUCCESS;
    gathering->check_at = after_handshake(listener);
    if (!peer_is_there(gathering))
        drop_gathering(gathering);
    return TCPX_SUCCESS;
}

int net_accept(struct net_listener *listener, struct net_link *link, bool *accepted)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    advance_clock(listener);
    result = take_newcomers(listener);
    if (result != TCPX_SUCCESS)
        return result;
    for (int i = 0; i < MOST_NEWCOMERS; i++)
        if (listener->newcomers[i].fd >= 0)
            hear_newcomer(listener, &listener->newcomers[i]);
    *accepted = false;
    for (int i = 0; i < MOST_GATHERINGS && !*accepted && result == TCPX_SUCCESS; i++)
        result = look_at_gathering(listener, &listener->gatherings[i], link, accepted);
    return result;
}
