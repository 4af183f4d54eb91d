/*
 * What the coordinator of a matrix and its ranks tell each other: messages over a control
 * connection (session/control.h). Everything in them is little endian. A rank says who it is, gets
 * the plan, says where its session listens and the key of its memory; from then on each order has
 * one answer, but for MATRIX_MEASURE_ALL, which has one for each rank that this one has a session
 * with, and MATRIX_STAY and MATRIX_END, which have none.
 */
#ifndef TCPX_TOOLS_MATRIX_TALK_H
#define TCPX_TOOLS_MATRIX_TALK_H

#include "tools/matrix.h"

enum matrix_message {
    MATRIX_HELLO = 48, /* rank */
    MATRIX_PLAN,       /* coordinator */
    MATRIX_READY,      /* rank */
    MATRIX_ORDER,      /* coordinator */
    MATRIX_ANSWER,     /* rank */
};

enum {
    MATRIX_HELLO_BYTES = 8 + 32 + 2 * MATRIX_NAME_BYTES,
    MATRIX_PLAN_BYTES = 32,
    MATRIX_READY_BYTES = 8 + TCPX_KEY_BYTES,
    MATRIX_ORDER_BYTES = 16 + TCPX_KEY_BYTES + MATRIX_ADDRESS_BYTES,
    MATRIX_ANSWER_BYTES = 16 + MATRIX_WHY_BYTES,
    MATRIX_LARGEST = 512,
};

struct matrix_hello {
    uint32_t rank;
    char version[32];
    char host[MATRIX_NAME_BYTES];
    char memory[MATRIX_NAME_BYTES];
};

struct matrix_ready {
    uint16_t port;
    uint8_t key[TCPX_KEY_BYTES];
};

enum matrix_action {
    MATRIX_STAY,        /* nothing to do, but the coordinator is there */
    MATRIX_CONNECT,     /* to a peer that accepts */
    MATRIX_ACCEPT,      /* a peer */
    MATRIX_MEASURE,     /* reads of one peer */
    MATRIX_MEASURE_ALL, /* reads of all peers, at once */
    MATRIX_END,
};

struct matrix_order {
    uint32_t action;
    uint32_t peer;
    uint16_t port;                      /* of CONNECT */
    char address[MATRIX_ADDRESS_BYTES]; /* of CONNECT */
    uint8_t key[TCPX_KEY_BYTES];        /* of CONNECT and ACCEPT: the peer's */
};

struct matrix_answer {
    uint32_t peer;
    double rate;                /* of measurements; 0 of other orders */
    char why[MATRIX_WHY_BYTES]; /* "": it went well */
};

void matrix_hello_encode(const struct matrix_hello *hello, uint8_t bytes[MATRIX_HELLO_BYTES]);
void matrix_plan_encode(const struct matrix_plan *plan, uint8_t bytes[MATRIX_PLAN_BYTES]);
void matrix_ready_encode(const struct matrix_ready *ready, uint8_t bytes[MATRIX_READY_BYTES]);
void matrix_order_encode(const struct matrix_order *order, uint8_t bytes[MATRIX_ORDER_BYTES]);
void matrix_answer_encode(const struct matrix_answer *answer, uint8_t bytes[MATRIX_ANSWER_BYTES]);

/* All fail in words on what no tcpx would have sent, and write nothing then. `ranks`: how many. */
MUST_CHECK int matrix_hello_decode(const uint8_t *bytes, size_t length, uint32_t ranks,
                                   struct matrix_hello *hello);
MUST_CHECK int matrix_plan_decode(const uint8_t *bytes, size_t length, struct matrix_plan *plan);
MUST_CHECK int matrix_ready_decode(const uint8_t *bytes, size_t length, struct matrix_ready *ready);
MUST_CHECK int matrix_order_decode(const uint8_t *bytes, size_t length, uint32_t ranks,
                                   struct matrix_order *order);
MUST_CHECK int matrix_answer_decode(const uint8_t *bytes, size_t length, uint32_t ranks,
                                    struct matrix_answer *answer);

#endif
