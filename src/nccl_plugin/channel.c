/* The plugin's contexts and their comms. */
#include "nccl_plugin/nccl_plugin.h"

#include "base/fork.h"
#include "gpu/gpu.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct plugin_context {
    struct plugin_comm *comms; /* guarded by contexts_lock */
};

static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER; /* guards these and the lists */
static unsigned contexts;
static struct plugin_context shared_context; /* of tables before version 11 */
static bool shared_is_used;

static struct plugin_context *context_or_shared(struct plugin_context *context)
{
    return context != NULL ? context : &shared_context;
}

static void add_to_context(struct plugin_comm *comm)
{
    pthread_mutex_lock(&contexts_lock);
    comm->next = comm->context->comms;
    comm->context->comms = comm;
    pthread_mutex_unlock(&contexts_lock);
}

static void remove_from_context(struct plugin_comm *comm)
{
    struct plugin_comm **at = &comm->context->comms;

    pthread_mutex_lock(&contexts_lock);
    while (*at != comm)
        at = &(*at)->next;
    *at = comm->next;
    pthread_mutex_unlock(&contexts_lock);
}

/* --- making -------------------------------------------------------------------------------- */

static int listen_for_nccl(struct plugin_comm *listener, int number, bool can_unpack,
                           uint8_t *handle)
{
    struct net_link_options options = plugin_link_options(listener->context);
    const struct net_device *device;
    int result = plugin_device(number, &device);

    /* NCCL's kernels spin until their bytes are received. */
    options.no_kernels = true;
    /*
     * Payload in a pool of GPU memory is for kernels that unpack it. To bring it to its place
     * without them would take a copy inside the GPU, which waits for NCCL's kernels.
     */
    if (!plugin_unpacks() || !can_unpack)
        options.framing = WIRE_INLINE;
    /*
     * NCCL receives into memory of the GPU that is current in the listening thread. Without one, as
     * for its bootstrap, the GPU is not known.
     */
    else if (result == TCPX_SUCCESS && gpu_of_caller_or_none(&options.gpu) != TCPX_SUCCESS)
        options.gpu = -1;
    if (result == TCPX_SUCCESS)
        result = net_listen(device, &options, handle, &listener->listener);
    return result;
}

int plugin_listen(void *raw_context, int number, bool can_unpack, void *handle, void **out)
{
    struct plugin_comm *listener;
    int result = fork_check();

    *out = NULL;
    if (result != TCPX_SUCCESS)
        return result;
    listener = calloc(1, sizeof *listener);
    if (listener == NULL)
        return plugin_answer("listen", error_system(ENOMEM, "a listener"));
    listener->context = context_or_shared(raw_context);
    result = listen_for_nccl(listener, number, can_unpack, handle);
    if (result != TCPX_SUCCESS) {
        free(listener);
        return plugin_answer("listen", result);
    }
    add_to_context(listener);
    *out = listener;
    return TCPX_SUCCESS;
}

static int make_comm(struct plugin_context *context, struct net_link *link, enum net_side side,
                     struct plugin_comm **out)
{
    struct plugin_comm *comm = calloc(1, sizeof *comm);
    int result;

    if (comm == NULL) {
        net_link_close(link);
        return error_system(ENOMEM, "a comm");
    }
    comm->context = context;
    result = net_comm_create(link, side, &comm->comm);
    if (result != TCPX_SUCCESS) {
        free(comm);
        return result;
    }
    add_to_context(comm);
    *out = comm;
    return TCPX_SUCCESS;
}

int plugin_connect(void *raw_context, int number, void *handle, void **out,
                   struct net_device_handle **on_gpu)
{
    struct plugin_context *context = context_or_shared(raw_context);
    struct net_link_options options = plugin_link_options(context);
    const struct net_device *device;
    struct net_link link;
    struct plugin_comm *comm = NULL;
    bool connected = false;
    int result = plugin_device(number, &device);

    (void)on_gpu;
    *out = NULL;
    if (result == TCPX_SUCCESS)
        result = net_connect(device, &options, handle, &link, &connected);
    if (result == TCPX_SUCCESS && connected)
        result = make_comm(context, &link, NET_SENDER, &comm);
    if (result == TCPX_SUCCESS)
        *out = comm;
    return plugin_answer("connect", result);
}

/* The GPU whose kernels unpack is the one that NCCL has made current in this thread. */
static int open_unpack_queue(struct plugin_comm *comm, struct net_device_handle *on_gpu)
{
    enum { PIECE = 4096 }; /* NCCL's warps take a descriptor each */
    int device;
    int result = gpu_of_caller(&device);

    if (result == TCPX_SUCCESS)
        result = net_unpack_open(comm->comm, device, PIECE, on_gpu);
    comm->unpacks = result == TCPX_SUCCESS;
    return result;
}

int plugin_accept(void *raw_listener, void **out, struct net_device_handle **on_gpu)
{
    struct plugin_comm *listener = raw_listener;
    struct net_link link;
    struct plugin_comm *comm = NULL;
    bool accepted = false;
    int result = net_accept(listener->listener, &link, &accepted);

    *out = NULL;
    if (result == TCPX_SUCCESS && accepted)
        result = make_comm(listener->context, &link, NET_RECEIVER, &comm);
    /* Without a place for the queue's address, as in NCCL's bootstrap, no kernel reads it. */
    if (result == TCPX_SUCCESS && accepted && plugin_unpacks() && on_gpu != NULL && *on_gpu != NULL)
        result = open_unpack_queue(comm, *on_gpu);
    if (result == TCPX_SUCCESS)
        *out = comm;
    else if (comm != NULL)
        plugin_close(comm);
    return plugin_answer("accept", result);
}

/* --- ending -------------------------------------------------------------------------------- */

static void end_comm(struct plugin_comm *comm)
{
    if (comm->listener != NULL)
        net_listener_close(comm->listener);
    else
        net_comm_close(comm->comm);
    free(comm);
}

int plugin_close(void *raw_comm)
{
    struct plugin_comm *comm = raw_comm;
    int result = fork_check();

    if (comm == NULL || result != TCPX_SUCCESS)
        return result;
    remove_from_context(comm);
    end_comm(comm);
    return TCPX_SUCCESS;
}

/* --- contexts ------------------------------------------------------------------------------ */

int plugin_init(log_nccl_logger logger, void **out)
{
    struct plugin_context *context = NULL;
    int result = fork_check();

    if (out != NULL)
        *out = NULL;
    if (result != TCPX_SUCCESS)
        return result;
    if (logger != NULL)
        log_set_nccl_logger(logger);
    if (out != NULL) {
        context = calloc(1, sizeof *context);
        if (context == NULL)
            return plugin_answer("init", error_system(ENOMEM, "a context"));
    }
    result = plugin_start();
    pthread_mutex_lock(&contexts_lock);
    contexts += result == TCPX_SUCCESS && context != NULL;
    shared_is_used |= context == NULL;
    pthread_mutex_unlock(&contexts_lock);
    if (result != TCPX_SUCCESS)
        free(context);
    else if (out != NULL)
        *out = context;
    return plugin_answer("init", result);
}

/* No thread of NCCL works with them any more, not even after an abort. */
static void close_leftovers(struct plugin_context *context)
{
    while (context->comms != NULL) {
        struct plugin_comm *comm = context->comms;

        context->comms = comm->next;
        end_comm(comm);
    }
    net_connect_cancel_all(context);
}

int plugin_finalize(void *raw_context)
{
    struct plugin_context *context = raw_context;
    int result = fork_check();

    if (context == NULL || result != TCPX_SUCCESS)
        return result;
    close_leftovers(context);
    pthread_mutex_lock(&contexts_lock);
    /* The logger is code of a library that may be unloaded now. */
    if (--contexts == 0 && !shared_is_used)
        log_set_nccl_logger(NULL);
    pthread_mutex_unlock(&contexts_lock);
    free(context);
    return TCPX_SUCCESS;
}
