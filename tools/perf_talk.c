/* The codec of the messages of a measurement. */
#include "tools/perf_talk.h"

#include "session/agreement.h"

#include <endian.h>
#include <math.h>
#include <string.h>

enum { TALK_VERSION = 3 };

struct plan_layout {
    uint32_t version;
    uint32_t way;
    uint32_t size_count;
    uint32_t channels;
    uint64_t chunk_bytes;
    uint64_t iterations;
    uint64_t warm_up;
    uint64_t spoilt;
    uint32_t pieces;
    uint32_t operation;
    uint32_t accesses;
    uint32_t check;
    uint64_t time_ms;
    struct perf_self self;
    uint64_t sizes[PERF_MOST_SIZES];
} __attribute__((packed));

struct meet_layout {
    uint32_t port;
    uint32_t nothing;
    struct perf_self self;
} __attribute__((packed));

struct path_layout {
    uint32_t line_mbps;
    char text[PERF_TEXT];
    char unpack[PERF_UNPACK];
} __attribute__((packed));

_Static_assert(sizeof(struct path_layout) == PERF_PATH_BYTES, "as the header says");
_Static_assert(sizeof(struct plan_layout) == PERF_PLAN_BYTES, "as the header says");
_Static_assert(sizeof(struct meet_layout) == PERF_MEET_BYTES, "as the header says");

/* --- names --------------------------------------------------------------------------------- */

static struct perf_self self_write(const struct perf_self *self)
{
    struct perf_self sent = {.host = ""};

    memcpy(sent.host, self->host, strnlen(self->host, sizeof self->host - 1));
    memcpy(sent.memory, self->memory, strnlen(self->memory, sizeof self->memory - 1));
    return sent;
}

/* They are shown: what is not printable becomes '?'. */
static void text_read(const char *from, char *to, size_t room)
{
    size_t length = strnlen(from, room - 1);

    for (size_t i = 0; i < length; i++)
        to[i] = (char)(from[i] < 0x20 || from[i] > 0x7e ? '?' : from[i]);
    to[length] = '\0';
}

static void self_read(const struct perf_self *sent, struct perf_self *self)
{
    text_read(sent->host, self->host, sizeof self->host);
    text_read(sent->memory, self->memory, sizeof self->memory);
}

static int check_length(const char *what, size_t length, size_t expected)
{
    if (length == expected)
        return TCPX_SUCCESS;
    return error_set(TCPX_REMOTE_ERROR, "%s of %zu bytes, expected %zu: the other tcpx is another",
                     what, length, expected);
}

/* --- the plan ------------------------------------------------------------------------------ */

void perf_plan_encode(const struct perf_plan *plan, const struct perf_self *self,
                      uint8_t bytes[PERF_PLAN_BYTES])
{
    struct plan_layout layout = {.version = htole32(TALK_VERSION),
                                 .way = htole32(plan->way),
                                 .size_count = htole32(plan->size_count),
                                 .channels = htole32(plan->channels),
                                 .chunk_bytes = htole64(plan->chunk_bytes),
                                 .iterations = htole64(plan->iterations),
                                 .warm_up = htole64(plan->warm_up),
                                 .spoilt = htole64(plan->spoilt),
                                 .pieces = htole32(plan->pieces),
                                 .operation = htole32(plan->operation),
                                 .accesses = htole32(plan->accesses),
                                 .check = htole32(plan->check),
                                 .time_ms = htole64(plan->time_ms),
                                 .self = self_write(self)};

    for (unsigned i = 0; i < plan->size_count && i < PERF_MOST_SIZES; i++)
        layout.sizes[i] = htole64(plan->sizes[i]);
    memcpy(bytes, &layout, sizeof layout);
}

static int plan_check_operation(const struct perf_plan *plan)
{
    uint64_t parts = (uint64_t)plan->accesses * (plan->pieces > 0 ? plan->pieces : 1);

    if (plan->operation > PERF_WRITES)
        return error_set(TCPX_REMOTE_ERROR, "the plan's operation is %u, 0 to %d are known",
                         plan->operation, PERF_WRITES);
    if (plan->operation == PERF_READS && plan->way == PERF_PING_PONG)
        return error_set(TCPX_REMOTE_ERROR, "a plan of reads in ping-pong");
    if ((plan->operation == PERF_SENDS) != (plan->accesses == 0))
        return error_set(TCPX_REMOTE_ERROR, "a plan of %u accesses for operation %u",
                         plan->accesses, plan->operation);
    if (parts > PERF_MOST_PIECES)
        return error_set(TCPX_REMOTE_ERROR, "a plan of %llu parts of accesses, at most %llu",
                         (unsigned long long)parts, (unsigned long long)PERF_MOST_PIECES);
    return TCPX_SUCCESS;
}

static int plan_check(const struct perf_plan *plan)
{
    if (plan->way > PERF_PING_PONG)
        return error_set(TCPX_REMOTE_ERROR, "the plan's way is %u, 0 to %d are known", plan->way,
                         PERF_PING_PONG);
    if (plan->size_count < 1 || plan->size_count > PERF_MOST_SIZES)
        return error_set(TCPX_REMOTE_ERROR, "a plan of %u sizes, 1 to %d are possible",
                         plan->size_count, PERF_MOST_SIZES);
    if (plan->iterations > PERF_MOST_ITERATIONS || plan->warm_up > PERF_AUTO)
        return error_set(TCPX_REMOTE_ERROR, "a plan of %llu and %llu iterations, at most %llu",
                         (unsigned long long)plan->iterations, (unsigned long long)plan->warm_up,
                         (unsigned long long)PERF_MOST_ITERATIONS);
    if (plan->time_ms > PERF_MOST_MS)
        return error_set(TCPX_REMOTE_ERROR, "a plan of %llu ms for each size, at most %llu",
                         (unsigned long long)plan->time_ms, (unsigned long long)PERF_MOST_MS);
    if (plan->check > PERF_CHECK_NONE)
        return error_set(TCPX_REMOTE_ERROR, "the plan's check is %u, 0 to %d are known",
                         plan->check, PERF_CHECK_NONE);
    if (plan->channels > AGREEMENT_CHANNELS)
        return error_set(TCPX_REMOTE_ERROR, "a plan of %u channels, at most %d", plan->channels,
                         AGREEMENT_CHANNELS);
    if (plan->pieces > PERF_MOST_PIECES)
        return error_set(TCPX_REMOTE_ERROR, "a plan of %u pieces, at most %llu", plan->pieces,
                         (unsigned long long)PERF_MOST_PIECES);
    for (unsigned i = 0; i < plan->size_count; i++)
        if (plan->sizes[i] < 1 || plan->sizes[i] > PERF_MOST_BYTES)
            return error_set(
                TCPX_REMOTE_ERROR, "a plan with a size of %llu, possible are 1 to %llu",
                (unsigned long long)plan->sizes[i], (unsigned long long)PERF_MOST_BYTES);
    return plan_check_operation(plan);
}

int perf_plan_decode(const uint8_t *bytes, size_t length, struct perf_plan *plan,
                     struct perf_self *self)
{
    struct plan_layout layout;
    int result = check_length("a plan", length, sizeof layout);

    if (result != TCPX_SUCCESS)
        return result;
    memcpy(&layout, bytes, sizeof layout);
    if (le32toh(layout.version) != TALK_VERSION)
        return error_set(TCPX_REMOTE_ERROR, "a plan of version %u, expected %d",
                         le32toh(layout.version), TALK_VERSION);
    *plan = (struct perf_plan){.way = (enum perf_way)le32toh(layout.way),
                               .size_count = le32toh(layout.size_count),
                               .channels = le32toh(layout.channels),
                               .chunk_bytes = le64toh(layout.chunk_bytes),
                               .iterations = le64toh(layout.iterations),
                               .warm_up = le64toh(layout.warm_up),
                               .spoilt = le64toh(layout.spoilt),
                               .pieces = le32toh(layout.pieces),
                               .operation = (enum perf_operation)le32toh(layout.operation),
                               .accesses = le32toh(layout.accesses),
                               .check = (enum perf_check)le32toh(layout.check),
                               .time_ms = le64toh(layout.time_ms)};
    for (unsigned i = 0; i < PERF_MOST_SIZES; i++)
        plan->sizes[i] = le64toh(layout.sizes[i]);
    self_read(&layout.self, self);
    return plan_check(plan);
}

/* --- where the session is ------------------------------------------------------------------ */

void perf_meet_encode(uint16_t port, const struct perf_self *self, uint8_t bytes[PERF_MEET_BYTES])
{
    const struct meet_layout layout = {.port = htole32(port), .self = self_write(self)};

    memcpy(bytes, &layout, sizeof layout);
}

int perf_meet_decode(const uint8_t *bytes, size_t length, uint16_t *port, struct perf_self *self)
{
    struct meet_layout layout;
    int result = check_length("a meeting place", length, sizeof layout);

    if (result != TCPX_SUCCESS)
        return result;
    memcpy(&layout, bytes, sizeof layout);
    if (le32toh(layout.port) < 1 || le32toh(layout.port) > UINT16_MAX)
        return error_set(TCPX_REMOTE_ERROR, "the session's port is %u, expected 1 to 65535",
                         le32toh(layout.port));
    *port = (uint16_t)le32toh(layout.port);
    self_read(&layout.self, self);
    return TCPX_SUCCESS;
}

/* --- the path and the iterations ----------------------------------------------------------- */

void perf_path_encode(const struct perf_path *path, uint8_t bytes[PERF_PATH_BYTES])
{
    struct path_layout layout = {.line_mbps = htole32(path->line_mbps)};

    memcpy(layout.text, path->text, strnlen(path->text, sizeof layout.text - 1));
    memcpy(layout.unpack, path->unpack, strnlen(path->unpack, sizeof layout.unpack - 1));
    memcpy(bytes, &layout, sizeof layout);
}

int perf_path_decode(const uint8_t *bytes, size_t length, struct perf_path *path)
{
    struct path_layout layout;
    int result = check_length("a path", length, sizeof layout);

    if (result != TCPX_SUCCESS)
        return result;
    memcpy(&layout, bytes, sizeof layout);
    text_read(layout.text, path->text, sizeof path->text);
    text_read(layout.unpack, path->unpack, sizeof path->unpack);
    path->line_mbps = le32toh(layout.line_mbps);
    return TCPX_SUCCESS;
}

uint64_t perf_step_encode(const struct perf_step *step)
{
    return step->iteration << 2 | (step->counts ? 2U : 0U) | (step->last ? 1U : 0U);
}

struct perf_step perf_step_decode(uint64_t number)
{
    return (struct perf_step){
        .iteration = number >> 2, .counts = (number & 2) != 0, .last = (number & 1) != 0};
}

int perf_key_check(size_t length)
{
    return check_length("a key", length, TCPX_KEY_BYTES);
}

/* --- results ------------------------------------------------------------------------------- */

void perf_number_encode(uint64_t number, uint8_t bytes[8])
{
    number = htole64(number);
    memcpy(bytes, &number, 8);
}

uint64_t perf_number_decode(const uint8_t bytes[8])
{
    uint64_t number;

    memcpy(&number, bytes, 8);
    return le64toh(number);
}

/* A row as it travels: its two whole numbers, and its fractions in their order. */
enum { WHOLES = 2, ROW_NUMBERS = PERF_ROW_BYTES / 8, ROW_FRACTIONS = ROW_NUMBERS - WHOLES };

_Static_assert(sizeof(struct perf_row) == PERF_ROW_BYTES, "a row has only numbers");

void perf_row_encode(const struct perf_row *row, uint8_t bytes[PERF_ROW_BYTES])
{
    uint64_t numbers[ROW_NUMBERS];

    memcpy(numbers, row, sizeof numbers);
    for (size_t i = 0; i < ROW_NUMBERS; i++)
        perf_number_encode(numbers[i], bytes + 8 * i);
}

int perf_row_decode(const uint8_t *bytes, size_t length, struct perf_row *row)
{
    double fractions[ROW_FRACTIONS];
    uint64_t numbers[ROW_NUMBERS];
    int result = check_length("a row", length, PERF_ROW_BYTES);

    if (result != TCPX_SUCCESS)
        return result;
    for (size_t i = 0; i < ROW_NUMBERS; i++)
        numbers[i] = perf_number_decode(bytes + 8 * i);
    memcpy(fractions, numbers + WHOLES, sizeof fractions);
    for (size_t i = 0; i < ROW_FRACTIONS; i++)
        if (!isfinite(fractions[i]) || fractions[i] < 0)
            return error_set(TCPX_REMOTE_ERROR, "number %zu of a row is none", i);
    memcpy(row, numbers, sizeof numbers);
    return TCPX_SUCCESS;
}
