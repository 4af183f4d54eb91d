/*
 * The listening side of the bootstrap. A newcomer is a connection that has not said yet, or not
 * proven, who it is: bounded in number and time, since anybody can open a connection.
 */
#include "session/bootstrap.h"

#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"
#include "net/socket.h"
#include "session/bootstrap_address.h"
#include "session/greeting.h"
#include "session/secret.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_NEWCOMERS = 64,
    NEWCOMER_MS = 5000,
    ACCEPTS_PER_CALL = 64,
    BACKLOG = 1024,
    REASON_BYTES = 512,
};

/* How often connections are tried that could not be accepted for want of descriptors or memory. */
enum { WANT_PAUSE_MS = 10 };

/* --- listening ----------------------------------------------------------------------------- */

struct newcomer {
    int fd;                  /* -1: this place is free, or the control has the socket */
    struct control *control; /* when its greeting was right and a proof is due */
    uint64_t deadline;
    struct bootstrap_side side;
    size_t have;
    uint8_t greeting[BOOTSTRAP_GREETING_BYTES];
    char name[SOCKET_NAME_BYTES];
};

struct bootstrap_listener {
    int fd;
    uint16_t port;
    struct secret *secret; /* NULL: none */
    uint64_t want_ends;    /* when it becomes an error; 0: there is no want */
    uint64_t left;         /* when the latest bootstrap_accept() returned */
    struct newcomer newcomers[MOST_NEWCOMERS];
    char dropped[REASON_BYTES]; /* why the latest connection was; "": none */
};

static bool is_there(const struct newcomer *newcomer)
{
    return newcomer->fd >= 0 || newcomer->control != NULL;
}

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
     * Nobody takes a place here before he has said something: the silent ones wait in the kernel.
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
    for (int i = 0; i < MOST_NEWCOMERS; i++)
        listener->newcomers[i].fd = -1;
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

static void close_newcomer(struct newcomer *newcomer)
{
    socket_close(&newcomer->fd);
    control_close(newcomer->control, 0);
    newcomer->control = NULL;
}

void bootstrap_listener_close(struct bootstrap_listener *listener)
{
    if (listener == NULL || fork_check() != TCPX_SUCCESS)
        return;
    for (int i = 0; i < MOST_NEWCOMERS; i++)
        close_newcomer(&listener->newcomers[i]);
    socket_close(&listener->fd);
    secret_free(listener->secret);
    free(listener);
}

/* --- newcomers ----------------------------------------------------------------------------- */

/* With a text that names the newcomer. */
static void drop_saying(struct bootstrap_listener *listener, struct newcomer *newcomer,
                        const char *text)
{
    snprintf(listener->dropped, sizeof listener->dropped, "%s", text);
    log_warn("a connection to the bootstrap was dropped: %s", listener->dropped);
    close_newcomer(newcomer);
}

static void drop(struct bootstrap_listener *listener, struct newcomer *newcomer, const char *reason)
{
    char text[REASON_BYTES];

    snprintf(text, sizeof text, "%s %s", newcomer->name, reason);
    drop_saying(listener, newcomer, text);
}

/* A free place; if there is none, that of whoever has taken longest. */
static struct newcomer *make_place(struct bootstrap_listener *listener)
{
    struct newcomer *oldest = &listener->newcomers[0];

    for (int i = 0; i < MOST_NEWCOMERS; i++) {
        struct newcomer *newcomer = &listener->newcomers[i];

        if (!is_there(newcomer))
            return newcomer;
        if (newcomer->deadline < oldest->deadline)
            oldest = newcomer;
    }
    drop(listener, oldest, "had to make place for others");
    return oldest;
}

static void name_peer(int fd, char name[SOCKET_NAME_BYTES])
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;

    if (getpeername(fd, (struct sockaddr *)&address, &length) != 0)
        address.ss_family = AF_UNSPEC;
    bootstrap_address_name(&address, name);
}

static int welcome(struct bootstrap_listener *listener, int fd)
{
    struct newcomer *newcomer = make_place(listener);
    int result;

    *newcomer = (struct newcomer){.fd = fd,
                                  .deadline = deadline_after_ms(NEWCOMER_MS),
                                  .side = {.secret = listener->secret, .role = BOOTSTRAP_LISTENS}};
    name_peer(fd, newcomer->name);
    result = secret_nonce(listener->secret, newcomer->side.own);
    if (result != TCPX_SUCCESS)
        close_newcomer(newcomer);
    return result;
}

static int take_newcomers(struct bootstrap_listener *listener)
{
    for (int i = 0; i < ACCEPTS_PER_CALL; i++) {
        int error = 0;
        int fd = socket_accept(listener->fd, &error);
        int result;

        if (fd < 0 && (error == EAGAIN || error == EWOULDBLOCK))
            return TCPX_SUCCESS;
        if (fd < 0 && (error == EBADF || error == EINVAL || error == ENOTSOCK || error == EFAULT))
            return error_system(error, "accept");
        /* Errors of the connection that was to be accepted pass with it. */
        if (fd < 0 && error != EMFILE && error != ENFILE && error != ENOMEM && error != ENOBUFS)
            continue;
        if (fd < 0)
            return socket_bear_want(&listener->want_ends, error);
        listener->want_ends = 0;
        result = welcome(listener, fd);
        if (result != TCPX_SUCCESS)
            return result;
    }
    return TCPX_SUCCESS;
}

/* A peer that gave up while nobody was listening to it is not handed out. */
static bool has_closed(int fd)
{
    uint8_t byte;

    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* Everybody who greets is greeted, so that who is refused knows why. */
static void judge_newcomer(struct bootstrap_listener *listener, struct newcomer *newcomer)
{
    int fd = newcomer->fd;

    if (has_closed(fd)) {
        drop(listener, newcomer, "closed the connection");
        return;
    }
    if (!bootstrap_side_greet(&newcomer->side, fd)) {
        drop(listener, newcomer, strerror(errno));
        return;
    }
    if (bootstrap_side_hear(&newcomer->side, newcomer->greeting) != TCPX_SUCCESS) {
        drop(listener, newcomer, error_text());
        return;
    }
    newcomer->fd = -1;
    if (control_create(fd, newcomer->name, &newcomer->control) != TCPX_SUCCESS)
        drop(listener, newcomer, error_text());
}

static void drop_closed(struct bootstrap_listener *listener, struct newcomer *newcomer)
{
    char reason[100];

    snprintf(reason, sizeof reason, "closed the connection after %zu of %d bytes of its greeting",
             newcomer->have, BOOTSTRAP_GREETING_BYTES);
    drop(listener, newcomer, reason);
}

static void read_greeting(struct bootstrap_listener *listener, struct newcomer *newcomer)
{
    ssize_t got = recv(newcomer->fd, newcomer->greeting + newcomer->have,
                       sizeof newcomer->greeting - newcomer->have, MSG_DONTWAIT);

    if (got == 0) {
        drop_closed(listener, newcomer);
        return;
    }
    if (got < 0) {
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            drop(listener, newcomer, strerror(errno));
        return;
    }
    newcomer->have += (size_t)got;
    if (!bootstrap_greeting_begins(newcomer->greeting, newcomer->have))
        drop(listener, newcomer, "speaks another protocol");
    else if (newcomer->have == sizeof newcomer->greeting)
        judge_newcomer(listener, newcomer);
}

/* *proven only if it is so: also where no proof was asked for. */
static int hear_proof(struct newcomer *newcomer, bool *proven)
{
    uint8_t proof[SECRET_PROOF_BYTES];
    uint8_t type;
    size_t bytes;
    bool there = false;
    int result;

    if (newcomer->side.secret == NULL) {
        *proven = true;
        return TCPX_SUCCESS;
    }
    result = control_receive(newcomer->control, &type, proof, sizeof proof, &bytes, &there);
    if (result != TCPX_SUCCESS || !there)
        return result;
    result = bootstrap_side_judge(&newcomer->side, newcomer->control, type, proof, bytes);
    if (result == TCPX_SUCCESS)
        result = bootstrap_side_prove(&newcomer->side, newcomer->control);
    *proven = result == TCPX_SUCCESS;
    return result;
}

/* Whether it is a peer now. */
static bool hear_newcomer(struct bootstrap_listener *listener, struct newcomer *newcomer)
{
    bool proven = false;

    if (newcomer->fd >= 0)
        read_greeting(listener, newcomer);
    if (newcomer->control != NULL && hear_proof(newcomer, &proven) != TCPX_SUCCESS)
        drop_saying(listener, newcomer, error_text());
    if (!proven && is_there(newcomer) && deadline_passed(newcomer->deadline))
        drop(listener, newcomer, "did not say in time who it is");
    return proven;
}

/* --- accepting ----------------------------------------------------------------------------- */

/* The time in which nobody listened to them does not count against the newcomers. */
static void shift_deadlines(struct bootstrap_listener *listener)
{
    uint64_t away = clock_now() - listener->left;

    for (int i = 0; i < MOST_NEWCOMERS; i++)
        if (is_there(&listener->newcomers[i]))
            listener->newcomers[i].deadline += away;
}

static struct control *find_peer(struct bootstrap_listener *listener)
{
    for (int i = 0; i < MOST_NEWCOMERS; i++) {
        struct newcomer *newcomer = &listener->newcomers[i];

        if (is_there(newcomer) && hear_newcomer(listener, newcomer)) {
            struct control *control = newcomer->control;

            newcomer->control = NULL;
            return control;
        }
    }
    return NULL;
}

/* Until somebody knocks or speaks, or somebody's time is up. */
static int wait_for_somebody(const struct bootstrap_listener *listener, uint64_t deadline)
{
    struct pollfd ready[1 + MOST_NEWCOMERS];
    nfds_t count = 0;

    if (listener->want_ends == 0) {
        ready[count++] = (struct pollfd){.fd = listener->fd, .events = POLLIN};
    } else { /* it would only say that somebody knocks, who cannot be let in */
        uint64_t soon = deadline_after_ms(WANT_PAUSE_MS);

        deadline = soon < deadline ? soon : deadline;
    }
    for (int i = 0; i < MOST_NEWCOMERS; i++) {
        const struct newcomer *newcomer = &listener->newcomers[i];

        if (!is_there(newcomer))
            continue;
        ready[count++] = (struct pollfd){
            .fd = newcomer->fd >= 0 ? newcomer->fd : control_fd(newcomer->control),
            .events = POLLIN,
        };
        deadline = newcomer->deadline < deadline ? newcomer->deadline : deadline;
    }
    if (poll(ready, count, control_poll_ms(deadline)) < 0 && errno != EINTR)
        return error_system(errno, "poll for peers at port %u", listener->port);
    return TCPX_SUCCESS;
}

static int accept_until(struct bootstrap_listener *listener, uint64_t deadline,
                        struct control **control)
{
    for (;;) {
        struct control *found;
        int result = take_newcomers(listener);

        if (result != TCPX_SUCCESS)
            return result;
        found = find_peer(listener);
        if (found != NULL) {
            *control = found;
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
