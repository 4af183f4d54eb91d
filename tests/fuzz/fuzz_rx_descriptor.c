/*
 * Fuzzes the descriptor builder. An input is a request and a scatter list of short records, taken
 * as they are or chained so that they tile a message. The promises of descriptors.h are checked,
 * and a broken one ends the program.
 */

#include "tests/fuzz/fuzz.h"

#include "net/devmem/descriptors.h"

#define MAX_FRAGMENTS 256

/* The inputs of the corpus have bytes at the unused places, too. */
struct settings {
    uint8_t mode; /* bits: 0 chain, 2 large units, 3 reverse */
    uint8_t capacity;
    uint16_t unused;
    uint32_t message_delta;
    uint32_t unused_too;
    uint32_t pool_size;
    uint32_t host_size;
    uint32_t unused_as_well;
} __attribute__((packed));

struct record {
    uint8_t kind;
    uint16_t length;
    uint32_t source;
    uint32_t destination;
} __attribute__((packed));

static struct scatter_fragment fragments[MAX_FRAGMENTS];

/* Without scatter_list_add(), which would keep empty fragments out. */
static uint64_t read_list(const struct settings *settings, const uint8_t *data, size_t size,
                          struct scatter_list *scatter)
{
    unsigned int shift = settings->mode & 4 ? 20 : 0;
    uint64_t end = 0;
    uint64_t source_end = 0;
    struct record record;

    for (; size >= sizeof record && scatter->count < MAX_FRAGMENTS;
         data += sizeof record, size -= sizeof record) {
        struct scatter_fragment *fragment = &fragments[scatter->count++];

        memcpy(&record, data, sizeof record);
        *fragment = (struct scatter_fragment){
            .source = record.kind & 1 ? SCATTER_HOST : SCATTER_POOL,
            .length = (uint64_t)record.length << shift,
            .source_offset = (uint64_t)record.source << shift,
            .destination_offset = (uint64_t)record.destination << shift,
        };
        if (settings->mode & 1)
            fragment->destination_offset = end;
        if (record.kind & 2)
            fragment->source_offset = source_end;
        if (record.kind & 4)
            fragment->source_offset = UINT64_MAX - record.source;
        if (record.kind & 8)
            fragment->destination_offset = UINT64_MAX - record.destination;
        end += fragment->length;
        source_end = fragment->source_offset + fragment->length;
    }
    return end;
}

static void reverse_list(struct scatter_list *scatter)
{
    for (uint32_t i = 0; i < scatter->count / 2; i++) {
        struct scatter_fragment swap = fragments[i];

        fragments[i] = fragments[scatter->count - 1 - i];
        fragments[scatter->count - 1 - i] = swap;
    }
}

/* Whether the list tiles the message in order, from inside its buffers, in 32 bits. */
static bool is_good(const struct scatter_list *scatter, const struct scatter_sizes *sizes)
{
    uint64_t end = 0;

    for (uint32_t i = 0; i < scatter->count; i++) {
        const struct scatter_fragment *one = &fragments[i];
        uint64_t size = one->source == SCATTER_HOST ? sizes->host : sizes->pool;

        if (one->length == 0 || one->destination_offset != end || one->length > size ||
            one->source_offset > size - one->length || one->length > sizes->message - end)
            return false;
        if (one->source == SCATTER_POOL &&
            (one->source_offset > UINT32_MAX || one->length > UINT32_MAX))
            return false;
        end += one->length;
    }
    return end == sizes->message;
}

/* The fewest descriptors: one more wherever the source does not go on, or 4 GiB are reached. */
static uint32_t count_runs(const struct scatter_list *scatter)
{
    uint32_t count = 0;
    uint64_t length = 0; /* of the run; 0: there is none to go on with */

    for (uint32_t i = 0; i < scatter->count; i++) {
        const struct scatter_fragment *one = &fragments[i];

        if (one->source == SCATTER_HOST) {
            length = 0;
            continue;
        }
        if (length == 0 || one->source_offset != one[-1].source_offset + one[-1].length ||
            length + one->length > UINT32_MAX) {
            count++;
            length = 0;
        }
        length += one->length;
    }
    return count;
}

/* Each fragment, byte by byte from its first to its last, is where one descriptor says. */
static void check_descriptors(const struct scatter_list *scatter,
                              const struct unpack_descriptor *descriptors, uint32_t count)
{
    uint32_t cursor = 0;
    uint32_t at = 0;
    uint64_t done = 0; /* of descriptor `at` */

    for (uint32_t i = 0; i < scatter->count; i++) {
        const struct scatter_fragment *one = &fragments[i];

        if (one->source == SCATTER_HOST) {
            PROMISE(scatter_list_next_host(scatter, &cursor) == one);
            continue;
        }
        PROMISE(at < count);
        PROMISE(one->source_offset == descriptors[at].source_offset + done);
        PROMISE(one->destination_offset == descriptors[at].destination_offset + done);
        done += one->length;
        PROMISE(done <= descriptors[at].length);
        if (done == descriptors[at].length) {
            done = 0;
            at++;
        }
    }
    PROMISE(at == count && done == 0);
    PROMISE(scatter_list_next_host(scatter, &cursor) == NULL);
}

static void check_build(const struct scatter_list *scatter, const struct scatter_sizes *sizes,
                        uint32_t capacity)
{
    /* Exactly as large as allowed, so that ASan sees a write beyond; 16-byte aligned. */
    struct unpack_descriptor *descriptors = aligned_alloc(16, (capacity + 1) * sizeof *descriptors);
    struct unpack_descriptor *first = descriptors + 1;
    uint32_t count = 0xabcdef;
    bool fits = is_good(scatter, sizes) && count_runs(scatter) <= capacity;
    int result;

    PROMISE(descriptors != NULL);
    memset(descriptors, 0x77, (capacity + 1) * sizeof *descriptors);
    result = descriptors_build(scatter, sizes, first, capacity, &count);

    PROMISE((result == TCPX_SUCCESS) == fits);
    PROMISE(descriptors[0].length == 0x77777777);
    if (fits) {
        PROMISE(count == count_runs(scatter));
        check_descriptors(scatter, first, count);
    } else {
        PROMISE(error_text()[0] != '\0' && count == 0xabcdef);
    }
    for (uint32_t i = fits ? count : 0; i < capacity; i++)
        PROMISE(first[i].length == 0x77777777);
    free(descriptors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct settings settings;
    struct scatter_list scatter;
    struct scatter_sizes sizes;
    uint64_t end;

    if (size < sizeof settings)
        return 0;
    memcpy(&settings, data, sizeof settings);
    memset(fragments, 0, sizeof fragments);
    scatter_list_init(&scatter, fragments, MAX_FRAGMENTS);
    end = read_list(&settings, data + sizeof settings, size - sizeof settings, &scatter);
    if (settings.mode & 8)
        reverse_list(&scatter);

    sizes = (struct scatter_sizes){
        .message = end + settings.message_delta,
        .pool = (uint64_t)settings.pool_size << (settings.mode & 4 ? 8 : 0),
        .host = settings.host_size,
    };
    check_build(&scatter, &sizes, settings.capacity);
    return 0;
}
