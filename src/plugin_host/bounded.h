/*
 * Calls of a plugin with a deadline, UCCL_TCPX_TIMEOUT_MS. Each is made in a helper thread, with
 * the GPU of the caller current there. One that does not return in time is abandoned: the result is
 * TCPX_SYSTEM_ERROR, is_lost is true, and what the plugin was given belongs to it from then on; it
 * is never freed. Calls that move data (isend, irecv, test, irecvConsumed) are not here: a change
 * of threads for each would cost more than they do.
 */
#ifndef TCPX_PLUGIN_HOST_BOUNDED_H
#define TCPX_PLUGIN_HOST_BOUNDED_H

#include "plugin_host/plugin_host.h"

enum bounded_kind {
    BOUNDED_INIT, /* of the table that is the object */
    BOUNDED_DEVICES,
    BOUNDED_PROPERTIES,
    BOUNDED_LISTEN,
    BOUNDED_CONNECT,
    BOUNDED_ACCEPT,
    BOUNDED_REGISTER,
    BOUNDED_DEREGISTER,
    BOUNDED_CLOSE_SEND,
    BOUNDED_CLOSE_RECV,
    BOUNDED_CLOSE_LISTEN,
};

/* What one of the calls of table.h is given and returns: as much of it as that call has. */
struct bounded_call {
    int device;
    void *object; /* a comm or a listener of the plugin */
    void *data;   /* to register, or a registration */
    size_t bytes;
    int type;
    uint8_t *handle;                  /* this and the next one are memory that stays until the */
    struct net_device_handle *on_gpu; /* call has returned */

    void *out; /* a listener, a comm or a registration */
    int count;
    struct net_properties_v12 properties;
    bool is_lost;
};

MUST_CHECK int bounded_call(const struct import_plugin *plugin, enum bounded_kind kind,
                            struct bounded_call *call);

#endif
