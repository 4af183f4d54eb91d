/*
 * Two ends of a comm for tests over bad networks: one sends messages of random sizes and tags, the
 * other receives them and checks every byte. Both compute the messages from the seed. The time
 * limit is kept by a signal, so that it holds even where a call of the transport would not return.
 */
#include "base/clock.h"
#include "base/parse.h"
#include "gpu/kernels.h"
#include "net/transport.h"
#include "tcpx.h"
#include "tests/limit.h"
#include "tests/net/comm_ends.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATUS_OK, STATUS_FAILED, STATUS_USAGE };

enum {
    WINDOW = 8,
    TAGS = 4,
    HOLD_TAG = TAGS, /* of a send and a receive that never meet */
    GUARD_BYTES = 64,
    GUARD = 0xa5,
    EAGER_LIMIT = 8192,
    LARGEST_SLICE = 256 << 10, /* so that most messages are several */
    MOST_BYTES = 64 << 20,
    LIMIT_SECONDS = 60, /* the longest that this runs; then the status is LIMIT_STATUS */
};

static const char usage[] =
    "usage: exchange recv ADDRESS HANDLE_FILE COUNT [options]\n"
    "       exchange send HANDLE_FILE COUNT [options]\n"
    "  --seed N         of sizes, tags and bytes; the same on both ends (default 1)\n"
    "  --largest BYTES  (default 2M), the same on both ends\n"
    "  --sockets N      (default 1); the sender decides\n"
    "  --framing WHICH  inline (default) or separate, which needs at least 2 sockets; the same\n"
    "                   on both ends\n"
    "  --timeout MS     until a vanished host is an error (default 30000)\n"
    "  --hold           when all are moved, stay and wait for one that never moves\n";

struct exchange {
    bool sending;
    const char *address;
    const char *file;
    uint64_t count;
    uint64_t seed;
    uint64_t largest;
    uint64_t sockets;
    enum wire_framing framing;
    uint64_t timeout_ms;
    bool hold;
    uint64_t last_progress;
    uint64_t moved; /* bytes of the messages that are done */
};

struct message {
    uint64_t bytes;
    uint64_t tag;
    uint64_t seed;
};

/* A message in flight. */
struct slot {
    struct net_request *request; /* NULL: free */
    struct message message;
    uint64_t number;
    uint8_t *buffer; /* the largest message and a guard */
};

/* --- messages ------------------------------------------------------------------------------ */

/* Empty, small and eager, any size, and the largest, in this proportion: 1, 3, 11, 1. */
static struct message message_number(const struct exchange *exchange, uint64_t number)
{
    uint64_t kind = pattern_word(exchange->seed, 4 * number) % 16;
    uint64_t size = pattern_word(exchange->seed, 4 * number + 1);
    uint64_t small = exchange->largest < EAGER_LIMIT ? exchange->largest : EAGER_LIMIT;
    struct message message = {.tag = pattern_word(exchange->seed, 4 * number + 2) % TAGS,
                              .seed = pattern_word(exchange->seed, 4 * number + 3)};

    if (kind == 1)
        message.bytes = exchange->largest;
    else if (kind >= 2)
        message.bytes = size % ((kind < 5 ? small : exchange->largest) + 1);
    return message;
}

static void fill(uint8_t *buffer, const struct message *message)
{
    for (uint64_t i = 0; i < message->bytes; i += 8) {
        uint64_t word = pattern_word(message->seed, i / 8);

        memcpy(buffer + i, &word, message->bytes - i < 8 ? message->bytes - i : 8);
    }
}

/* The first byte that is not as sent, or was written behind the message; its end if all are right.
 */
static uint64_t first_wrong(const uint8_t *buffer, const struct message *message)
{
    uint64_t i;

    for (i = 0; i < message->bytes; i++) {
        uint64_t word = pattern_word(message->seed, i / 8);

        if (i % 8 == 0 && i + 8 <= message->bytes && memcmp(buffer + i, &word, 8) == 0)
            i += 7;
        else if (buffer[i] != (uint8_t)(word >> (8 * (i % 8))))
            return i;
    }
    while (i < message->bytes + GUARD_BYTES && buffer[i] == GUARD)
        i++;
    return i;
}

static int verify(const struct slot *slot, uint64_t bytes)
{
    uint64_t wrong;

    if (bytes != slot->message.bytes)
        return error_set(TCPX_INTERNAL_ERROR, "message %llu has %llu bytes instead of %llu",
                         (unsigned long long)slot->number, (unsigned long long)bytes,
                         (unsigned long long)slot->message.bytes);
    wrong = first_wrong(slot->buffer, &slot->message);
    if (wrong != bytes + GUARD_BYTES)
        return error_set(TCPX_INTERNAL_ERROR, "message %llu of %llu bytes is wrong at %llu",
                         (unsigned long long)slot->number, (unsigned long long)bytes,
                         (unsigned long long)wrong);
    return TCPX_SUCCESS;
}

/* --- moving -------------------------------------------------------------------------------- */

/* A machine with few cores has other work, among it carrying the packets. */
static void nap(void)
{
    nap_us(200);
}

/* The next message, unless the comm is busy. */
static int start(const struct exchange *exchange, struct net_comm *comm, struct slot *slot,
                 uint64_t *started)
{
    const struct message message = message_number(exchange, *started);
    int result;

    slot->number = *started;
    slot->message = message;
    if (exchange->sending) {
        fill(slot->buffer, &message);
        result = net_isend(comm, slot->buffer, message.bytes, message.tag, &slot->request);
    } else {
        memset(slot->buffer + message.bytes, GUARD, GUARD_BYTES);
        result = net_irecv(comm, slot->buffer, exchange->largest, message.tag, &slot->request);
    }
    if (result == TCPX_SUCCESS && slot->request != NULL)
        ++*started;
    return result;
}

static int test(struct exchange *exchange, struct slot *slot, bool *done)
{
    uint64_t bytes = 0;
    int result = net_test(slot->request, done, &bytes);

    if (result != TCPX_SUCCESS || !*done)
        return result;
    slot->request = NULL;
    exchange->moved += slot->message.bytes;
    return exchange->sending ? TCPX_SUCCESS : verify(slot, bytes);
}

static int move(struct exchange *exchange, struct net_comm *comm, struct slot *slots)
{
    uint64_t started = 0;
    uint64_t ended = 0;

    while (ended < exchange->count) {
        uint64_t before = started + ended;

        for (int i = 0; i < WINDOW; i++) {
            struct slot *slot = &slots[i];
            bool done = false;
            int result = TCPX_SUCCESS;

            if (slot->request != NULL)
                result = test(exchange, slot, &done);
            else if (started < exchange->count)
                result = start(exchange, comm, slot, &started);
            if (result != TCPX_SUCCESS)
                return result;
            if (done)
                exchange->last_progress = clock_now();
            ended += done;
        }
        if (started + ended == before)
            nap();
    }
    return TCPX_SUCCESS;
}

/* Only a failure or a signal ends this. Longer than eager, the send cannot go ahead on credit. */
static int hold(const struct exchange *exchange, struct net_comm *comm, struct slot *slot)
{
    bool done = false;
    int result;

    if (exchange->sending)
        result = net_isend(comm, slot->buffer, exchange->largest, HOLD_TAG, &slot->request);
    else
        result = net_irecv(comm, slot->buffer, exchange->largest, HOLD_TAG + 1, &slot->request);
    while (result == TCPX_SUCCESS && !done) {
        nap();
        result = net_test(slot->request, &done, NULL);
    }
    return result != TCPX_SUCCESS
               ? result
               : error_set(TCPX_INTERNAL_ERROR, "a message that has no other end was moved");
}

static int run_comm(struct exchange *exchange, struct net_comm *comm)
{
    struct slot slots[WINDOW] = {{.request = NULL}};
    int result = TCPX_SUCCESS;

    exchange->last_progress = clock_now();
    for (int i = 0; i < WINDOW; i++) {
        slots[i].buffer = malloc(exchange->largest + GUARD_BYTES);
        if (slots[i].buffer == NULL)
            result = error_system(ENOMEM, "a buffer");
    }
    if (result == TCPX_SUCCESS)
        result = move(exchange, comm, slots);
    if (result == TCPX_SUCCESS && exchange->hold) {
        printf("holding\n");
        fflush(stdout);
        result = hold(exchange, comm, &slots[0]);
    }
    net_comm_close(comm);
    for (int i = 0; i < WINDOW; i++)
        free(slots[i].buffer);
    return result;
}

/* --- the two roles ------------------------------------------------------------------------- */

static struct net_link_options link_options(const struct exchange *exchange)
{
    return (struct net_link_options){.sockets = (uint8_t)exchange->sockets,
                                     .match = WIRE_MATCH_TAG,
                                     .framing = exchange->framing,
                                     .eager_limit = EAGER_LIMIT,
                                     .eager_credit = 65536,
                                     .largest_slice = LARGEST_SLICE,
                                     .timeout_ms = exchange->timeout_ms,
                                     .handshake_ms = 15000};
}

static int device_of(const char *address, struct net_device *device)
{
    union socket_address any = {0};

    *device = (struct net_device){.name = "exchange"};
    if (inet_pton(AF_INET, address, &any.ipv4.sin_addr) == 1)
        any.ipv4.sin_family = AF_INET;
    else if (inet_pton(AF_INET6, address, &any.ipv6.sin6_addr) == 1)
        any.ipv6.sin6_family = AF_INET6;
    else
        return error_set(TCPX_INVALID_ARGUMENT, "'%s' is no address", address);
    device->address = any.storage;
    return TCPX_SUCCESS;
}

static int receive_all(struct exchange *exchange)
{
    const struct net_link_options options = link_options(exchange);
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener;
    struct net_device device;
    struct net_comm *comm;
    int result = device_of(exchange->address, &device);

    if (result == TCPX_SUCCESS)
        result = net_listen(&device, &options, handle, &listener);
    if (result != TCPX_SUCCESS)
        return result;
    result = write_handle(exchange->file, handle);
    if (result == TCPX_SUCCESS)
        result = accept_comm(listener, &comm);
    net_listener_close(listener);
    return result == TCPX_SUCCESS ? run_comm(exchange, comm) : result;
}

static int send_all(struct exchange *exchange)
{
    const struct net_link_options options = link_options(exchange);
    struct net_comm *comm;
    int result = connect_comm(NULL, &options, exchange->file, &comm);

    return result == TCPX_SUCCESS ? run_comm(exchange, comm) : result;
}

/* --- the program --------------------------------------------------------------------------- */

static bool parse_framing(const char *text, enum wire_framing *framing)
{
    *framing = strcmp(text, "separate") == 0 ? WIRE_SEPARATE : WIRE_INLINE;
    return *framing == WIRE_SEPARATE || strcmp(text, "inline") == 0;
}

static bool parse_options(int argument_count, char **arguments, struct exchange *exchange)
{
    const struct {
        const char *name;
        uint64_t least;
        uint64_t most;
        uint64_t *value;
    } numbers[] = {
        {"seed", 0, UINT64_MAX, &exchange->seed},
        {"largest", EAGER_LIMIT + 1, MOST_BYTES, &exchange->largest},
        {"sockets", 1, WIRE_MOST_SOCKETS, &exchange->sockets},
        {"timeout", 1, 3600000, &exchange->timeout_ms},
    };
    enum { NUMBERS = COUNT_OF(numbers), FRAMING = NUMBERS, HOLD };
    struct option known[HOLD + 2] = {
        [FRAMING] = {"framing", required_argument, NULL, FRAMING},
        [HOLD] = {"hold", no_argument, NULL, HOLD},
    };
    bool fine = true;
    int option;

    for (int i = 0; i < NUMBERS; i++)
        known[i] = (struct option){numbers[i].name, required_argument, NULL, i};
    while (fine && (option = getopt_long(argument_count, arguments, "", known, NULL)) != -1) {
        if (option < NUMBERS)
            fine = parse_size(optarg, numbers[option].value) &&
                   numbers[option].least <= *numbers[option].value &&
                   *numbers[option].value <= numbers[option].most;
        else if (option == FRAMING)
            fine = parse_framing(optarg, &exchange->framing);
        else
            fine = exchange->hold = option == HOLD;
    }
    return fine && (exchange->framing == WIRE_INLINE || exchange->sockets >= 2);
}

static bool parse_arguments(int argument_count, char **arguments, struct exchange *exchange)
{
    char **rest;
    int left;

    if (!parse_options(argument_count, arguments, exchange))
        return false;
    rest = arguments + optind;
    left = argument_count - optind;
    if (left == 3 && strcmp(rest[0], "send") == 0)
        exchange->sending = true;
    else if (left == 4 && strcmp(rest[0], "recv") == 0)
        exchange->address = rest[1];
    else
        return false;
    exchange->file = rest[left - 2];
    return parse_number(rest[left - 1], &exchange->count);
}

int main(int argument_count, char **arguments)
{
    struct exchange exchange = {
        .seed = 1, .largest = 2 << 20, .sockets = 1, .framing = WIRE_INLINE, .timeout_ms = 30000};
    uint64_t begin = clock_now();
    int result;

    if (!parse_arguments(argument_count, arguments, &exchange)) {
        fputs(usage, stderr);
        return STATUS_USAGE;
    }
    limit_process(LIMIT_SECONDS);
    exchange.last_progress = begin;
    result = exchange.sending ? send_all(&exchange) : receive_all(&exchange);
    if (result != TCPX_SUCCESS) {
        fprintf(stderr, "exchange: %s (%.1f s after the last progress)\n", tcpx_last_error(),
                (double)(clock_now() - exchange.last_progress) * 1e-9);
        return STATUS_FAILED;
    }
    printf("%llu messages, %llu bytes %s in %.3f s\n", (unsigned long long)exchange.count,
           (unsigned long long)exchange.moved, exchange.sending ? "sent" : "verified",
           (double)(clock_now() - begin) * 1e-9);
    return fflush(stdout) == 0 ? STATUS_OK : STATUS_FAILED;
}
