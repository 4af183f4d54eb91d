/*
 * Lists of pieces: how a number of bytes is cut, where its pieces lie, and what moving one list to
 * another does to memory.
 */
#ifndef TCPX_TESTS_SESSION_LISTS_H
#define TCPX_TESTS_SESSION_LISTS_H

#include "tests/unit/session_pair.h"

struct list {
    struct tcpx_piece *pieces;
    uint32_t count;
    uint64_t span; /* what they lie in */
};

enum list_kind { DISJOINT, OVERLAPPING, IN_ORDER };

/*
 * `count` pieces of `bytes` altogether, some of them empty; as many as there are bytes: of one byte
 * each. They have no places yet.
 */
static inline struct list list_cut(uint64_t *random, uint64_t bytes, uint32_t count)
{
    struct list list = {.pieces = calloc(count + 1, sizeof *list.pieces), .count = count};
    uint64_t left = bytes;

    CHECK(list.pieces != NULL);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t fair = left / (count - i);
        uint64_t length = i + 1 == count   ? left
                          : count == bytes ? 1
                                           : random_below(random, 2 * fair + 2);

        list.pieces[i].bytes = length < left ? length : left;
        left -= list.pieces[i].bytes;
    }
    return list;
}

/* In any order, or in that of the list; some of them touch each other. */
static inline void list_place(uint64_t *random, struct list *list, uint64_t bytes,
                              enum list_kind kind)
{
    uint32_t *order = calloc(list->count + 1, sizeof *order);

    CHECK(order != NULL);
    shuffle(random, order, list->count);
    list->span = kind == OVERLAPPING ? bytes : 0;
    for (uint32_t i = 0; i < list->count; i++) {
        struct tcpx_piece *piece = &list->pieces[kind == IN_ORDER ? i : order[i]];

        if (kind == OVERLAPPING) {
            piece->offset = random_below(random, bytes - piece->bytes + 1);
        } else {
            piece->offset = list->span + (one_in(random, 3) ? random_below(random, 9) : 0);
            list->span = piece->offset + piece->bytes;
        }
    }
    free(order);
}

static inline struct list list_draw(uint64_t *random, uint64_t bytes, uint32_t count,
                                    enum list_kind kind)
{
    struct list list = list_cut(random, bytes, count);

    list_place(random, &list, bytes, kind);
    return list;
}

/* Two of them that are cut alike, as both sides of an access are. */
static inline void list_draw_two(uint64_t *random, uint64_t bytes, uint32_t count,
                                 const enum list_kind kinds[2], struct list lists[2])
{
    lists[0] = list_cut(random, bytes, count);
    lists[1] = (struct list){.pieces = calloc(count + 1, sizeof *lists[1].pieces), .count = count};
    CHECK(lists[0].pieces != NULL && lists[1].pieces != NULL);
    memcpy(lists[1].pieces, lists[0].pieces, count * sizeof *lists[1].pieces);
    for (int i = 0; i < 2; i++)
        list_place(random, &lists[i], bytes, kinds[i]);
}

static inline void list_free(struct list *list)
{
    free(list->pieces);
    *list = (struct list){0};
}

/* What a transfer does: `from` is read in the order of its pieces, where its memory is `seed`'s. */
static inline void list_move(const struct list *from, uint64_t seed, const struct list *to,
                             uint8_t *memory)
{
    uint64_t bytes = 0;
    uint64_t at = 0;
    uint8_t *message;

    for (uint32_t i = 0; i < from->count; i++)
        bytes += from->pieces[i].bytes;
    message = malloc(bytes + 1);
    CHECK(message != NULL);
    for (uint32_t i = 0; i < from->count; at += from->pieces[i++].bytes)
        pattern_copy(message + at, from->pieces[i].bytes, seed, from->pieces[i].offset);
    at = 0;
    for (uint32_t i = 0; i < to->count; at += to->pieces[i++].bytes)
        memcpy(memory + to->pieces[i].offset, message + at, to->pieces[i].bytes);
    free(message);
}

#endif
