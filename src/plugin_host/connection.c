/*
 * How the comms of a plugin begin and end, and what they are: listeners, the unpack queues of
 * accepted comms, and attempts to connect.
 */
#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"
#include "plugin_host/bounded.h"
#include "plugin_host/comm_state.h"
#include "plugin_host/held.h"
#include "plugin_host/host_receive.h"
#include "plugin_host/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --- comms --------------------------------------------------------------------------------- */

static int close_raw(const struct import_plugin *plugin, void *raw, bool sends, bool *lost)
{
    struct bounded_call call = {.object = raw};
    int result = bounded_call(plugin, sends ? BOUNDED_CLOSE_SEND : BOUNDED_CLOSE_RECV, &call);

    *lost = call.is_lost;
    return result;
}

/* Of `raw`, a comm of the plugin, which belongs to it from now on, also after a failure. */
static int create_comm(const struct import_plugin *plugin, int device, void *raw, bool sends,
                       const uint8_t handle[NET_TABLE_HANDLE_BYTES], struct import_comm **out)
{
    struct import_comm *comm = calloc(1, sizeof *comm);
    size_t longest = import_longest(&plugin->table);
    bool lost;

    if (comm == NULL) {
        if (close_raw(plugin, raw, sends, &lost) != TCPX_SUCCESS)
            log_warn("%s", error_text());
        return error_system(ENOMEM, "a comm");
    }
    comm->plugin = plugin;
    comm->device = device;
    comm->raw = raw;
    comm->sends = sends;
    comm->longest = longest < plugin->longest ? longest : plugin->longest;
    memcpy(comm->handle, handle, NET_TABLE_HANDLE_BYTES);
    pthread_mutex_init(&comm->lock, NULL);
    *out = comm;
    return TCPX_SUCCESS;
}

static void free_comm(struct import_comm *comm)
{
    host_receive_end(comm);
    gpu_close(comm->gpu);
    pthread_mutex_destroy(&comm->lock);
    free(comm);
}

/* The peer may not have read the last records yet. */
static void let_peer_read(const struct import_comm *comm)
{
    const struct import_quirks *quirks = comm->plugin->quirks;
    uint64_t until = comm->last_send + (uint64_t)quirks->linger_ms * 1000000;
    uint64_t now = clock_now();

    if (!comm->sends || comm->last_send == 0 || !quirks->loses_at_close ||
        held_keep(quirks, comm->handle))
        return;
    log_warn("%s: the connections of a comm were not found; it is closed %u ms after its last send",
             comm->plugin->table.name, quirks->linger_ms);
    if (now < until)
        nanosleep(&(struct timespec){.tv_sec = (time_t)((until - now) / 1000000000),
                                     .tv_nsec = (long)((until - now) % 1000000000)},
                  NULL);
}

int import_comm_close(struct import_comm *comm, bool delivered)
{
    bool lost = false;
    int result = fork_check();

    if (comm == NULL || result != TCPX_SUCCESS)
        return result;
    if (!delivered)
        let_peer_read(comm);
    host_receive_drain(comm);
    while (comm->memories != NULL && !comm->is_lost)
        if (import_comm_deregister(comm, comm->memories) != TCPX_SUCCESS)
            log_debug("%s", error_text());
    if (comm->is_lost)
        return import_left_behind(comm->plugin);
    result = close_raw(comm->plugin, comm->raw, comm->sends, &lost);
    if (!lost)
        free_comm(comm);
    return result;
}

struct import_comm_facts import_comm_facts(const struct import_comm *comm)
{
    return (struct import_comm_facts){.longest = comm->longest,
                                      .unpacks = comm->queue != NULL,
                                      .steered = comm->steered,
                                      .on_gpu = &comm->on_gpu};
}

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
    struct bounded_call call = {.device = device};
    struct import_listener *listener;
    int result = fork_check();

    if (result == TCPX_SUCCESS)
        result = import_check_device(plugin, device);
    if (result != TCPX_SUCCESS)
        return result;
    listener = calloc(1, sizeof *listener);
    if (listener == NULL)
        return error_system(ENOMEM, "a listener");
    call.handle = listener->handle;
    result = bounded_call(plugin, BOUNDED_LISTEN, &call);
    if (result != TCPX_SUCCESS) {
        if (!call.is_lost)
            free(listener);
        return result;
    }
    listener->plugin = plugin;
    listener->device = device;
    listener->raw = call.out;
    memcpy(handle, listener->handle, NET_TABLE_HANDLE_BYTES);
    *out = listener;
    return TCPX_SUCCESS;
}

int import_listener_close(struct import_listener *listener)
{
    struct bounded_call call;
    int result = fork_check();

    if (listener == NULL || result != TCPX_SUCCESS)
        return result;
    if (listener->is_lost)
        return import_left_behind(listener->plugin);
    call = (struct bounded_call){.object = listener->raw};
    result = bounded_call(listener->plugin, BOUNDED_CLOSE_LISTEN, &call);
    if (!call.is_lost)
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
    int result = read_device_handle(comm->gpu, comm->on_gpu.handle, &handle);

    if (result == TCPX_SUCCESS)
        result = gpu_classify(handle.queue, sizeof *handle.queue, &queue);
    if (result != TCPX_SUCCESS)
        return result;
    log_debug("Device handle: meta=%p bounce_buf=%p head=%lld", (void *)handle.queue, handle.bounce,
              (long long)handle.head);
    if (queue.host == NULL)
        return error_set(TCPX_INVALID_USAGE, "%s: its unpack queue is memory that no CPU reaches",
                         comm->plugin->table.name);
    comm->queue = queue.host;
    comm->queue_device = (uintptr_t)handle.queue;
    comm->bounce = (uintptr_t)handle.bounce;
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
    struct bounded_call call = {.object = listener->raw, .on_gpu = &listener->on_gpu};
    struct import_comm *comm = NULL;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (listener->is_lost)
        return import_left_behind(plugin);
    if (listener->served && plugin->quirks->one_peer)
        return error_set(TCPX_INVALID_USAGE, "%s takes one peer for each listener",
                         plugin->table.name);
    result = bounded_call(plugin, BOUNDED_ACCEPT, &call);
    listener->is_lost = call.is_lost;
    if (result != TCPX_SUCCESS)
        return result;
    if (call.out == NULL) {
        *out = NULL;
        return TCPX_SUCCESS;
    }
    listener->served = true;
    result = create_comm(plugin, listener->device, call.out, false, listener->handle, &comm);
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

/* One that is lost is the plugin's, and stays busy. */
static void give_attempt(struct attempt *attempt, bool is_lost, bool has_ended)
{
    pthread_mutex_lock(&attempts_lock);
    attempt->busy = is_lost;
    attempt->is_lost = is_lost;
    if (has_ended)
        end_attempt(attempt);
    pthread_mutex_unlock(&attempts_lock);
}

int import_comm_connect(const struct import_plugin *plugin, int device,
                        const uint8_t handle[NET_TABLE_HANDLE_BYTES], struct import_comm **out)
{
    struct bounded_call call = {.device = device};
    struct attempt *attempt;
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
    call.handle = attempt->handle;
    result = bounded_call(plugin, BOUNDED_CONNECT, &call);
    if (result == TCPX_SUCCESS && call.out != NULL)
        result = create_comm(plugin, device, call.out, true, attempt->handle, out);
    give_attempt(attempt, call.is_lost,
                 !call.is_lost && (result != TCPX_SUCCESS || call.out != NULL));
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
