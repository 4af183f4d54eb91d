/*
 * A network plugin, called through the newest of NCCL's tables that it has, with the arguments of
 * that version. What a version cannot express is refused with a text, and what it does not have is
 * filled in as NCCL does. A failure of the plugin keeps its result and gets a text that names
 * plugin and call. Nothing here waits, and nothing depends on the faults of a particular plugin.
 */
#ifndef TCPX_PLUGIN_HOST_TABLE_H
#define TCPX_PLUGIN_HOST_TABLE_H

#include "abi/net_tables.h"
#include "base/error.h"

#include <stdbool.h>

struct import_table {
    const char *name;            /* what the plugin calls itself */
    int version;                 /* 6 to 12 */
    const struct net_table *raw; /* in the plugin; not all of it, where the version is older */
    void *context;               /* from version 11 on */
    bool is_builtin;
};

/* Looks for a table in what dlopen() has returned. No function of the plugin is called. */
MUST_CHECK int import_table_find(void *library, struct import_table *table);

/* Our own transport, with GPU memory that the caller unpacks. */
void import_table_builtin(struct import_table *table);

/*
 * Starts the plugin. Its members are read with every call, since some plugins change their table
 * when they start. Lines that it logs become ours.
 */
MUST_CHECK int import_table_init(struct import_table *table);

/* Whether all members are there that are called here; known once the plugin was started. */
MUST_CHECK int import_table_check(const struct import_table *table);

/* Ends what init has begun; before version 11 there is nothing to end. */
void import_table_finalize(struct import_table *table);

MUST_CHECK int import_devices(const struct import_table *table, int *count);

/* All properties of the newest table. */
MUST_CHECK int import_properties(const struct import_table *table, int device,
                                 struct net_properties_v12 *properties);

MUST_CHECK int import_listen(const struct import_table *table, int device,
                             uint8_t handle[NET_TABLE_HANDLE_BYTES], void **listener);

/*
 * *sender is NULL: not yet; call again with the same handle memory, where the plugin may keep its
 * state: what a peer has put there is the caller's to clear.
 */
MUST_CHECK int import_connect(const struct import_table *table, int device,
                              uint8_t handle[NET_TABLE_HANDLE_BYTES], void **sender);

/*
 * *receiver is NULL: not yet. `on_gpu`, which is zero before the first call, is the caller's
 * memory. The plugin may write to it with every call until there is a receiver; then its type shows
 * whether there is an unpack queue.
 */
MUST_CHECK int import_accept(const struct import_table *table, void *listener, void **receiver,
                             struct net_device_handle *on_gpu);

MUST_CHECK int import_register(const struct import_table *table, void *comm, void *data,
                               size_t bytes, int type, void **memory);
MUST_CHECK int import_deregister(const struct import_table *table, void *comm, void *memory);

/* How long a message may be. */
size_t import_longest(const struct import_table *table);

/* *request is NULL: busy. */
MUST_CHECK int import_isend(const struct import_table *table, void *sender, void *data,
                            size_t bytes, int tag, void *memory, void **request);
MUST_CHECK int import_irecv(const struct import_table *table, void *receiver, void *data,
                            size_t bytes, int tag, void *memory, void **request);

/* The number of bytes where a plugin does not report it. Zero bytes are a length, too. */
#define IMPORT_BYTES_UNSAID UINT64_MAX

/* *bytes: or IMPORT_BYTES_UNSAID. */
MUST_CHECK int import_test(const struct import_table *table, void *request, int *done,
                           uint64_t *bytes);

/* Without effect where the plugin has no such call. */
MUST_CHECK int import_consumed(const struct import_table *table, void *receiver, void *request);

MUST_CHECK int import_close_send(const struct import_table *table, void *sender);
MUST_CHECK int import_close_recv(const struct import_table *table, void *receiver);
MUST_CHECK int import_close_listen(const struct import_table *table, void *listener);

#endif
