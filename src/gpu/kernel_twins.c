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

static int unpack(const struct kernel_unpack *argument, kernel_resolve *resolve)
{
    uint64_t bytes = argument->count * sizeof(struct unpack_descriptor);
    const struct unpack_descriptor *descriptors = resolve(argument->descriptors, bytes);

    if (descriptors == NULL)
        return illegal_address("unpack: read of descriptors", argument->descriptors, bytes);
    for (uint64_t i = 0; i < argument->count; i++) {
        gpu_address from = argument->bounce + descriptors[i].source_offset;
        gpu_address to = argument->destination + descriptors[i].destination_offset;
        uint32_t length = descriptors[i].length;
        const void *source;
        void *destination;

        if (length == 0)
            continue;
        source = resolve(from, length);
        if (source == NULL)
            return illegal_address("unpack: read", from, length);
        destination = resolve(to, length);
        if (destination == NULL)
            return illegal_address("unpack: write", to, length);
        memcpy(destination, source, length);
    }
    return TCPX_SUCCESS;
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

size_t kernel_argument_size(enum gpu_kernel kernel)
{
    static const size_t sizes[GPU_KERNELS] = {
        [GPU_KERNEL_UNPACK] = sizeof(struct kernel_unpack),
        [GPU_KERNEL_FILL] = sizeof(struct kernel_fill),
        [GPU_KERNEL_VERIFY] = sizeof(struct kernel_verify),
    };

    return sizes[kernel];
}

const char *kernel_name(enum gpu_kernel kernel)
{
    static const char *const names[GPU_KERNELS] = {
        [GPU_KERNEL_UNPACK] = "tcpx_unpack",
        [GPU_KERNEL_FILL] = "tcpx_fill",
        [GPU_KERNEL_VERIFY] = "tcpx_verify",
    };

    return names[kernel];
}

int kernel_twin_run(enum gpu_kernel kernel, const void *argument, kernel_resolve *resolve)
{
    switch (kernel) {
    case GPU_KERNEL_UNPACK:
        return unpack(argument, resolve);
    case GPU_KERNEL_FILL:
        return fill(argument, resolve);
    case GPU_KERNEL_VERIFY:
        return verify(argument, resolve);
    case GPU_KERNELS:
        break;
    }
    return error_set(TCPX_INTERNAL_ERROR, "there is no kernel %d", (int)kernel);
}
