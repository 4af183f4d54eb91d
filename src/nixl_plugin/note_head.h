/* The head of each note that agents send each other; what is behind it is its body. */
#ifndef TCPX_NIXL_PLUGIN_NOTE_HEAD_H
#define TCPX_NIXL_PLUGIN_NOTE_HEAD_H

#include "tcpx.h"

#include <stdbool.h>

enum note_kind { NOTE_NAME = 1, NOTE_NOTICE, NOTE_PIECE, NOTE_WITHDRAWN };

struct note_head {
    uint32_t kind;
    uint32_t number; /* of the notice, among those of the session that are in pieces; from 1 on */
    uint64_t bytes;  /* of the whole notice */
    uint64_t offset; /* of the piece in it */
};

enum { NOTE_HEAD_BYTES = 24, NOTE_BODY_BYTES = TCPX_NOTE_BYTES - NOTE_HEAD_BYTES };

/* A peer cannot make this side keep a longer notice. */
#define NOTICE_MOST_BYTES ((uint64_t)1 << 30)

void note_head_write(uint8_t out[NOTE_HEAD_BYTES], enum note_kind kind, uint32_t number,
                     uint64_t bytes, uint64_t offset);

/* False: it is too short to have one. */
bool note_head_read(const uint8_t *note, size_t bytes, struct note_head *head);

#endif
