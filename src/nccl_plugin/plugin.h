/*
 * The transport as NCCL calls it, without the differences between versions: tables.c puts these
 * calls into the tables. They return at once, may come from any thread, and log the cause when they
 * fail. A comm belongs to the context of the communicator it was made for, and ends with it.
 */
#ifndef TCPX_NCCL_PLUGIN_PLUGIN_H
#define TCPX_NCCL_PLUGIN_PLUGIN_H

#include "abi/net_tables.h"
#include "base/config.h"

struct plugin_context;
struct plugin_listener;
struct plugin_comm;

/* --- a communicator ------------------------------------------------------------------------ */

/*
 * *out: the context. With `out` NULL all comms of the process belong to one that never ends, as
 * with tables before version 11.
 */
int plugin_init(log_nccl_logger logger, struct plugin_context **out);

/* Before the first init: in mode unpack, whatever the environment says, for callers who unpack. */
void plugin_unpack_always(void);

/* Closes all that was left open. NULL is allowed. */
int plugin_finalize(struct plugin_context *context);

/* Whether NCCL's kernels unpack, so that irecv_consumed has to be called. After plugin_init(). */
bool plugin_unpacks(void);

/* Whether it hands over GPU memory at all. After plugin_init(). */
bool plugin_takes_gpu_memory(void);

/* --- devices ------------------------------------------------------------------------------- */

int plugin_devices(int *count);

/* What the properties of all versions are made of. */
struct plugin_properties {
    char *name;
    char *pci_path; /* NULL: none */
    uint64_t guid;
    int pointer_support;
    int speed_mbps;
    int device_type;
    int device_version;
};

int plugin_properties(int number, struct plugin_properties *properties);

/* --- comms: channel.c ---------------------------------------------------------------------- */

/*
 * A NULL context is the one that never ends. *out: a listener; a comm, or NULL for "not yet".
 * `can_unpack`: the table's accept has a place for what kernels that unpack need.
 */
int plugin_listen(struct plugin_context *context, int number, bool can_unpack, void *handle,
                  void **out);
int plugin_connect(struct plugin_context *context, int number, void *handle, void **out);
int plugin_accept(struct plugin_listener *listener, void **out, struct net_device_handle **on_gpu);
int plugin_close(struct plugin_comm *comm);
int plugin_close_listener(struct plugin_listener *listener);

/* --- requests: request.c ------------------------------------------------------------------- */

/* *out: the memory, for the calls below; NULL for host memory. */
int plugin_register(struct plugin_comm *comm, void *data, uint64_t bytes, int type, void **out);
int plugin_deregister(struct plugin_comm *comm, void *memory);

/* *out is written in every case: a request; NULL if the comm is busy, and after a failure. */
int plugin_isend(struct plugin_comm *comm, void *data, uint64_t bytes, void *memory, void **out);
int plugin_irecv(struct plugin_comm *comm, int count, void *data, uint64_t room, void *memory,
                 void **out);
int plugin_test(void *request, int *done, int *bytes);
int plugin_consumed(struct plugin_comm *comm, void *request);

/* --- tables.c ------------------------------------------------------------------------------ */

/* The newest table, for those who do not look it up by its name. */
extern struct net_table_v12 ncclNetPlugin_v12;

#endif
