/* See the header. */
#include "tests/support/cuda_memory.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Of the driver's API, what is needed here; the stand-in does not have what is optional. */
#define CUDA_CALLS(NEEDED, OPTIONAL)                                                               \
    NEEDED(cuInit, unsigned flags)                                                                 \
    NEEDED(cuDeviceGetCount, int *count)                                                           \
    NEEDED(cuDeviceGet, int *device, int ordinal)                                                  \
    NEEDED(cuDevicePrimaryCtxRetain, void **context, int device)                                   \
    NEEDED(cuCtxPushCurrent_v2, void *context)                                                     \
    NEEDED(cuCtxPopCurrent_v2, void **context)                                                     \
    NEEDED(cuMemAlloc_v2, uint64_t *address, size_t bytes)                                         \
    NEEDED(cuMemFree_v2, uint64_t address)                                                         \
    NEEDED(cuMemHostRegister_v2, void *pages, size_t bytes, unsigned flags)                        \
    NEEDED(cuMemHostUnregister, void *pages)                                                       \
    NEEDED(cuMemHostGetDevicePointer_v2, uint64_t *address, void *pages, unsigned flags)           \
    NEEDED(cuPointerGetAttributes, unsigned count, int *names, void **values, uint64_t address)    \
    NEEDED(cuStreamCreate, void **stream, unsigned flags)                                          \
    NEEDED(cuEventCreate, void **event, unsigned flags)                                            \
    NEEDED(cuEventRecord, void *event, void *stream)                                               \
    NEEDED(cuEventQuery, void *event)                                                              \
    NEEDED(cuMemcpyHtoDAsync_v2, uint64_t to, const void *from, size_t bytes, void *stream)        \
    NEEDED(cuMemcpyDtoHAsync_v2, void *to, uint64_t from, size_t bytes, void *stream)              \
    NEEDED(cuMemcpyDtoDAsync_v2, uint64_t to, uint64_t from, size_t bytes, void *stream)           \
    NEEDED(cuMemsetD8Async, uint64_t at, unsigned char value, size_t bytes, void *stream)          \
    OPTIONAL(cuMemHostAlloc, void **pages, size_t bytes, unsigned flags)                           \
    OPTIONAL(cuMemFreeHost, void *pages)

#define MEMBER(name, ...) int (*name)(__VA_ARGS__);
static struct {
    CUDA_CALLS(MEMBER, MEMBER)
} cuda;
#undef MEMBER

enum {
    NOT_READY = 600,
    PORTABLE_AND_MAPPED = 3,
    STREAM_NON_BLOCKING = 1,
    EVENT_NO_TIMING = 2,
    POINTER_MEMORY_TYPE = 2,
    POINTER_RANGE_START = 11,
    POINTER_RANGE_SIZE = 12,
    MEMORY_DEVICE = 2
};

static void *context;
static void *stream;
static void *event;

static void must(int result, const char *call)
{
    if (result == 0)
        return;
    fprintf(stderr, "%s failed with %d\n", call, result);
    exit(1); /* NOLINT(concurrency-mt-unsafe): as it does */
}

#define MUST(call, ...) must(cuda.call(__VA_ARGS__), #call)

void cuda_enter(void)
{
    MUST(cuCtxPushCurrent_v2, context);
}

static void leave(void)
{
    void *ours;

    MUST(cuCtxPopCurrent_v2, &ours);
}

static bool load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (library == NULL)
        return false;
#define FIND(name, ...) *(void **)&cuda.name = dlsym(library, #name);
#define FIND_NEEDED(name, ...)                                                                     \
    FIND(name)                                                                                     \
    if (cuda.name == NULL)                                                                         \
        return false;
    CUDA_CALLS(FIND_NEEDED, FIND)
#undef FIND_NEEDED
#undef FIND
    return true;
}

bool cuda_start(void)
{
    int devices = 0;
    int device;

    if (!load() || cuda.cuInit(0) != 0 || cuda.cuDeviceGetCount(&devices) != 0 || devices == 0)
        return false;
    MUST(cuDeviceGet, &device, 0);
    MUST(cuDevicePrimaryCtxRetain, &context, device);
    cuda_enter();
    MUST(cuStreamCreate, &stream, STREAM_NON_BLOCKING);
    MUST(cuEventCreate, &event, EVENT_NO_TIMING);
    leave();
    return true;
}

/* --- memory -------------------------------------------------------------------------------- */

uint64_t cuda_alloc(size_t bytes)
{
    uint64_t address = 0;

    cuda_enter();
    MUST(cuMemAlloc_v2, &address, bytes);
    leave();
    return address;
}

void cuda_free(uint64_t address)
{
    cuda_enter();
    MUST(cuMemFree_v2, address);
    leave();
}

void cuda_pin(size_t bytes, struct cuda_pinned *pinned)
{
    enum { PAGE_BYTES = 4096 };

    *pinned = (struct cuda_pinned){.bytes = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES};
    cuda_enter();
    if (cuda.cuMemHostAlloc != NULL && cuda.cuMemFreeHost != NULL) {
        MUST(cuMemHostAlloc, &pinned->host, pinned->bytes, PORTABLE_AND_MAPPED);
    } else {
        pinned->registered = true;
        pinned->host =
            mmap(NULL, pinned->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        must(pinned->host == MAP_FAILED, "mmap");
        MUST(cuMemHostRegister_v2, pinned->host, pinned->bytes, PORTABLE_AND_MAPPED);
    }
    MUST(cuMemHostGetDevicePointer_v2, &pinned->on_gpu, pinned->host, 0);
    leave();
}

void cuda_unpin(const struct cuda_pinned *pinned)
{
    cuda_enter();
    if (pinned->registered) {
        MUST(cuMemHostUnregister, pinned->host);
        munmap(pinned->host, pinned->bytes);
    } else {
        MUST(cuMemFreeHost, pinned->host);
    }
    leave();
}

bool cuda_holds(uint64_t address, size_t bytes)
{
    int names[] = {POINTER_MEMORY_TYPE, POINTER_RANGE_START, POINTER_RANGE_SIZE};
    unsigned type = 0;
    uint64_t start = 0;
    size_t size = 0;
    void *values[] = {&type, &start, &size};
    int result;

    cuda_enter();
    result = cuda.cuPointerGetAttributes(3, names, values, address);
    leave();
    return result == 0 && type == MEMORY_DEVICE && address >= start && bytes <= size &&
           address - start <= size - bytes;
}

/* --- copies -------------------------------------------------------------------------------- */

/* A call of the driver in our context. */
#define QUEUE(call, ...)                                                                           \
    do {                                                                                           \
        cuda_enter();                                                                              \
        MUST(call, __VA_ARGS__, stream);                                                           \
        leave();                                                                                   \
    } while (0)

void cuda_write(uint64_t to, const void *from, size_t bytes)
{
    QUEUE(cuMemcpyHtoDAsync_v2, to, from, bytes);
}

void cuda_fill(uint64_t at, uint8_t value, size_t bytes)
{
    QUEUE(cuMemsetD8Async, at, value, bytes);
}

void cuda_copy(uint64_t to, uint64_t from, size_t bytes)
{
    QUEUE(cuMemcpyDtoDAsync_v2, to, from, bytes);
}

void cuda_drain(void)
{
    int result;

    cuda_enter();
    MUST(cuEventRecord, event, stream);
    while ((result = cuda.cuEventQuery(event)) == NOT_READY)
        sched_yield();
    must(result, "cuEventQuery");
    leave();
}

void cuda_read(void *to, uint64_t from, size_t bytes)
{
    QUEUE(cuMemcpyDtoHAsync_v2, to, from, bytes);
    cuda_drain();
}
