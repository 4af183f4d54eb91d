/* Memory bound to queues, and the two system calls of a devmem socket. */
#include "net/devmem/devmem_kernel.h"

#include "base/config.h"
#include "net/devmem/devmem_queues.h"

#include <unistd.h>

/* Whole 2 MiB pages of the GPU, so that the NIC is told few and large pieces. */
enum { ALIGNMENT = 2 << 20 };

static int kernel_bind(struct devmem_memory *memory)
{
    struct devmem_queues *queues;
    int dmabuf = -1;
    int result =
        gpu_export_dmabuf(memory->gpu, memory->memory.address, memory->memory.bytes, &dmabuf);

    if (result != TCPX_SUCCESS)
        return result;
    result = devmem_queues_bind(memory->interface, memory->ifindex, dmabuf, &queues);
    close(dmabuf); /* the binding holds the memory by itself */
    if (result == TCPX_SUCCESS) {
        memory->own = queues;
        memory->dmabuf_id = devmem_queues_id(queues);
    }
    return result;
}

static int kernel_open(struct devmem_memory *memory)
{
    const struct config *config;
    uint64_t bytes;
    int result = config_get(&config);

    /* What is missing is reported before anything is changed or allocated. */
    if (result == TCPX_SUCCESS)
        result = devmem_queues_possible(memory->interface);
    if (result != TCPX_SUCCESS)
        return result;
    bytes = (config->devmem_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    result = gpu_memory_alloc(memory->gpu, bytes, ALIGNMENT, &memory->memory);
    if (result != TCPX_SUCCESS)
        return result;
    result = kernel_bind(memory);
    if (result != TCPX_SUCCESS)
        gpu_memory_free(memory->gpu, &memory->memory);
    return result;
}

static void kernel_close(struct devmem_memory *memory)
{
    devmem_queues_release(memory->own);
    gpu_memory_free(memory->gpu, &memory->memory);
}

static unsigned kernel_next_queue(struct devmem_memory *memory)
{
    return devmem_queues_next(memory->own);
}

static void kernel_unbind(struct devmem_memory *memory)
{
    devmem_queues_unbind(memory->own);
}

static int kernel_count_out(struct devmem_memory *memory, uint64_t *pages)
{
    return devmem_queues_count_out(memory->own, pages);
}

static ssize_t kernel_receive(struct devmem_socket *socket, struct msghdr *message, int flags)
{
    return recvmsg(socket->fd, message, flags);
}

static int kernel_return_tokens(struct devmem_socket *socket,
                                const struct devmem_token_range *ranges, unsigned count)
{
    return setsockopt(socket->fd, SOL_SOCKET, DEVMEM_SO_DONTNEED, ranges,
                      (socklen_t)(count * sizeof *ranges));
}

const struct devmem_pool_ops devmem_kernel_ops = {
    .open = kernel_open,
    .close = kernel_close,
    .next_queue = kernel_next_queue,
    .unbind = kernel_unbind,
    .count_out = kernel_count_out,
    .receive = kernel_receive,
    .return_tokens = kernel_return_tokens,
};
