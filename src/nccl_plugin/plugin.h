/*
 * The transport as NCCL calls it, with the arguments of its newest table: tables.c puts these calls
 * into the tables. They return at once, may come from any thread, and log the cause when they fail.
 * A comm belongs to the context of the communicator it was made for, and ends with it.
 */
#ifndef TCPX_NCCL_PLUGIN_PLUGIN_H
#define TCPX_NCCL_PLUGIN_PLUGIN_H

#include "abi/net_tables.h"
#include "base/config.h"

struct plugin_context;

/* --- a communicator ------------------------------------------------------------------------ */

/*
 * *out: the context. With `out` NULL all comms of the process belong to one that never ends, as
 * with tables before version 11.
 */
int plugin_init(log_nccl_logger logger, struct plugin_context **out);

/* Before the first init: in mode unpack, whatever the environment says, for callers who unpack. */
void plugin_unpack_always(void);

/* Closes all that was left open. NULL is allowed. */
int plugin_finalize(void *raw_context);

/* Whether NCCL's kernels unpack, so that irecv_consumed has to be called. After plugin_init(). */
bool plugin_unpacks(void);

/* Whether it hands over GPU memory at all. After plugin_init(). */
bool plugin_takes_gpu_memory(void);

/* --- devices ------------------------------------------------------------------------------- */

int plugin_devices(int *count);

int plugin_properties(int number, struct net_properties_v12 *properties);

/* --- comms: channel.c ---------------------------------------------------------------------- */

/*
 * A NULL context is the one that never ends. *out: a listener; a comm, or NULL for "not yet".
 * `can_unpack`: the table's accept has a place for what kernels that unpack need. A sender has
 * nothing to do on the GPU: connect leaves `on_gpu` as it is.
 */
int plugin_listen(void *raw_context, int number, bool can_unpack, void *handle, void **out);
int plugin_connect(void *raw_context, int number, void *handle, void **out,
                   struct net_device_handle **on_gpu);
int plugin_accept(void *raw_listener, void **out, struct net_device_handle **on_gpu);
int plugin_close(void *raw_comm);
int plugin_close_listener(void *raw_listener);

/* --- requests: request.c ------------------------------------------------------------------- */

/* *out: the memory, for the calls below; NULL for host memory. */
int plugin_register(void *raw_comm, void *data, size_t bytes, int type, void **out);
int plugin_deregister(void *raw_comm, void *memory);

/*
 * *out is written in every case: a request; NULL if the comm is busy, and after a failure. Messages
 * are in order, whatever their tags are.
 */
int plugin_isend(void *raw_comm, void *data, size_t bytes, int tag, void *memory, void *profile,
                 void **out);
int plugin_irecv(void *raw_comm, int count, void **data, size_t *room, int *tags, void **memory,
                 void **profiles, void **out);
int plugin_test(void *request, int *done, int *bytes);
int plugin_consumed(void *raw_comm, int count, void *request);

/* --- tables.c ------------------------------------------------------------------------------ */

/* The newest table, for those who do not look it up by its name. */
extern struct net_table_v11 ncclNetPlugin_v12;

#endif
