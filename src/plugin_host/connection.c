/* Listeners, the unpack queues of accepted comms, and attempts to connect. */
#include "plugin_host/connection.h"

#include "base/clock.h"
#include "base/fork.h"
#include "plugin_host/bounded.h"
#include "plugin_host/comm_state.h"
#include "plugin_host/loader.h"
#include "plugin_host/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- listening ----------------------------------------------------------------------------- */

struct import_listener {
    const struct import_plugin *plugin;
    int device;
    void *raw;
    bool served;                     /* has had a peer */
    bool is_lost;                    /* a call with it has not returned */
    struct net_device_handle on_gpu; /* where the plugin writes until there is a comm */
    uint8_t handle[NET_TABLE_HANDLE_BYTES];
};

int import_comm_listen(const struct import_plugin *plugin, int device,
                       uint8_t handle[NET_TABLE_HANDLE_BYTES], struct import_listener **out)
{
    struct import_listener *listener;
    bool lost;
    int result = fork_check();

    if (result == TCPX_SUCCESS)
        result = import_check_device(plugin, device);
    if (result != TCPX_SUCCESS)
        return result;
    listener = calloc(1, sizeof *listener);
    if (listener == NULL)
        return error_system(ENOMEM, "a listener");
    listener->plugin = plugin;
    listener->device = device;
    result = bounded_listen(plugin, device, listener->handle, &listener->raw, &lost);
    if (result != TCPX_SUCCESS) {
        if (!lost)
            free(listener);
        return result;
    }
    memcpy(handle, listener->handle, NET_TABLE_HANDLE_BYTES);
    *out = listener;
    return TCPX_SUCCESS;
}

int import_listener_close(struct import_listener *listener)
{
    bool lost;
    int result = fork_check();

    if (listener == NULL || result != TCPX_SUCCESS)
        return result;
    if (listener->is_lost)
        return import_left_behind(listener->plugin);
    result = bounded_close_listen(listener->plugin, listener->raw, &lost);
    if (!lost)
        free(listener);
    return result;
}

/* --- accepting ----------------------------------------------------------------------------- */

/* Reads the handle that lies in GPU memory, once for the life of the comm. */
static int read_device_handle(struct gpu *gpu, const void *at, struct unpack_device_handle *handle)
{
    enum { LIMIT_MS = 10000 };
    struct gpu_stream *stream;
    struct gpu_event *event = NULL;
    int result = gpu_stream_create(gpu, &stream);

    if (result != TCPX_SUCCESS)
        return result;
    result = gpu_event_create(gpu, &event);
    if (result == TCPX_SUCCESS)
        result = gpu_copy_to_host(stream, handle, (uintptr_t)at, sizeof *handle);
    if (result == TCPX_SUCCESS)
        result = gpu_event_record(event, stream);
    if (result == TCPX_SUCCESS)
        result = gpu_event_wait(event, deadline_after_ms(LIMIT_MS));
    gpu_event_destroy(event);
    gpu_stream_destroy(stream);
    return result;
}

static int find_queue(struct import_comm *comm)
{
    struct unpack_device_handle handle;
    struct gpu_pointer queue;
    struct gpu_pointer bounce;
    int result = read_device_handle(comm->gpu, comm->on_gpu.handle, &handle);

    if (result == TCPX_SUCCESS)
        result = gpu_classify(handle.queue, sizeof *handle.queue, &queue);
    if (result == TCPX_SUCCESS)
        result = gpu_classify(handle.bounce, 1, &bounce);
    if (result != TCPX_SUCCESS)
        return result;
    if (queue.host == NULL)
        return error_set(TCPX_INVALID_USAGE, "%s: its unpack queue is memory that no CPU reaches",
                         comm->plugin->table.name);
    comm->queue = queue.host;
    comm->queue_device = (uintptr_t)handle.queue;
    comm->bounce = (uintptr_t)handle.bounce;
    comm->bounce_host = bounce.host;
    return TCPX_SUCCESS;
}

static int open_queue(struct import_comm *comm)
{
    const uint32_t longest_unpacked = UNPACK_MAX_MESSAGE;
    const struct net_device_handle *on_gpu = &comm->on_gpu;
    bool known;
    int device;
    int result;

    if (on_gpu->type != NET_DEVICE_UNPACK || on_gpu->handle == NULL)
        return TCPX_SUCCESS;
    comm->consumes = true;
    comm->longest = comm->longest < longest_unpacked ? comm->longest : longest_unpacked;
    comm->steered = comm->plugin->quirks->steers;
    result = import_reaches_gpus(comm->plugin, &known);
    if (result == TCPX_SUCCESS && !known && comm->steered)
        return error_set(TCPX_INVALID_USAGE,
                         "%s receives into GPU memory only, and UCCL_TCPX_GPU=host leaves none",
                         comm->plugin->table.name);
    if (result == TCPX_SUCCESS && comm->steered)
        result = import_comm_check_pci_path(comm);
    if (result != TCPX_SUCCESS || !known)
        return result;
    if (on_gpu->version != UNPACK_VERSION)
        return error_set(TCPX_INVALID_USAGE, "%s: its unpack queue is of version %d, not %d",
                         comm->plugin->table.name, on_gpu->version, UNPACK_VERSION);
    result = gpu_of_caller(&device);
    if (result == TCPX_SUCCESS)
        result = gpu_open(device, &comm->gpu);
    if (result == TCPX_SUCCESS)
        result = find_queue(comm);
    return result;
}

int import_comm_accept(struct import_listener *listener, struct import_comm **out)
{
    const struct import_plugin *plugin = listener->plugin;
    struct import_comm *comm = NULL;
    void *raw = NULL;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (listener->is_lost)
        return import_left_behind(plugin);
    if (listener->served && plugin->quirks->one_peer)
        return error_set(TCPX_INVALID_USAGE, "%s takes one peer for each listener",
                         plugin->table.name);
    result = bounded_accept(plugin, listener->raw, &raw, &listener->on_gpu, &listener->is_lost);
    if (result != TCPX_SUCCESS)
        return result;
    if (raw == NULL) {
        *out = NULL;
        return TCPX_SUCCESS;
    }
    listener->served = true;
    result = import_comm_create(plugin, listener->device, raw, false, listener->handle, &comm);
    if (result != TCPX_SUCCESS)
        return result;
    comm->on_gpu = listener->on_gpu;
    listener->on_gpu = (struct net_device_handle){0};
    result = open_queue(comm);
    if (result != TCPX_SUCCESS) {
        char text[400];

        snprintf(text, sizeof text, "%s", error_text());
        if (import_comm_close(comm, true) != TCPX_SUCCESS)
            log_warn("%s", error_text());
        return error_set(result, "%s", text);
    }
    *out = comm;
    return TCPX_SUCCESS;
}

/* --- connecting ---------------------------------------------------------------------------- */

/* The plugin's copy of a handle, in which it keeps its state. */
struct attempt {
    struct attempt *next;
    const struct import_plugin *plugin;
    const void *where; /* the caller has its handle */
    uint8_t original[NET_TABLE_HANDLE_BYTES];
    bool busy;    /* a thread is in the plugin with it, */
    bool is_lost; /* and has not returned */
    uint8_t handle[NET_TABLE_HANDLE_BYTES];
};

static pthread_mutex_t attempts_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list */
static struct attempt *attempts;

static struct attempt *find_attempt(const struct import_plugin *plugin, const uint8_t *handle)
{
    struct attempt *attempt = attempts;

    while (attempt != NULL && (attempt->where != handle || attempt->plugin != plugin ||
                               memcmp(attempt->original, handle, sizeof attempt->original) != 0))
        attempt = attempt->next;
    return attempt;
}

static struct attempt *begin_attempt(const struct import_plugin *plugin, const uint8_t *handle)
{
    struct attempt *attempt = calloc(1, sizeof *attempt);

    if (attempt == NULL)
        return NULL;
    attempt->plugin = plugin;
    attempt->where = handle;
    memcpy(attempt->original, handle, sizeof attempt->original);
    memcpy(attempt->handle, handle, sizeof attempt->handle);
    memset(attempt->handle + plugin->quirks->state_at, 0, plugin->quirks->state_bytes);
    attempt->next = attempts;
    attempts = attempt;
    return attempt;
}

/* *attempt is NULL: another thread is in the plugin with it. */
static int take_attempt(const struct import_plugin *plugin, const uint8_t *handle,
                        struct attempt **attempt)
{
    struct attempt *found;
    int result = TCPX_SUCCESS;

    pthread_mutex_lock(&attempts_lock);
    found = find_attempt(plugin, handle);
    if (found == NULL)
        found = begin_attempt(plugin, handle);
    if (found == NULL)
        result = error_system(ENOMEM, "a connection");
    else if (found->is_lost)
        result = import_left_behind(plugin);
    else if (found->busy)
        found = NULL;
    else
        found->busy = true;
    pthread_mutex_unlock(&attempts_lock);
    *attempt = found;
    return result;
}

/* With the lock. */
static void end_attempt(struct attempt *attempt)
{
    struct attempt **at = &attempts;

    while (*at != attempt)
        at = &(*at)->next;
    *at = attempt->next;
    free(attempt);
}

static void give_attempt(struct attempt *attempt, bool has_ended)
{
    pthread_mutex_lock(&attempts_lock);
    attempt->busy = false;
    if (has_ended)
        end_attempt(attempt);
    pthread_mutex_unlock(&attempts_lock);
}

static void lose_attempt(struct attempt *attempt)
{
    pthread_mutex_lock(&attempts_lock);
    attempt->is_lost = true;
    pthread_mutex_unlock(&attempts_lock);
}

int import_comm_connect(const struct import_plugin *plugin, int device,
                        const uint8_t handle[NET_TABLE_HANDLE_BYTES], struct import_comm **out)
{
    struct attempt *attempt;
    void *raw = NULL;
    bool lost;
    int result = fork_check();

    *out = NULL;
    if (result == TCPX_SUCCESS)
        result = import_check_device(plugin, device);
    if (result == TCPX_SUCCESS)
        result = import_quirks_check_handle(plugin->quirks, plugin->table.name, handle);
    if (result == TCPX_SUCCESS)
        result = take_attempt(plugin, handle, &attempt);
    if (result != TCPX_SUCCESS || attempt == NULL)
        return result;
    result = bounded_connect(plugin, device, attempt->handle, &raw, &lost);
    if (lost) { /* the attempt is the plugin's */
        lose_attempt(attempt);
        return result;
    }
    if (result == TCPX_SUCCESS && raw != NULL)
        result = import_comm_create(plugin, device, raw, true, attempt->handle, out);
    give_attempt(attempt, result != TCPX_SUCCESS || raw != NULL);
    return result;
}

void import_comm_connect_forget(const struct import_plugin *plugin,
                                const uint8_t handle[NET_TABLE_HANDLE_BYTES])
{
    struct attempt *found;

    pthread_mutex_lock(&attempts_lock);
    found = find_attempt(plugin, handle);
    if (found != NULL && !found->busy) /* else a call with it has not returned */
        end_attempt(found);
    pthread_mutex_unlock(&attempts_lock);
}
