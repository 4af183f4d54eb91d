/*
 * What the coordinator of a matrix and its ranks tell each other: what was said is what is heard,
 * and what no tcpx would say is refused in words. The program's own file is part of this test.
 */
#include "tests/unit/checks.h"
#include "tools/matrix_talk.c" /* NOLINT(bugprone-suspicious-include) */

enum { RANKS = 8 };

static void assert_refused(int outcome, const char *words)
{
    assert_int_equal(outcome, TCPX_REMOTE_ERROR);
    assert_non_null(strstr(tcpx_last_error(), words));
}

TEST(test_hello)
{
    const struct matrix_hello hello = {
        .rank = 7, .version = "1.2.3", .host = "node\n7", .memory = "GPU 1, some"};
    struct matrix_hello heard = {0};
    uint8_t bytes[MATRIX_HELLO_BYTES];

    matrix_hello_encode(&hello, bytes);
    assert_int_equal(matrix_hello_decode(bytes, sizeof bytes, RANKS, &heard), TCPX_SUCCESS);
    assert_int_equal(heard.rank, 7);
    assert_string_equal(heard.version, "1.2.3");
    assert_string_equal(heard.host, "node?7");
    assert_string_equal(heard.memory, "GPU 1, some");
    assert_refused(matrix_hello_decode(bytes, sizeof bytes, 7, &heard), "rank 7, but there are 7");
    assert_refused(matrix_hello_decode(bytes, sizeof bytes - 1, RANKS, &heard), "is another");
    bytes[0]++;
    assert_refused(matrix_hello_decode(bytes, sizeof bytes, RANKS, &heard), "install the same");
}

TEST(test_plan)
{
    struct matrix_plan plan = {.run = UINT64_MAX,
                               .bytes = MATRIX_MOST_BYTES,
                               .ranks = MATRIX_MOST_RANKS,
                               .reads = 3,
                               .span_ms = 2000,
                               .timeout_ms = 1000};
    struct matrix_plan heard = {0};
    uint8_t bytes[MATRIX_PLAN_BYTES];

    matrix_plan_encode(&plan, bytes);
    assert_int_equal(matrix_plan_decode(bytes, sizeof bytes, &heard), TCPX_SUCCESS);
    assert_true(heard.run == plan.run && heard.bytes == plan.bytes);
    assert_true(heard.ranks == plan.ranks && heard.reads == 3 && heard.span_ms == 2000);
    assert_int_equal(heard.timeout_ms, 1000);
    assert_refused(matrix_plan_decode(bytes, sizeof bytes + 1, &heard), "a plan of 33 bytes");
    plan.bytes++;
    matrix_plan_encode(&plan, bytes);
    assert_refused(matrix_plan_decode(bytes, sizeof bytes, &heard), "bytes, possible are");
    plan.bytes = 1;
    plan.ranks++;
    matrix_plan_encode(&plan, bytes);
    assert_refused(matrix_plan_decode(bytes, sizeof bytes, &heard), "129 ranks");
    plan.ranks = 2;
    plan.timeout_ms = 0;
    matrix_plan_encode(&plan, bytes);
    assert_refused(matrix_plan_decode(bytes, sizeof bytes, &heard), "patience");
}

TEST(test_ready)
{
    struct matrix_ready ready = {.port = 4711, .key = {1, 2, 3}};
    struct matrix_ready heard = {0};
    uint8_t bytes[MATRIX_READY_BYTES];

    matrix_ready_encode(&ready, bytes);
    assert_int_equal(matrix_ready_decode(bytes, sizeof bytes, &heard), TCPX_SUCCESS);
    assert_int_equal(heard.port, 4711);
    assert_memory_equal(heard.key, ready.key, sizeof ready.key);
    ready.port = 0;
    matrix_ready_encode(&ready, bytes);
    assert_refused(matrix_ready_decode(bytes, sizeof bytes, &heard), "port is 0");
}

TEST(test_order)
{
    struct matrix_order order = {
        .action = MATRIX_CONNECT, .peer = 3, .port = 65535, .address = "[::1]", .key = {9}};
    struct matrix_order heard = {0};
    uint8_t bytes[MATRIX_ORDER_BYTES];

    matrix_order_encode(&order, bytes);
    assert_int_equal(matrix_order_decode(bytes, sizeof bytes, RANKS, &heard), TCPX_SUCCESS);
    assert_true(heard.action == MATRIX_CONNECT && heard.peer == 3 && heard.port == 65535);
    assert_string_equal(heard.address, "[::1]");
    assert_int_equal(heard.key[0], 9);
    assert_refused(matrix_order_decode(bytes, sizeof bytes, 3, &heard), "about rank 3");
    order.port = 0;
    matrix_order_encode(&order, bytes);
    assert_refused(matrix_order_decode(bytes, sizeof bytes, RANKS, &heard), "port 0");
    order.action = MATRIX_END + 1;
    matrix_order_encode(&order, bytes);
    assert_refused(matrix_order_decode(bytes, sizeof bytes, RANKS, &heard), "order 6");
}

TEST(test_answer)
{
    struct matrix_answer answer = {.peer = 2, .rate = 12.5};
    struct matrix_answer heard = {0};
    uint8_t bytes[MATRIX_ANSWER_BYTES];

    snprintf(answer.why, sizeof answer.why, "at 0x7fffdeadbeef it failed");
    matrix_answer_encode(&answer, bytes);
    assert_int_equal(matrix_answer_decode(bytes, sizeof bytes, RANKS, &heard), TCPX_SUCCESS);
    assert_true(heard.peer == 2 && heard.rate > 12.4 && heard.rate < 12.6);
    assert_string_equal(heard.why, "at 0x... it failed");
    answer.rate = -1;
    matrix_answer_encode(&answer, bytes);
    assert_refused(matrix_answer_decode(bytes, sizeof bytes, RANKS, &heard), "rate is none");
    answer.rate = INFINITY;
    matrix_answer_encode(&answer, bytes);
    assert_refused(matrix_answer_decode(bytes, sizeof bytes, RANKS, &heard), "rate is none");
}

SUITE(.name = "what the ranks of a matrix tell each other");
