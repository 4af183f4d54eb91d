/*
 * Slots of pinned host memory, one chunk each, that every channel of a direction can use. Where the
 * network can only write into GPU memory, slots for receives have as much of that.
 */
#ifndef TCPX_SESSION_SLOTS_H
#define TCPX_SESSION_SLOTS_H

#include "session/session_state.h"

/* Makes them when they are first needed, for the lanes of one direction. */
MUST_CHECK int slots_prepare(struct tcpx_session *session, bool sending);
struct slot *slots_take(struct slots *slots); /* NULL: none is free */
void slots_give(struct slots *slots, struct slot *slot);
void slots_free(struct tcpx_session *session, struct slots *slots);

#endif
