#include "tests/support/unpack_pair.h"

enum { MOST = UNPACK_MAX_MESSAGE, DEPTH = UNPACK_QUEUE_DEPTH };

static void look(void *to, gpu_address from, uint64_t bytes)
{
    memcpy(to, world_look(from, bytes), bytes);
}

void unpack_open(struct unpack_pair *pair, const struct net_link_options *options, uint32_t largest)
{
    struct net_device_handle handle;

    *pair = (struct unpack_pair){.largest = largest};
    pair->comms = pair_open(options);
    assert_success(net_unpack_open(pair->comms.receiver, 0, largest, &handle));
    assert_int_equal(handle.type, NET_DEVICE_UNPACK);
    assert_int_equal(handle.version, 7);
    assert_int_equal(handle.needs_proxy_progress, 1);
    look(&pair->kernel.handle, (gpu_address)(uintptr_t)handle.handle, sizeof pair->kernel.handle);
    assert_true(pair->kernel.handle.head == UINT64_MAX);
    assert_int_equal((uintptr_t)pair->kernel.handle.bounce % 16, 0);
    pair->kernel.head = pair->kernel.handle.head;
    assert_success(
        gpu_memory_alloc(world.gpu, (uint64_t)DEPTH * (MOST + 4096), 4096, &pair->memory));
    assert_success(net_register(pair->comms.receiver, (void *)(uintptr_t)pair->memory.address,
                                pair->memory.bytes, &pair->registered));
}

void unpack_close(struct unpack_pair *pair)
{
    net_deregister(pair->comms.receiver, pair->registered);
    pair_close(&pair->comms);
    gpu_memory_free(world.gpu, &pair->memory);
}

gpu_address unpack_buffer(const struct unpack_pair *pair, uint64_t receive)
{
    return pair->memory.address + receive % DEPTH * (MOST + 4096);
}

int unpack_post(struct unpack_pair *pair, uint64_t receive, uint64_t room,
                struct net_request **request)
{
    const struct net_buffer buffer = {.data = (void *)(uintptr_t)unpack_buffer(pair, receive),
                                      .bytes = room,
                                      .memory = pair->registered};

    assert_success(gpu_set(world.stream, unpack_buffer(pair, receive), 0xee, room + 16));
    world_drain();
    return net_irecv_buffer(pair->comms.receiver, &buffer, 0, request);
}

static gpu_address queue_at(const struct unpack_pair *pair, size_t offset)
{
    return (gpu_address)(uintptr_t)pair->kernel.handle.queue + offset;
}

uint64_t unpack_count(const struct unpack_pair *pair, uint64_t receive)
{
    uint64_t count;

    look(&count, queue_at(pair, offsetof(struct unpack_queue, counts[receive % DEPTH])),
         sizeof count);
    return count;
}

/* Payload in the pages of a NIC is as long, and where, the NIC likes. */
static void check_descriptors(const struct unpack_pair *pair, const struct gpu_unpack_list *list,
                              uint64_t count)
{
    static struct unpack_descriptor descriptors[UNPACK_MAX_DESCRIPTORS];
    bool by_nic = getenv("UCCL_TCPX_SOFT_DEVMEM") != NULL;

    look(descriptors, list->descriptors, count * sizeof *descriptors);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t offsets = descriptors[i].source_offset | descriptors[i].destination_offset;

        assert_true(pair->largest == 0 || descriptors[i].length <= pair->largest);
        assert_true(by_nic || offsets % 16 == 0);
    }
}

uint64_t unpack_next(struct unpack_pair *pair, uint64_t receive)
{
    unsigned slot = (unsigned)(++pair->kernel.head % DEPTH);
    struct gpu_unpack_list list = {
        .bounce = (gpu_address)(uintptr_t)pair->kernel.handle.bounce,
        .destination = unpack_buffer(pair, receive),
        .descriptors = queue_at(pair, offsetof(struct unpack_queue, descriptors[slot]))};

    assert_int_equal(slot, receive % DEPTH);
    list.count = unpack_count(pair, receive);
    assert_true(list.count <= UNPACK_MAX_DESCRIPTORS);
    if (list.count == 0)
        return 0;
    check_descriptors(pair, &list, list.count);
    assert_success(gpu_unpack(world.stream, &list, 1, UINT32_MAX));
    world_drain();
    return list.count;
}

void unpack_check(const struct unpack_pair *pair, uint64_t receive, uint64_t bytes, uint64_t room)
{
    static uint8_t seen[MOST + 16];

    look(seen, unpack_buffer(pair, receive), room + 16);
    if (memcmp(seen, text_of(&world.text, receive), bytes) != 0)
        fail_msg("receive %llu of %llu bytes is wrong", (unsigned long long)receive,
                 (unsigned long long)bytes);
    for (uint64_t i = bytes; i < room + 16; i++)
        assert_int_equal(seen[i], 0xee);
}

/* A send can only be done when its receive is: so it goes first in these. */
void unpack_exchange(struct unpack_pair *pair, uint64_t receive, uint64_t bytes,
                     struct net_request **request)
{
    struct net_request *send =
        must_send(pair->comms.sender, text_of(&world.text, receive), bytes, 0);

    assert_success(unpack_post(pair, receive, bytes, request));
    assert_non_null(*request);
    must_end_both(send, *request);
    assert_true(unpack_next(pair, receive) > 0);
    unpack_check(pair, receive, bytes, bytes);
}
