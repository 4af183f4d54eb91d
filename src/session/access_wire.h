/*
 * The messages of one-sided access on the control connection: their layouts, as strict as those of
 * net/wire/wire.h. All numbers are little endian. What a message means is decided in bindings.c,
 * accesses.c, serve.c and notes.c.
 */
#ifndef TCPX_SESSION_ACCESS_WIRE_H
#define TCPX_SESSION_ACCESS_WIRE_H

#include "base/error.h"
#include "session/control.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum access_message {
    ACCESS_BIND = 7,      /* this number stands for that window from now on; the proof of its key */
    ACCESS_UNBIND = 8,    /* no further access names this number */
    ACCESS_BEGIN = 9,     /* a read or a write, its note, and the first of its parts; the bytes of
                             an inline write */
    ACCESS_MORE = 10,     /* further parts of the same */
    ACCESS_ANSWER = 11,   /* how a write ended, or why a read did not: result and text */
    ACCESS_FINISHED = 12, /* a read with a note: all bytes have arrived */
    ACCESS_CANCEL = 13,   /* the initiator gives it up */
    ACCESS_CANCELLED = 14, /* the answer to that: nothing touches the windows for it any more */
    ACCESS_NOTE = 15,      /* a note by itself */
    ACCESS_TAKEN = 16, /* all bytes of notes that are not waiting any more, since the beginning */
    ACCESS_DATA = 17,  /* the bytes of an inline read */
};

enum {
    ACCESS_PROOF_BYTES = 16,
    ACCESS_BIND_BYTES = 32,
    ACCESS_HEAD_BYTES = 32,
    ACCESS_ITEM_BYTES = 24,
    ACCESS_TEXT_BYTES = 200, /* of an answer, at most */
    ACCESS_ANSWER_BYTES = 16 + ACCESS_TEXT_BYTES,
    ACCESS_MORE_ITEMS = CONTROL_LARGEST / ACCESS_ITEM_BYTES,
    ACCESS_DATA_HEAD_BYTES = 8,
    ACCESS_MOST_INLINE = 16384, /* bytes of an inline access */
};

struct access_bind {
    uint32_t number;
    uint64_t id; /* of the window */
    uint8_t proof[ACCESS_PROOF_BYTES];
};

enum access_kind { ACCESS_WRITE = 1, ACCESS_READ = 2 };

struct access_head {
    uint64_t id;
    enum access_kind kind;
    bool has_note;
    bool is_inline; /* its bytes travel in messages here, and its list is whole */
    uint16_t channel;
    uint32_t place;      /* of its bytes; 0: it has none */
    uint64_t bytes;      /* of all parts */
    uint32_t items;      /* at most 1 << 20 */
    uint32_t note_bytes; /* at most TCPX_NOTE_BYTES */
};

/* A part of a window. */
struct access_item {
    uint32_t number; /* of the binding */
    uint64_t offset;
    uint64_t bytes;
};

struct access_answer {
    uint64_t id;
    int result;
    char text[ACCESS_TEXT_BYTES + 1];
};

/* The bytes of an inline read, which lie in the message. */
struct access_data {
    uint64_t id;
    const uint8_t *data;
    size_t bytes;
};

void access_bind_write(const struct access_bind *bind, uint8_t bytes[ACCESS_BIND_BYTES]);
void access_head_write(const struct access_head *head, uint8_t bytes[ACCESS_HEAD_BYTES]);
void access_item_write(const struct access_item *item, uint8_t bytes[ACCESS_ITEM_BYTES]);
/* How many bytes it has. The text is cut and made fit for a peer (base/text.h). */
size_t access_answer_write(const struct access_answer *answer, uint8_t bytes[ACCESS_ANSWER_BYTES]);

/* Accept only what the functions above write; a refusal is TCPX_REMOTE_ERROR with a text. */
MUST_CHECK int access_bind_read(const uint8_t *bytes, size_t length, struct access_bind *bind);
/*
 * The note and the items lie behind it: *item_count of them, the others follow in messages of their
 * own. Behind those of an inline write lie its bytes.
 */
MUST_CHECK int access_head_read(const uint8_t *bytes, size_t length, struct access_head *head,
                                const uint8_t **note, const uint8_t **items, size_t *item_count);
MUST_CHECK int access_item_read(const uint8_t bytes[ACCESS_ITEM_BYTES], struct access_item *item);
MUST_CHECK int access_answer_read(const uint8_t *bytes, size_t length,
                                  struct access_answer *answer);
MUST_CHECK int access_data_read(const uint8_t *bytes, size_t length, struct access_data *data);
/* The payload of the other types: an id, a number or a sum. */
MUST_CHECK int access_number_read(const uint8_t *bytes, size_t length, uint64_t *number);

#endif
