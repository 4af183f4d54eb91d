/*
 * Receives into host memory over plugins that cannot be given that memory.
 *
 * Where a plugin steers its sockets into GPU memory, nothing can be received elsewhere: it is given
 * page-aligned GPU memory, and what it leaves in its bounce memory is unpacked into pinned memory
 * and copied from there. Where it writes behind a receive that is too short, it is given memory as
 * long as its longest message, with a guard page behind: what is too long overwrites nothing, and
 * is an error.
 *
 * All calls with the comm's lock.
 */
#ifndef TCPX_PLUGIN_HOST_HOST_RECEIVE_H
#define TCPX_PLUGIN_HOST_HOST_RECEIVE_H

#include "plugin_host/comm_state.h"

/* Whether a receive into this memory goes through here. */
bool host_receive_applies(const struct import_comm *comm, const struct import_memory *memory);

/* What the plugin is given for request `number` instead of the `room` bytes at `data`. */
struct host_place {
    void *data;
    size_t bytes;
    struct import_memory *memory;
};
MUST_CHECK int host_receive_place(struct import_comm *comm, uint64_t number, const void *data,
                                  size_t room, struct host_place *place);

/* The plugin has finished it: starts the copies. */
MUST_CHECK int host_receive_start(struct import_request *request);

/* *done: it is in the caller's memory; if not, call again. */
MUST_CHECK int host_receive_finish(struct import_request *request, bool *done);

/* Before the plugin's comm is closed, and after. */
void host_receive_drain(struct import_comm *comm);
void host_receive_end(struct import_comm *comm);

#endif
