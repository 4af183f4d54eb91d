/*
 * Sessions that peers have begun. They are served by the I/O threads; here their notices are taken,
 * and they are closed when they have ended.
 */
#include "nixl_plugin/agent.h"

#include <stdlib.h>

void guests_add(struct nixl_agent *agent, struct tcpx_session *session)
{
    struct guest *guest = calloc(1, sizeof *guest);

    if (guest == NULL) {
        agent_retire_session(agent, session);
        return;
    }
    *guest = (struct guest){.next = agent->guests, .agent = agent, .session = session};
    guest->last_held = &guest->held;
    agent->guests = guest;
    agent_wake_caretaker(agent);
}

static void guest_end(struct guest **at)
{
    struct guest *guest = *at;

    *at = guest->next;
    agent_retire_session(guest->agent, guest->session);
    notices_forget(guest);
    free(guest->name);
    free(guest);
}

/* False: its session has ended, or is of no more use. */
static bool guest_listen(struct guest *guest)
{
    struct nixl_agent *agent = guest->agent;
    size_t bytes;
    int there;

    for (;;) {
        if (tcpx_note_take(guest->session, agent->room, TCPX_NOTE_BYTES, &bytes, &there) !=
            TCPX_SUCCESS) {
            agent_tell(agent, "a peer is gone: %s", error_text());
            return false;
        }
        if (!there)
            return true;
        if (!notice_receive(guest, agent->room, bytes)) {
            agent_say(agent, "%s has sent a notice that is not understood: its session ends",
                      tcpx_session_peer(guest->session));
            return false;
        }
    }
}

void guests_listen(struct nixl_agent *agent)
{
    struct guest **at = &agent->guests;

    while (*at != NULL)
        if (guest_listen(*at))
            at = &(*at)->next;
        else
            guest_end(at);
}

void guests_end(struct nixl_agent *agent)
{
    while (agent->guests != NULL)
        guest_end(&agent->guests);
}

struct nixl_notice *nixl_notices_take(struct nixl_agent *agent)
{
    struct nixl_notice *notices;

    if (!agent_enter(agent))
        return NULL;
    guests_listen(agent);
    notices = agent->inbox;
    agent->inbox = NULL;
    agent->last_in_inbox = &agent->inbox;
    if (notices != NULL)
        agent_leave(agent);
    else
        agent_leave_empty_handed(agent);
    return notices;
}
