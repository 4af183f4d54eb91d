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
struct caller {
    void *library;
    cu_result (*mem_alloc_async)(cu_address *address, size_t bytes, cu_stream stream);
    cu_result (*mem_free_async)(cu_address address, cu_stream stream);
    cu_result (*mem_alloc_managed)(cu_address *address, size_t bytes, unsigned flags);
    cu_result (*mem_host_alloc)(void **pages, size_t bytes, unsigned flags);
    cu_result (*mem_free_host)(void *pages);
    cu_result (*stream_synchronize)(cu_stream stream);
    cu_result (*primary_state)(cu_device device, unsigned *flags, int *active);
    cu_result (*address_reserve)(cu_address *address, size_t bytes, size_t alignment,
                                 cu_address hint, unsigned long long flags);
    cu_result (*address_free)(cu_address address, size_t bytes);
    cu_result (*create)(unsigned long long *handle, size_t bytes, const void *properties,
                        unsigned long long flags);
    cu_result (*release)(unsigned long long handle);
    cu_result (*map)(cu_address address, size_t bytes, size_t offset, unsigned long long handle,
                     unsigned long long flags);
    cu_result (*unmap)(cu_address address, size_t bytes);
    cu_result (*set_access)(cu_address address, size_t bytes, const void *access, size_t count);
    cu_result (*begin_capture)(cu_stream stream, int mode);
    cu_result (*end_capture)(cu_stream stream, void **graph);
    cu_result (*graph_destroy)(void *graph);
};

static struct caller caller;

#define FIND(member, name) *(void **)&caller.member = dlsym(caller.library, name)

static int find_caller_entry_points(void)
{
    int count;

    if (gpu_count(&count) != TCPX_SUCCESS)
        return -1;
    caller.library = dlopen("libcuda.so.1", RTLD_NOW);
    FIND(mem_alloc_async, "cuMemAllocAsync");
    FIND(mem_free_async, "cuMemFreeAsync");
    FIND(mem_alloc_managed, "cuMemAllocManaged");
    FIND(mem_host_alloc, "cuMemHostAlloc");
    FIND(mem_free_host, "cuMemFreeHost");
    FIND(stream_synchronize, "cuStreamSynchronize");
    FIND(primary_state, "cuDevicePrimaryCtxGetState");
    FIND(address_reserve, "cuMemAddressReserve");
    FIND(address_free, "cuMemAddressFree");
    FIND(create, "cuMemCreate");
    FIND(release, "cuMemRelease");
    FIND(map, "cuMemMap");
    FIND(unmap, "cuMemUnmap");
    FIND(set_access, "cuMemSetAccess");
    FIND(begin_capture, "cuStreamBeginCapture_v2");
    FIND(end_capture, "cuStreamEndCapture");
    FIND(graph_destroy, "cuGraphDestroy");
    return caller.library == NULL;
}

#define assert_cuda(call) assert_int_equal((call), CU_OK)

static bool is_stand_in(void)
{
    return caller.mem_alloc_async == NULL;
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
    assert_success(gpu_copy_to_host(stream, pinned.host, memory.address, MIB));
    assert_success(drain(gpu, stream));
    assert_int_equal(((uint8_t *)pinned.host)[12345], pattern_byte(1, 12345));
    gpu_stream_destroy(stream);
    gpu_pinned_free(gpu, &pinned);
    gpu_memory_free(gpu, &memory);
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
    assert_cuda(caller.primary_state(0, &flags, &active));
    assert_int_equal(active, 0);
    use_everything(gpu);
    assert_cuda(caller.primary_state(0, &flags, &active));
    assert_int_equal(active, 1);
    gpu_close(gpu);
    assert_cuda(caller.primary_state(0, &flags, &active));
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
    cu_context primary;
    struct gpu *gpu;
    struct gpu_stream *stream;
    struct gpu_event *event;
    struct gpu_memory memory;
    uint8_t byte = 0;

    assert_success(gpu_open(0, &gpu));
    assert_success(gpu_stream_create(gpu, &stream));
    assert_success(gpu_event_create(gpu, &event));
    assert_success(gpu_memory_alloc(gpu, 64 * MIB, 4096, &memory));
    assert_cuda(cuda.cuDevicePrimaryCtxRetain(&primary, 0));
    assert_cuda(cuda.cuCtxPushCurrent_v2(primary));
    for (int turn = 0; turn < 10; turn++) {
        uint8_t value = (uint8_t)(0x40 + turn);

        /* the caller's work on the default stream, which ours does not wait for by itself */
        assert_cuda(cuda.cuMemsetD8Async(memory.address, 0, 64 * MIB, NULL));
        assert_cuda(cuda.cuMemsetD8Async(memory.address, value, 64 * MIB, NULL));
        assert_success(gpu_stream_wait_caller_stream(stream, NULL));
        assert_success(gpu_copy_to_host(stream, &byte, memory.address + 64 * MIB - 1, 1));
        assert_success(drain(gpu, stream));
        assert_int_equal(byte, value);
        /* and the other way: the caller's stream waits for us */
        assert_success(gpu_set(stream, memory.address, 0, 64 * MIB));
        assert_success(gpu_set(stream, memory.address, (uint8_t)(value + 1), 64 * MIB));
        assert_success(gpu_event_record(event, stream));
        assert_success(gpu_caller_stream_wait(NULL, event));
        assert_cuda(cuda.cuMemcpyDtoHAsync_v2(&byte, memory.address + 64 * MIB - 1, 1, NULL));
        assert_cuda(cuda.cuEventRecord(gpu_event_native(event), NULL));
        assert_success(gpu_event_wait(event, LIMIT));
        assert_int_equal(byte, value + 1);
    }
    gpu_event_destroy(event);
    gpu_memory_free(gpu, &memory);
    gpu_stream_destroy(stream);
    gpu_close(gpu);
    assert_cuda(cuda.cuCtxPopCurrent_v2(&primary));
    assert_cuda(cuda.cuDevicePrimaryCtxRelease_v2(0));
}

TEST(test_a_graph_capture_is_refused_and_unharmed)
{
    enum { GLOBAL = 0 };
    cu_context primary;
    cu_stream captured;
    void *graph = NULL;
    struct gpu *gpu;
    struct gpu_stream *stream;
    struct gpu_event *event;

    if (is_stand_in())
        skip_because("needs a real driver; test_cuda_faults pretends a capture");
    assert_success(gpu_open(0, &gpu));
    assert_success(gpu_stream_create(gpu, &stream));
    assert_success(gpu_event_create(gpu, &event));
    assert_cuda(cuda.cuDevicePrimaryCtxRetain(&primary, 0));
    assert_cuda(cuda.cuCtxPushCurrent_v2(primary));
    assert_cuda(cuda.cuStreamCreate(&captured, CU_STREAM_NONBLOCKING));
    /* the strictest mode: any unsafe call of any thread would invalidate the capture */
    assert_cuda(caller.begin_capture(captured, GLOBAL));
    assert_error(gpu_stream_wait_caller_stream(stream, captured), TCPX_INVALID_USAGE, "graph");
    assert_error(gpu_caller_stream_wait(captured, event), TCPX_INVALID_USAGE, "graph");
    use_everything(gpu);
    assert_cuda(caller.end_capture(captured, &graph));
    assert_cuda(caller.graph_destroy(graph));
    assert_cuda(cuda.cuStreamDestroy_v2(captured));
    gpu_event_destroy(event);
    gpu_stream_destroy(stream);
    gpu_close(gpu);
    assert_cuda(cuda.cuCtxPopCurrent_v2(&primary));
    assert_cuda(cuda.cuDevicePrimaryCtxRelease_v2(0));
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
static void assert_usable(struct gpu *gpu, struct gpu_stream *stream, cu_address address,
                          uint64_t bytes)
{
    struct gpu_memory answer;
    struct gpu_verify_result result;

    assert_success(gpu_memory_alloc(gpu, sizeof result, 8, &answer));
    assert_success(gpu_fill_pattern(stream, address, bytes, 5, 0));
    assert_success(gpu_verify_pattern(stream, address, bytes, 5, 0, answer.address));
    assert_success(gpu_copy_to_host(stream, &result, answer.address, sizeof result));
    assert_success(drain(gpu, stream));
    assert_int_equal(result.differences, 0);
    gpu_memory_free(gpu, &answer);
}

TEST(test_memory_of_every_kind)
{
    cu_context primary;
    cu_address address;
    void *pages;
    int fd;
    struct gpu *gpu;
    struct gpu_stream *stream;

    if (is_stand_in())
        skip_because("needs a real driver");
    assert_success(gpu_open(0, &gpu));
    assert_success(gpu_stream_create(gpu, &stream));
    assert_cuda(cuda.cuDevicePrimaryCtxRetain(&primary, 0));
    assert_cuda(cuda.cuCtxPushCurrent_v2(primary));

    assert_cuda(caller.mem_alloc_async(&address, MIB, NULL));
    assert_success(gpu_stream_wait_caller_stream(stream, NULL));
    assert_kind(address, MIB, GPU_POINTER_DEVICE, true);
    assert_usable(gpu, stream, address, MIB);
    assert_success(gpu_export_dmabuf(gpu, address, MIB, &fd));
    close(fd);
    assert_cuda(caller.mem_free_async(address, NULL));

    assert_cuda(caller.mem_alloc_managed(&address, MIB, 1));
    assert_kind(address, MIB, GPU_POINTER_MANAGED, true);
    assert_usable(gpu, stream, address, MIB);
    assert_error(gpu_export_dmabuf(gpu, address, MIB, &fd), TCPX_CUDA_ERROR, "dma-buf");
    assert_cuda(cuda.cuMemFree_v2(address));

    assert_cuda(caller.mem_host_alloc(&pages, MIB, 3));
    assert_kind((uintptr_t)pages, MIB, GPU_POINTER_PINNED, true);
    assert_cuda(caller.mem_free_host(pages));

    gpu_stream_destroy(stream);
    gpu_close(gpu);
    assert_cuda(cuda.cuCtxPopCurrent_v2(&primary));
    assert_cuda(cuda.cuDevicePrimaryCtxRelease_v2(0));
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
    cu_context primary;
    cu_address range;
    int fd;
    struct gpu *gpu;
    struct gpu_stream *stream;
    struct gpu_pointer pointer;

    if (is_stand_in())
        skip_because("needs a real driver; test_cuda_faults makes up mappings");
    assert_success(gpu_open(0, &gpu));
    assert_success(gpu_stream_create(gpu, &stream));
    assert_cuda(cuda.cuDevicePrimaryCtxRetain(&primary, 0));
    assert_cuda(cuda.cuCtxPushCurrent_v2(primary));
    assert_cuda(caller.address_reserve(&range, 8 * unit, 0, 0, 0));
    for (int i = 0; i < MAPPINGS; i++) {
        assert_cuda(caller.create(&handles[i], unit, &properties, 0));
        assert_cuda(caller.map(range + (uint64_t)i * unit, unit, 0, handles[i], 0));
    }
    assert_cuda(caller.set_access(range, MAPPINGS * unit, &access, 1));

    assert_kind(range, unit, GPU_POINTER_DEVICE, true);
    assert_kind(range + unit + 5, 100, GPU_POINTER_DEVICE, true);
    assert_kind(range, MAPPINGS * unit, GPU_POINTER_DEVICE, false);
    assert_kind(range + 1, MAPPINGS * unit - 1, GPU_POINTER_DEVICE, false);
    assert_usable(gpu, stream, range, MAPPINGS * unit);
    assert_error(gpu_classify((void *)(uintptr_t)range, MAPPINGS * unit + 1, &pointer),
                 TCPX_INVALID_ARGUMENT, "without memory");
    assert_error(gpu_classify((void *)(uintptr_t)(range + MAPPINGS * unit), 1, &pointer),
                 TCPX_INVALID_ARGUMENT, "no memory mapped");
    assert_success(gpu_export_dmabuf(gpu, range, MAPPINGS * unit, &fd));
    close(fd);

    assert_cuda(caller.unmap(range, MAPPINGS * unit));
    for (int i = 0; i < MAPPINGS; i++)
        assert_cuda(caller.release(handles[i]));
    assert_cuda(caller.address_free(range, 8 * unit));
    gpu_stream_destroy(stream);
    gpu_close(gpu);
    assert_cuda(cuda.cuCtxPopCurrent_v2(&primary));
    assert_cuda(cuda.cuDevicePrimaryCtxRelease_v2(0));
}

SUITE(.name = "beside a caller of CUDA", .set_up = find_caller_entry_points);
