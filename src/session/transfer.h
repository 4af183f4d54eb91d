/*
 * A transfer: its pieces, what it waits for on the GPU, the rows that it stands in, and its end.
 * What moves it is in whole.c, matching.c and chunks.c. All with the session's lock, except where
 * a comment differs.
 */
#ifndef TCPX_SESSION_TRANSFER_H
#define TCPX_SESSION_TRANSFER_H

#include "session/session_state.h"

void row_add(struct transfer_row *row, struct tcpx_transfer *transfer);
struct tcpx_transfer *row_take(struct transfer_row *row);

/* Checks the move and copies its pieces. Without the lock; not yet one of the session's. */
MUST_CHECK int transfer_create(struct tcpx_session *session, const struct tcpx_move *move,
                               bool sending, struct tcpx_transfer **out);
void transfer_free(struct tcpx_transfer *transfer); /* without the lock */
void transfer_free_all(struct tcpx_session *session);

/* One of the session's, which uses its memory; and no longer. */
void transfer_add(struct tcpx_transfer *transfer);
void transfer_drop(struct tcpx_transfer *transfer);

/* It begins after the caller's stream or event; *ready: whether the GPU has reached that. */
MUST_CHECK int transfer_order_after(struct tcpx_transfer *transfer, const struct tcpx_move *move);
MUST_CHECK int transfer_is_ready(struct tcpx_transfer *transfer, bool *ready);

/* How much of the current piece is left; passes over empty ones. */
uint64_t cursor_left(const struct tcpx_transfer *transfer, struct piece_cursor *cursor);
/* Passes over `bytes` of the pieces. */
void cursor_move(const struct tcpx_transfer *transfer, struct piece_cursor *cursor, uint64_t bytes);

/* A whole message: the transport has it. */
void transfer_join_active(struct tcpx_transfer *transfer);

/* It has ended; the reason is the text of the latest error. With the lock that guards the end. */
void transfer_set_result(struct tcpx_transfer *transfer, int result);
/* It has ended: counts that and wakes waiting threads, once. */
void transfer_announce(struct tcpx_transfer *transfer);
/* Both. */
void transfer_end(struct tcpx_transfer *transfer, int result);

#endif
