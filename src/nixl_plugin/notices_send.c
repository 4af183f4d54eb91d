/*
 * Sending notices, of any length: by themselves or with an access. The pieces of a long one but the
 * last are notes by themselves, also where the last is the note of an access.
 */
#include "nixl_plugin/agent.h"
#include "nixl_plugin/note_head.h"

#include <stdlib.h>
#include <string.h>

/* Of a long notice, all pieces but the last; *offset is where that begins, *number the notice's. */
static bool notice_send_pieces(struct link *link, struct nixl_text text, uint32_t *number,
                               size_t *offset)
{
    uint8_t head[NOTE_HEAD_BYTES];

    *offset = 0;
    *number = 0;
    if (text.length <= NOTE_BODY_BYTES)
        return true;
    if (text.length > NOTICE_MOST_BYTES)
        return false;
    *number = ++link->notices_in_pieces;
    for (; text.length - *offset > NOTE_BODY_BYTES; *offset += NOTE_BODY_BYTES) {
        note_head_write(head, NOTE_PIECE, *number, text.length, *offset);
        if (!link_send_note(link, head, sizeof head, text.bytes + *offset, NOTE_BODY_BYTES))
            return false;
    }
    return true;
}

bool notice_send(struct link *link, struct nixl_text text)
{
    uint8_t head[NOTE_HEAD_BYTES];
    uint32_t number;
    size_t offset;

    if (!notice_send_pieces(link, text, &number, &offset))
        return false;
    note_head_write(head, number != 0 ? NOTE_PIECE : NOTE_NOTICE, number, text.length, offset);
    return link_send_note(link, head, sizeof head, text.bytes + offset, text.length - offset);
}

bool notice_begin(struct link *link, struct nixl_text text, struct notice_note *note)
{
    size_t offset;
    uint32_t number;

    if (!notice_send_pieces(link, text, &number, &offset))
        return false;
    note->bytes = malloc(NOTE_HEAD_BYTES + text.length - offset);
    if (note->bytes == NULL)
        return false;
    note_head_write(note->bytes, number != 0 ? NOTE_PIECE : NOTE_NOTICE, number, text.length,
                    offset);
    if (text.length > offset)
        memcpy(note->bytes + NOTE_HEAD_BYTES, text.bytes + offset, text.length - offset);
    note->length = NOTE_HEAD_BYTES + text.length - offset;
    note->number = number;
    return true;
}

void notice_withdraw(struct link *link, const struct notice_note *note)
{
    uint8_t head[NOTE_HEAD_BYTES];

    if (note->number == 0)
        return;
    note_head_write(head, NOTE_WITHDRAWN, note->number, 0, 0);
    if (!link_send_note(link, head, sizeof head, NULL, 0))
        agent_tell(link->peer->agent, "a notice could not be withdrawn");
}

/* Always the same, as long as it is there, so that notices by themselves keep their order. */
static struct link *notice_link(struct peer *peer)
{
    if (peer->notice_link != NULL && link_drop_if_broken(peer->notice_link))
        peer->notice_link = NULL;
    if (peer->notice_link == NULL)
        peer->notice_link = peer->links;
    if (peer->notice_link == NULL)
        peer->notice_link = link_get(peer, HOST, HOST, peer->endpoint.port);
    return peer->notice_link;
}

enum nixl_status nixl_notice_send(struct nixl_agent *agent, struct nixl_text to,
                                  struct nixl_text text)
{
    enum nixl_status status = NIXL_ERR_BACKEND;
    struct peer *peer;
    struct link *link;
    char shown[128];

    if (!agent_enter(agent))
        return status;
    peer = peer_find(agent, to);
    link = peer != NULL ? notice_link(peer) : NULL;
    if (peer == NULL) {
        status = NIXL_ERR_NOT_FOUND;
    } else if (link != NULL && notice_send(link, text)) {
        status = NIXL_SUCCESS;
    } else {
        agent_say(agent, "a notice of %zu bytes cannot be sent to the agent %s", text.length,
                  agent_shown(to, shown));
    }
    agent_leave(agent);
    return status;
}
