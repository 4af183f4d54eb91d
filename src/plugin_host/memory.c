/* Registers and deregisters memory of a plugin's comm. */
#include "plugin_host/memory.h"

#include "base/fork.h"
#include "plugin_host/bounded.h"
#include "plugin_host/comm_state.h"
#include "plugin_host/quirks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

int import_left_behind(const struct import_plugin *plugin)
{
    return error_set(TCPX_SYSTEM_ERROR,
                     "%s: a call has not returned, and what it works with stays as it is",
                     plugin->table.name);
}

/* A plugin that uses the NIC's PCI path unchecked crashes where there is none. */
int import_comm_check_pci_path(const struct import_comm *comm)
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

/* With the lock. A comm that a call has not returned from fails for good. */
static int call_with_comm(struct import_comm *comm, enum bounded_kind kind,
                          struct bounded_call *call)
{
    int result =
        comm->is_lost ? import_left_behind(comm->plugin) : bounded_call(comm->plugin, kind, call);

    comm->is_lost |= call->is_lost;
    if (comm->is_lost && comm->failure == TCPX_SUCCESS) {
        comm->failure = TCPX_SYSTEM_ERROR;
        snprintf(comm->why, sizeof comm->why, "%s", error_text());
    }
    return result;
}

int import_comm_register_locked(struct import_comm *comm, void *data, size_t bytes, int type,
                                struct import_memory **out)
{
    struct bounded_call call = {.object = comm->raw, .data = data, .bytes = bytes, .type = type};
    struct import_memory *memory = calloc(1, sizeof *memory);
    int result;

    if (memory == NULL)
        return error_system(ENOMEM, "a registration");
    result = call_with_comm(comm, BOUNDED_REGISTER, &call);
    if (result != TCPX_SUCCESS) {
        free(memory);
        return result;
    }
    *memory = (struct import_memory){
        .next = comm->memories, .raw = call.out, .data = data, .bytes = bytes, .type = type};
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
                         "memory of type %d: expected NCCL_PTR_HOST (1) or NCCL_PTR_CUDA (2)",
                         type);
    if (type == NET_POINTER_CUDA)
        result = import_comm_check_pci_path(comm);
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
        result = error_set(TCPX_INVALID_ARGUMENT, "%p is not a registration of this comm",
                           (void *)memory);
    } else {
        struct bounded_call call = {.object = comm->raw, .data = memory->raw};

        *at = memory->next;
        result = call_with_comm(comm, BOUNDED_DEREGISTER, &call);
        free(memory);
    }
    pthread_mutex_unlock(&comm->lock);
    return result;
}
