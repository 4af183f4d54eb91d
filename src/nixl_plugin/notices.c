/*
 * Notices: what agents tell each other, of any length, as notes of tcpx.h. A note begins with a head,
 * which says what it is: the name of the sender's agent, which is the first one of a session; a
 * notice; or a piece of a notice that is too long for a note. A notice comes when all pieces are
 * there, in any order, since one of them may be the note of an access.
 */
#include "nixl_plugin/agent.h"

#include "base/checked.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

enum note_kind { NOTE_NAME = 1, NOTE_NOTICE, NOTE_PIECE, NOTE_WITHDRAWN };

enum { PIECE_BYTES = TCPX_NOTE_BYTES - NOTICE_HEAD_BYTES };

/* A peer cannot make this side keep a longer one. */
static const uint64_t longest_notice = (uint64_t)1 << 30;

struct note_head {
    uint32_t kind;
    uint32_t number; /* of the notice, among those of the session that are in pieces; from 1 on */
    uint64_t bytes;  /* of the whole notice */
    uint64_t offset; /* of the piece in it */
};

_Static_assert(sizeof(struct note_head) == NOTICE_HEAD_BYTES, "a head has no gaps");

/* A notice of which pieces are missing. */
struct partial {
    struct partial *next;
    uint32_t number;
    uint64_t missing;
    struct nixl_notice *notice;
};

/* --- sending ------------------------------------------------------------------------------- */

static void head_write(uint8_t out[NOTICE_HEAD_BYTES], enum note_kind kind, uint32_t number,
                       uint64_t bytes, uint64_t offset)
{
    const struct note_head head = {htole32(kind), htole32(number), htole64(bytes), htole64(offset)};

    memcpy(out, &head, sizeof head);
}

bool notice_introduce(struct link *link)
{
    const struct nixl_agent *agent = link->peer->agent;
    uint8_t *note = agent->room;

    head_write(note, NOTE_NAME, 0, agent->name_length, 0);
    memcpy(note + NOTICE_HEAD_BYTES, agent->name, agent->name_length);
    return tcpx_note_send(link->session, note, NOTICE_HEAD_BYTES + agent->name_length) ==
           TCPX_SUCCESS;
}

/* Of a long notice, all pieces but the last; *offset is where that begins, *number the notice's. */
static bool notice_send_pieces(struct link *link, struct nixl_text text, uint32_t *number,
                               size_t *offset)
{
    uint8_t head[NOTICE_HEAD_BYTES];

    *offset = 0;
    *number = 0;
    if (text.length <= PIECE_BYTES)
        return true;
    if (text.length > longest_notice)
        return false;
    *number = ++link->notices_in_pieces;
    for (; text.length - *offset > PIECE_BYTES; *offset += PIECE_BYTES) {
        head_write(head, NOTE_PIECE, *number, text.length, *offset);
        if (!link_send_note(link, head, sizeof head, text.bytes + *offset, PIECE_BYTES))
            return false;
    }
    return true;
}

bool notice_send(struct link *link, struct nixl_text text)
{
    uint8_t head[NOTICE_HEAD_BYTES];
    uint32_t number;
    size_t offset;

    if (!notice_send_pieces(link, text, &number, &offset))
        return false;
    head_write(head, number != 0 ? NOTE_PIECE : NOTE_NOTICE, number, text.length, offset);
    return link_send_note(link, head, sizeof head, text.bytes + offset, text.length - offset);
}

bool notice_begin(struct link *link, struct nixl_text text, struct notice_note *note)
{
    size_t offset;
    uint32_t number;

    if (!notice_send_pieces(link, text, &number, &offset))
        return false;
    note->bytes = malloc(NOTICE_HEAD_BYTES + text.length - offset);
    if (note->bytes == NULL)
        return false;
    head_write(note->bytes, number != 0 ? NOTE_PIECE : NOTE_NOTICE, number, text.length, offset);
    if (text.length > offset)
        memcpy(note->bytes + NOTICE_HEAD_BYTES, text.bytes + offset, text.length - offset);
    note->length = NOTICE_HEAD_BYTES + text.length - offset;
    note->number = number;
    return true;
}

void notice_withdraw(struct link *link, const struct notice_note *note)
{
    uint8_t head[NOTICE_HEAD_BYTES];

    if (note->number == 0)
        return;
    head_write(head, NOTE_WITHDRAWN, note->number, 0, 0);
    if (!link_send_note(link, head, sizeof head, NULL, 0))
        agent_tell(link->peer->agent, "a notice could not be withdrawn");
}

enum nixl_status nixl_notice_send(struct nixl_agent *agent, struct nixl_text to,
                                  struct nixl_text text)
{
    enum nixl_status status = NIXL_ERR_BACKEND;
    struct peer *peer;
    char shown[128];

    if (!agent_enter(agent))
        return status;
    peer = peer_find(agent, to);
    if (peer != NULL && peer->notice_link == NULL)
        peer->notice_link =
            peer->links != NULL ? peer->links : link_get(peer, HOST, HOST, peer->place.port);
    if (peer == NULL) {
        status = NIXL_ERR_NOT_FOUND;
    } else if (peer->notice_link != NULL && notice_send(peer->notice_link, text)) {
        status = NIXL_SUCCESS;
    } else {
        agent_say(agent, "a notice of %zu bytes cannot be sent to the agent %s", text.length,
                  agent_shown(to, shown));
    }
    agent_leave(agent);
    return status;
}

/* --- receiving ----------------------------------------------------------------------------- */

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

    if (bytes == 0 || head->bytes > longest_notice ||
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

    if (bytes < sizeof head)
        return false;
    memcpy(&head, note, sizeof head);
    head = (struct note_head){le32toh(head.kind), le32toh(head.number), le64toh(head.bytes),
                              le64toh(head.offset)};
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
