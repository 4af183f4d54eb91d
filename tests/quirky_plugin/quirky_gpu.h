/*
 * The GPU of the quirky plugin: device 0 of whatever libcuda.so.1 there is, in its primary context,
 * which is pushed and popped around every call. As Google's plugin does, it ends the process when
 * the driver fails. Calls come one at a time.
 */
#ifndef TCPX_TESTS_QUIRKY_GPU_H
#define TCPX_TESTS_QUIRKY_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Host memory that the GPU reads: with a driver both addresses are one, with the stand-in not. */
struct quirky_pinned {
    void *host;
    uint64_t on_gpu;
    size_t bytes;
    bool registered; /* mapped here, since the driver cannot allocate it */
};

/* False: there is no driver that works, or it shows no device. */
bool quirky_gpu_start(void);

uint64_t quirky_gpu_alloc(size_t bytes);
void quirky_gpu_free(uint64_t address);
void quirky_gpu_pin(size_t bytes, struct quirky_pinned *pinned);
void quirky_gpu_unpin(const struct quirky_pinned *pinned);

/* Whether all of it lies in one allocation of GPU memory. */
bool quirky_gpu_holds(uint64_t address, size_t bytes);

/* `from` stays as it is until the next drain. */
void quirky_gpu_write(uint64_t to, const void *from, size_t bytes);
void quirky_gpu_drain(void);

/* It is there on return. */
void quirky_gpu_read(void *to, uint64_t from, size_t bytes);

#endif
