/* What other files of this folder call of memory.c. */
#ifndef TCPX_PLUGIN_HOST_MEMORY_H
#define TCPX_PLUGIN_HOST_MEMORY_H

#include "plugin_host/plugin_host.h"

/* import_comm_register() for a caller that holds the comm's lock, and has checked the arguments. */
MUST_CHECK int import_comm_register_locked(struct import_comm *comm, void *data, size_t bytes,
                                           int type, struct import_memory **memory);

/* Fails where the plugin would crash when it is given GPU memory. */
MUST_CHECK int import_comm_check_pci_path(const struct import_comm *comm);

/* The error of every call on something that a lost call of the plugin still uses. */
MUST_CHECK int import_left_behind(const struct import_plugin *plugin);

#endif
