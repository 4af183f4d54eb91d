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

/* How many bytes, of `count`, lie before the first whole word of the pattern. */
static uint64_t pattern_head(uint64_t count, uint64_t position)
{
    uint64_t head = (8 - position % 8) % 8;

    return head < count ? head : count;
}

void pattern_fill(uint8_t *bytes, uint64_t count, uint64_t seed, uint64_t position)
{
    uint64_t i = 0;

    for (uint64_t head = pattern_head(count, position); i < head; i++)
        bytes[i] = pattern_byte(seed, position + i);
    for (uint64_t word = (position + i) / 8; count - i >= 8; i += 8, word++) {
        uint64_t value = pattern_word(seed, word);

        memcpy(bytes + i, &value, 8);
    }
    for (; i < count; i++)
        bytes[i] = pattern_byte(seed, position + i);
}

static uint64_t compare_bytes(const uint8_t *bytes, uint64_t from, uint64_t to, uint64_t seed,
                              uint64_t position, uint64_t *first)
{
    uint64_t differences = 0;

    for (uint64_t i = from; i < to; i++) {
        if (bytes[i] == pattern_byte(seed, position + i))
            continue;
        differences++;
        if (i < *first)
            *first = i;
    }
    return differences;
}

/* Of a few words at once it is first known whether any differs. */
uint64_t pattern_compare(const uint8_t *bytes, uint64_t count, uint64_t seed, uint64_t position,
                         uint64_t *first)
{
    enum { STEP = 64 };
    uint64_t i = pattern_head(count, position);
    uint64_t differences = compare_bytes(bytes, 0, i, seed, position, first);

    for (; count - i >= STEP; i += STEP) {
        uint64_t wrong = 0;

        for (uint64_t k = 0; k < STEP; k += 8) {
            uint64_t value;

            memcpy(&value, bytes + i + k, 8);
            wrong |= value ^ pattern_word(seed, (position + i + k) / 8);
        }
        if (wrong != 0)
            differences += compare_bytes(bytes, i, i + STEP, seed, position, first);
    }
    return differences + compare_bytes(bytes, i, count, seed, position, first);
}

static int twin_fill(const void *given)
{
    const struct kernel_fill *argument = given;
    uint8_t *bytes = host_memory_use("fill: write", argument->at, argument->bytes);

    if (bytes == NULL)
        return TCPX_CUDA_ERROR;
    pattern_fill(bytes, argument->bytes, argument->seed, argument->position);
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
    result->differences +=
        pattern_compare(bytes, expected->bytes, expected->seed, expected->position, &result->first);
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
