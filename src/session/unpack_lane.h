/* What has arrived in a lane: unpacked, scattered from its slot, or where it belongs already. */
#ifndef TCPX_SESSION_UNPACK_LANE_H
#define TCPX_SESSION_UNPACK_LANE_H

#include "session/session_state.h"

/* What has arrived in bounce memory, of several chunks. */
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
