/* The two ends of a measurement: how they meet, agree on the plan and make their session. */
#include "base/clock.h"
#include "base/config.h"
#include "net/io/io.h"
#include "net/transport.h"
#include "session/bootstrap.h"
#include "session/session.h"
#include "tools/perf_report.h"
#include "tools/perf_side.h"
#include "unpack/unpack.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* How often a server that waits for the session looks whether its client is still there. */
enum { LOOK_MS = 100 };

static int perf_describe_self(const struct perf_end *end, struct perf_self *self)
{
    struct tcpx_gpu_properties properties;
    int result;

    *self = (struct perf_self){.memory = "host memory"};
    if (gethostname(self->host, sizeof self->host - 1) != 0)
        self->host[0] = '\0';
    if (end->gpu < 0)
        return TCPX_SUCCESS;
    result = tcpx_gpu_get_properties(end->gpu, &properties);
    if (result == TCPX_SUCCESS)
        snprintf(self->memory, sizeof self->memory, "GPU %d, %.48s", end->gpu, properties.name);
    return result;
}

/* --- what is known of the run before it ------------------------------------------------------ */

/* Without the peer's address, so that both ends can say the same. */
static const char *path_of(const struct perf_side *side)
{
    const char *path = tcpx_session_path(side->session);
    size_t length = strlen(control_peer(side->session->control));

    return strlen(path) > length + 2 ? path + length + 2 : path;
}

/* Over the built-in transport bytes are copied into place, and nothing has to be unpacked. */
static bool path_unpacks(const char *path)
{
    return strstr(path, "unpacked here") != NULL || strstr(path, "by devmem TCP") != NULL;
}

static int describe_path(const struct perf_side *side, struct perf_path *path)
{
    const struct config *config;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    *path = (struct perf_path){.line_mbps = 0};
    snprintf(path->text, sizeof path->text, "%s", path_of(side));
    snprintf(path->unpack, sizeof path->unpack, "%s",
             path_unpacks(path->text) ? unpack_impl_name((enum unpack_impl)config->unpack_impl)
                                      : "none: bytes arrive in place");
    return perf_line_rate(path->text, &path->line_mbps);
}

/* Each end tells the other; what they say of both is the same. */
static int exchange_path(struct perf_side *side, struct perf_path *client, struct perf_path *server)
{
    struct perf_path *mine = side->is_server ? server : client;
    struct perf_path *theirs = side->is_server ? client : server;
    uint8_t bytes[PERF_LARGEST];
    size_t length = sizeof bytes;
    int result = describe_path(side, mine);

    if (result != TCPX_SUCCESS)
        return result;
    perf_path_encode(mine, bytes);
    result = meeting_say(&side->meeting, PERF_PATH, bytes, PERF_PATH_BYTES);
    if (result == TCPX_SUCCESS)
        result = perf_hear(side, PERF_PATH, "the other end's path", bytes, &length);
    return result == TCPX_SUCCESS ? perf_path_decode(bytes, length, theirs) : result;
}

static void join(char *text, size_t room, const char *client, const char *between,
                 const char *server)
{
    snprintf(text, room, "%s", client);
    if (strcmp(client, server) != 0)
        snprintf(text + strlen(text), room - strlen(text), "%s%s", between, server);
}

/* Those that unpack are those that receive. */
static void result_add_path(struct perf_side *side, const struct perf_path *client,
                            const struct perf_path *server)
{
    struct perf_result *result = side->result;
    const struct perf_path *slower = client->line_mbps < server->line_mbps ? client : server;
    bool client_receives = perf_has_in(&side->plan, false);
    bool server_receives = perf_has_in(&side->plan, true);

    join(result->path, sizeof result->path, client->text, "; server: ", server->text);
    join(result->unpack, sizeof result->unpack, (client_receives ? client : server)->unpack, ", ",
         (server_receives ? server : client)->unpack);
    result->line_mbps = slower->line_mbps;
}

static int perf_describe_run(struct perf_side *side, const struct perf_self *client,
                             const struct perf_self *server)
{
    struct perf_result *result = side->result;
    struct perf_path client_path;
    struct perf_path server_path;
    struct net_link_options link;
    struct io_plan io;
    time_t now = time(NULL);
    struct tm date;
    int failed = net_link_defaults(WIRE_MATCH_TAG, &link);

    if (failed == TCPX_SUCCESS)
        failed = io_plan(&io);
    if (failed == TCPX_SUCCESS)
        failed = exchange_path(side, &client_path, &server_path);
    if (failed != TCPX_SUCCESS)
        return failed;
    *result = (struct perf_result){
        .way = side->plan.way,
        .channels = side->session->channels,
        .pieces = side->plan.pieces,
        .operation = side->plan.operation,
        .accesses = side->plan.accesses,
        .check = side->plan.check,
        .size_count = side->plan.size_count,
        .sockets = link.sockets,
        .threads = io.threads,
        .chunk_bytes = side->plan.operation == PERF_SENDS ? side->plan.chunk_bytes : 0};
    if (gmtime_r(&now, &date) != NULL)
        (void)strftime(result->date, sizeof result->date, "%Y-%m-%dT%H:%M:%SZ", &date);
    snprintf(result->version, sizeof result->version, "%s", tcpx_version());
    snprintf(result->client, sizeof result->client, "%s", client->host);
    snprintf(result->server, sizeof result->server, "%s", server->host);
    join(result->memory, sizeof result->memory, client->memory, " to ", server->memory);
    result_add_path(side, &client_path, &server_path);
    return TCPX_SUCCESS;
}

/* --- both ends ----------------------------------------------------------------------------- */

static struct tcpx_session_options session_options(const struct perf_side *side)
{
    struct tcpx_session_options options;

    tcpx_session_options_init(&options);
    options.gpu = side->end->gpu;
    options.channels = (int)side->plan.channels;
    options.chunk_bytes = side->plan.chunk_bytes;
    options.secret_file = side->end->meeting.secret_file;
    options.windows = side->plan.operation != PERF_SENDS;
    return options;
}

/* Everything that is open; the other end is told why, if it failed. */
static int close_side(struct perf_side *side, int result)
{
    char why[400] = "";

    if (result != TCPX_SUCCESS)
        snprintf(why, sizeof why, "%s", error_text());
    if (side->end->report != NULL &&
        perf_report_end(side->end->report, *why != '\0' ? why : NULL) != TCPX_SUCCESS &&
        result == TCPX_SUCCESS) {
        result = TCPX_SYSTEM_ERROR;
        snprintf(why, sizeof why, "%s", error_text());
    }
    tcpx_session_close(side->session);
    perf_access_close(&side->access);
    free(side->pieces);
    buffer_destroy(&side->out);
    buffer_destroy(&side->in);
    meeting_close(&side->meeting, result != TCPX_SUCCESS ? why : NULL);
    if (result != TCPX_SUCCESS)
        error_keep("%s", why);
    return result;
}

/* --- the client ---------------------------------------------------------------------------- */

static int agree_client(struct perf_side *side, struct perf_self *client, struct perf_self *server,
                        uint16_t *port)
{
    uint8_t bytes[PERF_LARGEST];
    size_t length = sizeof bytes;
    int result = perf_describe_self(side->end, client);

    if (result == TCPX_SUCCESS)
        result = meeting_begin(&side->meeting);
    if (result != TCPX_SUCCESS)
        return result;
    perf_plan_encode(&side->plan, client, bytes);
    result = meeting_say(&side->meeting, PERF_PLAN, bytes, PERF_PLAN_BYTES);
    if (result == TCPX_SUCCESS)
        result = perf_hear(side, PERF_MEET, "the server's session", bytes, &length);
    return result == TCPX_SUCCESS ? perf_meet_decode(bytes, length, port, server) : result;
}

static int visit_side(struct perf_side *side)
{
    struct tcpx_session_options options = session_options(side);
    struct perf_self client;
    struct perf_self server;
    uint16_t port;
    int result = agree_client(side, &client, &server, &port);

    if (result == TCPX_SUCCESS)
        result = tcpx_session_connect(side->end->meeting.host, port, &options,
                                      side->end->meeting.timeout_ms, &side->session);
    if (result == TCPX_SUCCESS)
        result = perf_describe_run(side, &client, &server);
    return result == TCPX_SUCCESS ? perf_measure(side) : result;
}

int perf_visit(const struct perf_end *end, const struct perf_plan *plan, struct perf_result *result)
{
    struct perf_side side = {.end = end, .plan = *plan, .result = result};
    int outcome = end->report != NULL ? perf_report_watch(end->report) : TCPX_SUCCESS;

    if (outcome == TCPX_SUCCESS)
        outcome = perf_check_memory(end, plan, false);

    if (outcome == TCPX_SUCCESS)
        outcome = meeting_open(&end->meeting, &side.meeting);
    return close_side(&side, outcome == TCPX_SUCCESS ? visit_side(&side) : outcome);
}

/* --- the server ---------------------------------------------------------------------------- */

static int agree_server(struct perf_side *side, struct perf_self *client, bool *met)
{
    uint8_t bytes[PERF_LARGEST];
    size_t length = sizeof bytes;
    int result = meeting_begin(&side->meeting);

    *met = result == TCPX_SUCCESS;
    if (result == TCPX_SUCCESS)
        result = perf_hear(side, PERF_PLAN, "the client's plan", bytes, &length);
    if (result == TCPX_SUCCESS)
        result = perf_plan_decode(bytes, length, &side->plan, client);
    return result == TCPX_SUCCESS && side->end->is_alone
               ? perf_check_memory(side->end, &side->plan, true)
               : result;
}

/* A client that gives up meanwhile is noticed. */
static int accept_session(struct perf_side *side, struct tcpx_session_listener *listener)
{
    int result = TCPX_IN_PROGRESS;

    meeting_next_step(&side->meeting);
    while (result == TCPX_IN_PROGRESS && !deadline_passed(side->meeting.deadline)) {
        result = meeting_check_client(&side->meeting);
        if (result == TCPX_SUCCESS)
            result = session_accept_until(listener, deadline_after_ms(LOOK_MS),
                                          side->meeting.deadline, &side->session);
    }
    return result;
}

static int open_session(struct perf_side *side, const struct perf_self *server)
{
    struct tcpx_session_options options = session_options(side);
    struct tcpx_session_listener *listener;
    uint8_t bytes[PERF_MEET_BYTES];
    int port;
    int result = tcpx_session_listen(side->end->meeting.address, 0, &options, &listener);

    if (result != TCPX_SUCCESS)
        return result;
    result = tcpx_session_port(listener, &port);
    if (result == TCPX_SUCCESS) {
        perf_meet_encode((uint16_t)port, server, bytes);
        result = meeting_say(&side->meeting, PERF_MEET, bytes, sizeof bytes);
    }
    if (result == TCPX_SUCCESS)
        result = accept_session(side, listener);
    tcpx_session_stop_listening(listener);
    return result;
}

static int tell_port(const struct perf_side *side, int port_to)
{
    uint16_t port = bootstrap_port(side->meeting.listener);

    if (port_to >= 0 && write(port_to, &port, sizeof port) != (ssize_t)sizeof port)
        return error_system(errno, "cannot pass the port on");
    return TCPX_SUCCESS;
}

static int serve_side(struct perf_side *side, int port_to, bool *met)
{
    struct perf_self client;
    struct perf_self server;
    int result = tell_port(side, port_to);

    if (result == TCPX_SUCCESS)
        result = perf_describe_self(side->end, &server);
    if (result == TCPX_SUCCESS)
        result = agree_server(side, &client, met);
    if (result == TCPX_SUCCESS)
        result = open_session(side, &server);
    if (result == TCPX_SUCCESS)
        result = perf_describe_run(side, &client, &server);
    return result == TCPX_SUCCESS ? perf_measure(side) : result;
}

int perf_serve(const struct perf_end *end, int port_to, struct perf_result *result, bool *met)
{
    struct perf_side side = {.end = end, .result = result, .is_server = true};
    int outcome = end->report != NULL ? perf_report_watch(end->report) : TCPX_SUCCESS;

    if (outcome == TCPX_SUCCESS)
        outcome = meeting_open(&end->meeting, &side.meeting);
    return close_side(&side, outcome == TCPX_SUCCESS ? serve_side(&side, port_to, met) : outcome);
}
