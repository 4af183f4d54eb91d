/*
 * The plugin with GPU memory, in the modes cuda and unpack. It plays NCCL's kernels where they
 * unpack: it knows only the device handle, counts receives by the head, reads queue and bounce
 * memory through the GPU, and puts every fragment where a kernel would. Every byte is checked.
 * With UCCL_TCPX_TIMEOUT_MS=1000 it is only about programs that make no call for longer than that.
 */
#include "tests/plugin/plugin_test.h"
#include "tests/spinning_kernel.h"
#include "tests/support/cuda_memory.h"

enum { MOST = 4 << 20, DEPTH = 16, MARGIN_GPU = 64, SLOT = MOST + 4096 };

enum { FROM_BYTES = TEXT_LONGEST + TEXT_STARTS, TO_BYTES = DEPTH * SLOT, WINDOW = 8 << 20 };

/* Addresses of GPU memory, at whole pages as those of NCCL's buffers. */
static uint64_t from; /* one text: messages are pieces of it, by their number */
static uint64_t to;   /* DEPTH slots */

static struct cuda_pinned window;

static void *cuda_pointer(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* What is there now; in the window, until the next look. */
static const uint8_t *cuda_look(uint64_t at, size_t bytes)
{
    assert_true(bytes <= WINDOW);
    cuda_read(window.host, at, bytes);
    return window.host;
}

static void mark(uint64_t at, size_t bytes)
{
    cuda_fill(at, MARK, bytes);
    cuda_drain();
}

static bool unpacks(const struct plugin *plugin)
{
    return mode_is("unpack") && plugin->version >= 7;
}

/* --- a comm and its kernel ------------------------------------------------------------------- */

struct kernel {
    struct nccl_unpack_handle handle;
    uint64_t head;
};

struct gpu_pair {
    struct pair pair;
    struct nccl_device_handle device;
    struct kernel kernel;
    void *send_memory;
    void *receive_memory;
    uint64_t posted;
};

static void gpu_pair_open(struct gpu_pair *gpu, const struct plugin *plugin)
{
    void *ignored = NULL;

    *gpu = (struct gpu_pair){.device = {.type = NCCL_DEVICE_UNPACK, .version = 7}};
    pair_listen(&gpu->pair, plugin, plugin);
    if (unpacks(plugin))
        gpu->pair.devices[1] = &gpu->device;
    pair_meet(&gpu->pair);
    assert_works(plugin_reg(plugin, gpu->pair.sender, cuda_pointer(from), FROM_BYTES, NCCL_PTR_CUDA,
                            &gpu->send_memory));
    assert_works(plugin_reg(plugin, gpu->pair.receiver, cuda_pointer(to), TO_BYTES, NCCL_PTR_CUDA,
                            &gpu->receive_memory));
    assert_works(plugin_device_mr(plugin, gpu->pair.receiver, gpu->receive_memory, &ignored));
    if (!unpacks(plugin))
        return;
    assert_non_null(gpu->device.handle);
    memcpy(&gpu->kernel.handle, cuda_look((uintptr_t)gpu->device.handle, 24), 24);
    gpu->kernel.head = gpu->kernel.handle.head;
}

static void gpu_pair_close(struct gpu_pair *gpu)
{
    const struct plugin *plugin = gpu->pair.from;

    assert_works(plugin->table->dereg_mr(gpu->pair.sender, gpu->send_memory));
    assert_works(plugin->table->dereg_mr(gpu->pair.receiver, gpu->receive_memory));
    pair_close(&gpu->pair);
}

/* Where receive k goes, and its bytes before that. */
static uint64_t slot_of(uint64_t receive)
{
    return to + receive % DEPTH * SLOT;
}

static void *post_unmarked(struct gpu_pair *gpu, size_t room)
{
    return start_receive_of(&gpu->pair, cuda_pointer(slot_of(gpu->posted++)), (int64_t)room,
                            gpu->receive_memory);
}

static void *post(struct gpu_pair *gpu, size_t room)
{
    mark(slot_of(gpu->posted), room + MARGIN_GPU);
    return post_unmarked(gpu, room);
}

static void *send_from_gpu(struct gpu_pair *gpu, uint64_t number, size_t bytes)
{
    uint64_t at = from + (uint64_t)(text_of(number) - text_of(0));

    return start_send_of(&gpu->pair, cuda_pointer(at), (int64_t)bytes, gpu->send_memory);
}

/* Descriptors cover every byte of the message once, in any order. */
static void assert_tiles(const struct nccl_unpack_entry *entries, uint64_t count, size_t bytes)
{
    size_t covered = 0;

    for (uint64_t i = 0; i < count; i++) {
        assert_true(entries[i].length > 0);
        assert_true(entries[i].destination_offset + entries[i].length <= bytes);
        covered += entries[i].length;
        for (uint64_t k = 0; k < i && count < 100; k++)
            assert_true(entries[i].destination_offset >=
                            entries[k].destination_offset + entries[k].length ||
                        entries[k].destination_offset >=
                            entries[i].destination_offset + entries[i].length);
    }
    assert_int_equal(covered, bytes);
}

/*
 * As NCCL's kernels: the head goes up first, and its slot is the receive's. The fragments go to
 * where the receive goes, or to `seen` in host memory. Returns how many there were.
 */
static uint64_t unpack_next(struct gpu_pair *gpu, uint64_t receive, size_t bytes, uint8_t *seen)
{
    enum { MOST_ENTRIES = 2048 };
    static struct nccl_unpack_entry entries[MOST_ENTRIES];
    const struct nccl_unpack_meta *meta = gpu->kernel.handle.meta; /* an address of the GPU */
    uint64_t slot = ++gpu->kernel.head % DEPTH;
    uint64_t count;

    assert_int_equal(slot, receive % DEPTH);
    memcpy(&count, cuda_look((uintptr_t)&meta->counts[slot], sizeof count), sizeof count);
    assert_in_range(count, 0, MOST_ENTRIES);
    if (count == 0)
        return 0;
    memcpy(entries, cuda_look((uintptr_t)meta->entries[slot], count * sizeof *entries),
           count * sizeof *entries);
    assert_tiles(entries, count, bytes);
    for (uint64_t i = 0; i < count; i++) {
        const struct nccl_unpack_entry *entry = &entries[i];
        uint64_t fragment = (uintptr_t)gpu->kernel.handle.bounce + entry->source_offset;

        if (seen != NULL)
            memcpy(seen + entry->destination_offset, cuda_look(fragment, entry->length),
                   entry->length);
        else
            cuda_copy(slot_of(receive) + entry->destination_offset, fragment, entry->length);
    }
    cuda_drain();
    return count;
}

/* Receive k has the message, and nothing behind it was touched. */
static void assert_arrived(uint64_t receive, uint64_t number, size_t bytes, size_t room)
{
    const uint8_t *seen = cuda_look(slot_of(receive), room + MARGIN_GPU);

    if (memcmp(seen, text_of(number), bytes) != 0)
        fail_msg("receive %d of %zu bytes is wrong", (int)receive, bytes);
    if (!all_marked(seen + bytes, room + MARGIN_GPU - bytes))
        fail_msg("bytes behind receive %d of %zu bytes were written", (int)receive, bytes);
}

/* What was received goes to where NCCL's next kernel would read it, and is consumed. */
static void take(struct gpu_pair *gpu, void *request, uint64_t receive, uint64_t number,
                 size_t bytes, size_t room)
{
    if (unpacks(gpu->pair.to))
        unpack_next(gpu, receive, bytes, NULL);
    assert_arrived(receive, number, bytes, room);
    consume(&gpu->pair, request);
}

/* One message from GPU to GPU, with a flush. */
static void move_on_gpu(struct gpu_pair *gpu, uint64_t number, size_t bytes, size_t room)
{
    uint64_t receive = gpu->posted;
    void *receiving = post(gpu, room);
    void *flush = (void *)1;

    assert_int_equal(finish_both(&gpu->pair, send_from_gpu(gpu, number, bytes), receiving), bytes);
    assert_works(plugin_iflush(gpu->pair.to, gpu->pair.receiver, cuda_pointer(slot_of(receive)),
                               (int)room, gpu->receive_memory, &flush));
    assert_null(flush);
    take(gpu, receiving, receive, number, bytes, room);
}

/* The same as PAIR_CASE(), with memory of the GPU at both ends. */
#define GPU_CASE(name, versions) OPENED_CASE(gpu_pair, gpu, name, versions)

/* --- tests ----------------------------------------------------------------------------------- */

/* Every size, in a buffer that fits and one that is larger; more receives than there are slots. */
GPU_CASE(sizes_on_the_gpu, ALL_VERSIONS)
{
    static const size_t sizes[] = {0,    1,    2,    15,    16,    17,    127,    128,     129,
                                   4095, 4096, 4097, 65535, 65536, 65537, 131072, 1048576, MOST};

    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        for (size_t more = 0; more <= 3000; more += 3000)
            if (sizes[i] + more <= MOST)
                move_on_gpu(gpu, i, sizes[i], sizes[i] + more);
}

/* The head begins at -1, the bounce memory is aligned and the same for all comms of a GPU. */
VERSIONS_CASE(what_kernels_start_with, WITH_QUEUE | IN_UNPACK_MODE)
{
    struct gpu_pair gpus[3];

    for (int i = 0; i < 3; i++) {
        gpu_pair_open(&gpus[i], plugin);
        assert_true(gpus[i].kernel.head == UINT64_MAX);
        assert_int_equal((uintptr_t)gpus[i].kernel.handle.bounce % 16, 0);
        assert_int_equal((uintptr_t)gpus[i].kernel.handle.meta % 16, 0);
        assert_ptr_equal(gpus[i].kernel.handle.bounce, gpus[0].kernel.handle.bounce);
        for (int k = 0; k < i; k++)
            assert_ptr_not_equal(gpus[i].kernel.handle.meta, gpus[k].kernel.handle.meta);
    }
    for (int i = 0; i < 3; i++)
        move_on_gpu(&gpus[i], (uint64_t)i, 100000, 100000);
    for (int i = 0; i < 3; i++)
        gpu_pair_close(&gpus[i]);
}

/* What NCCL receives into host memory is there already: the count of its slot says so. */
GPU_CASE(host_memory_is_in_place, ALL_VERSIONS)
{
    static uint8_t buffer[50000];

    for (uint64_t i = 0; i < 40; i++) {
        size_t bytes = i % 4 == 0 ? 0 : i % 4 == 1 ? 100 : sizeof buffer;

        if (i % 4 == 3) {
            move_on_gpu(gpu, i, bytes, bytes);
            continue;
        }
        /* move_message() consumes, and the slot stays as it is until its next receive */
        move_message(&gpu->pair, i, bytes, buffer, sizeof buffer);
        gpu->posted++;
        if (unpacks(plugin))
            assert_int_equal(unpack_next(gpu, i, bytes, NULL), 0);
    }
}

/* Host to GPU and GPU to host, as with NCCL_NET_GDR_READ=0. */
GPU_CASE(one_end_on_the_gpu, ALL_VERSIONS)
{
    static uint8_t buffer[300000];
    const struct pair *pair = &gpu->pair;

    for (uint64_t i = 0; i < 20; i++) {
        size_t bytes = i % 2 == 0 ? 700 : sizeof buffer;
        uint64_t receive = gpu->posted;
        void *receiving = post(gpu, bytes);
        void *sending = start_send(pair, text_of(i), (int64_t)bytes);

        assert_int_equal(finish_both(pair, sending, receiving), bytes);
        take(gpu, receiving, receive, i, bytes, bytes);

        memset(buffer, 0, sizeof buffer);
        receiving = start_receive(pair, buffer, (int64_t)bytes);
        gpu->posted++;
        sending = send_from_gpu(gpu, i + 1, bytes);
        assert_int_equal(finish_both(pair, sending, receiving), bytes);
        assert_memory_equal(buffer, text_of(i + 1), bytes);
        if (unpacks(plugin))
            assert_int_equal(unpack_next(gpu, receive + 1, bytes, NULL), 0);
        consume(pair, receiving);
    }
}

/* Eight at a time, as NCCL has them; what is unpacked late is still there until it is consumed. */
GPU_CASE(eight_at_a_time, ALL_VERSIONS)
{
    enum { MESSAGES = 120, AHEAD = 8, ROOM = 200000 };
    void *receives[AHEAD];
    void *sends[AHEAD];
    size_t sizes[AHEAD];
    uint64_t seed = 99;

    for (uint64_t done = 0; done < MESSAGES; done += AHEAD) {
        for (uint64_t i = 0; i < AHEAD; i++) {
            sizes[i] = (random_next(&seed) >> 32) % (ROOM + 1);
            receives[i] = post(gpu, ROOM);
            sends[i] = send_from_gpu(gpu, done + i, sizes[i]);
        }
        for (uint64_t i = 0; i < AHEAD; i++)
            assert_int_equal(finish_both(&gpu->pair, sends[i], receives[i]), sizes[i]);
        for (uint64_t i = 0; i < AHEAD; i++) {
            if (unpacks(plugin))
                unpack_next(gpu, done + i, sizes[i], NULL);
            assert_arrived(done + i, done + i, sizes[i], ROOM);
        }
        for (uint64_t i = 0; i < AHEAD; i++)
            consume(&gpu->pair, receives[i]);
    }
}

/* A message that does not fit leaves the GPU's memory alone. */
VERSIONS_CASE(too_long_for_the_gpu, ALL_VERSIONS)
{
    for (size_t bytes = 2000; bytes <= 200000; bytes += 198000) {
        size_t marked = bytes + MARGIN_GPU - 1;
        struct gpu_pair gpu;
        void *receive;

        gpu_pair_open(&gpu, plugin);
        receive = post(&gpu, bytes - 1);
        finish_too_long(&gpu.pair, send_from_gpu(&gpu, 5, bytes), receive);
        assert_true(all_marked(cuda_look(slot_of(0), marked), marked));
        gpu_pair_close(&gpu);
    }
}

/* Host memory under the name of GPU memory is refused, or is what it is. */
PAIR_CASE(host_memory_by_another_name, ALL_VERSIONS)
{
    static uint8_t host[8192] __attribute__((aligned(4096)));
    uint8_t buffer[1000];
    void *memory = NULL;
    void *receive;
    void *send = NULL;

    memcpy(host, text_of(3), sizeof host);
    if (plugin_reg(plugin, pair->sender, host, sizeof host, NCCL_PTR_CUDA, &memory) ==
        NCCL_SUCCESS) {
        receive = start_receive(pair, buffer, sizeof buffer);
        assert_works(plugin_isend(plugin, pair->sender, host, sizeof buffer, 0, memory, &send));
        assert_int_equal(finish_both(pair, send, receive), sizeof buffer);
        assert_memory_equal(buffer, host, sizeof buffer);
        assert_works(plugin->table->dereg_mr(pair->sender, memory));
    }
}

/* Many registrations at a time, and a comm may end with all of them. */
PAIR_CASE(registrations, ALL_VERSIONS)
{
    void *memory[50];

    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < 50; i++)
            assert_works(plugin_reg(plugin, i % 2 == 0 ? pair->sender : pair->receiver,
                                    cuda_pointer(to + (uint64_t)i * 4096), 4096, NCCL_PTR_CUDA,
                                    &memory[i]));
        for (int i = 0; turn < 2 && i < 50; i++)
            assert_works(
                plugin->table->dereg_mr(i % 2 == 0 ? pair->sender : pair->receiver, memory[i]));
    }
}

/* Closing with GPU memory in flight returns soon, and the buffer is not written afterwards. */
VERSIONS_CASE(close_with_gpu_requests_in_flight, ALL_VERSIONS)
{
    for (int turn = 0; turn < 6; turn++) {
        struct gpu_pair gpu;

        gpu_pair_open(&gpu, plugin);
        for (int i = 0; turn % 3 != 0 && i < 8; i++)
            (void)post(&gpu, 300000);
        for (uint64_t i = 0; turn % 3 != 1 && i < 8; i++)
            (void)send_from_gpu(&gpu, i, 300000);
        pair_close_at_once(&gpu.pair, turn < 3);
        mark(to, 8 * (size_t)SLOT);
        nap_ms(5);
        for (uint64_t i = 0; i < 8; i++)
            assert_true(all_marked(cuda_look(slot_of(i), 300000), 300000));
    }
}

/* --- a kernel that waits --------------------------------------------------------------------- */

static struct spinner spinner;

/*
 * A message beside a kernel that spins and another that is queued behind it. One byte is the
 * exception: it may wait for the kernels, and comes when they have ended.
 */
static void move_beside_a_kernel(struct gpu_pair *gpu, uint64_t number, size_t bytes)
{
    static uint8_t fragments[MOST];
    uint64_t receive = gpu->posted;
    const uint8_t *seen = fragments;
    void *receiving;
    void *sending;

    mark(slot_of(receive), bytes + MARGIN_GPU);
    assert_true(spinner_start(&spinner));
    receiving = post_unmarked(gpu, bytes);
    sending = send_from_gpu(gpu, number, bytes);
    if (bytes == 1)
        assert_true(spinner_stop(&spinner));
    assert_int_equal(finish_both(&gpu->pair, sending, receiving), bytes);
    if (bytes == 1) {
        take(gpu, receiving, receive, number, bytes, bytes);
        return;
    }
    if (unpacks(gpu->pair.to))
        unpack_next(gpu, receive, bytes, fragments);
    else
        seen = cuda_look(slot_of(receive), bytes);
    assert_memory_equal(seen, text_of(number), bytes);
    if (!spinner_still_spins(&spinner))
        fail_msg("a message of %zu bytes came when the kernel had ended", bytes);
    assert_true(spinner_stop(&spinner));
    consume(&gpu->pair, receiving);
}

/*
 * NCCL's kernels spin until their bytes are there, and the next ones are queued behind them: what
 * the plugin does on the GPU must not wait for either.
 */
VERSIONS_CASE(kernels_that_wait, ALL_VERSIONS)
{
    static const size_t sizes[] = {8,     2,     3,     4,     7,      1000,    4095, 4096, 16384,
                                   32767, 32768, 65535, 65537, 131073, 1048577, MOST, 1};
    struct gpu_pair gpu;

    if (!spinner_has_one_channel())
        skip_because("it needs CUDA_DEVICE_MAX_CONNECTIONS=1");
    assert_true(spinner_open(&spinner));
    gpu_pair_open(&gpu, plugin);
    move_on_gpu(&gpu, 0, 1000, 1000); /* what is made at the first use is there, as in NCCL */
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        move_beside_a_kernel(&gpu, i + 1, sizes[i]);
    gpu_pair_close(&gpu);
    spinner_close(&spinner);
}

/* --- programs that are late ------------------------------------------------------------------ */

enum { LATE_MESSAGES = 4, LATE_BYTES = 1 << 20, LATE_ROOM = 100000 };

static struct gpu_pair late_receivers[LAST_VERSION + 1];
static struct gpu_pair late_senders[LAST_VERSION + 1];
static void *late_receives[LAST_VERSION + 1][LATE_MESSAGES];

/* Sends from GPU memory that are done before their receives, and receives before their sends. */
static void begin_late(int version)
{
    struct gpu_pair *gpu = &late_receivers[version];

    gpu_pair_open(gpu, &plugins[version]);
    for (uint64_t i = 0; i < LATE_MESSAGES; i++)
        finish_both(&gpu->pair, send_from_gpu(gpu, i, LATE_BYTES), NULL);
    gpu = &late_senders[version];
    gpu_pair_open(gpu, &plugins[version]);
    for (int i = 0; i < LATE_MESSAGES; i++)
        late_receives[version][i] = post(gpu, LATE_ROOM);
}

static void send_late(int version)
{
    struct gpu_pair *gpu = &late_senders[version];

    for (uint64_t i = 0; i < LATE_MESSAGES; i++) {
        uint64_t number = 10 * (uint64_t)version + i;
        void *send = send_from_gpu(gpu, number, LATE_ROOM);

        assert_int_equal(finish_both(&gpu->pair, send, late_receives[version][i]), LATE_ROOM);
        take(gpu, late_receives[version][i], i, number, LATE_ROOM, LATE_ROOM);
    }
    gpu_pair_close(gpu);
}

static void receive_late(int version)
{
    struct gpu_pair *gpu = &late_receivers[version];

    for (uint64_t i = 0; i < LATE_MESSAGES; i++) {
        void *receive = post(gpu, LATE_BYTES);

        assert_int_equal(finish_both(&gpu->pair, NULL, receive), LATE_BYTES);
        take(gpu, receive, i, i, LATE_BYTES, LATE_BYTES);
    }
    gpu_pair_close(gpu);
}

TEST_OF(test_late_programs, WHEN_LATE)
{
    be_late(begin_late, send_late);
    for (int version = FIRST_VERSION; version <= LAST_VERSION; version++)
        receive_late(version);
}

/* --- beginning and end ----------------------------------------------------------------------- */

static uint64_t alloc_pages(size_t bytes)
{
    enum { PAGE = 65536 };

    return (cuda_alloc(bytes + PAGE) + PAGE - 1) / PAGE * PAGE;
}

/* The first GPU is current in this thread, as in NCCL's proxy; its memory goes with the process. */
static int set_up(void)
{
    if (!cuda_start()) {
        fprintf(stderr, "there is no GPU\n");
        return -1;
    }
    cuda_enter();
    cuda_pin(WINDOW, &window);
    from = alloc_pages(FROM_BYTES);
    to = alloc_pages(TO_BYTES);
    cuda_write(from, text_of(0), FROM_BYTES);
    cuda_drain();
    return load_all();
}

static int begin_suite(void)
{
    if (mode_is("host")) {
        fprintf(stderr, "UCCL_TCPX_PLUGIN_MODE is neither cuda nor unpack\n");
        return 1;
    }
    return stay_on_loopback();
}

SUITE(.name = "plugin gpu", .begin = begin_suite, .set_up = set_up, .tear_down = unload_all,
      .wants = plugin_wants);
