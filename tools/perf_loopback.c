/* Both ends of a measurement on this machine. The server is a child, which ends with its parent. */
#include "tools/perf.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TEXT = 400, REASON_MS = 1000 };

struct failure {
    uint16_t port; /* 0 */
    char text[TEXT];
} __attribute__((packed));

/* Its first word is its port. When it fails, it says 0 and why. */
static _Noreturn void server_process(const struct perf_end *end, pid_t parent, int port_to)
{
    static struct perf_result result;
    struct perf_end server = *end;
    struct failure why;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_IGN); /* the terminal sends it to both, and the parent says so */
    if (getppid() != parent)
        _exit(1);
    server.meeting.host = NULL;
    server.progress = false;
    if (perf_serve(&server, port_to, &result) == TCPX_SUCCESS)
        _exit(0);
    why.port = 0;
    snprintf(why.text, sizeof why.text, "%s", error_text());
    (void)!write(port_to, &why, sizeof why);
    _exit(1);
}

static int read_port(int from, struct perf_end *client)
{
    struct pollfd said = {.fd = from, .events = POLLIN};
    uint16_t port = 0;

    if (poll(&said, 1, client->meeting.timeout_ms) < 1 ||
        read(from, &port, sizeof port) != (ssize_t)sizeof port || port == 0)
        return error_set(TCPX_REMOTE_ERROR, "the server's process did not start");
    client->meeting.port = port;
    return TCPX_SUCCESS;
}

/* After a failure: the server's reason, where it is another than the one that is known here. */
static int add_reason(int from, int outcome)
{
    struct pollfd said = {.fd = from, .events = POLLIN};
    struct failure why = {.port = 0};
    char known[TEXT];

    snprintf(known, sizeof known, "%s", error_text());
    if (poll(&said, 1, REASON_MS) < 1 || read(from, &why, sizeof why) < (ssize_t)sizeof why.port)
        return outcome;
    why.text[TEXT - 1] = '\0';
    if (why.text[0] == '\0' || strstr(known, why.text) != NULL || strstr(why.text, known) != NULL)
        return error_set(outcome, "%s", known);
    return error_set(outcome, "%s; the server: %s", known, why.text);
}

int perf_loopback(const struct perf_end *end, const struct perf_plan *plan,
                  struct perf_result *result)
{
    struct perf_end client = *end;
    pid_t parent = getpid();
    int outcome;
    int pipes[2];
    pid_t child;

    client.meeting.host = "127.0.0.1";
    client.meeting.address = "127.0.0.1";
    client.meeting.port = 0;
    if (pipe(pipes) != 0)
        return error_system(errno, "pipe");
    child = fork();
    if (child == 0) {
        close(pipes[0]);
        server_process(&client, parent, pipes[1]);
    }
    close(pipes[1]);
    outcome = child > 0 ? read_port(pipes[0], &client) : error_system(errno, "fork");
    if (outcome == TCPX_SUCCESS)
        outcome = perf_visit(&client, plan, result);
    if (outcome != TCPX_SUCCESS && child > 0)
        outcome = add_reason(pipes[0], outcome);
    close(pipes[0]);
    if (child > 0) {
        if (outcome != TCPX_SUCCESS)
            kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    return outcome;
}
