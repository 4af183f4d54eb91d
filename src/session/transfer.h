/*
 * A transfer: its pieces, what it waits for on the GPU, the lists that it is in, and its end.
 * whole.c, matching.c and chunks.c move it. All functions need the session's lock, except where a
 * comment differs.
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

/* Adds it to the session, whose memory it uses; removes it. */
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

/* Sets the result; the reason is error_text(). Called with the lock that guards the end. */
void transfer_set_result(struct tcpx_transfer *transfer, int result);
/* Counts the end and wakes waiting threads, once. */
void transfer_announce(struct tcpx_transfer *transfer);
/* transfer_set_result() and transfer_announce(). */
void transfer_end(struct tcpx_transfer *transfer, int result);

#endif
