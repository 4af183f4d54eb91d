/*
 * Calls of a plugin with a deadline, UCCL_TCPX_TIMEOUT_MS. Each is made in a helper thread, with
 * the GPU of the caller current there. One that does not return in time is abandoned: the result is
 * TCPX_SYSTEM_ERROR, *lost is true, and what the plugin was given belongs to it from then on; it is
 * never freed. Calls that move data (isend, irecv, test, irecvConsumed) are not here: a change of
 * threads for each would cost more than they do.
 */
#ifndef TCPX_PLUGIN_HOST_BOUNDED_H
#define TCPX_PLUGIN_HOST_BOUNDED_H

#include "plugin_host/plugin.h"

MUST_CHECK int bounded_init(struct import_plugin *plugin, bool *lost);
MUST_CHECK int bounded_devices(struct import_plugin *plugin);
MUST_CHECK int bounded_properties(const struct import_plugin *plugin, int device,
                                  struct net_properties_v12 *properties);

/* `handle`, `on_gpu` and the outputs are memory that stays until the call has returned. */
MUST_CHECK int bounded_listen(const struct import_plugin *plugin, int device, uint8_t *handle,
                              void **listener, bool *lost);
MUST_CHECK int bounded_connect(const struct import_plugin *plugin, int device, uint8_t *handle,
                               void **sender, bool *lost);
MUST_CHECK int bounded_accept(const struct import_plugin *plugin, void *listener, void **receiver,
                              struct net_device_handle *on_gpu, bool *lost);
MUST_CHECK int bounded_register(const struct import_plugin *plugin, void *comm, void *data,
                                size_t bytes, int type, void **memory, bool *lost);
MUST_CHECK int bounded_deregister(const struct import_plugin *plugin, void *comm, void *memory,
                                  bool *lost);
MUST_CHECK int bounded_close_send(const struct import_plugin *plugin, void *sender, bool *lost);
MUST_CHECK int bounded_close_recv(const struct import_plugin *plugin, void *receiver, bool *lost);
MUST_CHECK int bounded_close_listen(const struct import_plugin *plugin, void *listener, bool *lost);

#endif
