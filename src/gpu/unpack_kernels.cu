// The GPU side of kernels.h: unpack, fill and verify. `make ptx` compiles this into the checked-in
// unpack_kernels.ptx; kernel_twins.c is the same in C.
#include "abi/unpack_queue.h"
#include "gpu/kernels.h"

namespace
{

constexpr unsigned warp_size = 32;

__device__ __forceinline__ unsigned warp_index()
{
    return (blockIdx.x * blockDim.x + threadIdx.x) / warp_size;
}

__device__ __forceinline__ unsigned warp_count()
{
    return gridDim.x * blockDim.x / warp_size;
}

__device__ __forceinline__ unsigned lane_index()
{
    return threadIdx.x % warp_size;
}

// One warp copies one fragment: 16 bytes a lane where both ends allow it, single bytes elsewhere.
__device__ void copy_fragment(uint8_t *to, const uint8_t *from, uint32_t length)
{
    unsigned lane = lane_index();
    uint32_t vectors = 0;

    if (((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) & 15) == 0) {
        vectors = length / 16;
        for (uint32_t i = lane; i < vectors; i += warp_size)
            reinterpret_cast<uint4 *>(to)[i] = reinterpret_cast<const uint4 *>(from)[i];
    }
    for (uint32_t i = vectors * 16 + lane; i < length; i += warp_size)
        to[i] = from[i];
}

} // namespace

extern "C" __global__ void tcpx_unpack(const kernel_unpack argument)
{
    const auto *descriptors = reinterpret_cast<const unpack_descriptor *>(argument.descriptors);
    const auto *bounce = reinterpret_cast<const uint8_t *>(argument.bounce);
    auto *destination = reinterpret_cast<uint8_t *>(argument.destination);

    for (uint64_t i = warp_index(); i < argument.count; i += warp_count()) {
        const unpack_descriptor fragment = descriptors[i];

        copy_fragment(destination + fragment.destination_offset, bounce + fragment.source_offset,
                      fragment.length);
    }
}

extern "C" __global__ void tcpx_fill(const kernel_fill argument)
{
    auto *bytes = reinterpret_cast<uint8_t *>(argument.at);
    uint64_t step = uint64_t(gridDim.x) * blockDim.x;

    // Whole words where memory and pattern agree on where a word begins.
    if (argument.at % 8 == 0 && argument.position % 8 == 0) {
        auto *words = reinterpret_cast<uint64_t *>(argument.at);
        uint64_t count = argument.bytes / 8;

        for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
            words[i] = pattern_word(argument.seed, argument.position / 8 + i);
        for (uint64_t i = count * 8 + uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
             i < argument.bytes; i += step)
            bytes[i] = pattern_byte(argument.seed, argument.position + i);
        return;
    }
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < argument.bytes;
         i += step)
        bytes[i] = pattern_byte(argument.seed, argument.position + i);
}

extern "C" __global__ void tcpx_verify(const kernel_verify argument)
{
    const kernel_fill &expected = argument.expected;
    const auto *bytes = reinterpret_cast<const uint8_t *>(expected.at);
    auto *result = reinterpret_cast<unsigned long long *>(argument.result);
    uint64_t step = uint64_t(gridDim.x) * blockDim.x;
    uint64_t first_thread = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    unsigned long long differences = 0;
    unsigned long long first = ~0ull;
    uint64_t words = 0;

    if (expected.at % 8 == 0 && expected.position % 8 == 0)
        words = expected.bytes / 8;
    for (uint64_t i = first_thread; i < words; i += step) {
        uint64_t wrong = reinterpret_cast<const uint64_t *>(expected.at)[i] ^
                         pattern_word(expected.seed, expected.position / 8 + i);

        for (unsigned k = 0; wrong != 0; k++, wrong >>= 8) {
            if ((wrong & 0xff) == 0)
                continue;
            differences++;
            if (8 * i + k < first)
                first = 8 * i + k;
        }
    }
    for (uint64_t i = words * 8 + first_thread; i < expected.bytes; i += step) {
        if (bytes[i] == pattern_byte(expected.seed, expected.position + i))
            continue;
        differences++;
        if (i < first)
            first = i;
    }
    if (differences != 0) {
        atomicAdd(&result[0], differences);
        atomicMin(&result[1], first);
    }
}
