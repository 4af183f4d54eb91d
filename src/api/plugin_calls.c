/* The calls of the original interface, over the plugin of the process: tcpx.h documents them. */
#include "base/clock.h"
#include "base/config.h"
#include "base/fork.h"
#include "plugin_host/plugin_host.h"
#include "unpack/unpack.h"

#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* All calls use it, in any thread. It stays loaded. Acquire and release order would do. */
static _Atomic(const struct import_plugin *) current_plugin;

int tcpx_load_plugin(const char *plugin_path)
{
    const struct import_plugin *plugin;
    int result = import_open_named(plugin_path, &plugin);

    if (result == TCPX_SUCCESS)
        atomic_store(&current_plugin, plugin);
    return result;
}

static int get_current_plugin(const struct import_plugin **plugin)
{
    int result = fork_check();

    *plugin = atomic_load(&current_plugin);
    if (result != TCPX_SUCCESS || *plugin != NULL)
        return result;
    result = tcpx_load_plugin(NULL);
    *plugin = atomic_load(&current_plugin);
    return result;
}

static int null_argument(const char *call, const char *argument)
{
    return error_set(TCPX_INVALID_ARGUMENT, "%s: %s is NULL", call, argument);
}

#define REQUIRE(argument)                                                                          \
    do {                                                                                           \
        if ((argument) == NULL)                                                                    \
            return null_argument(__func__, #argument);                                             \
    } while (0)

/* --- devices ------------------------------------------------------------------------------- */

int tcpx_get_device_count(void)
{
    const struct import_plugin *plugin;

    return get_current_plugin(&plugin) == TCPX_SUCCESS ? plugin->devices : -1;
}

int tcpx_get_properties(int dev, struct tcpx_net_properties *properties)
{
    const struct import_plugin *plugin;
    struct net_properties_v12 all;
    bool reaches_gpus = false;
    int result;

    REQUIRE(properties);
    result = get_current_plugin(&plugin);
    if (result == TCPX_SUCCESS)
        result = import_check_device(plugin, dev);
    if (result == TCPX_SUCCESS)
        result = bounded_properties(plugin, dev, &all);
    if (result == TCPX_SUCCESS)
        result = import_reaches_gpus(plugin, &reaches_gpus);
    if (result != TCPX_SUCCESS)
        return result;
    if (!reaches_gpus)
        all.pointer_support &= ~NET_POINTER_CUDA;
    *properties = (struct tcpx_net_properties){.name = all.name,
                                               .pci_path = all.pci_path,
                                               .guid = all.guid,
                                               .ptr_support = all.pointer_support,
                                               .speed = all.speed,
                                               .port = all.port,
                                               .latency = all.latency,
                                               .max_comms = all.max_comms,
                                               .max_recvs = all.max_receives,
                                               .net_device_type = all.device_type,
                                               .net_device_version = all.device_version};
    return TCPX_SUCCESS;
}

/* --- comms --------------------------------------------------------------------------------- */

int tcpx_listen(int dev, void *handle, void **listen_comm)
{
    const struct import_plugin *plugin;
    struct import_listener *listener;
    int result;

    REQUIRE(handle);
    REQUIRE(listen_comm);
    result = get_current_plugin(&plugin);
    if (result == TCPX_SUCCESS)
        result = import_comm_listen(plugin, dev, handle, &listener);
    if (result == TCPX_SUCCESS)
        *listen_comm = listener;
    return result;
}

int tcpx_connect_v5(int dev, void *handle, void **send_comm, void **send_dev_handle)
{
    const struct import_plugin *plugin;
    struct import_comm *comm;
    int result;

    (void)send_dev_handle; /* senders do nothing on the GPU */
    REQUIRE(handle);
    REQUIRE(send_comm);
    result = get_current_plugin(&plugin);
    if (result == TCPX_SUCCESS)
        result = import_comm_connect(plugin, dev, handle, &comm);
    if (result == TCPX_SUCCESS)
        *send_comm = comm;
    return result;
}

int tcpx_accept_v5(void *listen_comm, void **recv_comm, void **recv_dev_handle)
{
    struct import_comm *comm;
    int result;

    REQUIRE(listen_comm);
    REQUIRE(recv_comm);
    result = import_comm_accept(listen_comm, &comm);
    if (result != TCPX_SUCCESS)
        return result;
    *recv_comm = comm;
    if (comm == NULL)
        return TCPX_SUCCESS;
    if (recv_dev_handle != NULL && *recv_dev_handle != NULL)
        memcpy(*recv_dev_handle, import_comm_facts(comm).on_gpu, sizeof(struct net_device_handle));
    else if (recv_dev_handle != NULL)
        *recv_dev_handle = (void *)import_comm_facts(comm).on_gpu;
    return TCPX_SUCCESS;
}

int tcpx_close_send(void *send_comm)
{
    return import_comm_close(send_comm, false);
}

int tcpx_close_recv(void *recv_comm)
{
    return import_comm_close(recv_comm, true);
}

int tcpx_close_listen(void *listen_comm)
{
    return import_listener_close(listen_comm);
}

/* --- memory -------------------------------------------------------------------------------- */

int tcpx_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle)
{
    struct import_memory *memory;
    int result;

    REQUIRE(comm);
    REQUIRE(mhandle);
    result = import_comm_register(comm, data, size, type, &memory);
    if (result == TCPX_SUCCESS)
        *mhandle = memory;
    return result;
}

int tcpx_dereg_mr(void *comm, void *mhandle)
{
    REQUIRE(comm);
    return import_comm_deregister(comm, mhandle);
}

/* --- requests ------------------------------------------------------------------------------ */

static int check_size(const char *call, int size)
{
    if (size < 0)
        return error_set(TCPX_INVALID_ARGUMENT, "%s: the size is %d, expected 0 or more", call,
                         size);
    return TCPX_SUCCESS;
}

static int check_one(const char *call, int n)
{
    if (n != 1)
        return error_set(TCPX_INVALID_ARGUMENT, "%s: n is %d, expected 1", call, n);
    return TCPX_SUCCESS;
}

int tcpx_isend(void *comm, void *data, int size, int tag, void *mhandle, void **request)
{
    struct import_request *started;
    int result;

    REQUIRE(comm);
    REQUIRE(request);
    result = check_size(__func__, size);
    if (result == TCPX_SUCCESS)
        result = import_comm_isend(comm, data, (size_t)size, tag, mhandle, &started);
    if (result == TCPX_SUCCESS)
        *request = started;
    return result;
}

int tcpx_irecv(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles,
               void **request)
{
    struct import_request *started;
    int result = check_one(__func__, n);

    if (result != TCPX_SUCCESS)
        return result;
    REQUIRE(comm);
    REQUIRE(data);
    REQUIRE(sizes);
    REQUIRE(request);
    result = check_size(__func__, sizes[0]);
    if (result == TCPX_SUCCESS)
        result = import_comm_irecv(comm, data[0], (size_t)sizes[0], tags != NULL ? tags[0] : 0,
                                   mhandles != NULL ? mhandles[0] : NULL, &started);
    if (result == TCPX_SUCCESS)
        *request = started;
    return result;
}

/* tcpx.h: 0 where the plugin does not report it. */
static int as_size(uint64_t bytes)
{
    if (bytes == IMPORT_BYTES_UNSAID)
        return 0;
    return bytes < INT_MAX ? (int)bytes : INT_MAX;
}

int tcpx_test(void *request, int *done, int *size)
{
    uint64_t bytes = 0;
    bool ended = false;
    int result;

    REQUIRE(request);
    REQUIRE(done);
    result = import_request_test(request, &ended, &bytes);
    if (result != TCPX_SUCCESS)
        return result;
    *done = ended;
    if (ended && size != NULL)
        *size = as_size(bytes);
    return TCPX_SUCCESS;
}

int tcpx_irecv_consumed(void *comm, int n, void *request)
{
    int result = check_one(__func__, n);

    if (result != TCPX_SUCCESS)
        return result;
    REQUIRE(comm);
    REQUIRE(request);
    return import_request_consumed(request);
}

/* --- waiting ------------------------------------------------------------------------------- */

_Static_assert(sizeof(struct tcpx_fragment) == sizeof(struct unpack_descriptor) &&
                   offsetof(struct tcpx_fragment, destination_offset) ==
                       offsetof(struct unpack_descriptor, destination_offset),
               "a fragment is a descriptor");

/* Plugins make progress only inside test(): it is called often at first, then with pauses. */
static void pause_between_tests(uint64_t since)
{
    enum { SPIN_NS = 50000, YIELD_NS = 2000000, PAUSE_NS = 50000 };
    uint64_t waited = clock_now() - since;

    if (waited > YIELD_NS)
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    else if (waited > SPIN_NS)
        sched_yield();
}

int tcpx_wait_request(void *request, int timeout_ms, int *size, struct tcpx_fragments *fragments)
{
    struct unpack_list received = {.count = 0};
    uint64_t since = clock_now();
    uint64_t bytes = 0;
    uint64_t deadline;
    bool done = false;
    int result;

    REQUIRE(request);
    result = config_deadline(timeout_ms, &deadline);
    while (result == TCPX_SUCCESS && !done) {
        result = import_request_test(request, &done, &bytes);
        if (result != TCPX_SUCCESS || done)
            break;
        if (deadline_passed(deadline))
            return error_set(TCPX_IN_PROGRESS, "the request was not done in time");
        pause_between_tests(since);
    }
    if (result == TCPX_SUCCESS)
        result = import_request_received(request, &received);
    if (result != TCPX_SUCCESS)
        return result;
    if (size != NULL)
        *size = as_size(bytes);
    if (fragments != NULL)
        *fragments =
            (struct tcpx_fragments){.list = (const struct tcpx_fragment *)received.descriptors,
                                    .count = received.count,
                                    .bounce = (const void *)(uintptr_t)received.bounce};
    return TCPX_SUCCESS;
}
