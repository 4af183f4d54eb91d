// The GPU side of kernels.h: unpack, copy, fill and verify. `make ptx` compiles this into the
// checked-in unpack_kernels.ptx; kernel_twins.c is the same in C.
//
// What the kernels read was written before they were launched, and by whoever else nothing is
// written while they run: the CPU has seen the receive complete, ordered the NIC's writes before
// the launch where the GPU does not do so itself (gpu_flush_inbound_writes()), and a launch is
// ordered behind everything the CPU did before it, descriptors in mapped memory included. A launch
// also starts with an empty L1. So plain loads see everything, and the read-only path may be used.
#include "abi/unpack_queue.h"
#include "gpu/kernels.h"

namespace
{

constexpr unsigned warp_size = 32;
constexpr unsigned vector_bytes = 16;
constexpr unsigned all_lanes = 0xffffffffu;

// Vectors that a lane has in flight before it stores the first: 4 KiB per warp and less are one
// trip to memory.
constexpr unsigned depth = 8;

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

// The 16 bytes that begin `shift` bytes (1 to 15) into the 32 bytes low, high. `words` is shift /
// 4, known to the compiler, so that the bytes are picked from registers.
template <unsigned words>
__device__ __forceinline__ uint4 shifted(const uint4 &low, const uint4 &high, unsigned bits)
{
    const unsigned w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};

    return make_uint4(__funnelshift_r(w[words], w[words + 1], bits),
                      __funnelshift_r(w[words + 1], w[words + 2], bits),
                      __funnelshift_r(w[words + 2], w[words + 3], bits),
                      __funnelshift_r(w[words + 3], w[(words + 4) & 7], bits));
}

// The index of the k-th vector of this lane. A lane without one reads the last once more: loads
// without a condition can all be on their way before the first store.
__device__ __forceinline__ uint32_t vector_index(uint32_t base, unsigned k, uint32_t vectors)
{
    return min(base + k * warp_size + lane_index(), vectors - 1);
}

// Source vector `vectors`, the last one read, still lies inside the fragment.
template <unsigned words>
__device__ __forceinline__ void copy_shifted(uint4 *to, const uint4 *from, uint32_t vectors,
                                             unsigned bits)
{
    for (uint32_t base = 0; base < vectors; base += depth / 2 * warp_size) {
        uint4 low[depth / 2], high[depth / 2];

#pragma unroll
        for (unsigned k = 0; k < depth / 2; k++) {
            uint32_t i = vector_index(base, k, vectors);

            low[k] = from[i];
            high[k] = from[i + 1];
        }
#pragma unroll
        for (unsigned k = 0; k < depth / 2; k++)
            if (base + k * warp_size + lane_index() < vectors)
                to[base + k * warp_size + lane_index()] = shifted<words>(low[k], high[k], bits);
    }
}

__device__ __forceinline__ void copy_aligned(uint4 *to, const uint4 *from, uint32_t vectors)
{
    for (uint32_t base = 0; base < vectors; base += depth * warp_size) {
        uint4 value[depth];

#pragma unroll
        for (unsigned k = 0; k < depth; k++)
            value[k] = from[vector_index(base, k, vectors)];
#pragma unroll
        for (unsigned k = 0; k < depth; k++)
            if (base + k * warp_size + lane_index() < vectors)
                to[base + k * warp_size + lane_index()] = value[k];
    }
}

// One warp copies `length` bytes between any two addresses. All wide accesses are aligned; where
// source and destination are aligned differently, each vector is put together from two. Nothing
// outside [from, from + length) is read, not even to be thrown away.
__device__ __forceinline__ void copy_run(uint8_t *to, const uint8_t *from, uint32_t length)
{
    unsigned lane = lane_index();
    unsigned head = -reinterpret_cast<uintptr_t>(to) & (vector_bytes - 1);
    unsigned shift = (reinterpret_cast<uintptr_t>(from) + head) & (vector_bytes - 1);

    // The first source vector must not begin before the fragment.
    if (head < shift)
        head += vector_bytes;
    if (length < head + 2 * vector_bytes) {
        for (uint32_t i = lane; i < length; i += warp_size)
            to[i] = from[i];
        return;
    }
    // And the last one, which with a shift is one behind the last that is written, must end in it.
    uint32_t vectors = (length - head) / vector_bytes;
    if (shift != 0 && (length - head) % vector_bytes + shift < vector_bytes)
        vectors--;

    // Fewer than 32 bytes are left at either end, one for each lane; they are on their way while
    // the rest is copied.
    uint32_t tail = head + vectors * vector_bytes;
    uint8_t head_byte = 0, tail_byte = 0;
    if (lane < head)
        head_byte = from[lane];
    if (lane < length - tail)
        tail_byte = from[tail + lane];

    auto *vector_to = reinterpret_cast<uint4 *>(to + head);
    const auto *vector_from = reinterpret_cast<const uint4 *>(from + head - shift);
    unsigned bits = shift % 4 * 8;

    if (shift == 0)
        copy_aligned(vector_to, vector_from, vectors);
    else if (shift < 4)
        copy_shifted<0>(vector_to, vector_from, vectors, bits);
    else if (shift < 8)
        copy_shifted<1>(vector_to, vector_from, vectors, bits);
    else if (shift < 12)
        copy_shifted<2>(vector_to, vector_from, vectors, bits);
    else
        copy_shifted<3>(vector_to, vector_from, vectors, bits);

    if (lane < head)
        to[lane] = head_byte;
    if (lane < length - tail)
        to[tail + lane] = tail_byte;
}

} // namespace

// A warp takes `batch` descriptors at a time, so that descriptors in host memory cross the bus in
// wide reads, and each only once.
extern "C" __global__ void __launch_bounds__(KERNEL_THREADS)
    tcpx_unpack(const __grid_constant__ kernel_unpack argument)
{
    for (unsigned list = 0; list < argument.list_count; list++) {
        const gpu_unpack_list &current = argument.lists[list];
        const auto *descriptors = reinterpret_cast<const uint4 *>(current.descriptors);
        const auto *bounce = reinterpret_cast<const uint8_t *>(current.bounce);
        auto *destination = reinterpret_cast<uint8_t *>(current.destination);
        uint64_t step = static_cast<uint64_t>(warp_count()) * argument.batch;
        uint64_t first = static_cast<uint64_t>(warp_index()) * argument.batch;

        for (; first < current.count; first += step) {
            uint64_t left = current.count - first;
            unsigned taken = left < argument.batch ? static_cast<unsigned>(left) : argument.batch;
            uint4 mine = {};

            if (lane_index() < taken)
                mine = __ldg(&descriptors[first + lane_index()]);
            for (unsigned i = 0; i < taken; i++) {
                // the fields of struct unpack_descriptor, in order
                uint32_t source_offset = __shfl_sync(all_lanes, mine.x, i);
                uint32_t length = __shfl_sync(all_lanes, mine.y, i);
                uint64_t destination_offset =
                    __shfl_sync(all_lanes, mine.z, i) |
                    static_cast<uint64_t>(__shfl_sync(all_lanes, mine.w, i)) << 32;

                if (length <= argument.longest)
                    copy_run(destination + destination_offset, bounce + source_offset, length);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(KERNEL_THREADS)
    tcpx_copy(const __grid_constant__ kernel_copy argument)
{
    uint32_t pieces = argument.first_piece[argument.run_count];

    for (uint32_t piece = warp_index(); piece < pieces; piece += warp_count()) {
        uint32_t low = 0, high = argument.run_count;

        // the run whose pieces include this one
        while (high - low > 1) {
            uint32_t middle = (low + high) / 2;

            if (argument.first_piece[middle] <= piece)
                low = middle;
            else
                high = middle;
        }
        const gpu_run &run = argument.runs[low];
        uint64_t offset = static_cast<uint64_t>(piece - argument.first_piece[low]) * argument.piece;
        uint64_t left = run.bytes - offset;

        copy_run(reinterpret_cast<uint8_t *>(run.to) + offset,
                 reinterpret_cast<const uint8_t *>(run.from) + offset,
                 left < argument.piece ? static_cast<uint32_t>(left) : argument.piece);
    }
}

extern "C" __global__ void tcpx_fill(const kernel_fill argument)
{
    auto *bytes = reinterpret_cast<uint8_t *>(argument.at);
    uint64_t first = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    uint64_t words = 0;

    // Whole words where memory and pattern agree on where a word begins.
    if (argument.at % 8 == 0 && argument.position % 8 == 0)
        words = argument.bytes / 8;
    for (uint64_t i = first; i < words; i += step)
        reinterpret_cast<uint64_t *>(argument.at)[i] =
            pattern_word(argument.seed, argument.position / 8 + i);
    for (uint64_t i = words * 8 + first; i < argument.bytes; i += step)
        bytes[i] = pattern_byte(argument.seed, argument.position + i);
}

extern "C" __global__ void tcpx_verify(const kernel_verify argument)
{
    const kernel_fill &expected = argument.expected;
    const auto *bytes = reinterpret_cast<const uint8_t *>(expected.at);
    auto *result = reinterpret_cast<unsigned long long *>(argument.result);
    uint64_t first_thread = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
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
