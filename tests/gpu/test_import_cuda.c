/*
 * Shows that the quirky plugin of tests/quirky_plugin treats GPU memory as Google's does, through
 * every version of NCCL's table that can say so, and that each of its peculiarities is there: a
 * test of whoever is to get along with them is worth nothing otherwise.
 */
#include "tests/quirky_plugin/drive.h"

#include "tests/fakecuda/fakecuda.h"
#include "tests/gpu/gpu_test.h"

enum { FIRST = 7, DEPTH = 16, PAGE = 4096, PIECE = 3000, MOST = 1 << 20, EXTRA = 16 };

/* Under the thread sanitizer each of these many processes would end with a second of waiting. */
const char *__tsan_default_options(void);

const char *__tsan_default_options(void)
{
    return "atexit_sleep_ms=0";
}

static void run_each_unpacking(nursery_run *run)
{
    for (int version = FIRST; version <= NEWEST; version++)
        run_child(run, version);
}

/* --- the GPU ------------------------------------------------------------------------------- */

static struct gpu *gpu;
static struct gpu_stream *stream;

static void open_gpu(void)
{
    CHECK(gpu_open(0, &gpu) == TCPX_SUCCESS);
    CHECK(gpu_stream_create(gpu, &stream) == TCPX_SUCCESS);
}

static void look(gpu_address at, void *to, size_t bytes)
{
    CHECK(gpu_copy_to_host(stream, to, at, bytes) == TCPX_SUCCESS);
    CHECK(drain(gpu, stream) == TCPX_SUCCESS);
}

static void put(gpu_address at, const void *from, size_t bytes)
{
    CHECK(gpu_copy_to_device(stream, at, from, bytes) == TCPX_SUCCESS);
    CHECK(drain(gpu, stream) == TCPX_SUCCESS);
}

/* Of the driver that is loaded; NULL: it has no such thing. */
static void *driver_symbol(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    CHECK(driver != NULL);
    return dlsym(driver, name);
}

static bool is_stand_in(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    return driver != NULL && dlsym(driver, "fakecuda_fault") != NULL;
}

static enum gpu_pointer_kind kind_of(const void *address, size_t bytes)
{
    struct gpu_pointer pointer;

    CHECK(gpu_classify(address, bytes, &pointer) == TCPX_SUCCESS);
    return pointer.kind;
}

static gpu_address address_of(const void *pointer)
{
    return (uintptr_t)pointer;
}

/* --- buffers ------------------------------------------------------------------------------- */

struct buffer {
    void *at;
    void *registered;
    size_t bytes;
    bool cuda;
    struct gpu_memory memory;
    void *comm;
};

static size_t whole_pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static struct buffer make_buffer(const struct pair *pair, void *comm, size_t bytes, bool cuda)
{
    struct buffer buffer = {.bytes = whole_pages(bytes), .cuda = cuda, .comm = comm};

    if (cuda) {
        CHECK(gpu_memory_alloc(gpu, buffer.bytes, PAGE, &buffer.memory) == TCPX_SUCCESS);
        buffer.at = (void *)(uintptr_t)buffer.memory.address;
    } else {
        buffer.at = malloc(buffer.bytes);
        CHECK(buffer.at != NULL);
    }
    buffer.registered = register_memory(pair, comm, buffer.at, buffer.bytes,
                                        cuda ? NET_POINTER_CUDA : NET_POINTER_HOST);
    return buffer;
}

static void free_buffer(const struct pair *pair, struct buffer *buffer)
{
    CHECK(import_deregister(pair->table, buffer->comm, buffer->registered) == TCPX_SUCCESS);
    if (buffer->cuda)
        gpu_memory_free(gpu, &buffer->memory);
    else
        free(buffer->at);
}

static void *place(const struct buffer *buffer, size_t at)
{
    return (void *)((uintptr_t)buffer->at + at);
}

static void write_buffer(const struct buffer *buffer, size_t at, const void *from, size_t bytes)
{
    if (buffer->cuda)
        put(address_of(place(buffer, at)), from, bytes);
    else
        memcpy(place(buffer, at), from, bytes);
}

static void read_buffer(const struct buffer *buffer, size_t at, void *to, size_t bytes)
{
    if (buffer->cuda)
        look(address_of(place(buffer, at)), to, bytes);
    else
        memcpy(to, place(buffer, at), bytes);
}

static void *post_send(const struct pair *pair, const struct buffer *from, size_t at, size_t bytes)
{
    void *request = NULL;

    CHECK(import_isend(pair->table, pair->sender, place(from, at), bytes, 5, from->registered,
                       &request) == TCPX_SUCCESS);
    CHECK(request != NULL);
    return request;
}

static void *post_receive(const struct pair *pair, const struct buffer *to, size_t at, size_t bytes)
{
    void *request = NULL;

    CHECK(import_irecv(pair->table, pair->receiver, place(to, at), bytes, 5, to->registered,
                       &request) == TCPX_SUCCESS);
    CHECK(request != NULL);
    return request;
}

/* --- the queue ----------------------------------------------------------------------------- */

/* All of it is read with the GPU's addresses. */
static struct unpack_device_handle handle_of(const struct pair *pair)
{
    struct unpack_device_handle handle;

    CHECK(pair->on_gpu.type == NET_DEVICE_UNPACK);
    look(address_of(pair->on_gpu.handle), &handle, sizeof handle);
    return handle;
}

static struct unpack_descriptor pieces[UNPACK_MAX_DESCRIPTORS];

/* The descriptors of the oldest receive that was not consumed, into `pieces`; how many. */
static uint64_t read_slot(const struct pair *pair)
{
    size_t slot = pair->received % UNPACK_QUEUE_DEPTH;
    gpu_address queue = address_of(handle_of(pair).queue);
    uint64_t count;

    look(queue + offsetof(struct unpack_queue, counts) + slot * sizeof count, &count, sizeof count);
    CHECK(count <= UNPACK_MAX_DESCRIPTORS);
    if (count > 0)
        look(queue + slot * sizeof pieces, pieces, count * sizeof *pieces);
    return count;
}

/* What a consumer does; the number of bytes. */
static size_t unpack(const struct pair *pair, const struct buffer *to, size_t at, size_t room)
{
    struct unpack_device_handle handle = handle_of(pair);
    uint64_t count = read_slot(pair);
    struct gpu_unpack_list list = {
        .bounce = address_of(handle.bounce),
        .destination = address_of(place(to, at)),
        .descriptors =
            address_of(handle.queue) + pair->received % UNPACK_QUEUE_DEPTH * sizeof pieces,
        .count = count,
    };
    size_t bytes = 0;

    for (uint64_t i = 0; i < count; i++) {
        CHECK(pieces[i].length > 0 && pieces[i].length <= PAGE);
        CHECK(pieces[i].source_offset % PAGE + pieces[i].length <= PAGE);
        CHECK(pieces[i].destination_offset + pieces[i].length <= room);
        bytes += pieces[i].length;
    }
    if (count > 0)
        CHECK(gpu_unpack(stream, &list, 1, PAGE) == TCPX_SUCCESS);
    CHECK(drain(gpu, stream) == TCPX_SUCCESS);
    return bytes;
}

static void consume(struct pair *pair, void *request)
{
    CHECK(import_consumed(pair->table, pair->receiver, request) == TCPX_SUCCESS);
    pair->received++;
}

/* The next is for the calls themselves: a word of the size would be written there. */
static int test_raw(const struct pair *pair, void *request, int *done, int *bytes)
{
    CHECK(pair->table->version == 7);
    return ((const struct net_table_v7 *)pair->table->raw)->test(request, done, bytes);
}

/* --- data ---------------------------------------------------------------------------------- */

static uint8_t expected[MOST + EXTRA];
static uint8_t found[MOST + EXTRA];

static void check_wiped(const struct buffer *to, size_t bytes)
{
    read_buffer(to, 0, found, bytes);
    for (size_t i = 0; i < bytes; i++)
        CHECK(found[i] == 0);
}

/* `bytes` of them have arrived, and nothing behind. */
static void check_arrived(const struct buffer *to, size_t bytes)
{
    read_buffer(to, 0, found, bytes + EXTRA);
    CHECK(memcmp(found, expected, bytes) == 0);
    for (size_t i = bytes; i < bytes + EXTRA; i++)
        CHECK(found[i] == 0);
}

/* A sender and a receiver that one thread moves on in turns. */
static void exchange(struct pair *pair, const struct buffer *from, const struct buffer *to,
                     size_t bytes, uint64_t message)
{
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);
    uint64_t sizes[2] = {99, 77};
    int done[2] = {0, 0};
    void *requests[2];

    for (size_t i = 0; i < bytes; i++)
        expected[i] = byte_at(message, i);
    write_buffer(from, 0, expected, bytes);
    memset(found, 0, bytes + EXTRA);
    write_buffer(to, 0, found, bytes + EXTRA);
    requests[1] = post_receive(pair, to, 0, bytes + EXTRA);
    requests[0] = post_send(pair, from, 0, bytes);
    while (done[0] == 0 || done[1] == 0) {
        for (int i = 0; i < 2; i++)
            if (done[i] == 0)
                CHECK(import_test(pair->table, requests[i], &done[i], &sizes[i]) == TCPX_SUCCESS);
        CHECK(!deadline_passed(deadline));
    }
    CHECK(sizes[0] == IMPORT_BYTES_UNSAID && sizes[1] == IMPORT_BYTES_UNSAID);
    if (to->cuda) {
        check_wiped(to, bytes);
        CHECK(unpack(pair, to, 0, bytes + EXTRA) == bytes);
    } else {
        CHECK(read_slot(pair) == 0);
    }
    check_arrived(to, bytes);
    consume(pair, requests[1]);
}

/* Of host memory and of the GPU's, at both ends. */
struct four {
    struct buffer from[2];
    struct buffer to[2];
};

static struct four make_four(const struct pair *pair, size_t bytes)
{
    struct four four;

    for (int cuda = 0; cuda < 2; cuda++) {
        four.from[cuda] = make_buffer(pair, pair->sender, bytes, cuda != 0);
        four.to[cuda] = make_buffer(pair, pair->receiver, bytes, cuda != 0);
    }
    return four;
}

static void free_four(const struct pair *pair, struct four *four)
{
    for (int cuda = 0; cuda < 2; cuda++) {
        free_buffer(pair, &four->from[cuda]);
        free_buffer(pair, &four->to[cuda]);
    }
}

static struct pair open_pair(const uint8_t *argument)
{
    open_gpu();
    return connect_pair(&open_plugin(version_in(argument))->table);
}

static void case_data(const uint8_t *argument)
{
    static const size_t lengths[] = {0,     1,      2,      15,     16,       17,  4095,
                                     4096,  4097,   8191,   65536,  100001,   0,   524287,
                                     32768, 524288, 524289, 777777, MOST - 1, MOST};
    enum { COUNT = sizeof lengths / sizeof *lengths, WAYS = 4 };
    struct pair pair = open_pair(argument);
    struct four four = make_four(&pair, MOST + EXTRA);
    unsigned way = 0;

    /* each length in each way, and host receives among those of the GPU */
    for (uint64_t message = 0; message < (uint64_t)COUNT * WAYS; message++, way++)
        exchange(&pair, &four.from[way % 2], &four.to[(way / 2 + message / COUNT) % 2],
                 lengths[message % COUNT], message);
    free_four(&pair, &four);
    close_pair(&pair);
}

/*
 * From host memory and the GPU's to both: what goes to the GPU is left in the bounce pool, with
 * descriptors; what goes to host memory is where it belongs, and has an empty slot.
 */
TEST(data, run_each_unpacking)

static void case_direct(const uint8_t *argument)
{
    struct pair pair = open_pair(argument);
    struct four four = make_four(&pair, 65536);
    unsigned pages = counts_of(version_in(argument))->free_pages;
    void *receive = post_receive(&pair, &four.to[0], 0, 65536);
    uint64_t bytes;

    CHECK(pages > 0);
    memset(four.from[0].at, 0x5A, 65536);
    memset(four.to[0].at, 0, 65536);
    wait_for(&pair, post_send(&pair, &four.from[0], 0, 65536), &bytes);
    wait_for(&pair, receive, &bytes);
    CHECK(memcmp(four.to[0].at, four.from[0].at, 65536) == 0);
    CHECK(read_slot(&pair) == 0);
    CHECK(counts_of(version_in(argument))->free_pages == pages);
    consume(&pair, receive);

    receive = post_receive(&pair, &four.to[1], 0, 65536);
    wait_for(&pair, post_send(&pair, &four.from[0], 0, 65536), &bytes);
    wait_for(&pair, receive, &bytes);
    CHECK(read_slot(&pair) >= 16);
    CHECK(counts_of(version_in(argument))->free_pages == pages - read_slot(&pair));
    consume(&pair, receive);
    CHECK(counts_of(version_in(argument))->free_pages == pages);
}

/* A receive into host memory takes nothing of the pool, one into the GPU's does. */
TEST(direct, run_each_unpacking)

static void case_many(const uint8_t *argument)
{
    struct pair pair = open_pair(argument);
    struct four four = make_four(&pair, (size_t)DEPTH * PIECE);
    void *sends[DEPTH];
    void *receives[DEPTH];
    uint64_t bytes;

    for (uint64_t turn = 0; turn < 5; turn++) {
        for (size_t i = 0; i < (size_t)DEPTH * PIECE; i++)
            expected[i] = byte_at(turn, i);
        for (int cuda = 0; cuda < 2; cuda++)
            write_buffer(&four.from[cuda], 0, expected, (size_t)DEPTH * PIECE);
        for (size_t i = 0; i < DEPTH; i++) {
            receives[i] = post_receive(&pair, &four.to[(i + turn) % 3 != 0], i * PIECE, PIECE);
            sends[i] = post_send(&pair, &four.from[i % 2], i * PIECE, PIECE - i);
        }
        for (size_t i = 0; i < DEPTH; i++)
            wait_for(&pair, sends[i], &bytes);
        for (size_t i = 0; i < DEPTH; i++)
            wait_for(&pair, receives[i], &bytes);
        for (size_t i = 0; i < DEPTH; i++) {
            struct buffer *to = &four.to[(i + turn) % 3 != 0];

            CHECK(unpack(&pair, to, i * PIECE, PIECE) == (to->cuda ? PIECE - i : 0));
            read_buffer(to, i * PIECE, found, PIECE - i);
            CHECK(memcmp(found, expected + i * PIECE, PIECE - i) == 0);
            consume(&pair, receives[i]);
        }
    }
    free_four(&pair, &four);
    close_pair(&pair);
}

/* As many requests at once as the plugin takes; slots stay as they are until they are consumed. */
TEST(many, run_each_unpacking)

static void case_fetches_late(const uint8_t *argument)
{
    struct pair pair = open_pair(argument);
    struct four four = make_four(&pair, PAGE);
    void *receive = post_receive(&pair, &four.to[0], 0, PAGE);
    void *send;
    uint64_t bytes;

    memset(found, 1, PAGE);
    write_buffer(&four.from[1], 0, found, PAGE);
    send = post_send(&pair, &four.from[1], 0, PAGE);
    memset(found, 2, PAGE);
    write_buffer(&four.from[1], 0, found, PAGE);
    wait_for(&pair, send, &bytes);
    wait_for(&pair, receive, &bytes);
    CHECK(memcmp(four.to[0].at, found, PAGE) == 0);
}

/* What is sent of the GPU's memory is what is there during test(), not at isend. */
TEST(fetches_late, run_each_unpacking)

/* --- what it says of itself ---------------------------------------------------------------- */

static void case_properties(const uint8_t *argument)
{
    check_properties(version_in(argument), version_in(argument) >= FIRST);
}

/* It says that it takes GPU memory and has a queue, unless its table is too old. */
TEST(properties, run_each_quirky)

static void case_no_device(const uint8_t *argument)
{
    setenv("FAKECUDA_DEVICES", "0", 1);
    check_properties(version_in(argument), false);
}

/* A driver without a device is none. */
static void test_no_device(void **state)
{
    (void)state;
    if (!is_stand_in())
        skip_because("a driver with no device takes the stand-in");
    run_each_quirky(case_no_device);
}

static void case_connect(const uint8_t *argument)
{
    struct pair pair = open_pair(argument);
    struct pair other = connect_pair(pair.table);
    struct unpack_device_handle handle = handle_of(&pair);

    CHECK(pair.on_gpu.version == UNPACK_VERSION && pair.on_gpu.needs_proxy_progress == 1);
    CHECK(pair.on_gpu.size == sizeof handle);
    CHECK(kind_of(pair.on_gpu.handle, sizeof handle) == GPU_POINTER_DEVICE);
    CHECK(handle.head == UNPACK_HEAD_START);
    CHECK(kind_of(handle.queue, sizeof *handle.queue) == GPU_POINTER_PINNED);
    CHECK(kind_of(handle.bounce, (size_t)16384 * PAGE) == GPU_POINTER_DEVICE);
    CHECK(address_of(handle.bounce) % 16 == 0 && address_of(handle.queue) % 16 == 0);
    CHECK(handle_of(&other).bounce == handle.bounce && handle_of(&other).queue != handle.queue);
    close_pair(&pair);
    close_pair(&other);
}

/* Handle and pool are on the GPU, the queue is in pinned memory; all comms have one pool. */
TEST(connect, run_each_unpacking)

static void case_old_table(const uint8_t *argument)
{
    struct pair pair = open_pair(argument);
    struct gpu_memory memory;
    void *registered = &registered;

    CHECK(pair.on_gpu.type == NET_DEVICE_HOST);
    CHECK(gpu_memory_alloc(gpu, PAGE, PAGE, &memory) == TCPX_SUCCESS);
    CHECK_FAILS(import_register(pair.table, pair.receiver, (void *)(uintptr_t)memory.address, PAGE,
                                NET_POINTER_CUDA, &registered),
                TCPX_INTERNAL_ERROR, "regMr");
    CHECK(registered == NULL);
}

/* The oldest table has no unpack queue, and no GPU memory. */
TEST(old_table, run_child, OLDEST)

static void case_no_handle(const uint8_t *argument)
{
    const struct import_table *table = &open_plugin(version_in(argument))->table;
    uint8_t handle[NET_TABLE_HANDLE_BYTES];
    void *listener;
    void *comm = &comm;

    CHECK(import_listen(table, 0, handle, &listener) == TCPX_SUCCESS);
    CHECK_FAILS(import_accept(table, listener, &comm, NULL), TCPX_INTERNAL_ERROR, "accept");
    CHECK(comm == NULL);
}

/* It has no memory of its own for what accept tells. */
TEST(no_handle, run_each_unpacking)

static void case_init_twice(const uint8_t *argument)
{
    struct import_table table = open_plugin(version_in(argument))->table;

    CHECK_FAILS(import_table_init(&table), TCPX_INTERNAL_ERROR, "init");
}

/* It starts once in a process. */
TEST(init_twice, run_each_quirky)

/* --- registration -------------------------------------------------------------------------- */

static void case_registration(const uint8_t *argument)
{
    static const struct {
        size_t at;
        size_t bytes;
    } refused[] = {{1, PAGE},        {256, PAGE},      {0, PAGE - 1}, {0, PAGE + 1},
                   {PAGE, 2 * PAGE}, {0, 3 * PAGE},    {PAGE, 16},    {0, 0},
                   {2048, 2048},     {3 * PAGE, PAGE}, {0, 256}};
    struct pair pair = open_pair(argument);
    struct gpu_memory memory;
    uint8_t *data;
    void *registered;

    /* what lies behind is nobody's, or somebody else's */
    CHECK(gpu_memory_alloc(gpu, (uint64_t)2 * PAGE, PAGE, &memory) == TCPX_SUCCESS);
    data = (void *)(uintptr_t)memory.address;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        registered = &registered;
        CHECK_FAILS(import_register(pair.table, pair.receiver, data + refused[i].at,
                                    refused[i].bytes, NET_POINTER_CUDA, &registered),
                    TCPX_INTERNAL_ERROR, "regMr");
        CHECK(registered == NULL);
    }
    data = aligned_alloc(PAGE, PAGE);
    CHECK_FAILS(import_register(pair.table, pair.sender, data, PAGE, NET_POINTER_CUDA, &registered),
                TCPX_INTERNAL_ERROR, "regMr");
    CHECK_FAILS(import_register(pair.table, pair.sender, data, PAGE, 4, &registered),
                TCPX_INTERNAL_ERROR, "regMr");
    CHECK(import_deregister(pair.table, pair.sender,
                            register_host(&pair, pair.sender, data + 1, 7)) == TCPX_SUCCESS);
    data = (void *)(uintptr_t)memory.address;
    for (size_t pages = 1; pages <= 2; pages++)
        for (int end = 0; end < 2; end++)
            register_memory(&pair, end == 0 ? pair.sender : pair.receiver, data, pages * PAGE,
                            NET_POINTER_CUDA);
    register_memory(&pair, pair.sender, data + PAGE, PAGE, NET_POINTER_CUDA);
}

/* GPU memory is registered in whole pages of one allocation, host memory as it comes. */
TEST(registration, run_each_unpacking)

static void case_not_registered(const uint8_t *argument)
{
    struct pair pair = open_pair(argument);
    struct four four = make_four(&pair, PAGE);
    void *request;

    CHECK_FAILS(import_irecv(pair.table, pair.receiver, four.to[1].at, PAGE, 0, NULL, &request),
                TCPX_INTERNAL_ERROR, "irecv");
    CHECK_FAILS(import_isend(pair.table, pair.sender, four.from[1].at, PAGE, 0, NULL, &request),
                TCPX_INTERNAL_ERROR, "isend");
    CHECK_FAILS(import_irecv(pair.table, pair.receiver, four.to[1].at, PAGE + 1, 0,
                             four.to[1].registered, &request),
                TCPX_INTERNAL_ERROR, "irecv");
}

/* Both ends are registered. */
TEST(not_registered, run_each_unpacking)

/* --- what it does not forgive -------------------------------------------------------------- */

static void case_no_size(const uint8_t *argument)
{
    struct pair pair = open_pair(argument);
    struct four four = make_four(&pair, PAGE);

    for (int cuda = 0; cuda < 2; cuda++) {
        void *receive = post_receive(&pair, &four.to[cuda], 0, PAGE);
        void *requests[2] = {post_send(&pair, &four.from[cuda], 0, PAGE), receive};

        for (int i = 0; i < 2; i++) {
            uint64_t deadline = deadline_after_ms(DEADLINE_MS);
            int bytes = 12345;
            int done = 0;

            while (done == 0) {
                CHECK(test_raw(&pair, requests[i], &done, &bytes) == TCPX_SUCCESS);
                CHECK(!deadline_passed(deadline));
            }
            CHECK(bytes == 12345);
        }
        CHECK(read_slot(&pair) == 0 || cuda != 0);
        consume(&pair, receive);
    }
}

/* test() never writes a size, at no end, of no memory. */
TEST(no_size, run_child, FIRST)

static void case_order_of_tests(const uint8_t *argument)
{
    struct pair pair = open_pair(argument);
    struct four four = make_four(&pair, PAGE);
    void *receives[2] = {post_receive(&pair, &four.to[1], 0, 10),
                         post_receive(&pair, &four.to[0], 0, 10)};
    void *sends[2] = {post_send(&pair, &four.from[1], 0, 10),
                      post_send(&pair, &four.from[0], 0, 10)};
    uint64_t bytes = 77;
    int done = 77;

    CHECK_FAILS(import_test(pair.table, sends[1], &done, &bytes), TCPX_INTERNAL_ERROR, "test");
    CHECK(done == 0 && bytes == 77);
    wait_for(&pair, sends[0], &bytes);
    wait_for(&pair, sends[1], &bytes);
    CHECK_FAILS(import_test(pair.table, receives[1], &done, &bytes), TCPX_INTERNAL_ERROR, "test");
    wait_for(&pair, receives[0], &bytes);
    for (int i = 0; i < 10; i++) /* said once is enough */
        CHECK(import_test(pair.table, receives[0], &done, &bytes) == TCPX_SUCCESS && done == 0);
    wait_for(&pair, receives[1], &bytes);
}

/* The oldest request is tested, until it is done and not again. */
TEST(order_of_tests, run_each_unpacking)

static void case_progress(const uint8_t *argument)
{
    struct pair pair = open_pair(argument);
    struct four four = make_four(&pair, PAGE);
    void *receive = post_receive(&pair, &four.to[1], 0, PAGE);
    void *send = post_send(&pair, &four.from[1], 0, PAGE);
    unsigned pages = counts_of(version_in(argument))->free_pages;
    uint64_t deadline = deadline_after_ms(100);
    uint64_t bytes;
    int done = 0;

    while (!deadline_passed(deadline)) {
        CHECK(import_test(pair.table, receive, &done, &bytes) == TCPX_SUCCESS);
        CHECK(done == 0); /* and there is no deadline */
    }
    wait_for(&pair, send, &bytes);
    usleep(50000);
    CHECK(counts_of(version_in(argument))->free_pages == pages); /* it has long arrived */
    wait_for(&pair, receive, &bytes);
    CHECK(counts_of(version_in(argument))->free_pages < pages);
}

/* Bytes move inside test() only, at either end, and nobody loses patience. */
TEST(progress, run_each_unpacking)

static void case_consumed(const uint8_t *argument)
{
    struct pair pair = open_pair(argument);
    struct four four = make_four(&pair, PIECE);
    void *receives[DEPTH];
    void *send = NULL;
    void *more;
    uint64_t bytes;

    for (int i = 0; i < DEPTH; i++) {
        receives[i] = post_receive(&pair, &four.to[i % 2], 0, PIECE);
        send = post_send(&pair, &four.from[0], 0, PIECE);
        wait_for(&pair, send, &bytes);
    }
    CHECK(import_consumed(pair.table, pair.sender, send) == TCPX_SUCCESS); /* it means nothing */
    CHECK_FAILS(import_consumed(pair.table, pair.receiver, receives[0]), TCPX_INTERNAL_ERROR,
                "irecvConsumed"); /* too early */
    for (int i = 0; i < DEPTH; i++)
        wait_for(&pair, receives[i], &bytes);
    CHECK_FAILS(import_irecv(pair.table, pair.receiver, four.to[0].at, PIECE, 0,
                             four.to[0].registered, &more),
                TCPX_INTERNAL_ERROR, "irecv"); /* all done, none consumed */
    CHECK_FAILS(import_consumed(pair.table, pair.receiver, receives[1]), TCPX_INTERNAL_ERROR,
                "irecvConsumed"); /* out of order */
    CHECK(import_consumed(pair.table, pair.receiver, receives[0]) == TCPX_SUCCESS);
    CHECK_FAILS(import_consumed(pair.table, pair.receiver, receives[0]), TCPX_INTERNAL_ERROR,
                "irecvConsumed"); /* twice */
    CHECK(post_receive(&pair, &four.to[1], 0, PIECE) == receives[0]);
    CHECK_FAILS(import_irecv(pair.table, pair.receiver, four.to[1].at, PIECE, 0,
                             four.to[1].registered, &more),
                TCPX_INTERNAL_ERROR, "irecv");
}

/* Also host receives are consumed, once, in order, when they are done; else there are no more. */
TEST(consumed, run_each_unpacking)

static void case_too_many(const uint8_t *argument)
{
    struct pair pair = open_pair(argument);
    struct four four = make_four(&pair, PIECE);
    void *request = &request;

    for (int i = 0; i < DEPTH; i++) {
        post_send(&pair, &four.from[i % 2], 0, 1);
        post_receive(&pair, &four.to[i % 2], 0, 1);
    }
    for (int cuda = 0; cuda < 2; cuda++) {
        CHECK_FAILS(import_isend(pair.table, pair.sender, four.from[cuda].at, 1, 0,
                                 four.from[cuda].registered, &request),
                    TCPX_INTERNAL_ERROR, "isend");
        CHECK_FAILS(import_irecv(pair.table, pair.receiver, four.to[cuda].at, 1, 0,
                                 four.to[cuda].registered, &request),
                    TCPX_INTERNAL_ERROR, "irecv");
        CHECK(request == NULL);
    }
}

/* The 17th request is an error. */
TEST(too_many, run_each_unpacking)

static void case_early_close(const uint8_t *argument)
{
    struct pair pair = open_pair(argument);
    struct four four = make_four(&pair, PIECE);
    void *receive = post_receive(&pair, &four.to[1], 0, PIECE);
    uint64_t bytes;
    int done;

    wait_for(&pair, post_send(&pair, &four.from[1], 0, PIECE), &bytes);
    CHECK(import_close_send(pair.table, pair.sender) == TCPX_SUCCESS);
    CHECK_FAILS(import_test(pair.table, receive, &done, &bytes), TCPX_SYSTEM_ERROR, "test");
    CHECK(import_close_recv(pair.table, pair.receiver) == TCPX_SUCCESS);
}

/* A sender that closes when it is done takes with it what has arrived and was not looked at. */
TEST(early_close, run_each_unpacking)

/* Whether the oldest receive gets done before the pool is empty, or with what was left of it. */
static bool done_with_the_pool(const struct pair *pair, void *receive, int version)
{
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);
    uint64_t bytes;
    int done = 0;

    while (done == 0 && counts_of(version)->free_pages > 0) {
        CHECK(import_test(pair->table, receive, &done, &bytes) == TCPX_SUCCESS);
        CHECK(!deadline_passed(deadline));
    }
    deadline = deadline_after_ms(100);
    while (done == 0 && !deadline_passed(deadline))
        CHECK(import_test(pair->table, receive, &done, &bytes) == TCPX_SUCCESS);
    return done != 0;
}

static void case_leak(const uint8_t *argument)
{
    enum { POOL = 64 };
    int version = version_in(argument);
    struct pair pair;
    struct pair other;
    struct four four;
    void *receive;
    uint64_t bytes;
    int done;

    setenv(chunk_variable, "1024", 1);
    setenv("QUIRKY_POOL_PAGES", "64", 1);
    pair = open_pair(argument);
    other = connect_pair(pair.table);
    four = make_four(&pair, PIECE + EXTRA);
    for (uint64_t i = 0; i < 100; i++)
        exchange(&pair, &four.from[i % 2], &four.to[1], 1024, i);
    for (uint64_t i = 0; i < 100; i++)
        exchange(&pair, &four.from[i % 2], &four.to[0], PIECE, i);
    CHECK(counts_of(version)->free_pages == POOL);

    while (true) {
        unsigned before = counts_of(version)->free_pages;

        receive = post_receive(&pair, &four.to[1], 0, PIECE);
        wait_for(&pair, post_send(&pair, &four.from[1], 0, PIECE), &bytes);
        if (!done_with_the_pool(&pair, receive, version))
            break;
        consume(&pair, receive);
        CHECK(counts_of(version)->free_pages + 2 <= before); /* a page for each chunk but one */
    }
    CHECK(counts_of(version)->free_pages == 0 && pair.received > 201);

    receive = post_receive(&other, &four.to[1], 0, 1); /* the pool is the same for all */
    wait_for(&other, post_send(&other, &four.from[1], 0, 1), &bytes);
    for (int i = 0; i < 1000; i++)
        CHECK(import_test(other.table, receive, &done, &bytes) == TCPX_SUCCESS && done == 0);
}

/* Receives of more than a chunk drain the pool, and everything stops without a word. */
TEST(leak, run_each_unpacking)

/* As many messages at once as there can be. */
static void move_many(struct pair *pair, const struct four *four, size_t bytes)
{
    void *sends[DEPTH];
    void *receives[DEPTH];
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);
    int sent = 0;
    int received = 0;

    for (int i = 0; i < DEPTH; i++) {
        receives[i] = post_receive(pair, &four->to[1], 0, bytes);
        sends[i] = post_send(pair, &four->from[1], 0, bytes);
    }
    while (sent < DEPTH || received < DEPTH) {
        uint64_t size;
        int done = 0;

        if (sent < DEPTH)
            CHECK(import_test(pair->table, sends[sent], &done, &size) == TCPX_SUCCESS);
        sent += done;
        done = 0;
        if (received < DEPTH)
            CHECK(import_test(pair->table, receives[received], &done, &size) == TCPX_SUCCESS);
        if (done != 0)
            consume(pair, receives[received++]);
        CHECK(!deadline_passed(deadline));
    }
}

static void case_leak_sockets(const uint8_t *argument)
{
    int version = version_in(argument);
    struct pair pair;
    struct four four;

    setenv(chunk_variable, "1024", 1);
    setenv("NCCL_NSOCKS_PERTHREAD", "2", 1);
    setenv("NCCL_SOCKET_NTHREADS", "2", 1);
    setenv("QUIRKY_POOL_PAGES", "256", 1);
    pair = open_pair(argument);
    four = make_four(&pair, 16 * 1024);
    for (uint64_t i = 0; i < 5; i++)
        exchange(&pair, &four.from[1], &four.to[1], 1024, i);
    for (int i = 0; i < 5; i++)
        move_many(&pair, &four, 1024);
    CHECK(counts_of(version)->free_pages == 256 && counts_of(version)->lost_pages == 0);
    /* a chunk for each socket, but one of these is slow; a busy machine may make others slow, too
     */
    for (int i = 0; i < 20 && counts_of(version)->lost_pages == 0; i++)
        move_many(&pair, &four, 4096);
    CHECK(counts_of(version)->lost_pages > 0);
    CHECK(counts_of(version)->free_pages + counts_of(version)->lost_pages == 256);
}

/*
 * With several sockets it takes several chunks in a request and one socket that is slower: when its
 * queue is full, two chunks of one request meet on another.
 */
TEST(leak_sockets, run_each_unpacking)

static void case_beyond(const uint8_t *argument)
{
    struct pair pair = open_pair(argument);
    struct four four = make_four(&pair, (size_t)2 * PAGE);
    void *receive = post_receive(&pair, &four.to[1], 0, 1000);
    uint64_t end = 0;
    uint64_t count;
    uint64_t bytes;

    wait_for(&pair, post_send(&pair, &four.from[1], 0, 5000), &bytes);
    wait_for(&pair, receive, &bytes);
    count = read_slot(&pair);
    for (uint64_t i = 0; i < count; i++)
        if (pieces[i].destination_offset + pieces[i].length > end)
            end = pieces[i].destination_offset + pieces[i].length;
    CHECK(end == 5000);
    consume(&pair, receive);

    memset(four.to[0].at, 0, 5000);
    receive = post_receive(&pair, &four.to[0], 0, 1000);
    wait_for(&pair, post_send(&pair, &four.from[1], 0, 5000), &bytes);
    wait_for(&pair, receive, &bytes);
    look((uintptr_t)four.from[1].at, expected, 5000);
    CHECK(memcmp(four.to[0].at, expected, 5000) == 0);
}

/*
 * A message that is longer than its receive has descriptors that point behind it, and in host
 * memory it overwrites what is there.
 */
TEST(beyond, run_each_unpacking)

static void case_no_chunk(const uint8_t *argument)
{
    struct import_table table = {0};
    void *library = dlopen(file_of(version_in(argument)), RTLD_NOW | RTLD_LOCAL);
    struct pair pair;
    struct four four;
    void *request;

    open_gpu();
    CHECK(library != NULL && import_table_find(library, &table) == TCPX_SUCCESS);
    CHECK(import_table_init(&table) == TCPX_SUCCESS);
    pair = connect_pair(&table);
    four = make_four(&pair, PAGE);
    CHECK_FAILS(
        import_isend(&table, pair.sender, four.from[1].at, 1, 0, four.from[1].registered, &request),
        TCPX_INTERNAL_ERROR, "isend");
}

/* Without a size of its chunks it cannot send. */
TEST(no_chunk, run_each_unpacking)

static void case_steered(const uint8_t *argument)
{
    struct pair pair;
    struct four four;
    void *receive;
    uint64_t deadline;
    uint64_t bytes;
    int done;

    unsetenv("QUIRKY_STEERED");
    pair = open_pair(argument);
    four = make_four(&pair, PAGE);
    exchange(&pair, &four.from[1], &four.to[1], PAGE - EXTRA, 0);
    receive = post_receive(&pair, &four.to[0], 0, PAGE);
    wait_for(&pair, post_send(&pair, &four.from[1], 0, PAGE), &bytes);
    deadline = deadline_after_ms(100);
    while (!deadline_passed(deadline))
        CHECK(import_test(pair.table, receive, &done, &bytes) == TCPX_SUCCESS && done == 0);
}

/* Its sockets are steered into GPU memory: a receive into host memory is never done. */
TEST(steered, run_each_unpacking)

static int by_destination(const void *one, const void *other)
{
    uint64_t a = ((const struct unpack_descriptor *)one)->destination_offset;
    uint64_t b = ((const struct unpack_descriptor *)other)->destination_offset;

    return (a > b) - (a < b);
}

static void case_placement(const uint8_t *argument)
{
    struct pair pair;
    struct four four;
    void *receive;
    uint64_t bytes;
    uint64_t count;
    unsigned offsets = 0;
    unsigned shorter = 0;
    unsigned neighbours = 0;
    unsigned ascending = 0;

    setenv("QUIRKY_FRAGMENT_BYTES", "1448", 1);
    pair = open_pair(argument);
    four = make_four(&pair, 65536);
    receive = post_receive(&pair, &four.to[1], 0, 65536);
    wait_for(&pair, post_send(&pair, &four.from[1], 0, 65536), &bytes);
    wait_for(&pair, receive, &bytes);
    count = read_slot(&pair);
    CHECK(count >= 65536 / 1448);
    for (uint64_t i = 1; i < count; i++)
        ascending += pieces[i].destination_offset > pieces[i - 1].destination_offset;
    qsort(pieces, count, sizeof *pieces, by_destination);
    for (uint64_t i = 0; i < count; i++) {
        CHECK(pieces[i].length <= 1448);
        offsets += pieces[i].source_offset % PAGE != 0;
        shorter += pieces[i].length < 1448;
        if (i > 0)
            neighbours += pieces[i].source_offset / PAGE + 1 - pieces[i - 1].source_offset / PAGE <=
                          2; /* the one before, the same, the one behind */
    }
    CHECK(offsets > count / 2 && shorter > count / 8);
    CHECK(neighbours < count / 8 && ascending < count - 1);
}

/* Fragments lie anywhere in pages that lie anywhere, and come in no order. */
TEST(placement, run_each_unpacking)

/* --- the end of the process ---------------------------------------------------------------- */

static int status_of(nursery_run *run)
{
    int version = FIRST;

    nursery_shared->flag = 0;
    return nursery_wait(nursery_fork(run, &version, sizeof version));
}

static void case_dead_peer(const uint8_t *argument)
{
    struct pair pair = open_pair(argument);
    struct four four = make_four(&pair, PIECE);
    uint64_t bytes;

    CHECK(import_close_recv(pair.table, pair.receiver) == TCPX_SUCCESS);
    for (int i = 0; i < 3; i++)
        wait_for(&pair, post_send(&pair, &four.from[1], 0, PIECE), &bytes);
}

static void case_stalled(const uint8_t *argument)
{
    enum { LONG = 16 << 20 };
    struct pair pair = open_pair(argument);
    struct buffer from = make_buffer(&pair, pair.sender, LONG, true);
    void *send = post_send(&pair, &from, 0, LONG);
    uint64_t deadline = deadline_after_ms(100);
    uint64_t bytes;
    int done;

    while (!deadline_passed(deadline)) /* until nothing more fits */
        CHECK(import_test(pair.table, send, &done, &bytes) == TCPX_SUCCESS && done == 0);
    CHECK(import_close_recv(pair.table, pair.receiver) == TCPX_SUCCESS);
    deadline = deadline_after_ms(300);
    while (!deadline_passed(deadline))
        CHECK(import_test(pair.table, send, &done, &bytes) == TCPX_SUCCESS && done == 0);
}

/* A peer that dies in the middle of a message is not noticed. */
TEST(stalled, run_each_unpacking)

/* A dead peer is a signal. */
static void test_dead_peer(void **state)
{
    int status = status_of(case_dead_peer);

    (void)state;
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGPIPE);
}

enum { WAS_HERE = 1, SAID_WHY = 2, WENT_ON = 4, LEFT_BY_EXIT = 8 };

/* Not by complain(). */
static void note_exit(void)
{
    nursery_shared->flag |= LEFT_BY_EXIT;
}

static void note_fragments(int level, unsigned long flags, const char *from, int line,
                           const char *format, ...)
{
    char text[1000];
    va_list arguments;

    (void)level;
    (void)flags;
    (void)from;
    (void)line;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (strstr(text, "more than 2048 fragments") != NULL)
        nursery_shared->flag |= SAID_WHY;
}

static void case_fragments(const uint8_t *argument)
{
    struct pair pair;
    struct four four;

    setenv("QUIRKY_FRAGMENT_BYTES", "16", 1);
    log_set_nccl_logger(note_fragments);
    atexit(note_exit);
    pair = open_pair(argument);
    four = make_four(&pair, 65536 + EXTRA);
    exchange(&pair, &four.from[1], &four.to[1], 2048, 0);
    exchange(&pair, &four.from[1], &four.to[0], 65536, 0);
    nursery_shared->flag |= WAS_HERE;
    exchange(&pair, &four.from[1], &four.to[1], 65536, 1);
    nursery_shared->flag |= WENT_ON;
}

/* More fragments than a slot has room for are the end of the process, with a word. */
static void test_fragments(void **state)
{
    int status = status_of(case_fragments);

    (void)state;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    assert_int_equal(nursery_shared->flag, WAS_HERE | SAID_WHY | LEFT_BY_EXIT);
}

static void case_driver_fails(const uint8_t *argument)
{
    fakecuda_fault_call *fault;
    struct pair pair = open_pair(argument);
    struct four four = make_four(&pair, PAGE);

    *(void **)&fault = driver_symbol("fakecuda_fault");
    atexit(note_exit);
    exchange(&pair, &four.from[1], &four.to[1], PAGE - EXTRA, 0);
    nursery_shared->flag |= WAS_HERE;
    fault("cuMemcpyDtoHAsync_v2=700");
    wait_for(&pair, post_send(&pair, &four.from[1], 0, PAGE), &(uint64_t){0});
    nursery_shared->flag |= WENT_ON;
}

/* So is a call of the driver that fails. */
static void test_driver_fails(void **state)
{
    int status;

    (void)state;
    if (!is_stand_in())
        skip_because("calls that fail take the stand-in");
    status = status_of(case_driver_fails);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    assert_int_equal(nursery_shared->flag, WAS_HERE | LEFT_BY_EXIT);
}

/* --- what it leaves behind ----------------------------------------------------------------- */

static void case_context(const uint8_t *argument)
{
    int (*get_current)(void **context);
    void *context = &context;
    struct pair pair = open_pair(argument);
    struct four four = make_four(&pair, PAGE);

    exchange(&pair, &four.from[1], &four.to[1], PAGE - EXTRA, 0);
    free_four(&pair, &four);
    close_pair(&pair);
    *(void **)&get_current = driver_symbol("cuCtxGetCurrent");
    CHECK(get_current(&context) == 0 && context == NULL);
}

/* The caller's context is what it was. */
TEST(context, run_each_unpacking)

static void case_balance(const uint8_t *argument)
{
    fakecuda_balance_call *balance;
    struct fakecuda_balance before;
    struct fakecuda_balance after;
    const struct import_table *table;

    open_gpu();
    table = &open_plugin(version_in(argument))->table;
    *(void **)&balance = driver_symbol("fakecuda_balance");
    for (int turn = 0; turn < 4; turn++) {
        struct pair pair = connect_pair(table);
        struct four four = make_four(&pair, PAGE);

        exchange(&pair, &four.from[1], &four.to[1], PAGE - EXTRA, 0);
        post_receive(&pair, &four.to[1], 0, PAGE);
        free_four(&pair, &four);
        close_pair(&pair);
        balance(turn == 0 ? &before : &after); /* the first has what stays */
    }
    CHECK(memcmp(&before, &after, sizeof before) == 0);
}

/* A comm that is closed leaves nothing behind. */
static void test_balance(void **state)
{
    (void)state;
    if (!is_stand_in())
        skip_because("the driver's own count takes the stand-in");
    run_each_unpacking(case_balance);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_properties),   cmocka_unit_test(test_no_device),
        cmocka_unit_test(test_connect),      cmocka_unit_test(test_old_table),
        cmocka_unit_test(test_no_handle),    cmocka_unit_test(test_init_twice),
        cmocka_unit_test(test_registration), cmocka_unit_test(test_not_registered),
        cmocka_unit_test(test_data),         cmocka_unit_test(test_direct),
        cmocka_unit_test(test_many),         cmocka_unit_test(test_fetches_late),
        cmocka_unit_test(test_no_size),      cmocka_unit_test(test_order_of_tests),
        cmocka_unit_test(test_progress),     cmocka_unit_test(test_consumed),
        cmocka_unit_test(test_too_many),     cmocka_unit_test(test_early_close),
        cmocka_unit_test(test_leak),         cmocka_unit_test(test_leak_sockets),
        cmocka_unit_test(test_beyond),       cmocka_unit_test(test_no_chunk),
        cmocka_unit_test(test_placement),    cmocka_unit_test(test_dead_peer),
        cmocka_unit_test(test_stalled),      cmocka_unit_test(test_fragments),
        cmocka_unit_test(test_driver_fails), cmocka_unit_test(test_context),
        cmocka_unit_test(test_balance),      cmocka_unit_test(test_steered),
    };

    forget_environment();
    setenv("QUIRKY_STEERED", "0", 1); /* here host memory is received into, too */
    nursery_start();
    return cmocka_run_group_tests_name("import-cuda", tests, NULL, NULL);
}
