/* The GPU of the quirky plugin: quirky_gpu.h says what it is for. */
#include "tests/quirky_plugin/quirky_gpu.h"

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
    fprintf(stderr, "quirky: %s failed with %d\n", call, result);
    exit(1); /* NOLINT(concurrency-mt-unsafe): as it does */
}

#define MUST(call, ...) must(cuda.call(__VA_ARGS__), #call)

static void enter(void)
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
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);

    if (library == NULL)
        library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
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

bool quirky_gpu_start(void)
{
    int devices = 0;
    int device;

    if (!load() || cuda.cuInit(0) != 0 || cuda.cuDeviceGetCount(&devices) != 0 || devices == 0)
        return false;
    MUST(cuDeviceGet, &device, 0);
    MUST(cuDevicePrimaryCtxRetain, &context, device);
    enter();
    MUST(cuStreamCreate, &stream, STREAM_NON_BLOCKING);
    MUST(cuEventCreate, &event, EVENT_NO_TIMING);
    leave();
    return true;
}

/* --- memory -------------------------------------------------------------------------------- */

uint64_t quirky_gpu_alloc(size_t bytes)
{
    uint64_t address = 0;

    enter();
    MUST(cuMemAlloc_v2, &address, bytes);
    leave();
    return address;
}

void quirky_gpu_free(uint64_t address)
{
    enter();
    MUST(cuMemFree_v2, address);
    leave();
}

void quirky_gpu_pin(size_t bytes, struct quirky_pinned *pinned)
{
    enum { PAGE_BYTES = 4096 };

    *pinned = (struct quirky_pinned){.bytes = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES};
    enter();
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

void quirky_gpu_unpin(const struct quirky_pinned *pinned)
{
    enter();
    if (pinned->registered) {
        MUST(cuMemHostUnregister, pinned->host);
        munmap(pinned->host, pinned->bytes);
    } else {
        MUST(cuMemFreeHost, pinned->host);
    }
    leave();
}

bool quirky_gpu_holds(uint64_t address, size_t bytes)
{
    int names[] = {POINTER_MEMORY_TYPE, POINTER_RANGE_START, POINTER_RANGE_SIZE};
    unsigned type = 0;
    uint64_t start = 0;
    size_t size = 0;
    void *values[] = {&type, &start, &size};
    int result;

    enter();
    result = cuda.cuPointerGetAttributes(3, names, values, address);
    leave();
    return result == 0 && type == MEMORY_DEVICE && address >= start && bytes <= size &&
           address - start <= size - bytes;
}

/* --- copies -------------------------------------------------------------------------------- */

static void drain(void)
{
    int result;

    MUST(cuEventRecord, event, stream);
    while ((result = cuda.cuEventQuery(event)) == NOT_READY)
        sched_yield();
    must(result, "cuEventQuery");
}

void quirky_gpu_write(uint64_t to, const void *from, size_t bytes)
{
    enter();
    MUST(cuMemcpyHtoDAsync_v2, to, from, bytes, stream);
    leave();
}

void quirky_gpu_drain(void)
{
    enter();
    drain();
    leave();
}

void quirky_gpu_read(void *to, uint64_t from, size_t bytes)
{
    enter();
    MUST(cuMemcpyDtoHAsync_v2, to, from, bytes, stream);
    drain();
    leave();
}
