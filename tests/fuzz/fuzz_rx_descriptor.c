/*
 * Fuzzes the descriptor builder. An input is a request and a scatter list of short records, taken
 * as they are or chained so that they tile a message. Small messages are compared with a model that
 * knows each byte's source; for all of them the promises of rx_descriptor.h are checked, and a
 * broken one ends the program.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/promise.h"

#include "net/devmem/rx_descriptor.h"

#define MAX_FRAGMENTS 256
#define MODEL_SIZE    65536
#define HOST_ADDRESS  (UINT64_C(1) << 62)
#define NOWHERE       UINT64_MAX

struct settings {
    uint8_t mode; /* bits: 0 chain, 1 host buffer in the pool, 2 large units, 3 reverse, 4 no cut */
    uint8_t capacity;
    uint16_t largest;
    uint32_t message_delta;
    uint32_t destination_delta;
    uint32_t pool_size;
    uint32_t host_size;
    uint32_t host_base;
} __attribute__((packed));

struct record {
    uint8_t kind;
    uint16_t length;
    uint32_t source;
    uint32_t destination;
} __attribute__((packed));

static struct rx_fragment fragments[MAX_FRAGMENTS];
static struct rx_fragment before[MAX_FRAGMENTS];
static uint64_t model[MODEL_SIZE];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Without rx_scatter_add(), which would keep empty fragments out. */
static uint64_t read_list(const struct settings *settings, const uint8_t *data, size_t size,
                          struct rx_scatter *scatter)
{
    unsigned int shift = settings->mode & 4 ? 20 : 0;
    uint64_t end = 0;
    uint64_t source_end = 0;
    struct record record;

    for (; size >= sizeof record && scatter->count < MAX_FRAGMENTS;
         data += sizeof record, size -= sizeof record) {
        struct rx_fragment *fragment = &fragments[scatter->count++];

        memcpy(&record, data, sizeof record);
        *fragment = (struct rx_fragment){
            .source = record.kind & 1 ? RX_SOURCE_HOST : RX_SOURCE_DEVICE,
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

static void reverse_list(struct rx_scatter *scatter)
{
    for (uint32_t i = 0; i < scatter->count / 2; i++) {
        struct rx_fragment swap = fragments[i];

        fragments[i] = fragments[scatter->count - 1 - i];
        fragments[scatter->count - 1 - i] = swap;
    }
}

static int compare_fragments(const void *a, const void *b)
{
    const struct rx_fragment *left = a;
    const struct rx_fragment *right = b;

    if (left->destination_offset != right->destination_offset)
        return left->destination_offset < right->destination_offset ? -1 : 1;
    if (left->source_offset != right->source_offset)
        return left->source_offset < right->source_offset ? -1 : 1;
    if (left->length != right->length)
        return left->length < right->length ? -1 : 1;
    return (int)left->source - (int)right->source;
}

static void check_same_set(const struct rx_scatter *scatter)
{
    static struct rx_fragment after[MAX_FRAGMENTS];

    memcpy(after, fragments, scatter->count * sizeof *after);
    qsort(before, scatter->count, sizeof *before, compare_fragments);
    qsort(after, scatter->count, sizeof *after, compare_fragments);
    for (uint32_t i = 0; i < scatter->count; i++)
        PROMISE(compare_fragments(&before[i], &after[i]) == 0);
}

/* Lengths and overlaps by comparing each fragment with each; only for success. */
static bool tiles(const struct rx_scatter *scatter, uint64_t message_size)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < scatter->count; i++) {
        const struct rx_fragment *one = &fragments[i];

        if (one->length == 0 || one->length > message_size ||
            one->destination_offset > message_size - one->length)
            return false;
        sum += one->length;
        for (uint32_t k = 0; k < i; k++) {
            const struct rx_fragment *other = &fragments[k];

            if (one->destination_offset < other->destination_offset + other->length &&
                other->destination_offset < one->destination_offset + one->length)
                return false;
        }
    }
    return sum == message_size;
}

static bool sources_inside(const struct rx_scatter *scatter,
                           const struct rx_descriptor_request *request)
{
    for (uint32_t i = 0; i < scatter->count; i++) {
        uint64_t size =
            fragments[i].source == RX_SOURCE_HOST ? request->host_size : request->pool_size;

        if (fragments[i].length > size || fragments[i].source_offset > size - fragments[i].length)
            return false;
    }
    return true;
}

static void fill_model(const struct rx_scatter *scatter,
                       const struct rx_descriptor_request *request)
{
    for (uint32_t i = 0; i < scatter->count; i++) {
        uint64_t base = 0;

        if (fragments[i].source == RX_SOURCE_HOST)
            base = request->host_base == RX_HOST_APART ? HOST_ADDRESS : request->host_base;
        for (uint64_t k = 0; k < fragments[i].length; k++)
            model[fragments[i].destination_offset + k] = base + fragments[i].source_offset + k;
    }
}

static uint64_t count_model(const struct rx_descriptor_request *request)
{
    uint64_t count = 0;
    uint64_t length = 0;

    for (uint64_t i = 0; i < request->message_size; i++) {
        bool apart = model[i] >= HOST_ADDRESS;

        if (!apart && (length == 0 || model[i] != model[i - 1] + 1 || length == request->largest)) {
            count++;
            length = 0;
        }
        length = apart ? 0 : length + 1;
    }
    return count;
}

static void compare_with_model(const struct rx_descriptor_request *request,
                               const struct unpack_descriptor *descriptors, uint32_t count)
{
    PROMISE(count == count_model(request));
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < descriptors[i].length; k++) {
            uint64_t at = descriptors[i].destination_offset + k;

            PROMISE(model[at] == (uint64_t)descriptors[i].source_offset + k);
            model[at] = NOWHERE;
        }
    }
    for (uint64_t i = 0; i < request->message_size; i++)
        PROMISE(model[i] >= HOST_ADDRESS);
}

/* Where the list, at any size of the message, takes a byte of the destination from. */
static uint64_t source_of(const struct rx_scatter *scatter,
                          const struct rx_descriptor_request *request, uint64_t destination)
{
    for (uint32_t i = 0; i < scatter->count; i++) {
        const struct rx_fragment *fragment = &fragments[i];
        uint64_t base = fragment->source == RX_SOURCE_HOST ? request->host_base : 0;

        if (base != RX_HOST_APART && destination >= fragment->destination_offset &&
            destination - fragment->destination_offset < fragment->length)
            return base + fragment->source_offset + (destination - fragment->destination_offset);
    }
    return NOWHERE;
}

static void check_descriptors(const struct rx_scatter *scatter,
                              const struct rx_descriptor_request *request,
                              const struct unpack_descriptor *descriptors, uint32_t count)
{
    uint64_t described = 0;
    uint64_t end = 0;
    uint32_t cursor = 0;
    const struct rx_fragment *piece;

    for (uint32_t i = 0; i < count; i++) {
        const struct unpack_descriptor *one = &descriptors[i];

        PROMISE(one->length > 0 && (request->largest == 0 || one->length <= request->largest));
        PROMISE((uint64_t)one->source_offset + one->length <= request->pool_size);
        PROMISE(one->destination_offset >= end);
        PROMISE(source_of(scatter, request, one->destination_offset) == one->source_offset);
        PROMISE(source_of(scatter, request, one->destination_offset + one->length - 1) ==
                (uint64_t)one->source_offset + one->length - 1);
        end = one->destination_offset + one->length;
        PROMISE(end <= request->message_size && end <= request->destination_size);
        described += one->length;
    }
    while (request->host_base == RX_HOST_APART &&
           (piece = rx_scatter_next_host(scatter, &cursor)) != NULL)
        described += piece->length;
    PROMISE(described == request->message_size);
}

/* Whether each fragment for itself can be said in 32 bits; merging must not make that worse. */
static bool is_narrow(const struct rx_scatter *scatter, const struct rx_descriptor_request *request)
{
    for (uint32_t i = 0; i < scatter->count; i++) {
        uint64_t base = fragments[i].source == RX_SOURCE_HOST ? request->host_base : 0;

        if (base != RX_HOST_APART &&
            (fragments[i].length > UINT32_MAX ||
             base + fragments[i].source_offset + fragments[i].length - 1 > UINT32_MAX))
            return false;
    }
    return true;
}

static void check_build(struct rx_scatter *scatter, const struct rx_descriptor_request *request,
                        uint32_t capacity)
{
    /* Exactly as large as allowed, so that ASan sees a write beyond; 16-byte aligned. */
    struct unpack_descriptor *descriptors = aligned_alloc(16, (capacity + 1) * sizeof *descriptors);
    struct unpack_descriptor *first = descriptors + 1;
    enum rx_problem problem = RX_PROBLEM_COUNT;
    uint32_t count = 0xabcdef;
    int result;
    bool good = tiles(scatter, request->message_size) && sources_inside(scatter, request) &&
                request->message_size <= request->destination_size;

    PROMISE(descriptors != NULL);
    memset(descriptors, 0x77, (capacity + 1) * sizeof *descriptors);
    memcpy(before, fragments, sizeof before);
    result = rx_descriptor_build(scatter, request, first, capacity, &count, &problem);

    PROMISE(problem < RX_PROBLEM_COUNT);
    PROMISE((problem == RX_PROBLEM_NONE) == (result == TCPX_SUCCESS));
    PROMISE(descriptors[0].length == 0x77777777);
    check_same_set(scatter);
    if (result != TCPX_SUCCESS) {
        PROMISE(count == 0xabcdef);
        for (uint32_t i = 0; i < capacity; i++)
            PROMISE(first[i].length == 0x77777777);
        PROMISE(!good || problem == RX_PROBLEM_TOO_MANY || problem == RX_PROBLEM_ARGUMENT ||
                (problem == RX_PROBLEM_TOO_WIDE && !is_narrow(scatter, request)));
    } else {
        PROMISE(good && count <= capacity);
        check_descriptors(scatter, request, first, count);
    }
    if (good && problem != RX_PROBLEM_ARGUMENT && request->message_size <= MODEL_SIZE) {
        fill_model(scatter, request);
        PROMISE(problem != RX_PROBLEM_TOO_MANY || count_model(request) > capacity);
        if (result == TCPX_SUCCESS)
            compare_with_model(request, first, count);
    }
    free(descriptors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct settings settings;
    struct rx_scatter scatter;
    struct rx_descriptor_request request;
    uint64_t end;

    if (size < sizeof settings)
        return 0;
    memcpy(&settings, data, sizeof settings);
    memset(fragments, 0, sizeof fragments);
    rx_scatter_init(&scatter, fragments, MAX_FRAGMENTS);
    end = read_list(&settings, data + sizeof settings, size - sizeof settings, &scatter);
    if (settings.mode & 8)
        reverse_list(&scatter);

    request = (struct rx_descriptor_request){
        .message_size = end + settings.message_delta,
        .destination_size = end + settings.message_delta + settings.destination_delta,
        .pool_size = (uint64_t)settings.pool_size << (settings.mode & 4 ? 8 : 0),
        .host_size = settings.host_size,
        .host_base = settings.mode & 2 ? settings.host_base : RX_HOST_APART,
        .largest = settings.mode & 16 ? 0 : settings.largest,
    };
    if (settings.destination_delta == UINT32_MAX)
        request.destination_size = end / 2;
    check_build(&scatter, &request, settings.capacity);
    return 0;
}
