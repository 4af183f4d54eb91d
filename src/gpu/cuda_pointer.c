/*
 * Classifies addresses with the driver. An allocation may be one piece (cuMemAlloc,
 * cuMemAllocAsync, pinned, managed) or a row of mappings in reserved address space, as PyTorch's
 * expandable segments are, so a range is walked piece by piece. No context is needed or made.
 */
#include "gpu/cuda_pointer.h"

#include "gpu/cuda_driver.h"

struct piece {
    enum gpu_pointer_kind kind;
    int device;
    uint64_t start;
    uint64_t end;
    void *host;
    bool reserved_only; /* address space of the driver without memory behind it */
};

static int describe_piece(uint64_t address, struct piece *piece)
{
    unsigned memory_type = 0;
    unsigned managed = 0;
    int device = -1;
    uint64_t range_start = 0;
    size_t range_bytes = 0;
    uint64_t mapping_start = 0;
    size_t mapping_bytes = 0;
    void *host = NULL;
    int attributes[] = {CU_POINTER_MEMORY_TYPE,  CU_POINTER_IS_MANAGED,  CU_POINTER_DEVICE_ORDINAL,
                        CU_POINTER_RANGE_START,  CU_POINTER_RANGE_SIZE,  CU_POINTER_HOST,
                        CU_POINTER_MAPPING_BASE, CU_POINTER_MAPPING_SIZE};
    void *values[] = {&memory_type, &managed, &device,        &range_start,
                      &range_bytes, &host,    &mapping_start, &mapping_bytes};
    unsigned known = sizeof attributes / sizeof *attributes;
    cu_result error = cuda.cuPointerGetAttributes(known, attributes, values, address);

    if (error != CU_OK) /* a driver that does not know the last two yet: before CUDA 12 */
        error = cuda.cuPointerGetAttributes(known - 2, attributes, values, address);
    if (error != CU_OK)
        return cuda_error(error, "cuPointerGetAttributes of 0x%llx", (unsigned long long)address);
    if (mapping_bytes == 0) {
        mapping_start = range_start;
        mapping_bytes = range_bytes;
    }
    *piece = (struct piece){
        .kind = memory_type == CU_MEMORY_DEVICE
                    ? (managed != 0 ? GPU_POINTER_MANAGED : GPU_POINTER_DEVICE)
                : memory_type == CU_MEMORY_HOST ? GPU_POINTER_PINNED
                                                : GPU_POINTER_HOST,
        .device = device,
        /* A small allocation shares its mapping; a mapping may share its reserved range. */
        .start = mapping_start > range_start ? mapping_start : range_start,
        .end = mapping_start + mapping_bytes < range_start + range_bytes
                   ? mapping_start + mapping_bytes
                   : range_start + range_bytes,
        .host = memory_type == CU_MEMORY_HOST ? host : NULL,
        .reserved_only = memory_type == 0 && range_bytes != 0,
    };
    return TCPX_SUCCESS;
}

static const char *kind_name(const struct piece *piece)
{
    static const char *const names[] = {
        [GPU_POINTER_HOST] = "host memory",
        [GPU_POINTER_PINNED] = "pinned host memory",
        [GPU_POINTER_DEVICE] = "GPU memory",
        [GPU_POINTER_MANAGED] = "managed memory",
    };

    return piece->reserved_only ? "address space without memory" : names[piece->kind];
}

int cuda_classify(gpu_address address, uint64_t bytes, struct gpu_pointer *pointer)
{
    struct piece first;
    struct piece piece;
    uint64_t end = address + bytes;
    int result = describe_piece(address, &first);

    if (result != TCPX_SUCCESS)
        return result;
    if (first.reserved_only)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "0x%llx is address space that CUDA has reserved, with no memory mapped",
                         (unsigned long long)address);
    if (first.kind == GPU_POINTER_HOST) {
        /* The driver knows no bounds of ordinary memory; the kernel checks those. */
        *pointer = (struct gpu_pointer){.kind = GPU_POINTER_HOST,
                                        .device = -1,
                                        .base = address,
                                        .bytes = bytes,
                                        .one_allocation = true,
                                        .host = (void *)address};
        return TCPX_SUCCESS;
    }
    for (piece = first; piece.end < end;) {
        uint64_t at = piece.end;

        result = describe_piece(at, &piece);
        if (result != TCPX_SUCCESS)
            return result;
        if (piece.reserved_only || piece.kind != first.kind || piece.device != first.device ||
            piece.end <= at)
            return error_set(TCPX_INVALID_ARGUMENT,
                             "%llu bytes at 0x%llx are not one kind of memory: %s of GPU %d at "
                             "first, but %s of GPU %d at 0x%llx",
                             (unsigned long long)bytes, (unsigned long long)address,
                             kind_name(&first), first.device, kind_name(&piece), piece.device,
                             (unsigned long long)at);
    }
    *pointer = (struct gpu_pointer){.kind = first.kind,
                                    .device = first.device,
                                    .base = first.start,
                                    .bytes = first.end - first.start,
                                    .one_allocation = first.end >= end,
                                    .host = first.host};
    return TCPX_SUCCESS;
}
