/* Opens comms and registers memory. */
#include "net/transport.h"

#include "base/fork.h"
#include "gpu/gpu.h"
#include "net/comm/for_movers.h"
#include "net/gpu/gpu_mover.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

int net_comm_create(const struct net_link *link, enum net_side side, struct net_comm **out)
{
    struct net_comm *comm;
    int result = comm_create(link, side, &comm);

    if (result != TCPX_SUCCESS)
        return result;
    /* Payload for host memory arrives in device memory, too. */
    if (link->devmem != NULL)
        result = gpu_mover_attach(comm, devmem_pool_gpu(link->devmem->pool));
    if (result != TCPX_SUCCESS) {
        char why[sizeof comm->text];

        snprintf(why, sizeof why, "%s", error_text());
        net_comm_close(comm);
        return error_set(result, "%s", why);
    }
    *out = comm;
    return TCPX_SUCCESS;
}

static void transport_release_host(struct net_memory *memory)
{
    free(memory);
}

static int transport_register_host(struct net_comm *comm, struct net_memory **out)
{
    struct net_memory *memory = calloc(1, sizeof *memory);

    if (memory == NULL)
        return error_system(ENOMEM, "a registration");
    *memory = (struct net_memory){
        .source = &source_host, .sink = &sink_host, .release = transport_release_host};
    memory_add(comm, memory);
    *out = memory;
    return TCPX_SUCCESS;
}

int net_register(struct net_comm *comm, void *address, uint64_t bytes, struct net_memory **memory)
{
    struct gpu_pointer pointer = {.kind = GPU_POINTER_HOST};
    bool is_managed;
    int result = fork_check();

    if (result == TCPX_SUCCESS && bytes > 0)
        result = gpu_classify(address, bytes, &pointer);
    if (result != TCPX_SUCCESS)
        return result;
    is_managed = pointer.kind == GPU_POINTER_MANAGED;
    if (pointer.kind != GPU_POINTER_DEVICE && !is_managed)
        return transport_register_host(comm, memory);
    result = gpu_mover_attach(comm, pointer.device);
    if (result == TCPX_SUCCESS)
        result = gpu_mover_register(comm, address, bytes, is_managed, memory);
    return result;
}

int net_register_gpu(struct net_comm *comm, int device, struct net_memory **memory)
{
    int result = fork_check();

    if (result == TCPX_SUCCESS)
        result = gpu_mover_attach(comm, device);
    return result == TCPX_SUCCESS ? gpu_mover_register(comm, NULL, 0, true, memory) : result;
}

void net_deregister(struct net_comm *comm, struct net_memory *memory)
{
    if (memory == NULL || fork_check() != TCPX_SUCCESS)
        return;
    memory_remove(comm, memory);
}

int net_unpack_open(struct net_comm *comm, int device, uint32_t largest,
                    struct net_device_handle *handle)
{
    int result = fork_check();

    if (result == TCPX_SUCCESS)
        result = gpu_mover_attach_for_unpack(comm, device);
    return result == TCPX_SUCCESS ? unpack_queue_open(comm, device, largest, handle) : result;
}
