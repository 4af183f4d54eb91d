/* Buffers of either memory, by the same pattern. */
#include "tools/buffer.h"

#include "base/clock.h"
#include "gpu/kernel_twins.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { LIMIT_MS = 120000, POISON = 0xee };

static int buffer_map(uint64_t bytes, void **data)
{
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    if (mapped == MAP_FAILED)
        return error_system(errno, "a buffer of %llu bytes", (unsigned long long)bytes);
    *data = mapped;
    return TCPX_SUCCESS;
}

int buffer_create(int gpu, uint64_t bytes, struct buffer *buffer)
{
    int result;

    *buffer = (struct buffer){.bytes = bytes, .in_gpu = gpu >= 0};
    if (gpu < 0)
        return buffer_map(bytes, &buffer->data);
    result = gpu_open(gpu, &buffer->gpu);
    if (result == TCPX_SUCCESS)
        result = gpu_stream_create(buffer->gpu, &buffer->stream);
    if (result == TCPX_SUCCESS)
        result = gpu_event_create(buffer->gpu, &buffer->event);
    if (result == TCPX_SUCCESS)
        result = gpu_memory_alloc(buffer->gpu, bytes, 4096, &buffer->memory);
    if (result == TCPX_SUCCESS)
        result =
            gpu_memory_alloc(buffer->gpu, sizeof(struct gpu_verify_result), 4096, &buffer->verdict);
    buffer->data = (void *)(uintptr_t)buffer->memory.address;
    return result;
}

void buffer_destroy(struct buffer *buffer)
{
    if (!buffer->in_gpu) {
        if (buffer->data != NULL)
            munmap(buffer->data, buffer->bytes);
        return;
    }
    if (buffer->gpu == NULL)
        return;
    gpu_memory_free(buffer->gpu, &buffer->verdict);
    gpu_memory_free(buffer->gpu, &buffer->memory);
    gpu_event_destroy(buffer->event);
    gpu_stream_destroy(buffer->stream);
    gpu_close(buffer->gpu);
}

static int buffer_finish(struct buffer *buffer, int result)
{
    if (result == TCPX_SUCCESS)
        result = gpu_event_record(buffer->event, buffer->stream);
    if (result == TCPX_SUCCESS)
        result = gpu_event_wait(buffer->event, deadline_after_ms(LIMIT_MS));
    return result;
}

int buffer_fill(struct buffer *buffer, uint64_t seed)
{
    if (buffer->in_gpu)
        return buffer_finish(buffer, gpu_fill_pattern(buffer->stream, buffer->memory.address,
                                                      buffer->bytes, seed, 0));
    pattern_fill(buffer->data, buffer->bytes, seed, 0);
    return TCPX_SUCCESS;
}

int buffer_poison(struct buffer *buffer)
{
    if (buffer->in_gpu)
        return buffer_finish(
            buffer, gpu_set(buffer->stream, buffer->memory.address, POISON, buffer->bytes));
    memset(buffer->data, POISON, buffer->bytes);
    return TCPX_SUCCESS;
}

int buffer_spoil(struct buffer *buffer, uint64_t seed)
{
    uint64_t place = buffer->bytes / 2;
    uint8_t wrong = pattern_byte(seed, place) ^ 1;

    if (buffer->in_gpu)
        return buffer_finish(buffer,
                             gpu_set(buffer->stream, buffer->memory.address + place, wrong, 1));
    ((uint8_t *)buffer->data)[place] = wrong;
    return TCPX_SUCCESS;
}

static int count_wrong_in_gpu(struct buffer *buffer, uint64_t seed, uint64_t *wrong)
{
    struct gpu_verify_result verdict;
    int result = gpu_verify_pattern(buffer->stream, buffer->memory.address, buffer->bytes, seed, 0,
                                    buffer->verdict.address);

    if (result == TCPX_SUCCESS)
        result =
            gpu_copy_to_host(buffer->stream, &verdict, buffer->verdict.address, sizeof verdict);
    result = buffer_finish(buffer, result);
    if (result == TCPX_SUCCESS)
        *wrong = verdict.differences;
    return result;
}

int buffer_count_wrong(struct buffer *buffer, uint64_t seed, uint64_t *wrong)
{
    uint64_t first = UINT64_MAX;

    if (buffer->in_gpu)
        return count_wrong_in_gpu(buffer, seed, wrong);
    *wrong = pattern_compare(buffer->data, buffer->bytes, seed, 0, &first);
    return TCPX_SUCCESS;
}
