/*
 * Sessions that peers have begun. They are served by the I/O threads; here their notices are taken,
 * and they are closed when they have ended.
 */
#include "nixl_plugin/agent.h"

#include <stdlib.h>

/* Notices that the program has not asked for. */
enum { MOST_INBOX_BYTES = 64 << 20 };

void incoming_add(struct nixl_agent *agent, struct tcpx_session *session)
{
    struct incoming *incoming = calloc(1, sizeof *incoming);

    if (incoming == NULL) {
        agent_retire_session(agent, session);
        return;
    }
    *incoming = (struct incoming){.next = agent->incoming, .agent = agent, .session = session};
    incoming->last_held = &incoming->held;
    agent->incoming = incoming;
    agent_wake_service(agent);
}

static void incoming_remove(struct incoming **at)
{
    struct incoming *incoming = *at;

    *at = incoming->next;
    agent_retire_session(incoming->agent, incoming->session);
    notices_forget(incoming);
    free(incoming->name);
    free(incoming);
}

/* False: its session has ended, or is of no more use. */
static bool incoming_take_notes(struct incoming *incoming)
{
    struct nixl_agent *agent = incoming->agent;
    size_t bytes;
    int there;

    for (;;) {
        if (tcpx_note_take(incoming->session, agent->room, TCPX_NOTE_BYTES, &bytes, &there) !=
            TCPX_SUCCESS) {
            agent_tell(agent, "a peer is gone: %s", error_text());
            return false;
        }
        if (!there)
            return true;
        if (!notice_receive(incoming, agent->room, bytes)) {
            agent_say(agent, "%s has sent a notice that is not understood: its session ends",
                      tcpx_session_peer(incoming->session));
            return false;
        }
    }
}

void incoming_listen(struct nixl_agent *agent)
{
    struct incoming **at = &agent->incoming;

    /* What is not taken holds up the peers that send it. */
    if (agent->inbox_bytes > MOST_INBOX_BYTES)
        return;
    while (*at != NULL)
        if (incoming_take_notes(*at))
            at = &(*at)->next;
        else
            incoming_remove(at);
}

void incoming_end(struct nixl_agent *agent)
{
    while (agent->incoming != NULL)
        incoming_remove(&agent->incoming);
}

struct nixl_notice *nixl_notices_take(struct nixl_agent *agent)
{
    struct nixl_notice *notices;

    if (!agent_enter(agent))
        return NULL;
    incoming_listen(agent);
    notices = agent->inbox;
    agent->inbox = NULL;
    agent->last_in_inbox = &agent->inbox;
    agent->inbox_bytes = 0;
    if (notices != NULL)
        agent_leave(agent);
    else
        agent_leave_empty_handed(agent);
    return notices;
}
