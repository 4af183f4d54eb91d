/* Chunks that have arrived in a lane: unpacked, scattered from their slot, or already in place. */
#ifndef TCPX_SESSION_UNPACK_LANE_H
#define TCPX_SESSION_UNPACK_LANE_H

#include "session/session_state.h"

/* Chunks in bounce memory that are unpacked together. */
struct unpack_batch {
    struct unpack_list lists[GPU_UNPACK_LISTS];
    struct chunk *chunks[GPU_UNPACK_LISTS];
    uint32_t count;
    bool written_by_nic;
};

/* Adds to the batch, and frees chunks that are in their memory. */
MUST_CHECK int unpack_lane_step(struct tcpx_session *session, struct lane *lane,
                                struct unpack_batch *batch, bool *moved);
MUST_CHECK int unpack_lane_submit(struct tcpx_session *session, struct unpack_batch *batch);

#endif
