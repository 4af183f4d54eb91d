/* Makes the comms of a plugin: listen and accept on one side, connect on the other. */
#ifndef TCPX_PLUGIN_HOST_CONNECTION_H
#define TCPX_PLUGIN_HOST_CONNECTION_H

#include "plugin_host/comm.h"

struct import_listener;

/* Plugins work with the GPU that is current in the calling thread. */
MUST_CHECK int import_comm_listen(const struct import_plugin *plugin, int device,
                                  uint8_t handle[NET_TABLE_HANDLE_BYTES],
                                  struct import_listener **listener);

/* *comm is NULL: not yet. Serves as many peers as the plugin does. */
MUST_CHECK int import_comm_accept(struct import_listener *listener, struct import_comm **comm);
MUST_CHECK int import_listener_close(struct import_listener *listener);

/*
 * *comm is NULL: not yet; call again with the same handle. The handle is not written to: the plugin
 * gets a copy of it for each attempt. An attempt is found by the address and the bytes of its
 * handle, and is forgotten when it ends.
 */
MUST_CHECK int import_comm_connect(const struct import_plugin *plugin, int device,
                                   const uint8_t handle[NET_TABLE_HANDLE_BYTES],
                                   struct import_comm **comm);

/* The caller will not call again for this attempt. */
void import_comm_connect_forget(const struct import_plugin *plugin,
                                const uint8_t handle[NET_TABLE_HANDLE_BYTES]);

#endif
