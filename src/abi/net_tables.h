/*
 * NCCL's network plugin tables, versions 6 to 12, as they lie in memory. A plugin exports each as a
 * data object named ncclNetPlugin_v<N>; NCCL takes the newest one it knows. The numbers of results
 * are those of enum tcpx_result.
 *
 * A member of a table has the same place in every version that has it; new ones come at the end.
 * What changed are the arguments of some members, so these are unions with one signature for each
 * version that changed them: version 9 of `connect` is called as v7. The properties of a device are
 * converted between their layout in a version and that of version 12.
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

/* --- signatures ---------------------------------------------------------------------------- */

union net_call_init {
    int (*v6)(log_nccl_logger logger);
    int (*v10)(log_nccl_logger logger, net_profiler_callback profiler);
    int (*v11)(void **context, uint64_t communicator, struct net_comm_config *config,
               log_nccl_logger logger, net_profiler_callback profiler);
};
typedef int (*net_call_devices)(int *count);
typedef int (*net_call_get_properties)(int device, void *properties); /* in its own layout */
union net_call_listen {
    int (*v6)(int device, void *handle, void **listener);
    int (*v11)(void *context, int device, void *handle, void **listener);
};
union net_call_connect {
    int (*v6)(int device, void *handle, void **sender);
    int (*v7)(int device, void *handle, void **sender, struct net_device_handle **on_gpu);
    int (*v10)(int device, struct net_comm_config *config, void *handle, void **sender,
               struct net_device_handle **on_gpu);
    int (*v11)(void *context, int device, void *handle, void **sender,
               struct net_device_handle **on_gpu);
};
union net_call_accept {
    int (*v6)(void *listener, void **receiver);
    int (*v7)(void *listener, void **receiver, struct net_device_handle **on_gpu);
};
union net_call_reg_mr {
    int (*v6)(void *comm, void *data, int bytes, int type, void **memory);
    int (*v8)(void *comm, void *data, size_t bytes, int type, void **memory);
};
typedef int (*net_call_reg_mr_dmabuf)(void *comm, void *data, size_t bytes, int type,
                                      uint64_t offset, int fd, void **memory);
typedef int (*net_call_dereg_mr)(void *comm, void *memory);
union net_call_isend {
    int (*v6)(void *sender, void *data, int bytes, int tag, void *memory, void **request);
    int (*v9)(void *sender, void *data, size_t bytes, int tag, void *memory, void **request);
    int (*v10)(void *sender, void *data, size_t bytes, int tag, void *memory, void *profile,
               void **request);
};
union net_call_irecv {
    int (*v6)(void *receiver, int count, void **data, int *bytes, int *tags, void **memory,
              void **request);
    int (*v9)(void *receiver, int count, void **data, size_t *bytes, int *tags, void **memory,
              void **request);
    int (*v10)(void *receiver, int count, void **data, size_t *bytes, int *tags, void **memory,
               void **profiles, void **request);
};
typedef int (*net_call_iflush)(void *receiver, int count, void **data, int *bytes, void **memory,
                               void **request);
typedef int (*net_call_test)(void *request, int *done, int *bytes);
typedef int (*net_call_close)(void *comm);
typedef int (*net_call_get_device_mr)(void *comm, void *memory, void **on_gpu);
typedef int (*net_call_irecv_consumed)(void *receiver, int count, void *request);
typedef int (*net_call_finalize)(void *context);
typedef void (*net_call_unused)(void); /* neither called nor provided here */

/* --- tables -------------------------------------------------------------------------------- */

#define NET_MEMBER(type, member) type member;

/* The members in their order, by the version that brought them. */
#define NET_TABLE_V6(X)                                                                            \
    X(const char *, name)                                                                          \
    X(union net_call_init, init)                                                                   \
    X(net_call_devices, devices)                                                                   \
    X(net_call_get_properties, get_properties)                                                     \
    X(union net_call_listen, listen)                                                               \
    X(union net_call_connect, connect)                                                             \
    X(union net_call_accept, accept)                                                               \
    X(union net_call_reg_mr, reg_mr)                                                               \
    X(net_call_reg_mr_dmabuf, reg_mr_dmabuf)                                                       \
    X(net_call_dereg_mr, dereg_mr)                                                                 \
    X(union net_call_isend, isend)                                                                 \
    X(union net_call_irecv, irecv)                                                                 \
    X(net_call_iflush, iflush)                                                                     \
    X(net_call_test, test)                                                                         \
    X(net_call_close, close_send)                                                                  \
    X(net_call_close, close_recv)                                                                  \
    X(net_call_close, close_listen)
#define NET_TABLE_V7(X)                                                                            \
    NET_TABLE_V6(X)                                                                                \
    X(net_call_get_device_mr, get_device_mr)                                                       \
    X(net_call_irecv_consumed, irecv_consumed)
#define NET_TABLE_V9(X)                                                                            \
    NET_TABLE_V7(X)                                                                                \
    X(net_call_unused, make_virtual)
#define NET_TABLE_V11(X)                                                                           \
    NET_TABLE_V9(X)                                                                                \
    X(net_call_finalize, finalize)                                                                 \
    X(net_call_unused, set_attributes)

struct net_table_v6 {
    NET_TABLE_V6(NET_MEMBER)
};
struct net_table_v7 { /* and 8 */
    NET_TABLE_V7(NET_MEMBER)
};
struct net_table_v9 { /* and 10 */
    NET_TABLE_V9(NET_MEMBER)
};
struct net_table_v11 { /* and 12 */
    NET_TABLE_V11(NET_MEMBER)
};

/* --- sizes on every 64-bit Linux ----------------------------------------------------------- */

_Static_assert(sizeof(struct net_properties_v12) == 128, "net_properties_v12");
_Static_assert(sizeof(struct net_table_v6) == 17 * sizeof(void *), "net_table_v6");
_Static_assert(sizeof(struct net_table_v7) == 19 * sizeof(void *), "net_table_v7");
_Static_assert(sizeof(struct net_table_v9) == 20 * sizeof(void *), "net_table_v9");
_Static_assert(sizeof(struct net_table_v11) == 22 * sizeof(void *), "net_table_v11");

#endif
