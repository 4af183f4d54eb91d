/* Receives that the GPU unpacks itself, consumed in whatever order. */
#include "tests/support/unpack_pair.h"

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

    unpack_open(&pair, &options, largest);
    for (int i = 0; i < COUNT; i++)
        sizes[i] = random_size(&random);
    while (done < COUNT) {
        struct flight *flight = &flights[posted % DEPTH];

        assert_false(deadline_passed(deadline));
        if (posted < COUNT && flight->request == NULL && random_below(&random, 2) == 0) {
            assert_success(unpack_post(&pair, posted, sizes[posted], &flight->request));
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
            unpack_check(&pair, done, bytes, sizes[done]);
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

TEST(test_nobody_consumes)
{
    struct net_request *requests[DEPTH];
    struct net_request *one_more;
    struct net_request *other;
    struct unpack_pair pair;
    struct unpack_pair another;

    unpack_open(&pair, &options, 4096);
    unpack_open(&another, &options, 4096);
    for (uint64_t i = 0; i < DEPTH; i++)
        unpack_exchange(&pair, i, 1000 + i, &requests[i]);
    assert_success(unpack_post(&pair, DEPTH, 1000, &one_more));
    assert_null(one_more);
    unpack_exchange(&another, 0, 1000, &other); /* only its own comm stops */
    assert_success(net_consumed(requests[5]));  /* slot 0 is the one that is needed */
    assert_success(unpack_post(&pair, DEPTH, 1000, &one_more));
    assert_null(one_more);
    assert_success(net_consumed(requests[0]));
    unpack_exchange(&pair, DEPTH, 1000, &one_more);
    unpack_close(&pair);
    unpack_close(&another);
}

/* 8 MiB are two of the largest receives. */
TEST(test_bounce_memory_runs_out)
{
    struct net_request *requests[3];
    struct unpack_pair pair;

    unpack_open(&pair, &options, 4096);
    unpack_exchange(&pair, 0, MOST, &requests[0]);
    unpack_exchange(&pair, 1, MOST, &requests[1]);
    assert_success(unpack_post(&pair, 2, 1, &requests[2]));
    assert_null(requests[2]);
    assert_success(net_consumed(requests[0]));
    unpack_exchange(&pair, 2, MOST, &requests[2]);
    unpack_close(&pair);
}

/* What lies in host memory is put there at once, and there is nothing to unpack. */
TEST(test_host_memory)
{
    static uint8_t arrived[100000];
    struct net_request *request;
    struct unpack_pair pair;

    unpack_open(&pair, &options, 4096);
    request = must_receive(pair.comms.receiver, arrived, sizeof arrived, 0);
    must_end_both(must_send(pair.comms.sender, text_of(&world.text, 0), sizeof arrived, 0),
                  request);
    assert_int_equal(unpack_next(&pair, 0), 0);
    assert_memory_equal(arrived, text_of(&world.text, 0), sizeof arrived);
    assert_success(net_consumed(request));
    unpack_exchange(&pair, 1, 5000, &request);
    unpack_close(&pair);
}

/* Small messages that come before their receives. */
TEST(test_messages_that_were_put_aside)
{
    struct net_request *request;
    struct unpack_pair pair;

    unpack_open(&pair, &options, 4096);
    for (uint64_t i = 0; i < 40; i++) {
        uint64_t bytes = 1 + i * 100;

        finish(must_send(pair.comms.sender, text_of(&world.text, i), bytes, 0));
        nap_us(200);
        assert_success(unpack_post(&pair, i, EAGER_LIMIT, &request));
        finish(request);
        assert_int_equal(unpack_next(&pair, i), 1);
        unpack_check(&pair, i, bytes, EAGER_LIMIT);
        assert_success(net_consumed(request));
        assert_int_equal(unpack_count(&pair, i), 0); /* a kernel that is aborted looks there */
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

    unpack_open(&pair, &options, 4096);
    assert_int_equal(unpack_post(&pair, 0, MOST, &request), TCPX_SUCCESS);
    assert_int_equal(
        net_irecv_buffer(pair.comms.receiver,
                         &(struct net_buffer){.data = (void *)(uintptr_t)unpack_buffer(&pair, 1),
                                              .bytes = MOST + 1,
                                              .memory = pair.registered},
                         0, &request),
        TCPX_INVALID_USAGE);
    assert_int_equal(net_unpack_open(pair.comms.receiver, 0, 0, &handle), TCPX_INVALID_USAGE);
    unpack_close(&pair);

    unpack_open(&pair, &options, 4096);
    unpack_exchange(&pair, 0, 100, &request);
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
        unpack_open(&pairs[i], &options, 4096);
        assert_ptr_equal(pairs[i].kernel.handle.bounce, pairs[0].kernel.handle.bounce);
    }
    for (uint64_t k = 0; k < 3; k++)
        for (int i = 0; i < COMMS; i++)
            unpack_exchange(&pairs[i], k, 50000 + (uint64_t)i, &request);
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
