/*
 * Receives that the GPU unpacks from the pages they arrived in. The NIC is software devmem that
 * splits all headers, so what is copied, by the comms' own count, is copied because a comm has as
 * many pages as it may keep, or a receive too many pieces. Pages that are not given back are missed
 * in the NIC's own count.
 */
#include "net/gpu/comm_gpu.h"
#include "tests/support/soft_devmem.h"
#include "tests/support/unpack_pair.h"
#include "tests/unit/tree.h"

enum { MOST = UNPACK_MAX_MESSAGE, DEPTH = UNPACK_QUEUE_DEPTH, EAGER_LIMIT = 4096 };

static struct net_link_options options =
    PAIR_DEFAULTS(.sockets = 3, .framing = WIRE_SEPARATE, .match = WIRE_MATCH_FIFO,
                  .eager_limit = EAGER_LIMIT, .eager_credit = 32768, .largest_slice = 100000);

static int begin(void)
{
    char stats[256];

    if (tree_make() != 0)
        return 1;
    snprintf(stats, sizeof stats, "1:%s", tree_path("/stats"));
    setenv("UCCL_TCPX_STATS", stats, 1);
    return 0;
}

static int set_up(void)
{
    return world_open(MOST, MOST + 4096);
}

static int tear_down(void)
{
    return tree_remove() | world_close();
}

/* --- the NIC --------------------------------------------------------------------------------- */

/* Of the comm; still there when the comm is closed. */
static struct devmem_pool *nic_of(const struct unpack_pair *pair)
{
    return devmem_pool_share(pair->comms.receiver->gpu->rx_pool);
}

static uint64_t pages_of(const struct devmem_pool *nic)
{
    return soft_devmem_pool_pages(nic->memory.own);
}

/* That are not free. */
static uint64_t pages_out(const struct devmem_pool *nic)
{
    return pages_of(nic) - soft_devmem_pool_free_pages(nic->memory.own);
}

/* As documented. */
static uint64_t quota(const struct devmem_pool *nic, unsigned comms)
{
    return pages_of(nic) / 2 / (comms < 4 ? 4 : comms);
}

static struct unpack_counts counts_of(const struct unpack_pair *pair)
{
    struct unpack_counts counts;

    net_get_unpack_counts(pair->comms.receiver, &counts);
    return counts;
}

/* What all lines about the peer say together. The last one comes when the last comm is closed. */
static void read_stats(unsigned *in_place, unsigned *copied)
{
    FILE *file = fopen(tree_path("/stats"), "r");
    char line[1024];

    *in_place = 0;
    *copied = 0;
    if (file == NULL) /* no line yet */
        return;
    while (fgets(line, sizeof line, file) != NULL) {
        const char *unpacked = strstr(line, "; unpacked: ");
        unsigned some[2] = {0};

        if (unpacked != NULL)
            assert_int_equal(sscanf(unpacked, "; unpacked: %u receives in place, %u with copies, ",
                                    &some[0], &some[1]),
                             2);
        *in_place += some[0];
        *copied += some[1];
    }
    fclose(file);
}

/* --- tests ----------------------------------------------------------------------------------- */

TEST(test_nothing_is_copied)
{
    static const uint64_t sizes[] = {EAGER_LIMIT + 1, 70000, 200000, 12345};
    struct net_request *requests[4];
    struct unpack_pair pair;
    struct devmem_pool *nic;
    uint64_t bytes = 0;

    unpack_open(&pair, &options, 4096);
    nic = nic_of(&pair);
    for (uint64_t i = 0; i < 4; i++) {
        unpack_exchange(&pair, i, sizes[i], &requests[i]);
        bytes += sizes[i];
    }
    assert_true(pages_out(nic) * SOFT_DEVMEM_PAGE >= bytes);
    assert_int_equal(counts_of(&pair).in_place, 4);
    assert_int_equal(counts_of(&pair).in_place_bytes, bytes);
    assert_int_equal(counts_of(&pair).copied, 0);
    assert_int_equal(counts_of(&pair).copied_bytes, 0);
    for (int i = 3; i >= 0; i--)
        assert_success(net_consumed(requests[i]));
    assert_int_equal(pages_out(nic), 0);
    unpack_close(&pair);
    devmem_pool_give(nic);
}

/* What is below the eager limit comes beside the payload, in ordinary memory. */
TEST(test_small_messages_are_copied)
{
    struct net_request *request;
    struct unpack_pair pair;
    unsigned in_place[2];
    unsigned copied[2];

    read_stats(&in_place[0], &copied[0]);
    unpack_open(&pair, &options, 4096);
    unpack_exchange(&pair, 0, 100, &request);
    unpack_exchange(&pair, 1, 10000, &request);
    assert_int_equal(counts_of(&pair).in_place, 1);
    assert_int_equal(counts_of(&pair).copied, 1);
    assert_int_equal(counts_of(&pair).copied_bytes, 100);
    unpack_close(&pair);
    read_stats(&in_place[1], &copied[1]);
    assert_int_equal(in_place[1] - in_place[0], 1);
    assert_int_equal(copied[1] - copied[0], 1);
}

/* It goes on by copies, keeps what it may, and takes nothing away from the other. */
TEST(test_one_comm_never_consumes)
{
    struct unpack_pair hoarder;
    struct unpack_pair other;
    struct net_request *request;
    struct devmem_pool *nic;
    uint64_t kept;

    unpack_open(&hoarder, &options, 4096);
    unpack_open(&other, &options, 4096);
    nic = nic_of(&hoarder);
    assert_ptr_equal(other.comms.receiver->gpu->rx_pool, nic);
    for (uint64_t i = 0; i < DEPTH; i++)
        unpack_exchange(&hoarder, i, 400000, &request);
    kept = pages_out(nic);
    assert_in_range(kept, 1, quota(nic, 2));
    assert_true(counts_of(&hoarder).in_place > 0);
    assert_true(counts_of(&hoarder).copied > 0);
    for (uint64_t i = 0; i < 3 * DEPTH; i++) {
        unpack_exchange(&other, i, 70000, &request);
        assert_success(net_consumed(request));
    }
    assert_int_equal(counts_of(&other).in_place, 3 * DEPTH);
    assert_int_equal(counts_of(&other).copied, 0);
    assert_int_equal(pages_out(nic), kept);
    unpack_close(&hoarder);
    assert_int_equal(pages_out(nic), 0);
    unpack_exchange(&other, 3 * DEPTH, 70000, &request);
    unpack_close(&other);
    assert_int_equal(pages_out(nic), 0);
    devmem_pool_give(nic);
}

/* However many there are, three quarters of the pages are never kept, and all of them go on. */
TEST(test_no_comm_consumes)
{
    enum { COMMS = 6 };
    static struct unpack_pair pairs[COMMS];
    struct net_request *request;
    struct devmem_pool *nic;

    for (int i = 0; i < COMMS; i++)
        unpack_open(&pairs[i], &options, 4096);
    nic = nic_of(&pairs[0]);
    for (uint64_t k = 0; k < DEPTH / 2; k++)
        for (int i = 0; i < COMMS; i++)
            unpack_exchange(&pairs[i], k, 300000, &request);
    assert_in_range(pages_out(nic), 1, pages_of(nic) / 2);
    for (int i = 0; i < COMMS; i++) {
        assert_true(counts_of(&pairs[i]).in_place_bytes > 0);
        unpack_close(&pairs[i]);
    }
    assert_int_equal(pages_out(nic), 0);
    devmem_pool_give(nic);
}

/* The largest receives, in more pieces than their slots take descriptors, or in too many pages. */
TEST(test_too_many_pieces)
{
    struct net_request *requests[2];
    struct unpack_pair pair;
    struct devmem_pool *nic;

    unpack_open(&pair, &options, 4096);
    nic = nic_of(&pair);
    for (uint64_t i = 0; i < 2; i++)
        unpack_exchange(&pair, i, MOST, &requests[i]);
    assert_int_equal(counts_of(&pair).copied, 2);
    assert_true(counts_of(&pair).in_place_bytes > 0);
    assert_true(counts_of(&pair).copied_bytes > 0);
    assert_success(net_consumed(requests[1]));
    assert_success(net_consumed(requests[0]));
    assert_int_equal(pages_out(nic), 0);
    unpack_exchange(&pair, 2, 100000, &requests[0]);
    assert_int_equal(counts_of(&pair).in_place, 1);
    unpack_close(&pair);
    devmem_pool_give(nic);
}

/*
 * Its sender goes when a part has arrived: that is given back with the error. Where calls move
 * everything, no call moves all of the message; elsewhere it may be done by then.
 */
TEST(test_a_receive_that_fails)
{
    struct net_link_options one_lane = options;
    const char *threads = getenv("UCCL_TCPX_THREADS");
    struct net_request *request;
    struct net_request *send;
    struct unpack_pair pair;
    struct devmem_pool *nic;
    bool sent = false;
    bool done = false;
    int result;

    one_lane.sockets = 2;
    unpack_open(&pair, &one_lane, 4096);
    nic = nic_of(&pair);
    assert_success(unpack_post(&pair, 0, MOST, &request));
    send = must_send(pair.comms.sender, text_of(&world.text, 0), MOST, 0);
    while (pages_out(nic) == 0 && !done) {
        if (!sent)
            assert_success(net_test(send, &sent, NULL));
        assert_success(net_test(request, &done, NULL));
    }
    comm_end(&pair.comms.sender);
    result = done ? TCPX_SUCCESS : net_wait(request, deadline_after_ms(LIMIT_MS), &done, NULL);
    if (threads != NULL && strcmp(threads, "0") == 0)
        assert_int_not_equal(result, TCPX_SUCCESS);
    unpack_close(&pair);
    assert_int_equal(pages_out(nic), 0);
    devmem_pool_give(nic);
}

SUITE(.name = "net_in_place", .begin = begin, .set_up = set_up, .tear_down = tear_down);
