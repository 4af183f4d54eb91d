/*
 * A comm of a network plugin, whichever it is, with the same behaviour: one direction, messages in
 * order, at most IMPORT_REQUESTS of them in flight. What the plugins differ in is settled here:
 * they are asked about their oldest request only, told of consumed receives in order, called by one
 * thread at a time for each comm, given nothing that they would lose or not survive, and what they
 * publish is checked before anyone uses it. Nothing here waits, but for a plugin's call that does
 * not return: that is an error after UCCL_TCPX_TIMEOUT_MS (bounded.h).
 *
 * Calls on one comm may come from several threads.
 */
#ifndef TCPX_PLUGIN_HOST_COMM_H
#define TCPX_PLUGIN_HOST_COMM_H

#include "gpu/gpu.h"
#include "plugin_host/loader.h"

enum { IMPORT_REQUESTS = 16 };

struct import_listener;
struct import_comm;
struct import_memory;
struct import_request;

/* Plugins work with the GPU that is current in the calling thread. */
MUST_CHECK int import_comm_listen(const struct import_plugin *plugin, int device,
                                  uint8_t handle[NET_TABLE_HANDLE_BYTES],
                                  struct import_listener **listener);

/* *comm is NULL: not yet. Serves as many peers as the plugin does. */
MUST_CHECK int import_comm_accept(struct import_listener *listener, struct import_comm **comm);
MUST_CHECK int import_listener_close(struct import_listener *listener);

/*
 * *comm is NULL: not yet, again with the same handle. It stays as it is, whatever the plugin keeps:
 * an attempt is known by where its handle is and what it says, and is forgotten when it ends.
 */
MUST_CHECK int import_comm_connect(const struct import_plugin *plugin, int device,
                                   const uint8_t handle[NET_TABLE_HANDLE_BYTES],
                                   struct import_comm **comm);

/* Nobody will call again for this attempt. */
void import_comm_connect_forget(const struct import_plugin *plugin,
                                const uint8_t handle[NET_TABLE_HANDLE_BYTES]);

/*
 * With its requests and memories. `delivered`: the caller knows that what was sent has arrived;
 * otherwise the connections stay open for a while where the plugin would lose it (held.h).
 */
MUST_CHECK int import_comm_close(struct import_comm *comm, bool delivered);

/* What accept was given, for the caller's own kernels. */
const struct net_device_handle *import_comm_device_handle(const struct import_comm *comm);

/* How long a message may be. */
size_t import_comm_longest(const struct import_comm *comm);

/* Whether receives into GPU memory have to be unpacked. */
bool import_comm_unpacks(const struct import_comm *comm);

/* Whether what arrives does so in GPU memory only: to receive into host memory takes more copies.
 */
bool import_comm_is_steered(const struct import_comm *comm);

/* `type`: NET_POINTER_HOST or NET_POINTER_CUDA. */
MUST_CHECK int import_comm_register(struct import_comm *comm, void *data, size_t bytes, int type,
                                    struct import_memory **memory);
MUST_CHECK int import_comm_deregister(struct import_comm *comm, struct import_memory *memory);

/* *request is NULL: busy. `memory` may be NULL only over our own transport, for host memory. */
MUST_CHECK int import_comm_isend(struct import_comm *comm, void *data, size_t bytes, int tag,
                                 struct import_memory *memory, struct import_request **request);
MUST_CHECK int import_comm_irecv(struct import_comm *comm, void *data, size_t room, int tag,
                                 struct import_memory *memory, struct import_request **request);

/*
 * A request that is done or has failed is gone, but a receive that has to be unpacked lives until
 * it is consumed. *bytes is IMPORT_BYTES_UNSAID where the plugin does not say it.
 */
MUST_CHECK int import_request_test(struct import_request *request, bool *done, uint64_t *bytes);

/* Of a receive that is done. */
struct import_received {
    const struct unpack_descriptor *descriptors;
    gpu_address descriptors_device;
    uint32_t count; /* 0: nothing has to be unpacked */
    gpu_address bounce;
    const void *bounce_host; /* NULL where the CPU does not reach it */
    gpu_address destination;
};
MUST_CHECK int import_request_received(const struct import_request *request,
                                       struct import_received *received);

/* In any order; without effect for one that is gone. */
MUST_CHECK int import_request_consumed(struct import_request *request);

#endif
