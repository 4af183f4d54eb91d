/*
 * The listening side of the bootstrap. Newcomers are bounded in number and time, since anybody can
 * open a connection. When there is no place, one gives way that is chosen at random among those of
 * its kind: a flood of strangers that do not greet never closes a newcomer that has greeted, and a
 * peer that gave way tries again.
 */
#include "session/bootstrap.h"

#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"
#include "net/socket/socket.h"
#include "session/bootstrap_address.h"
#include "session/newcomer.h"
#include "session/secret.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_HALF_OPEN = 64, /* that have not greeted */
    MOST_GREETED = 128,  /* whose proof is due; strangers can greet, too */
    MOST_NEWCOMERS = MOST_HALF_OPEN + MOST_GREETED,
    NEWCOMER_MS = 5000,
    ACCEPTS_PER_CALL = 64,
    BACKLOG = 1024,
    REASON_BYTES = 512,
};

/* How often connections are tried that could not be accepted for want of descriptors or memory. */
enum { WANT_PAUSE_MS = 10 };

/* --- listening ----------------------------------------------------------------------------- */

struct bootstrap_listener {
    int fd;
    uint16_t port;
    struct secret *secret; /* NULL: none */
    uint64_t want_ends;    /* when it becomes an error; 0: there is no want */
    uint64_t left;         /* when the latest bootstrap_accept() returned */
    struct newcomer newcomers[MOST_NEWCOMERS];
    char dropped[REASON_BYTES]; /* why the latest connection was; "": none */
};

/* *missing: whether it failed because this host has no such addresses. */
static int listen_on(const struct sockaddr_storage *address, int *fd, bool *missing)
{
    const int on = 1;
    const int off = 0;
    const int silence_s = NEWCOMER_MS / 1000;
    char name[SOCKET_NAME_BYTES];
    int error;
    int result = socket_open(address->ss_family, fd);

    *missing = true;
    if (result != TCPX_SUCCESS)
        return result;
    /*
     * A connection takes a place here only when its first bytes are there: silent ones wait in the
     * kernel.
     * A program that starts again gets its port again.
     */
    if ((address->ss_family != AF_INET6 ||
         setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0) &&
        setsockopt(*fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &silence_s, sizeof silence_s) == 0 &&
        setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(*fd, (const struct sockaddr *)address, socket_address_length(address)) == 0 &&
        listen(*fd, BACKLOG) == 0)
        return TCPX_SUCCESS;
    error = errno;
    *missing = error == EADDRNOTAVAIL || error == EAFNOSUPPORT;
    socket_close(fd);
    bootstrap_address_name(address, name);
    return error_system(error, "cannot listen on %s", name);
}

/* IPv6 takes IPv4 along. */
static int listen_everywhere(uint16_t port, int *fd)
{
    union socket_address any = {.ipv6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)}};
    union socket_address ipv4 = {.ipv4 = {.sin_family = AF_INET, .sin_port = htons(port)}};
    bool missing;
    int result = listen_on(&any.storage, fd, &missing);

    if (result == TCPX_SUCCESS || !missing)
        return result;
    log_debug("no IPv6 for the bootstrap: %s", error_text());
    return listen_on(&ipv4.storage, fd, &missing);
}

static int listen_at(const char *address, uint16_t port, int *fd)
{
    struct addrinfo *list;
    bool passing;
    int result = bootstrap_resolve(address, port, AI_PASSIVE, &list, &passing);

    if (result != TCPX_SUCCESS)
        return result;
    result = TCPX_SYSTEM_ERROR;
    for (struct addrinfo *at = list; at != NULL && result != TCPX_SUCCESS; at = at->ai_next) {
        struct sockaddr_storage where;
        bool missing;

        bootstrap_address_copy(at, &where);
        result = listen_on(&where, fd, &missing);
    }
    freeaddrinfo(list);
    return result;
}

static int find_port(struct bootstrap_listener *listener)
{
    union socket_address any = {0};
    socklen_t length = sizeof any.storage;

    if (getsockname(listener->fd, (struct sockaddr *)&any.storage, &length) != 0)
        return error_system(errno, "getsockname");
    listener->port =
        ntohs(any.storage.ss_family == AF_INET ? any.ipv4.sin_port : any.ipv6.sin6_port);
    return TCPX_SUCCESS;
}

int bootstrap_listen(const char *address, uint16_t port, const char *secret_file,
                     struct bootstrap_listener **out)
{
    struct bootstrap_listener *listener;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    listener = calloc(1, sizeof *listener);
    if (listener == NULL)
        return error_system(ENOMEM, "a listener");
    result = secret_load(secret_file, secret_libraries, &listener->secret);
    if (result != TCPX_SUCCESS)
        goto free_listener;
    result = address == NULL || *address == '\0' ? listen_everywhere(port, &listener->fd)
                                                 : listen_at(address, port, &listener->fd);
    if (result != TCPX_SUCCESS)
        goto free_secret;
    result = find_port(listener);
    if (result != TCPX_SUCCESS)
        goto close_socket;
    *out = listener;
    return TCPX_SUCCESS;

close_socket:
    socket_close(&listener->fd);
free_secret:
    secret_free(listener->secret);
free_listener:
    free(listener);
    return result;
}

uint16_t bootstrap_port(const struct bootstrap_listener *listener)
{
    return listener->port;
}

void bootstrap_listener_close(struct bootstrap_listener *listener)
{
    if (listener == NULL || fork_check() != TCPX_SUCCESS)
        return;
    for (int i = 0; i < MOST_NEWCOMERS; i++)
        newcomer_close(&listener->newcomers[i]);
    socket_close(&listener->fd);
    secret_free(listener->secret);
    free(listener);
}

/* --- newcomers ----------------------------------------------------------------------------- */

/* With its reason, which error_text() is. */
static void drop(struct bootstrap_listener *listener, struct newcomer *newcomer)
{
    snprintf(listener->dropped, sizeof listener->dropped, "%s", error_text());
    log_warn("a connection to the bootstrap was dropped: %s", listener->dropped);
    if (newcomer->stage != NEWCOMER_REFUSED)
        newcomer_close(newcomer);
}

static void drop_saying(struct bootstrap_listener *listener, struct newcomer *newcomer,
                        const char *reason)
{
    error_keep("%s %s", newcomer->name, reason);
    drop(listener, newcomer);
    newcomer_close(newcomer);
}

static unsigned count_kind(const struct bootstrap_listener *listener, bool greeted)
{
    unsigned count = 0;

    for (int i = 0; i < MOST_NEWCOMERS; i++)
        count += listener->newcomers[i].stage != NEWCOMER_NONE &&
                 newcomer_has_greeted(&listener->newcomers[i]) == greeted;
    return count;
}

/* At random: nobody can arrange to be the one that stays, or know which one goes. */
static void make_place(struct bootstrap_listener *listener, bool greeted, unsigned count)
{
    uint32_t number = 0;
    unsigned victim;

    if (socket_random(&number, sizeof number) != TCPX_SUCCESS)
        number = (uint32_t)clock_now();
    victim = number % count;
    for (int i = 0; i < MOST_NEWCOMERS; i++) {
        struct newcomer *newcomer = &listener->newcomers[i];

        if (newcomer->stage == NEWCOMER_NONE || newcomer_has_greeted(newcomer) != greeted)
            continue;
        if (victim-- == 0) {
            drop_saying(listener, newcomer, "had to make place for others");
            return;
        }
    }
}

/* There is always one: both kinds are bounded. */
static struct newcomer *free_place(struct bootstrap_listener *listener)
{
    struct newcomer *newcomer = listener->newcomers;

    while (newcomer->stage != NEWCOMER_NONE)
        newcomer++;
    return newcomer;
}

/* Moves it on, and drops it if it is no peer. */
static void step_newcomer(struct bootstrap_listener *listener, struct newcomer *newcomer)
{
    bool had_greeted = newcomer_has_greeted(newcomer);

    newcomer->is_ready = false;
    if (newcomer_step(newcomer) != TCPX_SUCCESS)
        drop(listener, newcomer);
    if (newcomer->stage == NEWCOMER_NONE || newcomer->stage == NEWCOMER_PEER)
        return;
    if (deadline_passed(newcomer->deadline))
        drop_saying(listener, newcomer, "did not say in time who it is");
    else if (!had_greeted && newcomer_has_greeted(newcomer) &&
             count_kind(listener, true) > MOST_GREETED)
        make_place(listener, true, MOST_GREETED + 1);
}

/* Heard at once: what greets with its first bytes does not wait among those that may give way. */
static int welcome(struct bootstrap_listener *listener, int fd, struct newcomer **out)
{
    struct newcomer *newcomer;
    int result;

    if (count_kind(listener, false) == MOST_HALF_OPEN)
        make_place(listener, false, MOST_HALF_OPEN);
    newcomer = free_place(listener);
    result = newcomer_start(newcomer, fd, listener->secret, deadline_after_ms(NEWCOMER_MS));
    if (result != TCPX_SUCCESS)
        return result;
    step_newcomer(listener, newcomer);
    *out = newcomer->stage == NEWCOMER_PEER ? newcomer : NULL;
    return TCPX_SUCCESS;
}

/* *peer: the first one that says at once who it is; the others stay in the kernel's queue. */
static int take_newcomers(struct bootstrap_listener *listener, struct newcomer **peer)
{
    for (int i = 0; i < ACCEPTS_PER_CALL && *peer == NULL; i++) {
        int error = 0;
        int fd = socket_accept(listener->fd, &error);
        int result;

        if (fd < 0 && (error == EAGAIN || error == EWOULDBLOCK)) {
            listener->want_ends = 0; /* the kernel takes a descriptor before it looks */
            return TCPX_SUCCESS;
        }
        if (fd < 0 && (error == EBADF || error == EINVAL || error == ENOTSOCK || error == EFAULT))
            return error_system(error, "accept");
        /* Errors of the connection that was to be accepted pass with it. */
        if (fd < 0 && error != EMFILE && error != ENFILE && error != ENOMEM && error != ENOBUFS)
            continue;
        if (fd < 0)
            return socket_bear_want(&listener->want_ends, error);
        listener->want_ends = 0;
        result = welcome(listener, fd, peer);
        if (result != TCPX_SUCCESS)
            return result;
    }
    return TCPX_SUCCESS;
}

/* --- accepting ----------------------------------------------------------------------------- */

/* The time in which no call looked at them does not count against the newcomers. */
static void shift_deadlines(struct bootstrap_listener *listener)
{
    uint64_t away = clock_now() - listener->left;

    for (int i = 0; i < MOST_NEWCOMERS; i++) {
        listener->newcomers[i].deadline += away;
        listener->newcomers[i].is_ready = true;
    }
}

/* Moves on those whose sockets are ready, or whose time is up. */
static struct newcomer *find_peer(struct bootstrap_listener *listener)
{
    for (int i = 0; i < MOST_NEWCOMERS; i++) {
        struct newcomer *newcomer = &listener->newcomers[i];

        if (newcomer->stage != NEWCOMER_NONE &&
            (newcomer->is_ready || deadline_passed(newcomer->deadline)))
            step_newcomer(listener, newcomer);
        if (newcomer->stage == NEWCOMER_PEER)
            return newcomer;
    }
    return NULL;
}

/* Until a connection comes or has something for us, or the time of one is up. */
static int wait_for_somebody(struct bootstrap_listener *listener, uint64_t deadline)
{
    struct pollfd ready[1 + MOST_NEWCOMERS];
    struct newcomer *owners[1 + MOST_NEWCOMERS];
    nfds_t count = 0;

    if (listener->want_ends == 0) {
        owners[count] = NULL;
        ready[count++] = (struct pollfd){.fd = listener->fd, .events = POLLIN};
    } else { /* it would only say that a connection is there, which cannot be accepted */
        uint64_t soon = deadline_after_ms(WANT_PAUSE_MS);

        deadline = soon < deadline ? soon : deadline;
    }
    for (int i = 0; i < MOST_NEWCOMERS; i++) {
        struct newcomer *newcomer = &listener->newcomers[i];

        if (newcomer->stage == NEWCOMER_NONE)
            continue;
        owners[count] = newcomer;
        ready[count++] =
            (struct pollfd){.fd = newcomer_fd(newcomer), .events = newcomer_events(newcomer)};
        deadline = newcomer->deadline < deadline ? newcomer->deadline : deadline;
    }
    if (poll(ready, count, control_poll_ms(deadline)) < 0 && errno != EINTR)
        return error_system(errno, "poll for peers at port %u", listener->port);
    for (nfds_t i = 0; i < count; i++)
        if (owners[i] != NULL)
            owners[i]->is_ready = ready[i].revents != 0;
    return TCPX_SUCCESS;
}

static int accept_until(struct bootstrap_listener *listener, uint64_t deadline,
                        struct control **control)
{
    for (;;) {
        struct newcomer *peer = find_peer(listener);
        int result = TCPX_SUCCESS;

        if (peer == NULL)
            result = take_newcomers(listener, &peer);
        if (result != TCPX_SUCCESS)
            return result;
        if (peer != NULL) {
            *control = newcomer_take(peer);
            return TCPX_SUCCESS;
        }
        if (deadline_passed(deadline))
            return error_set(
                TCPX_IN_PROGRESS, "no peer came to port %u in time%s%s", listener->port,
                *listener->dropped != '\0' ? "; the latest connection was dropped: " : "",
                listener->dropped);
        result = wait_for_somebody(listener, deadline);
        if (result != TCPX_SUCCESS)
            return result;
    }
}

int bootstrap_accept(struct bootstrap_listener *listener, uint64_t deadline,
                     struct control **control)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    shift_deadlines(listener);
    listener->dropped[0] = '\0';
    result = accept_until(listener, deadline, control);
    listener->left = clock_now();
    return result;
}
