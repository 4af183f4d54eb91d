/*
 * What the tests share that move many messages: random numbers, bytes that tell one message from
 * any other, and memory that ends at an unreadable page.
 */
#ifndef TCPX_TESTS_NET_TRAFFIC_H
#define TCPX_TESTS_NET_TRAFFIC_H

#include "tests/support/basics.h"
#include "tests/unit/net_pair.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { GUARD_PAGE = 65536 }; /* a whole number of pages on every machine */

/* --- what a message says -------------------------------------------------------------------- */

/*
 * Every message is a piece of one random text, by its number. It is written once and compared with
 * memcmp, so that a sanitizer does not spend its time on the bytes of the test.
 */
struct text {
    uint8_t *bytes;
    uint64_t longest; /* of a message */
    uint64_t starts;  /* how many messages begin at different places */
};

static inline struct text text_create(uint64_t longest)
{
    struct text text = {.longest = longest, .starts = 999983};
    uint64_t state = 0x1234567;

    text.bytes = malloc(longest + text.starts);
    assert_non_null(text.bytes);
    for (uint64_t i = 0; i < longest + text.starts; i++)
        text.bytes[i] = (uint8_t)(random_next(&state) >> 32);
    return text;
}

static inline void text_destroy(struct text *text)
{
    free(text->bytes);
}

static inline const uint8_t *text_of(const struct text *text, uint64_t number)
{
    return text->bytes + number * 7919 % text->starts;
}

/* --- memory between unreadable pages -------------------------------------------------------- */

/* Slots for one buffer each; a byte behind a buffer is a fault, one before it is found later. */
struct slots {
    uint8_t *memory;
    uint64_t room; /* of a slot, with what stands before its buffer */
    int count;
};

enum { SLOT_MARGIN = 64, SLOT_MARK = 0xaa };

static inline struct slots slots_create(int count, uint64_t longest)
{
    struct slots slots = {.count = count};

    slots.room = (longest + SLOT_MARGIN + GUARD_PAGE - 1) / GUARD_PAGE * GUARD_PAGE;
    slots.memory = mmap(NULL, (uint64_t)count * (slots.room + GUARD_PAGE), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(slots.memory, MAP_FAILED);
    for (int i = 0; i < count; i++)
        assert_int_equal(
            mprotect(slots.memory + (uint64_t)i * (slots.room + GUARD_PAGE) + slots.room,
                     GUARD_PAGE, PROT_NONE),
            0);
    return slots;
}

static inline void slots_destroy(struct slots *slots)
{
    munmap(slots->memory, (uint64_t)slots->count * (slots->room + GUARD_PAGE));
}

/* The buffer of a slot that has just this many bytes before the page. */
static inline uint8_t *slot_buffer(const struct slots *slots, int slot, uint64_t bytes)
{
    return slots->memory + (uint64_t)slot * (slots->room + GUARD_PAGE) + slots->room - bytes;
}

/* Marks the buffer and the bytes before it. */
static inline uint8_t *slot_marked(const struct slots *slots, int slot, uint64_t bytes)
{
    uint8_t *buffer = slot_buffer(slots, slot, bytes);

    memset(buffer - SLOT_MARGIN, SLOT_MARK, bytes + SLOT_MARGIN);
    return buffer;
}

static inline bool all_marked(const uint8_t *bytes, uint64_t count)
{
    return count == 0 ||
           (bytes[0] == SLOT_MARK && memcmp(bytes, bytes + 1, (size_t)count - 1) == 0);
}

/* Whether a buffer of `room` bytes has the message, and the marks are all there around it. */
static inline bool slot_holds(const uint8_t *buffer, uint64_t room, const uint8_t *message,
                              uint64_t bytes)
{
    return bytes <= room && all_marked(buffer - SLOT_MARGIN, SLOT_MARGIN) &&
           (bytes == 0 || memcmp(buffer, message, bytes) == 0) &&
           all_marked(buffer + bytes, room - bytes);
}

#endif
