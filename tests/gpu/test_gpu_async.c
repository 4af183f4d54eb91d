/*
 * Work is done later, and code that does not wait goes wrong visibly: run with every operation
 * delayed by 20 ms (UCCL_TCPX_HOST_GPU_DELAY_US, FAKECUDA_DELAY_US), so not on a real GPU.
 */
#include "tests/gpu/gpu_test.h"

static struct rig fixture;

static int set_up(void)
{
    return rig_open(&fixture, 4096);
}

static int tear_down(void)
{
    rig_close(&fixture);
    return 0;
}

TEST(test_a_copy_is_not_done_when_the_call_returns)
{
    volatile uint8_t *bytes = fixture.pinned.host;
    bool done = true;

    bytes[0] = 1;
    assert_success(gpu_set(fixture.stream, fixture.memory.address, 2, 1));
    assert_success(
        gpu_copy_to_host(fixture.stream, fixture.pinned.host, fixture.memory.address, 1));
    assert_success(gpu_event_record(fixture.event, fixture.stream));
    assert_success(gpu_event_query(fixture.event, &done));
    assert_false(done);
    assert_int_equal(bytes[0], 1);
    assert_success(gpu_event_wait(fixture.event, LIMIT));
    assert_int_equal(bytes[0], 2);
}

#if defined(__SANITIZE_THREAD__)
#define UNDER_THREAD_SANITIZER true
#elif defined(__has_feature)
#define UNDER_THREAD_SANITIZER __has_feature(thread_sanitizer)
#else
#define UNDER_THREAD_SANITIZER false
#endif

/* A sender that reuses its buffer too early sends the wrong bytes; here, too. */
TEST(test_a_source_is_read_late)
{
    uint8_t *bytes = fixture.pinned.host;

    if (UNDER_THREAD_SANITIZER)
        skip_because("the thread sanitizer sees this race, as it should");

    bytes[0] = 3;
    assert_success(
        gpu_copy_to_device(fixture.stream, fixture.memory.address, fixture.pinned.host, 1));
    __atomic_store_n(bytes, 4, __ATOMIC_RELAXED);
    fetch_on(fixture.gpu, fixture.stream, bytes + 1, fixture.memory.address, 1);
    assert_int_equal(bytes[1], 4);
}

TEST(test_a_deadline_is_not_an_end)
{
    uint64_t before = clock_now();

    for (int i = 0; i < 5; i++)
        assert_success(gpu_set(fixture.stream, fixture.memory.address, 5, 1));
    assert_success(gpu_event_record(fixture.event, fixture.stream));
    assert_error(gpu_event_wait(fixture.event, deadline_after_ms(10)), TCPX_IN_PROGRESS, "GPU 0");
    assert_true(clock_now() - before >= 10000000);
    assert_success(gpu_event_wait(fixture.event, LIMIT));
}

TEST(test_a_wait_counts_the_records_before_it)
{
    volatile uint8_t *bytes = fixture.pinned.host;
    struct gpu_stream *other;

    bytes[0] = 0;
    assert_success(gpu_stream_create(fixture.gpu, &other));
    assert_success(gpu_set(fixture.stream, fixture.memory.address, 6, 1));
    assert_success(gpu_event_record(fixture.event, fixture.stream));
    assert_success(gpu_stream_wait_event(other, fixture.event));
    assert_success(gpu_copy_to_host(other, fixture.pinned.host, fixture.memory.address, 1));
    /* comes after the wait, so the copy must not wait for it, nor see it */
    for (int i = 0; i < 20; i++)
        assert_success(gpu_set(fixture.stream, fixture.memory.address + 1, 7, 1));
    assert_success(gpu_event_record(fixture.event, fixture.stream));
    assert_success(drain(fixture.gpu, other));
    assert_int_equal(bytes[0], 6);
    bool done = true;
    assert_success(gpu_event_query(fixture.event, &done));
    assert_false(done);
    assert_success(gpu_event_wait(fixture.event, LIMIT));
    gpu_stream_destroy(other);
}

TEST(test_an_event_can_be_destroyed_while_it_is_waited_for)
{
    volatile uint8_t *bytes = fixture.pinned.host;
    struct gpu_stream *other;
    struct gpu_event *event;

    assert_success(gpu_stream_create(fixture.gpu, &other));
    assert_success(gpu_event_create(fixture.gpu, &event));
    assert_success(gpu_set(fixture.stream, fixture.memory.address, 8, 1));
    assert_success(gpu_event_record(event, fixture.stream));
    assert_success(gpu_stream_wait_event(other, event));
    gpu_event_destroy(event);
    fetch_on(fixture.gpu, other, fixture.pinned.host, fixture.memory.address, 1);
    assert_int_equal(bytes[0], 8);
    gpu_stream_destroy(other);
}

TEST(test_memory_freed_under_work_is_an_error)
{
    struct gpu_stream *stream;
    struct gpu_stream *waiting;
    struct gpu_memory memory;

    assert_success(gpu_stream_create(fixture.gpu, &stream));
    assert_success(gpu_stream_create(fixture.gpu, &waiting));
    assert_success(gpu_memory_alloc(fixture.gpu, 4096, 1, &memory));
    assert_success(gpu_set(stream, fixture.memory.address, 1, 1));
    assert_success(gpu_set(stream, memory.address, 9, 100));
    assert_success(gpu_event_record(fixture.event, stream));
    assert_success(gpu_stream_wait_event(waiting, fixture.event));
    gpu_memory_free(fixture.gpu, &memory);
    assert_error(gpu_event_wait(fixture.event, LIMIT), TCPX_CUDA_ERROR, "");
    /* the stream has failed for good, and so has what waited for it */
    assert_int_equal(gpu_set(stream, fixture.memory.address, 1, 1), TCPX_CUDA_ERROR);
    assert_int_equal(drain(fixture.gpu, waiting), TCPX_CUDA_ERROR);
    gpu_stream_destroy(stream);
    gpu_stream_destroy(waiting);
    /* others go on */
    assert_success(gpu_event_record(fixture.event, fixture.stream));
    assert_success(gpu_event_wait(fixture.event, LIMIT));
}

TEST(test_pinned_memory_freed_under_a_copy_is_an_error)
{
    struct gpu_stream *stream;
    struct gpu_pinned pinned;

    assert_success(gpu_stream_create(fixture.gpu, &stream));
    assert_success(gpu_pinned_alloc(fixture.gpu, 4096, &pinned));
    assert_success(gpu_set(stream, fixture.memory.address, 1, 1));
    assert_success(gpu_copy_to_host(stream, pinned.host, fixture.memory.address, 100));
    gpu_pinned_free(fixture.gpu, &pinned);
    assert_error(drain(fixture.gpu, stream), TCPX_CUDA_ERROR, "");
    gpu_stream_destroy(stream);
}

SUITE(.name = "asynchrony", .set_up = set_up, .tear_down = tear_down);
