/*
 * Both ends of a measurement on this machine. The server is a child; the first thing that it says
 * is its port, or 0, and when it has failed, why.
 */
#include "base/clock.h"
#include "tools/child.h"
#include "tools/perf.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { TEXT = 400, REASON_MS = 1000 };

static int loopback_serve(void *argument, int to_parent)
{
    static struct perf_result result;
    struct perf_end server = *(const struct perf_end *)argument;
    const uint16_t no_port = 0;
    bool met;
    int outcome;

    signal(SIGINT, SIG_IGN); /* the terminal sends it to both, and the parent says so */
    server.meeting.host = NULL;
    server.progress = false;
    server.report = NULL;
    server.meeting.once = true;
    outcome = perf_serve(&server, to_parent, &result, &met);
    if (outcome == TCPX_SUCCESS)
        return 0;
    /* Behind a port this 0 is a part of the reason, which is read past it. */
    if (write(to_parent, &no_port, sizeof no_port) == (ssize_t)sizeof no_port)
        (void)!write(to_parent, error_text(), strnlen(error_text(), TEXT - 1));
    return 1;
}

static int read_port(const struct child *child, struct perf_end *client)
{
    uint64_t deadline = deadline_after_ms((uint64_t)client->meeting.timeout_ms);
    uint16_t port = 0;

    if (child_read(child, &port, sizeof port, deadline) != (ssize_t)sizeof port || port == 0)
        return error_set(TCPX_REMOTE_ERROR, "the server's process did not start");
    client->meeting.port = port;
    return TCPX_SUCCESS;
}

/* The failure with the server's reason, where that is another than the one known here. */
static int add_reason(const struct child *child, bool had_port, int outcome)
{
    uint64_t deadline = deadline_after_ms(REASON_MS);
    char known[TEXT];
    char reason[TEXT];
    uint16_t no_port;
    ssize_t got;

    snprintf(known, sizeof known, "%s", error_text());
    if (had_port && child_read(child, &no_port, sizeof no_port, deadline) <= 0)
        return error_set(outcome, "%s", known);
    got = child_read(child, reason, sizeof reason - 1, deadline);
    reason[got > 0 ? got : 0] = '\0';
    /* Each hears of the other's failure, so that the words of one are in those of the other. */
    if (reason[0] == '\0' || strstr(known, reason) != NULL || strstr(reason, known) != NULL)
        return error_set(outcome, "%s", known);
    return error_set(outcome, "%s; the server: %s", known, reason);
}

int perf_loopback(const struct perf_end *end, const struct perf_plan *plan,
                  struct perf_result *result)
{
    struct perf_end client = *end;
    struct child child;
    bool has_port;
    int outcome;

    client.meeting.host = "127.0.0.1";
    client.meeting.address = "127.0.0.1";
    client.meeting.port = 0;
    outcome = child_start(loopback_serve, &client, &child);
    if (outcome != TCPX_SUCCESS)
        return outcome;
    outcome = read_port(&child, &client);
    has_port = outcome == TCPX_SUCCESS;
    if (has_port)
        outcome = perf_visit(&client, plan, result);
    if (outcome != TCPX_SUCCESS)
        outcome = add_reason(&child, has_port, outcome);
    (void)child_end(&child, outcome != TCPX_SUCCESS);
    return outcome;
}
