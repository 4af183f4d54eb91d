/*
 * The accepting side of a handshake. A connection is half-open until its hello has presented the
 * token, and while it is being refused. Connections with the token are collected by pending_link.h
 * until their link is complete; then the listener sends READY. All records are sent and read in as
 * many parts as the sockets make of them.
 */
#include "net/link/link.h"

#include "base/config.h"
#include "base/fork.h"
#include "base/log.h"
#include "net/link/pending_link.h"
#include "net/socket/port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_HALF_OPEN = 128, ACCEPTS_PER_CALL = 64 };

/* Only this much of a pause between two calls of net_accept() counts against a peer. */
#define COUNTED_PAUSE_NS 100000000u

/* A half-open connection. */
struct hello_connection {
    struct half_open half;
    uint8_t hello[WIRE_HELLO_BYTES];
    size_t abort_bytes; /* not 0: it is refused, and closed when the ABORT has been sent */
    size_t abort_sent;
    uint8_t abort[WIRE_ABORT_BYTES];
};

struct net_listener {
    struct port *port;
    /* Those of the handle; connections to other addresses are not taken. 0: all are. */
    unsigned address_count;
    struct sockaddr_storage addresses[1 + NET_HANDLE_OTHERS];
    struct net_link_options options;
    struct devmem_pool *pool; /* where the payload of its links arrives; NULL: host memory */
    int numa_node;            /* of its device; -1: unknown */
    uint8_t token[WIRE_TOKEN_BYTES];
    struct half_open_table half_open;
    struct hello_connection connections[MOST_HALF_OPEN];
    struct pending_links pending;
};

/* --- listening ----------------------------------------------------------------------------- */

/* The address of UCCL_TCPX_ADVERTISE; of family AF_UNSPEC: none. */
static int listener_advertised(union socket_address *address)
{
    const struct config *config;
    int result = config_get(&config);

    *address = (union socket_address){0};
    if (result != TCPX_SUCCESS || *config->advertise.text == '\0')
        return result;
    if (inet_pton(AF_INET, config->advertise.text, &address->ipv4.sin_addr) == 1)
        address->ipv4.sin_family = AF_INET;
    else if (inet_pton(AF_INET6, config->advertise.text, &address->ipv6.sin6_addr) == 1)
        address->ipv6.sin6_family = AF_INET6;
    return TCPX_SUCCESS;
}

/* Addresses of the devices beside the listener's own. */
static void listener_list_addresses(struct net_listener *listener, const struct net_device *device,
                                    struct net_handle *handle)
{
    const struct net_link_options *options = &listener->options;

    for (int i = 0; i < options->device_count && handle->other_count < NET_HANDLE_OTHERS; i++) {
        const struct net_device *other = &options->devices[i];

        if (other->is_loopback == device->is_loopback &&
            memcmp(&other->address, &device->address, sizeof other->address) != 0)
            handle->others[handle->other_count++] = other->address;
    }
    if (handle->other_count == 0)
        return;
    listener->addresses[listener->address_count++] = device->address;
    for (unsigned i = 0; i < handle->other_count; i++)
        listener->addresses[listener->address_count++] = handle->others[i];
}

/*
 * At the device's address, which the handle has; or at all addresses, if the handle has several or
 * another one is advertised: it is not known then which of them connections to that one arrive at.
 */
static int listener_open_port(struct net_listener *listener, const struct net_device *device,
                              struct net_handle *handle)
{
    const union socket_address any = {.ipv6 = {.sin6_family = AF_INET6}};
    struct port_sign sign = {.has_key = true, .key_at = WIRE_TOKEN_AT};
    union socket_address for_peers;
    union socket_address bound;
    bool is_advertised;
    int result = listener_advertised(&for_peers);

    _Static_assert((int)PORT_KEY_BYTES == (int)WIRE_TOKEN_BYTES, "the token is the key");
    if (result != TCPX_SUCCESS)
        return result;
    wire_magic_write(sign.kind);
    memcpy(sign.key, listener->token, sizeof sign.key);
    is_advertised = for_peers.storage.ss_family != AF_UNSPEC;
    if (!is_advertised)
        for_peers.storage = device->address;
    /* Payload by devmem TCP must arrive at this device. */
    if (!is_advertised && listener->pool == NULL)
        listener_list_addresses(listener, device, handle);
    result = port_open(is_advertised || handle->other_count > 0 ? &any.storage : &device->address,
                       &sign, &listener->half_open, &listener->port);
    if (result != TCPX_SUCCESS)
        return error_set(result, "%s (%s)", error_text(), device->name);
    port_address(listener->port, &bound.storage);
    for_peers.ipv4.sin_port = bound.ipv4.sin_port; /* at the same place in both families */
    handle->address = for_peers.storage;
    return TCPX_SUCCESS;
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
    pending_links_start(&listener->pending);
    half_open_start(&listener->half_open, options->handshake_ms);
    for (int i = 0; i < MOST_HALF_OPEN; i++)
        half_open_add_place(&listener->half_open, &listener->connections[i].half);
    listener->numa_node = device->numa_node;
    result = devmem_link_pool(device, options->gpu, &listener->pool);
    if (result != TCPX_SUCCESS)
        goto free_listener;
    if (listener->pool != NULL)
        listener->options.framing = WIRE_SEPARATE;
    result = socket_random(listener->token, sizeof listener->token);
    if (result == TCPX_SUCCESS)
        result = net_handle_process(&handle.process);
    if (result == TCPX_SUCCESS)
        result = listener_open_port(listener, device, &handle);
    if (result != TCPX_SUCCESS)
        goto close_port;
    memcpy(handle.token, listener->token, sizeof handle.token);
    handle.framing = listener->options.framing;
    net_handle_write(&handle, handle_bytes);
    *out = listener;
    return TCPX_SUCCESS;

close_port:
    port_close(listener->port);
    devmem_pool_give(listener->pool);
free_listener:
    free(listener);
    return result;
}

void net_listener_close(struct net_listener *listener)
{
    if (listener == NULL || fork_check() != TCPX_SUCCESS)
        return;
    for (int i = 0; i < MOST_HALF_OPEN; i++)
        socket_close(&listener->connections[i].half.fd);
    for (int i = 0; i < PENDING_LINKS_MOST; i++)
        if (listener->pending.places[i].present != 0)
            pending_link_drop(&listener->pending.places[i]);
    port_close(listener->port);
    devmem_pool_give(listener->pool);
    free(listener);
}

/* --- half-open connections ----------------------------------------------------------------- */

/* If there is no free place, the oldest half-open connection is evicted. */
static struct hello_connection *hello_enter(struct net_listener *listener, int fd)
{
    struct half_open *place = half_open_free_place(&listener->half_open);
    struct hello_connection *connection;

    if (place == NULL) {
        place = half_open_oldest(&listener->half_open);
        socket_close(&place->fd);
    }
    connection = (struct hello_connection *)place;
    *connection = (struct hello_connection){0};
    half_open_enter(&listener->half_open, place, fd);
    return connection;
}

static void listener_drop(int *fd, const char *reason)
{
    char name[SOCKET_NAME_BYTES];

    socket_peer_name(*fd, name);
    log_debug("connection from %s dropped: %s", name, reason);
    socket_close(fd);
}

static void hello_drop(struct hello_connection *connection, const char *reason)
{
    listener_drop(&connection->half.fd, reason);
}

static bool listener_is_at(const struct net_listener *listener, int fd)
{
    union socket_address local = {0};
    socklen_t length = sizeof local.storage;

    if (listener->address_count == 0)
        return true;
    if (getsockname(fd, (struct sockaddr *)&local.storage, &length) != 0)
        return false;
    socket_address_unmap(&local.storage);
    for (unsigned i = 0; i < listener->address_count; i++)
        if (socket_is_same_host(&listener->addresses[i], &local.storage))
            return true;
    return false;
}

static int listener_accept_connections(struct net_listener *listener)
{
    int result = TCPX_SUCCESS;
    int fd;

    for (int i = 0; i < ACCEPTS_PER_CALL; i++) {
        result = port_accept(listener->port, &listener->half_open, &fd);
        if (result != TCPX_SUCCESS || fd < 0)
            return result;
        if (listener_is_at(listener, fd))
            hello_enter(listener, fd);
        else
            listener_drop(&fd, "it is to an address that the handle does not have");
    }
    return result;
}

/* As much of the ABORT as the socket takes now. */
static void hello_send_abort(struct hello_connection *connection)
{
    if (!socket_send_rest(connection->half.fd, connection->abort, connection->abort_bytes,
                          &connection->abort_sent))
        log_debug("a refused connection was gone already");
    else if (connection->abort_sent < connection->abort_bytes)
        return;
    /* So that a close with unread bytes does not destroy the text. */
    shutdown(connection->half.fd, SHUT_WR);
    socket_close(&connection->half.fd);
}

static void hello_refuse(struct hello_connection *connection, enum tcpx_result result,
                         const char *reason)
{
    connection->abort_bytes = wire_abort_write(result, reason, connection->abort);
    hello_send_abort(connection);
}

static void hello_join(struct net_listener *listener, struct hello_connection *connection,
                       const struct wire_hello *hello)
{
    if (pending_links_join(&listener->pending, &listener->options, hello, connection->half.fd,
                           listener->half_open.clock,
                           half_open_deadline(&listener->half_open)) == TCPX_SUCCESS)
        connection->half.fd = -1;
    else
        hello_drop(connection, error_text());
}

static void hello_check(struct net_listener *listener, struct hello_connection *connection)
{
    struct wire_hello hello;
    struct versions versions = {0};
    char reason[WIRE_ABORT_TEXT];

    switch (wire_hello_read(connection->hello, &hello, &versions)) {
    case WIRE_OTHER_VERSION:
        snprintf(reason, sizeof reason,
                 "the listener speaks protocol versions %d to %d, you versions %u to %u",
                 WIRE_LEAST_VERSION, WIRE_VERSION, versions.least, versions.greatest);
        hello_refuse(connection, TCPX_INVALID_USAGE, reason);
        return;
    case WIRE_NOT_TCPX:
    case WIRE_MALFORMED:
        hello_drop(connection, error_text());
        return;
    case WIRE_FINE:
        break;
    }
    if (!socket_is_token(hello.token, listener->token, sizeof hello.token))
        hello_drop(connection, "it does not know the token");
    else if (hello.match != listener->options.match)
        hello_refuse(connection, TCPX_INVALID_USAGE,
                     "the listener matches messages to receives in another way");
    else if (hello.framing != listener->options.framing)
        hello_refuse(connection, TCPX_INVALID_USAGE, "the listener uses another framing");
    else
        hello_join(listener, connection, &hello);
}

static void hello_step(struct net_listener *listener, struct hello_connection *connection)
{
    struct half_open *half = &connection->half;

    if (connection->abort_bytes > 0) {
        hello_send_abort(connection);
    } else {
        int got =
            socket_receive_rest(half->fd, connection->hello, sizeof connection->hello, &half->have);

        if (half->have == sizeof connection->hello)
            hello_check(listener, connection);
        else if (got <= 0)
            hello_drop(connection, got == 0 ? "it closed" : strerror(errno));
    }
    if (half->fd >= 0 && listener->half_open.clock >= half->deadline)
        hello_drop(connection, "it did not say in time what it is for");
}

/* --- accepting ----------------------------------------------------------------------------- */

/* False: the connecting side has gone. */
static bool listener_send_ready(struct pending_link *pending)
{
    uint8_t bytes[WIRE_RECORD_BYTES];
    const struct wire_record ready = {.type = WIRE_READY,
                                      .socket = (uint16_t)pending->link.version,
                                      .sequence = pending->link.capabilities,
                                      .offset = pending->link.eager_credit,
                                      .length = pending->link.eager_limit,
                                      .tag = pending->link.largest_slice};

    wire_record_write(&ready, bytes);
    return socket_send_rest(pending->link.reverse, bytes, sizeof bytes, &pending->ready_sent);
}

/*
 * Before READY, so that payload arrives at its queue of the NIC from the first byte on.
 * TCPX_IN_PROGRESS: to be tried again by the next call.
 */
static int listener_steer(const struct net_listener *listener, struct pending_link *pending)
{
    struct net_link *link = &pending->link;
    int result = TCPX_SUCCESS;

    if (listener->pool == NULL)
        return TCPX_SUCCESS;
    if (link->devmem == NULL)
        result = devmem_link_open(listener->pool, &link->devmem);
    return result == TCPX_SUCCESS ? devmem_link_steer(link->devmem, link->forward, link->sockets)
                                  : result;
}

static bool listener_has_all_peers(const struct net_link *link)
{
    struct sockaddr_storage peer;

    for (unsigned i = 0; i < link->sockets; i++) {
        socklen_t length = sizeof peer;

        if (getpeername(link->forward[i], (struct sockaddr *)&peer, &length) != 0)
            return false;
    }
    return true;
}

/*
 * Sends why on the reverse socket, which takes the place of a half-open connection for that. If a
 * peer has gone, its sockets cannot be steered, and that is no failure of the listener.
 */
static int listener_refuse_link(struct net_listener *listener, struct pending_link *pending,
                                int result)
{
    struct hello_connection *newcomer;
    char why[256];

    snprintf(why, sizeof why, "%s", error_text());
    if (!listener_has_all_peers(&pending->link)) {
        log_debug("a peer left before it was accepted: %s", why);
        pending_link_drop(pending);
        return TCPX_SUCCESS;
    }
    newcomer = hello_enter(listener, pending->link.reverse);
    pending->link.reverse = -1;
    pending_link_drop(pending);
    hello_refuse(newcomer, (enum tcpx_result)result, why);
    return error_set(result, "%s", why);
}

static int listener_finish_link(struct net_listener *listener, struct pending_link *pending,
                                struct net_link *link, bool *accepted)
{
    if (!pending->is_steered) {
        int result = listener_steer(listener, pending);

        if (result == TCPX_IN_PROGRESS)
            return TCPX_SUCCESS;
        if (result != TCPX_SUCCESS)
            return listener_refuse_link(listener, pending, result);
        pending->is_steered = true;
    }
    if (!listener_send_ready(pending)) {
        pending_link_drop(pending);
    } else if (pending->ready_sent == WIRE_RECORD_BYTES) {
        socket_peer_name(pending->link.reverse, pending->link.peer);
        *link = pending->link;
        link->numa_node = listener->numa_node;
        pending->present = 0;
        *accepted = true;
    }
    return TCPX_SUCCESS;
}

static int listener_step_link(struct net_listener *listener, struct pending_link *pending,
                              struct net_link *link, bool *accepted)
{
    if (pending->present == 0)
        return TCPX_SUCCESS;
    if (pending_link_is_complete(pending))
        return listener_finish_link(listener, pending, link, accepted);
    if (listener->half_open.clock < pending->check_at)
        return TCPX_SUCCESS;
    pending->check_at = half_open_deadline(&listener->half_open);
    if (!pending_link_has_peer(pending))
        pending_link_drop(pending);
    return TCPX_SUCCESS;
}

int net_accept(struct net_listener *listener, struct net_link *link, bool *accepted)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    half_open_advance(&listener->half_open, COUNTED_PAUSE_NS);
    result = listener_accept_connections(listener);
    if (result != TCPX_SUCCESS)
        return result;
    for (int i = 0; i < MOST_HALF_OPEN; i++)
        if (listener->connections[i].half.fd >= 0)
            hello_step(listener, &listener->connections[i]);
    *accepted = false;
    for (int i = 0; i < PENDING_LINKS_MOST && !*accepted && result == TCPX_SUCCESS; i++)
        result = listener_step_link(listener, &listener->pending.places[i], link, accepted);
    return result;
}
