/*
 * A newcomer: a half-open connection of the listening side of the bootstrap, which has not said
 * yet, or not proven, who it is. It is moved along as far as its socket allows; nothing here waits.
 * The table of newcomers is bootstrap_listen.c's.
 */
#ifndef TCPX_SESSION_NEWCOMER_H
#define TCPX_SESSION_NEWCOMER_H

#include "net/socket/socket.h"
#include "session/control.h"
#include "session/greeting.h"

enum newcomer_stage {
    NEWCOMER_NONE,     /* the place is free */
    NEWCOMER_GREETING, /* some of its greeting has not come yet */
    NEWCOMER_ANSWER,   /* some of our greeting has not been sent yet */
    NEWCOMER_PROOF,    /* its greeting was right; its proof has not come yet */
    NEWCOMER_REFUSED,  /* its proof was wrong; some of the refusal has not been sent yet */
    NEWCOMER_PEER,     /* it has said who it is: newcomer_take() */
};

struct newcomer {
    enum newcomer_stage stage;
    int fd;                  /* -1: the control has the socket */
    struct control *control; /* from NEWCOMER_PROOF on */
    uint64_t deadline;
    bool is_ready; /* its socket has something for us */
    struct bootstrap_side side;
    size_t have; /* bytes of its greeting */
    uint8_t greeting[BOOTSTRAP_GREETING_BYTES];
    char name[SOCKET_NAME_BYTES];
};

/* Takes the descriptor over, also when it fails. */
MUST_CHECK int newcomer_start(struct newcomer *newcomer, int fd, const struct secret *secret,
                              uint64_t deadline);

/*
 * Fails if it is to be closed; the text names it and says why. One that is NEWCOMER_REFUSED then is
 * closed by a later step, when the peer has been sent the reason.
 */
MUST_CHECK int newcomer_step(struct newcomer *newcomer);

/* Of NEWCOMER_PEER. The place is free afterwards. */
struct control *newcomer_take(struct newcomer *newcomer);

void newcomer_close(struct newcomer *newcomer);

/* It has greeted as a peer does, and only its proof is missing. */
bool newcomer_has_greeted(const struct newcomer *newcomer);

/* For poll(). */
int newcomer_fd(const struct newcomer *newcomer);
short newcomer_events(const struct newcomer *newcomer);

#endif
