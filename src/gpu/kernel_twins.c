/* The C twins of unpack_kernels.cu: plain loops, written to be obviously right. */
#include "gpu/kernel_twins.h"

#include "abi/unpack_queue.h"
#include "gpu/host_memory.h"

#include <string.h>

static int twin_copy(const char *what, gpu_address to, gpu_address from, uint64_t bytes)
{
    const void *source;
    void *destination;

    if (bytes == 0)
        return TCPX_SUCCESS;
    source = host_memory_use(what, from, bytes);
    destination = source != NULL ? host_memory_use(what, to, bytes) : NULL;
    if (destination == NULL)
        return TCPX_CUDA_ERROR;
    memcpy(destination, source, bytes);
    return TCPX_SUCCESS;
}

static int twin_unpack_list(const struct gpu_unpack_list *list, uint32_t longest)
{
    const struct unpack_descriptor *descriptors;
    int result = TCPX_SUCCESS;

    if (list->count == 0)
        return TCPX_SUCCESS;
    descriptors = host_memory_use("unpack: descriptors", list->descriptors,
                                  list->count * sizeof *descriptors);
    if (descriptors == NULL)
        return TCPX_CUDA_ERROR;
    for (uint64_t i = 0; i < list->count && result == TCPX_SUCCESS; i++)
        if (descriptors[i].length <= longest)
            result = twin_copy("unpack", list->destination + descriptors[i].destination_offset,
                               list->bounce + descriptors[i].source_offset, descriptors[i].length);
    return result;
}

static int twin_unpack(const void *given)
{
    const struct kernel_unpack *argument = given;
    int result = TCPX_SUCCESS;

    for (uint32_t i = 0; i < argument->list_count && result == TCPX_SUCCESS; i++)
        result = twin_unpack_list(&argument->lists[i], argument->longest);
    return result;
}

static int twin_copy_runs(const void *given)
{
    const struct kernel_copy *argument = given;
    const struct gpu_run *runs = argument->runs;
    int result = TCPX_SUCCESS;

    for (uint32_t i = 0; i < argument->run_count && result == TCPX_SUCCESS; i++)
        result = twin_copy("copy", runs[i].to, runs[i].from, runs[i].bytes);
    return result;
}

static int twin_fill(const void *given)
{
    const struct kernel_fill *argument = given;
    uint8_t *bytes = host_memory_use("fill: write", argument->at, argument->bytes);

    if (bytes == NULL)
        return TCPX_CUDA_ERROR;
    for (uint64_t i = 0; i < argument->bytes; i++)
        bytes[i] = pattern_byte(argument->seed, argument->position + i);
    return TCPX_SUCCESS;
}

static int twin_verify(const void *given)
{
    const struct kernel_verify *argument = given;
    const struct kernel_fill *expected = &argument->expected;
    const uint8_t *bytes = host_memory_use("verify: read", expected->at, expected->bytes);
    struct gpu_verify_result *result =
        bytes != NULL
            ? host_memory_use("verify: write of its result", argument->result, sizeof *result)
            : NULL;

    if (result == NULL)
        return TCPX_CUDA_ERROR;
    for (uint64_t i = 0; i < expected->bytes; i++) {
        if (bytes[i] == pattern_byte(expected->seed, expected->position + i))
            continue;
        result->differences++;
        if (i < result->first)
            result->first = i;
    }
    return TCPX_SUCCESS;
}

/* clang-format off */
const struct kernel_twin kernel_twins[GPU_KERNELS] = {
    [GPU_KERNEL_UNPACK] = {"tcpx_unpack", sizeof(struct kernel_unpack), twin_unpack},
    [GPU_KERNEL_COPY] = {"tcpx_copy", sizeof(struct kernel_copy), twin_copy_runs},
    [GPU_KERNEL_FILL] = {"tcpx_fill", sizeof(struct kernel_fill), twin_fill},
    [GPU_KERNEL_VERIFY] = {"tcpx_verify", sizeof(struct kernel_verify), twin_verify},
};
/* clang-format on */
