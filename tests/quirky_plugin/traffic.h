/*
 * Messages through a plugin's table, between host memory and the GPU's: buffers, the unpack queue
 * as a consumer reads it, and exchanges of which every byte is checked. The cases at the end hold
 * for both kinds of memory: EACH_TABLE is how the including program runs them, and `kinds` is 1
 * where it has only host memory.
 */
#ifndef TCPX_TESTS_QUIRKY_TRAFFIC_H
#define TCPX_TESTS_QUIRKY_TRAFFIC_H

#include "tests/quirky_plugin/drive.h"

#include "tests/gpu/gpu_test.h"

enum { DEPTH = 16, PAGE = 4096, PIECE = 3000, MOST = 1 << 20, EXTRA = 16 };

/* --- connections --------------------------------------------------------------------------- */

/* Memory of one end, of the host or of the GPU. */
struct buffer {
    void *at;
    void *registered;
    size_t bytes;
    bool cuda;
    struct gpu_memory memory;
    void *comm;
};

enum { HOST, GPU, KINDS };

/* One way, both ends in this process. */
struct pair {
    const struct import_table *table;
    void *sender;
    void *receiver;
    void *listener;
    uint8_t handle[NET_TABLE_HANDLE_BYTES];
    struct net_device_handle on_gpu;
    struct buffer from[KINDS]; /* the GPU's only where open_gpu() was called before */
    struct buffer to[KINDS];
    int polls;
    uint64_t received; /* receives that were consumed */
};

/* Nothing but a listener. */
static inline struct pair listen_pair(const struct import_table *table)
{
    struct pair pair = {.table = table};

    memset(pair.handle, 0xA5, sizeof pair.handle);
    CHECK_SUCCESS(import_listen(table, 0, pair.handle, &pair.listener));
    return pair;
}

/* Until both ends are there; the listener stays. */
static inline void meet(struct pair *pair)
{
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);

    for (; (pair->sender == NULL || pair->receiver == NULL) && in_time(deadline); pair->polls++) {
        if (pair->sender == NULL)
            CHECK_SUCCESS(import_connect(pair->table, 0, pair->handle, &pair->sender));
        if (pair->receiver == NULL)
            CHECK_SUCCESS(
                import_accept(pair->table, pair->listener, &pair->receiver, &pair->on_gpu));
    }
}

/* Without memory. */
static inline struct pair connect_pair(const struct import_table *table)
{
    struct pair pair = listen_pair(table);

    meet(&pair);
    CHECK_SUCCESS(import_close_listen(table, pair.listener));
    return pair;
}

/* --- memory and data ----------------------------------------------------------------------- */

static inline void *register_memory(const struct pair *pair, void *comm, void *data, size_t bytes,
                                    int type)
{
    void *memory = NULL;

    CHECK_SUCCESS(import_register(pair->table, comm, data, bytes, type, &memory));
    return memory; /* NULL is as good as any */
}

/* Refused, and nothing is returned. */
static inline void check_not_registered(const struct pair *pair, void *comm, void *data,
                                        size_t bytes, int type)
{
    void *memory = &memory;

    CHECK_FAILS(import_register(pair->table, comm, data, bytes, type, &memory), "regMr");
    CHECK(memory == NULL);
}

/* Until it is done; what test() says of its size. */
static inline uint64_t wait_for(const struct pair *pair, void *request)
{
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);
    uint64_t bytes = 0;
    int done = 0;

    while (done == 0 && in_time(deadline))
        CHECK_SUCCESS(import_test(pair->table, request, &done, &bytes));
    return bytes;
}

/* Its test says "not yet" for so long. */
static inline void check_pending(const struct pair *pair, void *request, unsigned ms)
{
    uint64_t deadline = deadline_after_ms(ms);
    uint64_t bytes;
    int done = 0;

    while (!deadline_passed(deadline))
        CHECK(import_test(pair->table, request, &done, &bytes) == TCPX_SUCCESS && done == 0);
}

/* --- the GPU ------------------------------------------------------------------------------- */

static int kinds = 1;
static struct gpu *gpu;
static struct gpu_stream *stream;

static inline void open_gpu(void)
{
    CHECK_SUCCESS(gpu_open(0, &gpu));
    CHECK_SUCCESS(gpu_stream_create(gpu, &stream));
}

static inline void look(gpu_address at, void *to, size_t bytes)
{
    CHECK_SUCCESS(gpu_copy_to_host(stream, to, at, bytes));
    CHECK_SUCCESS(drain(gpu, stream));
}

static inline void put(gpu_address at, const void *from, size_t bytes)
{
    CHECK_SUCCESS(gpu_copy_to_device(stream, at, from, bytes));
    CHECK_SUCCESS(drain(gpu, stream));
}

static inline gpu_address address_of(const void *pointer)
{
    return (uintptr_t)pointer;
}

/* --- buffers ------------------------------------------------------------------------------- */

static inline struct buffer make_buffer(const struct pair *pair, void *comm, size_t bytes, int kind)
{
    struct buffer buffer = {
        .bytes = (bytes + PAGE - 1) / PAGE * PAGE, .cuda = kind == GPU, .comm = comm};

    if (buffer.cuda) {
        CHECK_SUCCESS(gpu_memory_alloc(gpu, buffer.bytes, PAGE, &buffer.memory));
        buffer.at = (void *)(uintptr_t)buffer.memory.address;
    } else {
        buffer.at = malloc(buffer.bytes);
        CHECK(buffer.at != NULL);
        memset(buffer.at, 0x5A, buffer.bytes);
    }
    buffer.registered = register_memory(pair, comm, buffer.at, buffer.bytes,
                                        buffer.cuda ? NET_POINTER_CUDA : NET_POINTER_HOST);
    return buffer;
}

static inline void free_buffer(const struct pair *pair, struct buffer *buffer)
{
    CHECK_SUCCESS(import_deregister(pair->table, buffer->comm, buffer->registered));
    if (buffer->cuda)
        gpu_memory_free(gpu, &buffer->memory);
    else
        free(buffer->at);
}

static inline void *place(const struct buffer *buffer, size_t at)
{
    return (void *)((uintptr_t)buffer->at + at);
}

static inline void write_buffer(const struct buffer *buffer, size_t at, const void *from,
                                size_t bytes)
{
    if (buffer->cuda)
        put(address_of(place(buffer, at)), from, bytes);
    else
        memcpy(place(buffer, at), from, bytes);
}

static inline void read_buffer(const struct buffer *buffer, size_t at, void *to, size_t bytes)
{
    if (buffer->cuda)
        look(address_of(place(buffer, at)), to, bytes);
    else
        memcpy(to, place(buffer, at), bytes);
}

/* A pair with memory of each kind at both ends; 0: with none. */
static inline struct pair make_pair(const struct import_table *table, size_t bytes)
{
    struct pair pair = connect_pair(table);

    for (int kind = 0; kind < kinds && bytes > 0; kind++) {
        pair.from[kind] = make_buffer(&pair, pair.sender, bytes, kind);
        pair.to[kind] = make_buffer(&pair, pair.receiver, bytes, kind);
    }
    return pair;
}

/* The first one of a process. */
static inline struct pair open_pair(int version, size_t bytes)
{
    if (kinds > 1)
        open_gpu();
    return make_pair(open_table(version), bytes);
}

static inline void close_pair(struct pair *pair)
{
    for (int kind = 0; kind < kinds && pair->from[kind].comm != NULL; kind++) {
        free_buffer(pair, &pair->from[kind]);
        free_buffer(pair, &pair->to[kind]);
    }
    CHECK_SUCCESS(import_close_send(pair->table, pair->sender));
    CHECK_SUCCESS(import_close_recv(pair->table, pair->receiver));
}

static inline int try_send(const struct pair *pair, int kind, size_t at, size_t bytes,
                           void **request)
{
    const struct buffer *from = &pair->from[kind];

    return import_isend(pair->table, pair->sender, place(from, at), bytes, 5, from->registered,
                        request);
}

static inline int try_receive(const struct pair *pair, int kind, size_t at, size_t bytes,
                              void **request)
{
    const struct buffer *to = &pair->to[kind];

    return import_irecv(pair->table, pair->receiver, place(to, at), bytes, 5, to->registered,
                        request);
}

static inline void *post_send(const struct pair *pair, int kind, size_t at, size_t bytes)
{
    void *request = NULL;

    CHECK_SUCCESS(try_send(pair, kind, at, bytes, &request));
    CHECK(request != NULL);
    return request;
}

static inline void *post_receive(const struct pair *pair, int kind, size_t at, size_t bytes)
{
    void *request = NULL;

    CHECK_SUCCESS(try_receive(pair, kind, at, bytes, &request));
    CHECK(request != NULL);
    return request;
}

/* From the beginning of its memory; done at this end. */
static inline void send_whole(const struct pair *pair, int kind, size_t bytes)
{
    wait_for(pair, post_send(pair, kind, 0, bytes));
}

/* --- the queue ----------------------------------------------------------------------------- */

/* All of it is read with the GPU's addresses. */
static inline struct unpack_device_handle handle_of(const struct pair *pair)
{
    struct unpack_device_handle handle;

    CHECK(pair->on_gpu.type == NET_DEVICE_UNPACK);
    look(address_of(pair->on_gpu.handle), &handle, sizeof handle);
    return handle;
}

static struct unpack_descriptor pieces[UNPACK_MAX_DESCRIPTORS];

/* The descriptors of the oldest receive that was not consumed, into `pieces`; how many. */
static inline uint64_t read_slot(const struct pair *pair)
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

/* What a consumer does with the oldest receive; the number of bytes. */
static inline size_t unpack(const struct pair *pair, int kind, size_t at, size_t room)
{
    struct unpack_device_handle handle = handle_of(pair);
    uint64_t count = read_slot(pair);
    struct gpu_unpack_list list = {
        .bounce = address_of(handle.bounce),
        .destination = address_of(place(&pair->to[kind], at)),
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
        CHECK_SUCCESS(gpu_unpack(stream, &list, 1, PAGE));
    CHECK_SUCCESS(drain(gpu, stream));
    return bytes;
}

static inline void consume(struct pair *pair, void *request)
{
    CHECK_SUCCESS(import_consumed(pair->table, pair->receiver, request));
    pair->received++;
}

/* --- data ---------------------------------------------------------------------------------- */

static uint8_t expected[MOST + EXTRA];
static uint8_t found[MOST + EXTRA];

static inline void expect_message(uint64_t message, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        expected[i] = byte_at(message, i);
}

static inline void wipe(struct pair *pair, int kind, size_t bytes)
{
    memset(found, 0, bytes);
    write_buffer(&pair->to[kind], 0, found, bytes);
}

static inline bool is_wiped(const struct pair *pair, int kind, size_t at, size_t bytes)
{
    read_buffer(&pair->to[kind], at, found, bytes);
    for (size_t i = 0; i < bytes; i++)
        if (found[i] != 0)
            return false;
    return true;
}

/* The oldest receive, which is done, gets to where it belongs and is consumed; nothing behind. */
static inline void take(struct pair *pair, void *request, int kind, size_t at, size_t bytes,
                        size_t room)
{
    if (kind == GPU) {
        CHECK(is_wiped(pair, kind, at, bytes));
        CHECK(unpack(pair, kind, at, room) == bytes);
    } else if (kinds > 1) {
        CHECK(read_slot(pair) == 0);
    }
    read_buffer(&pair->to[kind], at, found, bytes);
    CHECK(memcmp(found, expected + at, bytes) == 0);
    CHECK(is_wiped(pair, kind, at + bytes, room - bytes));
    consume(pair, request);
}

/* Whether test() says the sizes: of the quirky plugin, only the oldest table does. */
static inline bool is_size(const struct pair *pair, uint64_t said, size_t bytes)
{
    bool says = strcmp(pair->table->name, QUIRKY_NAME) != 0 || pair->table->version == OLDEST;

    return said == (says ? bytes : IMPORT_BYTES_UNSAID);
}

/* Both ends are moved on in turns by one thread: neither can wait for the other. */
static inline void finish_two(const struct pair *pair, void *send, void *receive, size_t bytes)
{
    uint64_t deadline = deadline_after_ms(DEADLINE_MS);
    void *requests[2] = {send, receive};
    uint64_t sizes[2] = {99, 77};
    int done[2] = {0, 0};

    while ((done[0] == 0 || done[1] == 0) && in_time(deadline))
        for (int i = 0; i < 2; i++)
            if (done[i] == 0)
                CHECK_SUCCESS(import_test(pair->table, requests[i], &done[i], &sizes[i]));
    CHECK(is_size(pair, sizes[0], bytes) && is_size(pair, sizes[1], bytes));
}

static inline void exchange(struct pair *pair, int source, int target, size_t bytes,
                            uint64_t message)
{
    void *receive;

    expect_message(message, bytes);
    write_buffer(&pair->from[source], 0, expected, bytes);
    wipe(pair, target, bytes + EXTRA);
    receive = post_receive(pair, target, 0, bytes + EXTRA);
    finish_two(pair, post_send(pair, source, 0, bytes), receive, bytes);
    take(pair, receive, target, 0, bytes, bytes + EXTRA);
}

/* One message, done at both ends and not consumed; the receive. */
static inline void *move(const struct pair *pair, int source, int target, size_t bytes)
{
    void *receive = post_receive(pair, target, 0, bytes);

    send_whole(pair, source, bytes);
    wait_for(pair, receive);
    return receive;
}

/* --- what holds for both kinds of memory --------------------------------------------------- */

/*
 * Messages of every length arrive whole, on two ways, from each kind of memory to each, with their
 * sizes where the plugin says them. What goes to the GPU is left in the bounce pool, with
 * descriptors; what goes to host memory is where it belongs, and has an empty slot.
 */
CASE(data, EACH_TABLE)
{
    static const size_t lengths[] = {0,    1,      2,     15,     16,       17,     4095,
                                     4096, 4097,   8191,  65536,  100001,   524287, 524288,
                                     0,    524289, 32768, 777777, MOST - 1, MOST};
    struct pair ways[2];
    uint64_t message = 0;

    ways[0] = open_pair(version, MOST + EXTRA);
    ways[1] = make_pair(ways[0].table, MOST + EXTRA);
    for (size_t i = 0; i < COUNT_OF(lengths); i++)
        for (int way = 0; way < 2; way++)
            for (int source = 0; source < kinds; source++)
                for (int target = 0; target < kinds; target++)
                    exchange(&ways[way], source, target,
                             lengths[way == 0 ? i : COUNT_OF(lengths) - 1 - i], message++);
    for (int way = 0; way < 2; way++)
        close_pair(&ways[way]);
}

/* As many requests at once as the plugin takes; slots stay as they are until they are consumed. */
CASE(many, EACH_TABLE)
{
    struct pair pair = open_pair(version, (size_t)DEPTH * PIECE + EXTRA);
    void *sends[DEPTH];
    void *receives[DEPTH];
    int targets[DEPTH];

    for (uint64_t turn = 0; turn < 5; turn++) {
        expect_message(turn, (size_t)DEPTH * PIECE);
        for (int kind = 0; kind < kinds; kind++) {
            write_buffer(&pair.from[kind], 0, expected, (size_t)DEPTH * PIECE);
            wipe(&pair, kind, (size_t)DEPTH * PIECE);
        }
        for (size_t i = 0; i < DEPTH; i++) {
            targets[i] = (i + turn) % 3 != 0 ? kinds - 1 : HOST;
            receives[i] = post_receive(&pair, targets[i], i * PIECE, PIECE);
            sends[i] = post_send(&pair, (int)i % kinds, i * PIECE, PIECE - i);
        }
        for (size_t i = 0; i < DEPTH; i++)
            wait_for(&pair, sends[i]);
        for (size_t i = 0; i < DEPTH; i++)
            CHECK(is_size(&pair, wait_for(&pair, receives[i]), PIECE - i));
        for (size_t i = 0; i < DEPTH; i++)
            take(&pair, receives[i], targets[i], i * PIECE, PIECE - i, PIECE);
    }
    close_pair(&pair);
}

/* The oldest request is tested, until it is done and not again. */
CASE(order_of_tests, EACH_QUIRKY_TABLE)
{
    struct pair pair = open_pair(version, PAGE);
    void *receives[2] = {post_receive(&pair, kinds - 1, 0, 10), post_receive(&pair, HOST, 0, 10)};
    void *sends[2] = {post_send(&pair, kinds - 1, 0, 10), post_send(&pair, HOST, 0, 10)};
    uint64_t bytes = 77;
    int done = 77;

    CHECK_FAILS(import_test(pair.table, sends[1], &done, &bytes), "test");
    CHECK(done == 0 && bytes == 77);
    CHECK(is_size(&pair, wait_for(&pair, sends[0]), 10));
    CHECK(import_test(pair.table, sends[0], &done, &bytes) == TCPX_SUCCESS && done == 0);
    wait_for(&pair, sends[1]);
    CHECK_FAILS(import_test(pair.table, receives[1], &done, &bytes), "test");
    wait_for(&pair, receives[0]);
    for (int i = 0; i < 10; i++) /* said once is enough */
        CHECK(import_test(pair.table, receives[0], &done, &bytes) == TCPX_SUCCESS && done == 0);
    wait_for(&pair, receives[1]);
}

/* The 17th request is an error. */
CASE(too_many, EACH_QUIRKY_TABLE)
{
    struct pair pair = open_pair(version, PIECE);
    void *request = &request;

    for (int i = 0; i < DEPTH; i++) {
        post_send(&pair, i % kinds, 0, 1);
        post_receive(&pair, i % kinds, 0, 1);
    }
    for (int kind = 0; kind < kinds; kind++) {
        CHECK_FAILS(try_send(&pair, kind, 0, 1, &request), "isend");
        CHECK(request == NULL);
        CHECK_FAILS(try_receive(&pair, kind, 0, 1, &request), "irecv");
        CHECK(request == NULL);
    }
    CHECK_FAILS(import_isend(pair.table, pair.sender, pair.from[HOST].at, 1, 0, NULL, &request),
                "isend");
}

/* Bytes move inside test() only, at either end, and nobody loses patience. */
CASE(progress, EACH_QUIRKY_TABLE)
{
    struct pair pair = open_pair(version, PAGE);
    unsigned pages = counts_of(version)->free_pages;
    void *receive;
    void *send;

    wipe(&pair, kinds - 1, PAGE);
    receive = post_receive(&pair, kinds - 1, 0, PAGE);
    send = post_send(&pair, kinds - 1, 0, PAGE);
    check_pending(&pair, receive, 100); /* and there is no deadline */
    wait_for(&pair, send);
    usleep(100000);
    CHECK(is_wiped(&pair, kinds - 1, 0, PAGE)); /* it has long arrived */
    CHECK(counts_of(version)->free_pages == pages);
    wait_for(&pair, receive);
    if (kinds > 1)
        CHECK(counts_of(version)->free_pages < pages);
    else
        CHECK(*(uint8_t *)pair.to[HOST].at == 0x5A);
}

/* A sender that closes when it is done takes with it what has arrived and was not looked at. */
CASE(early_close, EACH_QUIRKY_TABLE)
{
    struct pair pair = open_pair(version, PIECE);
    void *receive = post_receive(&pair, kinds - 1, 0, PIECE);
    uint64_t bytes;
    int done;

    send_whole(&pair, kinds - 1, PIECE);
    CHECK_SUCCESS(import_close_send(pair.table, pair.sender));
    CHECK_FAILS_WITH(import_test(pair.table, receive, &done, &bytes), TCPX_SYSTEM_ERROR, "test");
    CHECK_SUCCESS(import_close_recv(pair.table, pair.receiver));
}

/* Without a loader that knows the size of its chunks it cannot send, and it does not start twice.
 */
CASE(no_chunk, EACH_QUIRKY_TABLE)
{
    struct import_table table = {0};
    struct pair pair;
    void *request;

    unsetenv(chunk_variable);
    if (kinds > 1)
        open_gpu();
    load_first(version, &table);
    CHECK_SUCCESS(import_table_init(&table));
    CHECK((table.context != NULL) == (table.version >= 11));
    pair = make_pair(&table, PAGE);
    CHECK_FAILS(try_send(&pair, kinds - 1, 0, 1, &request), "isend");
    close_pair(&pair);
    CHECK_FAILS(import_table_init(&table), "init"); /* a second start */
    import_table_finalize(&table);
    CHECK(counts_of(version)->finalizes == (table.version >= 11 ? 1 : 0));
    CHECK(table.context == NULL);
}

static void send_to_dead_peer(int version)
{
    struct pair pair = open_pair(version, PIECE);

    CHECK_SUCCESS(import_close_recv(pair.table, pair.receiver));
    for (int i = 0; i < 3; i++)
        send_whole(&pair, kinds - 1, PIECE);
}

/* A dead peer is a signal. */
TEST(test_dead_peer)
{
    int status = child_wait(drive_fork(send_to_dead_peer, UNPACKING));

    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGPIPE);
}

#endif
