/*
 * The codec of the wire: two packed layouts, and a table of the fields of each record type. Reading
 * refuses everything that writing would not have produced from valid values, so that an accepted
 * hello or record, written again, is the same bytes.
 */
#include "net/wire/wire.h"

#include <endian.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "base/checked.h"
#include "base/text.h"

struct hello_layout {
    uint32_t magic;
    uint16_t version;
    uint8_t role;
    uint8_t index;
    uint8_t sockets;
    uint8_t match;
    uint8_t framing;
    uint8_t reserved[5];
    uint64_t comm;
    uint8_t token[WIRE_TOKEN_BYTES];
    uint16_t least_version; /* 0 in version 1 */
    uint16_t reserved_too;
    uint32_t capabilities;
    uint8_t reserved_end[16];
} __attribute__((packed));

struct record_layout {
    uint8_t type;
    uint8_t flags;
    uint16_t socket;
    uint32_t sequence;
    uint64_t offset;
    uint64_t length;
    uint64_t tag;
} __attribute__((packed));

_Static_assert(sizeof(struct hello_layout) == WIRE_HELLO_BYTES, "the hello has 64 bytes");
_Static_assert(offsetof(struct hello_layout, token) == WIRE_TOKEN_AT, "the token's place");
_Static_assert(sizeof(struct record_layout) == WIRE_RECORD_BYTES, "a record has 32 bytes");

enum field { SOCKET = 1, SEQUENCE = 2, OFFSET = 4, LENGTH = 8, TAG = 16 };

struct rule {
    const char *name; /* NULL: there is no such type */
    unsigned roles;   /* where it may be sent: roles are bits */
    unsigned fields;  /* enum field; the others are zero */
    uint64_t shortest;
    uint64_t longest;
};

static const struct rule wire_rules[] = {
    [WIRE_READY] = {"READY", WIRE_REVERSE, SOCKET | SEQUENCE | OFFSET | LENGTH | TAG, 0,
                    UINT64_MAX},
    [WIRE_POST] = {"POST", WIRE_REVERSE, SEQUENCE | OFFSET | LENGTH | TAG, 0, UINT64_MAX},
    [WIRE_CREDIT] = {"CREDIT", WIRE_REVERSE, OFFSET, 0, 0},
    [WIRE_CANCEL] = {"CANCEL", WIRE_REVERSE, SEQUENCE, 0, 0},
    /* A message without bytes is always EAGER, and never too long. */
    [WIRE_EAGER] = {"EAGER", WIRE_FORWARD, SEQUENCE | OFFSET | LENGTH | TAG, 0, UINT64_MAX},
    [WIRE_SLICE] = {"SLICE", WIRE_FORWARD, SOCKET | SEQUENCE | OFFSET | LENGTH | TAG, 1,
                    UINT64_MAX},
    [WIRE_TOOLONG] = {"TOOLONG", WIRE_FORWARD, SEQUENCE | LENGTH, 1, UINT64_MAX},
    [WIRE_CANCELLED] = {"CANCELLED", WIRE_FORWARD, SEQUENCE | LENGTH, 0, UINT64_MAX},
    [WIRE_FIN] = {"FIN", WIRE_FORWARD, LENGTH, 0, UINT64_MAX},
    [WIRE_ABORT] = {"ABORT", WIRE_FORWARD | WIRE_REVERSE, SEQUENCE | LENGTH, 0, WIRE_ABORT_TEXT},
};

static const struct rule *wire_find_rule(unsigned type)
{
    if (type >= sizeof wire_rules / sizeof *wire_rules || wire_rules[type].name == NULL)
        return NULL;
    return &wire_rules[type];
}

void wire_magic_write(uint8_t bytes[WIRE_MAGIC_BYTES])
{
    const uint32_t magic = htole32(WIRE_MAGIC);

    memcpy(bytes, &magic, sizeof magic);
}

void wire_hello_write(const struct wire_hello *hello, uint8_t bytes[WIRE_HELLO_BYTES])
{
    struct hello_layout layout = {
        .magic = htole32(WIRE_MAGIC),
        .version = htole16(WIRE_VERSION),
        .role = hello->role,
        .index = hello->index,
        .sockets = hello->sockets,
        .match = hello->match,
        .framing = hello->framing,
        .comm = htole64(hello->comm),
        .least_version = htole16(WIRE_LEAST_VERSION),
        .capabilities = htole32(hello->capabilities),
    };

    memcpy(layout.token, hello->token, sizeof layout.token);
    memcpy(bytes, &layout, sizeof layout);
}

static enum wire_problem wire_check_hello(const struct hello_layout *layout)
{
    if (layout->role != WIRE_FORWARD && layout->role != WIRE_REVERSE)
        return error_set(WIRE_MALFORMED, "hello: role %u is not known", layout->role);
    if (layout->sockets < 1 || layout->sockets > WIRE_MOST_SOCKETS)
        return error_set(WIRE_MALFORMED, "hello: sockets %u, possible are 1 to %d", layout->sockets,
                         WIRE_MOST_SOCKETS);
    if (layout->role == WIRE_REVERSE && layout->index != 0)
        return error_set(WIRE_MALFORMED, "hello: index %u of the reverse socket, expected 0",
                         layout->index);
    if (layout->index >= layout->sockets)
        return error_set(WIRE_MALFORMED, "hello: index %u of %u sockets", layout->index,
                         layout->sockets);
    if (layout->match != WIRE_MATCH_FIFO && layout->match != WIRE_MATCH_TAG)
        return error_set(WIRE_MALFORMED, "hello: match %u is not known", layout->match);
    if (layout->framing != WIRE_INLINE && layout->framing != WIRE_SEPARATE)
        return error_set(WIRE_MALFORMED, "hello: framing %u is not known", layout->framing);
    if (layout->framing == WIRE_SEPARATE && layout->sockets < 2)
        return error_set(WIRE_MALFORMED, "hello: sockets %u, separate framing needs at least 2",
                         layout->sockets);
    return WIRE_FINE;
}

/* A later version may use what this one reserves. */
static enum wire_problem wire_check_reserved(const uint8_t bytes[WIRE_HELLO_BYTES],
                                             const struct wire_hello *hello,
                                             const struct versions *versions)
{
    uint8_t again[WIRE_HELLO_BYTES];
    size_t least_at = offsetof(struct hello_layout, least_version);

    if (versions->greatest != WIRE_VERSION)
        return WIRE_FINE;
    /* All other bytes have been read: what is not written again was not zero. */
    wire_hello_write(hello, again);
    memcpy(again + least_at, bytes + least_at, sizeof(uint16_t));
    for (size_t i = 0; i < sizeof again; i++)
        if (bytes[i] != again[i])
            return error_set(WIRE_MALFORMED, "hello: reserved byte %zu is 0x%02x, expected 0", i,
                             bytes[i]);
    return WIRE_FINE;
}

enum wire_problem wire_hello_read(const uint8_t bytes[WIRE_HELLO_BYTES], struct wire_hello *hello,
                                  struct versions *versions)
{
    struct hello_layout layout;
    struct wire_hello seen;
    struct versions sent;
    enum wire_problem problem;

    memcpy(&layout, bytes, sizeof layout);
    if (le32toh(layout.magic) != WIRE_MAGIC)
        return error_set(WIRE_NOT_TCPX, "hello: magic 0x%08" PRIx32 ", expected 0x%08" PRIx32,
                         le32toh(layout.magic), (uint32_t)WIRE_MAGIC);
    sent.greatest = le16toh(layout.version);
    sent.least = sent.greatest == 1 ? 1 : le16toh(layout.least_version);
    if (versions_common(wire_versions, sent) == 0) {
        *versions = sent;
        return error_set(WIRE_OTHER_VERSION,
                         "hello: versions %u to %u of the protocol, expected %d to %d", sent.least,
                         sent.greatest, WIRE_LEAST_VERSION, WIRE_VERSION);
    }
    problem = wire_check_hello(&layout);
    if (problem != WIRE_FINE)
        return problem;
    seen = (struct wire_hello){
        .role = layout.role,
        .index = layout.index,
        .sockets = layout.sockets,
        .match = layout.match,
        .framing = layout.framing,
        .comm = le64toh(layout.comm),
        .capabilities = le32toh(layout.capabilities),
        .version = versions_common(wire_versions, sent),
    };
    memcpy(seen.token, layout.token, sizeof seen.token);
    problem = wire_check_reserved(bytes, &seen, &sent);
    if (problem != WIRE_FINE)
        return problem;
    *hello = seen;
    *versions = sent;
    return WIRE_FINE;
}

void wire_record_write(const struct wire_record *record, uint8_t bytes[WIRE_RECORD_BYTES])
{
    const struct record_layout layout = {
        .type = record->type,
        .flags = record->flags,
        .socket = htole16(record->socket),
        .sequence = htole32(record->sequence),
        .offset = htole64(record->offset),
        .length = htole64(record->length),
        .tag = htole64(record->tag),
    };

    memcpy(bytes, &layout, sizeof layout);
}

static enum wire_problem wire_refuse_unused(const struct rule *rule, const char *field,
                                            uint64_t value)
{
    return error_set(WIRE_MALFORMED, "%s: %s %" PRIu64 ", expected 0", rule->name, field, value);
}

static enum wire_problem wire_check_unused(const struct rule *rule,
                                           const struct wire_record *record)
{
    unsigned unused = ~rule->fields;

    if ((unused & SOCKET) && record->socket != 0)
        return wire_refuse_unused(rule, "socket", record->socket);
    if ((unused & SEQUENCE) && record->sequence != 0)
        return wire_refuse_unused(rule, "sequence", record->sequence);
    if ((unused & OFFSET) && record->offset != 0)
        return wire_refuse_unused(rule, "offset", record->offset);
    if ((unused & LENGTH) && record->length != 0)
        return wire_refuse_unused(rule, "length", record->length);
    if ((unused & TAG) && record->tag != 0)
        return wire_refuse_unused(rule, "tag", record->tag);
    return WIRE_FINE;
}

static enum wire_problem wire_check_ready(const struct wire_record *record)
{
    if (record->socket < WIRE_LEAST_VERSION || record->socket > WIRE_VERSION)
        return error_set(WIRE_MALFORMED, "READY: socket %u (version), possible are %d to %d",
                         record->socket, WIRE_LEAST_VERSION, WIRE_VERSION);
    if ((record->sequence & ~WIRE_CAPABILITIES) != 0)
        return error_set(WIRE_MALFORMED,
                         "READY: sequence 0x%" PRIx32 " (capabilities), possible are 0x%x",
                         record->sequence, WIRE_CAPABILITIES);
    if (record->length > record->offset)
        return error_set(WIRE_MALFORMED,
                         "READY: length %" PRIu64 " (eager limit) with offset %" PRIu64
                         " (eager credit), it must not be more",
                         record->length, record->offset);
    if (record->tag < WIRE_LEAST_SLICE)
        return error_set(WIRE_MALFORMED,
                         "READY: tag %" PRIu64 " (largest slice), at least %d is possible",
                         record->tag, WIRE_LEAST_SLICE);
    return WIRE_FINE;
}

static enum wire_problem wire_check_slice(const struct wire_record *record)
{
    uint64_t end;

    if (record->socket >= WIRE_MOST_SOCKETS)
        return error_set(WIRE_MALFORMED, "SLICE: socket %u, at most %d is possible", record->socket,
                         WIRE_MOST_SOCKETS - 1);
    if (!checked_add(record->offset, record->length, &end))
        return error_set(WIRE_MALFORMED,
                         "SLICE: length %" PRIu64 " at offset %" PRIu64 " ends beyond 64 bits",
                         record->length, record->offset);
    if (end > record->tag)
        return error_set(WIRE_MALFORMED,
                         "SLICE: length %" PRIu64 " at offset %" PRIu64 " ends beyond tag %" PRIu64
                         " (length of the message)",
                         record->length, record->offset, record->tag);
    return WIRE_FINE;
}

/* The number in an EAGER that is not on credit says it all. */
static enum wire_problem wire_check_eager(const struct wire_record *record)
{
    if (record->flags != WIRE_ON_CREDIT && (record->offset != 0 || record->tag != 0))
        return error_set(WIRE_MALFORMED,
                         "EAGER: offset %" PRIu64 " and tag %" PRIu64
                         " with the number of a receive, expected 0",
                         record->offset, record->tag);
    return WIRE_FINE;
}

static enum wire_problem wire_check_abort(const struct wire_record *record)
{
    if (record->sequence < TCPX_CUDA_ERROR || record->sequence > TCPX_IN_PROGRESS)
        return error_set(WIRE_MALFORMED,
                         "ABORT: sequence %" PRIu32 " (result), possible are %d to %d",
                         record->sequence, TCPX_CUDA_ERROR, TCPX_IN_PROGRESS);
    return WIRE_FINE;
}

static enum wire_problem wire_check_record(const struct rule *rule,
                                           const struct wire_record *record)
{
    enum wire_problem problem = wire_check_unused(rule, record);

    if (problem != WIRE_FINE)
        return problem;
    if ((rule->fields & LENGTH) && record->length < rule->shortest)
        return error_set(WIRE_MALFORMED, "%s: length %" PRIu64 ", at least %" PRIu64 " is possible",
                         rule->name, record->length, rule->shortest);
    if ((rule->fields & LENGTH) && record->length > rule->longest)
        return error_set(WIRE_MALFORMED, "%s: length %" PRIu64 ", at most %" PRIu64 " is possible",
                         rule->name, record->length, rule->longest);
    switch (record->type) {
    case WIRE_READY:
        return wire_check_ready(record);
    case WIRE_EAGER:
        return wire_check_eager(record);
    case WIRE_SLICE:
        return wire_check_slice(record);
    case WIRE_ABORT:
        return wire_check_abort(record);
    default:
        return WIRE_FINE;
    }
}

static bool wire_flags_may_be(unsigned type, uint8_t flags)
{
    if (flags == WIRE_TO_PLACE)
        return type == WIRE_SLICE || type == WIRE_EAGER || type == WIRE_CANCELLED;
    return flags == WIRE_ON_CREDIT && (type == WIRE_SLICE || type == WIRE_EAGER);
}

enum wire_problem wire_record_read(const uint8_t bytes[WIRE_RECORD_BYTES], enum wire_role role,
                                   struct wire_record *record)
{
    struct record_layout layout;
    struct wire_record seen;
    const struct rule *rule;
    enum wire_problem problem;

    memcpy(&layout, bytes, sizeof layout);
    rule = wire_find_rule(layout.type);
    if (rule == NULL)
        return error_set(WIRE_MALFORMED, "record type %u is not known", layout.type);
    if (!(rule->roles & role))
        return error_set(WIRE_MALFORMED, "%s: type %u on a %s socket", rule->name, layout.type,
                         role == WIRE_FORWARD ? "forward" : "reverse");
    if (layout.flags != 0 && !wire_flags_may_be(layout.type, layout.flags))
        return error_set(WIRE_MALFORMED, "%s: flags 0x%02x, expected 0", rule->name, layout.flags);
    seen = (struct wire_record){
        .type = layout.type,
        .flags = layout.flags,
        .socket = le16toh(layout.socket),
        .sequence = le32toh(layout.sequence),
        .offset = le64toh(layout.offset),
        .length = le64toh(layout.length),
        .tag = le64toh(layout.tag),
    };
    problem = wire_check_record(rule, &seen);
    if (problem != WIRE_FINE)
        return problem;
    *record = seen;
    return WIRE_FINE;
}

const char *wire_type_name(unsigned type)
{
    const struct rule *rule = wire_find_rule(type);

    return rule != NULL ? rule->name : "unknown";
}

size_t wire_abort_write(enum tcpx_result result, const char *text, uint8_t bytes[WIRE_ABORT_BYTES])
{
    char sent[WIRE_ABORT_TEXT + 1];
    size_t length = text_for_peer(text, sent, sizeof sent);

    wire_record_write(
        &(struct wire_record){.type = WIRE_ABORT, .sequence = (uint32_t)result, .length = length},
        bytes);
    memcpy(bytes + WIRE_RECORD_BYTES, sent, length);
    return WIRE_RECORD_BYTES + length;
}
