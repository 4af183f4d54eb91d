/*
 * What the kernels compute, for both sides: unpack_kernels.cu runs on the GPU, kernel_twins.c is
 * the same in C for the emulated GPU and the reference that GPU results are compared with. Both
 * read this header, so it keeps to what C and CUDA C++ share.
 */
#ifndef TCPX_GPU_KERNELS_H
#define TCPX_GPU_KERNELS_H

#include <stdint.h>

#ifdef __CUDACC__
#define KERNEL_INLINE static __device__ __forceinline__
#else
#define KERNEL_INLINE static inline
#endif

/* Threads in a block of any of our kernels. */
#define KERNEL_THREADS 256

/*
 * The one argument of each kernel. Addresses are device addresses.
 */

#define GPU_UNPACK_LISTS 16

/* One receive: descriptors in memory that the GPU can read, mapped host memory as a rule. */
struct gpu_unpack_list {
    uint64_t bounce;      /* a descriptor's source_offset counts from here */
    uint64_t destination; /* and its destination_offset from here */
    uint64_t descriptors; /* struct unpack_descriptor[count] */
    uint64_t count;
};

/* Unpacks every descriptor of every list, except those longer than `longest`. */
struct kernel_unpack {
    struct gpu_unpack_list lists[GPU_UNPACK_LISTS];
    uint32_t list_count;
    uint32_t longest;
    uint32_t batch; /* descriptors that a warp takes at a time: 1 to 32 */
};

/* Each hundred bytes of an argument make a launch some 50 ns longer: no more than are worth it. */
#define GPU_COPY_RUNS 16

struct gpu_run {
    uint64_t from;
    uint64_t to;
    uint64_t bytes;
};

/*
 * Copies runs that are given in the launch itself, so that the GPU reads nothing over the bus to
 * know them. Warps share them out in pieces of `piece` bytes, less than 4 GiB.
 */
struct kernel_copy {
    struct gpu_run runs[GPU_COPY_RUNS];
    uint32_t first_piece[GPU_COPY_RUNS + 1]; /* pieces before this run; behind the last: all */
    uint32_t run_count;
    uint32_t piece;
};

struct kernel_fill {
    uint64_t at;
    uint64_t bytes;
    uint64_t seed;
    uint64_t position; /* of the first byte in the pattern */
};

struct kernel_verify {
    struct kernel_fill expected;
    uint64_t result; /* struct gpu_verify_result, set to {0, UINT64_MAX} before */
};

/*
 * The pattern: 8 bytes at a time, a 64-bit mix of seed and position (the finaliser of splitmix64).
 * No period, so that a fragment in the wrong place never looks right.
 */
KERNEL_INLINE uint64_t pattern_word(uint64_t seed, uint64_t word)
{
    uint64_t z = seed + (word + 1) * 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

KERNEL_INLINE uint8_t pattern_byte(uint64_t seed, uint64_t position)
{
    return (uint8_t)(pattern_word(seed, position / 8) >> (8 * (position % 8)));
}

#endif
