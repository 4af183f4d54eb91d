/*
 * GPU memory for the tests of the plugin, from whatever libcuda.so.1 there is: the driver's, or the
 * stand-in of tests/fakecuda. The plugin finds the same library by itself, as it does under NCCL.
 * The CPU never follows a device address: it looks through copies.
 */
#ifndef TCPX_TESTS_PLUGIN_CUDA_MEMORY_H
#define TCPX_TESTS_PLUGIN_CUDA_MEMORY_H

#include "tests/plugin/plugin_test.h"

/* Of the driver's API, what is needed here. */
#define CUDA_CALLS(CALL)                                                                           \
    CALL(cuInit, unsigned flags)                                                                   \
    CALL(cuDeviceGet, int *device, int ordinal)                                                    \
    CALL(cuDevicePrimaryCtxRetain, void **context, int device)                                     \
    CALL(cuDevicePrimaryCtxRelease_v2, int device)                                                 \
    CALL(cuCtxPushCurrent_v2, void *context)                                                       \
    CALL(cuCtxPopCurrent_v2, void **context)                                                       \
    CALL(cuMemAlloc_v2, uint64_t *address, size_t bytes)                                           \
    CALL(cuMemFree_v2, uint64_t address)                                                           \
    CALL(cuMemHostRegister_v2, void *pages, size_t bytes, unsigned flags)                          \
    CALL(cuMemHostUnregister, void *pages)                                                         \
    CALL(cuStreamCreate, void **stream, unsigned flags)                                            \
    CALL(cuStreamDestroy_v2, void *stream)                                                         \
    CALL(cuEventCreate, void **event, unsigned flags)                                              \
    CALL(cuEventDestroy_v2, void *event)                                                           \
    CALL(cuEventRecord, void *event, void *stream)                                                 \
    CALL(cuEventQuery, void *event)                                                                \
    CALL(cuMemcpyHtoDAsync_v2, uint64_t to, const void *from, size_t bytes, void *stream)          \
    CALL(cuMemcpyDtoHAsync_v2, void *to, uint64_t from, size_t bytes, void *stream)                \
    CALL(cuMemcpyDtoDAsync_v2, uint64_t to, uint64_t from, size_t bytes, void *stream)             \
    CALL(cuMemsetD8Async, uint64_t at, unsigned char value, size_t bytes, void *stream)

#define CUDA_MEMBER(name, ...) int (*name)(__VA_ARGS__);
static struct {
    CUDA_CALLS(CUDA_MEMBER)
} cuda;
#undef CUDA_MEMBER

static void *cuda_library;
static void *cuda_context;
static void *cuda_stream;
static void *cuda_event;
static uint8_t *cuda_window; /* pinned, what is looked through */

enum {
    CUDA_WINDOW = 8 << 20,
    CUDA_NOT_READY = 600,
    CUDA_STREAM_NON_BLOCKING = 1,
    CUDA_EVENT_NO_TIMING = 2,
    CUDA_PORTABLE_AND_MAPPED = 3
};

#define assert_cuda(call) assert_int_equal((call), 0)

/* Makes the first GPU current in this thread, as NCCL's proxy does. Not 0 without one. */
static inline int cuda_open(void)
{
    int device;

    cuda_library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (cuda_library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return -1;
    }
#define CUDA_FIND(name, ...)                                                                       \
    *(void **)&cuda.name = dlsym(cuda_library, #name);                                             \
    if (cuda.name == NULL)                                                                         \
        return -1;
    CUDA_CALLS(CUDA_FIND)
#undef CUDA_FIND
    cuda_window =
        mmap(NULL, CUDA_WINDOW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return cuda_window == MAP_FAILED || cuda.cuInit(0) != 0 || cuda.cuDeviceGet(&device, 0) != 0 ||
           cuda.cuDevicePrimaryCtxRetain(&cuda_context, device) != 0 ||
           cuda.cuCtxPushCurrent_v2(cuda_context) != 0 ||
           cuda.cuMemHostRegister_v2(cuda_window, CUDA_WINDOW, CUDA_PORTABLE_AND_MAPPED) != 0 ||
           cuda.cuStreamCreate(&cuda_stream, CUDA_STREAM_NON_BLOCKING) != 0 ||
           cuda.cuEventCreate(&cuda_event, CUDA_EVENT_NO_TIMING) != 0;
}

static inline void cuda_close(void)
{
    void *popped;

    cuda.cuEventDestroy_v2(cuda_event);
    cuda.cuStreamDestroy_v2(cuda_stream);
    cuda.cuMemHostUnregister(cuda_window);
    cuda.cuCtxPopCurrent_v2(&popped);
    cuda.cuDevicePrimaryCtxRelease_v2(0);
    munmap(cuda_window, CUDA_WINDOW);
}

static inline void cuda_drain(void)
{
    uint64_t deadline = now_ms() + LIMIT_MS;
    int result;

    assert_cuda(cuda.cuEventRecord(cuda_event, cuda_stream));
    while ((result = cuda.cuEventQuery(cuda_event)) == CUDA_NOT_READY)
        assert_true(now_ms() < deadline);
    assert_cuda(result);
}

/* What is there now; in the window, until the next look. */
static inline const uint8_t *cuda_look(uint64_t at, size_t bytes)
{
    assert_true(bytes <= CUDA_WINDOW);
    assert_cuda(cuda.cuMemcpyDtoHAsync_v2(cuda_window, at, bytes, cuda_stream));
    cuda_drain();
    return cuda_window;
}

static inline void cuda_put(uint64_t at, const void *from, size_t bytes)
{
    assert_true(bytes <= CUDA_WINDOW);
    memcpy(cuda_window, from, bytes);
    assert_cuda(cuda.cuMemcpyHtoDAsync_v2(at, cuda_window, bytes, cuda_stream));
    cuda_drain();
}

static inline void cuda_fill(uint64_t at, uint8_t value, size_t bytes)
{
    assert_cuda(cuda.cuMemsetD8Async(at, value, bytes, cuda_stream));
    cuda_drain();
}

/* A buffer that begins at a whole page, as NCCL's do; `whole` is what is freed. */
struct cuda_buffer {
    uint64_t whole;
    uint64_t at;
    size_t bytes;
};

static inline struct cuda_buffer cuda_alloc(size_t bytes)
{
    enum { PAGE = 65536 };
    struct cuda_buffer buffer = {.bytes = bytes};

    assert_cuda(cuda.cuMemAlloc_v2(&buffer.whole, bytes + PAGE));
    buffer.at = (buffer.whole + PAGE - 1) / PAGE * PAGE;
    return buffer;
}

static inline void cuda_free(struct cuda_buffer *buffer)
{
    assert_cuda(cuda.cuMemFree_v2(buffer->whole));
}

static inline void *cuda_pointer(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

#endif
