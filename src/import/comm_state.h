/* What comm.c and request.c share. */
#ifndef TCPX_IMPORT_COMM_STATE_H
#define TCPX_IMPORT_COMM_STATE_H

#include "import/comm.h"
#include "import/quirks.h"

#include <pthread.h>

/*
 * Many more of them than can be in flight, so that a caller who asks about one that is gone,
 * however late a thread may be, does not mean another.
 */
enum { REQUEST_PLACES = 64 * IMPORT_REQUESTS };

enum request_state {
    REQUEST_GONE,
    REQUEST_POSTED,
    REQUEST_DONE, /* at the plugin; the caller does not know yet */
    REQUEST_TOLD, /* waits to be consumed */
};

struct import_request {
    struct import_comm *comm;
    void *raw;
    enum request_state state;
    bool on_gpu; /* into GPU memory that has to be unpacked */
    uint64_t number;
    uint8_t *data;
    size_t room;
    uint64_t bytes;
    uint32_t fragments;
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
    void *raw;
    bool sends;
    size_t longest;

    /* Constant: the unpack queue, if there is one; NULL also if we cannot reach it. */
    bool consumes; /* the plugin wants to be told when a receive was consumed */
    struct gpu *gpu;
    struct net_device_handle on_gpu;
    const struct unpack_queue *queue;
    gpu_address queue_device;
    gpu_address bounce;
    const void *bounce_host;

    uint64_t bounce_bytes; /* that are known to be there; guarded by the lock below */
    pthread_mutex_t lock;  /* guards what is below, and the plugin's comm */
    struct import_request requests[REQUEST_PLACES];
    uint64_t posted;   /* numbers of requests: those below are posted, */
    uint64_t finished; /* done at the plugin, */
    uint64_t freed;    /* gone */
    struct import_memory *memories;
    uint64_t last_send; /* when one was last done */
    int failure;        /* the result of all requests from now on */
    char why[400];
};

#endif
