/*
 * A newcomer: a half-open connection of the listening side of the bootstrap, whose peer has not
 * greeted yet, or not proven that it has the secret. It is moved along as far as its socket allows;
 * nothing here waits. bootstrap_listen.c has the table.
 */
#ifndef TCPX_SESSION_NEWCOMER_H
#define TCPX_SESSION_NEWCOMER_H

#include "net/socket/half_open.h"
#include "net/socket/socket.h"
#include "session/control.h"
#include "session/greeting.h"

enum newcomer_stage {
    NEWCOMER_GREETING, /* some of its greeting has not come yet */
    NEWCOMER_ANSWER,   /* some of our greeting has not been sent yet */
    NEWCOMER_PROOF,    /* its greeting was right; its proof has not come yet */
    NEWCOMER_REFUSED,  /* its proof was wrong; some of the refusal has not been sent yet */
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

/* Of a connection that was just entered into its place. On failure the place is free again. */
MUST_CHECK int newcomer_start(struct newcomer *newcomer, const struct secret *secret);

/*
 * Fails if it is to be closed; the text names it and says why. A newcomer that is NEWCOMER_REFUSED
 * then is closed by a later step, when the peer has been sent the reason.
 */
MUST_CHECK int newcomer_step(struct newcomer *newcomer);

/* Of NEWCOMER_PEER. The place is free afterwards. */
struct control *newcomer_take(struct newcomer *newcomer);

/* No effect if the place is free. */
void newcomer_close(struct newcomer *newcomer);

/* What poll() has to wait for. */
short newcomer_events(const struct newcomer *newcomer);

#endif
