/* The stages of a newcomer, from its first byte to its proof. */
#include "session/newcomer.h"

#include "session/bootstrap_address.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

static int fail(const struct newcomer *newcomer, const char *reason)
{
    return error_set(TCPX_REMOTE_ERROR, "%s %s", newcomer->name, reason);
}

static void name_peer(int fd, char name[SOCKET_NAME_BYTES])
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;

    if (getpeername(fd, (struct sockaddr *)&address, &length) != 0)
        address.ss_family = AF_UNSPEC;
    bootstrap_address_name(&address, name);
}

int newcomer_start(struct newcomer *newcomer, int fd, const struct secret *secret,
                   uint64_t deadline)
{
    int result;

    *newcomer = (struct newcomer){.stage = NEWCOMER_GREETING,
                                  .fd = fd,
                                  .deadline = deadline,
                                  .side = {.secret = secret, .role = BOOTSTRAP_LISTENS}};
    name_peer(fd, newcomer->name);
    result = secret_nonce(secret, newcomer->side.own);
    if (result != TCPX_SUCCESS)
        newcomer_close(newcomer);
    return result;
}

void newcomer_close(struct newcomer *newcomer)
{
    if (newcomer->stage == NEWCOMER_NONE)
        return;
    socket_close(&newcomer->fd);
    control_close(newcomer->control, 0);
    newcomer->control = NULL;
    newcomer->stage = NEWCOMER_NONE;
}

struct control *newcomer_take(struct newcomer *newcomer)
{
    struct control *control = newcomer->control;

    newcomer->control = NULL;
    newcomer->stage = NEWCOMER_NONE;
    return control;
}

bool newcomer_has_greeted(const struct newcomer *newcomer)
{
    return newcomer->stage >= NEWCOMER_PROOF;
}

int newcomer_fd(const struct newcomer *newcomer)
{
    return newcomer->fd >= 0 ? newcomer->fd : control_fd(newcomer->control);
}

short newcomer_events(const struct newcomer *newcomer)
{
    bool sends = newcomer->stage == NEWCOMER_ANSWER || newcomer->stage == NEWCOMER_REFUSED;

    return sends ? POLLOUT : POLLIN;
}

/* --- stages -------------------------------------------------------------------------------- */

static int read_greeting(struct newcomer *newcomer)
{
    ssize_t got = recv(newcomer->fd, newcomer->greeting + newcomer->have,
                       sizeof newcomer->greeting - newcomer->have, MSG_DONTWAIT);

    if (got == 0)
        return error_set(TCPX_REMOTE_ERROR,
                         "%s closed the connection after %zu of %d bytes of its greeting",
                         newcomer->name, newcomer->have, BOOTSTRAP_GREETING_BYTES);
    if (got < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR
                   ? TCPX_SUCCESS
                   : fail(newcomer, strerror(errno));
    newcomer->have += (size_t)got;
    if (!bootstrap_greeting_begins(newcomer->greeting, newcomer->have))
        return fail(newcomer, "speaks another protocol");
    if (newcomer->have == sizeof newcomer->greeting)
        newcomer->stage = NEWCOMER_ANSWER;
    return TCPX_SUCCESS;
}

/* A peer that gave up while no call looked at it is not handed out. */
static bool has_closed(int fd)
{
    uint8_t byte;

    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* Each newcomer that greets is greeted, so that one that is refused knows why. */
static int answer(struct newcomer *newcomer)
{
    bool sent;
    int fd = newcomer->fd;

    if (has_closed(fd))
        return fail(newcomer, "closed the connection");
    if (!bootstrap_side_greet(&newcomer->side, fd, &sent))
        return fail(newcomer, strerror(errno));
    if (!sent)
        return TCPX_SUCCESS;
    if (bootstrap_side_hear(&newcomer->side, newcomer->greeting) != TCPX_SUCCESS)
        return fail(newcomer, error_text());
    newcomer->fd = -1;
    newcomer->stage = newcomer->side.secret == NULL ? NEWCOMER_PEER : NEWCOMER_PROOF;
    return control_create(fd, newcomer->name, &newcomer->control);
}

static int hear_proof(struct newcomer *newcomer)
{
    uint8_t proof[SECRET_PROOF_BYTES];
    uint8_t type;
    size_t bytes;
    bool there = false;
    int result = control_receive(newcomer->control, &type, proof, sizeof proof, &bytes, &there);

    if (result != TCPX_SUCCESS || !there)
        return result;
    result = bootstrap_side_judge(&newcomer->side, newcomer->control, type, proof, bytes);
    if (result == TCPX_SUCCESS)
        result = bootstrap_side_prove(&newcomer->side, newcomer->control);
    else if (control_has_unsent(newcomer->control))
        newcomer->stage = NEWCOMER_REFUSED;
    if (result == TCPX_SUCCESS)
        newcomer->stage = NEWCOMER_PEER;
    return result;
}

/* Its end was reported when it was refused. */
static void send_refusal(struct newcomer *newcomer)
{
    if (control_flush(newcomer->control) != TCPX_SUCCESS || !control_has_unsent(newcomer->control))
        newcomer_close(newcomer);
}

int newcomer_step(struct newcomer *newcomer)
{
    int result = TCPX_SUCCESS;

    if (newcomer->stage == NEWCOMER_REFUSED)
        send_refusal(newcomer);

    if (newcomer->stage == NEWCOMER_GREETING)
        result = read_greeting(newcomer);
    if (result == TCPX_SUCCESS && newcomer->stage == NEWCOMER_ANSWER)
        result = answer(newcomer);
    if (result == TCPX_SUCCESS && newcomer->stage == NEWCOMER_PROOF)
        result = hear_proof(newcomer);
    return result;
}
