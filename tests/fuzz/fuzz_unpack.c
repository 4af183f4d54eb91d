/*
 * Fuzzes the unpack engines on the emulated GPU. An input is a way to unpack and lists of fragments
 * with gaps between their destinations; the result is compared with memcpy(), and every byte that
 * no fragment covers must be as it was.
 */
#include "tests/fuzz/fuzz.h"

#include "base/clock.h"
#include "unpack/unpack.h"

enum { POOL = 1 << 16, TARGET = 1 << 17, FRAGMENTS = 512, LISTS = 40, POISON = 0xc3 };

/* A list ends where bit 0 of `flags` is set; bit 1: right behind the last source. */
struct record {
    uint8_t flags;
    uint8_t gap;
    uint16_t source;
    uint16_t length;
} __attribute__((packed));

static struct gpu *gpu;
static struct unpack_engine *engines[UNPACK_KERNEL + 1];
static struct gpu_memory pool;
static struct gpu_pinned pinned_pool;
static struct gpu_memory target;
static struct gpu_pinned descriptors;
static struct gpu_pinned arrived;
static uint8_t expected[TARGET];

#define MUST(call) PROMISE((call) == TCPX_SUCCESS)

static void drain(struct gpu_stream *stream)
{
    struct gpu_event *event;

    MUST(gpu_event_create(gpu, &event));
    MUST(gpu_event_record(event, stream));
    MUST(gpu_event_wait(event, deadline_after_ms(60000)));
    gpu_event_destroy(event);
}

static void set_up(void)
{
    setenv("UCCL_TCPX_GPU", "host", 1);
    MUST(gpu_open(0, &gpu));
    MUST(gpu_memory_alloc(gpu, POOL, 4096, &pool));
    MUST(gpu_pinned_alloc(gpu, POOL, &pinned_pool));
    MUST(gpu_memory_alloc(gpu, TARGET, 4096, &target));
    MUST(gpu_pinned_alloc(gpu, FRAGMENTS * sizeof(struct unpack_descriptor), &descriptors));
    MUST(gpu_pinned_alloc(gpu, TARGET, &arrived));
    for (int impl = UNPACK_AUTO; impl <= UNPACK_KERNEL; impl++)
        MUST(unpack_create_as(gpu, impl, &engines[impl]));
    for (uint32_t i = 0; i < POOL; i++)
        ((uint8_t *)pinned_pool.host)[i] = (uint8_t)(i * 167 + i / 256);
    MUST(gpu_copy_to_device(unpack_stream(engines[0]), pool.address, pinned_pool.host, POOL));
    drain(unpack_stream(engines[0]));
}

/* Writes descriptors and the expected result; returns the number of lists. */
static uint32_t read_lists(const uint8_t *data, size_t size, bool pinned, struct unpack_list *lists)
{
    struct unpack_descriptor *all = descriptors.host;
    uint32_t list_count = 0;
    uint32_t used = 0;
    uint32_t first = 0;
    uint64_t to = 0;
    uint32_t from = 0;
    struct record record;

    for (; size >= sizeof record && used < FRAGMENTS && list_count < LISTS;
         data += sizeof record, size -= sizeof record) {
        uint32_t length;

        memcpy(&record, data, sizeof record);
        if ((record.flags & 2) == 0 || from == POOL)
            from = record.source;
        length = record.length % (POOL - from + 1u);
        to += record.gap % 16;
        if (to + length > TARGET)
            break;
        all[used++] = (struct unpack_descriptor){
            .source_offset = from, .length = length, .destination_offset = to};
        memcpy(expected + to, (uint8_t *)pinned_pool.host + from, length);
        to += length;
        from += length;
        if (record.flags & 1 || used == FRAGMENTS || size < 2 * sizeof record) {
            lists[list_count++] =
                (struct unpack_list){.bounce = pinned ? pinned_pool.device : pool.address,
                                     .bounce_host = pinned ? pinned_pool.host : NULL,
                                     .destination = target.address,
                                     .descriptors = all + first,
                                     .descriptors_device = descriptors.device + first * sizeof *all,
                                     .count = used - first};
            first = used;
        }
    }
    /* what a list without an end has put down is not unpacked */
    for (uint32_t i = first; i < used; i++)
        memset(expected + all[i].destination_offset, POISON, all[i].length);
    return list_count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct unpack_list lists[LISTS];
    struct unpack_engine *engine;
    uint32_t list_count;
    uint64_t ticket;

    if (size < 1)
        return 0;
    if (gpu == NULL)
        set_up();
    memset(expected, POISON, sizeof expected);
    engine = engines[data[0] & 3];
    list_count = read_lists(data + 1, size - 1, data[0] & 4, lists);
    MUST(gpu_set(unpack_stream(engine), target.address, POISON, TARGET));
    MUST(unpack_submit(engine, lists, list_count, data[0] & 8, &ticket));
    MUST(unpack_wait(engine, ticket, deadline_after_ms(60000)));
    MUST(gpu_copy_to_host(unpack_stream(engine), arrived.host, target.address, TARGET));
    drain(unpack_stream(engine));
    PROMISE(memcmp(arrived.host, expected, TARGET) == 0);
    return 0;
}
