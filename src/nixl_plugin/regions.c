/*
 * Memory: regions of this side, each a window of tcpx.h that peers may read and write, and remotes,
 * the regions of peers. Both live as long as a request has a piece in them.
 */
#include "nixl_plugin/agent.h"

#include "base/checked.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* --- of this side -------------------------------------------------------------------------- */

static int region_prepare(struct nixl_region *region)
{
    struct region_key *key = &region->key;
    int result = agent_open_acceptor(region->agent, key->gpu, &key->port);

    if (result == TCPX_SUCCESS)
        result = tcpx_window_open(key->gpu, (void *)(uintptr_t)key->address, key->bytes,
                                  TCPX_WINDOW_READ | TCPX_WINDOW_WRITE, &region->window);
    if (result == TCPX_SUCCESS)
        result = tcpx_window_key(region->window, key->key);
    return result;
}

static void region_enlist(struct nixl_region *region)
{
    region->next = region->agent->regions;
    region->agent->regions = region;
    region_key_write(&region->key, region->key_bytes);
}

enum nixl_status nixl_region_open(struct nixl_agent *agent, int64_t gpu, uintptr_t address,
                                  size_t bytes, struct nixl_region **out)
{
    struct nixl_region *region = calloc(1, sizeof *region);
    int result;

    if (region == NULL || gpu < HOST || gpu > INT_MAX / 2 || !agent_enter(agent)) {
        agent_say(agent, "%zu bytes at 0x%zx of GPU %lld cannot be registered", bytes, address,
                  (long long)gpu);
        free(region);
        return NIXL_ERR_INVALID_PARAM;
    }
    region->agent = agent;
    region->references = 1;
    region->key = (struct region_key){.gpu = (int)gpu, .address = address, .bytes = bytes};
    result = region_prepare(region);
    if (result == TCPX_SUCCESS) {
        region_enlist(region);
        *out = region;
    } else {
        agent_say(agent, "%zu bytes at 0x%zx cannot be registered: %s", bytes, address,
                  error_text());
        free(region);
    }
    agent_leave(agent);
    return result == TCPX_SUCCESS ? NIXL_SUCCESS : NIXL_ERR_BACKEND;
}

void region_release(struct nixl_region *region)
{
    if (--region->references == 0)
        free(region);
}

/* With the lock. */
static enum nixl_status region_end(struct nixl_region *region)
{
    struct nixl_agent *agent = region->agent;
    struct nixl_region **at = &agent->regions;
    int result = tcpx_window_close(region->window, TCPX_DEFAULT_TIMEOUT);

    if (result != TCPX_SUCCESS) {
        agent_say(agent, "%llu bytes at 0x%llx cannot be deregistered: %s",
                  (unsigned long long)region->key.bytes, (unsigned long long)region->key.address,
                  error_text());
        return NIXL_ERR_BACKEND;
    }
    region->window = NULL;
    while (*at != region)
        at = &(*at)->next;
    *at = region->next;
    region_release(region);
    return NIXL_SUCCESS;
}

enum nixl_status nixl_region_close(struct nixl_region *region)
{
    struct nixl_agent *agent = region->agent;
    enum nixl_status status;

    if (!agent_enter(agent))
        return NIXL_ERR_BACKEND;
    status = region_end(region);
    agent_leave(agent);
    return status;
}

void regions_close(struct nixl_agent *agent)
{
    struct nixl_region *next;

    for (struct nixl_region *region = agent->regions; region != NULL; region = next) {
        next = region->next;
        if (region_end(region) != NIXL_SUCCESS)
            return;
    }
}

struct nixl_text nixl_region_key(const struct nixl_region *region)
{
    return (struct nixl_text){(const char *)region->key_bytes, sizeof region->key_bytes};
}

/* --- of peers ------------------------------------------------------------------------------ */

/* The lowest number that no remote of the peer has. */
static bool remote_take_slot(struct nixl_remote *remote)
{
    struct peer *peer = remote->peer;
    size_t slot = 0;
    bool *more;

    while (slot < peer->slot_count && peer->slots[slot])
        slot++;
    if (slot == peer->slot_count) {
        more = realloc(peer->slots, 2 * slot + 16);
        if (more == NULL)
            return false;
        memset(more + slot, 0, slot + 16);
        peer->slots = more;
        peer->slot_count = 2 * slot + 16;
    }
    peer->slots[slot] = true;
    remote->slot = slot;
    return true;
}

/* With the lock. */
static enum nixl_status remote_make(struct peer *peer, const struct region_key *key,
                                    struct nixl_remote **out)
{
    struct nixl_remote *remote = calloc(1, sizeof *remote);

    if (remote == NULL)
        return NIXL_ERR_BACKEND;
    *remote = (struct nixl_remote){.peer = peer, .references = 1, .key = *key};
    if (!remote_take_slot(remote)) {
        free(remote);
        return NIXL_ERR_BACKEND;
    }
    peer_hold(peer);
    *out = remote;
    return NIXL_SUCCESS;
}

enum nixl_status nixl_remote_open(struct nixl_agent *agent, struct nixl_text name,
                                  struct nixl_text text, struct nixl_remote **out)
{
    enum nixl_status status = NIXL_ERR_INVALID_PARAM;
    struct region_key key;
    struct peer *peer;
    char shown[128];

    if (!agent_enter(agent))
        return NIXL_ERR_BACKEND;
    peer = peer_find(agent, name);
    if (peer == NULL) {
        agent_say(agent, "memory of the agent %s: it is not known how that is reached",
                  agent_shown(name, shown));
        status = NIXL_ERR_NOT_FOUND;
    } else if (region_key_read(text, &key) != TCPX_SUCCESS) {
        agent_say(agent, "memory of the agent %s: %s", agent_shown(name, shown), error_text());
    } else {
        status = remote_make(peer, &key, out);
    }
    agent_leave(agent);
    return status;
}

enum nixl_status nixl_remote_open_own(struct nixl_agent *agent, const struct nixl_region *region,
                                      struct nixl_remote **out)
{
    const struct nixl_text name = {agent->name, agent->name_length};
    enum nixl_status status;

    if (!agent_enter(agent))
        return NIXL_ERR_BACKEND;
    status = remote_make(peer_find(agent, name), &region->key, out);
    agent_leave(agent);
    return status;
}

void remote_release(struct nixl_remote *remote)
{
    struct peer *peer = remote->peer;

    if (--remote->references > 0)
        return;
    for (struct link *link = peer->links; link != NULL; link = link->next)
        link_close_slot(link, remote->slot);
    peer->slots[remote->slot] = false;
    peer_release(peer);
    free(remote);
}

void nixl_remote_close(struct nixl_remote *remote)
{
    struct nixl_agent *agent = remote->peer->agent;

    if (!agent_enter(agent))
        return;
    remote_release(remote);
    agent_leave(agent);
}
