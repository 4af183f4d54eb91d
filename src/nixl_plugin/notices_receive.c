/*
 * Putting notices together from the notes of a guest. One comes when all of its pieces are there,
 * in any order, since one of them may be the note of an access.
 */
#include "nixl_plugin/agent.h"
#include "nixl_plugin/note_head.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

/* A notice of which pieces are missing. */
struct partial {
    struct partial *next;
    uint32_t number;
    uint64_t missing;
    struct nixl_notice *notice;
};

/* In one piece of memory, so that free() frees it. The sender's name is copied. */
static struct nixl_notice *notice_allocate(const struct guest *guest, uint64_t bytes)
{
    struct nixl_notice *notice = calloc(1, sizeof *notice + guest->name_length + bytes);
    char *room = (char *)(notice + 1);

    if (notice == NULL)
        return NULL;
    *notice = (struct nixl_notice){.from = {room, guest->name_length},
                                   .text = {room + guest->name_length, bytes}};
    memcpy(room, guest->name, guest->name_length);
    return notice;
}

/* To write to; the texts of notices are constant for their readers. */
static char *notice_bytes(struct nixl_notice *notice)
{
    return (char *)(notice + 1) + notice->from.length;
}

static void notice_deliver(struct guest *guest, struct nixl_notice *notice)
{
    struct nixl_agent *agent = guest->agent;

    *agent->last_in_inbox = notice;
    agent->last_in_inbox = &notice->next;
}

static bool notice_receive_whole(struct guest *guest, const uint8_t *body, size_t bytes)
{
    struct nixl_notice *notice = notice_allocate(guest, bytes);

    if (notice == NULL)
        return false;
    if (bytes > 0)
        memcpy(notice_bytes(notice), body, bytes);
    notice_deliver(guest, notice);
    return true;
}

/* Where the partial with this number is, or its place at the end of the list. */
static struct partial **partial_find(struct guest *guest, uint32_t number)
{
    struct partial **at = &guest->partials;

    while (*at != NULL && (*at)->number != number)
        at = &(*at)->next;
    return at;
}

static void partial_drop(struct partial **at)
{
    struct partial *partial = *at;

    *at = partial->next;
    free(partial->notice);
    free(partial);
}

static struct partial *partial_make(const struct guest *guest, const struct note_head *head)
{
    struct partial *partial = calloc(1, sizeof *partial);

    if (partial == NULL)
        return NULL;
    *partial = (struct partial){.number = head->number,
                                .missing = head->bytes,
                                .notice = notice_allocate(guest, head->bytes)};
    if (partial->notice == NULL) {
        free(partial);
        return NULL;
    }
    return partial;
}

static bool notice_receive_piece(struct guest *guest, const struct note_head *head,
                                 const uint8_t *body, size_t bytes)
{
    struct partial **at = partial_find(guest, head->number);

    if (bytes == 0 || head->bytes > NOTICE_MOST_BYTES ||
        !range_inside(head->offset, bytes, head->bytes))
        return false;
    if (*at == NULL)
        *at = partial_make(guest, head);
    if (*at == NULL || (*at)->notice->text.length != head->bytes || (*at)->missing < bytes)
        return false;
    memcpy(notice_bytes((*at)->notice) + head->offset, body, bytes);
    (*at)->missing -= bytes;
    if ((*at)->missing == 0) {
        notice_deliver(guest, (*at)->notice);
        (*at)->notice = NULL;
        partial_drop(at);
    }
    return true;
}

static bool notice_take_name(struct guest *guest, const uint8_t *body, size_t bytes)
{
    if (guest->name != NULL)
        return false;
    guest->name = malloc(bytes + 1);
    if (guest->name == NULL)
        return false;
    memcpy(guest->name, body, bytes);
    guest->name_length = bytes;
    return true;
}

static bool notice_dispatch(struct guest *guest, const struct note_head *head, const uint8_t *body,
                            size_t bytes)
{
    struct partial **at;

    switch (head->kind) {
    case NOTE_NOTICE:
        return notice_receive_whole(guest, body, bytes);
    case NOTE_PIECE:
        return notice_receive_piece(guest, head, body, bytes);
    case NOTE_WITHDRAWN:
        at = partial_find(guest, head->number);
        if (*at != NULL)
            partial_drop(at);
        return true;
    default:
        return false;
    }
}

/* The note of an access may overtake the name, which is a note by itself. */
static bool notice_hold(struct guest *guest, const uint8_t *note, size_t bytes)
{
    struct held *held = malloc(sizeof *held + bytes);

    if (held == NULL)
        return false;
    held->next = NULL;
    held->bytes = bytes;
    memcpy(held->note, note, bytes);
    *guest->last_held = held;
    guest->last_held = &held->next;
    return true;
}

static bool notice_receive_held(struct guest *guest)
{
    bool good = true;

    while (guest->held != NULL) {
        struct held *held = guest->held;

        guest->held = held->next;
        good = good && notice_receive(guest, held->note, held->bytes);
        free(held);
    }
    guest->last_held = &guest->held;
    return good;
}

bool notice_receive(struct guest *guest, const uint8_t *note, size_t bytes)
{
    struct note_head head;

    if (!note_head_read(note, bytes, &head))
        return false;
    note += sizeof head;
    bytes -= sizeof head;
    if (head.kind == NOTE_NAME)
        return notice_take_name(guest, note, bytes) && notice_receive_held(guest);
    if (guest->name == NULL)
        return notice_hold(guest, note - sizeof head, bytes + sizeof head);
    return notice_dispatch(guest, &head, note, bytes);
}

void notices_forget(struct guest *guest)
{
    while (guest->partials != NULL)
        partial_drop(&guest->partials);
    while (guest->held != NULL) {
        struct held *held = guest->held;

        guest->held = held->next;
        free(held);
    }
}
