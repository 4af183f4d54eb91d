/*
 * The head of each note, which says what it is: the name of the sender's agent, which is the first
 * one of a session; a notice; or a piece of a notice that is too long for a note.
 */
#include "nixl_plugin/note_head.h"

#include <endian.h>
#include <string.h>

_Static_assert(sizeof(struct note_head) == NOTE_HEAD_BYTES, "a head has no gaps");

void note_head_write(uint8_t out[NOTE_HEAD_BYTES], enum note_kind kind, uint32_t number,
                     uint64_t bytes, uint64_t offset)
{
    const struct note_head head = {htole32(kind), htole32(number), htole64(bytes), htole64(offset)};

    memcpy(out, &head, sizeof head);
}

bool note_head_read(const uint8_t *note, size_t bytes, struct note_head *head)
{
    if (bytes < sizeof *head)
        return false;
    memcpy(head, note, sizeof *head);
    *head = (struct note_head){le32toh(head->kind), le32toh(head->number), le64toh(head->bytes),
                               le64toh(head->offset)};
    return true;
}
