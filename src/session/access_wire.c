/* The codec of the messages of one-sided access. */
#include "session/access_wire.h"

#include "base/text.h"
#include "tcpx.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { HAS_NOTE = 4, IS_INLINE = 8, MOST_ITEMS = 1 << 20 };

struct bind_layout {
    uint32_t number;
    uint32_t reserved;
    uint64_t id;
    uint8_t proof[ACCESS_PROOF_BYTES];
} __attribute__((packed));

struct head_layout {
    uint64_t id;
    uint64_t bytes;
    uint32_t place;
    uint32_t items;
    uint32_t note_bytes;
    uint16_t channel;
    uint16_t kind;
} __attribute__((packed));

struct item_layout {
    uint32_t number;
    uint32_t reserved;
    uint64_t offset;
    uint64_t bytes;
} __attribute__((packed));

struct answer_layout {
    uint64_t id;
    uint32_t result;
    uint32_t text_bytes;
} __attribute__((packed));

_Static_assert(sizeof(struct bind_layout) == ACCESS_BIND_BYTES, "as documented");
_Static_assert(sizeof(struct head_layout) == ACCESS_HEAD_BYTES, "as documented");
_Static_assert(sizeof(struct item_layout) == ACCESS_ITEM_BYTES, "as documented");
_Static_assert(sizeof(struct answer_layout) + ACCESS_TEXT_BYTES == ACCESS_ANSWER_BYTES,
               "as documented");

/* --- writing ------------------------------------------------------------------------------- */

void access_bind_write(const struct access_bind *bind, uint8_t bytes[ACCESS_BIND_BYTES])
{
    struct bind_layout layout = {.number = htole32(bind->number), .id = htole64(bind->id)};

    memcpy(layout.proof, bind->proof, sizeof layout.proof);
    memcpy(bytes, &layout, sizeof layout);
}

void access_head_write(const struct access_head *head, uint8_t bytes[ACCESS_HEAD_BYTES])
{
    const struct head_layout layout = {
        .id = htole64(head->id),
        .bytes = htole64(head->bytes),
        .place = htole32(head->place),
        .items = htole32(head->items),
        .note_bytes = htole32(head->note_bytes),
        .channel = htole16(head->channel),
        .kind = htole16((uint16_t)(head->kind | (head->has_note ? HAS_NOTE : 0) |
                                   (head->is_inline ? IS_INLINE : 0))),
    };

    memcpy(bytes, &layout, sizeof layout);
}

void access_item_write(const struct access_item *item, uint8_t bytes[ACCESS_ITEM_BYTES])
{
    const struct item_layout layout = {.number = htole32(item->number),
                                       .offset = htole64(item->offset),
                                       .bytes = htole64(item->bytes)};

    memcpy(bytes, &layout, sizeof layout);
}

size_t access_answer_write(const struct access_answer *answer, uint8_t bytes[ACCESS_ANSWER_BYTES])
{
    char shown[ACCESS_TEXT_BYTES + 1];
    size_t text_bytes = text_for_peer(answer->text, shown, sizeof shown);
    const struct answer_layout layout = {.id = htole64(answer->id),
                                         .result = htole32((uint32_t)answer->result),
                                         .text_bytes = htole32((uint32_t)text_bytes)};

    memcpy(bytes, &layout, sizeof layout);
    memcpy(bytes + sizeof layout, shown, text_bytes);
    return sizeof layout + text_bytes;
}

/* --- reading ------------------------------------------------------------------------------- */

static int wire_wrong_length(const char *what, size_t length, size_t expected)
{
    return error_set(TCPX_REMOTE_ERROR, "%s of %zu bytes, expected %zu", what, length, expected);
}

int access_number_read(const uint8_t *bytes, size_t length, uint64_t *number)
{
    if (length != sizeof *number)
        return wire_wrong_length("a number", length, sizeof *number);
    memcpy(number, bytes, sizeof *number);
    *number = le64toh(*number);
    return TCPX_SUCCESS;
}

int access_data_read(const uint8_t *bytes, size_t length, struct access_data *data)
{
    if (length <= ACCESS_DATA_HEAD_BYTES || length > ACCESS_DATA_HEAD_BYTES + ACCESS_MOST_INLINE)
        return error_set(TCPX_REMOTE_ERROR, "data of %zu bytes, expected %d to %d", length,
                         ACCESS_DATA_HEAD_BYTES + 1, ACCESS_DATA_HEAD_BYTES + ACCESS_MOST_INLINE);
    data->data = bytes + ACCESS_DATA_HEAD_BYTES;
    data->bytes = length - ACCESS_DATA_HEAD_BYTES;
    return access_number_read(bytes, ACCESS_DATA_HEAD_BYTES, &data->id);
}

int access_bind_read(const uint8_t *bytes, size_t length, struct access_bind *bind)
{
    struct bind_layout layout;

    if (length != sizeof layout)
        return wire_wrong_length("a binding", length, sizeof layout);
    memcpy(&layout, bytes, sizeof layout);
    if (layout.reserved != 0)
        return error_set(TCPX_REMOTE_ERROR, "a binding with 0x%" PRIx32 " where 0 is expected",
                         le32toh(layout.reserved));
    *bind = (struct access_bind){.number = le32toh(layout.number), .id = le64toh(layout.id)};
    memcpy(bind->proof, layout.proof, sizeof bind->proof);
    return TCPX_SUCCESS;
}

static int head_check(const struct access_head *head, unsigned kind)
{
    if (head->kind != ACCESS_WRITE && head->kind != ACCESS_READ)
        return error_set(TCPX_REMOTE_ERROR, "an access of kind %u", kind);
    if (head->items > MOST_ITEMS)
        return error_set(TCPX_REMOTE_ERROR,
                         "an access of %" PRIu32 " parts, at most %d are possible", head->items,
                         MOST_ITEMS);
    if (head->note_bytes > (head->has_note ? TCPX_NOTE_BYTES : 0))
        return error_set(TCPX_REMOTE_ERROR, "an access with a note of %" PRIu32 " bytes",
                         head->note_bytes);
    if (head->is_inline && (head->bytes == 0 || head->bytes > ACCESS_MOST_INLINE))
        return error_set(TCPX_REMOTE_ERROR,
                         "an inline access of %" PRIu64 " bytes, 1 to %d are possible", head->bytes,
                         ACCESS_MOST_INLINE);
    if ((head->bytes == 0 || head->is_inline) != (head->place == 0))
        return error_set(TCPX_REMOTE_ERROR, "an access of %" PRIu64 " bytes at place %" PRIu32,
                         head->bytes, head->place);
    return TCPX_SUCCESS;
}

int access_head_read(const uint8_t *bytes, size_t length, struct access_head *head,
                     const uint8_t **note, const uint8_t **items, size_t *item_count)
{
    struct head_layout layout;
    struct access_head seen;
    uint64_t behind; /* the items do not take */
    size_t left;
    unsigned kind;
    int result;

    if (length < sizeof layout)
        return wire_wrong_length("an access", length, sizeof layout);
    memcpy(&layout, bytes, sizeof layout);
    kind = le16toh(layout.kind);
    seen =
        (struct access_head){.id = le64toh(layout.id),
                             .kind = (enum access_kind)(kind & ~(unsigned)(HAS_NOTE | IS_INLINE)),
                             .has_note = (kind & HAS_NOTE) != 0,
                             .is_inline = (kind & IS_INLINE) != 0,
                             .channel = le16toh(layout.channel),
                             .place = le32toh(layout.place),
                             .bytes = le64toh(layout.bytes),
                             .items = le32toh(layout.items),
                             .note_bytes = le32toh(layout.note_bytes)};
    result = head_check(&seen, kind);
    if (result != TCPX_SUCCESS)
        return result;
    left = length - sizeof layout;
    behind = seen.note_bytes + (seen.is_inline && seen.kind == ACCESS_WRITE ? seen.bytes : 0);
    if (behind > left || (left - behind) % ACCESS_ITEM_BYTES != 0 ||
        (left - behind) / ACCESS_ITEM_BYTES > seen.items ||
        (seen.is_inline && (left - behind) / ACCESS_ITEM_BYTES < seen.items))
        return error_set(TCPX_REMOTE_ERROR,
                         "an access of %zu bytes with a note of %" PRIu32 " and %" PRIu32
                         " parts, %" PRIu64 " bytes inline",
                         length, seen.note_bytes, seen.items, behind - seen.note_bytes);
    *head = seen;
    *note = bytes + sizeof layout;
    *items = *note + seen.note_bytes;
    *item_count = (left - behind) / ACCESS_ITEM_BYTES;
    return TCPX_SUCCESS;
}

int access_item_read(const uint8_t bytes[ACCESS_ITEM_BYTES], struct access_item *item)
{
    struct item_layout layout;

    memcpy(&layout, bytes, sizeof layout);
    if (layout.reserved != 0)
        return error_set(TCPX_REMOTE_ERROR, "a part with 0x%" PRIx32 " where 0 is expected",
                         le32toh(layout.reserved));
    *item = (struct access_item){.number = le32toh(layout.number),
                                 .offset = le64toh(layout.offset),
                                 .bytes = le64toh(layout.bytes)};
    return TCPX_SUCCESS;
}

int access_answer_read(const uint8_t *bytes, size_t length, struct access_answer *answer)
{
    struct answer_layout layout;
    uint32_t result;

    if (length < sizeof layout || length > ACCESS_ANSWER_BYTES)
        return error_set(TCPX_REMOTE_ERROR, "an answer of %zu bytes, expected %zu to %d", length,
                         sizeof layout, ACCESS_ANSWER_BYTES);
    memcpy(&layout, bytes, sizeof layout);
    if (le32toh(layout.text_bytes) != length - sizeof layout)
        return wire_wrong_length("the text of an answer", length - sizeof layout,
                                 le32toh(layout.text_bytes));
    result = le32toh(layout.result);
    if (result > TCPX_REMOTE_ERROR)
        return error_set(TCPX_REMOTE_ERROR, "an answer with result %" PRIu32, result);
    answer->id = le64toh(layout.id);
    answer->result = (int)result;
    text_printable((const char *)bytes + sizeof layout, length - sizeof layout, answer->text,
                   sizeof answer->text);
    return TCPX_SUCCESS;
}
