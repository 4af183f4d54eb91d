/*
 * Our network plugin for NCCL. The calls have the arguments of NCCL's newest table, return at once,
 * may come from any thread, and log the cause when they fail; tables.c adapts older arguments. A
 * comm is a listener, a sender or a receiver. It belongs to the context of the communicator that it
 * was made for, and ends with it.
 */
#ifndef TCPX_NCCL_PLUGIN_NCCL_PLUGIN_H
#define TCPX_NCCL_PLUGIN_NCCL_PLUGIN_H

#include "abi/net_tables.h"
#include "base/config.h"
#include "net/transport.h"

/* The newest of the plugin's tables, for callers that do not look it up by its name. */
extern struct net_table ncclNetPlugin_v12;

/* --- start.c --------------------------------------------------------------------------------- */

/* Before the first start: mode unpack, whatever the environment sets, for callers that unpack. */
void plugin_unpack_always(void);

/*
 * Reads the environment and looks for devices, once; after a failure the next call tries again.
 * What it finds is the same for the life of the process, since NCCL keeps pointers to it; the calls
 * below are for after it.
 */
MUST_CHECK int plugin_start(void);

enum config_plugin_mode plugin_mode(void);

/* Whether NCCL's kernels unpack, so that irecv_consumed has to be called. */
bool plugin_unpacks(void);

int plugin_devices(int *count);
int plugin_properties(int number, struct net_properties_v12 *properties);

/* Fails with a text for a number that is not a device. */
MUST_CHECK int plugin_device(int number, const struct net_device **device);

/* Constant since the start, since connect is called many times until it is done. */
struct net_link_options plugin_link_options(const void *owner);

/* Ends every call of NCCL: a failure gets its line in NCCL's log. */
int plugin_answer(const char *call, int result);

/* --- channel.c ------------------------------------------------------------------------------- */

struct plugin_comm {
    struct plugin_comm *next; /* in the list of its context */
    struct plugin_context *context;
    struct net_listener *listener; /* either this */
    struct net_comm *comm;         /* or this */
    bool unpacks;                  /* its receives live until they are consumed */
};

/*
 * *out: the context of a communicator. With `out` NULL all comms of the process belong to one that
 * never ends, as with tables before version 11.
 */
int plugin_init(log_nccl_logger logger, void **out);

/* Closes all that was left open. NULL is allowed. */
int plugin_finalize(void *raw_context);

/*
 * A NULL context is the one that never ends. *out: a comm, or NULL for "not yet". `can_unpack`: the
 * table's accept can return what unpacking kernels need. A sender does nothing on the GPU: connect
 * leaves `on_gpu` as it is.
 */
int plugin_listen(void *raw_context, int number, bool can_unpack, void *handle, void **out);
int plugin_connect(void *raw_context, int number, void *handle, void **out,
                   struct net_device_handle **on_gpu);
int plugin_accept(void *raw_listener, void **out, struct net_device_handle **on_gpu);
int plugin_close(void *raw_comm);

/* --- request.c ------------------------------------------------------------------------------- */

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

#endif
