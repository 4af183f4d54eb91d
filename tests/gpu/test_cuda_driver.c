/*
 * How the CUDA backend behaves beside a caller's own use of the driver: the caller's context stays
 * as it was, no context is made before device memory is used, a caller's streams and events are
 * waited for, and memory allocated in every way is recognised. On the stand-in driver and on a real
 * one; what only a real one has is skipped on the other.
 */
#include "tests/gpu/gpu_test.h"

#include "gpu/cuda_driver.h"
#include "gpu/kernels.h"

#include <dlfcn.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

/* Entry points that only the caller in this test uses; the stand-in has none of them. */
#define CALLER_CALLS(CALL)                                                                         \
    CALL(cuMemAllocAsync, cu_address *address, size_t bytes, cu_stream stream)                     \
    CALL(cuMemFreeAsync, cu_address address, cu_stream stream)                                     \
    CALL(cuMemAllocManaged, cu_address *address, size_t bytes, unsigned flags)                     \
    CALL(cuMemHostAlloc, void **pages, size_t bytes, unsigned flags)                               \
    CALL(cuMemFreeHost, void *pages)                                                               \
    CALL(cuDevicePrimaryCtxGetState, cu_device device, unsigned *flags, int *active)               \
    CALL(cuMemAddressReserve, cu_address *address, size_t bytes, size_t alignment,                 \
         cu_address hint, unsigned long long flags)                                                \
    CALL(cuMemAddressFree, cu_address address, size_t bytes)                                       \
    CALL(cuMemCreate, unsigned long long *handle, size_t bytes, const void *properties,            \
         unsigned long long flags)                                                                 \
    CALL(cuMemRelease, unsigned long long handle)                                                  \
    CALL(cuMemMap, cu_address address, size_t bytes, size_t offset, unsigned long long handle,     \
         unsigned long long flags)                                                                 \
    CALL(cuMemUnmap, cu_address address, size_t bytes)                                             \
    CALL(cuMemSetAccess, cu_address address, size_t bytes, const void *access, size_t count)       \
    CALL(cuStreamBeginCapture_v2, cu_stream stream, int mode)                                      \
    CALL(cuStreamEndCapture, cu_stream stream, void **graph)                                       \
    CALL(cuGraphDestroy, void *graph)

static struct {
#define CALLER_MEMBER(name, ...) cu_result (*name)(__VA_ARGS__);
    CALLER_CALLS(CALLER_MEMBER)
} caller;

static int find_caller_entry_points(void)
{
    void *library;
    void *address;
    int count;

    if (gpu_count(&count) != TCPX_SUCCESS)
        return -1;
    library = dlopen("libcuda.so.1", RTLD_NOW);
#define CALLER_FIND(name, ...)                                                                     \
    address = dlsym(library, #name);                                                               \
    memcpy(&caller.name, &address, sizeof address);
    CALLER_CALLS(CALLER_FIND)
    return library == NULL;
}

#define assert_cuda(call) assert_int_equal((call), CU_OK)

static bool is_stand_in(void)
{
    return caller.cuMemAllocAsync == NULL;
}

static void use_everything(struct gpu *gpu)
{
    struct gpu_memory memory;
    struct gpu_pinned pinned;
    struct gpu_stream *stream;

    assert_success(gpu_memory_alloc(gpu, MIB, 4096, &memory));
    assert_success(gpu_pinned_alloc(gpu, MIB, &pinned));
    assert_success(gpu_stream_create(gpu, &stream));
    assert_success(gpu_fill_pattern(stream, memory.address, MIB, 1, 0));
    fetch_on(gpu, stream, pinned.host, memory.address, MIB);
    assert_int_equal(((uint8_t *)pinned.host)[12345], pattern_byte(1, 12345));
    gpu_stream_destroy(stream);
    gpu_pinned_free(gpu, &pinned);
    gpu_memory_free(gpu, &memory);
}

/* A GPU of ours beside a caller that has the primary context current. */
static struct rig open_beside_a_caller(uint64_t bytes)
{
    cu_context primary;
    struct rig rig;

    assert_int_equal(rig_open(&rig, bytes), 0);
    assert_cuda(cuda.cuDevicePrimaryCtxRetain(&primary, 0));
    assert_cuda(cuda.cuCtxPushCurrent_v2(primary));
    return rig;
}

static void close_beside_a_caller(struct rig *rig)
{
    cu_context primary;

    rig_close(rig);
    assert_cuda(cuda.cuCtxPopCurrent_v2(&primary));
    assert_cuda(cuda.cuDevicePrimaryCtxRelease_v2(0));
}

TEST(test_no_context_before_device_memory)
{
    struct tcpx_gpu_properties properties;
    struct gpu_pointer pointer;
    struct gpu *gpu;
    unsigned flags;
    int active = 1;

    if (is_stand_in())
        skip_because("the stand-in's contexts are counted in test_cuda_faults");
    assert_success(gpu_properties(0, &properties));
    assert_success(gpu_open(0, &gpu));
    assert_success(gpu_classify(&active, sizeof active, &pointer));
    assert_cuda(caller.cuDevicePrimaryCtxGetState(0, &flags, &active));
    assert_int_equal(active, 0);
    use_everything(gpu);
    assert_cuda(caller.cuDevicePrimaryCtxGetState(0, &flags, &active));
    assert_int_equal(active, 1);
    gpu_close(gpu);
    assert_cuda(caller.cuDevicePrimaryCtxGetState(0, &flags, &active));
    assert_int_equal(active, 0);
}

TEST(test_the_callers_context_stays)
{
    cu_context current = (cu_context)(uintptr_t)1;
    cu_context primary;
    struct gpu *gpu;

    assert_success(gpu_open(0, &gpu));
    /* none at all */
    use_everything(gpu);
    assert_cuda(cuda.cuCtxGetCurrent(&current));
    assert_null(current);
    /* the same one as ours */
    assert_cuda(cuda.cuDevicePrimaryCtxRetain(&primary, 0));
    assert_cuda(cuda.cuCtxPushCurrent_v2(primary));
    use_everything(gpu);
    assert_cuda(cuda.cuCtxGetCurrent(&current));
    assert_ptr_equal(current, primary);
    gpu_close(gpu);
    assert_cuda(cuda.cuCtxGetCurrent(&current));
    assert_ptr_equal(current, primary);
    assert_cuda(cuda.cuCtxPopCurrent_v2(&current));
    assert_cuda(cuda.cuDevicePrimaryCtxRelease_v2(0));
}

TEST(test_a_callers_default_stream)
{
    struct rig rig;
    uint8_t byte = 0;

    rig = open_beside_a_caller(64 * MIB);
    for (int turn = 0; turn < 10; turn++) {
        uint8_t value = (uint8_t)(0x40 + turn);

        /* the caller's work on the default rig.stream, which ours does not wait for by itself */
        assert_cuda(cuda.cuMemsetD8Async(rig.memory.address, 0, 64 * MIB, NULL));
        assert_cuda(cuda.cuMemsetD8Async(rig.memory.address, value, 64 * MIB, NULL));
        assert_success(gpu_stream_wait_caller_stream(rig.stream, NULL));
        fetch_on(rig.gpu, rig.stream, &byte, rig.memory.address + 64 * MIB - 1, 1);
        assert_int_equal(byte, value);
        /* and the other way: the caller's stream waits for us */
        assert_success(gpu_set(rig.stream, rig.memory.address, 0, 64 * MIB));
        assert_success(gpu_set(rig.stream, rig.memory.address, (uint8_t)(value + 1), 64 * MIB));
        assert_success(gpu_event_record(rig.event, rig.stream));
        assert_success(gpu_caller_stream_wait(NULL, rig.event));
        assert_cuda(cuda.cuMemcpyDtoHAsync_v2(&byte, rig.memory.address + 64 * MIB - 1, 1, NULL));
        assert_cuda(cuda.cuEventRecord(gpu_event_native(rig.event), NULL));
        assert_success(gpu_event_wait(rig.event, LIMIT));
        assert_int_equal(byte, value + 1);
    }
    close_beside_a_caller(&rig);
}

TEST(test_a_graph_capture_is_refused_and_unharmed)
{
    enum { GLOBAL = 0 };
    cu_stream captured;
    void *graph = NULL;
    struct rig rig;

    if (is_stand_in())
        skip_because("needs a real driver; test_cuda_faults pretends a capture");
    rig = open_beside_a_caller(MIB);
    assert_cuda(cuda.cuStreamCreate(&captured, CU_STREAM_NONBLOCKING));
    /* the strictest mode: any unsafe call of any thread would invalidate the capture */
    assert_cuda(caller.cuStreamBeginCapture_v2(captured, GLOBAL));
    assert_error(gpu_stream_wait_caller_stream(rig.stream, captured), TCPX_INVALID_USAGE, "graph");
    assert_error(gpu_caller_stream_wait(captured, rig.event), TCPX_INVALID_USAGE, "graph");
    use_everything(rig.gpu);
    assert_cuda(caller.cuStreamEndCapture(captured, &graph));
    assert_cuda(caller.cuGraphDestroy(graph));
    assert_cuda(cuda.cuStreamDestroy_v2(captured));
    close_beside_a_caller(&rig);
}

static void assert_kind(cu_address address, uint64_t bytes, enum gpu_pointer_kind kind, bool one)
{
    struct gpu_pointer pointer;

    assert_success(gpu_classify((const void *)(uintptr_t)address, bytes, &pointer));
    assert_int_equal(pointer.kind, kind);
    assert_int_equal(pointer.one_allocation, one);
    assert_int_equal(pointer.device, 0);
    assert_true(pointer.base <= address && address < pointer.base + pointer.bytes);
}

/* Round trip through memory that the caller allocated in its own way. */
static void assert_usable(const struct rig *rig, cu_address address, uint64_t bytes)
{
    assert_success(gpu_fill_pattern(rig->stream, address, bytes, 5, 0));
    assert_int_equal(
        verify_on(rig->gpu, rig->stream, address, bytes, 5, 0, rig->memory.address).differences, 0);
}

TEST(test_memory_of_every_kind)
{
    cu_address address;
    void *pages;
    int fd;
    struct rig rig;

    if (is_stand_in())
        skip_because("needs a real driver");
    rig = open_beside_a_caller(MIB);

    assert_cuda(caller.cuMemAllocAsync(&address, MIB, NULL));
    assert_success(gpu_stream_wait_caller_stream(rig.stream, NULL));
    assert_kind(address, MIB, GPU_POINTER_DEVICE, true);
    assert_usable(&rig, address, MIB);
    assert_success(gpu_export_dmabuf(rig.gpu, address, MIB, &fd));
    close(fd);
    assert_cuda(caller.cuMemFreeAsync(address, NULL));

    assert_cuda(caller.cuMemAllocManaged(&address, MIB, 1));
    assert_kind(address, MIB, GPU_POINTER_MANAGED, true);
    assert_usable(&rig, address, MIB);
    assert_error(gpu_export_dmabuf(rig.gpu, address, MIB, &fd), TCPX_CUDA_ERROR, "dma-buf");
    assert_cuda(cuda.cuMemFree_v2(address));

    assert_cuda(caller.cuMemHostAlloc(&pages, MIB, 3));
    assert_kind((uintptr_t)pages, MIB, GPU_POINTER_PINNED, true);
    assert_cuda(caller.cuMemFreeHost(pages));

    close_beside_a_caller(&rig);
}

/* As PyTorch's expandable segments: one reserved range, several mappings, a hole behind them. */
TEST(test_mappings_side_by_side)
{
    enum { MAPPINGS = 3 };
    const uint64_t unit = 2 * MIB;
    /* CUmemAllocationProp for pinned memory of device 0, and CUmemAccessDesc to read and write */
    struct {
        int type, handle_types, location_type, location;
        void *win32;
        uint64_t flags;
    } properties = {.type = 1, .location_type = 1};
    struct {
        int location_type, location, flags;
    } access = {.location_type = 1, .flags = 3};
    unsigned long long handles[MAPPINGS];
    cu_address range;
    int fd;
    struct rig rig;
    struct gpu_pointer pointer;

    if (is_stand_in())
        skip_because("needs a real driver; test_cuda_faults makes up mappings");
    rig = open_beside_a_caller(MIB);
    assert_cuda(caller.cuMemAddressReserve(&range, 8 * unit, 0, 0, 0));
    for (int i = 0; i < MAPPINGS; i++) {
        assert_cuda(caller.cuMemCreate(&handles[i], unit, &properties, 0));
        assert_cuda(caller.cuMemMap(range + (uint64_t)i * unit, unit, 0, handles[i], 0));
    }
    assert_cuda(caller.cuMemSetAccess(range, MAPPINGS * unit, &access, 1));

    assert_kind(range, unit, GPU_POINTER_DEVICE, true);
    assert_kind(range + unit + 5, 100, GPU_POINTER_DEVICE, true);
    assert_kind(range, MAPPINGS * unit, GPU_POINTER_DEVICE, false);
    assert_kind(range + 1, MAPPINGS * unit - 1, GPU_POINTER_DEVICE, false);
    assert_usable(&rig, range, MAPPINGS * unit);
    assert_error(gpu_classify((void *)(uintptr_t)range, MAPPINGS * unit + 1, &pointer),
                 TCPX_INVALID_ARGUMENT, "without memory");
    assert_error(gpu_classify((void *)(uintptr_t)(range + MAPPINGS * unit), 1, &pointer),
                 TCPX_INVALID_ARGUMENT, "no memory mapped");
    assert_success(gpu_export_dmabuf(rig.gpu, range, MAPPINGS * unit, &fd));
    close(fd);

    assert_cuda(caller.cuMemUnmap(range, MAPPINGS * unit));
    for (int i = 0; i < MAPPINGS; i++)
        assert_cuda(caller.cuMemRelease(handles[i]));
    assert_cuda(caller.cuMemAddressFree(range, 8 * unit));
    close_beside_a_caller(&rig);
}

SUITE(.name = "beside a caller of CUDA", .set_up = find_caller_entry_points);
