/* A network plugin that is loaded: what its table is, what it needs, and what it has found. */
#ifndef TCPX_PLUGIN_HOST_PLUGIN_H
#define TCPX_PLUGIN_HOST_PLUGIN_H

#include "plugin_host/quirks.h"
#include "plugin_host/table.h"

enum { IMPORT_REQUESTS = 16 }; /* in flight on one comm, at most */

struct import_plugin {
    const char *path; /* "builtin": there is no file */
    const struct import_quirks *quirks;
    struct import_table table;
    int devices;
    size_t longest; /* request that it can be given */
};

#endif
