/*
 * NCCL's network plugin tables, versions 6 to 12, as they lie in memory. A plugin exports each as a
 * data object named ncclNetPlugin_v<N>; NCCL takes the newest one it knows. The numbers of results
 * are those of enum tcpx_result.
 *
 * A member of a table has the same place in every version that has it; new ones come at the end,
 * and what lies behind the end of an older version must not be looked at. What changed are the
 * arguments of some members, so these are unions with one signature for each version that changed
 * them: version 9 of `connect` is called as v7. The properties of a device are converted between
 * their layout in a version and that of version 12.
 */
#ifndef TCPX_ABI_NET_TABLES_H
#define TCPX_ABI_NET_TABLES_H

#include "abi/unpack_queue.h"
#include "base/log.h"

#include <string.h>

#define NET_TABLE_HANDLE_BYTES 128

/* Bits of pointer_support, and the types of memory that reg_mr is given. */
#define NET_POINTER_HOST 1
#define NET_POINTER_CUDA 2

/* An unknown rail or plane, traffic class or attribute. */
#define NET_UNDEFINED (-1)

/* --- properties ---------------------------------------------------------------------------- */

/* The physical devices behind a device. */
struct net_virtual {
    int count;
    int devices[8]; /* before version 12: 4 */
};

struct net_properties_v12 {
    char *name;
    char *pci_path;
    uint64_t guid;
    int pointer_support;
    int registration_is_global; /* since version 8 */
    int force_flush;            /* since version 9 */
    int speed;                  /* Mbit/s */
    int port;
    float latency; /* us */
    int max_comms;
    int max_receives;
    int device_type; /* since version 7 */
    int device_version;
    struct net_virtual parts; /* since version 9 */
    size_t max_p2p_bytes;
    size_t max_collective_bytes;
    int max_multi_request; /* since version 11 */
    int16_t rail;          /* since version 12 */
    int16_t plane;
};

/*
 * Where the members of an older version lie, on every 64-bit Linux. Each version lacks one run of
 * bytes in the middle of version 12, and some members at its end: its first `head` bytes are those
 * of version 12, and `tail_bytes` bytes at `tail` lie at `newest_tail` there.
 */
struct net_properties_layout {
    uint8_t head;
    uint8_t tail;
    uint8_t newest_tail;
    uint8_t tail_bytes;
};

static inline const struct net_properties_layout *net_properties_layout(int version)
{
    static const struct net_properties_layout layouts[] = {
        [6] = {28, 28, 36, 20},  [7] = {28, 28, 36, 28},   [8] = {32, 32, 36, 28},
        [9] = {84, 88, 104, 16}, [10] = {84, 88, 104, 16}, [11] = {84, 88, 104, 20},
        [12] = {128, 0, 0, 0},
    };

    return &layouts[version];
}

/* Members that the older version does not have stay as they are. */
static inline void net_properties_from(int version, const void *older,
                                       struct net_properties_v12 *newest)
{
    const struct net_properties_layout *layout = net_properties_layout(version);

    memcpy(newest, older, layout->head);
    memcpy((char *)newest + layout->newest_tail, (const char *)older + layout->tail,
           layout->tail_bytes);
}

static inline void net_properties_to(int version, const struct net_properties_v12 *newest,
                                     void *older)
{
    const struct net_properties_layout *layout = net_properties_layout(version);

    memcpy(older, newest, layout->head);
    memcpy((char *)older + layout->tail, (const char *)newest + layout->newest_tail,
           layout->tail_bytes);
}

/* --- arguments ----------------------------------------------------------------------------- */

typedef int (*net_profiler_callback)(void **event, int type, void *parent, int64_t plugin,
                                     void *data);

/* Handed to a plugin for each communicator: version 10 to connect, version 11 to init. */
struct net_comm_config {
    int traffic_class;
};

/* --- the table ----------------------------------------------------------------------------- */

struct net_table {
    const char *name;
    union {
        int (*v6)(log_nccl_logger logger);
        int (*v10)(log_nccl_logger logger, net_profiler_callback profiler);
        int (*v11)(void **context, uint64_t communicator, struct net_comm_config *config,
                   log_nccl_logger logger, net_profiler_callback profiler);
    } init;
    int (*devices)(int *count);
    int (*get_properties)(int device, void *properties); /* in the layout of the version */
    union {
        int (*v6)(int device, void *handle, void **listener);
        int (*v11)(void *context, int device, void *handle, void **listener);
    } listen;
    union {
        int (*v6)(int device, void *handle, void **sender);
        int (*v7)(int device, void *handle, void **sender, struct net_device_handle **on_gpu);
        int (*v10)(int device, struct net_comm_config *config, void *handle, void **sender,
                   struct net_device_handle **on_gpu);
        int (*v11)(void *context, int device, void *handle, void **sender,
                   struct net_device_handle **on_gpu);
    } connect;
    union {
        int (*v6)(void *listener, void **receiver);
        int (*v7)(void *listener, void **receiver, struct net_device_handle **on_gpu);
    } accept;
    union {
        int (*v6)(void *comm, void *data, int bytes, int type, void **memory);
        int (*v8)(void *comm, void *data, size_t bytes, int type, void **memory);
    } reg_mr;
    int (*reg_mr_dmabuf)(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd,
                         void **memory);
    int (*dereg_mr)(void *comm, void *memory);
    union {
        int (*v6)(void *sender, void *data, int bytes, int tag, void *memory, void **request);
        int (*v9)(void *sender, void *data, size_t bytes, int tag, void *memory, void **request);
        int (*v10)(void *sender, void *data, size_t bytes, int tag, void *memory, void *profile,
                   void **request);
    } isend;
    union {
        int (*v6)(void *receiver, int count, void **data, int *bytes, int *tags, void **memory,
                  void **request);
        int (*v9)(void *receiver, int count, void **data, size_t *bytes, int *tags, void **memory,
                  void **request);
        int (*v10)(void *receiver, int count, void **data, size_t *bytes, int *tags, void **memory,
                   void **profiles, void **request);
    } irecv;
    int (*iflush)(void *receiver, int count, void **data, int *bytes, void **memory,
                  void **request);
    int (*test)(void *request, int *done, int *bytes);
    int (*close_send)(void *sender);
    int (*close_recv)(void *receiver);
    int (*close_listen)(void *listener);
    /* Since version 7. */
    int (*get_device_mr)(void *comm, void *memory, void **on_gpu);
    int (*irecv_consumed)(void *receiver, int count, void *request);
    /* Since version 9. */
    void (*make_virtual)(void); /* neither called nor provided here */
    /* Since version 11. */
    int (*finalize)(void *context);
    void (*set_attributes)(void); /* neither called nor provided here */
};

_Static_assert(sizeof(struct net_properties_v12) == 128, "net_properties_v12");
_Static_assert(offsetof(struct net_table, close_listen) == 16 * sizeof(void *), "version 6");
_Static_assert(offsetof(struct net_table, irecv_consumed) == 18 * sizeof(void *), "versions 7, 8");
_Static_assert(offsetof(struct net_table, make_virtual) == 19 * sizeof(void *), "versions 9, 10");
_Static_assert(sizeof(struct net_table) == 22 * sizeof(void *), "versions 11, 12");

#endif
