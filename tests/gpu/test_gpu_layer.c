/*
 * What the GPU layer promises, on whatever GPU the environment chooses: the emulated one, CUDA over
 * the stand-in driver, or a real one. The CPU's own arithmetic is the reference throughout.
 */
#include "tests/gpu/gpu_test.h"

#include "abi/unpack_queue.h"
#include "gpu/kernels.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

static struct rig fixture;

static const uint64_t fixture_bytes = 4 * MIB;

static int set_up(void)
{
    return rig_open(&fixture, fixture_bytes);
}

static int tear_down(void)
{
    rig_close(&fixture);
    return 0;
}

static bool is_real_gpu(void)
{
    struct tcpx_gpu_properties properties;

    return gpu_properties(0, &properties) == TCPX_SUCCESS &&
           strcmp(properties.backend, "cuda") == 0 && strstr(properties.name, "stand-in") == NULL;
}

/* Copies device memory into a buffer of the CPU's. */
static void fetch(void *to, gpu_address from, uint64_t bytes)
{
    fetch_on(fixture.gpu, fixture.stream, to, from, bytes);
}

static void store(gpu_address to, const void *from, uint64_t bytes)
{
    assert_success(gpu_copy_to_device(fixture.stream, to, from, bytes));
    assert_success(drain(fixture.gpu, fixture.stream));
}

static struct gpu_verify_result verify(gpu_address at, uint64_t bytes, uint64_t seed,
                                       uint64_t position, gpu_address answer)
{
    return verify_on(fixture.gpu, fixture.stream, at, bytes, seed, position, answer);
}

static void fill_random(uint8_t *bytes, size_t count, uint64_t *state)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)(random_next(state) >> 32);
}

/* --- devices ------------------------------------------------------------------------------- */

TEST(test_devices)
{
    struct tcpx_gpu_properties properties;
    const char *backend;
    const char *reason;
    int count = 0;

    assert_success(gpu_backend(&backend, &reason));
    assert_success(tcpx_gpu_count(&count));
    assert_true(count >= 1);
    for (int i = 0; i < count; i++) {
        memset(&properties, 0xa5, sizeof properties);
        assert_success(tcpx_gpu_get_properties(i, &properties));
        assert_string_equal(properties.backend, backend);
        assert_true(strlen(properties.name) > 0);
        assert_true(properties.memory_bytes > 0);
        assert_true(properties.numa_node >= -1);
    }
    printf("# backend %s (%s), GPU 0 is %s\n", backend, reason, properties.name);
}

TEST(test_devices_that_are_not_there)
{
    struct tcpx_gpu_properties properties;
    struct gpu *gpu = NULL;

    assert_error(tcpx_gpu_get_properties(-1, &properties), TCPX_INVALID_ARGUMENT, "no GPU -1");
    assert_error(tcpx_gpu_get_properties(1000, &properties), TCPX_INVALID_ARGUMENT, "no GPU 1000");
    assert_error(tcpx_gpu_get_properties(0, NULL), TCPX_INVALID_ARGUMENT, "NULL");
    assert_error(tcpx_gpu_count(NULL), TCPX_INVALID_ARGUMENT, "NULL");
    assert_error(gpu_open(1000, &gpu), TCPX_INVALID_ARGUMENT, "no GPU 1000");
    assert_null(gpu);
    gpu_close(NULL);
}

/* --- memory -------------------------------------------------------------------------------- */

TEST(test_memory_sizes_and_alignments)
{
    static const uint64_t sizes[] = {1, 255, 4096, 4097, 3 * MIB + 5};
    static const uint64_t alignments[] = {1, 16, 256, 4096, 65536, 2 * MIB};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t k = 0; k < sizeof alignments / sizeof *alignments; k++) {
            struct gpu_memory memory;
            uint8_t last = 0;

            assert_success(gpu_memory_alloc(fixture.gpu, sizes[i], alignments[k], &memory));
            assert_int_equal(memory.address % alignments[k], 0);
            assert_int_equal(memory.bytes, sizes[i]);
            assert_success(gpu_set(fixture.stream, memory.address, 0x5a, sizes[i]));
            fetch(&last, memory.address + sizes[i] - 1, 1);
            assert_int_equal(last, 0x5a);
            gpu_memory_free(fixture.gpu, &memory);
            assert_int_equal(memory.bytes, 0);
            gpu_memory_free(fixture.gpu, &memory);
        }
}

/* What is allocated is not available any more. */
TEST(test_available_memory)
{
    struct tcpx_gpu_properties properties;
    struct gpu_memory memory;
    uint64_t before;
    uint64_t after;

    assert_success(gpu_properties(0, &properties));
    assert_success(gpu_memory_available(fixture.gpu, &before));
    assert_in_range(before, 64 * MIB, properties.memory_bytes);
    assert_success(gpu_memory_alloc(fixture.gpu, 64 * MIB, 4096, &memory));
    assert_success(gpu_memory_available(fixture.gpu, &after));
    assert_in_range(after, 0, before - 64 * MIB);
    gpu_memory_free(fixture.gpu, &memory);
}

TEST(test_memory_that_cannot_be_had)
{
    struct gpu_memory memory = {.bytes = 77};
    struct gpu_pinned pinned = {.bytes = 77};

    assert_error(gpu_memory_alloc(fixture.gpu, 0, 4096, &memory), TCPX_INVALID_ARGUMENT, "0 bytes");
    assert_error(gpu_memory_alloc(fixture.gpu, 4096, 0, &memory), TCPX_INVALID_ARGUMENT,
                 "power of two");
    assert_error(gpu_memory_alloc(fixture.gpu, 4096, 48, &memory), TCPX_INVALID_ARGUMENT, "48");
    assert_error(gpu_memory_alloc(fixture.gpu, (uint64_t)1 << 50, 4096, &memory), TCPX_CUDA_ERROR,
                 "112589990684");
    assert_error(gpu_memory_alloc(fixture.gpu, UINT64_MAX, 4096, &memory), TCPX_CUDA_ERROR, "");
    assert_error(gpu_pinned_alloc(fixture.gpu, 0, &pinned), TCPX_INVALID_ARGUMENT, "0 bytes");
    assert_error(gpu_pinned_alloc(fixture.gpu, UINT64_MAX, &pinned), TCPX_INVALID_ARGUMENT,
                 "pinned");
    assert_error(gpu_pinned_alloc(fixture.gpu, (uint64_t)1 << 60, &pinned), TCPX_SYSTEM_ERROR, "");
    assert_int_equal(memory.bytes, 77);
    assert_int_equal(pinned.bytes, 77);
}

TEST(test_cpu_cannot_touch_device_memory)
{
    int status;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*(volatile uint8_t *)(uintptr_t)fixture.memory.address & 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

TEST(test_pinned_memory_is_shared_with_the_gpu)
{
    struct gpu_verify_result result;
    struct gpu_pinned pinned;
    uint8_t *bytes;

    assert_success(gpu_pinned_alloc(fixture.gpu, 5000, &pinned));
    assert_int_equal(pinned.bytes, 8192);
    assert_int_equal((uintptr_t)pinned.host % 4096, 0);
    bytes = pinned.host;
    for (size_t i = 0; i < 8192; i++)
        assert_int_equal(bytes[i], 0);

    /* the GPU writes, the CPU reads */
    assert_success(gpu_fill_pattern(fixture.stream, pinned.device, 5000, 9, 0));
    assert_success(drain(fixture.gpu, fixture.stream));
    for (size_t i = 0; i < 8192; i++)
        assert_int_equal(bytes[i], i < 5000 ? pattern_byte(9, i) : 0);

    /* the CPU writes, the GPU reads */
    bytes[4321] ^= 0x10;
    result = verify(pinned.device, 5000, 9, 0, fixture.memory.address);
    assert_int_equal(result.differences, 1);
    assert_int_equal(result.first, 4321);
    gpu_pinned_free(fixture.gpu, &pinned);
    assert_null(pinned.host);
    gpu_pinned_free(fixture.gpu, &pinned);
}

TEST(test_classify)
{
    struct gpu_pointer pointer;
    uint8_t local[16] = {0};
    void *heap = malloc(100000);
    const void *device = (const void *)(uintptr_t)fixture.memory.address;

    assert_success(gpu_classify(local, sizeof local, &pointer));
    assert_int_equal(pointer.kind, GPU_POINTER_HOST);
    assert_int_equal(pointer.device, -1);
    assert_success(gpu_classify(heap, 100000, &pointer));
    assert_int_equal(pointer.kind, GPU_POINTER_HOST);
    free(heap);

    assert_success(gpu_classify(device, fixture_bytes, &pointer));
    assert_int_equal(pointer.kind, GPU_POINTER_DEVICE);
    assert_int_equal(pointer.device, 0);
    assert_true(pointer.one_allocation);
    assert_true(pointer.base <= fixture.memory.address);
    assert_true(pointer.base + pointer.bytes >= fixture.memory.address + fixture_bytes);
    assert_success(gpu_classify((const char *)device + fixture_bytes - 1, 1, &pointer));
    assert_int_equal(pointer.kind, GPU_POINTER_DEVICE);

    assert_success(gpu_classify(fixture.pinned.host, fixture_bytes, &pointer));
    assert_int_equal(pointer.kind, GPU_POINTER_PINNED);
    assert_success(gpu_classify((char *)fixture.pinned.host + 12345, 678, &pointer));
    assert_int_equal(pointer.kind, GPU_POINTER_PINNED);
    assert_success(gpu_classify((const void *)(uintptr_t)fixture.pinned.device, 1, &pointer));
    assert_int_equal(pointer.kind, GPU_POINTER_PINNED);
}

TEST(test_classify_refuses)
{
    struct gpu_pointer pointer = {.bytes = 77};
    const char *device = (const char *)(uintptr_t)fixture.memory.address;
    struct gpu_memory small;

    assert_error(gpu_classify(NULL, 10, &pointer), TCPX_INVALID_ARGUMENT, "10 bytes");
    assert_error(gpu_classify(device, 0, &pointer), TCPX_INVALID_ARGUMENT, "0 bytes");
    assert_error(gpu_classify(device, UINT64_MAX, &pointer), TCPX_INVALID_ARGUMENT, "");
    /* beyond the end: whatever lies there, it is not the same allocation */
    assert_success(gpu_memory_alloc(fixture.gpu, 100, 256, &small));
    assert_error(gpu_classify((const void *)(uintptr_t)small.address, 101, &pointer),
                 TCPX_INVALID_ARGUMENT, "101 bytes");
    gpu_memory_free(fixture.gpu, &small);
    assert_int_equal(pointer.bytes, 77);
}

TEST(test_dmabuf_export)
{
    struct tcpx_gpu_properties properties;
    int fd = -7;
    int result;

    assert_success(gpu_properties(0, &properties));
    assert_error(gpu_export_dmabuf(fixture.gpu, fixture.memory.address + 1, 4096, &fd),
                 TCPX_INVALID_ARGUMENT, "multiples of 4096");
    assert_error(gpu_export_dmabuf(fixture.gpu, fixture.memory.address, 100, &fd),
                 TCPX_INVALID_ARGUMENT, "multiples of 4096");
    assert_error(gpu_export_dmabuf(fixture.gpu, fixture.memory.address, 0, &fd),
                 TCPX_INVALID_ARGUMENT, "multiples of 4096");
    assert_int_equal(fd, -7);
    result = gpu_export_dmabuf(fixture.gpu, fixture.memory.address + 4096, MIB, &fd);
    if (!properties.dmabuf) {
        assert_int_not_equal(result, TCPX_SUCCESS);
        assert_true(strlen(tcpx_last_error()) > 0);
        skip_because("%s", tcpx_last_error());
    }
    assert_success(result);
    assert_int_equal(lseek(fd, 0, SEEK_END), (off_t)MIB);
    close(fd);
}

TEST(test_flush)
{
    assert_success(gpu_flush_inbound_writes(fixture.gpu));
}

/* --- copies -------------------------------------------------------------------------------- */

TEST(test_copies_of_any_size_and_place)
{
    enum { ROOM = 70000 };
    static uint8_t original[ROOM];
    static uint8_t expected[ROOM];
    static uint8_t arrived[ROOM];
    uint64_t seed = 1;

    for (int turn = 0; turn < 100; turn++) {
        uint64_t bytes = random_below(&seed, turn < 50 ? 100 : ROOM / 4);
        uint64_t from = random_below(&seed, ROOM / 4);
        uint64_t between = random_below(&seed, ROOM / 4);
        uint64_t to = ROOM / 2 + random_below(&seed, ROOM / 4);
        gpu_address base = fixture.memory.address;

        /* host -> device, device -> device, device -> host, with what lies around untouched */
        fill_random(original, ROOM, &seed);
        assert_success(gpu_set(fixture.stream, base, 0xee, ROOM));
        assert_success(gpu_copy_to_device(fixture.stream, base + between, original + from, bytes));
        assert_success(gpu_copy_on_device(fixture.stream, base + to, base + between, bytes));
        memset(arrived, 0x77, ROOM);
        fetch(arrived, base, ROOM);
        memset(expected, 0xee, ROOM);
        memcpy(expected + between, original + from, bytes);
        memcpy(expected + to, original + from, bytes);
        assert_memory_equal(arrived, expected, ROOM);
    }
}

TEST(test_work_outside_memory_is_an_error)
{
    gpu_address end = fixture.memory.address + fixture_bytes;
    char bytes[16];

    if (is_real_gpu())
        skip_because("a real driver may fail the whole context later: see test_gpu_fault");
    assert_error(gpu_set(fixture.stream, end - 8, 0, 9), TCPX_CUDA_ERROR, "9 bytes");
    assert_error(gpu_copy_to_device(fixture.stream, end - 8, bytes, 9), TCPX_CUDA_ERROR, "9 bytes");
    assert_error(gpu_copy_to_host(fixture.stream, bytes, end, 1), TCPX_CUDA_ERROR, "1 bytes");
    assert_success(drain(fixture.gpu, fixture.stream));
}

/* --- streams and events -------------------------------------------------------------------- */

TEST(test_an_event_that_was_never_recorded_is_done)
{
    struct gpu_event *event;
    bool done = false;

    assert_success(gpu_event_create(fixture.gpu, &event));
    assert_success(gpu_event_query(event, &done));
    assert_true(done);
    assert_success(gpu_event_wait(event, deadline_after_ms(0)));
    gpu_event_destroy(event);
}

/* Also for another stream, and says what is true of its latest record. */
TEST(test_an_event_can_be_recorded_again)
{
    struct gpu_stream *other;
    uint8_t *bytes = fixture.pinned.host;

    assert_success(gpu_stream_create(fixture.gpu, &other));
    for (uint8_t turn = 1; turn <= 60; turn++) {
        struct gpu_stream *stream = turn % 3 == 0 ? other : fixture.stream;

        assert_success(gpu_set(stream, fixture.pinned.device, turn, 4096));
        assert_success(gpu_event_record(fixture.event, stream));
        assert_success(gpu_event_wait(fixture.event, LIMIT));
        assert_int_equal(bytes[0], turn);
        assert_int_equal(bytes[4095], turn);
    }
    gpu_stream_destroy(other);
}

TEST(test_streams_wait_for_each_other)
{
    gpu_address first = fixture.memory.address;
    gpu_address second = fixture.memory.address + 2 * MIB;
    struct gpu_stream *other;

    assert_success(gpu_stream_create(fixture.gpu, &other));
    for (uint64_t turn = 0; turn < 20; turn++) {
        /* 0 and 1: our own event; the rest: as a caller's stream, event, and the other way */
        assert_success(gpu_fill_pattern(fixture.stream, first, MIB, turn, 0));
        if (turn % 4 == 0) {
            assert_success(gpu_event_record(fixture.event, fixture.stream));
            assert_success(gpu_stream_wait_event(other, fixture.event));
        } else if (turn % 4 == 1) {
            assert_success(gpu_stream_wait_caller_stream(other, gpu_stream_native(fixture.stream)));
        } else if (turn % 4 == 2) {
            assert_success(gpu_event_record(fixture.event, fixture.stream));
            assert_success(gpu_stream_wait_caller_event(other, gpu_event_native(fixture.event)));
        } else {
            assert_success(gpu_event_record(fixture.event, fixture.stream));
            assert_success(gpu_caller_stream_wait(gpu_stream_native(other), fixture.event));
        }
        assert_success(gpu_copy_on_device(other, second, first, MIB));
        assert_success(drain(fixture.gpu, other));
        assert_int_equal(verify(second, MIB, turn, 0, first).differences, 0);
    }
    assert_error(gpu_stream_wait_caller_event(other, NULL), TCPX_INVALID_ARGUMENT, "NULL");
    gpu_stream_destroy(other);
}

/*
 * What is read later was written later. That the GPU writes while the CPU looks is meant, and no
 * race, which the sanitizer cannot know.
 */
__attribute__((no_sanitize("thread"))) static uint8_t byte_now(const volatile uint8_t *byte)
{
    uint8_t value = *byte;

    __sync_synchronize();
    return value;
}

TEST(test_a_stream_can_be_destroyed_while_it_works)
{
    volatile uint8_t *flag = fixture.pinned.host;
    uint64_t limit = LIMIT;
    struct gpu_stream *stream;

    *flag = 0;
    assert_success(gpu_stream_create(fixture.gpu, &stream));
    for (int i = 0; i < 8; i++)
        assert_success(gpu_fill_pattern(stream, fixture.memory.address, fixture_bytes, 1, 0));
    assert_success(gpu_set(stream, fixture.pinned.device, 41, 1));
    gpu_stream_destroy(stream);
    while (byte_now(flag) != 41 && !deadline_passed(limit))
        usleep(100);
    assert_int_equal(byte_now(flag), 41);
    gpu_stream_destroy(NULL);
    gpu_event_destroy(NULL);
}

TEST(test_a_flag_comes_after_the_work_before_it)
{
    const uint8_t *flag = fixture.pinned.host;
    const uint8_t *bytes = (uint8_t *)fixture.pinned.host + 4096;
    uint64_t limit = LIMIT;

    for (uint64_t turn = 1; turn <= 20; turn++) {
        assert_success(
            gpu_fill_pattern(fixture.stream, fixture.pinned.device + 4096, MIB, turn, turn * 3));
        assert_success(gpu_set(fixture.stream, fixture.pinned.device, (uint8_t)(100 + turn), 1));
        while (byte_now(flag) != 100 + turn)
            assert_false(deadline_passed(limit));
        for (uint64_t i = 0; i < MIB; i += 997)
            assert_int_equal(byte_now(bytes + i), pattern_byte(turn, turn * 3 + i));
        assert_int_equal(byte_now(bytes + MIB - 1), pattern_byte(turn, turn * 3 + MIB - 1));
    }
}

struct worker {
    uint64_t seed;
    char problem[256];
};

/* Runs in a thread, where cmocka's assertions cannot: the first problem is kept as a text. */
static int work(struct worker *worker)
{
    struct gpu *gpu = fixture.gpu;
    struct gpu_memory memory = {0};
    struct gpu_pinned pinned = {0};
    struct gpu_stream *stream = NULL;
    struct gpu_verify_result *found;
    int result = gpu_stream_create(gpu, &stream);

    STEP(gpu_memory_alloc(gpu, MIB, 4096, &memory));
    STEP(gpu_pinned_alloc(gpu, MIB, &pinned));
    for (uint64_t turn = 0; turn < 20 && result == TCPX_SUCCESS; turn++) {
        uint64_t seed = worker->seed + turn;

        found = pinned.host;
        STEP(gpu_fill_pattern(stream, memory.address, MIB / 2, seed, 0));
        STEP(gpu_copy_to_host(stream, pinned.host, memory.address, MIB / 2));
        STEP(gpu_copy_to_device(stream, memory.address + MIB / 2 - 64, pinned.host, 4096));
        STEP(gpu_verify_pattern(stream, memory.address + MIB / 2 - 64, 4096, seed, 0,
                                memory.address));
        STEP(gpu_copy_to_host(stream, found, memory.address, sizeof *found));
        STEP(drain(gpu, stream));
        if (result == TCPX_SUCCESS && (found->differences != 0 || found->first != UINT64_MAX))
            result = error_set(TCPX_INTERNAL_ERROR, "turn %d: %d bytes differ", (int)turn,
                               (int)found->differences);
    }
    if (result != TCPX_SUCCESS)
        snprintf(worker->problem, sizeof worker->problem, "%s", tcpx_last_error());
    gpu_stream_destroy(stream);
    gpu_pinned_free(gpu, &pinned);
    gpu_memory_free(gpu, &memory);
    return result;
}

static void *worker_thread(void *argument)
{
    work(argument);
    return NULL;
}

TEST(test_many_threads)
{
    enum { THREADS = 6 };
    struct worker workers[THREADS];
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.seed = 1000 * (uint64_t)i};
        assert_int_equal(pthread_create(&threads[i], NULL, worker_thread, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_string_equal(workers[i].problem, "");
    }
}

TEST(test_many_streams_in_any_order)
{
    enum { STREAMS = 20 };
    struct gpu_stream *streams[STREAMS];
    uint64_t seed = 3;
    uint8_t value;

    for (int i = 0; i < STREAMS; i++)
        assert_success(gpu_stream_create(fixture.gpu, &streams[i]));
    for (int turn = 0; turn < 500; turn++) {
        int i = (int)random_below(&seed, STREAMS);

        assert_success(gpu_set(streams[i], fixture.memory.address + (uint64_t)i * 64,
                               (uint8_t)(turn & 0x7f), 64));
    }
    for (int i = 0; i < STREAMS; i++) {
        assert_success(gpu_set(streams[i], fixture.memory.address + (uint64_t)i * 64 + 63,
                               (uint8_t)(0x80 + i), 1));
        assert_success(drain(fixture.gpu, streams[i]));
        fetch(&value, fixture.memory.address + (uint64_t)i * 64 + 63, 1);
        assert_int_equal(value, 0x80 + i);
        gpu_stream_destroy(streams[i]);
    }
}

TEST(test_more_work_than_a_queue_holds)
{
    uint8_t value = 0;

    for (int i = 0; i <= 5000; i++)
        assert_success(gpu_set(fixture.stream, fixture.memory.address, (uint8_t)i, 1));
    fetch(&value, fixture.memory.address, 1);
    assert_int_equal(value, 5000 & 0xff);
}

/* --- kernels ------------------------------------------------------------------------------- */

TEST(test_fill_and_verify_small)
{
    uint8_t *host = fixture.pinned.host;
    enum { ROOM = 256 };

    for (uint64_t start = 0; start < 17; start++)
        for (uint64_t bytes = 0; bytes < 60; bytes += bytes < 20 ? 1 : 7) {
            uint64_t position = start * 5 + bytes;
            uint64_t seed = 77 + bytes;
            struct gpu_verify_result result;

            assert_success(gpu_set(fixture.stream, fixture.memory.address, 0xcc, ROOM));
            assert_success(gpu_fill_pattern(fixture.stream, fixture.memory.address + start, bytes,
                                            seed, position));
            result = verify(fixture.memory.address + start, bytes, seed, position,
                            fixture.memory.address + 4096);
            fetch(host, fixture.memory.address, ROOM);
            for (uint64_t i = 0; i < ROOM; i++)
                assert_int_equal(host[i], i >= start && i < start + bytes
                                              ? pattern_byte(seed, position + i - start)
                                              : 0xcc);
            assert_int_equal(result.differences, 0);
            assert_int_equal(result.first, UINT64_MAX);
        }
    assert_error(gpu_verify_pattern(fixture.stream, fixture.memory.address, 8, 0, 0,
                                    fixture.memory.address + 4),
                 TCPX_INVALID_ARGUMENT, "aligned");
}

TEST(test_verify_finds_every_planted_difference)
{
    gpu_address data = fixture.memory.address;
    gpu_address answer = fixture.memory.address + 3 * MIB;
    uint64_t seed = 5;

    for (int turn = 0; turn < 60; turn++) {
        uint64_t start = random_below(&seed, 16);
        uint64_t bytes = 1 + random_below(&seed, turn < 30 ? 100 : 2 * MIB);
        uint64_t position = random_below(&seed, 1000000);
        uint64_t planted = random_below(&seed, 5);
        uint64_t places[5];
        uint64_t distinct = 0;
        uint64_t first = UINT64_MAX;
        struct gpu_verify_result result;

        assert_success(gpu_fill_pattern(fixture.stream, data + start, bytes, 1, position));
        assert_success(drain(fixture.gpu, fixture.stream));
        for (uint64_t i = 0; i < planted; i++) {
            bool seen = false;
            uint64_t place = random_below(&seed, bytes);
            uint8_t wrong = pattern_byte(1, position + place) ^ 0x01;

            for (uint64_t k = 0; k < distinct; k++)
                seen = seen || places[k] == place;
            if (seen)
                continue;
            places[distinct++] = place;
            first = place < first ? place : first;
            store(data + start + place, &wrong, 1);
        }
        result = verify(data + start, bytes, 1, position, answer);
        assert_int_equal(result.differences, distinct);
        assert_int_equal(result.first, first);
    }
}

/* The pattern of another place or seed never looks right. */
TEST(test_verify_sees_a_shift)
{
    gpu_address data = fixture.memory.address;
    gpu_address answer = data + 3 * MIB;

    assert_success(gpu_fill_pattern(fixture.stream, data, MIB, 1, 0));
    for (uint64_t shift = 1; shift < 100000; shift *= 3)
        assert_true(verify(data, MIB, 1, shift, answer).differences > MIB - MIB / 100);
    assert_true(verify(data, MIB, 2, 0, answer).differences > MIB - MIB / 100);
}

TEST(test_unpack_random_lists)
{
    enum { BOUNCE = 1 << 20, TURNS = 150 };
    struct unpack_descriptor *descriptors = fixture.pinned.host;
    gpu_address bounce = fixture.memory.address;
    gpu_address target = fixture.memory.address + BOUNCE;
    struct gpu_unpack_list list = {.bounce = bounce, .descriptors = fixture.pinned.device};
    static uint8_t source[BOUNCE];
    static uint8_t expected[BOUNCE];
    static uint8_t arrived[BOUNCE];
    uint64_t seed = 7;

    fill_random(source, BOUNCE, &seed);
    store(bounce, source, BOUNCE);
    for (int turn = 0; turn < TURNS; turn++) {
        uint32_t count = 1 + (uint32_t)random_below(&seed, turn % 10 == 0 ? 2048 : 40);
        uint64_t longest = (BOUNCE - 4096) / count - 40;
        uint64_t shift = random_below(&seed, 16);
        uint64_t at = 16;

        if (longest > 9000)
            longest = 9000;
        memset(expected, 0xdd, BOUNCE);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t length = (uint32_t)random_below(&seed, longest + 1);
            uint32_t from = (uint32_t)random_below(&seed, BOUNCE - length);

            if (random_below(&seed, 3) == 0) { /* a whole page, as a NIC would leave it */
                length = longest >= 4096 ? 4096 : (uint32_t)longest & ~15u;
                from &= ~4095u;
                if (from + length > BOUNCE)
                    from = 0;
                at = (at + 15) & ~(uint64_t)15;
            }
            descriptors[i] = (struct unpack_descriptor){
                .source_offset = from, .length = length, .destination_offset = at};
            memcpy(expected + shift + at, source + from, length);
            at += length + random_below(&seed, 5);
        }
        /* in any order */
        for (uint32_t i = count - 1; i > 0; i--) {
            uint32_t k = (uint32_t)random_below(&seed, i + 1);
            struct unpack_descriptor swap = descriptors[i];

            descriptors[i] = descriptors[k];
            descriptors[k] = swap;
        }
        assert_success(gpu_set(fixture.stream, target, 0xdd, BOUNCE));
        list.destination = target + shift;
        list.count = count;
        assert_success(gpu_unpack(fixture.stream, &list, 1, UINT32_MAX));
        fetch(arrived, target, BOUNCE);
        assert_memory_equal(arrived, expected, BOUNCE);
    }
    list.count = 0;
    assert_success(gpu_unpack(fixture.stream, &list, 1, UINT32_MAX));
    assert_success(gpu_unpack(fixture.stream, NULL, 0, UINT32_MAX));
    list.descriptors += 8;
    assert_error(gpu_unpack(fixture.stream, &list, 1, UINT32_MAX), TCPX_INVALID_ARGUMENT,
                 "aligned");
    assert_error(gpu_unpack(fixture.stream, &list, GPU_UNPACK_LISTS + 1, UINT32_MAX),
                 TCPX_INVALID_ARGUMENT, "17 lists");
}

/* Several lists in one launch, each with its own buffers; long fragments are left out. */
TEST(test_unpack_several_lists)
{
    enum { ROOM = 1 << 16, FRAGMENT = 1000, LONG = 2000 };
    struct unpack_descriptor *descriptors = fixture.pinned.host;
    struct gpu_unpack_list lists[GPU_UNPACK_LISTS];
    static uint8_t arrived[ROOM * GPU_UNPACK_LISTS];
    gpu_address bounce = fixture.memory.address;
    gpu_address target = fixture.memory.address + MIB;

    assert_success(gpu_fill_pattern(fixture.stream, bounce, MIB, 3, 0));
    assert_success(gpu_set(fixture.stream, target, 0xdd, (uint64_t)ROOM * GPU_UNPACK_LISTS));
    for (uint32_t i = 0; i < GPU_UNPACK_LISTS; i++) {
        for (uint32_t k = 0; k < i; k++)
            descriptors[i * 16 + k] = (struct unpack_descriptor){
                .source_offset = k * 4096, .length = FRAGMENT + k, .destination_offset = k * 2048};
        descriptors[i * 16 + i] = (struct unpack_descriptor){
            .source_offset = 0, .length = LONG, .destination_offset = ROOM - LONG};
        lists[i] =
            (struct gpu_unpack_list){.bounce = bounce + i * 64,
                                     .destination = target + (uint64_t)i * ROOM,
                                     .descriptors = fixture.pinned.device + (uint64_t)i * 16 * 16,
                                     .count = i + 1};
    }
    assert_success(gpu_unpack(fixture.stream, lists, GPU_UNPACK_LISTS, LONG - 1));
    fetch(arrived, target, (uint64_t)ROOM * GPU_UNPACK_LISTS);
    for (uint32_t i = 0; i < GPU_UNPACK_LISTS; i++)
        for (uint64_t at = 0; at < ROOM; at++) {
            uint64_t k = at / 2048;
            bool inside = k < i && at % 2048 < FRAGMENT + k;

            assert_int_equal(arrived[i * (uint64_t)ROOM + at],
                             inside ? pattern_byte(3, i * 64 + k * 4096 + at % 2048) : 0xdd);
        }
}

TEST(test_copy_runs)
{
    enum { ROOM = 1 << 20 };
    gpu_address source = fixture.memory.address;
    gpu_address target = fixture.memory.address + ROOM;
    struct gpu_run runs[GPU_COPY_RUNS];
    static uint8_t expected[ROOM];
    static uint8_t arrived[ROOM];
    uint64_t seed = 11;

    assert_success(gpu_fill_pattern(fixture.stream, source, ROOM, 4, 0));
    for (int turn = 0; turn < 100; turn++) {
        uint32_t count = (uint32_t)random_below(&seed, turn % 5 == 0 ? GPU_COPY_RUNS + 1 : 6);
        uint64_t at = random_below(&seed, 40);

        memset(expected, 0xdd, ROOM);
        for (uint32_t i = 0; i < count; i++) {
            uint64_t bytes = random_below(&seed, (ROOM - 4096) / count);
            uint64_t from = random_below(&seed, ROOM - bytes);

            runs[i] = (struct gpu_run){.from = source + from, .to = target + at, .bytes = bytes};
            for (uint64_t k = 0; k < bytes; k++)
                expected[at + k] = pattern_byte(4, from + k);
            at += bytes + random_below(&seed, 20);
        }
        assert_success(gpu_set(fixture.stream, target, 0xdd, ROOM));
        assert_success(gpu_copy_runs(fixture.stream, runs, count));
        fetch(arrived, target, ROOM);
        assert_memory_equal(arrived, expected, ROOM);
    }
    assert_error(gpu_copy_runs(fixture.stream, runs, GPU_COPY_RUNS + 1), TCPX_INVALID_ARGUMENT,
                 "17 runs");
}

TEST(test_events_are_reached_in_the_order_of_the_stream)
{
    struct gpu_event *from;
    struct gpu_event *to;
    bool done = false;

    assert_success(gpu_event_create(fixture.gpu, &from));
    assert_success(gpu_event_create(fixture.gpu, &to));
    assert_success(gpu_event_record(from, fixture.stream));
    assert_success(gpu_fill_pattern(fixture.stream, fixture.memory.address, fixture_bytes, 1, 0));
    assert_success(gpu_event_record(to, fixture.stream));
    assert_success(gpu_event_wait(to, LIMIT));
    assert_success(gpu_event_query(from, &done));
    assert_true(done);
    gpu_event_destroy(from);
    gpu_event_destroy(to);
}

TEST(test_no_bytes_are_no_work)
{
    struct gpu_stream *stream = fixture.stream;

    assert_success(gpu_copy_to_device(stream, 0, NULL, 0));
    assert_success(gpu_copy_to_host(stream, NULL, 0, 0));
    assert_success(gpu_copy_on_device(stream, 0, 0, 0));
    assert_success(gpu_set(stream, 0, 1, 0));
    assert_success(gpu_fill_pattern(stream, 0, 0, 1, 0));
    assert_success(gpu_copy_runs(stream, NULL, 0));
    assert_success(drain(fixture.gpu, stream));
}

/* --- fork ---------------------------------------------------------------------------------- */

TEST(test_a_forked_child_is_told)
{
    int status;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        struct gpu_memory memory = {0};
        bool told = gpu_memory_alloc(fixture.gpu, 1, 1, &memory) == TCPX_INVALID_USAGE &&
                    strstr(tcpx_last_error(), "forked") != NULL &&
                    gpu_set(fixture.stream, fixture.memory.address, 0, 1) == TCPX_INVALID_USAGE &&
                    drain(fixture.gpu, fixture.stream) == TCPX_INVALID_USAGE;

        gpu_stream_destroy(fixture.stream);
        gpu_close(fixture.gpu);
        _exit(told ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    /* the parent goes on */
    assert_success(gpu_set(fixture.stream, fixture.memory.address, 1, 100));
    assert_success(drain(fixture.gpu, fixture.stream));
}

SUITE(.name = "gpu layer", .set_up = set_up, .tear_down = tear_down);
