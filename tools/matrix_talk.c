/* The codec of the messages of a matrix. */
#include "tools/matrix_talk.h"

#include "base/text.h"

#include <endian.h>
#include <math.h>
#include <string.h>

enum { MATRIX_TALK_VERSION = 1, LEAST_SPAN = 100, MOST_SPAN = 3600000, MOST_TIMEOUT = 3600000 };

struct hello_layout {
    uint32_t talk_version;
    uint32_t rank;
    char version[32];
    char host[MATRIX_NAME_BYTES];
    char memory[MATRIX_NAME_BYTES];
} __attribute__((packed));

struct plan_layout {
    uint64_t run;
    uint64_t bytes;
    uint32_t ranks;
    uint32_t reads;
    uint32_t span_ms;
    uint32_t timeout_ms;
} __attribute__((packed));

struct ready_layout {
    uint32_t port;
    uint32_t nothing;
    uint8_t key[TCPX_KEY_BYTES];
} __attribute__((packed));

struct order_layout {
    uint32_t action;
    uint32_t peer;
    uint32_t port;
    uint32_t nothing;
    uint8_t key[TCPX_KEY_BYTES];
    char address[MATRIX_ADDRESS_BYTES];
} __attribute__((packed));

struct answer_layout {
    uint32_t peer;
    uint32_t nothing;
    uint64_t rate; /* the bits of a double */
    char why[MATRIX_WHY_BYTES];
} __attribute__((packed));

_Static_assert(sizeof(struct hello_layout) == MATRIX_HELLO_BYTES, "as the header says");
_Static_assert(sizeof(struct plan_layout) == MATRIX_PLAN_BYTES, "as the header says");
_Static_assert(sizeof(struct ready_layout) == MATRIX_READY_BYTES, "as the header says");
_Static_assert(sizeof(struct order_layout) == MATRIX_ORDER_BYTES, "as the header says");
_Static_assert(sizeof(struct answer_layout) == MATRIX_ANSWER_BYTES, "as the header says");

/* --- parts --------------------------------------------------------------------------------- */

/* `to` is full of zeros. */
static void matrix_text_write(const char *from, char *to, size_t room)
{
    memcpy(to, from, strnlen(from, room - 1));
}

/* They are shown, so they have no control characters. */
static void matrix_text_read(const char *from, char *to, size_t room)
{
    text_printable(from, strnlen(from, room - 1), to, room);
}

static int matrix_check_length(const char *what, size_t length, size_t expected)
{
    if (length == expected)
        return TCPX_SUCCESS;
    return error_set(TCPX_REMOTE_ERROR, "%s of %zu bytes, expected %zu: the other tcpx is another",
                     what, length, expected);
}

static int matrix_check_rank(const char *what, uint32_t rank, uint32_t ranks)
{
    if (rank < ranks)
        return TCPX_SUCCESS;
    return error_set(TCPX_REMOTE_ERROR, "%s rank %u, but there are %u ranks, counted from 0", what,
                     rank, ranks);
}

/* --- messages ------------------------------------------------------------------------------ */

void matrix_hello_encode(const struct matrix_hello *hello, uint8_t bytes[MATRIX_HELLO_BYTES])
{
    struct hello_layout layout = {.talk_version = htole32(MATRIX_TALK_VERSION),
                                  .rank = htole32(hello->rank)};

    matrix_text_write(hello->version, layout.version, sizeof layout.version);
    matrix_text_write(hello->host, layout.host, sizeof layout.host);
    matrix_text_write(hello->memory, layout.memory, sizeof layout.memory);
    memcpy(bytes, &layout, sizeof layout);
}

int matrix_hello_decode(const uint8_t *bytes, size_t length, uint32_t ranks,
                        struct matrix_hello *hello)
{
    struct hello_layout layout;
    int result = matrix_check_length("a rank's greeting", length, sizeof layout);

    if (result != TCPX_SUCCESS)
        return result;
    memcpy(&layout, bytes, sizeof layout);
    if (le32toh(layout.talk_version) != MATRIX_TALK_VERSION)
        return error_set(TCPX_REMOTE_ERROR,
                         "a rank that speaks version %u of the matrix, and this tcpx version %d: "
                         "install the same tcpx on all hosts",
                         le32toh(layout.talk_version), MATRIX_TALK_VERSION);
    result = matrix_check_rank("this is", le32toh(layout.rank), ranks);
    if (result != TCPX_SUCCESS)
        return result;
    *hello = (struct matrix_hello){.rank = le32toh(layout.rank)};
    matrix_text_read(layout.version, hello->version, sizeof hello->version);
    matrix_text_read(layout.host, hello->host, sizeof hello->host);
    matrix_text_read(layout.memory, hello->memory, sizeof hello->memory);
    return TCPX_SUCCESS;
}

void matrix_plan_encode(const struct matrix_plan *plan, uint8_t bytes[MATRIX_PLAN_BYTES])
{
    const struct plan_layout layout = {.run = htole64(plan->run),
                                       .bytes = htole64(plan->bytes),
                                       .ranks = htole32(plan->ranks),
                                       .reads = htole32(plan->reads),
                                       .span_ms = htole32(plan->span_ms),
                                       .timeout_ms = htole32(plan->timeout_ms)};

    memcpy(bytes, &layout, sizeof layout);
}

static int matrix_check_number(const char *what, uint64_t number, uint64_t least, uint64_t most)
{
    if (number >= least && number <= most)
        return TCPX_SUCCESS;
    return error_set(TCPX_REMOTE_ERROR, "a plan of %llu %s, possible are %llu to %llu",
                     (unsigned long long)number, what, (unsigned long long)least,
                     (unsigned long long)most);
}

int matrix_plan_decode(const uint8_t *bytes, size_t length, struct matrix_plan *plan)
{
    struct plan_layout layout;
    int result = matrix_check_length("a plan", length, sizeof layout);

    if (result != TCPX_SUCCESS)
        return result;
    memcpy(&layout, bytes, sizeof layout);
    result = matrix_check_number("bytes", le64toh(layout.bytes), 1, MATRIX_MOST_BYTES);
    if (result == TCPX_SUCCESS)
        result = matrix_check_number("ranks", le32toh(layout.ranks), 2, MATRIX_MOST_RANKS);
    if (result == TCPX_SUCCESS)
        result = matrix_check_number("reads", le32toh(layout.reads), 1, MATRIX_MOST_READS);
    if (result == TCPX_SUCCESS)
        result =
            matrix_check_number("milliseconds", le32toh(layout.span_ms), LEAST_SPAN, MOST_SPAN);
    if (result == TCPX_SUCCESS)
        result =
            matrix_check_number("ms of patience", le32toh(layout.timeout_ms), 1000, MOST_TIMEOUT);
    if (result != TCPX_SUCCESS)
        return result;
    *plan = (struct matrix_plan){.run = le64toh(layout.run),
                                 .bytes = le64toh(layout.bytes),
                                 .ranks = le32toh(layout.ranks),
                                 .reads = le32toh(layout.reads),
                                 .span_ms = le32toh(layout.span_ms),
                                 .timeout_ms = le32toh(layout.timeout_ms)};
    return TCPX_SUCCESS;
}

void matrix_ready_encode(const struct matrix_ready *ready, uint8_t bytes[MATRIX_READY_BYTES])
{
    struct ready_layout layout = {.port = htole32(ready->port)};

    memcpy(layout.key, ready->key, sizeof layout.key);
    memcpy(bytes, &layout, sizeof layout);
}

int matrix_ready_decode(const uint8_t *bytes, size_t length, struct matrix_ready *ready)
{
    struct ready_layout layout;
    int result = matrix_check_length("a rank's key", length, sizeof layout);

    if (result != TCPX_SUCCESS)
        return result;
    memcpy(&layout, bytes, sizeof layout);
    if (le32toh(layout.port) < 1 || le32toh(layout.port) > UINT16_MAX)
        return error_set(TCPX_REMOTE_ERROR, "a rank's port is %u, expected 1 to 65535",
                         le32toh(layout.port));
    ready->port = (uint16_t)le32toh(layout.port);
    memcpy(ready->key, layout.key, sizeof ready->key);
    return TCPX_SUCCESS;
}

void matrix_order_encode(const struct matrix_order *order, uint8_t bytes[MATRIX_ORDER_BYTES])
{
    struct order_layout layout = {.action = htole32(order->action),
                                  .peer = htole32(order->peer),
                                  .port = htole32(order->port)};

    memcpy(layout.key, order->key, sizeof layout.key);
    matrix_text_write(order->address, layout.address, sizeof layout.address);
    memcpy(bytes, &layout, sizeof layout);
}

int matrix_order_decode(const uint8_t *bytes, size_t length, uint32_t ranks,
                        struct matrix_order *order)
{
    struct order_layout layout;
    uint32_t action;
    uint32_t port;
    int result = matrix_check_length("an order", length, sizeof layout);

    if (result != TCPX_SUCCESS)
        return result;
    memcpy(&layout, bytes, sizeof layout);
    action = le32toh(layout.action);
    port = le32toh(layout.port);
    if (action > MATRIX_END)
        return error_set(TCPX_REMOTE_ERROR, "order %u, 0 to %d are known", action, MATRIX_END);
    if (port > UINT16_MAX || (action == MATRIX_CONNECT && port == 0))
        return error_set(TCPX_REMOTE_ERROR, "an order with port %u, expected 1 to 65535", port);
    result = matrix_check_rank("an order about", le32toh(layout.peer), ranks);
    if (result != TCPX_SUCCESS)
        return result;
    *order = (struct matrix_order){
        .action = action, .peer = le32toh(layout.peer), .port = (uint16_t)port};
    memcpy(order->key, layout.key, sizeof order->key);
    matrix_text_read(layout.address, order->address, sizeof order->address);
    return TCPX_SUCCESS;
}

void matrix_answer_encode(const struct matrix_answer *answer, uint8_t bytes[MATRIX_ANSWER_BYTES])
{
    struct answer_layout layout = {.peer = htole32(answer->peer)};
    uint64_t bits;

    memcpy(&bits, &answer->rate, sizeof bits);
    layout.rate = htole64(bits);
    /* It leaves this process. */
    text_for_peer(answer->why, layout.why, sizeof layout.why);
    memcpy(bytes, &layout, sizeof layout);
}

int matrix_answer_decode(const uint8_t *bytes, size_t length, uint32_t ranks,
                         struct matrix_answer *answer)
{
    struct answer_layout layout;
    uint64_t bits;
    double rate;
    int result = matrix_check_length("an answer", length, sizeof layout);

    if (result != TCPX_SUCCESS)
        return result;
    memcpy(&layout, bytes, sizeof layout);
    bits = le64toh(layout.rate);
    memcpy(&rate, &bits, sizeof rate);
    if (!isfinite(rate) || rate < 0)
        return error_set(TCPX_REMOTE_ERROR, "an answer whose rate is none");
    result = matrix_check_rank("an answer about", le32toh(layout.peer), ranks);
    if (result != TCPX_SUCCESS)
        return result;
    *answer = (struct matrix_answer){.peer = le32toh(layout.peer), .rate = rate};
    matrix_text_read(layout.why, answer->why, sizeof answer->why);
    return TCPX_SUCCESS;
}
