/* The rendezvous of the two ends of a test. */
#include "tools/meeting.h"

#include "base/clock.h"
#include "base/parse.h"
#include "import/loader.h"
#include "session/agreement.h"
#include "session/bootstrap.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum message { HANDLE = 16, VERDICT = 17 };

enum { LINGER_MS = 1000, VERDICT_BYTES = 400 };

bool meeting_option(struct meeting_options *options, int argument_count, char **arguments,
                    int *used, const char **problem)
{
    const char *value = argument_count > 1 ? arguments[1] : "";
    uint64_t number = 0;

    *used = 0;
    if (strcmp(arguments[0], "--port") == 0) {
        *problem = "not a port from 1 to 65535:";
        if (!parse_number(value, &number) || number < 1 || number > 65535)
            return false;
        options->port = (int)number;
    } else if (strcmp(arguments[0], "--timeout") == 0) {
        *problem = "not a number of seconds from 1 to 3600:";
        if (!parse_number(value, &number) || number < 1 || number > 3600)
            return false;
        options->timeout_ms = (int)number * 1000;
    } else if (strcmp(arguments[0], "--secret") == 0) {
        *problem = "not a file:";
        if (*value == '\0')
            return false;
        options->secret_file = value;
    } else {
        return true;
    }
    *used = 2;
    return true;
}

int meeting_open(const struct meeting_options *options, struct meeting *meeting)
{
    *meeting = (struct meeting){.options = *options};
    if (options->host != NULL)
        return TCPX_SUCCESS;
    return bootstrap_listen(NULL, (uint16_t)options->port, options->secret_file,
                            &meeting->listener);
}

void meeting_next_step(struct meeting *meeting)
{
    meeting->deadline = deadline_after_ms((uint64_t)meeting->options.timeout_ms);
}

int meeting_begin(struct meeting *meeting)
{
    const struct meeting_options *options = &meeting->options;

    meeting_next_step(meeting);
    if (options->host == NULL)
        return bootstrap_accept(meeting->listener, meeting->deadline, &meeting->control);
    return bootstrap_connect(options->host, (uint16_t)options->port, options->secret_file,
                             meeting->deadline, &meeting->control);
}

/* --- handles ------------------------------------------------------------------------------- */

static int describe_self(uint64_t bytes, struct agreement *agreement)
{
    const struct import_plugin *plugin;
    int result = import_open_named(NULL, &plugin);

    if (result != TCPX_SUCCESS)
        return result;
    *agreement = (struct agreement){.version = AGREEMENT_VERSION,
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
static int exchange(struct meeting *meeting, const struct agreement *mine, struct agreement *theirs)
{
    uint8_t bytes[AGREEMENT_BYTES];
    size_t length = agreement_encode(mine, bytes);
    uint8_t type;
    int result = control_send(meeting->control, HANDLE, bytes, length);

    if (result == TCPX_SUCCESS)
        result = control_await(meeting->control, "the handle", &type, bytes, sizeof bytes, &length,
                               meeting->deadline);
    if (result == TCPX_SUCCESS && type != HANDLE)
        result = error_set(TCPX_REMOTE_ERROR, "%s: a message of type %u, but this is a test",
                           control_peer(meeting->control), type);
    if (result == TCPX_SUCCESS)
        result = agreement_decode(bytes, length, theirs);
    return result;
}

/* The number of bytes travels as the chunk size does, but is called by its own name. */
static int compare(const struct agreement *mine, const struct agreement *theirs)
{
    if (mine->chunk_bytes != theirs->chunk_bytes)
        return error_set(TCPX_INVALID_USAGE, "the payload: %llu bytes here, %llu at %s",
                         (unsigned long long)mine->chunk_bytes,
                         (unsigned long long)theirs->chunk_bytes, theirs->host);
    return agreement_compare(mine, theirs);
}

int meeting_give_handle(struct meeting *meeting, uint64_t bytes,
                        const uint8_t handle[MEETING_HANDLE_BYTES])
{
    struct agreement mine;
    struct agreement theirs;
    int result = describe_self(bytes, &mine);

    if (result != TCPX_SUCCESS)
        return result;
    memcpy(mine.handles[0], handle, MEETING_HANDLE_BYTES);
    meeting_next_step(meeting);
    result = exchange(meeting, &mine, &theirs);
    return result == TCPX_SUCCESS ? compare(&mine, &theirs) : result;
}

int meeting_take_handle(struct meeting *meeting, uint64_t bytes,
                        uint8_t handle[MEETING_HANDLE_BYTES])
{
    struct agreement mine;
    struct agreement theirs;
    int result = describe_self(bytes, &mine);

    if (result != TCPX_SUCCESS)
        return result;
    meeting_next_step(meeting);
    result = exchange(meeting, &mine, &theirs);
    if (result == TCPX_SUCCESS)
        result = compare(&mine, &theirs);
    if (result == TCPX_SUCCESS)
        memcpy(handle, theirs.handles[0], MEETING_HANDLE_BYTES);
    return result;
}

/* --- the end ------------------------------------------------------------------------------- */

int meeting_give_verdict(struct meeting *meeting, const char *problem)
{
    return control_send(meeting->control, VERDICT, problem, strnlen(problem, VERDICT_BYTES));
}

int meeting_take_verdict(struct meeting *meeting)
{
    char text[VERDICT_BYTES];
    char shown[CONTROL_REFUSAL_TEXT + 1];
    uint8_t type;
    size_t length;
    int result;

    meeting_next_step(meeting);
    result = control_await(meeting->control, "the verdict", &type, text, sizeof text, &length,
                           meeting->deadline);
    if (result != TCPX_SUCCESS)
        return result;
    if (type != VERDICT)
        return error_set(TCPX_REMOTE_ERROR, "%s: a message of type %u instead of the verdict",
                         control_peer(meeting->control), type);
    if (length == 0)
        return TCPX_SUCCESS;
    control_printable(text, length, shown);
    return error_set(TCPX_REMOTE_ERROR, "%s: %s", control_peer(meeting->control), shown);
}

void meeting_close(struct meeting *meeting, const char *reason)
{
    if (reason != NULL && meeting->control != NULL)
        control_refuse(meeting->control, reason);
    control_close(meeting->control, LINGER_MS);
    bootstrap_listener_close(meeting->listener);
    *meeting = (struct meeting){.listener = NULL};
}
