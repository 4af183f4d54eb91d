/*
 * The connecting side of a handshake. Between calls its state is kept (attempt.h). A program may
 * pause between two calls for any time: if the listener has dropped a connection without a hello
 * meanwhile, the attempt connects again.
 *
 * All connections of a link take the same path (path.h). The first path is tried alone for a short
 * time; then the others are probed with one connection each. The first path is left when it fails,
 * or when another one works and it has not answered for two seconds.
 */
#include "net/link/link.h"

#include "base/clock.h"
#include "base/fork.h"
#include "net/link/attempt.h"
#include "net/link/budget.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PROBE_AFTER_MS = 250, /* without an answer on the first path, the others are probed */
    ANSWER_MS = 2000,     /* without an answer in this time, a path is left for one that works */
};

/* After a pause this long a listener may have dropped what had not presented its token. */
#define LATE_NS 1000000000u

/* --- starting ------------------------------------------------------------------------------ */

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

/* A route may lead over a path that is listed already. */
static bool attempt_has_path_twice(const struct attempt *attempt, const struct path *path)
{
    for (unsigned i = 0; i < attempt->path_count; i++)
        if (!attempt->paths[i].is_routed && path_is_same(&attempt->paths[i], path))
            return true;
    return false;
}

/* Without a text: the path is listed twice. */
static int attempt_connect(struct attempt *attempt, struct path *path, int *fd)
{
    int result = path_connect(path, &attempt->options, fd);

    if (result == TCPX_SUCCESS && path->is_routed && attempt_has_path_twice(attempt, path))
        return error_set(TCPX_SYSTEM_ERROR, "%s", "");
    return result;
}

/* With a new comm number: connections of an earlier try may still reach the listener. */
static int attempt_open_connections(struct attempt *attempt)
{
    int result = socket_random(&attempt->comm, sizeof attempt->comm);

    attempt->answer_bytes = 0;
    attempt->was_closed = false;
    for (unsigned i = 0; i < attempt_connection_count(attempt) && result == TCPX_SUCCESS; i++) {
        struct connection *connection = &attempt->connections[i];

        *connection = (struct connection){.fd = attempt->path->probe};
        attempt->path->probe = -1;
        if (connection->fd < 0)
            result = attempt_connect(attempt, attempt->path, &connection->fd);
    }
    return result;
}

/* A probe becomes the first connection. */
static int attempt_take_path(struct attempt *attempt, struct path *path)
{
    attempt_close_connections(attempt);
    attempt->path = path;
    attempt->path_from = clock_now();
    attempt->path_works = false;
    attempt->has_settled = false;
    socket_address_name(&path->target, attempt->peer);
    return attempt_open_connections(attempt);
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
    attempt->path_count = paths_list(device, options, handle, attempt->paths);
    for (int i = 0; i <= WIRE_MOST_SOCKETS; i++)
        attempt->connections[i].fd = -1;
    result = attempt_decide_sockets(attempt);
    if (result == TCPX_SUCCESS)
        result = socket_random(&attempt->number, sizeof attempt->number);
    attempt->number |= 1; /* 0 means that there is none */
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
        .capabilities = WIRE_CAPABILITIES,
    };

    memcpy(hello.token, attempt->handle.token, sizeof hello.token);
    wire_hello_write(&hello, bytes);
    if (!socket_send_rest(connection->fd, bytes, sizeof bytes, &connection->hello_sent))
        return error_system(errno, "cannot greet the listener at %s", attempt->peer);
    return TCPX_SUCCESS;
}

/* The answer on the reverse connection up to `wanted` bytes; *ended: no more will come. */
static int attempt_read_answer(struct attempt *attempt, size_t wanted, bool *ended)
{
    int fd = attempt->connections[attempt->options.sockets].fd;

    int got = socket_receive_rest(fd, attempt->answer, wanted, &attempt->answer_bytes);

    *ended = got <= 0;
    attempt->was_closed = got == 0 && attempt->answer_bytes == 0;
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
    *link = (struct net_link){
        .reverse = attempt->connections[attempt->options.sockets].fd,
        .sockets = attempt->options.sockets,
        .version = record.socket,
        .capabilities = record.sequence,
        .match = attempt->options.match,
        .framing = attempt->options.framing,
        .eager_credit = record.offset,
        .eager_limit = record.length,
        .largest_slice = record.tag,
        .requests = attempt->options.requests,
        .no_kernels = attempt->options.no_kernels,
        .process = attempt->handle.process,
        .device = attempt->path->device,
        .numa_node = attempt->path->device.ifindex != 0 ? attempt->path->device.numa_node : -1,
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
            result = path_establish(attempt->path, connection->fd, &connection->established);
        attempt->path_works |= connection->established;
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

/* --- other paths --------------------------------------------------------------------------- */

static void attempt_start_probes(struct attempt *attempt)
{
    for (unsigned i = 0; i < attempt->path_count; i++) {
        struct path *path = &attempt->paths[i];

        if (path == attempt->path || path->state != PATH_UNTRIED)
            continue;
        path->state = PATH_PROBED;
        if (attempt_connect(attempt, path, &path->probe) != TCPX_SUCCESS)
            path_fail(path, error_text());
    }
}

/* The first path whose probe is connected; NULL: none. */
static struct path *attempt_find_working(struct attempt *attempt)
{
    for (unsigned i = 0; i < attempt->path_count; i++) {
        struct path *path = &attempt->paths[i];
        bool connected;

        if (path->probe < 0)
            continue;
        if (path_establish(path, path->probe, &connected) != TCPX_SUCCESS)
            path_fail(path, error_text());
        else if (connected)
            return path;
    }
    return NULL;
}

/* A path that works, or else one that has not failed yet; NULL: all have. */
static struct path *attempt_find_path(struct attempt *attempt)
{
    struct path *found = attempt_find_working(attempt);

    for (unsigned i = 0; i < attempt->path_count && found == NULL; i++)
        if (&attempt->paths[i] != attempt->path && attempt->paths[i].state != PATH_FAILED)
            found = &attempt->paths[i];
    return found;
}

static uint64_t attempt_answer_ms(const struct net_link_options *options)
{
    uint64_t usual = options->timeout_ms < ANSWER_MS ? options->timeout_ms : ANSWER_MS;

    return options->answer_ms != 0 && options->answer_ms < usual ? options->answer_ms : usual;
}

/* For an attempt whose path has not answered yet. *path: another one to take; NULL: none. */
static void attempt_look_elsewhere(struct attempt *attempt, struct path **path)
{
    uint64_t waited_ms = (clock_now() - attempt->path_from) / 1000000;
    char reason[PATH_REASON_BYTES];

    *path = NULL;
    if (waited_ms < PROBE_AFTER_MS)
        return;
    attempt_start_probes(attempt);
    if (waited_ms < attempt_answer_ms(&attempt->options))
        return;
    *path = attempt_find_working(attempt);
    if (*path == NULL)
        return;
    snprintf(reason, sizeof reason, "%s does not answer, after %llu ms", attempt->peer,
             (unsigned long long)waited_ms);
    path_fail(attempt->path, reason);
}

/* Whether a failure can be one of the path, and the listener cannot have accepted this link. */
static bool attempt_may_take_another(const struct attempt *attempt)
{
    return attempt->path_count > 1 && attempt->answer_bytes == 0 &&
           (attempt->was_closed || !attempt_has_sent_hellos(attempt));
}

static int attempt_report_all(const struct attempt *attempt, int result)
{
    char text[900];

    attempt_describe(attempt, text, sizeof text);
    return error_set(result, "%s", text);
}

/* The path has answered: the others are not needed any more. */
static void attempt_settle(struct attempt *attempt)
{
    if (attempt->has_settled)
        return;
    attempt->has_settled = true;
    attempt_close_probes(attempt);
    for (unsigned i = 0; i < attempt->path_count; i++)
        if (*attempt->paths[i].reason != '\0')
            path_leave_out(&attempt->paths[i]);
}

/* Moves on along the path, or on another one. */
static int attempt_advance(struct attempt *attempt, struct net_link *link, bool *connected)
{
    struct path *next = attempt->path == NULL ? &attempt->paths[0] : NULL;
    int result = TCPX_SUCCESS;

    do {
        result = next != NULL ? attempt_take_path(attempt, next) : TCPX_SUCCESS;
        if (result == TCPX_SUCCESS)
            result = attempt_step_or_begin_anew(attempt, link, connected);
        if (result == TCPX_SUCCESS) {
            next = NULL;
            if (attempt->path_works)
                attempt_settle(attempt);
            else
                attempt_look_elsewhere(attempt, &next);
        } else if (!attempt_may_take_another(attempt)) {
            return result;
        } else {
            path_fail(attempt->path, error_text());
            next = attempt_find_path(attempt);
            if (next == NULL)
                return attempt_report_all(attempt, result);
        }
    } while (next != NULL);
    return result;
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
    result = attempt_advance(attempt, link, &done);
    if (result == TCPX_SUCCESS && !done && !attempt_put_back(attempt))
        result =
            error_set(TCPX_SYSTEM_ERROR, "%d connections are being made already", ATTEMPTS_MOST);
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

void net_connect_describe(const uint8_t handle_bytes[NET_HANDLE_BYTES], char *text, size_t size)
{
    struct net_handle handle;
    struct attempt *attempt;

    text[0] = '\0';
    if (fork_check() != TCPX_SUCCESS || net_handle_read(handle_bytes, &handle) != TCPX_SUCCESS)
        return;
    attempt = attempt_take(handle.attempt);
    if (attempt == NULL)
        return;
    attempt_describe(attempt, text, size);
    if (!attempt_put_back(attempt))
        attempt_drop(attempt);
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
