/*
 * The tables that NCCL looks for, versions 6 to 12, and what adapts each version's arguments to
 * plugin.h. They are not constant: whether NCCL has to tell when a receive was consumed is known
 * only when the first init has read the environment.
 */
#include "nccl_plugin/plugin.h"

#include <pthread.h>

#define EXPORTED __attribute__((visibility("default")))

/* test() says sizes in an int, and whoever fills in for older tables says the same. */
#define MOST_P2P_BYTES        ((size_t)1 << 30)
#define MOST_COLLECTIVE_BYTES ((size_t)1 << 29)
#define MOST_COMMS            65536

/* --- properties ---------------------------------------------------------------------------- */

/* The members that versions have since 6, 7, 8 and 9. NCCL has zeroed none: each is set in full. */
#define SINCE_V6(plain)                                                                            \
    .name = (plain).name, .pci_path = (plain).pci_path, .guid = (plain).guid,                      \
    .pointer_support = (plain).pointer_support, .speed = (plain).speed_mbps, .port = 0,            \
    .latency = 0, .max_comms = MOST_COMMS, .max_receives = 1
#define SINCE_V7(plain)                                                                            \
    SINCE_V6(plain), .device_type = (plain).device_type, .device_version = (plain).device_version
#define SINCE_V8(plain) SINCE_V7(plain), .registration_is_global = 0
#define SINCE_V9(plain, device)                                                                    \
    SINCE_V8(plain), .force_flush = 0, .parts = {.count = 1, .devices = {device}},                 \
                     .max_p2p_bytes = MOST_P2P_BYTES,                                              \
                     .max_collective_bytes = MOST_COLLECTIVE_BYTES

static int get_properties_v6(int device, struct net_properties_v6 *properties)
{
    struct plugin_properties plain;
    int result = plugin_properties(device, &plain);

    if (result == TCPX_SUCCESS)
        *properties = (struct net_properties_v6){SINCE_V6(plain)};
    return result;
}

static int get_properties_v7(int device, struct net_properties_v7 *properties)
{
    struct plugin_properties plain;
    int result = plugin_properties(device, &plain);

    if (result == TCPX_SUCCESS)
        *properties = (struct net_properties_v7){SINCE_V7(plain)};
    return result;
}

static int get_properties_v8(int device, struct net_properties_v8 *properties)
{
    struct plugin_properties plain;
    int result = plugin_properties(device, &plain);

    if (result == TCPX_SUCCESS)
        *properties = (struct net_properties_v8){SINCE_V8(plain)};
    return result;
}

static int get_properties_v9(int device, struct net_properties_v9 *properties)
{
    struct plugin_properties plain;
    int result = plugin_properties(device, &plain);

    if (result == TCPX_SUCCESS)
        *properties = (struct net_properties_v9){SINCE_V9(plain, device)};
    return result;
}

static int get_properties_v11(int device, struct net_properties_v11 *properties)
{
    struct plugin_properties plain;
    int result = plugin_properties(device, &plain);

    if (result == TCPX_SUCCESS)
        *properties = (struct net_properties_v11){SINCE_V9(plain, device), .max_multi_request = 1};
    return result;
}

static int get_properties_v12(int device, struct net_properties_v12 *properties)
{
    struct plugin_properties plain;
    int result = plugin_properties(device, &plain);

    if (result == TCPX_SUCCESS)
        *properties = (struct net_properties_v12){SINCE_V9(plain, device), .max_multi_request = 1,
                                                  .rail = NET_UNDEFINED, .plane = NET_UNDEFINED};
    return result;
}

/* --- start and end ------------------------------------------------------------------------- */

static void settle_tables(void);

static int init_v6(log_nccl_logger logger)
{
    int result = plugin_init(logger, NULL);

    if (result == TCPX_SUCCESS)
        settle_tables();
    return result;
}

static int init_v10(log_nccl_logger logger, net_profiler_callback profiler)
{
    (void)profiler;
    return init_v6(logger);
}

static int init_v11(void **context, uint64_t communicator, struct net_comm_config *config,
                    log_nccl_logger logger, net_profiler_callback profiler)
{
    struct plugin_context *ours;
    int result = plugin_init(logger, &ours);

    (void)communicator;
    (void)config;
    (void)profiler;
    *context = ours;
    if (result == TCPX_SUCCESS)
        settle_tables();
    return result;
}

static int finalize(void *context)
{
    return plugin_finalize(context);
}

/* --- connections --------------------------------------------------------------------------- */

static int listen_v6(int device, void *handle, void **listener)
{
    return plugin_listen(NULL, device, false, handle, listener);
}

static int listen_v7(int device, void *handle, void **listener)
{
    return plugin_listen(NULL, device, true, handle, listener);
}

static int listen_v11(void *context, int device, void *handle, void **listener)
{
    return plugin_listen(context, device, true, handle, listener);
}

static int connect_v6(int device, void *handle, void **sender)
{
    return plugin_connect(NULL, device, handle, sender);
}

/* A sender has nothing to do on the GPU, so on_gpu stays as it is, whatever it is. */
static int connect_v7(int device, void *handle, void **sender, struct net_device_handle **on_gpu)
{
    (void)on_gpu;
    return plugin_connect(NULL, device, handle, sender);
}

static int connect_v10(int device, struct net_comm_config *config, void *handle, void **sender,
                       struct net_device_handle **on_gpu)
{
    (void)config;
    (void)on_gpu;
    return plugin_connect(NULL, device, handle, sender);
}

static int connect_v11(void *context, int device, void *handle, void **sender,
                       struct net_device_handle **on_gpu)
{
    (void)on_gpu;
    return plugin_connect(context, device, handle, sender);
}

static int accept_v6(void *listener, void **receiver)
{
    return plugin_accept(listener, receiver, NULL);
}

static int accept_v7(void *listener, void **receiver, struct net_device_handle **on_gpu)
{
    return plugin_accept(listener, receiver, on_gpu);
}

static int close_comm(void *comm)
{
    return plugin_close(comm);
}

static int close_listener(void *listener)
{
    return plugin_close_listener(listener);
}

/* --- memory -------------------------------------------------------------------------------- */

/* A negative length of the older versions becomes one that is refused. */
static uint64_t from_int(int bytes)
{
    return bytes >= 0 ? (uint64_t)bytes : UINT64_MAX;
}

static int reg_mr_v6(void *comm, void *data, int bytes, int type, void **memory)
{
    return plugin_register(comm, data, from_int(bytes), type, memory);
}

static int reg_mr_v8(void *comm, void *data, size_t bytes, int type, void **memory)
{
    return plugin_register(comm, data, bytes, type, memory);
}

/* We reach GPU memory by its address, and have no use for the file. */
static int reg_mr_dmabuf(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd,
                         void **memory)
{
    (void)offset;
    (void)fd;
    return plugin_register(comm, data, bytes, type, memory);
}

static int dereg_mr(void *comm, void *memory)
{
    return plugin_deregister(comm, memory);
}

static int get_device_mr(void *comm, void *memory, void **on_gpu)
{
    (void)comm;
    (void)memory;
    *on_gpu = NULL; /* kernels that unpack need none */
    return TCPX_SUCCESS;
}

/* --- requests ------------------------------------------------------------------------------ */

static int isend_v6(void *sender, void *data, int bytes, int tag, void *memory, void **request)
{
    (void)tag;
    return plugin_isend(sender, data, from_int(bytes), memory, request);
}

static int isend_v9(void *sender, void *data, size_t bytes, int tag, void *memory, void **request)
{
    (void)tag;
    return plugin_isend(sender, data, bytes, memory, request);
}

static int isend_v10(void *sender, void *data, size_t bytes, int tag, void *memory, void *profile,
                     void **request)
{
    (void)tag;
    (void)profile;
    return plugin_isend(sender, data, bytes, memory, request);
}

static int irecv_v6(void *receiver, int count, void **data, int *bytes, int *tags, void **memory,
                    void **request)
{
    (void)tags;
    return plugin_irecv(receiver, count, data[0], from_int(bytes[0]),
                        memory != NULL ? memory[0] : NULL, request);
}

static int irecv_v9(void *receiver, int count, void **data, size_t *bytes, int *tags, void **memory,
                    void **request)
{
    (void)tags;
    return plugin_irecv(receiver, count, data[0], bytes[0], memory != NULL ? memory[0] : NULL,
                        request);
}

static int irecv_v10(void *receiver, int count, void **data, size_t *bytes, int *tags,
                     void **memory, void **profiles, void **request)
{
    (void)profiles;
    return irecv_v9(receiver, count, data, bytes, tags, memory, request);
}

/* What test() calls done is visible to the GPU already. */
static int iflush(void *receiver, int count, void **data, int *bytes, void **memory, void **request)
{
    (void)receiver;
    (void)count;
    (void)data;
    (void)bytes;
    (void)memory;
    *request = NULL;
    return TCPX_SUCCESS;
}

static int test(void *request, int *done, int *bytes)
{
    return plugin_test(request, done, bytes);
}

static int irecv_consumed(void *receiver, int count, void *request)
{
    (void)count;
    return plugin_consumed(receiver, request);
}

/* --- tables -------------------------------------------------------------------------------- */

#define ALL_HAVE                                                                                   \
    .name = "TCPX", .devices = plugin_devices, .reg_mr_dmabuf = reg_mr_dmabuf,                     \
    .dereg_mr = dereg_mr, .iflush = iflush, .test = test, .close_send = close_comm,                \
    .close_recv = close_comm, .close_listen = close_listener

EXPORTED struct net_table_v6 ncclNetPlugin_v6 = {
    ALL_HAVE,
    .init = init_v6,
    .get_properties = get_properties_v6,
    .listen = listen_v6,
    .connect = connect_v6,
    .accept = accept_v6,
    .reg_mr = reg_mr_v6,
    .isend = isend_v6,
    .irecv = irecv_v6,
};

EXPORTED struct net_table_v7 ncclNetPlugin_v7 = {
    ALL_HAVE,
    .init = init_v6,
    .get_properties = get_properties_v7,
    .listen = listen_v7,
    .connect = connect_v7,
    .accept = accept_v7,
    .reg_mr = reg_mr_v6,
    .isend = isend_v6,
    .irecv = irecv_v6,
    .get_device_mr = get_device_mr,
};

EXPORTED struct net_table_v8 ncclNetPlugin_v8 = {
    ALL_HAVE,
    .init = init_v6,
    .get_properties = get_properties_v8,
    .listen = listen_v7,
    .connect = connect_v7,
    .accept = accept_v7,
    .reg_mr = reg_mr_v8,
    .isend = isend_v6,
    .irecv = irecv_v6,
    .get_device_mr = get_device_mr,
};

EXPORTED struct net_table_v9 ncclNetPlugin_v9 = {
    ALL_HAVE,
    .init = init_v6,
    .get_properties = get_properties_v9,
    .listen = listen_v7,
    .connect = connect_v7,
    .accept = accept_v7,
    .reg_mr = reg_mr_v8,
    .isend = isend_v9,
    .irecv = irecv_v9,
    .get_device_mr = get_device_mr,
};

EXPORTED struct net_table_v10 ncclNetPlugin_v10 = {
    ALL_HAVE,
    .init = init_v10,
    .get_properties = get_properties_v9,
    .listen = listen_v7,
    .connect = connect_v10,
    .accept = accept_v7,
    .reg_mr = reg_mr_v8,
    .isend = isend_v10,
    .irecv = irecv_v10,
    .get_device_mr = get_device_mr,
};

EXPORTED struct net_table_v11 ncclNetPlugin_v11 = {
    ALL_HAVE,
    .init = init_v11,
    .get_properties = get_properties_v11,
    .listen = listen_v11,
    .connect = connect_v11,
    .accept = accept_v7,
    .reg_mr = reg_mr_v8,
    .isend = isend_v10,
    .irecv = irecv_v10,
    .get_device_mr = get_device_mr,
    .finalize = finalize,
};

EXPORTED struct net_table_v12 ncclNetPlugin_v12 = {
    ALL_HAVE,
    .init = init_v11,
    .get_properties = get_properties_v12,
    .listen = listen_v11,
    .connect = connect_v11,
    .accept = accept_v7,
    .reg_mr = reg_mr_v8,
    .isend = isend_v10,
    .irecv = irecv_v10,
    .get_device_mr = get_device_mr,
    .finalize = finalize,
};

/*
 * Where irecv_consumed is there, NCCL calls it for every receive, which is worth it only when its
 * kernels unpack. Written once, before any comm exists that a thread of NCCL could be looking for.
 */
static void fill_in_consumed(void)
{
    ncclNetPlugin_v7.irecv_consumed = irecv_consumed;
    ncclNetPlugin_v8.irecv_consumed = irecv_consumed;
    ncclNetPlugin_v9.irecv_consumed = irecv_consumed;
    ncclNetPlugin_v10.irecv_consumed = irecv_consumed;
    ncclNetPlugin_v11.irecv_consumed = irecv_consumed;
    ncclNetPlugin_v12.irecv_consumed = irecv_consumed;
}

static void settle_tables(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    if (plugin_unpacks())
        pthread_once(&once, fill_in_consumed);
}
