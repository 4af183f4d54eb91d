/*
 * Fuzzes what the coordinator of a matrix and its ranks believe of each other: an input is a byte
 * that says which message follows, and its bytes. What is accepted and written again is accepted
 * again; texts are printable, and numbers within their bounds. A broken promise ends the program.
 */
#include "tests/fuzz/fuzz.h"

#include "tools/matrix_talk.c" /* NOLINT(bugprone-suspicious-include) */

enum { RANKS = 8 };

static void promise_text(const char *text, size_t room)
{
    size_t length = strnlen(text, room);

    PROMISE(length < room);
    for (size_t i = 0; i < length; i++)
        PROMISE((unsigned char)text[i] >= 0x20 && text[i] != 0x7f);
}

static void try_hello(const uint8_t *bytes, size_t size)
{
    uint8_t again[MATRIX_HELLO_BYTES];
    struct matrix_hello hello;

    memset(&hello, UNTOUCHED, sizeof hello);
    if (!is_taken(matrix_hello_decode(bytes, size, RANKS, &hello) == TCPX_SUCCESS, &hello,
                  sizeof hello))
        return;
    PROMISE(hello.rank < RANKS);
    promise_text(hello.version, sizeof hello.version);
    promise_text(hello.host, sizeof hello.host);
    promise_text(hello.memory, sizeof hello.memory);
    matrix_hello_encode(&hello, again);
    PROMISE(matrix_hello_decode(again, sizeof again, RANKS, &hello) == TCPX_SUCCESS);
}

static void try_plan(const uint8_t *bytes, size_t size)
{
    uint8_t again[MATRIX_PLAN_BYTES];
    struct matrix_plan plan;

    memset(&plan, UNTOUCHED, sizeof plan);
    if (!is_taken(matrix_plan_decode(bytes, size, &plan) == TCPX_SUCCESS, &plan, sizeof plan))
        return;
    PROMISE(plan.bytes >= 1 && plan.bytes <= MATRIX_MOST_BYTES);
    PROMISE(plan.ranks >= 2 && plan.ranks <= MATRIX_MOST_RANKS);
    PROMISE(plan.reads >= 1 && plan.reads <= MATRIX_MOST_READS && plan.timeout_ms >= 1000);
    matrix_plan_encode(&plan, again);
    PROMISE(memcmp(again, bytes, sizeof again) == 0);
}

static void try_ready(const uint8_t *bytes, size_t size)
{
    struct matrix_ready ready;

    memset(&ready, UNTOUCHED, sizeof ready);
    if (is_taken(matrix_ready_decode(bytes, size, &ready) == TCPX_SUCCESS, &ready, sizeof ready))
        PROMISE(ready.port != 0);
}

static void try_order(const uint8_t *bytes, size_t size)
{
    uint8_t again[MATRIX_ORDER_BYTES];
    struct matrix_order order;

    memset(&order, UNTOUCHED, sizeof order);
    if (!is_taken(matrix_order_decode(bytes, size, RANKS, &order) == TCPX_SUCCESS, &order,
                  sizeof order))
        return;
    PROMISE(order.action <= MATRIX_END && order.peer < RANKS);
    PROMISE(order.action != MATRIX_CONNECT || order.port != 0);
    promise_text(order.address, sizeof order.address);
    matrix_order_encode(&order, again);
    PROMISE(matrix_order_decode(again, sizeof again, RANKS, &order) == TCPX_SUCCESS);
}

static void try_answer(const uint8_t *bytes, size_t size)
{
    uint8_t again[MATRIX_ANSWER_BYTES];
    struct matrix_answer answer;

    memset(&answer, UNTOUCHED, sizeof answer);
    if (!is_taken(matrix_answer_decode(bytes, size, RANKS, &answer) == TCPX_SUCCESS, &answer,
                  sizeof answer))
        return;
    PROMISE(answer.peer < RANKS && answer.rate >= 0 && isfinite(answer.rate));
    promise_text(answer.why, sizeof answer.why);
    matrix_answer_encode(&answer, again);
    PROMISE(matrix_answer_decode(again, sizeof again, RANKS, &answer) == TCPX_SUCCESS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const tries[])(const uint8_t *, size_t) = {try_hello, try_plan, try_ready,
                                                             try_order, try_answer};
    uint8_t *bytes;

    if (size == 0)
        return 0;
    bytes = exact(data + 1, size - 1, size - 1);
    tries[data[0] % 5](bytes, size - 1);
    free(bytes);
    return 0;
}
