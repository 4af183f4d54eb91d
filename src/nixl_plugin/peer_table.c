/* Finding peers by their names, and how long what is known of one stays. */
#include "nixl_plugin/agent.h"

#include <stdlib.h>
#include <string.h>

struct peer *peer_find(const struct nixl_agent *agent, struct nixl_text name)
{
    for (struct peer *peer = agent->peers; peer != NULL; peer = peer->next)
        if (peer->name_length == name.length && memcmp(peer->name, name.bytes, name.length) == 0)
            return peer;
    return NULL;
}

void peer_hold(struct peer *peer)
{
    peer->references++;
}

void peer_release(struct peer *peer)
{
    if (--peer->references > 0)
        return;
    free(peer->slots);
    free(peer->name);
    free(peer);
}
