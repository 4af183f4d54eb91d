/*
 * NCCL's interface of network plugins, versions 6 to 12, as NCCL's headers lay it out. Written down
 * a second time and on purpose: the tests look at the plugin with these, and what both sides got
 * wrong in the same way would otherwise never show. Layouts are those of LP64 machines.
 */
#ifndef TCPX_TESTS_PLUGIN_NCCL_TABLES_H
#define TCPX_TESTS_PLUGIN_NCCL_TABLES_H

#include <stddef.h>
#include <stdint.h>

/* ncclResult_t */
enum {
    NCCL_SUCCESS = 0,
    NCCL_UNHANDLED_CUDA = 1,
    NCCL_SYSTEM = 2,
    NCCL_INTERNAL = 3,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE = 6
};

enum { NCCL_PTR_HOST = 1, NCCL_PTR_CUDA = 2, NCCL_PTR_DMABUF = 4 };
enum { NCCL_LOG_WARN = 2, NCCL_LOG_INFO = 3 };
enum { NCCL_DEVICE_HOST = 0, NCCL_DEVICE_UNPACK = 1, NCCL_UNPACK_VERSION = 7 };

typedef void nccl_logger(int level, unsigned long flags, const char *file, int line,
                         const char *format, ...);
typedef int nccl_profiler(void **event, int type, void *parent, int64_t plugin, void *extra);

/* --- what the functions fill in or are given ------------------------------------------------- */

struct nccl_vdevice_v9 {
    int count;
    int devices[4];
};

struct nccl_vdevice_v12 {
    int count;
    int devices[8];
};

#define NCCL_PROPS_HEAD                                                                            \
    char *name;                                                                                    \
    char *pci_path;                                                                                \
    uint64_t guid;                                                                                 \
    int ptr_support;
#define NCCL_PROPS_LINK                                                                            \
    int speed;                                                                                     \
    int port;                                                                                      \
    float latency;                                                                                 \
    int max_comms;                                                                                 \
    int max_recvs;
#define NCCL_PROPS_DEVICE                                                                          \
    int net_device_type;                                                                           \
    int net_device_version;
#define NCCL_PROPS_FLUSH                                                                           \
    NCCL_PROPS_HEAD                                                                                \
    int reg_is_global;                                                                             \
    int force_flush;                                                                               \
    NCCL_PROPS_LINK                                                                                \
    NCCL_PROPS_DEVICE
#define NCCL_PROPS_LIMITS                                                                          \
    size_t max_p2p_bytes;                                                                          \
    size_t max_coll_bytes;

struct nccl_props_v6 {
    NCCL_PROPS_HEAD
    NCCL_PROPS_LINK
};

struct nccl_props_v7 {
    NCCL_PROPS_HEAD
    NCCL_PROPS_LINK
    NCCL_PROPS_DEVICE
};

struct nccl_props_v8 {
    NCCL_PROPS_HEAD
    int reg_is_global;
    NCCL_PROPS_LINK
    NCCL_PROPS_DEVICE
};

struct nccl_props_v9 {
    NCCL_PROPS_FLUSH
    struct nccl_vdevice_v9 virtual_device;
    NCCL_PROPS_LIMITS
};

struct nccl_props_v11 {
    NCCL_PROPS_FLUSH
    struct nccl_vdevice_v9 virtual_device;
    NCCL_PROPS_LIMITS
    int max_multi_request_size;
};

struct nccl_props_v12 {
    NCCL_PROPS_FLUSH
    struct nccl_vdevice_v12 virtual_device;
    NCCL_PROPS_LIMITS
    int max_multi_request_size;
    int16_t rail_id;
    int16_t plane_id;
};

struct nccl_device_handle {
    int type;
    int version;
    void *handle;
    size_t size;
    int needs_proxy_progress;
};

struct nccl_config {
    int traffic_class;
};

struct nccl_attr_side {
    int32_t max_concurrent_peers;
    int32_t min_concurrent_peers;
    int32_t max_flows_per_peer;
    int32_t min_flows_per_peer;
};

struct nccl_attr {
    struct nccl_attr_side send;
    struct nccl_attr_side recv;
    uint32_t op;
    uint32_t algo;
    uint32_t proto;
};

/* What the kernels read through the device handle, version 7. */
struct nccl_unpack_entry {
    uint32_t source_offset;
    uint32_t length;
    uint64_t destination_offset;
} __attribute__((aligned(16)));

struct nccl_unpack_meta {
    struct nccl_unpack_entry entries[16][2048];
    uint64_t counts[16];
};

struct nccl_unpack_handle {
    struct nccl_unpack_meta *meta;
    void *bounce;
    uint64_t head;
};

/* --- tables ---------------------------------------------------------------------------------- */

/* The functions whose parameters never changed. */
typedef int nccl_devices(int *count);
typedef int nccl_reg_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                            void **mhandle);
typedef int nccl_dereg(void *comm, void *mhandle);
typedef int nccl_flush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request);
typedef int nccl_test(void *request, int *done, int *sizes);
typedef int nccl_close(void *comm);
typedef int nccl_device_mr(void *comm, void *mhandle, void **device);
typedef int nccl_consumed(void *comm, int n, void *request);

/* Those that did. */
typedef int nccl_init_v6(nccl_logger *logger);
typedef int nccl_init_v10(nccl_logger *logger, nccl_profiler *profiler);
typedef int nccl_init_v11(void **context, uint64_t comm_id, struct nccl_config *config,
                          nccl_logger *logger, nccl_profiler *profiler);
typedef int nccl_listen_v6(int device, void *handle, void **comm);
typedef int nccl_listen_v11(void *context, int device, void *handle, void **comm);
typedef int nccl_connect_v6(int device, void *handle, void **comm);
typedef int nccl_connect_v7(int device, void *handle, void **comm,
                            struct nccl_device_handle **device_comm);
typedef int nccl_connect_v10(int device, struct nccl_config *config, void *handle, void **comm,
                             struct nccl_device_handle **device_comm);
typedef int nccl_connect_v11(void *context, int device, void *handle, void **comm,
                             struct nccl_device_handle **device_comm);
typedef int nccl_accept_v6(void *listening, void **comm);
typedef int nccl_accept_v7(void *listening, void **comm, struct nccl_device_handle **device_comm);
typedef int nccl_reg_v6(void *comm, void *data, int size, int type, void **mhandle);
typedef int nccl_reg_v8(void *comm, void *data, size_t size, int type, void **mhandle);
typedef int nccl_send_v6(void *comm, void *data, int size, int tag, void *mhandle, void **request);
typedef int nccl_send_v9(void *comm, void *data, size_t size, int tag, void *mhandle,
                         void **request);
typedef int nccl_send_v10(void *comm, void *data, size_t size, int tag, void *mhandle,
                          void *phandle, void **request);
typedef int nccl_recv_v6(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles,
                         void **request);
typedef int nccl_recv_v9(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                         void **request);
typedef int nccl_recv_v10(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                          void **phandles, void **request);
typedef int nccl_vdevice_make_v9(int *device, struct nccl_vdevice_v9 *props);
typedef int nccl_vdevice_make_v12(int *device, struct nccl_vdevice_v12 *props);
typedef int nccl_finalize(void *context);
typedef int nccl_set_attr(void *context, struct nccl_attr *attr);

/* The members of all versions, each by the version whose parameters it has. */
#define NCCL_NET(init_v, props_v, listen_v, connect_v, accept_v, reg_v, message_v)                 \
    const char *name;                                                                              \
    nccl_init_v##init_v *init;                                                                     \
    nccl_devices *devices;                                                                         \
    int (*get_properties)(int device, struct nccl_props_v##props_v *props);                        \
    nccl_listen_v##listen_v *listen;                                                               \
    nccl_connect_v##connect_v *connect;                                                            \
    nccl_accept_v##accept_v *accept;                                                               \
    nccl_reg_v##reg_v *reg_mr;                                                                     \
    nccl_reg_dmabuf *reg_mr_dmabuf;                                                                \
    nccl_dereg *dereg_mr;                                                                          \
    nccl_send_v##message_v *isend;                                                                 \
    nccl_recv_v##message_v *irecv;                                                                 \
    nccl_flush *iflush;                                                                            \
    nccl_test *test;                                                                               \
    nccl_close *close_send;                                                                        \
    nccl_close *close_recv;                                                                        \
    nccl_close *close_listen;
#define NCCL_NET_UNPACK                                                                            \
    nccl_device_mr *get_device_mr;                                                                 \
    nccl_consumed *irecv_consumed;
#define NCCL_NET_CONTEXT                                                                           \
    nccl_finalize *finalize;                                                                       \
    nccl_set_attr *set_net_attr;

struct nccl_net_v6 {
    NCCL_NET(6, 6, 6, 6, 6, 6, 6)
};

struct nccl_net_v7 {
    NCCL_NET(6, 7, 6, 7, 7, 6, 6)
    NCCL_NET_UNPACK
};

struct nccl_net_v8 {
    NCCL_NET(6, 8, 6, 7, 7, 8, 6)
    NCCL_NET_UNPACK
};

struct nccl_net_v9 {
    NCCL_NET(6, 9, 6, 7, 7, 8, 9)
    NCCL_NET_UNPACK
    nccl_vdevice_make_v9 *make_vdevice;
};

struct nccl_net_v10 {
    NCCL_NET(10, 9, 6, 10, 7, 8, 10)
    NCCL_NET_UNPACK
    nccl_vdevice_make_v9 *make_vdevice;
};

struct nccl_net_v11 {
    NCCL_NET(11, 11, 11, 11, 7, 8, 10)
    NCCL_NET_UNPACK
    nccl_vdevice_make_v9 *make_vdevice;
    NCCL_NET_CONTEXT
};

struct nccl_net_v12 {
    NCCL_NET(11, 12, 11, 11, 7, 8, 10)
    NCCL_NET_UNPACK
    nccl_vdevice_make_v12 *make_vdevice;
    NCCL_NET_CONTEXT
};

/* --- sizes and places ------------------------------------------------------------------------ */

#define NCCL_AT(type, member, place)                                                               \
    _Static_assert(offsetof(struct type, member) == (place), #type "." #member)
#define NCCL_BYTES(type, bytes)  _Static_assert(sizeof(struct type) == (bytes), #type)
#define NCCL_LENGTH(type, count) NCCL_BYTES(type, (count) * sizeof(void *))

#define NCCL_HEAD_AT_0(type)                                                                       \
    NCCL_AT(type, name, 0);                                                                        \
    NCCL_AT(type, pci_path, 8);                                                                    \
    NCCL_AT(type, guid, 16);                                                                       \
    NCCL_AT(type, ptr_support, 24)
#define NCCL_LINK_AT(type, place)                                                                  \
    NCCL_AT(type, speed, place);                                                                   \
    NCCL_AT(type, port, (place) + 4);                                                              \
    NCCL_AT(type, latency, (place) + 8);                                                           \
    NCCL_AT(type, max_comms, (place) + 12);                                                        \
    NCCL_AT(type, max_recvs, (place) + 16)
#define NCCL_DEVICE_AT(type, place)                                                                \
    NCCL_AT(type, net_device_type, place);                                                         \
    NCCL_AT(type, net_device_version, (place) + 4)
#define NCCL_LIMITS_AT(type, place)                                                                \
    NCCL_AT(type, max_p2p_bytes, place);                                                           \
    NCCL_AT(type, max_coll_bytes, (place) + 8)
#define NCCL_BEFORE_LIMITS(type)                                                                   \
    NCCL_HEAD_AT_0(type);                                                                          \
    NCCL_AT(type, reg_is_global, 28);                                                              \
    NCCL_AT(type, force_flush, 32);                                                                \
    NCCL_LINK_AT(type, 36);                                                                        \
    NCCL_DEVICE_AT(type, 56);                                                                      \
    NCCL_AT(type, virtual_device, 64)

NCCL_HEAD_AT_0(nccl_props_v6);
NCCL_LINK_AT(nccl_props_v6, 28);
NCCL_BYTES(nccl_props_v6, 48);

NCCL_HEAD_AT_0(nccl_props_v7);
NCCL_LINK_AT(nccl_props_v7, 28);
NCCL_DEVICE_AT(nccl_props_v7, 48);
NCCL_BYTES(nccl_props_v7, 56);

NCCL_HEAD_AT_0(nccl_props_v8);
NCCL_AT(nccl_props_v8, reg_is_global, 28);
NCCL_LINK_AT(nccl_props_v8, 32);
NCCL_DEVICE_AT(nccl_props_v8, 52);
NCCL_BYTES(nccl_props_v8, 64);

NCCL_BEFORE_LIMITS(nccl_props_v9);
NCCL_LIMITS_AT(nccl_props_v9, 88);
NCCL_BYTES(nccl_props_v9, 104);

NCCL_BEFORE_LIMITS(nccl_props_v11);
NCCL_LIMITS_AT(nccl_props_v11, 88);
NCCL_AT(nccl_props_v11, max_multi_request_size, 104);
NCCL_BYTES(nccl_props_v11, 112);

NCCL_BEFORE_LIMITS(nccl_props_v12);
NCCL_LIMITS_AT(nccl_props_v12, 104);
NCCL_AT(nccl_props_v12, max_multi_request_size, 120);
NCCL_AT(nccl_props_v12, rail_id, 124);
NCCL_AT(nccl_props_v12, plane_id, 126);
NCCL_BYTES(nccl_props_v12, 128);

NCCL_AT(nccl_device_handle, type, 0);
NCCL_AT(nccl_device_handle, version, 4);
NCCL_AT(nccl_device_handle, handle, 8);
NCCL_AT(nccl_device_handle, size, 16);
NCCL_AT(nccl_device_handle, needs_proxy_progress, 24);
NCCL_BYTES(nccl_device_handle, 32);
NCCL_BYTES(nccl_config, 4);
NCCL_BYTES(nccl_attr, 44);
NCCL_BYTES(nccl_unpack_entry, 16);
NCCL_AT(nccl_unpack_meta, counts, 524288);
NCCL_BYTES(nccl_unpack_meta, 524416);
NCCL_AT(nccl_unpack_handle, head, 16);
NCCL_BYTES(nccl_unpack_handle, 24);

NCCL_LENGTH(nccl_net_v6, 17);
NCCL_LENGTH(nccl_net_v7, 19);
NCCL_LENGTH(nccl_net_v8, 19);
NCCL_LENGTH(nccl_net_v9, 20);
NCCL_LENGTH(nccl_net_v10, 20);
NCCL_LENGTH(nccl_net_v11, 22);
NCCL_LENGTH(nccl_net_v12, 22);
NCCL_AT(nccl_net_v12, irecv_consumed, 18 * 8);
NCCL_AT(nccl_net_v12, make_vdevice, 19 * 8);
NCCL_AT(nccl_net_v12, finalize, 20 * 8);
NCCL_AT(nccl_net_v12, set_net_attr, 21 * 8);

#endif
