/*
 * Receives that the GPU unpacks itself. This plays the part of NCCL's kernels: it knows only the
 * device handle, reads queue and bounce memory through the GPU, counts receives by the head, and
 * consumes in whatever order. Every byte is checked where a kernel would have put it.
 */
#include "tests/support/gpu_pair.h"

enum { MOST = UNPACK_MAX_MESSAGE, EAGER_LIMIT = 4096, DEPTH = UNPACK_QUEUE_DEPTH };

static struct net_link_options options =
    PAIR_DEFAULTS(.sockets = 3, .match = WIRE_MATCH_FIFO, .eager_limit = EAGER_LIMIT,
                  .eager_credit = 32768, .largest_slice = 100000);

static int set_up(void)
{
    if (getenv("UCCL_TCPX_SOFT_DEVMEM") != NULL)
        options.framing = WIRE_SEPARATE;
    return world_open(MOST, MOST + 4096);
}

static void look(void *to, gpu_address from, uint64_t bytes)
{
    memcpy(to, world_look(from, bytes), bytes);
}

/* --- a comm and its kernel ----------------------------------------------------------------- */

struct kernel {
    struct unpack_device_handle handle;
    uint64_t head;
};

struct unpack_pair {
    struct pair comms;
    struct kernel kernel;
    uint32_t largest;
    struct gpu_memory memory; /* DEPTH buffers of MOST bytes and a page */
    struct net_memory *registered;
};

static void unpack_open(struct unpack_pair *pair, uint32_t largest)
{
    struct net_device_handle handle;

    *pair = (struct unpack_pair){.largest = largest};
    pair->comms = pair_open(&options);
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

static void unpack_close(struct unpack_pair *pair)
{
    net_deregister(pair->comms.receiver, pair->registered);
    pair_close(&pair->comms);
    gpu_memory_free(world.gpu, &pair->memory);
}

static gpu_address buffer_of(const struct unpack_pair *pair, uint64_t receive)
{
    return pair->memory.address + receive % DEPTH * (MOST + 4096);
}

static int post(struct unpack_pair *pair, uint64_t receive, uint64_t room,
                struct net_request **request)
{
    const struct net_buffer buffer = {.data = (void *)(uintptr_t)buffer_of(pair, receive),
                                      .bytes = room,
                                      .memory = pair->registered};

    assert_success(gpu_set(world.stream, buffer_of(pair, receive), 0xee, room + 16));
    world_drain();
    return net_irecv_buffer(pair->comms.receiver, &buffer, 0, request);
}

static gpu_address queue_at(const struct unpack_pair *pair, size_t offset)
{
    return (gpu_address)(uintptr_t)pair->kernel.handle.queue + offset;
}

static uint64_t count_in(const struct unpack_pair *pair, uint64_t receive)
{
    uint64_t count;

    look(&count, queue_at(pair, offsetof(struct unpack_queue, counts[receive % DEPTH])),
         sizeof count);
    return count;
}

/* As NCCL's: the head goes up first, and its slot is the receive's. Returns how many there were. */
static uint64_t unpack_next(struct unpack_pair *pair, uint64_t receive)
{
    unsigned slot = (unsigned)(++pair->kernel.head % DEPTH);
    struct gpu_unpack_list list = {
        .bounce = (gpu_address)(uintptr_t)pair->kernel.handle.bounce,
        .destination = buffer_of(pair, receive),
        .descriptors = queue_at(pair, offsetof(struct unpack_queue, descriptors[slot]))};
    static struct unpack_descriptor descriptors[UNPACK_MAX_DESCRIPTORS];

    assert_int_equal(slot, receive % DEPTH);
    list.count = count_in(pair, receive);
    assert_true(list.count <= UNPACK_MAX_DESCRIPTORS);
    if (list.count == 0)
        return 0;
    look(descriptors, list.descriptors, list.count * sizeof *descriptors);
    for (uint64_t i = 0; i < list.count; i++) {
        assert_true(pair->largest == 0 || descriptors[i].length <= pair->largest);
        assert_int_equal((descriptors[i].source_offset | descriptors[i].destination_offset) % 16,
                         0);
    }
    assert_success(gpu_unpack(world.stream, &list, 1, UINT32_MAX));
    world_drain();
    return list.count;
}

static void check(const struct unpack_pair *pair, uint64_t receive, uint64_t bytes, uint64_t room)
{
    static uint8_t seen[MOST + 16];

    look(seen, buffer_of(pair, receive), room + 16);
    if (memcmp(seen, text_of(&world.text, receive), bytes) != 0)
        fail_msg("receive %llu of %llu bytes is wrong", (unsigned long long)receive,
                 (unsigned long long)bytes);
    for (uint64_t i = bytes; i < room + 16; i++)
        assert_int_equal(seen[i], 0xee);
}

static void finish(struct net_request *request)
{
    bool done = false;

    assert_success(net_wait(request, deadline_after_ms(LIMIT_MS), &done, NULL));
    assert_true(done);
}

/* --- tests --------------------------------------------------------------------------------- */

static uint64_t random_size(uint64_t *random)
{
    switch (random_below(random, 5)) {
    case 0:
        return random_below(random, 2) * EAGER_LIMIT;
    case 1:
        return random_below(random, MOST / 4 + 1);
    case 2:
        return random_below(random, 16) == 0 ? MOST : 70000;
    default:
        return random_below(random, 9000);
    }
}

struct flight {
    struct net_request *request; /* NULL: free */
    uint64_t receive;
    bool told;
};

/* Consumes one that is done, whichever. */
static bool consume_any(struct flight *flights, uint64_t *random)
{
    for (int i = 0, first = (int)random_below(random, DEPTH); i < DEPTH; i++) {
        struct flight *flight = &flights[(first + i) % DEPTH];

        if (flight->request == NULL || !flight->told)
            continue;
        assert_success(net_consumed(flight->request));
        flight->request = NULL;
        return true;
    }
    return false;
}

static void random_receives(uint32_t largest, uint64_t seed)
{
    enum { COUNT = 300 };
    struct flight flights[DEPTH] = {{.request = NULL}};
    uint64_t sizes[COUNT];
    struct net_request *sends[COUNT];
    uint64_t random = seed;
    uint64_t posted = 0;
    uint64_t sent = 0;
    uint64_t done = 0;
    uint64_t deadline = deadline_after_ms(2 * LIMIT_MS);
    struct unpack_pair pair;

    unpack_open(&pair, largest);
    for (int i = 0; i < COUNT; i++)
        sizes[i] = random_size(&random);
    while (done < COUNT) {
        struct flight *flight = &flights[posted % DEPTH];

        assert_false(deadline_passed(deadline));
        if (posted < COUNT && flight->request == NULL && random_below(&random, 2) == 0) {
            assert_success(post(&pair, posted, sizes[posted], &flight->request));
            flight->receive = posted;
            flight->told = false;
            posted += flight->request != NULL;
        }
        if (sent < COUNT && sent < done + 16 && random_below(&random, 2) == 0) {
            assert_success(net_isend(pair.comms.sender, text_of(&world.text, sent), sizes[sent], 0,
                                     &sends[sent]));
            sent += sends[sent] != NULL;
        }
        flight = &flights[done % DEPTH];
        /* several before the first is looked at */
        if (done < posted && done < sent &&
            (random_below(&random, 8) == 0 || sent == COUNT || sent - done > 8 ||
             posted - done > 8)) {
            uint64_t bytes = must_end_both(sends[done], flight->request);

            assert_int_equal(bytes, sizes[done]);
            assert_true((unpack_next(&pair, done) == 0) == (bytes == 0));
            check(&pair, done, bytes, sizes[done]);
            flight->told = true;
            done++;
        }
        if (random_below(&random, 3) == 0 || posted - done > 10)
            consume_any(flights, &random);
    }
    while (consume_any(flights, &random))
        ;
    unpack_close(&pair);
}

TEST(test_random_receives)
{
    random_receives(4096, 11);
    random_receives(0, 12);
}

/* A send can only be done when its receive is: so it goes first in these. */
static void exchange(struct unpack_pair *pair, uint64_t receive, uint64_t bytes,
                     struct net_request **request)
{
    struct net_request *send =
        must_send(pair->comms.sender, text_of(&world.text, receive), bytes, 0);

    assert_success(post(pair, receive, bytes, request));
    assert_non_null(*request);
    must_end_both(send, *request);
    assert_true(unpack_next(pair, receive) > 0);
    check(pair, receive, bytes, bytes);
}

TEST(test_nobody_consumes)
{
    struct net_request *requests[DEPTH];
    struct net_request *one_more;
    struct net_request *other;
    struct unpack_pair pair;
    struct unpack_pair another;

    unpack_open(&pair, 4096);
    unpack_open(&another, 4096);
    for (uint64_t i = 0; i < DEPTH; i++)
        exchange(&pair, i, 1000 + i, &requests[i]);
    assert_success(post(&pair, DEPTH, 1000, &one_more));
    assert_null(one_more);
    exchange(&another, 0, 1000, &other);       /* only its own comm stops */
    assert_success(net_consumed(requests[5])); /* slot 0 is the one that is needed */
    assert_success(post(&pair, DEPTH, 1000, &one_more));
    assert_null(one_more);
    assert_success(net_consumed(requests[0]));
    exchange(&pair, DEPTH, 1000, &one_more);
    unpack_close(&pair);
    unpack_close(&another);
}

/* 8 MiB are two of the largest receives. */
TEST(test_bounce_memory_runs_out)
{
    struct net_request *requests[3];
    struct unpack_pair pair;

    unpack_open(&pair, 4096);
    exchange(&pair, 0, MOST, &requests[0]);
    exchange(&pair, 1, MOST, &requests[1]);
    assert_success(post(&pair, 2, 1, &requests[2]));
    assert_null(requests[2]);
    assert_success(net_consumed(requests[0]));
    exchange(&pair, 2, MOST, &requests[2]);
    unpack_close(&pair);
}

/* What lies in host memory is put there at once, and there is nothing to unpack. */
TEST(test_host_memory)
{
    static uint8_t arrived[100000];
    struct net_request *request;
    struct unpack_pair pair;

    unpack_open(&pair, 4096);
    request = must_receive(pair.comms.receiver, arrived, sizeof arrived, 0);
    must_end_both(must_send(pair.comms.sender, text_of(&world.text, 0), sizeof arrived, 0),
                  request);
    assert_int_equal(unpack_next(&pair, 0), 0);
    assert_memory_equal(arrived, text_of(&world.text, 0), sizeof arrived);
    assert_success(net_consumed(request));
    exchange(&pair, 1, 5000, &request);
    unpack_close(&pair);
}

/* Small messages that come before their receives. */
TEST(test_messages_that_were_put_aside)
{
    struct net_request *request;
    struct unpack_pair pair;

    unpack_open(&pair, 4096);
    for (uint64_t i = 0; i < 40; i++) {
        uint64_t bytes = 1 + i * 100;

        finish(must_send(pair.comms.sender, text_of(&world.text, i), bytes, 0));
        nap_us(200);
        assert_success(post(&pair, i, EAGER_LIMIT, &request));
        finish(request);
        assert_int_equal(unpack_next(&pair, i), 1);
        check(&pair, i, bytes, EAGER_LIMIT);
        assert_success(net_consumed(request));
        assert_int_equal(count_in(&pair, i), 0); /* a kernel that is aborted looks there */
    }
    unpack_close(&pair);
}

TEST(test_wrong_use)
{
    struct net_link_options tags = options;
    struct net_device_handle handle;
    struct net_request *request;
    struct unpack_pair pair;
    struct pair tagged;

    unpack_open(&pair, 4096);
    assert_int_equal(post(&pair, 0, MOST, &request), TCPX_SUCCESS);
    assert_int_equal(
        net_irecv_buffer(pair.comms.receiver,
                         &(struct net_buffer){.data = (void *)(uintptr_t)buffer_of(&pair, 1),
                                              .bytes = MOST + 1,
                                              .memory = pair.registered},
                         0, &request),
        TCPX_INVALID_USAGE);
    assert_int_equal(net_unpack_open(pair.comms.receiver, 0, 0, &handle), TCPX_INVALID_USAGE);
    unpack_close(&pair);

    unpack_open(&pair, 4096);
    exchange(&pair, 0, 100, &request);
    assert_success(net_consumed(request));
    assert_int_equal(net_consumed(request), TCPX_INVALID_USAGE);
    assert_int_equal(net_unpack_open(pair.comms.sender, 0, 0, &handle), TCPX_INVALID_USAGE);
    unpack_close(&pair);

    tags.match = WIRE_MATCH_TAG;
    tagged = pair_open(&tags);
    assert_int_equal(net_unpack_open(tagged.receiver, 0, 0, &handle), TCPX_INVALID_USAGE);
    pair_close(&tagged);
}

/* All comms of a GPU have one base, and the one that finds no memory is told so. */
TEST(test_many_comms)
{
    enum { COMMS = 10, TOO_MANY = 100 };
    static struct unpack_pair pairs[COMMS];
    static struct pair others[TOO_MANY];
    struct net_request *request;
    struct net_device_handle handle;
    int result = TCPX_SUCCESS;
    int more = 0;

    for (int i = 0; i < COMMS; i++) {
        unpack_open(&pairs[i], 4096);
        assert_ptr_equal(pairs[i].kernel.handle.bounce, pairs[0].kernel.handle.bounce);
    }
    for (uint64_t k = 0; k < 3; k++)
        for (int i = 0; i < COMMS; i++)
            exchange(&pairs[i], k, 50000 + (uint64_t)i, &request);
    for (; result == TCPX_SUCCESS && more < TOO_MANY; more++) {
        others[more] = pair_open(&options);
        result = net_unpack_open(others[more].receiver, 0, 4096, &handle);
    }
    assert_int_equal(result, TCPX_SYSTEM_ERROR);
    expect_text("UCCL_TCPX_BOUNCE_BYTES");
    while (more-- > 0)
        pair_close(&others[more]);
    for (int i = 0; i < COMMS; i++)
        unpack_close(&pairs[i]);
}

SUITE(.name = "net_unpack", .set_up = set_up, .tear_down = world_close);
