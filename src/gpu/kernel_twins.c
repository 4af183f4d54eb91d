/* The C twins of unpack_kernels.cu: plain loops, written to be obviously right. */
#include "gpu/kernel_twins.h"

#include "abi/unpack_queue.h"
#include "gpu/kernels.h"

#include <string.h>

static int illegal_address(const char *what, gpu_address address, uint64_t bytes)
{
    return error_set(TCPX_CUDA_ERROR, "%s of %llu bytes at 0x%llx: not inside GPU memory", what,
                     (unsigned long long)bytes, (unsigned long long)address);
}

static int copy(const char *what, gpu_address to, gpu_address from, uint64_t bytes,
                kernel_resolve *resolve)
{
    const void *source;
    void *destination;

    if (bytes == 0)
        return TCPX_SUCCESS;
    source = resolve(from, bytes);
    if (source == NULL)
        return illegal_address(what, from, bytes);
    destination = resolve(to, bytes);
    if (destination == NULL)
        return illegal_address(what, to, bytes);
    memcpy(destination, source, bytes);
    return TCPX_SUCCESS;
}

static int unpack_list(const struct kernel_unpack_list *list, uint32_t longest,
                       kernel_resolve *resolve)
{
    uint64_t bytes = list->count * sizeof(struct unpack_descriptor);
    const struct unpack_descriptor *descriptors = resolve(list->descriptors, bytes);
    int result = TCPX_SUCCESS;

    if (list->count == 0)
        return TCPX_SUCCESS;
    if (descriptors == NULL)
        return illegal_address("unpack: descriptors", list->descriptors, bytes);
    for (uint64_t i = 0; i < list->count && result == TCPX_SUCCESS; i++)
        if (descriptors[i].length <= longest)
            result =
                copy("unpack", list->destination + descriptors[i].destination_offset,
                     list->bounce + descriptors[i].source_offset, descriptors[i].length, resolve);
    return result;
}

static int unpack(const struct kernel_unpack *argument, kernel_resolve *resolve)
{
    int result = TCPX_SUCCESS;

    for (uint32_t i = 0; i < argument->list_count && result == TCPX_SUCCESS; i++)
        result = unpack_list(&argument->lists[i], argument->longest, resolve);
    return result;
}

static int copy_runs(const struct kernel_copy *argument, kernel_resolve *resolve)
{
    const struct kernel_run *runs = argument->runs;
    int result = TCPX_SUCCESS;

    for (uint32_t i = 0; i < argument->run_count && result == TCPX_SUCCESS; i++)
        result = copy("copy", runs[i].to, runs[i].from, runs[i].bytes, resolve);
    return result;
}

static int fill(const struct kernel_fill *argument, kernel_resolve *resolve)
{
    uint8_t *bytes = resolve(argument->at, argument->bytes);

    if (bytes == NULL)
        return illegal_address("fill: write", argument->at, argument->bytes);
    for (uint64_t i = 0; i < argument->bytes; i++)
        bytes[i] = pattern_byte(argument->seed, argument->position + i);
    return TCPX_SUCCESS;
}

static int verify(const struct kernel_verify *argument, kernel_resolve *resolve)
{
    const struct kernel_fill *expected = &argument->expected;
    const uint8_t *bytes = resolve(expected->at, expected->bytes);
    struct gpu_verify_result *result = resolve(argument->result, sizeof *result);

    if (bytes == NULL)
        return illegal_address("verify: read", expected->at, expected->bytes);
    if (result == NULL)
        return illegal_address("verify: write of its result", argument->result, sizeof *result);
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
static const struct {
    const char *name;
    size_t argument_size;
} kernels[] = {
    [GPU_KERNEL_UNPACK] = {"tcpx_unpack", sizeof(struct kernel_unpack)},
    [GPU_KERNEL_COPY] = {"tcpx_copy", sizeof(struct kernel_copy)},
    [GPU_KERNEL_FILL] = {"tcpx_fill", sizeof(struct kernel_fill)},
    [GPU_KERNEL_VERIFY] = {"tcpx_verify", sizeof(struct kernel_verify)},
    [GPU_KERNEL_EMPTY] = {"tcpx_empty", sizeof(struct kernel_empty)},
};
/* clang-format on */

_Static_assert(sizeof kernels / sizeof *kernels == GPU_KERNELS, "every kernel has a row");

size_t kernel_argument_size(enum gpu_kernel kernel)
{
    return kernels[kernel].argument_size;
}

const char *kernel_name(enum gpu_kernel kernel)
{
    return kernels[kernel].name;
}

int kernel_twin_run(enum gpu_kernel kernel, const void *argument, kernel_resolve *resolve)
{
    switch (kernel) {
    case GPU_KERNEL_UNPACK:
        return unpack(argument, resolve);
    case GPU_KERNEL_COPY:
        return copy_runs(argument, resolve);
    case GPU_KERNEL_FILL:
        return fill(argument, resolve);
    case GPU_KERNEL_VERIFY:
        return verify(argument, resolve);
    case GPU_KERNEL_EMPTY:
        return TCPX_SUCCESS;
    case GPU_KERNELS:
        break;
    }
    return error_set(TCPX_INTERNAL_ERROR, "there is no kernel %d", (int)kernel);
}
