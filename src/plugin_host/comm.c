/* How a plugin's comm begins and ends, and what it is. */
#include "plugin_host/comm.h"

#include "base/clock.h"
#include "base/fork.h"
#include "plugin_host/bounded.h"
#include "plugin_host/comm_state.h"
#include "plugin_host/held.h"
#include "plugin_host/host_receive.h"
#include "plugin_host/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int close_raw(const struct import_plugin *plugin, void *raw, bool sends, bool *lost)
{
    return sends ? bounded_close_send(plugin, raw, lost) : bounded_close_recv(plugin, raw, lost);
}

int import_comm_create(const struct import_plugin *plugin, int device, void *raw, bool sends,
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

const struct net_device_handle *import_comm_device_handle(const struct import_comm *comm)
{
    return &comm->on_gpu;
}

size_t import_comm_longest(const struct import_comm *comm)
{
    return comm->longest;
}

bool import_comm_unpacks(const struct import_comm *comm)
{
    return comm->queue != NULL;
}

bool import_comm_is_steered(const struct import_comm *comm)
{
    return comm->steered;
}
