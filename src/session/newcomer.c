/* The stages of a newcomer, from its first byte to its proof. */
#include "session/newcomer.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

static int newcomer_fail(const struct newcomer *newcomer, const char *reason)
{
    return error_set(TCPX_REMOTE_ERROR, "%s %s", newcomer->name, reason);
}

int newcomer_start(struct newcomer *newcomer, const struct secret *secret)
{
    int result;

    *newcomer = (struct newcomer){.half = newcomer->half,
                                  .side = {.secret = secret, .role = BOOTSTRAP_LISTENS}};
    socket_peer_name(newcomer->half.fd, newcomer->name);
    result = secret_nonce(secret, newcomer->side.own);
    if (result != TCPX_SUCCESS)
        newcomer_close(newcomer);
    return result;
}

struct control *newcomer_take(struct newcomer *newcomer)
{
    struct control *control = newcomer->control;

    newcomer->control = NULL;
    newcomer->half.fd = -1;
    return control;
}

void newcomer_close(struct newcomer *newcomer)
{
    if (newcomer->control != NULL)
        control_close(newcomer_take(newcomer), 0);
    else
        socket_close(&newcomer->half.fd);
}

short newcomer_events(const struct newcomer *newcomer)
{
    bool sends = newcomer->stage == NEWCOMER_ANSWER || newcomer->stage == NEWCOMER_REFUSED;

    return sends ? POLLOUT : POLLIN;
}

/* --- stages -------------------------------------------------------------------------------- */

static int newcomer_read_greeting(struct newcomer *newcomer)
{
    struct half_open *half = &newcomer->half;
    int got =
        socket_receive_rest(half->fd, newcomer->greeting, sizeof newcomer->greeting, &half->have);
    int error = errno;

    if (!bootstrap_greeting_begins(newcomer->greeting, half->have))
        return newcomer_fail(newcomer, "speaks another protocol");
    if (half->have == sizeof newcomer->greeting)
        newcomer->stage = NEWCOMER_ANSWER;
    else if (got == 0)
        return error_set(TCPX_REMOTE_ERROR,
                         "%s closed the connection after %zu of %d bytes of its greeting",
                         newcomer->name, half->have, BOOTSTRAP_GREETING_BYTES);
    else if (got < 0)
        return newcomer_fail(newcomer, strerror(error));
    return TCPX_SUCCESS;
}

/* A peer that has already closed is not returned to the caller. */
static bool newcomer_has_closed(const struct newcomer *newcomer)
{
    uint8_t byte;
    ssize_t got;

    do
        got = recv(newcomer->half.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    return got == 0;
}

/* The listener answers every greeting, so that a refused peer gets the reason. */
static int newcomer_answer(struct newcomer *newcomer)
{
    bool sent;
    int result;

    if (newcomer_has_closed(newcomer))
        return newcomer_fail(newcomer, "closed the connection");
    if (!bootstrap_side_send_greeting(&newcomer->side, newcomer->half.fd, &sent))
        return newcomer_fail(newcomer, strerror(errno));
    if (!sent)
        return TCPX_SUCCESS;
    if (bootstrap_side_read(&newcomer->side, newcomer->greeting) != TCPX_SUCCESS)
        return newcomer_fail(newcomer, error_text());
    newcomer->stage = newcomer->side.secret == NULL ? NEWCOMER_PEER : NEWCOMER_PROOF;
    newcomer->half.has_greeted = true;
    result = control_create(newcomer->half.fd, newcomer->name, newcomer->side.version,
                            &newcomer->control);
    if (result != TCPX_SUCCESS)
        newcomer->half.fd = -1; /* closed by control_create() */
    return result;
}

static int newcomer_read_proof(struct newcomer *newcomer)
{
    uint8_t proof[SECRET_PROOF_BYTES];
    uint8_t type;
    size_t bytes;
    bool there = false;
    int result = control_receive(newcomer->control, &type, proof, sizeof proof, &bytes, &there);

    if (result != TCPX_SUCCESS || !there)
        return result;
    result = bootstrap_side_verify(&newcomer->side, newcomer->control, type, proof, bytes);
    if (result == TCPX_SUCCESS)
        result = bootstrap_side_prove(&newcomer->side, newcomer->control);
    else if (control_has_unsent(newcomer->control))
        newcomer->stage = NEWCOMER_REFUSED;
    if (result == TCPX_SUCCESS)
        newcomer->stage = NEWCOMER_PEER;
    return result;
}

int newcomer_step(struct newcomer *newcomer)
{
    int result = TCPX_SUCCESS;

    if (newcomer->stage == NEWCOMER_REFUSED && (control_flush(newcomer->control) != TCPX_SUCCESS ||
                                                !control_has_unsent(newcomer->control)))
        newcomer_close(newcomer); /* the failure was reported when it was refused */
    else if (newcomer->stage == NEWCOMER_GREETING)
        result = newcomer_read_greeting(newcomer);
    if (result == TCPX_SUCCESS && newcomer->stage == NEWCOMER_ANSWER)
        result = newcomer_answer(newcomer);
    if (result == TCPX_SUCCESS && newcomer->stage == NEWCOMER_PROOF)
        result = newcomer_read_proof(newcomer);
    return result;
}
