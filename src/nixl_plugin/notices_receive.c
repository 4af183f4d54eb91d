/*
 * Putting notices together from the notes of an incoming session. One comes when all of its pieces
 * are there, in any order, since one of them may be the note of an access.
 */
#include "nixl_plugin/agent.h"
#include "nixl_plugin/note_head.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

/* More of a peer's are not kept: all notices of accesses that can be under way have room. */
enum { MOST_PARTIALS = 4096, MOST_HELD_BYTES = 4 << 20 };

/* A notice of which pieces are missing. */
struct partial {
    struct partial *next;
    uint32_t number;
    uint64_t missing;
    struct nixl_notice *notice;
};

/* In one piece of memory, so that free() frees it. The sender's name is copied. */
static struct nixl_notice *notice_allocate(const struct incoming *incoming, uint64_t bytes)
{
    struct nixl_notice *notice = calloc(1, sizeof *notice + incoming->name_length + bytes);
    char *room = (char *)(notice + 1);

    if (notice == NULL)
        return NULL;
    *notice = (struct nixl_notice){.from = {room, incoming->name_length},
                                   .text = {room + incoming->name_length, bytes}};
    memcpy(room, incoming->name, incoming->name_length);
    return notice;
}

/* To write to; the texts of notices are constant for their readers. */
static char *notice_bytes(struct nixl_notice *notice)
{
    return (char *)(notice + 1) + notice->from.length;
}

static void notice_deliver(struct incoming *incoming, struct nixl_notice *notice)
{
    struct nixl_agent *agent = incoming->agent;

    *agent->last_in_inbox = notice;
    agent->last_in_inbox = &notice->next;
    agent->inbox_bytes += sizeof *notice + notice->from.length + notice->text.length;
}

static bool notice_receive_whole(struct incoming *incoming, const uint8_t *body, size_t bytes)
{
    struct nixl_notice *notice = notice_allocate(incoming, bytes);

    if (notice == NULL)
        return false;
    if (bytes > 0)
        memcpy(notice_bytes(notice), body, bytes);
    notice_deliver(incoming, notice);
    return true;
}

/* Where the partial with this number is, or its place at the end of the list. */
static struct partial **partial_find(struct incoming *incoming, uint32_t number)
{
    struct partial **at = &incoming->partials;

    while (*at != NULL && (*at)->number != number)
        at = &(*at)->next;
    return at;
}

static void partial_drop(struct incoming *incoming, struct partial **at)
{
    struct partial *partial = *at;

    *at = partial->next;
    incoming->partial_count--;
    free(partial->notice);
    free(partial);
}

static struct partial *partial_make(struct incoming *incoming, const struct note_head *head)
{
    struct partial *partial =
        incoming->partial_count < MOST_PARTIALS ? calloc(1, sizeof *partial) : NULL;

    if (partial == NULL)
        return NULL;
    *partial = (struct partial){.number = head->number,
                                .missing = head->bytes,
                                .notice = notice_allocate(incoming, head->bytes)};
    if (partial->notice == NULL) {
        free(partial);
        return NULL;
    }
    incoming->partial_count++;
    return partial;
}

static bool notice_receive_piece(struct incoming *incoming, const struct note_head *head,
                                 const uint8_t *body, size_t bytes)
{
    struct partial **at = partial_find(incoming, head->number);

    if (bytes == 0 || head->bytes > NOTICE_MOST_BYTES ||
        !range_inside(head->offset, bytes, head->bytes))
        return false;
    if (*at == NULL)
        *at = partial_make(incoming, head);
    if (*at == NULL || (*at)->notice->text.length != head->bytes || (*at)->missing < bytes)
        return false;
    memcpy(notice_bytes((*at)->notice) + head->offset, body, bytes);
    (*at)->missing -= bytes;
    if ((*at)->missing == 0) {
        notice_deliver(incoming, (*at)->notice);
        (*at)->notice = NULL;
        partial_drop(incoming, at);
    }
    return true;
}

static bool notice_take_name(struct incoming *incoming, const uint8_t *body, size_t bytes)
{
    if (incoming->name != NULL)
        return false;
    incoming->name = malloc(bytes + 1);
    if (incoming->name == NULL)
        return false;
    memcpy(incoming->name, body, bytes);
    incoming->name_length = bytes;
    return true;
}

static bool notice_dispatch(struct incoming *incoming, const struct note_head *head,
                            const uint8_t *body, size_t bytes)
{
    struct partial **at;

    switch (head->kind) {
    case NOTE_NOTICE:
        return notice_receive_whole(incoming, body, bytes);
    case NOTE_PIECE:
        return notice_receive_piece(incoming, head, body, bytes);
    case NOTE_WITHDRAWN:
        at = partial_find(incoming, head->number);
        if (*at != NULL)
            partial_drop(incoming, at);
        return true;
    default:
        return false;
    }
}

/* The note of an access may overtake the name, which is a note by itself. */
static bool notice_hold(struct incoming *incoming, const uint8_t *note, size_t bytes)
{
    struct held *held =
        incoming->held_bytes + bytes <= MOST_HELD_BYTES ? malloc(sizeof *held + bytes) : NULL;

    if (held == NULL)
        return false;
    incoming->held_bytes += sizeof *held + bytes;
    held->next = NULL;
    held->bytes = bytes;
    memcpy(held->note, note, bytes);
    *incoming->last_held = held;
    incoming->last_held = &held->next;
    return true;
}

static bool notice_receive_held(struct incoming *incoming)
{
    bool good = true;

    while (incoming->held != NULL) {
        struct held *held = incoming->held;

        incoming->held = held->next;
        good = good && notice_receive(incoming, held->note, held->bytes);
        free(held);
    }
    incoming->last_held = &incoming->held;
    return good;
}

bool notice_receive(struct incoming *incoming, const uint8_t *note, size_t bytes)
{
    struct note_head head;

    if (!note_head_read(note, bytes, &head))
        return false;
    note += sizeof head;
    bytes -= sizeof head;
    if (head.kind == NOTE_NAME)
        return notice_take_name(incoming, note, bytes) && notice_receive_held(incoming);
    if (incoming->name == NULL)
        return notice_hold(incoming, note - sizeof head, bytes + sizeof head);
    return notice_dispatch(incoming, &head, note, bytes);
}

void notices_forget(struct incoming *incoming)
{
    while (incoming->partials != NULL)
        partial_drop(incoming, &incoming->partials);
    while (incoming->held != NULL) {
        struct held *held = incoming->held;

        incoming->held = held->next;
        free(held);
    }
}
