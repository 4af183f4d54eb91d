/*
 * The connecting side of the bootstrap: tries all addresses in turn until a peer answers. The
 * reason of a failure decides whether to try again.
 */
#include "session/bootstrap.h"

#include "base/clock.h"
#include "base/fork.h"
#include "net/socket/socket.h"
#include "session/greeting.h"
#include "session/secret.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

/* --- addresses ----------------------------------------------------------------------------- */

/* Without the brackets around an IPv6 address. */
static int bootstrap_copy_host(const char *host, char *copy, size_t room)
{
    size_t length = strlen(host);
    bool brackets = length >= 2 && host[0] == '[' && host[length - 1] == ']';

    if (brackets) {
        host++;
        length -= 2;
    }
    if (length == 0 || length >= room)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "the name of a host has %zu characters, possible are 1 to %zu", length,
                         room - 1);
    memcpy(copy, host, length);
    copy[length] = '\0';
    return TCPX_SUCCESS;
}

int bootstrap_resolve(const char *host, uint16_t port, int flags, struct addrinfo **list,
                      bool *passing)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    char name[NI_MAXHOST];
    char service[8];
    int error;
    int result = bootstrap_copy_host(host, name, sizeof name);

    *passing = false;
    if (result != TCPX_SUCCESS)
        return result;
    snprintf(service, sizeof service, "%u", port);
    error = getaddrinfo(name, service, &hints, list);
    if (error == 0)
        return TCPX_SUCCESS;
    *passing = error == EAI_AGAIN;
    if (error == EAI_SYSTEM)
        return error_system(errno, "cannot resolve %s", name);
    return error_set(TCPX_INVALID_ARGUMENT, "cannot resolve %s: %s", name, gai_strerror(error));
}

void bootstrap_address_copy(const struct addrinfo *from, struct sockaddr_storage *to)
{
    memset(to, 0, sizeof *to);
    memcpy(to, from->ai_addr, from->ai_addrlen < sizeof *to ? from->ai_addrlen : sizeof *to);
}

/* --- connecting ---------------------------------------------------------------------------- */

/* How long one address may leave a connect unanswered; the pauses between the tries. */
enum { CONNECT_MS = 3000, SHORTEST_PAUSE_MS = 20, LONGEST_PAUSE_MS = 250 };

enum { REASON_BYTES = 512 };

/* What to do after a failed try. */
enum outlook {
    HOPELESS,  /* a peer answered and does not fit: every try would fail */
    ELSEWHERE, /* this address does not work from here, another one may */
    LATER,     /* the next try may succeed */
};

/* One try at one address. */
struct attempt {
    struct bootstrap_side side;
    int fd;
    uint64_t deadline;
    enum outlook outlook; /* if it fails */
    char reason[REASON_BYTES];
    char name[SOCKET_NAME_BYTES];
};

/* The peer does not listen yet, or there is no route to it yet. */
static bool bootstrap_may_pass(int error)
{
    switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ETIMEDOUT:
    case EPIPE:
    case EAGAIN:
    case EADDRNOTAVAIL: /* all ports are in use */
        return true;
    default:
        return false;
    }
}

static int bootstrap_fail(struct attempt *attempt, int error)
{
    attempt->outlook = bootstrap_may_pass(error) ? LATER : ELSEWHERE;
    return error_system(error, "cannot connect to %s", attempt->name);
}

/* At an ephemeral port without a listener, a socket can be connected to itself. */
static bool bootstrap_met_itself(int fd)
{
    union socket_address here = {0};
    union socket_address there = {0};
    socklen_t here_length = sizeof here.storage;
    socklen_t there_length = sizeof there.storage;

    return getsockname(fd, (struct sockaddr *)&here.storage, &here_length) == 0 &&
           getpeername(fd, (struct sockaddr *)&there.storage, &there_length) == 0 &&
           here_length == there_length && memcmp(&here, &there, here_length) == 0;
}

/* Whether it is ready before the deadline. */
static bool bootstrap_await(int fd, short events, uint64_t deadline)
{
    struct pollfd ready = {.fd = fd, .events = events};

    do {
        if (poll(&ready, 1, deadline_poll_ms(deadline)) > 0)
            return true;
    } while (!deadline_passed(deadline));
    return false;
}

static int bootstrap_establish(struct attempt *attempt, const struct sockaddr_storage *address)
{
    socklen_t length = sizeof(int);
    int error = 0;
    int result = socket_open(address->ss_family, &attempt->fd);

    if (result != TCPX_SUCCESS)
        return result;
    if (connect(attempt->fd, (const struct sockaddr *)address, socket_address_length(address)) !=
            0 &&
        errno != EINPROGRESS && errno != EINTR)
        return bootstrap_fail(attempt, errno);
    if (!bootstrap_await(attempt->fd, POLLOUT,
                         deadline_earlier(attempt->deadline, deadline_after_ms(CONNECT_MS))))
        return bootstrap_fail(attempt, ETIMEDOUT);
    if (getsockopt(attempt->fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
        error = errno;
    if (error == 0 && bootstrap_met_itself(attempt->fd))
        error = ECONNREFUSED;
    return error == 0 ? TCPX_SUCCESS : bootstrap_fail(attempt, error);
}

/* The next try may reach another process than one that closes before its first byte. */
static int bootstrap_report_closed(struct attempt *attempt, size_t have)
{
    attempt->outlook = have == 0 ? LATER : HOPELESS;
    if (have == 0)
        return error_set(TCPX_REMOTE_ERROR, "%s closed the connection before its greeting",
                         attempt->name);
    return error_set(
        TCPX_REMOTE_ERROR,
        "%s closed the connection in the middle of its greeting, after %zu of %d bytes",
        attempt->name, have, BOOTSTRAP_GREETING_BYTES);
}

static int bootstrap_read_answer(struct attempt *attempt, uint8_t bytes[BOOTSTRAP_GREETING_BYTES])
{
    size_t have = 0;

    for (;;) {
        int got = socket_receive_rest(attempt->fd, bytes, BOOTSTRAP_GREETING_BYTES, &have);
        int error = errno;

        if (!bootstrap_greeting_begins(bytes, have))
            return error_set(TCPX_REMOTE_ERROR, "%s speaks another protocol", attempt->name);
        if (have == BOOTSTRAP_GREETING_BYTES)
            return TCPX_SUCCESS;
        if (got <= 0)
            return got < 0 && have == 0 ? bootstrap_fail(attempt, error)
                                        : bootstrap_report_closed(attempt, have);
        if (!bootstrap_await(attempt->fd, POLLIN, attempt->deadline)) {
            attempt->outlook = LATER;
            return error_set(TCPX_REMOTE_ERROR, "%s has taken the connection and not greeted",
                             attempt->name);
        }
    }
}

static int bootstrap_send_greeting(struct attempt *attempt)
{
    bool sent = false;

    attempt->side.greeted = 0;
    while (!sent) {
        if (!bootstrap_side_send_greeting(&attempt->side, attempt->fd, &sent))
            return bootstrap_fail(attempt, errno);
        if (!sent && !bootstrap_await(attempt->fd, POLLOUT, attempt->deadline))
            return bootstrap_fail(attempt, ETIMEDOUT);
    }
    return TCPX_SUCCESS;
}

static int bootstrap_greet(struct attempt *attempt)
{
    uint8_t bytes[BOOTSTRAP_GREETING_BYTES];
    int result = secret_nonce(attempt->side.secret, attempt->side.own);

    if (result == TCPX_SUCCESS)
        result = bootstrap_send_greeting(attempt);
    if (result == TCPX_SUCCESS)
        result = bootstrap_read_answer(attempt, bytes);
    if (result != TCPX_SUCCESS)
        return result;
    result = bootstrap_side_read(&attempt->side, bytes);
    if (result != TCPX_SUCCESS)
        return error_set(result, "%s %s", attempt->name, error_text());
    return TCPX_SUCCESS;
}

static int bootstrap_exchange_proofs(struct attempt *attempt, struct control *control)
{
    uint8_t proof[SECRET_PROOF_BYTES];
    uint8_t type;
    size_t bytes;
    int result = bootstrap_side_prove(&attempt->side, control);

    if (result == TCPX_SUCCESS)
        result = control_await(control, "its proof of the shared secret", &type, proof,
                               sizeof proof, &bytes, attempt->deadline);
    if (result == TCPX_SUCCESS)
        result = bootstrap_side_verify(&attempt->side, control, type, proof, bytes);
    /* Without a refusal the listener may have evicted this connection. */
    if (result != TCPX_SUCCESS && control_has_ended(control))
        attempt->outlook = LATER;
    return result;
}

/* After the greeting the socket is the control's. */
static int bootstrap_become_control(struct attempt *attempt, struct control **out)
{
    struct control *control;
    int fd = attempt->fd;
    int result;

    attempt->fd = -1;
    result = control_create(fd, attempt->name, attempt->side.version, &control);
    if (result != TCPX_SUCCESS)
        return result;
    if (attempt->side.secret != NULL)
        result = bootstrap_exchange_proofs(attempt, control);
    if (result != TCPX_SUCCESS) {
        control_close(control, 0);
        return result;
    }
    *out = control;
    return TCPX_SUCCESS;
}

static int bootstrap_try_address(struct attempt *attempt, const struct sockaddr_storage *address,
                                 struct control **control)
{
    int result;

    attempt->fd = -1;
    attempt->outlook = ELSEWHERE;
    socket_address_name(address, attempt->name);
    result = bootstrap_establish(attempt, address);
    if (result == TCPX_SUCCESS) {
        attempt->outlook = HOPELESS;
        result = bootstrap_greet(attempt);
    }
    if (result == TCPX_SUCCESS)
        result = bootstrap_become_control(attempt, control);
    socket_close(&attempt->fd);
    return result;
}

/* Of several failures, a temporary one is reported. */
static void bootstrap_keep_reason(struct attempt *attempt)
{
    snprintf(attempt->reason, sizeof attempt->reason, "%s", error_text());
}

static int bootstrap_try_list(const struct addrinfo *list, struct attempt *attempt,
                              struct control **control, bool *again)
{
    int result = TCPX_SYSTEM_ERROR;

    for (const struct addrinfo *at = list; at != NULL; at = at->ai_next) {
        struct sockaddr_storage address;

        bootstrap_address_copy(at, &address);
        result = bootstrap_try_address(attempt, &address, control);
        if (result == TCPX_SUCCESS || attempt->outlook == HOPELESS) {
            *again = false;
            return result;
        }
        if (attempt->outlook == LATER) {
            *again = true;
            bootstrap_keep_reason(attempt);
        }
    }
    return result;
}

/* Tries all addresses once. *again: whether a failure may be temporary. */
static int bootstrap_try_all(const char *host, uint16_t port, struct attempt *attempt,
                             struct control **control, bool *again)
{
    struct addrinfo *list;
    int result = bootstrap_resolve(host, port, 0, &list, again);

    if (result != TCPX_SUCCESS) {
        bootstrap_keep_reason(attempt);
        return result;
    }
    result = bootstrap_try_list(list, attempt, control, again);
    freeaddrinfo(list);
    return result;
}

static int bootstrap_connect_until(const char *host, uint16_t port, struct attempt *attempt,
                                   struct control **control)
{
    uint64_t pause_ms = SHORTEST_PAUSE_MS;

    for (;;) {
        bool again;
        int result = bootstrap_try_all(host, port, attempt, control, &again);

        if (result == TCPX_SUCCESS || !again)
            return result;
        if (deadline_passed(attempt->deadline))
            return error_set(TCPX_IN_PROGRESS, "no peer at %s port %u in time; the last try: %s",
                             host, port, attempt->reason);
        (void)poll(
            NULL, 0,
            deadline_poll_ms(deadline_earlier(attempt->deadline, deadline_after_ms(pause_ms))));
        pause_ms = 2 * pause_ms < LONGEST_PAUSE_MS ? 2 * pause_ms : LONGEST_PAUSE_MS;
    }
}

int bootstrap_connect(const char *host, uint16_t port, const char *secret_file, uint64_t deadline,
                      struct control **control)
{
    struct attempt attempt = {.side = {.role = BOOTSTRAP_CONNECTS}, .deadline = deadline};
    struct secret *secret;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (host == NULL || *host == '\0')
        return error_set(TCPX_INVALID_ARGUMENT, "the name of the host to connect to is missing");
    if (port == 0)
        return error_set(TCPX_INVALID_ARGUMENT, "port 0 of %s: expected 1 to 65535", host);
    result = secret_load(secret_file, secret_libraries, &secret);
    if (result != TCPX_SUCCESS)
        return result;
    attempt.side.secret = secret;
    result = bootstrap_connect_until(host, port, &attempt, control);
    secret_free(secret);
    return result;
}
