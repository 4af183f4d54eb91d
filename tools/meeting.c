/* The rendezvous of the two ends of a test. */
#include "tools/meeting.h"

#include "base/clock.h"
#include "base/parse.h"
#include "base/text.h"
#include "plugin_host/plugin_host.h"
#include "session/agreement.h"
#include "session/bootstrap.h"

#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The first is a session's, which meets its peer in the same way; the last one is that of
 * tools/perf_talk.h. */
enum message {
    SESSION = 0,
    HANDLE = 16,
    VERDICT = 17,
    COUNT = 18,
    CONNECTION_HANDLE = 19,
    PERF = 32,
};

enum { LINGER_MS = 1000, VERDICT_BYTES = 400, WHY_BYTES = 400 };

bool meeting_read_timeout(void *timeout_ms, const char *value)
{
    uint64_t seconds;

    if (!parse_number(value, &seconds) || seconds < 1 || seconds > 3600)
        return false;
    *(int *)timeout_ms = (int)seconds * 1000;
    return true;
}

void meeting_count_port(struct meeting_options *options, uint64_t base, int gpu)
{
    options->port_gpu = -1;
    if (options->port != 0)
        return;
    options->port = base + (uint64_t)gpu;
    options->port_gpu = gpu;
}

/* --- the beginning ------------------------------------------------------------------------- */

static const char *test_name(enum meeting_test test)
{
    static const char *const names[] = {[MEETING_TRANSFER] = "tcpx transfer",
                                        [MEETING_CONNECTION] = "tcpx connection",
                                        [MEETING_PERF] = "tcpx perf"};

    return names[test];
}

/* One line on standard error, so that standard output has results only. */
static void announce(const struct meeting *meeting, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void announce(const struct meeting *meeting, const char *format, ...)
{
    va_list list;

    if (!meeting->options.announces)
        return;
    fprintf(stderr, "%s server: ", test_name(meeting->options.test));
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
}

int meeting_open(const struct meeting_options *options, struct meeting *meeting)
{
    char why[WHY_BYTES];
    int result;

    *meeting = (struct meeting){.options = *options};
    if (options->host != NULL)
        return TCPX_SUCCESS;
    result = bootstrap_listen(options->address, (uint16_t)options->port, options->secret_file,
                              &meeting->listener);
    if (result == TCPX_SUCCESS)
        return TCPX_SUCCESS;
    snprintf(why, sizeof why, "%s", error_text());
    return strstr(why, error_reason(EADDRINUSE, (char[ERROR_REASON_BYTES]){0})) != NULL
               ? error_set(result, "%s; --port N chooses another port, at both ends", why)
               : result;
}

void meeting_next_step(struct meeting *meeting)
{
    meeting->deadline = deadline_after_ms((uint64_t)meeting->options.timeout_ms);
}

/* The listener is closed while there is a client: the test itself may need the port. */
static int meeting_accept(struct meeting *meeting)
{
    const struct meeting_options *options = &meeting->options;
    int result;

    announce(meeting, "listening on %s, port %u; waiting for a client%s",
             options->address != NULL ? options->address : "all addresses",
             bootstrap_port(meeting->listener), options->once ? "" : " (Ctrl-C ends this)");
    result = bootstrap_accept(meeting->listener, options->once ? meeting->deadline : DEADLINE_NEVER,
                              &meeting->control);
    if (result != TCPX_SUCCESS)
        return result;
    bootstrap_listener_close(meeting->listener);
    meeting->listener = NULL;
    announce(meeting, "client %s", control_peer(meeting->control));
    return TCPX_SUCCESS;
}

static int meeting_reach(struct meeting *meeting)
{
    const struct meeting_options *options = &meeting->options;
    char why[WHY_BYTES];
    char counted[160] = "";
    int result = bootstrap_connect(options->host, (uint16_t)options->port, options->secret_file,
                                   meeting->deadline, &meeting->control);

    if (result != TCPX_IN_PROGRESS)
        return result;
    snprintf(why, sizeof why, "%s", error_text());
    if (options->port_gpu >= 0)
        snprintf(
            counted, sizeof counted,
            " This port is that of GPU %d: where the server has another GPU, give both the same "
            "--port.",
            options->port_gpu);
    return error_set(result,
                     "%s; is '%s server' running there, at this port (--port), and not busy with "
                     "another client?%s",
                     why, test_name(options->test), counted);
}

int meeting_begin(struct meeting *meeting)
{
    meeting_next_step(meeting);
    return meeting->options.host == NULL ? meeting_accept(meeting) : meeting_reach(meeting);
}

int meeting_serve(const struct meeting_options *options, int (*serve)(void *argument, bool *met),
                  void *argument)
{
    bool met;
    int status;

    do {
        met = false;
        status = serve(argument, &met);
    } while (met && !options->once);
    return status;
}

/* --- messages ------------------------------------------------------------------------------ */

/* Whose first message this is; NULL: nobody's. */
static const char *sender_name(uint8_t type)
{
    switch (type) {
    case SESSION:
        return "a session";
    case HANDLE:
        return test_name(MEETING_TRANSFER);
    case COUNT:
    case CONNECTION_HANDLE:
        return test_name(MEETING_CONNECTION);
    case PERF:
        return test_name(MEETING_PERF);
    default:
        return NULL;
    }
}

static int wrong_type(const struct meeting *meeting, uint8_t type, const char *awaited)
{
    const char *peer = control_peer(meeting->control);
    const char *mine = test_name(meeting->options.test);
    const char *theirs = sender_name(type);

    if (theirs == NULL || theirs == mine)
        return error_set(TCPX_REMOTE_ERROR, "%s: a message of type %u instead of %s", peer, type,
                         awaited);
    return error_set(TCPX_INVALID_USAGE, "%s runs %s, but this is %s", peer, theirs, mine);
}

static int await(struct meeting *meeting, uint8_t expected, const char *awaited, void *payload,
                 size_t room, size_t *length)
{
    uint8_t type;
    int result =
        control_await(meeting->control, awaited, &type, payload, room, length, meeting->deadline);

    if (result == TCPX_SUCCESS && type != expected)
        return wrong_type(meeting, type, awaited);
    return result;
}

int meeting_say(struct meeting *meeting, uint8_t type, const void *payload, size_t bytes)
{
    int result = control_send(meeting->control, type, payload, bytes);

    if (result == TCPX_SUCCESS && control_has_unsent(meeting->control)) {
        meeting_next_step(meeting);
        result = control_send_all(meeting->control, meeting->deadline);
    }
    return result;
}

int meeting_pass_count(struct meeting *meeting, unsigned most, unsigned *count)
{
    uint8_t bytes[AGREEMENT_BYTES]; /* so that a longer first message is called by its name */
    uint32_t wire = htole32(*count);
    size_t length;
    int result;

    if (meeting->options.host != NULL)
        return meeting_say(meeting, COUNT, &wire, sizeof wire);
    meeting_next_step(meeting);
    result = await(meeting, COUNT, "how often", bytes, sizeof bytes, &length);
    if (result != TCPX_SUCCESS)
        return result;
    if (length != sizeof wire)
        return error_set(TCPX_REMOTE_ERROR, "%s says how often with %zu bytes, expected are %zu",
                         control_peer(meeting->control), length, sizeof wire);
    memcpy(&wire, bytes, sizeof wire);
    wire = le32toh(wire);
    if (wire < 1 || wire > most)
        return error_set(TCPX_REMOTE_ERROR, "%s says %u times, possible are 1 to %u",
                         control_peer(meeting->control), wire, most);
    *count = wire;
    return TCPX_SUCCESS;
}

int meeting_check_client(struct meeting *meeting)
{
    uint8_t bytes[AGREEMENT_BYTES];
    uint8_t type;
    size_t length;
    bool there;
    int result = control_receive(meeting->control, &type, bytes, sizeof bytes, &length, &there);

    if (result == TCPX_SUCCESS && there)
        return wrong_type(meeting, type, "a connection");
    return result;
}

/* --- handles ------------------------------------------------------------------------------- */

static int meeting_describe_self(uint64_t bytes, struct agreement *agreement)
{
    const struct import_plugin *plugin;
    int result = import_open_named(NULL, &plugin);

    if (result != TCPX_SUCCESS)
        return result;
    *agreement = (struct agreement){.version = SESSION_VERSION,
                                    .table_version = (uint32_t)plugin->table.version,
                                    .channels = 1,
                                    .chunk_bytes = bytes};
    snprintf(agreement->transport, sizeof agreement->transport, "%s",
             import_is_builtin(plugin) ? "builtin" : plugin->table.name);
    if (gethostname(agreement->host, sizeof agreement->host - 1) != 0)
        agreement->host[0] = '\0';
    return TCPX_SUCCESS;
}

/* Each tells the other; the client's handle means nothing. */
static int meeting_exchange(struct meeting *meeting, const struct agreement *mine,
                            struct agreement *theirs)
{
    uint8_t type = meeting->options.test == MEETING_CONNECTION ? CONNECTION_HANDLE : HANDLE;
    uint8_t bytes[AGREEMENT_BYTES];
    size_t length = agreement_encode(mine, bytes);
    int result = meeting_say(meeting, type, bytes, length);

    if (result == TCPX_SUCCESS)
        result = await(meeting, type, "the handle", bytes, sizeof bytes, &length);
    if (result == TCPX_SUCCESS)
        result = agreement_decode(bytes, length, theirs);
    return result;
}

/* The number of bytes travels as the chunk size does, but is called by its own name. */
static int meeting_compare(const struct agreement *mine, const struct agreement *theirs)
{
    if (mine->chunk_bytes != theirs->chunk_bytes)
        return error_set(TCPX_INVALID_USAGE, "the payload: %llu bytes here, %llu at %s",
                         (unsigned long long)mine->chunk_bytes,
                         (unsigned long long)theirs->chunk_bytes, theirs->host);
    return agreement_compare(mine, theirs);
}

int meeting_pass_handle(struct meeting *meeting, uint64_t bytes,
                        uint8_t handle[MEETING_HANDLE_BYTES])
{
    bool is_server = meeting->options.host == NULL;
    struct agreement mine;
    struct agreement theirs;
    int result = meeting_describe_self(bytes, &mine);

    if (result != TCPX_SUCCESS)
        return result;
    if (is_server)
        memcpy(mine.handles[0], handle, MEETING_HANDLE_BYTES);
    meeting_next_step(meeting);
    result = meeting_exchange(meeting, &mine, &theirs);
    if (result == TCPX_SUCCESS)
        result = meeting_compare(&mine, &theirs);
    if (result == TCPX_SUCCESS && !is_server)
        memcpy(handle, theirs.handles[0], MEETING_HANDLE_BYTES);
    return result;
}

/* --- the end ------------------------------------------------------------------------------- */

int meeting_pass_verdict(struct meeting *meeting)
{
    char text[VERDICT_BYTES];
    char shown[CONTROL_REFUSAL_TEXT + 1];
    size_t length;
    int result;

    if (meeting->options.host == NULL)
        return meeting_say(meeting, VERDICT, "", 0);
    meeting_next_step(meeting);
    result = await(meeting, VERDICT, "the verdict", text, sizeof text, &length);
    if (result != TCPX_SUCCESS || length == 0)
        return result;
    text_printable(text, length, shown, sizeof shown);
    return error_set(TCPX_REMOTE_ERROR, "%s: %s", control_peer(meeting->control), shown);
}

void meeting_close(struct meeting *meeting, const char *reason)
{
    if (reason != NULL && meeting->control != NULL)
        control_refuse(meeting->control, reason);
    if (meeting->control != NULL)
        announce(meeting, "client %s: %s", control_peer(meeting->control),
                 reason == NULL ? "done" : "failed");
    control_close(meeting->control, LINGER_MS);
    bootstrap_listener_close(meeting->listener);
    *meeting = (struct meeting){.listener = NULL};
}
