/* GPU memory for callers without CUDA. */
#include "base/checked.h"
#include "base/clock.h"
#include "base/fork.h"
#include "gpu/gpu.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

/* Memory of tcpx_gpu_alloc(), found by its address. */
struct allocation {
    struct allocation *next;
    struct gpu *gpu;
    struct gpu_memory memory;
};

static struct allocation *allocations;
static pthread_mutex_t allocations_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list */

int tcpx_gpu_alloc(int gpu, uint64_t bytes, void **address)
{
    enum { ALIGNMENT = 65536, PAGE = 4096 }; /* also good for a dma-buf, */
    struct allocation *allocation;
    uint64_t whole_pages; /* as plugins want them */
    int result;

    if (address == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "tcpx_gpu_alloc: address is NULL");
    if (!checked_align_up(bytes, PAGE, &whole_pages))
        return error_set(TCPX_INVALID_ARGUMENT, "tcpx_gpu_alloc: cannot allocate %llu bytes",
                         (unsigned long long)bytes);
    allocation = calloc(1, sizeof *allocation);
    if (allocation == NULL)
        return error_system(ENOMEM, "an allocation");
    result = gpu_open(gpu, &allocation->gpu);
    if (result == TCPX_SUCCESS)
        result = gpu_memory_alloc(allocation->gpu, whole_pages, ALIGNMENT, &allocation->memory);
    if (result != TCPX_SUCCESS) {
        gpu_close(allocation->gpu);
        free(allocation);
        return result;
    }
    pthread_mutex_lock(&allocations_lock);
    allocation->next = allocations;
    allocations = allocation;
    pthread_mutex_unlock(&allocations_lock);
    *address = (void *)(uintptr_t)allocation->memory.address;
    return TCPX_SUCCESS;
}

int tcpx_gpu_free(void *address)
{
    struct allocation **at = &allocations;
    struct allocation *allocation;
    int result = fork_check();

    if (result != TCPX_SUCCESS || address == NULL)
        return result;
    pthread_mutex_lock(&allocations_lock);
    while (*at != NULL && (*at)->memory.address != (uintptr_t)address)
        at = &(*at)->next;
    allocation = *at;
    if (allocation != NULL)
        *at = allocation->next;
    pthread_mutex_unlock(&allocations_lock);
    if (allocation == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "%p is not from tcpx_gpu_alloc", address);
    gpu_memory_free(allocation->gpu, &allocation->memory);
    gpu_close(allocation->gpu);
    free(allocation);
    return TCPX_SUCCESS;
}

/* --- copies -------------------------------------------------------------------------------- */

/* Opens the GPU that `address` is on. */
static int open_gpu_of(const void *address, uint64_t bytes, struct gpu **gpu)
{
    struct gpu_pointer pointer;
    int result = gpu_classify(address, bytes, &pointer);

    if (result != TCPX_SUCCESS)
        return result;
    if (pointer.kind == GPU_POINTER_HOST)
        return error_set(TCPX_INVALID_ARGUMENT, "%llu bytes at %p are not memory of a GPU",
                         (unsigned long long)bytes, address);
    return gpu_open(pointer.device >= 0 ? pointer.device : 0, gpu);
}

static int copy_gpu_memory(void *to_host, const void *from_host, const void *on_gpu, uint64_t bytes)
{
    struct gpu *gpu = NULL;
    struct gpu_stream *stream = NULL;
    struct gpu_event *event = NULL;
    int result = fork_check();

    if (result != TCPX_SUCCESS || bytes == 0)
        return result;
    result = open_gpu_of(on_gpu, bytes, &gpu);
    if (result == TCPX_SUCCESS)
        result = gpu_stream_create(gpu, &stream);
    if (result == TCPX_SUCCESS)
        result = gpu_event_create(gpu, &event);
    if (result == TCPX_SUCCESS)
        result = to_host != NULL ? gpu_copy_to_host(stream, to_host, (uintptr_t)on_gpu, bytes)
                                 : gpu_copy_to_device(stream, (uintptr_t)on_gpu, from_host, bytes);
    if (result == TCPX_SUCCESS)
        result = gpu_event_record(event, stream);
    if (result == TCPX_SUCCESS)
        result = gpu_event_wait(event, DEADLINE_NEVER);
    gpu_event_destroy(event);
    gpu_stream_destroy(stream);
    gpu_close(gpu);
    return result;
}

int tcpx_gpu_write(void *to_gpu, const void *from_host, uint64_t bytes)
{
    if (from_host == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "tcpx_gpu_write: from_host is NULL");
    return copy_gpu_memory(NULL, from_host, to_gpu, bytes);
}

int tcpx_gpu_read(void *to_host, const void *from_gpu, uint64_t bytes)
{
    if (to_host == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "tcpx_gpu_read: to_host is NULL");
    return copy_gpu_memory(to_host, NULL, from_gpu, bytes);
}
