/*
 * The listening side of the bootstrap. Anyone can connect, so half-open connections ("newcomers")
 * are bounded in number and time: when there is no place, one of the same kind is evicted at
 * random. So strangers that do not greet never evict a connection that has greeted, and a peer that
 * was evicted tries again.
 */
#include "session/bootstrap.h"

#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"
#include "net/socket/port.h"
#include "net/socket/socket.h"
#include "session/newcomer.h"
#include "session/secret.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_SILENT = 64,   /* newcomers that have not greeted */
    MOST_GREETED = 128, /* newcomers whose proof is due; strangers can greet, too */
    MOST_NEWCOMERS = MOST_SILENT + MOST_GREETED,
    NEWCOMER_MS = 5000,
    ACCEPTS_PER_CALL = 64,
    REASON_BYTES = 512,
};

/* How often accept() is tried again after it failed for lack of descriptors or memory. */
enum { BACKOFF_PAUSE_MS = 10 };

_Static_assert((int)MOST_NEWCOMERS <= (int)HALF_OPEN_PLACES, "a table has that many places");

/* --- listening ----------------------------------------------------------------------------- */

struct bootstrap_listener {
    struct port *port;
    struct secret *secret; /* NULL: none */
    struct half_open_table half_open;
    struct newcomer newcomers[MOST_NEWCOMERS];
    char dropped[REASON_BYTES]; /* why the latest connection was dropped; "": none was */
};

static int bootstrap_bind(struct bootstrap_listener *listener,
                          const struct sockaddr_storage *address)
{
    struct port_sign sign = {0};

    bootstrap_greeting_first(sign.kind, sizeof sign.kind);
    return port_open(address, &sign, &listener->half_open, &listener->port);
}

static int bootstrap_bind_to(struct bootstrap_listener *listener, const char *address,
                             uint16_t port)
{
    struct addrinfo *list;
    bool passing;
    int result = bootstrap_resolve(address, port, AI_PASSIVE, &list, &passing);

    if (result != TCPX_SUCCESS)
        return result;
    result = TCPX_SYSTEM_ERROR;
    for (struct addrinfo *at = list; at != NULL && result != TCPX_SUCCESS; at = at->ai_next) {
        struct sockaddr_storage where;

        bootstrap_address_copy(at, &where);
        result = bootstrap_bind(listener, &where);
    }
    freeaddrinfo(list);
    return result;
}

/* All addresses of this host: those of IPv4, too. */
static int bootstrap_bind_everywhere(struct bootstrap_listener *listener, uint16_t port)
{
    const union socket_address any = {.ipv6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)}};

    return bootstrap_bind(listener, &any.storage);
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
    half_open_start(&listener->half_open, NEWCOMER_MS);
    for (int i = 0; i < MOST_NEWCOMERS; i++)
        half_open_add_place(&listener->half_open, &listener->newcomers[i].half);
    result = secret_load(secret_file, secret_libraries, &listener->secret);
    if (result != TCPX_SUCCESS)
        goto free_listener;
    result = address == NULL || *address == '\0' ? bootstrap_bind_everywhere(listener, port)
                                                 : bootstrap_bind_to(listener, address, port);
    if (result != TCPX_SUCCESS)
        goto free_secret;
    *out = listener;
    return TCPX_SUCCESS;

free_secret:
    secret_free(listener->secret);
free_listener:
    free(listener);
    return result;
}

uint16_t bootstrap_port(const struct bootstrap_listener *listener)
{
    union socket_address any;

    port_address(listener->port, &any.storage);
    return ntohs(any.ipv4.sin_port); /* both families have it in the same place */
}

void bootstrap_listener_close(struct bootstrap_listener *listener)
{
    if (listener == NULL || fork_check() != TCPX_SUCCESS)
        return;
    for (int i = 0; i < MOST_NEWCOMERS; i++)
        newcomer_close(&listener->newcomers[i]);
    port_close(listener->port);
    secret_free(listener->secret);
    free(listener);
}

/* --- newcomers ----------------------------------------------------------------------------- */

/* error_text() is the reason. A refused newcomer stays until the refusal has been sent. */
static void bootstrap_drop(struct bootstrap_listener *listener, struct newcomer *newcomer)
{
    snprintf(listener->dropped, sizeof listener->dropped, "%s", error_text());
    log_warn("a connection to the bootstrap was dropped: %s", listener->dropped);
    if (newcomer->stage != NEWCOMER_REFUSED)
        newcomer_close(newcomer);
}

static void bootstrap_drop_because(struct bootstrap_listener *listener, struct newcomer *newcomer,
                                   const char *reason)
{
    error_keep("%s %s", newcomer->name, reason);
    bootstrap_drop(listener, newcomer);
    newcomer_close(newcomer);
}

static void bootstrap_evict(struct bootstrap_listener *listener, bool greeted, unsigned most)
{
    struct half_open *victim = half_open_excess(&listener->half_open, greeted, most);

    if (victim != NULL)
        bootstrap_drop_because(listener, (struct newcomer *)victim, "had to make place for others");
}

/* Steps it, and drops it if it cannot become a peer; true: it is a peer now. */
static bool bootstrap_step(struct bootstrap_listener *listener, struct newcomer *newcomer)
{
    bool had_greeted = newcomer->half.has_greeted;

    if (newcomer_step(newcomer) != TCPX_SUCCESS)
        bootstrap_drop(listener, newcomer);
    if (newcomer->half.fd < 0)
        return false;
    if (newcomer->stage == NEWCOMER_PEER)
        return true;
    if (listener->half_open.clock >= newcomer->half.deadline)
        bootstrap_drop_because(listener, newcomer, "did not say in time who it is");
    else if (!had_greeted && newcomer->half.has_greeted)
        bootstrap_evict(listener, true, MOST_GREETED);
    return false;
}

/* The newcomer is stepped at once: if it has greeted already, silent ones do not evict it. */
static int bootstrap_enter(struct bootstrap_listener *listener, int fd, struct newcomer **peer)
{
    struct half_open *place;
    struct newcomer *newcomer;
    int result;

    bootstrap_evict(listener, false, MOST_SILENT - 1);
    place = half_open_free_place(&listener->half_open); /* there is one: both kinds are bounded */
    half_open_enter(&listener->half_open, place, fd);
    newcomer = (struct newcomer *)place;
    result = newcomer_start(newcomer, listener->secret);
    if (result == TCPX_SUCCESS && bootstrap_step(listener, newcomer))
        *peer = newcomer;
    return result;
}

/* *peer: the first newcomer that is a peer at once; the others stay in the kernel's queue. */
static int bootstrap_take_newcomers(struct bootstrap_listener *listener, struct newcomer **peer)
{
    int result = TCPX_SUCCESS;
    int fd = 0;

    for (int i = 0; i < ACCEPTS_PER_CALL && fd >= 0 && *peer == NULL && result == TCPX_SUCCESS;
         i++) {
        result = port_accept(listener->port, &listener->half_open, &fd);
        if (result == TCPX_SUCCESS && fd >= 0)
            result = bootstrap_enter(listener, fd, peer);
    }
    return result;
}

/* --- accepting ----------------------------------------------------------------------------- */

/* Waits until a connection can be accepted, a newcomer's socket is ready or its time is over. */
static int bootstrap_wait(struct bootstrap_listener *listener, uint64_t deadline)
{
    struct half_open_table *table = &listener->half_open;
    struct pollfd ready[MOST_NEWCOMERS + PORT_POLLED];
    nfds_t count = 0;

    for (int i = 0; i < MOST_NEWCOMERS; i++) {
        struct newcomer *newcomer = &listener->newcomers[i];

        if (newcomer->half.fd < 0)
            continue;
        ready[count++] =
            (struct pollfd){.fd = newcomer->half.fd, .events = newcomer_events(newcomer)};
        deadline = deadline_earlier(deadline,
                                    table->advanced_at + (newcomer->half.deadline - table->clock));
    }
    if (table->backoff_ends == 0)
        count += port_poll(listener->port, ready + count);
    else /* accept() failed: wait before the next try */
        deadline = deadline_earlier(deadline, deadline_after_ms(BACKOFF_PAUSE_MS));
    if (poll(ready, count, deadline_poll_ms(deadline)) < 0 && errno != EINTR)
        return error_system(errno, "poll for peers at port %u", bootstrap_port(listener));
    count = 0;
    for (int i = 0; i < MOST_NEWCOMERS; i++)
        if (listener->newcomers[i].half.fd >= 0)
            listener->newcomers[i].is_ready = ready[count++].revents != 0;
    half_open_advance(table, UINT64_MAX);
    return TCPX_SUCCESS;
}

/* Steps the newcomers whose sockets are ready or whose time is over, until one is a peer. */
static struct newcomer *bootstrap_step_ready(struct bootstrap_listener *listener)
{
    for (int i = 0; i < MOST_NEWCOMERS; i++) {
        struct newcomer *newcomer = &listener->newcomers[i];

        if (newcomer->half.fd >= 0 &&
            (newcomer->is_ready || listener->half_open.clock >= newcomer->half.deadline) &&
            bootstrap_step(listener, newcomer))
            return newcomer;
    }
    return NULL;
}

static int bootstrap_accept_until(struct bootstrap_listener *listener, uint64_t deadline,
                                  struct newcomer **peer)
{
    uint64_t wait_until = 0; /* at first only newcomers that an earlier call has left are stepped */

    for (;;) {
        int result = bootstrap_wait(listener, wait_until);

        if (result != TCPX_SUCCESS)
            return result;
        *peer = bootstrap_step_ready(listener);
        if (*peer == NULL)
            result = bootstrap_take_newcomers(listener, peer);
        if (result != TCPX_SUCCESS || *peer != NULL)
            return result;
        if (deadline_passed(deadline))
            return error_set(
                TCPX_IN_PROGRESS, "no peer came to port %u in time%s%s", bootstrap_port(listener),
                *listener->dropped != '\0' ? "; the latest connection was dropped: " : "",
                listener->dropped);
        wait_until = deadline;
    }
}

int bootstrap_accept(struct bootstrap_listener *listener, uint64_t deadline,
                     struct control **control)
{
    struct newcomer *peer = NULL;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    half_open_advance(&listener->half_open, 0); /* the time between two calls does not count */
    listener->dropped[0] = '\0';
    result = bootstrap_accept_until(listener, deadline, &peer);
    if (result == TCPX_SUCCESS)
        *control = newcomer_take(peer);
    return result;
}
