/*
 * The tables that NCCL looks for, versions 6 to 12. The calls of this folder have the newest
 * arguments and are in the newest tables unchanged; the functions here adapt the arguments of older
 * versions. The tables are not constant: whether NCCL has to call irecv_consumed is known only when
 * the first init has read the environment.
 */
#include "nccl_plugin/nccl_plugin.h"

#include <pthread.h>

#define EXPORTED __attribute__((visibility("default")))

/* --- properties ---------------------------------------------------------------------------- */

static int get_properties(int version, int device, void *properties)
{
    struct net_properties_v12 newest;
    int result = plugin_properties(device, &newest);

    if (result == TCPX_SUCCESS)
        net_properties_to(version, &newest, properties);
    return result;
}

#define GET_PROPERTIES(version)                                                                    \
    static int get_properties_v##version(int device, void *properties)                             \
    {                                                                                              \
        return get_properties(version, device, properties);                                        \
    }
GET_PROPERTIES(6)
GET_PROPERTIES(7)
GET_PROPERTIES(8)
GET_PROPERTIES(9)
GET_PROPERTIES(11)
GET_PROPERTIES(12)

/* --- start --------------------------------------------------------------------------------- */

static void settle_tables(void);

static int init(log_nccl_logger logger, void **context)
{
    int result = plugin_init(logger, context);

    if (result == TCPX_SUCCESS)
        settle_tables();
    return result;
}

static int init_v6(log_nccl_logger logger)
{
    return init(logger, NULL);
}

static int init_v10(log_nccl_logger logger, net_profiler_callback profiler)
{
    (void)profiler;
    return init(logger, NULL);
}

static int init_v11(void **context, uint64_t communicator, struct net_comm_config *config,
                    log_nccl_logger logger, net_profiler_callback profiler)
{
    (void)communicator;
    (void)config;
    (void)profiler;
    return init(logger, context);
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
    return plugin_connect(NULL, device, handle, sender, NULL);
}

static int connect_v7(int device, void *handle, void **sender, struct net_device_handle **on_gpu)
{
    return plugin_connect(NULL, device, handle, sender, on_gpu);
}

static int connect_v10(int device, struct net_comm_config *config, void *handle, void **sender,
                       struct net_device_handle **on_gpu)
{
    (void)config;
    return plugin_connect(NULL, device, handle, sender, on_gpu);
}

static int accept_v6(void *listener, void **receiver)
{
    return plugin_accept(listener, receiver, NULL);
}

/* --- memory -------------------------------------------------------------------------------- */

/* A negative length of the older versions becomes one that is refused. */
static size_t from_int(int bytes)
{
    return bytes >= 0 ? (size_t)bytes : SIZE_MAX;
}

static int reg_mr_v6(void *comm, void *data, int bytes, int type, void **memory)
{
    return plugin_register(comm, data, from_int(bytes), type, memory);
}

/* We reach GPU memory by its address, and have no use for the file. */
static int reg_mr_dmabuf(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd,
                         void **memory)
{
    (void)offset;
    (void)fd;
    return plugin_register(comm, data, bytes, type, memory);
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
    return plugin_isend(sender, data, from_int(bytes), tag, memory, NULL, request);
}

static int isend_v9(void *sender, void *data, size_t bytes, int tag, void *memory, void **request)
{
    return plugin_isend(sender, data, bytes, tag, memory, NULL, request);
}

static int irecv_v6(void *receiver, int count, void **data, int *bytes, int *tags, void **memory,
                    void **request)
{
    size_t room = from_int(bytes[0]);

    return plugin_irecv(receiver, count, data, &room, tags, memory, NULL, request);
}

static int irecv_v9(void *receiver, int count, void **data, size_t *bytes, int *tags, void **memory,
                    void **request)
{
    return plugin_irecv(receiver, count, data, bytes, tags, memory, NULL, request);
}

/* What test() reports as done is already visible to the GPU. */
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

/* --- tables -------------------------------------------------------------------------------- */

#define OF_ALL_VERSIONS                                                                            \
    .name = "TCPX", .devices = plugin_devices, .reg_mr_dmabuf = reg_mr_dmabuf,                     \
    .dereg_mr = plugin_deregister, .iflush = iflush, .test = plugin_test,                          \
    .close_send = plugin_close, .close_recv = plugin_close, .close_listen = plugin_close
#define SINCE_V7  OF_ALL_VERSIONS, .accept.v7 = plugin_accept, .get_device_mr = get_device_mr
#define SINCE_V8  SINCE_V7, .reg_mr.v8 = plugin_register
#define SINCE_V10 SINCE_V8, .isend.v10 = plugin_isend, .irecv.v10 = plugin_irecv
#define SINCE_V11                                                                                  \
    SINCE_V10, .init.v11 = init_v11, .listen.v11 = listen_v11, .connect.v11 = plugin_connect,      \
               .finalize = plugin_finalize

EXPORTED struct net_table ncclNetPlugin_v6 = {
    OF_ALL_VERSIONS,        .init.v6 = init_v6,       .get_properties = get_properties_v6,
    .listen.v6 = listen_v6, .connect.v6 = connect_v6, .accept.v6 = accept_v6,
    .reg_mr.v6 = reg_mr_v6, .isend.v6 = isend_v6,     .irecv.v6 = irecv_v6,
};

EXPORTED struct net_table ncclNetPlugin_v7 = {
    SINCE_V7,
    .init.v6 = init_v6,
    .get_properties = get_properties_v7,
    .listen.v6 = listen_v7,
    .connect.v7 = connect_v7,
    .reg_mr.v6 = reg_mr_v6,
    .isend.v6 = isend_v6,
    .irecv.v6 = irecv_v6,
};

EXPORTED struct net_table ncclNetPlugin_v8 = {
    SINCE_V8,
    .init.v6 = init_v6,
    .get_properties = get_properties_v8,
    .listen.v6 = listen_v7,
    .connect.v7 = connect_v7,
    .isend.v6 = isend_v6,
    .irecv.v6 = irecv_v6,
};

EXPORTED struct net_table ncclNetPlugin_v9 = {
    SINCE_V8,
    .init.v6 = init_v6,
    .get_properties = get_properties_v9,
    .listen.v6 = listen_v7,
    .connect.v7 = connect_v7,
    .isend.v9 = isend_v9,
    .irecv.v9 = irecv_v9,
};

EXPORTED struct net_table ncclNetPlugin_v10 = {
    SINCE_V10,
    .init.v10 = init_v10,
    .get_properties = get_properties_v9,
    .listen.v6 = listen_v7,
    .connect.v10 = connect_v10,
};

EXPORTED struct net_table ncclNetPlugin_v11 = {
    SINCE_V11,
    .get_properties = get_properties_v11,
};

EXPORTED struct net_table ncclNetPlugin_v12 = {
    SINCE_V11,
    .get_properties = get_properties_v12,
};

/*
 * If irecv_consumed is there, NCCL calls it for every receive, which is needed only when its
 * kernels unpack. Written once, before any comm exists that a thread of NCCL could use.
 */
static void fill_in_consumed(void)
{
    struct net_table *const tables[] = {&ncclNetPlugin_v7,  &ncclNetPlugin_v8,  &ncclNetPlugin_v9,
                                        &ncclNetPlugin_v10, &ncclNetPlugin_v11, &ncclNetPlugin_v12};

    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        tables[i]->irecv_consumed = plugin_consumed;
}

static void settle_tables(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    if (plugin_unpacks())
        pthread_once(&once, fill_in_consumed);
}
