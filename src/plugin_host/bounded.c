/* Helper threads that call a plugin, and are abandoned when it does not return. */
#include "plugin_host/bounded.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "gpu/gpu.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* One call: its arguments and its results. */
struct call {
    const char *name;
    const struct import_plugin *plugin;
    int (*make)(struct call *call);
    int gpu; /* of the caller; -1: none */

    /* Arguments of the table's calls. */
    int device;
    void *object; /* a comm or a listener of the plugin */
    int (*close)(const struct import_table *table, void *object);
    void *data;
    size_t bytes;
    int type;
    uint8_t *handle;
    struct net_device_handle *on_gpu;

    /* Results. */
    struct net_properties_v12 properties;
    void *out;
    int count;

    /* Guarded by the lock below. */
    bool has_returned;
    bool is_abandoned; /* its helper frees it */
    int result;
    char why[400];
};

struct helper {
    struct helper *next; /* idle ones */
    struct call *call;
    pthread_cond_t changed; /* there is a call, or it has returned */
};

static pthread_mutex_t helpers_lock =
    PTHREAD_MUTEX_INITIALIZER; /* guards the helpers and their calls */
static struct helper *idle_helpers;

/* --- the helper's side --------------------------------------------------------------------- */

/* Plugins work with the GPU that is current in the thread that calls them. */
static int make_with_gpu(struct call *call)
{
    struct gpu_scope scope;
    struct gpu *gpu;
    int result;

    if (call->gpu < 0)
        return call->make(call);
    result = gpu_open(call->gpu, &gpu);
    if (result != TCPX_SUCCESS)
        return result;
    result = gpu_enter(gpu, &scope);
    if (result == TCPX_SUCCESS) {
        result = call->make(call);
        gpu_leave(gpu, &scope);
    }
    gpu_close(gpu);
    return result;
}

/* With the lock. False: its caller has given up, so the helper ends. */
static bool return_call(struct helper *helper, int result)
{
    struct call *call = helper->call;

    helper->call = NULL;
    if (call->is_abandoned) {
        log_warn("%s: %s has returned after all", call->plugin->table.name, call->name);
        free(call);
        return false;
    }
    call->result = result;
    call->has_returned = true;
    if (result != TCPX_SUCCESS)
        snprintf(call->why, sizeof call->why, "%s", error_text());
    helper->next = idle_helpers;
    idle_helpers = helper;
    pthread_cond_broadcast(&helper->changed);
    return true;
}

static void *helper_main(void *argument)
{
    struct helper *helper = argument;
    bool is_wanted = true;

    pthread_mutex_lock(&helpers_lock);
    while (is_wanted) {
        int result;

        while (helper->call == NULL)
            pthread_cond_wait(&helper->changed, &helpers_lock);
        pthread_mutex_unlock(&helpers_lock);
        result = make_with_gpu(helper->call);
        pthread_mutex_lock(&helpers_lock);
        is_wanted = return_call(helper, result);
    }
    pthread_mutex_unlock(&helpers_lock);
    pthread_cond_destroy(&helper->changed);
    free(helper);
    return NULL;
}

/* All signals are blocked there and in threads that the plugin starts, SIGPIPE included. */
static struct helper *start_helper(void)
{
    struct helper *helper = calloc(1, sizeof *helper);
    pthread_condattr_t clock;
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t before;
    sigset_t all;
    int failed;

    if (helper == NULL)
        return NULL;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&helper->changed, &clock);
    pthread_condattr_destroy(&clock);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    failed = pthread_create(&thread, &attributes, helper_main, helper);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed == 0)
        return helper;
    pthread_cond_destroy(&helper->changed);
    free(helper);
    return NULL;
}

/* --- the caller's side --------------------------------------------------------------------- */

/* With the lock. */
static void wait_for_return(struct helper *helper, const struct call *call, uint64_t deadline)
{
    const struct timespec until = {.tv_sec = (time_t)(deadline / 1000000000),
                                   .tv_nsec = (long)(deadline % 1000000000)};

    while (!call->has_returned && !deadline_passed(deadline))
        pthread_cond_timedwait(&helper->changed, &helpers_lock, &until);
}

/* Makes the call in this thread, also where no helper can be started. */
static int make_here(struct call *call)
{
    struct import_guard guard;
    int result;

    import_guard_begin(call->plugin->quirks, &guard);
    result = call->make(call);
    import_guard_end(&guard);
    return result;
}

static int make_in_helper(struct call *call, uint64_t timeout_ms, bool *lost)
{
    struct helper *helper;
    int result;

    pthread_mutex_lock(&helpers_lock);
    helper = idle_helpers;
    if (helper != NULL)
        idle_helpers = helper->next;
    else
        helper = start_helper();
    if (helper == NULL) {
        pthread_mutex_unlock(&helpers_lock);
        return make_here(call);
    }
    helper->call = call;
    pthread_cond_broadcast(&helper->changed);
    wait_for_return(helper, call, deadline_after_ms(timeout_ms));
    *lost = !call->has_returned;
    call->is_abandoned = *lost;
    result = call->result;
    pthread_mutex_unlock(&helpers_lock);
    if (*lost)
        return error_set(TCPX_SYSTEM_ERROR,
                         "%s: %s has not returned for %llu ms, and is left behind; if the plugin "
                         "needs a daemon, see whether that answers",
                         call->plugin->table.name, call->name, (unsigned long long)timeout_ms);
    if (result != TCPX_SUCCESS)
        error_keep("%s", call->why);
    return result;
}

/* Calls of our own transport never hang. */
static int make_call(struct call *call, bool *lost)
{
    const struct config *config;
    int result;

    if (call->plugin->table.is_builtin)
        return make_here(call);
    result = config_get(&config);
    if (result != TCPX_SUCCESS)
        return result;
    if (gpu_of_caller_or_none(&call->gpu) != TCPX_SUCCESS)
        call->gpu = -1; /* it will not be needed either */
    return make_in_helper(call, config->timeout_ms, lost);
}

/* Makes it with a copy of its own, which a call that does not return keeps. */
static int run_call(struct call *call, void **out, bool *lost)
{
    struct call *copy = malloc(sizeof *copy);
    int result;

    *lost = false;
    if (copy == NULL)
        return error_system(ENOMEM, "a call of %s", call->plugin->table.name);
    *copy = *call;
    copy->gpu = -1;
    result = make_call(copy, lost);
    if (*lost)
        return result;
    *call = *copy;
    if (out != NULL)
        *out = copy->out;
    free(copy);
    return result;
}

/* --- the calls ----------------------------------------------------------------------------- */

#define CALL(label, function, ...)                                                                 \
    {                                                                                              \
        .name = (label), .plugin = plugin, .make = (function), __VA_ARGS__                         \
    }

static int make_init(struct call *call)
{
    return import_table_init(call->object);
}

int bounded_init(struct import_plugin *plugin, bool *lost)
{
    struct call call = CALL("init", make_init, .object = &plugin->table);

    return run_call(&call, NULL, lost);
}

static int make_devices(struct call *call)
{
    return import_devices(&call->plugin->table, &call->count);
}

int bounded_devices(struct import_plugin *plugin)
{
    struct call call = CALL("devices", make_devices);
    bool lost;
    int result = run_call(&call, NULL, &lost);

    if (result == TCPX_SUCCESS)
        plugin->devices = call.count;
    return result;
}

static int make_properties(struct call *call)
{
    return import_properties(&call->plugin->table, call->device, &call->properties);
}

int bounded_properties(const struct import_plugin *plugin, int device,
                       struct net_properties_v12 *properties)
{
    struct call call = CALL("getProperties", make_properties, .device = device);
    bool lost;
    int result = run_call(&call, NULL, &lost);

    if (result == TCPX_SUCCESS)
        *properties = call.properties;
    return result;
}

static int make_listen(struct call *call)
{
    return import_listen(&call->plugin->table, call->device, call->handle, &call->out);
}

int bounded_listen(const struct import_plugin *plugin, int device, uint8_t *handle, void **listener,
                   bool *lost)
{
    struct call call = CALL("listen", make_listen, .device = device, .handle = handle);

    return run_call(&call, listener, lost);
}

static int make_connect(struct call *call)
{
    return import_connect(&call->plugin->table, call->device, call->handle, &call->out);
}

int bounded_connect(const struct import_plugin *plugin, int device, uint8_t *handle, void **sender,
                    bool *lost)
{
    struct call call = CALL("connect", make_connect, .device = device, .handle = handle);

    return run_call(&call, sender, lost);
}

static int make_accept(struct call *call)
{
    return import_accept(&call->plugin->table, call->object, &call->out, call->on_gpu);
}

int bounded_accept(const struct import_plugin *plugin, void *listener, void **receiver,
                   struct net_device_handle *on_gpu, bool *lost)
{
    struct call call = CALL("accept", make_accept, .object = listener, .on_gpu = on_gpu);

    return run_call(&call, receiver, lost);
}

static int make_register(struct call *call)
{
    return import_register(&call->plugin->table, call->object, call->data, call->bytes, call->type,
                           &call->out);
}

int bounded_register(const struct import_plugin *plugin, void *comm, void *data, size_t bytes,
                     int type, void **memory, bool *lost)
{
    struct call call =
        CALL("regMr", make_register, .object = comm, .data = data, .bytes = bytes, .type = type);

    return run_call(&call, memory, lost);
}

static int make_deregister(struct call *call)
{
    return import_deregister(&call->plugin->table, call->object, call->data);
}

int bounded_deregister(const struct import_plugin *plugin, void *comm, void *memory, bool *lost)
{
    struct call call = CALL("deregMr", make_deregister, .object = comm, .data = memory);

    return run_call(&call, NULL, lost);
}

static int make_close(struct call *call)
{
    return call->close(&call->plugin->table, call->object);
}

static int bounded_close(const struct import_plugin *plugin, const char *name,
                         int (*close)(const struct import_table *table, void *object), void *object,
                         bool *lost)
{
    struct call call = CALL(name, make_close, .close = close, .object = object);

    return run_call(&call, NULL, lost);
}

int bounded_close_send(const struct import_plugin *plugin, void *sender, bool *lost)
{
    return bounded_close(plugin, "closeSend", import_close_send, sender, lost);
}

int bounded_close_recv(const struct import_plugin *plugin, void *receiver, bool *lost)
{
    return bounded_close(plugin, "closeRecv", import_close_recv, receiver, lost);
}

int bounded_close_listen(const struct import_plugin *plugin, void *listener, bool *lost)
{
    return bounded_close(plugin, "closeListen", import_close_listen, listener, lost);
}
