/*
 * The CUDA backend over the stand-in driver when the driver fails: every call in turn. Each failure
 * is a result with the driver's name for it, and nothing that was taken is kept.
 */
#include "tests/gpu/gpu_test.h"

#include "base/log.h"
#include "gpu/cuda_driver.h"
#include "tests/fakecuda/controls.h"

#include <unistd.h>

static void assert_nothing_kept(const char *after)
{
    assert_balance(&(struct fakecuda_balance){0}, after);
}

/*
 * Uses every operation once; the first failure is the result. Faults end before all is given back:
 * a driver that does not let us in then keeps what it has.
 */
static int scenario(void)
{
    struct gpu *gpu = NULL;
    struct gpu_stream *stream = NULL;
    struct gpu_stream *other = NULL;
    struct gpu_event *event = NULL;
    struct gpu_memory memory = {0};
    struct gpu_pinned pinned = {0};
    struct gpu_pointer pointer;
    struct tcpx_gpu_properties properties;
    uint64_t available;
    int fd = -1;
    int result = gpu_properties(1, &properties);

    STEP(gpu_open(1, &gpu));
    STEP(gpu_memory_available(gpu, &available));
    STEP(gpu_memory_alloc(gpu, 65536, 4096, &memory));
    STEP(gpu_pinned_alloc(gpu, 65536, &pinned));
    STEP(gpu_stream_create(gpu, &stream));
    STEP(gpu_stream_create(gpu, &other));
    STEP(gpu_event_create(gpu, &event));
    STEP(gpu_classify((void *)(uintptr_t)memory.address, 65536, &pointer));
    STEP(gpu_export_dmabuf(gpu, memory.address, 4096, &fd));
    STEP(gpu_flush_inbound_writes(gpu));
    STEP(gpu_fill_pattern(stream, memory.address, 4096, 1, 0));
    STEP(gpu_copy_to_host(stream, pinned.host, memory.address, 4096));
    STEP(gpu_copy_to_device(stream, memory.address, pinned.host, 4096));
    STEP(gpu_copy_to_device(stream, memory.address, pinned.host, 4095));
    STEP(gpu_copy_to_device(stream, memory.address, pinned.host, 65536));
    STEP(gpu_copy_on_device(stream, memory.address + 8192, memory.address, 4096));
    STEP(gpu_set(stream, memory.address, 0, 16));
    STEP(gpu_event_record(event, stream));
    STEP(gpu_stream_wait_event(other, event));
    STEP(gpu_stream_wait_caller_stream(other, gpu_stream_native(stream)));
    STEP(gpu_stream_wait_caller_event(other, gpu_event_native(event)));
    STEP(gpu_caller_stream_wait(gpu_stream_native(other), event));
    STEP(gpu_event_record(event, other));
    STEP(gpu_event_wait(event, LIMIT));
    fakecuda.fault(NULL);
    if (fd >= 0)
        close(fd);
    gpu_event_destroy(event);
    gpu_stream_destroy(other);
    gpu_stream_destroy(stream);
    if (gpu != NULL) {
        gpu_pinned_free(gpu, &pinned);
        gpu_memory_free(gpu, &memory);
    }
    gpu_close(gpu);
    return result;
}

TEST(test_no_context_before_device_memory)
{
    struct gpu_pointer pointer;
    struct gpu *gpu;

    assert_success(gpu_open(0, &gpu));
    assert_success(gpu_classify(&pointer, sizeof pointer, &pointer));
    assert_int_equal(fakecuda.calls("cuDevicePrimaryCtxRetain"), 0);
    gpu_close(gpu);
    assert_int_equal(fakecuda.calls("cuDevicePrimaryCtxRelease_v2"), 0);
}

TEST(test_the_callers_gpu)
{
    cu_context context;
    int index = -1;

    assert_success(gpu_of_caller(&index)); /* no context */
    assert_int_equal(index, 0);
    assert_int_equal(cuda.cuDevicePrimaryCtxRetain(&context, 0), CU_OK);
    assert_int_equal(cuda.cuCtxPushCurrent_v2(context), CU_OK);
    index = -1;
    assert_success(gpu_of_caller(&index));
    assert_int_equal(index, 0);
    fakecuda.fault("cuCtxGetDevice@1=2");
    assert_int_equal(gpu_of_caller(&index), TCPX_CUDA_ERROR);
    fakecuda.fault(NULL);
    assert_int_equal(cuda.cuCtxPopCurrent_v2(&context), CU_OK);
    assert_int_equal(cuda.cuDevicePrimaryCtxRelease_v2(0), CU_OK);
}

TEST(test_the_scenario_itself)
{
    assert_success(scenario());
    assert_nothing_kept("the scenario");
}

/* Entry points whose failure is not a failure of the scenario. */
static bool is_tolerated(const char *name)
{
    static const char *const names[] = {
        "cuInit",
        "cuDeviceGetCount", /* called once, before the faults */
        "cuGetErrorName",
        "cuGetErrorString",
        "cuCtxGetDevice",         /* test_the_callers_gpu */
        "cuDeviceGetAttribute",   /* an unknown attribute counts as 0 */
        "cuPointerGetAttributes", /* asked twice: test_pointers_of_an_old_driver */
        /* giving back: a warning */
        "cuDevicePrimaryCtxRelease_v2",
        "cuCtxPopCurrent_v2",
        "cuMemFree_v2",
        "cuMemHostUnregister",
        "cuStreamDestroy_v2",
        "cuEventDestroy_v2",
        "cuModuleUnload",
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static void fail_in_turn(const char *name)
{
    enum { MORE_THAN_THERE_ARE = 500 };
    unsigned failures = 0;

    if (is_tolerated(name))
        return;
    for (int nth = 1; nth < MORE_THAN_THERE_ARE; nth++) {
        unsigned before = fakecuda.faults_seen();
        char spec[96];
        int result;

        snprintf(spec, sizeof spec, "%s@%d=2", name, nth);
        fakecuda.fault(spec);
        result = scenario();
        if (fakecuda.faults_seen() == before)
            break;
        assert_nothing_kept(spec);
        /* What is asked for twice (a dma-buf, without its flag) or restored may fail once. */
        if (result == TCPX_SUCCESS)
            continue;
        if (result != TCPX_CUDA_ERROR ||
            strstr(tcpx_last_error(), "CUDA_ERROR_OUT_OF_MEMORY") == NULL)
            fail_msg("%s: %s: %s", spec, tcpx_result_name(result), tcpx_last_error());
        failures++;
    }
    if (failures == 0)
        fail_msg("%s: no failure of it reached the scenario", name);
}

TEST(test_every_call_failing_in_turn)
{
#define TRY(name, arguments) fail_in_turn(#name);
    CUDA_ENTRY_POINTS(TRY, TRY)
#undef TRY
}

/* A driver that does not know two of the attributes is asked again without them. */
TEST(test_pointers_of_an_old_driver)
{
    struct gpu_pointer pointer;

    fakecuda.fault("cuPointerGetAttributes@1=1");
    assert_success(gpu_classify(state, 1, &pointer));
    assert_int_equal(pointer.kind, GPU_POINTER_HOST);
    fakecuda.fault("cuPointerGetAttributes=1");
    assert_error(gpu_classify(state, 1, &pointer), TCPX_CUDA_ERROR, "CUDA_ERROR_INVALID_VALUE");
    fakecuda.fault(NULL);
}

TEST(test_the_compilers_message_is_shown)
{
    fakecuda.fault("cuModuleLoadDataEx=2");
    assert_error(scenario(), TCPX_CUDA_ERROR, "ptxas says no");
    fakecuda.fault(NULL);
    assert_nothing_kept("a failed compilation");
}

TEST(test_an_error_without_a_name)
{
    fakecuda.fault("cuMemAlloc_v2=98765");
    assert_error(scenario(), TCPX_CUDA_ERROR, "CUDA error 98765");
    fakecuda.fault(NULL);
    assert_nothing_kept("an unknown error");
}

TEST(test_dmabuf_support_is_asked_for)
{
    struct tcpx_gpu_properties properties;

    fakecuda.attribute(CU_ATTRIBUTE_DMABUF, 0);
    assert_error(scenario(), TCPX_CUDA_ERROR, "cannot export a dma-buf");
    assert_success(gpu_properties(0, &properties));
    assert_int_equal(properties.dmabuf, 0);
    fakecuda.attribute(CU_ATTRIBUTE_DMABUF, 1);
    assert_success(gpu_properties(0, &properties));
    assert_int_equal(properties.dmabuf, 1);
}

TEST(test_flushing_only_where_it_is_needed)
{
    unsigned before = fakecuda.calls("cuFlushGPUDirectRDMAWrites");
    struct gpu *gpu;

    assert_success(gpu_open(0, &gpu));
    assert_success(gpu_flush_inbound_writes(gpu));
    assert_int_equal(fakecuda.calls("cuFlushGPUDirectRDMAWrites"), before + 1);
    fakecuda.attribute(CU_ATTRIBUTE_RDMA_WRITES_ORDERING, 100);
    assert_success(gpu_flush_inbound_writes(gpu));
    assert_int_equal(fakecuda.calls("cuFlushGPUDirectRDMAWrites"), before + 1);
    fakecuda.attribute(CU_ATTRIBUTE_RDMA_WRITES_ORDERING, 0);
    fakecuda.attribute(CU_ATTRIBUTE_RDMA_FLUSH_OPTIONS, 0);
    assert_error(gpu_flush_inbound_writes(gpu), TCPX_CUDA_ERROR, "neither orders nor flushes");
    fakecuda.attribute(CU_ATTRIBUTE_RDMA_FLUSH_OPTIONS, 1);
    gpu_close(gpu);
}

TEST(test_a_stream_under_capture_is_refused)
{
    struct gpu_stream *captured;
    struct rig rig;

    assert_int_equal(rig_open(&rig, 4096), 0);
    assert_success(gpu_stream_create(rig.gpu, &captured));
    fakecuda.capture(gpu_stream_native(captured), 1);
    assert_error(gpu_stream_wait_caller_stream(rig.stream, gpu_stream_native(captured)),
                 TCPX_INVALID_USAGE, "graph");
    assert_error(gpu_caller_stream_wait(gpu_stream_native(captured), rig.event), TCPX_INVALID_USAGE,
                 "graph");
    gpu_stream_destroy(captured);
    rig_close(&rig);
}

static int classify(uint64_t address, uint64_t bytes, struct gpu_pointer *pointer)
{
    return gpu_classify((const void *)(uintptr_t)address, bytes, pointer);
}

TEST(test_mappings_side_by_side)
{
    const uint64_t base = (uint64_t)1 << 44;
    const uint64_t unit = (uint64_t)2 << 20;
    struct fakecuda_mapping mapping = {.range_start = base, .range_bytes = 8 * unit};
    struct gpu_pointer pointer = {.bytes = 77};

    /* 0, 1: GPU 0; 2: GPU 1; 3: managed; the rest is reserved only */
    for (uint64_t i = 0; i < 8; i++) {
        mapping.start = base + i * unit;
        mapping.end = mapping.start + unit;
        mapping.memory_type = i < 4 ? CU_MEMORY_DEVICE : 0;
        mapping.device = i < 4 ? i == 2 : -2;
        mapping.managed = i == 3;
        fakecuda.mapping(&mapping);
    }
    assert_success(classify(base, unit, &pointer));
    assert_true(pointer.one_allocation);
    assert_int_equal(pointer.base, base);
    assert_int_equal(pointer.bytes, unit);
    assert_success(classify(base + 5, 2 * unit - 5, &pointer));
    assert_false(pointer.one_allocation);
    assert_int_equal(pointer.kind, GPU_POINTER_DEVICE);
    assert_int_equal(pointer.device, 0);
    assert_error(classify(base, 2 * unit + 1, &pointer), TCPX_INVALID_ARGUMENT, "GPU 1");
    assert_error(classify(base + 2 * unit, 2 * unit, &pointer), TCPX_INVALID_ARGUMENT,
                 "managed memory");
    assert_success(classify(base + 3 * unit, unit, &pointer));
    assert_int_equal(pointer.kind, GPU_POINTER_MANAGED);
    assert_error(classify(base + 3 * unit, unit + 1, &pointer), TCPX_INVALID_ARGUMENT,
                 "without memory");
    assert_error(classify(base + 5 * unit, 1, &pointer), TCPX_INVALID_ARGUMENT, "no memory mapped");
}

static char warnings[1000];

static void collect(int level, unsigned long flags, const char *file, int line, const char *format,
                    ...)
{
    va_list arguments;

    (void)flags;
    (void)file;
    (void)line;
    if (level != 2)
        return;
    va_start(arguments, format);
    vsnprintf(warnings, sizeof warnings, format, arguments);
    va_end(arguments);
}

TEST(test_giving_back_what_fails_is_a_warning)
{
    struct gpu_memory memory;
    struct gpu *gpu;

    log_set_nccl_logger(collect);
    assert_success(gpu_open(0, &gpu));
    assert_success(gpu_memory_alloc(gpu, 4096, 1, &memory));
    fakecuda.fault("cuMemFree_v2@1=700");
    gpu_memory_free(gpu, &memory);
    fakecuda.fault(NULL);
    assert_string_equal(warnings, "cuMemFree_v2: CUDA_ERROR_ILLEGAL_ADDRESS");
    warnings[0] = '\0';
    gpu_close(gpu);
    log_set_nccl_logger(NULL);
}

TEST(test_quiet_after_the_driver_has_shut_down)
{
    struct rig rig;

    log_set_nccl_logger(collect);
    warnings[0] = '\0';
    assert_int_equal(rig_open(&rig, 4096), 0);
    fakecuda.shutdown(1);
    assert_error(gpu_set(rig.stream, rig.memory.address, 0, 1), TCPX_CUDA_ERROR,
                 "CUDA_ERROR_DEINITIALIZED");
    rig_close(&rig);
    assert_string_equal(warnings, "");
    fakecuda.shutdown(0);
    log_set_nccl_logger(NULL);
}

SUITE(.name = "a failing driver", .begin = fakecuda_find);
