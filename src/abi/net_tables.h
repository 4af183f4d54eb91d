/*
 * NCCL's network plugin tables, versions 6 to 12, as they lie in memory. A plugin exports each as a
 * data object named ncclNetPlugin_v<N>; NCCL takes the newest one it knows. The numbers of results
 * are those of enum tcpx_result.
 *
 * Versions differ in few members, so each struct stands in full: what is read or written through
 * another version's layout goes wrong silently.
 */
#ifndef TCPX_ABI_NET_TABLES_H
#define TCPX_ABI_NET_TABLES_H

#include "abi/unpack_queue.h"
#include "base/log.h"

#define NET_TABLE_HANDLE_BYTES 128

/* Bits of pointer_support, and the types of memory that reg_mr is given. */
#define NET_POINTER_HOST 1
#define NET_POINTER_CUDA 2

/* An unknown rail or plane, traffic class or attribute. */
#define NET_UNDEFINED (-1)

typedef int (*net_profiler_callback)(void **event, int type, void *parent, int64_t plugin,
                                     void *data);

/* --- properties ---------------------------------------------------------------------------- */

/* The physical devices behind a device. */
struct net_virtual_v9 {
    int count;
    int devices[4];
};

struct net_virtual_v12 {
    int count;
    int devices[8];
};

struct net_properties_v6 {
    char *name;
    char *pci_path;
    uint64_t guid;
    int pointer_support;
    int speed; /* Mbit/s */
    int port;
    float latency; /* us */
    int max_comms;
    int max_receives;
};

struct net_properties_v7 {
    char *name;
    char *pci_path;
    uint64_t guid;
    int pointer_support;
    int speed;
    int port;
    float latency;
    int max_comms;
    int max_receives;
    int device_type;
    int device_version;
};

struct net_properties_v8 {
    char *name;
    char *pci_path;
    uint64_t guid;
    int pointer_support;
    int registration_is_global;
    int speed;
    int port;
    float latency;
    int max_comms;
    int max_receives;
    int device_type;
    int device_version;
};

/* Versions 9 and 10. */
struct net_properties_v9 {
    char *name;
    char *pci_path;
    uint64_t guid;
    int pointer_support;
    int registration_is_global;
    int force_flush;
    int speed;
    int port;
    float latency;
    int max_comms;
    int max_receives;
    int device_type;
    int device_version;
    struct net_virtual_v9 parts;
    size_t max_p2p_bytes;
    size_t max_collective_bytes;
};

struct net_properties_v11 {
    char *name;
    char *pci_path;
    uint64_t guid;
    int pointer_support;
    int registration_is_global;
    int force_flush;
    int speed;
    int port;
    float latency;
    int max_comms;
    int max_receives;
    int device_type;
    int device_version;
    struct net_virtual_v9 parts;
    size_t max_p2p_bytes;
    size_t max_collective_bytes;
    int max_multi_request;
};

struct net_properties_v12 {
    char *name;
    char *pci_path;
    uint64_t guid;
    int pointer_support;
    int registration_is_global;
    int force_flush;
    int speed;
    int port;
    float latency;
    int max_comms;
    int max_receives;
    int device_type;
    int device_version;
    struct net_virtual_v12 parts;
    size_t max_p2p_bytes;
    size_t max_collective_bytes;
    int max_multi_request;
    int16_t rail;
    int16_t plane;
};

/* Handed to a plugin for each communicator: version 10 to connect, version 11 to init. */
struct net_comm_config {
    int traffic_class;
};

struct net_attributes_of_direction {
    int32_t most_peers;
    int32_t least_peers;
    int32_t most_flows_per_peer;
    int32_t least_flows_per_peer;
};

/* What the next requests are for. */
struct net_attributes {
    struct net_attributes_of_direction send;
    struct net_attributes_of_direction receive;
    uint32_t operations;
    uint32_t algorithms;
    uint32_t protocols;
};

/* --- tables -------------------------------------------------------------------------------- */

struct net_table_v6 {
    const char *name;
    int (*init)(log_nccl_logger logger);
    int (*devices)(int *count);
    int (*get_properties)(int device, struct net_properties_v6 *properties);
    int (*listen)(int device, void *handle, void **listener);
    int (*connect)(int device, void *handle, void **sender);
    int (*accept)(void *listener, void **receiver);
    int (*reg_mr)(void *comm, void *data, int bytes, int type, void **memory);
    int (*reg_mr_dmabuf)(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd,
                         void **memory);
    int (*dereg_mr)(void *comm, void *memory);
    int (*isend)(void *sender, void *data, int bytes, int tag, void *memory, void **request);
    int (*irecv)(void *receiver, int count, void **data, int *bytes, int *tags, void **memory,
                 void **request);
    int (*iflush)(void *receiver, int count, void **data, int *bytes, void **memory,
                  void **request);
    int (*test)(void *request, int *done, int *bytes);
    int (*close_send)(void *sender);
    int (*close_recv)(void *receiver);
    int (*close_listen)(void *listener);
};

struct net_table_v7 {
    const char *name;
    int (*init)(log_nccl_logger logger);
    int (*devices)(int *count);
    int (*get_properties)(int device, struct net_properties_v7 *properties);
    int (*listen)(int device, void *handle, void **listener);
    int (*connect)(int device, void *handle, void **sender, struct net_device_handle **on_gpu);
    int (*accept)(void *listener, void **receiver, struct net_device_handle **on_gpu);
    int (*reg_mr)(void *comm, void *data, int bytes, int type, void **memory);
    int (*reg_mr_dmabuf)(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd,
                         void **memory);
    int (*dereg_mr)(void *comm, void *memory);
    int (*isend)(void *sender, void *data, int bytes, int tag, void *memory, void **request);
    int (*irecv)(void *receiver, int count, void **data, int *bytes, int *tags, void **memory,
                 void **request);
    int (*iflush)(void *receiver, int count, void **data, int *bytes, void **memory,
                  void **request);
    int (*test)(void *request, int *done, int *bytes);
    int (*close_send)(void *sender);
    int (*close_recv)(void *receiver);
    int (*close_listen)(void *listener);
    int (*get_device_mr)(void *comm, void *memory, void **on_gpu);
    int (*irecv_consumed)(void *receiver, int count, void *request);
};

struct net_table_v8 {
    const char *name;
    int (*init)(log_nccl_logger logger);
    int (*devices)(int *count);
    int (*get_properties)(int device, struct net_properties_v8 *properties);
    int (*listen)(int device, void *handle, void **listener);
    int (*connect)(int device, void *handle, void **sender, struct net_device_handle **on_gpu);
    int (*accept)(void *listener, void **receiver, struct net_device_handle **on_gpu);
    int (*reg_mr)(void *comm, void *data, size_t bytes, int type, void **memory);
    int (*reg_mr_dmabuf)(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd,
                         void **memory);
    int (*dereg_mr)(void *comm, void *memory);
    int (*isend)(void *sender, void *data, int bytes, int tag, void *memory, void **request);
    int (*irecv)(void *receiver, int count, void **data, int *bytes, int *tags, void **memory,
                 void **request);
    int (*iflush)(void *receiver, int count, void **data, int *bytes, void **memory,
                  void **request);
    int (*test)(void *request, int *done, int *bytes);
    int (*close_send)(void *sender);
    int (*close_recv)(void *receiver);
    int (*close_listen)(void *listener);
    int (*get_device_mr)(void *comm, void *memory, void **on_gpu);
    int (*irecv_consumed)(void *receiver, int count, void *request);
};

struct net_table_v9 {
    const char *name;
    int (*init)(log_nccl_logger logger);
    int (*devices)(int *count);
    int (*get_properties)(int device, struct net_properties_v9 *properties);
    int (*listen)(int device, void *handle, void **listener);
    int (*connect)(int device, void *handle, void **sender, struct net_device_handle **on_gpu);
    int (*accept)(void *listener, void **receiver, struct net_device_handle **on_gpu);
    int (*reg_mr)(void *comm, void *data, size_t bytes, int type, void **memory);
    int (*reg_mr_dmabuf)(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd,
                         void **memory);
    int (*dereg_mr)(void *comm, void *memory);
    int (*isend)(void *sender, void *data, size_t bytes, int tag, void *memory, void **request);
    int (*irecv)(void *receiver, int count, void **data, size_t *bytes, int *tags, void **memory,
                 void **request);
    int (*iflush)(void *receiver, int count, void **data, int *bytes, void **memory,
                  void **request);
    int (*test)(void *request, int *done, int *bytes);
    int (*close_send)(void *sender);
    int (*close_recv)(void *receiver);
    int (*close_listen)(void *listener);
    int (*get_device_mr)(void *comm, void *memory, void **on_gpu);
    int (*irecv_consumed)(void *receiver, int count, void *request);
    int (*make_virtual)(int *device, struct net_virtual_v9 *parts);
};

struct net_table_v10 {
    const char *name;
    int (*init)(log_nccl_logger logger, net_profiler_callback profiler);
    int (*devices)(int *count);
    int (*get_properties)(int device, struct net_properties_v9 *properties);
    int (*listen)(int device, void *handle, void **listener);
    int (*connect)(int device, struct net_comm_config *config, void *handle, void **sender,
                   struct net_device_handle **on_gpu);
    int (*accept)(void *listener, void **receiver, struct net_device_handle **on_gpu);
    int (*reg_mr)(void *comm, void *data, size_t bytes, int type, void **memory);
    int (*reg_mr_dmabuf)(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd,
                         void **memory);
    int (*dereg_mr)(void *comm, void *memory);
    int (*isend)(void *sender, void *data, size_t bytes, int tag, void *memory, void *profile,
                 void **request);
    int (*irecv)(void *receiver, int count, void **data, size_t *bytes, int *tags, void **memory,
                 void **profiles, void **request);
    int (*iflush)(void *receiver, int count, void **data, int *bytes, void **memory,
                  void **request);
    int (*test)(void *request, int *done, int *bytes);
    int (*close_send)(void *sender);
    int (*close_recv)(void *receiver);
    int (*close_listen)(void *listener);
    int (*get_device_mr)(void *comm, void *memory, void **on_gpu);
    int (*irecv_consumed)(void *receiver, int count, void *request);
    int (*make_virtual)(int *device, struct net_virtual_v9 *parts);
};

struct net_table_v11 {
    const char *name;
    int (*init)(void **context, uint64_t communicator, struct net_comm_config *config,
                log_nccl_logger logger, net_profiler_callback profiler);
    int (*devices)(int *count);
    int (*get_properties)(int device, struct net_properties_v11 *properties);
    int (*listen)(void *context, int device, void *handle, void **listener);
    int (*connect)(void *context, int device, void *handle, void **sender,
                   struct net_device_handle **on_gpu);
    int (*accept)(void *listener, void **receiver, struct net_device_handle **on_gpu);
    int (*reg_mr)(void *comm, void *data, size_t bytes, int type, void **memory);
    int (*reg_mr_dmabuf)(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd,
                         void **memory);
    int (*dereg_mr)(void *comm, void *memory);
    int (*isend)(void *sender, void *data, size_t bytes, int tag, void *memory, void *profile,
                 void **request);
    int (*irecv)(void *receiver, int count, void **data, size_t *bytes, int *tags, void **memory,
                 void **profiles, void **request);
    int (*iflush)(void *receiver, int count, void **data, int *bytes, void **memory,
                  void **request);
    int (*test)(void *request, int *done, int *bytes);
    int (*close_send)(void *sender);
    int (*close_recv)(void *receiver);
    int (*close_listen)(void *listener);
    int (*get_device_mr)(void *comm, void *memory, void **on_gpu);
    int (*irecv_consumed)(void *receiver, int count, void *request);
    int (*make_virtual)(int *device, struct net_virtual_v9 *parts);
    int (*finalize)(void *context);
    int (*set_attributes)(void *context, struct net_attributes *attributes);
};

struct net_table_v12 {
    const char *name;
    int (*init)(void **context, uint64_t communicator, struct net_comm_config *config,
                log_nccl_logger logger, net_profiler_callback profiler);
    int (*devices)(int *count);
    int (*get_properties)(int device, struct net_properties_v12 *properties);
    int (*listen)(void *context, int device, void *handle, void **listener);
    int (*connect)(void *context, int device, void *handle, void **sender,
                   struct net_device_handle **on_gpu);
    int (*accept)(void *listener, void **receiver, struct net_device_handle **on_gpu);
    int (*reg_mr)(void *comm, void *data, size_t bytes, int type, void **memory);
    int (*reg_mr_dmabuf)(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd,
                         void **memory);
    int (*dereg_mr)(void *comm, void *memory);
    int (*isend)(void *sender, void *data, size_t bytes, int tag, void *memory, void *profile,
                 void **request);
    int (*irecv)(void *receiver, int count, void **data, size_t *bytes, int *tags, void **memory,
                 void **profiles, void **request);
    int (*iflush)(void *receiver, int count, void **data, int *bytes, void **memory,
                  void **request);
    int (*test)(void *request, int *done, int *bytes);
    int (*close_send)(void *sender);
    int (*close_recv)(void *receiver);
    int (*close_listen)(void *listener);
    int (*get_device_mr)(void *comm, void *memory, void **on_gpu);
    int (*irecv_consumed)(void *receiver, int count, void *request);
    int (*make_virtual)(int *device, struct net_virtual_v12 *parts);
    int (*finalize)(void *context);
    int (*set_attributes)(void *context, struct net_attributes *attributes);
};

/* --- offsets on every 64-bit Linux --------------------------------------------------------- */

_Static_assert(sizeof(struct net_properties_v6) == 48, "net_properties_v6");
_Static_assert(offsetof(struct net_properties_v6, max_receives) == 44, "net_properties_v6");
_Static_assert(sizeof(struct net_properties_v7) == 56, "net_properties_v7");
_Static_assert(offsetof(struct net_properties_v7, device_version) == 52, "net_properties_v7");
_Static_assert(sizeof(struct net_properties_v8) == 64, "net_properties_v8");
_Static_assert(offsetof(struct net_properties_v8, device_version) == 56, "net_properties_v8");
_Static_assert(sizeof(struct net_properties_v9) == 104, "net_properties_v9");
_Static_assert(offsetof(struct net_properties_v9, parts) == 64, "net_properties_v9");
_Static_assert(offsetof(struct net_properties_v9, max_p2p_bytes) == 88, "net_properties_v9");
_Static_assert(sizeof(struct net_properties_v11) == 112, "net_properties_v11");
_Static_assert(offsetof(struct net_properties_v11, max_multi_request) == 104, "v11");
_Static_assert(sizeof(struct net_properties_v12) == 128, "net_properties_v12");
_Static_assert(offsetof(struct net_properties_v12, max_p2p_bytes) == 104, "net_properties_v12");
_Static_assert(offsetof(struct net_properties_v12, rail) == 124, "net_properties_v12");
_Static_assert(sizeof(struct net_table_v6) == 17 * sizeof(void *), "net_table_v6");
_Static_assert(sizeof(struct net_table_v7) == 19 * sizeof(void *), "net_table_v7");
_Static_assert(sizeof(struct net_table_v8) == 19 * sizeof(void *), "net_table_v8");
_Static_assert(sizeof(struct net_table_v9) == 20 * sizeof(void *), "net_table_v9");
_Static_assert(sizeof(struct net_table_v10) == 20 * sizeof(void *), "net_table_v10");
_Static_assert(sizeof(struct net_table_v11) == 22 * sizeof(void *), "net_table_v11");
_Static_assert(sizeof(struct net_table_v12) == 22 * sizeof(void *), "net_table_v12");

#endif
