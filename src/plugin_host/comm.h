/*
 * A comm of any network plugin, with the same behaviour: one direction, messages in order, at most
 * IMPORT_REQUESTS of them in flight. Differences between plugins are handled here: only a plugin's
 * oldest request is tested, receives are consumed in order, one thread at a time calls it for each
 * comm, it is given nothing that it would lose or not survive, and what it publishes is checked
 * before it is used. Nothing here waits, except for a plugin's call that does not return: that is
 * an error after UCCL_TCPX_TIMEOUT_MS (bounded.h).
 *
 * connection.h makes comms, memory.h and request.h use them. Several threads may call on one comm.
 */
#ifndef TCPX_PLUGIN_HOST_COMM_H
#define TCPX_PLUGIN_HOST_COMM_H

#include "plugin_host/plugin.h"

struct import_comm;

/* Of `raw`, a comm of the plugin, which belongs to it from now on, also after a failure. */
MUST_CHECK int import_comm_create(const struct import_plugin *plugin, int device, void *raw,
                                  bool sends, const uint8_t handle[NET_TABLE_HANDLE_BYTES],
                                  struct import_comm **comm);

/*
 * With its requests and memories. `delivered`: the caller knows that what was sent has arrived;
 * otherwise the connections stay open for a while where the plugin would lose it (held.h).
 */
MUST_CHECK int import_comm_close(struct import_comm *comm, bool delivered);

/* The handle that accept returned, for the caller's own kernels. */
const struct net_device_handle *import_comm_device_handle(const struct import_comm *comm);

/* How long a message may be. */
size_t import_comm_longest(const struct import_comm *comm);

/* Whether receives into GPU memory have to be unpacked. */
bool import_comm_unpacks(const struct import_comm *comm);

/* Whether it receives into GPU memory only: receiving into host memory takes more copies. */
bool import_comm_is_steered(const struct import_comm *comm);

#endif
