/*
 * Either end of two comms whose receiver unpacks by itself, over devmem TCP. Nothing that the first
 * one receives is ever consumed: it goes on by copies, and the second one as if it were alone. The
 * receiving end plays the part of NCCL's kernels, and checks every byte.
 */
#include "gpu/gpu.h"
#include "tests/limit.h"
#include "tests/net/comm_ends.h"
#include "tests/support/basics.h"

#include <stdlib.h>
#include <string.h>

enum {
    LIMIT_SECONDS = 60,
    STEP_MS = 20000,
    WORDS = 128 << 10, /* of a message */
    BYTES = WORDS * 4,
    HOARDED = UNPACK_QUEUE_DEPTH,
    CONSUMED = 40,
    AFTERWARDS = 8 /* when the first comm is closed */
};

static void must(int result)
{
    if (result == TCPX_SUCCESS)
        return;
    fprintf(stderr, "unpackers: %s\n", error_text());
    exit(EXIT_FAILURE);
}

static void expect(bool is_right, const char *what)
{
    if (!is_right)
        must(error_set(TCPX_INTERNAL_ERROR, "%s", what));
}

static void wait_for(struct net_request *request)
{
    bool done = false;

    must(net_wait(request, deadline_after_ms(STEP_MS), &done, NULL));
    expect(done, "a message did not move in time");
}

static uint32_t word_of(uint32_t message, uint32_t at)
{
    return message << 20 | at;
}

/* --- the receiving end ----------------------------------------------------------------------- */

static struct gpu *gpu;
static struct gpu_stream *stream;
static struct gpu_event *event;
static struct gpu_memory memory;
static struct gpu_pinned window; /* what GPU memory is looked at through */

struct unpacker {
    struct net_comm *comm;
    struct net_memory *registered;
    struct unpack_device_handle handle;
    uint32_t received;
};

static void drain(void)
{
    must(gpu_event_record(event, stream));
    must(gpu_event_wait(event, deadline_after_ms(STEP_MS)));
}

static const void *look(gpu_address at, uint64_t bytes)
{
    must(gpu_copy_to_host(stream, window.host, at, bytes));
    drain();
    return window.host;
}

static void unpacker_open(struct unpacker *unpacker, struct net_listener *listener)
{
    struct net_device_handle handle;

    *unpacker = (struct unpacker){.received = 0};
    must(accept_comm(listener, &unpacker->comm));
    must(net_unpack_open(unpacker->comm, 0, 4096, &handle));
    must(net_register(unpacker->comm, (void *)(uintptr_t)memory.address, memory.bytes,
                      &unpacker->registered));
    memcpy(&unpacker->handle, look((uintptr_t)handle.handle, sizeof unpacker->handle),
           sizeof unpacker->handle);
}

static void unpack(const struct unpacker *unpacker, unsigned slot)
{
    gpu_address queue = (uintptr_t)unpacker->handle.queue;
    struct gpu_unpack_list list = {.bounce = (uintptr_t)unpacker->handle.bounce,
                                   .destination = memory.address,
                                   .descriptors =
                                       queue + offsetof(struct unpack_queue, descriptors[slot])};
    uint64_t count;

    memcpy(&count, look(queue + offsetof(struct unpack_queue, counts[slot]), sizeof count),
           sizeof count);
    expect(count > 0 && count <= UNPACK_MAX_DESCRIPTORS, "a slot without descriptors");
    list.count = (uint32_t)count;
    must(gpu_set(stream, memory.address, 0xee, BYTES));
    must(gpu_unpack(stream, &list, 1, UINT32_MAX));
    drain();
}

static struct net_request *receive(struct unpacker *unpacker)
{
    const struct net_buffer buffer = {
        .data = (void *)(uintptr_t)memory.address, .bytes = BYTES, .memory = unpacker->registered};
    struct net_request *request;
    const uint32_t *words;

    must(net_irecv_buffer(unpacker->comm, &buffer, 0, &request));
    expect(request != NULL, "a comm that is busy");
    wait_for(request);
    unpack(unpacker, unpacker->received % UNPACK_QUEUE_DEPTH);
    words = look(memory.address, BYTES);
    for (uint32_t i = 0; i < WORDS; i++)
        expect(words[i] == word_of(unpacker->received, i), "wrong bytes");
    unpacker->received++;
    return request;
}

static struct unpack_counts report(const struct unpacker *unpacker, const char *name)
{
    struct unpack_counts counts;

    net_get_unpack_counts(unpacker->comm, &counts);
    printf("%s: %llu receives in place, %llu with copies; %llu bytes in place, %llu copied\n", name,
           (unsigned long long)counts.in_place, (unsigned long long)counts.copied,
           (unsigned long long)counts.in_place_bytes, (unsigned long long)counts.copied_bytes);
    return counts;
}

static void receive_all(struct unpacker *hoarder, struct unpacker *other)
{
    struct unpack_counts counts;

    for (int i = 0; i < HOARDED; i++)
        receive(hoarder);
    counts = report(hoarder, "never consumed");
    expect(counts.in_place > 0 && counts.copied > 0, "the first comm keeps too little or too much");
    for (int i = 0; i < CONSUMED; i++)
        must(net_consumed(receive(other)));
    net_comm_close(hoarder->comm);
    for (int i = 0; i < AFTERWARDS; i++)
        must(net_consumed(receive(other)));
    counts = report(other, "consumed");
    expect(counts.in_place == CONSUMED + AFTERWARDS && counts.copied == 0,
           "the second comm was held back");
    net_comm_close(other->comm);
}

static void receive_end(const struct net_device *device, struct net_link_options *options,
                        const char *file)
{
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener;
    struct unpacker hoarder;
    struct unpacker other;

    must(gpu_open(0, &gpu));
    must(gpu_stream_create(gpu, &stream));
    must(gpu_event_create(gpu, &event));
    must(gpu_memory_alloc(gpu, BYTES, 2 << 20, &memory));
    must(gpu_pinned_alloc(gpu, BYTES, &window));
    options->gpu = 0;
    options->no_kernels = true;
    must(net_listen(device, options, handle, &listener));
    must(write_handle(file, handle));
    unpacker_open(&hoarder, listener);
    unpacker_open(&other, listener);
    receive_all(&hoarder, &other);
    net_listener_close(listener);
    gpu_pinned_free(gpu, &window);
    gpu_memory_free(gpu, &memory);
    gpu_event_destroy(event);
    gpu_stream_destroy(stream);
    gpu_close(gpu);
}

/* --- the sending end ------------------------------------------------------------------------- */

static void send_messages(struct net_comm *comm, uint32_t count)
{
    static uint32_t words[WORDS];

    for (uint32_t message = 0; message < count; message++) {
        struct net_request *request;

        for (uint32_t i = 0; i < WORDS; i++)
            words[i] = word_of(message, i);
        must(net_isend(comm, words, BYTES, 0, &request));
        wait_for(request);
    }
}

static void send_end(const struct net_device *device, const struct net_link_options *options,
                     const char *file)
{
    struct net_comm *comms[2];

    for (int i = 0; i < 2; i++)
        must(connect_comm(device, options, file, &comms[i]));
    send_messages(comms[0], HOARDED);
    send_messages(comms[1], CONSUMED + AFTERWARDS);
    for (int i = 0; i < 2; i++)
        net_comm_close(comms[i]);
}

int main(int argc, char **argv)
{
    struct net_device devices[NET_DEVICES_MOST];
    struct net_link_options options;
    int count;

    if (argc != 3 || (strcmp(argv[1], "receive") != 0 && strcmp(argv[1], "send") != 0)) {
        fputs("usage: unpackers receive|send HANDLE_FILE\n", stderr);
        return EXIT_FAILURE;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    limit_process(LIMIT_SECONDS);
    must(net_devices_find_configured(devices, NET_DEVICES_MOST, &count));
    must(net_link_defaults(WIRE_MATCH_FIFO, &options));
    options.sockets = 3;
    if (strcmp(argv[1], "receive") == 0)
        receive_end(&devices[0], &options, argv[2]);
    else
        send_end(&devices[0], &options, argv[2]);
    return EXIT_SUCCESS;
}
