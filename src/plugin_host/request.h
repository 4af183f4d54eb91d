/* The sends and receives of a plugin's comm. */
#ifndef TCPX_PLUGIN_HOST_REQUEST_H
#define TCPX_PLUGIN_HOST_REQUEST_H

#include "gpu/gpu.h"

struct import_comm;
struct import_memory;
struct import_request;
struct unpack_descriptor;

/* *request is NULL: busy. `memory` may be NULL only over our own transport, for host memory. */
MUST_CHECK int import_comm_isend(struct import_comm *comm, void *data, size_t bytes, int tag,
                                 struct import_memory *memory, struct import_request **request);
MUST_CHECK int import_comm_irecv(struct import_comm *comm, void *data, size_t room, int tag,
                                 struct import_memory *memory, struct import_request **request);

/*
 * A request that is done or has failed is gone, but a receive that has to be unpacked lives until
 * it is consumed. *bytes is IMPORT_BYTES_UNSAID where the plugin does not report it.
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
