/*
 * NCCL's comms: a listener, a sender or a receiver each. A comm belongs to the context of the
 * communicator that it was made for. The calls have the arguments of NCCL's newest table.
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
    struct plugin_comm *comms; /* guarded by a lock of channel.c */
};

/*
 * A NULL context is the one of the process, which never ends. *out: a comm, or NULL for "not yet".
 * `can_unpack`: the table's accept has a place for what kernels that unpack need. A sender has
 * nothing to do on the GPU: connect leaves `on_gpu` as it is.
 */
int plugin_listen(void *raw_context, int number, bool can_unpack, void *handle, void **out);
int plugin_connect(void *raw_context, int number, void *handle, void **out,
                   struct net_device_handle **on_gpu);
int plugin_accept(void *raw_listener, void **out, struct net_device_handle **on_gpu);
int plugin_close(void *raw_comm);

/* What NCCL has left open: none of its threads works with it any more. */
void plugin_close_all(struct plugin_context *context);

#endif
