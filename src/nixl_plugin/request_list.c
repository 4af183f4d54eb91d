/*
 * The list of a request: its pieces are checked, and cut into accesses, since one access has memory
 * of one GPU at each end, and a bounded number of parts.
 */
#include "nixl_plugin/request_list.h"

#include "base/checked.h"

#include <stdlib.h>

enum { MOST_PIECES = 1 << 20 }; /* of an access */

enum nixl_status nixl_request_create(struct nixl_agent *agent, struct nixl_text name, bool is_read,
                                     size_t count, struct nixl_request **out)
{
    struct nixl_request *request = calloc(1, sizeof *request);
    struct item *items = calloc(count > 0 ? count : 1, sizeof *items);
    struct peer *peer = NULL;
    char shown[128];

    if (request == NULL || items == NULL || !agent_enter(agent)) {
        free(request);
        free(items);
        return NIXL_ERR_BACKEND;
    }
    peer = peer_find(agent, name);
    if (peer != NULL) {
        peer_hold(peer);
        *request = (struct nixl_request){.agent = agent,
                                         .peer = peer,
                                         .is_read = is_read,
                                         .items = items,
                                         .capacity = count,
                                         .status = NIXL_ERR_NOT_POSTED};
        *out = request;
    } else {
        agent_say(agent, "the agent %s is not known", agent_shown(name, shown));
        free(request);
        free(items);
    }
    agent_leave(agent);
    return peer != NULL ? NIXL_SUCCESS : NIXL_ERR_NOT_FOUND;
}

static bool piece_is_inside(const struct region_key *key, uintptr_t address, size_t bytes)
{
    return address >= key->address && range_inside(address - key->address, bytes, key->bytes);
}

enum nixl_status nixl_request_add(struct nixl_request *request, const struct nixl_piece *piece)
{
    if (request->count == request->capacity || piece->region == NULL || piece->remote == NULL ||
        piece->remote->peer != request->peer)
        return NIXL_ERR_INVALID_PARAM;
    if (!piece_is_inside(&piece->region->key, piece->address, piece->bytes) ||
        !piece_is_inside(&piece->remote->key, piece->remote_address, piece->bytes)) {
        agent_say(request->agent, "descriptor %zu, of %zu bytes: it is not in registered memory",
                  request->count, piece->bytes);
        return NIXL_ERR_INVALID_PARAM;
    }
    request->items[request->count++] =
        (struct item){.region = piece->region,
                      .remote = piece->remote,
                      .offset = piece->address - piece->region->key.address,
                      .remote_offset = piece->remote_address - piece->remote->key.address,
                      .bytes = piece->bytes};
    return NIXL_SUCCESS;
}

/* By GPUs; those of one kind keep their order. */
static int item_compare(const void *a, const void *b)
{
    const struct item *first = a;
    const struct item *second = b;
    int here = first->region->key.gpu - second->region->key.gpu;

    return here != 0 ? here : first->remote->key.gpu - second->remote->key.gpu;
}

static bool items_are_sorted(const struct nixl_request *request)
{
    for (size_t i = 1; i < request->count; i++)
        if (item_compare(&request->items[i - 1], &request->items[i]) > 0)
            return false;
    return true;
}

/* The end of the access that begins with the item at `first`. */
static size_t items_end(const struct nixl_request *request, size_t first)
{
    size_t end = first + 1;

    while (end < request->count && end - first < MOST_PIECES &&
           item_compare(&request->items[first], &request->items[end]) == 0)
        end++;
    return end;
}

static bool request_cut(struct nixl_request *request)
{
    size_t number = 0;
    size_t end;

    if (!items_are_sorted(request))
        qsort(request->items, request->count, sizeof *request->items, item_compare);
    for (size_t first = 0; first < request->count; first = items_end(request, first))
        number++;
    request->operations = calloc(number > 0 ? number : 1, sizeof *request->operations);
    if (request->operations == NULL)
        return false;
    request->operation_count = number;
    number = 0;
    for (size_t first = 0; first < request->count; first = end) {
        const struct item *item = &request->items[first];

        end = items_end(request, first);
        request->operations[number++] = (struct operation){.request = request,
                                                           .gpu_here = item->region->key.gpu,
                                                           .gpu_there = item->remote->key.gpu,
                                                           .port = item->remote->key.port,
                                                           .first = first,
                                                           .count = end - first};
    }
    return true;
}

enum nixl_status nixl_request_prepare(struct nixl_request *request)
{
    enum nixl_status status = NIXL_SUCCESS;

    if (!request_cut(request) || !agent_enter(request->agent))
        return NIXL_ERR_BACKEND;
    for (size_t i = 0; i < request->count; i++) {
        request->items[i].region->references++;
        request->items[i].remote->references++;
    }
    for (size_t i = 0; i < request->operation_count; i++) {
        const struct operation *operation = &request->operations[i];

        if (link_get(request->peer, operation->gpu_here, operation->gpu_there, operation->port) ==
            NULL)
            status = NIXL_ERR_BACKEND;
    }
    agent_leave(request->agent);
    return status;
}
