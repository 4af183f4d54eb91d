/*
 * NCCL's interface of network plugins, versions 6 to 12, as NCCL's headers lay it out. Written down
 * a second time and on purpose: the tests look at the plugin with these, and what both sides got
 * wrong in the same way would otherwise never show. Layouts are those of LP64 machines.
 */
#ifndef TCPX_TESTS_PLUGIN_NCCL_TABLES_H
#define TCPX_TESTS_PLUGIN_NCCL_TABLES_H

#include <stddef.h>
#include <stdint.h>

enum { NCCL_FIRST = 6, NCCL_VERSIONS = 7 };

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

/* The properties of a device: version 12. */
struct nccl_props {
    char *name;
    char *pci_path;
    uint64_t guid;
    int ptr_support;
    int reg_is_global;
    int force_flush;
    int speed;
    int port;
    float latency;
    int max_comms;
    int max_recvs;
    int net_device_type;
    int net_device_version;
    int vdevice_count;
    int vdevices[4];
    int more_vdevices[4];
    size_t max_p2p_bytes;
    size_t max_coll_bytes;
    int max_multi_request_size;
    int16_t rail_id;
    int16_t plane_id;
};

/* Where each member lies in the struct of each version; -1: that version does not have it. */
struct nccl_props_member {
    size_t newest; /* in struct nccl_props */
    size_t bytes;
    int at[NCCL_VERSIONS];
};

/* clang-format off */
#define NCCL_MEMBER(member, ...) \
    {offsetof(struct nccl_props, member), sizeof((struct nccl_props *)0)->member, {__VA_ARGS__}}
static const struct nccl_props_member nccl_props_members[] = {
    /* version                            6   7   8   9  10   11   12 */
    NCCL_MEMBER(name,                     0,  0,  0,  0,  0,   0,   0),
    NCCL_MEMBER(pci_path,                 8,  8,  8,  8,  8,   8,   8),
    NCCL_MEMBER(guid,                    16, 16, 16, 16, 16,  16,  16),
    NCCL_MEMBER(ptr_support,             24, 24, 24, 24, 24,  24,  24),
    NCCL_MEMBER(reg_is_global,           -1, -1, 28, 28, 28,  28,  28),
    NCCL_MEMBER(force_flush,             -1, -1, -1, 32, 32,  32,  32),
    NCCL_MEMBER(speed,                   28, 28, 32, 36, 36,  36,  36),
    NCCL_MEMBER(port,                    32, 32, 36, 40, 40,  40,  40),
    NCCL_MEMBER(latency,                 36, 36, 40, 44, 44,  44,  44),
    NCCL_MEMBER(max_comms,               40, 40, 44, 48, 48,  48,  48),
    NCCL_MEMBER(max_recvs,               44, 44, 48, 52, 52,  52,  52),
    NCCL_MEMBER(net_device_type,         -1, 48, 52, 56, 56,  56,  56),
    NCCL_MEMBER(net_device_version,      -1, 52, 56, 60, 60,  60,  60),
    NCCL_MEMBER(vdevice_count,           -1, -1, -1, 64, 64,  64,  64),
    NCCL_MEMBER(vdevices,                -1, -1, -1, 68, 68,  68,  68),
    NCCL_MEMBER(more_vdevices,           -1, -1, -1, -1, -1,  -1,  84),
    NCCL_MEMBER(max_p2p_bytes,           -1, -1, -1, 88, 88,  88, 104),
    NCCL_MEMBER(max_coll_bytes,          -1, -1, -1, 96, 96,  96, 112),
    NCCL_MEMBER(max_multi_request_size,  -1, -1, -1, -1, -1, 104, 120),
    NCCL_MEMBER(rail_id,                 -1, -1, -1, -1, -1,  -1, 124),
    NCCL_MEMBER(plane_id,                -1, -1, -1, -1, -1,  -1, 126),
};
/* clang-format on */

/* sizeof, by version. */
static const size_t nccl_props_bytes[NCCL_VERSIONS] = {48, 56, 64, 104, 104, 112, 128};

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

/*
 * A member has one place in all versions that have it. Where its parameters changed it is a union,
 * by the versions that changed them.
 */
struct nccl_net {
    const char *name;
    union {
        int (*v6)(nccl_logger *logger);
        int (*v10)(nccl_logger *logger, nccl_profiler *profiler);
        int (*v11)(void **context, uint64_t comm_id, struct nccl_config *config,
                   nccl_logger *logger, nccl_profiler *profiler);
    } init;
    int (*devices)(int *count);
    int (*get_properties)(int device, void *props);
    union {
        int (*v6)(int device, void *handle, void **comm);
        int (*v11)(void *context, int device, void *handle, void **comm);
    } listen;
    union {
        int (*v6)(int device, void *handle, void **comm);
        int (*v7)(int device, void *handle, void **comm, struct nccl_device_handle **device_comm);
        int (*v10)(int device, struct nccl_config *config, void *handle, void **comm,
                   struct nccl_device_handle **device_comm);
        int (*v11)(void *context, int device, void *handle, void **comm,
                   struct nccl_device_handle **device_comm);
    } connect;
    union {
        int (*v6)(void *listening, void **comm);
        int (*v7)(void *listening, void **comm, struct nccl_device_handle **device_comm);
    } accept;
    union {
        int (*v6)(void *comm, void *data, int size, int type, void **mhandle);
        int (*v8)(void *comm, void *data, size_t size, int type, void **mhandle);
    } reg_mr;
    int (*reg_mr_dmabuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                         void **mhandle);
    int (*dereg_mr)(void *comm, void *mhandle);
    union {
        int (*v6)(void *comm, void *data, int size, int tag, void *mhandle, void **request);
        int (*v9)(void *comm, void *data, size_t size, int tag, void *mhandle, void **request);
        int (*v10)(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                   void **request);
    } isend;
    union {
        int (*v6)(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles,
                  void **request);
        int (*v9)(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                  void **request);
        int (*v10)(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                   void **phandles, void **request);
    } irecv;
    int (*iflush)(void *comm, int n, void **data, int *sizes, void **mhandles, void **request);
    int (*test)(void *request, int *done, int *sizes);
    int (*close_send)(void *comm);
    int (*close_recv)(void *comm);
    int (*close_listen)(void *comm);
    int (*get_device_mr)(void *comm, void *mhandle, void **device);
    int (*irecv_consumed)(void *comm, int n, void *request);
    void (*make_vdevice)(void); /* never called */
    int (*finalize)(void *context);
    int (*set_net_attr)(void *context, struct nccl_attr *attr);
};

/* How many of them a version has. */
static const size_t nccl_net_members[NCCL_VERSIONS] = {17, 19, 19, 20, 20, 22, 22};

/* --- sizes and places ------------------------------------------------------------------------ */

#define NCCL_AT(type, member, place)                                                               \
    _Static_assert(offsetof(struct type, member) == (place), #type "." #member)
#define NCCL_BYTES(type, bytes) _Static_assert(sizeof(struct type) == (bytes), #type)

NCCL_BYTES(nccl_props, 128);
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

NCCL_BYTES(nccl_net, 22 * 8);
NCCL_AT(nccl_net, close_listen, 16 * 8);
NCCL_AT(nccl_net, irecv_consumed, 18 * 8);
NCCL_AT(nccl_net, make_vdevice, 19 * 8);
NCCL_AT(nccl_net, finalize, 20 * 8);

#endif
