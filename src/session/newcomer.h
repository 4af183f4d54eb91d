/*
 * A newcomer: a half-open connection of the bootstrap's listening side, which has not sent its
 * whole greeting or its proof. Each step reads and writes as much as its socket allows; nothing
 * here waits. bootstrap_listen.c has the table.
 */
#ifndef TCPX_SESSION_NEWCOMER_H
#define TCPX_SESSION_NEWCOMER_H

#include "net/socket/half_open.h"
#include "net/socket/socket.h"
#include "session/control.h"
#include "session/greeting.h"

enum newcomer_stage {
    NEWCOMER_GREETING, /* its greeting is incomplete */
    NEWCOMER_ANSWER,   /* our greeting is not sent completely */
    NEWCOMER_PROOF,    /* its greeting was right; its proof is incomplete */
    NEWCOMER_REFUSED,  /* its proof was wrong; the refusal is not sent completely */
    NEWCOMER_PEER,     /* it is a peer: newcomer_take() */
};

struct newcomer {
    struct half_open half; /* with the control's descriptor, if there is a control */
    bool is_ready;         /* poll() has reported its socket */
    enum newcomer_stage stage;
    struct control *control; /* from NEWCOMER_PROOF on */
    struct bootstrap_side side;
    uint8_t greeting[BOOTSTRAP_GREETING_BYTES];
    char name[SOCKET_NAME_BYTES];
};

/* For a connection that just got this place. On failure the place is free again. */
MUST_CHECK int newcomer_start(struct newcomer *newcomer, const struct secret *secret);

/*
 * Fails if the connection has to be closed; the text has its name and the reason. If it is
 * NEWCOMER_REFUSED then, a later step closes it, when the refusal has been sent.
 */
MUST_CHECK int newcomer_step(struct newcomer *newcomer);

/* Takes the control connection of a NEWCOMER_PEER. The place is free afterwards. */
struct control *newcomer_take(struct newcomer *newcomer);

/* No effect if the place is free. */
void newcomer_close(struct newcomer *newcomer);

/* The events for poll(). */
short newcomer_events(const struct newcomer *newcomer);

#endif
