/* Helper threads that call a plugin, and are left behind when it does not return. */
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

/* One call: what it is given, and what came of it. */
struct call {
    const char *name;
    const struct import_plugin *plugin;
    int (*make)(struct call *call);
    int gpu; /* of the caller; -1: none */

    int device;
    void *object; /* a comm or a listener of the plugin */
    void *data;
    size_t bytes;
    int type;
    uint8_t *handle;
    struct net_device_handle *on_gpu;
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

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the helpers and their calls */
static struct helper *idle;

/* --- the helper's side --------------------------------------------------------------------- */

/* Plugins work with the GPU that is current in the thread that calls them. */
static int make_on_gpu(struct call *call)
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

/* With the lock. False: nobody waits for it any more. */
static bool hand_over(struct helper *helper, int result)
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
    helper->next = idle;
    idle = helper;
    pthread_cond_broadcast(&helper->changed);
    return true;
}

static void *help(void *argument)
{
    struct helper *helper = argument;
    bool is_wanted = true;

    pthread_mutex_lock(&lock);
    while (is_wanted) {
        int result;

        while (helper->call == NULL)
            pthread_cond_wait(&helper->changed, &lock);
        pthread_mutex_unlock(&lock);
        result = make_on_gpu(helper->call);
        pthread_mutex_lock(&lock);
        is_wanted = hand_over(helper, result);
    }
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&helper->changed);
    free(helper);
    return NULL;
}

/* All signals are blocked there and in threads that the plugin starts, so also its SIGPIPE. */
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
    failed = pthread_create(&thread, &attributes, help, helper);
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
static void wait_for(struct helper *helper, const struct call *call, uint64_t deadline)
{
    const struct timespec until = {.tv_sec = (time_t)(deadline / 1000000000),
                                   .tv_nsec = (long)(deadline % 1000000000)};

    while (!call->has_returned && !deadline_passed(deadline))
        pthread_cond_timedwait(&helper->changed, &lock, &until);
}

/* Also where there is no thread for it. */
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

    pthread_mutex_lock(&lock);
    helper = idle;
    if (helper != NULL)
        idle = helper->next;
    else
        helper = start_helper();
    if (helper == NULL) {
        pthread_mutex_unlock(&lock);
        return make_here(call);
    }
    helper->call = call;
    pthread_cond_broadcast(&helper->changed);
    wait_for(helper, call, deadline_after_ms(timeout_ms));
    *lost = !call->has_returned;
    call->is_abandoned = *lost;
    result = call->result;
    pthread_mutex_unlock(&lock);
    if (*lost)
        return error_set(TCPX_SYSTEM_ERROR,
                         "%s: %s has not returned for %llu ms, and is left behind; if the plugin "
                         "needs a daemon, see whether that answers",
                         call->plugin->table.name, call->name, (unsigned long long)timeout_ms);
    if (result != TCPX_SUCCESS)
        error_keep("%s", call->why);
    return result;
}

/* Nothing of our own transport hangs. */
static int make(struct call *call, bool *lost)
{
    const struct config *config;
    int result;

    *lost = false;
    if (call->plugin->table.is_builtin)
        return make_here(call);
    result = config_get(&config);
    if (result != TCPX_SUCCESS)
        return result;
    if (gpu_of_caller_or_none(&call->gpu) != TCPX_SUCCESS)
        call->gpu = -1; /* it will not be needed either */
    return make_in_helper(call, config->timeout_ms, lost);
}

static struct call *new_call(const struct import_plugin *plugin, const char *name,
                             int (*make_it)(struct call *call))
{
    struct call *call = calloc(1, sizeof *call);

    if (call == NULL) {
        error_keep_system(ENOMEM, "a call of %s", plugin->table.name);
        return NULL;
    }
    call->plugin = plugin;
    call->name = name;
    call->make = make_it;
    call->gpu = -1;
    return call;
}

/* Makes it, and hands over what it has put out. */
static int finish(struct call *call, void **out, bool *lost)
{
    int result = make(call, lost);

    if (*lost)
        return result;
    if (out != NULL)
        *out = call->out;
    free(call);
    return result;
}

/* --- the calls ----------------------------------------------------------------------------- */

static int make_init(struct call *call)
{
    return import_table_init(call->object);
}

int bounded_init(struct import_plugin *plugin, bool *lost)
{
    struct call *call = new_call(plugin, "init", make_init);

    *lost = false;
    if (call == NULL)
        return TCPX_SYSTEM_ERROR;
    call->object = &plugin->table;
    return finish(call, NULL, lost);
}

static int make_devices(struct call *call)
{
    return import_devices(&call->plugin->table, &call->count);
}

int bounded_devices(struct import_plugin *plugin)
{
    struct call *call = new_call(plugin, "devices", make_devices);
    bool lost;
    int result;

    if (call == NULL)
        return TCPX_SYSTEM_ERROR;
    result = make(call, &lost);
    if (lost)
        return result;
    if (result == TCPX_SUCCESS)
        plugin->devices = call->count;
    free(call);
    return result;
}

static int make_properties(struct call *call)
{
    return import_properties(&call->plugin->table, call->device, &call->properties);
}

int bounded_properties(const struct import_plugin *plugin, int device,
                       struct net_properties_v12 *properties)
{
    struct call *call = new_call(plugin, "getProperties", make_properties);
    bool lost;
    int result;

    if (call == NULL)
        return TCPX_SYSTEM_ERROR;
    call->device = device;
    result = make(call, &lost);
    if (lost)
        return result;
    if (result == TCPX_SUCCESS)
        *properties = call->properties;
    free(call);
    return result;
}

static int make_listen(struct call *call)
{
    return import_listen(&call->plugin->table, call->device, call->handle, &call->out);
}

int bounded_listen(const struct import_plugin *plugin, int device, uint8_t *handle, void **listener,
                   bool *lost)
{
    struct call *call = new_call(plugin, "listen", make_listen);

    *lost = false;
    if (call == NULL)
        return TCPX_SYSTEM_ERROR;
    call->device = device;
    call->handle = handle;
    return finish(call, listener, lost);
}

static int make_connect(struct call *call)
{
    return import_connect(&call->plugin->table, call->device, call->handle, &call->out);
}

int bounded_connect(const struct import_plugin *plugin, int device, uint8_t *handle, void **sender,
                    bool *lost)
{
    struct call *call = new_call(plugin, "connect", make_connect);

    *lost = false;
    if (call == NULL)
        return TCPX_SYSTEM_ERROR;
    call->device = device;
    call->handle = handle;
    return finish(call, sender, lost);
}

static int make_accept(struct call *call)
{
    return import_accept(&call->plugin->table, call->object, &call->out, call->on_gpu);
}

int bounded_accept(const struct import_plugin *plugin, void *listener, void **receiver,
                   struct net_device_handle *on_gpu, bool *lost)
{
    struct call *call = new_call(plugin, "accept", make_accept);

    *lost = false;
    if (call == NULL)
        return TCPX_SYSTEM_ERROR;
    call->object = listener;
    call->on_gpu = on_gpu;
    return finish(call, receiver, lost);
}

static int make_register(struct call *call)
{
    return import_register(&call->plugin->table, call->object, call->data, call->bytes, call->type,
                           &call->out);
}

int bounded_register(const struct import_plugin *plugin, void *comm, void *data, size_t bytes,
                     int type, void **memory, bool *lost)
{
    struct call *call = new_call(plugin, "regMr", make_register);

    *lost = false;
    if (call == NULL)
        return TCPX_SYSTEM_ERROR;
    call->object = comm;
    call->data = data;
    call->bytes = bytes;
    call->type = type;
    return finish(call, memory, lost);
}

static int make_deregister(struct call *call)
{
    return import_deregister(&call->plugin->table, call->object, call->data);
}

static int make_close_send(struct call *call)
{
    return import_close_send(&call->plugin->table, call->object);
}

static int make_close_recv(struct call *call)
{
    return import_close_recv(&call->plugin->table, call->object);
}

static int make_close_listen(struct call *call)
{
    return import_close_listen(&call->plugin->table, call->object);
}

static int end(const struct import_plugin *plugin, const char *name,
               int (*make_it)(struct call *call), void *object, void *memory, bool *lost)
{
    struct call *call = new_call(plugin, name, make_it);

    *lost = false;
    if (call == NULL)
        return TCPX_SYSTEM_ERROR;
    call->object = object;
    call->data = memory;
    return finish(call, NULL, lost);
}

int bounded_deregister(const struct import_plugin *plugin, void *comm, void *memory, bool *lost)
{
    return end(plugin, "deregMr", make_deregister, comm, memory, lost);
}

int bounded_close_send(const struct import_plugin *plugin, void *sender, bool *lost)
{
    return end(plugin, "closeSend", make_close_send, sender, NULL, lost);
}

int bounded_close_recv(const struct import_plugin *plugin, void *receiver, bool *lost)
{
    return end(plugin, "closeRecv", make_close_recv, receiver, NULL, lost);
}

int bounded_close_listen(const struct import_plugin *plugin, void *listener, bool *lost)
{
    return end(plugin, "closeListen", make_close_listen, listener, NULL, lost);
}
