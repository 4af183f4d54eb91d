/*
 * A lane: a channel and the chunks that are under way in it. Both sides cut the same transfers in
 * the same order into chunks of the same length, and chunk k travels in channel k % channels: so a
 * receive is always posted for the chunk that the peer sends next there, without any message.
 */
#ifndef TCPX_SESSION_LANE_H
#define TCPX_SESSION_LANE_H

#include "session/session_state.h"

struct chunk *lane_chunk(struct lane *lane, uint64_t number);

/* Adds the time that a stage of the chunk has taken, which ends now. */
void lane_count_time(struct chunk *chunk, uint64_t *sum);

/* Cuts the transfers of a direction into chunks, as many as its lanes have places for. */
MUST_CHECK int lanes_begin_chunks(struct tcpx_session *session, bool sending, bool *moved);

/* Gives the network those that are ready, in their order. */
MUST_CHECK int lane_post(struct tcpx_session *session, struct lane *lane, bool sending,
                         bool *moved);

/* *done: whether the network has finished the oldest one that it has. */
MUST_CHECK int lane_test_oldest(struct lane *lane, bool sending, bool *done);

#endif
