/*
 * tcpx connection: the handshake alone, by the calls of the original interface, once or many times,
 * and how long each of its steps took. Nothing is sent over the connections.
 */
#include "base/clock.h"
#include "base/log.h"
#include "tools/end.h"
#include "tools/spans.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_CONNECTIONS = 10000, PEER_BYTES = 128 };

/* Of one connection. TOTAL also has what lies between: that the server says it has accepted. */
enum step { LISTEN, HANDLE, CONNECT, CLOSE, TOTAL, STEPS };

struct connection {
    struct end end;
    uint64_t wanted; /* --count; 0: not given */
    unsigned count;

    uint8_t handle[MEETING_HANDLE_BYTES];
    uint64_t lap; /* when the latest step ended */
    uint64_t listen_ns;
    uint64_t bootstrap_ns;
    uint64_t *times; /* count of each step, in ns */
    struct tcpx_net_properties device;
    char peer[PEER_BYTES];
};

/* --- times --------------------------------------------------------------------------------- */

static uint64_t *times_of(const struct connection *connection, enum step step)
{
    return connection->times + (size_t)step * connection->count;
}

/* Since the end of the step before. */
static uint64_t take_lap(struct connection *connection)
{
    uint64_t before = connection->lap;

    connection->lap = clock_now();
    return connection->lap - before;
}

static void note_step(struct connection *connection, enum step step, unsigned number)
{
    times_of(connection, step)[number] = take_lap(connection);
}

static int make_times(struct connection *connection)
{
    connection->times = calloc((size_t)connection->count * STEPS, sizeof *connection->times);
    if (connection->times == NULL)
        return error_set(TCPX_SYSTEM_ERROR, "no memory for the times of %u connections",
                         connection->count);
    return TCPX_SUCCESS;
}

/* --- one connection ------------------------------------------------------------------------ */

static int listen_once(struct connection *connection)
{
    int result;

    connection->lap = clock_now();
    result = end_listen(&connection->end, connection->handle);
    connection->listen_ns = take_lap(connection);
    return result;
}

/* The first listener is there before the two meet. */
static int connect_one(struct connection *connection, unsigned number)
{
    struct end *end = &connection->end;
    int result = end_is_server(end) && number > 0 ? listen_once(connection) : TCPX_SUCCESS;

    times_of(connection, LISTEN)[number] = connection->listen_ns;
    if (result == TCPX_SUCCESS)
        result = meeting_pass_handle(&end->meeting, 1, connection->handle);
    note_step(connection, HANDLE, number);
    if (result == TCPX_SUCCESS)
        result = end_connect(end, connection->handle);
    note_step(connection, CONNECT, number);
    /* Before that nobody closes: a plugin may not take that well. */
    return result == TCPX_SUCCESS ? meeting_pass_verdict(&end->meeting) : result;
}

static int connection_once(struct connection *connection, unsigned number)
{
    struct end *end = &connection->end;
    uint64_t began = clock_now();
    int result;

    if (number == 0)
        began -= connection->listen_ns;
    connection->lap = clock_now();
    result = connect_one(connection, number);
    if (result != TCPX_SUCCESS)
        return result;
    connection->lap = clock_now();
    result = end_hang_up(end);
    note_step(connection, CLOSE, number);
    times_of(connection, TOTAL)[number] = connection->lap - began;
    return result;
}

/* --- all of them --------------------------------------------------------------------------- */

/* The client decides; a server may have been told what to expect. */
static int agree_on_count(struct connection *connection)
{
    struct end *end = &connection->end;
    int result;

    connection->count = connection->wanted != 0 ? (unsigned)connection->wanted : 1;
    result = meeting_pass_count(&end->meeting, MOST_CONNECTIONS, &connection->count);
    if (result == TCPX_SUCCESS && connection->wanted != 0 &&
        connection->wanted != connection->count)
        return error_set(TCPX_INVALID_USAGE, "connections: %llu expected by the server, %u by %s",
                         (unsigned long long)connection->wanted, connection->count,
                         control_peer(end->meeting.control));
    return result;
}

static int connection_meet(struct connection *connection)
{
    struct end *end = &connection->end;
    int result = end_enter(end);

    if (result == TCPX_SUCCESS)
        result = tcpx_get_properties(END_DEVICE, &connection->device);
    if (result == TCPX_SUCCESS && end_is_server(end))
        result = listen_once(connection);
    connection->lap = clock_now();
    if (result == TCPX_SUCCESS)
        result = end_meet(end);
    if (result != TCPX_SUCCESS)
        return result;
    connection->bootstrap_ns = take_lap(connection);
    snprintf(connection->peer, sizeof connection->peer, "%s", control_peer(end->meeting.control));
    result = agree_on_count(connection);
    return result == TCPX_SUCCESS ? make_times(connection) : result;
}

static int connection_all(struct connection *connection)
{
    int result = connection_meet(connection);

    for (unsigned i = 0; result == TCPX_SUCCESS && i < connection->count; i++)
        result = connection_once(connection, i);
    return result;
}

/* --- what came out ------------------------------------------------------------------------- */

static void print_row(const struct connection *connection, enum step step, const char *name)
{
    uint64_t *times = times_of(connection, step);
    unsigned count = connection->count;

    spans_sort(times, count);
    printf("%-10s %11.1f", name, spans_percentile_us(times, count, 0));
    if (count > 1)
        printf(" %11.1f %11.1f", spans_percentile_us(times, count, 500),
               spans_percentile_us(times, count, 990));
    printf("\n");
}

static void print_table(const struct connection *connection)
{
    bool is_server = end_is_server(&connection->end);
    double bootstrap_us = (double)connection->bootstrap_ns / 1e3;

    printf("%s %s, device %d (%s)\n", is_server ? "from" : "to", connection->peer, END_DEVICE,
           connection->device.name);
    if (connection->count == 1) {
        printf("%-10s %11s\n", "step", "us");
        printf("%-10s %11.1f\n", "bootstrap", bootstrap_us);
    } else {
        printf("bootstrap, once for all: %.1f us\n", bootstrap_us);
        printf("%-10s %11s %11s %11s\n", "step", "min us", "median us", "p99 us");
    }
    if (is_server)
        print_row(connection, LISTEN, "listen");
    print_row(connection, HANDLE, "handle");
    print_row(connection, CONNECT, is_server ? "accept" : "connect");
    print_row(connection, CLOSE, "close");
    print_row(connection, TOTAL, "total");
    printf("%u connection%s %s: PASSED\n", connection->count, connection->count == 1 ? "" : "s",
           is_server ? "accepted" : "made");
}

/* --- the command --------------------------------------------------------------------------- */

static int show_connections(const struct connection *connection)
{
    log_debug("✓ Test PASSED");
    log_debug("%s test completed successfully",
              end_is_server(&connection->end) ? "Server" : "Client");
    print_table(connection);
    return command_finish();
}

static int run_connection(struct connection *connection)
{
    struct end *end = &connection->end;
    int status;
    int result;

    log_debug("=== TCPX connection test ===");
    result = end_open(end);
    if (result == TCPX_SUCCESS)
        result = connection_all(connection);
    end_note(end, result);
    result = end_close(end);
    if (result != TCPX_SUCCESS)
        log_debug("✗ Test FAILED");
    status = result == TCPX_SUCCESS ? show_connections(connection) : command_failed();
    free(connection->times);
    return status;
}

/* One client, from the beginning. */
static int connection_serve_client(void *argument, bool *met)
{
    struct connection connection = *(const struct connection *)argument;
    int status = run_connection(&connection);

    *met = connection.end.met;
    return status;
}

static int connection_main(int argument_count, char **arguments)
{
    struct connection connection = {.end = {.options = {.test = MEETING_CONNECTION}}};
    const struct option count = {.name = "--count",
                                 .number = &connection.wanted,
                                 .least = 1,
                                 .most = MOST_CONNECTIONS,
                                 .problem = "not a number of connections from 1 to 10000:"};
    int status = end_parse(&command_connection, argument_count, arguments, &count, &connection.end);

    if (status != EXIT_OK)
        return status;
    return end_is_server(&connection.end)
               ? meeting_serve(&connection.end.options, connection_serve_client, &connection)
               : run_connection(&connection);
}

const struct command command_connection = {
    .name = "connection",
    .arguments = "server [GPU] | client HOST [GPU] [--count N] [--port N] [--secret FILE]\n"
                 "                       [--timeout S] [--once]",
    .summary = "Connect and close, send nothing, and show how long each step took.",
    .help =
        "\n"
        "  server        serves one client after the other until Ctrl-C\n"
        "  client HOST   connects to the server there\n"
        "  GPU           which one; 0\n"
        "  --count N     how many connections, one after the other, 1 to 10000; 1. The client\n"
        "                decides; a server with this option refuses any other number\n"
        "  --port N      where the two meet; UCCL_TCPX_BOOTSTRAP_PORT_BASE plus the GPU, so that "
        "a\n"
        "                server and a client with different GPUs need it\n"
        "  --secret FILE both must have the same; needs libsodium\n"
        "  --timeout S   seconds for each step; 60\n"
        "  --once        the server ends after one client, or when none comes within --timeout\n"
        "\n"
        "The steps: bootstrap, in which the two find each other (at the server it includes the\n"
        "wait for the client); listen; handle, in which the address of the listener goes to the\n"
        "client; accept or connect; close. UCCL_TCPX_DEBUG=1 shows each of them.\n",
    .run = connection_main,
};
