/*
 * GPU memory for the quirky plugin and for the tests of ours: of device 0 of whatever libcuda.so.1
 * there is, the driver's or the stand-in of tests/fakecuda. Its primary context is pushed and
 * popped around every call. As Google's plugin does, it ends the process when the driver fails.
 * Calls come one at a time.
 */
#ifndef TCPX_TESTS_SUPPORT_CUDA_MEMORY_H
#define TCPX_TESTS_SUPPORT_CUDA_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Host memory that the GPU reads: with a driver both addresses are one, with the stand-in not. */
struct cuda_pinned {
    void *host;
    uint64_t on_gpu;
    size_t bytes;
    bool registered; /* mapped here, since the driver cannot allocate it */
};

/* False: there is no driver that works, or it shows no device. */
bool cuda_start(void);

/* The context stays current in this thread. */
void cuda_enter(void);

uint64_t cuda_alloc(size_t bytes);
void cuda_free(uint64_t address);
void cuda_pin(size_t bytes, struct cuda_pinned *pinned);
void cuda_unpin(const struct cuda_pinned *pinned);

/* Whether all of it lies in one allocation of GPU memory. */
bool cuda_holds(uint64_t address, size_t bytes);

/* `from` stays as it is until the next drain. */
void cuda_write(uint64_t to, const void *from, size_t bytes);
void cuda_fill(uint64_t at, uint8_t value, size_t bytes);
void cuda_copy(uint64_t to, uint64_t from, size_t bytes);
void cuda_drain(void);

/* It is there on return. */
void cuda_read(void *to, uint64_t from, size_t bytes);

#endif
