/*
 * The connecting side of a handshake. Between calls an attempt is kept in a table; the caller's
 * handle holds its number, never a pointer, since a handle is untrusted. A program may pause
 * between two calls for any time: if the listener has dropped a connection without a hello
 * meanwhile, the attempt connects again.
 */
#include "net/link/link.h"

#include "base/clock.h"
#include "base/fork.h"
#include "net/link/budget.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ATTEMPTS = 1024 };

/* After a pause this long a listener may have dropped what had not presented its token. */
#define LATE_NS 1000000000u

/* One connection of the link that is being made. */
struct connection {
    int fd;
    bool established;
    size_t hello_sent; /* bytes */
};

struct attempt {
    uint64_t number;
    struct net_link_options options;
    struct net_handle handle;
    struct net_device device; /* zero: any */
    uint64_t comm;
    uint64_t called_at; /* when net_connect() was last called for it */
    bool was_late;      /* there was a pause before all hellos had been sent */
    unsigned budgeted;  /* further sockets, from the budget of the handle's process */
    char peer[SOCKET_NAME_BYTES];
    struct connection connections[WIRE_MOST_SOCKETS + 1]; /* the reverse one is the last */
    size_t answer_bytes; /* bytes of the answer on the reverse connection */
    uint8_t answer[WIRE_RECORD_BYTES + WIRE_ABORT_TEXT];
};

/* Guards the table; an attempt belongs to the thread that has taken it out. */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct attempt *table[MOST_ATTEMPTS];

/* --- the table ----------------------------------------------------------------------------- */

static unsigned attempt_connection_count(const struct attempt *attempt)
{
    return attempt->options.sockets + 1u;
}

static bool attempt_has_greeted(const struct connection *connection)
{
    return connection->hello_sent == WIRE_HELLO_BYTES;
}

static bool attempt_has_sent_hellos(const struct attempt *attempt)
{
    for (unsigned i = 0; i < attempt_connection_count(attempt); i++)
        if (!attempt_has_greeted(&attempt->connections[i]))
            return false;
    return true;
}

/* The listener, or what it has accepted, has closed a connection, or it broke. */
static bool attempt_has_lost_peer(const struct attempt *attempt)
{
    for (unsigned i = 0; i < attempt_connection_count(attempt); i++) {
        struct pollfd end = {.fd = attempt->connections[i].fd, .events = POLLRDHUP};

        if (poll(&end, 1, 0) > 0)
            return true;
    }
    return false;
}

static bool attempt_is_old(const struct attempt *attempt)
{
    return clock_now() - attempt->called_at > attempt->options.timeout_ms * 1000000;
}

/*
 * There was no call for it during a whole timeout, and the listener has gone, or cannot have
 * accepted it. An attempt that may be accepted is kept: the listener's program has its link.
 */
static bool attempt_is_forgotten(const struct attempt *attempt)
{
    return attempt_is_old(attempt) &&
           (!attempt_has_sent_hellos(attempt) || attempt_has_lost_peer(attempt));
}

/* Takes the attempt out, so that no second thread finds it; NULL if there is none. */
static struct attempt *attempt_take(uint64_t number)
{
    struct attempt *found = NULL;

    if (number == 0)
        return NULL;
    pthread_mutex_lock(&table_lock);
    for (int i = 0; i < MOST_ATTEMPTS && found == NULL; i++)
        if (table[i] != NULL && table[i]->number == number) {
            found = table[i];
            table[i] = NULL;
        }
    pthread_mutex_unlock(&table_lock);
    return found;
}

static void attempt_close_connections(struct attempt *attempt)
{
    for (unsigned i = 0; i < attempt_connection_count(attempt); i++)
        socket_close(&attempt->connections[i].fd);
}

static void attempt_drop(struct attempt *attempt)
{
    attempt_close_connections(attempt);
    budget_give(attempt->handle.process, attempt->budgeted);
    free(attempt);
}

/* A free place, or that of an attempt without a call during a timeout; NULL: all are in use. */
static struct attempt **attempt_find_place(void)
{
    struct attempt **oldest = &table[0];

    for (int i = 0; i < MOST_ATTEMPTS; i++) {
        if (table[i] == NULL)
            return &table[i];
        if (table[i]->called_at < (*oldest)->called_at)
            oldest = &table[i];
    }
    return attempt_is_old(*oldest) ? oldest : NULL;
}

static bool attempt_put_back(struct attempt *attempt)
{
    struct attempt **place;
    struct attempt *replaced = NULL;

    attempt->called_at = clock_now();
    pthread_mutex_lock(&table_lock);
    place = attempt_find_place();
    if (place != NULL) {
        replaced = *place;
        *place = attempt;
    }
    pthread_mutex_unlock(&table_lock);
    if (replaced != NULL)
        attempt_drop(replaced);
    return place != NULL;
}

/* Ends all attempts of one owner; NULL: forgotten attempts of all owners. */
static void attempt_drop_all(const void *owner)
{
    pthread_mutex_lock(&table_lock);
    for (int i = 0; i < MOST_ATTEMPTS; i++)
        if (table[i] != NULL &&
            (owner != NULL ? table[i]->options.owner == owner : attempt_is_forgotten(table[i]))) {
            attempt_drop(table[i]);
            table[i] = NULL;
        }
    pthread_mutex_unlock(&table_lock);
}

/* --- starting ------------------------------------------------------------------------------ */

static bool connect_is_loopback(const struct sockaddr_storage *address)
{
    union socket_address any = {.storage = *address};

    return address->ss_family == AF_INET ? (ntohl(any.ipv4.sin_addr.s_addr) >> 24) == 127
                                         : IN6_IS_ADDR_LOOPBACK(&any.ipv6.sin6_addr);
}

/* Binds to the device's address, so that the route leads over it; not from loopback to elsewhere.
 */
static int attempt_bind_to(int fd, const struct net_device *device,
                           const struct sockaddr_storage *target)
{
    if (device->address.ss_family != target->ss_family ||
        connect_is_loopback(&device->address) != connect_is_loopback(target))
        return TCPX_SUCCESS;
    if (bind(fd, (const struct sockaddr *)&device->address,
             socket_address_length(&device->address)) != 0)
        return error_system(errno, "cannot leave through %s", device->name);
    return TCPX_SUCCESS;
}

static int attempt_open_connection(struct attempt *attempt, struct connection *connection)
{
    const struct sockaddr_storage *target = &attempt->handle.address;
    int result;

    *connection = (struct connection){.fd = -1};
    result = socket_open(target->ss_family, &connection->fd);
    if (result == TCPX_SUCCESS)
        result = attempt_bind_to(connection->fd, &attempt->device, target);
    if (result == TCPX_SUCCESS)
        result = socket_tune(connection->fd, attempt->options.timeout_ms);
    if (result != TCPX_SUCCESS)
        return result;
    if (connect(connection->fd, (const struct sockaddr *)target, socket_address_length(target)) !=
            0 &&
        errno != EINPROGRESS && errno != EINTR)
        return error_system(errno, "cannot connect to %s", attempt->peer);
    return TCPX_SUCCESS;
}

/* The number of sockets: as requested or fewer, but at least two if socket 0 carries no payload. */
static int attempt_decide_sockets(struct attempt *attempt)
{
    uint8_t least = attempt->options.framing == WIRE_SEPARATE ? 2 : 1;
    uint8_t wanted = attempt->options.sockets;
    int result;

    attempt->options.sockets = least;
    if (wanted <= least)
        return TCPX_SUCCESS;
    result = budget_take(attempt->handle.process, wanted - least, &attempt->budgeted);
    if (result == TCPX_SUCCESS)
        attempt->options.sockets = (uint8_t)(least + attempt->budgeted);
    return result;
}

/* With a new comm number: connections of an earlier try may still reach the listener. */
static int attempt_open_connections(struct attempt *attempt)
{
    int result = socket_random(&attempt->comm, sizeof attempt->comm);

    for (unsigned i = 0; i < attempt_connection_count(attempt) && result == TCPX_SUCCESS; i++)
        result = attempt_open_connection(attempt, &attempt->connections[i]);
    return result;
}

static int attempt_start(const struct net_device *device, const struct net_link_options *options,
                         const struct net_handle *handle, struct attempt **out)
{
    struct attempt *attempt;
    int result;

    if (options->sockets < 1 || options->sockets > WIRE_MOST_SOCKETS)
        return error_set(TCPX_INVALID_ARGUMENT, "a link of %u sockets: 1 to %d are possible",
                         options->sockets, WIRE_MOST_SOCKETS);
    attempt_drop_all(NULL);
    attempt = calloc(1, sizeof *attempt);
    if (attempt == NULL)
        return error_system(ENOMEM, "a connection");
    attempt->called_at = clock_now();
    attempt->options = *options;
    attempt->options.framing = handle->framing;
    attempt->handle = *handle;
    if (device != NULL)
        attempt->device = *device;
    for (int i = 0; i <= WIRE_MOST_SOCKETS; i++)
        attempt->connections[i].fd = -1;
    socket_address_name(&handle->address, attempt->peer);
    result = attempt_decide_sockets(attempt);
    if (result == TCPX_SUCCESS)
        result = socket_random(&attempt->number, sizeof attempt->number);
    attempt->number |= 1; /* 0 means that there is none */
    if (result == TCPX_SUCCESS)
        result = attempt_open_connections(attempt);
    if (result != TCPX_SUCCESS) {
        attempt_drop(attempt);
        return result;
    }
    *out = attempt;
    return TCPX_SUCCESS;
}

/* --- moving on ----------------------------------------------------------------------------- */

static int attempt_send_hello(struct attempt *attempt, unsigned index)
{
    struct connection *connection = &attempt->connections[index];
    bool reverse = index == attempt->options.sockets;
    uint8_t bytes[WIRE_HELLO_BYTES];
    struct wire_hello hello = {
        .role = reverse ? WIRE_REVERSE : WIRE_FORWARD,
        .index = reverse ? 0 : (uint8_t)index,
        .sockets = attempt->options.sockets,
        .match = (uint8_t)attempt->options.match,
        .framing = (uint8_t)attempt->options.framing,
        .comm = attempt->comm,
    };

    memcpy(hello.token, attempt->handle.token, sizeof hello.token);
    wire_hello_write(&hello, bytes);
    if (!socket_send_rest(connection->fd, bytes, sizeof bytes, &connection->hello_sent))
        return error_system(errno, "cannot greet the listener at %s", attempt->peer);
    return TCPX_SUCCESS;
}

static int attempt_establish(struct attempt *attempt, struct connection *connection)
{
    struct pollfd writable = {.fd = connection->fd, .events = POLLOUT};
    socklen_t length = sizeof(int);
    int error = 0;

    if (poll(&writable, 1, 0) <= 0)
        return TCPX_SUCCESS;
    if (getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
        error = errno;
    if (error != 0)
        return error_system(error, "cannot connect to %s", attempt->peer);
    connection->established = true;
    return TCPX_SUCCESS;
}

/* The answer on the reverse connection up to `wanted` bytes; *ended: no more will come. */
static int attempt_read_answer(struct attempt *attempt, size_t wanted, bool *ended)
{
    int fd = attempt->connections[attempt->options.sockets].fd;

    int got = socket_receive_rest(fd, attempt->answer, wanted, &attempt->answer_bytes);

    *ended = got <= 0;
    if (got < 0)
        return error_system(errno, "the connection to %s broke in its handshake", attempt->peer);
    if (got == 0)
        return error_set(TCPX_REMOTE_ERROR,
                         "the listener at %s closed the connection: it does not know the token of "
                         "this handle, or it is gone",
                         attempt->peer);
    return TCPX_SUCCESS;
}

/* An ABORT, when all its text is there or no more will come. */
static int attempt_read_abort(struct attempt *attempt, uint64_t text_bytes)
{
    bool ended = false;
    int result = attempt_read_answer(attempt, WIRE_RECORD_BYTES + (size_t)text_bytes, &ended);

    if (attempt->answer_bytes < WIRE_RECORD_BYTES + (size_t)text_bytes && !ended)
        return result;
    return error_set(TCPX_REMOTE_ERROR, "the listener at %s refused: %.*s", attempt->peer,
                     (int)(attempt->answer_bytes - WIRE_RECORD_BYTES),
                     (const char *)attempt->answer + WIRE_RECORD_BYTES);
}

/*
 * READY on the reverse connection, or why there is none. A listener judges each connection by its
 * own hello, so what it answers here holds for all. Only the first record is read.
 */
static int attempt_read_ready(struct attempt *attempt, struct net_link *link, bool *connected)
{
    struct wire_record record;
    bool ended;
    int result = attempt_read_answer(attempt, WIRE_RECORD_BYTES, &ended);

    if (result != TCPX_SUCCESS || attempt->answer_bytes < WIRE_RECORD_BYTES)
        return result;
    if (wire_record_read(attempt->answer, WIRE_REVERSE, &record) != WIRE_FINE)
        return error_set(TCPX_REMOTE_ERROR, "%s does not speak our protocol", attempt->peer);
    if (record.type == WIRE_ABORT)
        return attempt_read_abort(attempt, record.length);
    if (record.type != WIRE_READY)
        return error_set(TCPX_REMOTE_ERROR, "%s began with %s instead of READY", attempt->peer,
                         wire_type_name(record.type));
    *link = (struct net_link){.reverse = attempt->connections[attempt->options.sockets].fd,
                              .sockets = attempt->options.sockets,
                              .match = attempt->options.match,
                              .framing = attempt->options.framing,
                              .eager_credit = record.offset,
                              .eager_limit = record.length,
                              .largest_slice = record.tag,
                              .requests = attempt->options.requests,
                              .process = attempt->handle.process,
                              .device = attempt->device,
                              .budgeted = attempt->budgeted};
    memcpy(link->peer, attempt->peer, sizeof link->peer);
    for (unsigned i = 0; i < WIRE_MOST_SOCKETS; i++)
        link->forward[i] = i < link->sockets ? attempt->connections[i].fd : -1;
    *connected = true;
    return TCPX_SUCCESS;
}

static int attempt_step(struct attempt *attempt, struct net_link *link, bool *connected)
{
    int result = TCPX_SUCCESS;

    for (unsigned i = 0; i < attempt_connection_count(attempt) && result == TCPX_SUCCESS; i++) {
        struct connection *connection = &attempt->connections[i];

        if (!connection->established)
            result = attempt_establish(attempt, connection);
        if (result == TCPX_SUCCESS && connection->established && !attempt_has_greeted(connection))
            result = attempt_send_hello(attempt, i);
    }
    if (result == TCPX_SUCCESS &&
        attempt_has_greeted(&attempt->connections[attempt->options.sockets]))
        result = attempt_read_ready(attempt, link, connected);
    return result;
}

/*
 * Connects again, because the listener has dropped a silent connection of a late program. It cannot
 * have accepted this link, since it does not have all hellos.
 */
static int attempt_step_or_begin_anew(struct attempt *attempt, struct net_link *link,
                                      bool *connected)
{
    int result;

    if (!attempt_has_sent_hellos(attempt) && clock_now() - attempt->called_at > LATE_NS)
        attempt->was_late = true;
    result = attempt_step(attempt, link, connected);
    if (result == TCPX_SUCCESS || !attempt->was_late || attempt->answer_bytes > 0)
        return result;
    attempt_close_connections(attempt);
    attempt->was_late = false;
    return attempt_open_connections(attempt);
}

int net_connect(const struct net_device *device, const struct net_link_options *options,
                uint8_t handle_bytes[NET_HANDLE_BYTES], struct net_link *link, bool *connected)
{
    struct net_handle handle;
    struct attempt *attempt;
    uint64_t number;
    bool done = false;
    int result = fork_check();

    if (result == TCPX_SUCCESS)
        result = net_handle_read(handle_bytes, &handle);
    if (result != TCPX_SUCCESS)
        return result;
    attempt = attempt_take(handle.attempt);
    if (attempt == NULL)
        result = attempt_start(device, options, &handle, &attempt);
    if (result != TCPX_SUCCESS)
        return result;
    number = attempt->number;
    result = attempt_step_or_begin_anew(attempt, link, &done);
    if (result == TCPX_SUCCESS && !done && !attempt_put_back(attempt))
        result =
            error_set(TCPX_SYSTEM_ERROR, "%d connections are being made already", MOST_ATTEMPTS);
    if (done)
        free(attempt); /* the link has its sockets now */
    else if (result != TCPX_SUCCESS)
        attempt_drop(attempt);
    handle.attempt = result == TCPX_SUCCESS && !done ? number : 0;
    net_handle_write(&handle, handle_bytes);
    if (result == TCPX_SUCCESS)
        *connected = done;
    return result;
}

void net_connect_cancel(uint8_t handle_bytes[NET_HANDLE_BYTES])
{
    struct net_handle handle;
    struct attempt *attempt;

    if (fork_check() != TCPX_SUCCESS || net_handle_read(handle_bytes, &handle) != TCPX_SUCCESS)
        return;
    attempt = attempt_take(handle.attempt);
    if (attempt != NULL)
        attempt_drop(attempt);
    handle.attempt = 0;
    net_handle_write(&handle, handle_bytes);
}

void net_connect_cancel_all(const void *owner)
{
    if (owner != NULL && fork_check() == TCPX_SUCCESS)
        attempt_drop_all(owner);
}
