/* Memory of a session: registered with every channel, in parts where a plugin needs that. */
#ifndef TCPX_SESSION_MEMORY_H
#define TCPX_SESSION_MEMORY_H

#include "session/session_state.h"

/* The registration that covers a chunk at `offset`. */
struct channel_memory memory_at(const struct tcpx_memory *memory, bool sending, unsigned channel,
                                uint64_t offset);
void memory_free_all(struct tcpx_session *session);

#endif
