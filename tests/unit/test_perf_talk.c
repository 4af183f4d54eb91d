/*
 * What the two ends of a measurement tell each other: what was said is what is heard, and what no
 * tcpx would say is refused in words. The program's own file is part of this test, as it is no part
 * of the library.
 */
#include "tests/unit/checks.h"
#include "tools/perf_talk.c" /* NOLINT(bugprone-suspicious-include) */

static struct perf_plan some_plan(void)
{
    return (struct perf_plan){.way = PERF_BOTH_WAYS,
                              .size_count = 3,
                              .sizes = {1, 4096, PERF_MOST_BYTES},
                              .iterations = 17,
                              .warm_up = 2,
                              .spoilt = 5,
                              .chunk_bytes = 524288,
                              .channels = 4,
                              .pieces = 1000,
                              .operation = PERF_WRITES,
                              .accesses = 7,
                              .check = PERF_CHECK_FIRST,
                              .time_ms = 3000};
}

static const struct perf_self some_self = {.host = "node7", .memory = "GPU 0, some"};

TEST(test_a_plan)
{
    struct perf_plan plan = some_plan();
    struct perf_plan heard;
    struct perf_self self;
    uint8_t bytes[PERF_PLAN_BYTES];

    perf_plan_encode(&plan, &some_self, bytes);
    assert_int_equal(perf_plan_decode(bytes, sizeof bytes, &heard, &self), TCPX_SUCCESS);
    assert_int_equal(heard.way, plan.way);
    assert_int_equal(heard.size_count, plan.size_count);
    assert_memory_equal(heard.sizes, plan.sizes, sizeof plan.sizes);
    assert_int_equal(heard.iterations, plan.iterations);
    assert_int_equal(heard.warm_up, plan.warm_up);
    assert_int_equal(heard.spoilt, plan.spoilt);
    assert_int_equal(heard.chunk_bytes, plan.chunk_bytes);
    assert_int_equal(heard.channels, plan.channels);
    assert_int_equal(heard.pieces, plan.pieces);
    assert_int_equal(heard.operation, plan.operation);
    assert_int_equal(heard.accesses, plan.accesses);
    assert_int_equal(heard.check, plan.check);
    assert_int_equal(heard.time_ms, plan.time_ms);
    assert_string_equal(self.host, some_self.host);
    assert_string_equal(self.memory, some_self.memory);
}

/* A plan with one thing changed. */
static void assert_refused(size_t at, uint64_t value, size_t size, const char *words)
{
    struct perf_plan plan = some_plan();
    struct perf_self self;
    uint8_t bytes[PERF_PLAN_BYTES];

    perf_plan_encode(&plan, &some_self, bytes);
    value = htole64(value);
    memcpy(bytes + at, &value, size);
    assert_int_equal(perf_plan_decode(bytes, sizeof bytes, &plan, &self), TCPX_REMOTE_ERROR);
    expect_text(words);
}

TEST(test_plans_that_are_none)
{
    struct perf_plan plan;
    struct perf_self self;
    uint8_t bytes[PERF_PLAN_BYTES + 1] = {0};

    assert_refused(0, 2, 4, "a plan of version 2, expected 3");
    assert_refused(4, 3, 4, "way is 3");
    assert_refused(4, 0xffffffff, 4, "way is 4294967295");
    assert_refused(8, 0, 4, "0 sizes");
    assert_refused(8, 65, 4, "65 sizes");
    assert_refused(12, 65, 4, "65 channels");
    assert_refused(24, 1000001, 8, "1000001");
    assert_refused(32, 1000002, 8, "1000002");
    assert_refused(48, 1000001, 4, "1000001 pieces");
    assert_refused(52, 3, 4, "operation is 3");
    assert_refused(52, PERF_SENDS, 4, "7 accesses for operation 0");
    assert_refused(56, 0, 4, "0 accesses for operation 2");
    assert_refused(56, 1001, 4, "1001000 parts");
    assert_refused(56, 0xffffffff, 4, "4294967295000 parts");
    assert_refused(60, 3, 4, "the plan's check is 3, 0 to 2 are known");
    assert_refused(64, 3600001, 8, "3600001 ms");
    assert_refused(72 + 128, 0, 8, "a size of 0");
    assert_refused(72 + 128 + 16, PERF_MOST_BYTES + 1, 8, "a size of 4398046511105");
    assert_refused(8, 4, 4, "a size of 0");
    for (size_t length = 0; length <= sizeof bytes; length++)
        if (length != PERF_PLAN_BYTES) {
            assert_int_equal(perf_plan_decode(bytes, length, &plan, &self), TCPX_REMOTE_ERROR);
            assert_non_null(strstr(error_text(), "expected 712"));
        }
}

TEST(test_reads_are_no_ping_pong)
{
    struct perf_plan plan = some_plan();
    struct perf_self self;
    uint8_t bytes[PERF_PLAN_BYTES];

    plan.operation = PERF_READS;
    perf_plan_encode(&plan, &some_self, bytes);
    assert_int_equal(perf_plan_decode(bytes, sizeof bytes, &plan, &self), TCPX_SUCCESS);
    plan.way = PERF_PING_PONG;
    perf_plan_encode(&plan, &some_self, bytes);
    assert_int_equal(perf_plan_decode(bytes, sizeof bytes, &plan, &self), TCPX_REMOTE_ERROR);
    expect_text("reads in ping-pong");
}

TEST(test_keys)
{
    assert_int_equal(perf_key_check(TCPX_KEY_BYTES), TCPX_SUCCESS);
    assert_int_equal(perf_key_check(TCPX_KEY_BYTES - 1), TCPX_REMOTE_ERROR);
    expect_text("a key of 63 bytes, expected 64");
    assert_int_equal(perf_key_check(0), TCPX_REMOTE_ERROR);
}

TEST(test_where_to_meet)
{
    uint8_t bytes[PERF_MEET_BYTES];
    struct perf_self self;
    uint16_t port = 0;

    perf_meet_encode(12345, &some_self, bytes);
    assert_int_equal(perf_meet_decode(bytes, sizeof bytes, &port, &self), TCPX_SUCCESS);
    assert_int_equal(port, 12345);
    assert_string_equal(self.host, "node7");
    assert_int_equal(perf_meet_decode(bytes, sizeof bytes - 1, &port, &self), TCPX_REMOTE_ERROR);
    memset(bytes, 0, 4);
    assert_int_equal(perf_meet_decode(bytes, sizeof bytes, &port, &self), TCPX_REMOTE_ERROR);
    bytes[2] = 1;
    assert_int_equal(perf_meet_decode(bytes, sizeof bytes, &port, &self), TCPX_REMOTE_ERROR);
}

/* They are printed: a terminal must not be told anything by them. */
TEST(test_names_are_harmless)
{
    uint8_t bytes[PERF_MEET_BYTES];
    struct perf_self self = {.host = "a\033[2Jb\n", .memory = "x"};
    uint16_t port = 0;

    perf_meet_encode(1, &self, bytes);
    assert_int_equal(perf_meet_decode(bytes, sizeof bytes, &port, &self), TCPX_SUCCESS);
    assert_string_equal(self.host, "a?[2Jb?");
    memset(bytes + 8, 'y', 128); /* no end */
    assert_int_equal(perf_meet_decode(bytes, sizeof bytes, &port, &self), TCPX_SUCCESS);
    assert_int_equal(strlen(self.host), 63);
    assert_int_equal(strlen(self.memory), 63);
}

/* Both are shown: what is not printable becomes a question mark. */
TEST(test_paths)
{
    struct perf_path path = {.text = "over eth0\n", .unpack = "kernel", .line_mbps = 100000};
    struct perf_path heard;
    uint8_t bytes[PERF_PATH_BYTES];

    perf_path_encode(&path, bytes);
    assert_int_equal(perf_path_decode(bytes, sizeof bytes, &heard), TCPX_SUCCESS);
    assert_string_equal(heard.text, "over eth0?");
    assert_string_equal(heard.unpack, "kernel");
    assert_int_equal(heard.line_mbps, 100000);
    assert_int_equal(perf_path_decode(bytes, sizeof bytes - 1, &heard), TCPX_REMOTE_ERROR);
    memset(bytes + 4, 'y', sizeof bytes - 4); /* no end */
    assert_int_equal(perf_path_decode(bytes, sizeof bytes, &heard), TCPX_SUCCESS);
    assert_int_equal(strlen(heard.text), sizeof heard.text - 1);
    assert_int_equal(strlen(heard.unpack), sizeof heard.unpack - 1);
}

TEST(test_steps)
{
    for (unsigned i = 0; i < 4; i++) {
        struct perf_step step = {.iteration = 123456, .counts = i & 1, .last = i & 2};
        struct perf_step heard = perf_step_decode(perf_step_encode(&step));

        assert_int_equal(heard.iteration, step.iteration);
        assert_int_equal(heard.counts, step.counts);
        assert_int_equal(heard.last, step.last);
    }
}

TEST(test_rows)
{
    struct perf_row row = {.bytes = 4096,
                           .iterations = 10,
                           .least_us = 1,
                           .median_us = 2.5,
                           .p99_us = 3,
                           .p999_us = 4,
                           .most_us = 5,
                           .mean_us = 2.75,
                           .gigabytes_per_second = 1.6,
                           .stages = {1, 2, 3, 4, 5, 6}};
    struct perf_row heard = {0};
    uint8_t bytes[PERF_ROW_BYTES];

    perf_row_encode(&row, bytes);
    assert_int_equal(perf_row_decode(bytes, sizeof bytes, &heard), TCPX_SUCCESS);
    assert_memory_equal(&heard, &row, sizeof row);
    assert_int_equal(perf_row_decode(bytes, sizeof bytes - 1, &heard), TCPX_REMOTE_ERROR);
    for (size_t i = 0; i < 13; i++) {
        static const double wrong[] = {-1, 1.0 / 0.0, 0.0 / 0.0};

        for (size_t k = 0; k < 3; k++) {
            perf_row_encode(&row, bytes);
            memcpy(bytes + 16 + 8 * i, &wrong[k], 8);
            assert_int_equal(perf_row_decode(bytes, sizeof bytes, &heard), TCPX_REMOTE_ERROR);
        }
    }
}

SUITE(.name = "perf talk");
