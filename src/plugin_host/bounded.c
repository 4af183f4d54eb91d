/* Helper threads that call a plugin, and are abandoned when it does not return. */
#include "plugin_host/bounded.h"

#include "base/config.h"
#include "base/log.h"
#include "base/thread.h"
#include "gpu/gpu.h"
#include "plugin_host/quirks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* A call in a helper thread. */
struct pending {
    const struct import_plugin *plugin;
    enum bounded_kind kind;
    struct bounded_call call;
    int gpu; /* of the caller; -1: none */

    /* Guarded by the lock below. */
    bool has_returned;
    bool is_abandoned; /* its helper frees it */
    int result;
    char why[400];
};

static const char *const names[] = {
    [BOUNDED_INIT] = "init",
    [BOUNDED_DEVICES] = "devices",
    [BOUNDED_PROPERTIES] = "getProperties",
    [BOUNDED_LISTEN] = "listen",
    [BOUNDED_CONNECT] = "connect",
    [BOUNDED_ACCEPT] = "accept",
    [BOUNDED_REGISTER] = "regMr",
    [BOUNDED_DEREGISTER] = "deregMr",
    [BOUNDED_CLOSE_SEND] = "closeSend",
    [BOUNDED_CLOSE_RECV] = "closeRecv",
    [BOUNDED_CLOSE_LISTEN] = "closeListen",
};

struct helper {
    struct helper *next; /* idle ones */
    struct pending *pending;
    pthread_cond_t changed; /* there is a call, or it has returned */
};

/* Guards the helpers and their calls. */
static pthread_mutex_t helpers_lock = PTHREAD_MUTEX_INITIALIZER;
static struct helper *idle_helpers;

/* --- the helper's side --------------------------------------------------------------------- */

static int make_call(const struct import_plugin *plugin, enum bounded_kind kind,
                     struct bounded_call *call)
{
    const struct import_table *table = &plugin->table;

    switch (kind) {
    case BOUNDED_INIT:
        return import_table_init(call->object);
    case BOUNDED_DEVICES:
        return import_devices(table, &call->count);
    case BOUNDED_PROPERTIES:
        return import_properties(table, call->device, &call->properties);
    case BOUNDED_LISTEN:
        return import_listen(table, call->device, call->handle, &call->out);
    case BOUNDED_CONNECT:
        return import_connect(table, call->device, call->handle, &call->out);
    case BOUNDED_ACCEPT:
        return import_accept(table, call->object, &call->out, call->on_gpu);
    case BOUNDED_REGISTER:
        return import_register(table, call->object, call->data, call->bytes, call->type,
                               &call->out);
    case BOUNDED_DEREGISTER:
        return import_deregister(table, call->object, call->data);
    case BOUNDED_CLOSE_SEND:
        return import_close_send(table, call->object);
    case BOUNDED_CLOSE_RECV:
        return import_close_recv(table, call->object);
    case BOUNDED_CLOSE_LISTEN:
        return import_close_listen(table, call->object);
    }
    return TCPX_INTERNAL_ERROR;
}

/* Plugins work with the GPU that is current in the thread that calls them. */
static int make_with_gpu(struct pending *pending)
{
    struct gpu_scope scope;
    struct gpu *gpu;
    int result;

    if (pending->gpu < 0)
        return make_call(pending->plugin, pending->kind, &pending->call);
    result = gpu_open(pending->gpu, &gpu);
    if (result != TCPX_SUCCESS)
        return result;
    result = gpu_enter(gpu, &scope);
    if (result == TCPX_SUCCESS) {
        result = make_call(pending->plugin, pending->kind, &pending->call);
        gpu_leave(gpu, &scope);
    }
    gpu_close(gpu);
    return result;
}

/* With the lock. False: its caller has given up, so the helper ends. */
static bool return_call(struct helper *helper, int result)
{
    struct pending *pending = helper->pending;

    helper->pending = NULL;
    if (pending->is_abandoned) {
        log_warn("%s: %s has returned after all", pending->plugin->table.name,
                 names[pending->kind]);
        free(pending);
        return false;
    }
    pending->result = result;
    pending->has_returned = true;
    if (result != TCPX_SUCCESS)
        snprintf(pending->why, sizeof pending->why, "%s", error_text());
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

        while (helper->pending == NULL)
            pthread_cond_wait(&helper->changed, &helpers_lock);
        pthread_mutex_unlock(&helpers_lock);
        result = make_with_gpu(helper->pending);
        pthread_mutex_lock(&helpers_lock);
        is_wanted = return_call(helper, result);
    }
    pthread_mutex_unlock(&helpers_lock);
    pthread_cond_destroy(&helper->changed);
    free(helper);
    return NULL;
}

static struct helper *start_helper(void)
{
    struct helper *helper = calloc(1, sizeof *helper);

    if (helper == NULL)
        return NULL;
    condition_init(&helper->changed);
    if (thread_start(NULL, helper_main, helper) == 0)
        return helper;
    pthread_cond_destroy(&helper->changed);
    free(helper);
    return NULL;
}

/* --- the caller's side --------------------------------------------------------------------- */

/* In this thread. */
static int make_here(const struct import_plugin *plugin, enum bounded_kind kind,
                     struct bounded_call *call)
{
    struct import_guard guard;
    int result;

    import_guard_begin(plugin->quirks, &guard);
    result = make_call(plugin, kind, call);
    import_guard_end(&guard);
    return result;
}

/* *lost: it has not returned, and is the helper's. */
static int make_in_helper(struct pending *pending, uint64_t timeout_ms, bool *lost)
{
    uint64_t deadline = deadline_after_ms(timeout_ms);
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
        return make_here(pending->plugin, pending->kind, &pending->call);
    }
    helper->pending = pending;
    pthread_cond_broadcast(&helper->changed);
    while (!pending->has_returned && !deadline_passed(deadline))
        condition_wait(&helper->changed, &helpers_lock, deadline);
    *lost = !pending->has_returned;
    pending->is_abandoned = *lost;
    result = pending->result;
    pthread_mutex_unlock(&helpers_lock);
    if (!*lost && result != TCPX_SUCCESS)
        error_keep("%s", pending->why);
    return result;
}

int bounded_call(const struct import_plugin *plugin, enum bounded_kind kind,
                 struct bounded_call *call)
{
    const struct config *config;
    struct pending *pending;
    int result;

    call->is_lost = false;
    if (plugin->table.is_builtin) /* our own transport never hangs */
        return make_here(plugin, kind, call);
    result = config_get(&config);
    if (result != TCPX_SUCCESS)
        return result;
    pending = malloc(sizeof *pending);
    if (pending == NULL)
        return error_system(ENOMEM, "a call of %s", plugin->table.name);
    *pending = (struct pending){.plugin = plugin, .kind = kind, .call = *call};
    if (gpu_of_caller_or_none(&pending->gpu) != TCPX_SUCCESS)
        pending->gpu = -1; /* it will not be needed either */
    result = make_in_helper(pending, config->timeout_ms, &call->is_lost);
    if (call->is_lost)
        return error_set(TCPX_SYSTEM_ERROR,
                         "%s: %s has not returned for %llu ms, and is left behind; if the plugin "
                         "needs a daemon, see whether that answers",
                         plugin->table.name, names[kind], (unsigned long long)config->timeout_ms);
    *call = pending->call;
    free(pending);
    return result;
}

int bounded_properties(const struct import_plugin *plugin, int device,
                       struct net_properties_v12 *properties)
{
    struct bounded_call call = {.device = device};
    int result = bounded_call(plugin, BOUNDED_PROPERTIES, &call);

    if (result == TCPX_SUCCESS)
        *properties = call.properties;
    return result;
}
