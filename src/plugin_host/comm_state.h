/* The structs of a comm, its requests and its memories. */
#ifndef TCPX_PLUGIN_HOST_COMM_STATE_H
#define TCPX_PLUGIN_HOST_COMM_STATE_H

#include "plugin_host/plugin_host.h"
#include "unpack/unpack.h"

#include <pthread.h>

/*
 * Many more places than requests in flight: a late thread that tests a request that has ended must
 * not find another one in its place.
 */
enum { REQUEST_PLACES = 64 * IMPORT_REQUESTS };

enum request_state {
    REQUEST_GONE,
    REQUEST_POSTED,
    REQUEST_MOVING,   /* done at the plugin; on its way into the caller's host memory */
    REQUEST_DONE,     /* not reported to the caller yet */
    REQUEST_REPORTED, /* completion reported by test(), waiting to be consumed */
};

struct import_request {
    struct import_comm *comm;
    void *raw;
    enum request_state state;
    bool on_gpu;  /* into GPU memory that has to be unpacked */
    bool by_host; /* the plugin was given other memory than the caller's: host_receive.h */
    uint64_t number;
    uint8_t *data;
    size_t room;
    uint64_t bytes;
    uint32_t fragments;
    const void *bounce_host; /* if the CPU reaches all of them from there */
};

struct import_memory {
    struct import_memory *next;
    void *raw;
    uint8_t *data;
    size_t bytes;
    int type;
};

struct import_comm {
    const struct import_plugin *plugin;
    int device;
    void *raw;
    bool sends;
    size_t longest;                         /* message */
    uint8_t handle[NET_TABLE_HANDLE_BYTES]; /* of the receiver */

    /* Constant: the unpack queue, if there is one; NULL also if we cannot reach it. */
    bool consumes; /* receives have to be reported to the plugin as consumed */
    bool steered;  /* receives into GPU memory only */
    struct gpu *gpu;
    struct net_device_handle on_gpu;
    const struct unpack_queue *queue;
    gpu_address queue_device;
    gpu_address bounce;

    pthread_mutex_t lock; /* guards what is below, and the plugin's comm */
    gpu_address known;    /* an allocation with bounce memory */
    uint64_t known_bytes;
    uintptr_t known_host; /* of `bounce`, were that in this allocation; 0: no CPU reaches it */
    struct import_request requests[REQUEST_PLACES];
    uint64_t posted;   /* numbers of requests: those below are posted, */
    uint64_t finished; /* done at the plugin, */
    uint64_t freed;    /* gone */
    struct import_memory *memories;
    struct host_receive *host_receive; /* NULL until it is needed */
    bool is_lost;                      /* a call with it has not returned: the plugin owns it */
    uint64_t last_send;                /* when one was last done */
    int failure;                       /* the result of all requests from now on */
    char why[400];
};

/* What to unpack of a receive that is done at the plugin. */
static inline struct unpack_list import_request_list(const struct import_request *request,
                                                     gpu_address destination)
{
    const struct import_comm *comm = request->comm;
    size_t at = request->number % UNPACK_QUEUE_DEPTH;

    return (struct unpack_list){.bounce = comm->bounce,
                                .bounce_host = request->bounce_host,
                                .destination = destination,
                                .descriptors = comm->queue->descriptors[at],
                                .descriptors_device = comm->queue_device +
                                                      offsetof(struct unpack_queue, descriptors) +
                                                      at * sizeof comm->queue->descriptors[0],
                                .count = request->fragments};
}

#endif
