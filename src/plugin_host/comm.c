/* The comms of all plugins: how they come into being and end, and their memories. */
#include "base/clock.h"
#include "base/fork.h"
#include "plugin_host/bounded.h"
#include "plugin_host/comm_state.h"
#include "plugin_host/held.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Of a comm or listener that a call has not returned with. */
static int left_behind(const struct import_plugin *plugin)
{
    return error_set(TCPX_SYSTEM_ERROR,
                     "%s: a call has not returned, and what it works with stays as it is",
                     plugin->table.name);
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
    struct import_listener *listener;
    bool lost;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (device < 0 || device >= plugin->devices)
        return error_set(TCPX_INVALID_ARGUMENT, "device %d: %s has %d, from 0", device,
                         plugin->table.name, plugin->devices);
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
        return left_behind(listener->plugin);
    result = bounded_close_listen(listener->plugin, listener->raw, &lost);
    if (!lost)
        free(listener);
    return result;
}

/* --- making comms -------------------------------------------------------------------------- */

static int close_raw(const struct import_plugin *plugin, void *raw, bool sends, bool *lost)
{
    return sends ? bounded_close_send(plugin, raw, lost) : bounded_close_recv(plugin, raw, lost);
}

static int make_comm(const struct import_plugin *plugin, int device, void *raw, bool sends,
                     const uint8_t *handle, struct import_comm **out)
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
    memcpy(comm->handle, handle, sizeof comm->handle);
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

/* Reads the handle that lies in GPU memory, once for the life of the comm. */
static int read_device_handle(struct gpu *gpu, const void *at, struct unpack_device_handle *handle)
{
    enum { LIMIT_MS = 10000 };
    struct gpu_stream *stream;
    struct gpu_event *event = NULL;
    int result = gpu_stream_create(gpu, &stream);

    if (result != TCPX_SUCCESS)
        return result;
    result = gpu_event_create(gpu, GPU_EVENT_PLAIN, &event);
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

/* A plugin that follows the NIC's PCI path without a look crashes where there is none. */
static int check_pci_path(const struct import_comm *comm)
{
    const struct import_plugin *plugin = comm->plugin;
    struct net_properties_v12 properties = {0};
    int result = TCPX_SUCCESS;

    if (!plugin->quirks->needs_pci_path)
        return TCPX_SUCCESS;
    result = bounded_properties(plugin, comm->device, &properties);
    if (result == TCPX_SUCCESS && properties.pci_path == NULL)
        return error_set(
            TCPX_INVALID_USAGE, "%s: %s has no PCI path, without which it cannot use GPU memory",
            plugin->table.name, properties.name != NULL ? properties.name : "its device");
    return result;
}

static int open_queue(struct import_comm *comm)
{
    const struct net_device_handle *on_gpu = &comm->on_gpu;
    bool known;
    int device;
    int result;

    if (on_gpu->type != NET_DEVICE_UNPACK || on_gpu->handle == NULL)
        return TCPX_SUCCESS;
    comm->consumes = true;
    comm->steered = comm->plugin->quirks->steers;
    result = import_reaches_gpus(comm->plugin, &known);
    if (result == TCPX_SUCCESS && !known && comm->steered)
        return error_set(TCPX_INVALID_USAGE,
                         "%s receives into GPU memory only, and UCCL_TCPX_GPU=host leaves none",
                         comm->plugin->table.name);
    if (result == TCPX_SUCCESS && comm->steered)
        result = check_pci_path(comm);
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
        return left_behind(plugin);
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
    result = make_comm(plugin, listener->device, raw, false, listener->handle, &comm);
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
    const void *where;
    bool busy;    /* a thread is in the plugin with it, */
    bool is_lost; /* and has not returned */
    uint8_t said[NET_TABLE_HANDLE_BYTES];
    uint8_t handle[NET_TABLE_HANDLE_BYTES];
};

static pthread_mutex_t attempts_lock = PTHREAD_MUTEX_INITIALIZER;
static struct attempt *attempts;

static struct attempt *find_attempt(const struct import_plugin *plugin, const uint8_t *handle)
{
    struct attempt *attempt = attempts;

    while (attempt != NULL && (attempt->where != handle || attempt->plugin != plugin ||
                               memcmp(attempt->said, handle, sizeof attempt->said) != 0))
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
    memcpy(attempt->said, handle, sizeof attempt->said);
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
        result = left_behind(plugin);
    else if (found->busy)
        found = NULL;
    else
        found->busy = true;
    pthread_mutex_unlock(&attempts_lock);
    *attempt = found;
    return result;
}

static void give_attempt(struct attempt *attempt, bool has_ended)
{
    struct attempt **at = &attempts;

    pthread_mutex_lock(&attempts_lock);
    attempt->busy = false;
    while (has_ended && *at != attempt)
        at = &(*at)->next;
    if (has_ended) {
        *at = attempt->next;
        free(attempt);
    }
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
    if (result != TCPX_SUCCESS)
        return result;
    if (device < 0 || device >= plugin->devices)
        return error_set(TCPX_INVALID_ARGUMENT, "device %d: %s has %d, from 0", device,
                         plugin->table.name, plugin->devices);
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
        result = make_comm(plugin, device, raw, true, attempt->handle, out);
    give_attempt(attempt, result != TCPX_SUCCESS || raw != NULL);
    return result;
}

void import_comm_connect_forget(const struct import_plugin *plugin,
                                const uint8_t handle[NET_TABLE_HANDLE_BYTES])
{
    struct attempt **at = &attempts;
    struct attempt *found;

    pthread_mutex_lock(&attempts_lock);
    found = find_attempt(plugin, handle);
    if (found != NULL && found->busy) /* a call with it has not returned */
        found = NULL;
    while (found != NULL && *at != found)
        at = &(*at)->next;
    if (found != NULL)
        *at = found->next;
    pthread_mutex_unlock(&attempts_lock);
    free(found);
}

/* --- ending -------------------------------------------------------------------------------- */

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
        return left_behind(comm->plugin);
    result = close_raw(comm->plugin, comm->raw, comm->sends, &lost);
    if (!lost)
        free_comm(comm);
    return result;
}

/* --- what it is ---------------------------------------------------------------------------- */

const struct net_device_handle *import_comm_device_handle(const struct import_comm *comm)
{
    return &comm->on_gpu;
}

size_t import_comm_longest(const struct import_comm *comm)
{
    const uint32_t most = UNPACK_MAX_MESSAGE;

    return comm->consumes && comm->longest > most ? most : comm->longest;
}

bool import_comm_unpacks(const struct import_comm *comm)
{
    return comm->queue != NULL;
}

bool import_comm_is_steered(const struct import_comm *comm)
{
    return comm->steered;
}

/* --- memories ------------------------------------------------------------------------------ */

void import_comm_fail_if_lost(struct import_comm *comm)
{
    if (!comm->is_lost || comm->failure != TCPX_SUCCESS)
        return;
    comm->failure = TCPX_SYSTEM_ERROR;
    snprintf(comm->why, sizeof comm->why, "%s", error_text());
}

int import_comm_register_locked(struct import_comm *comm, void *data, size_t bytes, int type,
                                struct import_memory **out)
{
    struct import_memory *memory = calloc(1, sizeof *memory);
    int result;

    if (memory == NULL)
        return error_system(ENOMEM, "a registration");
    *memory = (struct import_memory){.data = data, .bytes = bytes, .type = type};
    result = comm->is_lost ? left_behind(comm->plugin)
                           : bounded_register(comm->plugin, comm->raw, data, bytes, type,
                                              &memory->raw, &comm->is_lost);
    if (result != TCPX_SUCCESS) {
        import_comm_fail_if_lost(comm);
        free(memory);
        return result;
    }
    memory->next = comm->memories;
    comm->memories = memory;
    *out = memory;
    return TCPX_SUCCESS;
}

int import_comm_register(struct import_comm *comm, void *data, size_t bytes, int type,
                         struct import_memory **out)
{
    bool known = true;
    int result = fork_check();

    if (result == TCPX_SUCCESS && type == NET_POINTER_CUDA)
        result = import_reaches_gpus(comm->plugin, &known);
    if (result != TCPX_SUCCESS)
        return result;
    if (!known)
        return error_set(TCPX_INVALID_USAGE, "%s cannot reach memory of an emulated GPU",
                         comm->plugin->table.name);
    if (type != NET_POINTER_HOST && type != NET_POINTER_CUDA)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "memory of type %d: NCCL_PTR_HOST (1) and NCCL_PTR_CUDA (2) exist", type);
    if (type == NET_POINTER_CUDA)
        result = check_pci_path(comm);
    if (result != TCPX_SUCCESS)
        return result;
    pthread_mutex_lock(&comm->lock);
    result = import_comm_register_locked(comm, data, bytes, type, out);
    pthread_mutex_unlock(&comm->lock);
    return result;
}

int import_comm_deregister(struct import_comm *comm, struct import_memory *memory)
{
    struct import_memory **at = &comm->memories;
    int result = fork_check();

    if (result != TCPX_SUCCESS || memory == NULL)
        return result;
    pthread_mutex_lock(&comm->lock);
    while (*at != NULL && *at != memory)
        at = &(*at)->next;
    if (*at == NULL) {
        result =
            error_set(TCPX_INVALID_ARGUMENT, "%p is no registration of this comm", (void *)memory);
    } else {
        *at = memory->next;
        result = comm->is_lost
                     ? left_behind(comm->plugin)
                     : bounded_deregister(comm->plugin, comm->raw, memory->raw, &comm->is_lost);
        import_comm_fail_if_lost(comm);
        free(memory);
    }
    pthread_mutex_unlock(&comm->lock);
    return result;
}
