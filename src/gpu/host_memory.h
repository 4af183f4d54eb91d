/*
 * The memory of the emulated GPUs. A device address is an alias: reserved address space without
 * any access, so that CPU code that follows it faults, as it would with a real GPU. The bytes are
 * mapped elsewhere, and only the emulated GPU itself resolves an alias to them.
 */
#ifndef TCPX_GPU_HOST_MEMORY_H
#define TCPX_GPU_HOST_MEMORY_H

#include "gpu/gpu.h"

/* How many bytes are allocated on emulated GPU `device`. */
uint64_t host_memory_used(int device);

/* Allocates on emulated GPU `device`; fails once it would hold more than `limit` bytes. */
MUST_CHECK int host_memory_map(int device, uint64_t bytes, uint64_t alignment, uint64_t limit,
                               struct gpu_memory *memory);
/* Gives host pages, which stay the caller's, a device address. */
MUST_CHECK int host_memory_register(int device, void *pages, uint64_t bytes, gpu_address *alias);
/* Ends either; waits for the operation that is using it, if one is. */
void host_memory_unmap(gpu_address alias);

MUST_CHECK int host_classify(gpu_address address, uint64_t bytes, struct gpu_pointer *pointer);

/* Between these two, nothing that was resolved is freed. */
void host_memory_hold(void);
void host_memory_release(void);

/*
 * The bytes behind [address, address + bytes); NULL unless they lie in one allocation. Between hold
 * and release.
 */
void *host_memory_resolve(gpu_address address, uint64_t bytes);

/* As host_memory_resolve(), but NULL comes with TCPX_CUDA_ERROR and a text that names `what`. */
void *host_memory_use(const char *what, gpu_address address, uint64_t bytes);

/* Whether host pages [address, address + bytes) are registered. Between hold and release. */
bool host_memory_is_registered(uint64_t address, uint64_t bytes);

/* The memfd behind the range, and the range's offset in it. */
MUST_CHECK int host_memory_file(gpu_address address, uint64_t bytes, int *memfd, uint64_t *offset);

#endif
