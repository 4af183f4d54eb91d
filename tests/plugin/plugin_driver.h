/*
 * Loads the plugin as NCCL does, and calls any version of its tables through one set of functions.
 * A call reads the table at that moment and has the parameters of its version, so that every test
 * can run for every version. Nothing of the library is linked: what is not reached
 * through a table is not there.
 */
#ifndef TCPX_TESTS_PLUGIN_DRIVER_H
#define TCPX_TESTS_PLUGIN_DRIVER_H

#include "tests/plugin/nccl_tables.h"

#include <stdbool.h>

enum {
    FIRST_VERSION = NCCL_FIRST,
    VERSIONS = NCCL_VERSIONS,
    LAST_VERSION = FIRST_VERSION + VERSIONS - 1,
    HANDLE_BYTES = 128
};

/* One version, initialised: what NCCL keeps for a communicator. */
struct plugin {
    int version;
    const struct nccl_net *table;
    void *context; /* from version 11 on */
};

/* --- loading -------------------------------------------------------------------------------- */

/* Where the plugin is: TCPX_TEST_PLUGIN, or two folders above this program's. */
const char *plugin_path(void);

/* NULL if it cannot be loaded; then the reason has been printed. */
void *plugin_load(void);

/* False if the library does not have this version. Initialises nothing. */
bool plugin_find(void *library, int version, struct plugin *plugin);

/* --- the log --------------------------------------------------------------------------------- */

/* What plugin_init() gives to the plugin. Keeps the lines. */
void plugin_logger(int level, unsigned long flags, const char *file, int line, const char *format,
                   ...) __attribute__((format(printf, 5, 6)));
void plugin_log_clear(void);
unsigned plugin_log_warnings(void);
bool plugin_log_warned(const char *text); /* a warning contains it */
const char *plugin_log_last(void);        /* the latest warning; one thread at a time */

/* --- calls ----------------------------------------------------------------------------------- */

/* Members with the same parameters in all versions are called through plugin.table. */

int plugin_init(struct plugin *plugin);
int plugin_finalize(struct plugin *plugin); /* nothing before version 11 */
/* What a version does not have is 0, as for NCCL. */
int plugin_properties(const struct plugin *plugin, int device, struct nccl_props *props);
/* Of what the plugin has written. */
struct nccl_props plugin_read_properties(int version, const void *raw);

int plugin_listen(const struct plugin *plugin, int device, void *handle, void **comm);
int plugin_connect(const struct plugin *plugin, int device, void *handle, void **comm,
                   struct nccl_device_handle **device_comm);
int plugin_accept(const struct plugin *plugin, void *listening, void **comm,
                  struct nccl_device_handle **device_comm);
int plugin_reg(const struct plugin *plugin, void *comm, void *data, size_t size, int type,
               void **mhandle);
/* `size` is signed, so that a negative one can reach the versions whose size is an int. */
int plugin_isend(const struct plugin *plugin, void *comm, void *data, int64_t size, int tag,
                 void *mhandle, void **request);
int plugin_irecv_n(const struct plugin *plugin, void *comm, int n, void **data,
                   const int64_t *sizes, int *tags, void **mhandles, void **request);
int plugin_irecv(const struct plugin *plugin, void *comm, void *data, int64_t size, int tag,
                 void *mhandle, void **request);
int plugin_iflush(const struct plugin *plugin, void *comm, void *data, int size, void *mhandle,
                  void **request);

/* Where a version has no such member, or it is NULL: success, and nothing has happened. */
int plugin_device_mr(const struct plugin *plugin, void *comm, void *mhandle, void **device);
int plugin_consumed(const struct plugin *plugin, void *comm, void *request);
int plugin_set_attr(const struct plugin *plugin, struct nccl_attr *attr);

#endif
