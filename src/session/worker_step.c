/* A step of a session's worker: all that can be moved on now, without waiting. */
#include "session/access.h"

#include <stdio.h>

/* A bounded number of them; *moved: there were some, so that there may be more. */
static int worker_read_messages(struct tcpx_session *session, bool *moved)
{
    enum { MOST_MESSAGES = 64 };
    bool there = true;
    int result = control_flush(session->control);

    for (int i = 0; i < MOST_MESSAGES && result == TCPX_SUCCESS && there; i++) {
        const uint8_t *payload;
        uint8_t type;
        size_t bytes;

        result = control_receive_here(session->control, CONTROL_LARGEST, &type, &payload, &bytes,
                                      &there);
        if (result != TCPX_SUCCESS || !there)
            return result;
        result = accesses_is_message(session, type)
                     ? accesses_on_message(session, type, payload, bytes)
                     : matching_on_message(session, type, payload, bytes);
        *moved = true;
    }
    return result;
}

/* Called with the lock, when nothing of the transfers is in flight any more. */
static void worker_end_transfers(struct tcpx_session *session)
{
    struct tcpx_transfer *transfer;

    for (transfer = session->transfers; transfer != NULL; transfer = transfer->older)
        if (transfer->acknowledged && !transfer->ended)
            transfer_end(transfer, TCPX_SUCCESS); /* the peer has all of it */
        else if (!transfer->is_whole && !transfer->is_access && !transfer->ended)
            transfer_end(transfer,
                         error_set(session->failure,
                                   "%s; %llu of the %llu bytes %s with tag %llu were moved",
                                   session->why, (unsigned long long)transfer->moved,
                                   (unsigned long long)transfer->total,
                                   transfer->sending ? "to send" : "to receive",
                                   (unsigned long long)transfer->tag));
}

/*
 * The network has failed. If the peer has closed, that is the better reason, and its earlier
 * messages still count.
 */
static int worker_explain(struct tcpx_session *session, int result)
{
    char why[400];
    bool moved;

    snprintf(why, sizeof why, "%s", error_text());
    do {
        moved = false;
        if (worker_read_messages(session, &moved) != TCPX_SUCCESS)
            return error_set(TCPX_REMOTE_ERROR, "%s", error_text());
    } while (moved);
    return error_set(result, "%s: %s", control_peer(session->control), why);
}

static int worker_step_messages(struct tcpx_session *session, bool *moved)
{
    int result = worker_read_messages(session, moved);

    return result == TCPX_SUCCESS ? matching_step(session, moved) : result;
}

static int worker_step_transfers(struct tcpx_session *session, bool *moved)
{
    int result = accesses_step(session, moved);

    return result == TCPX_SUCCESS ? chunks_step(session, moved) : result;
}

/* What there is to say to the peer goes together. A failure is the session's. */
static int worker_step_all(struct tcpx_session *session, bool *moved)
{
    bool is_network = false;
    int result;

    control_hold(session->control, true);
    result = worker_step_messages(session, moved);
    if (result == TCPX_SUCCESS) {
        is_network = true;
        result = worker_step_transfers(session, moved);
    }
    control_hold(session->control, false);
    if (result == TCPX_SUCCESS)
        result = control_flush(session->control);
    return result != TCPX_SUCCESS && is_network ? worker_explain(session, result) : result;
}

/* Ends everything, as soon as nothing touches the callers' memory any more. */
static void worker_step_failed(struct tcpx_session *session)
{
    bool accesses_ended = accesses_step_failed(session);

    session->why_is_unsent =
        control_flush(session->control) == TCPX_SUCCESS && control_has_unsent(session->control);
    if (session->is_drained || !accesses_ended || !chunks_drain_step(session))
        return;
    session->is_drained = true;
    worker_end_transfers(session);
}

bool worker_step(struct tcpx_session *session, bool *all_seen)
{
    bool moved = false;
    int result = TCPX_SUCCESS;

    session->copied_in_turn[0] = session->copied_in_turn[1] = 0;
    if (session->failure == TCPX_SUCCESS)
        result = worker_step_all(session, &moved);
    if (session->failure == TCPX_SUCCESS && result != TCPX_SUCCESS)
        session_fail(session, result);
    if (session->failure != TCPX_SUCCESS)
        worker_step_failed(session);
    *all_seen = session->event_fd < 0 || whole_step(session, &moved);
    return moved || session->copied_in_turn[0] + session->copied_in_turn[1] > 0;
}

bool worker_has_chunks(const struct tcpx_session *session)
{
    for (int i = 0; i < 2; i++) {
        const struct direction *direction = &session->directions[i];

        if (direction->waiting.first != NULL || direction->moving.first != NULL)
            return true;
        for (unsigned k = 0; k < session->channels; k++)
            if (direction->lanes[k].freed != direction->lanes[k].begun)
                return true;
    }
    return control_has_unsent(session->control) || accesses_are_underway(session);
}
