/*
 * Shows that the quirky plugin of tests/quirky_plugin treats GPU memory as Google's does, through
 * every version of NCCL's table that can say so, and that each of its peculiarities is there: a
 * test of whoever is to get along with them is worth nothing otherwise.
 */
#define EACH_TABLE        run_each_unpacking
#define EACH_QUIRKY_TABLE run_each_unpacking
#include "tests/quirky_plugin/traffic.h"

#include "tests/fakecuda/fakecuda.h"

/* --- the driver ---------------------------------------------------------------------------- */

/* Of the driver that is loaded; NULL: it has no such thing. */
static void *driver_symbol(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    return driver != NULL ? dlsym(driver, name) : NULL;
}

static void need_stand_in(void)
{
    if (driver_symbol("fakecuda_fault") == NULL)
        skip_because("this takes the stand-in of the driver");
}

static void run_each_on_stand_in(void (*run)(int version))
{
    need_stand_in();
    run_each_quirky(run);
}

static void run_oldest(void (*run)(int version))
{
    drive_run(run, OLDEST);
}

static void run_first(void (*run)(int version))
{
    drive_run(run, UNPACKING);
}

static enum gpu_pointer_kind kind_of(const void *address, size_t bytes)
{
    struct gpu_pointer pointer;

    CHECK_SUCCESS(gpu_classify(address, bytes, &pointer));
    return pointer.kind;
}

/* The next is for the calls themselves: a word of the size would be written there. */
static int test_raw(const struct pair *pair, void *request, int *done, int *bytes)
{
    CHECK(pair->table->version == 7);
    return pair->table->raw->test(request, done, bytes);
}

/* --- data ---------------------------------------------------------------------------------- */

/* A receive into host memory takes nothing of the pool, one into the GPU's does. */
CASE(direct, run_each_unpacking)
{
    struct pair pair = open_pair(version, 65536 + EXTRA);
    unsigned pages = counts_of(version)->free_pages;
    void *receive;

    CHECK(pages > 0);
    exchange(&pair, HOST, HOST, 65536, 0);
    CHECK(counts_of(version)->free_pages == pages);
    receive = move(&pair, HOST, GPU, 65536);
    CHECK(read_slot(&pair) >= 16);
    CHECK(counts_of(version)->free_pages == pages - read_slot(&pair));
    consume(&pair, receive);
    CHECK(counts_of(version)->free_pages == pages);
}

/* What is sent of the GPU's memory is what is there during test(), not at isend. */
CASE(fetches_late, run_each_unpacking)
{
    struct pair pair = open_pair(version, PAGE);
    void *receive = post_receive(&pair, HOST, 0, PAGE);
    void *send;

    memset(found, 1, PAGE);
    write_buffer(&pair.from[GPU], 0, found, PAGE);
    send = post_send(&pair, GPU, 0, PAGE);
    memset(found, 2, PAGE);
    write_buffer(&pair.from[GPU], 0, found, PAGE);
    wait_for(&pair, send);
    wait_for(&pair, receive);
    CHECK(memcmp(pair.to[HOST].at, found, PAGE) == 0);
}

/* --- what it says of itself ---------------------------------------------------------------- */

/* It says that it takes GPU memory and has a queue, unless its table is too old. */
CASE(properties, run_each_quirky)
{
    check_properties(version, version >= UNPACKING);
}

/* A driver without a device is none. */
CASE(no_device, run_each_on_stand_in)
{
    setenv("FAKECUDA_DEVICES", "0", 1);
    check_properties(version, false);
}

/* Handle and pool are on the GPU, the queue is in pinned memory; all comms have one pool. */
CASE(connect, run_each_unpacking)
{
    struct pair pair = open_pair(version, 0);
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

/* The oldest table has no unpack queue, and no GPU memory. */
CASE(old_table, run_oldest)
{
    struct pair pair = open_pair(version, 0);
    struct gpu_memory memory;

    CHECK(pair.on_gpu.type == NET_DEVICE_HOST);
    CHECK_SUCCESS(gpu_memory_alloc(gpu, PAGE, PAGE, &memory));
    check_not_registered(&pair, pair.receiver, (void *)(uintptr_t)memory.address, PAGE,
                         NET_POINTER_CUDA);
}

/* It has no memory of its own for what accept tells. */
CASE(no_handle, run_each_unpacking)
{
    struct pair pair = listen_pair(open_table(version));
    void *comm = &comm;

    CHECK_FAILS(import_accept(pair.table, pair.listener, &comm, NULL), "accept");
    CHECK(comm == NULL);
}

/* It starts once in a process. */
CASE(init_twice, run_each_quirky)
{
    struct import_table table = *open_table(version);

    CHECK_FAILS(import_table_init(&table), "init");
}

/* --- registration -------------------------------------------------------------------------- */

/* GPU memory is registered in whole pages of one allocation, host memory as it comes. */
CASE(registration, run_each_unpacking)
{
    static const struct {
        size_t at;
        size_t bytes;
    } refused[] = {{1, PAGE},        {256, PAGE},      {0, PAGE - 1}, {0, PAGE + 1},
                   {PAGE, 2 * PAGE}, {0, 3 * PAGE},    {PAGE, 16},    {0, 0},
                   {2048, 2048},     {3 * PAGE, PAGE}, {0, 256}};
    struct pair pair = open_pair(version, 0);
    struct gpu_memory memory;
    uint8_t *data;

    /* what lies behind is nobody's, or somebody else's */
    CHECK_SUCCESS(gpu_memory_alloc(gpu, (uint64_t)2 * PAGE, PAGE, &memory));
    data = (void *)(uintptr_t)memory.address;
    for (size_t i = 0; i < COUNT_OF(refused); i++)
        check_not_registered(&pair, pair.receiver, data + refused[i].at, refused[i].bytes,
                             NET_POINTER_CUDA);
    data = aligned_alloc(PAGE, PAGE);
    check_not_registered(&pair, pair.sender, data, PAGE, NET_POINTER_CUDA);
    check_not_registered(&pair, pair.sender, data, PAGE, 4);
    CHECK_SUCCESS(
        import_deregister(pair.table, pair.sender,
                          register_memory(&pair, pair.sender, data + 1, 7, NET_POINTER_HOST)));
    data = (void *)(uintptr_t)memory.address;
    for (size_t pages = 1; pages <= 2; pages++)
        for (int end = 0; end < 2; end++)
            register_memory(&pair, end == 0 ? pair.sender : pair.receiver, data, pages * PAGE,
                            NET_POINTER_CUDA);
    register_memory(&pair, pair.sender, data + PAGE, PAGE, NET_POINTER_CUDA);
}

/* Both ends are registered. */
CASE(not_registered, run_each_unpacking)
{
    struct pair pair = open_pair(version, PAGE);
    void *request;

    CHECK_FAILS(try_receive(&pair, GPU, 0, PAGE + 1, &request), "irecv");
    pair.to[GPU].registered = pair.from[GPU].registered = NULL;
    CHECK_FAILS(try_receive(&pair, GPU, 0, PAGE, &request), "irecv");
    CHECK_FAILS(try_send(&pair, GPU, 0, PAGE, &request), "isend");
}

/* --- what it does not forgive -------------------------------------------------------------- */

/* test() never writes a size, at no end, of no memory. */
CASE(no_size, run_first)
{
    struct pair pair = open_pair(version, PAGE);

    for (int cuda = 0; cuda < 2; cuda++) {
        void *receive = post_receive(&pair, cuda, 0, PAGE);
        void *requests[2] = {post_send(&pair, cuda, 0, PAGE), receive};

        for (int i = 0; i < 2; i++) {
            uint64_t deadline = deadline_after_ms(DEADLINE_MS);
            int bytes = 12345;
            int done = 0;

            while (done == 0 && in_time(deadline))
                CHECK(test_raw(&pair, requests[i], &done, &bytes) == TCPX_SUCCESS);
            CHECK(bytes == 12345);
        }
        CHECK(read_slot(&pair) == 0 || cuda != 0);
        consume(&pair, receive);
    }
}

/* Also host receives are consumed, once, in order, when they are done; else there are no more. */
CASE(consumed, run_each_unpacking)
{
    struct pair pair = open_pair(version, PIECE);
    void *receives[DEPTH];
    void *send = NULL;
    void *more;

    for (int i = 0; i < DEPTH; i++) {
        receives[i] = post_receive(&pair, i % 2, 0, PIECE);
        send = post_send(&pair, HOST, 0, PIECE);
        wait_for(&pair, send);
    }
    CHECK_SUCCESS(import_consumed(pair.table, pair.sender, send)); /* it means nothing */
    CHECK_FAILS(import_consumed(pair.table, pair.receiver, receives[0]),
                "irecvConsumed"); /* too early */
    for (int i = 0; i < DEPTH; i++)
        wait_for(&pair, receives[i]);
    CHECK_FAILS(try_receive(&pair, HOST, 0, PIECE, &more), "irecv"); /* all done, none consumed */
    CHECK_FAILS(import_consumed(pair.table, pair.receiver, receives[1]),
                "irecvConsumed"); /* out of order */
    consume(&pair, receives[0]);
    CHECK_FAILS(import_consumed(pair.table, pair.receiver, receives[0]),
                "irecvConsumed"); /* twice */
    CHECK(post_receive(&pair, GPU, 0, PIECE) == receives[0]);
    CHECK_FAILS(try_receive(&pair, GPU, 0, PIECE, &more), "irecv");
}

/* Whether the oldest receive gets done before the pool is empty, or with what was left of it. */
static bool done_with_the_pool(const struct pair *pair, void *receive, int version)
{
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);
    uint64_t bytes;
    int done = 0;

    while (done == 0 && counts_of(version)->free_pages > 0 && in_time(deadline))
        CHECK_SUCCESS(import_test(pair->table, receive, &done, &bytes));
    deadline = deadline_after_ms(100);
    while (done == 0 && !deadline_passed(deadline))
        CHECK_SUCCESS(import_test(pair->table, receive, &done, &bytes));
    return done != 0;
}

/* Receives of more than a chunk drain the pool, and everything stops without a word. */
CASE(leak, run_each_unpacking)
{
    enum { POOL = 64 };
    struct pair pair;
    struct pair other;
    void *receive;

    setenv(chunk_variable, "1024", 1);
    setenv("QUIRKY_POOL_PAGES", "64", 1);
    pair = open_pair(version, PIECE + EXTRA);
    other = make_pair(pair.table, PAGE);
    for (uint64_t i = 0; i < 100; i++)
        exchange(&pair, (int)(i % 2), GPU, 1024, i);
    for (uint64_t i = 0; i < 100; i++)
        exchange(&pair, (int)(i % 2), HOST, PIECE, i);
    CHECK(counts_of(version)->free_pages == POOL);

    while (true) {
        unsigned before = counts_of(version)->free_pages;

        receive = post_receive(&pair, GPU, 0, PIECE);
        send_whole(&pair, GPU, PIECE);
        if (!done_with_the_pool(&pair, receive, version))
            break;
        consume(&pair, receive);
        CHECK(counts_of(version)->free_pages + 2 <= before); /* a page for each chunk but one */
    }
    CHECK(counts_of(version)->free_pages == 0 && pair.received > 201);

    receive = post_receive(&other, GPU, 0, 1); /* the pool is the same for all */
    send_whole(&other, GPU, 1);
    check_pending(&other, receive, 100);
}

/* As many messages at once as there can be. */
static void move_many(struct pair *pair, size_t bytes)
{
    void *sends[DEPTH];
    void *receives[DEPTH];
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);
    int sent = 0;
    int received = 0;

    for (int i = 0; i < DEPTH; i++) {
        receives[i] = post_receive(pair, GPU, 0, bytes);
        sends[i] = post_send(pair, GPU, 0, bytes);
    }
    while ((sent < DEPTH || received < DEPTH) && in_time(deadline)) {
        uint64_t size;
        int done = 0;

        if (sent < DEPTH)
            CHECK_SUCCESS(import_test(pair->table, sends[sent], &done, &size));
        sent += done;
        done = 0;
        if (received < DEPTH)
            CHECK_SUCCESS(import_test(pair->table, receives[received], &done, &size));
        if (done != 0)
            consume(pair, receives[received++]);
    }
}

/*
 * With several sockets it takes several chunks in a request and one socket that is slower: when its
 * queue is full, two chunks of one request meet on another.
 */
CASE(leak_sockets, run_each_unpacking)
{
    struct pair pair;

    setenv(chunk_variable, "1024", 1);
    setenv("NCCL_NSOCKS_PERTHREAD", "2", 1);
    setenv("NCCL_SOCKET_NTHREADS", "2", 1);
    setenv("QUIRKY_POOL_PAGES", "256", 1);
    pair = open_pair(version, 16 * 1024);
    for (uint64_t i = 0; i < 5; i++)
        exchange(&pair, GPU, GPU, 1024, i);
    for (int i = 0; i < 5; i++)
        move_many(&pair, 1024);
    CHECK(counts_of(version)->free_pages == 256 && counts_of(version)->lost_pages == 0);
    /* a chunk for each socket, but one of these is slow; a busy machine may make others slow, too
     */
    for (int i = 0; i < 20 && counts_of(version)->lost_pages == 0; i++)
        move_many(&pair, 4096);
    CHECK(counts_of(version)->lost_pages > 0);
    CHECK(counts_of(version)->free_pages + counts_of(version)->lost_pages == 256);
}

/*
 * A message that is longer than its receive has descriptors that point behind it, and in host
 * memory it overwrites what is there.
 */
CASE(beyond, run_each_unpacking)
{
    struct pair pair = open_pair(version, (size_t)2 * PAGE);
    void *receive = post_receive(&pair, GPU, 0, 1000);
    uint64_t end = 0;
    uint64_t count;

    send_whole(&pair, GPU, 5000);
    wait_for(&pair, receive);
    count = read_slot(&pair);
    for (uint64_t i = 0; i < count; i++)
        if (pieces[i].destination_offset + pieces[i].length > end)
            end = pieces[i].destination_offset + pieces[i].length;
    CHECK(end == 5000);
    consume(&pair, receive);

    memset(pair.to[HOST].at, 0, 5000);
    receive = post_receive(&pair, HOST, 0, 1000);
    send_whole(&pair, GPU, 5000);
    wait_for(&pair, receive);
    look((uintptr_t)pair.from[GPU].at, expected, 5000);
    CHECK(memcmp(pair.to[HOST].at, expected, 5000) == 0);
}

/* Its sockets are steered into GPU memory: a receive into host memory is never done. */
CASE(steered, run_each_unpacking)
{
    struct pair pair;
    void *receive;

    unsetenv("QUIRKY_STEERED");
    pair = open_pair(version, PAGE);
    exchange(&pair, GPU, GPU, PAGE - EXTRA, 0);
    receive = post_receive(&pair, HOST, 0, PAGE);
    send_whole(&pair, GPU, PAGE);
    check_pending(&pair, receive, 100);
}

static int by_destination(const void *one, const void *other)
{
    uint64_t a = ((const struct unpack_descriptor *)one)->destination_offset;
    uint64_t b = ((const struct unpack_descriptor *)other)->destination_offset;

    return (a > b) - (a < b);
}

/* Fragments lie anywhere in pages that lie anywhere, and come in no order. */
CASE(placement, run_each_unpacking)
{
    struct pair pair;
    uint64_t count;
    unsigned offsets = 0;
    unsigned shorter = 0;
    unsigned neighbours = 0;
    unsigned ascending = 0;

    setenv("QUIRKY_FRAGMENT_BYTES", "1448", 1);
    pair = open_pair(version, 65536);
    move(&pair, GPU, GPU, 65536);
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

/* --- the end of the process ---------------------------------------------------------------- */

/* A peer that dies in the middle of a message is not noticed. */
CASE(stalled, run_each_unpacking)
{
    enum { LONG = 16 << 20 };
    struct pair pair = open_pair(version, LONG);
    void *send = post_send(&pair, GPU, 0, LONG);

    check_pending(&pair, send, limit_ms(500)); /* until nothing more fits */
    CHECK_SUCCESS(import_close_recv(pair.table, pair.receiver));
    check_pending(&pair, send, 300);
}

enum { WAS_HERE = 1, SAID_WHY = 2, WENT_ON = 4, LEFT_BY_EXIT = 8 };

/* Not by CHECK(). */
static void note_exit(void)
{
    child_shared->flag |= LEFT_BY_EXIT;
    if (logged("more than 2048 fragments"))
        child_shared->flag |= SAID_WHY;
}

/* It calls exit(1), at this stage. */
static void check_exits(void (*run)(int version), int stage)
{
    int status;

    child_shared->flag = 0;
    status = child_wait(drive_fork(run, UNPACKING));
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    assert_int_equal(child_shared->flag, stage | LEFT_BY_EXIT);
}

static void receive_fragments(int version)
{
    struct pair pair;

    setenv("QUIRKY_FRAGMENT_BYTES", "16", 1);
    log_set_nccl_logger(keep_line);
    atexit(note_exit);
    pair = open_pair(version, 65536 + EXTRA);
    exchange(&pair, GPU, GPU, 2048, 0);
    exchange(&pair, GPU, HOST, 65536, 0);
    child_shared->flag |= WAS_HERE;
    exchange(&pair, GPU, GPU, 65536, 1);
    child_shared->flag |= WENT_ON;
}

/* More fragments than a slot has room for are the end of the process, with a word. */
TEST(test_fragments)
{
    check_exits(receive_fragments, WAS_HERE | SAID_WHY);
}

static void send_without_driver(int version)
{
    fakecuda_fault_call *fault;
    struct pair pair = open_pair(version, PAGE);

    *(void **)&fault = driver_symbol("fakecuda_fault");
    atexit(note_exit);
    exchange(&pair, GPU, GPU, PAGE - EXTRA, 0);
    child_shared->flag |= WAS_HERE;
    fault("cuMemcpyDtoHAsync_v2=700");
    send_whole(&pair, GPU, PAGE);
    child_shared->flag |= WENT_ON;
}

/* So is a call of the driver that fails. */
TEST(test_driver_fails)
{
    need_stand_in();
    check_exits(send_without_driver, WAS_HERE);
}

/* --- what it leaves behind ----------------------------------------------------------------- */

/* The caller's context is what it was. */
CASE(context, run_each_unpacking)
{
    int (*get_current)(void **context);
    void *context = &context;
    struct pair pair = open_pair(version, PAGE);

    exchange(&pair, GPU, GPU, PAGE - EXTRA, 0);
    close_pair(&pair);
    *(void **)&get_current = driver_symbol("cuCtxGetCurrent");
    CHECK(get_current(&context) == 0 && context == NULL);
}

static void move_and_count(int version)
{
    fakecuda_balance_call *balance;
    struct fakecuda_balance before;
    struct fakecuda_balance after;
    const struct import_table *table;

    open_gpu();
    table = open_table(version);
    *(void **)&balance = driver_symbol("fakecuda_balance");
    for (int turn = 0; turn < 4; turn++) {
        struct pair pair = make_pair(table, PAGE);

        exchange(&pair, GPU, GPU, PAGE - EXTRA, 0);
        post_receive(&pair, GPU, 0, PAGE);
        close_pair(&pair);
        balance(turn == 0 ? &before : &after); /* the first has what stays */
    }
    CHECK(memcmp(&before, &after, sizeof before) == 0);
}

/* A comm that is closed leaves nothing behind. */
TEST(test_balance)
{
    need_stand_in();
    run_each_unpacking(move_and_count);
}

static int begin_suite(void)
{
    kinds = KINDS;
    forget_environment();
    setenv("QUIRKY_STEERED", "0", 1); /* here host memory is received into, too */
    child_limit_ms = CASE_LIMIT_MS;
    return child_begin();
}

SUITE(.name = "import-cuda", .begin = begin_suite);
