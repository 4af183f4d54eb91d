/*
 * UCCL_TCPX_STATS: lines at the end of a file, one for each peer, as often as was asked for, and a
 * last one when the last comm is closed, so that no byte is missing from them.
 */
#include "tests/support/pair.h"
#include "tests/unit/tree.h"

#include <stdlib.h>

enum { BYTES = 3 << 20 };

static uint8_t sent_bytes[BYTES];
static uint8_t arrived[BYTES];

static struct pair open_pair(void)
{
    return pair_open(PAIR_OPTIONS(.match = WIRE_MATCH_FIFO, .eager_limit = 8192,
                                  .largest_slice = 1 << 20, .sockets = 2));
}

static void move(struct pair *pair)
{
    pair_move(pair, sent_bytes, arrived, BYTES, 0);
    assert_memory_equal(arrived, sent_bytes, BYTES);
}

/* Of all lines. */
struct sums {
    unsigned lines;
    unsigned comms; /* of the last line */
    unsigned connections;
    double sent;
    double received;
};

static struct sums read_lines(void)
{
    FILE *file = fopen(tree_path("/stats"), "r");
    struct sums sums = {0};
    char line[1024];

    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        long pid;
        double sent;
        double received;

        assert_int_equal(sscanf(line,
                                "[TCPX] %ld 127.0.0.1: sent %lf GB/s, received %lf GB/s, %u comms, "
                                "%u connections, %*u retransmitted; senders:",
                                &pid, &sent, &received, &sums.comms, &sums.connections),
                         5);
        assert_int_equal(pid, getpid());
        assert_non_null(strstr(line, "receivers: no data "));
        sums.lines++;
        sums.sent += sent;
        sums.received += received;
    }
    fclose(file);
    return sums;
}

TEST(test_lines)
{
    struct pair pair = open_pair();
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    struct sums sums = {0};

    while (sums.lines < 3 && !deadline_passed(deadline)) {
        for (int i = 0; i < 50; i++)
            move(&pair);
        sums = read_lines();
    }
    assert_true(sums.lines >= 3);
    assert_true(sums.sent > 0);
    assert_true(sums.received > 0);
    /* both ends are in this process */
    assert_int_equal(sums.comms, 2);
    assert_int_equal(sums.connections, 6);
    pair_close(&pair);
}

/* A comm that lives for less than a second is in the lines, too. */
TEST(test_the_last_line)
{
    struct sums before = read_lines();
    struct pair pair = open_pair();
    struct sums after;

    for (int i = 0; i < 20; i++)
        move(&pair);
    pair_close(&pair);
    after = read_lines();
    assert_true(after.lines > before.lines);
    assert_true(after.sent > before.sent);
    assert_true(after.received > before.received);
    assert_int_equal(after.comms, 2);
}

/* Threads that have been joined leave the list of the system a moment later. */
TEST(test_no_thread_is_left)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);

    while (threads_called("tcpx-") > 0 && !deadline_passed(deadline))
        nap_us(100);
    assert_int_equal(threads_called("tcpx-"), 0);
}

static int begin_suite(void)
{
    char text[256];

    if (tree_make() != 0)
        return 1;
    snprintf(text, sizeof text, "1:%s", tree_path("/stats"));
    setenv("UCCL_TCPX_STATS", text, 1);
    fill_bytes(sent_bytes, sizeof sent_bytes);
    return 0;
}

SUITE(.name = "lines about peers", .begin = begin_suite, .tear_down = tree_remove);
