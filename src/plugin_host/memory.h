/*
 * Memory that is registered with a plugin, for its messages. Registering is a call of the plugin
 * that may not return: then the comm is lost, and all its requests fail.
 */
#ifndef TCPX_PLUGIN_HOST_MEMORY_H
#define TCPX_PLUGIN_HOST_MEMORY_H

#include "plugin_host/plugin.h"

struct import_comm;
struct import_memory;

/* `type`: NET_POINTER_HOST or NET_POINTER_CUDA. */
MUST_CHECK int import_comm_register(struct import_comm *comm, void *data, size_t bytes, int type,
                                    struct import_memory **memory);
MUST_CHECK int import_comm_deregister(struct import_comm *comm, struct import_memory *memory);

/* For a caller that holds the comm's lock. */
MUST_CHECK int import_comm_register_locked(struct import_comm *comm, void *data, size_t bytes,
                                           int type, struct import_memory **memory);

/* Fails where the plugin would crash when it is given GPU memory. */
MUST_CHECK int import_comm_check_pci_path(const struct import_comm *comm);

/* The error of every call on something that a lost call of the plugin still uses. */
MUST_CHECK int import_left_behind(const struct import_plugin *plugin);

#endif
