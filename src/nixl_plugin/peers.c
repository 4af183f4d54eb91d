/*
 * Other agents, by name. An agent that went and came back under its name is another peer: its
 * identity is new, and remotes and requests of the earlier one keep that one.
 */
#include "nixl_plugin/agent.h"

#include <stdlib.h>
#include <string.h>

/* With the lock. */
static bool peer_add(struct nixl_agent *agent, struct nixl_text name,
                     const struct endpoint *endpoint)
{
    struct peer *peer = calloc(1, sizeof *peer);
    char *copy = malloc(name.length + 1);

    if (peer == NULL || copy == NULL) {
        free(peer);
        free(copy);
        return false;
    }
    memcpy(copy, name.bytes, name.length);
    *peer = (struct peer){.next = agent->peers,
                          .references = 1,
                          .agent = agent,
                          .name = copy,
                          .name_length = name.length,
                          .endpoint = *endpoint};
    agent->peers = peer;
    return true;
}

/* With the lock. */
static void peer_remove(struct peer *peer)
{
    struct peer **at = &peer->agent->peers;

    while (*at != peer)
        at = &(*at)->next;
    *at = peer->next;
    peer->is_forgotten = true;
    while (peer->links != NULL)
        link_end(peer->links, NIXL_ERR_REMOTE_DISCONNECT, NULL);
    peer_release(peer);
}

void peers_end(struct nixl_agent *agent)
{
    while (agent->peers != NULL)
        peer_remove(agent->peers);
}

/* With the lock. */
static enum nixl_status peer_take(struct nixl_agent *agent, struct nixl_text name,
                                  const struct endpoint *endpoint)
{
    struct peer *known = peer_find(agent, name);

    if (known != NULL && strcmp(known->endpoint.identity, endpoint->identity) == 0)
        return NIXL_SUCCESS;
    if (known != NULL)
        peer_remove(known);
    return peer_add(agent, name, endpoint) ? NIXL_SUCCESS : NIXL_ERR_BACKEND;
}

enum nixl_status nixl_peer_load(struct nixl_agent *agent, struct nixl_text name,
                                struct nixl_text text)
{
    enum nixl_status status;
    struct endpoint endpoint;
    char shown[128];

    if (endpoint_read(text, &endpoint) != TCPX_SUCCESS) {
        agent_say(agent, "the agent %s: %s", agent_shown(name, shown), error_text());
        return NIXL_ERR_INVALID_PARAM;
    }
    if (!agent_enter(agent))
        return NIXL_ERR_BACKEND;
    status = peer_take(agent, name, &endpoint);
    agent_leave(agent);
    return status;
}

enum nixl_status nixl_peer_connect(struct nixl_agent *agent, struct nixl_text name)
{
    struct peer *peer;
    enum nixl_status status = NIXL_SUCCESS;

    if (!agent_enter(agent))
        return NIXL_ERR_BACKEND;
    peer = peer_find(agent, name);
    if (peer == NULL)
        status = NIXL_ERR_NOT_FOUND;
    else if (strcmp(peer->endpoint.identity, agent->endpoint.identity) !=
                 0 && /* itself: when it is used */
             link_get(peer, HOST, HOST, peer->endpoint.port) == NULL)
        status = NIXL_ERR_BACKEND;
    agent_leave(agent);
    return status;
}

enum nixl_status nixl_peer_forget(struct nixl_agent *agent, struct nixl_text name)
{
    struct peer *peer;

    if (!agent_enter(agent))
        return NIXL_ERR_BACKEND;
    peer = peer_find(agent, name);
    if (peer != NULL)
        peer_remove(peer);
    agent_leave(agent);
    return peer != NULL ? NIXL_SUCCESS : NIXL_ERR_NOT_FOUND;
}
