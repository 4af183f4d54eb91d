/*
 * NCCL's comms: a listener, a sender or a receiver each. A comm belongs to the context of the
 * communicator that it was made for, and ends with it. The calls have the arguments of NCCL's
 * newest table, return at once, may come from any thread, and log the cause when they fail.
 */
#ifndef TCPX_NCCL_PLUGIN_CHANNEL_H
#define TCPX_NCCL_PLUGIN_CHANNEL_H

#include "abi/net_tables.h"
#include "net/transport.h"

struct plugin_comm {
    struct plugin_comm *next; /* in the list of its context */
    struct plugin_context *context;
    struct net_listener *listener; /* either this */
    struct net_comm *comm;         /* or this */
    bool unpacks;                  /* its receives live until they are consumed */
};

struct plugin_context {
    struct plugin_comm *comms; /* guarded by contexts_lock */
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

#endif
